#!/usr/bin/env bash
# scripts/scale.py: one GPU has the measured or predicted time, N GPUs are at most N times as fast, layouts that do not
# fit are left out, errors are reported, and the bytes it counts are the sent bytes of --plan.
#   TRAIN_GPT2=./train_gpt2 PREDICT=build/bench/predict dev/test/test_scale.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

export TRAIN_GPT2=${TRAIN_GPT2:-./train_gpt2} PREDICT=${PREDICT:-build/bench/predict}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
# row GPUS FLAGS...: the row of GPUS: | GPUS | layout | step | tokens/s | of linear | not hidden | GB |
row() { scripts/scale.py -e d12 -b 16 --ms 100 --update-ms 5 --gpus "$@" | grep "^| $1 |"; }
column() { awk -F ' *[|] *' -v n="$1" '{ gsub(/[,%]/, "", $n); print $n }'; }

step=$(row 1 | column 4)
report "one GPU: 64 micro-steps and an update" "$([ "$step" = 6405 ] || echo "found $step, expected 6405 ms")"
report "one GPU without --ms: the prediction's micro-steps and update" "$(
    found=$(scripts/scale.py -e d12 -b 16 -d 131072 --gpu a100 --gpus 1 | grep "^| 1 |" | column 4)
    "$PREDICT" --json --gpu a100 -e d12 -b 16 -d 131072 -r 1 >"$out"
    python3 2>&1 -c '
import json, sys
step = json.loads(open(sys.argv[1]).readlines()[-1])["ms"][1]
if abs(step - float(sys.argv[2])) > 0.51:
    print("found", sys.argv[2], "expected", step, "ms")' "$out" "$found"
)"
report "--update-ms overrides the prediction, --memory is the GPU's" "$(
    step() { scripts/scale.py -e d12 -b 16 -d 131072 --gpus 1 "$@" | grep "^| 1 |" | column 4; }
    more=$(($(step --update-ms 1000) - $(step --update-ms 0)))
    [ $more -ge 999 ] && [ $more -le 1001 ] || echo "a step is $more ms longer with --update-ms 1000, expected 1000"
    grep -q 'none fits' <<<"$(scripts/scale.py -e d48 -b 4 --gpus 1 --gpu 4090)" ||
        echo "1558M fits on a GPU of 24 GB"
)"
report "eight are at most eight times as fast" "$(
    percent=$(row 8 | column 6)
    awk -v p="$percent" 'BEGIN { exit !(p > 50 && p <= 101) }' || echo "found $percent % of linear, expected 50 to 101"
)"
report "computation cannot hide communication over slow links" "$(
    exposed=$(row 64 --net 1 | column 7)
    awk -v e="$exposed" 'BEGIN { exit !(e > 100) }' || echo "found $exposed ms not hidden, expected more than 100"
)"
report "layouts that do not fit are left out" "$(
    grep -q 'none fits' <<<"$(row 8 --memory 0.1)" || echo "expected 'none fits' for 0.1 GB"
)"
refusal=$(row 2 -b 12 2>&1 >/dev/null)
report "an error for -b that does not divide -d" "$(
    grep -q 'not a multiple of -b' <<<"$refusal" || echo "found '$refusal'"
)"
refusal=$(row 2 --optimizer muon 2>&1 >/dev/null)
report "an error for Muon, whose communication is not counted" "$(
    grep -q '^scale.py: .*--optimizer muon' <<<"$refusal" || echo "found '$refusal'"
)"
refusal=$(scripts/scale.py -e d12 -b 16 --gpu h300 2>&1 >/dev/null)
report "an error for a GPU without a row" "$(
    grep -q '^scale.py: .*--gpu h300: expected h200' <<<"$refusal" || echo "found '$refusal'"
)"
refusal=$(scripts/scale.py -e d12 -b 16 --ms 100 --gpus 2 -zz 2>&1 >/dev/null)
report "an error for a flag that the trainer refuses" "$(
    grep -q '^scale.py: .*unknown flag -zz' <<<"$refusal" || echo "found '$refusal'"
)"
for words in "--gpus 0" "--gpus 8,a" "--stages -1"; do
    # shellcheck disable=SC2086  # two words
    refusal=$(scripts/scale.py -e d12 -b 16 --ms 100 $words 2>&1 >/dev/null)
    report "an error for $words" "$(
        grep -q "argument ${words% *}: expected numbers from .* found '${words#* }'" <<<"$refusal" ||
            echo "found '$refusal'"
    )"
done
# At 1 GB/s hardly any communication is hidden, so the exposed time follows from the plan's bytes: for every -z, one
# micro-step and several, gradients of both types.
for stage in 0 1 2 3; do
    for tokens in 131072 524288; do
        for gradients in bf16 fp32; do
            report "-z $stage, $tokens tokens, $gradients gradients: exposed time of the plan's bytes" "$(
                flags=(-e d12 -b 16 -d "$tokens" -gd "$gradients")
                "$TRAIN_GPT2" --plan=json "${flags[@]}" -s 0 -z $stage -pn 8 >"$out"
                exposed=$(row 8 "${flags[@]}" --ms 1 --node 1 --net 1 --latency 0 --memory 1000 --stages $stage |
                    column 7)
                python3 -c '
import json, sys
sent = json.load(open(sys.argv[1]))["ranks"][0]["sent"]
wanted, found, micro_steps = sent / 1e9 * 1e3, float(sys.argv[2]), int(sys.argv[3]) // 131072
if not wanted - micro_steps - 0.1 <= found <= wanted + 0.1:
    print(f"{found} ms not hidden, expected {wanted} ms of communication less {micro_steps} ms of work")' \
                    "$out" "$exposed" $tokens
            )"
        done
    done
done
load_scale='
import importlib.util
spec = importlib.util.spec_from_file_location("scale", "scripts/scale.py")
scale = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scale)
'
# The formula for the gradients' bytes, against the difference of two plans with gradients of 4 and of 2 bytes.
for stage in 0 1 2 3; do
    report "-z $stage: gradients among the bytes sent" "$(
        for gradients in bf16 fp32; do
            "$TRAIN_GPT2" --plan=json -e d12 -b 16 -d 524288 -s 0 -z $stage -pn 8 -gd $gradients
        done | python3 -c "$load_scale"'
import json, sys, types
text, decoder = sys.stdin.read(), json.JSONDecoder()
narrow, end = decoder.raw_decode(text)
wide, _ = decoder.raw_decode(text[end:].lstrip())
two_bytes = wide["ranks"][0]["sent"] - narrow["ranks"][0]["sent"]
given = types.SimpleNamespace(e="d12", d=524288, t=1024)
formula = scale.reduced(given, 2, 16, 8, 1, int(sys.argv[1]))
if not abs(two_bytes / formula - 1) < 0.005:
    print("2 bytes per gradient: the plan has", two_bytes, "bytes, the formula", formula)' $stage
    )"
done
for level in 1 4; do
    report "-tp 8 -r $level: exposed time of the plan's bytes" "$(
        "$TRAIN_GPT2" --plan=json -e d12 -b 16 -d 16384 -s 0 -pn 8 -tp 8 -r $level -gd bf16 | python3 -c "$load_scale"'
import json, sys, types
rank = json.load(sys.stdin)["ranks"][0]
element = next(tensor["dtype"] for tensor in rank["tensors"] if tensor["name"] == "params")
given = types.SimpleNamespace(e="d12", d=16384, t=1024, b=16, ms=1e-6, update_ms=0, measured=True, node=8, nvlink=1,
                              net=1, latency=0, recomputes=sys.argv[1] == "4")
_, exposed = scale.seconds(given, 0, 2, 16, 1, 8, 0)
sent = rank["sent"] * 2 / scale.SIZES[element]
if not abs(exposed * 1e9 / sent - 1) < 0.01:
    print(f"the exposed time is that of {exposed * 1e9} bytes, the plan sends {sent}")' $level
    )"
done
report "-tp 2 -z 1 on 16 ranks: the all-gathered bytes are the parameters'" "$(
    python3 -c "$load_scale"'
import types
given = types.SimpleNamespace(e="d12", d=131072, t=1024)
held, sent, gradient, weight = scale.plan(given, 8, 8, 2, 1, [])
gathered = sent - scale.reduced(given, gradient, 8, 8, 2, 1)
parameters = weight * scale.parameters(*scale.MODELS["d12"]) / 2 * 7 / 8
if not abs(gathered / parameters - 1) < 0.05:
    print(f"{gathered:.0f} bytes are all-gathered, expected {parameters:.0f} bytes of parameters")'
)"

end_tests
