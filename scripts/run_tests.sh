#!/usr/bin/env bash
# Runs test programs and ends with `N passed, N failed` over all of them. Each argument is one command line.
#   scripts/run_tests.sh [--tally FILE] COMMAND...
#   --tally FILE   FILE holds the result of an earlier run, if it exists; this run adds its own
# Two more commands run at a time than there are cores: many of them sleep or wait.
# A program reports as cmocka does: `[  PASSED  ] N test(s).` and `[  FAILED  ] N test(s)`. A program that crashes,
# hangs or runs no test counts as one failed test. The output of a failed program is shown. The failed tests, with the
# command that runs each program again, stand together above the last line, and above them what the tests skipped.
# No limit is on wall time, so a slow machine fails no test. A program hangs, and is stopped, if for so long it prints
# nothing and either sleeps or spins:
#   TEST_SILENT_SECONDS   (300) uses less than 1 % of a core all that time
#   TEST_CPU_SECONDS      (900) uses so much CPU time
set -uo pipefail

silent_seconds=${TEST_SILENT_SECONDS:-300} cpu_seconds=${TEST_CPU_SECONDS:-900}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}  # spinning threads are slow while other programs run
export LC_NUMERIC=C
export TRAIN_GPT2_SELF_CHECK=  # test_self_check.sh covers the check at the start of a run
all=$(mktemp -d)  # one folder per program, removed at the end with the files of the tests
# each program leads a session, which Ctrl-C in the terminal does not reach
end_all() {
    local sessions
    sessions=$(cat "$all"/*/session | paste -sd ,)
    [ -z "$sessions" ] || { pkill -TERM -s "$sessions" && sleep 1 && pkill -KILL -s "$sessions"; }
    [ -z "${watcher:-}" ] || kill "$watcher"
    rm -rf "$all"
} 2>/dev/null
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# the tests write nothing to the user's autotune cache
export TRAIN_GPT2_AUTOTUNE_CACHE=${TRAIN_GPT2_AUTOTUNE_CACHE-$all/autotune}
echo "leak:run_in_child" >"$all/leaks"  # a program that exits on bad input frees nothing
export LSAN_OPTIONS=print_suppressions=0:suppressions=$all/leaks

# SESSION WHY FOLDER: ends a program that hangs
stop() {
    local left=5
    echo "$2" >"$3/stopped"
    pkill -TERM -s "$1"
    while [ $((left--)) -gt 0 ] && pkill -0 -s "$1"; do sleep 1; done
    pkill -KILL -s "$1"
}

# Stops programs that hang. Time is counted in turns, so that none passes while the machine is suspended.
watch() {
    local turn=$((silent_seconds < 60 ? 1 : 5)) second file folder id ticks bytes
    local -A of_session size_of since asleep_since quiet  # CPU time in clock ticks, of a session's living processes
    second=$(getconf CLK_TCK)
    while sleep "$turn"; do
        of_session=()
        while read -r id ticks; do of_session[$id]=$ticks; done < <(cat /proc/[0-9]*/stat | awk '
            { sub(/.*\) /, ""); ticks[$4] += $12 + $13 + $14 + $15 }
            END { for (id in ticks) print id, ticks[id] }')
        for file in "$all"/*/session; do
            folder=${file%/session}
            id=$(cat "$file")
            ticks=${of_session[${id:-none}]:-}
            [ -n "$ticks" ] || continue
            bytes=$(cat "$folder/out" "$folder/err" | wc -c)
            if [ "$bytes" != "${size_of[$id]:-}" ]; then
                size_of[$id]=$bytes since[$id]=$ticks asleep_since[$id]=$ticks quiet[$id]=0
            elif [ $((ticks - asleep_since[$id])) -ge $((silent_seconds * second / 100)) ]; then
                asleep_since[$id]=$ticks quiet[$id]=0
            else
                quiet[$id]=$((quiet[$id] + turn))
            fi
            if [ "${quiet[$id]}" -ge "$silent_seconds" ]; then
                stop "$id" "stopped after $silent_seconds s of silence" "$folder"
            elif [ $((ticks - since[$id])) -ge $((cpu_seconds * second)) ]; then
                stop "$id" "stopped after $cpu_seconds s of CPU time without output" "$folder"
            fi
        done
    done
} >/dev/null 2>&1

# the sum of the numbers in the lines `[  WORD  ] N test(s)` of one program
count() { sed -n "s/^\[ *$1 *\] \([0-9]*\) test(s).*/\1/p" "$2/out" "$2/err" | awk '{ n += $1 } END { print n + 0 }'; }

# starts a command in a session of its own, and waits for its end
lead() { # FOLDER COMMAND...
    TMPDIR=$1/tmp setsid "${@:2}" >"$1/out" 2>"$1/err" </dev/null &
    echo $! >"$1/session"
    wait $!
}

# runs one command line in its own folder, prints a report, and writes the counts and the failed tests to FOLDER/result
run() { # FOLDER COMMAND
    local folder=$1 command status took passed failed skipped reason=
    local TIMEFORMAT='%R %U %S'
    read -ra command <<<"$2"
    mkdir -p "$folder/tmp"
    { time lead "$folder" "${command[@]}" 2>/dev/null; } 2>"$folder/time"
    status=$?
    rm "$folder/session"
    took=$(awk '{ printf "%6.1f s, %6.1f of CPU,", $1, $2 + $3 }' "$folder/time")
    passed=$(count PASSED "$folder") failed=$(count FAILED "$folder") skipped=$(count SKIPPED "$folder")

    [ "$failed" -eq 0 ] || reason="$failed failed"
    if [ -e "$folder/stopped" ]; then
        reason+="${reason:+, }$(cat "$folder/stopped")" failed=$((failed + 1))
    elif [ "$failed" -gt 0 ]; then
        :
    elif [ "$status" -ne 0 ]; then
        reason="exit status $status" failed=1
    elif [ $((passed + skipped)) -eq 0 ]; then
        reason="no test ran" failed=1
    fi
    echo "$passed $failed" >"$folder/result"
    if [ -n "$reason" ]; then
        echo "$reason: scripts/run_tests.sh '$2'"
        [ ! -e "$folder/stopped" ] || echo "    its last line: $(tail -n 1 "$folder/out")"
        # a line of harness.sh with its reason below, or a line that cmocka prints twice
        awk '/^(not ok |\[ *FAILED *\] [^0-9])/ && !seen[$0]++ || reason { print "    " $0 }
            { reason = /^not ok / }' "$folder/out" "$folder/err"
    fi >>"$folder/result"
    {
        flock 9
        echo >>"$all/ended"
        printf '%3d of %d %s %4d passed%s  %s\n' "$(wc -l <"$all/ended")" "$total" "$took" "$passed" \
            "${reason:+, $reason}" "$2"
        [ -z "$reason" ] || grep -hvE '^\[ *(RUN|OK) *\]' "$folder/out" "$folder/err"
    } 9>"$all/lock"
    rm -rf "$folder/tmp"
}

tally=
if [ "${1:-}" = --tally ]; then
    tally=$2
    shift 2
fi
total=$# number=0
watch &
watcher=$!
disown  # `wait` does not wait for it
for test in "$@"; do
    number=$((number + 1))
    mkdir "$all/$number"
    printf '0 1\nnot finished: %s\n' "$test" >"$all/$number/result"
    while [ "$(jobs -rp | wc -l)" -gt $(($(nproc) + 1)) ]; do wait -n; done
    run "$all/$number" "$test" &
done
wait

[ ! -s "$tally" ] || { mkdir "$all/0" && cp "$tally" "$all/0/result"; }
read -r passed failed <<<"$(head -qn 1 "$all"/*/result | awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')"
grep -h '^skipped: ' "$all"/*/out
tail -qn +2 "$all"/*/result | tee "$all/failed"
[ -z "$tally" ] || { echo "$passed $failed" && cat "$all/failed"; } >"$tally"
stopped=$(grep -cE '^([0-9]+ failed, )?stopped after ' "$all/failed")
[ "$stopped" -eq 0 ] || echo "$stopped hung and were stopped, each of them one failed test"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
