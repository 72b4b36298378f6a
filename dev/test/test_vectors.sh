#!/usr/bin/env bash
# Checks in machine code that the hot loops of the CPU backend use the widest vectors of the target without calls, and
# that the sums of GEMM tiles stay in registers.
#   dev/test/test_vectors.sh          ./train_gpt2, and the operations by gcc and clang for two CPUs
#   dev/test/test_vectors.sh all      the operations in fp32 and bf16 by every compiler found, for every CPU below
# dev/test/hot_loops.py reads the machine code and prints a line per loop: compiled copies, instructions on the widest
# registers, multiply-adds, and stores of vector registers to the stack. The operations are those of
# dev/test/hot_loops.c, compiled with the Makefile's flags. A compiler is left out for a CPU that it does not know.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# shellcheck source=dev/test/harness.sh
. dev/test/harness.sh

cpus=(haswell sapphirerapids)
compilers=(gcc clang)
precisions=(fp32)
if [ "${1:-}" = all ]; then
    # not x86-64-v2: AdamW calls libm's fma there, and 16 registers hold a smaller tile of attention
    cpus=(haswell znver3 skylake-avx512 sapphirerapids znver4)
    compilers=(gcc clang gcc-{11..19} clang-{13..29})
    precisions=(fp32 bf16)
fi
if [ "$(uname -m)" != x86_64 ]; then
    skip "hot loops are checked in machine code of x86-64 only" 1
    exit 0
fi
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT

# target COMPILER OPTION...: the widest registers, and bf16 if there are products of bf16; empty for an unknown CPU
target() {
    local macros
    macros=$("$@" -x c -dM -E /dev/null 2>/dev/null) || return
    case $macros in
    *__AVX512BF16__*) echo "zmm bf16" ;;
    *__AVX512F__*) echo zmm ;;
    *__AVX__*) echo ymm ;;
    *) echo xmm ;;
    esac
}

# look NAME FILE REGISTER [bf16]: a table and a case
look() {
    local trouble=
    python3 dev/test/hot_loops.py "${@:2}" >"$lines" 2>&1 || trouble="hot_loops.py failed"
    grep -v '^trouble: ' "$lines"
    report "$1: hot loops use $3 registers, without calls" "$trouble$(sed -n 's/^trouble: //p' "$lines")"
}

# look_at_program: ./train_gpt2 as it was built
look_at_program() {
    local flags compiler march registers
    [[ -x train_gpt2 && -f build/flags ]] || { skip "there is no ./train_gpt2: run make first" 1 && return; }
    flags=$(cat build/flags) compiler=${flags%% *} march=$(grep -o -- '-march=[^ ]*' build/flags | tail -n 1)
    if [[ " $flags " != *" cpu "* || " $flags " != *" -g"* ]]; then
        skip "./train_gpt2 is no CPU build with line numbers (-g): its loops are not checked" 1
        return
    fi
    if [ -n "$(find llmc train_gpt2.cu -newer train_gpt2 ! -path "*/emulator/*" -type f)" ]; then
        report "./train_gpt2 is up to date" "sources are newer: run make first"
        return
    fi
    registers=$(target "$compiler" ${march:+"$march"})
    [[ " $flags " == *" fp32 "* ]] || registers=${registers% bf16}
    # shellcheck disable=SC2086 # one or two words
    look "./train_gpt2 ($compiler $march)" train_gpt2 $registers
}
[ "${1:-}" = all ] || look_at_program

seen=" "
for compiler in "${compilers[@]}"; do
    path=$(command -v "$compiler") && path=$(readlink -f "$path")
    [[ -n $path && $seen != *" $path "* ]] || continue
    seen+="$path "
    for cpu in "${cpus[@]}"; do
        registers=$(target "$compiler" "-march=$cpu")
        [ -n "$registers" ] || { echo "$compiler does not know $cpu" && continue; }
        for precision in "${precisions[@]}"; do
            object=build/vectors/$precision/$compiler/$cpu.o
            if ! make --no-print-directory "$object" >"$lines" 2>&1; then
                report "$compiler, $cpu, $precision: the operations compile" "$(tail -n 20 "$lines")"
                continue
            fi
            [ "$precision" = fp32 ] || registers=${registers% bf16}  # a bf16 build multiplies reals
            # shellcheck disable=SC2086 # one or two words
            look "$compiler, $cpu, $precision" "$object" $registers
        done
    done
done
end_tests
