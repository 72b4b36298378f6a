#!/usr/bin/env bash
# Checks and measures the trainer on this machine's GPU:   scripts/gpu_check.sh [memory|curve|build|pack]
#
# Without an argument the script
#   - builds with nvcc, and tests every kernel and the whole model on the GPU;
#   - looks for bad memory accesses and races with compute-sanitizer;
#   - checks that the same command gives the same bits, and lists the kernels of the matmuls;
#   - times operations and training, beside PyTorch's torch.compile where PyTorch is installed.
# The other stages:
#   memory     every -r with its time and bytes, planned and seen by the driver; B 1, 4 and 8; the largest batch of this
#              program and of PyTorch
#   curve      a thousand steps of 124M on a text, of this program and of PyTorch, from the same weights and batches.
#              The means of 50 steps stay within 0.01. A run resumed in the middle has the bits of the uninterrupted
#              run. DATA=FILE is a text or a token shard; MERGES=FILE is GPT-2's merges (vocab.bpe), without which a
#              text is read as bytes
#   build      compiles only. Without a GPU it compiles for GPU_ARCH (default 90) and exits 2
#   pack       for a GPU machine without a network: run it where Debian's packages are. It puts make, cJSON, cmocka, a
#              text and MERGES=FILE into build/gpu/packages, for you to copy
# The results of a stage go to dev/results/gpu_<name>_<date>[_memory|_curve].md, and into the folder $OUT if OUT is set.
# Logs stay in build/gpu/log. Each step has a time limit. A step that would pass 530 s in all, 560 without an argument
# (GPU_CHECK_SECONDS), is left out and reported. Exit status 1: a step failed; 2: no GPU, or a program is missing.
#
# needs      nvcc, make, a C++ compiler, cJSON; cmocka for the tests. CUDA is the toolkit, or wheels that Python finds:
#            beside PyTorch's own cublas, cudart and NCCL, `pip install 'cuda-toolkit[nvcc,nvvm,crt,cccl]==13.0.*'`, of
#            PyTorch's release (dev/test/wheels.sh tries them). NVCC, PYTHON, CPATH, LIBRARY_PATH and LD_LIBRARY_PATH
#            name other places
# work       124M at B 64, T 1024: 65,536 tokens of 0.80 GFLOP, 52 TFLOP a step; 1558M at B 16: 16,384 of 9.8, 161. 50
#            steps of each take 5 s and 15 s at 550 TFLOP/s, a little over half of a Hopper's bf16 peak
# time       expected on 16 cores and such a GPU:
#   all      build 60 s, tests and sanitizers at once 100, matmuls and operations 90, training 100, PyTorch 200, a third
#            of it to compile
#   memory   build, and PyTorch's compiler beside it, 60; -r 150, small batches 70, the largest batch 75, PyTorch's 160
#   curve    build, weights and batches 70; 1000 steps of 16,384 tokens are 16.4 M, at 450K/s 36 s, the resumed half
#            18, two checkpoints of 1.5 GB each 20; PyTorch 40, and 45 to compile: 230, so half the rate is enough
# text       the King James Bible has a million of GPT-2's tokens: 16.4 M tokens are 16 epochs. A longer text, 33 MB for
#            one epoch, is closer to training
# FLOPs      a token takes 6 N + 6 L C T: N counts every parameter except wpe, which is added, not multiplied; half of
#            attention is masked. The share is of the rate of a large square bf16 matmul, measured in the same run
# memory     1558M takes 49 GiB (train_gpt2 --plan -e d48 -b 16): weights, gradients and moments take 21
# disk       tokens 8 to 24 MB, programs 30 MB, PyTorch's compiled code 50 MB; curve: 66 MB of batches, checkpoints 6 GB
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
. scripts/gpu/steps.sh  # a step with a time limit and a line in the report
. scripts/gpu/build.sh  # finding or fetching the requirements, building the programs
. scripts/gpu/train.sh  # runs of train_gpt2 and of PyTorch
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
    echo "gpu_check: cJSON is missing: install libcjson-dev, or copy the packages that '$0 pack' packs elsewhere" >&2
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
