/*
Replaces llmc/common/ptx.cuh in the emulator: simt.h executes the same functions. The compiler searches dev/emulator
before the root of the tree, so cuda_common.cuh includes this file.
*/
#pragma once
#include <cuda_runtime.h>

static constexpr int MULTIPROCESSOR_THREADS = 1024;

using simt::pdl_enabled;
using simt::wait_for_previous_kernel;
#define LAUNCH_KERNEL(kernel, grid, block, shared_bytes, stream, ...)                                                  \
    simt::launch(#kernel, kernel, (grid), (block), (shared_bytes), (stream)__VA_OPT__(, ) __VA_ARGS__)
#define UNROLL
#define NO_UNROLL

// shared.h has SHARED_ARRAY, DYNAMIC_SHARED and SharedPtr
template <class T> uint32_t shared_address(SharedPtr<T> p) { return p.address; }
using simt::load_shared;
using simt::store_shared;

using simt::load_global;
using simt::store_global;
// AddressSanitizer sees an address outside of the array
inline void prefetch_l2(const void *address) { (void)*static_cast<const volatile char *>(address); }

using simt::exp2_fast;
using simt::log2_device;
using simt::log_device;
using simt::reciprocal_fast;
using simt::rsqrt_device;

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) { simt::ldmatrix(r, address, false); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) { simt::ldmatrix(r, address, true); }
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { simt::mma(d, a, b0, b1); }

inline bool has_cp_async() { return simt::settings().capability >= 80; }
inline void start_cp_async(uint32_t to, const void *from, bool valid) { simt::start_copy(to, from, 16, valid); }
inline void cp_async_commit() { simt::commit_copies(); }
template <int PENDING> void cp_async_wait() { simt::wait_for_copies(PENDING); }
