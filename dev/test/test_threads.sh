#!/usr/bin/env bash
# ThreadSanitizer over the trainer's threads (OpenMP, the reader of data, --tokenize, the watchdog) and over
# the emulator's, and over the same code without one of its locks or atomic stores.   dev/test/test_threads.sh
# `make test-all` builds the programs, with clang. Archer, a part of clang's OpenMP library, tells ThreadSanitizer of
# the barriers between threads. MPI is left out, since it is compiled without ThreadSanitizer.
. "$(dirname "$0")/harness.sh"

programs=$(realpath -m build/tsan) archer=$(compgen -G '/usr/lib/llvm-*/lib/libarcher.so' | sort -V | tail -n 1)
if [ ! -x build/tsan/train_gpt2 ] || [ -z "$archer" ]; then
    skip "clang, Archer (libomp-dev) and build/tsan/train_gpt2" 10
    exit 0
fi
make_scratch
# 3 threads, so that ranges end inside of rows
export OMP_TOOL_LIBRARIES=$archer OMP_NUM_THREADS=3
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 exitcode=66 halt_on_error=1"
fixed=()  # clang 14 does not know some random layouts of memory; containers may not allow the change
setarch -R true 2>/dev/null && fixed=(setarch -R)

# watched COMMAND...: runs it; names the first finding, or an exit status that is not 0
watched() {
    local status=0
    "${fixed[@]}" "$@" >"$out" 2>&1 || status=$?
    if grep -q 'WARNING: ThreadSanitizer' "$out"; then
        grep -m 1 -A 12 'WARNING: ThreadSanitizer' "$out"
    elif [ $status -ne 0 ]; then
        echo "exit status $status:" && tail -n 5 "$out"
    fi
}
# found PLACE COMMAND...: ThreadSanitizer reports a race in a function of that name
found() {
    local said
    said=$(watched "${@:2}")
    [[ $said == *"data race"* && $said == *"$1"* ]] || echo "expected a data race in $1, found: ${said:-nothing}"
}
build() { # PROGRAM SOURCE OPTION...: a copy of a program, from the current folder
    clang -std=gnu11 -D_GNU_SOURCE -I. -w -O1 -g1 -march=native -fopenmp -fsanitize=thread "${@:3}" "$2" -o "$1" \
        -lcmocka -lcjson -lm -lpthread 2>&1
}

# ---- findings of ThreadSanitizer

cat >"$scratch/sums.c" <<'END_OF'
#include <stdio.h>
int main(void) {
    static int parts[64];
    int sum = 0;
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (int i = 0; i < 64; i++) { parts[i] = i; }
        BARRIER
#pragma omp for schedule(static) reduction(+ : sum)
        for (int i = 0; i < 64; i++) { sum += parts[63 - i]; }
    }
    return sum != 2016;
}
END_OF
report "a barrier of OpenMP orders two loops" "$(
    build "$scratch/sums" "$scratch/sums.c" '-DBARRIER=_Pragma("omp barrier")' && watched "$scratch/sums"
)"
report "without the barrier the loops race" "$(
    build "$scratch/sums" "$scratch/sums.c" -DBARRIER= && found main "$scratch/sums"
)"

# ---- the trainer's threads

report "a run, a resumed run, samples and a signal" "$(watched dev/test/tiny_run.sh "$programs/train_gpt2")"
cat llmc/*.h >"$scratch/text"
trainer=$programs/train_gpt2
report "--train-bpe, --tokenize on three threads, and an evaluation of its shards" "$(
    cd "$scratch" || exit
    watched "$trainer" --train-bpe 300 -i text -o words
    watched "$trainer" --tokenize shards -i text --tokenizer words/merges.txt
    watched "$trainer" -i 'shards_train_*.bin' -e l1h1c16 -b 2 -t 32 -x 2 -n 2 -v 0 -s 0 -o trained
    watched "$trainer" --eval 'shards_val_*.bin' -e trained/step_00000002 -b 2 -t 32
)"
report "every operation of the CPU" "$(watched "$programs/test_reference")"
report "the reader of data" "$(watched "$programs/test_dataloader")"
report "the watchdog of collectives" "$(watched "$programs/test_comm")"

# ---- the emulator's threads

report "the kernels of a training run in bf16, with offloaded state" "$(
    cd "$scratch" || exit
    watched "$programs/train_gpt2_emulated_bf16" -i text -e l2h2c64 -b 2 -t 64 -d 256 -v 2 -m 1 -s 2 -g 4 \
        --device cuda --offload 2 -x 2
)"

# ---- the same programs without a lock or an atomic store

mkdir "$scratch/tree"
cp -r --parents llmc dev/test train_gpt2.cu "$scratch/tree"
# without LINES FUNCTION FILE TEST: FUNCTION has no lines that match LINES, and the test reports a race
without() {
    sed -i -E "/^[^ ].* \*?$2\(/,/^}/{/$1/d}" "$scratch/tree/$3"
    if cmp -s "$3" "$scratch/tree/$3"; then
        echo "$3: $2 has no line /$1/"
    else
        (cd "$scratch/tree" && build "$scratch/mutant" "dev/test/$4" -DPRECISION_FP32) && found "$2" "$scratch/mutant"
    fi
    cp "$3" "$scratch/tree/$3"
}
report "found: the reader of data without a lock" "$(
    without 'pthread_mutex_(un)?lock' loader_ask llmc/data/dataloader.h test_dataloader.c
)"
report "found: the watchdog without a lock" "$(
    without 'pthread_mutex_(un)?lock' watch_set llmc/parallel/nccl_host.h test_comm.c
)"
end_tests
