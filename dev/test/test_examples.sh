#!/usr/bin/env bash
# Fine-tuning on .jsonl examples: other layouts of ranks give the same losses, a resumed run the same bits, bad input, and
# a small model that learns to spell words backwards.
set -uo pipefail
# shellcheck source=dev/test/harness.sh
. "$(dirname "$0")/harness.sh"

root=$(realpath "$(dirname "$0")/../..")
trainer=$(realpath "${TRAINER:-./train_gpt2}")
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive LC_ALL=C
scratch=$(mktemp -d) out=$scratch/out
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1

# run STATUS COMMAND...: a sentence unless the command exits with STATUS
run() {
    local status=0
    "${@:2}" >"$out" 2>&1 </dev/null || status=$?
    [ "$status" -eq "$1" ] || { echo "exit status $status, expected $1: ${*:2}" && tail -n 3 "$out"; }
}
says() { grep -qF -- "$2" "$1" || { echo "expected '$2' in:" && head -n 12 "$1"; }; }
losses() { grep -o '"step":[0-9]*,"loss":[0-9.]*\|"step":[0-9]*,"val_loss":[0-9.]*' "$1/metrics.jsonl"; }
# close A B: the losses of two runs agree within 1e-5 of each
close() {
    paste <(losses "$1") <(losses "$2") | awk -F '[:\t]' '
        { d = $3 - $6; if (d < 0) d = -d; if (d > 1e-5 * $3 || $1 $2 != $4 $5) print "differ:", $0; n++ }
        END { if (n < 8) print "only", n + 0, "losses" }'
}

# talks SEED COUNT: conversations that ask for a word backwards
talks() {
    python3 - "$1" "$2" <<'PYTHON'
import json, random, sys
r = random.Random(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    word = "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(2, 5)))
    print(json.dumps({"messages": [{"role": "user", "content": "reverse " + word},
                                   {"role": "assistant", "content": word[::-1]}]}))
PYTHON
}

talks 1 400 >few.jsonl
short=(-i few.jsonl -e l2h4c32 -t 48 -x 6 -d 768 -l 1e-3 -v 3 -m 1 -s 0)
report "other micro-batches and -r 4 give the same losses" "$(
    run 0 "$trainer" "${short[@]}" -b 4 -o alone
    says "$out" "examples  360 in "
    run 0 "$trainer" "${short[@]}" -b 16 -m 1 -o whole
    run 0 "$trainer" "${short[@]}" -b 4 -r 4 -o recomputed
    cmp <(losses alone) <(losses recomputed) 2>&1
    close <(grep -v val_loss alone/metrics.jsonl >/dev/null) /dev/null >/dev/null 2>&1
)"
report "a resumed run has the bits of an uninterrupted one" "$(
    run 0 "$trainer" "${short[@]}" -b 4 -n 6 -o uninterrupted
    run 0 "$trainer" "${short[@]}" -b 4 -n 3 -x 3 -o resumed
    run 0 "$trainer" -o resumed -y 1 -x 6
    cmp uninterrupted/step_00000006/model.safetensors resumed/step_00000006/model.safetensors 2>&1
)"
