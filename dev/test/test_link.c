/*
dev/bench/link.h: short timelines against times by hand. The link moves 1 GB a second, so a copy of n GB takes n seconds
and COPY_START, which near() ignores.
*/
#include "testing.h"
#include "dev/bench/link.h"

typedef struct {
    Timeline timeline;
    CopyWork copies;
} Calls;

static Calls calls;

static int setup(void **state) {
    (void)state;
    free(calls.timeline.events);
    memset(&calls, 0, sizeof calls);
    return 0;
}

static void work(double seconds) {
    timeline_add(&calls.timeline, LINK_WORK, 0, 0, 0);
    for (int level = 0; level < LEVELS; level++) {
        calls.timeline.events[calls.timeline.count - 1].seconds[level] = seconds;
    }
}

static void read_host(double seconds, double gigabytes) {
    work(seconds);
    calls.timeline.events[calls.timeline.count - 1].kind = LINK_READ;
    calls.timeline.events[calls.timeline.count - 1].bytes = 1e9 * gigabytes;
}

static CopyWork copy(LinkEventKind kind, int stream, double gigabytes) {
    timeline_add(&calls.timeline, kind, stream, 1e9 * gigabytes, ++calls.copies);
    return calls.copies;
}

static void wait_for(CopyWork copied) {
    timeline_add(&calls.timeline, LINK_WAIT, timeline_find(&calls.timeline, copied), 0, 0);
}

static void near(double seconds) {
    const Link link = {"1 GB/s", {1e9, 1e9, 1e9}};
    double found = timeline_seconds(&calls.timeline, &link, EXPECTED);
    if (fabs(found - seconds) > 1e-3) { fail_msg("found %.6f seconds, expected %.3f", found, seconds); }
}

TEST(test_a_copy_runs_beside_work) {
    work(1);
    CopyWork up = copy(LINK_UP, 0, 2);
    work(3);
    wait_for(up);
    near(4);
    up = copy(LINK_UP, 0, 5);  // after the work before it
    work(3);
    wait_for(up);
    work(1);
    near(10);
}

TEST(test_nobody_waits_for_a_copy) {
    copy(LINK_UP, 0, 5);
    work(1);
    near(1);
}

TEST(test_a_wait_is_for_one_copy) {
    CopyWork first = copy(LINK_UP, 0, 1), second = copy(LINK_UP, 1, 3);
    wait_for(first);
    near(1);
    wait_for(second);
    wait_for(first);
    near(4);
}

TEST(test_copies_of_a_stream_run_in_order) {
    copy(LINK_DOWN, 0, 2);
    wait_for(copy(LINK_UP, 0, 2));
    near(4);
}

TEST(test_directions_run_beside_each_other) {
    CopyWork down = copy(LINK_DOWN, 0, 2);
    wait_for(copy(LINK_UP, 1, 2));
    wait_for(down);
    near(2);
}

TEST(test_a_direction_takes_one_copy_at_a_time) {
    for (LinkEventKind kind = LINK_UP; kind <= LINK_DOWN; kind = (LinkEventKind)(kind + 1)) {
        setup(NULL);
        copy(kind, 0, 2);
        wait_for(copy(kind, 1, 2));
        near(4);
    }
}

TEST(test_an_operation_reads_host_memory) {
    copy(LINK_UP, 0, 2);
    read_host(0.5, 1);
    near(3.5);
    wait_for(copy(LINK_UP, 1, 1));  // after the read
    near(4.5);
}

// AdamW in n pieces through two slots: uploads follow one another, and the last download is left
TEST(test_pieces_through_two_slots) {
    enum { PIECES = 5 };
    CopyWork copies[2] = {copy(LINK_UP, 0, 1), 0};
    for (int i = 0; i < PIECES; i++) {
        if (i + 1 < PIECES) { copies[(i + 1) % 2] = copy(LINK_UP, (i + 1) % 2, 1); }
        wait_for(copies[i % 2]);
        copies[i % 2] = copy(LINK_DOWN, i % 2, 1);
    }
    wait_for(copies[0]);
    wait_for(copies[1]);
    near(PIECES + 1);
    assert_true(timeline_bytes(&calls.timeline, true) == 1e9 * PIECES);
    assert_true(timeline_bytes(&calls.timeline, false) == 1e9 * PIECES);
}

TEST(test_a_copy_takes_time_to_begin) {
    for (int i = 0; i < 100000; i++) { wait_for(copy(LINK_UP, 0, 0)); }
    near(100000 * COPY_START[EXPECTED]);
}

TEST(test_links_of_pcie) {
    Link links[NUM_LINKS];
    known_links(links);
    assert_string_equal(links[0].name, "PCIe 3 x8");
    assert_string_equal(links[5].name, "PCIe 5 x16");
    for (int i = 0; i < NUM_LINKS; i++) {
        const double *rate = links[i].rate;
        assert_true(rate[PESSIMISTIC] < rate[EXPECTED] && rate[EXPECTED] < rate[OPTIMISTIC]);
        assert_true(rate[OPTIMISTIC] < 1e9 * (i % 2 ? 2 : 1) * (8 << i / 2));  // the lanes' published rate
        if (i % 2) { assert_true(rate[EXPECTED] == 2 * links[i - 1].rate[EXPECTED]); }
    }
    assert_true(fabs(links[3].rate[EXPECTED] - 24.6e9) < 0.1e9);
}

int main(void) {
    TestList *list = test_list();
    for (int i = 0; i < list->count; i++) { list->tests[i].setup_func = setup; }
    int failed = run_all_tests("link");
    setup(NULL);
    return failed;
}
