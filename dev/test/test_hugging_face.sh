#!/usr/bin/env bash
# A checkpoint's folder in Hugging Face's programs, and theirs here: the tokenizer that travels with a model, the text
# of transformers' pipeline, conversations, lm-eval. `scripts/setup.sh peers` installs torch, transformers and lm_eval;
# without them their part is skipped.
. "$(dirname "$0")/harness.sh"
in_scratch
export LC_ALL=C.UTF-8 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error HF_HUB_DISABLE_PROGRESS_BARS=1
err=$out

# transformers reads the text "<|endoftext|>" as the token
cat "$root"/README.md "$root"/CONTRIBUTING.md "$root"/doc/*.md | sed 's/<|endoftext|>//g' >my.txt
train=(-e l2h2c64 -t 128 -b 8 -l 3e-3 -v 0 -s 0)
report "a byte model and a model of a learned vocabulary train" "$(
    run 0 -i my.txt "${train[@]}" -x 200 -n 200 -o bytes
    run 0 --train-bpe 600 -i my.txt -o tokens
    run 0 --tokenize tokens/my -i my.txt --tokenizer tokens/merges.txt
    run 0 -i 'tokens/my_train_*.bin' "${train[@]}" -x 200 -n 200 -nk 1 -o bpe
)"
bytes=bytes/step_00000200 bpe=bpe/step_00000200

report "the tokenizer travels with the checkpoint" "$(
    mv tokens aside
    for model in bpe "$bpe" "$bpe/model.safetensors"; do
        run 0 --generate 5 -e "$model" --prompt "# The table" --temperature 0
        says "$out" "# The table"
    done
    mv aside tokens
)"
report "a resumed run takes the tokenizer of its last checkpoint" "$(
    mkdir shards && cp tokens/my_train_000001.bin shards/
    cp -r bpe resumed
    run 0 -i 'shards/my_train_*.bin' -o resumed -y 1 -x 202 -s 2 -g 4 --prompt "# Files"
    says "$out" "# Files"
    cmp "$bpe/merges.txt" resumed/step_00000202/merges.txt 2>&1
)"

if "$python" -c 'import transformers' 2>/dev/null; then
    # round_trip.py FOLDER BOS EOS SAVED: decoded text and special ids, as transformers reads the folder; saves it again
    cat >round_trip.py <<'PYTHON'
import json, sys
from transformers import AutoTokenizer, GenerationConfig
folder, bos, eos, saved = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
tokenizer = AutoTokenizer.from_pretrained(folder)
text = "Hello Ċ wörld \n\n ÿ 日本 .  ! it's\tThe 1234\n"
ids = tokenizer(text)["input_ids"]
if folder.startswith("bytes") and ids != list(text.encode()):
    print("other ids than the bytes:", ids)
for skip in False, True:
    if tokenizer.decode(ids, skip_special_tokens=skip) != text:
        print("decoded, skip", skip, repr(tokenizer.decode(ids, skip_special_tokens=skip)))
config = GenerationConfig.from_pretrained(folder)
if (config.bos_token_id, config.eos_token_id) != (bos, eos):
    print("generation_config:", config.bos_token_id, config.eos_token_id, "expected", bos, eos)
if folder.startswith("bytes"):
    name = "a<0xFF>b"  # a token's name in a text is text
    if tokenizer(name)["input_ids"] != list(name.encode()) or tokenizer.decode(list(name.encode())) != name:
        print("the ids of", name, "are", tokenizer(name)["input_ids"])
    if (tokenizer.eos_token_id, tokenizer.pad_token_id) != (255, 255):
        print("the end token is", tokenizer.eos_token_id, "and the padding token", tokenizer.pad_token_id)
    padded = tokenizer(["abcd", "é\n"], padding=True)["input_ids"]
    if padded != [list(b"abcd"), [195, 169, 10, 255]]:
        print("a padded batch:", padded)
if len(tokenizer) != json.load(open(folder + "/config.json"))["vocab_size"]:
    print("a vocabulary of", len(tokenizer))
tokenizer.save_pretrained(saved)
PYTHON
    # ids_of FILE MERGES: the tokens of a text, by --tokenize
    ids_of() {
        rm -rf ids && mkdir ids
        run 0 --tokenize ids/x -i "$1" --tokenizer "$2" --val-share 0
        tail -c +1025 ids/x_train_000001.bin | od -An -v -tu2 -w2 | tr -d ' ' | head -n -1
    }
    report "transformers' tokenizer of a byte model" "$("$python" round_trip.py "$bytes" 10 null saved_bytes 2>&1)"
    report "transformers' tokenizer of a BPE model" "$("$python" round_trip.py "$bpe" 599 599 saved_bpe 2>&1)"
    report "a text has the same ids there and here" "$(
        "$python" -c 'import sys; from transformers import AutoTokenizer
ids = AutoTokenizer.from_pretrained(sys.argv[1])(open("my.txt").read(), verbose=False)["input_ids"]
print(*ids, sep="\n")' "$bpe" >theirs 2>"$out" || cat "$out"
        cmp theirs <(ids_of my.txt "$bpe/merges.txt") 2>&1
    )"
    report "the tokenizer.json that transformers saves is read" "$(
        [ -f saved_bpe/tokenizer.json ] || echo "transformers saved: $(ls saved_bpe)"
        cmp theirs <(ids_of my.txt saved_bpe/tokenizer.json) 2>&1
    )"
else
    skip "the Python package transformers (scripts/setup.sh all)" 4 "its tokenizers"
fi

if "$python" -c 'import transformers, torch' 2>/dev/null; then
    cat >pipeline.py <<'PYTHON'
import sys
from transformers import pipeline
generate = pipeline("text-generation", sys.argv[1], device="cpu")
for prompt in sys.argv[2:]:
    print(generate(prompt, max_new_tokens=64, do_sample=False)[0]["generated_text"], end="\n---\n")
PYTHON
    for model in "$bytes" "$bpe"; do
        report "the greedy text of transformers' pipeline is that of --generate: ${model%/*}" "$(
            prompts=("# The " "the loss of" $'a file\n')
            "$python" pipeline.py "$model" "${prompts[@]}" >theirs 2>"$out" || cat "$out"
            for prompt in "${prompts[@]}"; do
                "$trainer" --generate 64 -e "$model" --temperature 0 --prompt "$prompt" && echo ---
            done >ours 2>"$out" || cat "$out"
            cmp theirs ours 2>&1 || head -n 8 theirs ours
        )"
    done
    cat >talks.py <<'PYTHON'
"""The mean loss of the answers in talks.jsonl, each conversation by the template of a folder."""
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])

def ids(messages, cue):
    return tokenizer.apply_chat_template(messages, add_generation_prompt=cue, tokenize=True, return_dict=False)

loss = targets = 0
for talk in map(json.loads, open("talks.jsonl")):
    messages = talk["messages"]
    whole = ids(messages, False)
    with torch.no_grad():
        logits = model(torch.tensor([whole])).logits[0]
    for i in range(len(messages)):
        if messages[i]["role"] != "assistant":
            continue
        asked, answered = ids(messages[:i], True), ids(messages[:i + 1], False)
        if whole[:len(asked)] != asked or whole[:len(answered)] != answered:
            print("the template with an answer does not begin as without:", asked, answered)
        here = slice(len(asked), len(answered))
        loss += torch.nn.functional.cross_entropy(logits[here.start - 1:here.stop - 1], torch.tensor(whole[here]),
                                                  reduction="sum").item()
        targets += here.stop - here.start
print(loss / targets)
PYTHON
    python3 - >talks.jsonl <<'PYTHON'
import json
turns = [["system", "Be\nbrief."], ["user", "The loss?"], ["assistant", "(Nats) per token."],
         ["user", "2:\n\n- wörld?"], ["assistant", "  No.\n日本"]]
for talk in turns, turns[1:], turns[1:3], turns[3:], [turns[0], turns[3], turns[2]]:
    print(json.dumps({"messages": [{"role": role, "content": text} for role, text in talk]}))
PYTHON
    # the tolerance is for the order of sums in fp32, about 1e-7 of the loss for each of a few operations
    for model in "$bytes" "$bpe"; do
        report "conversations by transformers' chat template have the trainer's loss: ${model%/*}" "$(
            run 0 -i talks.jsonl -j talks.jsonl -e "$model" -t 128 -b 2 -d 256 -x 1 -v 1 -m -1 -s 0 \
                -o "talks_${model%/*}"
            theirs=$("$python" talks.py "$model" 2>"$out") || cat "$out"
            ours=$(sed -nE 's/.*"step":0,"val_loss":([^,}]*).*/\1/p' "talks_${model%/*}/metrics.jsonl")
            awk -v ours="$ours" -v theirs="$theirs" 'BEGIN {
                d = ours - theirs
                if (!(ours > 0) || d > 1e-5 || d < -1e-5) print "loss", ours, "expected", theirs
            }'
        )"
    done
    report "a folder that transformers saves is read here" "$(
        "$python" - "$bpe" saved_model >"$out" 2>&1 <<'PYTHON' || cat "$out"
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
AutoModelForCausalLM.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
PYTHON
        for model in "$bpe" saved_model; do
            run 0 --generate 64 -e "$model" --temperature 0 --prompt "the model"
            cp "$out" "text_${model%%/*}"
        done
        cmp text_bpe text_saved_model 2>&1
    )"
    if "$python" -c 'import lm_eval, accelerate' 2>/dev/null; then
        report "lm-evaluation-harness scores a byte model's folder as --eval does" "$(
            TRAIN_GPT2=$trainer "$python" "$root/dev/oracle/eval_check.py" lm_eval "$bytes" >"$out" 2>trouble ||
                tail -n 3 trouble
            says "$out" "lm-eval documents bits_per_byte"
        )"
    else
        skip "lm_eval and accelerate (scripts/setup.sh peers)" 1 "lm-eval of a byte model"
    fi
else
    skip "torch and transformers (scripts/setup.sh peers)" 5 "the texts of transformers' pipeline"
fi
end_tests
