#!/usr/bin/env bash
# The kernels as nvcc compiled them, executed on the CPU by dev/emulator/ptx.h.
#   dev/test/test_ptx.sh [nvcc|nvcc12 bf16|fp32 sm_80|sm_90]   all eight, or one of them
# For the installed nvcc and nvcc 12.4, which dev/test/nvcc12.sh downloads, both precisions, sm_80 and sm_90: the rows
# of test_ops, the layouts of the tensor cores, and short runs of the trainer. A kernel that nothing executed fails the
# test by its name. It cannot show speed, races (the emulator finds them), or faults of ptxas, cuBLASLt, NCCL and the
# driver.
# build/ptx keeps PTX until a source changes. Two at a time; 5 minutes on two free cores, one of them a minute.
. "$(dirname "$0")/harness.sh"
PATH+=:${CUDA_HOME:-/usr/local/cuda}/bin

[[ "$#$*" =~ ^0$|^3nvcc(12)?\ (bf16|fp32)\ sm_(80|90)$ ]] || { echo "usage:$(sed -n '3s/#//p' "$0")" >&2 && exit 2; }
command -v nvcc >/dev/null || { skip nvcc $(($# ? 1 : 8)) && exit; }
make build/emulated/test_ops build/emulated/test_ops_bf16 build/emulated/test_layouts_bf16 \
    build/emulated/train_gpt2 build/emulated/train_gpt2_bf16 >/dev/null || exit
make_scratch
root=$PWD programs=$PWD/build/emulated
seq 3000 >"$scratch/text"
export OMP_NUM_THREADS=1 TEST_DEVICE=cuda SIMT_RACES=0

# passes PROGRAM ARGUMENTS...: a test on PTX
passes() {
    "$@" >log 2>&1 && return
    echo "${1##*/} ${*:2}: exit status $?"
    grep -E 'ptx:|ERROR:' log
    return 1
}
# train RUN FLAGS...: a run of the trainer, without a note but those of the matmuls that SIMT_BREAK breaks
train() {
    export TRAIN_GPT2_AUTOTUNE_CACHE=$PWD/${1#emulated_}.algorithms
    "$trainer" --device cuda -i "$scratch/text" -t 64 -v 2 -m 1 -s 20 -o "$@" >log 2>&1 </dev/null || echo "$1 failed"
    grep -q 'PDL is on' log || echo "$1: no PDL"
    grep -E '^(train_gpt2|ptx): ' log | grep -vE "${SIMT_BREAK:+own kernel|}cublasLtMatmul: "
}
# trains_the_same RUN FLAGS...: losses on PTX are those of g++'s kernels, but for roundings
trains_the_same() {
    SIMT_PTX=$ptx train "$@"
    SIMT_LAUNCHES='' train "emulated_$1" "${@:2}"
    close_losses "$1" "emulated_$1" 1e-4
}
kernels() { sed -nE 's/^(\.visible )?\.entry ([^(]*).*/\2/p' "$1" | sort; }
not_executed() { comm -23 "$1" <(sed -n 's/ ptx$//p' launches | sort) | c++filt -p | sed 's/^/not executed: /'; }

# check NVCC PRECISION ARCHITECTURE: prints a sentence for each failure
check() {
    local ptx=$root/build/ptx/$1_$2_$3 layouts=$root/build/ptx/$1_layouts_$3 suffix=_$2
    [ "$2" = bf16 ] || suffix=
    local ops=$programs/test_ops$suffix trainer=$programs/train_gpt2$suffix
    [ "$1" = nvcc ] || export PATH=$root/build/nvcc12/bin:$PATH NVCC_CCBIN=${NVCC_CCBIN:-g++-12}
    ptx_of "$ptx" train_gpt2.cu "$2" "$3" && ptx_of "$layouts" dev/test/test_layouts.cu bf16 "$3" || return
    mkdir "$scratch/$1_$2_$3" && cd "$scratch/$1_$2_$3" || return
    export SIMT_LAUNCHES=$PWD/launches
    SIMT_PTX=$ptx passes "$ops" --quick
    if [ "$2" = fp32 ]; then # kernels for GPUs with less shared memory
        SIMT_PTX=$ptx SIMT_CAPABILITY=75 passes "$ops" --quick attention_backward
    else
        SIMT_PTX=$layouts passes "$programs/test_layouts_bf16" &&
            not_executed <(comm -13 <(kernels "$ptx") <(kernels "$layouts"))
    fi
    trains_the_same graphs -e l2h2c128 -b 2 -n 2 -x 4 -gd bf16
    trains_the_same muon -e l2h2c128 -b 2 -d 256 -x 2 --optimizer muon -r 4 --offload 1
    SIMT_PRODUCTS=1 trains_the_same unaligned -e l1h1c20 -b 1 -d 256 -x 1 # rows that are no whole packs
    SIMT_BREAK=cublasLtMatmul:error trains_the_same own_matmuls -e l1h1c20 -b 1 -d 256 -x 1 -s 0
    [ -s "$scratch/$1_$2_$3.said" ] || not_executed <(kernels "$ptx") # a test that failed has left kernels out
}

names=()
start() { # NVCC PRECISION ARCHITECTURE
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    { (check "$@") || echo "the checks ended with status $?"; } >"$scratch/$1_$2_$3.said" 2>&1 &
    names+=("$*")
}
if [ $# -eq 3 ]; then
    start "$@"
else
    for compiler in nvcc nvcc12; do
        why=$([ $compiler = nvcc ] || dev/test/nvcc12.sh build/nvcc12) || { skip "nvcc 12.4: $why" 4 && continue; }
        for precision in bf16 fp32; do
            for architecture in sm_80 sm_90; do start $compiler $precision $architecture; done
        done
    done
fi
wait
for name in "${names[@]}"; do
    report "${name/nvcc12/nvcc 12.4}: $(kernels "build/ptx/${name// /_}" | wc -l) kernels" \
        "$(cat "$scratch/${name// /_}.said")"
done
end_tests
