#!/usr/bin/env bash
# --profile: the trace of each backend and of several ranks, and the bits of the run.
#   TRAINER=./train_gpt2 EMULATED=build/emulated/train_gpt2 dev/test/test_profile.sh
. "$(dirname "$0")/harness.sh"
in_scratch
export OMP_NUM_THREADS=1 PYTHONPATH=$PWD
seq 1 1500 >text

cat >check_trace.py <<'END'
"""The trace of steps of l3h2c32, -b 2 -t 16, 64 tokens an update, against counts and FLOPs from the model's shape."""
import collections
import json
import sys

L, C, V, T, G, TOKENS = 3, 32, 256, 16, 2, 64
ROUNDED = 0.0011  # microseconds: ts and dur are printed with three digits

def read(path, steps):
    """[(step event, its operations in order)]; prints what does not hold of every trace."""
    with open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
    tops = [e for e in events if e["tid"] == 0]
    below = sorted((e for e in events if e["tid"] == 1), key=lambda e: e["ts"])
    if [e["args"]["step"] for e in tops] != steps:
        print(f"{path}: steps {[e['args']['step'] for e in tops]}, expected {steps}")
    for thread in tops, below:
        for before, after in zip(thread, thread[1:]):
            if before["ts"] + before["dur"] > after["ts"] + 2 * ROUNDED:
                print(f"{before} overlaps {after}")
    for e in events:
        if e["dur"] < 0 or e["args"].get("bytes", 0) < 0:
            print(f"negative: {e}")
    inside = [[e for e in below if top["ts"] - ROUNDED <= e["ts"]
               and e["ts"] + e["dur"] <= top["ts"] + top["dur"] + 3 * ROUNDED] for top in tops]
    if sum(map(len, inside)) != len(below):
        print(f"{len(below)} events, of which {sum(map(len, inside))} lie within a step")
    return list(zip(tops, inside))

def counts(events):
    return dict(collections.Counter(e["name"] for e in events))

def same(what, found, expected):
    if found != expected:
        print(f"{what}: found {found}, expected {expected}")

def check_step(events, recomputed):
    """One step of one rank. recomputed: 0 with -r 0; with -r 4 -rk 2 the blocks of segments of two are recomputed."""
    micro = {"embedding_forward": 1, "layernorm_forward": 2 * L + 1, "matmul_forward": 4 * L + 1,
             "activation_forward": L, "attention_forward": L, "classifier": 1, "loss_sum": 1,
             "matmul_backward": 4 * L + 1, "layernorm_backward": 2 * L + 1, "attention_backward": L,
             "embedding_backward": 1, "upload": 2,
             "fill": 1 + L}  # of dresidual, and in each block of the gradient of the keys' bias
    flops = 6 * (12 * L * C * C + V * C) + 7 * L * C * (T + 1)
    if recomputed:  # the forward of block 0 runs again as a whole, those of 1 and 2 without the down-projection
        micro["layernorm_forward"] += 2
        micro["layernorm_from_statistics"] = 2 * L + 2
        micro["matmul_forward"] += 4 + 2 * 3
        micro["attention_forward"] += 3
        micro["activation_forward"] += 1 + L
        flops += 3 * (16 * C * C + 2 * C * (T + 1)) + 8 * C * C
    expected = {name: G * n for name, n in micro.items()}
    expected["fill"] += 1
    expected["loss_sum"] += 1  # norm + 0 * loss
    expected.update({"download": 1, "global_norm_squared": 1, "adamw_update": 1})
    same("events of a step", counts(events), expected)
    same("FLOPs of a step", sum(e["args"]["flops"] for e in events), TOKENS * flops)
    matmuls = [e for e in events if e["name"].startswith("matmul")]
    if not recomputed:
        same("FLOPs of the matmuls", sum(e["args"]["flops"] for e in matmuls), TOKENS * 6 * (12 * L * C * C + V * C))
    backward = next(e for e in events if e["args"].get("tensor") == "h.1.mlp.c_fc.weight" and "backward" in e["name"])
    N = TOKENS // G  # dfch, ln2 and dln2, the weight and its gradient; fcb's gradient comes with the matmul before
    same("bytes of fcw's backward", backward["args"]["bytes"], 4 * (N * 4 * C + 2 * N * C + 2 * 4 * C * C))
    for e in events:
        layer = e["args"].get("layer")
        copies = e["cat"] == "copy" and e["name"] != "fill"
        outside = copies or e["name"].startswith(("embedding", "classifier", "loss", "global", "adamw"))
        if outside and layer is not None:
            print(f"{e['name']} in layer {layer}")
        if layer is None and e["name"].startswith(("attention", "activation")):
            print(f"{e['name']} without a layer")
        if e["name"].startswith(("matmul", "layernorm")):
            tensor = e["args"].get("tensor", "")
            if tensor.startswith("h.") != (layer is not None) or not tensor.startswith((f"h.{layer}.", "wte", "ln_f")):
                print(f"{e['name']} of {tensor} in layer {layer}")
    order = [e["args"]["layer"] for e in events if e["name"] == "attention_backward"]
    same("layers of attention_backward", order, list(range(L - 1, -1, -1)) * G)

if __name__ == "__main__":
    for top, events in read(sys.argv[1], [int(step) for step in sys.argv[3:]]):
        check_step(events, int(sys.argv[2]))
END

quiet=(-v 0 -s 0)
model=(-i text -e l3h2c32 -b 2 -t 16 -d 64 "${quiet[@]}")
check() { python3 check_trace.py "$@" 2>&1; }
losses() { sed -nE 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/p' "$1/metrics.jsonl"; }
traces() { find "$1" -mindepth 1 -maxdepth 1 -name '*profile*' -printf '%f\n' | sort | paste -sd ' '; }

report "a CPU: events, FLOPs, bytes, layers and tensors of the third and the fourth step" "$(
    run 0 "${model[@]}" -r 0 -x 6 -o cpu --profile 2
    says "$out" "profile   2 steps in cpu/profile.json"
    check cpu/profile.json 0 3 4
    equal "$(traces cpu)" profile.json
)"
report "the bits of a run are those without --profile" "$(
    run 0 "${model[@]}" -r 0 -x 6 -o plain
    equal "$(losses cpu)" "$(losses plain)"
    equal "$(losses cpu | wc -l)" 6
)"
report "recomputed activations" "$(
    run 0 "${model[@]}" -r 4 -rk 2 -x 3 -o recomputed --profile 1
    says "$out" "profile   1 step in recomputed/profile.json"
    check recomputed/profile.json 1 3
)"
report "a resumed run replaces the trace, and does not keep the flag" "$(
    run 0 "${model[@]}" -r 0 -x 5 -o resumed -n 5 --profile 1
    run 0 -o resumed -y 1 -x 8 --profile 1
    check resumed/profile.json 0 8
    rm resumed/profile.json
    run 0 -o resumed -y 1 -x 12
    [ ! -e resumed/profile.json ] || echo "the resumed run was profiled"
)"
report "the emulated GPU: the same events, beside CUDA graphs; the bits are the same" "$(
    trainer=$emulated run 0 "${model[@]}" -r 0 -x 6 -o gpu --device cuda --profile 2
    check gpu/profile.json 0 3 4
    trainer=$emulated run 0 "${model[@]}" -r 0 -x 6 -o gpu_plain --device cuda
    equal "$(losses gpu)" "$(losses gpu_plain)"
)"
# more calls than are held at once
report "6000 calls in a step" "$(
    run 0 -i text -e l3h2c32 -b 1 -t 4 -d 400 -r 0 "${quiet[@]}" -x 3 -o many --profile 1
    python3 - 2>&1 <<'END'
from check_trace import counts, read
(top, events), = read("many/profile.json", [3])
if counts(events)["attention_forward"] != 300:
    print(counts(events))
END
)"

# ---- a run that is stopped

report "a run stopped by a signal leaves its whole steps" "$(
    "$trainer" "${model[@]}" -d 3200 -x 1000000 -o stopped --profile 10000 >"$out" 2>&1 </dev/null &
    process=$!
    for ((i = 0; i < 6000; i++)); do
        grep -qs '"name":"step 8"' stopped/profile.json.part && break
        sleep 0.05
    done
    kill -TERM $process
    wait $process || echo "status $?"
    equal "$(traces stopped)" profile.json
    python3 - 2>&1 <<'END'
from check_trace import counts, read
import json
with open("stopped/profile.json") as file:
    steps = sum(e["ph"] == "X" and e["tid"] == 0 for e in json.load(file)["traceEvents"])
if steps < 6:
    print(f"{steps} steps")
for top, events in read("stopped/profile.json", list(range(3, 3 + steps))):
    if counts(events).get("adamw_update") != 1:
        print(counts(events))
END
)"

# ---- errors

# fails WORDS STATUS ARGUMENT...: one sentence on stderr
fails() {
    report "an error: $1" "$(
        run "$2" "${model[@]}" -x 9 "${@:3}"
        says "$err" "$1"
        one_line "$err"
    )"
}
fails "--profile write files, but no -o is given: add -o DIR" 2 --profile 3
fails "--profile 8 records the steps after the first 2, but only 9 steps are left: give a larger -x" 2 \
    -o none --profile 8
mkdir -p folder/profile.json.part full
printf '#!/bin/sh\nulimit -f 8\nexec "%s" "$@"\n' "$trainer" >limited && chmod +x limited  # files of 8 KiB
fails "could not write 'folder/profile.json': Is a directory; make room in -o, or leave out --profile" 1 \
    -o folder --profile 1
trainer=./limited fails "could not write 'full/profile.json': File too large" 1 -o full --profile 1
report "a trace that could not be written leaves nothing behind" "$(equal "$(traces full)" "")"

# ---- several ranks

use_mpirun "$("$trainer" --version | grep -o MPI)" 2
# on RANKS ARGUMENT...: the trainer on so many ranks
# shellcheck disable=SC2097,SC2098  # run starts mpirun, and mpirun the trainer
on() { trainer=mpirun run 0 --oversubscribe --bind-to none -np "$1" "$trainer" "${@:2}"; }
report "ZeRO: a trace for each rank, with its collectives, its share of the update and the bits of the run" "$(
    for stage in 1 3; do
        on 2 "${model[@]}" -r 0 -x 4 -o zero_$stage -z $stage --profile 2
        on 2 "${model[@]}" -r 0 -x 4 -o zero_plain_$stage -z $stage
        equal "$(losses zero_$stage)" "$(losses zero_plain_$stage)"
        equal "$(traces zero_$stage)" "profile_0.json profile_1.json"
    done
    python3 - 2>&1 <<'END'
from check_trace import L, counts, read, same
for rank in 0, 1:
    for top, events in read(f"zero_1/profile_{rank}.json", [3, 4]):
        found = counts(events)
        collectives = {e["name"] for e in events if e["cat"] == "collective"}
        same("collectives", collectives, {"all_reduce", "all_gather", "reduce_scatter"})
        same("buckets", (found["reduce_scatter"], found["all_gather"], found["adamw_update"]), (L + 2,) * 3)
        same("rank", {e["pid"] for e in events}, {rank})
        layers = [e["args"].get("layer") for e in events if e["name"] == "reduce_scatter"]
        same("layers", layers, [None, 2, 1, 0, None])
        state = sum(e["args"]["bytes"] for e in events if e["name"] == "adamw_update")
        whole = 4 * (7 * (12 * L * 32 ** 2 + 256 * 32 + 16 * 32))  # params, m and v read and written, grads read
        if not whole / 2 < state < 1.2 * whole / 2:  # biases, layernorms and padding are beside the matrices
            print(f"rank {rank} updates {state} bytes, expected about half of {whole}")
    for top, events in read(f"zero_3/profile_{rank}.json", [3, 4]):
        for e in events:
            if e["name"].startswith("matmul") and not e["args"].get("tensor"):
                print(f"no tensor in {e}")
        same("adamw_update", counts(events)["adamw_update"], L + 2)
END
)"
report "tensor parallelism: operations of a rank's rows and vocabulary" "$(
    on 2 "${model[@]}" -r 0 -x 4 -o tensor -tp 2 --profile 2
    on 2 "${model[@]}" -r 0 -x 4 -o tensor_plain -tp 2
    equal "$(losses tensor)" "$(losses tensor_plain)"
    python3 - 2>&1 <<'END'
from check_trace import C, G, L, T, TOKENS, V, counts, read, same
flops = 0
for rank in 0, 1:
    for top, events in read(f"tensor/profile_{rank}.json", [3, 4]):
        found = counts(events)
        for name in "token_embedding", "position_embedding":
            same(name, (found[name + "_forward"], found[name + "_backward"]), (G, G))
        same("classifier", (found["classifier_statistics"], found["classifier_from_statistics"]), (G, G))
        same("residual_forward", found["residual_forward"], 2 * L * G)
        same("zero bytes", [e["name"] for e in events if e["args"]["bytes"] == 0 and e["name"] != "fill"], [])
        flops += sum(e["args"]["flops"] for e in events)
same("FLOPs of both ranks in two steps", flops, 2 * TOKENS * (6 * (12 * L * C * C + V * C) + 7 * L * C * (T + 1)))
END
)"
end_tests
