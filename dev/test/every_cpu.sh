#!/usr/bin/env bash
# README's first commands on each kind of CPU: `make test` and `make train` in a copy of the tree, compiled for it.
# If this machine lacks extensions of a CPU, the programs are compiled with them, then compiled without them and run.
# The seven CPUs take two hours on two idle cores.
#   dev/test/every_cpu.sh [CPU...]       names of -march; CC=clang CXX=clang++ dev/test/every_cpu.sh uses clang
# Prints a line per CPU: how it was tested, and the last line of `make test`. The logs stay in build/every_cpu. Exit
# status 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

[ $# -gt 0 ] || set -- x86-64-v2 haswell znver3 alderlake skylake-avx512 sapphirerapids znver4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p build/every_cpu
# features CPU: the extensions of -march=CPU, each as -mno-NAME spells it; nothing for an unknown CPU. AMX is left out,
# since no compiler uses it unasked
features() {
    "${CC:-cc}" -march="$1" -dM -E -x c /dev/null 2>/dev/null |
        grep -oE '__(S?SSE|AVX|FMA|F16C|BMI|LZCNT|MOVBE|POPCNT)[0-9A-Z_]*__ ' |
        sed 's/__ *//g; s/_/./g; s/.*/\L&/' | sort
}

failed=0
for cpu; do
    log=build/every_cpu/$cpu
    rm -rf "$folder/tree" && mkdir "$folder/tree"
    git ls-files -coz --exclude-standard | tar -c --null -T - | tar -x -C "$folder/tree"
    lacks=$(comm -23 <(features "$cpu") <(features native) | xargs)
    if [ -z "$(features "$cpu")" ]; then
        result="left out: ${CC:-cc} does not know it"
    elif ! make -C "$folder/tree" test-programs MARCH="$cpu" >"$log" 2>&1; then
        result="does not compile" failed=1
    else
        march=$cpu${lacks:+ -mno-${lacks// / -mno-}}
        make -C "$folder/tree" test MARCH="$march" >>"$log" 2>&1 || failed=1
        result="${lacks:+compiled; without $lacks: }$(grep ' passed, .* failed$' "$log" | tail -n 1)"
        make -C "$folder/tree" train MARCH="$march" >>"$log" 2>&1 || { result+=", make train failed" failed=1; }
    fi
    printf '%-16s %s\n' "$cpu" "$result"
done
exit "$failed"
