#!/usr/bin/env bash
# build/bench/predict and what it is made of: FLOPs, bytes and launches of the recorded step against counts by hand,
# levels of -r, --offload, bad input; the MFU of a run on the emulated GPU. test_profile.sh counts calls.
#   PREDICT=build/bench/predict EMULATED=build/emulated/train_gpt2 dev/test/test_predict.sh
. "$(dirname "$0")/harness.sh"

PREDICT=$(realpath -m "${PREDICT:-build/bench/predict}")
in_scratch
seq 2000 >text

# A prediction needs no memory for the model: data is limited to 2 GiB, reserved address space is not.
ulimit -d $((2 << 20))

# record FLAG...: the prediction in JSON, in $out
record() { "$PREDICT" --json "$@" >"$out" 2>"$err" || echo "exit status $?: $(cat "$err")"; }

# judge PROGRAM: runs Python on $out. `calls` are the lines of calls, `total` is the last line. An exception is
# printed, so that the case fails
judge() {
    python3 2>&1 -c '
import json, sys
*calls, total = (json.loads(line) for line in open(sys.argv[1]))
def expect(what, found, wanted):
    if found != wanted:
        print(f"{what}: found {found}, expected {wanted}")
def times(operation):
    return sum(call["times"] for call in calls if call["operation"] == operation)
'"$1" "$out"
}

# ---- counts by hand

report "124M: FLOPs of 6 N + attention, of the recorded step and of params.h" "$(
    record -e d12 -b 64 -d 65536 -r 0
    judge '
L, C, T, Vp, N = 12, 768, 1024, 50304, 65536
matmuls = 6 * N * (12 * L * C * C + Vp * C)
pairs = 64 * T * (T + 1) // 2
attention = L * 2 * 7 * C * pairs  # two GEMMs of the forward, five of the backward
expect("matmuls", sum(c["flops"] * c["times"] for c in calls if "matmuls" in c["group"]), matmuls)
expect("attention", sum(c["flops"] * c["times"] for c in calls if "attention" in c["group"]), attention)
expect("all", total["flops"], matmuls + attention)
expect("model_flops_per_token", total["model_flops_per_token"] * N, matmuls + attention * 6 // 7)'
)"
report "every kernel of the graph belongs to an operation" "$(
    record -e l2h2c128 -b 2 -t 64 -d 512
    judge 'expect("launches", total["launches"], sum(c["times"] * (c["kernels"] + c["others"]) for c in calls))'
)"

# ---- other steps

report "-r adds what it recomputes" "$(
    for flags in "-r 0" "-r 1" "-r 2" "-r 3" "-r 4" "-r 4 -rk 2" "-r 0 -ge 1"; do
        # shellcheck disable=SC2086  # flags
        record -e l4h2c128 -b 2 -t 64 -d 128 $flags
        judge 'print(total["flops"] // 128, times("activation_forward"), times("layernorm_from_statistics"))'
    done | python3 2>&1 -c '
import sys
rows = [tuple(map(int, line.split())) for line in sys.stdin]
L, C, T = 4, 128, 64
fc, rest, attention = 8 * C * C, 8 * C * C, 2 * C * (T + 1)
base = rows[0][0]
block = fc + rest + attention
# at -r 4 ln1 is normalised for qkv and again for its gradient; in a segment the first block runs forward again
wanted = [(0, L, 0), (0, 2 * L, 0), (0, 2 * L, 2 * L), (L * fc, 2 * L, 2 * L), (L * block, 2 * L, 3 * L),
          (L * block + 2 * fc, 2 * L + 2, 2 * 3 + 2 * 2), (0, 0, 0)]
for flags, row, want in zip(("0", "1", "2", "3", "4", "4 -rk 2", "0 -ge 1"), rows, wanted):
    if (row[0] - base, *row[1:]) != want:
        print(f"-r {flags}: found {(row[0] - base, *row[1:])} more FLOPs, GELUs, layernorms, expected {want}")'
)"

# ---- --offload

report "bytes over the link by hand, at every stage" "$(
    for stage in 1 2 3 4; do
        for steps in 1 3; do
            record -e l3h2c128 -b 2 -t 64 -d $((128 * steps)) -r 4 --offload $stage
            judge "stage, G = $stage, $steps"'
L, C, T, Vp, N = 3, 128, 64, 50304, 128
layer, embeddings = 12 * C * C + 13 * C, (Vp + T) * C
P = L * layer + embeddings + 2 * C
up = down = (4 + 4 + 2) * P                      # AdamW: two moments, the low bits of the weights
if stage >= 2:
    size = 4 if G > 1 else 2                     # gradients
    up, down = up + (G - 1 + 2) * size * P, down + G * size * P
if stage >= 3:
    up, down = up + 2 * P, down + 2 * P          # AdamW
    # 3 layers forward, of which two are there backward, and the first one again
    up += 2 * (G * (L + L - 2) * layer + embeddings + 2 * C)
if stage >= 4:
    up, down = up + G * (L - 2) * 2 * N * C, down + G * (L - 1) * 2 * N * C
expect(f"stage {stage}, {G} micro-steps", (total["bytes_up"], total["bytes_down"]), (up, down))'
        done
    done
)"

# ---- bad input: one sentence, exit status 2

trainer=$PREDICT refusals <<'ROWS'
--gpu h300: expected h200, h100, | --gpu h300 -e d12
expected h200, h100, | --gpu sm_90,132,989 -e d12
the plan takes | --gpu 4090 -e d48 -b 16 -d 16384
a prediction is for one GPU, found 8 ranks | -e d12 -pn 8
predict_fp32, which make predict GPU=t4 builds and runs | --gpu t4 -e d12
--fit is not predicted | -e d12 --fit=16
unknown flag -zz | -e d12 -zz
ROWS

# ---- MFU

report "MFU of a run on the emulated GPU: tokens a second, FLOPs of the model, the GPU's peak" "$(
    flags=(-e l1h2c32 -b 2 -t 16 -d 32)
    "$emulated" -i text "${flags[@]}" -x 3 -v 0 -s 0 --device cuda -o run >log 2>&1 ||
        cat log
    grep -q '% MFU' log || echo "no MFU on stdout"
    # the emulated GPU: 4 multiprocessors of 2048 TF32 FLOPs at 1 GHz; text has 256 tokens
    python3 2>&1 -c '
import json, sys
C, T, Vp, peak = 32, 16, 256, 4 * 2048 * 1e9
flops = 6 * (12 * C * C + Vp * C) + 6 * C * (T + 1)
rows = [json.loads(line) for line in open(sys.argv[1])]
for row in rows:
    wanted = row["tokens_per_s"] * flops / peak
    if not abs(row["mfu"] / wanted - 1) < 1e-6:
        print("found", row, "expected an MFU of", wanted)
if len(rows) != 3:
    print(len(rows), "steps, expected 3")' run/metrics.jsonl
)"
report "--plan: the plan of a CUDA build, for the GPU that is named" "$(
    mib() { awk -v name="$1" 'index($0, name) == 1 { print $NF }' "$out"; }
    trainer=$PREDICT
    run 0 --plan -e d48 -b 4 -s 0 -r 4 -om 8bit
    [ "$(mib "plan ") $(mib "total on the device")" = "bf16 12861.17" ] || cat "$out"
    run 0 --plan -e d48 -b 4 -s 0 -r 4 -om bf16 -d 524288 --offload 4
    [ "$(mib "total on the device") $(mib "total in pinned")" = "1226.71 18422.05" ] || cat "$out"
    run 0 --gpu 4060 --plan -e d48 -b 4 -s 0 -pn 2 -z 1
    grep -q '^chosen    -r 4: .* of 5.70 GiB, does not fit$' "$out" || cat "$out"
    run 0 --gpu 4060 --plan=json -e d48 -b 4 -s 0 --fit
    grep -q '^fit       on a GPU in bf16, .* of 6.70 GiB: -r 4 -om 8bit' "$err" || cat "$err"
    grep -q '"recompute":[[:space:]]*4' "$out" || cat "$out"
)"

end_tests
