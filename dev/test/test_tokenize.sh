#!/usr/bin/env bash
# --tokenize on the command line: shards and their tokens, threads, a kill and a full disk, bounded memory, other
# vocabularies, and bad input.
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

root=$(realpath "$(dirname "$0")/../..")
trainer=$(realpath "${TRAINER:-./train_gpt2}") merges=$root/dev/test/golden/gpt2_2500.bpe
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive LC_ALL=C
in_scratch
mkdir corpus

tokenize() { "$trainer" --tokenizer "$merges" --tokenize "$@" >"$out" 2>"$err"; }
# run STATUS ARGUMENTS...: a sentence unless the trainer exits with STATUS
run() {
    local status=0
    tokenize "${@:2}" </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$err"; }
}
# same_shards A B: the shards of A and of B are the same files
same_shards() {
    local file
    for file in "$1"_train_* "$1"_val_*; do
        [ ! -e "$file" ] && [[ $file == *'*'* ]] && continue
        cmp "$file" "$2${file#"$1"}" 2>&1
    done
    [ "$(find . -path "./$1_*.bin" | wc -l)" = "$(find . -path "./$2_*.bin" | wc -l)" ] || echo "$1, $2: other files"
}
no_leftovers() { find . -name "*.part" | sed "s|^|left behind: |"; }

# decoded OUT [val]: the text of the shards' tokens, with <END> for end-of-text
decoded() {
    PYTHONPATH=$root/dev/bench python3 - "$merges" "$1" "${2:-train}" <<'PYTHON'
import glob, sys
import bench_tokenizer as bench
from pathlib import Path
tokens = bench.token_bytes(bench.read_merges(sys.argv[1]))
tokens[-1] = b"<END>"
for path in sorted(glob.glob(f"{sys.argv[2]}_{sys.argv[3]}_*.bin")):
    sys.stdout.buffer.write(b"".join(tokens[i] for i in bench.shard_ids(Path(path))))
PYTHON
}

printf 'the first text\n' >corpus/a.txt
printf 'the second,\r\nbroken \377\300 UTF-8 \000 too' >corpus/b.txt
: >corpus/c.txt
printf '{"text":"line one","body":"other"}\n\n{"body":"more","text":"line\\ntwo \\u00e9"}\n' >corpus/d.jsonl

report "text, JSON lines and an empty file become one shard" "$(
    run 0 one -i 'corpus/*' --val-share 0
    {
        printf 'the first text\n<END>the second,\r\nbroken \377\300 UTF-8 \000 too<END>'
        printf 'line one<END>line\ntwo \303\251<END>'
    } | cmp - <(decoded one) 2>&1
    says "$out" "one_train_*.bin: 1 shard, "
    says "$out" "4 documents"
    run 0 small -i corpus/a.txt
    says "$out" "note      there is no validation shard"
    cmp one_merges.txt "$merges"
    no_leftovers
)"
report "--field, several documents in a text, and stdin" "$(
    run 0 field -i corpus/d.jsonl --field body --val-share 0
    printf 'other<END>more<END>' | cmp - <(decoded field) 2>&1
    tokenize stdin -i - --val-share 0 < <(printf 'all of\nstdin\n') || cat "$err"
    printf 'all of\nstdin\n<END>' | cmp - <(decoded stdin) 2>&1
    tokenize json -i - --field body --val-share 0 <corpus/d.jsonl || cat "$err"
    same_shards json field
    printf 'a\n<|endoftext|>\nb\n<|endoftext|>\n' >separated.txt
    run 0 separated -i separated.txt --val-share 0
    printf 'a\n<END>b\n<END>' | cmp - <(decoded separated) 2>&1
)"

# 7 MB: words from a sequence that is the same everywhere
awk 'BEGIN { for (x = 1; n < 1500000; n++) { x = (x * 16807) % 2147483647
    printf "%s%s", substr("thequickbrownfoxjumpsoverlazydogs1024", x % 30 + 1, x % 7 + 1), x % 11 ? " " : "\n" } }' \
    >long.txt
awk '{ gsub(/[^a-z0-9 ]/, ""); printf "{\"text\":\"%s\"}\n", $0 }' long.txt >long.jsonl
shards=(--val-share 0.05)

report "the same shards from any number of threads" "$(
    for threads in 1 2 5; do run 0 "t$threads" -i 'long.*' "${shards[@]}" --threads "$threads"; done
    same_shards t1 t2
    same_shards t1 t5
    no_leftovers
)"
report "every document is in the training or in the validation shards" "$(
    run 0 lines -i long.jsonl "${shards[@]}"
    { decoded lines && decoded lines val; } | sed 's/<END>/\n/g' | sort | cmp - <(
        sed 's/^{"text":"//; s/"}$//' long.jsonl | sort
    ) 2>&1
    share=$(awk "BEGIN { v = $(stat -c %s lines_val_000000.bin); t = $(cat lines_train_* | wc -c)
        print 100 * v / (v + t) }")
    awk "BEGIN { exit !($share > 4.9 && $share < 5.1) }" || echo "$share % are held out, expected 5 %"
)"

# The input ends only after the kill, so the trainer cannot have finished.
report "a second command of the same name is refused; a killed one leaves no shard, and given again, starts anew" "$(
    mkfifo pipe
    "$trainer" --tokenizer "$merges" --tokenize killed -i - "${shards[@]}" <pipe >"$out" 2>"$err" &
    victim=$!
    exec 3>pipe
    head -c 5500000 long.txt >&3
    for _ in {1..6000}; do
        [ ! -s killed_val_000000.bin.part ] || break
        sleep 0.1
    done
    run 2 killed -i corpus/a.txt
    says "$err" "another command is writing 'killed_train_000001.bin.part'; wait for its end, or give another name"
    kill -9 $victim
    wait $victim 2>/dev/null
    exec 3>&-
    [ -s killed_val_000000.bin.part ] || echo "no tokens were written in time"
    find . -name 'killed_*' ! -name '*.part'
    tokenize killed -i - "${shards[@]}" <long.txt || cat "$err"
    says "$out" "note      starts over: deleted unfinished shards of an earlier command: 2"
    run 0 whole -i long.txt "${shards[@]}"
    same_shards whole killed
    no_leftovers
)"
report "a full disk: one sentence, no half shard, and the same command starts anew" "$(
    status=0
    (ulimit -f 600 && tokenize full -i long.txt "${shards[@]}") || status=$?
    [ $status -eq 1 ] || echo "exit status $status, expected 1"
    says "$err" "could not write 'full_train_000001.bin.part': File too large; make room"
    [ "$(wc -l <"$err")" -eq 1 ] || cat "$err"
    [ ! -e full_train_000001.bin ] || echo "there is a shard"
    run 0 full -i long.txt "${shards[@]}"
    same_shards whole full
    no_leftovers
)"

# A text of 70 MB whose tokens alone take 4 bytes each would need more than this.
report "memory is bounded" "$(
    for _ in {1..10}; do cat long.txt; done >big.txt
    (ulimit -v 300000 && exec env -u MALLOC_ARENA_MAX "$trainer" --tokenizer "$merges" --tokenize big -i big.txt) \
        >"$out" 2>"$err" || cat "$err"
    says "$out" "1 document, "
    rm -f big*
)"

report "a model trains on shards of another vocabulary, and finds its merges" "$(
    "$trainer" -i 'whole_train_*.bin' -j whole_val_000000.bin -e l1h1c16 -b 2 -t 16 -x 2 -v 0 -s 2 -g 8 -n 2 \
        -o run >"$out" 2>"$err" </dev/null || cat "$err"
    says "$out" "2757 tokens: "
    grep -q '"vocab_size":[[:space:]]*2757' run/step_00000002/config.json || echo "config.json has another vocabulary"
    grep -qE '^([0-9]+ ){8}' "$out" && echo "the sample is numbers"
    cp whole_val_000000.bin other.bin && printf '\0\020' | dd of=other.bin bs=1 seek=12 conv=notrunc status=none
    "$trainer" -i 'whole_train_*.bin' -j other.bin -e l1h1c16 -b 2 -t 16 -x 1 >"$out" 2>"$err" &&
        echo "expected a refusal"
    says "$err" "but -j other.bin has 4096; give shards of one tokenizer"
)"

# train STATUS ARGUMENTS...: a sentence unless training for one step exits with STATUS
train() {
    local status=0
    "$trainer" "${@:2}" -b 1 -t 16 -x 1 -v 0 -s 0 >"$out" 2>"$err" </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$err"; }
}
# run_mode STATUS ARGUMENTS...: the same without flags of training
run_mode() {
    local status=0
    "$trainer" "${@:2}" >"$out" 2>"$err" </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$err"; }
}
# index_of FILE: the index of a model in one safetensors file
index_of() {
    python3 - "$1" <<'PYTHON'
import json, os, struct, sys
with open(sys.argv[1], "rb") as file:
    names = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
names.pop("__metadata__", None)
print(json.dumps({"metadata": {}, "weight_map": {name: os.path.basename(sys.argv[1]) for name in names}}))
PYTHON
}
printf 'thequick brown foxes, the quick brown foxes, thequick\n' >text
sed '2{h;d};3{G}' "$merges" >swapped.txt
report "a model whose vocabulary is larger than the data's: a note" "$(
    train 0 -i 'whole_train_*.bin' -e d6
    says "$out" "note      the model has more tokens than the data: a shape such as -e l6h6c384 has the data's"
    train 0 -i 'whole_train_*.bin' -e l1h1c16 -n 1 -o fitting
    grep -F "a shape such as" "$out"
    mkdir larger && cp "$merges" larger/merges.txt
    train 0 -i text -e d6 -n 1 -om 8bit -o larger
    [ ! -e larger/step_00000001/merges.txt ] || echo "a checkpoint has the merges beside it"
    "$trainer" -o larger -y 1 -x 2 -n 0 >"$out" 2>"$err" </dev/null || cat "$err"
    says "$out" "resumed   at step 1"
    grep -F "a shape such as" "$out"
    train 0 -i 'whole_train_*.bin' -e larger
    grep -F "a shape such as" "$out"
)"
report "shards of another tokenizer than the weights' are refused, unless --tokenizer says which one counts" "$(
    run 0 swapped -i long.txt --tokenizer swapped.txt
    train 2 -i 'swapped_train_*.bin' -e run -o strange
    says "$err" "-i swapped_train_*.bin has the tokens of 'swapped_merges.txt', and the tokenizer is 'run/step_0000"
    [ "$(wc -l <"$err")" -eq 1 ] && [ ! -e strange ] || echo "expected one sentence and no folder"
    run_mode 2 --eval swapped_val_000000.bin -e run
    says "$err" "--eval swapped_val_000000.bin has the tokens of 'swapped_merges.txt', and the tokenizer is 'run/"
    mkdir files && cp run/step_00000002/{config.json,merges.txt,model.safetensors} files
    index_of files/model.safetensors >files/model.safetensors.index.json
    for file in model.safetensors model.safetensors.index.json; do # -e is one file
        train 2 -i 'swapped_train_*.bin' -e files/$file
        says "$err" "has the tokens of 'swapped_merges.txt', and the tokenizer is 'files/merges.txt'"
        (cd files && train 2 -i '../swapped_train_*.bin' -e $file)
        says "$err" "and the tokenizer is './merges.txt'"
    done
    train 2 -i 'whole_train_*.bin' -j swapped_val_000000.bin -e run
    says "$err" "-j swapped_val_000000.bin has the tokens of 'swapped_merges.txt', and the tokenizer is 'run/"
    train 2 -i 'whole_train_*.bin' -j swapped_val_000000.bin -e l1h1c16
    says "$err" "-j swapped_val_000000.bin has the tokens of 'swapped_merges.txt', and the tokenizer is 'whole_"
    train 0 -i 'whole_train_*.bin' -j whole_val_000000.bin -e run
    [ ! -s "$err" ] || cat "$err"
    train 0 -i 'swapped_train_*.bin' -e run --tokenizer swapped_merges.txt
    train 0 -i 'swapped_train_*.bin' -e run --tokenizer run/step_00000002/merges.txt
    run_mode 0 --eval text -e run --tokenizer swapped.txt
    train 0 -i 'whole_train_*.bin' -e run
    [ ! -s "$err" ] || cat "$err"
    cp -r run/step_00000002 malformed && rm malformed/manifest.json && echo "not merges" >malformed/merges.txt
    train 0 -i 'whole_train_*.bin' -e malformed --tokenizer "$merges"
    train 2 -i 'whole_train_*.bin' -e malformed
)"
report "text that is read as bytes keeps no tokenizer but that of bytes" "$(
    train 2 -i text -e d6 --tokenizer "$merges" -n 1 -o wrong
    says "$err" "-i text is text, which is read as bytes and not with --tokenizer $merges; first make token shards"
    train 0 -i text -e l1h1c16 -n 1 -o bytes
    train 0 -i text -e d6 --tokenizer bytes/step_00000001/tokenizer.json -n 1 -om 8bit -o wider
    [ ! -e wider/step_00000001/tokenizer.json ] || echo "a model of 50257 tokens has the tokenizer of bytes"
    sed -i "s|\"tokenizer\":[^,]*|\"tokenizer\": \"$merges\"|" larger/config.json # an old run, with --tokenizer
    status=0
    "$trainer" -o larger -y 1 -x 3 >"$out" 2>"$err" </dev/null || status=$?
    [ $status -eq 2 ] || echo "exit status $status, expected 2"
    says "$err" "with --tokenize, or leave out --tokenizer (--tokenizer '' in a resumed run)"
    "$trainer" -o larger -y 1 -x 3 -n 0 --tokenizer '' >"$out" 2>"$err" </dev/null || cat "$err"
    says "$out" "resumed   at step 1"
    run_mode 2 --generate 1 -e run --tokenizer bytes/step_00000001/tokenizer.json
    says "$err" "tokenizer.json' has 256 tokens and the model 2757; give the model's own tokenizer"
)"

# refused NAME STATUS WORDS ARGUMENTS...: one sentence
refused() {
    report "$1" "$(
        run "$2" "${@:4}"
        says "$err" "$3"
        [ "$(wc -l <"$err")" -eq 1 ] || cat "$err"
    )"
}
printf '{"text":"a"}\n{"text":"b"}\n{"text":\n' >broken.jsonl
printf '{"text":"a"}\n\n{"body":"b"}\n' >other.jsonl
refused "a line that is no JSON" 2 "-i broken.jsonl line 3 is not a JSON object" e1 -i broken.jsonl
refused "a line without the field" 2 "-i other.jsonl line 3 has no string in the field: found" e2 \
    -i other.jsonl
refused "no such file" 2 "no file matches 'absent*'" e3 -i 'absent*'
refused "a folder" 2 "is a folder; name its files" e4 -i corpus
refused "an output that exists" 2 "'one_train_000001.bin' exists already" one -i long.txt
refused "the tokenizer of bytes" 2 "is that of bytes, and text needs no shards then" e4 -i long.txt \
    --tokenizer bytes/step_00000001/tokenizer.json
refused "an output in a file" 2 "not write 'long.txt/x_train_000001.bin.part': Not a directory" long.txt/x -i long.txt
refused "no text" 2 "holds no text" e5 -i corpus/c.txt
report "an output in new folders" "$(run 0 new/folder/x -i long.txt && ls new/folder/x_train_000001.bin >"$out")"
report "a refusal leaves no shard" "$(find . -name "e[0-9]_*.bin")"
rm -f -- *.part
report "after a bad line, the mended text is tokenized" "$(
    run 2 again -i broken.jsonl
    find . -name 'again_*' ! -name '*.part'
    printf '{"text":"a"}\n' >mended.jsonl
    run 0 again -i mended.jsonl --val-share 0
    no_leftovers
)"
report "an OUT_merges.txt that was there stays as it is; one of other tokens is refused" "$(
    sed 1d "$merges" >own_merges.txt && cp own_merges.txt own.before
    run 2 own -i broken.jsonl --tokenizer own_merges.txt
    cmp own_merges.txt own.before 2>&1
    run 0 own -i corpus/a.txt --tokenizer own_merges.txt
    cmp own_merges.txt own.before 2>&1
    rm own_train_*
    run 2 own -i corpus/a.txt --tokenizer swapped.txt
    says "$err" "'own_merges.txt' exists already, with other tokens than --tokenizer swapped.txt"
    cmp own_merges.txt own.before 2>&1
    find . -name 'own_*.bin'
    status=0
    (ulimit -f 8 && tokenize narrow -i corpus/a.txt) || status=$?
    [ $status -eq 1 ] || echo "exit status $status, expected 1"
    says "$err" "could not write 'narrow_merges.txt': File too large; make room"
    find . -name 'narrow_*' ! -name '*.part'
)"
printf 'GGUF\3\0\0\0' >model.txt
refused "a model of llama.cpp as text" 2 "-i: model.txt is a GGUF model, expected text" e6 -i model.txt
report "a text may begin with the name of a binary format" "$(
    printf 'GGUF is a file format.\n' >about.txt
    run 0 about -i about.txt --val-share 0
    printf 'BZh and PAR1 begin others.\n' >about.txt
    run 0 others -i about.txt --val-share 0
)"
report "training refuses binary files that are given as text" "$(
    train 2 -i model.txt -e l1h1c16
    says "$err" "-i: model.txt is a GGUF model, expected text in UTF-8"
    train 2 -i text -j run/step_00000002/model.safetensors -e l1h1c16
    says "$err" "-j: run/step_00000002/model.safetensors is a safetensors model, expected text"
    printf '\xff\xfea\0b\0c\0' >wide.txt
    train 2 -i wide.txt -e l1h1c16
    says "$err" "-i: wide.txt is text in UTF-16, expected text in UTF-8"
    printf 'BZh91AY&SY\x9f' >packed.txt # Wikipedia's dumps
    train 2 -i packed.txt -e l1h1c16
    says "$err" "-i: packed.txt is compressed with bzip2, expected text in UTF-8; unpack it"
    train 2 -i /bin/ls -e l1h1c16
    says "$err" "-i: /bin/ls is a program, expected text in UTF-8; give text"
)"
refused "--separator" 2 "--separator; documents end at a line that is <|endoftext|>" e6 -i long.txt --separator x
refused "--shard-tokens" 2 "--shard-tokens; documents end at a line that is" e6 -i long.txt --shard-tokens 5

# learns STATUS WORDS ARGUMENTS...
learns() {
    local status=0
    "$trainer" --train-bpe "${@:3}" >"$out" 2>"$err" </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1" && cat "$err"; }
    says "$([ "$1" -eq 0 ] && echo "$out" || echo "$err")" "$2"
}
report "--train-bpe learns a vocabulary, --tokenize and training use it" "$(
    learns 0 "learned/vocab.json and learned/merges.txt: 400 tokens from " 400 -i long.txt -o learned
    learns 0 "400 tokens" 400 -i long.jsonl -o of_json
    tokenize mine -i corpus/a.txt --tokenizer learned/merges.txt --val-share 0 || cat "$err"
    cmp learned/merges.txt mine_merges.txt
    "$trainer" -i mine_train_000001.bin -j mine_train_000001.bin -e l1h1c16 -b 1 -t 2 -x 1 -v 0 -s 0 \
        >"$out" 2>"$err" || cat "$err"
    says "$out" "400 tokens: "
    python3 - 2>&1 <<<'import json
vocabulary = json.load(open("learned/vocab.json"))
assert len(vocabulary) == 400 and vocabulary["<|endoftext|>"] == 399'
)"
report "--train-bpe: bad input" "$(
    learns 2 "'learned/vocab.json' exists already" 400 -i long.txt -o learned
    learns 2 "-i broken.jsonl line 3 is not a JSON object" 400 -i broken.jsonl -o e7
    learns 2 "holds no text" 400 -i corpus/c.txt -o e7
    learns 2 "give a file or a pattern with -i" 400
    learns 2 "257" 256 -i long.txt
    echo "few few few" >few.txt
    learns 0 "no pair of at most 255 bytes occurs twice any more: 260 tokens instead of 5000" 5000 -i few.txt -o few
    [ ! -e e7 ] || echo "e7 was made"
)"

python=${PYTHON:-$root/build/py/bin/python3} vocab=$root/../shared/data/vocab.bpe
if "$python" -c 'import tiktoken' 2>/dev/null && [ -f "$vocab" ]; then
    report "the ids are tiktoken's" "$(
        cd "$root" || exit
        TRAIN_GPT2=$trainer "$python" dev/bench/bench_tokenizer.py "$vocab" README.md --megabytes 4 --rounds 0 \
            --folder "$scratch/bench" >"$out" 2>&1 || cat "$out"
        says "$out" "those of tiktoken"
        says "$out" "each byte survives"
    )"
else
    skip "the Python package tiktoken (scripts/setup.sh all) and GPT-2's vocab.bpe" 1 "tiktoken's ids"
fi
if "$python" -c 'import tokenizers' 2>/dev/null; then
    report "the learned merges are those of Hugging Face's tokenizers" "$(
        cat "$root"/llmc/*.h "$root"/llmc/*/*.h "$root"/doc/*.md >sources.txt
        TRAIN_GPT2=$trainer "$python" "$root/dev/oracle/bpe_check.py" sources.txt 5000 checked >"$out" 2>&1 ||
            cat "$out"
        says "$out" "whole: the 4743 merges and 5000 ids are those of tokenizers"
        says "$out" "train(files): the 4743 merges and 5000 ids are those of tokenizers"
    )"
    report "each code point has the class that tokenizers gives it" "$(
        "$python" - "$root/llmc/data/unicode_classes.h" 2>&1 <<'PYTHON'
import re, sys
import tokenizers
text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
rows = re.findall(r"\{0x(\w+), (\d+), (\d)\}", open(sys.argv[1]).read())
for kind, pattern in enumerate([r"\p{L}", r"\p{N}", r"\s"], 1):
    spans = [(int(first, 16), int(count)) for first, count, of_kind in rows if int(of_kind) == kind]
    ours = {chr(code) for first, count in spans for code in range(first, first + count)}
    remove = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern + "+"), "removed")
    theirs = set(text) - set("".join(piece for piece, _ in remove.pre_tokenize_str(text)))
    if ours != theirs or len(ours) < 25:
        print(pattern, len(ours), len(theirs), sorted(map(hex, map(ord, ours ^ theirs)))[:9])
PYTHON
    )"
else
    skip "the Python package tokenizers (scripts/setup.sh all)" 2 "the merges and the classes of tokenizers"
fi
end_tests
