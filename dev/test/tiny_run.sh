#!/usr/bin/env bash
# A tiny model trains, stops, resumes and generates, in the trainer that is named:   dev/test/tiny_run.sh TRAINER
# It is what runs the whole trainer under the sanitizers; only its exit status and the files it leaves are looked at.
set -euo pipefail

trainer=$(realpath "${1:?expected the path of a trainer}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat llmc/*.h >"$folder/text"
cd "$folder"

train=("$trainer" -i text -e l2h2c32 -o run -b 2 -t 16 -d 64 -l 1e-3 -v 5 -m 2 -s 5 -g 8 -n 5)
"${train[@]}" -x 10
"${train[@]}" -x 15 -y 1
"$trainer" --generate 20 -e run/step_00000015 --prompt "int main" --temperature 0.8 --top-k 10
[ "$(grep -c '"loss"' run/metrics.jsonl)" -eq 15 ]
echo "[  PASSED  ] 1 test(s)."
