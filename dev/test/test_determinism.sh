#!/usr/bin/env bash
# The rows of doc/numerics.md about threads: losses, norms, weights and optimizer state of short runs, byte by byte.
#   TRAINER=./train_gpt2 BUILDS=build/test dev/test/test_determinism.sh
#   BUILDS   the folder of train_gpt2_bf16, and of train_gpt2_v2 and train_gpt2_v3 for narrower vectors; a build that is
#            missing is skipped
. "$(dirname "$0")/harness.sh"
export TRAIN_GPT2_AUTOTUNE_CACHE=  # -f 2 writes no times to the user's cache

trainer=$(realpath "${TRAINER:-./train_gpt2}") builds=$(realpath "${BUILDS:-build/test}")
make_scratch
cd "$scratch" || exit
seq 20000 >text

# train RUN THREADS PROGRAM FLAGS...: three steps, the last one saved
train() {
    rm -rf "$1"
    OMP_NUM_THREADS=$2 "$3" -i text -x 3 -n 3 -v 3 -m 2 -s 0 -o "$1" "${@:4}" >"$out" 2>&1 || tail -n 3 "$out"
}
numbers() { grep -oE '"(step|loss|grad_norm|val_loss)":[^,}]*' "$1/metrics.jsonl"; }
same_run() { # RUN RUN: names the first thing that differs
    [ "$(grep -c loss <<<"$(numbers "$1")")" -ge 4 ] || echo "$1 has no losses"
    cmp <(numbers "$1") <(numbers "$2") 2>&1 || return
    for file in step_00000003/{model,optimizer}.safetensors; do
        cmp "$1/$file" "$2/$file" 2>&1 || return
    done
}
# same_for "THREADS..." PROGRAM FLAGS...: the bits of each number of threads are those of one thread
same_for() {
    train one 1 "${@:2}"
    for threads in $1; do
        train many "$threads" "${@:2}"
        same_run one many | sed "s/^/$threads threads, ${*:3}: /"
    done
}

preset="-e l2h4c128 -b 12 -t 64" odd="-e l2h3c99 -b 3 -t 37 -d 333" wide="-e l1h12c768 -b 2 -t 64"
muon="--optimizer muon"
# $preset and the others are several words
# shellcheck disable=SC2086
{
    for program in "$trainer" "$builds"/train_gpt2_{bf16,v2,v3}; do
        name=${program##*/}
        [ -x "$program" ] || { skip "$program, which make test-all builds" 1 "$name" && continue; }
        report "$name: 1, 2, 3 and 5 threads" "$(
            same_for "2 3 5" "$program" $odd
            for shape in "$preset" "$wide"; do same_for "2 3" "$program" $shape; done
            same_for 3 "$program" $preset $muon
        )"
    done
    [ ! -x "$builds/train_gpt2_bf16" ] || report "-z without data parallelism, which must not make sums bf16" "$(
        for z in 0 1 2 3; do train "z$z" 1 "$builds/train_gpt2_bf16" $preset -d 3072 -z $z; done
        for z in 1 2 3; do same_run z0 "z$z" | sed "s/^/-z $z: /"; done
        command -v mpirun >/dev/null && grep -q 'MPI (' <<<"$("$builds/train_gpt2_bf16" --version)" || exit 0
        use_mpirun MPI 1
        for z in 0 2; do
            rm -rf "tp$z"
            mpirun --oversubscribe -np 2 "$builds/train_gpt2_bf16" -i text $preset -d 3072 -tp 2 -z $z -x 3 -n 3 -v 3 \
                -m 2 -s 0 -o "tp$z" >"$out" 2>&1 || tail -n 3 "$out"
        done
        same_run tp0 tp2
    )"
    report "1 and 3 threads, recomputed, and with small optimizer state" "$(
        same_for 3 "$trainer" $odd -r 4
        same_for 3 "$trainer" $odd --moments 8bit
        same_for 3 "$trainer" $odd $muon
    )"
    report "1 and 3 threads with -f 2" "$(
        for shape in "$preset" "$odd" "$wide" "$preset $muon"; do same_for 3 "$trainer" $shape -f 2; done
    )"
    report "the same command twice, with 3 threads" "$(
        for shape in "$preset" "$odd"; do
            train first 3 "$trainer" $shape && train second 3 "$trainer" $shape
            same_run first second
        done
    )"
}

end_tests
