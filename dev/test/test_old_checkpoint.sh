#!/usr/bin/env bash
# Runs of commit 14da99a resume: golden/runs_14da99a.tar.gz has two byte models, killed while they saved step 12, their
# data, and the metrics of the same runs without the kill (fp32.jsonl, 8bit.jsonl). The config.json of each sets flags
# that are now removed. RUN/best of that version is a link: of fp32 to best_b, of 8bit to step_00000008.
# golden/masters_1a62989.tar.gz has such a run of bf16 weights with -w fp32, and its metrics without the kill.
#   dev/test/test_old_checkpoint.sh bf16      needs build/test/train_gpt2_bf16
. "$(dirname "$0")/harness.sh"
[ "${1-}" != bf16 ] || trainer=$(realpath build/test/train_gpt2_bf16)
in_scratch
export OMP_NUM_THREADS=1
tar xzf "$golden/runs_14da99a.tar.gz" && tar xzf "$golden/masters_1a62989.tar.gz" || exit 1
for run in fp32 8bit masters; do mkdir "whole_$run" && mv "$run.jsonl" "whole_$run/metrics.jsonl"; done

val_loss() { losses "$1" | awk -v step="$2" '$1 == step && $2 == "val_loss" { print $3 }'; }
resumes() { # RUN STEP: from STEP to 12, as the uninterrupted run
    "$trainer" -o "$1" -y 1 >"$out" 2>&1 </dev/null || echo "exit status $?"
    grep -qE "^resumed   at step $2\b" "$out" || echo "did not resume at step $2"
    close_losses "$1" "whole_$1" 1e-5 # another CPU sums in another order
    [ -f "$1/step_00000012/state.json" ] || echo "no step_00000012"
}
best_is() { # RUN STEP
    "$trainer" --generate 1 -e "$1/best" >/dev/null 2>"$out" || echo "RUN/best is not a model"
    grep -q "\"step\":\s*$2," "$1/best/state.json" || echo "RUN/best is not of step $2"
}

if [ "${1-}" = bf16 ]; then # weights that resume without their masters have another loss at step 12, by 4e-4 of it
    report "fp32 masters: the next losses are those of the uninterrupted run with -w fp32" "$(
        resumes masters 8
    )"
    end_tests
    exit
fi

worse=$(mktemp -d -p "$scratch") && cp -r fp32 text "$worse"

report "fp32: the next losses are those of the uninterrupted run, and RUN/best is replaced" "$(
    resumes fp32 9 # RUN/best is newer than step_00000008
    best_is fp32 12
)"
report "8-bit moments: the same" "$(
    resumes 8bit 8
    best_is 8bit 12
)"
report "a run without a lower loss keeps RUN/best" "$(
    cd "$worse" || exit
    "$trainer" -o fp32 -y 1 -x 11 -l 9 >"$out" 2>&1 </dev/null || echo "exit status $?"
    awk -v now="$(val_loss fp32 11)" 'BEGIN { exit !(now > 4.98) }' || echo "the loss fell: nothing was tested"
    best_is fp32 9
)"
end_tests
