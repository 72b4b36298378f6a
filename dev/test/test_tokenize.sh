#!/usr/bin/env bash
# --tokenize on the command line: shards and their tokens, threads, a kill and a full disk, bounded memory, other
# vocabularies, and bad input.
. "$(dirname "$0")/harness.sh"
in_scratch
mkdir corpus

# tokenize STATUS OUT ARGUMENTS...
tokenize() { run "$1" --tokenizer "$merges" --tokenize "${@:2}"; }
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
tokens = bench.token_bytes(bench.bpe.read_merges(sys.argv[1]))
tokens[-1] = b"<END>"
for path in sorted(glob.glob(f"{sys.argv[2]}_{sys.argv[3]}_*.bin")):
    sys.stdout.buffer.write(b"".join(tokens[i] for i in bench.shard_ids(Path(path))))
PYTHON
}

printf 'the first text\n' >corpus/a.txt
printf 'the second,\r\nbroken \377\300 UTF-8 too' >corpus/b.txt
: >corpus/c.txt
printf '{"text":"line one","body":"other"}\n\n{"body":"more","text":"line\\ntwo \\u00e9"}\n' >corpus/d.jsonl

report "text, JSON lines and an empty file become one shard" "$(
    tokenize 0 one -i 'corpus/*' --val-share 0
    {
        printf 'the first text\n<END>the second,\r\nbroken \377\300 UTF-8 too<END>'
        printf 'line one<END>line\ntwo \303\251<END>'
    } | cmp - <(decoded one) 2>&1
    says "$out" "one_train_*.bin: 1 shard, "
    says "$out" "4 documents"
    tokenize 0 small -i corpus/a.txt
    says "$out" "; validation: 0 tokens"
    cmp one_merges.txt "$merges"
    no_leftovers
)"
report "--field, several documents in a text, and stdin" "$(
    tokenize 0 field -i corpus/d.jsonl --field body --val-share 0
    printf 'other<END>more<END>' | cmp - <(decoded field) 2>&1
    input=corpus/a.txt tokenize 0 stdin -i - --val-share 0
    printf 'the first text\n<END>' | cmp - <(decoded stdin) 2>&1
    input=corpus/d.jsonl tokenize 0 json -i - --field body --val-share 0
    same_shards json field
    printf 'a\n<|endoftext|>\nb\n<|endoftext|>\n' >separated.txt
    tokenize 0 separated -i separated.txt --val-share 0
    printf 'a\n<END>b\n<END>' | cmp - <(decoded separated) 2>&1
)"

# 7 MB: words from a sequence that is the same everywhere
awk 'BEGIN { for (x = 1; n < 1500000; n++) { x = (x * 16807) % 2147483647
    printf "%s%s", substr("thequickbrownfoxjumpsoverlazydogs1024", x % 30 + 1, x % 7 + 1), x % 11 ? " " : "\n" } }' \
    >long.txt
awk '{ gsub(/[^a-z0-9 ]/, ""); printf "{\"text\":\"%s\"}\n", $0 }' long.txt >long.jsonl
shards=(--val-share 0.05)

report "the same shards from any number of threads" "$(
    for threads in 1 2 5; do OMP_NUM_THREADS=$threads tokenize 0 "t$threads" -i 'long.*' "${shards[@]}"; done
    same_shards t1 t2
    same_shards t1 t5
    no_leftovers
)"
report "every document is in the training or in the validation shards" "$(
    tokenize 0 lines -i long.jsonl "${shards[@]}"
    { decoded lines && decoded lines val; } | sed 's/<END>/\n/g' | sort | cmp - <(
        sed 's/^{"text":"//; s/"}$//' long.jsonl | sort
    ) 2>&1
    share=$(awk "BEGIN { v = $(stat -c %s lines_val_000000.bin); t = $(cat lines_train_* | wc -c)
        print 100 * v / (v + t) }")
    awk "BEGIN { exit !($share > 4.9 && $share < 5.1) }" || echo "$share % are held out, expected 5 %"
)"

report "a lock of a file that was renamed since it was opened is refused" "$(
    cat >renamed.c <<'C'
#include <stdio.h>
int flock(int file, int how) {
    return rename("renamed_train_000001.bin.part", "renamed") + 0 * (file + how);
}
C
    ${CC:-cc} -shared -fPIC renamed.c -o renamed.so
    LD_PRELOAD=$PWD/renamed.so tokenize 2 renamed -i corpus/a.txt
    says "$err" "another command is writing 'renamed_train_000001.bin.part'"
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
    tokenize 2 killed -i corpus/a.txt
    says "$err" "another command is writing 'killed_train_000001.bin.part'; wait for its end, or give another name"
    kill -9 $victim
    wait $victim 2>/dev/null
    exec 3>&-
    [ -s killed_val_000000.bin.part ] || echo "no tokens were written in time"
    find . -name 'killed_*' ! -name '*.part'
    input=long.txt tokenize 0 killed -i - "${shards[@]}"
    says "$out" "note      starts over: deleted unfinished shards of an earlier command: 2"
    tokenize 0 whole -i long.txt "${shards[@]}"
    same_shards whole killed
    no_leftovers
)"
report "a full disk: one sentence, no half shard, and the same command starts anew" "$(
    (ulimit -f 600 && tokenize 1 full -i long.txt "${shards[@]}")
    says "$err" "could not write 'full_train_000001.bin.part': File too large; make room"
    one_line "$err"
    [ ! -e full_train_000001.bin ] || echo "there is a shard"
    tokenize 0 full -i long.txt "${shards[@]}"
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
    run 0 -i 'whole_train_*.bin' -j whole_val_000000.bin -e l1h1c16 -b 2 -t 16 -x 2 -v 0 -s 2 -g 8 -n 2 -o run
    says "$out" "2757 tokens: "
    grep -q '"vocab_size":[[:space:]]*2757' run/step_00000002/config.json || echo "config.json has another vocabulary"
    grep -qE '^([0-9]+ ){8}' "$out" && echo "the sample is numbers"
    cp whole_val_000000.bin other.bin && printf '\0\020' | dd of=other.bin bs=1 seek=12 conv=notrunc status=none
    run 2 -i 'whole_train_*.bin' -j other.bin -e l1h1c16 -b 2 -t 16 -x 1
    says "$err" "but -j other.bin has 4096; give shards of one tokenizer"
)"

train() { run "$@" -b 1 -t 16 -x 1 -v 0 -s 0; } # STATUS ARGUMENTS...: for one step
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
report "a shape whose vocabulary is larger than the data's: a note" "$(
    train 0 -i 'whole_train_*.bin' -e l1h1c16
    lacks "$out" "a shape such as"
    mkdir larger && cp "$merges" larger/merges.txt
    train 0 -i text -e d6 -n 1 -om 8bit -o larger
    says "$out" "note      the model has more tokens than the data: a shape such as -e l6h6c384 has the data's"
    [ ! -e larger/step_00000001/merges.txt ] || echo "a checkpoint has the merges beside it"
)"
report "shards of another tokenizer than the weights' are refused, unless --tokenizer says which one counts" "$(
    tokenize 0 swapped -i long.txt --tokenizer swapped.txt
    train 2 -i 'swapped_train_*.bin' -e run -o strange
    says "$err" "-i swapped_train_*.bin has the tokens of 'swapped_merges.txt', and the tokenizer is 'run/step_0000"
    one_line "$err"
    [ ! -e strange ] || echo "a refused run made its folder"
    run 2 --eval swapped_val_000000.bin -e run
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
    silent "$err"
    train 0 -i 'swapped_train_*.bin' -e run --tokenizer swapped_merges.txt
    train 0 -i 'swapped_train_*.bin' -e run --tokenizer run/step_00000002/merges.txt
    run 0 --eval text -e run --tokenizer swapped.txt
    train 0 -i 'whole_train_*.bin' -e run
    silent "$err"
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
    run 2 -o larger -y 1 -x 3
    says "$err" "with --tokenize, or leave out --tokenizer (--tokenizer '' in a resumed run)"
    run 0 -o larger -y 1 -x 3 -n 0 --tokenizer ''
    says "$out" "resumed   at step 1"
    lacks "$out" "a shape such as"
    run 2 --generate 1 -e run --tokenizer bytes/step_00000001/tokenizer.json
    says "$err" "tokenizer.json' has 256 tokens and the model 2757; give the model's own tokenizer"
)"

printf '{"text":"a"}\n{"text":"b"}\n{"text":\n' >broken.jsonl
printf '{"text":"a"}\n\n{"body":"b"}\n' >other.jsonl
# words | output and arguments
while IFS='|' read -r words line; do
    report "refused: $words" "$(
        eval "tokenize 2 $line"
        says "$err" "${words% }"
        one_line "$err"
    )"
done <<'ROWS'
-i broken.jsonl line 3 is not a JSON object | e1 -i broken.jsonl
-i other.jsonl line 3 has no string in the field text: found | e2 -i other.jsonl
no file matches 'absent*' | e3 -i 'absent*'
Is a directory; name files | e4 -i corpus
'one_train_000001.bin' exists already | one -i long.txt
is that of bytes, and text needs no shards then | e4 -i long.txt --tokenizer bytes/step_00000001/tokenizer.json
not write 'long.txt/x_train_000001.bin.part': Not a directory | long.txt/x -i long.txt
holds no text | e5 -i corpus/c.txt
ROWS
report "an output in new folders" "$(tokenize 0 new/folder/x -i long.txt && ls new/folder/x_train_000001.bin >"$out")"
report "a refusal leaves no shard" "$(find . -name "e[0-9]_*.bin")"
rm -f -- *.part
report "an OUT_merges.txt that was there stays as it is; one of other tokens is refused" "$(
    sed 1d "$merges" >own_merges.txt && cp own_merges.txt own.before
    tokenize 2 own -i broken.jsonl --tokenizer own_merges.txt
    cmp own_merges.txt own.before 2>&1
    tokenize 0 own -i corpus/a.txt --tokenizer own_merges.txt
    cmp own_merges.txt own.before 2>&1
    rm own_train_*
    tokenize 2 own -i corpus/a.txt --tokenizer swapped.txt
    says "$err" "'own_merges.txt' exists already, with other tokens than --tokenizer swapped.txt"
    cmp own_merges.txt own.before 2>&1
    find . -name 'own_*.bin'
    (ulimit -f 8 && tokenize 1 narrow -i corpus/a.txt)
    says "$err" "could not write 'narrow_merges.txt': File too large; make room"
    find . -name 'narrow_*' ! -name '*.part'
)"
# learns STATUS WORDS ARGUMENTS...
learns() {
    run "$1" --train-bpe "${@:3}"
    says "$([ "$1" -eq 0 ] && echo "$out" || echo "$err")" "$2"
}
report "--train-bpe learns a vocabulary, --tokenize and training use it" "$(
    learns 0 "learned/vocab.json and learned/merges.txt: 400 tokens from " 400 -i long.txt -o learned
    learns 0 "400 tokens" 400 -i long.jsonl -o of_json
    tokenize 0 mine -i corpus/a.txt --tokenizer learned/merges.txt --val-share 0
    same learned/merges.txt mine_merges.txt
    run 0 -i mine_train_000001.bin -j mine_train_000001.bin -e l1h1c16 -b 1 -t 2 -x 1 -v 0 -s 0
    says "$out" "400 tokens: "
    python3 - 2>&1 <<<'import json
vocabulary = json.load(open("learned/vocab.json"))
assert len(vocabulary) == 400 and vocabulary["<|endoftext|>"] == 399'
)"
report "--train-bpe: bad input" "$(
    learns 2 "'learned/vocab.json' exists already" 400 -i long.txt -o learned
    learns 2 "-i broken.jsonl line 3 is not a JSON object" 400 -i broken.jsonl -o e7
    learns 2 "holds no text" 400 -i corpus/c.txt -o e7
    learns 2 "--train-bpe needs --train-data, -i: add it" 400
    learns 2 "257" 256 -i long.txt
    echo "few few few" >few.txt
    learns 0 "260 tokens from 3 different words" 5000 -i few.txt -o few # no pair occurs twice any more
    [ ! -e e7 ] || echo "e7 was made"
)"

vocab=$root/../shared/data/vocab.bpe
if "$python" -c 'import tiktoken' 2>/dev/null && [ -f "$vocab" ]; then
    report "the ids are tiktoken's" "$(
        cd "$root" || exit
        TRAIN_GPT2=$trainer "$python" dev/bench/bench_tokenizer.py "$vocab" README.md --megabytes 4 --rounds 0 \
            --folder "$scratch/bench" >"$out" 2>&1 || cat "$out"
        says "$out" "those of tiktoken"
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
# the planes that have letters, and the one of tags
text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000)]))
header = open(sys.argv[1]).read()
for kind, pattern in ("letters", r"\p{L}"), ("numbers", r"\p{N}"), ("spaces", r"\s"):
    table = header.split(f"unicode_{kind}[]")[1].split("};")[0]
    spans = [(int(first), int(count)) for first, count in re.findall(r"(\d+), (\d+),", table)]
    ours = {chr(code) for first, count in spans for code in range(first, first + count)}
    remove = tokenizers.normalizers.Replace(tokenizers.Regex(pattern + "+"), "")
    theirs = set(text) - set(remove.normalize_str(text))
    if ours != theirs or len(ours) < 25:
        print(pattern, len(ours), len(theirs), sorted(map(hex, map(ord, ours ^ theirs)))[:9])
PYTHON
    )"
else
    skip "the Python package tokenizers (scripts/setup.sh all)" 2 "the merges and the classes of tokenizers"
fi
end_tests
