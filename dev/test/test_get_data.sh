#!/usr/bin/env bash
# scripts/get_data.sh, whole, against a server on this machine: downloads that break off, checksums, ranges, preparation
# and training on the result.
. "$(dirname "$0")/harness.sh"
in_scratch
export TRAIN_GPT2=$trainer OMP_NUM_THREADS=1
server=
trap '[ -z "$server" ] || kill $server; rm -rf "$scratch"' EXIT
if ! command -v curl >/dev/null; then
    skip curl
    exit 0
fi

# The script under test, with the checksums of the small files that the server has.
mkdir -p "$scratch/tree/scripts" "$scratch/tree/dev/data" "$scratch/site"
cd "$scratch/tree" || exit
: >Makefile # a checkout
sha() { sha256sum "$1" | cut -d ' ' -f 1; }
site() { mkdir -p "$scratch/site/$(dirname "$1")" && cat >"$scratch/site/$1"; }
site openai-community/gpt2/resolve/main/merges.txt <"$merges"
yes 'To be, or not to be: that is the question.' | head -n 4000 |
    site karpathy/char-rnn/master/data/tinyshakespeare/input.txt
stories=datasets/roneneldan/TinyStories/resolve/main
printf 'Once there was a cat.\n<|endoftext|>\nThe end came.\n<|endoftext|>\n' |
    site $stories/TinyStoriesV2-GPT4-train.txt
printf 'A dog.\n<|endoftext|>\n' | site $stories/TinyStoriesV2-GPT4-valid.txt
shard() { # a token shard of 20000 tokens
    printf '\210\330\064\001\001\0\0\0\040\116\0\0' # 20240520, 1, 20000
    head -c 41012 /dev/zero
}
fineweb=datasets/kjj0/fineweb10B-gpt2/resolve/main
for number in val_000000 train_000001 train_000002 train_000003; do
    shard | site $fineweb/fineweb_$number.bin
done
sed -e "s/^merges_sha=.*/merges_sha=$(sha "$merges")/" \
    -e "s/^shakespeare_sha=.*/shakespeare_sha=$(
        sha "$scratch/site/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    )/" "$root/scripts/get_data.sh" >scripts/get_data.sh
chmod +x scripts/get_data.sh

# The server states checksums as Hugging Face does, honours ranges, and breaks off: FAIL.txt names a path and a number
# of bytes, after which the connection is closed. WRONG.txt names a path whose checksum is stated wrongly.
cat >"$scratch/server.py" <<'PYTHON'
import hashlib, http.server, os, re, sys
site = sys.argv[1]

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        path = site + self.path
        if not os.path.isfile(path):
            return self.send_error(404)
        data = open(path, "rb").read()
        told = lambda name: open(f"{site}/{name}").read().split() if os.path.exists(f"{site}/{name}") else [""]
        begin = re.match(r"bytes=(\d+)-$", self.headers.get("Range", ""))
        begin = int(begin[1]) if begin else 0
        with open(f"{site}/log", "a") as log:
            log.write(f"{self.command} {self.path} {begin}\n")
        if begin >= len(data) > 0 and begin:
            return self.send_error(416)
        self.send_response(206 if begin else 200)
        if "fineweb" in path or "valid" in path:
            sha = hashlib.sha256(data).hexdigest()
            self.send_header("X-Linked-ETag", f'"{sha[::-1] if told("WRONG.txt")[0] == self.path else sha}"')
        self.send_header("Content-Length", str(len(data) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            fail = told("FAIL.txt")
            self.wfile.write(data[begin:int(fail[1])] if fail[0] == self.path else data[begin:])

    def do_GET(self):
        self.answer(True)

    def do_HEAD(self):
        self.answer(False)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PYTHON
python3 "$scratch/server.py" "$scratch/site" >"$scratch/port" &
server=$!
for _ in {1..6000}; do
    [ ! -s "$scratch/port" ] || break
    sleep 0.1
done
mirror=http://127.0.0.1:$(<"$scratch/port")

# get STATUS ARGUMENTS...: a sentence unless the script exits with STATUS
get() {
    local status=0
    scripts/get_data.sh "${@:2}" --mirror "$mirror" >"$out" 2>&1 </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 5 "$out"; }
}
there() { for file; do [ -s "$file" ] || echo "there is no $file"; done; }

report "tinyshakespeare: text, merges and shards, and a model trains on them" "$(
    get 0 tinyshakespeare
    there data/tinyshakespeare/tinyshakespeare_{train_000001.bin,val_000000.bin,merges.txt}
    "$trainer" -i 'data/tinyshakespeare/*_train_*.bin' -j 'data/tinyshakespeare/*_val_*.bin' -e l1h1c16 -b 1 -t 16 \
        -x 1 -v 1 -m 1 -s 1 -g 4 >"$out" 2>&1 || cat "$out"
    : >"$scratch/site/log"
    get 0 tinyshakespeare
    [ ! -s "$scratch/site/log" ] || echo "a second call fetched again: $(<"$scratch/site/log")"
    get 0 tinyshakespeare --into "Alice's [1] \"text\""
    there "Alice's [1] \"text\""/tinyshakespeare_{train_000001.bin,val_000000.bin,merges.txt}
)"
report "tinystories: stories are documents, the published validation stories the validation shard" "$(
    get 0 tinystories
    there data/tinystories/tinystories_{train_000001.bin,val_000000.bin,merges.txt}
    says "$out" "2 documents"
    says "$out" "1 document, "
    find data/tinystories -name 'valid*' | sed 's/^/left behind: /'
)"
report "fineweb10B: a download that broke off goes on, and no byte is fetched twice" "$(
    : >"$scratch/site/log"
    echo "/$fineweb/fineweb_train_000001.bin 15000" >"$scratch/site/FAIL.txt"
    get 1 fineweb10B --shards 2
    says "$out" "get_data: could not fetch $mirror/$fineweb/fineweb_train_000001.bin"
    [ ! -e data/fineweb10B/fineweb_train_000001.bin ] || echo "half a file has its final name"
    rm "$scratch/site/FAIL.txt"
    get 0 fineweb10B --shards 2
    there data/fineweb10B/fineweb_{val_000000.bin,train_000001.bin,train_000002.bin,merges.txt}
    [ ! -e data/fineweb10B/fineweb_train_000003.bin ] || echo "three shards were fetched"
    for file in data/fineweb10B/*.bin; do cmp "$file" "$scratch/site/$fineweb/$(basename "$file")" 2>&1; done
    says "$scratch/site/log" "GET /$fineweb/fineweb_train_000001.bin 15000"
    [ "$(grep -c 'GET.*val_000000.bin' "$scratch/site/log")" -eq 1 ] || echo "the validation shard was fetched twice"
    "$trainer" --plan -i 'data/fineweb10B/*_train_*.bin' -e d12 -b 1 >"$out" 2>&1 || cat "$out"
)"
report "a wrong checksum: the file is deleted, and the next try is whole" "$(
    echo "/$fineweb/fineweb_train_000003.bin" >"$scratch/site/WRONG.txt"
    get 1 fineweb10B --shards 3
    says "$out" "the file was deleted, so try again, or give another --mirror"
    find data/fineweb10B -name '*000003*' | sed 's/^/left behind: /'
    rm "$scratch/site/WRONG.txt"
    get 0 fineweb10B --shards 3
    there data/fineweb10B/fineweb_train_000003.bin
)"
report "a file that was fetched whole, but not yet checked, is checked and kept" "$(
    mv data/fineweb10B/fineweb_train_000003.bin data/fineweb10B/fineweb_train_000003.bin.part
    get 0 fineweb10B --shards 3
    cmp data/fineweb10B/fineweb_train_000003.bin "$scratch/site/$fineweb/fineweb_train_000003.bin" 2>&1
)"
report "run_gpt2_124M.sh fetches missing shards, and again after a fetch that broke off" "$(
    rm -r data/fineweb10B
    shard | site $fineweb/fineweb_val_000000.bin
    cp "$root"/scripts/run_gpt2*.sh scripts
    printf '#!/bin/sh\necho "trainer $*"\n' >train_gpt2 && chmod +x train_gpt2
    export DATA_MIRROR=$mirror SHARDS=2
    echo "/$fineweb/fineweb_train_000002.bin 15000" >"$scratch/site/FAIL.txt"
    scripts/run_gpt2_124M.sh >"$out" 2>&1 && echo "expected a failure"
    grep -q ^trainer "$out" && echo "the trainer was started"
    rm "$scratch/site/FAIL.txt"
    scripts/run_gpt2_124M.sh >"$out" 2>&1 || cat "$out"
    says "$out" "trainer --device cuda -i data/fineweb10B/*_train_*.bin"
    there data/fineweb10B/fineweb_train_000002.bin
    : >"$scratch/site/log"
    SHARDS='' scripts/run_gpt2_124M.sh >"$out" 2>&1 || cat "$out"
    [ ! -s "$scratch/site/log" ] || echo "shards that are there were fetched again"
)"
end_tests
