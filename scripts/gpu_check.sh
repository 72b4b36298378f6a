#!/usr/bin/env bash
# Checks and measures the trainer on this machine's GPU, in three commands:   scripts/gpu_check.sh first|speed|rest
#
#   first      correctness, 4 to 6 minutes: kernels against their references, compute-sanitizer's memcheck, 20 steps of
#              124M without and with CUDA graphs. PyTorch compiles beside all of it
#   speed      10 minutes: 124M and 1558M beside PyTorch (torch.compile, flash attention), the same bits twice, every
#              matmul with its kernels and fused epilogues, every operation
#   rest       10 minutes: a thousand steps beside PyTorch from the same weights, every -r, the largest batch, the whole
#              model's tests, fp32, NCCL, racecheck, synccheck, initcheck
#   build      compiles every program. Without a GPU it compiles for GPU_ARCH (default 90) and exits 2
#   pack       for a GPU machine without a network: run it where Debian's packages are. It puts make, cJSON, cmocka, a
#              text and MERGES=FILE into build/gpu/packages, for you to copy with the tree
#   times      lists the expected seconds and the limit of every row
# The report begins with one line. `go`: the kernels, memcheck and the losses are right; if memcheck ran out of time
# before it found anything, the line says so. `no-go` names each failure.
# `speed` and `rest` say go only if `first` has passed here with the same sources, GPU, driver and CUDA. A failed row is
# reported with its error over its tolerance, and the next row runs.
# Reports go to dev/results/gpu_<name>_<date>_<command>.md. Logs and the autotune cache stay in build/gpu. The folder
# $OUT, if OUT is set, gets the report, gpu_check_<command>.tgz with every log, and autotune_<command>.txt.
# Exit status 0: go; 1: no-go; 2: no GPU of compute capability 8.0, no folder $OUT, or a program is missing.
#
# needs      nvcc, make, a C++ compiler, cJSON; cmocka for the tests. No network. CUDA is the toolkit, or wheels that
#            Python finds: beside PyTorch's own cublas, cudart and NCCL, `pip install
#            'cuda-toolkit[nvcc,nvvm,crt,cccl]==13.0.*'`, of PyTorch's release (dev/test/wheels.sh tries them). NVCC,
#            PYTHON, CPATH, LIBRARY_PATH and LD_LIBRARY_PATH name other places
# time       scripts/gpu/times.sh has the seconds of every row, for 16 cores and a Hopper GPU. A row that would pass the
#            command's time is left out and reported: 330 s of `first`, 570 s of the others (GPU_CHECK_SECONDS)
# work       124M at B 64, T 1024: 65,536 tokens of 0.80 GFLOP, 52 TFLOP a step; 1558M at B 16: 16,384 of 9.8, 161. 50
#            steps of each take 6 s and 16 s. `make predict` prints 113 and 328 ms a step on an H200
# text       of the curve: DATA=FILE is a text or a token shard; else the packed text; else this repository's sources. A
#            text is read as bytes, with MERGES=FILE (GPT-2's vocab.bpe) as GPT-2's tokens. The King James Bible has a
#            million of these: 16.4 M tokens are 16 epochs
# FLOPs      a token takes 6 (12 L C^2 + 50304 C) + 6 L C (T + 1), as in llmc/memory/flops.h: the weights of matmuls,
#            and half of attention, since the rest is masked. The share is of the rate of a large square bf16 matmul,
#            measured in the same run
# memory     1558M at B 16 takes 60 GiB with the flags that -r auto chooses on an H200, 49 at -r 1 and 24 at -r 4; at
#            B 1 and -r 4 it takes 21 (make predict ARGS='-e d48 -b 16 -d 16384 -r 1'). `speed` halves B until the
#            plan fits, and skips 1558M where B 1 does not fit. PyTorch's 1558M runs at B 16 on GPUs of 100,000 MiB or
#            more, at B 8 from 70,000 MiB on. On a smaller GPU 1558M has no row of PyTorch, and `first` compiles nothing
#            of PyTorch: it would fill the memory beside the tests
# disk       tokens 8 MB, programs 30 MB, PyTorch's compiled code 50 MB; rest: batches 66 MB, checkpoints 6 GB
set -uo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

stage=${1:-}
build=build/gpu programs=build/cuda logs=build/gpu/log_$stage python=${PYTHON:-python3} results_file=''
. scripts/gpu/times.sh  # the seconds of each row
. scripts/gpu/steps.sh  # a row with a time limit; the report and its verdict
. scripts/gpu/build.sh  # finding the requirements, building the programs
. scripts/gpu/runs.sh   # runs of the tests, of train_gpt2 and of PyTorch
. scripts/gpu/first.sh
. scripts/gpu/speed.sh
. scripts/gpu/curve.sh
. scripts/gpu/rest.sh
case $stage in
first | speed | rest | build) ;;
pack)
    pack
    exit
    ;;
times)
    list_times
    exit
    ;;
--help | -h)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
    exit
    ;;
*)
    echo "gpu_check: expected 'first', 'speed', 'rest', 'build', 'pack' or 'times', found '$stage'" >&2
    exit 2
    ;;
esac
rm -rf "$logs" $build/took
mkdir -p "$logs"
if [ -n "${OUT:-}" ] && ! { mkdir -p "$OUT" && [ -w "$OUT" ]; } 2>/dev/null; then
    echo "gpu_check: OUT=$OUT cannot be written: name a folder for the report and the logs" >&2
    exit 2
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
if [ "$arch" -lt 80 ]; then
    echo "gpu_check: compute capability 8.0 is needed, since all programs are built in bf16, and" \
        "${arch:0:-1}.${arch: -1} was found: on such a GPU plain make builds fp32, './train_gpt2 --self-check' checks" \
        "the kernels, and 'TEST_DEVICE=cuda ./test_gpt2' checks the model" >&2
    exit 2
fi
for name in make cjson; do
    "has_$name" && continue
    echo "gpu_check: $name is missing: scripts/setup.sh gpu installs it from Debian's packages; for a machine" \
        "without a network '$0 pack' packs it elsewhere" >&2
    exit 2
done
try_cuda || exit 2
echo "CUDA $cuda_version ($NVCC), compute capability ${arch:0:-1}.${arch: -1}"
if [ "$stage" = build ]; then
    on_signal "end_running 1" TERM INT HUP
    build_all train_gpt2 bench_ops test_{simt,layouts,nccl}_bf16 test_{ops,gpt2}_{bf16,fp32}
    [ ${#failed[@]} -eq 0 ] || exit 1
    [ -n "$compute_capability" ] || { echo "gpu_check: no GPU: nothing was run" >&2 && exit 2; }
    exit
fi
gpu_name=$(gpu name) driver=$(gpu driver_version)
export TRAIN_GPT2_SELF_CHECK=$build/self_check.txt  # the trainer remembers here that this GPU has passed
on_signal interrupted TERM INT HUP
find_torch
"stage_$stage"
write_report
echo
cat "$results_file"
echo
verdict
