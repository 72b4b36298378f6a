#!/usr/bin/env bash
# A tiny model trains, stops, resumes and generates; a second run stops by a signal and resumes.
#   dev/test/tiny_run.sh TRAINER [EMULATOR]   EMULATOR: a program that runs the trainer, such as qemu-aarch64
# The sanitizers run the whole trainer with this script. It checks only the exit status and the written files.
set -euo pipefail

trainer=(${2:+"$2"} "$(realpath "${1:?expected the path of a trainer}")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat llmc/*.h llmc/*/*.h >"$folder/text"
cd "$folder"
export TRAIN_GPT2_AUTOTUNE_CACHE=$folder/autotune

train=("${trainer[@]}" -i text -e l2h2c32 -b 2 -t 16 -d 64 -l 1e-3 -v 5 -m 2 -s 5 -g 8)
losses() { grep -c '"loss"' "$1/metrics.jsonl"; }

"${train[@]}" -o run -n 5 -x 10
"${train[@]}" -o run -n 5 -x 15 -y 1
"${trainer[@]}" --generate 20 -e run/step_00000015 --prompt "int main" --temperature 0.8 --top-k 10
[ "$(losses run)" -eq 15 ]

# overfits one batch with matmul inputs rounded to bf16; the only checkpoint comes from the signal
overfit=("${train[@]}" -o ended -n 1000000 -a 1 -f 2)
"${overfit[@]}" -x 1000000 &
until grep -qs '"step":7,' ended/metrics.jsonl; do
    kill -0 $!
    sleep 0.02
done
kill -s TERM $!
wait $!
[ "$(losses ended)" -ge 7 ]
saved=$((10#$(echo ended/step_* | sed 's/.*_//')))
[ "$(losses ended)" -eq $saved ]
"${overfit[@]}" -x $((saved + 3)) -y 1
[ "$(losses ended)" -eq $((saved + 3)) ]
echo "[  PASSED  ] 1 test(s)."
