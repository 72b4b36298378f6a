#!/usr/bin/env bash
# Several ranks through mpirun: every collective on 1, 2, 3 and 4 ranks, and jobs in which one rank is killed, hangs,
# stops on bad input, fails, leaves, or makes a different call than the others.
#   PROGRAM=build/test/test_comm dev/test/test_comm.sh
# A failed job must print one sentence that names the rank, exit with that rank's status, and leave no process behind.
# Skipped without mpirun, or in a build without MPI.
. "$(dirname "$0")/harness.sh"

program=${PROGRAM:-build/test/test_comm}
use_mpirun "$("$program" backends | grep MPI)" 14
make_scratch
run() { mpirun -np "$1" --oversubscribe --bind-to none "$program" "${@:2}" >"$out" 2>&1 </dev/null; }

for ranks in 1 2 3 4; do
    run "$ranks" ranks
    status=$?
    said=$(grep -c "^every rank agrees" "$out")
    report "collectives on $ranks ranks" "$([ "$status $said" = "0 1" ] || echo "exit status $status")"
done

# fault RANKS FAULT RANK STATUS PATTERN [SENTENCES, 1]: RANK has a fault; the job must end with STATUS and one sentence
fault() {
    local status
    run "$1" "$2" "$3"
    status=$?
    report "$2, rank $3 of $1" "$(
        [ "$status" -eq "$4" ] || echo "exit status $status, expected $4"
        [ "$(grep -c '^process' "$out")" -eq "$1" ] || echo "not every rank printed its process id"
        grep -qE -- "$5" "$out" || echo "expected /$5/"
        [ "$(grep -c 'train_gpt2:' "$out")" -eq "${6:-1}" ] || echo "expected ${6:-1} sentence(s)"
        # shellcheck disable=SC2046
        none_left $(sed -n 's/^process //p' "$out")
    )"
}

fault 2 refuses 1 2 '^train_gpt2: rank 1: shard 3 is cut short$'
fault 4 refuses 0 2 '^train_gpt2: rank 0: shard 3 is cut short$'
fault 3 fails 2 1 '^train_gpt2: rank 2: step 20: the loss is NaN$'
fault 1 fails 0 1 '^train_gpt2: step 20: the loss is NaN$'
fault 4 all-refuse 0 2 '^train_gpt2: rank [0-3]: data/none.bin: no such file$'
# all other ranks wait, some of them for ranks that wait themselves
fault 2 stopped 0 1 '^train_gpt2: rank 1: a rank has not answered for 1 s \(of 2 ranks, in [a-z_]+\)'
fault 4 stopped 3 1 '^train_gpt2: rank [0-2]: a rank has not answered for 1 s'
fault 4 confuses 1 1 \
    '^train_gpt2: rank [0-3]: a rank has not answered for 1 s \(of [24] ranks, in (all|reduce)_[a-z]+\)'
# mpirun reports these
fault 3 killed 1 137 'rank 1 .*exited on signal 9' 0
fault 3 leaves 2 1 'due to process rank 2 ' 0

end_tests
