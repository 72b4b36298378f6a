#!/usr/bin/env bash
# Tokenizers as their owners publish them, on the command line: ids of vocab.json, added and special tokens in text,
# prompt, export and checkpoint. With the Python packages of `scripts/setup.sh all`, every form of
# dev/oracle/tokenizer_check.py is compared with transformers.
. "$(dirname "$0")/harness.sh"
in_scratch
export LC_ALL=C.UTF-8
dump=$root/build/test/dump_tokens

for ((i = 0; i < 3000; i++)); do echo "line $i: the cat $((i % 7)) sat on the mat $((i % 5))."; done >text.txt
run 0 --train-bpe 300 -i text.txt -o learned

# roberta FOLDER: the learned tokens five ids higher, behind the special tokens of RoBERTa's vocabulary
roberta() {
    mkdir "$1" && cp learned/merges.txt "$1" && python3 - "$1" <<'PYTHON'
import json, sys
vocab = json.load(open("learned/vocab.json", encoding="utf-8"))
vocab.pop("<|endoftext|>")
special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4}
with open(sys.argv[1] + "/vocab.json", "w", encoding="utf-8") as file:
    json.dump({**special, **{name: i + 5 for name, i in vocab.items()}}, file, ensure_ascii=False)
with open(sys.argv[1] + "/special_tokens_map.json", "w", encoding="utf-8") as file:
    json.dump({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>", "pad_token": "<pad>",
               "additional_special_tokens": ["<mask>"]}, file)
PYTHON
}
# ids SHARD [COUNT]: the first ids of a shard
ids() { od -An -tu2 -v -j1024 -N$((2 * ${2:-1000})) "$1" | tr -s ' \n' ' '; }
# shifted IDS: ids five higher
shifted() { for id in $1; do echo -n " $((id + 5))"; done; }
tokenize() { run 0 --tokenize "$1" -i "$2" --tokenizer "$3" --val-share 0; }
roberta roberta

report "vocab.json beside merges.txt decides the ids" "$(
    head -n 20 text.txt >short.txt
    tokenize plain short.txt learned/merges.txt
    tokenize moved short.txt roberta/merges.txt
    plain=$(ids plain_train_000001.bin) moved=$(ids moved_train_000001.bin)
    equal "$(tr -d ' ' <<<"${moved% 2 }")" "$(shifted "${plain% 299 }" | tr -d ' ')"
    equal "${moved: -3}" " 2 " # a document ends with </s>
    tokenize named short.txt roberta/vocab.json
    same moved_train_000001.bin named_train_000001.bin
    tokenize folder short.txt roberta
    same moved_train_000001.bin folder_train_000001.bin
    equal "$(printf "%s " ./*_merges.txt ./*_tokenizer.json)" \
        "./plain_merges.txt ./folder_tokenizer.json ./moved_tokenizer.json ./named_tokenizer.json "
)"
report "a line that is a special token ends a document; within a line it is text, with one note" "$(
    printf 'a<s>b\n<|endoftext|>\n</s>c <mask>\n</s>\r\nd <s></s>\n' >special.txt
    tokenize special special.txt roberta
    says "$out" "3 documents"
    says "$out" "note      5 special tokens, such as <|endoftext|>, inside the text: read as characters"
    equal "$(ids special_train_000001.bin | grep -o ' 2 ' | wc -l)" 3
    equal "$(grep -c ^note "$out")" 1
    run 0 -i 'moved_train_*.bin' -e l1h1c16 -b 1 -t 16 -x 1 -v 0 -s 0 -n 1 -o run
    run 0 --eval special.txt -e run
    says "$err" "note      5 special tokens"
)"
report "a prompt reads a special token as one, and an added token prints as itself" "$(
    printf '<s>the cat<mask>' | "$dump" roberta >"$out"
    matches "$out" '"prompt":\[0,[0-9,]*,4\]'
    lacks "$out" '"text":\[0,'
    run 0 --generate 1 -e run --prompt 'the<mask>' --temperature 0
    says "$out" 'the<mask>'
)"
report "a checkpoint and the shards keep ids and added tokens" "$(
    equal "$(ls run/step_00000001/{tokenizer.json,merges.txt} 2>/dev/null)" run/step_00000001/tokenizer.json
    printf 'the cat<mask> sat</s>' >prompt.txt
    "$dump" roberta <prompt.txt >"$out"
    for copy in run/step_00000001 moved_tokenizer.json; do "$dump" "$copy" <prompt.txt | cmp - "$out" 2>&1; done
    mv roberta aside
    run 0 --eval moved_train_000001.bin -e run
    mv aside roberta
    says "$out" "bytes            $(wc -c <short.txt)"
)"
report "eos_token_id of config.json ends a text" "$(
    cp -r run/step_00000001 eos && rm eos/manifest.json
    run 0 --generate 20 -e eos --prompt the --temperature 0
    first=$(sed 's/^the//' "$out")
    [ -n "$first" ] || cat "$out"
    "$dump" eos < <(printf '%s' "$first") >ids.txt
    id=$(grep -oE '"prompt":\[[0-9]+' ids.txt | grep -oE '[0-9]+$')
    sed -i -E "s/\"eos_token_id\":[[:space:]]*[0-9]+/\"eos_token_id\": $id/" eos/config.json
    run 0 --generate 20 -e eos --prompt the --temperature 0
    equal "$(cat "$out")" the
)"
report "undeclared names are text, as in transformers; a tokenizer in GPT-2's order keeps the name of its end" "$(
    mkdir bare && cp roberta/{vocab.json,merges.txt} bare
    printf '<s>the</s>' | "$dump" bare >"$out"
    lacks "$out" '"prompt":\[0,'
    matches "$out" '"prompt":\[.*,2\],' # </s> is end-of-text
    mkdir named && cp learned/merges.txt named
    sed 's/<|endoftext|>/<\/s>/' learned/vocab.json >named/vocab.json
    tokenize named_out short.txt named
    [ -e named_out_tokenizer.json ] || echo "the merges alone were written"
    printf 'a</s>' | "$dump" named >"$out"
    printf 'a</s>' | "$dump" named_out_tokenizer.json | cmp - "$out" 2>&1
    matches "$out" ',299\],"decoded":"613c2f733e","end":299'
)"
report "added tokens without a row in the model are left out; a tokenizer of another kind is not used" "$(
    cp -r run/step_00000001 pad && rm pad/manifest.json
    python3 - <<'PYTHON'
import json
with open("pad/tokenizer.json", encoding="utf-8") as file:
    tokenizer = json.load(file)
tokenizer["added_tokens"].append({"id": 304, "content": "[PAD]", "special": True})
with open("pad/tokenizer.json", "w", encoding="utf-8") as file:
    json.dump(tokenizer, file)
tokenizer["normalizer"] = {"type": "NFC"}
with open("foreign.json", "w", encoding="utf-8") as file:
    json.dump(tokenizer, file)
PYTHON
    tokenize padded short.txt pad
    run 0 -i 'padded_train_*.bin' -e pad -b 1 -t 16 -x 1 -v 0 -s 0
    says "$out" "note      the vocabulary of the data is not the model's: an id may be another token there"
    run 0 --eval padded_train_000001.bin -e pad -t 16
    says "$err" "note      the vocabulary of the data is not the model's: an id may be another token there"
    run 0 --generate 1 -e pad --prompt 'the[PAD]'
    says "$err" "note      the model has no embeddings from id 304 on: 1 of the tokenizer's added tokens"
    cp foreign.json pad/tokenizer.json
    run 2 --generate 1 -e pad --prompt the
    says "$err" "'pad/tokenizer.json' is not used: it has {\"type\":\"NFC\"} as \"normalizer\", unlike GPT-2's"
    run 0 -i 'moved_train_*.bin' --tokenizer '' -e pad -b 1 -t 16 -x 1 -v 0 -s 0
)"

if "$python" -c 'import transformers, gguf' 2>/dev/null; then
    report "GGUF: special tokens are control tokens, and the end is eos_token_id" "$(
        run 0 --export gguf -e run -o run.gguf
        "$python" - 2>&1 <<'PYTHON'
import json
import gguf
fields = gguf.GGUFReader("run.gguf").fields
def of(name):
    return fields["tokenizer.ggml." + name].contents()
vocab = json.load(open("roberta/vocab.json", encoding="utf-8"))
if of("tokens") != sorted(vocab, key=vocab.get):
    print("tokens", of("tokens")[:10])
if of("token_type") != [3] * 5 + [1] * 299:
    print("types", of("token_type")[:10])
if (of("bos_token_id"), of("eos_token_id")) != (2, 2):
    print("ids", of("bos_token_id"), of("eos_token_id"))
if of("merges") != open("learned/merges.txt", encoding="utf-8").read().splitlines()[1:]:
    print("merges", of("merges")[:5])
PYTHON
    )"
    report "transformers reads the checkpoint's tokenizer alike" "$(
        "$python" - 2>/dev/null <<'PYTHON'
import json, subprocess
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("run/step_00000001")
text = "line 7: the cat<mask> sat</s>"
ids = tokenizer(text)["input_ids"]
vocab = json.load(open("roberta/vocab.json", encoding="utf-8"))
if vocab["<mask>"] not in ids or ids[-1] != 2 or tokenizer.decode(ids) != text or tokenizer.eos_token_id != 2:
    print(ids, repr(tokenizer.decode(ids)), tokenizer.eos_token_id)
PYTHON
    )"
    "$python" "$root/dev/oracle/tokenizer_check.py" "$dump" forms >forms.txt 2>"$err" || true
    while IFS=: read -r form result; do
        [[ $result == ' the same ids' ]] && result=
        report "as in transformers: $form" "$result"
    done <forms.txt
    report "all forms were checked" "$(equal "$(grep -c . forms.txt)" "$(grep -cE '^def [a-z0-9_]+\(folder\):' \
        "$root/dev/oracle/tokenizer_check.py")")"
else
    skip "transformers of scripts/setup.sh all" 18 comparisons
fi
end_tests
