#!/usr/bin/env bash
# Trains a small GPT on the bytes of a text, in about two minutes on two cores:   scripts/train.sh [FILE]
# `make train` first installs missing packages and builds; installing takes extra time.
# The default text is the King James Bible (scripts/text.sh). TRAIN_SECONDS in the environment replaces the 95 s.
#
# model      4 layers, 4 heads, C = 128 channels, T = 64 positions, 256 byte values
# parameters 4 layers of 12 C^2 + 13 C, (256 + 64) C of embeddings, 2 C of the last layernorm:  834,304
# batch      12 sequences of 64 bytes: 768 tokens a step
# FLOPs      a token takes 6 for each of 826,112 matmul weights and 6 L T C for attention, half of it masked: 5.15
#            million, so 4.0 GFLOP a step
# time       10 ms a step on two Zen 5 cores (0.4 TFLOP/s): 95 s are 9,500 steps, 7.3 million tokens, 2 epochs of the
#            Bible's 3.7 MB of training data, 9 tokens a parameter
# memory     16 bytes a parameter of weights, gradients and AdamW moments, 13 MB, and 25 MB of saved activations
# disk       a checkpoint holds weights and moments: 12 bytes a parameter, 10 MB; one every 1000 steps, the last is kept
#
# The script first times 60 steps at each number of threads. The run takes the fastest number, whose step time sets the
# number of steps. Warmup is a 40th of them; the validations, 16 of a long run, take up to 6 % of the time. Before 1000
# steps, 0.8 MB of text, the model writes few words; the command that goes on takes at least so many.
set -euo pipefail
export LC_ALL=C
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000}  # spinning threads are slow while other programs run
cd "$(dirname "$0")/.."

seconds=${TRAIN_SECONDS:-95} most_steps=10000 steps_to_words=1000
[[ $seconds =~ ^[0-9]+$ ]] || { echo "train.sh: TRAIN_SECONDS takes a whole number, found '$seconds'" >&2 && exit 2; }
time_limit=$((seconds + 15))
text=$(scripts/text.sh data "${1:-}")
model=(-i "$text" -e l4h4c128 -b 12 -t 64 -r 0 -l 1e-3 -q 0.1 -c 0.1 -s 0)

# quoted WORD...: the words with the shell's quotes
quoted() { printf ' %q' "$@"; }

# median_ms FOLDER: median step time of the run; the first ten steps fill caches and are left out
median_ms() {
    sed -n 's/.*"ms":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl" | tail -n +11 | sort -g |
        awk '{ ms[NR] = $1 } END { printf "%.1f", ms[int((NR + 1) / 2)] }'
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT # an interrupted trainer exits 0, so the script stops itself
echo "timing a step"
best_ms=''
cores=$(nproc)
for threads in ${OMP_NUM_THREADS:-1 2 4 8 16}; do
    [ "$threads" -le "$cores" ] || break
    OMP_NUM_THREADS=$threads ./train_gpt2 "${model[@]}" -o "$scratch/$threads" -x 60 -v 0 -n 0 >/dev/null
    ms=$(median_ms "$scratch/$threads")
    if [ -z "$best_ms" ] || awk "BEGIN { exit !($ms < $best_ms) }"; then best_ms=$ms best_threads=$threads; fi
    echo "  threads: $threads, a step takes $ms ms"
done
steps=$(awk "BEGIN { n = int($seconds * 1000 / $best_ms); print n < 1 ? 1 : n < $most_steps ? n : $most_steps }")
echo "$steps steps take about $(awk "BEGIN { printf \"%.0f\", $steps * $best_ms / 1000 }") s"

# each run has a folder of its own: runs/kjv-1, runs/kjv-2, ...
name=$(basename -- "$text")
name=${name%.*}
name=${name//[^A-Za-z0-9._-]/_}
number=1
while [ -e "runs/$name-$number" ]; do number=$((number + 1)); done
run=runs/$name-$number
mkdir -p runs

batches=$((steps < 2000 ? steps / 100 + 1 : 20)) # of a validation
train=(env OMP_NUM_THREADS="$best_threads" GOMP_SPINCOUNT="$GOMP_SPINCOUNT" ./train_gpt2 "${model[@]}"
    -u $((steps / 40 + 1)) -v $((steps / 16 + 1)) -m "$batches" -n 1000 -nk 1 -o "$run")
# Ctrl-C reaches the trainer directly: the run stops early, and the model still speaks. SIGTERM, from make, reaches
# only this script.
terminated=
trap 'interrupted=yes' INT
trap 'interrupted=yes terminated=yes; kill -TERM "$trainer"' TERM
env --default-signal=INT "${train[@]}" -x "$steps" --time-limit "$time_limit" &
trainer=$!
while # a signal ends `wait`, not the trainer
    interrupted='' status=0
    wait "$trainer" || status=$?
    [ -n "$interrupted" ]
do :; done
trap - INT TERM
[ "$status" -eq 0 ] || exit "$status"

checkpoints=("$run"/step_*)
checkpoint=${checkpoints[-1]}
if [ ! -e "$checkpoint" ]; then
    echo "train.sh: stopped before the first step, so there is no model; start again: make train" >&2
    exit 130
fi
made=$((10#${checkpoint##*_}))
generate=(./train_gpt2 --generate 400 -e "$run" --temperature 0.8 --top-k 40)
[ -n "${1:-}" ] || generate+=(--prompt "And the LORD said")
if [ -z "$terminated" ]; then
    echo
    echo "The model in its own words:"
    "${generate[@]}"
fi
echo
if [ "$made" -lt $steps_to_words ]; then
    echo "note        the model has not seen enough text for words: the command after 'go on' trains it further"
fi
echo "checkpoint  $checkpoint"
more=$((made < steps ? steps : 2 * steps)) # the rest of the run, or the same length again
more=$((more < steps_to_words ? steps_to_words : more))
echo "go on      $(quoted "${train[@]}" -y 1 -x "$more")"
echo "generate   $(quoted "${generate[@]}")"
[ -z "$terminated" ] || exit 143
