#!/usr/bin/env python3
"""Measures what smaller optimizer state costs in quality, on a small model with bf16 weights.

    make bench-states      (or: python3 dev/bench/bench_states.py [--steps 2000] [--seeds 3])

nanoGPT's CPU preset (4 layers, 4 heads, 128 channels, B 12, T 64) on the bytes of the King James Bible. Every kind of
state has the same seeds, for initial weights, order of the data and stochastic rounding. Two runs of one thread each
run at a time. The gap is the mean over the seeds of the difference to fp32 state with the same seed. Compare the gap
with the noise: the standard deviation over the seeds of the loss with fp32 state. Writes the table to
dev/results/states.md.
"""
import argparse
import concurrent.futures
import datetime
import os
import statistics

from runs import ONE_THREAD, PRESET, ROOT, king_james, last_val_loss

KINDS = {
    "-w split -om fp32 -gd fp32": 16,  # bytes per parameter, weight included
    "-w split -om fp32 -gd bf16": 14,
    "-w split -om bf16 -gd bf16": 10,
    "-w split -om 8bit -gd bf16": 8.1,
    "-w none -om bf16 -gd bf16": 8,
    "-w none -om 8bit -gd bf16": 6.1,
}


def end_loss(text, kind, seed, steps):
    return last_val_loss([os.path.join(ROOT, "build/test/train_gpt2_bf16"), "-i", text, *PRESET, "-x", str(steps),
                          "-l", "1e-3", "-u", "100", "-q", "0.1", "-c", "0.1", "-m", "200", "-v", str(steps),
                          "--seed", str(seed), *kind.split()], ONE_THREAD)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    text = king_james()
    seeds = range(1, args.seeds + 1)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        losses = {kind: list(pool.map(lambda seed, kind=kind: end_loss(text, kind, seed, args.steps), seeds))
                  for kind in KINDS}
    exact = losses[next(iter(KINDS))]
    lines = ["# Optimizer state and quality", "",
             f"{datetime.date.today().isoformat()}, bf16 weights and activations on a CPU: 4 layers, 4 heads, 128 "
             f"channels, B 12, T 64, {args.steps} steps, validation loss, {args.seeds} seeds. "
             f"Noise, the standard deviation over the seeds with fp32 state: {statistics.stdev(exact):.4f}.", "",
             "| state | bytes per parameter | losses | gap to fp32 state, mean of the seeds |", "|---|---|---|---|"]
    for kind, of_kind in losses.items():
        gap = statistics.mean(a - b for a, b in zip(of_kind, exact))
        lines.append(f"| `{kind}` | {KINDS[kind]} | {', '.join(f'{loss:.4f}' for loss in of_kind)} | {gap:+.4f} |")
    report = "\n".join(lines)
    print(report)
    with open(os.path.join(ROOT, "dev/results/states.md"), "w") as out:
        out.write(report + "\n")


if __name__ == "__main__":
    main()
