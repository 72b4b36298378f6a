/*
The main of a program for many CPUs (make ARCH=portable). The program holds the trainer once for each CPU level, and
the main of a copy is main_LEVEL. This file is compiled for every x86-64 CPU; scripts/portable.mk links the program.
$TRAIN_GPT2_ARCH is the name of a lower level than the highest of this CPU.
Source      levels: "Micro-architecture levels" of the x86-64 psABI
*/
#include "llmc/common/check.h"
#include <cpuid.h>

int main_v2(int argc, char **argv);
int main_v3(int argc, char **argv);
int main_v4(int argc, char **argv);
int main_bf16(int argc, char **argv);

#define HAS __builtin_cpu_supports  // by the CPU, and by the kernel, which saves the registers

int main(int argc, char **argv) {
    unsigned a, b, c = 0, d, extended = 0;
    __get_cpuid(1, &a, &b, &c, &d);
    __get_cpuid(0x80000001, &a, &b, &extended, &d);
    bool v2 = HAS("ssse3") && HAS("sse4.1") && HAS("sse4.2") && HAS("popcnt");
    bool v3 = v2 && HAS("avx2") && HAS("fma") && HAS("bmi") && HAS("bmi2") && (c & bit_F16C) && (c & bit_MOVBE) &&
              (extended & bit_LZCNT);
    bool v4 = v3 && HAS("avx512f") && HAS("avx512bw") && HAS("avx512cd") && HAS("avx512dq") && HAS("avx512vl");
    const struct {
        const char *name;
        bool is_supported;
        int (*main)(int argc, char **argv);
    } levels[] = {
        {"bf16", v4 && HAS("avx512bf16"), main_bf16}, {"v4", v4, main_v4}, {"v3", v3, main_v3}, {"v2", v2, main_v2}};
    const char *name = getenv("TRAIN_GPT2_ARCH");
    bool chooses = !name || !*name;
    for (int i = 0; i < 4; i++) {
        bool allowed = chooses || strcmp(name, levels[i].name) == 0;
        if (allowed && levels[i].is_supported) { return levels[i].main(argc, argv); }
    }
    if (!v2) { input_error("this CPU lacks SSSE3, SSE4.1, SSE4.2 or POPCNT, which every level needs; run make here"); }
    input_error("TRAIN_GPT2_ARCH=%s: expected a level of this CPU: v2%s%s%s", name, v3 ? ", v3" : "", v4 ? ", v4" : "",
                levels[0].is_supported ? ", bf16" : "");
}
