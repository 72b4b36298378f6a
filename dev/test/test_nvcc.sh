#!/usr/bin/env bash
# Compiles the trainer and all kernels for every GPU generation, and fails on a warning or a spilled register. Compiles
# the GPU tests and the benchmark of operations too, and fails on a warning.   dev/test/test_nvcc.sh [oldest]
# oldest: the trainer with nvcc 12.4, which dev/test/nvcc12.sh downloads, and host code for a CPU with AVX512-FP16, as a
# machine with an H100 has; also with gcc 11.
# Prints the registers that each kernel takes on each architecture, and the shared memory that it declares itself;
# dev/test/test_launches.sh adds what the launches ask for.
# The trainer in bf16 is linked too, as build/nvcc/train_gpt2, for dev/test/test_trainer.sh; CUDA_FLAGS (-lcublasLt)
# says where cuBLASLt is. Three minutes on two free cores; only what changed is compiled again; skipped without nvcc.
. "$(dirname "$0")/harness.sh"

said=build/nvcc host=()
if [ "${1:-}" = oldest ]; then
    why=$(dev/test/nvcc12.sh build/nvcc12) || { skip "nvcc 12.4: $why" && exit; }
    for NVCC_CCBIN in g++ g++-{13..11} ''; do
        version=$("$NVCC_CCBIN" -dumpversion 2>/dev/null) && [ "${version%%.*}" -le 13 ] && break
    done
    [ -n "$NVCC_CCBIN" ] || { skip "a g++ from 11 to 13, for nvcc 12.4" && exit; }
    export NVCC_CCBIN
    PATH=$PWD/build/nvcc12/bin:$PATH said=build/nvcc12/said host=(-Xcompiler -march=sapphirerapids)
fi
command -v nvcc >/dev/null || { skip nvcc && exit; }

# the architectures of ours that this nvcc knows; sm_75 has no kernels in bf16
known=" $(nvcc --list-gpu-code | tr '\n' ' ') " architectures=() every=() old=()
for sm in 80 90 100 120; do
    [[ $known == *" sm_$sm "* ]] || continue
    architectures+=("sm_$sm")
    every+=(-gencode "arch=compute_$sm,code=sm_$sm")
done
one=("${every[@]: -2}")
[[ $known != *" sm_75 "* ]] || old=(sm_75)

# ---- compile; what the compilers say goes to a file, kept until a source or nvcc changes

mkdir -p $said

shopt -s globstar
headers=(llmc/**/*.h llmc/**/*.cuh)
compiler=$(nvcc --version && echo "${NVCC_PREPEND_FLAGS:-} ${NVCC_APPEND_FLAGS:-}" "${CUDA_FLAGS:-}")

# compile NAME SOURCE PRECISION FLAG...: into $said/NAME.o, with what was said in $said/NAME
compile() {
    local name=$1 source=$2 key read=("$0" "${headers[@]}" "$2")
    [[ $source == train_gpt2.cu ]] || read+=(dev/test/*.h dev/bench/*.h train_gpt2.cu)
    key=$({ echo "$compiler" "$@" && cat "${read[@]}"; } | sha256sum)
    [ "$(cat $said/"$name".key 2>/dev/null)" != "$key" ] || return 0
    rm -f $said/"$name"{,.key}
    nvcc -x cu -std=c++20 -D_GNU_SOURCE -I. -DHAVE_CUDA -DPRECISION_"$3" "${@:4}" "${host[@]}" \
        -Xcompiler -O1,-fopenmp,-Wall,-Wextra,-Wno-missing-field-initializers -c "$source" -o $said/"$name".o \
        >$said/"$name".failed 2>&1 || return
    if [ "$said/$name" = build/nvcc/BF16 ]; then
        # shellcheck disable=SC2086  # flags
        nvcc "${one[@]}" $said/BF16.o -o $said/train_gpt2 ${CUDA_FLAGS:--lcublasLt} -lcjson -lgomp \
            >>$said/"$name".failed 2>&1 || return
    fi
    rm -f $said/"$name".o
    mv $said/"$name".failed $said/"$name" && echo "$key" >$said/"$name".key
}

kernels=(BF16 FP32) others=()
compile BF16 train_gpt2.cu BF16 "${every[@]}" -Xptxas -v &
compile FP32 train_gpt2.cu FP32 "${old[@]/#sm_75/-gencode=arch=compute_75,code=sm_75}" "${every[@]}" -Xptxas -v &
# warnings NAME SOURCE FLAG...: the kernels are optimized above, so only the compilers' warnings are wanted, of one
# architecture
warnings() {
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    others+=("$1")
    compile "$1" "$2" BF16 "${one[@]}" -Xptxas -O0 "${@:3}" &
}
if [ $# -gt 0 ]; then
    if command -v g++-11 >/dev/null; then
        warnings gcc11 train_gpt2.cu -ccbin g++-11
    else
        skip g++-11 1 "nvcc 12.4 with an older compiler than $NVCC_CCBIN"
    fi
else
    for source in dev/test/test_{ops,layouts,simt}.cu test_gpt2.cu dev/bench/bench_ops.cu; do
        warnings "$(basename "$source" .cu)" "$source" -DTESTING -Xcompiler -Wno-unused-function
    done
    if nvcc -x cu -E -include nccl.h /dev/null >/dev/null 2>&1; then
        warnings test_nccl dev/test/test_nccl.cu -DHAVE_NCCL
    else
        skip "NCCL (libnccl-dev)" 1 "its communicator"
    fi
fi
wait
for name in "${kernels[@]}" "${others[@]}"; do
    [ ! -e "$said/$name.key" ] || continue
    echo "nvcc failed with $name:" && cat "$said/$name.failed"
    echo "[  FAILED  ] 1 test(s)."
    exit 1
done

# ---- tables

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
    local columns=("${architectures[@]}")
    [ "$1" = BF16 ] || columns=("${old[@]}" "${columns[@]}")
    printf '%-64s %s  shared  spilled\n' "registers, bytes: $1" "$(printf '%7s' "${columns[@]}")"
    kernels "$1" | awk '
        { used[$1] = used[$1] sprintf("%7d", $3); shared[$1] = $4; spilled[$1] += $5 + $6 }
        END { for (kernel in used) { print kernel "|" used[kernel] "|" shared[kernel] "|" spilled[kernel] } }' |
        c++filt -p | sort -V | awk -F '|' '{ printf "%-64s %s %7d %8d\n", $1, $2, $3, $4 }'
}

# ---- judge

trouble=() counts=()
for name in "${kernels[@]}" "${others[@]}"; do
    mapfile -t warnings < <(grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' $said/"$name")
    trouble+=("${warnings[@]/#/$name: }")
done
for name in "${kernels[@]}"; do
    mapfile -t spilled < <(kernels "$name" | c++filt -p |
        awk '$(NF - 1) + $NF > 0 { stack = $(NF - 1); spill = $NF; NF -= 4
            print $0 ": a stack of " stack " bytes, " spill " bytes spilled" }')
    trouble+=("${spilled[@]/#/$name: }")
    counts+=("$(kernels "$name" | cut -d ' ' -f 1 | sort -u | wc -l)")
    [ "${counts[-1]}" -gt 0 ] || trouble+=("$name: ptxas spoke of no kernel")
    table "$name" && echo
done
if [ ${#trouble[@]} -gt 0 ]; then
    printf '%s\n' "${trouble[@]}"
    echo "[  FAILED  ] 1 test(s)."
    exit 1
fi
echo "${counts[0]} kernels in bf16, for ${architectures[*]}; ${counts[1]} in fp32, for ${old[*]} ${architectures[*]}:" \
    "no warning, nothing spilled"
echo "[  PASSED  ] 1 test(s)."
