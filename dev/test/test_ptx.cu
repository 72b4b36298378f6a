/*
The interpreter of PTX (dev/emulator/ptx.h), by instructions written by hand. Expected are the results that the text of
the PTX ISA 9.0 gives. The fragments of mma and ldmatrix are tested by test_layouts.cu, whose kernels
dev/test/test_ptx.sh runs as nvcc compiles them.
*/
#include "testing.h"
#include <math.h>
#include <cuda_runtime.h>

static const uint32_t NaN = 0x7fc00001, CANONICAL_NaN = 0x7fffffff, INF = 0x7f800000, MINUS = 0x80000000u;
static uint32_t bits(float x) { return float_to_bits(x); }

enum { WORDS = 256 };
static uint32_t words[WORDS];  // the only array: a lane reads word `lane` and writes word 32 + lane

static std::pair<uint64_t, uint64_t> array_of(uint64_t address) {
    uint64_t begin = reinterpret_cast<uint64_t>(words), end = begin + sizeof words;
    return address >= begin && address < end ? std::pair(begin, end) : std::pair(uint64_t{0}, uint64_t{0});
}

// Runs code in two blocks: %a = the lane's number, %c = the block's, %m = the mask of the lane's half of the warp,
// %x = the lane's word; the word %d is stored.
static void run(const std::string &code, unsigned threads = 64) {
    static int count;
    std::string name = "test_" + std::to_string(count++);
    ptx::source() += ".entry " + name + R"((
    .param .u64 words
)
.maxntid 64, 1, 1
{
    .reg .pred %p1, %p2;
    .reg .b16 %h<3>;
    .reg .b32 %a, %b, %c, %d, %e, %f, %g, %m, %s, %t, %x;
    .reg .b64 %l, %o, %w;
    .shared .align 16 .b8 tile[1024];
    .shared .align 16 .b8 empty[16];
    ld.param.u64 %w, [words];
    mov.u32 %c, %ctaid.x;
    mov.u32 %t, %tid.x;
    and.b32 %a, %t, 31;
    mul.wide.u32 %o, %a, 4;
    add.s64 %o, %o, %w;
    ld.global.u32 %x, [%o];
    mul.lo.u32 %s, %a, 16;
    mov.u32 %d, 77;
    setp.lt.u32 %p1, %a, 16;
    selp.b32 %m, 0xffff, 0xffff0000, %p1;
)" + code + R"(
    st.global.u32 [%o+128], %d;
$END:
    ret;
}
)";
    const void *argument = words;
    ptx::launch(name, 2, threads, 0, {{&argument, sizeof argument}}, array_of);
}

static uint32_t lane(int i) { return words[32 + i]; }

// the result of `INSTRUCTION %d, ...` with words as operands
static uint32_t result(const char *instruction, std::initializer_list<uint64_t> operands) {
    std::string code = std::string("") + instruction + " %d";
    for (uint64_t operand : operands) { code += ", " + std::to_string(operand); }
    run(code + ";");
    return lane(0);
}

TEST(test_operations) {
    const uint32_t SUBNORMAL = 1, LEAST = 0x00800000, ONE = bits(1);
    // clang-format off
    const struct {
        const char *instruction;
        std::initializer_list<uint64_t> operands;
        uint32_t expected;
    } cases[] = {
        // shifts by more than the width are clamped to the width
        {"shl.b32", {1, 31}, MINUS}, {"shl.b32", {1, 32}, 0}, {"shl.b32", {1, 33}, 0}, {"shr.u32", {MINUS, 31}, 1},
        {"shr.u32", {MINUS, 32}, 0}, {"shr.s32", {MINUS, 32}, ~0u}, {"shr.s32", {0x70000000, 99}, 0},
        {"shr.u16", {0x18000, 15}, 1}, {"shr.s16", {0x8000, 99}, ~0u},
        // a field that passes the last bit is cut; its position and length are 8 bits
        {"bfi.b32", {0xff, 0, 4, 8}, 0xff0}, {"bfi.b32", {0xff, 0, 28, 8}, 0xf0000000}, {"bfi.b32", {~0u, 5, 3, 0}, 5},
        {"bfi.b32", {~0u, 5, 32, 8}, 5}, {"bfi.b32", {1, ~0u, 0, 32}, 1}, {"bfi.b32", {0xab, 0, 0x104, 0x108}, 0xab0},
        {"prmt.b32", {0x33221100, 0x77665544, 0x7610}, 0x77661100}, {"prmt.b32", {0x80, 0x7f00, 0xd8c0}, 0x00ff0080},
        {"div.s32", {-7u, 2}, -3u}, {"rem.s32", {-7u, 3}, -1u}, {"rem.u32", {7, 4}, 3},
        {"div.u32", {-7u, 2}, 0x7ffffffc}, {"mul.hi.s32", {-1u, 2}, ~0u}, {"min.s32", {-1u, 1}, -1u},
        {"min.u32", {~0u, 1}, 1}, {"max.u16", {0x10001, 2}, 2}, {"mul.wide.u16", {0x1ffff, 0xffff}, 0xfffe0001},
        {"neg.s32", {1}, ~0u}, {"mad.lo.s32", {-2u, 3, 1}, -5u}, {"cvt.s32.s16", {0x18001}, 0xffff8001},
        {"cvt.u32.u16", {0x18001}, 0x8001}, {"popc.b32", {0xf0f}, 8}, {"popc.b64", {~0ull}, 64},
        {"sub.s32", {5, 7}, -2u}, {"and.b32", {6, 5}, 4}, {"or.b32", {6, 5}, 7}, {"xor.b32", {6, 5}, 3},
        {"not.b32", {5}, ~5u}, {"cvt.rn.f32.s32", {16777217}, 0x4b800000},
        {"cvt.rn.f32.s32", {16777219}, 0x4b800002},
        {"cvt.rzi.s32.f32", {bits(-2.9f)}, -2u}, {"cvt.rzi.s32.f32", {NaN}, 0},
        {"cvt.rzi.s32.f32", {bits(3e9f)}, 0x7fffffff}, {"cvt.rzi.s32.f32", {bits(-3e9f)}, MINUS},
        {"cvt.rzi.u32.f32", {bits(-1.5f)}, 0}, {"cvt.rzi.u32.f32", {INF}, ~0u},
        // the first operand is the upper half; ties to even; a NaN is 0x7fff
        {"cvt.rn.bf16x2.f32", {ONE, bits(2)}, 0x3f804000}, {"cvt.rn.bf16x2.f32", {NaN, INF}, 0x7fff7f80},
        {"cvt.rn.bf16x2.f32", {0x3f808000, 0x3f818000}, 0x3f803f82},
        {"cvt.rn.bf16x2.f32", {0x3f808001, 0}, 0x3f810000},
        // the number, if the other is NaN; +0 is larger than -0
        {"min.f32", {NaN, ONE}, ONE}, {"max.f32", {ONE, NaN}, ONE}, {"max.f32", {NaN, NaN}, CANONICAL_NaN},
        {"min.f32", {0, MINUS}, MINUS}, {"min.f32", {MINUS, 0}, MINUS}, {"max.f32", {0, MINUS}, 0},
        {"max.f32", {MINUS, 0}, 0},
        // .ftz flushes subnormal inputs and results, .rn keeps them
        {"rcp.approx.ftz.f32", {SUBNORMAL}, INF}, {"rcp.approx.ftz.f32", {SUBNORMAL | MINUS}, INF | MINUS},
        {"rcp.approx.ftz.f32", {bits(0x1p127f)}, 0}, {"rcp.rn.f32", {bits(0x1p127f)}, LEAST / 2},
        {"ex2.approx.ftz.f32", {bits(-127)}, 0}, {"ex2.approx.ftz.f32", {SUBNORMAL}, ONE},
        {"ex2.approx.ftz.f32", {INF | MINUS}, 0}, {"mul.f32", {LEAST, bits(0.5f)}, LEAST / 2},
        {"fma.rn.f32", {0x3f800001, 0x3f800001, 0xbf800002}, bits(0x1p-46f)},
        {"add.f32", {INF, INF | MINUS}, CANONICAL_NaN}, {"rsqrt.approx.f32", {MINUS}, INF | MINUS},
        {"sqrt.rn.f32", {bits(2)}, 0x3fb504f3}, {"sub.f32", {bits(2), ONE}, ONE},
        {"div.rn.f32", {ONE, bits(2)}, bits(0.5f)}, {"neg.f32", {ONE}, bits(-1)}, {"abs.f32", {bits(-1)}, ONE},
    };
    // clang-format on
    for (const auto &c : cases) {
        uint32_t found = result(c.instruction, c.operands);
        if (found != c.expected) { fail_msg("%s: found %08x, expected %08x", c.instruction, found, c.expected); }
    }
}

static std::string compared(const std::string &comparison, uint32_t a, uint32_t b) {
    run("setp." + comparison + " %p1, " + std::to_string(a) + ", " + std::to_string(b) + "; selp.b32 %d, 1, 0, %p1;");
    return std::to_string(lane(0));
}

// each comparison of 1 with 2, 1 with 1, 2 with 1, and of floats 1 with NaN
TEST(test_comparisons) {
    const char *const lines[] = {"eq 0100",  "ne 1010",  "lt 1000",  "le 1100",  "gt 0010",  "ge 0110",
                                 "equ 0101", "neu 1011", "ltu 1001", "leu 1101", "gtu 0011", "geu 0111"};
    const uint32_t pairs[4][2] = {{1, 2}, {1, 1}, {2, 1}, {1, 0}};
    for (std::string line : lines) {
        std::string name = line.substr(0, line.find(' ')), floats = name + " ", integers = floats;
        for (const uint32_t *p : pairs) {
            floats += compared(name + ".f32", bits((float)p[0]), p[1] ? bits((float)p[1]) : NaN);
            if (p[1] && name.size() == 2) { integers += compared(name + ".s32", p[0], p[1]); }
        }
        assert_string_equal(floats.c_str(), line.c_str());
        if (name.size() == 2) { assert_string_equal(integers.c_str(), line.substr(0, 6).c_str()); }
    }
    run("setp.lt.s32 %p1, -1, 1; setp.lt.u32 %p2, -1, 1; selp.b32 %d, 1, 0, %p1; @%p2 add.s32 %d, %d, 2;");
    assert_int_equal(lane(0), 1);
}

// shfl's source lane: within a segment, clamped to its end, and else the lane itself, with the predicate false
TEST(test_shuffles) {
    // clang-format off
    const struct {
        const char *operands;
        int source[4];  // of lanes 0, 7, 8 and 31; + 100 where the predicate is false
    } cases[] = {
        {"up.b32 %d|%p1, %a, 3, 0, -1", {100, 4, 5, 28}},
        {"up.b32 %d|%p1, %a, 3, 0x1800, -1", {100, 4, 108, 28}},
        {"down.b32 %d|%p1, %a, 3, 31, -1", {3, 10, 11, 131}},
        {"down.b32 %d|%p1, %a, 3, 0x1807, -1", {3, 107, 11, 131}},
        {"bfly.b32 %d|%p1, %a, 16, 31, -1", {16, 23, 24, 15}},
        {"bfly.b32 %d|%p1, %a, 16, 0x1807, -1", {100, 107, 108, 15}},
        {"idx.b32 %d|%p1, %a, 5, 31, -1", {5, 5, 5, 5}},
        {"idx.b32 %d|%p1, %a, 5, 0x1807, -1", {5, 5, 13, 29}},
        {"down.b32 %d|%p1, %a, 3, 0x100f, %m", {3, 10, 11, 131}},
    };
    // clang-format on
    for (const auto &c : cases) {
        run(std::string("shfl.sync.") + c.operands + "; @!%p1 add.s32 %d, %d, 100;");
        const int of[] = {0, 7, 8, 31};
        for (int i = 0; i < 4; i++) {
            if ((int)lane(of[i]) != c.source[i]) { fail_msg("%s: lane %d reads %u", c.operands, of[i], lane(of[i])); }
        }
    }
    run("setp.gt.u32 %p1, %a, 29; vote.sync.ballot.b32 %d, %p1, -1; vote.sync.ballot.b32 %e, %p1, %m; "
        "sub.s32 %d, %d, %e;");
    assert_int_equal(lane(3), 0xc0000000u);
    assert_int_equal(lane(31), 0);
}

TEST(test_memory_and_branches) {
    words[0] = 0x80ff7f01;
    run("ld.global.s8 %d, [%w+2];");
    assert_int_equal(lane(0), ~0u);
    run("ld.global.u8 %d, [%w+3];");
    assert_int_equal(lane(0), 0x80);
    run("mov.b32 {%h1, %h2}, 0x12345678; mov.b32 %d, {%h2, %h1};");
    assert_int_equal(lane(0), 0x56781234);
    run("shl.b64 %l, 1, 36; mov.b64 {%e, %d}, %l;");
    assert_int_equal(lane(0), 16);
    // lanes that branch meet again: a shuffle of all lanes follows
    run("setp.lt.u32 %p1, %a, 5; @%p1 bra $LOW; add.s32 %d, %d, 1; bra.uni $SAME;\n$LOW: add.s32 %d, %d, "
        "2;"
        "$SAME: shfl.sync.bfly.b32 %d, %d, 31, 31, -1;");
    assert_int_equal(lane(0), 78);
    assert_int_equal(lane(31), 79);
    // a copy lands at the wait for its group, and zeros where it has no source; the last groups may be in flight
    for (int i = 0; i < 32; i++) { words[i] = 100 + i; }
    run("mov.u32 %b, tile; add.s32 %b, %b, %s; cp.async.cg.shared.global [%b], [%w], 16, "
        "16; cp.async.commit_group;"
        "cp.async.cg.shared.global [%b+512], [%w+16], 16, 0; cp.async.commit_group; cp.async.wait_group 1;"
        "ld.shared.v2.u32 {%d, %e}, [%b]; cp.async.wait_group 0; ld.shared.u32 %f, [%b+516]; add.s32 %d, "
        "%e, %f;");
    assert_int_equal(lane(9), 101);
    run("atom.global.add.u32 %d, [%w+512], 3; red.global.add.u32 [%w+516], 1;");
    assert_int_equal(words[128], 2 * 64 * 3);
    assert_int_equal(words[129], 2 * 64);
    // the second warp has 8 lanes, and a barrier does not wait for a lane that has returned
    run("setp.eq.u32 %p1, %a, 7; @%p1 ret; bar.sync 0; red.global.add.u32 [%w+520], 1;", 40);
    assert_int_equal(words[130], 2 * 38);
}

static const char *const refusals[][2] = {
    {"misaligned address of global", "ld.global.v2.u32 {%d, %e}, [%w+4]"},
    {"outside of every array", "ld.global.u32 %d, [%w+1024]"},
    {"outside of every array", "ld.global.u32 %d, [%w+-4]"},
    {"outside of every array", "prefetch.global.L2 [%w+1024]"},
    {"outside of every array", "st.global.v4.u32 [%w+1024], {%d, %d, %d, %d}"},
    {"misaligned address of shared", "st.shared.u32 [tile+2], %d"},
    {"beyond shared memory", "st.shared.u32 [tile+2048], %d"},
    {"before any write", "ld.shared.u32 %d, [empty]"},
    {"before any write", "cp.async.cg.shared.global [tile], [%w], 16, 16; ld.shared.u32 %d, [tile]"},
    {"before any write", "cp.async.cg.shared.global [tile], [%w], 16, 16; cp.async.commit_group;"
                         "cp.async.wait_group 1; ld.shared.u32 %d, [tile]"},
    {"copies in flight", "cp.async.cg.shared.global [tile], [%w], 16, 16"},
    {"a part of the warp", "setp.lt.u32 %p1, %a, 5; @%p1 bar.sync 0"},
    {"a part of the warp", "setp.lt.u32 %p1, %a, 5; @%p1 shfl.sync.up.b32 %d, %a, 1, 0, -1"},
    {"a part of the warp", "setp.lt.u32 %p1, %a, 5; @%p1 vote.sync.ballot.b32 %d, %p1, -1"},
    {"a part of the warp", "setp.lt.u32 %p1, %a, 5; @%p1 bar.warp.sync -1"},
    {"a part of the warp", "setp.eq.u32 %p1, %a, 31; @%p1 ret; ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
                           "{%d, %e, %f, %g}, [tile]"},
    {"a part of the warp", "setp.lt.u32 %p1, %a, 5; selp.b32 %m, 31, 15, %p1; bar.warp.sync %m"},
    {"not in the mask", "setp.lt.u32 %p1, %a, 5; @%p1 shfl.sync.down.b32 %d, %a, 1, 31, 31"},
    {"another warp waits", "setp.lt.u32 %p1, %t, 32; @%p1 bra $END; bar.sync 0"},
    {"unknown instruction: add.rz.f32 %d, %d, %d", "add.rz.f32 %d, %d, %d"},
    {"before any write", "setp.eq.u32 %p1, %c, 0; @%p1 st.shared.u32 [tile], %d; @!%p1 ld.shared.u32 %d, [tile]"},
    {"is no parameter", "ld.param.u32 %d, [words+8]"},
    {"divides by 0", "rem.u32 %d, %d, 0"},
    {"unknown operands", "bar.sync 1"},
    {"unknown operands", "bar.sync 0, 32"},
    {"unknown operands", "ld.global.v4.u32 {%d, %e}, [%w]"},
    {"unknown operands", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%d, %e}, [tile]"},
    {"unknown operands", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%d, %e, %f, %g}, {%d, %e, %f, %g}, {%d},"
                         "{%d, %e, %f, %g}"},
    {"unknown operands", "bra $NOWHERE"},
    {"unknown operands", "add.s32 %d, %d, 99999999999999999999"},
    {"unknown operands", "setp.eq.u32 %p1|%p2, %d, 0"},
    {"unknown operands", "cp.async.cg.shared.global [tile], [%w], 16"},
    {"unknown operand: tile+16", "mov.u32 %d, tile+16"},
    {"unknown operand: %laneid", "mov.u32 %d, %laneid"},
    {"unknown operand: 0F3F800000", "mov.u32 %d, 0F3F800000"},
    {"unknown directive", ".loc 1 2 3"},
    {"unknown operand: %clock.x", "mov.u32 %d, %clock.x"},
};

static void run_refused(void *which) { run(std::string("") + refusals[*static_cast<int *>(which)][1] + ";"); }

static void launch_with_more(void *) {
    run("");
    ptx::launch("test_0", 1, 64, 0, {{words, 8}, {words, 8}}, array_of);
}

TEST(test_refusals) {
    for (int i = 0; i < (int)LEN(refusals); i++) {
        assert_aborts("ptx: kernel test_", refusals[i][0], run_refused, &i);
    }
    assert_aborts("ptx: kernel test_", "parameters have other sizes", launch_with_more, NULL);
    assert_aborts(
        "ptx: kernel test_", "too many threads", [](void *) { run("", 65); }, NULL);
}

int main(void) { return run_all_tests("ptx"); }
