#!/usr/bin/env python3
"""Measures how many tokens Muon and AdamW need for the same loss, both tuned, on two texts and two sizes of model.

    make bench-optimizers      (or: python3 dev/bench/bench_optimizers.py [--only kjv/l4h4c128])

Texts      kjv: the King James Bible (Debian's bible-kjv); python: Python's standard library after `scripts/setup.sh
           all`, which adds modules to it, its files in a random order. Tokens are bytes; the last tenth is for
           validation.
Tuning     a grid of learning rates, two weight decays and two warmups, seed 1. The larger model has one warmup: AdamW's
           is longer, since its best learning rates are unstable after a short one. While the best learning rate is the
           first or the last of the grid, the grid grows by another. AdamW then runs FINALISTS settings with all seeds,
           and the best mean counts: one lucky seed at the edge of stability does not.
Comparison SEEDS seeds of AdamW with all steps, and of Muon, at the best setting of seed 1, with a share of the steps.
           Each share has a whole cosine schedule, and as many warmup steps as the whole run. The share at which Muon
           has AdamW's loss is interpolated, for each seed on its own.
Noise      A seed sets the initial weights and the order of the data, the same for both optimizers: seeds are paired.
           The same command gives the same bits on the same CPU, so the seeds are the only noise there. Another kind of
           CPU sums in another order, and with `-f auto` multiplies in bf16 or in fp32.

Two single-threaded runs go at a time. Every finished run adds a line to dev/results/optimizers.jsonl and is not run
again on the same text, so a stopped benchmark resumes where it stopped, even on another kind of CPU. Writes
dev/results/optimizers.md, with the time of a step on this CPU.
"""
import argparse
import concurrent.futures
import glob
import hashlib
import json
import math
import os
import random
import statistics
import threading

from runs import ONE_THREAD, ROOT, TRAINER, cpu_name, king_james, metrics, spread, step_ms

RUNS = os.path.join(ROOT, "dev/results/optimizers.jsonl")
STEPS = {"l4h4c128": 600, "l4h5c320": 300}  # 0.8 and 5.1 million parameters
RATES = {("l4h4c128", "adamw"): [2e-3, 4e-3, 5.6e-3, 8e-3, 11e-3, 16e-3],
         ("l4h4c128", "muon"): [2e-3, 4e-3, 5.6e-3, 8e-3, 11e-3, 16e-3],
         ("l4h5c320", "adamw"): [1e-3, 1.4e-3, 2e-3, 2.8e-3, 4e-3],
         ("l4h5c320", "muon"): [1e-3, 2e-3, 2.8e-3, 4e-3, 5.6e-3]}
DECAYS = [0.01, 0.1]
WARMUPS = {("l4h4c128", "adamw"): [0.05, 0.2], ("l4h4c128", "muon"): [0.05, 0.2],  # of all steps
           ("l4h5c320", "adamw"): [0.2], ("l4h5c320", "muon"): [0.05]}
SHARES = {"l4h4c128": [0.3, 0.4, 0.5, 0.6, 0.7, 1.0], "l4h5c320": [0.3, 0.5, 0.7, 1.0]}
SEEDS, FINALISTS = 5, 2
NAMES = {"adamw": "AdamW", "muon": "Muon"}
BATCH = ["-b", "32", "-t", "128"]  # 4096 tokens an update


def python_text(folder):
    """Python's standard library as one text of 4 MB"""
    path = os.path.join(folder, "python.txt")
    if not os.path.exists(path):
        files = [f for f in sorted(glob.glob("/usr/lib/python3.*/**/*.py", recursive=True))
                 if "-packages" not in f and "/test" not in f]
        random.Random(1).shuffle(files)
        text = b""
        for name in files:
            with open(name, "rb") as f:
                text += f.read()
        with open(path, "wb") as out:
            out.write(text[:4200000])
    return path


class Runs:
    """Finished runs by their key, in memory and in RUNS."""

    def __init__(self, texts):
        self.texts, self.lock, self.done = texts, threading.Lock(), {}
        self.sums = {}
        for name, path in texts.items():
            with open(path, "rb") as text:
                self.sums[name] = hashlib.sha256(text.read()).hexdigest()[:16]
        if os.path.exists(RUNS):
            with open(RUNS) as lines:
                for line in lines:
                    run = json.loads(line)
                    if run["text"] == self.sums[run["key"][0]]:
                        self.done[tuple(run["key"])] = run["val"]

    def run(self, key):
        """[[step, validation loss], ...] of a run"""
        if key in self.done:
            return self.done[key]
        text, model, optimizer, warmup, rate, decay, share, seed = key
        steps = round(STEPS[model] * share)
        command = [TRAINER, "-i", self.texts[text], "-e", model, *BATCH, "-x", str(steps), "-l", str(rate),
                   "-u", str(round(STEPS[model] * warmup)), "-q", "0.1", "-c", str(decay), "-m", "25", "-s", "0",
                   "-v", str(STEPS[model] // 6), "--seed", str(seed), "-f", "auto", "--optimizer", optimizer]
        val = [[row["step"], row["val_loss"]] for row in metrics(command, ONE_THREAD) if "val_loss" in row]
        with self.lock:
            self.done[key] = val
            with open(RUNS, "a") as out:
                out.write(json.dumps({"key": key, "text": self.sums[text], "val": val}, separators=(",", ":")) + "\n")
        return val

    def losses(self, keys):
        """final losses, two runs at a time"""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return [val[-1][1] for val in pool.map(self.run, keys)]


def tune(runs, text, model, optimizer):
    """{(warmup, rate, decay): loss} of a grid whose best rate is not at its end"""
    rates = list(RATES[model, optimizer])
    while True:
        settings = [(w, r, d) for w in WARMUPS[model, optimizer] for r in rates for d in DECAYS]
        grid = dict(zip(settings, runs.losses([(text, model, optimizer, *s, 1.0, 1) for s in settings])))
        best = min(grid, key=grid.get)[1]
        if best == rates[0]:
            rates.insert(0, best / 2)
        elif best == rates[-1]:
            rates.append(best * 2)
        else:
            return grid


def share_at(shares, losses, wanted):
    """the share of the tokens at which the loss is `wanted`, linear in the logarithm; beyond an end, the end's line"""
    points = list(zip(map(math.log, shares), losses))
    i = next((i for i in range(1, len(points)) if points[i][1] <= wanted), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return math.exp(x0 + (wanted - y0) * (x1 - x0) / (y1 - y0))


def p_value(differences):
    """two-sided, of a paired t-test that the mean is 0; Student's distribution, integrated by Simpson's rule"""
    n = len(differences)
    t = abs(statistics.mean(differences)) / (statistics.stdev(differences) / math.sqrt(n))
    density = math.gamma(n / 2) / (math.sqrt((n - 1) * math.pi) * math.gamma((n - 1) / 2))
    steps, width = 20000, t / 20000
    f = [(1 + (i * width) ** 2 / (n - 1)) ** (-n / 2) for i in range(steps + 1)]
    area = width / 3 * (f[0] + f[-1] + 4 * sum(f[1:-1:2]) + 2 * sum(f[2:-1:2]))
    return max(0.0, 1 - 2 * density * area)


def mean_sd(values, form="{:.4f}"):
    return f"{form.format(statistics.mean(values))} ± {form.format(statistics.stdev(values))}"


def compare(runs, text, model):
    """lines of the report for a text and a size"""
    grids = {o: tune(runs, text, model, o) for o in ("adamw", "muon")}
    best = {o: min(g, key=g.get) for o, g in grids.items()}
    seeds = range(1, SEEDS + 1)
    finalists = sorted(grids["adamw"], key=grids["adamw"].get)[:FINALISTS]
    losses = runs.losses([(text, model, "adamw", *setting, 1.0, s) for setting in finalists for s in seeds])
    finals = {setting: losses[i * SEEDS:(i + 1) * SEEDS] for i, setting in enumerate(finalists)}
    best["adamw"] = min(finals, key=lambda setting: statistics.mean(finals[setting]))
    adamw = finals[best["adamw"]]
    shares_run = SHARES[model]
    losses = runs.losses([(text, model, "muon", *best["muon"], share, s) for share in shares_run for s in seeds])
    by_share = [losses[i * SEEDS:(i + 1) * SEEDS] for i in range(len(shares_run))]
    shares = [share_at(shares_run, [of[s] for of in by_share], adamw[s]) for s in range(SEEDS)]
    gain = [a - m for a, m in zip(adamw, by_share[-1])]
    tokens = STEPS[model] * 4096
    rows = [("AdamW", best["adamw"], 1.0, adamw)]
    rows += [("Muon", best["muon"], share, of_share) for share, of_share in zip(shares_run, by_share)]
    lines = [f"## {text}, {model}", "",
             f"{STEPS[model]} steps, {tokens / 1e6:.2f} million tokens. Muon reaches AdamW's loss after "
             f"**{mean_sd(shares, '{:.3f}')}** of the tokens (seeds: {', '.join(f'{s:.3f}' for s in shares)}). "
             f"With all tokens its loss is lower by {mean_sd(gain)} (paired t-test: p = {p_value(gain):.2g}).", "",
             "| | warmup | learning rate | weight decay | share of tokens | validation loss, mean ± sd of the seeds |",
             "|---|---|---|---|---|---|"]
    lines += [f"| {name} | {warmup:.0%} | {rate:g} | {decay:g} | {share} | {mean_sd(of_share)} |"
              for name, (warmup, rate, decay), share, of_share in rows]
    lines += ["", "AdamW's finalists, all seeds: " + "; ".join(
        f"warmup {w:.0%}, {rate:g}, decay {d:g}: {mean_sd(of)}" for (w, rate, d), of in finals.items()) + "."]
    columns = [(o, w, d) for o in ("adamw", "muon") for w in WARMUPS[model, o] for d in DECAYS]
    lines += ["", "The grid, seed 1; w: warmup, d: weight decay", "", "| learning rate | " + " | ".join(
        f"{NAMES[o]}, w {w:.0%}, d {d:g}" for o, w, d in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for rate in sorted({r for g in grids.values() for _, r, _ in g}):
        cells = [f"{grids[o][w, rate, d]:.4f}" if (w, rate, d) in grids[o] else "" for o, w, d in columns]
        lines.append(f"| {rate:g} | " + " | ".join(cells) + " |")
    curve = {o: runs.run((text, model, o, *best[o], 1.0, 1)) for o in ("adamw", "muon")}
    lines += ["", "The curve, seed 1:", "",
              "| step | " + " | ".join(str(step) for step, _ in curve["adamw"]) + " |",
              "|---" * (len(curve["adamw"]) + 1) + "|"]
    for o, name in NAMES.items():
        lines.append(f"| {name} | " + " | ".join(f"{loss:.4f}" for _, loss in curve[o]) + " |")
    return lines + [""]


def cost(text, rounds=7, steps=30):
    """lines of the report: time of a step with either optimizer, in turns"""
    micro_batches = 11
    flags = {o: ["-d", str(micro_batches * 768), "--optimizer", o] for o in ("adamw", "muon")}
    times = {o: [] for o in flags}
    load = os.getloadavg()[0]
    for i in range(rounds):
        for o in sorted(flags, reverse=i % 2 == 1):
            times[o].append(step_ms(TRAINER, text, steps, flags[o], threads=2))
    ratios = [m / a for a, m in zip(times["adamw"], times["muon"])]
    return ["## Cost on a CPU", "",
            f"{cpu_name()}, load {load:.1f}; l4h4c128, -b 12 -t 64, {micro_batches * 768} tokens an update, 2 threads; "
            f"medians of {rounds} rounds of {steps} steps, in turns (min to max).", "",
            f"AdamW {spread(times['adamw'], '{:.1f}')} ms, Muon {spread(times['muon'], '{:.1f}')} ms. Median of the "
            f"rounds' ratios: {spread(ratios, '{:.3f}')}.", ""]


def report(runs):
    """the whole of dev/results/optimizers.md"""
    lines = ["# Muon and AdamW", "",
             "`make bench-optimizers` wrote this; dev/bench/bench_optimizers.py says how. The same command gives the "
             "same bits on the same CPU, so the seeds are the only noise there. Runs that another kind of CPU finished "
             "are kept, and differ by the order of sums and by bf16 or fp32 products. kjv is the King James Bible, "
             "python Python's standard library. A run with a share of the tokens has the whole warmup and a schedule "
             "of its own.", ""]
    for model in STEPS:
        for text in runs.texts:
            lines += compare(runs, text, model)
    return lines + cost(runs.texts["kjv"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="print one text and size, as in kjv/l4h4c128")
    args = parser.parse_args()
    folder = os.path.join(ROOT, "build/text")
    os.makedirs(folder, exist_ok=True)
    runs = Runs({"kjv": king_james(), "python": python_text(folder)})
    if args.only:
        print("\n".join(compare(runs, *args.only.split("/"))))
    else:
        with open(os.path.join(ROOT, "dev/results/optimizers.md"), "w") as out:
            out.write("\n".join(report(runs)))


if __name__ == "__main__":
    main()
