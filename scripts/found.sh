#!/usr/bin/env bash
# Lists the compilers, libraries and GPU that a build found, and their effect. The Makefile calls it, with its choices
# in the environment: CC, NVCC, DEVICE, PRECISION, HAVE_CMOCKA, HAVE_MPI, HAVE_NCCL and GPU, its name
# and compute capability (empty: not found), and HARDENED, names of scripts/hardening.mk.
# A missing requirement of every build is an error that names the remedy.
set -euo pipefail

say() { printf '%-10s %s\n' "$1" "$2"; }
first_line() { "$@" 2>/dev/null | head -n 1; }
has_header() { printf '#include <%s>\n' "$1" | "$CC" -E -x c - >/dev/null 2>&1; }
if ! command -v "$CC" >/dev/null || ! has_header stdio.h; then
    echo "no working C compiler is called '$CC': run scripts/setup.sh build, or name one with CC=" >&2
    exit 1
fi
say compiler "$(first_line "$CC" --version)"

if ! has_header cjson/cJSON.h; then
    echo "cJSON, for checkpoints' headers, is missing: run scripts/setup.sh build, or install libcjson-dev" >&2
    exit 1
fi
say cJSON "found"

if [ -n "$HAVE_CMOCKA" ]; then
    say cmocka "found"
else
    say cmocka "not found: ./test_gpt2 is left out (install libcmocka-dev)"
fi

if [ -n "$HAVE_MPI" ]; then
    say MPI "found: mpirun -np N ./train_gpt2 trains in N processes"
else
    say MPI "not found: programs run as one process (install openmpi-bin, libopenmpi-dev)"
fi
if [ "$HARDENED" = off ]; then
    say hardening "turned off"
else
    missing=
    for name in fortify stack-protector pie relro; do
        [[ " $HARDENED" == *" $name"* ]] || missing+="${missing:+, }$name"
    done
    say hardening "$HARDENED${missing:+ ($CC or its linker does not know: $missing)}"
fi
# shellcheck disable=SC2153  # the Makefile sets it
nvcc=$(command -v "$NVCC" || true)
release=$([ -z "$nvcc" ] || "$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/ \1/p')
if [ "$DEVICE" = cuda ] && [ -z "$nvcc" ]; then
    echo "DEVICE=cuda needs nvcc, and none is called '$NVCC': install the CUDA toolkit, or name it with NVCC=" >&2
    exit 1
fi
[[ ! $release =~ ^\ ([0-9]|1[01]|12\.[0-3])(\.|$) ]] || release+=" (older than 12.4, the oldest that was tried)"
say CUDA "${nvcc:-no nvcc}$release; the kernels are$([ "$DEVICE" = cuda ] || echo ' not') built for a GPU"
if [[ "$DEVICE $PRECISION ${GPU##* }" == "cuda bf16 "[1-7].* ]]; then
    echo "PRECISION=bf16 needs a GPU of compute capability 8.0 or more, and this is a $GPU: run make PRECISION=fp32" >&2
    exit 1
fi
if [ "$DEVICE" = cuda ] && [ -n "$HAVE_NCCL" ]; then
    say NCCL "found"
elif [ "$DEVICE" = cuda ]; then
    say NCCL "not found: several GPUs would talk through MPI and host memory (install libnccl-dev)"
fi
if [ -n "$GPU" ] && [ -z "$nvcc" ]; then
    say GPU "$GPU: not used, as there is no nvcc; install NVIDIA's CUDA toolkit, or name its nvcc with NVCC="
else
    say GPU "${GPU:-none found}"
fi
say chosen "DEVICE=$DEVICE PRECISION=$PRECISION"
if [ "$DEVICE $PRECISION" = "cpu bf16" ]; then
    say note "on a CPU, PRECISION=bf16 stores bf16, computes in fp32, and is slower than fp32;"
    say "" "for the CPU's bf16 instructions, build with PRECISION=fp32 and train with -f 2"
fi
