#!/usr/bin/env bash
# Are CUDA's wheels, as a machine with PyTorch has them, enough for scripts/gpu_check.sh?   dev/test/wheels.sh [FOLDER]
# Not part of `make test`: it downloads more than a GB, unpacks 3.5 GB into FOLDER (default build/wheels), where it
# keeps them, and builds everything twice, six minutes on two cores. It prints what each of four commands said:
#   toolkit     all wheels of CUDA 13, the compiler's too, in nvidia/cu13: without a GPU nothing is begun, `build` works
#   libraries   cuBLAS and NCCL in folders of their own, as the wheels of CUDA 12 lie (these have no nvcc: NVCC names
#               one): builds as well
#   mixed       a compiler whose parts are of two releases, as pip brings it if asked for nvcc alone: refused
# A toolkit that the machine has in /usr/local is hidden where a user may mount; elsewhere only PATH is short.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

release=13.0
folder=$(realpath -m "${1:-build/wheels}")
toolkit=$folder/toolkit libraries=$folder/libraries mixed=$folder/mixed

# environment NAME PACKAGE...: one with these alone
environment() {
    [ ! -x "$folder/$1/bin/python" ] || return 0
    python3 -m venv "$folder/$1" && "$folder/$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}" && return
    rm -rf "${folder:?}/$1"
    echo "wheels: could not make $folder/$1 with ${*:2}"
    exit 1
}

# hidden COMMAND...: runs it in the copy of the tree, with nothing of this machine's CUDA to be found
hidden() {
    local run=(env -i HOME="$folder" PATH=/usr/bin:/bin "$@")
    cd "$folder/tree" || exit
    if unshare -rm true 2>/dev/null; then
        # shellcheck disable=SC2016  # for the inner shell
        unshare -rm sh -c 'mount -t tmpfs none /usr/local && exec "$@"' sh "${run[@]}"
    else
        "${run[@]}"
    fi
}

passed=0 failed=0
# expect NAME WORDS COMMAND...: a command that ends with status 2 and these words, and says of no build that it failed
expect() {
    local name=$1 words=$2 said status started=$SECONDS
    said=$(hidden "${@:3}" 2>&1)
    status=$?
    if [ $status -eq 2 ] && [[ $said == *"$words"* && $said != *FAILED* ]]; then
        passed=$((passed + 1))
        echo "ok $name, $((SECONDS - started)) s"
    else
        failed=$((failed + 1))
        echo "not ok $name: exit status $status, expected 2 and '$words'"
    fi
    printf '%s\n' "    ${said//$'\n'/$'\n'    }"
}

# linked WORDS: whether the trainer finds its libraries there
linked() {
    hidden ldd build/cuda/train_gpt2 | grep -E 'cublas|nccl' | sed 's/^/    /'
    [ "$(hidden ldd build/cuda/train_gpt2 | grep -E 'cublasLt|nccl' | grep -cF "$1/lib/python")" -eq 2 ] && return
    failed=$((failed + 1))
    echo "not ok: cuBLASLt and NCCL come from elsewhere than $1"
}

mkdir -p "$folder"
compiler=("cuda-toolkit[nvcc,nvvm,crt,cccl,cudart]==$release.*")
environment toolkit "cuda-toolkit[nvcc,nvvm,crt,cccl,cudart,cublas]==$release.*" nvidia-nccl-cu13
environment compiler "${compiler[@]}"
environment libraries nvidia-cublas-cu12 nvidia-nccl-cu12
environment mixed "cuda-toolkit[nvcc,crt,cccl,cudart,cublas]==$release.*" 'nvidia-nvvm>13.3'
rm -rf "$folder/tree"
mkdir "$folder/tree"
git ls-files -z | xargs -0 cp --parents -t "$folder/tree"
nvcc=$(echo "$folder"/compiler/lib/python*/site-packages/nvidia/cu13/bin/nvcc)

expect "no GPU is found before anything is built" "no GPU" PYTHON="$toolkit/bin/python" scripts/gpu_check.sh
expect "everything builds from wheels" "no GPU: nothing was run" PYTHON="$toolkit/bin/python" scripts/gpu_check.sh build
linked "$toolkit"
expect "and with libraries in folders of their own" "no GPU: nothing was run" \
    NVCC="$nvcc" PYTHON="$libraries/bin/python" scripts/gpu_check.sh build
linked "$libraries"
expect "wheels of two releases are refused" "wheels that are all of one release" \
    PYTHON="$mixed/bin/python" scripts/gpu_check.sh build
echo "[  PASSED  ] $passed test(s)."
[ $failed -eq 0 ] || echo "[  FAILED  ] $failed test(s)."
exit $((failed > 0))
