/*
The outlier detector against a plain long double z-score over the latest 128 values, on a stream whose mean drifts by
orders of magnitude, where running sums lose their digits; values that are not stored; the JSON, bit for bit.
*/
#include "testing.h"
#include "llmc/run/schedule.h"
#include "llmc/common/rng.h"

// cmocka's assert_float_equal compares in single precision
#define assert_near(a, b, tolerance) assert_true(fabs((double)(a) - (double)(b)) <= (tolerance))

static double plain_zscore(const double *latest) {
    long double mean = 0, variance = 0;
    for (int i = 0; i < 128; i++) { mean += latest[i]; }
    mean /= 128;
    for (int i = 0; i < 128; i++) { variance += (latest[i] - mean) * (latest[i] - mean); }
    return (double)((latest[127] - mean) / sqrtl(variance / 128));
}

TEST(test_zscore) {
    double values[1000];
    for (uint64_t i = 0; i < 1000; i++) { values[i] = 11 * exp(-(double)i / 50) + 1e-3 * rng_normal(1, 2, i); }
    values[300] = 1e7;  // leaves the window at 428, and must leave no trace there
    values[700] = -40;
    OutlierDetector detector = {{0}, 0};
    for (int i = 0; i < 1000; i++) {
        double z = outlier_zscore(&detector, values[i]);
        if (i < 128) {
            assert_true(isnan(z));
        } else {
            assert_near(z, plain_zscore(values + i - 127), 1e-8);
        }
    }
}

TEST(test_known_values) {
    OutlierDetector detector = {{0}, 0};
    for (int i = 0; i < 129; i++) { outlier_zscore(&detector, 0); }
    assert_near(outlier_zscore(&detector, 1), sqrt(127), 1e-13);  // the highest z there is
    assert_near(outlier_zscore(&detector, 1), sqrt(63), 1e-13);
    for (int i = 0; i < 125; i++) { outlier_zscore(&detector, 0); }
    assert_near(outlier_zscore(&detector, 0), -sqrt(2. / 126), 1e-13);  // both ones still inside
    assert_near(outlier_zscore(&detector, 0), -sqrt(1. / 127), 1e-13);
    assert_true(outlier_zscore(&detector, 0) == 0);  // constant again: no spread
}

TEST(test_constant_is_zero) {
    const double constants[] = {0, 0.1, 1. / 3, -1e-300, 3.4e38, 123456789.123456789};
    for (int c = 0; c < 6; c++) {
        OutlierDetector detector = {{0}, 0};
        for (int i = 0; i < 128; i++) { assert_true(isnan(outlier_zscore(&detector, constants[c]))); }
        for (int i = 0; i < 300; i++) { assert_true(outlier_zscore(&detector, constants[c]) == 0); }
    }
}

TEST(test_values_that_are_not_stored) {
    const double unusable[] = {(double)NAN, (double)-NAN, (double)INFINITY, (double)-INFINITY, 1e300, -3.5e38};
    OutlierDetector clean = {{0}, 0}, disturbed = {{0}, 0};
    for (uint64_t i = 0; i < 300; i++) {
        double z = outlier_zscore(&disturbed, unusable[i % 6]);
        assert_true(isinf(z) && z > 0);
        double x = rng_normal(3, 4, i), expected = outlier_zscore(&clean, x), got = outlier_zscore(&disturbed, x);
        assert_true(got == expected || (isnan(got) && isnan(expected)));
    }
    assert_int_equal(disturbed.count, 300);
    double z = outlier_zscore(&disturbed, (double)FLT_MAX);  // the largest that is stored
    assert_near(z, sqrt(127), 1e-6);
}

// through text, as a checkpoint goes
static void reload(OutlierDetector *into, const OutlierDetector *from) {
    cJSON *json = outlier_detector_to_json(from);
    char *text = cJSON_Print(json);
    cJSON *parsed = cJSON_Parse(text);
    assert_non_null(parsed);
    assert_true(outlier_detector_from_json(into, parsed));
    cJSON_Delete(json);
    cJSON_Delete(parsed);
    free(text);
}

// a detector saved after any number of values continues with the same bits
TEST(test_json_resumes_exactly) {
    const uint64_t saved_after[] = {0, 1, 127, 128, 129, 200, 256, 1001};
    for (int c = 0; c < 8; c++) {
        OutlierDetector detector = {{0}, 0}, resumed;
        memset(&resumed, 0x5A, sizeof resumed);
        for (uint64_t i = 0; i < saved_after[c]; i++) { outlier_zscore(&detector, 3 + rng_normal(5, 6, i) / 3); }
        reload(&resumed, &detector);
        for (uint64_t i = 0; i < 300; i++) {
            double x = 3 + rng_normal(5, 7, i) / 3, a = outlier_zscore(&detector, x), b = outlier_zscore(&resumed, x);
            assert_memory_equal(&a, &b, sizeof a);
        }
    }
}

TEST(test_json_keeps_every_bit) {
    const double odd[] = {
        0., -0., 5e-324, 2.2250738585072014e-308, 0.1, 1. / 3, -(double)FLT_MAX, 4.35, 1 + DBL_EPSILON};
    OutlierDetector detector = {{0}, 0}, loaded;
    for (int i = 0; i < 128; i++) { outlier_zscore(&detector, i < 9 ? odd[i] : rng_normal(8, 8, (uint64_t)i)); }
    reload(&loaded, &detector);
    assert_int_equal(loaded.count, 128);
    assert_memory_equal(loaded.window, detector.window, sizeof detector.window);
}

TEST(test_json_refusals) {
    const char *texts[] = {"null",      "{}",       "\"0x1p0\"", "[1.5]",     "[null]",     "[\"\"]",
                           "[\"one\"]", "[\"1x\"]", "[\"nan\"]", "[\"inf\"]", "[\"1e39\"]", "[\"1\", [\"1\"]]"};
    OutlierDetector detector = {{7}, 1};
    for (size_t i = 0; i < LEN(texts); i++) {
        cJSON *json = cJSON_Parse(texts[i]);
        assert_non_null(json);
        if (outlier_detector_from_json(&detector, json)) { fail_msg("accepted %s", texts[i]); }
        cJSON_Delete(json);
    }
    assert_false(outlier_detector_from_json(&detector, NULL));  // the key is missing
    cJSON *long_window = cJSON_CreateArray();
    for (int i = 0; i < 129; i++) { cJSON_AddItemToArray(long_window, cJSON_CreateString("0x1p+0")); }
    assert_false(outlier_detector_from_json(&detector, long_window));
    cJSON_DeleteItemFromArray(long_window, 128);
    assert_true(detector.window[0] == 7 && detector.count == 1);  // untouched so far
    assert_true(outlier_detector_from_json(&detector, long_window));
    assert_int_equal(detector.count, 128);
    cJSON_Delete(long_window);
}

int main(void) { return run_all_tests("outlier_detector"); }
