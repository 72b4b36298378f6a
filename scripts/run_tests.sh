#!/usr/bin/env bash
# Runs test programs and ends with `N passed, N failed` over all of them. Each argument is one command line.
#   scripts/run_tests.sh [--tally FILE] COMMAND...
#   --tally FILE   FILE holds the result of an earlier run, if it exists; this run adds its own
# One more command runs at a time than there are cores: many of them sleep or wait.
# A program reports as cmocka does: `[  PASSED  ] N test(s).` and `[  FAILED  ] N test(s)`. A program that crashes,
# hangs or runs no test counts as one failed test. The output of a failed program is shown. The failed tests, with the
# command that runs each program again, stand together above the last line, and above them what the tests skipped.
set -uo pipefail

seconds_each=900  # bounds a hang; a busy machine is slow
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}  # spinning threads are slow while other programs run
export LC_NUMERIC=C
export TRAIN_GPT2_SELF_CHECK=  # test_self_check.sh covers the check at the start of a run
all=$(mktemp -d)  # one folder per program, removed at the end with the files of the tests
trap 'rm -rf "$all"' EXIT
# the tests write nothing to the user's autotune cache
export TRAIN_GPT2_AUTOTUNE_CACHE=${TRAIN_GPT2_AUTOTUNE_CACHE-$all/autotune}
echo "leak:run_in_child" >"$all/leaks"  # a program that exits on bad input frees nothing
export LSAN_OPTIONS=print_suppressions=0:suppressions=$all/leaks

# the sum of the numbers in the lines `[  WORD  ] N test(s)` of one program
count() { sed -n "s/^\[ *$1 *\] \([0-9]*\) test(s).*/\1/p" "$2/out" "$2/err" | awk '{ n += $1 } END { print n + 0 }'; }

# runs one command line in its own folder, prints a report, and writes the counts and the failed tests to FOLDER/result
run() { # FOLDER COMMAND
    local folder=$1 command started status took passed failed skipped reason=
    read -ra command <<<"$2"
    mkdir -p "$folder/tmp"
    started=$EPOCHREALTIME
    TMPDIR=$folder/tmp timeout -k 5 "$seconds_each" "${command[@]}" >"$folder/out" 2>"$folder/err" </dev/null
    status=$?
    took=$(awk "BEGIN { print $EPOCHREALTIME - $started }")
    passed=$(count PASSED "$folder") failed=$(count FAILED "$folder") skipped=$(count SKIPPED "$folder")

    if [ "$failed" -gt 0 ]; then
        reason="$failed failed"
    elif [ "$status" -eq 124 ]; then
        reason="stopped after $seconds_each s" failed=1
    elif [ "$status" -ne 0 ]; then
        reason="exit status $status" failed=1
    elif [ $((passed + skipped)) -eq 0 ]; then
        reason="no test ran" failed=1
    fi
    {
        printf '%6.1f s %4d passed%s  %s\n' "$took" "$passed" "${reason:+, $reason}" "$2"
        [ -z "$reason" ] || grep -hvE '^\[ *(RUN|OK) *\]' "$folder/out" "$folder/err"
    } >"$folder/report"
    cat "$folder/report"
    echo "$passed $failed" >"$folder/result"
    if [ -n "$reason" ]; then
        echo "$reason: scripts/run_tests.sh '$2'"
        # a line of harness.sh with its reason below, or a line that cmocka prints twice
        awk '/^(not ok |\[ *FAILED *\] [^0-9])/ && !seen[$0]++ || reason { print "    " $0 }
            { reason = /^not ok / }' "$folder/out" "$folder/err"
    fi >>"$folder/result"
    rm -rf "$folder/tmp"
}

tally=
if [ "${1:-}" = --tally ]; then
    tally=$2
    shift 2
fi
number=0
for test in "$@"; do
    number=$((number + 1))
    mkdir "$all/$number"
    printf '0 1\nnot finished: %s\n' "$test" >"$all/$number/result"
    while [ "$(jobs -rp | wc -l)" -gt "$(nproc)" ]; do wait -n; done
    run "$all/$number" "$test" &
done
wait

[ ! -s "$tally" ] || { mkdir "$all/0" && cp "$tally" "$all/0/result"; }
read -r passed failed <<<"$(head -qn 1 "$all"/*/result | awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')"
grep -h '^skipped: ' "$all"/*/out
tail -qn +2 "$all"/*/result | tee "$all/failed"
[ -z "$tally" ] || { echo "$passed $failed" && cat "$all/failed"; } >"$tally"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
