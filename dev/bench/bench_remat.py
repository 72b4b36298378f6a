#!/usr/bin/env python3
"""Measures the time and the memory of every level of recomputation, and prints a Markdown table.

    make bench-remat

nanoGPT's CPU preset (4 layers, 4 heads, 128 channels, B 12, T 64) on the King James Bible, with OMP_NUM_THREADS
threads. The levels take turns: a round runs each of them, so a busy neighbour slows down all. The table has the median,
lowest and highest time of the rounds. Each round gives a ratio to its own `-r 0`, and the table has the median ratio.
Memory counts saved activations and scratch.
"""
import json
import statistics
import subprocess

from runs import PRESET, TRAINER, cpu_name, king_james, spread, step_ms

LEVELS = {"-r 0": "nothing", "-r 1": "GELU", "-r 2": "also layernorms", "-r 3": "also the up-projection",
          "-r 4": "blocks", "-r 4 -rn 2": "half of the blocks", "-r 4 -rk 2": "pairs of blocks"}
ROUNDS, STEPS = 15, 25


def activation_mib(flags):
    plan = json.loads(subprocess.check_output([TRAINER, "--plan=json", *PRESET, *flags.split()], text=True))["ranks"][0]
    return (plan["saved"] + plan["scratch"]) / 2**20


def main():
    text = king_james()
    times = {flags: [] for flags in LEVELS}
    for _ in range(ROUNDS):
        for flags in LEVELS:
            times[flags].append(step_ms(TRAINER, text, STEPS, flags.split()))
    whole = activation_mib("-r 0")
    print(f"{' '.join(PRESET)}; {cpu_name()}; {ROUNDS} rounds of {STEPS} steps\n")
    print("| flags | recomputed | activations, MiB | less memory | a step, ms | more time |")
    print("|---|---|---|---|---|---|")
    for flags, recomputed in LEVELS.items():
        ratio = statistics.median(ms / base for ms, base in zip(times[flags], times["-r 0"]))
        mib = activation_mib(flags)
        print(f"| `{flags}` | {recomputed} | {mib:.1f} | {1 - mib / whole:.0%} | {spread(times[flags])} | "
              f"{ratio - 1:+.1%} |")


if __name__ == "__main__":
    main()
