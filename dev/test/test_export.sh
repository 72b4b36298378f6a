#!/usr/bin/env bash
# --export: each key and tensor of the files, types, tokenizers, bad input and a full disk. With the Python packages
# gguf and llama-cpp-python, also gguf's reading, and llama.cpp's tokens, greedy text and losses, for byte models,
# models of GPT-2's vocabulary and of a vocabulary of --train-bpe.
. "$(dirname "$0")/harness.sh"
in_scratch
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
err=$out
weights=$("$trainer" --version | sed 's/.*: weights \([A-Z0-9]*\),.*/\1/')
model_files=$root/dev/oracle/model_files.py

no_leftovers() { find . -name '*.part' | sed 's/^/left behind: /'; }
has_package() { "$python" -c "import $1" 2>/dev/null; }
# check ARGUMENTS...: the output of gguf_check.py; plain: without packages
check() { "$python" "$root/dev/oracle/gguf_check.py" "$@" 2>errors || echo "gguf_check.py $1: $(tail -n 3 errors)"; }
plain() { python=python3 check "$@"; }
# equals READER MODEL.gguf FOLDER TYPES: a sentence unless the file has the numbers of FOLDER, in TYPES
equals() {
    "${@:1:2}" "$3" "$4" >"$out"
    says "$out" "equal: $5"
}

# ---- models that know their text by heart, so that the likeliest token is far ahead of the second

for _ in {1..60}; do
    cat <<'END'
It was late when the old sailor came down to the harbour, and 12 boats lay there.
"Where's the wind?" he asked; nobody answered him. Über den Wellen zog ein Möwenpaar, 海は静か。

END
done >text.txt
train=(-e l2h4c64 -l 1e-2 -u 20 -q 0.1 -b 4 -t 128 -v 0 -s 0)
"$trainer" -i text.txt "${train[@]}" -x 150 -n 150 -o bytes >"$out" 2>&1
report "a byte model is trained" "$([ -d bytes/step_00000150 ] || echo "no checkpoint")"

# trained_on MERGES NAME: a model with the vocabulary of MERGES, trained on the text
trained_on() {
    "$trainer" -i text.txt --tokenizer "$1" --tokenize "$2/text" --val-share 0 >"$out" 2>&1 &&
        "$trainer" -i "$2/text_train_*.bin" -j "$2/text_train_*.bin" "${train[@]}" -x 60 -n 60 -o "$2/run" >"$out" 2>&1
    [ -d "$2/run/step_00000060" ] || echo "no checkpoint of $2"
}
gpt2_merges=$merges
[ ! -f "$root/../shared/data/vocab.bpe" ] || gpt2_merges=$root/../shared/data/vocab.bpe
mkdir learned gpt2
report "models of two vocabularies are trained" "$(
    run 0 --train-bpe 300 -i text.txt -o learned
    trained_on learned/merges.txt learned
    trained_on "$gpt2_merges" gpt2
)"

# ---- files

# bytes_F32 and so on: the byte model in each type
report "each type, under its name; a GGUF file is replaced" "$(
    for type in F32 F16 BF16; do
        python3 "$model_files" bytes/step_00000150 bytes_$type $type || echo "no folder"
        run 0 --export gguf -e bytes_$type -o bytes_$type.gguf
        says "$out" "bytes_$type.gguf: 125K parameters, 256 tokens"
        [ "$(head -c 4 bytes_$type.gguf)" = GGUF ] || echo "bytes_$type.gguf begins with other bytes"
    done
    cp bytes_F16.gguf again.gguf
    run 0 --export gguf -e bytes_F32/model.safetensors -o again.gguf
    cmp <(tail -c 100000 again.gguf) <(tail -c 100000 bytes_F32.gguf) 2>&1
    no_leftovers
)"
report "bad input" "$(
    refuses() {
        run 2 --export gguf "${@:2}"
        says "$out" "$1"
    }
    cp text.txt text_before.txt
    refuses "--export needs --output, -o: add it" -e bytes
    refuses "--export needs --model, -e: add it" -o x.gguf
    refuses "only describes a shape" -e d12 -o x.gguf
    refuses "-o text.txt exists and is no GGUF file" -e bytes -o text.txt
    refuses "-o bytes exists and is no GGUF file" -e bytes -o bytes
    refuses "could not be written: No such file or directory" -e bytes -o absent/x.gguf
    mkdir bare && cp learned/run/step_00000060/{model.safetensors,config.json} bare
    refuses "a model of 300 tokens needs a tokenizer; give the merges.txt or tokenizer.json" -e bare -o x.gguf
    refuses "has 300 tokens and the model 256" -e bytes -o x.gguf --tokenizer learned/merges.txt
    refuses "found 2: start it without mpirun" -e bytes -o x.gguf -pn 2 -pi fs -pf .
    run 2 --export pth -e bytes -o x.gguf
    says "$out" "gguf"
    [ ! -e x.gguf ] || echo "x.gguf was written"
    cmp text.txt text_before.txt 2>&1
    no_leftovers
)"
report "llm.c's file has the bytes of an independent writer: BF16, else F32" "$(
    for type in F32 F16 BF16; do
        words=()
        [ $type != BF16 ] || words=(bf16)
        run 0 --export llmc -e bytes_$type -o ours_$type.bin
        says "$out" "ours_$type.bin: 125K parameters, 256 tokens"
        python3 "$model_files" bytes_$type theirs_$type.bin "${words[@]}" || echo "no file"
        cmp theirs_$type.bin ours_$type.bin 2>&1
    done
    run 0 --export llmc -e ours_F32.bin -o ours_F32.bin.copy
    cmp ours_F32.bin ours_F32.bin.copy 2>&1
    run 2 --export llmc -e bytes -o bytes_F16.gguf
    says "$out" "is no model file of llm.c"
    run 2 --export llmc -e bytes -o absent/x.bin
    says "$out" "-o absent/x.bin could not be written: No such file or directory"
    no_leftovers
)"
report "a full disk leaves no file, and an old file as it is" "$(
    for format in gguf llmc; do
        old=$([ $format = gguf ] && echo bytes_F16.gguf || echo ours_BF16.bin)
        cp "$old" old
        status=0
        (ulimit -f 100 && "$trainer" --export $format -e bytes -o old) >"$out" 2>&1 || status=$?
        [ $status -eq 1 ] || echo "exit status $status"
        says "$out" "could not write 'old': File too large; make room or check the disk, then export again"
        cmp old "$old" 2>&1
    done
    no_leftovers
)"

# ---- contents of the files

all_equal() { # READER
    equals "$@" bytes_F32.gguf bytes_F32 "28 F32"
    equals "$@" bytes_F16.gguf bytes_F16 "9 F16, 19 F32"
    equals "$@" bytes_BF16.gguf bytes_BF16 "9 BF16, 19 F32"
    equals "$@" odd.gguf odd/step_00000001 "$([ "$weights" = F32 ] && echo "16 F32" || echo "5 BF16, 11 F32")"
}
report "each name, size and number, in each type" "$(
    # tables of more than 2^20 elements, which are read in parts
    run 0 -i text.txt -e l1h4c528 -b 1 -t 16 -x 1 -n 1 -v 0 -s 0 -o odd
    run 0 --export gguf -e odd -o odd.gguf
    all_equal plain numbers
)"
report "the keys: name, tokens, types, merges, a vocabulary larger than the tokenizer" "$(
    run 0 --train-bpe 280 -i text.txt -o small
    run 0 --export gguf -e learned/run -o padded.gguf --tokenizer small/merges.txt
    plain keys padded.gguf >keys.json
    python3 - keys.json small "$([ "$weights" = F32 ] && echo 0 || echo 32)" <<'END' 2>&1
import json, pathlib, struct, sys
found = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
folder = pathlib.Path(sys.argv[2])
vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
expected = {
    "general.architecture": "gpt2", "general.type": "model",
    "general.name": "run", "general.file_type": int(sys.argv[3]),
    "general.quantization_version": 2, "gpt2.block_count": 2, "gpt2.context_length": 128, "gpt2.embedding_length": 64,
    "gpt2.feed_forward_length": 256, "gpt2.attention.head_count": 4,
    "gpt2.attention.layer_norm_epsilon": struct.unpack("<f", struct.pack("<f", 1e-5))[0],
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": sorted(vocab, key=vocab.get) + [f"[PAD{i}]" for i in range(280, 300)],
    "tokenizer.ggml.token_type": [1] * 279 + [3] + [5] * 20,
    "tokenizer.ggml.merges": (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:],
    "tokenizer.ggml.bos_token_id": 279, "tokenizer.ggml.eos_token_id": 279, "tokenizer.ggml.add_bos_token": False}
for name in sorted(expected.keys() | found.keys()):
    if found.get(name) != expected.get(name):
        print(f"{name} is {found.get(name)}, expected {expected.get(name)}")
END
    for type in F32:0 F16:1 BF16:32; do
        plain keys bytes_${type%:*}.gguf >"$out"
        says "$out" "\"general.file_type\": ${type#*:},"
        says "$out" "\"general.name\": \"bytes_${type%:*}\","
    done
    plain keys bytes_F16.gguf >"$out"
    says "$out" '"tokenizer.ggml.merges": [], "tokenizer.ggml.bos_token_id": 10, "tokenizer.ggml.eos_token_id": 0'
)"

# ---- the Python package gguf

if has_package gguf; then
    report "gguf reads each tensor" "$(all_equal check tensors)"
    report "gguf reads the same keys" "$(
        "$python" - padded.gguf keys.json <<'END' 2>&1
import json, sys
from gguf import GGUFReader
expected = json.load(open(sys.argv[2], encoding="utf-8"))
found = {name: field.contents() for name, field in GGUFReader(sys.argv[1]).fields.items()
         if not name.startswith("GGUF.")}
for name in sorted(expected.keys() | found.keys()):
    if found.get(name) != expected.get(name):
        print(f"{name} is {found.get(name)}, expected {expected.get(name)}")
END
    )"
else
    skip "the Python package gguf (scripts/setup.sh all)" 2 "gguf's reading"
fi

# ---- llama.cpp

if ! has_package llama_cpp; then
    skip "llama-cpp-python (scripts/setup.sh peers)" 3 "llama.cpp"
    end_tests
    exit
fi

# letters, numbers, contractions, spaces of all kinds, CJK, emoji, a control character and, for bytes, an end-of-text
printf 'It'\''s  12\tboats,\n\n  naïve “café” 漢字かな 🚀é\001\r\n x=3.14;\n<|endoftext|> I'\''LL they'\''ve\n ' >mixed.txt
report "llama.cpp's tokens of mixed text: each byte, or the ids of --tokenize" "$(
    check tokens bytes_F32.gguf mixed.txt >ids
    cmp ids <("$python" -c 'import sys; sys.stdout.buffer.write(bytes(x for b in open("mixed.txt", "rb").read()
                            for x in (b, 0)))') 2>&1
    grep -v endoftext mixed.txt >plain.txt
    for name in learned gpt2; do
        merges=$([ $name = gpt2 ] && echo "$gpt2_merges" || echo learned/merges.txt)
        run 0 --export gguf -e $name/run -o $name.gguf
        run 0 -i plain.txt --tokenizer "$merges" --tokenize $name/plain --val-share 0
        check tokens $name.gguf plain.txt >ids
        cmp ids <(tail -c +1025 $name/plain_train_000001.bin | head -c -2) 2>&1 # without end-of-text
    done
)"
# a build for bf16 also rounds activations, so that its likeliest token may be another
[ "$weights" != F32 ] || report "llama.cpp's greedy text is that of --generate" "$(
    same_text() { # NAME RUN PROMPT
        run 0 --generate 64 -e "$2" --prompt "$3" --temperature 0
        check generate "$1.gguf" 64 "$3" >text
        cmp text "$out" 2>&1 || head -c 400 text "$out"
    }
    for prompt in "It was" "asked; nobody" "zog ein Mö"; do
        same_text bytes_F32 bytes "$prompt"
        same_text learned learned/run "$prompt"
        same_text gpt2 gpt2/run "$prompt"
    done
    for run in bytes learned/run gpt2/run; do
        tail -n 1 $run/metrics.jsonl | awk -F'"loss":|,' -v run=$run '{ if ($3 > 0.3) { print run ": loss " $3 } }'
    done
)"
# a weight's relative error is up to 2^-11 in f16, and 2^-8 in bf16
report "the loss in f16 and bf16 is close to that in f32" "$(
    close() { # NAME BOUND
        check loss "$1.gguf" text.txt >loss.txt
        awk -v loss="$(cat loss.txt)" -v expected="$(cat expected)" -v bound="$2" -v name="$1" 'BEGIN {
            if (!(loss - expected < bound && expected - loss < bound)) {
                print name ": loss " loss ", expected " expected " within " bound } }'
    }
    check loss bytes_F32.gguf text.txt >expected
    close bytes_F16 0.002
    close bytes_BF16 0.02
)"
end_tests
