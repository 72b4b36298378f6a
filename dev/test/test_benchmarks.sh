#!/usr/bin/env bash
# The counters of `make bench-cpu`: dev/bench/parallel_regions.c on a program with known regions and waits.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# shellcheck source=dev/test/harness.sh
. dev/test/harness.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.c" <<'END'
#include <omp.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    omp_set_num_threads(2);
    for (int region = 0; region < atoi(argv[argc - 1]); region++) {
#pragma omp parallel
        {
#pragma omp barrier
#pragma omp barrier
        }
    }
}
END
if ! gcc -O1 -fopenmp "$folder/program.c" -o "$folder/program" 2>"$folder/error"; then
    skip "gcc with OpenMP is not installed: parallel regions are not counted" 2
    exit 0
fi
cc -O2 -shared -fPIC dev/bench/parallel_regions.c -o "$folder/regions.so" || exit
count() { LD_PRELOAD=$folder/regions.so "$folder/program" "$1" 2>&1; }

report "parallel regions and barriers are counted once, not by each thread" "$(
    count 3 | grep -q '"regions": 3, "barriers": 6, ' || echo "found $(count 3)"
)"
report "waking takes time in a program with regions, and none without" "$(
    count 0 | grep -q '"wake_ms": 0.000000}' || echo "no region: $(count 0)"
    count 1000 | grep -q '"wake_ms": 0.000000}' && echo "1000 regions: $(count 1000)"
)"
end_tests
