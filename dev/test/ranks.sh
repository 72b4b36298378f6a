# shellcheck shell=bash disable=SC2034,SC2154  # the scripts that source it use these, and source harness.sh
# Shared by the scripts that train on several ranks: programs, mpirun, runs of the trainer and comparisons of runs. A
# script sources it after harness.sh, and is then in the empty folder $folder, but for a text and validation data.
#   PROGRAM   another program than build/test/test_processes
# Without mpirun, or in a build without MPI, a script that calls use_ranks is skipped.

program=$(realpath -m "${PROGRAM:-build/test/test_processes}")
# a trainer of fp32 weights, to compare layouts that sum in another order: bf16 would round the sums differently
fp32=$(realpath "${TRAINER_FP32:-$trainer}")
in_scratch
folder=$PWD
seq 100000 >text      # the same text on any machine
head -c 113 text >held # 7 sequences of 16 for validation, which 2, 3 and 4 do not divide
mpi=(mpirun --oversubscribe --bind-to none)
# beside three busy programs on two cores, `slices 2` on 4 ranks takes 9 s with it and 158 s without
cc -O2 -shared -fPIC "$root/dev/test/patient_yield.c" -o "$scratch/patient_yield.so" &&
    mpi+=(-x LD_PRELOAD="$scratch/patient_yield.so")

use_ranks() { use_mpirun "$("$trainer" --version | grep 'MPI (')" 1; }
launch() { "${mpi[@]}" -np "$1" "${@:2}" >"$out" 2>&1 </dev/null; }

# A check prints a sentence if it fails, and nothing if it passes.
run() { # STATUS RANKS ARGUMENTS...: runs the trainer, which must exit with STATUS; 1 rank without mpirun
    local status=0
    if [ "$2" -eq 1 ]; then
        "$trainer" "${@:3}" >"$out" 2>&1 </dev/null || status=$?
    else
        launch "$2" "$trainer" "${@:3}" || status=$?
    fi
    [ "$status" -eq "$1" ] && return
    echo "exit status $status, expected $1: ${*:2}"
    grep -m 1 -E '^(train_gpt2|simt): ' "$out"
    return 1
}
says() { grep -qE -- "$1" "$out" || { echo "expected /$1/" && false; }; }
sentences() {
    local found
    found=$(grep -c 'train_gpt2: ' "$out")
    [ "$found" -eq "$1" ] || echo "$found sentences, expected $1"
}
same_run() { # RUN RUN STEP: the same bits
    cmp <(metrics "$1") <(metrics "$2") 2>&1
    local file
    for file in model.safetensors optimizer.safetensors; do cmp "$1/$3/$file" "$2/$3/$file" 2>&1; done
}

# 12 sequences an update
model=(-i text -e l3h3c24 -t 16 -l 3e-3 -c 0.1 -s 8 -g 4 --top-k 3)
together=("${model[@]}" -j "$folder/held" -d 192 -v 10 -m -1)
