#!/usr/bin/env bash
# Checks that scripts/gpu_check.sh builds with CUDA's pip wheels, as a machine with PyTorch has them.
#   dev/test/wheels.sh [FOLDER]
# Not part of `make test`: the script downloads more than a GB, unpacks 3.5 GB into FOLDER (default build/wheels), does
# not delete them, and builds everything twice, six minutes on two cores. It prints the output of four commands:
#   toolkit     all wheels of CUDA 13, with the compiler, in nvidia/cu13. Without a GPU nothing runs; `build` works
#   libraries   cuBLAS and NCCL in separate folders, as in the wheels of CUDA 12, which have no nvcc. NVCC names the
#               compiler; `build` works
#   mixed       a compiler from wheels of two releases, which pip installs for nvcc alone: refused
# The machine's own toolkit in /usr/local is hidden if the user may mount; otherwise only PATH is reduced.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

release=13.0
folder=$(realpath -m "${1:-build/wheels}")
toolkit=$folder/toolkit libraries=$folder/libraries mixed=$folder/mixed

# environment NAME PACKAGE...: creates a virtual environment with these packages only
environment() {
    [ ! -x "$folder/$1/bin/python" ] || return 0
    python3 -m venv "$folder/$1" && "$folder/$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}" && return
    rm -rf "${folder:?}/$1"
    echo "wheels: could not create $folder/$1 with ${*:2}"
    exit 1
}

# hidden COMMAND...: runs a command in the copy of the tree, with this machine's CUDA hidden
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
# expect NAME WORDS COMMAND...: the command exits with status 2, prints these words, and reports no failed build
expect() {
    local name=$1 words=$2 output status started=$SECONDS
    output=$(hidden "${@:3}" 2>&1)
    status=$?
    if [ $status -eq 2 ] && [[ $output == *"$words"* && $output != *FAILED* ]]; then
        passed=$((passed + 1))
        echo "ok $name, $((SECONDS - started)) s"
    else
        failed=$((failed + 1))
        echo "not ok $name: exit status $status, expected 2 and '$words'"
    fi
    printf '%s\n' "    ${output//$'\n'/$'\n'    }"
}

# linked FOLDER: the trainer is linked with cuBLASLt and NCCL of this folder
linked() {
    hidden ldd build/cuda/train_gpt2 | grep -E 'cublas|nccl' | sed 's/^/    /'
    [ "$(hidden ldd build/cuda/train_gpt2 | grep -E 'cublasLt|nccl' | grep -cF "$1/lib/python")" -eq 2 ] && return
    failed=$((failed + 1))
    echo "not ok: expected cuBLASLt and NCCL from $1"
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

expect "without a GPU the script stops before the build" "no GPU" \
    PYTHON="$toolkit/bin/python" scripts/gpu_check.sh first
expect "all programs build from wheels" "no GPU: nothing was run" \
    PYTHON="$toolkit/bin/python" scripts/gpu_check.sh build
linked "$toolkit"
expect "all programs build with libraries in separate folders" "no GPU: nothing was run" \
    NVCC="$nvcc" PYTHON="$libraries/bin/python" scripts/gpu_check.sh build
linked "$libraries"
expect "refused: wheels of two releases" "wheels that are all of one release" \
    PYTHON="$mixed/bin/python" scripts/gpu_check.sh build
echo "[  PASSED  ] $passed test(s)."
[ $failed -eq 0 ] || echo "[  FAILED  ] $failed test(s)."
exit $((failed > 0))
