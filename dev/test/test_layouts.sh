#!/usr/bin/env bash
# Are the layouts of the tensor-core instructions those of CuTe, the layout library of NVIDIA's CUTLASS?
#   dev/test/test_layouts.sh
# Compiles test_layouts.cu with the layouts of cute_layouts.cu instead of the formulas of layouts.h. Runs it emulated.
# Needs g++ and CuTe's headers, which scripts/setup.sh test puts into build/cuda_tools; else it is skipped.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# shellcheck source=dev/test/harness.sh
. dev/test/harness.sh

packages=$(echo "$PWD"/build/cuda_tools/lib/python*/site-packages)
cutlass=$packages/cutlass_library/source/include cuda=$packages/nvidia/cu13/include
if [ ! -d "$cutlass/cute" ] || [ ! -d "$cuda/cccl" ]; then
    echo "CuTe's headers are not in build/cuda_tools: scripts/setup.sh test installs them where pip can"
    echo "[  SKIPPED ] 3 test(s)."
    exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
out=$folder/out

# parts FILE PREFIX: the first instruction of FILE that begins with PREFIX, its parts sorted. CuTe writes .x4.m8n8 where
# the PTX ISA writes .m8n8.x4.
parts() { grep -oE "$2[a-z0-9.]+" "$1" | head -n 1 | tr . '\n' | sort | tr '\n' ' '; }
# same_instruction HEADER PREFIX: silent if HEADER of CuTe and ptx.cuh mean the same instruction
same_instruction() {
    local ours theirs
    ours=$(parts llmc/common/ptx.cuh "$2") theirs=$(parts "$cutlass/cute/arch/$1" "$2")
    [ -n "$ours" ] && [ "$ours" = "$theirs" ] || echo "found '$ours', expected '$theirs' as in cute/arch/$1"
}
report "mma is the instruction of CuTe's traits" "$(same_instruction mma_sm80.hpp \
    'mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16')"
report "ldmatrix is the instruction of CuTe's traits" "$(same_instruction copy_sm75.hpp \
    'ldmatrix\.sync\.aligned.*\.x4')"

compare() {
    g++ -x c++ -std=c++17 -O1 -DCUTE -isystem "$cutlass" -isystem "$cuda" -isystem "$cuda/cccl" -c \
        dev/test/cute_layouts.cu -o "$folder/cute.o" &&
        g++ -x c++ -std=c++20 -O1 -w -D_GNU_SOURCE -Idev/emulator -I. -DPRECISION_BF16 -DCUTE -c \
            dev/test/test_layouts.cu -o "$folder/test.o" &&
        g++ "$folder/test.o" "$folder/cute.o" -o "$folder/test" -lcmocka -lpthread && "$folder/test"
}
report "every element of mma and ldmatrix is where CuTe expects it" "$(compare >"$out" 2>&1 || echo "see the output")"

end_tests
