#!/usr/bin/env bash
# Checkpoints saved beside training: the files of --save-sync 1, byte for byte, on a CPU, on several ranks, and on an
# emulated GPU whose copies land late, early and in a random order.
#   TRAINER=./train_gpt2 EMULATED=build/emulated/train_gpt2 dev/test/test_saves.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

trainer=$(realpath "${TRAINER:-./train_gpt2}")
emulated=$(realpath "${EMULATED:-build/emulated/train_gpt2}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cc -O2 -shared -fPIC dev/test/fail_nth.c -o "$folder/fail_nth.so" || exit
cd "$folder" || exit
seq 3000 >text
export OMP_NUM_THREADS=2
model=(-i text -e l2h2c32 -b 2 -t 16 -d 64 -l 3e-3 -x 9 -n 2 -v 0 -s 0 -m 1)
out=$folder/none

# train RUN COMMAND...: prints a sentence if the run fails
train() {
    local run=$1 status=0
    shift
    timeout -k 5 300 "$@" -o "$run" >"$run.log" 2>&1 </dev/null || status=$?
    [ "$status" -eq 0 ] || { echo "exit status $status: $*"; grep train_gpt2: "$run.log"; }
}
# the checkpoints and the lines of stdout that name them, without times
same_files() { # RUN RUN
    local step
    for step in "$1"/step_*; do diff -r "$step" "$2/${step#*/}" 2>&1; done
    [ "$(ls "$1")" = "$(ls "$2")" ] || echo "other files: $(ls "$1"), and $(ls "$2")"
    diff <(sums "$1") <(sums "$2")
}
sums() { grep -a ' saved ' "$1.log" | sed -E 's/saved .* paused [0-9.]+ ms//'; }

failures=$(train sync "$trainer" "${model[@]}" --save-sync 1)
failures+=$(train beside "$trainer" "${model[@]}")
failures+=$(same_files sync beside)
[ "$(find beside -name manifest.json | wc -l)" -eq 5 ] || failures+="expected 5 checkpoints"
report "one rank: the files of --save-sync 1" "$failures"

# The thread of step 2's save waits in its first fsync until the validation of step 2, and step 4, have ended. If the
# training loop itself had to wait, the fsync would fail after 60 s, and so would the save. OMP_WAIT_POLICY is set:
# otherwise the trainer sets it and executes itself, where fail_nth.so cannot follow.
blocked=(env OMP_WAIT_POLICY=passive LD_PRELOAD="$folder/fail_nth.so" FAIL_WITH=wait FAIL_UNTIL=step_4_ended FAIL_AT=1
    FAIL_CALLS=fsync FAIL_IN=/step_00000002.tmp FAIL_NOTE=waited "$trainer")
failures=$(
    train blocked "${blocked[@]}" "${model[@]}" -v 2 &
    until [ -e waited ] && grep -qs '"step":4,' blocked/metrics.jsonl || ! kill -0 $! 2>/dev/null; do sleep 0.02; done
    [ ! -e blocked/step_00000002 ] || echo "step 2 was saved before step 4 ended"
    touch step_4_ended
    wait
    grep -q fsync waited || echo "no fsync was struck: nothing was tested"
    same_files sync blocked
)
report "the validation of step 2, and steps 3 and 4, run while the save of step 2 cannot end" "$failures"

# A validation of seconds: the checkpoint of step 2 is written during it.
seq 1000000 >long
failures=$(
    timeout -k 5 300 "$trainer" "${model[@]}" -i long -v 2 -m 100000000 -o validates >validates.log 2>&1 </dev/null &
    until [ -d validates/step_00000002 ] || ! kill -0 $! 2>/dev/null; do sleep 0.02; done
    grep -q '"step":2,"loss"' validates/metrics.jsonl || echo "no step 2"
    ! grep -q '"step":2,"val_loss"' validates/metrics.jsonl || echo "the checkpoint was written after the validation"
    kill -9 $! 2>/dev/null
    wait
)
report "a checkpoint is written during the validation of its step" "$failures"

# a checkpoint that is validated, the best one, and pruned ones
failures=$(train best_sync "$trainer" "${model[@]}" -v 3 --keep-best -nk 2 --save-sync 1)
failures+=$(train best "$trainer" "${model[@]}" -v 3 --keep-best -nk 2)
failures+=$(same_files best_sync best)
failures+=$(diff -r best_sync/best/ best/best/)
report "with validation, --keep-best and -nk 2" "$failures"

# the CRC32C on stdout are the manifest's
failures=
for step in 2 9; do
    line=$(grep -a "^step $step | saved" beside.log)
    manifest=$(<"beside/step_0000000$step/manifest.json")
    sums=$(grep -oE '[0-9a-f]{8}"' <<<"$manifest" | head -2 | tr -d '"' | paste -sd ' ')
    [[ $line == *"weights ${sums% *}, optimizer ${sums#* }" ]] || failures+="step $step: $line, manifest: $sums"
done
report "stdout has the CRC32C of the manifest" "$failures"

for order in 1 2 3 4 5 6; do
    failures=
    [ "$order" -gt 1 ] || failures=$(train gpu_sync "$emulated" "${model[@]}" --save-sync 1)
    failures+=$(SIMT_STREAMS=$order train gpu "$emulated" "${model[@]}")
    failures+=$(same_files gpu_sync gpu)
    report "emulated GPU, copies in order $order: the files of --save-sync 1" "$failures"
    rm -rf gpu
done

plan_has_copy() { # FLAGS...
    local plan
    plan=$("$emulated" "${model[@]}" -o plan --plan=json "$@" 2>/dev/null)
    [[ $plan == *copy_params* ]] && echo yes || echo no
}
failures=
[ "$(plan_has_copy)" = yes ] || failures+="no copy with -n; "
[ "$(plan_has_copy --save-sync 1)" = no ] || failures+="a copy with --save-sync 1; "
[ "$(plan_has_copy -n 0)" = no ] || failures+="a copy with -n 0; "
[ "$(plan_has_copy --offload 1)" = no ] || failures+="a copy with --offload 1; "
report "the plan lists the copy where there is one" "$failures"

# The model takes 0.73 MiB and its copy 0.41; of the free memory 3 % are left for others. The file `meminfo` replaces
# the system's.
cc -O2 -shared -fPIC -x c - -o meminfo.so <<'C' || exit
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
FILE *fopen(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    return real(strcmp(path, "/proc/meminfo") == 0 ? "meminfo" : path, mode);
}
C
failures=
for free in 1024 1280; do
    printf 'MemTotal: 1048576 kB\nMemAvailable: %d kB\n' $free >meminfo
    failures+=$(train free_$free env OMP_WAIT_POLICY=passive LD_PRELOAD="$folder/meminfo.so" "$trainer" "${model[@]}")
    failures+=$(same_files sync free_$free)
done
note='^note      a copy of the state needs 0\.[0-9] MiB of host memory, and 0\.[0-9] are left: saves stop training'
grep -q "$note" free_1024.log || failures+="no note: $(grep '^note' free_1024.log)"
! grep -q 'a copy of the state needs' free_1280.log || failures+="a note, although the copy fits"
report "without memory for the copy, saves write the state itself and a note says so" "$failures"

version=$("$trainer" --version)
use_mpirun "$(grep -o 'MPI (.*' <<<"$version")" 4
ranks=(mpirun --oversubscribe --bind-to none -np 2 "$trainer" "${model[@]}")
for flags in '-z 0' '-z 1' '-z 3' '-tp 2'; do
    read -ra flag <<<"$flags"
    failures=$(train ranks_sync "${ranks[@]}" "${flag[@]}" --save-sync 1)
    failures+=$(train ranks "${ranks[@]}" "${flag[@]}")
    failures+=$(same_files ranks_sync ranks)
    report "two ranks, $flags: the files of --save-sync 1" "$failures"
    rm -rf ranks_sync ranks
done
end_tests
