/*
dev/bench/link.h: short timelines against times by hand. The link moves 1 GB a second, so a copy of n GB takes n seconds
and COPY_START, which assert_takes() ignores.
*/
#include "testing.h"
#include "dev/bench/link.h"

enum { MOST_CALLS = 12 };

// a call: seconds of work, and GB over the link
typedef struct {
    LinkEventKind kind;
    int at;  // LINK_UP, LINK_DOWN: the stream; LINK_WAIT: the number of the copy, from 1
    double seconds, gigabytes;
} Call;

#define WORK(SECONDS)                                                                                                  \
    { LINK_WORK, 0, SECONDS, 0 }
#define READ(SECONDS, GIGABYTES)                                                                                       \
    { LINK_READ, 0, SECONDS, GIGABYTES }
#define UP(STREAM, GIGABYTES)                                                                                          \
    { LINK_UP, STREAM, 0, GIGABYTES }
#define DOWN(STREAM, GIGABYTES)                                                                                        \
    { LINK_DOWN, STREAM, 0, GIGABYTES }
#define WAIT(COPY)                                                                                                     \
    { LINK_WAIT, COPY, 0, 0 }

static const struct {
    const char *what;
    double seconds;
    int count;
    Call calls[MOST_CALLS];
} cases[] = {
    {"a copy runs beside work", 4, 4, {WORK(1), UP(0, 2), WORK(3), WAIT(1)}},
    {"a copy runs after the work before it", 10, 5, {WORK(4), UP(0, 5), WORK(3), WAIT(1), WORK(1)}},
    {"nobody waits for a copy", 1, 2, {UP(0, 5), WORK(1)}},
    {"a wait is for one copy", 1, 3, {UP(0, 1), UP(1, 3), WAIT(1)}},
    {"a later wait for an earlier copy", 4, 5, {UP(0, 1), UP(1, 3), WAIT(1), WAIT(2), WAIT(1)}},
    {"copies of a stream run in order", 4, 3, {DOWN(0, 2), UP(0, 2), WAIT(2)}},
    {"directions run beside each other", 2, 4, {DOWN(0, 2), UP(1, 2), WAIT(2), WAIT(1)}},
    {"one upload at a time", 4, 3, {UP(0, 2), UP(1, 2), WAIT(2)}},
    {"one download at a time", 4, 3, {DOWN(0, 2), DOWN(1, 2), WAIT(2)}},
    {"an operation reads host memory", 3.5, 2, {UP(0, 2), READ(0.5, 1)}},
    {"a copy runs after the read", 4.5, 4, {UP(0, 2), READ(0.5, 1), UP(1, 1), WAIT(2)}},
    // AdamW in three pieces through two slots: uploads follow one another, and the last download is left
    {"pieces through two slots",
     4,
     11,
     {UP(0, 1), UP(1, 1), WAIT(1), DOWN(0, 1), UP(0, 1), WAIT(2), DOWN(1, 1), WAIT(4), DOWN(0, 1), WAIT(6), WAIT(5)}},
};

static void add_call(Timeline *t, const Call *c, CopyWork *copies) {
    bool copy = c->kind == LINK_UP || c->kind == LINK_DOWN;
    int at = c->kind == LINK_WAIT ? timeline_find(t, (CopyWork)c->at) : c->at;
    timeline_add(t, c->kind, at, 1e9 * c->gigabytes, copy ? ++*copies : 0);
    for (int level = 0; level < LEVELS; level++) { t->events[t->count - 1].seconds[level] = c->seconds; }
}

static void assert_takes(const char *what, const Timeline *t, double seconds) {
    const Link link = {"1 GB/s", {1e9, 1e9, 1e9}};
    double found = timeline_seconds(t, &link, EXPECTED);
    if (fabs(found - seconds) > 1e-3) { fail_msg("%s: found %.6f seconds, expected %.3f", what, found, seconds); }
}

TEST(test_timelines) {
    for (size_t i = 0; i < LEN(cases); i++) {
        Timeline t = {NULL, 0, 0};
        CopyWork copies = 0;
        double up = 0, down = 0;
        for (int k = 0; k < cases[i].count; k++) {
            const Call *c = &cases[i].calls[k];
            add_call(&t, c, &copies);
            up += c->kind == LINK_UP || c->kind == LINK_READ ? 1e9 * c->gigabytes : 0;
            down += c->kind == LINK_DOWN ? 1e9 * c->gigabytes : 0;
        }
        assert_takes(cases[i].what, &t, cases[i].seconds);
        assert_true(timeline_bytes(&t, true) == up && timeline_bytes(&t, false) == down);
        free(t.events);
    }
}

TEST(test_a_copy_takes_time_to_begin) {
    Timeline t = {NULL, 0, 0};
    CopyWork copies = 0;
    for (int i = 1; i <= 100000; i++) {
        const Call copy = UP(0, 0), wait = WAIT(i);
        add_call(&t, &copy, &copies);
        add_call(&t, &wait, &copies);
    }
    assert_takes("copies of no bytes", &t, 100000 * COPY_START[EXPECTED]);
    free(t.events);
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

int main(void) { return run_all_tests("link"); }
