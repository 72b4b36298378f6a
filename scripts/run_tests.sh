#!/usr/bin/env bash
# Runs test programs, each argument one command line, and ends with `N passed, N failed` over all of them.
#   scripts/run_tests.sh COMMAND... [--together COMMAND...]     those after --together use one core each: as many run at
#                                                               a time as there are cores
# A program reports as cmocka does: `[  PASSED  ] N test(s).` and `[  FAILED  ] N test(s)`. One that crashes, hangs,
# or runs no test counts as one failed. The output of a program that fails is shown.
set -uo pipefail

seconds_each=900  # bounds a hang; a busy machine is slow
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}  # spinning threads lose badly to a busy neighbour
export LC_NUMERIC=C
all=$(mktemp -d)  # a folder for each program; what tests write is removed at the end
trap 'rm -rf "$all"' EXIT
echo "leak:run_in_child" >"$all/leaks"  # a program that stops on bad input frees nothing
export LSAN_OPTIONS=print_suppressions=0:suppressions=$all/leaks

# the sum of the numbers in the lines `[  WORD  ] N test(s)` of one program
count() { sed -n "s/^\[ *$1 *\] \([0-9]*\) test(s).*/\1/p" "$2/out" "$2/err" | awk '{ n += $1 } END { print n + 0 }'; }

# runs one command line in a folder of its own, prints how it went, and leaves the numbers there
run() { # FOLDER COMMAND
    local folder=$1 command started status took passed failed skipped trouble=
    read -ra command <<<"$2"
    mkdir -p "$folder/tmp"
    started=$EPOCHREALTIME
    TMPDIR=$folder/tmp timeout -k 5 "$seconds_each" "${command[@]}" >"$folder/out" 2>"$folder/err" </dev/null
    status=$?
    took=$(awk "BEGIN { print $EPOCHREALTIME - $started }")
    passed=$(count PASSED "$folder") failed=$(count FAILED "$folder") skipped=$(count SKIPPED "$folder")

    if [ "$failed" -gt 0 ]; then
        trouble="$failed failed"
    elif [ "$status" -eq 124 ]; then
        trouble="stopped after $seconds_each s" failed=1
    elif [ "$status" -ne 0 ]; then
        trouble="exit status $status" failed=1
    elif [ $((passed + skipped)) -eq 0 ]; then
        trouble="no test ran" failed=1
    fi
    {
        printf '%6.1f s %4d passed%s  %s\n' "$took" "$passed" "${trouble:+, $trouble}" "$2"
        [ -z "$trouble" ] || grep -hvE '^\[ *(RUN|OK) *\]' "$folder/out" "$folder/err"
    } >"$folder/report"
    cat "$folder/report"
    echo "$passed $failed" >"$folder/numbers"
    rm -rf "$folder/tmp"
}

number=0 together=
for test in "$@"; do
    if [ "$test" = --together ]; then
        together=yes
        continue
    fi
    number=$((number + 1))
    mkdir "$all/$number"
    echo "0 1" >"$all/$number/numbers"  # until it has told
    if [ -z "$together" ]; then
        run "$all/$number" "$test"
        continue
    fi
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    run "$all/$number" "$test" &
done
wait

read -r passed failed <<<"$(cat "$all"/*/numbers | awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
