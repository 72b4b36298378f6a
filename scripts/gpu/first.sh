# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh first: are the kernels, the memory accesses and the losses right?

# twenty_steps NAME GRAPH: 20 steps of 124M at B 16; its losses go to build/gpu/losses_GRAPH.txt
twenty_steps() {
    ours "$1" 20 -e d12 -b 16 --graph "$2" || return
    sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$build/run/metrics.jsonl" >"$build/losses_$2.txt"
}

# compare_losses: the first loss is ln 50257 = 10.82 and a little more, which random weights add. It falls as the model
# learns which tokens are frequent. Both runs have the same bits
compare_losses() {
    local without=$build/losses_0.txt with=$build/losses_1.txt log=$logs/losses.txt first last
    if [ ! -s "$without" ] || [ ! -s "$with" ]; then
        report "losses" skipped "a run of 20 steps is missing"
        return
    fi
    read -r _ first < <(head -n 1 "$without")
    read -r _ last < <(tail -n 1 "$without")
    {
        paste -d ' ' "$without" "$with"
        cmp "$without" "$with" && [ "$(wc -l <"$without")" -eq 20 ] || echo "expected 20 equal losses of either run"
        awk -v a="${first:-nan}" -v b="${last:-nan}" \
            'BEGIN { exit !(a >= 10.8 && a <= 11.1 && b >= 9.2 && b < a - 0.1) }' ||
            echo "expected a first loss of 10.8 to 11.1, and a last one lower by 0.1 or more"
    } >"$log" 2>&1
    ended "losses" "$(grep -c ^expected "$log")" "$log" "124M, ${first:-none} to ${last:-none} in 20 steps"
}

# self_check: every operation against its reference implementation, by the trainer itself. A remembered pass is removed,
# so that the runs below use the kernels that this check has chosen
self_check() {
    local log=$logs/self_check.txt status agree
    built train_gpt2 || return
    rm -f "$TRAIN_GPT2_SELF_CHECK"
    bounded self-check "$programs/train_gpt2" --self-check --device cuda >"$log" 2>&1
    status=$?
    slower=$(slower_kernels "$log")
    agree=$(sed -nE 's/^([0-9]+ operations agree) .*/\1/p' "$log")
    ended self-check $status "$log" \
        "${agree:+$agree; }operations with a slower kernel: $(grep -c ' a faster kernel ' "$log")"
    allow_replaced
}

# allow_replaced: a row of test_ops that tests a kernel which the self-check has replaced is no failure
allow_replaced() {
    local row replaced rows name others=()
    [[ ${outcome[test_ops]:-} == FAILED* ]] || return 0
    # in the table of the self-check, the line after an operation's own says so
    replaced=$(awk '/^ +a faster kernel / { print name } { name = $1 }' "$logs/self_check.txt")
    rows=$(sed -nE 's/^([a-z_0-9]+): (exit status|out of time).*/\1/p' "$logs/test_ops.txt")
    [ -n "$rows" ] || return 0
    for row in $rows; do grep -qx "$row" <<<"$replaced" || return 0; done
    for name in "${failed[@]}"; do [ "$name" = test_ops ] || others+=("$name"); done
    failed=("${others[@]}") outcome[test_ops]=ok
    results+=("- test_ops: ok without the kernels that the self-check has replaced: ${rows//$'\n'/, }")
}

report_first() {
    [ -s "$logs/self_check.txt" ] || return 0
    echo
    echo "## Self-check"
    echo
    echo '```'
    cat "$logs/self_check.txt"
    echo '```'
}

stage_first() {
    export TRAIN_GPT2_PICKS=$build/autotune_first.txt
    rm -f "$build"/autotune_first.txt "$build"/losses_?.txt "$build/go"
    needed=(test_simt test_ops self-check memcheck losses)
    random_tokens "$tokens" 4200000 1 4
    # on a smaller GPU PyTorch would fill the memory that the tests need
    [ -z "${torch_batch[1558M]:-}" ] || compile_torch "PyTorch compiles" 124M 1558M
    build_all train_gpt2 test_simt_bf16 test_ops_bf16
    sanitize memcheck memcheck "$programs/test_ops_bf16" --quick
    test_beside test_simt test_simt_bf16 "$programs/test_simt_bf16" && finish test_simt
    test_beside test_ops test_ops_bf16 scripts/gpu/each_op.sh 30 "$programs/test_ops_bf16" --quick && finish test_ops
    write_report
    self_check
    twenty_steps "124M without CUDA graphs" 0
    twenty_steps "124M with CUDA graphs" 1
    compare_losses
    finish memcheck
    write_report
    # PyTorch's code is for `speed`, which follows a go
    if verdict >/dev/null; then finish "PyTorch compiles"; else cancel "PyTorch compiles"; fi
}
