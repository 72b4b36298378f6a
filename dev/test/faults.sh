#!/usr/bin/env bash
# Injects faults into runs of a small model: kills, failing file systems, wrong bytes, stopped ranks, lost links. After
# each fault, every checkpoint must equal that of an uninterrupted run, byte for byte. The resumed run must begin at the
# newest checkpoint and end with the same bytes as the uninterrupted run.
#   TRAINER=./train_gpt2 PROGRAM=build/test/test_processes dev/test/faults.sh [short|whole] [SECTION...]
#   FAULTS_SEED=N   seed of the random moments and places (default 1)
#   SECTION         a function faults_SECTION below (default: all sections)
# The short form injects samples of the faults and belongs to `make test`. The whole form is run by `make test-faults`.
# The whole form injects a fault at every call of one rank, and samples of calls of two ranks and of bytes of tensors.
# Two ranks talk through MPI: over Open MPI's shared memory, and over Open MPI's TCP transport. Where a rank is silent
# for too long, the ranks are test_processes, which takes a shorter timeout.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

form=${1:-short} seed=${FAULTS_SEED:-1}
case $form in
short | whole) shift $(($# > 0)) ;;
*)
    echo "faults: expected short or whole, found '$form'" >&2
    exit 2
    ;;
esac
trainer=$(realpath "${TRAINER:-./train_gpt2}") program=$(realpath "${PROGRAM:-build/test/test_processes}")
# ids of the trainer's processes of this test
processes() {
    local exe
    find /proc/[0-9]*/exe -maxdepth 0 -lname "$trainer" 2>/dev/null | while read -r exe; do
        [ "$(readlink "${exe%exe}cwd")" != "$PWD" ] || basename "${exe%/exe}"
    done
}
end_all() {
    # shellcheck disable=SC2046
    { kill -9 $(jobs -p) $(processes) && wait; } 2>/dev/null
    close_link
    cd / && rm -rf "$folder"
}

export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive LC_ALL=C
# an fsync of every file takes most of the time on a disk
folder=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$folder"' EXIT
for source in fail_nth jump_clock patient_yield; do
    cc -O2 -shared -fPIC "dev/test/$source.c" -o "$folder/$source.so" || exit
done
mkdir "$folder/work"
cat llmc/*.h | head -c 200000 >"$folder/work/text"
cd "$folder/work" || exit
trap end_all EXIT

# ---- runs and checks

# Variables that functions share:
#   log, err   stdout and stderr of the last run
#   note       a file in which fail_nth.so names the struck calls
#   scenario   flags of the run that is struck, one rank
#   layout     flags of the run that is struck, two ranks
#   before     the newest checkpoint before the fault; empty: none
#   preload    a library for `run`; two ranks have fail_nth.so without it
# The run that is struck is in the folder `victim`.
log=$folder/log err=$folder/err out=$err before='' preload=''

model=(-i text -e l2h2c32 -b 2 -t 16 -d 64 -l 1e-3 -m 2 -s 0)
small=("${model[@]}" -v 2 -n 2 -x 6)
every() { if [ "$form" = whole ]; then echo "$1"; else echo "$2"; fi; } # WHOLE SHORT: the number for this form

run() { # STATUS ARGUMENTS...: a sentence unless the trainer, with $preload, exits with STATUS
    local status=0
    LD_PRELOAD="$preload" "$trainer" "${@:2}" >"$log" 2>"$err" </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$err"; }
}
exit_status() { sed -n 's/^exit status \([0-9]*\).*/\1/p'; } # the unexpected status in the output of run
struck() { # STATUS WITH AT IN ARGUMENTS...: run, with the AT-th call on paths that contain IN struck
    rm -f note
    preload=$folder/fail_nth.so FAIL_WITH=$2 FAIL_AT=$3 FAIL_IN=$4 FAIL_NOTE=$PWD/note run "$1" "${@:5}"
}
was_struck() { [ -n "$(what_was_struck)" ] || echo "no call was struck: nothing was tested"; }
what_was_struck() { sed '/^calls/d; s/^[0-9]* //; q' note 2>/dev/null; }
# starts the trainer with the AT-th call on paths that contain IN struck; waits until the trainer is stopped, or has
# ended. Its id is in $id
start_and_fail() { # WITH AT IN ARGUMENTS...
    rm -f note
    LD_PRELOAD=$folder/fail_nth.so FAIL_WITH=$1 FAIL_AT=$2 FAIL_IN=$3 FAIL_NOTE=$PWD/note \
        "$trainer" "${@:4}" >"$log" 2>"$err" </dev/null &
    id=$!
    for _ in {1..30000}; do
        grep -qs '^State:.*[TZ] (' "/proc/$id/status" && return
        [ -d "/proc/$id" ] && sleep 0.01 || return
    done
}
# ID: waits for a process of the background. Returns its exit status
await() { { wait "$1"; } 2>/dev/null; }
# [JOB]: the stopped process $id goes on, and it or the job of ranks ends with $status
go_on() {
    [ -z "$id" ] || kill -CONT "$id"
    await "${1:-$id}"
    status=$?
}
# STATUS [OTHER]: $id was stopped in a call, and OTHER by this script; the program ended with STATUS
stopped_and_ended() {
    [ -n "$(what_was_struck)" ] || echo "no process was stopped: nothing was tested"
    [ -n "$id" ] && [ -n "${2-other}" ] || echo "a process to stop was not found: nothing was tested"
    [ "$status" -eq "$1" ] || echo "exit status $status, expected $1"
}
calls_of() { sed -n 's/^calls //p' note; }
holds() { (shopt -s nullglob && cd "$1" 2>/dev/null && echo step_????????); }
newest() { holds "$1" | sed 's/.* //'; } # RUN: its newest checkpoint, or nothing
losses_of() { sed -n '/"loss"/p' "$1/metrics.jsonl" 2>/dev/null | wc -l; }

# RUN: the folders of saves that began after the file `mark` was made
unfinished_save() { find "$1" -maxdepth 1 -name 'step_*.tmp' -newer mark 2>/dev/null; }
# names of files that only an unfinished save or rewrite has
left_over() { find "$1" \( -name '*.tmp' -o -name '*.part' -o -name '*.new' \) 2>/dev/null; }

# RUN EXPECTED [BEFORE]: each checkpoint is the one that the uninterrupted run has saved, and at most one save is
# unfinished. The newest checkpoint is not older than BEFORE, the newest one before the fault, nor than those that the
# output of the run, $log, names as saved
whole_checkpoints() {
    local name left
    for name in $(holds "$1"); do diff -rq "$1/$name" "$2/$name" 2>&1; done
    for name in ${3:-} $(sed -nE 's,.* saved .*/(step_[0-9]{8}) .*,\1,p' "$log"); do
        [[ ! $(newest "$1") < $name ]] || echo "$name was saved, and the newest checkpoint is '$(newest "$1")'"
    done
    left=$(find "$1" -maxdepth 1 -name '*.tmp' 2>/dev/null | wc -l)
    [ "$left" -le 1 ] || echo "$left unfinished saves"
}
# BEFORE: the run of $log has begun at this checkpoint; without one, from nothing; or at best/, if that is newer
begun_at() {
    ! grep -q '^resumed   at step .* from .*/best' "$log" || return 0
    if [ -n "$1" ]; then says "$log" "resumed   at step $((10#${1#step_}))"; else says "$log" "resumed   nothing"; fi
}
# RUN EXPECTED: the run ended as the uninterrupted one did, and left nothing unfinished
same_end() {
    local last
    last=$(holds "$2") last=${last##* }
    cmp <(metrics "$1") <(metrics "$2") 2>&1
    cmp "$1/main.log" "$2/main.log" 2>&1
    whole_checkpoints "$1" "$2"
    [ -d "$1/$last" ] || echo "no $last in $1"
    [ -e "$1/DONE_${last#step_}" ] || echo "no DONE_${last#step_}"
    left_over "$1" | sed 's/$/ was left/'
}
all_checkpoints() { # RUN EXPECTED
    [ "$(holds "$1")" = "$(holds "$2")" ] || echo "found $(holds "$1"), expected $(holds "$2")"
}
one_sentence() { # the program has ended with one sentence on stderr, besides warnings and the answer to a signal
    [ "$(grep -vcE '^$|^train_gpt2: (warning: |stopping)' "$err")" -eq 1 ] ||
        { echo "expected one sentence:" && tail -n 4 "$err"; }
    says "$err" 'train_gpt2: '
}
# flips bits of the byte at OFFSET of FILE
flip() { # FILE OFFSET BITS
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059
    printf "\\x$(printf %x $((byte ^ $3)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
# RANDOM is a sequence of 15 bits that $seed begins; a sequence for each section
seeded() { RANDOM=$((seed * 100 + $1)); }

# ---- 1. killed

# A run is killed at random moments until it ends; then the next begins. Every fourth kill is at a random call inside a
# save, whatever the speed of the machine.
faults_kill() {
    local moments inside=0 ends=0 killed=0 trouble='' length begun before id status at part
    local -a many=("${model[@]}" -v 8 -n 1 -x 24)
    moments=$(every 200 8)
    seeded 1
    trouble=$(run 0 "${many[@]}" -o expected_kill)
    begun=$EPOCHREALTIME
    run 0 "${many[@]}" -o timed >/dev/null
    length=$(awk "BEGIN { print $EPOCHREALTIME - $begun }")
    while [ "$killed" -lt "$moments" ] && [ -z "$trouble" ]; do
        # bash seeds RANDOM anew in $(...) and in the background, so the numbers are drawn here
        before=$(newest killed) at=0 part=$RANDOM
        [ $((killed % 4)) -ne 3 ] || at=$((1 + RANDOM % 200))
        rm -f note && touch mark
        LD_PRELOAD=$folder/fail_nth.so FAIL_WITH=kill FAIL_AT=$at FAIL_IN=.tmp/ FAIL_NOTE=$PWD/note \
            "$trainer" "${many[@]}" -o killed -y 1 >"$log" 2>"$err" </dev/null &
        id=$!
        if [ $at -eq 0 ]; then
            sleep "$(awk "BEGIN { print $length * $part / 32768 }")"
            kill -9 $id 2>/dev/null
        fi
        await $id
        status=$?
        if [ $status -eq 137 ]; then
            killed=$((killed + 1))
            [ -z "$(unfinished_save killed)" ] || inside=$((inside + 1))
            trouble=$([ $at -eq 0 ] || was_struck && whole_checkpoints killed expected_kill "$before")
        else
            ends=$((ends + 1))
            trouble=$(
                [ $status -eq 0 ] || echo "exit status $status"
                same_end killed expected_kill
                all_checkpoints killed expected_kill
            )
            rm -rf killed
        fi
        trouble+=$(! grep '^resumed ' "$log" >/dev/null || begun_at "$before")
        grep -q damaged "$err" && trouble+=$(cat "$err")
    done
    [ -n "$trouble" ] || trouble=$(
        before=$(newest killed)
        run 0 "${many[@]}" -o killed -y 1
        begun_at "$before"
        same_end killed expected_kill
        all_checkpoints killed expected_kill
    )
    [ $inside -gt 0 ] || trouble+="no run was killed inside a save"
    report "kill -9 at $killed moments, $inside of them inside a save; $((ends + 1)) runs ended (seed $seed)" "$trouble"
    rm -rf killed timed expected_kill
}

# Scenarios of sweeps. prepare SCENARIO: makes the folder `victim`, and sets scenario and before.
#   new       a new run
#   resumed   a run that was killed while it saved its third checkpoint
#   best      --keep-best, and only the last checkpoint is kept
prepare() {
    rm -rf victim
    scenario=("${small[@]}" -o victim -y 1)
    case $1 in
    resumed) cp -r killed_late victim ;;
    best) scenario=("${model[@]}" -v 1 -n 2 -x 6 -o victim -y 1 --keep-best -nk 1) ;;
    esac
    before=$(newest victim)
}
# the uninterrupted runs, and the number of calls of each scenario
prepare_all() {
    local name
    run 0 "${small[@]}" -o expected_new
    ln -s expected_new expected_resumed
    struck 137 kill 1 step_00000006.tmp/state.json "${small[@]}" -o killed_late 2>/dev/null
    was_struck
    [ -d killed_late/step_00000006.tmp ] || echo "no run was killed inside a save"
    for name in new resumed best; do
        prepare $name
        struck 0 short 0 victim "${scenario[@]}"
        calls_of >"calls_${name}_short"
        prepare $name
        struck 0 none 0 victim "${scenario[@]}"
        calls_of >"calls_$name"
        [ $name != best ] || { mv victim kept_best && run 0 "${model[@]}" -v 1 -n 2 -x 6 -o expected_best; }
    done
}
# SCENARIO: the folder is as the scenario's uninterrupted run leaves it
same_end_of() {
    same_end victim "expected_$1"
    [ "$1" != best ] || diff -rq victim/best kept_best/best 2>&1
}
# SCENARIO: resumed without faults, the run begins at its newest checkpoint and ends as the uninterrupted one
resumes() {
    local first
    first=$(newest victim)
    run 0 "${scenario[@]}"
    begun_at "$first"
    same_end_of "$1"
}

# at every system call on the run folder
faults_kill_calls() {
    local name n calls stride tried trouble
    for name in new resumed best; do
        calls=$(cat calls_$name) tried=0 trouble=
        stride=$(every 1 $((calls / 6)))
        for ((n = 1 + seed % stride; n <= calls; n += stride)); do
            prepare $name
            trouble=$(
                { struck 137 kill "$n" victim "${scenario[@]}"; } 2>/dev/null
                was_struck
                whole_checkpoints victim expected_$name "$before"
                best=victim/best && [ -d $best ] || best+=.old # a kill between its two renames
                [ ! -d $best ] || run 0 --generate 1 -e $best
                resumes $name
                all_checkpoints victim "$(case $name in best) echo kept_best ;; *) echo expected_$name ;; esac)"
            )
            tried=$((tried + 1))
            [ -z "$trouble" ] || { trouble="at call $n, $(what_was_struck): $trouble" && break; }
        done
        [ $tried -gt 0 ] || trouble="no call was struck"
        report "$name: kill -9 before $tried of $calls system calls on the run folder" "$trouble"
    done
}

# ---- 2. a file system that fails

# STATUS SCENARIO FAULT: after one call failed, a run goes on to the same end, or ends at its start or in its last save,
# with one sentence, and resumes. $losses are those of `victim` before the run
survives() {
    local status=$1 name=$2 call
    call=$(what_was_struck)
    whole_checkpoints victim "expected_$name" "$before"
    if [ "$status" -eq 0 ]; then
        same_end_of_failed "$name" "$3"
        return
    fi
    case $(losses_of victim) in
    "$losses" | "$(losses_at "$before")" | "$(losses_of "expected_$name")") ;;
    *) echo "the run ended in the middle, with $(losses_of victim) losses" ;;
    esac
    [ "$status" -le 2 ] || echo "exit status $status"
    one_sentence
    case $call in
    *step_00000002* | *step_00000004* | *DONE_00000002* | *DONE_00000004*)
        [ "$name" = resumed ] || echo "the run did not go on after a failed save"
        ;;
    esac
    resumes "$name"
}
# CHECKPOINT: the number of losses before it
losses_at() { echo $((10#0${1#step_})); }
# EXPECTED FAULT: the end of a run that went on: a checkpoint may be missing, with a warning that names it
same_end_of_failed() {
    local name
    case $2:$(what_was_struck) in
    short:* | *:rename*/step_????????) ;; # a folder that is deleted gets another name first
    *:fsync* | *:write* | *:rename* | *:mkdir*) says "$err" 'train_gpt2: warning: ' ;;
    esac
    cmp <(metrics victim) <(metrics "expected_$1") 2>&1
    cmp victim/main.log "expected_$1/main.log" 2>&1
    diff -rq victim/step_00000006 "expected_$1/step_00000006" 2>&1
    # a file that cannot be deleted keeps its folder, which is deleted later
    case $(what_was_struck) in unlink* | open*tmp | open*old) ;; *) left_over victim | sed 's/$/ was left/' ;; esac
    grep -v '^train_gpt2: warning: ' "$err"
    [ "$1" != best ] || return
    for name in $(holds "expected_$1"); do
        [ -d "victim/$name" ] || says "$err" "could not save checkpoint 'victim/$name'"
        [ -e "victim/DONE_${name#step_}" ] || says "$err" " could not "
    done
}

# SCENARIO FAULT STRIDE: fails every STRIDE-th call; `short` counts only the writes that it can cut
sweep() {
    local name=$1 fault=$2 n calls tried=0 on=0 ended=0 trouble='' status losses
    calls=calls_$name
    [ "$fault" != short ] || calls+=_short
    calls=$(cat "$calls")
    for ((n = 1 + (seed + ${#fault}) % $3; n <= calls; n += $3)); do
        prepare "$name"
        losses=$(losses_of victim)
        status=$(struck 0 "$fault" "$n" victim "${scenario[@]}" | exit_status)
        trouble=$(was_struck && survives "${status:-0}" "$name" "$fault")
        tried=$((tried + 1))
        if [ "${status:-0}" -eq 0 ]; then on=$((on + 1)); else ended=$((ended + 1)); fi
        [ -z "$trouble" ] || { trouble="call $n, $(what_was_struck): $trouble" && break; }
    done
    [ $tried -gt 0 ] || trouble="no call was struck"
    report "$name: $fault at $tried of $calls calls: $on runs went on, $ended ended with a sentence and resumed" \
        "$trouble"
}
faults_disk() {
    local name fault
    for name in new resumed best; do
        for fault in ENOSPC EIO EROFS EDQUOT short; do
            case $form$fault in
            shortEROFS | shortEDQUOT) ;;
            shortshort) sweep $name $fault "$(($(cat calls_${name}_short) / 2))" ;;
            *) sweep $name $fault "$(every 1 $(($(cat calls_$name) / 4)))" ;;
            esac
        done
    done
}

# Every STRIDE-th call on paths with CHECKPOINT fails. Either the run exits 0 with the checkpoint, or it exits 1 without
# the checkpoint and with one sentence. After a failed fsync it exits 1
stops_at() { # NAME CHECKPOINT STRIDE
    local n=$((1 + seed % $3)) tried=0 ended=0 trouble='' status fault
    local -a faults=(ENOSPC EIO EROFS EDQUOT)
    while [ -z "$trouble" ]; do
        prepare new
        fault=${faults[n % 4]}
        status=$(struck 0 "$fault" "$n" "$2" "${scenario[@]}" | exit_status)
        [ -n "$(what_was_struck)" ] || break
        trouble=$(
            whole_checkpoints victim expected_new "$before"
            if [ "${status:-0}" -ne 0 ]; then
                [ "$status" -eq 1 ] || echo "exit status $status"
                one_sentence
                says "$err" "could not save checkpoint 'victim/$2'"
                [ ! -d "victim/$2" ] || echo "exit status $status, yet $2 was saved"
                left_over victim | sed 's/$/ was left/'
            else
                [ -d "victim/$2" ] || echo "exit status 0, and no $2"
                [[ $(what_was_struck) != fsync* ]] || echo "exit status 0 after a failed fsync"
            fi
            resumes new
        )
        tried=$((tried + 1)) ended=$((ended + (${status:-0} != 0)))
        [ -z "$trouble" ] || trouble="call $n, $fault, $(what_was_struck): $trouble"
        n=$((n + $3))
    done
    [ $ended -gt 0 ] || trouble=${trouble:-"no run was ended"}
    report "$1: $tried failed calls, $ended runs ended with a sentence and resumed" "$trouble"
}
faults_last_save() {
    stops_at "the last save" step_00000006 "$(every 1 37)"
    FAIL_CALLS='fsync' stops_at "the last save, each fsync" step_00000006 1
    is_synced
}
is_synced() {
    local step
    prepare new
    FAIL_CALLS='fsync,rename' FAIL_MORE=1000000 struck 0 none 1 victim "${scenario[@]}"
    for step in 4 6; do
        report "step $step: files, logs and folder are synced, then the folder gets its name, then RUN is synced" \
            "$(synced_in_order victim/step_0000000$step victim/step_0000000$((step - 2)))"
    done
}
# CHECKPOINT BEFORE: the lines of `note` are in this order, after the rename of the checkpoint before
synced_in_order() {
    local file named first line
    named=$(grep -nm 1 " rename $1.tmp$" note | cut -d: -f1)
    first=$(grep -nm 1 " rename $2.tmp$" note | cut -d: -f1)
    if [ -z "$named" ] || [ -z "$first" ]; then
        echo "no rename"
        return
    fi
    for file in "$1".tmp metrics.jsonl main.log "$1"/*; do
        case $file in $1/*) file=$1.tmp/${file##*/} ;; esac
        line=$(head -n "$named" note | grep -nE " fsync .*/${file#victim/}(.part)?$" | tail -n 1 | cut -d: -f1)
        [ "${line:-0}" -gt "$first" ] || { echo "no fsync of $file" && continue; }
        [[ $file != "$1.tmp" ]] || ! head -n "$named" note | tail -n "+$line" | grep -E " fsync .*$1.tmp/" ||
            echo "is synced after its folder"
    done
    sed -n "$((named + 1))p" note | grep -q ' fsync .*/victim$' || echo "RUN is not synced after the rename"
}

# runs that end early, although a save failed
faults_ends() {
    local at status id
    local -a each=("${model[@]}" -v 2 -n 1 -x 6 -o victim -y 1)
    local -a endless=("${model[@]}" -k constant -x 100000000 -o victim -y 1)
    report "the run that ends early" "$(run 0 "${model[@]}" -v 2 -n 1 -x 6 -o expected_each)"
    for at in $(every "$(seq -s ' ' 1 90)" "1 40 80"); do
        rm -rf victim
        trouble=$(
            FAIL_SIGNAL=15 struck 0 EIO "$at" step_00000004.tmp "${each[@]}"
            whole_checkpoints victim expected_each
            says "$log" "stopped at step $(newest victim | sed 's/step_0*//') "
            left_over victim
            [ -n "$(what_was_struck)" ] || echo "no call was struck"
            run 0 "${each[@]}"
            same_end victim expected_each
        )
        [ -z "$trouble" ] || { trouble="call $at, $(what_was_struck): $trouble" && break; }
    done
    report "SIGTERM in a save that fails: exit 0, the run saves again, and resumes" "$trouble"
    rm -rf victim
    report "SIGTERM in a save, and no save works again: exit 1, and older checkpoints are whole" "$(
        FAIL_SIGNAL=15 FAIL_MORE=1000000 struck 1 EIO 1 step_0000000 "${each[@]}"
        says "$log" "stopped at step "
        one_sentence
        [ -z "$(holds victim)" ] || echo "found $(holds victim)"
        rm -rf victim && cp -r expected_each victim
        rm -r victim/*0000000[456]
        FAIL_SIGNAL=15 FAIL_MORE=1000000 struck 1 EIO 1 .tmp/ "${each[@]}"
        says "$log" "stopped at step "
        one_sentence
        whole_checkpoints victim expected_each step_00000003
        run 0 "${each[@]}"
        begun_at step_00000003
        same_end victim expected_each
    )"
    rm -rf victim
    FAIL_SIGNAL=19 start_and_fail EIO 1 step_00000001.tmp "${endless[@]}" -v 0 -n 1 --time-limit 3
    sleep 3.2
    go_on
    report "--time-limit passes in a save that fails: exit 0, and the run saves again" "$(
        stopped_and_ended 0
        says "$err" "warning: could not save checkpoint 'victim/step_00000001'"
        says "$log" "stopped at step $(newest victim | sed 's/step_0*//') "
        left_over victim
    )"
    rm -rf victim
    keeps_best_before mkdir 2 victim/best.tmp
    rm -rf victim
    keeps_best_before rename 1 'victim/best$'
    keeps_best_before rename 2 'victim/best.tmp$'
    kept_until_synced
}
# CALL AT IN: --keep-best cannot replace the checkpoint of step 0 at --time-limit
keeps_best_before() {
    rm -rf victim
    report "--keep-best at --time-limit, its $1 of $3 fails: exit 1, and RUN/best is the one before" "$(
        FAIL_CALLS=$1 FAIL_MORE=9 struck 1 ENOSPC "$2" "$3" "${endless[@]}" -v 100000000 --keep-best --time-limit 3
        one_sentence
        says "$err" "could not save checkpoint 'victim/best'"
        grep -q '"step":.*0,' victim/best/state.json || echo "RUN/best is not of step 0"
        left_over victim
        run 0 --generate 2 -e victim/best
    )"
}
# -nk 1: each fsync of the run's folder fails once
kept_until_synced() {
    local n status trouble='' saves=0
    local -a kept=("${model[@]}" -v 0 -n 2 -x 4)
    rm -rf victim
    trouble=$(run 0 "${kept[@]}" -o expected_kept)
    for ((n = 1; ; n++)); do
        rm -rf victim
        status=$(FAIL_CALLS='fsync' struck 0 EIO "$n" /victim\$ "${kept[@]}" -nk 1 -o victim | exit_status)
        [ -n "$(what_was_struck)" ] || break
        trouble=$(
            whole_checkpoints victim expected_kept
            if [ "${status:-0}" -eq 0 ]; then
                says "$err" "warning: could not"
            elif grep "could not save checkpoint 'victim/step_00000004'" "$err" >/dev/null; then
                [ "$(holds victim)" = step_00000002 ] || echo "found '$(holds victim)', expected step_00000002"
            fi
        )
        grep "could not save checkpoint 'victim/step_00000004'" "$err" >/dev/null && saves=$((saves + 1))
        [ -z "$trouble" ] || { trouble="fsync $n: $trouble" && break; }
    done
    [ $saves -gt 0 ] || trouble+="the fsync after the rename of step 4 was not struck"
    report "-nk 1: $((n - 1)) failed fsyncs of the run's folder; the older checkpoint stays until the newer is synced" \
        "$trouble"
}

# the logs, config.json, and a file system of 1.2 MB
faults_logs() {
    local name
    for name in metrics.jsonl main.log; do
        report "$name: a disk that is full for three lines" "$(
            prepare new
            FAIL_CALLS=write FAIL_MORE=2 struck 0 ENOSPC 3 $name "${scenario[@]}"
            says "$err" "warning: could not write 'victim/$name'"
            same_end_of new
        )"
        report "$name: a disk that stays full" "$(
            prepare new
            FAIL_CALLS=write FAIL_MORE=1000 struck 1 ENOSPC 3 $name "${scenario[@]}"
            says "$err" "could not write the last lines of 'victim/$name'"
            whole_checkpoints victim expected_new
            cmp <(sed -E 's/,"ms":.*/}/' victim/$name) <(sed -E 's/,"ms":.*/}/' expected_new/$name | head -n 2) 2>&1
        )"
        report "$name: each write is cut to its half" "$(
            prepare new
            FAIL_CALLS=write FAIL_MORE=1000 struck 0 short 1 $name "${scenario[@]}"
            was_struck
            same_end_of new
        )"
    done
    report "config.json cannot be written: the run does not begin" "$(
        prepare new
        FAIL_CALLS='write' struck 1 EROFS 1 victim/config.json "${scenario[@]}"
        one_sentence
        says "$err" "could not write 'victim/config.json'"
        resumes new
    )"
    full_disk
}
full_disk() {
    if ! unshare -rm true 2>/dev/null; then
        skip "a namespace of mounts, which is not permitted here" 1 "a full disk"
        return
    fi
    prepare new
    mkdir victim
    # shellcheck disable=SC2016
    report "a file system of 1.2 MB fills; with 8 MiB the run resumes" "$(
        LC_ALL=C unshare -rm bash -c '
            mount -t tmpfs -o size=1200k full victim && cp -r expected_new/config.json victim || exit
            "$@" >log 2>err
            status=$?
            [ $status -eq 1 ] || echo "exit status $status, expected 1"
            ls victim >before
            mount -o remount,size=8m victim
            "$@" >log 2>>err || echo "exit status $?"
            cp -r victim/. after' bash "$trainer" "${scenario[@]}"
        says err "could not save checkpoint 'victim/step_00000006'"
        says err "No space left on device"
        grep -qx step_00000002 before || echo "no checkpoint was saved: nothing was tested"
        ! grep -q tmp before || echo "an unfinished save was left"
        rm -r victim && mv after victim && same_end_of new
    )"
    rm -rf before after
}

# a resumed run that cannot read a file of its folder
faults_read() {
    cannot_read resumed
}
cannot_read() { # SCENARIO
    local n stride on=0 ended=0 trouble='' status
    stride=$(every 1 37)
    for ((n = 1 + seed % stride; ; n += stride)); do
        prepare "$1"
        status=$(FAIL_CALLS='read' struck 0 EIO "$n" victim "${scenario[@]}" | exit_status)
        [ -n "$(what_was_struck)" ] || break
        trouble=$(
            whole_checkpoints victim "expected_$1" "$before"
            if [ "${status:-0}" -ne 0 ]; then
                one_sentence
                resumes "$1"
            else
                begun_at "$before"
            fi
            same_end_of "$1"
        )
        if [ "${status:-0}" -eq 0 ]; then on=$((on + 1)); else ended=$((ended + 1)); fi
        [ -z "$trouble" ] || { trouble="call $n, $(what_was_struck): $trouble" && break; }
    done
    [ $((on + ended)) -gt 0 ] || trouble="no read was struck"
    report "$1: EIO at $((on + ended)) reads: $on runs went on, $ended ended with a sentence and resumed" "$trouble"
}

# ---- 3. wrong bytes

# `victim`: the uninterrupted run, as if it was killed after its checkpoint of step 4
prepare_damage() {
    rm -rf victim
    cp -r expected_new victim
    rm -r victim/step_00000006 victim/DONE_00000006
}
# FILE: step 4 is damaged there. Nothing loads it, and the command in the error resumes from step 2
refuses_damage() {
    local at=victim/step_00000004 from command
    case $1 in
    optimizer.safetensors) ;; # --generate does not read it
    *)
        for from in $at victim; do
            [ -e $at/state.json ] || continue # a folder without it is no checkpoint
            run 2 --generate 2 -e "$from"
            says "$err" "checkpoint '$at' is damaged: $1 "
            says "$err" "give -e victim/step_00000002"
        done
        ;;
    esac
    run 2 "${small[@]}" -o victim -y 1
    one_sentence
    says "$err" "checkpoint '$at' is damaged: $1 "
    # shellcheck disable=SC2016
    command=$(sed -n 's,.*`\(.*\)./train_gpt2 -o victim -y 1` resumes .*,\1,p' "$err")
    [ "$command" = "mv $at $at.damaged && " ] && eval "${command%&& }" || echo "found the command '$command'"
    run 0 -o victim -y 1
    begun_at step_00000002
    same_end victim expected_new
}
damaged() { # NAME FILE COMMAND...: the damage that COMMAND does
    prepare_damage
    "${@:3}"
    report "$1" "$(refuses_damage "$2")"
}
# flips bytes of a file of a checkpoint
flips() { # FILE OFFSET...
    local offset bits trouble='' tried=0
    for offset in "${@:2}"; do
        bits=$((1 << RANDOM % 8))
        prepare_damage
        flip "victim/step_00000004/$1" "$offset" $bits
        trouble=$(refuses_damage "$1")
        tried=$((tried + 1))
        [ -z "$trouble" ] || { trouble="byte $offset, bits $bits: $trouble" && break; }
    done
    report "$1: $tried bytes flipped, each named, none loaded" "$trouble"
}
# the first and the last byte of a file, and in between every 64th of a small one, or some of a file of tensors
offsets_of() {
    local size i
    size=$(stat -c %s "$1")
    echo 0
    case $form$1 in
    short*) echo $(((RANDOM << 15 | RANDOM) % size)) ;;
    *safetensors) for ((i = 0; i < 200; i++)); do echo $(((RANDOM << 15 | RANDOM) % size)); done ;;
    *) seq 64 64 $((size - 2)) ;;
    esac
    echo $((size - 1))
}
faults_damage() {
    local file path=expected_new/step_00000004 at=victim/step_00000004
    local -a offsets
    seeded 3
    for path in expected_new/step_00000004/*; do
        file=$(basename "$path")
        offsets_of "$path" >offsets
        mapfile -t offsets <offsets
        damaged "$file is empty" "$file" truncate -s 0 $at/"$file"
        case $file in
        manifest.json) ;; # test_manifest flips its bits
        *)
            flips "$file" "${offsets[@]}"
            damaged "$file is missing" "$file" rm $at/"$file"
            damaged "$file is cut" "$file" truncate -s -1 $at/"$file"
            ;;
        esac
        [ "$form" = whole ] || [ "$file" = manifest.json ] || [ "$file" = tokenizer.json ] || continue
        damaged "$file is longer" "$file" truncate -s +1 $at/"$file"
        damaged "$file is a pipe" "$file" pipe $at/"$file"
        damaged "$file is a folder" "$file" become_folder $at/"$file"
    done
    prepare_damage
    rm $at/manifest.json
    report "manifest.json is missing: the checkpoint is not compared" "$(
        run 0 --generate 2 -e $at
        run 0 "${small[@]}" -o victim -y 1
        begun_at step_00000004
        cmp <(metrics victim) <(metrics expected_new) 2>&1
    )"
    prepare_damage
    for file in victim/step_*; do flip "$file/model.safetensors" 3000 1; done
    report "all checkpoints are damaged: exit 2, and they stay" "$(
        for arguments in "${small[*]} -o victim -y 1" "--generate 2 -e victim" "--eval text -t 16 -e victim"; do
            # shellcheck disable=SC2086
            run 2 $arguments
            one_sentence
            says "$err" "checkpoint '$at' is damaged: model.safetensors "
        done
        [ "$(holds victim)" = "step_00000002 step_00000004" ] || echo "found $(holds victim)"
        run 2 --generate 2 -e $at/model.safetensors
        says "$err" "checkpoint '$at' is damaged: model.safetensors "
        run 2 --generate 2 -e victim/step_00000002
        says "$err" "there is no other one"
    )"
}
# shellcheck disable=SC2317  # `damaged` calls these
pipe() { rm "$1" && mkfifo "$1"; }
# shellcheck disable=SC2317
become_folder() { rm "$1" && mkdir "$1"; }
# a checkpoint that cannot be read, and a manifest.json of another program
faults_unreadable() {
    local file
    for file in model.safetensors state.json manifest.json; do
        prepare_damage
        report "$file cannot be opened (EACCES): -y 1 exits 2, and renames nothing" "$(
            FAIL_CALLS='open' FAIL_MORE=1000 struck 2 EACCES 1 step_00000004/$file "${small[@]}" -o victim -y 1
            one_sentence
            says "$err" "checkpoint 'victim/step_00000004' cannot be checked: $file could not be read: Permission"
            ! grep -q 'mv victim' "$err" || echo "the error discards the checkpoint"
            [ "$(holds victim)" = "step_00000002 step_00000004" ] || echo "found $(holds victim)"
            run 0 "${small[@]}" -o victim -y 1
            begun_at step_00000004
            same_end victim expected_new
        )"
    done
    report "the folder of the run cannot be read: no other checkpoint is loaded" "$(
        ended=0
        for ((n = 1; n < 20; n++)); do
            prepare resumed
            status=$(FAIL_CALLS='open' struck 0 EIO "$n" 'victim$' "${scenario[@]}" | exit_status)
            [ -n "$(what_was_struck)" ] || break
            case ${status:-0} in
            0) begun_at step_00000004 ;;
            1) one_sentence ;;
            *) ended=$((ended + 1)) && says "$err" "could not read the folder 'victim': Input/output error" ;;
            esac
        done
        [ $ended -gt 0 ] || echo "no run ended"
    )"
    report "-e takes a model with a manifest.json of another program" "$(
        rm -rf other && mkdir other
        cp expected_new/step_00000004/{config.json,model.safetensors} other
        echo '{"files":{"model.safetensors":{"bytes":1,"crc32c":"00000000"}},"name":"a model"}' >other/manifest.json
        run 0 --generate 2 -e other
        run 0 "${small[@]}" -e other -o victim_other 2>/dev/null
        rm -rf victim_other other
    )"
}

# ---- 4. a clock that jumps

# With one rank the trainer reads no clock that can jump. With several ranks it names a file after the time of day.
faults_clock() {
    local clocks
    clocks=$(nm -D --undefined-only "$trainer" | grep -oE ' (time|gettimeofday|timespec_get)(@.*)?$')
    report "the trainer imports no function of the time of day but clock_gettime" "$clocks"
    prepare new
    report "the clock jumps by hours: the same bits, and --time-limit is not reached" "$(
        preload=$folder/jump_clock.so JUMP_NOTE=$PWD/jumps run 0 "${scenario[@]}" --time-limit 3600
        same_end_of new
        [ "$(cat jumps)" = 0 ] || echo "expected 0 readings of the time of day, found '$(cat jumps)'"
    )"
    report "the clock jumps by hours: --time-limit still ends the run" "$(
        preload=$folder/jump_clock.so run 0 "${model[@]}" -v 0 -x 100000000 --time-limit 3
        says "$log" "stopped at step "
    )"
    clock_of_ranks
}
clock_of_ranks() {
    has_mpirun 1 || return 0
    prepare_ranks dp2
    rm -rf victim jumps
    report "two ranks, the clock jumps by hours: the same bits, and --time-limit is not reached" "$(
        preload=$folder/jump_clock.so JUMP_NOTE=$PWD/jumps ranks 0 "${layout[@]}" --time-limit 3600
        same_end victim expected_dp2
        [ "$(awk '{ jumps += $1 } END { print jumps + 0 }' jumps)" -gt 0 ] || echo "no rank has read the time of day"
    )"
}

# ---- 5. data that changes

# three text files, and runs that read each of them
prepare_data() {
    rm -rf data victim expected_one
    mkdir data
    for i in 1 2 3; do head -c $((i * 30000)) text | tail -c 2000 >data/x_$i; done
    touch -d "2020-01-01" data/x_*
    shards=(-i 'data/x_*' -e l2h2c32 -b 2 -t 16 -d 64 -l 1e-3 -m 2 -s 0 -v 20 -n 20 -x 120)
}
change_data() { # HOW: changes the second file
    case $1 in
    removed) rm data/x_2 ;;
    cut) truncate -s 1500 data/x_2 ;;
    grown) echo more >>data/x_2 ;;
    changed) flip data/x_2 700 1 ;;
    replaced) tr '[:lower:]' '[:upper:]' <data/x_2 >other && mv other data/x_2 ;;
    new) cp data/x_2 data/x_4 ;;
    esac
}
changed_during() { # HOW FLAGS...: during a run, which ends with $status
    rm -rf victim
    FAIL_CALLS='write' start_and_fail stop 50 metrics.jsonl "${@:2}" -o victim
    change_data "$1"
    go_on
}
restore_data() { rm -rf data/x_4 && cp -p data_before/* data; }
faults_data() {
    local how id status
    prepare_data
    report "the run whose data changes" "$(run 0 "${shards[@]}" -o expected_data)"
    rm -rf data_before && cp -rp data data_before
    for how in removed cut grown changed replaced; do
        changed_during $how "${shards[@]}"
        report "a data file is $how during a run: exit 1, one sentence, and resumed" "$(
            stopped_and_ended 1
            one_sentence
            says "$err" "data/x_2"
            whole_checkpoints victim expected_data
            restore_data
            last=$(newest victim)
            run 0 "${shards[@]}" -o victim -y 1
            begun_at "$last"
            same_end victim expected_data
        )"
        restore_data
    done
    one_data_file
    data_of_validation
    unreadable_data
    for how in removed cut grown changed replaced new; do
        rm -rf victim && cp -r expected_data victim && rm -r victim/step_00000120 victim/DONE_00000120
        change_data $how
        report "a data file is $how between runs: exit 2, and resumed" "$(
            run 2 "${shards[@]}" -o victim -y 1
            one_sentence
            says "$err" " tokens of other files, or with another tokenizer, than -i data/x_*, which gives"
            cmp <(metrics victim) <(metrics expected_data) 2>&1 # nothing was deleted
            restore_data
            run 0 "${shards[@]}" -o victim -y 1
            begun_at step_00000100
            same_end victim expected_data
        )"
        restore_data
    done
}

# the only data file stays open, so its old content is read
one_data_file() {
    local how status
    local -a one=(-i data/x_2 "${shards[@]:2}")
    report "the run with one data file" "$(run 0 "${one[@]}" -o expected_one)"
    for how in removed replaced; do
        changed_during $how "${one[@]}"
        report "the only data file is $how during a run: the same bits" "$(
            stopped_and_ended 0
            same_end victim expected_one
        )"
        restore_data
    done
}
# -j changes between runs
data_of_validation() {
    local -a validated=(-i data/x_1 -j data/x_2 "${shards[@]:2}")
    report "the run with -j" "$(rm -rf victim && run 0 "${validated[@]}" -x 40 -o victim)"
    change_data changed
    report "a file of -j is changed between runs: exit 2, and resumed" "$(
        run 2 "${validated[@]}" -x 60 -o victim -y 1
        one_sentence
        says "$err" "was validated on other data than -j data/x_2; give the files"
        restore_data
        run 0 "${validated[@]}" -x 60 -o victim -y 1
        begun_at step_00000040
    )"
    restore_data
}
# a read of a data file fails
unreadable_data() {
    local n starts=0 during=0 on=0 trouble='' status
    for ((n = 1 + seed % 4; n <= $(every 60 40); n += $(every 1 5))); do
        rm -rf victim
        status=$(FAIL_CALLS='read' struck 0 EIO "$n" data/x_2 "${shards[@]}" -o victim | exit_status)
        trouble=$(
            was_struck
            [ "${status:-0}" -eq 0 ] || { one_sentence && says "$err" "data/x_2"; }
            [ ! -d victim ] || whole_checkpoints victim expected_data
            case ${status:-0} in
            0) same_end victim expected_data ;;
            1) grep -q '^step 1/' "$log" || echo "exit status 1 before the first step, expected 2" ;;
            2) ! grep -q '^step 1/' "$log" || echo "exit status 2 after the first step, expected 1" ;;
            esac
        )
        case ${status:-0} in 0) on=$((on + 1)) ;; 1) during=$((during + 1)) ;; 2) starts=$((starts + 1)) ;; esac
        [ -z "$trouble" ] || { trouble="read $n: $trouble" && break; }
    done
    [ $starts -gt 0 ] && [ $during -gt 0 ] || trouble+="$starts runs ended at the start, $during later"
    report "EIO at reads of a data file: $starts runs ended before training (exit 2), $during in it, $on went on" \
        "$trouble"
}

# ---- 6. stopped for a while

rank_of() { { tr '\0' '\n' <"/proc/$1/environ"; } 2>/dev/null | sed -n 's/^OMPI_COMM_WORLD_RANK=//p'; }
process_of_rank() { for id in $(processes); do [ "$(rank_of "$id")" != "$1" ] || echo "$id"; done; }
# waits until one of the processes has stopped itself, and prints its id; nothing if the job has ended
await_stopped() { # JOB
    while kill -0 "$1" 2>/dev/null; do
        for id in $(processes); do
            ! grep -qs '^State:.*T (' "/proc/$id/status" || { echo "$id" && return; }
        done
        sleep 0.02
    done
}
faults_stop() {
    local id status
    prepare new
    start_and_fail stop 40 step_00000004 "${scenario[@]}"
    sleep "$(every 3 0.5)"
    go_on
    report "SIGSTOP inside a save, then SIGCONT: the same bits" "$(
        stopped_and_ended 0
        same_end_of new
    )"
}

# ---- 7. two ranks

launcher=(mpirun --oversubscribe) ranks_are=("$trainer")
# starts two ranks, or $ranks_of; FAIL_ variables, and a library in $preload, are theirs
start_ranks() {
    rm -f note
    FAIL_NOTE=$PWD/note "${launcher[@]}" --bind-to none -np "${ranks_of:-2}" \
        ${TEST_TIMEOUT:+-x TEST_TIMEOUT} -x LD_PRELOAD="$folder/patient_yield.so:$folder/fail_nth.so:$preload" \
        "${ranks_are[@]}" "$@" >"$log" 2>"$err" </dev/null
}
ranks() { # STATUS ARGUMENTS...: two ranks, which end with this status and leave no process
    local status=0
    start_ranks "${@:2}" || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$err"; }
    # shellcheck disable=SC2046
    none_left $(processes)
}
struck_ranks() { # STATUS RANK WITH AT IN ARGUMENTS...
    FAIL_RANK=$2 FAIL_WITH=$3 FAIL_AT=$4 FAIL_IN=$5 ranks "$1" "${@:6}"
}
sentences() { # NUMBER: of errors, not of warnings
    local found
    found=$(grep '^train_gpt2: ' "$err" | grep -vc '^train_gpt2: warning: ')
    [ "$found" -eq "$1" ] || echo "$found sentences, expected $1"
}
no_repeated_warnings() { grep '^train_gpt2: warning: ' "$err" | sort | uniq -d | sed 's/^/printed twice: /'; }
# TESTS: whether there is mpirun; otherwise this number of tests is skipped
has_mpirun() {
    if ! command -v mpirun >/dev/null || ! grep -q 'MPI (' <<<"$("$trainer" --version)"; then
        skip "$MPI" "$1" "two ranks"
        return 1
    fi
    export OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}
# LAYOUT: the uninterrupted run; its flags are in the array layout, and the number of calls of rank R in the file
# calls_LAYOUT_R
prepare_ranks() {
    local rank
    rm -rf victim
    layout=("${small[@]}" -o victim -y 1)
    case $1 in
    z1) layout+=(-z 1) ;;
    tp2) layout+=(-tp 2 -b 4) ;;
    esac
    [ ! -d "expected_$1" ] || return 0
    for rank in 0 1; do
        rm -rf victim
        struck_ranks 0 $rank none 0 victim "${layout[@]}"
        calls_of >"calls_$1_$rank"
    done
    mv victim "expected_$1"
}
# LAYOUT: resumed without faults, two ranks begin at the newest checkpoint and end as the uninterrupted ranks
ranks_resume() {
    local first
    first=$(newest victim)
    ranks 0 "${layout[@]}"
    begun_at "$first"
    same_end victim "expected_$1"
}
# LAYOUT WHERE: kills and failing files on one rank
strike_ranks() {
    local name=$1 rank n calls stride trouble='' killed=0 errors=0 on=0 status fault
    local -a faults=(ENOSPC EIO EROFS EDQUOT short)
    for rank in 0 1; do
        calls=$(cat "calls_$1_$rank") stride=$(every $((1 + calls / 25)) $((calls / 2)))
        for ((n = 1 + (seed * 7) % stride; n <= calls && ${#trouble} == 0; n += stride)); do
            prepare_ranks "$name"
            trouble=$(
                struck_ranks 137 $rank kill "$n" victim "${layout[@]}"
                was_struck
                whole_checkpoints victim "expected_$name"
                ranks_resume "$name"
                all_checkpoints victim "expected_$name"
            )
            killed=$((killed + 1))
            [ -z "$trouble" ] || trouble="rank $rank killed at call $n, $(what_was_struck): $trouble"
        done
        for ((n = 1 + (seed * 13) % stride; n <= calls && ${#trouble} == 0; n += stride)); do
            prepare_ranks "$name"
            fault=${faults[n % 5]}
            status=$(struck_ranks 0 $rank "$fault" "$n" victim "${layout[@]}" | exit_status)
            # `short` counts only the writes that it can cut
            [ "$fault" != short ] || [ -n "$(what_was_struck)" ] || continue
            trouble=$(
                was_struck
                whole_checkpoints victim "expected_$name"
                no_repeated_warnings
                if [ "${status:-0}" -eq 0 ]; then
                    same_end_of_failed "$name" "$fault"
                else
                    sentences 1
                    case $(what_was_struck) in *step_0000000[24]*) echo "did not go on after a failed save" ;; esac
                    ranks_resume "$name"
                fi
            )
            errors=$((errors + 1)) on=$((on + (${status:-0} == 0)))
            [ -z "$trouble" ] || trouble="$fault on rank $rank at call $n, $(what_was_struck): $trouble"
        done
    done
    [ $killed -gt 0 ] && [ $errors -gt 0 ] || trouble+="no call was struck"
    report "$name over $2: kill -9 of one rank at $killed calls; $errors calls failed on one rank, $on runs went on" \
        "$trouble"
}
# LAYOUT WHERE: kill -9 of a random rank at random moments; every other kill is at a random call inside a save
kill_ranks() {
    local moments trouble='' killed=0 inside=0 ends=0 job id length status before at hit rank part which
    local -a ids
    moments=$(every 20 2)
    prepare_ranks "$1"
    length=$EPOCHREALTIME
    ranks 0 "${layout[@]}" -o timed >/dev/null
    length=$(awk "BEGIN { print $EPOCHREALTIME - $length }")
    rm -r timed
    while [ $((killed + ends)) -lt "$moments" ] && [ -z "$trouble" ]; do
        before=$(newest victim) at=0 hit='' rank=$((RANDOM % 2)) part=$RANDOM which=$RANDOM
        [ $(((killed + ends) % 2)) -ne 0 ] || at=$((1 + RANDOM % 30))
        touch mark
        FAIL_RANK=$rank FAIL_WITH=kill FAIL_AT=$at FAIL_IN=.tmp/ start_ranks "${layout[@]}" &
        job=$!
        if [ $at -eq 0 ]; then
            sleep "$(awk "BEGIN { print $length * (0.4 + 0.6 * $part / 32768) }")"
            mapfile -t ids < <(processes)
            id=${ids[which % (${#ids[@]} + (${#ids[@]} == 0))]:-}
            [ -n "$id" ] && kill -9 "$id" 2>/dev/null && hit=yes
        fi
        await $job
        status=$?
        [ -z "$(what_was_struck)" ] || hit=yes
        # shellcheck disable=SC2046
        trouble=$(none_left $(processes) && whole_checkpoints victim "expected_$1" "$before")
        trouble+=$(! grep '^resumed ' "$log" >/dev/null || begun_at "$before")
        [ -z "$(unfinished_save victim)" ] || inside=$((inside + 1))
        if [ $status -ne 0 ]; then
            killed=$((killed + 1))
            [ -n "$hit" ] || trouble+="exit status $status, and no rank was killed"
        else
            ends=$((ends + 1))
            trouble+=$(same_end victim "expected_$1" && all_checkpoints victim "expected_$1")
            rm -rf victim
        fi
    done
    [ -n "$trouble" ] || trouble=$(ranks_resume "$1" && all_checkpoints victim "expected_$1")
    [ $inside -gt 0 ] || trouble+="no rank was killed inside a save"
    report "$1 over $2: kill -9 of one rank at $killed moments, $inside inside a save; $((ends + 1)) runs ended" \
        "$trouble"
}
faults_ranks() {
    local name where
    has_mpirun "$(every 22 10)" || return 0
    seeded 6
    for name in dp2 z1 tp2; do
        [ "$form" = whole ] || [ $name = dp2 ] || continue
        report "$name: the uninterrupted run of two ranks" "$(prepare_ranks $name)"
        for where in vader,self tcp,self; do
            [ "$form" = whole ] || [ $where != tcp,self ] || continue
            export OMPI_MCA_btl=$where
            strike_ranks $name $where
            kill_ranks $name $where
        done
        unset OMPI_MCA_btl
    done
    damage_of_ranks
    inputs_of_ranks
}
# two ranks find a wrong byte in each file of a checkpoint
damage_of_ranks() {
    local file trouble=''
    prepare_ranks dp2
    for file in expected_dp2/step_00000004/[!m]* expected_dp2/step_00000004/model.safetensors; do
        file=$(basename "$file")
        without_last dp2
        flip "victim/step_00000004/$file" 20 4
        trouble=$(
            ranks 2 "${layout[@]}"
            sentences 1
            says "$err" "checkpoint 'victim/step_00000004' is damaged: $file "
            mv victim/step_00000004 victim/step_00000004.damaged
            ranks 0 "${layout[@]}"
            begun_at step_00000002
            same_end victim expected_dp2
        )
        [ -z "$trouble" ] || { trouble="$file: $trouble" && break; }
    done
    report "two ranks, a wrong byte in each file of a checkpoint: one sentence, and an older checkpoint resumes" \
        "$trouble"
}

# two ranks find data that has changed, a checkpoint that cannot be read, and a read that fails on rank 1
inputs_of_ranks() {
    local how job id status rank=0 # rank 0 writes metrics.jsonl
    prepare_ranks dp2
    prepare_data
    report "two ranks, a data file is changed between runs: exit 2, and resumed" "$(
        ranks 0 "${shards[@]}" -x 40 -o victim
        cp -r victim expected_shards && rm -r victim/step_00000040 victim/DONE_00000040
        cp -rp data data_whole
        change_data changed
        ranks 2 "${shards[@]}" -x 40 -o victim -y 1
        sentences 1
        says "$err" " tokens of other files, or with another tokenizer, than -i "
        cp -p data_whole/* data
        ranks 0 "${shards[@]}" -x 40 -o victim -y 1
        begun_at step_00000020
        same_end victim expected_shards
    )"
    for how in removed cut; do
        rm -rf victim
        FAIL_RANK=$rank FAIL_WITH=stop FAIL_AT=25 FAIL_IN=metrics.jsonl FAIL_CALLS='write' \
            start_ranks "${shards[@]}" -x 40 -o victim &
        job=$!
        id=$(await_stopped $job)
        change_data $how
        go_on $job
        report "two ranks, a data file is $how during the run: exit 1, one sentence, and resumed" "$(
            stopped_and_ended 1
            sentences 1
            says "$err" "data/x_2"
            whole_checkpoints victim expected_shards step_00000020
            cp -p data_whole/* data
            ranks 0 "${shards[@]}" -x 40 -o victim -y 1
            same_end victim expected_shards
        )"
        cp -p data_whole/* data
    done
    rm -rf expected_shards data_whole
    without_last dp2
    report "two ranks, model.safetensors cannot be opened (EACCES): exit 2, and nothing is renamed" "$(
        FAIL_CALLS='open' FAIL_MORE=1000 FAIL_WITH=EACCES FAIL_AT=1 FAIL_IN=step_00000004/model.safetensors \
            ranks 2 "${layout[@]}"
        was_struck
        sentences 1
        says "$err" "checkpoint 'victim/step_00000004' cannot be checked: model.safetensors could not be read"
        [ "$(holds victim)" = "step_00000002 step_00000004" ] || echo "found $(holds victim)"
        ranks_resume dp2
    )"
    without_last dp2
    report "two ranks, rank 1 cannot read the optimizer's state (EIO): exit 2, named, and resumed" "$(
        FAIL_CALLS='read' FAIL_MORE=1000 struck_ranks 2 1 EIO 1 step_00000004/optimizer.safetensors "${layout[@]}"
        was_struck
        sentences 1
        says "$err" "victim/step_00000004/optimizer.safetensors"
        whole_checkpoints victim expected_dp2 step_00000004
        ranks_resume dp2
    )"
}
# LAYOUT: `victim` as if its run was killed after the checkpoint of step 4
without_last() {
    rm -rf victim
    cp -r "expected_$1" victim
    rm -r victim/step_00000006 victim/DONE_00000006
}

# one rank, or both, stand still
faults_stopped_ranks() {
    local job id rank status where
    has_mpirun "$(every 12 3)" || return 0
    local trainer=$program ranks_are=("$program" train)
    prepare_ranks silent >/dev/null
    for where in $(every "vader,self tcp,self" vader,self); do
        export OMPI_MCA_btl=$where
        for rank in $(every "0 1" 1); do
            rm -rf victim
            FAIL_RANK=$rank FAIL_WITH=stop FAIL_AT=5 FAIL_IN=step_00000004 start_ranks "${layout[@]}" &
            job=$!
            id=$(await_stopped $job)
            sleep "$(every 3 0.5)"
            go_on $job
            report "$where: rank $rank stands still inside a save, then goes on: the same bits" "$(
                stopped_and_ended 0
                same_end victim expected_silent
            )"
            rm -rf victim
            report "$where: rank $rank is stopped for longer than the timeout: exit 1, one sentence, and resumed" "$(
                TEST_TIMEOUT=$(every 10 2),$PWD/note struck_ranks 1 "$rank" stop 5 step_00000004 "${layout[@]}"
                was_struck
                sentences 1
                says "$err" "a rank has not answered for $(every 10 2) s"
                whole_checkpoints victim expected_silent step_00000002
                ranks_resume silent
            )"
        done
        [ "$form" = short ] || stopped_for_long "$where"
        slow_rank "$where"
    done
    unset OMPI_MCA_btl
}
# both ranks are stopped for 11 s at a timeout of 10 s
stopped_for_long() { # WHERE
    local job id other status
    rm -rf victim
    TEST_TIMEOUT=10 FAIL_RANK=0 FAIL_WITH=stop FAIL_AT=5 FAIL_IN=metrics.jsonl FAIL_CALLS=write \
        start_ranks "${layout[@]}" &
    job=$!
    id=$(await_stopped $job)
    other=$(process_of_rank 1)
    if [ -n "$id" ] && [ -n "$other" ]; then
        kill -STOP "$other"
        sleep 11
        kill -CONT "$other"
        sleep 0.2
    fi
    go_on $job
    report "$1: both ranks are stopped for longer than the timeout: the run goes on to the same bits" "$(
        stopped_and_ended 0 "$other"
        same_end victim expected_silent
    )"
}
# the first 20 turns stop rank 0, the next 20 rank 1, and so on; each turn stops a rank for 0.09 s of 0.1 s
slow_rank() { # WHERE
    local job id turns=0 status
    local -a slow=("${model[@]}" -v 200 -n 200 -x 600)
    [ -d expected_slow ] || ranks 0 "${slow[@]}" -o expected_slow
    rm -rf victim
    start_ranks "${slow[@]}" -o victim &
    job=$!
    while kill -0 $job 2>/dev/null; do
        id=$([ ! -s victim/metrics.jsonl ] || process_of_rank $((turns / 20 % 2)))
        [ -z "$id" ] || { kill -STOP "$id" && sleep 0.09 && kill -CONT "$id" && turns=$((turns + 1)); } 2>/dev/null
        sleep 0.01
    done
    await $job
    status=$?
    report "$1: one rank is slow, stopped $turns times: the same bits" "$(
        [ $turns -ge 3 ] || echo "a rank was stopped $turns times, expected 3: nothing was tested"
        [ $status -eq 0 ] || echo "exit status $status"
        same_end victim expected_slow
    )"
}

# ---- 8. a lost link

# TESTS: makes two network namespaces, joined by a link, each for a rank; without permission, skips TESTS tests
open_link() {
    ns_a=faults_$$_a ns_b=faults_$$_b
    if ! { ip netns add "$ns_a" && ip netns add "$ns_b" &&
        ip link add va netns "$ns_a" type veth peer name vb netns "$ns_b"; } 2>/dev/null; then
        close_link
        skip "ip netns (root, and iproute2)" "$1" "a lost link"
        return 1
    fi
    ip -n "$ns_a" addr add 10.99.0.1/24 dev va
    ip -n "$ns_b" addr add 10.99.0.2/24 dev vb
    ip -n "$ns_a" link set lo up
    ip -n "$ns_b" link set lo up
    ip -n "$ns_a" link set va up
    ip -n "$ns_b" link set vb up
    # mpirun calls it with a host and a command, as it would ssh
    printf '#!/bin/sh\nshift\nexec ip netns exec %s sh -c "$*"\n' "$ns_b" >agent
    chmod +x agent
    launcher=(ip netns exec "$ns_a" mpirun --host "10.99.0.1,10.99.0.2" --map-by node --mca plm_rsh_agent "$PWD/agent"
        --mca btl "tcp,self" --mca btl_tcp_if_include 10.99.0.0/24 --mca oob_tcp_if_include 10.99.0.0/24)
}
close_link() {
    ip netns del "${ns_a:-none}" 2>/dev/null
    ip netns del "${ns_b:-none}" 2>/dev/null
    launcher=(mpirun --oversubscribe)
}
# HOW: down: the link is taken down; deaf: frames go to an address that nobody has, so packets are lost in silence
cut_link() {
    case $1 in
    down) ip -n "$ns_a" link set va down ;;
    deaf)
        ip -n "$ns_a" neigh replace 10.99.0.2 lladdr 02:00:00:00:00:99 dev va nud permanent
        ip -n "$ns_b" neigh replace 10.99.0.1 lladdr 02:00:00:00:00:99 dev vb nud permanent
        ;;
    esac
}
mend_link() {
    ip -n "$ns_a" link set va up
    ip -n "$ns_a" neigh del 10.99.0.2 dev va 2>/dev/null
    ip -n "$ns_b" neigh del 10.99.0.1 dev vb 2>/dev/null
}
# rank 0 stops itself in a step, the link is cut, and rank 0 goes on. The job's id is in $job, that of rank 0 in $id
run_and_cut() { # HOW TIMEOUT
    rm -rf victim
    TEST_TIMEOUT=$2,$PWD/note FAIL_RANK=0 FAIL_WITH=stop FAIL_AT=5 FAIL_IN=metrics.jsonl FAIL_CALLS='write' \
        start_ranks "${layout[@]}" 2>/dev/null &
    job=$!
    id=$(await_stopped "$job")
    cut_link "$1"
    [ -z "$id" ] || kill -CONT "$id"
}
faults_link() {
    local how id job status ns_a ns_b daemons trouble limit
    has_mpirun "$(every 4 3)" || return 0
    local trainer=$program ranks_are=("$program" train)
    limit=$(every 10 2)
    prepare_ranks silent >/dev/null
    open_link "$(every 4 3)" || return 0
    rm -rf victim
    report "two ranks in two network namespaces: the same bits" "$(
        ranks 0 "${layout[@]}"
        same_end victim expected_silent
    )"
    for how in $(every "down deaf" deaf); do
        run_and_cut "$how" "$limit"
        # shellcheck disable=SC2046
        trouble=$(none_left $(processes))
        # mpirun waits for its own daemon on the other side, for minutes
        daemons=$(ip netns pids "$ns_a" && ip netns pids "$ns_b")
        # shellcheck disable=SC2086
        { kill -9 $daemons && wait "$job"; } 2>/dev/null
        mend_link
        report "the link is lost ($how): both ranks end with one sentence, and the run resumes" "$(
            printf '%s' "$trouble"
            was_struck
            [ -n "$id" ] || echo "a process to stop was not found: nothing was tested"
            sentences 1
            says "$err" "a rank has not answered for $limit s"
            whole_checkpoints victim expected_silent
            ranks_resume silent
        )"
    done
    run_and_cut deaf 60
    sleep 1
    mend_link
    await "$job"
    status=$?
    report "packets are lost for a second: the same bits" "$(
        stopped_and_ended 0
        same_end victim expected_silent
    )"
    close_link
}

# ---- the sections

chosen=("$@")
all=(kill kill_calls disk last_save ends logs read damage unreadable clock data stop ranks stopped_ranks link)
[ $# -gt 0 ] || chosen=("${all[@]}")
report "the uninterrupted runs, and one that was killed" "$(prepare_all)"
for section in "${chosen[@]}"; do faults_"$section"; done
end_tests
