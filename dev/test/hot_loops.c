// The operations of the CPU backend alone, which compile in seconds, for dev/test/test_vectors.sh.
#include "llmc/cpu_ops.h"

const Ops *hot_loops(void);
const Ops *hot_loops(void) { return &cpu_ops; }
