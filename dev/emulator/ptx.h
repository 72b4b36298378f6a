/*
Interprets the PTX that `nvcc -ptx` writes, and so executes kernels on the CPU as nvcc compiled them. With SIMT_PTX=FILE
the emulator launches the kernels of that file in place of g++'s.
It knows the instructions that nvcc makes of this project, with the meaning that the PTX ISA 9.0 gives them. If it does
not know an instruction or an operand, it prints that and ends the program.
  Registers  A register has 64 bits for each of the 32 lanes, and an instruction reads the low bits that its type has.
             Immediates, addresses of arrays and special registers are registers too. If nothing wrote a register, it
             holds NaN.
  Warps      Among the lanes that have not returned, those at the earliest instruction run together. A warp runs until
             all its lanes wait at a barrier; then the next one starts.
  cp.async   The bytes arrive when the thread waits for them. Until then, their place counts as unwritten.
It stops, and names the kernel, the block, the thread and the instruction, if it meets: an access that is not aligned to
its width; an address outside of every array; a read of shared memory that nothing wrote; an .aligned instruction
without some lanes of the warp, or a .sync one without some lanes of its mask; a barrier that not all warps reach;
copies in flight at the end; arguments of other sizes than the PTX declares.
It does not see races (simt.h finds them), an access past the end of one shared array into the next, lanes that a GPU
keeps apart longer, the order of memory accesses between blocks, or anything that ptxas does.
*/
#pragma once
#include "dev/emulator/simt.h"
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace ptx {

constexpr int LANES = 32;

// ---- a kernel

struct Warp;
struct Instruction;
// executes an instruction for the lanes of the mask
typedef void (*Execute)(Warp &, const Instruction &, uint32_t lanes);

// {%r1, %r2} has several registers; [%rd1+8] has an offset
struct Operand {
    std::vector<int> registers;
    int64_t offset = 0;
};

enum Space { PARAM, SHARED, GLOBAL };

struct Instruction {
    std::string text;
    std::vector<std::string> words;  // ld global v4 f32
    std::vector<Operand> operands;
    int guard = -1;  // register of the predicate @%p1
    bool guard_negated = false;
    int target = -1;  // of a branch
    Space space = GLOBAL;
    Execute execute = nullptr;
};

struct Kernel {
    std::string name;
    std::vector<Instruction> code;
    std::vector<uint32_t> param_at, param_bytes;
    int num_registers = 1;
    std::vector<std::pair<int, uint64_t>> constants;  // registers that no instruction writes
    std::vector<std::pair<int, int>> specials;        // registers of SPECIAL_NAMES[second]
    uint32_t param_end = 0, static_shared = 0, most_threads = 1024;
};

constexpr int THREAD = 0;  // the register %tid.x
static const char *const SPECIAL_NAMES[] = {"%ntid.x",   "%ctaid.x",  "%ctaid.y", "%ctaid.z",
                                            "%nctaid.x", "%nctaid.y", "%nctaid.z"};

// ---- a running block

// [begin, end) of the array that holds an address, or {0, 0}
typedef std::pair<uint64_t, uint64_t> (*FindArray)(uint64_t address);

struct Block {
    uint32_t index[3];
    std::string params;
    FindArray find_array;
    std::pair<uint64_t, uint64_t> array;  // the one that was accessed last
    std::string shared, written;          // written: one byte for each byte of shared memory
};

struct Warp {
    const Kernel *kernel;
    Block *block;
    int first_thread;
    std::vector<uint64_t> registers;  // (register, lane)
    uint32_t alive, running;          // running: these lanes execute instruction `next`
    int next;
    std::map<int, uint32_t> waiting;  // the other lanes, by their next instruction
    bool at_barrier;
    std::vector<simt::AsyncCopy> copies[LANES];  // in flight, of each lane
    uint32_t groups[LANES] = {};                 // committed by each lane

    uint64_t *lanes(int number) { return &registers[static_cast<size_t>(number) * LANES]; }
    uint64_t *lanes(const Instruction &i, size_t operand, size_t element = 0) {
        return lanes(i.operands[operand].registers.at(element));
    }
    uint64_t address(const Instruction &i, size_t operand, int lane) {
        return lanes(i, operand)[lane] + static_cast<uint64_t>(i.operands[operand].offset);
    }
};

[[noreturn]] inline void stop(const Kernel &k, const std::string &what) {
    std::fprintf(stderr, "ptx: kernel %s: %s\n", k.name.c_str(), what.c_str());
    std::abort();
}

[[noreturn]] inline void refuse(const Warp &w, const Instruction &i, int lane, const char *what) {
    const uint32_t *block = w.block->index;
    char where[64];
    snprintf(where, sizeof where, "block (%u,%u,%u) thread %d: ", block[0], block[1], block[2], w.first_thread + lane);
    stop(*w.kernel, where + std::string(what) + ": " + i.text);
}

template <class Run> void for_lanes(uint32_t lanes, Run run) {
    if (lanes == ~0u) {
        for (int lane = 0; lane < LANES; lane++) { run(lane); }
    } else {
        for (; lanes; lanes &= lanes - 1) { run(__builtin_ctz(lanes)); }
    }
}

inline void require_whole_warp(const Warp &w, const Instruction &i, uint32_t lanes, uint64_t expected) {
    if (lanes != static_cast<uint32_t>(expected)) {
        refuse(w, i, __builtin_ctz(lanes), "is executed by a part of the warp");
    }
}

// ---- operations of a lane: d = f(a, b, ..)

// a register's low bytes as a T, and back. An fp32 result that is NaN has the bits 0x7fffffff on a GPU.
template <class T> T value_of(uint64_t bits) {
    if constexpr (std::is_same_v<T, bool>) {
        return bits & 1;
    } else {
        T value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
}
inline uint64_t bits_of(float value) { return value == value ? float_to_bits(value) : 0x7fffffffu; }
template <std::integral T> uint64_t bits_of(T value) { return static_cast<uint64_t>(value); }

template <auto F, class Result, class... Args>
void run_lanes(Result (*)(Args...), Warp &w, const Instruction &i, uint32_t lanes) {
    [&]<size_t... N>(std::index_sequence<N...>) {
        uint64_t *to = w.lanes(i, 0);
        const uint64_t *from[] = {w.lanes(i, N + 1)...};
        for (int lane = 0; lane < LANES; lane++) {  // without a branch, so that the compiler makes vectors of it
            uint64_t result = bits_of(F(value_of<Args>(from[N][lane])...));
            to[lane] = lanes >> lane & 1 ? result : to[lane];
        }
    }
    (std::index_sequence_for<Args...>());
}
template <auto F> void run_each(Warp &w, const Instruction &i, uint32_t lanes) { run_lanes<F>(+F, w, i, lanes); }
template <class Result, class... Args> constexpr size_t arity(Result (*)(Args...)) { return sizeof...(Args); }

// An instruction of the table. registers: a digit for each operand, or v: as many as .v2 or .v4 says, n: any number
struct Operation {
    Execute execute;
    const char *registers;
};
template <auto F> constexpr Operation each = {run_each<F>, &"11111"[4 - arity(+F)]};
typedef std::map<std::string, Operation> Table;

template <class T> std::string type_name() {
    return (std::is_same_v<T, float> ? "f" : std::is_signed_v<T> ? "s" : "u") + std::to_string(8 * sizeof(T));
}

// The result of a division by 0 is not defined.
template <class T, bool REMAINDER> void divide(Warp &w, const Instruction &i, uint32_t lanes) {
    for_lanes(lanes, [&](int lane) {
        __int128 a = value_of<T>(w.lanes(i, 1)[lane]), b = value_of<T>(w.lanes(i, 2)[lane]);
        if (b == 0) { refuse(w, i, lane, "divides by 0"); }
        w.lanes(i, 0)[lane] = bits_of(static_cast<T>(REMAINDER ? a % b : a / b));
    });
}

template <class T> void add_integer_operations(Table &t) {
    constexpr uint32_t BITS = 8 * sizeof(T);
    typedef std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128> Wide;
    const std::string type = "." + type_name<T>();
    if constexpr (BITS <= 32) {
        t["mul.wide" + type] = each<[](T a, T b) { return (static_cast<uint64_t>(Wide{a} * b)); }>;
    }
    t["mul.hi" + type] = each<[](T a, T b) { return (static_cast<T>(Wide{a} * b >> BITS)); }>;
    t["min" + type] = each<[](T a, T b) { return std::min(a, b); }>;
    t["max" + type] = each<[](T a, T b) { return std::max(a, b); }>;
    t["shr" + type] =
        each<[](T a, uint32_t n) { return (n < BITS ? static_cast<T>(a >> n) : static_cast<T>(a < 0 ? -1 : 0)); }>;
    t["shl" + type] = each<[](T a, uint32_t n) { return (n < BITS ? static_cast<uint64_t>(a) << n : 0); }>;
    t["popc" + type] = each<[](T a) { return (__builtin_popcountll(std::make_unsigned_t<T>(a))); }>;
    t["setp.eq" + type] = each<[](T a, T b) { return a == b; }>;
    t["setp.ne" + type] = each<[](T a, T b) { return a != b; }>;
    t["setp.lt" + type] = each<[](T a, T b) { return a < b; }>;
    t["setp.le" + type] = each<[](T a, T b) { return a <= b; }>;
    t["setp.gt" + type] = each<[](T a, T b) { return (a > b); }>;
    t["setp.ge" + type] = each<[](T a, T b) { return (a >= b); }>;
    t["bfi" + type] = each<[](uint64_t a, uint64_t b, uint8_t at, uint8_t length) {
        uint64_t mask = length < 64 ? (1ull << length) - 1 : ~0ull;
        return at < BITS ? (b & ~(mask << at)) | (a & mask) << at : b;
    }>;
    t["div" + type] = {divide<T, false>, "111"};
    t["rem" + type] = {divide<T, true>, "111"};
    t["cvt.rn.f32" + type] = each<[](T a) { return static_cast<float>(a); }>;
    if constexpr (BITS == 32) {
        t["cvt.rzi" + type + ".f32"] = each<[](float a) {
            constexpr T LEAST = std::numeric_limits<T>::min(), LARGEST = std::numeric_limits<T>::max();
            if (a != a) { return T{0}; }
            if (static_cast<float>(LARGEST) <= a) { return LARGEST; }
            return a <= static_cast<float>(LEAST) ? LEAST : static_cast<T>(a);
        }>;
    }
    auto add_conversion = [&]<class From>(From) {
        t["cvt" + type + "." + type_name<From>()] = each<[](From a) { return (static_cast<T>(a)); }>;
    };
    auto add_conversions = [&](auto... from) { (add_conversion(from), ...); };
    add_conversions(uint16_t{}, int16_t{}, uint32_t{}, int32_t{}, uint64_t{}, int64_t{});
}

// a comparison with NaN is false, one whose name ends in u true
inline void add_float_operations(Table &t) {
    t["add.f32"] = each<[](float a, float b) { return a + b; }>;
    t["sub.f32"] = each<[](float a, float b) { return a - b; }>;
    t["mul.f32"] = each<[](float a, float b) { return a * b; }>;
    t["fma.rn.f32"] = each<[](float a, float b, float c) { return std::fma(a, b, c); }>;
    t["div.rn.f32"] = each<[](float a, float b) { return a / b; }>;
    t["rcp.rn.f32"] = each<[](float a) { return 1 / a; }>;
    t["sqrt.rn.f32"] = each<[](float a) { return std::sqrt(a); }>;
    t["neg.f32"] = each<[](float a) { return -a; }>;
    t["abs.f32"] = each<[](float a) { return std::fabs(a); }>;
    // of a number and NaN, the number; -0 is less than +0
    t["min.f32"] = each<[](float a, float b) { return a < b || b != b || (a == b && std::signbit(a)) ? a : b; }>;
    t["max.f32"] = each<[](float a, float b) { return (a > b || b != b || (a == b && std::signbit(b)) ? a : b); }>;
    t["rcp.approx.ftz.f32"] = each<simt::reciprocal_fast>;
    t["ex2.approx.ftz.f32"] = each<simt::exp2_fast>;
    t["rsqrt.approx.f32"] = each<simt::rsqrt_device>;
    t["setp.eq.f32"] = each<[](float a, float b) { return a == b; }>;
    t["setp.ne.f32"] = each<[](float a, float b) { return (a < b || a > b); }>;
    t["setp.lt.f32"] = each<[](float a, float b) { return a < b; }>;
    t["setp.le.f32"] = each<[](float a, float b) { return a <= b; }>;
    t["setp.gt.f32"] = each<[](float a, float b) { return (a > b); }>;
    t["setp.ge.f32"] = each<[](float a, float b) { return (a >= b); }>;
    t["setp.equ.f32"] = each<[](float a, float b) { return (!(a < b || a > b)); }>;
    t["setp.neu.f32"] = each<[](float a, float b) { return a != b; }>;
    t["setp.ltu.f32"] = each<[](float a, float b) { return (!(a >= b)); }>;
    t["setp.leu.f32"] = each<[](float a, float b) { return (!(a > b)); }>;
    t["setp.gtu.f32"] = each<[](float a, float b) { return !(a <= b); }>;
    t["setp.geu.f32"] = each<[](float a, float b) { return !(a < b); }>;
    // the first operand becomes the upper half
    t["cvt.rn.bf16x2.f32"] = each<[](float high, float low) {
        auto half = [](float x) { return x == x ? uint32_t{float_to_bf16(x).bits} : 0x7fffu; };
        return half(high) << 16 | half(low);
    }>;
}

// Operations that are the same for all widths: who reads the result ignores what lies above its width.
inline void add_width_free_operations(Table &t, const std::string &type) {
    t["add" + type] = each<[](uint64_t a, uint64_t b) { return a + b; }>;
    t["sub" + type] = each<[](uint64_t a, uint64_t b) { return a - b; }>;
    t["mul.lo" + type] = each<[](uint64_t a, uint64_t b) { return a * b; }>;
    t["mad.lo" + type] = each<[](uint64_t a, uint64_t b, uint64_t c) { return a * b + c; }>;
    t["and" + type] = each<[](uint64_t a, uint64_t b) { return a & b; }>;
    t["or" + type] = each<[](uint64_t a, uint64_t b) { return a | b; }>;
    t["xor" + type] = each<[](uint64_t a, uint64_t b) { return a ^ b; }>;
    t["not" + type] = each<[](uint64_t a) { return ~a; }>;
    t["neg" + type] = each<[](uint64_t a) { return -a; }>;
}

// mov.b32 %r1, {%rs1,%rs2} and back: the first element is the lowest
inline void move(Warp &w, const Instruction &i, uint32_t lanes) {
    const size_t to = i.operands[0].registers.size(), from = i.operands[1].registers.size();
    const uint64_t *source = w.lanes(i, 1);
    uint64_t *result = w.lanes(i, 0);
    if (to == 1 && from == 1) {
        for_lanes(lanes, [&](int lane) { result[lane] = source[lane]; });
        return;
    }
    const size_t bits = std::stoul(i.words.back().substr(1)) / std::max(to, from);
    for_lanes(lanes, [&](int lane) {
        uint64_t all = 0, mask = (1ull << bits) - 1;
        for (size_t k = 0; k < from; k++) { all |= (w.lanes(i, 1, k)[lane] & (from > 1 ? mask : ~0ull)) << bits * k; }
        for (size_t k = 0; k < to; k++) { w.lanes(i, 0, k)[lane] = to > 1 ? all >> bits * k & mask : all; }
    });
}

// ---- memory

inline char *shared_at(Warp &w, const Instruction &i, int lane, uint32_t at, uint32_t bytes, bool reads) {
    Block &b = *w.block;
    if (at % bytes) { refuse(w, i, lane, "misaligned address of shared memory"); }
    if (at > b.shared.size() || bytes > b.shared.size() - at) { refuse(w, i, lane, "address beyond shared memory"); }
    if (reads && std::memchr(&b.written[at], 0, bytes)) { refuse(w, i, lane, "reads shared memory before any write"); }
    if (!reads) { std::memset(&b.written[at], 1, bytes); }
    return &b.shared[at];
}

inline char *global_at(Warp &w, const Instruction &i, int lane, uint64_t at, uint32_t bytes) {
    std::pair<uint64_t, uint64_t> &array = w.block->array;
    if (at % bytes) { refuse(w, i, lane, "misaligned address of global memory"); }
    if (at < array.first || at >= array.second) { array = w.block->find_array(at); }
    if (at >= array.second || bytes > array.second - at) { refuse(w, i, lane, "address outside of every array"); }
    return reinterpret_cast<char *>(at);
}

// host address of a lane's memory operand
inline char *address_of(Warp &w, const Instruction &i, size_t operand, int lane, uint32_t bytes, bool reads) {
    uint64_t at = w.address(i, operand, lane);
    if (i.space == PARAM) {
        if (at % bytes || at + bytes > w.block->params.size()) { refuse(w, i, lane, "is no parameter"); }
        return &w.block->params[at];
    }
    if (i.space == SHARED) { return shared_at(w, i, lane, static_cast<uint32_t>(at), bytes, reads); }
    return global_at(w, i, lane, at, bytes);
}

template <class T> void load(Warp &w, const Instruction &i, uint32_t lanes) {
    const size_t n = i.operands[0].registers.size();
    for_lanes(lanes, [&](int lane) {
        const char *from = address_of(w, i, 1, lane, static_cast<uint32_t>(n * sizeof(T)), true);
        for (size_t k = 0; k < n; k++) {
            T value;
            std::memcpy(&value, from + k * sizeof(T), sizeof(T));
            w.lanes(i, 0, k)[lane] = bits_of(value);
        }
    });
}

template <class T> void store(Warp &w, const Instruction &i, uint32_t lanes) {
    const size_t n = i.operands[1].registers.size();
    for_lanes(lanes, [&](int lane) {
        char *to = address_of(w, i, 0, lane, static_cast<uint32_t>(n * sizeof(T)), false);
        for (size_t k = 0; k < n; k++) { std::memcpy(to + k * sizeof(T), &w.lanes(i, 1, k)[lane], sizeof(T)); }
    });
}

// atom has a result, red has none
inline void atomic_add(Warp &w, const Instruction &i, uint32_t lanes) {
    const bool has_result = i.operands.size() == 3;
    for_lanes(lanes, [&](int lane) {
        uint32_t *at = reinterpret_cast<uint32_t *>(address_of(w, i, has_result, lane, 4, true)), old = *at;
        *at += static_cast<uint32_t>(w.lanes(i, has_result + size_t{1})[lane]);
        if (has_result) { w.lanes(i, 0)[lane] = old; }
    });
}

inline void start_copies(Warp &w, const Instruction &i, uint32_t lanes) {
    for_lanes(lanes, [&](int lane) {
        uint32_t to = static_cast<uint32_t>(w.address(i, 0, lane)), bytes = value_of<uint32_t>(w.lanes(i, 3)[lane]);
        if (bytes != 0 && bytes != 16) { refuse(w, i, lane, "copies a part of 16 bytes"); }
        std::memset(shared_at(w, i, lane, to, 16, false), 0xff, 16);
        std::memset(&w.block->written[to], 0, 16);
        const char *from = bytes ? global_at(w, i, lane, w.address(i, 1, lane), 16) : nullptr;
        w.copies[lane].push_back({to, 16, w.groups[lane], from});
        simt::counts().async_copies++;
    });
}

inline void prefetch(Warp &w, const Instruction &i, uint32_t lanes) {
    for_lanes(lanes, [&](int lane) { address_of(w, i, 0, lane, 1, true); });
}

inline void commit_copies(Warp &w, const Instruction &, uint32_t lanes) {
    for_lanes(lanes, [&](int lane) { w.groups[lane]++; });
}

// the copies of all committed groups but the latest n have landed
inline void wait_for_copies(Warp &w, const Instruction &i, uint32_t lanes) {
    for_lanes(lanes, [&](int lane) {
        int64_t end = int64_t{w.groups[lane]} - value_of<uint32_t>(w.lanes(i, 0)[lane]);
        std::erase_if(w.copies[lane], [&](const simt::AsyncCopy &copy) {
            if (copy.group >= end) { return false; }
            char *to = shared_at(w, i, lane, copy.to, 16, false);
            copy.from ? std::memcpy(to, copy.from, 16) : std::memset(to, 0, 16);
            return true;
        });
    });
}

// ---- operations of a warp

// The lane that each lane reads from, by the ISA's pseudocode of shfl: clamp and segment mask are in operand c.
enum Mode { UP, DOWN, BFLY, IDX };
template <Mode MODE> void shuffle(Warp &w, const Instruction &i, uint32_t lanes) {
    std::array<uint64_t, LANES> given;
    std::copy_n(w.lanes(i, 1), LANES, given.begin());
    for_lanes(lanes, [&](int lane) {
        int b = w.lanes(i, 2)[lane] & 31, clamp = w.lanes(i, 3)[lane] & 31, mask = w.lanes(i, 3)[lane] >> 8 & 31;
        int first = lane & mask, last = first | (clamp & ~mask);
        const int source[] = {lane - b, lane + b, lane ^ b, first | (b & ~mask)};
        int from = source[MODE];
        bool inside = MODE == UP ? from >= last : from <= last;
        if (inside && !(lanes >> from & 1)) { refuse(w, i, lane, "reads a lane that is not in the mask"); }
        w.lanes(i, 0)[lane] = given[inside ? from : lane];
        if (i.operands[0].registers.size() > 1) { w.lanes(i, 0, 1)[lane] = inside; }
    });
}

inline void ballot(Warp &w, const Instruction &i, uint32_t lanes) {
    uint32_t result = 0;
    for_lanes(lanes, [&](int lane) { result |= (w.lanes(i, 1)[lane] & 1) << lane; });
    for_lanes(lanes, [&](int lane) { w.lanes(i, 0)[lane] = result; });
}

inline void do_nothing(Warp &, const Instruction &, uint32_t) {}

// Runs an operation for each group of lanes with the same mask, which is the last operand.
template <Execute RUN> void run_groups(Warp &w, const Instruction &i, uint32_t lanes) {
    const uint64_t *masks = w.lanes(i, i.operands.size() - 1);
    for (uint32_t group; lanes; lanes &= ~group) {
        uint32_t mask = value_of<uint32_t>(masks[__builtin_ctz(lanes)]);
        group = 0;
        for_lanes(lanes, [&](int lane) { group |= uint32_t{value_of<uint32_t>(masks[lane]) == mask} << lane; });
        require_whole_warp(w, i, group, mask);
        RUN(w, i, group);
    }
}

inline void block_barrier(Warp &w, const Instruction &i, uint32_t lanes) {
    require_whole_warp(w, i, lanes, w.alive);
    w.at_barrier = true;
}

// Lane 8m + r has the address of row r of matrix m. Lane l gets elements (l/4, 2*(l%4)) and the next of each matrix;
// with .trans row and column are swapped.
template <bool TRANSPOSED> void load_matrices(Warp &w, const Instruction &i, uint32_t lanes) {
    uint16_t element[LANES][8];
    require_whole_warp(w, i, lanes, ~0u);
    for (int lane = 0; lane < LANES; lane++) { std::memcpy(element[lane], address_of(w, i, 1, lane, 16, true), 16); }
    for (int lane = 0; lane < LANES * 4; lane++) {
        int m = lane / LANES, row = lane % LANES / 4, column = lane % 4 * 2;
        const uint16_t(*matrix)[8] = &element[m * 8];
        uint32_t low = TRANSPOSED ? matrix[column][row] : matrix[row][column];
        uint32_t high = TRANSPOSED ? matrix[column + 1][row] : matrix[row][column + 1];
        w.lanes(i, 0, static_cast<size_t>(m))[lane % LANES] = high << 16 | low;
    }
}

// d = a b + c: the registers of each lane go to the emulator's mma, which knows their places
inline void multiply_matrices(Warp &w, const Instruction &i, uint32_t lanes) {
    float d[LANES][4];
    uint32_t a[LANES][4], b[LANES][2];
    require_whole_warp(w, i, lanes, ~0u);
    for (size_t k = 0; k < 4; k++) {
        for (int lane = 0; lane < LANES; lane++) {
            a[lane][k] = value_of<uint32_t>(w.lanes(i, 1, k)[lane]);
            d[lane][k] = value_of<float>(w.lanes(i, 3, k)[lane]);
            if (k < 2) { b[lane][k] = value_of<uint32_t>(w.lanes(i, 2, k)[lane]); }
        }
    }
    simt::multiply_fragments(d, a, b);
    for (size_t k = 0; k < 4; k++) {
        for (int lane = 0; lane < LANES; lane++) { w.lanes(i, 0, k)[lane] = bits_of(d[lane][k]); }
    }
}

// ---- control

inline void branch(Warp &w, const Instruction &i, uint32_t lanes) {
    w.running &= ~lanes;
    w.waiting[i.target] |= lanes;
}

inline void end_lanes(Warp &w, const Instruction &i, uint32_t lanes) {
    for_lanes(lanes, [&](int lane) {
        if (!w.copies[lane].empty()) { refuse(w, i, lane, "ends with cp.async copies in flight"); }
    });
    w.alive &= ~lanes;
    w.running &= ~lanes;
}

inline const Table &table() {
    static const Table all = [] {
        Table t;
        for (const char *type : {".b16", ".s16", ".u16", ".b32", ".s32", ".u32", ".b64", ".s64", ".u64", ".pred"}) {
            add_width_free_operations(t, type);
        }
        for (const char *type : {"b16", "s16", "u16", "b32", "s32", "u32", "b64", "s64", "u64", "f32", "pred"}) {
            t["mov." + std::string(type)] = {move, "nn"};
            t["selp." + std::string(type)] = each<[](uint64_t a, uint64_t b, bool p) { return p ? a : b; }>;
        }
        auto add_type = [&]<class T>(T) {
            const std::string type = type_name<T>();
            if constexpr (sizeof(T) > 1) { add_integer_operations<T>(t); }
            t["ld." + type] = {load<T>, "v1"};
            t["st." + type] = {store<T>, "1v"};
        };
        auto add_types = [&](auto... type) { (add_type(type), ...); };
        add_types(uint8_t{}, int8_t{}, uint16_t{}, int16_t{}, uint32_t{}, int32_t{}, uint64_t{}, int64_t{});
        add_float_operations(t);
        for (const char *kind : {"ld.", "st."}) { t[kind + std::string("f32")] = t[kind + std::string("u32")]; }
        // an operation of .bN is that of .uN
        for (const auto &[name, operation] : Table(t)) {
            size_t at = name.rfind(".u");
            if (at != std::string::npos) { t.emplace(name.substr(0, at) + ".b" + name.substr(at + 2), operation); }
        }
        t["prmt.b32"] = each<[](uint32_t a, uint32_t b, uint32_t selector) {
            uint32_t result = 0;
            for (int k = 0; k < 4; k++) {
                uint32_t select = (selector >> 4 * k) & 15;
                uint32_t byte = ((uint64_t{b} << 32 | a) >> 8 * (select & 7)) & 255;
                if (select & 8) { byte = byte & 128 ? 255 : 0; }
                result |= byte << 8 * k;
            }
            return result;
        }>;
        t["cvta.to.u64"] = {move, "11"};
        t["atom.add.u32"] = {atomic_add, "111"};
        t["red.add.u32"] = {atomic_add, "11"};
        t["cp.async"] = {start_copies, "1111"};
        t["cp.async.commit_group"] = {commit_copies, ""};
        t["cp.async.wait_group"] = {wait_for_copies, "1"};
        t["ldmatrix.sync.aligned.m8n8.x4.b16"] = {load_matrices<false>, "41"};
        t["ldmatrix.sync.aligned.m8n8.x4.trans.b16"] = {load_matrices<true>, "41"};
        t["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = {multiply_matrices, "4424"};
        t["shfl.sync.up.b32"] = {run_groups<shuffle<UP>>, "n1111"};
        t["shfl.sync.down.b32"] = {run_groups<shuffle<DOWN>>, "n1111"};
        t["shfl.sync.bfly.b32"] = {run_groups<shuffle<BFLY>>, "n1111"};
        t["shfl.sync.idx.b32"] = {run_groups<shuffle<IDX>>, "n1111"};
        t["vote.sync.ballot.b32"] = {run_groups<ballot>, "111"};
        t["bar.warp.sync"] = {run_groups<do_nothing>, "1"};
        t["bar.sync"] = {block_barrier, "1"};
        t["bra"] = t["bra.uni"] = {branch, "1"};
        t["ret"] = {end_lanes, ""};
        t["griddepcontrol.wait"] = t["griddepcontrol.launch_dependents"] = {do_nothing, ""};
        t["prefetch.L2"] = {prefetch, "1"};
        return t;
    }();
    return all;
}

// ---- reading PTX

inline std::string &source() {
    static std::string all;
    if (all.empty() && simt::settings().ptx) {
        FILE *f = std::fopen(simt::settings().ptx, "r");
        char part[65536];
        for (size_t n; f && (n = std::fread(part, 1, sizeof part, f)) > 0;) { all.append(part, n); }
        if (f) { std::fclose(f); }
        if (all.empty()) {
            std::fprintf(stderr, "ptx: SIMT_PTX=%s: no such file\n", simt::settings().ptx);
            std::abort();
        }
    }
    return all;
}

inline std::string trimmed(const std::string &text) {
    size_t begin = std::min(text.find_first_not_of(" \t\n"), text.size());
    return text.substr(begin, text.find_last_not_of(" \t\n") + 1 - begin);
}

// "a, {b, c}" at the separators outside of brackets
inline std::vector<std::string> split(const std::string &text, char separator) {
    std::vector<std::string> parts(1);
    int depth = 0;
    for (char c : text) {
        depth += std::strchr("{[", c) ? 1 : std::strchr("}]", c) ? -1 : 0;
        if (depth == 0 && c == separator) {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    for (std::string &part : parts) { part = trimmed(part); }
    return parts;
}

// builds a kernel from its text
struct Reader {
    Kernel kernel;
    std::map<std::string, int> registers = {{"%tid.x", THREAD}}, labels;
    std::map<std::string, uint64_t> symbols;  // addresses of shared arrays, offsets of parameters

    int register_of(const std::string &name) {
        auto [found, is_new] = registers.emplace(name, kernel.num_registers);
        if (!is_new) { return found->second; }
        int number = kernel.num_registers++;
        const auto *special = std::find(std::begin(SPECIAL_NAMES), std::end(SPECIAL_NAMES), name);
        if (special != std::end(SPECIAL_NAMES)) {
            kernel.specials.emplace_back(number, special - SPECIAL_NAMES);
        } else if (symbols.contains(name)) {
            kernel.constants.emplace_back(number, symbols[name]);
        } else {
            bool is_float = name.starts_with("0f"),
                 is_number = std::isdigit(static_cast<unsigned char>(name[0])) || name[0] == '-';
            size_t read = 0;
            if (is_float) { kernel.constants.emplace_back(number, std::stoull(name.substr(2), &read, 16)); }
            if (is_number && !is_float) { kernel.constants.emplace_back(number, std::stoull(name, &read, 0)); }
            if (!is_number || read + 2 * is_float != name.size()) { stop(kernel, "unknown operand: " + name); }
        }
        return number;
    }

    // `.reg .b32 %r<595>` or `.reg .b32 %a, %b`
    void declare_registers(const std::string &text) {
        for (const std::string &name : split(text.substr(text.find('%')), ',')) {
            size_t bracket = name.find('<');
            int count = bracket == std::string::npos ? 1 : std::stoi(name.substr(bracket + 1));
            for (int n = 0; n < count; n++) {
                bool alone = bracket == std::string::npos;
                registers[alone ? name : name.substr(0, bracket) + std::to_string(n)] = kernel.num_registers++;
            }
        }
    }

    // {%r1, %r2}, [%rd1+8], %r1|%p1 or %r1
    Operand operand_of(std::string text) {
        Operand o;
        bool is_address = text[0] == '[';
        if (std::strchr("{[", text[0])) { text = text.substr(1, text.size() - 2); }
        std::replace(text.begin(), text.end(), '|', ',');
        for (const std::string &name : split(text, ',')) {
            size_t plus = is_address ? name.find('+') : std::string::npos;
            if (plus != std::string::npos) { o.offset = std::stoll(name.substr(plus + 1)); }
            o.registers.push_back(register_of(name.substr(0, plus)));
        }
        return o;
    }

    // Places an array, `.param .u64 NAME`, `.param .align 8 .b8 NAME[64]` or `.shared .align 16 .b8 NAME[128]`, at *end
    // and moves *end behind it. Returns the array's first byte.
    uint32_t place(const std::string &text, uint32_t *end) {
        uint32_t align = 1, bytes = 0;
        char name[4096];
        if (sscanf(text.c_str(), "%*s .align %u .b8 %4095[^[][%u", &align, name, &bytes) < 2) {
            if (sscanf(text.c_str(), "%*s .%*c%u %4095s", &bytes, name) != 2) {
                stop(kernel, "unknown array: " + text);
            }
            align = bytes /= 8;
        }
        uint32_t at = (*end + align - 1) / align * align;
        symbols[name] = at;
        *end = at + bytes;
        return at;
    }

    void read_params(const std::string &text) {
        for (const std::string &param : split(text, ',')) {
            if (param.empty()) { continue; }
            kernel.param_at.push_back(place(param, &kernel.param_end));
            kernel.param_bytes.push_back(kernel.param_end - kernel.param_at.back());
        }
    }

    // static arrays, the kernel's own and those of the module that it uses; then the dynamic array, which has no size
    void read_shared(const std::string &body) {
        // arrays in other kernels' bodies are not this one's
        const std::string visible = source().substr(0, source().find(".entry ")) + body;
        for (bool dynamic : {false, true}) {
            for (size_t at = 0; (at = visible.find(".shared .align", at)) != std::string::npos; at++) {
                std::string text = visible.substr(at, visible.find(';', at) - at),
                            name = text.substr(text.rfind(' ') + 1);
                bool is_used = body.find(name.substr(0, name.find('['))) != std::string::npos;
                if (is_used && text.ends_with("[]") == dynamic) { place(text, &kernel.static_shared); }
            }
        }
    }

    const Operation &operation_of(Instruction &i) {
        std::string name;
        for (const std::string &word : i.words) {
            if (word == "shared" || word == "param") { i.space = word == "shared" ? SHARED : PARAM; }
            bool is_ignored =
                std::string(" shared param global v2 v4 cs cg ").find(" " + word + " ") != std::string::npos;
            if (!is_ignored) { name += (name.empty() ? "" : ".") + word; }
        }
        auto found = table().find(name);
        if (found == table().end()) { stop(kernel, "unknown instruction: " + i.text); }
        i.execute = found->second.execute;
        return found->second;
    }

    // `@!%p1 bra $L1`
    void read_instruction(std::string text) {
        Instruction i;
        i.text = text;
        if (text[0] == '@') {
            i.guard_negated = text[1] == '!';
            size_t begin = i.guard_negated ? 2 : 1, blank = text.find_first_of(" \t");
            i.guard = register_of(text.substr(begin, blank - begin));
            text = trimmed(text.substr(blank));
        }
        size_t blank = std::min(text.find_first_of(" \t"), text.size());
        i.words = split(text.substr(0, blank), '.');
        const Operation &operation = operation_of(i);
        std::vector<std::string> operands = split(text.substr(blank), ',');
        if (operands[0].empty()) { operands.clear(); }
        bool fit = operands.size() == std::strlen(operation.registers);
        if (i.words[0] == "bra") {
            i.target = labels.at(operands.at(0));
            operands.clear();
        }
        const char wide = i.text.find(".v2.") != std::string::npos   ? '2'
                          : i.text.find(".v4.") != std::string::npos ? '4'
                                                                     : '1';
        for (size_t n = 0; fit && n < operands.size(); n++) {
            const char wanted = operation.registers[n] == 'v' ? wide : operation.registers[n];
            i.operands.push_back(operand_of(operands[n]));
            fit = wanted == 'n' || i.operands[n].registers.size() == static_cast<size_t>(wanted - '0');
        }
        if (!fit || (i.execute == block_barrier && operands[0] != "0")) { stop(kernel, "unknown operands: " + i.text); }
        kernel.code.push_back(std::move(i));
    }

    // $LABEL: INSTRUCTION; .DIRECTIVE;
    void read_body(const std::string &body) {
        std::string code;
        for (const std::string &line : split(body, '\n')) { code += line.substr(0, line.find("//")) + " "; }
        std::vector<std::string> instructions;
        for (std::string text : split(code, ';')) {
            while (text[0] == '$') {
                size_t colon = text.find(':');
                labels[text.substr(0, colon)] = static_cast<int>(instructions.size());
                text = trimmed(text.substr(colon + 1));
            }
            if (text.starts_with(".reg ")) {
                declare_registers(text);
            } else if (!text.empty() && text[0] != '.') {
                instructions.push_back(text);
            } else if (!text.empty() && !text.starts_with(".shared ") && !text.starts_with(".pragma ")) {
                stop(kernel, "unknown directive: " + text);
            }
        }
        for (const std::string &text : instructions) {
            try {
                read_instruction(text);
            } catch (const std::exception &) {  // of std::stoull or at()
                stop(kernel, "unknown operands: " + text);
            }
        }
    }
};

inline Kernel read_kernel(const std::string &name) {
    const std::string &text = source();
    size_t at = text.find(".entry " + name + "(");
    Reader r;
    r.kernel.name = name;
    if (at == std::string::npos) { stop(r.kernel, "is not in the PTX"); }
    size_t open = text.find('(', at), close = text.find(')', open), begin = text.find("\n{", close);
    size_t threads = text.find(".maxntid ", close);
    if (threads < begin) { r.kernel.most_threads = static_cast<uint32_t>(std::atoi(&text[threads + 9])); }
    std::string body = text.substr(begin + 2, text.find("\n}", begin) - begin - 2);
    r.read_params(text.substr(open + 1, close - open - 1));
    r.read_shared(body);
    r.read_body(body);
    return r.kernel;
}

// ---- running

// lanes of the guard's value
inline uint32_t guarded_lanes(Warp &w, const Instruction &i) {
    if (i.guard < 0) { return w.running; }
    const uint64_t *guard = w.lanes(i.guard);
    uint32_t lanes = 0;
    for (int lane = 0; lane < LANES; lane++) { lanes |= static_cast<uint32_t>(guard[lane] & 1) << lane; }
    return w.running & (i.guard_negated ? ~lanes : lanes);
}

// until the warp waits at a barrier or has ended
inline void run_warp(Warp &w) {
    w.at_barrier = false;
    while (!w.at_barrier) {
        if (!w.waiting.empty() && (!w.running || w.waiting.begin()->first <= w.next)) {
            if (w.running) { w.waiting[w.next] |= w.running; }
            std::tie(w.next, w.running) = *w.waiting.begin();
            w.waiting.erase(w.waiting.begin());
        }
        if (!w.running) { return; }
        const Instruction &i = w.kernel->code[static_cast<size_t>(w.next++)];
        uint32_t lanes = guarded_lanes(w, i);
        if (lanes) { i.execute(w, i, lanes); }
    }
}

inline void start_warp(Warp &w, const uint64_t *special, int threads) {
    std::fill(w.registers.begin(), w.registers.end(), ~0ull);
    for (auto [number, value] : w.kernel->constants) { std::fill_n(w.lanes(number), LANES, value); }
    for (auto [number, which] : w.kernel->specials) { std::fill_n(w.lanes(number), LANES, special[which]); }
    for (int lane = 0; lane < LANES; lane++) { w.lanes(THREAD)[lane] = static_cast<uint64_t>(w.first_thread + lane); }
    int lanes = std::min(LANES, threads - w.first_thread);
    w.alive = w.running = ~0u >> (LANES - lanes);
    w.next = 0;
    w.waiting.clear();
}

inline void run_block(std::vector<Warp> &warps) {
    for (bool any = true; any;) {
        any = false;
        for (Warp &w : warps) { run_warp(w); }
        for (const Warp &w : warps) { any |= w.at_barrier; }
        for (const Warp &w : warps) {
            if (any && !w.at_barrier) {
                refuse(w, w.kernel->code.back(), 0, "ended, and another warp waits at a barrier");
            }
        }
    }
}

struct Argument {
    const void *at;
    size_t bytes;
};

// the parameters' bytes, placed as the PTX declares them
inline std::string params_of(const Kernel &k, const std::vector<Argument> &arguments) {
    bool fit = arguments.size() == k.param_bytes.size();
    std::string params(k.param_end, '\0');
    for (size_t a = 0; fit && a < arguments.size(); a++) {
        fit = arguments[a].bytes == k.param_bytes[a];
        if (fit) { std::memcpy(&params[k.param_at[a]], arguments[a].at, arguments[a].bytes); }
    }
    if (!fit) { stop(k, "its parameters have other sizes in the PTX"); }
    return params;
}

// Runs every block of a one-dimensional launch, one after another.
inline void launch(const std::string &name, dim3 grid, dim3 dim, size_t dynamic_bytes,
                   const std::vector<Argument> &arguments, FindArray find_array) {
    static std::map<std::string, Kernel> kernels;
    auto found = kernels.find(name);
    if (found == kernels.end()) { found = kernels.emplace(name, read_kernel(name)).first; }
    const Kernel &k = found->second;
    if (dim.y != 1 || dim.z != 1 || dim.x > k.most_threads) { stop(k, "a block has too many threads or dimensions"); }
    Block b = {{0, 0, 0}, params_of(k, arguments), find_array, {0, 0}, {}, {}};
    std::vector<Warp> warps((dim.x + LANES - 1) / LANES);
    for (size_t n = 0; n < warps.size(); n++) {
        warps[n].kernel = &k;
        warps[n].block = &b;
        warps[n].first_thread = static_cast<int>(n) * LANES;
        warps[n].registers.resize(static_cast<size_t>(k.num_registers) * LANES);
    }
    for (uint64_t n = 0; n < uint64_t{grid.x} * grid.y * grid.z; n++) {
        uint64_t row = n / grid.x;
        b.index[0] = static_cast<uint32_t>(n % grid.x);
        b.index[1] = static_cast<uint32_t>(row % grid.y);
        b.index[2] = static_cast<uint32_t>(row / grid.y);
        b.shared.assign(k.static_shared + dynamic_bytes, '\xff');
        b.written.assign(b.shared.size(), '\0');
        const uint64_t special[] = {dim.x, b.index[0], b.index[1], b.index[2], grid.x, grid.y, grid.z};
        for (Warp &w : warps) { start_warp(w, special, static_cast<int>(dim.x)); }
        run_block(warps);
    }
}

// ---- names

// The mangled name of a function of this program, as nvcc writes it. A static function is local to g++ alone.
inline std::string name_of(const void *function) {
    static std::map<uint64_t, std::string> names;
    extern char program_begin __asm__("__executable_start");
    if (names.empty()) {
        FILE *nm = popen(("nm /proc/" + std::to_string(getpid()) + "/exe").c_str(), "r");
        char line[8192], type, name[8192];
        unsigned long long at;
        while (nm && fgets(line, sizeof line, nm)) {
            if (std::sscanf(line, "%llx %c %8191s", &at, &type, name) == 3) { names[at] = name; }
        }
        if (!nm || pclose(nm) != 0) {
            std::fputs("ptx: kernels get their names from nm, which failed\n", stderr);
            std::abort();
        }
    }
    std::string name = names[reinterpret_cast<uint64_t>(function) - reinterpret_cast<uint64_t>(&program_begin)];
    return name.starts_with("_ZL") ? "_Z" + name.substr(3) : name;
}

}  // namespace ptx
