#!/usr/bin/env bash
# Fine-tuning on .jsonl examples: other layouts of ranks give the same losses, a resumed run the same bits; what is cut;
# bad input.
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

root=$(realpath "$(dirname "$0")/../..")
trainer=$(realpath "${TRAINER:-./train_gpt2}") emulated=$(realpath "${EMULATED:-build/emulated/train_gpt2}")
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive LC_ALL=C
scratch=$(mktemp -d) out=$scratch/out
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1

# run STATUS COMMAND...: a sentence unless the command exits with STATUS
run() {
    local status=0
    "${@:2}" >"$out" 2>&1 </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$out"; }
}
says() { grep -qF -- "$1" "$out" || { echo "expected '$1' in:" && head -n 12 "$out"; }; }
losses() { sed -nE 's/^\{"step":([0-9]+),"(loss|val_loss)":([0-9.]+).*/\1 \2 \3/p' "$1/metrics.jsonl"; }
# close A B: the losses of two runs agree within 1e-5 of each
close() {
    paste -d ' ' <(losses "$1") <(losses "$2") | awk '
        { d = $3 - $6; if (d < 0) d = -d; if ($1 $2 != $4 $5 || d > 1e-5 * $3) print "differ:", $0 }
        END { if (NR != 9) print NR, "losses, expected 9" }'
}
python3 - >few.jsonl <<'PYTHON'
import json, random
r = random.Random(1)
for _ in range(400):
    word = "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(2, 5)))
    print(json.dumps({"messages": [{"role": "user", "content": "reverse " + word},
                                   {"role": "assistant", "content": word[::-1]}]}))
PYTHON
short=(-i few.jsonl -e l2h4c32 -t 48 -x 6 -d 768 -l 1e-3 -v 3 -m -1 -s 0)
report "a run on examples" "$(
    run 0 "$trainer" "${short[@]}" -b 4 -n 6 -o alone
    says "360 examples in "
    says "6 steps of 768 tokens"
    [ "$(losses alone | wc -l)" -eq 9 ] || echo "expected 6 losses and 3 validation losses" "$(losses alone)"
)"
report "other micro-batches and -r 4" "$(
    run 0 "$trainer" "${short[@]}" -b 16 -o whole
    run 0 "$trainer" "${short[@]}" -b 4 -r 4 -o recomputed
    close whole alone
    cmp <(losses recomputed) <(losses alone) 2>&1
)"
# Each row has other sequences: a CUDA graph of an earlier micro-batch would compute the attention of that row's.
report "the emulated GPU gives the losses of the CPU: no CUDA graph replays another row's sequences" "$(
    run 0 "$emulated" "${short[@]}" -b 4 -o gpu --device cuda
    close gpu alone
)"
report "validation covers all rows, also where -b does not divide their number" "$(
    whole=(-i few.jsonl -e l2h4c32 -t 48 -x 1 -v 1 -m -1 -s 0)
    run 0 "$trainer" "${whole[@]}" -b 1 -d 48 -o rows_1
    for b in 7 11 64; do  # at most 40 rows: 64 leaves blank rows; 7 and 11 cannot both divide their number
        run 0 "$trainer" "${whole[@]}" -b $b -d $((48 * b)) -o rows_$b
        # 2e-6: a mean of up to 1000 losses in fp32
        paste -d ' ' <(losses rows_1) <(losses rows_$b) | awk -v b=$b '$2 == "val_loss" && $1 == 0 {
                compared++
                d = $3 - $6
                if ($2 != $5 || d > 2e-6 * $3 || d < -2e-6 * $3) print "-b " b ":", $0
            }
            END { if (compared != 1) print "compared", compared, "validation losses" }'
    done
)"
# plan ARGUMENT...: the line `memory` of a run, from --plan=json
plan() {
    "$trainer" "$@" --plan=json 2>"$out" | python3 -c 'import json, sys
rank = json.load(sys.stdin)["ranks"][0]
print("memory    {:.1f} MiB: state {:.1f}, saved activations {:.1f}, scratch {:.1f}".format(
    *(rank[key] / 2**20 for key in ("total", "state", "saved", "scratch"))))' 2>&1
}
report "--plan is the memory of the run, with the vocabulary of the tokenizer that encodes the examples" "$(
    for tokenizer in "$root/dev/test/golden/gpt2_2500.bpe" ""; do
        flags=(-i few.jsonl -e l1h2c64 -t 48 -b 8 -d 384 -r 0 -x 1 -v 0 -s 0 ${tokenizer:+--tokenizer "$tokenizer"})
        expected=$(plan "${flags[@]}")
        run 0 "$trainer" "${flags[@]}"
        says "$expected"
        echo "$expected" >>plans
    done
    [ "$(sort -u plans | wc -l)" -eq 2 ] || echo "both vocabularies have one plan: $(cat plans)"
)"
report "a resumed run has the bits of an uninterrupted one" "$(
    run 0 "$trainer" "${short[@]}" -b 4 -n 3 -x 3 -o resumed
    run 0 "$trainer" -o resumed -y 1 -x 6
    cmp {alone,resumed}/step_00000006/model.safetensors 2>&1
    run 0 "$trainer" "${short[@]}" -b 4 -n 3 -x 3 -o unwatched
    run 0 "$trainer" -o unwatched -y 1 -x 6 -v 0
    cmp {alone,unwatched}/step_00000006/model.safetensors 2>&1
    cp few.jsonl kept.jsonl
    head -n 399 kept.jsonl >few.jsonl
    run 2 "$trainer" -o resumed -y 1 -x 8
    says "tokens of other files, or with another tokenizer, than -i few.jsonl, which gives"
    mv kept.jsonl few.jsonl
)"
report "a model of a learned vocabulary is tuned with its own tokenizer, and resumes with no other" "$(
    cut -d '"' -f 10 few.jsonl >text
    run 0 "$trainer" --train-bpe 270 -i text -o tokens
    run 0 "$trainer" --tokenize tokens/t -i text --tokenizer tokens/merges.txt --val-share 0
    run 0 "$trainer" -i 'tokens/t_train_*.bin' -e l1h1c8 -t 48 -b 1 -x 2 -n 2 -v 0 -s 0 -o base
    run 0 "$trainer" -i few.jsonl -j few.jsonl -e base -b 4 -x 2 -n 2 -v 2 -s 0 -t 48 -o tuned
    says "400 examples in "
    cmp {base,tuned}/step_00000002/merges.txt 2>&1
    run 0 "$trainer" -o tuned -y 1 -x 4
    sed '2{h;d};3{G}' tokens/merges.txt >other.txt
    run 2 "$trainer" -o tuned -y 1 -x 6 --tokenizer other.txt
    says "with another tokenizer"
)"
# A tokenizer.json of another program must not hide the model's own tokenizer.
report "a foreign tokenizer.json beside the model is skipped" "$(
    echo '{"model":{"type":"WordPiece","vocab":{"[UNK]":0,"a":1}},"pre_tokenizer":{"type":"BertPreTokenizer"}}' >foreign
    echo '{"normalizer":{"type":"NFC"},"pre_tokenizer":null,"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}' >bpe
    echo '{"model":' >broken
    flags=(-i few.jsonl -b 4 -d 192 -t 48 -x 2 -v 0 -s 0)
    run 0 "$trainer" "${flags[@]}" -e alone -o of_bytes
    run 0 "$trainer" "${flags[@]}" -e base -o of_merges
    for kind in foreign bpe broken; do
        rm -rf moved && cp -r alone/step_00000006 moved && rm moved/manifest.json && cp $kind moved/tokenizer.json
        run 0 "$trainer" "${flags[@]}" -e moved -o "bytes_$kind"
        cmp <(losses of_bytes) <(losses "bytes_$kind") 2>&1
        rm -rf moved && mkdir moved && cp -r base/step_00000002 moved/model
        rm moved/model/manifest.json && cp $kind moved/model/tokenizer.json
        mv moved/model/merges.txt moved/  # the folder above has the merges
        run 0 "$trainer" "${flags[@]}" -e moved/model -o "merges_$kind"
        cmp <(losses of_merges) <(losses "merges_$kind") 2>&1
    done
    [ "$(losses of_bytes | wc -l)" -eq 2 ] || echo "found no losses"
)"
report "long examples are truncated, and a note counts them" "$(
    printf '{"prompt":"%040d","completion":"x"}\n{"prompt":"p","completion":"%040d"}\n' 0 0 |
        cat - few.jsonl >long.jsonl
    run 0 "$trainer" -i long.jsonl -e l1h1c8 -t 39 -b 1 -x 1 -v 0 -s 0
    says "note      -i long.jsonl: 1 of 402 examples are longer than -t 39, and are cut"
    says "note      -i long.jsonl: 1 of 402 examples have no target within -t 39, and are left out"
)"
report "bad input" "$(
    printf '{"text":"a"}\n{"text":\n' >broken.jsonl
    run 2 "$trainer" -i broken.jsonl -e l1h1c8 -t 16 -o refused
    says "train_gpt2: -i broken.jsonl line 2 is not a JSON object: found '{\"text\":'; jq -c . FILE writes one"
    echo '{"messages":[{"role":"human","content":"a"}]}' >strange.jsonl
    run 2 "$trainer" -i strange.jsonl -e l1h1c8 -t 16 -o refused
    says "line 1 has a message without a content, or without a role of system, user or assistant: found '{\"messages\":"
    run 2 "$trainer" -i few.jsonl -j broken.jsonl -e l1h1c8 -t 48 -o refused
    says "-j broken.jsonl line 2"
    echo '{"prompt":"a"}' >lacks.jsonl
    run 2 "$trainer" -i lacks.jsonl -e l1h1c8 -t 16 -o refused
    says "line 1 has none of these: strings prompt and completion"
    head -n 9 few.jsonl >nine.jsonl
    run 2 "$trainer" -i nine.jsonl -e l1h1c8 -t 48 -o refused
    says "holds 9 examples, too few to hold out a tenth for validation; give -j, or -v 0"
    run 0 "$trainer" -i nine.jsonl -e l1h1c8 -t 48 -b 1 -x 1 -v 0 -s 0
    echo text >plain.txt
    run 2 "$trainer" -i few.jsonl -j plain.txt -e l1h1c8 -t 48
    says "is examples as JSON lines, but -j"
    run 2 "$trainer" -i '*n*.*' -e l1h1c8 -t 4
    says "matches both JSON lines and other files"
    run 2 "$trainer" -i few.jsonl -e l1h1c16 -t 48 --tokenizer absent.txt
    says "absent.txt"
    run 2 "$trainer" -i few.jsonl -e d12 -t 48 -b 1 -x 1
    says "the model's tokenizer is not known: give it with --tokenizer"
    run 2 "$trainer" -i few.jsonl -e l1h1c8 -t 48 -gd bf16 -o refused
    says "-gd bf16 would round wpe's gradient for each example in -i; give -gd auto, fp32 for examples"
    [ ! -e refused ] || echo "a folder was made"
)"
use_mpirun "$("$trainer" --version | grep MPI)" 1
report "two ranks, -tp 2, and four ranks at -z 3 -r 4 give the same losses" "$(
    run 0 mpirun --oversubscribe -np 2 "$trainer" "${short[@]}" -b 4 -o two
    run 0 mpirun --oversubscribe -np 2 "$trainer" "${short[@]}" -b 4 -tp 2 -o sliced
    run 0 mpirun --oversubscribe -np 4 "$trainer" "${short[@]}" -b 4 -tp 2 -z 3 -r 4 -o four
    for layout in two sliced four; do close $layout alone; done
)"
end_tests
