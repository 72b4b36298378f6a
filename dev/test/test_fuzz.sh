#!/usr/bin/env bash
# The seeds of fuzzing, the inputs of mended findings, and 600 damaged copies of them, through each target under
# AddressSanitizer and UBSan. clang is not needed.
#   REPLAY=build/sanitize/replay dev/test/test_fuzz.sh
. "$(dirname "$0")/harness.sh"

replay=${REPLAY:-build/sanitize/replay}
make_scratch
export TMPDIR=$scratch

[ -x "$replay" ] || make --no-print-directory build/sanitize/replay >"$out" 2>&1

# fuzz_NAME.c without a line in replay.c would never run here
missing=
for target in dev/fuzz/fuzz_*.c; do
    grep -q "\"$target\"" dev/fuzz/replay.c || missing+="$target is not in dev/fuzz/replay.c "
done
report "replay has every target" "$missing"

# run NAME FILE...: all inputs of a target end in a return or in one sentence
run() {
    local name=$1 said
    shift
    "$replay" -d $((600 / ($# + 1))) "$@" >"$out" 2>"$err"
    local status=$?
    said=$(grep "^$name " "$out" 2>/dev/null)
    tail -n 30 "$err" >>"$out"
    report "$name: $# inputs" "$([ $# -gt 0 ] && [ "$status $said" = "0 $name $#" ] || echo "exit status $status")"
}

report "seeds.py writes the seeds" "$(dev/fuzz/seeds.py "$scratch/seeds" 2>&1)"
for target in dev/fuzz/fuzz_*.c; do
    name=$(basename "$target" .c) name=${name#fuzz_}
    mapfile -t inputs < <(find "$scratch/seeds/$name" "dev/fuzz/found/$name" -type f 2>/dev/null | sort)
    run "$name" "${inputs[@]}"
done

# a file in a folder that names no target
"$replay" "$err" >/dev/null 2>&1
report "a file of no target is refused" "$([ $? -eq 2 ] || echo "expected exit status 2")"

end_tests
