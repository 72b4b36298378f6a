#!/usr/bin/env bash
# scripts/scale.py: one GPU is what was measured, more are never faster than their share of it, what does not fit is not
# taken, and the bytes behind its formulas are those that the program plans to send.
#   TRAIN_GPT2=./train_gpt2 dev/test/test_scale.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

export TRAIN_GPT2=${TRAIN_GPT2:-./train_gpt2}
passed=0 failed=0
report() { # NAME TROUBLE
    if [ -z "$2" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'not ok %s\n    %s\n' "$1" "$2"
    fi
}
# columns of the row of GPUS: | GPUS | layout | step | tokens/s | of linear | not hidden | GB |
row() { scripts/scale.py -e d12 -b 16 --ms 100 --update-ms 5 --gpus "$@" | grep "^| $1 |"; }
column() { awk -F ' *[|] *' -v n="$1" '{ gsub(/[,%]/, "", $n); print $n }'; }

step=$(row 1 | column 4)
report "one GPU: 64 micro-steps and an update" "$([ "$step" = 6405 ] || echo "found $step, expected 6405 ms")"
report "eight are at most eight times as fast" "$(
    share=$(row 8 | column 6)
    awk -v s="$share" 'BEGIN { exit !(s > 50 && s <= 101) }' || echo "$share % of linear"
)"
report "slow links leave something to wait for" "$(
    exposed=$(row 64 --net 1 | column 7)
    awk -v e="$exposed" 'BEGIN { exit !(e > 100) }' || echo "$exposed ms are not hidden"
)"
report "what does not fit is not taken" "$(row 8 --memory 1 | grep -q 'none fits' || echo "something fits in 1 GB")"
# -z 1: a reduce-scatter and an all-gather of every parameter; 4 bytes in a build whose weights are fp32
report "the bytes sent are the plan's" "$(
    "$TRAIN_GPT2" --plan=json -e d12 -b 16 -d 131072 -s 0 -z 1 -pn 8 -gd bf16 | python3 -c '
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("scale", "scripts/scale.py")
scale = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scale)
rank = json.load(sys.stdin)["ranks"][0]
params = next(t for t in rank["tensors"] if t["name"] == "params")
size = {"F32": 4, "BF16": 2}[params["dtype"]]
expected = (2 + size) * scale.parameters(*scale.MODELS["d12"]) * 7 / 8
if not abs(rank["sent"] / expected - 1) < 0.005:
    print("the plan sends", rank["sent"], "bytes, the formula", expected)'
)"

[ "$failed" -eq 0 ] || echo "[  FAILED  ] $failed test(s)"
echo "[  PASSED  ] $passed test(s)."
[ "$failed" -eq 0 ]
