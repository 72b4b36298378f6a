#!/usr/bin/env bash
# Says what a build found on this machine and what that means. Called by the Makefile, which passes what it chose:
# CC, PRECISION, ONEDNN (0: turned off), HAVE_ONEDNN and HAVE_CMOCKA (empty: not found).
# Fails, with the remedy, where something is missing that every build needs.
set -euo pipefail

say() { printf '%-10s %s\n' "$1" "$2"; }
first_line() { "$@" 2>/dev/null | head -n 1; }
has_header() { printf '#include <%s>\n' "$1" | "$CC" -E -x c - >/dev/null 2>&1; }
onednn_version() {
    printf '#include <oneapi/dnnl/dnnl_version.h>\nDNNL_VERSION_MAJOR.DNNL_VERSION_MINOR\n' |
        "$CC" -E -P -x c - | tail -n 1 | tr -d ' '
}

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

if [ -n "$HAVE_ONEDNN" ]; then
    say oneDNN "$(onednn_version): matrix products run through it"
elif [ "$ONEDNN" = 0 ]; then
    say oneDNN "turned off: matrix products in portable C, about half as fast"
else
    say oneDNN "not found: matrix products in portable C, about half as fast (install libdnnl-dev)"
fi

if [ -n "$HAVE_CMOCKA" ]; then
    say cmocka "found"
else
    say cmocka "not found: ./test_gpt2 is left out (install libcmocka-dev)"
fi

mpi=$(command -v mpicc || true)
say MPI "${mpi:-no mpicc}; not used yet: training is one process"
nvcc=$(command -v nvcc || true)
say CUDA "${nvcc:-no nvcc}; not used yet: there is no CUDA backend"
gpu=$(first_line nvidia-smi --query-gpu=name --format=csv,noheader || true)
say GPU "${gpu:-none found}; not used yet"
say chosen "DEVICE=cpu PRECISION=$PRECISION"
