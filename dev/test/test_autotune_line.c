// A line of the autotune cache: a good one, and each way to be malformed.
#include "dev/test/testing.h"
#include "llmc/common/autotune_line.h"

typedef struct {
    int fused;
    unsigned char algo[2];
    float microseconds;
} Entry;

static bool parse(Entry *e, const char *text, char line[256]) {
    snprintf(line, 256, "%s", text);
    return autotune_line_parse(line, &e->fused, e->algo, sizeof e->algo, &e->microseconds);
}

static void test_good_line(void **state) {
    (void)state;
    Entry e;
    char line[256];
    assert_true(parse(&e, "H100\t120205\tkey\t5\t0aff\t12.50\n", line));
    assert_string_equal(line, "H100\t120205\tkey");
    assert_int_equal(e.fused, 5);
    assert_int_equal(e.algo[0], 10);
    assert_int_equal(e.algo[1], 255);
    assert_true(e.microseconds == 12.5f);
}

static void test_malformed_lines(void **state) {
    (void)state;
    static const char *const lines[] = {"",
                                        "\n",
                                        "\t\t\t\n",
                                        "H100\t120205\t5\t0aff\t12.5\n",        // a name without two tabs
                                        "H100\t120205\tkey\t5\t0aff\t12.5",     // no end: a line that is cut short
                                        "H100\t120205\tkey\t5\t0aff\tsoon\n",   // no number
                                        "H100\t120205\tkey\t5\t0aff\tnan\n",    // times must compare
                                        "H100\t120205\tkey\t5\t0aff\tinf\n",    //
                                        "H100\t120205\tkey\t5\t0aff\t-1\n",     //
                                        "H100\t120205\tkey\t5\t0af\t12.5\n",    // algorithms of other lengths
                                        "H100\t120205\tkey\t5\t0aff0\t12.5\n",  //
                                        "H100\t120205\tkey\t5\t0aFF\t12.5\n",   //
                                        "H100\t120205\tkey\t\t0aff\t12.5\n",    // parts that are no set of bits
                                        "H100\t120205\tkey\t-1\t0aff\t12.5\n",  //
                                        "H100\t120205\tkey\t4294967297\t0aff\t12.5\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        Entry e;
        char line[256];
        if (parse(&e, lines[i], line)) { fail_msg("line %zu passes", i); }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good_line), cmocka_unit_test(test_malformed_lines)};
    return cmocka_run_group_tests_name("autotune_line", tests, NULL, NULL);
}
