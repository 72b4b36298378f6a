"""Runs of the trainer, for the benchmarks in Python."""
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAINER = os.path.join(ROOT, "train_gpt2")
PRESET = ["-e", "l4h4c128", "-b", "12", "-t", "64", "-s", "0"]  # nanoGPT's CPU preset
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
SKIP = 10  # first steps, which are not timed: the first touch of memory


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def king_james():
    """path of the King James Bible (scripts/text.sh)"""
    fetch = [os.path.join(ROOT, "scripts/text.sh"), os.path.join(ROOT, "data")]
    return subprocess.check_output(fetch, text=True).strip()


def metrics(command, environment=os.environ):
    """the lines of metrics.jsonl of a run with this command line"""
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        done = subprocess.run([*command, "-o", run], capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            sys.exit(f"{sys.argv[0]}: exit status {done.returncode}: {' '.join(command)}\n{done.stderr.strip()}")
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


def last_val_loss(command, environment=os.environ):
    return [row["val_loss"] for row in metrics(command, environment) if "val_loss" in row][-1]


def step_ms(program, text, steps, flags, ranks=1, threads=None):
    """median milliseconds of a step of PRESET with these flags, by rank 0's clock; threads: of a rank"""
    command = [program, "-i", text, *PRESET, "-v", "0", "-x", str(SKIP + steps), *flags]
    if ranks > 1:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]
    added = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if threads:
        added["OMP_NUM_THREADS"] = str(threads)
    times = [row["ms"] for row in metrics(command, {**os.environ, **added}) if "ms" in row]
    return statistics.median(times[SKIP:])


def spread(values, form="{:.2f}"):
    """median (lowest to highest)"""
    found = [form.format(value) for value in (statistics.median(values), min(values), max(values))]
    return found[0] if len(values) == 1 else f"{found[0]} ({found[1]} to {found[2]})"
