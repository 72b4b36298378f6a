#!/usr/bin/env bash
# Fuzzes and prints a table: executions, edges of the code that were reached, findings.
#   dev/fuzz/run.sh SECONDS [TARGET...]          `make fuzz FUZZ_SECONDS=600` builds the targets first
#   FUZZ_JOBS=2                                  two targets at a time
# Each target runs for SECONDS, FUZZ_JOBS (1) at a time, from the inputs of dev/fuzz/seeds.py and dev/fuzz/found/TARGET.
# build/fuzz/learned/TARGET keeps the inputs that reached new code, for the next run. build/fuzz/findings/TARGET has the
# input of each finding, and build/fuzz/TARGET.log the report. The exit status is 1 if there is a finding.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

seconds=${1:?dev/fuzz/run.sh SECONDS [TARGET...]}
shift
[ $# -gt 0 ] || mapfile -t targets < <(basename -a -s .c dev/fuzz/fuzz_*.c | sed 's/^fuzz_//')
[ $# -eq 0 ] || targets=("$@")

at_a_time=${FUZZ_JOBS:-1}
if ! [[ $at_a_time =~ ^[1-9][0-9]{0,3}$ ]]; then
    echo "fuzz: FUZZ_JOBS=$at_a_time: expected the number of targets that run at a time, 1 to 9999" >&2
    exit 2
fi

# files of inputs in memory, where there is such a folder
TMPDIR=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
export TMPDIR
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$TMPDIR"' EXIT

# fuzz.h limits each allocation. rss_limit_mb limits the memory of the process, with the sanitizer's own.
limits=(-max_len=65536 -rss_limit_mb=768 -timeout=5)

fuzz() { # TARGET: libFuzzer's status; in the background, where exec makes the process libFuzzer's
    local folders=("build/fuzz/learned/$1") folder
    mkdir -p "${folders[0]}" "build/fuzz/findings/$1"
    for folder in {build/fuzz/seeds,dev/fuzz/found}/"$1"; do
        [ -d "$folder" ] && folders+=("$folder")
    done
    # -close_fd_mask=3 drops the output of readers. fuzz.h finds leaks itself: -detect_leaks=0. fuzz.h also closes the
    # descriptors of a symbolizer that names new functions: -print_funcs=0.
    ASAN_OPTIONS=quarantine_size_mb=16 exec nice -n 19 "build/fuzz/$1" -max_total_time="$seconds" "${limits[@]}" \
        -close_fd_mask=3 -detect_leaks=0 -print_funcs=0 -print_final_stats=1 \
        -artifact_prefix="build/fuzz/findings/$1/" -dict=dev/fuzz/words.dict "${folders[@]}" \
        >"build/fuzz/$1.log" 2>&1
}

row() { # TARGET FOUND: a line of the table from libFuzzer's log
    local executions edges kept
    executions=$(sed -n "s/^stat::number_of_executed_units: *//p" "build/fuzz/$1.log" | tail -n 1)
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "build/fuzz/$1.log" | tail -n 1)
    kept=$(find "dev/fuzz/found/$1" -type f 2>/dev/null | wc -l)
    printf '| %s | %s | %s | %s | %s | %s |\n' "$1" "$seconds" "${executions:-0}" "${edges:-0}" "$2" "$kept"
}

dev/fuzz/seeds.py build/fuzz/seeds || exit
echo '| target | seconds | executions | edges | open findings | mended, kept in dev/fuzz/found |'
echo '|---|---|---|---|---|---|'
status=0
for ((first = 0; first < ${#targets[@]}; first += at_a_time)); do
    started=("${targets[@]:first:at_a_time}") pids=()
    for target in "${started[@]}"; do
        fuzz "$target" &
        pids+=($!)
    done
    for i in "${!started[@]}"; do
        target=${started[i]} found=0
        wait "${pids[i]}" || found=1
        row "$target" "$found"
        [ "$found" -eq 0 ] && continue
        status=1
        grep -E -A 8 '^==|ERROR|^fuzz: |^SUMMARY' "build/fuzz/$target.log" | head -n 24 >&2
        echo "fuzz: $target: the report is in build/fuzz/$target.log, the input in build/fuzz/findings/$target" >&2
    done
done
exit "$status"
