#!/usr/bin/env bash
# Does a test fail without each wait for a collective or a copy?   dev/test/mutate_waits.sh [WORDS]
# Deletes each comm_wait, each copy_wait, and each wait before a buffer is used again, of zero.h, tensor_parallel.h,
# orthogonalise.h and update.h in llmc/parallel, llmc/memory/activation_offload.h and train_gpt2.cu in a copy of the
# sources, one at a time. Then runs `test_processes`: late with -z on 3 ranks and with -tp 2 on 4, layouts on 3, and
# offload on 1, 3 and 4; with Muon late, and offload on 1. The waits of the GPU's streams and graphs meet
# dev/test/test_offload.sh instead, and those of comm_nccl.cuh dev/test/test_nccl_emulated.sh. WORDS: only waits with
# WORDS in "file:line statement". Prints each wait with the failure of its deletion. Fails if no test notices one.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
read -ra with_mpi <<<"$(pkg-config --cflags --libs ompi-c 2>/dev/null || mpicc --showme)"

# "file|extended regular expression|replacement|test", for each line that matches, one line at a time. test: `emulated`
# for test_offload.sh on an emulated GPU, `nccl` for test_nccl_emulated.sh, else empty
waits=(
    'llmc/parallel/zero.h|comm_wait\(|no_comm_wait('
    'llmc/parallel/tensor_parallel.h|comm_wait\(|no_comm_wait('
    'llmc/parallel/tensor_parallel.h|^    rows_wait\(|    no_wait('
    'llmc/parallel/orthogonalise.h|comm_wait\(|no_comm_wait('
    'train_gpt2.cu|comm_wait\(|no_comm_wait('
    'train_gpt2.cu|^    rows_wait\(|    no_wait('
    'llmc/parallel/zero.h|if \(buffered && bucket < .*\{ zero_bucket_grads_wait\(z, bucket \+ 1\); \}|'
    'llmc/parallel/zero.h|\{ zero_bucket_grads_wait\(z, b\); \}|{ (void)b; }'
    'llmc/parallel/zero.h| && layer_buffer\(next\) != layer_buffer\(bucket\)|'
    'llmc/parallel/zero.h|^    if \(z->buffered\[layer_buffer\(bucket\)\] == bucket\)|    if (z->buffered[bucket % 2])'
    'llmc/parallel/zero.h|^    zero_empty_buffers\(z\);|'
    'llmc/parallel/zero.h|^    zero_gather_changed\(z\);|'
    'train_gpt2.cu|^ +zero_params_wait\(|    no_wait('
    'llmc/parallel/zero.h|z->device->copy_wait\(|no_wait('
    'llmc/parallel/zero.h|^ +zero_grad_copy_wait\(|    no_wait('
    'llmc/parallel/zero.h|\{ zero_grad_copy_wait\(|{ no_wait('
    'llmc/parallel/update.h|z->device->copy_wait\(|no_wait('
    'llmc/memory/activation_offload.h|in->device->copy_wait\(|no_wait('
    'llmc/memory/activation_offload.h|^ +offload_copy_wait\(|    no_wait('
    'llmc/parallel/zero.h|comm_after_copy\(|no_wait('
    'llmc/memory/activation_offload.h|\{ offload_copy_wait\(|{ no_wait('
    'train_gpt2.cu|^ +zero_grads_acquire\(|    no_wait('
    'train_gpt2.cu|^ +offload_acquire\(|    no_wait('
    'llmc/common/device.cuh|^ +CUDA_CHECK(.cudaStreamWaitEvent.copies,)|if (false) CUDA_CHECK\1|emulated'
    'llmc/common/device.cuh|^ +CUDA_CHECK(.cudaStreamWaitEvent.stream, copied)|if (false) CUDA_CHECK\1|emulated'
    'llmc/parallel/comm_nccl.cuh|CUDA_CHECK.cudaEventRecord|if (false) CUDA_CHECK(cudaEventRecord|nccl'
    'llmc/parallel/comm_nccl.cuh|CUDA_CHECK.cudaStreamWaitEvent|if (false) CUDA_CHECK(cudaStreamWaitEvent|nccl'
    'llmc/parallel/comm_nccl.cuh|^    stream_wait_copy\(|    no_wait(|nccl'
    'llmc/parallel/comm_nccl.cuh|^    nccl_event_wait\(|    no_wait(|nccl'
    'llmc/parallel/comm_nccl.cuh|watch_enter\(|no_wait(|nccl'
    'llmc/parallel/comm_nccl.cuh|watch_leave\(|no_wait(|nccl'
    'llmc/parallel/comm_nccl.cuh|watch_stay\(|no_wait(|nccl'
    'llmc/parallel/comm_nccl.cuh|^    cudaGetLastError\(|    no_wait(|nccl'
    'llmc/parallel/comm_nccl.cuh|\{ setenv\(|{ no_wait(|nccl'
    # gpt2_update's cannot be noticed: collectives of the emulated NCCL block inside their calls
    'train_gpt2.cu|^    comm_watch\(m->groups.world\);$|    no_wait();|nccl'
)

build() {
    cc -std=gnu11 -D_GNU_SOURCE -I. -O1 -march=native -fopenmp -w -x c dev/test/test_processes.c -o processes \
        -DPRECISION_FP32 -DPOISON_SCRATCH -DHAVE_MPI '-Dno_comm_wait(work,comm,ex)=(void)(work)' \
        '-Dno_wait(...)=(void)0' "${with_mpi[@]}" -lcmocka -lcjson -lm -lpthread
}

build_emulated() { make train_gpt2 build/emulated/train_gpt2 build/emulated/train_gpt2_bf16 >/dev/null; }
first_failure_emulated() {
    dev/test/test_offload.sh >log 2>&1 ||
        grep -A 1 '^not ok' log | head -n 2 | tail -n 1
}

build_nccl() {
    sed -i '1i #define no_wait(...) ((void)0)' llmc/parallel/nccl_host.h
    sed -i 's/ -Werror / /' Makefile
    make build/emulated/train_gpt2_bf16 build/emulated/train_gpt2_nccl_bf16 build/emulated/test_nccl >/dev/null
}
first_failure_nccl() {
    timeout 900 dev/test/test_nccl_emulated.sh >log 2>&1 &
    until grep -q '^not ok' log || ! kill -0 $! 2>/dev/null; do sleep 1; done
    kill $! 2>/dev/null
    wait $! && return
    grep -m 1 -A 2 '^not ok' log | paste -s -d ' ' | grep . || echo hangs
}

# first_failure: prints the first failure of the tests; nothing if all pass
first_failure() {
    local test ranks arguments
    for test in "3 late 1" "4 late 2" "3 layouts" "1 offload 1" "3 offload 1" "4 offload 2" "muon 3 late 1" \
        "muon 4 late 2" "muon 1 offload 1"; do
        export TEST_OPTIMIZER=${test%%[ 0-9]*}
        read -r ranks arguments <<<"${test#muon }"
        # shellcheck disable=SC2086
        timeout -k 5 100 mpirun --oversubscribe --bind-to none -np "$ranks" ./processes $arguments >log 2>&1 \
            </dev/null && continue
        sed -nE 's/^train_gpt2: (rank [0-9]: )?//p; /signal/ { p; q }' log | head -n 1 | grep . || tail -n 1 log
        return
    done
}

# mutant FILE LINE PATTERN REPLACEMENT [TEST]: prints how FILE with a changed LINE fails; line 0 changes nothing
mutant() {
    local folder=$scratch/$2.${1//\//.} caught=
    cp -r "$scratch/sources" "$folder"
    cd "$folder" || return
    [ "$2" -eq 0 ] || sed -i -E "$2 s/$3/$4/" "$1"
    if "build${5:+_$5}" 2>log; then
        caught=$("first_failure${5:+_$5}")
    else
        caught="does not compile: $(head -n 1 log)"
    fi
    cd "$scratch" && rm -r "$folder"
    echo "$caught"
}

mkdir "$scratch/sources" && cp -r llmc dev scripts Makefile train_gpt2.cu test_gpt2.cu "$scratch/sources"
caught=$(mutant llmc/parallel/zero.h 0 x x)
[ -z "$caught" ] || { echo "a test fails on the unchanged sources: $caught"; exit 1; }

tried=0 missed=0
for wait in "${waits[@]}"; do
    IFS='|' read -r file pattern replacement test <<<"$wait"
    matches=$(grep -nE "$pattern" "$file") || { echo "$file: no line matches $pattern"; missed=$((missed + 1)); }
    while IFS=: read -r line statement; do
        statement=$(sed -E 's/^ +//' <<<"$statement")
        [[ -n "$line" && "$file:$line $statement" == *"${1:-}"* ]] || continue
        tried=$((tried + 1))
        caught=$(mutant "$file" "$line" "$pattern" "$replacement" "$test")
        [[ -n $caught && $caught != "does not compile"* ]] || missed=$((missed + 1))
        printf '%s:%s %s\n    %s\n' "$file" "$line" "$statement" "${caught:-SURVIVES}"
    done <<<"$matches"
done
echo "$tried waits; no test notices the deletion of $missed"
[ "$missed" -eq 0 ]
