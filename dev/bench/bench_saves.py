#!/usr/bin/python3
"""What a checkpoint costs: the step after a save, beside an ordinary step.

    make bench-saves      (or: /usr/bin/python3 dev/bench/bench_saves.py [--rounds 3])

nanoGPT's CPU preset (4 layers, 4 heads, 128 channels, B 12, T 64) and GPT-2 124M (B 4, T 64), on bytes of this
repository's sources. In each round, one run saves nothing, one saves every few steps beside training (the default), and
one saves with --save-sync 1. The step after a save counts with the time that training waited for the save. The next
three steps run while the checkpoint is written. Ratios are to the median step of the same round's run without saves.

Writes the table to dev/results/saves.md. Prints FAILED, and exits with status 1, if the median ratio beside training is
above 1.2.
"""
import argparse
import datetime
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MODELS = {  # name: flags, steps, steps between saves
    "4 layers, 128 channels, B 12, T 64": (["-e", "l4h4c128", "-b", "12", "-t", "64"], 400, 40),
    "GPT-2 124M, B 4, T 64": (["-e", "d12", "-b", "4", "-t", "64"], 112, 36),
}
KINDS = {"beside training": "0", "--save-sync 1": "1"}
LIMIT = 1.2  # of the ratio beside training


def run(text, flags, steps, every, kind):
    """(median step, costs of steps after a save, pauses of the saves, steps during the writing), in ms; every 0: no
    saves"""
    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.join(ROOT, "train_gpt2"), "-i", text, *flags, "-x", str(steps), "-n", str(every), "-nk", "1",
                   "-v", "0", "-s", "0", "-r", "0", "--save-sync", kind, "-o", folder]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        with open(os.path.join(folder, "metrics.jsonl")) as metrics:
            ms = {line["step"]: line["ms"] for line in map(json.loads, metrics) if "ms" in line}
    saved = re.findall(r"step (\d+) \| saved .* paused ([\d.]+) ms", shown)
    pauses = {int(step): float(pause) for step, pause in saved}
    after = [ms[step + 1] + pause for step, pause in pauses.items() if step + 1 in ms]
    ordinary = statistics.median(ms[step] for step in ms if step > 2)
    during = [ms[step + n] for step in pauses for n in (2, 3, 4) if step + n in ms]
    return ordinary, after, [pause for step, pause in pauses.items() if step + 1 in ms], during


def cpu_name():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return f"{names[0]}, {len(names)} threads"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows, passed = [], True
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        with open(text, "wb") as out:
            for path in sorted(glob.glob(os.path.join(ROOT, "llmc", "**", "*.h"), recursive=True)):
                with open(path, "rb") as source:
                    out.write(source.read())
        for name, (flags, steps, every) in MODELS.items():
            found = {kind: ([], [], [], []) for kind in KINDS}
            for _ in range(arguments.rounds):
                ordinary = run(text, flags, steps, 0, "0")[0]
                for kind, value in KINDS.items():
                    _, after, pauses, during = run(text, flags, steps, every, value)
                    found[kind][0].append(ordinary)
                    found[kind][1].extend(cost / ordinary for cost in after)
                    found[kind][2].extend(pauses)
                    found[kind][3].extend(ms / ordinary for ms in during)
            for kind, (ordinary, ratios, pauses, during) in found.items():
                step, pause, ratio, later = (statistics.median(x) for x in (ordinary, pauses, ratios, during))
                rows.append(f"| {name} | {kind} | {step:.1f} | {pause:.1f} | {ratio:.2f} | {min(ratios):.2f} to "
                            f"{max(ratios):.2f} | {later:.2f} |")
                print(rows[-1], flush=True)
                if kind == "beside training" and ratio > LIMIT:
                    passed = False
                    print(f"FAILED: {name}: the step after a save takes {ratio:.2f} ordinary steps, expected at most "
                          f"{LIMIT}")
    with open(os.path.join(ROOT, "dev/results/saves.md"), "w") as out:
        out.write(f"# What a checkpoint costs\n\n`make bench-saves`, {datetime.date.today()}, {cpu_name()}.\n"
                  "Step and pause in ms, medians; the step after a save with its pause, as a ratio to a step of a run\n"
                  "without saves, median and range; the median ratio of the next three steps.\n\n"
                  "| model | save | step | pause | step after a save | range | next three |\n"
                  "|---|---|---|---|---|---|---|\n"
                  + "\n".join(rows) + "\n")
    sys.exit(not passed)


if __name__ == "__main__":
    main()
