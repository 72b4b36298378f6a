// The operations of the CPU backend and MPI's sums alone, which compile in seconds, for dev/test/test_vectors.sh.
#include "llmc/cpu_ops.h"

const Ops *hot_loops(void);
const Ops *hot_loops(void) { return &cpu_ops; }

#ifdef HAVE_MPI
#include "llmc/parallel/comm_mpi.h"

const void *hot_sums(void);
const void *hot_sums(void) { return (const void *)sum_in_order; }
#endif
