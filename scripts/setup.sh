#!/usr/bin/env bash
# Installs the missing packages of a purpose with apt:   scripts/setup.sh PURPOSE
# PURPOSE is build, gpu, train, test, all, lint, bench, fuzz, aarch64 or peers.
# gpu: for a machine with CUDA's toolkit. make, g++, cJSON and cmocka build the program and what scripts/gpu_check.sh
# runs. Nothing else is installed.
# test: what `make test` cannot do without, and MPI. More than 200 MB are downloaded after a yes alone.
# all: what any test of `make test-all` uses. pip installs tiktoken and other packages into build/py, and with nvcc
# CUDA's disassembler into build/cuda_tools. peers: the same, and in build/py the programs that tests compare with:
# PyTorch, lm-evaluation-harness and llama-cpp-python. They take 6 GB, and llama.cpp compiles for up to half an hour.
# For the benchmark of the CPU, pip installs PyTorch into build/torch.
# aarch64: a cross compiler, qemu, and Debian's libraries of the architecture arm64, which dpkg then knows.
# Each missing package is printed with its reason before anything is installed. If no package is missing, the script
# prints nothing and needs neither root nor a network. Without apt-get it prints the missing packages and stops.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-} with_peers=
case $purpose in
build | gpu | train | test | all | lint | bench | fuzz | aarch64) ;;
peers) purpose=all with_peers=yes ;;
*)
    echo "setup: expected build, gpu, train, test, all, lint, bench, fuzz, aarch64 or peers, found '$purpose'" >&2
    exit 2
    ;;
esac

has_command() { command -v "$1" >/dev/null; }
has_headers() { printf '#include <%s>\n' "$@" | cc -E -x c - >/dev/null 2>&1; }
# The Python of this script's own environments and of Debian's modules. The scripts run with python3, which may be the
# Python of an active environment: Debian's modules are not there, and pip installs them.
python=/usr/bin/python3
[ -x $python ] || python=python3
# finds PYTHON MODULE
finds() { "$1" -c "import importlib.util as u, sys; sys.exit(not u.find_spec('$2'))" 2>/dev/null; }
has_module() { finds python3 "$1" || finds $python "$1"; }
advise_environment() {
    ! has_command python3 || finds python3 matplotlib ||
        python3 -c 'import sys; sys.exit("/usr/lib/python3/dist-packages" not in sys.path)' ||
        echo "setup: $(command -v python3) is an environment without matplotlib: 'python3 -m pip install matplotlib'" \
            "adds it, for pictures of scripts/plot.py"
}
# the part of clang's OpenMP library that tells ThreadSanitizer of its barriers
has_archer() { compgen -G '/usr/lib/llvm-*/lib/libarcher.so' >/dev/null; }

# cuobjdump and nvdisasm, which Debian does not package; needed only on a machine with nvcc
cuda_tools=build/cuda_tools
has_disassembler() {
    ! has_command nvcc || { has_command cuobjdump && has_command nvdisasm; } ||
        compgen -G "$cuda_tools/lib/python*/site-packages/nvidia/*/bin/nvdisasm" >/dev/null
}
makes_environments() { has_disassembler || $python -c 'import ensurepip, venv' 2>/dev/null; }

# The PyTorch of `make bench-cpu`. PyPI's has CUDA. Remove the folder to get a newer one.
torch=build/torch
has_torch() { compgen -G "$torch/lib/python*/site-packages/torch/__init__.py" >/dev/null; }
makes_torch() { has_torch || $python -c 'import ensurepip, venv' 2>/dev/null; }
has_python_headers() {
    [ -f "$($python -c "import sysconfig; print(sysconfig.get_path('include'))" 2>/dev/null)/Python.h" ]
}

# Debian's clang depends on the package of its sanitizers, Ubuntu's only recommends it
has_fuzzer() {
    printf 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        clang -x c -fsanitize=fuzzer,address - -o /dev/null >/dev/null 2>&1
}
fuzzer_package() {
    local version
    version=$(clang -dumpversion 2>/dev/null || apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-//p')
    echo "libclang-rt-${version%%.*}-dev"
}

# links_for_aarch64 OPTION: a program for aarch64 links with the library
links_for_aarch64() {
    printf 'int main(void) { return 0; }' | aarch64-linux-gnu-gcc -x c - "$1" -o /dev/null >/dev/null 2>&1
}

# need|want PURPOSES PACKAGE REASON TEST...: lists the package if the purpose is one of PURPOSES and the test fails.
# A package of need is required. A package of want is optional. `all` needs and wants the packages of `test` too.
required=() optional=()
check() {
    local -n list=$1
    local purposes=$2 package=$3 reason=$4
    shift 4
    [ "$purpose" != all ] || purposes=${purposes/test/all}
    [[ " $purposes " == *" $purpose "* || $purposes == every ]] || return 0
    "$@" && return 0
    list+=("$package")
    printf 'setup: %-17s %s\n' "$package" "$reason"
}
need() { check required "$@"; }
want() { check optional "$@"; }

need every         make                "runs the builds"                                       has_command make
need every         gcc                 "the C compiler, with OpenMP"                           has_command cc
need every         libc6-dev           "the C library's headers"                               has_headers stdio.h
need every         libcjson-dev        "cJSON, for the headers of checkpoints"                 has_headers cjson/cJSON.h
want bench         libdnnl-dev         "oneDNN, to compare GEMMs with (39 MB)"    has_headers oneapi/dnnl/dnnl.h
want "train bench" bible-kjv           "the King James Bible, 4.1 MB of public-domain text"    has_command bible
need "test gpu"    g++                 "the C++ compiler, which nvcc calls"                    has_command g++
want "train all"   curl                "downloads, for scripts/get_data.sh"                    has_command curl
need test          python3             "Python, for tests of scripts"                          has_command python3
need test          procps              "pgrep, which finds the ranks of mpirun"                has_command pgrep
want all           python3-matplotlib  "plots, for scripts/plot.py"                            has_module matplotlib
want all           debootstrap         "an empty Debian, for fresh_machine.sh"       test -x /usr/sbin/debootstrap
want test          openmpi-bin         "mpirun, which starts a run of several ranks"           has_command mpirun
want test          libopenmpi-dev      "MPI, through which ranks communicate (50 MB with it)"  has_command mpicc
want all           clang               "compiles for ThreadSanitizer (400 MB)"                 has_command clang
want all           g++-11              "an older C++ compiler, tried with nvcc 12"             has_command g++-11
want all           libomp-dev          "OpenMP for clang, with Archer for ThreadSanitizer"     has_archer
want all           python3-venv        "pip, for CUDA's disassembler"                          makes_environments
need "test lint gpu" libcmocka-dev     "cmocka, the framework of the tests" \
    has_headers stdarg.h stddef.h stdint.h setjmp.h cmocka.h
need lint          clang-format        "formats the sources"                                   has_command clang-format
need lint          clang-tidy          "static analysis of C"                                  has_command clang-tidy
need lint          cppcheck            "more static analysis of C"                             has_command cppcheck
need lint          shellcheck          "static analysis of scripts"                            has_command shellcheck
need fuzz          clang               "compiles the fuzz targets"                              has_command clang
need fuzz          "$(fuzzer_package)" "libFuzzer and clang's sanitizers"                       has_fuzzer
want fuzz          llvm                "names functions and lines in reports of a finding" has_command llvm-symbolizer
need aarch64 gcc-aarch64-linux-gnu "the C compiler for aarch64"               has_command aarch64-linux-gnu-gcc
need aarch64 libc6-dev-arm64-cross "the C library for aarch64"                              links_for_aarch64 -lm
need aarch64 qemu-user             "executes programs for aarch64"                          has_command qemu-aarch64
need aarch64 libgomp1:arm64        "OpenMP for aarch64"         test -e /usr/lib/aarch64-linux-gnu/libgomp.so.1
need aarch64 libcjson-dev:arm64    "cJSON for aarch64"                                      links_for_aarch64 -lcjson
need aarch64 libcmocka-dev:arm64   "cmocka for aarch64"                                     links_for_aarch64 -lcmocka
want all           qemu-user           "older CPUs, for the program of many CPUs"              has_command qemu-x86_64
want bench         python3-venv        "pip, for PyTorch"                                      makes_torch
want bench         g++                 "compiles the kernels of torch.compile"                 has_command g++
want bench         python3-dev         "Python's headers, for torch.compile"                   has_python_headers

# a virtual environment, because Debian's Python refuses pip
install_disassembler() {
    echo "setup: installing cuobjdump and nvdisasm (6 MB) with pip into $cuda_tools, for dev/test/test_sass.sh"
    $python -m venv $cuda_tools >/dev/null &&
        $cuda_tools/bin/python3 -m pip install --quiet --retries 1 --timeout 10 --disable-pip-version-check --no-deps \
            nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm >/dev/null 2>&1 ||
        echo "setup: pip could not install them; going on without"
}
# Python packages of today, for tests that compare with them and for bench-tokenizer
packages=build/py
has_packages() {
    [ -x $packages/bin/python3 ] && $packages/bin/python3 -c 'import tiktoken, transformers, gguf' 2>/dev/null
}
install_packages() {
    echo "setup: installing tiktoken, transformers, gguf, tensorboard and wandb with pip into $packages, for tests"
    $python -m venv $packages >/dev/null &&
        $packages/bin/python3 -m pip install --quiet --retries 1 --timeout 10 --disable-pip-version-check \
            tiktoken transformers gguf tensorboard wandb >/dev/null 2>&1 ||
        echo "setup: pip could not install them; going on without"
}
install_peers() {
    local package module
    for package in torch:torch lm_eval:lm_eval accelerate:accelerate llama-cpp-python:llama_cpp; do
        module=${package#*:} package=${package%:*}
        $packages/bin/python3 -c "import $module" 2>/dev/null && continue
        echo "setup: installing $package with pip into $packages"
        $packages/bin/python3 -m pip install --quiet --retries 1 --disable-pip-version-check "$package" >/dev/null ||
            echo "setup: pip could not install $package; going on without"
    done
}
install_torch() {
    echo "setup: installing the newest PyTorch with pip into $torch (5 GB, as it brings CUDA), for make bench-cpu"
    $python -m venv $torch >/dev/null &&
        $torch/bin/python3 -m pip install --quiet --retries 1 --timeout 10 --disable-pip-version-check torch numpy \
            >/dev/null 2>&1 ||
        echo "setup: pip could not install it; going on without"
}
install_tools() {
    [ "$purpose" != bench ] || has_torch || install_torch
    [ "$purpose" = all ] || return 0
    advise_environment
    has_packages || install_packages
    [ -z "$with_peers" ] || install_peers
    has_disassembler || install_disassembler
}

if [ $((${#required[@]} + ${#optional[@]})) -eq 0 ]; then
    install_tools
    exit
fi

# stops, unless every missing package is optional
cannot_install() {
    local all="${required[*]} ${optional[*]}"
    if [ ${#required[@]} -eq 0 ]; then
        echo "setup: $1; going on without ${optional[*]}"
        [ "$purpose" != bench ] || install_tools
        exit 0
    fi
    if has_command apt-get; then
        echo "setup: $1; as root, run this line, which installs what is missing, then try again:"
        [ "$purpose" != aarch64 ] || printf 'dpkg --add-architecture arm64 && '
        echo "apt-get update && apt-get install -y --no-install-recommends ${all% }"
    else
        echo "setup: $1; install ${all% } (Debian's names) and run this again"
    fi >&2
    exit 1
}

has_command apt-get || cannot_install "there is no apt-get here"
root=()
if [ "$(id -u)" -ne 0 ]; then
    has_command sudo || cannot_install "installing takes root, and there is no sudo"
    root=(sudo)
    [ -t 0 ] || root+=(-n) # no question
    "${root[@]}" env true || cannot_install "installing takes root, and sudo refused it"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@" </dev/null >>"$log" 2>&1; }
install() { apt install -y --no-install-recommends "$@"; }

# megabytes PACKAGE...: what apt-get would download
megabytes() {
    local uri bytes sum=0
    while read -r uri _ bytes _; do
        [[ $uri != \'* ]] || sum=$((sum + bytes))
    done < <(apt-get -q -y --no-install-recommends --print-uris install "$@" 2>/dev/null)
    echo $((sum / 1000000))
}
# for `make test`, a download of more than 200 MB takes a yes; else the optional packages are left out
agree() {
    local answer=
    [ "$size" -gt 200 ] || return 0
    [ ! -t 0 ] || read -rp "setup: download $size MB? [y/N] " answer || true
    [[ $answer != [yY]* ]] || return 0
    if [ ${#required[@]} -eq 0 ] || [ "$(megabytes "${required[@]}")" -gt 200 ]; then
        cannot_install "a download of $size MB takes a yes on a terminal"
    fi
    echo "setup: a download of $size MB takes a yes on a terminal; going on without ${optional[*]}"
    optional=()
}

echo "setup: installing with apt-get ..."
[ "$purpose" != aarch64 ] || "${root[@]}" dpkg --add-architecture arm64
apt update || echo "setup: apt-get update failed; trying with the present package lists" >&2
size=$(megabytes "${required[@]}" "${optional[@]}")
echo "setup: $size MB to download"
[ "$purpose" != test ] || agree
if [ ${#required[@]} -gt 0 ] && ! install "${required[@]}"; then
    cat "$log" >&2
    echo "setup: apt-get could not install ${required[*]}; its output is above" >&2
    exit 1
fi
for package in "${optional[@]}"; do
    install "$package" || echo "setup: apt-get could not install $package; going on without it"
done
install_tools
