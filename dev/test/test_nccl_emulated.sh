#!/usr/bin/env bash
# The trainer and test_nccl through NCCL, emulated between processes (dev/emulator/nccl.h): the bits of MPI in several
# orders of the streams, and a sentence wherever a rank dies, hangs or calls another collective. Three minutes.
#   NCCL=build/emulated/train_gpt2_nccl_bf16 BF16=build/emulated/train_gpt2_bf16 TEST_NCCL=build/emulated/test_nccl
# They execute every line of comm_nccl.cuh, but two branches: an error returned by a call other than a first collective,
# and a fifth group split from one, which would be our bug. Only hardware shows NCCL's threads and buffers, kernels that
# compete for SMs, graphs with PDL, and stream priorities.
. "$(dirname "$0")/harness.sh"
trainer=$(realpath -m "${NCCL:-build/emulated/train_gpt2_nccl_bf16}")
bf16=$(realpath -m "${BF16:-build/emulated/train_gpt2_bf16}")
test_nccl=$(realpath -m "${TEST_NCCL:-build/emulated/test_nccl}")
if [ ! -x "$trainer" ]; then
    skip "$trainer (make test-quick OP=nccl_emulated builds it)" 26
    exit 0
fi
. dev/test/ranks.sh
use_ranks
ulimit -c 0
export SIMT_GPUS=4 SIMT_RACES=0 SIMT_NCCL_SECONDS=60 SIMT_COMM_SECONDS=60 TRAIN_GPT2_AUTOTUNE_CACHE=$folder/autotune
tiny=(-i text -e l2h2c32 -b 2 -t 32 -l 1e-3 -v 2 -m 2 -s 0 -x 3 -k constant)
fs=("$trainer" "${tiny[@]}" -pi fs -pf shared -pn 2)

for order in 1 2 3; do
    report "test_nccl, a group of one, SIMT_STREAMS=$order" "$(
        SIMT_STREAMS=$order launch 1 "$test_nccl"
        says 'PASSED  . 11 test'
        ! grep -E '^(ERROR|simt|train_gpt2): ' "$out"
    )"
    report "collectives on 2, 3 and 4 ranks, SIMT_STREAMS=$order" "$(
        for ranks in 2 3 4; do
            SIMT_STREAMS=$order launch $ranks "$test_nccl" ranks
            says "^$ranks ranks agree, through nccl" || tail -n 3 "$out"
        done
    )"
done

# check RANKS ORDERS FLAGS...: NCCL gives the bits of MPI in these orders of the streams, and counts the bytes of MPI,
# which replays no graph
check() {
    report "$1 ranks: ${*:3}" "$(
        trainer=$bf16 run 0 "$1" "${tiny[@]}" "${@:3}" -n 3 -o mpi
        sent=$(grep '^sent ' "$out")
        for order in $2; do
            SIMT_STREAMS=$order run 0 "$1" "${tiny[@]}" "${@:3}" -n 3 -o nccl || continue
            says 'through nccl'
            says "^${sent:-no line of sent bytes}$"
            same_run mpi nccl step_00000003 | sed "s/^/SIMT_STREAMS=$order: /"
            rm -rf nccl
        done
    )"
    rm -rf mpi
}
check 2 "0 1 2 3" -z 0
check 2 "1 3" -z 1 -d 256 --offload 1 --graph 0
check 3 "1 2" -z 2 -d 192 --offload 2
check 2 "2 3" -z 3 -d 640 --offload 3
check 2 1 -z 3 --offload 4 -r 4
check 3 "1 3" -z 3 --optimizer muon
check 4 3 -tp 2 -z 2 -d 256
check 4 2 -tp 4 -ra 0 --graph 0
SIMT_NCCL_ALONE=1 check 4 3 -tp 2 -z 1

# start STATUS WORDS COMMAND...: two ranks without MPI, the rank being the last argument. Rank 0 must end with this
# status and these words. $signal: sent to rank 1 once it trains
start() {
    local status=0
    rm -rf shared rank_? && mkdir shared
    "${@:3}" 1 >rank_1 2>&1 </dev/null &
    peer=$!
    "${@:3}" 0 >rank_0 2>&1 </dev/null &
    until [ -z "${signal:-}" ] || grep -qs '^step [1-9]' rank_0 || ! kill -0 $! 2>/dev/null; do sleep 0.1; done
    [ -z "${signal:-}" ] || grep -qs '^step [1-9]' rank_0 || echo "rank 0 did not train"
    [ -z "${signal:-}" ] || kill "-$signal" $peer 2>&1
    wait $! || status=$?
    cp rank_0 "$out"
    equal "$status" "$1"
    [ "$status" -eq "$1" ] || tail -n 2 rank_1
    says "$2"
    [ -z "${signal:-}" ] || kill -9 $peer 2>/dev/null
    wait
}
report "resumed, by MPI too, and without MPI" "$(
    export SIMT_STREAMS=3
    trainer=$bf16 run 0 2 "${tiny[@]}" -z 2 -n 6 -x 6 -o whole
    run 0 2 "${tiny[@]}" -z 2 -n 2 -x 2 -o parts
    run 0 2 "${tiny[@]}" -z 2 -n 2 -x 4 -y 1 -o parts
    trainer=$bf16 run 0 2 "${tiny[@]}" -z 2 -n 2 -x 6 -y 1 -o parts
    same_run whole parts step_00000006
    start 0 'through nccl' "${fs[@]}" -z 2 -n 6 -x 6 -o alone -pr
    same_run whole alone step_00000006
)"
report "groups that begin in another order on each rank" "$(
    NCCL_LAUNCH_ORDER_IMPLICIT=0 SIMT_NCCL_ALONE=1 SIMT_STREAMS=3 SIMT_NCCL_SECONDS=15 \
        run 134 4 "${tiny[@]}" -tp 2 -z 2 -d 256
    says '^simt: NCCL: process [0-9]+ waits for rank [0-3] in [A-Z]'
)"
report "a rank that calls in another order, and ranks that pause between calls" "$(
    start 134 '^simt: NCCL: rank 0 calls ReduceScatter 1 of ranks 0 1, but rank 1 AllReduce 1' \
        "$test_nccl" ranks swaps 2
    SIMT_COMM_SECONDS=10 launch 2 "$test_nccl" ranks pause
    says '^2 ranks agree'
    sentences 0
)"

# fault NAME SIGNAL ORDER WORDS FLAGS...: one of two ranks gets SIGNAL in training; the other one says so
fault() {
    report "$1, SIMT_STREAMS=$3" "$(
        signal=$2 SIMT_STREAMS=$3 start 1 "$4" stdbuf -oL "${fs[@]}" -x 100000 -v 0 -z 2 "${@:5}" -pr
        sentences 1
    )"
}
silence='rank 0: a rank has not answered for 20 s \(of 2 ranks, in NCCL\)'
remote='rank 0: .*remote process exited or there was a network error; see the last message of the rank that ended'
export SIMT_COMM_SECONDS=20 # a busy machine needs seconds to start a rank
fault "a killed rank, the other is in a launch" KILL 0 "$silence"
fault "a killed rank, the other is in a collective" KILL 0 "$silence" --graph 0
fault "a killed rank" KILL 3 "$silence"
fault "a stopped rank" STOP 1 "$silence"
export SIMT_COMM_SECONDS=60
SIMT_NCCL_REMOTE=1 fault "an asynchronous error" KILL 3 "$remote"
SIMT_NCCL_REMOTE=1 fault "an asynchronous error, the other is in a launch" KILL 0 "$remote"
report "an asynchronous error, the other is in ncclCommFinalize" "$(
    SIMT_NCCL_REMOTE=1 start 1 "$remote" "$test_nccl" ranks leaves 2
)"
report "a rank that never starts, a rank without a GPU, no memory, an old NCCL" "$(
    for rank in 0 1; do
        SIMT_COMM_SECONDS=2 run 1 1 "${fs[@]:1}" -pf . -pr $rank
        says 'rank 0: a rank has not answered for 2 s \(of 2 ranks, in NCCL\)|rank 0 has not written \./nccl_id for 2 s'
    done
    run 2 1 "${fs[@]:1}" -pf . -pn 6 -pg 6 -pr 5
    says 'rank 5 has no GPU of its own: -pg 6 is'
    SIMT_NCCL_MIB=9000 run 1 2 "${tiny[@]}"
    says 'unhandled cuda error.*; if memory ran out, give a smaller -b, or --fit'
    SIMT_NCCL_VERSION=22500 run 1 4 "${tiny[@]}" -tp 2
    says 'needs NCCL 2.26 or later, which keeps the launch order; found 22500'
)"

end_tests
