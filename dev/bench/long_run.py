#!/usr/bin/env python3
"""A long run: does memory grow, do descriptors leak, do steps become slower?

    make long-run      (or: python3 dev/bench/long_run.py [--steps 20000])

nanoGPT's CPU preset (4 layers, 4 heads, 128 channels, B 12, T 64) on bytes of this repository's sources: 20,000 steps
with twenty saves, samples and evaluations, on one rank with all threads, then on two ranks of one thread each. Of every
rank, the resident memory, the open descriptors and the threads are read from /proc after each step that is a multiple
of 100. Warm-up ends with the second save. After warm-up, the medians of the first ten and of the last ten readings are
compared.

A shared machine may be faster in one minute than in the next. So the last thousand steps are compared with the first
thousand of a new run, made at the same time: the two runs take turns of 100 steps, and SIGSTOP holds the other one.

Passes if memory grows by at most 1 MiB, if descriptors do not grow, and if the median of the last thousand steps is at
most 3 % above that of the first thousand. Writes the table to dev/results/long_run.md.
"""
import argparse
import atexit
import datetime
import glob
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none -x OMP_NUM_THREADS=1 -np 2".split()


def ranks_of(process, count):
    """process ids of the trainer: `process` itself, or its children, when all have started"""
    while process.poll() is None:
        found = []
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path) as stat:
                    before, after = stat.read().rsplit(")", 1)
            except OSError:
                continue
            pid, name = before.split(" (", 1)
            if name == "train_gpt2" and process.pid in (int(pid), int(after.split()[1])):
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


def last_step(metrics):
    """the last step in metrics.jsonl, 0 if there is none yet"""
    try:
        with open(metrics, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 600))
            lines = [line for line in file.read().split(b"\n")[1:-1] if b'"loss"' in line]
        return json.loads(lines[-1])["step"] if lines else 0
    except FileNotFoundError:
        return 0


class Run:
    """a run of the trainer, and {step: [reading of each rank]} at steps divisible by 100"""

    def __init__(self, folder, text, steps, every, ranks):
        self.metrics, self.readings, self.step = os.path.join(folder, "metrics.jsonl"), {}, 0
        every = str(every)
        command = [os.path.join(ROOT, "train_gpt2"), "-i", text, "-e", "l4h4c128", "-b", "12" if ranks == 1 else "6",
                   "-t", "64", "-d", "768", "-x", str(steps), "-n", every, "-nk", "2", "-v", every, "-m", "20", "-s",
                   every, "-r", "0", "-o", folder]
        self.process = subprocess.Popen((MPIRUN if ranks > 1 else []) + command, stdout=subprocess.DEVNULL)
        self.pids = ranks_of(self.process, ranks)
        atexit.register(self.kill)

    def signal(self, number):
        for pid in self.pids:
            os.kill(pid, number)

    def kill(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)

    def until(self, step):
        """runs until a step has ended, then holds the run"""
        if self.step > 0:
            self.signal(signal.SIGCONT)
        while self.step < step and self.process.poll() is None:
            last = last_step(self.metrics)
            if last // 100 > self.step // 100:
                self.readings[last] = [reading(pid) for pid in self.pids]
            self.step = last
            time.sleep(0.02)
        if self.process.poll() is not None:
            sys.exit(f"the run ended with status {self.process.returncode} after step {self.step}")
        self.signal(signal.SIGSTOP)

    def end(self):
        """runs to the end; returns the ms of every step"""
        self.signal(signal.SIGCONT)
        if self.process.wait() != 0:
            sys.exit(f"the run ended with status {self.process.returncode}")
        with open(self.metrics) as metrics:
            return [line["ms"] for line in map(json.loads, metrics) if "loss" in line]


def run(text, steps, ranks):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as new_folder:
        old = Run(folder, text, steps, steps // 20, ranks)
        old.until(steps - 1050)
        new = Run(new_folder, text, 1200, steps // 20, ranks)
        new.until(100)
        for turn in range(1, 11):
            new.until(100 + 100 * turn)
            old.until(steps - 1050 + 100 * turn)
        first, last = statistics.median(new.end()[100:1100]), statistics.median(old.end()[-1050:-50])
    warm = {step: found for step, found in old.readings.items() if step > steps // 10}
    rows, passed = [], True
    for rank in range(ranks):
        kib = [found[rank][0] for found in warm.values()]
        descriptors = [found[rank][1] for found in warm.values()]
        threads = [found[rank][2] for found in warm.values()]
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
                  "readings.\nSteps are medians in ms: of the last thousand, and of the first thousand of a new run, "
                  "made in turns with them.\n\n"
                  "| ranks | rank | memory | growth | peak | descriptors | threads | first steps | last steps | "
                  "difference | readings |\n|---|---|---|---|---|---|---|---|---|---|---|\n" + "\n".join(one + two)
                  + "\n")
    sys.exit(not (one_passed and two_passed))


if __name__ == "__main__":
    main()
