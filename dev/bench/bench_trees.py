#!/usr/bin/env python3
"""Times a training step of two source trees in turns, and prints the ratio of the second to the first.

    dev/bench/bench_trees.py BEFORE AFTER [--rounds 7] [--steps 60] [--program train_gpt2] [--only NAME]

Builds ./train_gpt2 for the CPU in both checkouts, then times three command lines: nanoGPT's CPU preset (4 layers, 4
heads, 128 channels, B 12, T 64) on two threads, the same with -r 4, and -tp 2 on two ranks of one thread each. The
trees take turns (before, after, after, before, ...), so that a busy neighbour slows down both. The time of a run is the
median over its steps of `ms` in metrics.jsonl; the first steps do not count. The ratio is the median over pairs of
consecutive runs: 1.02 means that AFTER is 2 % slower.
"""
import argparse
import os
import subprocess
import sys
import tempfile

from runs import SKIP, cpu_name, spread, step_ms

CASES = {  # name: ranks, threads a rank, flags
    "preset": (1, 2, []),
    "preset -r 4": (1, 2, ["-r", "4"]),
    "2 ranks, -tp 2": (2, 1, ["-tp", "2"]),
}


def time_case(programs, text, steps, rounds, case):
    """{tree: a median for each round}; the trees take turns"""
    times = {name: [] for name in programs}
    for i in range(rounds):
        order = list(programs) if i % 2 == 0 else list(programs)[::-1]
        for name in order:
            ranks, threads, flags = case
            times[name].append(step_ms(programs[name], text, steps, flags, ranks, threads))
    return times


def row(name, times):
    before, after = times["before"], times["after"]
    ratios = [b / a for a, b in zip(before, after)]
    return f"| {name} | {spread(before)} | {spread(after)} | {spread(ratios, '{:.3f}')} |"


def main():
    parser = argparse.ArgumentParser(description="Times a training step of two source trees in turns.")
    parser.add_argument("before", help="a checkout")
    parser.add_argument("after", help="another checkout")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each tree and command line")
    parser.add_argument("--steps", type=int, default=60, help=f"steps that count in a run, after the first {SKIP}")
    parser.add_argument("--program", default="train_gpt2", help="make target, relative to the tree")
    parser.add_argument("--only", choices=list(CASES), help="time one command line")
    args = parser.parse_args()
    programs = {}
    for name in ("before", "after"):
        tree = os.path.abspath(getattr(args, name))
        make = subprocess.run(["make", "-C", tree, "DEVICE=cpu", args.program], capture_output=True, text=True,
                              check=False)
        if make.returncode != 0:
            sys.exit(f"bench_trees.py: make {args.program} failed in {tree}:\n{make.stderr.strip()}")
        programs[name] = os.path.join(tree, args.program)
    print(f"{cpu_name()}; load {os.getloadavg()[0]:.1f}; medians of {args.rounds} rounds of {args.steps} steps, "
          "in turns (least to most)\n")
    print("| command line | before, ms a step | after, ms a step | after / before |", "|---|---|---|---|", sep="\n")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.writelines(f"{i} {i * i}\n" for i in range(30000))  # its bytes do not matter for time
        text.flush()
        for name, case in CASES.items():
            if args.only in (None, name):
                print(row(name, time_case(programs, text.name, args.steps, args.rounds, case)), flush=True)


if __name__ == "__main__":
    main()
