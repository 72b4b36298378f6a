#!/usr/bin/env bash
# Checks the width of every line, the `defines:` lists and the includes of headers, asm statements, the C sources with
# clang-tidy and cppcheck, and the scripts with shellcheck. Any finding fails the script. .clang-tidy selects the
# checks. Headers are read through the programs that include them.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

mapfile -t programs < <(ls train_gpt2.cu test_gpt2.cu llmc/run/portable.c dev/test/{test_*,fail_nth,jump_clock}.c \
    dev/bench/*.c dev/oracle/*.c dev/fuzz/replay.c 2>/dev/null)
mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' .ci/run)
options=(-D_GNU_SOURCE -I.)
mpi=()  # the folder of mpi.h, as a system header: mpi.h has findings of its own
if pkg-config --exists ompi-c 2>/dev/null; then
    options+=(-DHAVE_MPI)
    read -ra mpi < <(pkg-config --cflags-only-I ompi-c | sed 's/-I/-isystem /g')
fi
# Without libomp clang has no omp.h. gcc's include folder comes last, so that only omp.h is found there.
omp=$(dirname "$(gcc -print-file-name=include/omp.h)")
status=0

mapfile -t sources < <(git ls-files -co --exclude-standard '*.h' '*.c' '*.cu' '*.cuh' '*.py' '*.sh' '*.mk' Makefile)
echo "width        ${#sources[@]} files"
# the locale makes grep count characters instead of bytes
LC_ALL=C.UTF-8 grep -aHnE '^.{121}' "${sources[@]}" | cut -d: -f1,2 | sed 's/$/: over 120 columns/' && status=1

# Each name of a header's `defines:` list must be declared there, or be a line of an enum.
mapfile -t headers < <(git ls-files -co --exclude-standard llmc)
echo "defines:     ${#headers[@]} headers"
defined() { # HEADER: the names in its list
    sed -nE '/^defines:/,/^$|^\*\/|^ {0,8}[^ ]/ { /^(defines:| {9}[^ ])/p }' "$1" |
        sed -E 's/^defines://; s/\([^)]*\)//g' | grep -oE '\w+'
}
for header in "${headers[@]}"; do
    code=$(sed '1,/^\*\//d' "$header")
    for name in $(defined "$header"); do
        grep -qE "^[^ /].*\b$name\b|^ +$name( =|,|\$)" <<<"$code" && continue
        echo "$header: \`defines:\` names $name, which is not there" && status=1
    done
done

echo "includes     ${#headers[@]} headers"
dev/includes.py || status=1
dev/asm.py || status=1

echo "clang-tidy   ${#programs[@]} programs"
tidy() { # PRECISION PROGRAM...: as many at a time as there are cores
    printf '%s\n' "${@:2}" | xargs -P "$(nproc)" -I PROGRAM clang-tidy --quiet PROGRAM -- -x c -std=gnu11 -fopenmp \
        "${options[@]}" "${mpi[@]}" -DPRECISION_"$1" -idirafter "$omp" 2>/dev/null
}
mapfile -t fp64 < <(printf '%s\n' "${programs[@]}" | grep gradients)
mapfile -t fp32 < <(printf '%s\n' "${programs[@]}" | grep -v gradients)
tidy FP64 "${fp64[@]}" || status=1
tidy FP32 "${fp32[@]}" || status=1

# va_end_missing: functions that stop the program. invalidFunctionArg, uninitvar: cppcheck takes some loops for empty,
# and gcc's warning of uninitialised variables is on.
echo "cppcheck     ${#programs[@]} programs"
cppcheck --quiet --language=c --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem --suppress=va_end_missing --suppress=invalidFunctionArg --suppress=uninitvar \
    -j "$(nproc)" "${options[@]}" -DPRECISION_FP32 "${programs[@]}" || status=1

echo "shellcheck   ${#scripts[@]} scripts"
shellcheck "${scripts[@]}" || status=1
exit $status
