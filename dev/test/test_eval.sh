#!/usr/bin/env bash
# --eval on the command line: a model of known losses, windows, kinds of files, HellaSwag, -h 1 on JSON lines, bits per
# byte of validations, and bad input. With transformers and torch in $PYTHON, their numbers, and lm-eval's.
. "$(dirname "$0")/harness.sh"
in_scratch

# prints NAME VALUE...: the last output has these lines, to 1e-5 of the value
prints() {
    while [ $# -gt 0 ]; do
        awk -v name="$1" -v value="$2" '$1 == name { d = $2 - value; found += d * d <= 1e-10 * value * value }
            END { exit found != 1 }' "$out" || { echo "expected $1 $2 in:" && cat "$out"; }
        shift 2
    done
}

# ---- a model that gives 'a' a probability of 1/2 and each other byte 1/510, whatever comes before: all weights are 0,
# but the final layernorm's bias is (1,0,0,0), and the embedding of 'a' is (ln 255,0,0,0)

printf 'some text for a model of bytes, some text for a model of bytes' >bytes.txt
run 0 -i bytes.txt -e l1h1c4 -t 8 -b 1 -x 1 -n 1 -s 0 -v 0 -o one
mkdir half && cp one/step_00000001/config.json half
head -c 8 one/step_00000001/model.safetensors >length
header=$((8 + $(od -An -t u8 length)))
zeros=$(($(stat -c %s one/step_00000001/model.safetensors) - header))
{ head -c $header one/step_00000001/model.safetensors && head -c $zeros /dev/zero; } >half/model.safetensors
poke half/model.safetensors ln_f.bias 1
poke half/model.safetensors wte.weight 5.5412635 1 $((97 * 4))

report "a text: loss, perplexity and bits of a known model" "$(
    printf 'aaab' >four.txt
    run 0 --eval four.txt -e half
    prints documents 1 tokens 4 bytes 4 loss 2.078463 perplexity 7.992176 bits_per_byte 2.998588
    printf 'a\na a' >words.txt
    run 0 --eval words.txt -e half # 3 + 2 * log2(510) bits
    prints tokens 5 bits_per_byte 4.197741
    run 0 --eval '[fw]*.txt' -e half
    prints documents 2 tokens 9 bits_per_byte 3.664785
    run 2 --eval - -e half
    says "$err" "--eval - holds no text to score" # /dev/null
)"
report "every token is scored once, with any -t and -b" "$(
    for length in 1 7 8 9 16 17 40; do
        printf 'abaabbaaabbbaaaabbbbaaaaabbbbbaaaaaabbbbbb' | head -c "$length" >text
        cp text text.txt
        run 0 --eval text.txt -e half
        cp "$out" expected
        for flags in "-t 1" "-t 3" "-t 8 -b 1" "-t 8 -b 7" "-t 2 -b 100"; do
            # shellcheck disable=SC2086
            run 0 --eval text.txt -e half $flags
            prints tokens "$length" loss "$(awk '$1 == "loss" { print $2 }' expected)"
        done
        "$trainer" --eval - -e half <text >"$out" 2>"$err"
        diff expected "$out"
    done
)"
report "JSON lines and lines of end-of-text divide documents" "$(
    printf '{"text":"aaab","body":"b"}\n\n{"text":"a\\na a","body":"b"}\n' >two.jsonl
    run 0 --eval two.jsonl -e half
    prints documents 2 tokens 9 bits_per_byte 3.664785
    run 0 --eval two.jsonl -e half --field body
    prints documents 2 tokens 2 bits_per_byte 8.994353
    printf 'aaab\n<|endoftext|>\nb' >parts.txt
    run 0 --eval parts.txt -e half
    prints documents 2 tokens 6 # with the end of the first line
)"
hella() { # CONTEXT LABEL ENDING...: an example of HellaSwag
    local endings
    printf -v endings ',"%s"' "${@:3}"
    printf '{"ctx":"%s","label":%s,"endings":[%s]}\n' "$1" "$2" "${endings:1}"
}
report "HellaSwag: llm.c's accuracy" "$(
    { # bits: 9.99 of 2 tokens; 22.99 of 7; 26.98 of 3; 44.97 of 5
        for label in 0 1 1 1 2; do hella x $label a aaaaab bb bbbb; done
        hella x 0 a b b b
        hella x 1 b a b b
    } >some.jsonl
    run 0 --eval some.jsonl -e half
    prints examples 7 acc_llmc 0.714286
    run 0 --eval some.jsonl -e half -b 1
    prints examples 7 acc_llmc 0.714286
    hella 0123456789 0 a b c d >>some.jsonl
    run 0 --eval some.jsonl -e half
    says "$out" "note             1 of 8 examples are longer than 8 tokens: their contexts are cut at the left"
)"
report "llm.c's eval format" "$(
    write_shard eval.bin 20240522 1 36 65535 36 0 3 4 3 1 2 3 1 4 2 97 6 1 97 1 8
    run 0 --eval eval.bin -e half
    prints examples 1 acc_llmc 0
    write_shard eval.bin 20240522 1 36 65535 36 0 2 4 3 1 2 3 1 4 2 97 6 1 97 1 8
    run 0 --eval eval.bin -e half
    prints examples 1 acc_llmc 1
)"

# ---- token shards

write_shard val.bin 20240520 9 2757 65 2756 66 2756 67 2756 68 2756 69 # every second token is end-of-text
write_shard train.bin 20240520 9 2757 1 2 3 4 5 6 7 8 9
report "bits per byte of a validation: end-of-text has no bytes" "$(
    run 0 -i train.bin -j val.bin -e l1h1c4 -t 8 -b 1 -x 1 -s 0 -v 1 -n 1 -o shards --tokenizer "$merges"
    ratio=$(sed -nE 's/.*"step":1,"val_loss":([^,]*),"bits_per_byte":([^}]*)}/\2 \1/p' shards/metrics.jsonl)
    awk -v r="$ratio" 'BEGIN { split(r, x); d = x[1] / x[2] - 2 / log(2); exit !(d * d < 1e-12) }' ||
        echo "found $ratio"
    says "$out" " | bits per byte "
    run 0 -i train.bin -j val.bin -e l1h1c4 -t 8 -b 1 -x 1 -s 0 -v 1 -o unknown
    sed -n '/val_loss/p' unknown/metrics.jsonl >"$out"
    ! grep -q bits "$out" || echo "bits per byte without a tokenizer"
)"
mkdir plain && cp -r shards/step_00000001 plain/model
rm -f plain/model/{merges.txt,vocab.json,tokenizer*,manifest.json}
report "--eval of a token shard" "$(
    run 0 --eval val.bin -e shards --tokenizer "$merges"
    prints documents 1 tokens 9 bytes 5
    loss=$(awk '$1 == "loss" { print $2 }' "$out")
    prints bits_per_byte "$(awk -v x="$loss" 'BEGIN { print x * 9 / 5 / log(2) }')"
    run 0 --eval val.bin -e plain/model
    prints tokens 9 loss "$loss"
    says "$out" "note             without --tokenizer the bytes of the tokens are unknown"
    cp "$merges" mine_merges.txt && cp val.bin mine_val_000000.bin
    run 0 --eval 'mine_val_*.bin' -e plain/model # finds mine_merges.txt
    prints bytes 5 loss "$loss"
    write_shard begun.bin 20240520 10 2757 2756 65 2756 66 2756 67 2756 68 2756 69
    run 0 --eval begun.bin -e shards --tokenizer "$merges" # a first end-of-text is context only
    prints tokens 9 bytes 5 loss "$loss"
)"
report "--eval of text finds the tokenizer beside the model" "$(
    cp "$merges" plain/merges.txt
    run 0 --eval four.txt -e plain/model
    prints bytes 4 documents 1
    rm plain/merges.txt
    run 0 --eval four.txt -e shards
    prints bytes 4 documents 1
)"
report "a validation of examples takes the targets alone, and attends within each example" "$(
    printf '{"prompt":"ab","completion":"cd"}\n{"prompt":"x","completion":"y"}\n' >examples.jsonl
    run 0 -i examples.jsonl -j examples.jsonl -e l1h2c16 -t 32 -b 1 -x 1 -s 0 -v 1 -o learned
    # before the first step, the loss of the same micro-batch
    ratio=$(sed -nE 's/^\{"step":(0,"val_|1,")loss":([^,]*),.*/\2/p' learned/metrics.jsonl)
    awk -v r="$ratio" 'BEGIN { split(r, x, "\n"); d = x[1] / x[2] - 1; exit !(d * d < 1e-12) }' || echo "found $ratio"
)"

# ---- -h 1

report "-h 1 reads HellaSwag's JSON lines with the run's tokenizer" "$(
    mkdir -p dev/data/hellaswag
    hella ab 1 x cd "y z" d >dev/data/hellaswag/hellaswag_val.jsonl
    for _ in {1..100}; do printf 'ab cd.'; done >learn.txt
    learn=(-i learn.txt -e l1h2c16 -t 8 -b 4 -s 0 -v 60 -n 60 -l 1e-2 -x 60)
    run 0 "${learn[@]}" -h 1 -o hella
    says "$out" "step 60 | HellaSwag accuracy 1.0000"
    equal "$(grep hellaswag hella/metrics.jsonl)" '{"step":60,"hellaswag":1}' # no score at step 0
    run 0 "${learn[@]}" -o unscored
    equal "$(metrics unscored)" "$(metrics hella | grep -v hellaswag)" # a score changes no step
    run 0 --eval dev/data/hellaswag/hellaswag_val.jsonl -e hella
    prints acc_llmc 1
    hella "ab ab ab ab" 1 x cd "y z" d >>dev/data/hellaswag/hellaswag_val.jsonl
    run 0 -i learn.txt -e l1h2c16 -t 8 -b 1 -s 0 -v 2 -x 2 -h 1
    says "$out" "note      HellaSwag: 1 of 2 examples are longer than 8 tokens: their contexts are cut at the left"
)"

# ---- bad input

printf '{"text":"a"}\nnot JSON\n' >broken.jsonl
{ hella a 1 b c d e && echo '{"ctx":"a","endings":["b","c"]}'; } >unlabelled.jsonl
printf '{"messages":[{"role":"user","content":"a"}]}\n' >talk.jsonl
printf '{"prompt":"a","story":"b"}\n' >story.jsonl
report "-h 1 takes llm.c's file where there is no tokenizer" "$(
    cp eval.bin dev/data/hellaswag/hellaswag_val.bin
    run 0 -i train.bin -j val.bin -e l1h1c4 -t 8 -b 1 -x 1 -v 1 -s 0 -h 1
    says "$out" "HellaSwag accuracy"
    rm dev/data/hellaswag/hellaswag_val.bin
)"
hella ab 1 x cd "y z" d >dev/data/hellaswag/hellaswag_val.jsonl
refusals <<'ROWS'
--eval: no file matches 'none*' | --eval 'none*' -e half
--eval needs trained weights, but -e l1h1c4 only describes a shape | --eval four.txt -e l1h1c4
--eval needs --model, -e: add it | --eval four.txt
--eval broken.jsonl line 2 is not a JSON object | --eval broken.jsonl -e half
line 1 has no string in the field none | --eval two.jsonl -e half --field none
line 1 has no string in the field | --eval talk.jsonl -e half
line 1 has no string in the field stroy: found '{"prompt":"a","story":"b"}'; | --eval story.jsonl -e half --field stroy
unlabelled.jsonl line 2 is no example of HellaSwag | --eval unlabelled.jsonl -e half
a model of 2757 tokens needs a tokenizer | --eval four.txt -e plain/model
hellaswag_val.jsonl: a model of 2757 tokens needs a tokenizer | -i train.bin -j val.bin -e l1h1c4 -t 8 -b 1 -h 1
hellaswag_val.jsonl: a model of 50257 tokens needs a tokenizer | -i learn.txt -e d6 -t 8 -b 1 -h 1
-t 9 is longer than the model's 8 positions | --eval four.txt -e half -t 9
is id 2756, but the vocabulary has ids 0 to 255 | --eval val.bin -e half
ROWS

if "$python" -c 'import torch, transformers, tokenizers' 2>/dev/null; then
    report "the numbers of transformers, and of lm-eval if it is installed" "$(
        TRAIN_GPT2=$trainer "$python" "$root/dev/oracle/eval_check.py" "$scratch/check" >"$out" 2>"$err" ||
            tail -n 3 "$err"
        says "$out" "text bits_per_byte"
    )"
    grep '^without the module' "$out"
else
    skip "torch and transformers (scripts/setup.sh peers)" 1 "the numbers of transformers"
fi
end_tests
