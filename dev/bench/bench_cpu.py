#!/usr/bin/python3
"""A CPU training step against PyTorch, a matmul against oneDNN's own benchmark, and the final loss of both trainers.

    make bench-cpu        (or: /usr/bin/python3 dev/bench/bench_cpu.py [--rounds 7] [--skip-loss])

The programs take turns: every round runs each program for some steps at each number of threads, so that a change of the
machine's clock or a busy neighbour affects all programs. A time is the median over the rounds of a round's median, at
the fastest number of threads; the spread is the lowest and highest round. Prints Markdown and writes it to
dev/results/cpu.md. 7 rounds take about ten minutes on two cores.
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PRESET = {"shape": "l4h4c128", "B": 12, "T": 64, "V": 256, "steps": 80, "skip": 20}
D12 = {"shape": "d12", "B": 4, "T": 64, "V": 50304, "steps": 7, "skip": 2}


def our_times(text, case, precision, threads):
    """milliseconds of each step of a short run of train_gpt2, without the first steps"""
    with tempfile.TemporaryDirectory() as run:
        command = [os.path.join(ROOT, "train_gpt2"), "-i", text, "-e", case["shape"], "-b", str(case["B"]),
                   "-t", str(case["T"]), "-x", str(case["steps"]), "-v", "0", "-s", "0", "-r", "0",
                   "-f", str(precision), "--threads", str(threads), "-o", run]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(run, "metrics.jsonl")) as metrics:
            return [json.loads(line)["ms"] for line in metrics][case["skip"]:]


class Torch:
    """dev/oracle/bench.py --serve with a number of threads"""

    def __init__(self, case, threads):
        command = [sys.executable, os.path.join(ROOT, "dev/oracle/bench.py"), "--serve", "--threads", str(threads)]
        for name in ("shape", "B", "T", "V"):
            command += ["--" + name, str(case[name])]
        # an OPENBLAS_ setting of the caller would slow down PyTorch
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)

    def times(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def best(rounds_by_threads):
    """(threads, median, low, high) for the number of threads with the lowest median over the rounds"""
    rows = [(threads, statistics.median(r), min(r), max(r)) for threads, r in rounds_by_threads.items()]
    return min(rows, key=lambda row: row[1])


def compare(case, text, threads, rounds):
    """{program: best(...)}; the programs take turns"""
    torches = {n: Torch(case, n) for n in threads}
    measured = {name: {n: [] for n in threads} for name in ("torch", "ours", "ours -f 2")}
    for _ in range(rounds):
        for n in threads:
            measured["torch"][n].append(statistics.median(torches[n].times(case["steps"])[case["skip"]:]))
            measured["ours"][n].append(statistics.median(our_times(text, case, 1, n)))
            measured["ours -f 2"][n].append(statistics.median(our_times(text, case, 2, n)))
    for torch in torches.values():
        torch.close()
    return {name: best(by_threads) for name, by_threads in measured.items()}


def step_table(title, results):
    lines = [f"### {title}", "", "| program | threads | ms a step | spread | against PyTorch |",
             "|---|---|---|---|---|"]
    reference = results["torch"][1]
    for name, (threads, median, low, high) in results.items():
        lines.append(f"| {name} | {threads} | {median:.2f} | {low:.2f} to {high:.2f} | {reference / median:.2f}x |")
    return lines + [""]


def matmul_table(rounds):
    program = os.path.join(ROOT, "build/bench/bench_matmul")
    rows = [json.loads(subprocess.check_output([program, "1024", "3072", "768"])) for _ in range(rounds)]
    ours = statistics.median(row["ours_gflops"] for row in rows)
    theirs = share = spread = "not measured"
    if rows[0]["share"] is not None:  # null without oneDNN 2
        shares = sorted(row["share"] for row in rows)
        theirs = f"{statistics.median(row['onednn_gflops'] for row in rows):.0f}"
        share, spread = f"{statistics.median(shares):.2f}", f"{shares[0]:.2f} to {shares[-1]:.2f}"
    return ["### Matmul 1024 x 3072 x 768", "", "| ours, GFLOP/s | oneDNN's own benchmark | share | spread |",
            "|---|---|---|---|", f"| {ours:.0f} | {theirs} | {share} | {spread} |", ""]


def end_losses(text):
    """validation loss after nanoGPT's CPU preset, 2000 steps, same weights and batches: {program: loss}"""
    flags = ["-i", text, "-e", "l4h4c128", "-b", "12", "-t", "64", "-x", "2000", "-l", "1e-3", "-u", "100", "-q", "0.1",
             "-c", "0.1", "-m", "100", "-s", "0", "-v", "2000"]
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([os.path.join(ROOT, "build/bench/dump_run"), folder] + flags, check=True)
        torch = [sys.executable, os.path.join(ROOT, "dev/oracle/converge.py"), "--init",
                 f"{folder}/step_00000000/model.safetensors", "--batches", f"{folder}/train.i32",
                 "--val", f"{folder}/val.i32"]
        losses["torch"] = json.loads(subprocess.check_output(torch))["val_loss"]
        for name, precision in (("ours", "1"), ("ours -f 2", "2")):
            run = os.path.join(folder, "run" + precision)
            subprocess.run([os.path.join(ROOT, "train_gpt2"), "-o", run, "-f", precision] + flags, check=True,
                           stdout=subprocess.DEVNULL)
            with open(os.path.join(run, "metrics.jsonl")) as metrics:
                losses[name] = [json.loads(line)["val_loss"] for line in metrics if "val_loss" in line][-1]
    return losses


def loss_table(losses):
    lines = ["### Validation loss after 2000 steps, same weights, batches and schedule", "",
             "| program | loss | against PyTorch |", "|---|---|---|"]
    return lines + [f"| {name} | {loss:.4f} | {loss - losses['torch']:+.4f} |" for name, loss in losses.items()] + [""]


def cpu_name():
    with open("/proc/cpuinfo") as info:
        return next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.machine())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--skip-loss", action="store_true")
    args = parser.parse_args()
    fetch = [os.path.join(ROOT, "scripts/text.sh"), os.path.join(ROOT, "data")]
    text = subprocess.check_output(fetch, text=True).strip()
    threads = sorted({1, os.cpu_count()})
    today = datetime.date.today().isoformat()
    lines = ["# CPU benchmark", "", f"{today}, {cpu_name()}, {os.cpu_count()} cores, {args.rounds} rounds in "
             "which the programs take turns; median of the rounds' medians, spread: lowest and highest round.", ""]
    lines += step_table("4 layers, 4 heads, 128 channels, B 12, T 64, bytes",
                        compare(PRESET, text, threads, args.rounds))
    lines += step_table("124M, B 4, T 64", compare(D12, text, threads, max(3, args.rounds // 2)))
    lines += matmul_table(args.rounds)
    if not args.skip_loss:
        lines += loss_table(end_losses(text))
    report = "\n".join(lines)
    print(report)
    os.makedirs(os.path.join(ROOT, "dev/results"), exist_ok=True)
    with open(os.path.join(ROOT, "dev/results/cpu.md"), "w") as out:
        out.write(report + "\n")


if __name__ == "__main__":
    main()
