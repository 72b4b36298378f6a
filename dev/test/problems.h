/*
Rows of llmc/self_check/cases.h for tests and benchmarks.
*/
#pragma once
#include "llmc/self_check/cases.h"

// the operation's shape in GPT-2 124M for B sequences of T tokens
static inline OpShape op_shape_gpt2(const OpCase *op, int B, int T) {
    OpShape s = op->shapes[0];
    bool flat = s.n > 0;  // the shape does not depend on the batch
    s.B = flat ? 0 : B;
    s.T = flat ? 0 : T;
    return s;
}

// the arrays' values before a run
static inline void problem_reset(Problem *p) {
    for (int i = 0; i < p->num_arrays; i++) { memcpy(p->array[i].data, p->array[i].start, array_bytes(&p->array[i])); }
}

// "matmul_forward variant 1 B=3 T=7 C=67 OC=37", for messages; valid until the next call
static inline const char *problem_title(const Problem *p) {
    static char title[160];
    const OpShape *s = &p->shape;
    const char *const letters[] = {"B", "T", "maxT", "C", "NH", "HS", "OC", "V", "Vp", "ranks", "rank", "n"};
    const size_t sizes[] = {(size_t)s->B,  (size_t)s->T,     (size_t)s->maxT, (size_t)s->C,
                            (size_t)s->NH, (size_t)s->HS,    (size_t)s->OC,   (size_t)s->V,
                            (size_t)s->Vp, (size_t)s->ranks, (size_t)s->rank, s->n};
    int length = snprintf(title, sizeof title, "%s variant %d", p->op->name, p->variant);
    for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++) {
        if (sizes[i]) {
            length += snprintf(title + length, sizeof title - (size_t)length, " %s=%zu", letters[i], sizes[i]);
        }
    }
    return title;
}

// NULL if the array's values are within `slack` times the row's tolerance, else a sentence with the worst element,
// valid until the next call. Any NaN is a difference.
static inline const char *array_difference(const Problem *p, const Array *a, const double *wanted, double slack) {
    static char sentence[512];
    double *got = array_doubles(a, a->data), error = relative_error(got, wanted, a->n);
    double tolerance = slack * array_tolerance(p, a);
    size_t worst = 0;
    for (size_t i = 0; i < a->n && !isnan(got[worst]); i++) {
        if (!(fabs(got[i] - wanted[i]) <= fabs(got[worst] - wanted[worst]))) { worst = i; }
    }
    snprintf(sentence, sizeof sentence, "%s: %s is off by %.3g, at most %.3g is allowed; element %zu is %.9g, not %.9g",
             problem_title(p), a->name, error, tolerance, worst, got[worst], wanted[worst]);
    free(got);
    return error <= tolerance ? NULL : sentence;
}
