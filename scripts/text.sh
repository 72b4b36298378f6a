#!/usr/bin/env bash
# Prints the path of a text to train on:   scripts/text.sh FOLDER [FILE]
# That is FILE, which must exist. Without FILE, a text is written into FOLDER:
#
# kjv.txt    the King James Bible from Debian's bible-kjv, without a network: 31,102 verses, one a line without the
#            reference, 789,634 words, 4,137,850 bytes, 64 distinct bytes, plain ASCII
# shakespeare.txt   without bible-kjv: tinyshakespeare, 1,115,394 bytes, downloaded
set -euo pipefail

folder=${1:?expected a folder to put the text in} file=${2:-}
shakespeare=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
if [ -n "$file" ]; then
    [ -f "$file" ] && echo "$file" && exit
    echo "DATA=$file: it is not a file; give a text to train on" >&2
    exit 2
fi
mkdir -p "$folder"

# keep NAME BYTES: saves stdin as NAME unless it has fewer than BYTES bytes
keep() {
    local path=$folder/$1
    cat >"$path.part"
    if [ "$(stat -c %s "$path.part")" -lt "$2" ]; then
        rm "$path.part"
        return 1
    fi
    mv "$path.part" "$path"
    echo "$path"
}

download() {
    if command -v curl >/dev/null; then
        curl -fsSL --max-time 60 "$1"
    elif command -v wget >/dev/null; then
        wget -q --timeout=60 -O - "$1"
    else
        echo "text: downloading needs curl or wget, and neither is installed" >&2
    fi
}

for path in "$folder/kjv.txt" "$folder/shakespeare.txt"; do
    if [ -s "$path" ]; then
        echo "$path"
        exit 0
    fi
done
if command -v bible >/dev/null; then
    bible -f gen1:1-rev22:21 </dev/null | sed 's/^[^ ]* //' | keep kjv.txt 4000000 && exit 0
    echo "text: the program 'bible' did not print the whole King James Bible; downloading a text instead" >&2
fi
download "$shakespeare" | keep shakespeare.txt 1000000 && exit 0
echo "text: no text to train on: bible-kjv is not installed and $shakespeare could not be downloaded;" \
    "name a text of your own: make train DATA=my.txt" >&2
exit 1
