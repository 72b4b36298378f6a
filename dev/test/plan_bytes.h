// Bytes of one tensor of a memory plan.
#pragma once
#include "llmc/memory/plan.h"

// planned bytes of one tensor; 0 if it is not in the plan
static inline size_t plan_tensor_bytes(const Plan *plan, const char *name) {
    for (int i = 0; i < plan->count; i++) {
        if (strcmp(plan->tensors[i].name, name) == 0) { return plan->tensors[i].bytes; }
    }
    return 0;
}
