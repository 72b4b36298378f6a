#!/usr/bin/env bash
# Runs test programs, each argument one command line, and ends with `N passed, N failed` over all of them.
# A program reports as cmocka does: `[  PASSED  ] N test(s).` and `[  FAILED  ] N test(s)`. One that crashes, hangs,
# or runs no test counts as one failed. The output of a program that fails is shown.
set -uo pipefail

seconds_each=240
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}  # spinning threads lose badly to a busy neighbour
export LC_NUMERIC=C
TMPDIR=$(mktemp -d)  # what tests write is removed at the end
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
out=$TMPDIR/out err=$TMPDIR/err
echo "leak:run_in_child" >"$TMPDIR/leaks"  # a program that stops on bad input frees nothing
export LSAN_OPTIONS=print_suppressions=0:suppressions=$TMPDIR/leaks

# the sum of the numbers in the lines `[  WORD  ] N test(s)`
count() { sed -n "s/^\[ *$1 *\] \([0-9]*\) test(s).*/\1/p" "$out" "$err" | awk '{ n += $1 } END { print n + 0 }'; }

passed_all=0 failed_all=0
for test in "$@"; do
    read -ra command <<<"$test"
    started=$EPOCHREALTIME
    timeout -k 5 "$seconds_each" "${command[@]}" >"$out" 2>"$err" </dev/null
    status=$?
    took=$(awk "BEGIN { print $EPOCHREALTIME - $started }")
    passed=$(count PASSED) failed=$(count FAILED) skipped=$(count SKIPPED)

    trouble=
    if [ "$failed" -gt 0 ]; then
        trouble="$failed failed"
    elif [ "$status" -eq 124 ]; then
        trouble="stopped after $seconds_each s" failed=1
    elif [ "$status" -ne 0 ]; then
        trouble="exit status $status" failed=1
    elif [ $((passed + skipped)) -eq 0 ]; then
        trouble="no test ran" failed=1
    fi
    printf '%6.1f s %4d passed%s  %s\n' "$took" "$passed" "${trouble:+, $trouble}" "$test"
    [ -z "$trouble" ] || grep -hvE '^\[ *(RUN|OK) *\]' "$out" "$err"
    passed_all=$((passed_all + passed)) failed_all=$((failed_all + failed))
done

echo "$passed_all passed, $failed_all failed"
[ "$failed_all" -eq 0 ] && [ "$passed_all" -gt 0 ]
