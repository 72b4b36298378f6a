#!/usr/bin/env bash
# Unpacks nvcc 12.4 into a folder, for dev/test/test_nvcc.sh:   dev/test/nvcc12.sh FOLDER
# Neither Debian nor PyPI has an nvcc 12 before 12.4. The compiler is that of Debian 13's nvidia-cuda-toolkit, from the
# mirror in apt's sources; PyPI's wheels have the headers. There are no libraries: it compiles, and does not link.
# Downloads 480 MB once and keeps 120 MB; needs no root. Where the download is impossible, prints one sentence and exits
# with status 1.
set -uo pipefail

[ ! -x "$1/bin/nvcc" ] || exit 0
impossible() {
    echo "$1"
    exit 1
}
[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || impossible "its package is for Debian on amd64"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    sed -nE 's/^(URIs:|deb ).*(https?:[^ ]*\/debian)\/?( .*)?$/\2/p' | head -n 1)
[ -n "$mirror" ] || impossible "apt's sources name no mirror of Debian"

folder=$(realpath -m "$1") work=$(realpath -m "$1.work")
trap 'rm -rf "$work"' EXIT
rm -rf "$work"
mkdir -p "$work"/{lists,archives}/partial "$work"/cuda/{bin,nvvm/bin} && cd "$work" || exit
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie non-free" >sources
touch status
apt() {
    apt-get -q -o Dir::State::Lists="$work/lists" -o Dir::State::status="$work/status" -o Dir::Cache="$work" \
        -o Dir::Etc::SourceList="$work/sources" -o Dir::Etc::SourceParts=- "$@" >/dev/null 2>&1
}
{ apt update && apt download nvidia-cuda-toolkit && dpkg -x nvidia-cuda-toolkit_12.4.*.deb .; } ||
    impossible "apt-get cannot download Debian 13's nvidia-cuda-toolkit"
{ python3 -m venv py && py/bin/pip install --quiet --retries 1 --disable-pip-version-check --no-deps --no-compile \
    nvidia-{cuda-nvcc,cuda-runtime,cuda-cccl,cublas}-cu12==12.4.*; } >/dev/null 2>&1 ||
    impossible "pip cannot download its headers"

for headers in py/lib/python*/site-packages/nvidia/*/include; do cp -r "$headers" cuda || exit; done
cat >cuda/bin/nvcc.profile <<'END_OF'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
END_OF
mv usr/lib/nvidia-cuda-toolkit/libdevice cuda/nvvm && mv usr/lib/nvidia-cuda-toolkit/bin/cicc cuda/nvvm/bin &&
    mv usr/bin/{cudafe++,ptxas,fatbinary} usr/lib/nvidia-cuda-toolkit/bin/nvcc cuda/bin && mv cuda "$folder"
