#!/usr/bin/python3
"""One rank with all threads against a rank of one thread per core: the same tokens per update on the same cores.

    make bench-processes      (or: /usr/bin/python3 dev/bench/bench_processes.py [--rounds 7] [--cores N])

Two layers of GPT-2 124M's width (-e l2h12c768), bytes, T 128, 8 sequences per update. The layouts take turns, so that a
busy neighbour slows down all of them. The time of a round is the median of its steps, the time of a layout the median
over the rounds, and its ratio the median of the rounds' ratios to one rank. Writes the table to
dev/results/processes.md, from three rounds on.
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
LEAST_ROUNDS = 3  # fewer rounds do not replace the file


def step_ms(text, ranks, threads, flags):
    """median milliseconds of an update, by rank 0's clock"""
    with tempfile.TemporaryDirectory() as run:
        command = [os.path.join(ROOT, "train_gpt2"), "-i", text, "-e", "l2h12c768", "-b", str(SEQUENCES // ranks),
                   "-t", str(T), "-d", str(SEQUENCES * T), "-x", str(STEPS), "-v", "0", "-s", "0", "--threads",
                   str(threads), "-o", run, *flags]
        if ranks > 1:
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]
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
    lines = ["# Several ranks on one machine", "",
             f"{datetime.date.today().isoformat()}, {args.cores} cores: 2 layers, 12 heads, 768 channels, fp32, "
             f"{SEQUENCES} x {T} tokens per update. Medians of {args.rounds} rounds; the layouts take turns.", "",
             "| ranks x threads | flags | an update, ms (least to most) | tokens/s | speed, one rank = 1 |",
             "|---|---|---|---|---|"]
    for i, (ranks, threads, flags) in enumerate(layouts):
        times = [each[i] for each in rounds]
        ratio = statistics.median(each[0] / each[i] for each in rounds)
        middle = statistics.median(times)
        spread = f"{middle:.1f} ({min(times):.1f} to {max(times):.1f})"
        rate = SEQUENCES * T / middle * 1e3
        lines.append(f"| {ranks} x {threads} | {' '.join(flags)} | {spread} | {rate:,.0f} | {ratio:.2f} |")
    table = "\n".join(lines) + "\n"
    print(table)
    if args.rounds < LEAST_ROUNDS:
        sys.exit(f"bench_processes.py: --rounds {args.rounds} is too few to write dev/results/processes.md; "
                 f"give at least {LEAST_ROUNDS}")
    with open(os.path.join(ROOT, "dev/results/processes.md"), "w") as out:
        out.write(table)


if __name__ == "__main__":
    main()
