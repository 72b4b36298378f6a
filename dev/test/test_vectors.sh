#!/usr/bin/env bash
# Checks in machine code that the hot loops of the CPU backend use the widest vectors of the target without calls, and
# that the sums of GEMM tiles stay in registers.
#   dev/test/test_vectors.sh          in fp32, by gcc and clang, for three CPUs
#   dev/test/test_vectors.sh all      in fp32 and bf16, by every compiler found, for five CPUs; 10 minutes
# dev/test/hot_loops.c is compiled with the Makefile's flags, and dev/test/hot_loops.py reads the objects. A compiler is
# left out for a CPU that it does not know.
# Then the instructions of every level of build/test/portable/train_gpt2, which make builds with its own compiler.
. "$(dirname "$0")/harness.sh"

# not x86-64-v2: AdamW calls libm's fma there, and 16 registers hold a smaller tile of attention
cpus=(znver3 skylake-avx512 sapphirerapids) compilers=(gcc clang) precisions=(fp32)
if [ "${1:-}" = all ]; then
    cpus+=(haswell znver4) compilers+=(gcc-{11..19} clang-{13..29}) precisions+=(bf16)
fi
if [ "$(uname -m)" != x86_64 ]; then
    skip "an x86-64 CPU"
    exit 0
fi
make_scratch
lines=$scratch/lines

# target COMPILER OPTION...: the widest registers, and bf16 if there are products of bf16; empty for an unknown CPU
target() {
    local macros
    macros=$("$@" -x c -dM -E /dev/null 2>/dev/null) || return
    case $macros in
    *__AVX512BF16__*) echo "zmm bf16" ;;
    *__AVX512F__*) echo zmm ;;
    *) echo ymm ;;
    esac
}

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
            if ! make --no-print-directory CC="$compiler" "$object" >"$lines" 2>&1; then
                report "$compiler, $cpu, $precision: the operations compile" "$(tail -n 20 "$lines")"
                continue
            fi
            [ "$precision" = fp32 ] || registers=${registers% bf16}  # a bf16 build multiplies reals
            # shellcheck disable=SC2086 # one or two words
            python3 dev/test/hot_loops.py "$object" $registers >"$lines" || echo "trouble: exit status $?" >>"$lines"
            report "$compiler, $cpu, $precision: hot loops use ${registers% *} registers, without calls" \
                "$(sed -n 's/^trouble: //p' "$lines")"
        done
    done
done

# ---- the program of ARCH=portable

objects=build/test/portable
# without OBJECT PATTERN: no line of the disassembly matches; with: some line does
without() { objdump -d --no-show-raw-insn "$objects/$1" | grep -E -- "$2" | head -n 3; }
with() { [ -n "$(without "$@")" ] || echo "no line of $1 has $2"; }
report "the main that chooses has no instruction of AVX" "$(
    without main.o $'%[yz]mm|\tv[a-z]'
    with main.o cpuid
)"
report "each level has the vectors of its own and no longer ones" "$(
    without v2.o $'%[yz]mm|\tv[a-z]'
    with v2.o mulps
    without v3.o '%zmm|%k[0-7]'
    with v3.o 'vfmadd.*%ymm'
    without v4.o 'vdpbf16ps|vcvtne'
    with v4.o 'vfmadd.*%zmm'
    with bf16.o 'vdpbf16ps.*%zmm'
)"
report "an object has one global function: no level calls another's" "$(
    for name in v2 v3 v4 bf16; do
        # clang's lock of OpenMP reductions is a common symbol (C)
        found=$(nm --defined-only --extern-only "$objects/$name.o" | awk '$2 != "C" { print $3 }' | xargs)
        [ "$found" = "main_$name" ] || echo "$name.o defines $found"
    done
)"
end_tests
