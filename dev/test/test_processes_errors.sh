#!/usr/bin/env bash
# The trainer on several ranks with bad flags or data on a rank, and with a rank that is killed, hangs or cannot write.
#   PROGRAM=build/test/test_processes TRAINER=./train_gpt2 dev/test/test_processes_errors.sh
. "$(dirname "$0")/harness.sh"
. dev/test/ranks.sh
use_ranks

# ---- errors

refused() { report "refused: $1" "$(
    run 2 "${@:3}"
    says "$2"
    sentences 1
    [ ! -e refused ] || echo "something was written"
)"; }
refused "-d that the ranks do not divide" \
    '-d 192 is not a multiple of 128 = -b 2 x -t 16 x 4 data-parallel ranks; give 128' \
    4 "${model[@]}" -b 2 -d 192 -o refused
refused "another number of ranks than -pn" '-pn 3, but 2 started' 2 "${model[@]}" -b 1 -pn 3 -o refused
refused "-tp that does not divide the ranks" '-tp 2 must divide the number of ranks, found 3' \
    3 "${model[@]}" -b 1 -tp 2 -o refused
refused "too few rows for -tp" '-tp 4 divides the 9 rows of a micro-batch into chunks of 3, which leaves none for' \
    4 -i text -e l3h3c24 -t 9 -b 1 -tp 4 -o refused
report "a model to generate with" "$(run 0 1 "${together[@]}" -b 1 -x 1 -n 1 -o one)"
refused "--generate on several ranks" '--generate runs on one rank, found 2' \
    2 --generate 5 -e one/step_00000001

# different_ranks NAME SENTENCE FOLDER FLAGS...: two ranks; rank 1 runs in FOLDER with FLAGS, rank 0 with the flags of
# `first`
different_ranks() {
    local status=0
    "${mpi[@]}" -np 1 "$trainer" "${first[@]}" -b 1 -o bad : \
        -np 1 -wd "$folder/$3" "$trainer" "${@:4}" >"$out" 2>&1 </dev/null || status=$?
    report "$1" "$(
        [ "$status" -eq 2 ] || echo "exit status $status, expected 2"
        says "train_gpt2: rank [01]: $2"
        sentences 1
        [ ! -e bad ] && [ ! -e "$3/bad" ] || echo "something was written"
    )"
}
mkdir -p other short
first=("${together[@]}")
head -c 20000 text >other/text
head -c 10 text >short/text
different_ranks "other flags on rank 1" 'rank 1 has a different warmup from rank 0' . "${together[@]}" -b 1 -o bad -u 5
different_ranks "another layout on rank 1" 'rank 1 has a different zero-stage from rank 0' \
    . "${together[@]}" -b 1 -o bad -z 1
different_ranks "other data on rank 1" 'rank 1 has a different training set from rank 0' \
    other "${together[@]}" -b 1 -o bad
cp text other
head -c 2000 text >val_text
tail -c 2000 text >other/val_text
first=("${model[@]}" -j val_text -d 192 -v 10 -m -1)
different_ranks "other validation data on rank 1" 'rank 1 has a different validation set from rank 0' \
    other "${first[@]}" -b 1 -o bad
mkdir -p model other/model
for seed in 1 2; do
    "$trainer" "${together[@]}" -b 1 -x 1 -n 1 --seed $seed -o "seed_$seed" >"$out" 2>&1
done
cp seed_1/step_00000001/* model
cp seed_2/step_00000001/* other/model
first=("${together[@]}" -e model)
different_ranks "other weights on rank 1" 'rank 1 has a different model from rank 0' \
    other "${together[@]}" -b 1 -o bad -e model
first=("${together[@]}")
different_ranks "data too short on rank 1 only" '-i: a sequence of length 16' short "${together[@]}" -b 1 -o bad

report "the comparison of replicas names -tp and -z where one rank's parameters change" "$(
    for layout in "-z 0" "-tp 3 -z 0" "-tp 3 -z 3"; do
        # shellcheck disable=SC2086
        ! launch 3 "$program" replicas 1 "${together[@]}" -b 1 -x 3 $layout || echo "$layout: exit status 0"
        says '^the replicas of step 1 agree'
        says "-tp [13] -z [03]: the ranks' parameters differ"
    done
)"

# process_of RANK PROCESS...: the process of a rank
process_of() {
    local id
    for id in "${@:2}"; do
        if grep -qzx "OMPI_COMM_WORLD_RANK=$1" "/proc/$id/environ"; then echo "$id"; fi
    done
}
being_saved() { compgen -G "$1/step_*.tmp" >/dev/null; }

# two_checkpoints RUN: whether the run has two checkpoints. -nk 2 and 0 keep at least two from the second save on.
two_checkpoints() { [ "$(find "$1" -maxdepth 1 -name 'step_*[0-9]' 2>/dev/null | wc -l)" -ge 2 ]; }

cc -O2 -shared -fPIC "$root/dev/test/fail_nth.c" -o "$scratch/fail_nth.so" || exit
# strike SIGNAL RANK STATUS KEEP: starts a long run of 3 ranks with -nk KEEP in the folder struck, and sends the signal
# to RANK. KEEP 0: RANK stops itself before it writes to the third checkpoint, which cannot be finished without it, and
# gets the signal there. The run must end with STATUS and leave no process. dev/test/faults.sh kills and stops ranks at
# more places.
strike() {
    local job status=0 ranks victim stop_at=0
    rm -rf struck
    [ "$4" -ne 0 ] || stop_at=1
    FAIL_WITH=stop FAIL_AT=$stop_at FAIL_RANK=$2 FAIL_IN=step_00000012.tmp mpirun --oversubscribe --bind-to none -np 3 \
        -x LD_PRELOAD="$scratch/patient_yield.so:$scratch/fail_nth.so" \
        "$trainer" "${together[@]}" -b 1 -z 3 -x 1000000 -n 4 -nk "$4" -o struck >"$out" 2>&1 </dev/null &
    job=$!
    until two_checkpoints struck || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    ranks=$(pgrep -P "$job")
    # shellcheck disable=SC2086
    victim=$(process_of "$2" $ranks)
    [ -n "$victim" ] || { echo "rank $2 is none of the processes '$ranks'" && kill "$job" && return; }
    until [ "$4" -ne 0 ] || grep -qs '^State:.*T (' "/proc/$victim/status" || ! kill -0 "$job" 2>/dev/null; do
        sleep 0.02
    done
    kill -s "$1" "$victim"
    wait "$job" || status=$?
    [ "$status" -eq "$3" ] || echo "exit status $status, expected $3"
    # shellcheck disable=SC2086
    none_left $ranks
}
# resumes: the last checkpoint of struck resumes in another layout
resumes() {
    local last
    last=$(find struck -name 'step_*' ! -name '*.tmp' | sort | tail -n 1)
    last=$((10#0${last##*_}))
    [ "$last" -gt 0 ] || echo "there is no checkpoint"
    run 0 2 -o struck -y 1 -z 2 -b 1 -tp 1 -x $((last + 2)) -v 0 -s 0
    [ -d "struck/$(printf 'step_%08d' $((last + 2)))" ] || echo "no checkpoint of step $((last + 2))"
    ! being_saved struck || echo "an unfinished checkpoint is left"
}
report "rank 2 of -z 3 is killed while a checkpoint is written, and the run resumes in another layout" "$(
    strike KILL 2 137 0
    says 'exited on signal 9' && sentences 0
    being_saved struck || echo "no checkpoint was being written"
    resumes
)"
for signal in USR1 USR2; do
    report "SIG$signal, which mpirun passes on, stops all ranks with a checkpoint" "$(
        "${mpi[@]}" -np 2 "$trainer" "${together[@]}" -b 1 -x 1000000 -n 1000000 -o by_$signal \
            >"$out" 2>&1 </dev/null &
        job=$!
        # after the first step, since a run that ends in its first validation saves nothing
        until grep -qs '"loss"' by_$signal/metrics.jsonl || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
        kill -s $signal "$job"
        wait "$job" || echo "exit status $?, expected 0"
        says ': User defined signal '
        compgen -G "by_$signal/step_*" >/dev/null || echo "no checkpoint"
    )"
done
report "a signal to one rank stops all ranks with a checkpoint" "$(
    strike TERM 1 0 2
    says ': Terminated'
    resumes
)"

# ---- the run directory, into which all ranks write

# second_by STATUS COMMAND FLAGS...: 3 ranks; a shell runs COMMAND and then rank 1
second_by() {
    local status=0
    "${mpi[@]}" -np 1 "$trainer" "${@:3}" : -np 1 bash -c "$2"' && exec "$@"' - "$trainer" "${@:3}" : \
        -np 1 "$trainer" "${@:3}" >"$out" 2>&1 </dev/null || status=$?
    [ "$status" -eq "$1" ] || echo "exit status $status, expected $1"
    sentences 1
}
saving=("${together[@]}" -b 1 -z 3 -n 2)
mkdir elsewhere
cp text elsewhere
report "refused: a folder that one rank does not see" "$(
    second_by 2 'cd elsewhere' "${saving[@]}" -x 4 -o apart
    says 'train_gpt2: rank 1: -o apart is not a folder .*: No such file or directory; give one folder that all ranks'
    find . -path '*apart/*'
)"
report "the folder is accepted if all ranks see it" "$(run 0 3 "${saving[@]}" -x 4 -o apart)"
report "refused: another folder with the same name on one rank" "$(
    cp -r apart elsewhere
    second_by 2 'cd elsewhere' "${saving[@]}" -x 6 -o apart -y 1
    says 'train_gpt2: rank 1: -o apart is not a folder .*: No such file or directory'
    find . -name 'mark_*'
)"
report "a checkpoint that one rank cannot write" "$(
    second_by 1 'ulimit -f 30' "${saving[@]}" -x 2 -o narrow
    error="train_gpt2: rank 1: could not save checkpoint 'narrow/step_00000002': File too large"
    says "$error; .*: make room, or make -o .*, then resume"
    find narrow -name 'step_*'
)"

end_tests
