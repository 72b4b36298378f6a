/*
The emulator's scheduler: runs one block at a time on an OS thread, with one fiber per CUDA thread.
*/
#pragma once
#include "llmc/common/floatx.h"
#include "llmc/common/rng.h"
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>
#include <sys/mman.h>

#if !defined(__x86_64__) || !defined(__linux__)
#error "the emulator switches stacks in x86-64 assembly: it needs x86-64 Linux"
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN
#endif
#ifdef SIMT_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIMT_TSAN  // tests.mk defines it beside -fsanitize=thread
#include <sanitizer/tsan_interface.h>
#endif

// ---- vector types, aligned as in CUDA

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define SIMT_VECTOR_TYPES(type, name)                                                                                  \
    struct alignas(2 * sizeof(type)) name##2 {                                                                         \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    struct name##3 {                                                                                                   \
        type x, y, z;                                                                                                  \
    };                                                                                                                 \
    struct alignas(4 * sizeof(type)) name##4 {                                                                         \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                                   \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                                        \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
SIMT_VECTOR_TYPES(float, float)
SIMT_VECTOR_TYPES(unsigned, uint)

namespace simt {

// ---- settings and counts

inline int setting_from_environment(const char *name, int default_value) {
    const char *value = std::getenv(name);
    return value ? std::atoi(value) : default_value;
}

// Execution order, arithmetic and checks. A test sets these between launches; environment variables set the defaults.
// The default arithmetic is IEEE's. A GPU may round and order otherwise, within NVIDIA's documented bounds:
// SIMT_HARDWARE=1 turns on all settings of that kind.
struct Settings {
    // 0 forward, 1 reverse, 2 and above: seed of a random order
    int warp_order = setting_from_environment("SIMT_ORDER", 0);
    // completion of cp.async: 0 at the wait, 1 at the copy
    int eager_async = setting_from_environment("SIMT_ASYNC", 0);
    // 0 skips the race check and runs faster
    int check_races = setting_from_environment("SIMT_RACES", 1);
    // compute capability, times 10: 90 as an H100, or 75 as a T4, without cp.async and bf16 on tensor cores
    int capability = setting_from_environment("SIMT_CAPABILITY", 90);
    // shared memory of a block at most, in KiB, from sm_80 on: 227 as an H100, 163 as an A100, 99 as an RTX
    int shared_kib = setting_from_environment("SIMT_SHARED_KIB", 227);
    int hardware = setting_from_environment("SIMT_HARDWARE", 0);
    // tensor cores: 0 fp32 sums in order; 1 aligned and truncated sums of 8 products (tensor_core_sum)
    int mma_rounding = setting_from_environment("SIMT_MMA", hardware);
    // special functions: 1 adds errors up to NVIDIA's documented bounds to ex2, rcp, rsqrt, log, log2, cuBLASLt's tanh
    int approximate = setting_from_environment("SIMT_APPROX", hardware);
    // cuBLASLt: 0 every shape has one order of sums; above 0 a seed that gives each shape an order of its own
    int product_orders = setting_from_environment("SIMT_PRODUCTS", hardware);
    // TF32: 0 rounds inputs to nearest; 1 truncates, as tensor cores do with fp32 bits
    int tf32_truncates = setting_from_environment("SIMT_TF32", hardware);
    // streams: 0 work runs at the call; 1 work runs when the host waits for it, the latest moment that CUDA allows
    int late_streams = setting_from_environment("SIMT_LATE", hardware);
    // streams: 0 work runs in the order of the calls. Else late, and in an order that the events allow: 1 the oldest
    // stream first, 2 the youngest first, 3 and above: seed of a random order
    int stream_order = setting_from_environment("SIMT_STREAMS", 0);
    // memory: 1 host code that touches device memory crashes, and so does a kernel that passes the end of an allocation
    int private_memory = setting_from_environment("SIMT_PRIVATE", hardware);
    // capacity of the device, and of each module that cuBLASLt loads there, in MiB
    int device_mib = setting_from_environment("SIMT_DEVICE_MIB", 8192);
    int module_mib = setting_from_environment("SIMT_MODULE_MIB", 1);
    // capacity for pinned host memory, in MiB
    int pinned_mib = setting_from_environment("SIMT_PINNED_MIB", INT_MAX);
    int gpus = setting_from_environment("SIMT_GPUS", 1);  // of the machine
    // "name[:threads][:mode]": launches of this kernel, in blocks of that size, fail. cuBLASLt's products are
    // "cublasLtMatmul[:epilogue][:mode]". Modes:
    //   none     the first element of the first output is wrong; of a product the last column or last sum
    //   nan      the same elements are NaN
    //   nothing  the kernel does not run
    //   error    the launch returns an error
    //   crash    the program aborts when the kernel runs
    //   hang     the kernel never ends
    const char *broken_kernel = std::getenv("SIMT_BREAK");
    // "join:mode": a driver's fault in a captured PDL. Join: what the kernel follows: memset, event (work of
    // another stream), matmul (cuBLASLt's), kernel; or large, after 16 nodes. Modes:
    //   launch   the launch returns an error
    //   graph    the graph cannot be instantiated
    //   nothing  the kernel does not run
    //   twice    the kernel runs twice
    const char *pdl_fault = std::getenv("SIMT_PDL");
    const char *ptx = std::getenv("SIMT_PTX");            // launches run the kernels of this file of PTX (ptx.h)
    const char *launches = std::getenv("SIMT_LAUNCHES");  // file that gets a line for each launch (record_launch)
    const char *uuid = std::getenv("SIMT_UUID");          // the first 16 bytes are the GPU's UUID
    bool only_count_races = false;                        // a race does not abort; for tests of the race check
};

// Since the program started.
struct Counts {
    uint64_t async_copies = 0;  // of each thread
    uint64_t races = 0;
};

inline Settings &settings() {
    static Settings all;
    return all;
}

inline Counts &counts() {
    static Counts all;
    return all;
}

// ---- the state of a running block

struct Block;
enum Status : uint8_t { NOT_STARTED, RUNNABLE, AT_WARP_OPERATION, AT_BLOCK_BARRIER, RETURNED };

// Executes a warp operation for the lanes of `mask`. Thread::operands points to a lane's operands and results.
typedef void (*WarpOperation)(Block &block, int warp, uint32_t mask);

struct Fiber {
    void *stack_pointer;  // valid while the fiber is suspended
    char *stack;          // lowest byte; a guard page lies below
    void *asan_stack, *tsan_fiber;
};

inline void tsan_destroy_fiber(void *fiber);

// a cp.async in flight: the thread has not waited for it
struct AsyncCopy {
    uint32_t to, bytes, group;
    const void *from;  // NULL copies zeros
};

struct Thread {
    uint3 index;
    Status status;
    int line;  // source line of the __syncthreads that the thread waits at
    uint32_t mask;
    WarpOperation operation;
    void *operands;
    Fiber *fiber;
    std::vector<AsyncCopy> copies;
    uint32_t groups;  // number of committed cp.async groups
    bool waited;      // wait_for_previous_kernel was called
};

// The latest accesses of one kind. `who` is a thread, SEVERAL_LANES + warp, or SEVERAL_WARPS.
enum { SEVERAL_LANES = 1024, SEVERAL_WARPS = 2048 };
struct Access {
    uint32_t time;
    uint16_t who;
};

// race-check state of two bytes of shared memory
struct Shadow {
    Access write, read, update;  // update: atomics, which do not race with each other
    uint16_t in_flight;          // number of cp.async copies in flight to these bytes
};

// one shared array: the dynamic one, or a static one identified by the address of a char at the declaration
struct SharedRegion {
    const void *declaration;
    const char *name;
    uint32_t begin, end;
};

enum { WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP };
// limits of an H100, and of a T4; SHARED_WINDOW_BYTES is larger, since arrays lie apart
static constexpr int SM_75_SHARED_BYTES = 64 * 1024;
enum { SHARED_BYTES = 227 * 1024, STATIC_SHARED_BYTES = 48 * 1024, SHARED_WINDOW_BYTES = 288 * 1024, SHADOW_UNIT = 2 };

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 4096 };

// static and dynamic shared memory of a block, at most
inline int shared_bytes_limit() {
    return settings().capability < 80 ? SM_75_SHARED_BYTES : settings().shared_kib * 1024;
}

// The block that one OS thread runs. Memory and idle fibers are reused by the next block.
struct Block {
    const char *kernel = "";
    const std::function<void()> *body = nullptr;  // calls the kernel for the current thread
    dim3 grid, dim;
    uint3 index = {0, 0, 0};
    int num_threads = 0, num_warps = 0, num_returned = 0, current = 0;
    std::vector<Thread> threads;
    int warp_order[MAX_WARPS] = {0};
    Counts counts;

    std::vector<Fiber *> idle_fibers;
    void *scheduler_stack_pointer = nullptr, *scheduler_asan_stack = nullptr, *scheduler_tsan_fiber = nullptr;
    const void *scheduler_stack = nullptr;
    size_t scheduler_stack_bytes = 0;

    // Logical time, which advances at every barrier. An access older than a warp's latest barrier is ordered before all
    // later accesses of the warp. An access older than the block's latest barrier is ordered before all later accesses.
    uint32_t time = 0, start = 0, block_barrier = 0, warp_barrier[MAX_WARPS] = {0};
    std::vector<SharedRegion> regions;  // [0] is the dynamic shared memory
    uint32_t static_bytes = 0;
    char *shared = static_cast<char *>(std::aligned_alloc(1024, SHARED_WINDOW_BYTES));
    std::vector<Shadow> shadows = std::vector<Shadow>(SHARED_WINDOW_BYTES / SHADOW_UNIT);

    Block() = default;
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    ~Block() {
        for (Fiber *fiber : idle_fibers) {
            tsan_destroy_fiber(fiber->tsan_fiber);
            munmap(fiber->stack - GUARD_BYTES, STACK_BYTES + GUARD_BYTES);
            delete fiber;
        }
        std::free(shared);
    }
};

// The block that this OS thread runs. Global to the thread, as threadIdx is in CUDA.
inline thread_local Block *current_block = nullptr;
inline Block &block() { return *current_block; }

// Aborts with one sentence that names the kernel, the block and the thread (-1: no thread).
[[noreturn]] __attribute__((format(printf, 2, 3))) inline void refuse(int thread, const char *format, ...) {
    const Block &b = block();
    char what[512], who[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (thread >= 0) { snprintf(who, sizeof who, " thread %d", thread); }
    std::fprintf(stderr, "simt: kernel %s: block (%u,%u,%u)%s: %s\n", b.kernel, b.index.x, b.index.y, b.index.z, who,
                 what);
    std::abort();
}

// Refuses an instruction that GPUs have from this capability on.
inline void require_capability(int capability, const char *instruction) {
    if (settings().capability >= capability) { return; }
    refuse(block().current, "%s needs sm_%d, and this GPU is sm_%d", instruction, capability, settings().capability);
}

// ---- fibers

// Saves the callee-saved registers and the stack pointer in `from`, and continues on stack `to`. A jump replaces `ret`:
// a `ret` to another stack misses the return-address predictor and takes 2.5 times as long.
extern "C" void simt_switch_stack(void **from, void *to);
__asm__(".text\n.weak simt_switch_stack\n.type simt_switch_stack,@function\nsimt_switch_stack:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
        "pop %rcx\njmp *%rcx\n"
        ".size simt_switch_stack,.-simt_switch_stack\n");

// AddressSanitizer needs a call before and after each switch of stacks. Empty without AddressSanitizer.
inline void asan_start_switch([[maybe_unused]] void **own, [[maybe_unused]] const void *stack,
                              [[maybe_unused]] size_t size) {
#ifdef SIMT_ASAN
    __sanitizer_start_switch_fiber(own, stack, size);
#endif
}
inline void asan_finish_switch([[maybe_unused]] void *own, [[maybe_unused]] const void **stack,
                               [[maybe_unused]] size_t *size) {
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(own, stack, size);
#endif
}

// ThreadSanitizer needs a call before each switch, in the function that switches. ThreadSanitizer takes a switch for
// synchronization and finds only races between blocks on different OS threads. The emulator's race check finds races
// within a block. Empty without ThreadSanitizer.
__attribute__((always_inline)) inline void tsan_start_switch([[maybe_unused]] void **own,
                                                             [[maybe_unused]] void *fiber) {
#ifdef SIMT_TSAN
    *own = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber, 0);
#endif
}
inline void *tsan_create_fiber() {
#ifdef SIMT_TSAN
    return __tsan_create_fiber(0);
#endif
    return nullptr;
}
inline void tsan_destroy_fiber([[maybe_unused]] void *fiber) {
#ifdef SIMT_TSAN
    __tsan_destroy_fiber(fiber);
#endif
}

// Switches from the scheduler to a thread. Returns when the thread waits or ends.
inline void resume(Block &b, int thread) {
    Fiber *fiber = b.threads[thread].fiber;
    b.current = thread;
    asan_start_switch(&b.scheduler_asan_stack, fiber->stack, STACK_BYTES);
    tsan_start_switch(&b.scheduler_tsan_fiber, fiber->tsan_fiber);
    simt_switch_stack(&b.scheduler_stack_pointer, fiber->stack_pointer);
    asan_finish_switch(b.scheduler_asan_stack, nullptr, nullptr);
}

// Switches from a thread to the scheduler.
inline void suspend(Fiber *fiber) {
    Block &b = block();
    asan_start_switch(&fiber->asan_stack, b.scheduler_stack, b.scheduler_stack_bytes);
    tsan_start_switch(&fiber->tsan_fiber, b.scheduler_tsan_fiber);
    simt_switch_stack(&fiber->stack_pointer, b.scheduler_stack_pointer);
    asan_finish_switch(fiber->asan_stack, nullptr, nullptr);
}

// Entry of a fiber. A fiber runs one CUDA thread after another and never returns.
inline void fiber_main() {
    asan_finish_switch(nullptr, &block().scheduler_stack, &block().scheduler_stack_bytes);
    for (;;) {
        Block &b = block();
        (*b.body)();
        Thread &thread = b.threads[b.current];
        if (!thread.waited) {
            refuse(b.current, "returned without wait_for_previous_kernel(): a kernel begins with it");
        }
        if (!thread.copies.empty()) { refuse(b.current, "returned with cp.async copies in flight; wait for them"); }
        thread.status = RETURNED;
        b.num_returned++;
        b.idle_fibers.push_back(thread.fiber);
        suspend(thread.fiber);
    }
}

// The initial stack returns into fiber_main at the first switch.
inline Fiber *new_fiber() {
    void *memory = mmap(nullptr, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) { refuse(-1, "no memory for a fiber's stack"); }
    mprotect(memory, GUARD_BYTES, PROT_NONE);
    char *stack = static_cast<char *>(memory) + GUARD_BYTES;
    void **return_address = reinterpret_cast<void **>(stack + STACK_BYTES) - 2;
    *return_address = reinterpret_cast<void *>(fiber_main);
    // 6 registers are popped before the return address
    return new Fiber{return_address - 6, stack, nullptr, tsan_create_fiber()};
}

inline void start_thread(Block &b, int thread) {
    if (b.idle_fibers.empty()) { b.idle_fibers.push_back(new_fiber()); }
    b.threads[thread].fiber = b.idle_fibers.back();
    b.threads[thread].status = RUNNABLE;
    b.idle_fibers.pop_back();
}

// ---- scheduler

// Suspends the thread until the scheduler has executed the operation for all lanes of the mask.
inline void wait_for_warp(uint32_t mask, WarpOperation operation, void *operands) {
    Block &b = block();
    Thread &thread = b.threads[b.current];
    if (!(mask >> (b.current % WARP) & 1)) { refuse(b.current, "is not in its own mask %08x", mask); }
    thread.status = AT_WARP_OPERATION;
    thread.mask = mask;
    thread.operation = operation;
    thread.operands = operands;
    suspend(thread.fiber);
}

inline void wait_for_block(int line) {
    Block &b = block();
    Thread &thread = b.threads[b.current];
    thread.status = AT_BLOCK_BARRIER;
    thread.line = line;
    suspend(thread.fiber);
}

// True if all lanes of a waiting thread's mask wait for the same operation.
inline bool all_arrived(const Block &b, int waiting) {
    const Thread &first = b.threads[waiting];
    int lane0 = waiting / WARP * WARP;
    for (int lane = 0; lane < WARP; lane++) {
        if (!(first.mask >> lane & 1)) { continue; }
        if (lane0 + lane >= b.num_threads || b.threads[lane0 + lane].status == RETURNED) {
            refuse(waiting, "waits for lanes %08x of its warp, but lane %d has returned or does not exist", first.mask,
                   lane);
        }
        const Thread &other = b.threads[lane0 + lane];
        if (other.status != AT_WARP_OPERATION || other.mask != first.mask) { return false; }
        if (other.operation != first.operation) {
            refuse(waiting, "and thread %d of its warp are at different warp operations", lane0 + lane);
        }
    }
    return true;
}

// Executes the operations whose lanes have all arrived, and makes these lanes runnable. Returns true if any ran.
inline bool run_warp_operations(Block &b, int warp) {
    int begin = warp * WARP, end = std::min(begin + WARP, b.num_threads);
    bool any = false;
    for (int i = begin; i < end; i++) {
        Thread &thread = b.threads[i];
        if (thread.status != AT_WARP_OPERATION || !all_arrived(b, i)) { continue; }
        thread.operation(b, warp, thread.mask);
        for (int j = begin; j < end; j++) {
            if (thread.mask >> (j - begin) & 1) { b.threads[j].status = RUNNABLE; }
        }
        any = true;
    }
    return any;
}

// Runs a warp until every lane waits at a block barrier, for a missing lane, or has returned. True if any lane ran.
inline bool run_warp(Block &b, int warp) {
    int begin = warp * WARP, end = std::min(begin + WARP, b.num_threads);
    bool reverse = settings().warp_order % 2 == 1, ran = true, ran_ever = false;
    while (ran) {
        ran = false;
        for (int i = begin; i < end; i++) {
            int thread = reverse ? begin + end - 1 - i : i;
            if (b.threads[thread].status == NOT_STARTED) { start_thread(b, thread); }
            if (b.threads[thread].status != RUNNABLE) { continue; }
            resume(b, thread);
            ran = true;
        }
        ran |= run_warp_operations(b, warp);
        ran_ever |= ran;
    }
    return ran_ever;
}

// Releases the block if every thread waits at the same __syncthreads. Returns true if it was released.
inline bool release_block(Block &b) {
    int waiting = -1, returned = -1;
    for (int i = 0; i < b.num_threads; i++) {
        const Thread &thread = b.threads[i];
        if (thread.status == RETURNED) { returned = i; }
        if (thread.status == AT_WARP_OPERATION) { return false; }
        if (thread.status != AT_BLOCK_BARRIER) { continue; }
        if (waiting >= 0 && thread.line != b.threads[waiting].line) {
            refuse(i, "waits at the __syncthreads of line %d and thread %d at that of line %d", thread.line, waiting,
                   b.threads[waiting].line);
        }
        waiting = i;
    }
    if (waiting < 0) { return false; }
    if (returned >= 0) {
        refuse(waiting, "waits at the __syncthreads of line %d, but thread %d has returned", b.threads[waiting].line,
               returned);
    }
    for (Thread &thread : b.threads) { thread.status = RUNNABLE; }
    b.block_barrier = ++b.time;
    return true;
}

[[noreturn]] inline void refuse_deadlock(const Block &b) {
    int i = 0;
    while (b.threads[i].status != AT_WARP_OPERATION) { i++; }
    refuse(i, "waits for lanes %08x of its warp, which do not come: divergent warp operation", b.threads[i].mask);
}

inline void start_block(Block &b) {
    b.num_returned = 0;
    for (int i = 0; i < b.num_threads; i++) {
        Thread &thread = b.threads[i];
        unsigned x = b.dim.x, xy = b.dim.x * b.dim.y, u = static_cast<unsigned>(i);
        thread.index = uint3{u % x, u / x % b.dim.y, u / xy};
        thread.status = NOT_STARTED;
        thread.groups = 0;
        thread.waited = false;
    }
    b.start = b.block_barrier = ++b.time;
    b.regions.resize(1);
    b.static_bytes = 0;
    std::memset(b.shared, 0xff, b.regions[0].end);  // NaN in fp32, bf16 and fp64
}

inline void run_block(Block &b) {
    start_block(b);
    while (b.num_returned < b.num_threads) {
        bool progress = false;
        for (int i = 0; i < b.num_warps; i++) { progress |= run_warp(b, b.warp_order[i]); }
        progress |= release_block(b);
        if (!progress) { refuse_deadlock(b); }
    }
}

inline void choose_warp_order(Block &b) {
    int order = settings().warp_order, n = b.num_warps;
    for (int i = 0; i < n; i++) {
        int shuffled = static_cast<int>(rng_permute(static_cast<uint64_t>(order), i, n));
        b.warp_order[i] = order == 0 ? i : order == 1 ? n - 1 - i : shuffled;
    }
}

inline void prepare(Block &b, const char *kernel, dim3 grid, dim3 dim, size_t shared_bytes) {
    b.kernel = kernel;
    b.grid = grid;
    b.dim = dim;
    b.num_threads = static_cast<int>(dim.x * dim.y * dim.z);
    b.num_warps = (b.num_threads + WARP - 1) / WARP;
    b.threads.resize(b.num_threads);
    b.counts = Counts();
    b.regions.assign(1, SharedRegion{nullptr, "dynamic shared memory", 0, static_cast<uint32_t>(shared_bytes)});
    choose_warp_order(b);
    if (b.time > 0x80000000u) {  // before the 32-bit time wraps
        b.time = 0;
        std::fill(b.shadows.begin(), b.shadows.end(), Shadow());
    }
}

// Runs `body` for every thread of every block. cuda_runtime.h has checked the limits of threads and shared memory.
inline void run_grid(const char *kernel, dim3 grid, dim3 dim, size_t shared_bytes, const std::function<void()> &body) {
    int64_t num_blocks = static_cast<int64_t>(grid.x) * grid.y * grid.z;
    [[maybe_unused]] bool is_large = num_blocks > 1 && num_blocks * dim.x * dim.y * dim.z >= 4096;
#ifdef _OPENMP
#pragma omp parallel if (is_large)
#endif
    {
        static thread_local Block reused;
        Block &b = reused;
        current_block = &b;
        b.body = &body;
        prepare(b, kernel, grid, dim, shared_bytes);
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
        for (int64_t i = 0; i < num_blocks; i++) {
            int64_t row = i / grid.x;
            b.index = uint3{static_cast<unsigned>(i % grid.x), static_cast<unsigned>(row % grid.y),
                            static_cast<unsigned>(row / grid.y)};
            run_block(b);
        }
#ifdef _OPENMP
#pragma omp critical
#endif
        {
            counts().async_copies += b.counts.async_copies;
            counts().races += b.counts.races;
        }
        current_block = nullptr;
    }
}

}  // namespace simt
