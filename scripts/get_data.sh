#!/usr/bin/env bash
# Fetches a data set or a model and prepares it, without Python:   scripts/get_data.sh NAME [OPTION...]
#   tinyshakespeare   data/tinyshakespeare/    1.1 MB of text, tokenized here; 0.3M tokens
#   tinystories       data/tinystories/        2.2 GB of text (TinyStoriesV2, by GPT-4), tokenized here; 0.5B tokens
#   fineweb10B        data/fineweb10B/         103 training shards of 100M tokens and a validation shard, 20.8 GB
#   fineweb100B       data/fineweb100B/        1028 such shards of FineWeb, 206 GB
#   fineweb_edu       data/edu_fineweb100B/    1001 such shards of FineWeb-Edu, 200 GB
#   hellaswag         dev/data/hellaswag/      HellaSwag's validation set, 12 MB, for -h 1 and --eval
#   gpt2              models/gpt2/             GPT-2 124M from OpenAI, with its tokenizer, for -e; 0.5 GB. Also
#                                              gpt2-medium (1.5 GB), gpt2-large (3.2 GB) and gpt2-xl (6.4 GB)
#   merges            vocab.bpe                GPT-2's merges alone, 0.5 MB, for --tokenizer
# Options:
#   --shards N        only the first N training shards of a FineWeb set
#   --mirror URL      fetches from URL instead of https://huggingface.co and the like: a mirror has the same paths.
#                     DATA_MIRROR in the environment is the same
#   --into FOLDER     the folder of the data set or the model
# A set of tokens also gets GPT-2's merges, which --tokenize and --prompt need: NAME_merges.txt.
# The same command continues an interrupted download. A file under its final name is whole: its SHA-256 is the one in
# this script, or the one that the server states. TRAIN_GPT2 names the program; the default is ./train_gpt2, or else the
# installed program. Needs curl.
set -euo pipefail

scripts=$(realpath "$(dirname "$0")")
if [ -f "$scripts/../Makefile" ]; then # a checkout
    cd "$scripts/.."
    program=${TRAIN_GPT2:-./train_gpt2}
else
    program=${TRAIN_GPT2:-$(realpath -m "$scripts/../../../bin/train_gpt2")}
fi

hub=https://huggingface.co raw=https://raw.githubusercontent.com mirror=${DATA_MIRROR:-} shards='' folder=''
merges_sha=1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
shakespeare_sha=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed

stop() { # STATUS SENTENCE
    echo "get_data: $2" >&2
    exit "$1"
}

name=${1:-}
shift || true
while [ $# -gt 0 ]; do
    [[ $# -ge 2 && $1 =~ ^--(shards|mirror|into)$ ]] ||
        stop 2 "expected --shards N, --mirror URL or --into FOLDER, found '$1'"
    case $1 in
    --shards) shards=$2 ;;
    --mirror) mirror=${2%/} ;;
    --into) folder=$2 ;;
    esac
    shift 2
done
[[ $shards =~ ^([1-9][0-9]{0,3})?$ ]] || stop 2 "--shards $shards: expected a number from 1 on"
[ -z "$mirror" ] || hub=$mirror raw=$mirror
command -v curl >/dev/null || stop 2 "curl is not installed; install it with apt-get install curl"

# stated_sha URL: the SHA-256 in the headers of the answer, or nothing. Hugging Face states it for large files before
# its redirection.
stated_sha() {
    curl -sI --retry 3 "$1" | tr -d '\r"' |
        sed -nE 's/^(x-linked-etag|etag): *(W\/)?([0-9a-f]{64})$/\3/Ip' | head -n 1
}

# fetch URL FILE [SHA]: downloads FILE, unless it is there. SHA defaults to what the server states.
fetch() {
    local url=$1 file=$2 sha=${3:-} found status=0
    [ ! -f "$file" ] || return 0
    mkdir -p "$(dirname "$file")"
    [ -n "$sha" ] || sha=$(stated_sha "$url")
    echo "fetching $url"
    curl -fL --no-progress-meter --retry 5 --retry-delay 1 -C - -o "$file.part" "$url" || status=$?
    # 22 and 33: the server has no more bytes than an earlier try has already fetched
    if [ $status -ne 0 ] && ! { [[ $status =~ ^(22|33)$ && -n $sha && -f $file.part ]]; }; then
        stop 1 "could not fetch $url (curl's status $status); give the same command again, or --mirror URL"
    fi
    found=$(sha256sum "$file.part" | cut -d ' ' -f 1)
    if [ -n "$sha" ] && [ "$found" != "$sha" ]; then
        rm -f "$file.part"
        stop 1 "$url has SHA-256 $found, expected $sha; the file was deleted, so try again, or give another --mirror"
    fi
    [ -n "$sha" ] || echo "note: the server states no SHA-256 of $file, whose SHA-256 is $found"
    mv "$file.part" "$file"
}

# shard_is_whole FILE: the number of tokens in the header agrees with the size
shard_is_whole() {
    local magic version tokens
    read -r magic version tokens <<<"$(od -An -t d4 -N 12 "$1" | xargs)"
    [ "$magic $version" = "20240520 1" ] && [ "$(stat -c %s "$1")" -eq $((1024 + 2 * tokens)) ]
}

fetch_shards() { # URL PREFIX LAST
    local url=$1 prefix=$2 last=${shards:-$3} number file
    [ "$last" -le "$3" ] || stop 2 "--shards $last: the set has $3"
    mkdir -p "$folder"
    : >"$folder/unfinished" # scripts/run_gpt2.sh looks for it
    for ((number = 0; number <= last; number++)); do
        file=$(printf '%s_%s_%06d.bin' "$prefix" "$([ $number -eq 0 ] && echo val || echo train)" $number)
        fetch "$url/$file" "$folder/$file"
        shard_is_whole "$folder/$file" || stop 1 "$folder/$file is no token shard: delete it and try again"
    done
    fetch_merges "$prefix"
    rm "$folder/unfinished"
}

fetch_merges() { # PREFIX
    fetch "$hub/openai-community/gpt2/resolve/main/merges.txt" "$folder/$1_merges.txt" $merges_sha
}

# tokenize OUT FILE FLAG...: writes token shards, unless they are there
tokenize() {
    local out=$folder/$1 text=$2
    [ ! -e "${out}_train_000001.bin" ] || return 0
    [ -x "$program" ] || stop 2 "there is no $program to tokenize with; build it with make"
    "$program" --device cpu -i "$text" --tokenizer "$folder/${1}_merges.txt" --tokenize "$out" "${@:3}"
}

case $name in
tinyshakespeare)
    folder=${folder:-data/tinyshakespeare}
    fetch "$raw/karpathy/char-rnn/master/data/tinyshakespeare/input.txt" "$folder/tinyshakespeare.txt" $shakespeare_sha
    fetch_merges tinyshakespeare
    tokenize tinyshakespeare "$folder/tinyshakespeare.txt" --val-share 0.1
    ;;
tinystories)
    folder=${folder:-data/tinystories}
    stories=$hub/datasets/roneneldan/TinyStories/resolve/main
    fetch "$stories/TinyStoriesV2-GPT4-train.txt" "$folder/TinyStoriesV2-GPT4-train.txt"
    fetch "$stories/TinyStoriesV2-GPT4-valid.txt" "$folder/TinyStoriesV2-GPT4-valid.txt"
    fetch_merges tinystories
    cp "$folder/tinystories_merges.txt" "$folder/valid_merges.txt"
    tokenize tinystories "$folder/TinyStoriesV2-GPT4-train.txt" --val-share 0
    # the published validation stories, as the validation shard
    if [ ! -e "$folder/tinystories_val_000000.bin" ]; then
        tokenize valid "$folder/TinyStoriesV2-GPT4-valid.txt" --val-share 0
        mv "$folder/valid_train_000001.bin" "$folder/tinystories_val_000000.bin"
    fi
    rm -f "$folder/valid_merges.txt"
    ;;
fineweb10B)
    folder=${folder:-data/fineweb10B}
    fetch_shards "$hub/datasets/kjj0/fineweb10B-gpt2/resolve/main" fineweb 103
    ;;
fineweb100B)
    folder=${folder:-data/fineweb100B}
    fetch_shards "$hub/datasets/chrisdryden/FineWebTokenizedGPT2/resolve/main" fineweb 1028
    ;;
fineweb_edu)
    folder=${folder:-data/edu_fineweb100B}
    fetch_shards "$hub/datasets/karpathy/fineweb-edu-100B-gpt2-token-shards/resolve/main" edu_fineweb 1001
    ;;
hellaswag)
    folder=${folder:-dev/data/hellaswag}
    fetch "$raw/rowanz/hellaswag/master/data/hellaswag_val.jsonl" "$folder/hellaswag_val.jsonl"
    ;;
gpt2 | gpt2-medium | gpt2-large | gpt2-xl)
    folder=${folder:-models/$name}
    for file in config.json vocab.json merges.txt model.safetensors; do
        fetch "$hub/openai-community/$name/resolve/main/$file" "$folder/$file"
    done
    ;;
merges)
    folder=${folder:-.}
    fetch "$hub/openai-community/gpt2/resolve/main/merges.txt" "$folder/vocab.bpe" $merges_sha
    ;;
*)
    stop 2 "expected tinyshakespeare, tinystories, fineweb10B, fineweb100B, fineweb_edu, hellaswag, gpt2, gpt2-medium,\
 gpt2-large, gpt2-xl or merges; found '$name'"
    ;;
esac
echo "$name is ready in $folder"
