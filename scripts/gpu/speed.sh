# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh speed: 124M and 1558M beside PyTorch, the same bits twice, matmuls and operations.

rows=()

# flops_per_token L C T: model_flops_per_token of llmc/memory/flops.h
flops_per_token() {
    awk -v L="$1" -v C="$2" -v T="$3" \
        'BEGIN { printf "%.0f\n", 6 * (12 * L * C * C + 50304 * C) + 6 * L * C * (T + 1) }'
}

# choose_batch MODEL: sets our_batch to a batch whose plan fits, 0 if none does. -r auto plans for the whole memory of
# the device: where another program holds so much of it that no such plan fits, -r 4 needs the least
declare -A our_batch=([124M]=64 [1558M]=16) our_level=([124M]=auto [1558M]=auto)
choose_batch() {
    local most=${our_batch[$1]}
    built train_gpt2 || return
    our_batch[$1]=$(fitting "$1" "$most" -r auto)
    [ "${our_batch[$1]}" -eq 0 ] || return 0
    our_batch[$1]=$(fitting "$1" "$most" -r 4) our_level[$1]=4
}

# row MODEL PROGRAM BATCH: a line of the table with the figures of the last run; report_speed fills the sixth cell
row() {
    rows+=("$(awk -v flops="$(flops_per_token "${layers[$1]}" "${channels[$1]}" "$length")" -v ms="${ms[0]}" \
        -v p10="${ms[1]}" -v p90="${ms[2]}" -v tokens=$(($3 * length)) -v head="$1|$2|$3" -v first="$first_step" \
        -v bytes="$(gib "$own_bytes")|$(gib "$driver_bytes")" \
        'BEGIN { printf "%s|%.1f (%.1f to %.1f)|%.0f (%.0f to %.0f)|%.1f||%s|%s", head, ms, p10, p90,
                 tokens / ms * 1e3, tokens / p90 * 1e3, tokens / p10 * 1e3, tokens / ms * flops / 1e9, bytes,
                 first }')")
}

# products MODEL: lists the kernels of a step's matmuls; an epilogue that is not fused is no failure
products() {
    local log=$logs/products_$1.txt status
    built bench_ops && fits "$1" "${our_batch[$1]}" "matmuls of $1" || return
    bounded "matmuls of $1" "$programs/bench_ops" --device cuda --products -e "d${layers[$1]}" -b "${our_batch[$1]}" \
        >"$log" 2>&1
    status=$?
    ended "matmuls of $1" $status "$log" \
        "$(sed -n 's/^Products fused: \(.*\)\.$/\1 are one kernel with their epilogue/p' "$log")"
}

# same_bits: 20 steps twice, in the time of one row; all metrics except times must be equal
same_bits() {
    local log=$logs/same_bits.txt status
    built train_gpt2 && fits 124M "${our_batch[124M]}" "same bits twice" || return
    rm -rf "$build"/bits_?
    # shellcheck disable=SC2016  # the inner shell expands
    bounded "same bits twice" bash -c 'for run in 1 2; do
        mkdir -p "$1_$run" && "${@:2}" -o "$1_$run" && sed -i "s/,\"ms\".*//" "$1_$run/metrics.jsonl" || exit
    done && cmp "$1"_{1,2}/metrics.jsonl && [ "$(wc -l <"$1_1/metrics.jsonl")" -eq 20 ]' same_bits "$build/bits" \
        "$programs/train_gpt2" --device cuda -i "$tokens" -e d12 -b "${our_batch[124M]}" -r "${our_level[124M]}" \
        -t "$length" -x 20 -v 0 -s 0 >"$log" 2>&1
    status=$?
    ended "same bits twice" $status "$log" "20 steps of 124M"
}

# bench: every operation of 124M. Its rate of a large matmul replaces the rate that PyTorch measured
bench() {
    local rate
    built bench_ops || return
    start bench_ops "$programs/bench_ops" --device cuda
    finish bench_ops
    rate=$(sed -n '/^Ceilings/ { s/.* matmul of .* \([0-9.]*\) TFLOP.*/\1/p; q; }' "$logs/bench_ops.txt")
    gemm=${rate:-$gemm}
}

# our_speed MODEL [again]: 10 warm-up steps and 40 timed steps of train_gpt2
our_speed() {
    local name="${2:+again, }train $1" batch=${our_batch[$1]}
    built train_gpt2 && fits "$1" "$batch" "$name" || return
    ours "$name" 50 -e "d${layers[$1]}" -b "$batch" -r "${our_level[$1]}" &&
        row "$1" "train_gpt2${2:+, again}" "$batch"
    write_report
}

# faster_way LOG: PyTorch's faster choice, gradients kept or set to None
faster_way() {
    awk -v kept="$(number kept_ms "$1")" -v none="$(number none_ms "$1")" \
        'BEGIN { print(kept + 0 < none + 0 ? "kept" : "none") }'
}

# torch_speed MODEL [again]: 10 warm-up steps and 40 timed steps of PyTorch; `again` uses the faster choice of the first
# run
declare -A faster=()
torch_speed() {
    local name="${2:+again, }PyTorch $1" time
    [ -n "$torch" ] || return
    if [ -z "${torch_batch[$1]:-}" ]; then
        report "$name" skipped "$1 in PyTorch needs a GPU of 70000 MiB, and this GPU has $(gpu memory.total)"
        return
    fi
    time=$name
    compiled "$1" || [ "$1" = 124M ] || time+=", not compiled"
    torch_run "$time" "$name" --model "$1" --batch "${torch_batch[$1]}" --gradients "${faster[$1]:-both}" || return
    row "$1" "PyTorch $torch${2:+, again}" "${torch_batch[$1]}"
    faster[$1]=${faster[$1]:-$(faster_way "$run_log")}
    write_report
}

# ratios: for each model, tokens/s of our best run / tokens/s of PyTorch's best run
ratios() {
    printf '%s\n' "${rows[@]}" | awk -F'|' '{
            who = $2 ~ /^PyTorch/ ? "torch" : "ours"
            if ($5 + 0 > best[who, $1]) { best[who, $1] = $5 + 0 }
            models[$1]
        }
        END {
            for (model in models) {
                if (best["torch", model] && best["ours", model]) {
                    ratio = best["ours", model] / best["torch", model]
                    printf "%s: %.2f times the tokens/s of PyTorch, the best run of each.\n", model, ratio
                }
            }
        }' | sort
}

report_speed() {
    local sorted cells="own peak, GiB|driver's, GiB|start, s" model
    echo
    echo "T $length, bf16, random tokens, 40 steps after 10." \
        "A token takes 6 (12 L C^2 + 50304 C) + 6 L C (T + 1) FLOPs: the weights of matmuls, and attention." \
        "${gemm:+A large bf16 product ran at $gemm TFLOP/s in the same run.}" \
        "Own peak: the plan's total; PyTorch's max_memory_reserved. Start: our whole run less its steps from the" \
        "second on; PyTorch's time to its first step. Our first run of a model also chooses algorithms."
    echo
    mapfile -t sorted < <([ ${#rows[@]} -eq 0 ] || printf '%s\n' "${rows[@]}" | sort -s -t'|' -k1,1 -k2,2 |
        awk -F'|' -v OFS='|' -v gemm="${gemm:-0}" \
            '{ $7 = gemm > 0 ? sprintf("%.0f %%", 100 * $6 / gemm) : "-"; $1 = $1; print }')
    table "model|program|B|ms a step (p10 to p90)|tokens/s (p10 to p90)|TFLOP/s|of GEMM|$cells" "${sorted[@]}"
    echo
    [ ${#rows[@]} -eq 0 ] || ratios
    for model in 124M 1558M; do
        [ ! -s "$logs/products_$model.txt" ] ||
            { echo && echo "## Matmuls of $model" && echo && cat "$logs/products_$model.txt"; }
    done
    [ ! -s "$logs/bench_ops.txt" ] ||
        { echo && echo "## Operations of 124M" && echo && cat "$logs/bench_ops.txt"; }
}

stage_speed() {
    export TRAIN_GPT2_PICKS=$build/autotune_speed.txt
    rm -f "$TRAIN_GPT2_PICKS"  # the first step of each model chooses the algorithms
    random_tokens "$tokens" 4200000 1 1
    compile_torch "PyTorch compiles 124M" 124M
    build_all train_gpt2 bench_ops
    finish "PyTorch compiles 124M"  # nothing runs beside a timed run
    choose_batch 124M
    choose_batch 1558M
    our_speed 124M
    torch_speed 124M
    same_bits
    our_speed 1558M
    torch_speed 1558M
    products 124M
    products 1558M
    bench
    write_report
    our_speed 124M again
    torch_speed 124M again
}
