#!/usr/bin/env bash
# Checks and measures the trainer on this machine's GPU:   scripts/gpu_check.sh [memory|curve|build|pack]
#
# Without a word it builds with nvcc, tests every kernel and the whole model on the GPU, looks for bad memory accesses
# and races, checks that the same command gives the same bits, says which kernels do the matrix products, and times
# operations and training, the latter beside PyTorch's torch.compile where that is installed.
#   memory     every -r with its time and bytes, planned and seen by the driver; B 1, 4 and 8; the largest batch, ours
#              and PyTorch's
#   curve      a thousand steps of 124M on a text, ours and PyTorch's from the same weights and batches: the means of 50
#              steps stay within 0.01; ours resumed in the middle has the bits of ours uninterrupted. DATA=FILE is a
#              text, or a shard of tokens; MERGES=FILE GPT-2's merges (vocab.bpe), without which a text is bytes
#   build      only builds: without a GPU for GPU_ARCH (default 90), and then with exit status 2
#   pack       for a GPU without a network: run where Debian's packages are, it puts make, cJSON, cmocka, a text and
#              MERGES=FILE into build/gpu/packages, to be taken along
# A stage's results go to dev/results/gpu_<name>_<date>[_memory|_curve].md, and into the folder $OUT where that is set;
# logs stay in build/gpu/log. Each step has its time limit; what would pass 530 s in all, 560 without a word
# (GPU_CHECK_SECONDS), is left out and said. Exit status 1: something failed; 2: no GPU, or something is missing.
#
# needs      nvcc, make, a C++ compiler, cJSON; cmocka for the tests. CUDA is its toolkit, or wheels that Python finds:
#            beside PyTorch's own cublas, cudart and NCCL, `pip install 'cuda-toolkit[nvcc,nvvm,crt,cccl]==13.0.*'`, of
#            PyTorch's release (dev/test/wheels.sh tries them). What lies elsewhere is found through NVCC, PYTHON,
#            CPATH, LIBRARY_PATH and LD_LIBRARY_PATH
# work       124M at B 64, T 1024: 65,536 tokens of 0.80 GFLOP, 52 TFLOP a step; 1558M at B 16: 16,384 of 9.8, 161. 50
#            steps of each take 5 s and 15 s at 550 TFLOP/s, a little over half of a Hopper's bf16 peak
# time       expected on 16 cores and such a GPU:
#   all      build 60 s, tests and sanitizers at once 100, products and operations 90, ours 100, PyTorch 200, a third of
#            that to compile
#   memory   build, and PyTorch's compiler beside it, 60; -r 150, small batches 70, our largest 75, PyTorch's 160
#   curve    build, weights and batches 70; 1000 steps of 16,384 tokens are 16.4 M, at 450K/s 36 s, half of them again
#            18, two checkpoints of 1.5 GB each 20; PyTorch 40, and 45 to compile: 230, so half the rate is enough
# text       the King James Bible has a million of GPT-2's tokens, which 16.4 M pass 16 times: a shard of more, 33 MB
#            for all of them, is closer to training
# FLOPs      a token takes 6 N + 6 L C T: N counts every parameter but wpe's, which is added, not multiplied; half of
#            attention is masked. The share is of the rate of a large square bf16 product, measured in the same run
# memory     1558M takes 49 GiB (train_gpt2 --plan -e d48 -b 16), of which 21 are weights, gradients and moments
# disk       tokens 8 to 24 MB, programs 30 MB, what PyTorch compiled 50 MB; curve: 66 MB of batches, checkpoints 6 GB
set -uo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

stage=${1:-all}
case $stage in
all | memory | curve | build | pack) ;;
*)
    echo "gpu_check: expected nothing, 'memory', 'curve', 'build' or 'pack', found '$stage'" >&2
    exit 2
    ;;
esac
build=build/gpu programs=build/cuda python=${PYTHON:-python3} results_file=''
seconds_in_all=${GPU_CHECK_SECONDS:-$([ "$stage" = all ] && echo 560 || echo 530)}
mkdir -p $build/log
rm -f $build/log/*
. scripts/gpu/steps.sh  # a step, its limit and its line; the report
. scripts/gpu/build.sh  # what is needed, and the programs
. scripts/gpu/train.sh  # runs of the two trainers
. scripts/gpu/all.sh
. scripts/gpu/memory.sh
. scripts/gpu/curve.sh

if [ "$stage" = pack ]; then
    pack
    exit
fi
use_packed
find_cuda || exit 2
cuda_version=$("$NVCC" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
command -v c++ >/dev/null || { echo "gpu_check: there is no C++ compiler: install g++" >&2 && exit 2; }
compute_capability=$(gpu compute_cap 2>/dev/null | sed -n 's/^\([0-9]*\)\.\([0-9]\)$/\1\2/p')
arch=${compute_capability:-${GPU_ARCH:-90}}
if [ -z "$compute_capability" ] && [ "$stage" != build ]; then
    echo "gpu_check: no GPU: nvidia-smi shows none" >&2
    exit 2
fi
fetch_missing
command -v make >/dev/null || { echo "gpu_check: there is no make: install it" >&2 && exit 2; }
if ! has_cjson; then
    echo "gpu_check: cJSON is missing: install libcjson-dev, or bring what '$0 pack' packs elsewhere" >&2
    exit 2
fi
try_cuda || exit 2
echo "CUDA $cuda_version ($NVCC), compute capability ${arch:0:-1}.${arch: -1}"

names=(train_gpt2)
case $stage in
all | build)
    names+=(bench_ops)
    if has_cmocka; then
        names+=(test_ops_bf16 test_ops_fp32 test_gpt2_bf16 test_gpt2_fp32 test_nccl_bf16)
    else
        report "tests" skipped "cmocka is missing (libcmocka-dev) and apt-get could not bring it"
    fi
    ;;
memory)
    find_torch
    random_tokens "$tokens" 12000000 1
    compile_torch
    ;;
esac
build_all "${names[@]}"
if [ -z "$compute_capability" ]; then
    echo "gpu_check: no GPU: nothing was run" >&2
    exit 2
fi
[ "$stage" != build ] || exit $((failures > 0))
[ "$stage" = memory ] || find_torch
"stage_$stage"
write_report
echo
cat "$results_file"
exit $((failures > 0))
