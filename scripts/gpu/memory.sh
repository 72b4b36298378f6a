# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh memory: time and memory of every -r, small batches, and the largest batch of a GPU.

recompute_rows=() small_rows=() largest_rows=()

# cells BATCH: times and bytes of the last run, as cells of a table
cells() {
    awk -v ms="${ms[0]}" -v p10="${ms[1]}" -v p90="${ms[2]}" -v rate="$(per_second "$1" "${ms[0]}")" \
        -v bytes="$(gib "$own_bytes")|$(gib "$driver_bytes")" \
        'BEGIN { printf "%.1f (%.1f to %.1f)|%s|%s", ms, p10, p90, rate, bytes }'
}

# PyTorch compiles for these batches beside our compiler, while nothing is timed; its cache keeps the results.
compile_torch() {
    local batch
    [ -n "$torch" ] || return
    for batch in 1 4 8 64; do
        start "PyTorch_compiles_B$batch" 200 env TORCHINDUCTOR_CACHE_DIR="$PWD/$build/inductor" "$python" \
            dev/oracle/train_torch.py --length "$length" --shards "$tokens" --model 124M --batch $batch --warmup 1 \
            --steps 1 --gradients none
    done
}
torch_compiled() {
    local batch
    for batch in 1 4 8 64; do
        [ -z "${process[PyTorch_compiles_B$batch]:-}" ] || finish "PyTorch_compiles_B$batch"
    done
}

# ---- -r 0 to 4

# plan_bytes FLAG...: bytes of the plan
plan_bytes() { "$programs/train_gpt2" --plan=json --device cuda -t "$length" -s 0 "$@" | number total /dev/stdin; }

# fitting MODEL BATCH: the batch, halved until the plan at -r 0 leaves 4 % of the free memory
fitting() {
    local batch=$2
    until [ "$batch" -eq 1 ] || awk -v plan="$(plan_bytes -e "d${layers[$1]}" -b "$batch" -r 0)" -v free="$free_mib" \
        'BEGIN { exit !(plan < 0.96 * free * 1048576) }'; do
        batch=$((batch / 2))
    done
    echo "$batch"
}

# levels MODEL BATCH SECONDS: 30 steps at each level; the last 20 count
levels() {
    local level batch
    batch=$(fitting "$1" "$2")
    for level in 0 1 2 3 4; do
        ours "$1, B $batch, -r $level" "$3" 30 -e "d${layers[$1]}" -b "$batch" -r $level || continue
        recompute_rows+=("$1, B $batch|-r $level|$(cells "$batch")|$(gib $((driver_bytes - own_bytes)))")
    done
    write_report
}

# ---- small batches

small_batches() {
    local batch
    for batch in 1 4 8; do
        ours "124M, B $batch" 40 50 -e d12 -b $batch &&
            small_rows+=("$batch|train_gpt2|$(cells $batch)")
        torch_run "PyTorch 124M, B $batch" 80 --model 124M --batch $batch &&
            small_rows+=("$batch|PyTorch $torch|$(cells $batch)")
    done
    write_report
}

# ---- the largest batch

# refused: a model too large for any GPU is refused, and the error names the free memory; sets room_mib
room_mib=0
refused() {
    local log=$build/log/refused.txt status
    built train_gpt2 || return
    bounded 60 "$programs/train_gpt2" --device cuda -i "$tokens" -t "$length" -e d48 -b 4096 -x 1 -v 0 -s 0 >"$log" 2>&1
    status=$?
    room_mib=$(sed -n 's/.* and \([0-9.]*\) are free.*/\1/p' "$log")
    [ $status -ne 2 ] || [ -z "$room_mib" ] || status=0
    ended "what does not fit is refused, 1558M at B 4096" $status "$log" "$(grep -o 'this takes.*free' "$log")"
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

# our_largest MODEL LEVEL SECONDS: three steps of the largest planned batch
our_largest() {
    local batch flags=(-e "d${layers[$1]}" -r "$2")
    [ "${room_mib%.*}" -gt 0 ] 2>/dev/null || return
    batch=$(largest_planned "${flags[@]}")
    ours "the largest batch of $1 at -r $2, $batch" "$3" 3 "${flags[@]}" -b "$batch" &&
        largest_rows+=("$1|train_gpt2 -r $2|$batch|$(cells "$batch")|$((batch + 1)), by its plan")
    write_report
}

# chosen MODEL SECONDS: three updates of half a million tokens, with the flags that --fit chooses
chosen() {
    local words
    ours "--fit, $1" "$2" 3 -e "d${layers[$1]}" -d $((512 * length)) --fit || return
    words=$(sed -n 's/^fit  *[0-9.]* of [0-9.]* GiB: //p' "$run_log" | tail -n 1)
    largest_rows+=("$1|train_gpt2 --fit: $words|512 an update|$(cells 512)|")
    write_report
}

# torch_largest MODEL BATCH SECONDS: PyTorch's largest batch in at most five runs. A run that fits predicts the next
# batch from its bytes; a run that fails goes back by 6 %; then the interval is halved
torch_largest() {
    local low=0 high=0 batch=$2 best='' try status
    [ -n "$torch" ] || return
    for try in 1 2 3 4 5; do
        if [ "$(left)" -lt "$3" ]; then
            report "PyTorch $1, try $try: B $batch" 125 ""
            break
        fi
        torch_run "PyTorch $1, try $try: B $batch" "$3" --model "$1" --batch "$batch" --warmup 1 --steps 2 \
            --gradients none
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

report_memory() {
    local cells="ms a step (p10 to p90)|tokens/s|own peak, GiB|driver's, GiB"
    echo "T $length, bf16, random tokens. Own peak: the plan's total; PyTorch's max_memory_reserved. The driver's:" \
        "the most that nvidia-smi saw added while it ran; beside the plan that is the context, the library and graphs."
    echo
    echo "## Recomputation: 20 steps after 10"
    echo
    table "model|level|$cells|driver's less plan" "${recompute_rows[@]}"
    echo
    echo "## Small batches, 124M: 40 steps after 10"
    echo
    table "B|program|$cells" "${small_rows[@]}"
    echo
    echo "## The largest batch: 2 steps after 1"
    echo
    table "model|program|B|$cells|too large" "${largest_rows[@]}"
}

stage_memory() {
    export TRAIN_GPT2_PICKS=$build/picks_memory.txt
    torch_compiled
    free_mib=$(gpu memory.free) total_mib=$(gpu memory.total)
    levels 124M 64 40
    levels 1558M 16 60
    small_batches
    refused
    our_largest 124M 1 60
    our_largest 1558M 1 60
    chosen 124M 60
    torch_largest 124M 64 70
    our_largest 124M 4 140
    torch_largest 1558M 16 150
}
