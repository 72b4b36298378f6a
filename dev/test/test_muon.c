/*
Muon: Newton-Schulz against its polynomial, applied to singular values; momentum and weights against formulas and by
parts, and the list of an update, which must have every element once at every layout.
*/
#include "testing.h"
#include "optimizer_fixture.h"
#include "llmc/common/device.h"
#include "llmc/common/rng.h"
#include "llmc/cpu_ops.h"
#include "llmc/parallel/orthogonalise.h"
#include "llmc/shapes/update_buckets.h"

// rounding of sums of at most 24 terms, amplified up to 3.4 times in each of five steps
static const double tolerance = DT_FLOATX == DT_BF16 ? 5e-2 : 2e-5;

// ---- Newton-Schulz

// x (rows,cols) = the matrix with these singular values, in directions that two reflections give
static void matrix_of(double *x, const double *values, int rows, int cols) {
    double u[24], v[24], of_u = 0, of_v = 0;
    for (int i = 0; i < rows; i++) { of_u += pow(u[i] = rng_normal(1, 1, (uint64_t)i), 2); }
    for (int j = 0; j < cols; j++) { of_v += pow(v[j] = rng_normal(1, 2, (uint64_t)j), 2); }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < cols; j++) {
            double sum = 0;
            for (int k = 0; k < rows && k < cols; k++) {
                sum += ((i == k) - 2 * u[i] * u[k] / of_u) * values[k] * ((j == k) - 2 * v[j] * v[k] / of_v);
            }
            x[i * cols + j] = sum;
        }
    }
}

static void orthogonalise(const Ops *ops, floatX *x, int rows, int cols, bool split_rows) {
    Exec ex = {0};
    Comm *alone = comm_single(&cpu_device);
    MuonMatrix matrix = {1, rows, cols, split_rows, 1};
    int C = split_rows ? cols : rows;
    floatX *scratch = (floatX *)calloc(NEWTON_SCHULZ_NORM + (size_t)(rows * cols + 2 * C * C), sizeof *scratch);
    newton_schulz(ops, alone, x, scratch, &matrix, &ex);
    comm_close(alone);
    free(scratch);
}

// A matrix U S V^T becomes U p(S) V^T, where p is five times a x + b x^3 + c x^5, after division by the norm.
TEST(test_singular_values) {
    static const int sizes[][2] = {{12, 12}, {6, 24}, {24, 6}, {1, 9}, {9, 1}, {1, 1}};
    for (size_t s = 0; s < 4 * LEN(sizes); s++) {
        int rows = sizes[s / 4][0], cols = sizes[s / 4][1], least = rows < cols ? rows : cols;
        double values[24], norm = 0, start[576], wanted[576], got[576];
        floatX x[576];
        for (int k = 0; k < least; k++) { norm += pow(values[k] = 3.0 / (1 + k), 2); }
        matrix_of(start, values, rows, cols);
        for (int i = 0; i < rows * cols; i++) { x[i] = to_floatX((real)start[i]); }
        orthogonalise(s % 4 < 2 ? &cpu_ops : &reference_ops, x, rows, cols, s % 2);
        for (int k = 0; k < least; k++) {
            double v = values[k] / (sqrt(norm) + 1e-7);
            for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
                v = v * (3.4445 + v * v * (-4.7750 + v * v * 2.0315));
            }
            assert_true(v > 0.65 && v < 1.25);
            values[k] = v;
        }
        matrix_of(wanted, values, rows, cols);
        for (int i = 0; i < rows * cols; i++) { got[i] = (double)to_real(x[i]); }
        double error = relative_error(got, wanted, (size_t)rows * (size_t)cols);
        if (!(error <= tolerance)) { fail_msg("(%d,%d) is off by %.2g, at most %.2g", rows, cols, error, tolerance); }
    }
}

// gradients of 0, of padding or an unused layer, stay 0
TEST(test_zero_matrix) {
    floatX x[96];
    memset(x, 0, sizeof x);
    orthogonalise(&cpu_ops, x, 8, 12, false);
    for (int i = 0; i < 96; i++) { assert_true(to_real(x[i]) == 0); }
}

// ---- momentum and weights

enum { N = 1000 };

static const StepHyper hyper = {(real)0.01, 0, 0, 0, (real)0.1, 0, 1, 7, (real)0.9};

// A step of elements [begin, end), with gradients that only depend on the element and the step; update (N).
static void take_step(const Ops *ops, OptimizerState *state, floatX *update, size_t begin, size_t end, int step,
                      real norm_squared) {
    Exec ex = {0};
    UpdateRange range = {begin, end - begin, begin, true, 5, 0, 0, 0};
    StepHyper h = hyper;
    real numbers[N];
    Gradient grads = {numbers, DT_REAL};
    h.step = step;
    for (size_t i = begin; i < end; i++) { numbers[i] = (real)rng_normal(3, (uint64_t)step, i); }
    ops->muon_momentum(update + begin, state, grads, &norm_squared, &range, end - begin, &h, &ex);
    ops->muon_weights(state, update + begin, &norm_squared, &range, end - begin, 2, &h, &ex);
}

// the formulas of muon.h, with the update in the place of an orthogonalised one
TEST(test_formulas) {
    double m[N] = {0}, w[N] = {0};
    floatX update[N];
    OptimizerState s = state_make(false, DT_REAL, N, N);
    for (int step = 1; step <= 3; step++) {
        take_step(&cpu_ops, &s, update, 0, N, step, 1);
        for (size_t i = 0; i < N; i++) {
            double g = (double)(real)rng_normal(3, (uint64_t)step, i), limit = DT_FLOATX == DT_BF16 ? 1e-2 : 1e-5;
            m[i] = 0.9 * m[i] + g;
            double u = g + 0.9 * m[i];
            assert_true(fabs(moment_value(&s, false, i) - m[i]) < 1e-5);
            assert_true(fabs((double)to_real(update[i]) - u) <= limit * (1 + fabs(u)));
            w[i] = w[i] * (1 - 0.01 * 0.1) - 0.01 * 2 * u;
            assert_true(fabs((double)to_real(s.params[i]) - w[i]) <= limit * (1 + fabs(w[i])));
        }
    }
    state_free(&s);
}

// A range that is cut anywhere between blocks of moments has the same bits, for every type of moments: this is what
// ZeRO and --offload do.
TEST(test_parts_have_the_bits_of_the_whole) {
    for (int t = 0; t < 3; t++) {
        OptimizerState whole = state_make(true, moment_types[t], N, N), parts = state_make(true, moment_types[t], N, N);
        floatX of_whole[N], of_parts[N];
        for (int step = 1; step <= 3; step++) {
            take_step(&cpu_ops, &whole, of_whole, 0, N, step, 1);
            take_step(&cpu_ops, &parts, of_parts, 5 * MOMENT_BLOCK, N, step, 1);
            take_step(&cpu_ops, &parts, of_parts, 0, 2 * MOMENT_BLOCK, step, 1);
            take_step(&cpu_ops, &parts, of_parts, 2 * MOMENT_BLOCK, 5 * MOMENT_BLOCK, step, 1);
            assert_memory_equal(of_whole, of_parts, sizeof of_whole);
        }
        assert_same_state(&whole, &parts, N);
        state_free(&whole);
        state_free(&parts);
    }
}

// Nothing changes if the norm is not finite, as in AdamW.
TEST(test_skipped_step) {
    const Ops *columns[] = {&cpu_ops, &reference_ops};
    for (int c = 0; c < 2; c++) {
        OptimizerState once = state_make(false, DT_BF16, N, N), skips = state_make(false, DT_BF16, N, N);
        floatX of_once[N], of_skips[N];
        take_step(columns[c], &once, of_once, 0, N, 1, 1);
        take_step(columns[c], &skips, of_skips, 0, N, 1, 1);
        take_step(columns[c], &skips, of_skips, 0, N, 1, (real)NAN);
        take_step(columns[c], &skips, of_skips, 0, N, 1, (real)INFINITY);
        assert_memory_equal(of_once, of_skips, sizeof of_once);
        assert_same_state(&once, &skips, N);
        state_free(&once);
        state_free(&skips);
    }
}

// ---- the list of an update

typedef struct {
    unsigned char *adamw, *momentum, *weights, *second;  // how often the list has each element of this rank's state
} Seen;

static void count_range(unsigned char *seen, size_t offset, size_t count) {
    for (size_t i = 0; i < count; i++) { seen[offset + i]++; }
}

// Counts the elements of each bucket. Offsets are in this rank's optimizer state.
static void count_list(const Seen *seen, const UpdateList *list, const ParamLayout *layout) {
    for (int i = 0; i < list->num_buckets; i++) {
        const UpdateBucket *b = &list->buckets[i];
        size_t shard = layout->sharding.stage < 1 ? 0 : param_bucket(layout, b->param_bucket).shard_offset;
        for (int r = b->first_range; r < b->first_range + b->num_ranges; r++) {
            const UpdateRange *range = &list->ranges[r];
            size_t offset = shard + b->offset + range->offset;
            assert_true(range->offset % MOMENT_BLOCK == 0 && range->offset + range->count <= b->count);
            count_range(b->kind == UPDATE_ADAMW      ? seen->adamw
                        : b->kind == UPDATE_MOMENTUM ? seen->momentum
                                                     : seen->weights,
                        offset, range->count);
            if (b->kind == UPDATE_ADAMW) { count_range(seen->second, b->v + range->offset, range->count); }
        }
    }
}

static void check_list(const GPT2Config *c, Sharding sharding) {
    ParamLayout layout = param_layout_sharded(c, sharding);
    UpdateList list = update_list(&layout);
    size_t state = layout.sharding.stage < 1 ? layout.total : layout.shard;
    size_t planned = num_second_moments(&layout), stored = 0, counted = 0;
    unsigned char *memory = (unsigned char *)calloc(3 * state + planned, 1);
    Seen seen = {memory, memory + state, memory + 2 * state, memory + 3 * state};
    assert_true((size_t)list.num_ranges <= max_update_ranges(&layout));
    count_list(&seen, &list, &layout);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        bool by_muon = updated_by_muon(&layout, p);
        for (int layer = 0; layer < param_layers(p, c); layer++) {
            ParamRange range = param_updated_range(&layout, p, layer, param_count(&layout, p));
            for (size_t i = range.state; i < range.state + range.count; i++) {
                assert_true(seen.adamw[i] == !by_muon && seen.momentum[i] == by_muon && seen.weights[i] == by_muon);
            }
            if (by_muon || range.count == 0) { continue; }
            size_t v = second_moment_at(&layout, p, layer, range);
            for (size_t i = v; i < v + range.count; i++) { assert_true(seen.second[i] == 1); }
            stored += range.count;
        }
    }
    for (size_t i = 0; i < planned; i++) {
        assert_true(seen.second[i] <= 1);
        counted += seen.second[i];
    }
    assert_int_equal(counted, stored);
    free(memory);
    free(list.buckets);
    free(list.ranges);
}

TEST(test_every_element_is_updated_once) {
    static const GPT2Config configs[] = {{13, 300, 384, 5, 3, 24}, {7, 61, 128, 1, 1, 8}, {9, 50, 128, 3, 4, 40}};
    for (size_t c = 0; c < LEN(configs); c++) {
        for (int k = 0; k < 2 * 2 * 4; k++) {
            OptimizerKind optimizer = k % 2 ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
            int offload = k / 2 % 2, stage = k / 4;
            for (int ranks = 1; ranks <= 8; ranks++) {
                for (int t = 1; t <= 3 && (stage > 0 || ranks == 1); t++) {
                    for (int r = 0; r < ranks * t; r++) {
                        Sharding sharding = {ranks, r / t, stage, t, r % t, offload, optimizer};
                        check_list(&configs[c], sharding);
                    }
                }
            }
        }
    }
}

int main(void) { return run_all_tests("muon"); }
