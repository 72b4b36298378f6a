#!/usr/bin/env bash
# Files that users have for text: each is read right, refused by name, or read with a note. One row for each.
. "$(dirname "$0")/harness.sh"
in_scratch
export LC_ALL=C.UTF-8

train=(-e l1h1c16 -b 1 -t 16 -x 1 -v 0 -s 0)
tokenize() { run "$1" --tokenizer "$merges" --val-share 0 --tokenize "$2" -i "${@:3}"; }
# documents NAME: the last --tokenize read the documents of NAME: the same tokens as those of good.jsonl
documents() {
    says "$out" "3 documents"
    same good_train_000001.bin "$1_train_000001.bin"
}

python3 - <<'PYTHON'
import array, json, pickle, sqlite3, struct, tarfile, zipfile, gzip, bz2, lzma
text = "".join(f"line {i}: a cat sat on mat {i % 7}.\n" for i in range(200))
rows = [{"text": f"document {i} of the set, with some words"} for i in range(3)]
lines = "".join(json.dumps(row) + "\n" for row in rows)
def put(name, data):
    with open(name, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
def zipped(name, **members):
    with zipfile.ZipFile(name, "w") as archive:
        for member, data in members.items():
            archive.writestr(member.replace("__", "/").replace("_DOT_", "."), data)
put("text.txt", text)
put("array.npy", b"\x93NUMPY\x01\x00" + b"v\0" + b"{'descr': '<u2'}".ljust(118) + bytes(2000))
for protocol in 2, 5:
    put(f"pickle{protocol}", pickle.dumps(["text"] * 500, protocol=protocol))
base = sqlite3.connect("base.db"); base.execute("create table a(t text)"); base.commit(); base.close()
with tarfile.open("archive.tar", "w") as tar:
    tar.add("text.txt")
zipped("archive.zip", a_DOT_txt=text)
zipped("model.pt", archive__data_DOT_pkl=b"\x80\2")
put("old.pt", b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
put("text.gz", gzip.compress(text.encode())); put("lines.jsonl.gz", gzip.compress(lines.encode()))
put("text.bz2", bz2.compress(text.encode())); put("text.xz", lzma.compress(text.encode()))
put("text.zst", b"\x28\xb5\x2f\xfd" + text.encode())
put("table.parquet", b"PAR1\x15\x04" + bytes(100)); put("table.arrow", b"ARROW1\0\0" + bytes(100))
put("stream.arrow", b"\xff\xff\xff\xff" + struct.pack("<II", 400, 16) + bytes(400))
put("book.pdf", "%PDF-1.7\n" + text)
put("a.png", b"\x89PNG\r\n\x1a\n" + bytes(99)); put("a.jpg", b"\xff\xd8\xff\xe0" + bytes(99))
header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).ljust(60)
put("model.safetensors", struct.pack("<Q", 60) + header.encode() + bytes(4))
put("model.gguf", b"GGUF\3\0\0\0" + bytes(99))
put("marked16.txt", text.encode("utf-16")); put("program", b"\x7fELF" + bytes(99))
put("train.bin", array.array("H", [(i * 7919) % 50257 if i % 3 else 11 for i in range(5000)]).tobytes())
# JSON lines under any name, and forms that are not lines
for name in "good.jsonl", "c.json", "c.ndjson", "c.JSONL", "c.jsonl.txt", "c":
    put(name, lines)
put("marked.jsonl", b"\xef\xbb\xbf" + lines.encode()); put("spaced.txt", '{ "text" :' + lines.split(":", 1)[1])
put("list.json", json.dumps(rows)); put("pretty.json", json.dumps(rows, indent=2))
put("object.json", json.dumps(rows[0], indent=2))
put("alpaca.json", json.dumps([{"instruction": "a", "input": "", "output": "b"}] * 100))
turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
put("turns.jsonl", "".join(json.dumps(turns) + "\n" for _ in range(20)))
put("messages.jsonl", "".join(json.dumps({"messages": turns}) + "\n" for _ in range(20)))
put("bad.jsonl", lines.replace("}\n{", "}\nnot JSON\n{", 1) + '{"body":"x"}\n')
# text that begins like something else
for name, start in {"verse": "[Verse 1]\n", "code": "{\n    int a;\n}\n", "list": '{"a", "b"}\n',
                    "words": "GGUF BZh PAR1 PK\n", "format": "SQLite format 3\n",
                    "tag": "<p>a</p>\n", "less": "<htmlx\n"}.items():
    put(name + ".txt", start + text)
# not UTF-8
put("latin1.txt", text.encode() + "caf\xe9 \xfcber\n".encode("latin-1"))
put("gbk.txt", ("\u4eca\u5929\u5929\u6c14\u5f88\u597d\n" * 50).encode("gbk"))
put("utf16.txt", text.encode("utf-16-le"))
put("cesu.txt", text.encode() + b"\xed\xa0\xbd\xed\xb8\x80\n\xf4\x90\x80\x80\n")  # surrogates, beyond U+10FFFF
put("speech.txt", '["Oh", she said, "no"]\n' + text); put("quotes.txt", '"Oh", she said: [1]\n' + text)
put("special.txt", text + "<|endoftext|>\na <|endoftext|> b\n" + text)
put("special.jsonl", json.dumps({"text": "a <|endoftext|> b"}) + "\n" + lines)
put("nul.txt", text.encode() + b"\0" + text.encode()); put("zeros.txt", text.encode() + bytes(5000))
# more of each kind
put("strings.txt", json.dumps([f"text {i}" for i in range(99)])); put("nested.txt", json.dumps([turns, turns]))
put("xml.txt", '<?xml version="1.0"?>\n<text>' + text + "</text>")
put("pictures.txt", "What is WEBP? A WAVE in a RIFF.\n" + text); put("films.txt", "The ftyp box\n" + text)
put("latin1.jsonl", '{"text":"caf\xe9, and more words of text"}\n'.encode("latin-1") * 3)
put("weights.jsonl", json.dumps(turns[:1] + [{**turns[1], "weight": 0.5}]) + "\n")
put("utf8.txt", "caf\xe9 \u4eca\u5929 \U0001f600\n" * 50)
PYTHON

# file | words of the refusal
while IFS='|' read -r file words; do
    report "refused: $file" "$(
        run 2 -i "$file" "${train[@]}"
        says "$err" "$words"
        one_line "$err"
        tokenize 2 refused "$file"
        says "$err" "$words"
        [[ $file == *.bin ]] || { input=$file tokenize 2 refused - && says "$err" "${words#"$file "}"; }
        rm -f refused*.part
        find . -name "refused*"
    )"
done <<'ROWS'
array.npy|array.npy is a NumPy array, expected text in UTF-8; write token ids as a shard
pickle2|pickle2 is a Python pickle
pickle5|pickle5 is a Python pickle
strings.txt|strings.txt line 1 is an array
nested.txt|nested.txt line 1 is an array
base.db|base.db is an SQLite database, expected text in UTF-8; write its text as JSON lines
archive.zip|archive.zip is a zip archive, expected text in UTF-8; unpack it: unzip
book.pdf|book.pdf is a PDF document, expected text in UTF-8; extract its text: pdftotext
text.gz|text.gz is compressed with gzip, expected text in UTF-8; unpack it: gunzip
lines.jsonl.gz|lines.jsonl.gz is compressed with gzip
text.bz2|text.bz2 is compressed with bzip2
text.xz|text.xz is compressed with xz
text.zst|text.zst is compressed with zstd
table.parquet|table.parquet is a Parquet table, expected text in UTF-8; write its text as JSON lines
table.arrow|table.arrow is an Arrow table
stream.arrow|stream.arrow is an Arrow stream of Hugging Face's datasets
a.png|a.png is a PNG image
a.jpg|a.jpg is a JPEG image
model.safetensors|model.safetensors is a safetensors model, expected text in UTF-8; give it with -e
model.gguf|model.gguf is a GGUF model
archive.tar|archive.tar is no file of a known kind: it holds NULs, expected text in UTF-8; doc/files.md says
program|program is no file of a known kind: it holds NULs
utf16.txt|utf16.txt is no file of a known kind: it holds NULs
marked16.txt|marked16.txt is no file of a known kind: it holds NULs
train.bin|train.bin is no file of a known kind: it holds NULs, expected
list.json|list.json line 1 is an array
pretty.json|pretty.json line 1 is not a JSON object: found '['; jq -c '.[]' FILE writes one object per line
object.json|object.json line 1 is not a JSON object
alpaca.json|alpaca.json line 1 is an array
ROWS

report "doc/files.md converts token ids of nanoGPT" "$(
    sed -n '/^import struct$/,/^ *shard.write/p' "$root/doc/files.md" >convert.py
    python3 convert.py
    run 0 -i mine_train_000001.bin "${train[@]}"
    says "$out" " 50257 tokens: "
    run 0 -i mine_train_000001.bin -j mine_train_000001.bin -e l1h1c16 -b 1 -t 16 -x 1 -v 1 -s 0
    says "$out" "data      5000 training tokens"
)"
tokenize 0 good good.jsonl
report "a token shard is one under any name" "$(
    for name in shard shard.BIN shard.bin.1 shard.txt; do
        cp good_train_000001.bin $name
        run 0 -i $name "${train[@]}"
        says "$out" " 2757 tokens: "
        tokenize 2 refused $name
        says "$err" "$name is a token shard, expected text in UTF-8; give it with -i or -j"
    done
)"
for file in c.json c.ndjson c.JSONL c.jsonl.txt c marked.jsonl spaced.txt; do
    report "JSON lines: $file" "$(
        name=json_${file//./_}
        tokenize 0 "$name" "$file"
        documents "$name"
        input=$file tokenize 0 "${name}_stdin" -
        documents "${name}_stdin"
        run 0 -i "$file" "${train[@]}"
        matches "$out" "^data      [0-9]* examples in "
    )"
done
report "--field names a field of JSON lines, and no text has one" "$(
    tokenize 2 field special.txt --field text
    says "$err" "-i: --field is for JSON lines, and special.txt is text; leave the flag or the file out"
    mkdir fields && : >fields/b.txt && echo '{"body":"a text"}' >fields/a.jsonl
    tokenize 0 fields_body 'fields/*' --field body # an empty file is no text
    says "$out" "1 document"
    ! compgen -G 'field_*'
)"
for file in verse code list words format tag less utf8 xml pictures films speech quotes; do
    report "text: $file.txt" "$(
        run 0 -i $file.txt "${train[@]}"
        lacks "$out" examples
        tokenize 0 "text_$file" $file.txt
        says "$out" "1 document"
        lacks "$out" UTF-8
    )"
done
# file | words of the note
while IFS='|' read -r file words; do
    report "a note: $file" "$(
        tokenize 0 "note_$file" "$file"
        says "$out" "note      $file: $words"
        equal "$(grep -c 'not UTF-8' "$out")" 1
    )"
done <<'ROWS'
latin1.txt|2 bytes are NUL or not UTF-8, the first at byte 5893; they stay as they are
gbk.txt|500 bytes are NUL or not UTF-8, the first at byte 0
cesu.txt|10 bytes are NUL or not UTF-8, the first at byte 5890
nul.txt|1 bytes are NUL or not UTF-8, the first at byte 5890
latin1.jsonl|3 bytes are NUL or not UTF-8, the first at byte 12
zeros.txt|5000 bytes are NUL or not UTF-8, the first at byte 5890
ROWS
report "conversations as arrays of turns are those of \"messages\"" "$(
    for form in turns messages; do
        run 0 -i $form.jsonl -e l1h1c16 -b 2 -t 64 -x 3 -v 0 -s 0 -o run_$form
        metrics run_$form >$form.losses
    done
    [ -s turns.losses ] && same turns.losses messages.losses
)"
report "a bad line is refused with the command that leaves it out" "$(
    tokenize 2 bad bad.jsonl
    says "$err" "bad.jsonl line 2 is not a JSON object: found 'not JSON'; jq -cR 'fromjson?' FILE writes the lines"
    grep -v 'not JSON' bad.jsonl >json.jsonl
    tokenize 2 bad json.jsonl
    says "$err" "json.jsonl line 4 has no string in the field"
    run 2 -i json.jsonl "${train[@]}"
    says "$err" "json.jsonl line 4 has none of these"
)"

# ---- names, keys and ids that would be read wrong without a word

cp utf8.txt n1.txt && cp text.txt 'n[1].txt' && cp text.txt 'n*.txt' && cp good.jsonl 'n[1].jsonl'
cp good_train_000001.bin 'n[1].bin'
report "a name with * ? or [ is that file, if it exists" "$(
    for name in 'n[1].txt' 'n*.txt'; do
        run 0 -i "$name" -j "$name" -e l1h1c16 -b 1 -t 16 -x 1 -v 1 -s 0
        says "$out" "data      $(stat -c %s text.txt) training tokens, $(stat -c %s text.txt) validation tokens"
    done
    tokenize 0 name_bracket 'n[1].jsonl'
    documents name_bracket
    run 0 --train-bpe 300 -i 'n[1].txt' -o name_bpe
    run 0 --train-bpe 300 -i text.txt -o text_bpe
    same name_bpe/merges.txt text_bpe/merges.txt
    run 0 -i 'n[1].bin' -e l1h1c16 -b 1 -t 16 -x 1 -v 0 -s 0 -n 1 -o name_run
    run 0 --eval 'n[1].bin' -e name_run --tokenizer "$merges"
    run 2 -i 'n[1]*.bin' "${train[@]}" # no such file: a pattern
    says "$err" "no file matches 'n[1]*.bin'"
    cp 'n[1].bin' 'o[1]_train_000001.bin'
    cp "$merges" 'o[1]_merges.txt' # found next to the shards
    run 0 -i 'o[1]_train_000001.bin' -e l1h1c16 -b 1 -t 16 -x 1 -v 0 -s 1 -g 2 --prompt line
)"
for flag in -i -j --eval; do
    report "two files in two $flag: one sentence, and none is dropped" "$(
        run 2 "${train[@]}" $flag text.txt $flag utf8.txt
        says "$err" "$flag is given twice, the second time as 'utf8.txt'; give several files as one pattern in quotes"
        one_line "$err"
        run 2 -o no_run -y 1 $flag text.txt $flag utf8.txt
        says "$err" "is given twice"
    )"
done
report "of equal keys in JSON the last one counts, as in Python" "$(
    sed 's/^{/{"text":"another text",/' good.jsonl >doubled.jsonl
    tokenize 0 doubled doubled.jsonl
    documents doubled
    for form in '"prompt":"a","completion":"bc"' '"prompt":"no","prompt":"a","completion":"no","completion":"bc"'; do
        for _ in {1..9}; do echo "{$form}"; done >"form${#form}.jsonl"
        run 0 -i "form${#form}.jsonl" "${train[@]}" -o "form${#form}"
        metrics "form${#form}"
    done | sort | uniq -c >losses.txt
    matches losses.txt '^ *2 .*"loss"'
    equal "$(wc -l <losses.txt)" 1
    cp -r name_run/step_00000001 doubled_model
    sed -i 's/"n_layer"/"n_layer": 7, "n_layer"/' doubled_model/config.json
    rm doubled_model/manifest.json
    run 0 --generate 2 -e doubled_model --prompt "" --tokenizer "$merges"
)"
python3 - <<'PYTHON'
import array, struct
for name, late in ("ids_1.bin", 299), ("ids_2.bin", 299), ("ids_3.bin", 300):
    ids = array.array("H", [i % 300 for i in range(1601)])
    ids[1580] = late
    with open(name, "wb") as file:
        file.write(struct.pack("<4i1008x", 20240520, 1, len(ids), 300) + ids.tobytes())
PYTHON
report "a token past the vocabulary ends a run before it starts" "$(
    for data in "-i ids_?.bin -j ids_1.bin" "-i ids_1.bin -j ids_3.bin -m -1" "-i ids_3.bin"; do
        set -f
        # shellcheck disable=SC2086  # several words
        run 2 $data -e l1h1c16 -b 1 -t 16 -x 300 -s 0 -v 100 -n 1 -o bad_ids
        says "$err" ": token 1580 of ids_3.bin is id 300, but the vocabulary has ids 0 to 299"
        one_line "$err"
        [ ! -e bad_ids ] || echo "bad_ids was made"
    done
)"
# ---- data that is counted is trained on

mkdir poems && for ((i = 0; i < 10; i++)); do echo "poem $i" >poems/$i.txt; done
cp -r poems mixed && cp text.txt mixed && cp "$merges" gpt2.bpe
cat >talks.jsonl <<'LINES'
{"prompt":"a","completion":"b"}
{"prompt":"a","completion":"a completion that is longer than a sequence of sixteen"}
{"prompt":"a prompt that is longer than a sequence of sixteen tokens","completion":"b"}
LINES
# name | words of the note, "" for none | arguments after -e l1h1c16 -b 1 -t 16 -s 0
while IFS='|' read -r name words arguments; do
    report "$name" "$(
        set -f # a pattern is for the trainer
        # shellcheck disable=SC2086  # several words
        run 0 -e l1h1c16 -b 1 -t 16 -s 0 $arguments
        if [ -n "$words" ]; then
            says "$out" "note      $words"
        else
            equal "$(grep ^note "$out")" "note      nothing will be saved: -o is not given"
        fi
    )"
done <<'ROWS'
short files|-i: 10 of 11 files to train on (70 tokens) are shorter than a sequence of -t 16|-i mixed/*.txt -x 1 -v 0
special tokens in examples|1 special token, such as <|-i special.jsonl --tokenizer gpt2.bpe -x 1 -v 0
a warmup as long as the run|the learning rate never reaches its peak: -u is not shorter|-i text.txt -x 3 -u 3 -v 0
a warmup shorter than the run||-i text.txt -x 3 -u 2 -v 0
examples cut or left out|-i talks.jsonl: of 3 examples, 1 are longer than -t 16 and cut|-i talks.jsonl -x 1 -v 0
ROWS
report "the count of training tokens is that of the files that are read" "$(
    run 0 -i '[pt]*/*[0-9].txt' -e l1h1c16 -b 1 -t 5 -x 1 -v 0 -s 0
    says "$out" "data      70 training tokens, 0 validation tokens"
    run 2 -i 'poems/*.txt' -e l1h1c16 -b 1 -t 16 -x 1 -v 0 -s 0
    says "$err" "but the longest file, poems/0.txt, has 7 to train on"
)"
report "validation scores each token once, whatever -b, and says how many" "$(
    head -c 1000 text.txt >validation.txt
    for b in 1 2 3 7 64; do
        run 0 -i text.txt -j validation.txt -e l1h1c16 -b $b -t 30 -x 1 -v 1 -m -1 -s 0 -l 0 -o val_$b
        grep 'step 0 .*validation' "$out"
    done >losses.txt
    equal "$(sort -u losses.txt | wc -l) $(wc -l <losses.txt)" "1 5"
    says losses.txt "(990 tokens)" # 33 sequences of 30, of 1000 bytes
    run 0 -i text.txt -j validation.txt -e l1h1c16 -b 7 -t 30 -x 1 -v 1 -m 2 -s 0 -l 0
    says "$out" "(420 tokens)"
)"
report "a turn with a weight of 0 is not learned" "$(
    for weight in 0 1; do
        echo '[{"role":"user","content":"a"},{"role":"assistant","content":"bcd","weight":'$weight'},
            {"role":"assistant","content":"ef","weight":1}]' | tr -d '\n' >weight$weight.jsonl
        run 0 -i weight$weight.jsonl -e l1h1c16 -b 1 -t 64 -x 1 -v 0 -s 0
        grep -o '[0-9]* targets' "$out"
    done | tr '\n' ' ' >targets.txt
    equal "$(cat targets.txt)" "4 targets 9 targets "
    run 2 -i weights.jsonl "${train[@]}"
    says "$err" "weights.jsonl line 1 has an answer with tool_calls, function_call or a weight other than 0 and 1"
)"
report "--tokenize does not read its own output, nor another command's" "$(
    mkdir own && cp text.txt own/
    run 0 --tokenizer "$merges" --tokenize own/x -i 'own/*.txt' --val-share 0
    rm own/x_train_*
    for name in own/x own/y; do
        run 2 --tokenizer "$merges" --tokenize $name -i 'own/*.txt' --val-share 0
        says "$err" "own/x_merges.txt is a tokenizer's merges file, expected text in UTF-8; give it with --tokenizer"
    done
)"

report "work of more than a second says how far it is, on a terminal only, and removes the line" "$(
    python3 - "$trainer" "$merges" 2>&1 <<'PYTHON'
import os, pty, subprocess, sys
master, slave = pty.openpty()
arguments = ["--tokenizer", sys.argv[2], "--val-share", "0", "--tokenize", "slow", "-i", "-"]
process = subprocess.Popen([sys.argv[1], *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=slave)
os.set_blocking(master, False)
shown = b""
def read():
    global shown
    try:
        shown += os.read(master, 65536)
    except BlockingIOError:
        pass
for _ in range(6000):  # text until the line is there; the trainer reads 4 MiB at once
    read()
    if b"--tokenize: " in shown and b" MB" in shown:
        break
    process.stdin.write(b"a line of text, and another one\n" * 32768)
process.stdin.close()
process.wait()
read()
if b" MB" not in shown or not shown.endswith(b"\r\x1b[K"):
    print("shown:", shown[-200:])
PYTHON
    tokenize 0 quiet text.txt
    silent "$err"
)"

use_mpirun "$("$trainer" --version | grep 'MPI (')" 1
report "-m counts the micro-batches of all ranks" "$(
    for n in 1 2 3; do
        mpirun --oversubscribe -np $n "$trainer" -i text.txt -e l1h1c16 -b 2 -t 16 -x 1 -v 1 -m 5 -s 0 -l 0 2>&1 |
            sed -n 's/.*\(validation loss.*\)/\1/p'
    done >losses.txt
    equal "$(sort -u losses.txt | wc -l) $(wc -l <losses.txt)" "1 6"
    says losses.txt "(160 tokens)"
)"
end_tests
