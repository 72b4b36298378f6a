# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh rest: the loss curve, the other tests, every -r, and the largest batch of a GPU.

recompute_rows=() largest_rows=()

# cells BATCH: times and bytes of the last run, as cells of a table
cells() {
    awk -v ms="${ms[0]}" -v p10="${ms[1]}" -v p90="${ms[2]}" -v rate="$(per_second "$1" "${ms[0]}")" \
        -v bytes="$(gib "$own_bytes")|$(gib "$driver_bytes")" \
        'BEGIN { printf "%.1f (%.1f to %.1f)|%s|%s", ms, p10, p90, rate, bytes }'
}

# ---- tests beside the curve: none is timed

tests=("two ranks" test_nccl test_layouts test_gpt2_bf16 test_gpt2_fp32 test_ops_fp32 "test_ops at 124M" racecheck
    synccheck initcheck "memcheck of the trainer")

# two_ranks: two ranks through MPI, sharing the GPU
two_ranks() {
    local test=$programs/test_nccl_bf16
    built test_nccl_bf16 || return
    if ! command -v mpirun >/dev/null || ! grep -q MPI <<<"$("$test" backends)"; then
        report "two ranks" skipped "there is no mpirun, or no MPI was built in"
        return
    fi
    start "two ranks" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -np 2 --oversubscribe \
        --bind-to none "$test" ranks
}

start_tests() {
    local small=(--device cuda --graph 0 -i README.md -e l2h2c128 -b 4 -t 300 -x 2 -v 0 -s 0) tool name
    two_ranks
    test_beside test_nccl test_nccl_bf16 "$programs/test_nccl_bf16"
    test_beside test_layouts test_layouts_bf16 "$programs/test_layouts_bf16"
    for name in test_gpt2_bf16 test_gpt2_fp32; do test_beside $name $name "$programs/$name"; done
    test_beside test_ops_fp32 test_ops_fp32 scripts/gpu/each_op.sh 60 "$programs/test_ops_fp32" --quick
    test_beside "test_ops at 124M" test_ops_bf16 scripts/gpu/each_op.sh 150 "$programs/test_ops_bf16"
    for tool in racecheck synccheck initcheck; do sanitize $tool $tool "$programs/test_ops_bf16" --quick; done
    # the empty value turns off the self-check at the start, which compute-sanitizer would slow down
    TRAIN_GPT2_SELF_CHECK='' sanitize "memcheck of the trainer" memcheck "$programs/train_gpt2" "${small[@]}"
}

finish_tests() {
    local name
    for name in "${tests[@]}"; do finish "$name"; done
    write_report
}

# ---- -r 0 to 4

# levels MODEL BATCH: 30 steps at each level; the last 20 count
levels() {
    local level batch
    built train_gpt2 || return
    batch=$(fitting "$1" "$2" -r 0)
    fits "$1" "$batch" "-r at $1" || return
    for level in 0 1 2 3 4; do
        ours "-r at $1: -r $level, B $batch" 30 -e "d${layers[$1]}" -b "$batch" -r $level || continue
        recompute_rows+=("$1, B $batch|-r $level|$(cells "$batch")|$(gib $((driver_bytes - own_bytes)))")
    done
    write_report
}

# ---- the largest batch

# refused: a model too large for any GPU is refused, and the error names the free memory; sets room_mib
room_mib=0
refused() {
    local log=$logs/refused.txt status
    built train_gpt2 || return
    bounded "a batch too large" "$programs/train_gpt2" --device cuda -i "$tokens" -t "$length" -e d48 -b 4096 -x 1 \
        -v 0 -s 0 >"$log" 2>&1
    status=$?
    room_mib=$(sed -n 's/.* and \([0-9.]*\) are free.*/\1/p' "$log")
    [ $status -ne 2 ] || [ -z "$room_mib" ] || status=0
    ended "a batch too large: refused, 1558M at B 4096" $status "$log" "$(grep -o 'the model needs.* are free' "$log")"
}

# largest_planned FLAG...: the largest batch with a plan below room_mib
largest_planned() {
    local low=0 high=8192 middle
    while [ $((high - low)) -gt 1 ]; do
        middle=$(((low + high) / 2))
        if awk -v plan="$(plan_bytes "$@" -b $middle)" -v room="$room_mib" \
            'BEGIN { exit !(plan > 0 && plan <= room * 1048576) }'; then low=$middle; else high=$middle; fi
    done
    echo $low
}

# our_largest MODEL: three steps of the largest batch that -r 4 plans, which is the largest of all
our_largest() {
    local batch flags=(-e "d${layers[$1]}" -r 4)
    [ "${room_mib%.*}" -gt 0 ] 2>/dev/null || return
    batch=$(largest_planned "${flags[@]}")
    fits "$1" "$batch" "largest batch of $1" || return
    ours "largest batch of $1: $batch" 3 "${flags[@]}" -b "$batch" &&
        largest_rows+=("$1|train_gpt2 -r 4|$batch|$(cells "$batch")|$((batch + 1)), by its plan")
    write_report
}

# chosen MODEL: three updates of half a million tokens, with the flags that --fit chooses
chosen() {
    local words
    ours "--fit of $1" 3 -e "d${layers[$1]}" -d $((512 * length)) --fit || return
    words=$(sed -n 's/^fit  *[0-9.]* of [0-9.]* GiB: //p' "$run_log" | tail -n 1)
    largest_rows+=("$1|train_gpt2 --fit: $words|512 an update|$(cells 512)|")
    write_report
}

# torch_largest MODEL BATCH: PyTorch's largest batch in at most five runs, while time is left. A run that fits predicts
# the next batch from its bytes; a run that fails goes back by 6 %; then the interval is halved
torch_largest() {
    local low=0 high=0 batch=$2 best='' try status total_mib
    [ -n "$torch" ] || return
    total_mib=$(gpu memory.total)
    for try in 1 2 3 4 5; do
        torch_run "largest batch of PyTorch" "largest batch of PyTorch: $1, try $try, B $batch" --model "$1" \
            --batch "$batch" --warmup 1 --steps 2 --gradients none
        status=$?
        case $status in
        0)
            low=$batch best=$(cells "$batch")
            batch=$(awk -v b="$low" -v took="$own_bytes" -v mib="$total_mib" \
                'BEGIN { whole = int(b * 0.99 * mib * 1048576 / took); least = int(b * 1.04) + 1
                         print(whole > least ? whole : least) }')
            ;;
        3) high=$batch batch=$((batch - batch / 16)) ;;
        *) break ;;
        esac
        if [ "$high" -gt 0 ] && { [ $status -eq 0 ] || [ "$batch" -lt $(((low + high) / 2)) ]; }; then
            batch=$(((low + high) / 2))
        fi
        if [ "$high" -gt 0 ] && [ $((high - low)) -le $((low / 32 + 1)) ]; then break; fi
    done
    [ "$low" -eq 0 ] || largest_rows+=("$1|PyTorch $torch|$low|$best|$([ "$high" -eq 0 ] || echo "$high", tried)")
    write_report
}

report_rest() {
    local cells="ms a step (p10 to p90)|tokens/s|own peak, GiB|driver's, GiB"
    echo
    report_curve
    echo
    echo "T $length, bf16, random tokens. Own peak: the plan's total; PyTorch's max_memory_reserved. The driver's:" \
        "the most that nvidia-smi saw added while it ran; beside the plan that is the context, the library and graphs."
    echo
    echo "## Recomputation: 20 steps after 10"
    echo
    table "model|level|$cells|driver's less plan" "${recompute_rows[@]}"
    echo
    echo "## The largest batch: 2 steps after 1"
    echo
    table "model|program|B|$cells|too large" "${largest_rows[@]}"
}

stage_rest() {
    export TRAIN_GPT2_PICKS=$build/autotune_rest.txt
    rm -rf "$TRAIN_GPT2_PICKS" "$curve"
    mkdir -p "$curve"
    random_tokens "$tokens" 12000000 1 1
    build_all train_gpt2 test_{layouts,nccl}_bf16 test_{ops,gpt2}_{bf16,fp32}
    start_tests
    ! built train_gpt2 || curves
    finish_tests
    levels 124M 64
    refused
    our_largest 124M
    our_largest 1558M
    chosen 124M
    torch_largest 124M 64
}
