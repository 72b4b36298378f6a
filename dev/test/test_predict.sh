#!/usr/bin/env bash
# build/bench/predict, predict_fp32 and what they are made of: FLOPs, bytes and launches of the recorded step against
# counts by hand, accumulation, levels of -r, bad input; the MFU of a run on the emulated GPU.
#   PREDICT=build/bench/predict EMULATED=build/emulated/train_gpt2 dev/test/test_predict.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/harness.sh

PREDICT=${PREDICT:-build/bench/predict} PREDICT_FP32=${PREDICT_FP32:-build/bench/predict_fp32}
EMULATED=${EMULATED:-build/emulated/train_gpt2}
folder=$(mktemp -d)
out=$folder/out err=$folder/err
trap 'rm -rf "$folder"' EXIT

# A prediction needs no memory for the model: data is limited to 2 GiB, reserved address space is not.
ulimit -d $((2 << 20))

# record FLAG...: the prediction of $predictor in JSON, in $out
predictor=$PREDICT
record() { "$predictor" --json "$@" >"$out" 2>"$err" || echo "exit status $?: $(cat "$err")"; }

# judge PROGRAM: runs Python on $out. `calls` are the lines of operations, `total` is the last line. An exception is
# printed, so that the case fails
judge() {
    python3 2>&1 -c '
import json, sys
*calls, total = (json.loads(line) for line in open(sys.argv[1]))
def expect(what, found, wanted):
    if found != wanted:
        print(f"{what}: found {found}, expected {wanted}")
def times(operation):
    return sum(call["times"] for call in calls if call["operation"].startswith(operation + " "))
'"$1" "$out"
}

# ---- counts by hand

report "124M: FLOPs of 6 N + attention, of the recorded step and of traffic.h" "$(
    record -e d12 -b 64 -d 65536 -r 0
    judge '
L, C, T, Vp, N = 12, 768, 1024, 50304, 65536
matmuls = 6 * N * (12 * L * C * C + Vp * C)
pairs = 64 * T * (T + 1) // 2
attention = L * 2 * 7 * C * pairs  # two GEMMs of the forward, five of the backward
expect("matmuls", sum(c["flops"] * c["times"] for c in calls if "matmuls" in c["group"]), matmuls)
expect("attention", sum(c["flops"] * c["times"] for c in calls if "attention" in c["group"]), attention)
expect("all", total["flops"], matmuls + attention)
expect("traffic.h, the step", total["flops_per_token"] * N, matmuls + attention)
expect("traffic.h, the model", total["model_flops_per_token"] * N, matmuls + attention * 6 // 7)'
)"
report "Muon: FLOPs of Newton-Schulz, five steps of three products for six matrices a layer" "$(
    record -e l2h2c128 -b 2 -t 64 -d 128 --optimizer muon
    judge '
L, C = 2, 128
square, wide = 5 * 3 * 2 * C**3, 5 * (2 * 2 * C * C * 4 * C + 2 * C**3)
found = sum(c["flops"] * c["times"] for c in calls if c["group"] == "Newton-Schulz")
expect("FLOPs", found, L * (4 * square + 2 * wide))'
)"
report "bytes of a small model" "$(
    record -e l2h2c128 -b 2 -t 64 -d 128 -r 0 -w none
    judge '
L, C, T, B, V, Vp, N, NH = 2, 128, 64, 2, 50257, 50304, 128, 2
u, P = 2 * N * C, L * (12 * C * C + 13 * C) + (Vp + T + 2) * C
def linear(C, OC, dbias):  # forward, and both products of a backward, without residual and GELU
    return 2 * (N * OC + N * C + OC * C + OC) + 2 * (2 * N * OC // 2 + 2 * N * C + 2 * OC * C + dbias)
block = 2 * (2 * u + 8 * N + 4 * C)                                 # layernorms
block += 2 * (4 * u + 8 * N + 6 * C)                                # their backwards
block += linear(C, 3 * C, 3 * C) + linear(C, C, C) + u              # qkv; attproj and its residual
block += linear(C, 4 * C, 0) + linear(4 * C, C, C) + u + 2 * 4 * C  # fc; fcproj, its residual, the bias of fc
block += -4 * u + 4 * u + 4 * u                                     # dfch is in the place of gelu; gelu_pre
block += 2 * C                                                      # fill of the gradient of the bias of the keys
block += 8 * u                                                      # GELU
block += u + 3 * u + 4 * N * NH                                     # attention
block += 3 * u + u + 3 * u + u + 4 * N * NH
head = 2 * (N * Vp + N * C + Vp * C) + 2 * (N * Vp + 2 * N * C + 2 * Vp * C)
head += 4 * N + 4 * N * Vp + 4 * N                                  # classifier
head += 4 * N + 8                                                   # loss
ends = (2 * u + 8 * N + 4 * C) + (4 * u + 8 * N + 6 * C)            # the final layernorm
ends += u + 4 * N + 2 * N * C + 2 * T * C                           # embedding
ends += u + 4 * N + 4 * N * C + 2 * T * C
ends += u + 2 * 4 * N + 4                                           # fills of dresidual and the loss; uploads
update = (2 * P + 4) + (4 * P + 16 * P + 2 * P + 4) + 12            # norm; params, moments, gradients; norm + 0 * loss
expect("bytes", total["bytes"], L * block + head + ends + update)
expect("sum over operations", sum(c["bytes"] * c["times"] for c in calls), total["bytes"])'
)"
report "launches of a block, with -r 0 and -r 1" "$(
    for level in 0 1; do
        for layers in 4 5; do
            record -e "l${layers}h2c128" -b 2 -t 64 -d 128 -r $level
            judge 'print(total["launches"])'
        done
    done | python3 2>&1 -c '
four, five, four_1, five_1 = (int(line) for line in __import__("sys").stdin)
# layernorm, qkv, attention, attproj, layernorm, fc, GELU, fcproj; two GEMMs of four matmuls, two layernorms of two
# kernels, dq and dkv of attention, and the fill of the gradient of the bias of the keys
forward, backward = 8, 4 * 2 + 2 * 2 + 2 + 1
if (five - four, five_1 - four_1) != (forward + backward, forward + backward + 1):
    print(f"found {five - four} and {five_1 - four_1}, expected {forward + backward} and one more")'
)"
report "every kernel of the graph belongs to an operation" "$(
    record -e l2h2c128 -b 2 -t 64 -d 512
    judge 'expect("launches", total["launches"], sum(c["times"] * (c["kernels"] + c["others"]) for c in calls))'
)"

# ---- other steps

report "accumulation: the first micro-step sets gradients, three add" "$(
    record -e l2h2c128 -b 2 -t 64 -d 512
    judge '
expect("tokens", total["tokens"], 512)
expect("attention forwards", times("attention_forward"), 2 * 4)
expect("norms", times("global_norm_squared"), 1)
backwards = {}
for call in calls:
    if call["operation"].startswith("layernorm_backward"):
        dweight = call["operation"].split()[2]
        backwards[dweight] = backwards.get(dweight, 0) + call["times"]
expect("layernorm backwards by mode", backwards, {"dweight=(128,1)": 5, "dweight+=(128,1)": 15})
expect("FLOPs", total["flops"], total["flops_per_token"] * 512)'
)"
report "-r adds what it recomputes" "$(
    for flags in "-r 0" "-r 1" "-r 2" "-r 3" "-r 4" "-r 4 -rk 2" "-r 0 -ge 1"; do
        # shellcheck disable=SC2086  # flags
        record -e l4h2c128 -b 2 -t 64 -d 128 $flags
        judge 'print(total["flops"] // 128, times("gelu_forward"), times("layernorm_from_statistics"))
expect("traffic.h", total["flops_per_token"], total["flops"] / 128)'
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
report "every GPU: floor, optimistic, expected, pessimistic in this order" "$(
    for gpu in h200 h100 h100-pcie a100 a100-40gb 4090 4070 4060 3060 5090 sm_100,148,2250,8000,180; do
        record --gpu "$gpu" -e d12 -b 4 -d 4096
        judge '
for call in [*calls, total]:
    low, middle, high = call["ms"][2], call["ms"][1], call["ms"][0]
    if not 0 <= call["floor_ms"] < low < middle < high:
        print(total["gpu"], call)
if not 0.02 < total["mfu"] < 0.7:
    print(total["gpu"], "MFU", total["mfu"])'
    done
)"
report "seconds of GEMMs and of attention by hand" "$(
    record -e d12 -b 64 -d 65536 -ge 0
    judge '
def seconds(operation):
    return next(c["ms"][1] for c in calls if c["operation"].startswith(operation)) / 1e3
def near(what, found, wanted):
    if abs(found / wanted - 1) > 1e-4:
        print(f"{what}: found {found}, expected {wanted}")
# qkv: 18 x 256 tiles of 128 x 256 in 35 waves of 132; 12 steps of 64 in k, and 3 for begin and end
rate = 0.80 * 989.4e12 / 132
near("qkv", seconds("matmul_forward out=(65536,2304) in(65536,768)"), 35 * 2 * 128 * 256 * 64 * 15 / rate + 1.5e-6)
def attention(busy, gemms, factor):
    T, own = 1024, 128
    tiles = (T + own) / 2 / 64
    peak = 989.4e12 * 2 / 3 * busy * 0.93 * tiles / (tiles + 2.3) * factor
    return 2 * gemms * 64 * 12 * 64 * T * (T + own) / 2 / peak + 1.5e-6
near("attention", seconds("attention_forward"), attention(0.574, 2, 1))
near("its backward", seconds("attention_backward"),
     attention(0.684, 4, 0.73) + attention(0.740, 3, 0.73) + 2 * 64 * 1024 * 768 / (0.75 * 4.8e12))
# the head: 6 x 64 tiles in 3 waves, 786 steps; and 6 x 197 tiles of the weight gradient in 9 waves, 256 steps
head = 3 * 2 * 128 * 256 * 64 * (786 + 3) / rate + 9 * 2 * 128 * 256 * 64 * (256 + 3) / (0.78 * rate)
near("head", seconds("matmul_backward dinp=(16384,768) dweight=(50304,768)"), head + 2 * 1.5e-6)'
    record --gpu a100 -e d12 -b 64 -d 65536 -ge 0
    judge '
step = 2 * 128 * 256 * 64 * 108 / 312e12 / 0.87  # 4 waves of 108, and 11 of the weight gradient, at 0.85 of the rate
head = 4 * step * 789 + 11 * step * 259 / 0.85 + 2 * 1.5e-6
found = [c["ms"][1] / 1e3 / head for c in calls if c["operation"].startswith("matmul_backward dinp=(16384,768)")]
expect("head on an A100", [round(share, 4) for share in found], [1, 1])'
)"
report "the table has the totals of --json, with flags on either side of --gpu" "$(
    record --gpu a100 -e d12 -b 8 -d 8192 -r 0
    "$PREDICT" -e d12 -b 8 -d 8192 -r 0 --gpu a100 >"$folder/table" 2>"$err" || cat "$err"
    judge '
rows = [line.split("|") for line in open("'"$folder/table"'") if line.startswith("| **sum**")]
expect("launches, GB, ms", [[float(cell) for cell in (row[2], row[3], row[5])] for row in rows],
       [[total["launches"], round(total["bytes"] / 1e9, 1), round(total["ms"][1], 2)]])
text = open("'"$folder/table"'").read()
for words in ("-e d12 -b 8 -d 8192 -r 0 in bf16 on one a100: ", "K tokens/s (",
              "; MFU %.1f %% (" % (100 * total["mfu"])):
    if words not in text:
        print("expected", words, "in", text)'
)"
report "fp32: TF32 on an H200, CUDA cores with -f 0 and on a T4" "$(
    predictor=$PREDICT_FP32
    record -e d12 -b 8 -d 8192 -r 0 -f 1
    judge 'expect("TF32", total["peak_flops"], 494.7e12)'
    record -e d12 -b 8 -d 8192 -r 0 -f 0
    judge 'expect("CUDA cores", total["peak_flops"], 66.9e12)'
    record --gpu t4 -e d12 -b 4 -d 4096
    judge '
expect("T4", total["peak_flops"], 8.1e12)
rate = total["tokens"] / total["ms"][1] * 1e3
if not 3000 < rate < 9800:  # 0.83 GFLOP a token at the full rate are 9800
    print(rate, "tokens/s")'
)"
report "a model larger than this machine: address space alone" "$(
    record -e d48 -b 64 -d 65536 -r 0
    judge 'print("" if total["plan_bytes"] > 100e9 else f"a plan of {total}")'
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
report "a link between hidden copies and nothing but copies" "$(
    for stage in 1 2 3 4; do
        record --gpu 4060 -e d12 -b 4 -d 8192 -r 4 --offload $stage
        judge '
work, before = total["ms"][1], 1e9
names = [link["name"] for link in total["link"]]
expect("links", names, [f"PCIe {version} x{lanes}" for version in (3, 4, 5) for lanes in (8, 16)])
for link in sorted(total["link"], key=lambda link: link["bytes_per_s"]):
    up, down = (1e3 * total[way] / link["bytes_per_s"] for way in ("bytes_up", "bytes_down"))
    slow, ms, fast = link["ms"]
    if not max(work, up, down) <= ms <= 1.01 * (work + up + down):
        print(link, "found", ms, "expected from", max(work, up, down), "to", work + up + down)
    if not fast < ms < slow:
        print("levels of", link)
    if not ms <= before:
        print(link, "found", ms, "expected at most", before, "of the slower link")
    before = ms'
    done
)"
report "the slow-down is against the time without --offload" "$(
    flags=(--gpu 4060 -e d36 -b 4 -t 1024 -d 65536 -r 4 -om bf16)
    record "${flags[@]}"
    judge 'print(total["ms"][1]) if "link" not in total else print("a link without --offload")' >"$folder/alone"
    for stage in 1 2 3 4; do
        record "${flags[@]}" --offload $stage
        judge '
alone = float(open("'"$folder/alone"'").read())
for link in total["link"]:
    if abs(link["ms"][1] / link["slowdown"] / alone - 1) > 1e-5:
        print("found", link["ms"][1] / link["slowdown"], "ms at --offload 0, expected", alone)'
    done
)"
report "the tokens that hide the link: one micro-batch fewer does not" "$(
    flags=(--gpu 4090 -e d12 -b 4 -r 4 --offload 1)
    record "${flags[@]}" -d 4096
    hidden=$(judge 'print(total["link"][0]["hidden_tokens"])')
    for tokens in "$hidden" $((hidden - 4096)); do
        record "${flags[@]}" -d "$tokens"
        judge '
link, tokens = total["link"][0], '"$tokens"'
expect(f"{tokens} tokens: hidden", link["slowdown"] <= 1.05, tokens >= link["hidden_tokens"])
expect("hidden tokens", link["hidden_tokens"], '"$hidden"')'
    done
    record --gpu 4090 -e d48 -b 1 -r 4 -om bf16 -d 4096 --offload 4
    judge 'expect("never", total["link"][0]["hidden_tokens"], None)'
)"
report "the table of --offload; none without" "$(
    flags=(--gpu 4060 -e d12 -b 4 -d 8192 -r 4)
    record "${flags[@]}" --offload 3
    "$PREDICT" "${flags[@]}" --offload 3 >"$folder/table" 2>"$err" || cat "$err"
    judge '
rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in open("'"$folder/table"'") if line[:2] == "| "]
rows = [row for row in rows if row[0].startswith("PCIe")]
expect("rows", [(row[0], float(row[2]), row[5]) for row in rows],
       [(link["name"], round(link["ms"][1], 1), "%.2fx" % link["slowdown"]) for link in total["link"]])
text = open("'"$folder/table"'").read()
for words in ("--offload 3 moves %.2f GB up" % (total["bytes_up"] / 1e9), "GiB of pinned host memory"):
    if words not in text:
        print("expected", words, "in", text)'
    "$PREDICT" "${flags[@]}" >"$folder/table" 2>"$err" || cat "$err"
    [ "$(grep -c "PCIe\|--offload\|pinned" "$folder/table")" -eq 0 ] || echo "a link without --offload"
)"
report "1558M with 18 GiB of host memory, beside a plan larger than the GPU" "$(
    "$PREDICT" --gpu 4060 -e d48 -b 4 -d 524288 -r 4 -om bf16 -s 0 --offload 4 >"$folder/table" 2>"$err" || cat "$err"
    grep '^| PCIe 4 x16 ' "$folder/table" | python3 2>&1 -c '
import sys
row = sys.stdin.readline().split("|")
if not 1 < float(row[6].strip(" x")) < 1.6:
    print("found", row)'
)"

# ---- bad input: one sentence, exit status 2

# refused WORDS FLAG...
refused() {
    local words=$1 status
    shift
    report "refused: $*" "$(
        "$PREDICT" "$@" >"$out" 2>"$err"
        status=$?
        [ $status -eq 2 ] || echo "exit status $status, expected 2"
        [ "$(wc -l <"$err")" -eq 1 ] || echo "found $(wc -l <"$err") lines, expected one"
        grep -qF -- "$words" "$err" || echo "found '$(cat "$err")', expected '$words'"
        [ ! -s "$out" ] || echo "found output on stdout"
    )"
}
refused "--gpu h300: expected h200, h100," --gpu h300 -e d12
refused "expected h200, h100," --gpu sm_90,132,989 -e d12
refused "the plan takes" --gpu 4090 -e d48 -b 16 -d 16384
refused "scripts/scale.py predicts several GPUs" -e d12 -pn 8
refused "predict_fp32, which make predict GPU=t4 builds and runs" --gpu t4 -e d12
refused "--fit is not predicted" -e d12 --fit=16
refused "unknown flag -zz" -e d12 -zz

# ---- MFU

report "MFU of a run on the emulated GPU: tokens a second, FLOPs of the model, the GPU's peak" "$(
    flags=(-e l1h2c32 -b 2 -t 16 -d 32)
    "$EMULATED" -i README.md "${flags[@]}" -x 3 -v 0 -s 0 --device cuda -o "$folder/run" >"$folder/log" 2>&1 ||
        cat "$folder/log"
    grep -q '% MFU' "$folder/log" || echo "no MFU on stdout"
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
    print(len(rows), "steps, expected 3")' "$folder/run/metrics.jsonl"
)"
report "--plan: the plan of a CUDA build, for the GPU that is named" "$(
    mib() { awk -v name="$1" 'index($0, name) == 1 { print $NF }' "$out"; }
    run() { "$PREDICT" "$@" >"$out" 2>"$err" || echo "exit status $?: $(cat "$err")"; }
    run --plan -e d48 -b 4 -s 0 -r 4 -om 8bit
    [ "$(mib "plan ") $(mib "total on the device")" = "bf16 12861.17" ] || cat "$out"
    run --plan -e d48 -b 4 -s 0 -r 4 -om bf16 -d 524288 --offload 4
    [ "$(mib "total on the device") $(mib "total in pinned")" = "1226.71 18422.05" ] || cat "$out"
    run --gpu 4060 --plan -e d48 -b 4 -s 0 -pn 2 -z 1
    grep -q '^chosen    -r 4: .* of 5.70 GiB, does not fit$' "$out" || cat "$out"
    run --gpu 4060 --plan=json -e d48 -b 4 -s 0 --fit
    grep -q '^fit       on a GPU in bf16, .* of 6.70 GiB: -r 4 -om 8bit' "$err" || cat "$err"
    grep -q '"recompute":[[:space:]]*4' "$out" || cat "$out"
)"
report "the banner says whether early launches are on" "$(
    for setting in on= off=0; do
        TRAIN_GPT2_EARLY_LAUNCHES=${setting#*=} "$EMULATED" -i README.md -e l1h1c32 -b 1 -t 16 -x 1 -v 0 -s 0 \
            --device cuda >"$folder/log" 2>&1
        grep -q "^launches  early launches are ${setting%=*}\$" "$folder/log" || cat "$folder/log"
    done
)"

end_tests
