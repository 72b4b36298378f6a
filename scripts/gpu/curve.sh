# shellcheck shell=bash disable=SC2154,SC2034  # the parts of gpu_check.sh share variables
# scripts/gpu_check.sh rest: a thousand steps of 124M in train_gpt2 and in PyTorch, from the same weights on the same
# batches; then train_gpt2 again, resumed from the middle.

curve_steps=1000 curve_batch=16 curve_window=50
curve_flags=(-b "$curve_batch" -t 1024 -x "$curve_steps" -l 6e-4 -u 100 -q 0.1 -c 0.1 -s 0)
curve=$build/curve curve_rows=() curve_data='' curve_words='' excerpt=()

# find_text: sets curve_data to a shard of GPT-2's tokens if there are merges, else to a text: DATA=FILE, the packed
# text, or this repository's sources, 1.5 MB
find_text() {
    local text=${DATA:-} merges=${MERGES:-} log=$logs/tokenize.txt
    [ -n "$text" ] || text=$(find "$packages"/text -name '*.txt' -print -quit 2>/dev/null)
    [ -n "$merges" ] || merges=$(find "$packages"/text -name '*.bpe' -print -quit 2>/dev/null)
    if [ -z "$text" ]; then
        text=$curve/sources.txt
        cat README.md train_gpt2.cu llmc/*.* llmc/*/*.* >"$text"
    fi
    [ -r "$text" ] || { report "text" 2 "$text cannot be read: name a text, DATA=FILE $0 rest" && return 1; }
    curve_data=$text curve_words="$text, as bytes"
    if [[ $text == *.bin ]]; then
        curve_words=$text
    elif [ -r "$merges" ]; then
        curve_data=$curve/text_train_000001.bin curve_words="$text by $merges"
        "$programs/train_gpt2" --device cpu -i "$text" --tokenizer "$merges" --tokenize "$curve/text" --val-share 0 \
            >"$log" 2>&1 ||
            { ended "text" 1 "$log" "$curve_words" && return 1; }
    fi
    report "text" 0 "$curve_words"
}

# dump: writes the initial weights and every batch, with the trainer built for a CPU
dump() {
    local log=$logs/dump.txt status
    # shellcheck disable=SC2016  # the inner shell expands
    bounded "weights and batches" bash -c 'make --no-print-directory DEVICE=cpu PRECISION=fp32 \
        build/bench/dump_run && build/bench/dump_run "$@"' dump "$curve/dump" --device cpu -i "$curve_data" -e d12 \
        -r 4 -m 1 -v 1 "${curve_flags[@]}" >"$log" 2>&1
    status=$?
    ended "weights and batches" $status "$log" "$(du -sh "$curve/dump" 2>/dev/null | cut -f 1)"
    return $status
}

# train_curve ROW FOLDER FLAG...: a run of train_gpt2; its folder is emptied by the caller
train_curve() {
    local log=$logs/${1// /_}.txt status
    bounded "$1" "$programs/train_gpt2" --device cuda -o "$2" "${@:3}" >"$log" 2>&1
    status=$?
    ended "$1" $status "$log" "$(last_loss "$2/metrics.jsonl")"
    return $status
}

last_loss() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,}]*\).*/step \1, loss \2/p' "$1" 2>/dev/null | tail -n 1; }

# start_torch_curve: starts PyTorch's run beside ours: neither is timed
start_torch_curve() {
    [ -n "$torch" ] || return 0
    start "PyTorch curve" env TORCHINDUCTOR_CACHE_DIR="$PWD/$build/inductor" "$python" dev/oracle/converge.py \
        --device cuda --bf16 --compile --init "$curve/dump/step_00000000/model.safetensors" \
        --batches "$curve/dump/train.i32" --shape d12 --B $curve_batch --T 1024 --steps $curve_steps --lr 6e-4 \
        --warmup 100 --final_frac 0.1 --weight_decay 0.1 --losses "$curve/torch.jsonl"
}

# losses FILE: "step loss" for every step of a metrics file
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,}]*\).*/\1 \2/p' "$1"; }

# both OURS THEIRS: "step loss loss" for the steps in both files
both() { join <(losses "$1" | sort -k1,1) <(losses "$2" | sort -k1,1) | sort -n; }

# differences OURS THEIRS: "steps largest mean largest-smoothed mean-smoothed" of |ours - theirs|; smoothed: running
# means of curve_window steps
differences() {
    both "$1" "$2" | awk -v window=$curve_window '
        function size(x) { return x < 0 ? -x : x }
        {
            off[NR] = $2 - $3
            if (size(off[NR]) > largest || size(off[NR]) != size(off[NR])) { largest = size(off[NR]) }
            all += size(off[NR]); sum += off[NR] - (NR > window ? off[NR - window] : 0)
            if (NR < window) { next }
            smooth = size(sum / window); total += smooth; many++
            if (smooth > most) { most = smooth }
        }
        END {
            if (many) { printf "%d %.2g %.2g %.2g %.2g\n", NR, largest, all / NR, most, total / many }
            else { print NR + 0, "- - - -" }
        }'
}

# compare: the smoothed curves must stay within 0.01 of each other
compare() {
    local steps largest mean smooth smooth_mean status
    read -r steps largest mean smooth smooth_mean <<<"$(differences "$curve/whole/metrics.jsonl" "$curve/torch.jsonl")"
    mapfile -t excerpt < <(both "$curve/whole/metrics.jsonl" "$curve/torch.jsonl" |
        awk -v OFS='|' 'NR == 1 || NR % 100 == 0 { print $1, $2, $3 }')
    curve_rows=("each step|$largest|$mean" "means of $curve_window steps|$smooth|$smooth_mean")
    awk -v steps="$steps" -v wanted=$curve_steps -v off="$smooth" 'BEGIN { exit !(steps == wanted && off + 0 <= 0.01) }'
    status=$?
    report "the curves" $status "$steps steps, means of $curve_window steps at most $smooth apart, 0.01 allowed"
}

# resumed: runs the second half from the middle checkpoint; losses, weights and moments must have the same bits
resumed() {
    local middle last log=$logs/equal_bits.txt status file name="resumed at step $((curve_steps / 2)): equal bits"
    middle=$(printf 'step_%08d' $((curve_steps / 2))) last=$(printf 'step_%08d' $curve_steps)
    mkdir -p "$curve/resumed"
    if ! mv "$curve/whole/$middle" "$curve/resumed/" || ! cp "$curve/whole/config.json" "$curve/resumed/"; then
        report "$name" 1 "there is no checkpoint of step $((curve_steps / 2))"
        return
    fi
    train_curve "resumed curve" "$curve/resumed" -y 1 || return
    for file in whole resumed; do
        sed 's/,"ms".*//' "$curve/$file/metrics.jsonl" | tail -n $((curve_steps / 2)) >"$curve/$file.txt"
    done
    cmp "$curve/whole.txt" "$curve/resumed.txt" >"$log" 2>&1
    status=$?
    for file in model optimizer; do
        cmp "$curve"/{whole,resumed}/"$last/$file.safetensors" >>"$log" 2>&1 || status=1
    done
    [ "$(wc -l <"$curve/resumed.txt")" -eq $((curve_steps / 2)) ] || status=1
    ended "$name" $status "$log" "losses, weights and moments"
}

report_curve() {
    echo "## The loss curve"
    echo
    echo "124M, B $curve_batch, T 1024, bf16, $curve_steps steps (${curve_flags[*]}) on $curve_words, from the same" \
        "weights, the same batches in the same order. Differences of the losses, ours from PyTorch's:"
    echo
    table "losses|largest|mean" "${curve_rows[@]}"
    echo
    table "step|train_gpt2|PyTorch" "${excerpt[@]}"
}

# curves: both runs, their comparison, and the resumed run
curves() {
    find_text && dump || return
    start_torch_curve
    mkdir -p "$curve/whole"
    if train_curve "our curve" "$curve/whole" -i "$curve_data" -e "$curve/dump/step_00000000/model.safetensors" \
        -n $((curve_steps / 2)) -v 0 "${curve_flags[@]}"; then
        resumed
        finish "PyTorch curve" && compare
    else
        cancel "PyTorch curve"
    fi
    cp "$curve/whole/metrics.jsonl" "$logs/ours.jsonl" 2>/dev/null
    cp "$curve/torch.jsonl" "$logs/" 2>/dev/null
    rm -rf "$curve"/{dump,whole/step_*,resumed/step_*}
    write_report
}
