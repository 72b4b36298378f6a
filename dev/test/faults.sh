#!/usr/bin/env bash
# Injects faults into runs of a small model. After each, every checkpoint equals that of an uninterrupted run; the
# resumed run begins at the newest checkpoint and ends with the bytes of the uninterrupted run.
#   PROGRAM=build/test/test_processes dev/test/faults.sh [short|whole] [SECTION...]
#   FAULTS_SEED=N   seed of the random moments and places (default 1)
#   SECTION         a function faults_SECTION below (default: all sections)
# short, in `make test`: samples. whole, `make test-faults`: every call of one rank, and samples of two ranks, over Open
# MPI's shared memory and over its TCP transport, and of the bytes of tensors.
. "$(dirname "$0")/harness.sh"

form=${1:-short} seed=${FAULTS_SEED:-1}
case $form in
short | whole) shift $(($# > 0)) ;;
*)
    echo "faults: expected short or whole, found '$form'" >&2
    exit 2
    ;;
esac
program=$(realpath "${PROGRAM:-build/test/test_processes}")
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
    cd / && rm -rf "$folder"
}

export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive LC_ALL=C
# an fsync of every file takes most of the time on a disk
folder=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$folder"' EXIT
for source in fail_nth patient_yield; do
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
#   exited     exit status of the last run
#   status     exit status of the struck run
#   call       the struck call, or nothing
# The run that is struck is in the folder `victim`.
log=$folder/log err=$folder/err out=$err before='' preload='' call=''

model=(-i text -e l2h2c32 -b 2 -t 16 -d 64 -l 1e-3 -m 2 -s 0)
small=("${model[@]}" -v 2 -n 2 -x 6)
every() { if [ "$form" = whole ]; then echo "$1"; else echo "$2"; fi; } # WHOLE SHORT: the number for this form

run() { # STATUS ARGUMENTS...: a sentence unless the trainer, with $preload, exits with STATUS, or STATUS is any
    exited=0
    LD_PRELOAD="$preload" "$trainer" "${@:2}" >"$log" 2>"$err" </dev/null || exited=$?
    expected_exit "$@"
}
expected_exit() {
    [ "$1" = any ] || [ $exited -eq "$1" ] || { echo "exit status $exited, expected $1: ${*:2}" && tail -n 3 "$err"; }
}
struck() { # STATUS WITH AT IN ARGUMENTS...: run, with the AT-th call on paths that contain IN struck
    rm -f note
    preload=$folder/fail_nth.so FAIL_WITH=$2 FAIL_AT=$3 FAIL_IN=$4 FAIL_NOTE=$PWD/note run "$1" "${@:5}"
    status=$exited call=$(what_was_struck)
}
was_struck() { [ -n "$call" ] || echo "no call was struck: nothing was tested"; }
what_was_struck() { sed '/^calls/d; s/^[0-9]* //; q' note 2>/dev/null; }

# each_call STRIDE LAST STRIKE...: runs STRIKE for every STRIDE-th call $n up to LAST or, if LAST is 0, until it strikes
# none. STRIKE prints what is wrong; it runs in this shell, which reads its `call` and `status`. Sets `trouble` to the
# first complaint, and counts the runs that went on in `on` and those that ended in `ended`.
each_call() {
    on=0 ended=0 trouble=''
    for ((n = 1 + seed % $1; (n <= $2 || $2 == 0) && ${#trouble} == 0; n += $1)); do
        "${@:3}" >found
        trouble=$(<found)
        if [ -n "$trouble" ]; then
            trouble="call $n, $call: $trouble"
        elif [ -n "$call" ]; then
            on=$((on + (status == 0))) ended=$((ended + (status != 0)))
        elif [ "$2" -eq 0 ]; then
            break
        fi
    done
    [ $((on + ended)) -gt 0 ] || trouble=${trouble:-no call was struck}
}
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
    local moments inside=0 ends=0 killed=0 trouble='' length begun before id at part
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
            call=$(what_was_struck)
            [ $at -eq 0 ] || trouble=$(was_struck)
            trouble+=$(whole_checkpoints killed expected_kill "$before")
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
    local name calls
    for name in new resumed best; do
        calls=$(cat calls_$name)
        each_call "$(every 1 $((calls / 6)))" "$calls" kill_and_resume $name
        report "$name: kill -9 before $ended of $calls system calls on the run folder" "$trouble"
    done
}
kill_and_resume() { # SCENARIO
    local best=victim/best
    prepare "$1"
    { struck 137 kill "$n" victim "${scenario[@]}"; } 2>/dev/null
    was_struck
    whole_checkpoints victim "expected_$1" "$before"
    [ -d $best ] || best+=.old # a kill between its two renames
    [ ! -d $best ] || run 0 --generate 1 -e $best
    resumes "$1"
    all_checkpoints victim "$([ "$1" = best ] && echo kept_best || echo "expected_$1")"
}

# ---- 2. a file system that fails

# SCENARIO FAULT: after one call failed, a run goes on to the same end, or ends at its start or in its last save, with
# one sentence, and resumes. $losses are those of `victim` before the run
survives() {
    local name=$1
    whole_checkpoints victim "expected_$name" "$before"
    case $name:$call in new:*step_00000006*) ends_in_last_save ;; esac
    if [ "$status" -eq 0 ]; then
        same_end_of_failed "$name" "$2"
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
# exit 0 with the last checkpoint, or exit 1 without it, as after a failed fsync
ends_in_last_save() {
    if [ "$status" -eq 0 ]; then
        [[ $call != fsync* ]] || echo "exit status 0 after a failed fsync"
        return
    fi
    [ "$status" -eq 1 ] || echo "exit status $status"
    says "$err" "could not save checkpoint 'victim/step_00000006'"
    [ ! -d victim/step_00000006 ] || echo "exit status $status, yet step_00000006 was saved"
    left_over victim | sed 's/$/ was left/'
}
# CHECKPOINT: the number of losses before it
losses_at() { echo $((10#0${1#step_})); }
# EXPECTED FAULT: the end of a run that went on: a checkpoint may be missing, with a warning that names it
same_end_of_failed() {
    local name
    case $2:$call in
    short:* | *:rename*/step_????????) ;; # a folder that is deleted gets another name first
    *:fsync* | *:write* | *:rename* | *:mkdir*) says "$err" 'train_gpt2: warning: ' ;;
    esac
    cmp <(metrics victim) <(metrics "expected_$1") 2>&1
    cmp victim/main.log "expected_$1/main.log" 2>&1
    diff -rq victim/step_00000006 "expected_$1/step_00000006" 2>&1
    # a file that cannot be deleted keeps its folder, which is deleted later
    case $call in unlink* | open*tmp | open*old) ;; *) left_over victim | sed 's/$/ was left/' ;; esac
    grep -v '^train_gpt2: warning: ' "$err"
    [ "$1" != best ] || return
    for name in $(holds "expected_$1"); do
        [ -d "victim/$name" ] || says "$err" "could not save checkpoint 'victim/$name'"
        [ -e "victim/DONE_${name#step_}" ] || says "$err" " could not "
    done
}

# SCENARIO FAULT STRIDE [PATH]: fails every STRIDE-th call on the run, or on PATH; `short` counts only the writes that
# it can cut
sweep() {
    local calls=calls_$1 seed=$((seed + ${#2}))
    [ "$2" != short ] || calls+=_short
    calls=$(cat "$calls")
    each_call "$3" "$([ $# -gt 3 ] && echo 0 || echo "$calls")" fail_and_go_on "$1" "$2" "${4:-victim}"
    report "$1: $2 at $((on + ended)) of $calls calls${4:+ on $4}: $on went on, $ended ended and resumed" \
        "$trouble"
}
fail_and_go_on() { # SCENARIO FAULT PATH
    local losses
    prepare "$1"
    losses=$(losses_of victim)
    struck any "$2" "$n" "$3" "${scenario[@]}"
    [ "$3" != victim ] || was_struck
    [ -z "$call" ] || survives "$1" "$2"
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

# more calls of the last save than the sweeps of faults_disk strike in the short form
faults_last_save() {
    sweep new EDQUOT "$(every 4 37)" step_00000006
    FAIL_CALLS='fsync' sweep new EIO 1 step_00000006
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
    local id
    local -a each=("${model[@]}" -v 2 -n 1 -x 6 -o victim -y 1)
    local -a endless=("${model[@]}" -k constant -x 100000000 -o victim -y 1)
    report "the run that ends early" "$(run 0 "${model[@]}" -v 2 -n 1 -x 6 -o expected_each)"
    each_call "$(every 1 39)" 90 ends_by_signal "${each[@]}"
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
    keeps_best_before rename 1 'victim/best$'
    if [ "$form" = whole ]; then
        keeps_best_before mkdir 2 victim/best.tmp
        keeps_best_before rename 2 'victim/best.tmp$'
    fi
    kept_until_synced
}
ends_by_signal() { # FLAGS...
    rm -rf victim
    FAIL_SIGNAL=15 struck 0 EIO "$n" step_00000004.tmp "$@"
    was_struck
    whole_checkpoints victim expected_each
    says "$log" "stopped at step $(newest victim | sed 's/step_0*//') "
    left_over victim
    run 0 "$@"
    same_end victim expected_each
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
    local saves=0
    local -a kept=("${model[@]}" -v 0 -n 2 -x 4)
    report "the run that keeps each" "$(run 0 "${kept[@]}" -o expected_kept)"
    each_call 1 0 fsync_fails "${kept[@]}"
    [ $saves -gt 0 ] || trouble+="the fsync after the rename of step 4 was not struck"
    report "-nk 1: $((on + ended)) failed fsyncs of the folder; the older checkpoint stays until the newer is synced" \
        "$trouble"
}
fsync_fails() { # FLAGS...
    rm -rf victim
    FAIL_CALLS='fsync' struck any EIO "$n" /victim\$ "$@" -nk 1 -o victim
    [ -n "$call" ] || return
    whole_checkpoints victim expected_kept
    if [ "$status" -eq 0 ]; then
        says "$err" "warning: could not"
    elif grep "could not save checkpoint 'victim/step_00000004'" "$err" >/dev/null; then
        saves=$((saves + 1))
        [ "$(holds victim)" = step_00000002 ] || echo "found '$(holds victim)', expected step_00000002"
    fi
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
    each_call "$(every 1 37)" 0 read_fails
    report "EIO at $((on + ended)) reads of a resumed run: $on went on, $ended ended with a sentence" "$trouble"
}
read_fails() {
    prepare resumed
    FAIL_CALLS='read' struck any EIO "$n" victim "${scenario[@]}"
    [ -n "$call" ] || return
    whole_checkpoints victim expected_resumed "$before"
    if [ "$status" -ne 0 ]; then
        one_sentence
        resumes resumed
    else
        begun_at "$before"
    fi
    same_end_of resumed
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
    local refused=0
    each_call 1 0 folder_fails
    [ $refused -gt 0 ] || trouble+="no run was refused"
    report "the folder of the run cannot be read: no other checkpoint is loaded" "$trouble"
    report "-e takes a model with a manifest.json of another program" "$(
        rm -rf other && mkdir other
        cp expected_new/step_00000004/{config.json,model.safetensors} other
        echo '{"files":{"model.safetensors":{"bytes":1,"crc32c":"00000000"}},"name":"a model"}' >other/manifest.json
        run 0 --generate 2 -e other
        run 0 "${small[@]}" -e other -o victim_other 2>/dev/null
        rm -rf victim_other other
    )"
}

folder_fails() {
    prepare resumed
    FAIL_CALLS='open' struck any EIO "$n" 'victim$' "${scenario[@]}"
    case $call:$status in
    :*) ;;
    *:0) begun_at step_00000004 ;;
    *:1) one_sentence ;;
    *) refused=$((refused + 1)) && says "$err" "could not read the folder 'victim': Input/output error" ;;
    esac
}

# ---- 4. a clock that jumps

# A clock that jumps by hours must not end a run, or keep it from ending.
faults_clock() {
    report "the trainer reads no time of day, but for the names of marks" "$(
        nm -D --undefined-only "$trainer" | grep -oE ' (time|gettimeofday|timespec_get)(@.*)?$'
        ! grep -rl CLOCK_REALTIME "$root"/{train_gpt2.cu,llmc} | grep -v '/checkpoint/checkpoint.h$'
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
    local starts=0 during=0
    seed=$((seed % 4)) each_call "$(every 1 5)" "$(every 60 40)" data_read_fails
    [ $starts -gt 0 ] && [ $during -gt 0 ] || trouble+="$starts runs ended at the start, $during later"
    report "EIO at reads of a data file: $starts runs ended before training (exit 2), $during in it, $on went on" \
        "$trouble"
}
data_read_fails() {
    rm -rf victim
    FAIL_CALLS='read' struck any EIO "$n" data/x_2 "${shards[@]}" -o victim
    was_struck
    [ "$status" -eq 0 ] || { one_sentence && says "$err" "data/x_2"; }
    [ ! -d victim ] || whole_checkpoints victim expected_data
    case $status in
    0) same_end victim expected_data ;;
    1) during=$((during + 1)) && says "$log" 'step 1/' ;;
    2) starts=$((starts + 1)) && lacks "$log" '^step 1/' ;;
    *) echo "exit status $status" ;;
    esac
}

# ---- 6. stopped for a while

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

ranks_are=("$trainer")
# starts two ranks; FAIL_ variables, and a library in $preload, are theirs
start_ranks() {
    rm -f note
    FAIL_NOTE=$PWD/note mpirun --oversubscribe --bind-to none -np 2 \
        ${TEST_TIMEOUT:+-x TEST_TIMEOUT} -x LD_PRELOAD="$folder/patient_yield.so:$folder/fail_nth.so:$preload" \
        "${ranks_are[@]}" "$@" >"$log" 2>"$err" </dev/null
}
ranks() { # STATUS ARGUMENTS...: two ranks, which end with this status and leave no process
    exited=0
    start_ranks "${@:2}" || exited=$?
    expected_exit "$@"
    # shellcheck disable=SC2046
    none_left $(processes)
}
struck_ranks() { # STATUS RANK WITH AT IN ARGUMENTS...
    FAIL_RANK=$2 FAIL_WITH=$3 FAIL_AT=$4 FAIL_IN=$5 ranks "$1" "${@:6}"
    status=$exited call=$(what_was_struck)
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
    local rank calls stride killed=0 errors=0 went_on=0 troubles=''
    for rank in 0 1; do
        calls=$(cat "calls_$1_$rank") stride=$(every $((1 + calls / 25)) $((calls / 2)))
        seed=$((seed * 7)) each_call "$stride" "$calls" kill_rank "$1"
        killed=$((killed + ended)) troubles+=$trouble
        seed=$((seed * 13)) each_call "$stride" "$calls" fail_rank "$1"
        errors=$((errors + on + ended)) went_on=$((went_on + on)) troubles+=$trouble
    done
    report "$1 over $2: kill -9 of one rank at $killed calls; $errors calls failed on one rank, $went_on runs went on" \
        "$troubles"
}
kill_rank() { # LAYOUT
    prepare_ranks "$1"
    struck_ranks 137 "$rank" kill "$n" victim "${layout[@]}"
    was_struck
    whole_checkpoints victim "expected_$1"
    ranks_resume "$1"
    all_checkpoints victim "expected_$1"
}
fail_rank() { # LAYOUT
    local faults=(ENOSPC EIO EROFS EDQUOT short) fault
    prepare_ranks "$1"
    fault=${faults[n % 5]}
    struck_ranks any "$rank" "$fault" "$n" victim "${layout[@]}"
    # `short` counts only the writes that it can cut
    [ "$fault$call" != short ] || return
    was_struck
    whole_checkpoints victim "expected_$1"
    no_repeated_warnings
    if [ "$status" -eq 0 ]; then
        same_end_of_failed "$1" "$fault"
    else
        sentences 1
        case $call in *step_0000000[24]*) echo "did not go on after a failed save" ;; esac
        ranks_resume "$1"
    fi
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
    has_mpirun "$(every 19 7)" || return 0
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
# two ranks find a wrong byte in a file of a checkpoint
damage_of_ranks() {
    local file files="state.json model.safetensors" trouble=''
    prepare_ranks dp2
    [ "$form" = short ] || files=$(cd expected_dp2/step_00000004 && echo [!m]* model.safetensors)
    for file in $files; do
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
    report "two ranks, a wrong byte in files of a checkpoint: one sentence, and an older checkpoint resumes" \
        "$trouble"
}

# two ranks find data that has changed, and a read that fails on rank 1
inputs_of_ranks() {
    local job id status rank=0 # rank 0 writes metrics.jsonl
    prepare_data
    report "two ranks: the run whose data changes" "$(ranks 0 "${shards[@]}" -x 40 -o expected_shards)"
    cp -rp data data_whole
    rm -rf victim
    FAIL_RANK=$rank FAIL_WITH=stop FAIL_AT=25 FAIL_IN=metrics.jsonl FAIL_CALLS='write' \
        start_ranks "${shards[@]}" -x 40 -o victim &
    job=$!
    id=$(await_stopped $job)
    change_data cut
    go_on $job
    report "two ranks, a data file is cut during the run: exit 1, one sentence, and resumed" "$(
        stopped_and_ended 1
        sentences 1
        says "$err" "data/x_2"
        whole_checkpoints victim expected_shards step_00000020
        cp -p data_whole/* data
        ranks 0 "${shards[@]}" -x 40 -o victim -y 1
        same_end victim expected_shards
    )"
    rm -rf expected_shards data_whole
    prepare_ranks dp2
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
    has_mpirun "$(every 8 2)" || return 0
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
    done
    unset OMPI_MCA_btl
}
# ---- the sections

chosen=("$@")
all=(kill kill_calls disk last_save ends logs read damage unreadable clock data stop ranks stopped_ranks)
[ $# -gt 0 ] || chosen=("${all[@]}")
report "the uninterrupted runs, and one that was killed" "$(prepare_all)"
for section in "${chosen[@]}"; do faults_"$section"; done
end_tests
