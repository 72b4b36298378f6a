#!/usr/bin/env python3
"""Predicts the time and the memory of a training step on many GPUs, from one GPU's time and the speed of the links.

  scripts/scale.py -e d48 -b 16 -d 1048576 [--gpu h200] [--gpus 1,8,64,512,1024] [PLAN FLAGS...]
  scripts/scale.py -e d48 -b 16 -d 1048576 --ms 1900 --update-ms 25 [...]

--gpu        the GPU whose time is predicted (default h200): a name or numbers that `make predict` takes
--ms         measured instead: a micro-step, forward and backward, of -b sequences of -t tokens on one GPU, in
             milliseconds
--update-ms  measured instead: norm and AdamW on one GPU, in milliseconds (with --ms, default 0)
--stages     stages of -z to choose from: 0,1,2,3
--node 8     GPUs of a machine; --nvlink 300 and --net 45: GB/s that a GPU sends inside the machine and out of it (a
             400 Gb/s card for each GPU); --latency 15: microseconds of the shortest call
--memory     GB of a GPU (default: of --gpu; 141 with --ms)
Every other flag goes to `train_gpt2 --plan`, which reports the bytes that a GPU holds and sends. TRAIN_GPT2 names the
program; a program built with make DEVICE=cuda plans for a GPU. Without -r both are those of -r 1, since -r auto
would depend on this machine. PREDICT names build/bench/predict, which predicts the time. For each number of GPUs the
fastest layout that fits is printed.

Symbols: N GPUs = dp x t (-tp t, inside a machine), b sequences of T tokens, G micro-steps, L layers of C channels,
e(rows) = 1 + 512 / rows: matmuls of few rows are slower. The plan has the bytes that a GPU sends for an update:
  R  gradients, all-reduced or reduce-scattered: P / t (dp - 1) / dp in the type that --plan gives them (fp32 where
     G > 1 or from some 114 ranks on, or -gd), twice at -z 0, G times at -z 2 and 3; P parameters
  W  parameters, all-gathered: the rest
A number of bytes x takes s(x) = x / link + (L + 2) latency log2(dp); link is nvlink while N <= node, else net.
  micro-step   m = ms / t * b' / b * e(b' T) / e(b T)          b' divides b where -d is too small for dp * b;
               without --ms, m = (predicted for b') / t
  tensor par.  w = (6 L + 4) x + max(0, 4 L x - 2/3 m), x = 2 b' T C (t - 1) / t / nvlink + latency: bf16 rows are
               all-gathered or reduce-scattered, 4 times a layer during the matmuls of its backward (-r 4: 8 L + 4)
  exposed      communication that no work hides: a backward hides 2/3 m, a forward 1/3 m
               -z 0   max(0, s(R) - 2/3 m)                                    in the last micro-step
               -z 1   max(0, s(R) - 2/3 m) + max(0, s(W) - 1/3 m)
               -z 2   G max(0, s(R / G) - 2/3 m) + max(0, s(W) - 1/3 m)
               -z 3   G (max(0, s(R / G) + s(W / 2 G) - 2/3 m) + max(0, s(W / 2 G) - 1/3 m))   half of W in each
  step         G (m + w) + exposed + update / t (/ dp from -z 1 on)
Left out: Muon's exchange of matrices (--optimizer muon is an error), links shared with other jobs, stragglers, reading
data, checkpoints, and lower clocks when all GPUs are busy.
A prediction is as good as the measured numbers; trust the order of layouts more than the milliseconds.
"""
import argparse
import json
import math
import os
import subprocess
import sys

MODELS = {"d12": (12, 768), "d24": (24, 1024), "d36": (36, 1280), "d48": (48, 1600)}
VOCABULARY, POSITIONS, HALF_RATE = 50257, 1024, 512
SIZES = {"F32": 4, "BF16": 2}


def stop(sentence):
    sys.exit(f"scale.py: {sentence}")


def numbers(text, least=0):
    """a flag's value such as "1,8,64"; argparse reports the error in one sentence"""
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        values = [-1]
    if min(values) < least:
        raise argparse.ArgumentTypeError(f"expected numbers from {least} on, such as 1,8,64; found '{text}'")
    return values


def gpu_counts(text):
    return numbers(text, 1)


def parameters(layers, channels):
    return 12 * layers * channels**2 + 13 * layers * channels + (VOCABULARY + POSITIONS + 2) * channels


def ask(arguments):
    """The output of train_gpt2. Stops with the program's error if the program refuses."""
    program = os.environ.get("TRAIN_GPT2", "./train_gpt2" if os.path.exists("./train_gpt2") else "train_gpt2")
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
    except OSError as error:
        stop(f"could not run {program}: {error.strerror}; build it with make, or name it in TRAIN_GPT2")
    if done.returncode != 0:
        stop(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def predicted(given, batch, tokens):
    """The prediction for one GPU, of updates of `tokens` tokens in micro-batches of `batch`."""
    program = os.environ.get("PREDICT", "build/bench/predict")
    command = [program, "--json", "--gpu", given.gpu, "-e", given.e, "-b", str(batch), "-t", str(given.t), "-r", "1"]
    try:
        done = subprocess.run([*command, "-d", str(tokens), *given.flags], capture_output=True, text=True, check=False)
    except OSError as error:
        stop(f"could not run {program}: {error.strerror}; make build/bench/predict builds it, or give --ms")
    if done.returncode != 0:
        stop(f"{program}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


EXPECTED = 1  # of pessimistic, expected, optimistic


def micro_ms(given, batch, steps):
    """milliseconds of a micro-step on one GPU, of an update with `steps` of them"""
    def slower(rows):
        return 1 + HALF_RATE / rows

    if given.measured:
        return given.ms * batch / given.b * slower(batch * given.t) / slower(given.b * given.t)
    if (batch, steps > 1) not in given.known:  # several micro-steps add to the gradients
        found = predicted(given, batch, batch * given.t * min(steps, 8))
        given.known[batch, steps > 1] = found["micro_step_ms"][EXPECTED]
    return given.known[batch, steps > 1]


def plan_of(given, tokens, batch, dp, t, stage, flags):
    """(bytes of the fullest rank, bytes that a rank sends for an update of `tokens`, of a gradient, of a weight)"""
    arguments = ["--plan=json", "-e", given.e, "-b", str(batch), "-t", str(given.t), "-d", str(tokens)]
    arguments += ["-s", "0", "-r", "1"]
    arguments += ["-z", str(stage), "-pn", str(dp * t), *(["-tp", str(t)] if t > 1 else []), *flags]
    ranks = json.loads(ask(arguments))["ranks"]
    types = {tensor["name"]: SIZES.get(tensor["dtype"]) for tensor in ranks[0]["tensors"]}
    return (max(rank["total"] for rank in ranks), max(rank.get("sent", 0) for rank in ranks), types["grads"],
            types["params"])


def plan(given, batch, dp, t, stage, flags):
    """plan_of an update, but the bytes sent are R and W only: the tensor-parallel bytes of one model are subtracted"""
    held, sent, *sizes = plan_of(given, given.d, batch, dp, t, stage, flags)
    if dp > 1 and t > 1:
        sent -= plan_of(given, given.d // dp, batch, 1, t, 0, flags)[1]
    return (held, max(0, sent), *sizes)


def reduced(given, sizes, batch, dp, t, stage):
    """R of the header, in bytes"""
    steps = given.d // (batch * given.t * dp)
    times = (2, 1, steps, steps)[stage]
    return times * parameters(*MODELS[given.e]) / t * (dp - 1) / dp * sizes


def seconds(given, sent, sizes, batch, dp, t, stage):
    """(step, exposed communication) in seconds, by the formulas of the header"""
    layers, channels = MODELS[given.e]
    steps = given.d // (batch * given.t * dp)
    micro = micro_ms(given, batch, steps) / 1e3 / t
    latency = given.latency * 1e-6
    rows = 2 * batch * given.t * channels * (t - 1) / t
    collective = rows / (given.nvlink * 1e9) + latency
    recomputed = 2 * layers if given.recomputes else 0
    link = (given.nvlink if dp * t <= given.node else given.net) * 1e9

    def travel(size):
        return size / link + (layers + 2) * latency * math.log2(dp)

    def left(time, beside):
        return max(0, time - beside * micro)

    waited = (6 * layers + 4 + recomputed) * collective
    tensor = waited + left(4 * layers * collective, 2 / 3) if t > 1 else 0
    sums = reduced(given, sizes, batch, dp, t, stage)
    gathers = max(0, sent - sums)
    half = travel(gathers / 2 / steps)
    exposed = (left(travel(sums), 2 / 3), left(travel(sums), 2 / 3) + left(travel(gathers), 1 / 3),
               steps * left(travel(sums / steps), 2 / 3) + left(travel(gathers), 1 / 3),
               steps * (left(travel(sums / steps) + half, 2 / 3) + left(half, 1 / 3)))[stage]
    update = given.update_ms / 1e3 / t / (dp if stage > 0 else 1)
    return steps * (micro + tensor) + exposed + update, steps * tensor + exposed


def layouts(given, gpus, widths):
    """(batch, dp, t, stage) of every layout of -d tokens an update, with t of `widths`"""
    for t in widths:
        if t > given.node or gpus % t or gpus < t:
            continue
        dp = gpus // t
        for batch in (b for b in range(given.b, 0, -1) if given.b % b == 0):
            if given.d % (batch * given.t * dp) == 0:
                for stage in given.stages if dp > 1 else [0]:
                    yield batch, dp, t, stage


def best(given, gpus, flags, widths):
    """(seconds, exposed, bytes, layout) of the fastest layout that fits, or None"""
    fitting = []
    for layout in layouts(given, gpus, widths):
        held, sent, sizes, _ = plan(given, *layout, flags)
        if held <= given.memory * 1e9:
            fitting.append((*seconds(given, sent, sizes, *layout), held, layout))
    return min(fitting, key=lambda x: x[0], default=None)


def set_times(given, flags):
    """ms, update_ms and memory, where they are not given"""
    given.flags, given.known, given.measured = flags, {}, given.ms is not None
    if not given.measured:
        one = predicted(given, given.b, given.d)
        given.ms = one["micro_step_ms"][EXPECTED]
        given.update_ms = one["update_ms"][EXPECTED] if given.update_ms is None else given.update_ms
        given.memory = one["memory"] / 1e9 if given.memory is None else given.memory
    given.update_ms = given.update_ms or 0
    given.memory = given.memory or 141


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-e", default="d12", choices=MODELS)
    parser.add_argument("-b", type=int, default=16)
    parser.add_argument("-t", type=int, default=1024)
    parser.add_argument("-d", type=int, default=1 << 20)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--ms", type=float)
    parser.add_argument("--update-ms", type=float)
    parser.add_argument("--gpus", type=gpu_counts, default="1,2,4,8,16,32,64,128,256,512,1024")
    parser.add_argument("--node", type=int, default=8)
    parser.add_argument("--stages", type=numbers, default=[0, 1, 2, 3])
    for name, value in (("nvlink", 300), ("net", 45), ("latency", 15), ("memory", None)):
        parser.add_argument("--" + name, type=float, default=value)
    given, flags = parser.parse_known_args()
    if not given.stages or not set(given.stages) <= {0, 1, 2, 3}:
        stop(f"--stages takes some of 0,1,2,3; found {given.stages}")
    if given.d % (given.b * given.t):
        stop(f"-d {given.d} is not a multiple of -b x -t = {given.b * given.t}")
    if "muon" in flags or "--optimizer=muon" in flags:
        stop("--optimizer muon sends matrices that these formulas do not count; make predict has one GPU's time")
    given.recomputes = any(f"{flag}{value}" in ("-r4", "--recompute4") for flag, value in zip(flags, flags[1:])) or \
        "--recompute=4" in flags
    widths = (1, 2, 4, 8) if " -tp " in ask(["--help"]) else (1,)  # whether the program has -tp
    set_times(given, flags)
    alone = given.d // (given.b * given.t) * given.ms / 1e3 + given.update_ms / 1e3
    weights = {2: "bf16", 4: "fp32"}[plan(given, given.b, 1, 1, 0, flags)[3]]
    source = "measured" if given.measured else f"predicted for {given.gpu}"
    print(f"{given.e}, {given.d} tokens a step; one GPU, {source}: {given.ms:.4g} ms for {given.b} x {given.t} tokens, "
          f"{given.update_ms:.4g} ms an update; the program's plans are those of {weights} weights\n")
    print("| GPUs | layout | step, ms | tokens/s | of linear | not hidden, ms | GB a GPU |")
    print("|---|---|---|---|---|---|---|")
    for gpus in given.gpus:
        found = best(given, gpus, flags, widths)
        if not found:
            print(f"| {gpus} | none fits, or divides -d | | | | | |")
            continue
        step, exposed, held, (batch, dp, t, stage) = found
        layout = f"dp {dp}, tp {t}, `-z {stage} -b {batch}`"
        print(f"| {gpus} | {layout} | {step * 1e3:.0f} | {given.d / step:,.0f} | {alone / gpus / step:.0%} "
              f"| {exposed * 1e3:.1f} | {held / 1e9:.1f} |")


if __name__ == "__main__":
    main()
