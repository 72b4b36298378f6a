#!/usr/bin/env bash
# scripts/scale.py: one GPU is what was measured, more are never faster than their share of it, what does not fit is not
# taken, what is refused is said, and the bytes it weighs are those that the program plans to send.
#   TRAIN_GPT2=./train_gpt2 dev/test/test_scale.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

export TRAIN_GPT2=${TRAIN_GPT2:-./train_gpt2}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
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
report "what does not fit is not taken" "$(row 8 --memory 0.1 | grep -q 'none fits' || echo "something fits in 0.1 GB")"
refusal=$(row 2 -b 12 2>&1 >/dev/null)
report "-b that does not divide -d is said" "$(grep -q 'not a multiple of -b' <<<"$refusal" || echo "found '$refusal'")"
refusal=$(scripts/scale.py -e d12 -b 16 --ms 100 --gpus 2 -zz 2>&1 >/dev/null)
report "a flag that the program refuses is said, not taken for what does not fit" "$(
    grep -q '^scale.py: .*unknown flag -zz' <<<"$refusal" || echo "found '$refusal'"
)"
# what a GPU waits for at 1 GB/s, where hardly anything is hidden, beside the bytes of the plan, at every stage: one
# micro-step and several, gradients in both types
for stage in 0 1 2 3; do
    for tokens in 131072 524288; do
        for gradients in bf16 fp32; do
            report "-z $stage, $tokens tokens, $gradients gradients: the time for the plan's bytes" "$(
                flags=(-e d12 -b 16 -d "$tokens" -gd "$gradients")
                "$TRAIN_GPT2" --plan=json "${flags[@]}" -s 0 -z $stage -pn 8 >"$out"
                exposed=$(row 8 "${flags[@]}" --ms 1 --node 1 --net 1 --latency 0 --memory 1000 --stages $stage |
                    column 7)
                python3 -c '
import json, sys
sent = json.load(open(sys.argv[1]))["ranks"][0]["sent"]
wanted, found, micro_steps = sent / 1e9 * 1e3, float(sys.argv[2]), int(sys.argv[3]) // 131072
if not wanted - micro_steps - 0.1 <= found <= wanted + 0.1:
    print(f"{found} ms are not hidden, {wanted} are sent, {micro_steps} of work")' "$out" "$exposed" $tokens
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
# how much of that are gradients: the formula, beside what the plan sends less in another type
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
    print("two bytes a gradient are", two_bytes, "in the plan,", formula, "by the formula")' $stage
    )"
done
for level in 1 4; do
    report "-tp 8 -r $level: the time for the plan's bytes" "$(
        "$TRAIN_GPT2" --plan=json -e d12 -b 16 -d 16384 -s 0 -pn 8 -tp 8 -r $level -gd bf16 | python3 -c "$load_scale"'
import json, sys, types
rank = json.load(sys.stdin)["ranks"][0]
element = next(tensor["dtype"] for tensor in rank["tensors"] if tensor["name"] == "params")
given = types.SimpleNamespace(e="d12", d=16384, t=1024, b=16, ms=1e-6, update_ms=0, node=8, nvlink=1, net=1, latency=0,
                              replays=sys.argv[1] == "4")
_, exposed = scale.seconds(given, 0, 2, 16, 1, 8, 0)
sent = rank["sent"] * 2 / scale.SIZES[element]
if not abs(exposed * 1e9 / sent - 1) < 0.01:
    print(f"{exposed * 1e9} bytes are waited for, {sent} are sent")' $level
    )"
done
report "-tp 2 on 16, -z 1: what is gathered are parameters" "$(
    python3 -c "$load_scale"'
import types
given = types.SimpleNamespace(e="d12", d=131072, t=1024)
held, sent, gradient, weight = scale.plan(given, 8, 8, 2, 1, [])
gathered = sent - scale.reduced(given, gradient, 8, 8, 2, 1)
parameters = weight * scale.parameters(*scale.MODELS["d12"]) / 2 * 7 / 8
if not abs(gathered / parameters - 1) < 0.05:
    print(f"{gathered:.0f} bytes are gathered, {parameters:.0f} are parameters")'
)"

end_tests
