#!/usr/bin/env bash
# --export: each key and tensor of the files, types, tokenizers, bad input and a full disk. With the Python packages
# gguf and llama-cpp-python, also gguf's reading, and llama.cpp's tokens, greedy text and losses, for byte models,
# models of GPT-2's vocabulary and of a vocabulary of --train-bpe.
#   PYTHON=build/py/bin/python3 dev/test/test_export.sh
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

root=$(realpath "$(dirname "$0")/../..")
trainer=$(realpath "${TRAINER:-./train_gpt2}")
python=${PYTHON:-$root/build/py/bin/python3}
weights=$("$trainer" --version | sed 's/.*: weights \([A-Z0-9]*\),.*/\1/')
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
scratch=$(mktemp -d) out=$scratch/out
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1

# run STATUS ARGUMENTS...: a sentence unless the trainer exits with STATUS
run() {
    local status=0
    "$trainer" "${@:2}" >"$out" 2>&1 </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$out"; }
}
says() { grep -qF -- "$1" "$out" || { echo "expected '$1' in:" && head -n 8 "$out"; }; }
no_leftovers() { find . -name '*.part' | sed 's/^/left behind: /'; }
has_package() { "$python" -c "import $1" 2>/dev/null; }
# check ARGUMENTS...: the output of gguf_check.py; plain: without packages
check() { "$python" "$root/dev/oracle/gguf_check.py" "$@" 2>errors || echo "gguf_check.py $1: $(tail -n 3 errors)"; }
plain() { python=python3 check "$@"; }
# equals READER MODEL.gguf FOLDER TYPES: a sentence unless the file has the numbers of FOLDER, in TYPES
equals() {
    "${@:1:2}" "$3" "$4" >"$out"
    says "equal: $5"
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
gpt2_merges=$root/dev/test/golden/gpt2_2500.bpe
[ ! -f "$root/../shared/data/vocab.bpe" ] || gpt2_merges=$root/../shared/data/vocab.bpe
mkdir learned gpt2
report "models of two vocabularies are trained" "$(
    run 0 --train-bpe 300 -i text.txt -o learned
    trained_on learned/merges.txt learned
    trained_on "$gpt2_merges" gpt2
)"

# ---- files

report "each type, under its name; a GGUF file is replaced" "$(
    for type in f32 f16 bf16 q8_0; do
        run 0 --export gguf -e bytes -o bytes_$type.gguf --type $type
        says "bytes_$type.gguf: 0.1M parameters as $type, 256 tokens"
        [ "$(head -c 4 bytes_$type.gguf)" = GGUF ] || echo "bytes_$type.gguf begins with other bytes"
    done
    cp bytes_q8_0.gguf again.gguf
    run 0 --export gguf -e bytes/step_00000150/model.safetensors -o again.gguf
    says "as ${weights,,},"
    run 0 --export gguf -e bytes/step_00000150/model.safetensors -o again.gguf --type f32
    cmp <(tail -c 100000 again.gguf) <(tail -c 100000 bytes_f32.gguf) 2>&1
    no_leftovers
)"
report "bad input" "$(
    refuses() {
        run 2 --export gguf "${@:2}"
        says "$1"
    }
    cp text.txt text_before.txt
    refuses "give both" -e bytes
    refuses "give both" -o x.gguf
    refuses "only describes a shape" -e d12 -o x.gguf
    refuses "-o text.txt exists and is no GGUF file" -e bytes -o text.txt
    refuses "-o bytes exists and is no GGUF file" -e bytes -o bytes
    refuses "could not be written: No such file or directory" -e bytes -o absent/x.gguf
    mkdir bare && cp learned/run/step_00000060/{model.safetensors,config.json} bare
    refuses "a model of 300 tokens needs one: give the merges.txt or tokenizer.json" -e bare -o x.gguf
    refuses "has 300 tokens and the model 256" -e bytes -o x.gguf --tokenizer learned/merges.txt
    refuses "found 2: start it without mpirun" -e bytes -o x.gguf -pn 2 -pi fs -pf .
    run 2 --export pth -e bytes -o x.gguf
    says "gguf"
    run 2 -i text.txt --type f16
    says "give --export as well"
    [ ! -e x.gguf ] || echo "x.gguf was written"
    cmp text.txt text_before.txt 2>&1
    no_leftovers
)"
report "llm.c's file has the bytes of an independent writer" "$(
    for type in f32 bf16; do
        words=()
        [ $type = f32 ] || words=(bf16)
        run 0 --export llmc -e bytes -o ours_$type.bin --type $type
        says "ours_$type.bin: 0.1M parameters as $type, 256 tokens"
        python3 "$root/dev/oracle/model_files.py" bytes/step_00000150 theirs_$type.bin "${words[@]}" || echo "no file"
        cmp theirs_$type.bin ours_$type.bin 2>&1
    done
    run 0 --export llmc -e ours_f32.bin -o ours_f32.bin.copy
    cmp ours_f32.bin ours_f32.bin.copy 2>&1
    run 2 --export llmc -e bytes -o x.bin --type q8_0
    says "give --type f32 or --type bf16"
    run 2 --export llmc -e bytes -o bytes_f16.gguf
    says "is no model file of llm.c"
    run 2 --export llmc -e bytes -o absent/x.bin
    says "-o absent/x.bin could not be written: No such file or directory"
    no_leftovers
)"
# poisoned FOLDER TENSOR ELEMENT NUMBER: bytes/ as FOLDER, with one other number
poisoned() {
    mkdir "$1" && cp bytes/step_00000150/{config.json,model.safetensors} "$1"
    python3 - "$@" <<'END'
import json, struct, sys
path, name, element, number = sys.argv[1] + "/model.safetensors", sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
with open(path, "r+b") as file:
    length = struct.unpack("<Q", file.read(8))[0]
    entry = json.loads(file.read(length))[name]
    size = {"F32": 4, "BF16": 2}[entry["dtype"]]
    file.seek(8 + length + entry["data_offsets"][0] + element * size)
    file.write(struct.pack("<f", number)[4 - size:])
END
}
report "refused: numbers that a type cannot hold; the old file stays" "$(
    poisoned nan h.1.attn.c_attn.weight 1000 nan
    poisoned large wte.weight 6401 70144
    poisoned infinite ln_f.bias 3 -inf
    refuses() { # FORMAT TYPE FOLDER SENTENCE
        run 2 --export "$1" -e "$3" -o old --type "$2"
        says "-e: tensor $4"
    }
    for format in gguf llmc; do
        old=$([ $format = gguf ] && echo bytes_q8_0.gguf || echo ours_bf16.bin)
        cp "$old" old
        for type in f32 bf16; do
            refuses $format $type nan "h.1.attn.c_attn.weight of 'nan/model.safetensors', element 1000, is"
            says "nan, which $type cannot hold; give another model"
            refuses $format $type infinite "ln_f.bias of 'infinite/model.safetensors', element 3, is -inf, which"
        done
        cmp old "$old" 2>&1
    done
    cp bytes_q8_0.gguf old
    refuses gguf q8_0 nan "h.1.attn.c_attn.weight of 'nan/model.safetensors', element 1000, is"
    says "nan, which q8_0 cannot hold; give another model"
    refuses gguf f16 large "wte.weight of 'large/model.safetensors', element 6401, is 70144, which f16 cannot hold; \
give --type f32"
    cmp old bytes_q8_0.gguf 2>&1
    run 0 --export gguf -e large -o large.gguf --type q8_0
    no_leftovers
)"
report "the memory does not grow with the model" "$(
    # model_of_zeros FOLDER CHANNELS: a model of zeros, a file without blocks on the disk
    model_of_zeros() {
        mkdir "$1" && python3 - "$@" <<'END'
import json, os, struct, sys
folder, C, L = sys.argv[1], int(sys.argv[2]), 1
shapes = {"wte.weight": [256, C], "wpe.weight": [128, C], "ln_f.weight": [C], "ln_f.bias": [C]}
for name, shape in {"ln_1": [C], "ln_2": [C], "attn.c_attn": [C, 3 * C], "attn.c_proj": [C, C],
                    "mlp.c_fc": [C, 4 * C], "mlp.c_proj": [4 * C, C]}.items():
    shapes.update({f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[-1:]})
header, end = {}, 0
for name, shape in shapes.items():
    begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
text = json.dumps(header).encode()
with open(folder + "/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + end)
with open(folder + "/config.json", "w") as file:
    json.dump({"n_layer": L, "n_head": C // 32, "n_embd": C, "n_positions": 128, "vocab_size": 256}, file)
END
    }
    # most_memory COMMAND...: KiB
    most_memory() {
        python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$@"
    }
    model_of_zeros small_zeros 64
    model_of_zeros large_zeros 1536 # its largest tensor has 37.7 MB
    for format in gguf llmc; do
        small=$(most_memory "$trainer" --export $format -e small_zeros -o zeros.$format --type f32)
        large=$(most_memory "$trainer" --export $format -e large_zeros -o zeros.$format --type f32)
        [ "${large:-999999}" -lt $((small + 12000)) ] || echo "$format: $small KiB, and $large for the larger model"
        rm -f zeros.$format
    done
)"
report "a full disk leaves no file, and an old file as it is" "$(
    for format in gguf llmc; do
        old=$([ $format = gguf ] && echo bytes_q8_0.gguf || echo ours_bf16.bin)
        cp "$old" old
        status=0
        (ulimit -f 100 && "$trainer" --export $format -e bytes -o old) >"$out" 2>&1 || status=$?
        [ $status -eq 1 ] || echo "exit status $status"
        says "could not write 'old': File too large; the unfinished file is deleted: make room, then export again"
        cmp old "$old" 2>&1
    done
    no_leftovers
)"

# ---- what the files hold

all_equal() { # READER
    equals "$@" bytes_f32.gguf bytes/step_00000150 "28 F32"
    equals "$@" bytes_f16.gguf bytes/step_00000150 "9 F16, 19 F32"
    equals "$@" bytes_bf16.gguf bytes/step_00000150 "9 BF16, 19 F32"
    equals "$@" bytes_q8_0.gguf bytes/step_00000150 "19 F32, 9 Q8_0"
    equals "$@" odd.gguf odd/step_00000001 "4 F16, 11 F32, 1 Q8_0"
}
report "each name, size and number: all types, rows that are no multiple of 32" "$(
    # larger than what is read at a time; 272 is no multiple of 32, and a row of ffn_down has 1088 numbers
    run 0 -i text.txt -e l1h4c272 -b 1 -t 16 -x 1 -n 1 -v 0 -s 0 -o odd
    run 0 --export gguf -e odd -o odd.gguf --type q8_0
    all_equal plain numbers
)"
report "without --type: the type of the weights" "$(
    for stored in BF16 F16; do
        python3 "$root/dev/oracle/model_files.py" bytes/step_00000150 stored_$stored $stored || echo "no folder"
        run 0 --export gguf -e stored_$stored -o stored.gguf
        says "as ${stored,,},"
        equals plain numbers stored.gguf stored_$stored "$(
            [ $stored = F16 ] && echo "9 F16, 19 F32" || echo "9 BF16, 19 F32"
        )"
        run 0 --export llmc -e stored_$stored -o stored.bin
        says "as $([ $stored = F16 ] && echo f32 || echo bf16),"
        words=()
        [ $stored = F16 ] || words=(bf16)
        python3 "$root/dev/oracle/model_files.py" stored_$stored expected.bin "${words[@]}" || echo "no file"
        cmp expected.bin stored.bin 2>&1
        rm stored.gguf stored.bin
    done
)"
report "the keys: name, tokens, types, merges, a vocabulary larger than the tokenizer" "$(
    run 0 --train-bpe 280 -i text.txt -o small
    run 0 --export gguf -e learned/run -o padded.gguf --tokenizer small/merges.txt --type q8_0
    plain keys padded.gguf >keys.json
    python3 - keys.json small <<'END' 2>&1
import json, pathlib, struct, sys
found = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
folder = pathlib.Path(sys.argv[2])
vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
expected = {
    "general.architecture": "gpt2", "general.type": "model", "general.name": "run", "general.file_type": 7,
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
    for type in f32:0 f16:1 bf16:32 q8_0:7; do
        plain keys bytes_${type%:*}.gguf >"$out"
        says "\"general.file_type\": ${type#*:},"
    done
    named() { # NAME MODEL, from the folder learned/run
        (cd learned/run && run 0 --export gguf -e "$2" -o "$scratch/named.gguf" --type f16)
        plain keys named.gguf >"$out"
        says "\"general.name\": \"$1\","
    }
    cp -r bytes/step_00000150 of_step && mkdir dated && cp bytes/step_00000150/model.safetensors dated/mine.safetensors
    cp bytes/step_00000150/config.json dated
    named of_step ../../of_step
    named of_step ../../of_step/model.safetensors
    named bytes ../../bytes/step_00000150//
    named bytes ../../bytes/./step_00000150/model.safetensors
    named mine.safetensors ../../dated/mine.safetensors
    named run .
    named run step_00000060
    named run step_00000060/model.safetensors
    plain keys bytes_q8_0.gguf >"$out"
    says '"tokenizer.ggml.merges": [], "tokenizer.ggml.bos_token_id": 10, "tokenizer.ggml.eos_token_id": 0'
)"

# ---- the Python package gguf

if has_package gguf; then
    report "gguf reads each tensor, and quantises to the same bytes" "$(all_equal check tensors)"
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
    echo "$python has no gguf: that package does not read the files; scripts/setup.sh test installs it"
    echo "[  SKIPPED ] 2 test(s)."
fi

# ---- llama.cpp

if ! has_package llama_cpp; then
    echo "$python has no llama_cpp: llama.cpp does not read the files; scripts/setup.sh peers installs it"
    echo "[  SKIPPED ] 3 test(s)."
    end_tests
    exit
fi

# letters, numbers, contractions, spaces of all kinds, CJK, emoji, a control character and, for bytes, an end-of-text
printf 'It'\''s  12\tboats,\n\n  naïve “café” 漢字かな 🚀é\001\r\n x=3.14;\n<|endoftext|> I'\''LL they'\''ve\n ' >mixed.txt
report "llama.cpp's tokens of mixed text: each byte, or the ids of --tokenize" "$(
    check tokens bytes_f32.gguf mixed.txt >ids
    cmp ids <("$python" -c 'import sys; sys.stdout.buffer.write(bytes(x for b in open("mixed.txt", "rb").read()
                            for x in (b, 0)))') 2>&1
    grep -v endoftext mixed.txt >plain.txt
    for name in learned gpt2; do
        merges=$([ $name = gpt2 ] && echo "$gpt2_merges" || echo learned/merges.txt)
        run 0 --export gguf -e $name/run -o $name.gguf --type f32
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
        same_text bytes_f32 bytes "$prompt"
        same_text learned learned/run "$prompt"
        same_text gpt2 gpt2/run "$prompt"
    done
    for run in bytes learned/run gpt2/run; do
        tail -n 1 $run/metrics.jsonl | awk -F'"loss":|,' -v run=$run '{ if ($3 > 0.3) { print run ": loss " $3 } }'
    done
)"
# A weight's relative error is up to 2^-11 in f16 and 2^-8 in bf16; in q8_0 it is up to 1/254 of its block's largest.
report "the loss in f16, bf16 and q8_0 is close to that in f32" "$(
    close() { # NAME REFERENCE BOUND
        check loss "$1.gguf" text.txt >loss.txt
        awk -v loss="$(cat loss.txt)" -v expected="$(cat "$2")" -v bound="$3" -v name="$1" 'BEGIN {
            if (!(loss - expected < bound && expected - loss < bound)) {
                print name ": loss " loss ", expected " expected " within " bound } }'
    }
    check loss bytes_f32.gguf text.txt >expected
    close bytes_f16 expected 0.002
    close bytes_bf16 expected 0.02
    close bytes_q8_0 expected 0.02
    run 0 --export gguf -e gpt2/run -o gpt2_q8_0.gguf --type q8_0
    check loss gpt2.gguf text.txt >expected
    close gpt2_q8_0 expected 0.02
)"
end_tests
