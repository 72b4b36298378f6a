#!/usr/bin/env bash
# Does nvcc compile the trainer and all kernels, for every GPU generation, without a warning and without a register
# spilled?   dev/test/test_nvcc.sh [table]      `table` also prints what each kernel takes:
#   kernel, with its template arguments | registers on each architecture | bytes of static shared memory
# Each precision is compiled once and its PTX assembled for every architecture: no kernel asks which one it is on, so
# the same PTX would come out. Half a minute on two free cores, nothing if nothing changed; skipped where nvcc is not.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

if ! command -v nvcc >/dev/null; then
    echo "[  SKIPPED ] 1 test(s)."
    exit 0
fi

# those of ours that this nvcc knows
known=" $(nvcc --list-gpu-code | tr '\n' ' ') " architectures=()
for sm in sm_80 sm_90 sm_100 sm_120; do [[ $known != *" $sm "* ]] || architectures+=("$sm"); done
list=$(IFS=, && echo "${architectures[*]}")

# ---- compile; what the compilers say of each precision goes to a file, kept until a source or nvcc changes

key=$({ nvcc --version && cat "$0" train_gpt2.cu llmc/*; } | sha256sum | cut -c 1-16)
said=build/nvcc/$key
[ -d "$said" ] || { rm -rf build/nvcc && mkdir -p "$said"; }
compile() {
    [ ! -e "$said/$1" ] || return
    nvcc -x cu -std=c++20 -D_GNU_SOURCE -I. -DPRECISION_"$1" -gencode "arch=compute_80,code=[$list]" -Xptxas -v \
        -Xcompiler -fopenmp,-Wall,-Wextra,-Wno-missing-field-initializers -c train_gpt2.cu -o "$said/$1.o" \
        >"$said/$1.new" 2>&1 && mv "$said/$1.new" "$said/$1"
    rm -f "$said/$1.o"
}
compile BF16 &
compile FP32 &
wait
for precision in BF16 FP32; do
    [ ! -e "$said/$precision" ] || continue
    echo "nvcc failed in $precision:" && cat "$said/$precision.new"
    echo "[  FAILED  ] 1 test(s)."
    exit 1
done

# "kernel architecture registers static-shared stack spills" of every kernel
kernels() {
    awk -F "'" '/Compiling entry function/ { kernel = $2; sm = $4 }
        /bytes stack frame/ { split($0, n, " "); stack = n[1]; spilled = n[5] + n[9] }
        /Used [0-9]+ registers/ {
            registers = shared = $0
            sub(/.*Used /, "", registers)
            if (!sub(/ bytes smem.*/, "", shared)) { shared = 0 }
            sub(/.* /, "", shared)
            print kernel, sm, registers + 0, shared, stack, spilled
        }' "$said/$1"
}

# a line a kernel, with its name as in the sources
table() {
    printf '\n%-62s %s   shared\n' "$1" "$(printf ' %7s' "${architectures[@]}")"
    kernels "$1" | awk '
        { used[$1] = used[$1] sprintf(" %7d", $3); shared[$1] = $4 }
        END { for (kernel in used) { print kernel "|" used[kernel] sprintf(" %8d", shared[kernel]) } }' |
        c++filt -p | sort -V | awk -F '|' '{ printf "%-62s %s\n", $1, $2 }'
}

# ---- judge

trouble=() counts=()
for precision in BF16 FP32; do
    mapfile -t warnings < <(grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' "$said/$precision")
    mapfile -t spilled < <(kernels "$precision" | c++filt -p |
        awk '$(NF - 1) + $NF > 0 { stack = $(NF - 1); spill = $NF; NF -= 4
            print $0 ": a stack of " stack " bytes, " spill " bytes spilled" }')
    trouble+=("${warnings[@]/#/$precision: }" "${spilled[@]/#/$precision: }")
    counts+=("$(kernels "$precision" | cut -d ' ' -f 1 | sort -u | wc -l)")
    [ "${counts[-1]}" -gt 0 ] || trouble+=("$precision: ptxas spoke of no kernel")
done
if [ "${1:-}" = table ]; then table BF16 && table FP32; fi
if [ ${#trouble[@]} -gt 0 ]; then
    printf '%s\n' "${trouble[@]}"
    echo "[  FAILED  ] 1 test(s)."
    exit 1
fi
echo "${counts[0]} kernels in bf16, ${counts[1]} in fp32, for ${list//,/ }: no warning, nothing spilled"
echo "[  PASSED  ] 1 test(s)."
