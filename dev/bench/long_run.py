#!/usr/bin/python3
"""A long run: does memory grow, do descriptors leak, do steps become slower?

    make long-run      (or: /usr/bin/python3 dev/bench/long_run.py [--steps 20000])

nanoGPT's CPU preset (4 layers, 4 heads, 128 channels, B 12, T 64) on bytes of this repository's sources: 20,000 steps
with twenty saves, samples and evaluations, on one rank with all threads, then on two ranks of one thread each. Of every
rank, the resident memory, the open descriptors and the threads are read from /proc after each step that is a multiple
of 100. Warm-up ends with the second save. After warm-up, the medians of the first ten and of the last ten readings are
compared. Passes if memory grows by at most 1 MiB, if descriptors do not grow, and if the median step of the last
thousand takes at most 3 % longer than that of the first thousand. Writes the table to dev/results/long_run.md.
"""
import argparse
import datetime
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none -x OMP_NUM_THREADS=1 -np 2".split()


def ranks_of(process, count):
    """process ids of the trainer under `process`, when all have started"""
    while process.poll() is None:
        found = []
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path) as stat:
                    before, after = stat.read().rsplit(")", 1)
            except OSError:
                continue
            pid, name = before.split(" (", 1)
            if name == "train_gpt2" and int(after.split()[1]) in (process.pid, os.getpid()):
                found.append(int(pid))
        if len(found) == count:
            return sorted(found)
        time.sleep(0.1)
    sys.exit("the run ended before its ranks were found")


def reading(pid):
    """(resident KiB, descriptors, threads)"""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"])


def follow(process, pids, metrics):
    """{step: [reading of each rank]} at steps divisible by 100, read as they appear in metrics.jsonl"""
    readings, step = {}, 0
    while process.poll() is None:
        try:
            with open(metrics, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 600))
                lines = [line for line in file.read().split(b"\n")[1:-1] if b'"loss"' in line]
            last = json.loads(lines[-1])["step"] if lines else 0
            if last // 100 > step // 100:
                readings[last] = [reading(pid) for pid in pids]
                step = last
        except (OSError, ValueError, KeyError):
            pass  # not there yet, or the run has just ended
        time.sleep(0.02)
    return readings


def run(text, steps, ranks):
    with tempfile.TemporaryDirectory() as folder:
        every = str(steps // 20)
        command = [os.path.join(ROOT, "train_gpt2"), "-i", text, "-e", "l4h4c128", "-b", "12" if ranks == 1 else "6",
                   "-t", "64", "-d", "768", "-x", str(steps), "-n", every, "-nk", "2", "-v", every, "-m", "20", "-s",
                   every, "-r", "0", "-o", folder]
        process = subprocess.Popen((MPIRUN if ranks > 1 else []) + command, stdout=subprocess.DEVNULL)
        pids = ranks_of(process, ranks)
        readings = follow(process, pids, os.path.join(folder, "metrics.jsonl"))
        if process.wait() != 0:
            sys.exit(f"the run ended with status {process.returncode}")
        with open(os.path.join(folder, "metrics.jsonl")) as metrics:
            ms = [line["ms"] for line in map(json.loads, metrics) if "loss" in line]
    warm = {step: found for step, found in readings.items() if step > steps // 10}
    rows, passed = [], True
    for rank in range(ranks):
        kib = [found[rank][0] for found in warm.values()]
        descriptors = [found[rank][1] for found in warm.values()]
        threads = [found[rank][2] for found in warm.values()]
        first, last = statistics.median(ms[100:1100]), statistics.median(ms[-1000:])
        growth = statistics.median(kib[-10:]) - statistics.median(kib[:10])
        open_first, open_last = statistics.median(descriptors[:10]), statistics.median(descriptors[-10:])
        passed &= growth <= 1024 and open_last <= open_first and last <= 1.03 * first
        rows.append(f"| {ranks} | {rank} | {kib[0] / 1024:.1f} | {growth / 1024:+.2f} | {max(kib) / 1024:.1f} | "
                    f"{open_first:g} to {open_last:g} | {min(threads)} to {max(threads)} | {first:.2f} | "
                    f"{last:.2f} | {100 * (last / first - 1):+.1f} % | {len(warm)} |")
        print(rows[-1], flush=True)
    return rows, passed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        with open(text, "wb") as out:
            for path in sorted(glob.glob(os.path.join(ROOT, "llmc", "**", "*.h"), recursive=True)):
                with open(path, "rb") as source:
                    out.write(source.read())
        one, one_passed = run(text, steps, 1)
        two, two_passed = run(text, steps, 2)
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    with open(os.path.join(ROOT, "dev/results/long_run.md"), "w") as out:
        out.write(f"# A long run\n\n`make long-run`, {steps} steps with twenty saves, samples and evaluations, "
                  f"{datetime.date.today()}, {names[0]}, {len(names)} threads.\nMemory is resident, in MiB, after a "
                  "tenth of the steps; its growth, and descriptors, are medians of the first and the last ten "
                  "readings. Steps are medians of a thousand, in ms.\n\n"
                  "| ranks | rank | memory | growth | peak | descriptors | threads | first steps | last steps | "
                  "difference | readings |\n|---|---|---|---|---|---|---|---|---|---|---|\n" + "\n".join(one + two)
                  + "\n")
    sys.exit(not (one_passed and two_passed))


if __name__ == "__main__":
    main()
