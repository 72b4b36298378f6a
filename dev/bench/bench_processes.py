#!/usr/bin/python3
"""Several processes of fewer threads against one process of all: the same tokens an update on the same cores.

    make bench-processes      (or: /usr/bin/python3 dev/bench/bench_processes.py [--rounds 7] [--cores N])

Layers as wide as GPT-2 124M's (-e l2h12c768), bytes, T 128, 8 sequences a micro-batch in all. The layouts take turns,
so that a busy neighbour meets all of them; a round's figure is the median of its steps, a layout's the median over the
rounds, its share the median of the rounds' ratios to one process. Keeps its table in dev/results/processes.md, unless
there are fewer than three rounds.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SEQUENCES, T, STEPS, SKIP = 8, 128, 16, 4
LEAST_ROUNDS = 3  # that the file is written for


def step_ms(text, processes, threads, flags):
    """the median over an update's milliseconds, by rank 0's clock"""
    with tempfile.TemporaryDirectory() as run:
        command = [os.path.join(ROOT, "train_gpt2"), "-i", text, "-e", "l2h12c768", "-b", str(SEQUENCES // processes),
                   "-t", str(T), "-d", str(SEQUENCES * T), "-x", str(STEPS), "-v", "0", "-s", "0", "--threads",
                   str(threads), "-o", run, *flags]
        if processes > 1:
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(processes), *command]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **root})
        with open(os.path.join(run, "metrics.jsonl")) as metrics:
            return statistics.median([json.loads(line)["ms"] for line in metrics][SKIP:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    text = os.path.join(ROOT, "README.md")
    layouts = [(1, args.cores, [])] + [(args.cores, 1, ["-z", str(stage)]) for stage in range(4)]
    rounds = [[step_ms(text, *layout) for layout in layouts] for _ in range(args.rounds)]
    lines = ["# Several processes on one machine", "",
             f"{datetime.date.today().isoformat()}, {args.cores} cores: 2 layers, 12 heads, 768 channels, fp32, "
             f"{SEQUENCES} x {T} tokens an update. Medians of {args.rounds} rounds "
             "in which the layouts take turns.", "",
             "| processes x threads | flags | an update, ms (least to most) | tokens/s | of one process's |",
             "|---|---|---|---|---|"]
    for i, (processes, threads, flags) in enumerate(layouts):
        times = [each[i] for each in rounds]
        share = statistics.median(each[0] / each[i] for each in rounds)
        middle = statistics.median(times)
        spread = f"{middle:.1f} ({min(times):.1f} to {max(times):.1f})"
        rate = SEQUENCES * T / middle * 1e3
        lines.append(f"| {processes} x {threads} | {' '.join(flags)} | {spread} | {rate:,.0f} | {share:.2f} |")
    table = "\n".join(lines) + "\n"
    print(table)
    if args.rounds < LEAST_ROUNDS:
        sys.exit(f"bench_processes.py: {args.rounds} rounds are no median; --rounds {LEAST_ROUNDS} or more are kept")
    with open(os.path.join(ROOT, "dev/results/processes.md"), "w") as kept:
        kept.write(table)


if __name__ == "__main__":
    main()
