#!/usr/bin/env bash
# Fine-tuning on .jsonl examples: other layouts of ranks give the same losses, a resumed run the same bits; what is cut;
# bad input.
. "$(dirname "$0")/harness.sh"
in_scratch
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
    run 0 "${short[@]}" -b 4 -n 6 -o alone
    says "$out" "360 examples in "
    says "$out" "6 steps of 768 tokens"
    [ "$(losses alone | wc -l)" -eq 9 ] || echo "expected 6 losses and 3 validation losses" "$(losses alone)"
)"
report "other micro-batches and -r 4" "$(
    run 0 "${short[@]}" -b 16 -o whole
    run 0 "${short[@]}" -b 4 -r 4 -o recomputed
    close_losses whole alone 1e-5
    cmp <(losses recomputed) <(losses alone) 2>&1
)"
# Each row has other sequences: a CUDA graph of an earlier micro-batch would compute the attention of that row's.
report "the emulated GPU gives the losses of the CPU: no CUDA graph replays another row's sequences" "$(
    trainer=$emulated run 0 "${short[@]}" -b 4 -o gpu --device cuda
    close_losses gpu alone 1e-5
)"
report "validation covers all rows, also where -b does not divide their number" "$(
    whole=(-i few.jsonl -e l2h4c32 -t 48 -x 1 -v 1 -m -1 -s 0)
    run 0 "${whole[@]}" -b 1 -d 48 -o rows_1
    for b in 7 11 64; do  # at most 40 rows: 64 leaves blank rows; 7 and 11 cannot both divide their number
        run 0 "${whole[@]}" -b $b -d $((48 * b)) -o rows_$b
        # 2e-6: a mean of up to 1000 losses in fp32
        paste -d ' ' <(losses rows_1) <(losses rows_$b) | awk -v b=$b '$2 == "val_loss" && $1 == 0 {
                compared++
                d = $3 - $6
                if ($2 != $5 || d > 2e-6 * $3 || d < -2e-6 * $3) print "-b " b ":", $0
            }
            END { if (compared != 1) print "compared", compared, "validation losses" }'
    done
)"
report "a resumed run has the bits of an uninterrupted one" "$(
    run 0 "${short[@]}" -b 4 -n 3 -x 3 -o resumed
    run 0 -o resumed -y 1 -x 6
    cmp {alone,resumed}/step_00000006/model.safetensors 2>&1
    run 0 "${short[@]}" -b 4 -n 3 -x 3 -o unwatched
    run 0 -o unwatched -y 1 -x 6 -v 0
    cmp {alone,unwatched}/step_00000006/model.safetensors 2>&1
    cp few.jsonl kept.jsonl
    head -n 399 kept.jsonl >few.jsonl
    run 2 -o resumed -y 1 -x 8
    says "$err" "tokens of other files, or with another tokenizer, than -i few.jsonl, which gives"
    mv kept.jsonl few.jsonl
)"
report "a model of a learned vocabulary is tuned with its own tokenizer, and resumes with no other" "$(
    cut -d '"' -f 10 few.jsonl >text
    run 0 --train-bpe 270 -i text -o tokens
    run 0 --tokenize tokens/t -i text --tokenizer tokens/merges.txt --val-share 0
    run 0 -i 'tokens/t_train_*.bin' -e l1h1c8 -t 48 -b 1 -x 2 -n 2 -v 0 -s 0 -o base
    run 0 -i few.jsonl -j few.jsonl -e base -b 4 -x 2 -n 2 -v 2 -s 0 -t 48 -o tuned
    says "$out" "400 examples in "
    cmp {base,tuned}/step_00000002/merges.txt 2>&1
    run 0 -o tuned -y 1 -x 4
    sed '2{h;d};3{G}' tokens/merges.txt >other.txt
    run 2 -o tuned -y 1 -x 6 --tokenizer other.txt
    says "$err" "with another tokenizer"
)"
# A tokenizer.json of another program must not hide the model's own tokenizer.
report "a foreign tokenizer.json beside the model is skipped" "$(
    echo '{"model":{"type":"WordPiece","vocab":{"[UNK]":0,"a":1}},"pre_tokenizer":{"type":"BertPreTokenizer"}}' >foreign
    echo '{"normalizer":{"type":"NFC"},"pre_tokenizer":null,"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}' >bpe
    echo '{"model":' >broken
    flags=(-i few.jsonl -b 4 -d 192 -t 48 -x 2 -v 0 -s 0)
    run 0 "${flags[@]}" -e alone -o of_bytes
    run 0 "${flags[@]}" -e base -o of_merges
    for kind in foreign bpe broken; do
        rm -rf moved && cp -r alone/step_00000006 moved && rm moved/manifest.json && cp $kind moved/tokenizer.json
        run 0 "${flags[@]}" -e moved -o "bytes_$kind"
        cmp <(losses of_bytes) <(losses "bytes_$kind") 2>&1
        rm -rf moved && mkdir moved && cp -r base/step_00000002 moved/model
        rm moved/model/manifest.json && cp $kind moved/model/tokenizer.json
        mv moved/model/merges.txt moved/  # the folder above has the merges
        run 0 "${flags[@]}" -e moved/model -o "merges_$kind"
        cmp <(losses of_merges) <(losses "merges_$kind") 2>&1
    done
    [ "$(losses of_bytes | wc -l)" -eq 2 ] || echo "found no losses"
)"

printf '{"text":"a"}\n{"text":\n' >broken.jsonl
head -n 9 few.jsonl >nine.jsonl
echo text >plain.txt
# shellcheck disable=SC2034  # the rows use it
few=(-i few.jsonl -e l1h1c8 -t 48 -o refused)
refusals <<'ROWS'
-i broken.jsonl line 2 is not a JSON object: found '{"text":'; jq -cR 'fromjson?' FILE | -i broken.jsonl -e l1h1c8
holds 9 examples, too few to hold out a tenth for validation; give -j, or -v 0 | -i nine.jsonl -e l1h1c8 -t 48
-j broken.jsonl line 2 | "${few[@]}" -j broken.jsonl
is examples as JSON lines, but -j | "${few[@]}" -j plain.txt
matches both JSON lines and other files | -i '*n*.*' -e l1h1c8 -t 4
absent.txt | "${few[@]}" --tokenizer absent.txt
a model of 50257 tokens needs a tokenizer; give GPT-2's vocab.bpe | "${few[@]}" -e d12
-gd bf16 would round wpe's gradient for each example in -i; give -gd auto, fp32 for examples | "${few[@]}" -gd bf16
ROWS
report "an epoch of examples says how many sequences it leaves out" "$(
    run 0 -i nine.jsonl -e l1h1c8 -t 48 -b 2 -d 192 -v 0 -s 0
    says "$out" "sequences do not fill an update and are left out; -x 3 reads them too"
)"
report "nine examples without validation" "$(run 0 -i nine.jsonl -e l1h1c8 -t 48 -b 1 -x 1 -v 0 -s 0)"
use_mpirun "$("$trainer" --version | grep MPI)" 1
report "two ranks, -tp 2, and four ranks at -z 3 -r 4 give the same losses" "$(
    for layout in "two 2" "sliced 2 -tp 2" "four 4 -tp 2 -z 3 -r 4"; do
        read -r name ranks flags <<<"$layout"
        # shellcheck disable=SC2086
        mpirun --oversubscribe -np "$ranks" "$trainer" "${short[@]}" -b 4 $flags -o "$name" >"$out" 2>&1 </dev/null ||
            echo "exit status $?"
    done
    for layout in two sliced four; do close_losses $layout alone 1e-5; done
)"
end_tests
