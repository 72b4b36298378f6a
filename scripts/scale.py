#!/usr/bin/python3
"""Predicts the time and the memory of a training step on many GPUs, from one GPU's time and the speed of the links.

  scripts/scale.py -e d48 -b 16 -d 1048576 --ms 1900 [--update-ms 25] [--gpus 1,8,64,512,1024] [PLAN FLAGS...]

--ms         measured: a micro-step, forward and backward, of -b sequences of -t tokens on one GPU, in milliseconds
--update-ms  measured: norm and AdamW on one GPU
--node 8     GPUs of a machine; --nvlink 300 and --net 45: what a GPU sends, in GB/s, inside it and out of it (a 400
             Gb/s card for each); --latency 15: microseconds a call takes at least; --memory 141: GB a GPU has
Every other flag goes to `train_gpt2 --plan`, which says what a GPU holds. TRAIN_GPT2 names the program; its plans are a
GPU's if it was built with make DEVICE=cuda. For each number of GPUs the fastest layout that fits is printed.

Symbols: N GPUs = dp x t (-tp t, inside a machine), b sequences of T tokens, G micro-steps, P parameters, L layers of
C channels, e(rows) = 1 + 512 / rows: products of few rows are slower.
  micro-step   m = ms / t * b' / b * e(b' T) / e(b T)          b' divides b where -d is too small for dp * b
  tensor par.  w = (10 L + 4) (2 b' T C (t - 1) / t / nvlink + latency)      bf16 rows; gathers, scatters; not hidden
  data par.    r = 2 P / t (dp - 1) / dp / link + (L + 2) latency log2(dp)   one reduce-scatter or all-gather of all,
               bf16; link is nvlink while N <= node, else net
  exposed      what is left when work hides it: a reduction behind a backward, 2/3 m, a gather behind a forward, 1/3 m
               -z 0   max(0, 2 r - 2/3 m)                                    all-reduce, in the last micro-step
               -z 1   max(0, r - 2/3 m) + max(0, r - 1/3 m)
               -z 2   G max(0, r - 2/3 m) + max(0, r - 1/3 m)
               -z 3   G (max(0, 2 r - 2/3 m) + max(0, r - 1/3 m))            gathers in forward and backward
  step         G (m + w) + exposed + update / t (/ dp from -z 1 on)
What it leaves out: links that others use, stragglers, reading data, checkpoints, and that a GPU clocks lower when all
are busy. A prediction of half the step is as good as its measured numbers; trust the order of layouts more than the
milliseconds.
"""
import argparse
import json
import math
import os
import subprocess
import sys

MODELS = {"d12": (12, 768), "d24": (24, 1024), "d36": (36, 1280), "d48": (48, 1600)}
VOCABULARY, POSITIONS, HALF_RATE = 50257, 1024, 512


def stop(sentence):
    sys.exit(f"scale.py: {sentence}")


def parameters(layers, channels):
    return 12 * layers * channels**2 + 13 * layers * channels + (VOCABULARY + POSITIONS + 2) * channels


def plan(given, batch, dp, t, stage, flags):
    """The bytes of the fullest rank, or None where the program refuses the layout."""
    program = os.environ.get("TRAIN_GPT2", "./train_gpt2")
    command = [program, "--plan=json", "-e", given.e, "-b", str(batch), "-t", str(given.t), "-d", str(given.d)]
    command += ["-s", "0", "-z", str(stage), "-pn", str(dp * t), *(["-tp", str(t)] if t > 1 else []), *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        stop(f"could not run {program}: {error.strerror}; build it with make, or name it in TRAIN_GPT2")
    if done.returncode == 2 and t == 1 and dp == 1:
        stop(done.stderr.strip())
    return max(rank["total"] for rank in json.loads(done.stdout)["ranks"]) if done.returncode == 0 else None


def seconds(given, batch, dp, t, stage):
    """(step, exposed communication), seconds; the formulas of the header."""
    layers, channels = MODELS[given.e]
    steps = given.d // (batch * given.t * dp)

    def slower(rows):
        return 1 + HALF_RATE / rows

    micro = given.ms / 1e3 / t * batch / given.b * slower(batch * given.t) / slower(given.b * given.t)
    latency = given.latency * 1e-6
    rows = 2 * batch * given.t * channels * (t - 1) / t
    tensor = (10 * layers + 4) * (rows / (given.nvlink * 1e9) + latency) if t > 1 else 0
    link = (given.nvlink if dp * t <= given.node else given.net) * 1e9
    pass_ = 2 * parameters(layers, channels) / t * (dp - 1) / dp / link + (layers + 2) * latency * math.log2(dp)
    backward, forward = 2 / 3 * micro, micro / 3
    reduced, both = max(0, pass_ - backward), max(0, 2 * pass_ - backward)
    gathered = max(0, pass_ - forward)
    exposed = (both, reduced + gathered, steps * reduced + gathered, steps * (both + gathered))[stage]
    update = given.update_ms / 1e3 / t / (dp if stage > 0 else 1)
    return steps * (micro + tensor) + exposed + update, steps * tensor + exposed


def layouts(given, gpus):
    """(batch, dp, t, stage) of all that keep -d"""
    for t in (1, 2, 4, 8):
        if t > given.node or gpus % t or gpus < t:
            continue
        dp = gpus // t
        for batch in (b for b in range(given.b, 0, -1) if given.b % b == 0):
            if given.d % (batch * given.t * dp) == 0:
                for stage in range(4 if dp > 1 else 1):
                    yield batch, dp, t, stage


def best(given, gpus, flags):
    """The fastest layout that fits, (seconds, exposed, bytes, layout), or None"""
    timed = sorted(((*seconds(given, *layout), layout) for layout in layouts(given, gpus)), key=lambda x: x[0])
    for step, exposed, layout in timed:
        held = plan(given, *layout, flags)
        if held is not None and held <= given.memory * 1e9:
            return step, exposed, held, layout
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-e", default="d12", choices=MODELS)
    parser.add_argument("-b", type=int, default=16)
    parser.add_argument("-t", type=int, default=1024)
    parser.add_argument("-d", type=int, default=1 << 20)
    parser.add_argument("--ms", type=float, required=True)
    parser.add_argument("--update-ms", type=float, default=0)
    parser.add_argument("--gpus", default="1,2,4,8,16,32,64,128,256,512,1024")
    parser.add_argument("--node", type=int, default=8)
    for name, value in (("nvlink", 300), ("net", 45), ("latency", 15), ("memory", 141)):
        parser.add_argument("--" + name, type=float, default=value)
    given, flags = parser.parse_known_args()
    if given.d % (given.b * given.t):
        stop(f"-d {given.d} is not a multiple of -b x -t = {given.b * given.t}")
    alone = given.d // (given.b * given.t) * given.ms / 1e3 + given.update_ms / 1e3
    print(f"{given.e}, {given.d} tokens a step; one GPU: {given.ms:g} ms for {given.b} x {given.t} tokens\n")
    print("| GPUs | layout | step, ms | tokens/s | of linear | not hidden, ms | GB a GPU |")
    print("|---|---|---|---|---|---|---|")
    for gpus in (int(n) for n in given.gpus.split(",")):
        found = best(given, gpus, flags)
        if not found:
            print(f"| {gpus} | none fits, or divides -d | | | | | |")
            continue
        step, exposed, held, (batch, dp, t, stage) = found
        layout = f"dp {dp}, tp {t}, `-z {stage} -b {batch}`"
        print(f"| {gpus} | {layout} | {step * 1e3:.0f} | {given.d / step:,.0f} | {alone / gpus / step:.0%} "
              f"| {exposed * 1e3:.1f} | {held / 1e9:.1f} |")


if __name__ == "__main__":
    main()
