# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh without an argument: correctness, and speed beside PyTorch.

rows=()

# flops_per_token L C T
flops_per_token() {
    awk -v L="$1" -v C="$2" -v T="$3" 'BEGIN {
        N = 50304 * C + L * (12 * C * C + 13 * C) + 2 * C
        print 6 * N + 6 * L * C * T
    }'
}

# row MODEL PROGRAM BATCH: a line of the table with the figures of the last run; report_all fills the sixth cell
row() {
    rows+=("$(awk -v flops="$(flops_per_token "${layers[$1]}" "${channels[$1]}" "$length")" -v ms="${ms[0]}" \
        -v p10="${ms[1]}" -v p90="${ms[2]}" -v tokens=$(($3 * length)) -v head="$1, B $3|$2" -v first="$first_step" \
        -v bytes="$(gib "$own_bytes")|$(gib "$driver_bytes")" \
        'BEGIN { printf "%s|%.1f (%.1f to %.1f)|%.0f (%.0f to %.0f)|%.1f||%s|%s", head, ms, p10, p90,
                 tokens / ms * 1e3, tokens / p90 * 1e3, tokens / p10 * 1e3, tokens / ms * flops / 1e9, bytes,
                 first }')")
}

# ---- correctness

# check_kernels: the tests, and compute-sanitizer over two steps of a small model that uses the tensor-core kernels.
# All run at once: the tests wait for sums on the host, the tools for the driver
check_kernels() {
    local small=("$programs/train_gpt2" --device cuda --graph 0 -i README.md -e l2h2c128 -b 4 -t 300 -x 2 -v 0 -s 0)
    local tools=(memcheck racecheck synccheck initcheck) sanitizer name
    sanitizer=$(command -v compute-sanitizer "$CUDA_ROOT"/bin/compute-sanitizer \
        "$CUDA_ROOT"/compute-sanitizer/compute-sanitizer | head -n 1)
    built train_gpt2 && bounded 20 "${small[@]}" >"$build/log/small.txt" 2>&1  # fills the autotune cache
    # without GOMP_SPINCOUNT the program executes itself again, and the tools do not follow
    local settings=(env TEST_DEVICE=cuda GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=$((($(nproc) + 1) / 2)))
    for name in test_ops_bf16 test_ops_fp32 test_gpt2_bf16 test_gpt2_fp32; do
        built $name && start $name 150 "${settings[@]}" "$programs/$name"
    done
    for name in "${tools[@]}"; do
        if [ -z "$sanitizer" ]; then
            report "$name" skipped "there is no compute-sanitizer"
        elif built train_gpt2; then
            start "$name" 120 "${settings[@]}" "$sanitizer" --tool "$name" --error-exitcode 9 "${small[@]}"
        fi
    done
    for name in "${tools[@]}" test_gpt2_bf16 test_gpt2_fp32 test_ops_bf16 test_ops_fp32; do
        [ -z "${process[$name]:-}" ] || finish "$name"
    done
}

# check_nccl: NCCL in a group of one, and two ranks through MPI, sharing the GPU
check_nccl() {
    local test=$programs/test_nccl_bf16
    built test_nccl_bf16 || return
    start test_nccl 60 "$test"
    finish test_nccl
    if ! command -v mpirun >/dev/null || ! grep -q MPI <<<"$("$test" backends)"; then
        report "two processes" skipped "there is no mpirun, or no MPI was built in"
        return
    fi
    start two_processes 60 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun -np 2 --oversubscribe --bind-to none "$test" ranks
    finish two_processes
}

# check_products MODEL BATCH: lists the kernels of a step's matmuls; an epilogue that is not fused is no failure
check_products() {
    local log=$build/log/products_$1.txt status
    built bench_ops || return
    bounded 60 "$programs/bench_ops" --device cuda --products -e "d${layers[$1]}" -b "$2" >"$log" 2>&1 </dev/null
    status=$?
    ended "products of $1" $status "$log" \
        "$(sed -n 's/^Products fused: \(.*\)\.$/\1 are one kernel with their epilogue/p' "$log")"
}

# same_bits: 20 steps twice; all metrics except times must be equal
same_bits() {
    local log=$build/log/same_bits.txt run
    built train_gpt2 || return
    rm -rf "$build"/bits_?
    for run in 1 2; do
        trainer "$build/bits_$run" 40 -i "$tokens" -e d12 -b 64 -t "$length" -x 20 -v 0 -s 0 >"$log" || break
        sed -i 's/,"ms".*//' "$build/bits_$run/metrics.jsonl"
    done && [ "$(wc -l <"$build/bits_1/metrics.jsonl")" -eq 20 ] &&
        cmp "$build"/bits_{1,2}/metrics.jsonl >>"$log"
    ended "the same bits twice, 20 steps of 124M" $? "$log" ""
}

# check_first_loss METRICS: an untrained model has loss ln 50257 = 10.82, and a little more as its logits vary
check_first_loss() {
    local loss
    loss=$(sed -n 's/^{"step":1,"loss":\([^,]*\),.*/\1/p' "$1")
    awk -v loss="$loss" 'BEGIN { exit !(loss >= 10.8 && loss <= 11.1) }'
    report "the first loss of 124M" $? "step 1 has loss ${loss:-none}; random weights and tokens give 10.8 to 11.1"
}

# ---- speed

bench() {
    built bench_ops || return
    start bench_ops 100 "$programs/bench_ops" --device cuda
    finish bench_ops
    gemm=$(sed -n 's/^Ceilings.* matmul of .* \([0-9.]*\) TFLOP.*/\1/p' "$build/log/bench_ops.txt" | head -n 1)
}

# faster_way LOG: PyTorch's faster choice, gradients kept or set to None
faster_way() {
    awk -v kept="$(number kept_ms "$1")" -v none="$(number none_ms "$1")" \
        'BEGIN { print(kept + 0 < none + 0 ? "kept" : "none") }'
}

# time_both ROUND MODEL BATCH OUR_SECONDS TORCH_SECONDS: 10 warm-up steps and 40 timed steps of either program. Round 2
# of PyTorch uses the faster choice of round 1
declare -A faster=()
time_both() {
    ours "train $2, run $1" "$4" 50 -e "d${layers[$2]}" -b "$3" && row "$2" "train_gpt2, run $1" "$3"
    [ "$1 $2" != "1 124M" ] || [ ${#ms[@]} -eq 0 ] || check_first_loss "$build/run/metrics.jsonl"
    [ "$1 $2" != "1 124M" ] || same_bits
    torch_run "PyTorch $2, run $1" "$5" --model "$2" --batch "$3" --gradients "${faster[$2]:-both}" &&
        row "$2" "PyTorch $torch, run $1" "$3"
    [ -z "$note" ] || faster[$2]=${faster[$2]:-$(faster_way "$run_log")}
    write_report
}

# ratios: for each model, time of PyTorch's best run / time of our best run
ratios() {
    printf '%s\n' "${rows[@]}" | awk -F'|' '{
            who = $2 ~ /^PyTorch/ ? "torch" : "ours"
            if (!((who, $1) in best) || $3 + 0 < best[who, $1]) { best[who, $1] = $3 + 0 }
            models[$1]
        }
        END {
            for (model in models) {
                if (("torch", model) in best && ("ours", model) in best) {
                    ratio = best["torch", model] / best["ours", model]
                    printf "%s: %.2fx PyTorch, the best run of each.\n", model, ratio
                }
            }
        }' | sort
}

# matrices: the lists of matmuls
matrices() {
    local model
    for model in 124M 1558M; do
        [ ! -s "$build/log/products_$model.txt" ] ||
            { echo && echo "## Matrix products of $model" && echo && cat "$build/log/products_$model.txt"; }
    done
}

report_all() {
    local sorted cells="own peak, GiB|driver's, GiB|first step"
    echo "T $length, bf16, random tokens, 40 steps after 10. A token takes 6 N + 6 L C T FLOPs, N without wpe." \
        "${gemm:+A large bf16 product ran at $gemm TFLOP/s in the same run.}" \
        "Own peak: the plan's total; PyTorch's max_memory_reserved. First step: s from the program's start; run 1" \
        "also chooses algorithms or compiles, run 2 finds the caches of run 1."
    echo
    mapfile -t sorted < <([ ${#rows[@]} -eq 0 ] || printf '%s\n' "${rows[@]}" | sort -s -t'|' -k1,1 -k2,2 |
        awk -F'|' -v OFS='|' -v gemm="${gemm:-0}" \
            '{ $6 = gemm > 0 ? sprintf("%.0f %%", 100 * $5 / gemm) : "-"; $1 = $1; print }')
    table "model|program|ms a step (p10 to p90)|tokens/s (p10 to p90)|TFLOP/s|of GEMM|$cells" "${sorted[@]}"
    echo
    [ ${#rows[@]} -eq 0 ] || ratios
    [ ! -s "$build/log/bench_ops.txt" ] || { echo && cat "$build/log/bench_ops.txt"; }
    matrices
}

stage_all() {
    local round
    export TRAIN_GPT2_PICKS=$build/picks_checks.txt
    rm -rf "$build"/picks*.txt "$build"/inductor
    random_tokens "$tokens" 4200000 1
    check_kernels
    check_nccl
    write_report
    check_products 124M 64
    check_products 1558M 16
    bench
    write_report
    export TRAIN_GPT2_PICKS=$build/picks.txt  # empty: the first step of run 1 chooses the algorithms
    for round in 1 2; do time_both $round 124M 64 60 120; done
    for round in 1 2; do time_both $round 1558M 16 120 180; done
}
