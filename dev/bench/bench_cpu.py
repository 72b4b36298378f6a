#!/usr/bin/env python3
"""Compares training steps on the CPU with PyTorch, GEMMs with oneDNN, and the losses of both programs.

    make bench-cpu        (for a look: make bench-cpu ARGS='--rounds 1 --skip-loss')

The programs take turns: every round runs each program for some steps at each number of threads, so that a change of the
machine's clock or a busy neighbour affects all programs. Each round has a median step; a time is the median over the
rounds, and its spread goes from the lowest round to the highest. `scripts/setup.sh bench` installs PyTorch into
build/torch; without it the tables have no rows of PyTorch. Prints Markdown and, from three rounds on, writes it to
dev/results/cpu/<CPU>.md. 5 rounds take about 25 minutes on two cores.
On a CPU with AVX-512 `make bench-cpu MARCH=x86-64-v3` limits every program to AVX2, and writes <CPU>_avx2.md.
"""
import argparse
import contextlib
import datetime
import functools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

from runs import ROOT, TRAINER, king_james, last_val_loss, metrics, spread

PORTABLE = os.path.join(ROOT, "build/portable/train_gpt2")  # make ARCH=portable
TORCH = os.path.join(ROOT, "build/torch/bin/python3")
LEAST_ROUNDS = 3  # fewer rounds do not replace the file
# weights: elements of the matrices of all linear layers
PRESET = {"shape": "l4h4c128", "B": 12, "T": 64, "V": 256, "steps": 60, "skip": 10, "GB": 0.7,
          "weights": 4 * 12 * 128 * 128 + 256 * 128}
D12 = {"shape": "d12", "B": 4, "T": 64, "V": 50304, "steps": 7, "skip": 2, "GB": 3.2,
       "weights": 12 * 12 * 768 * 768 + 50304 * 768}
# flags of dev/oracle/bench.py; the fp32 ways first
WAYS = {"PyTorch": [], "PyTorch, compiled": ["--compile"], "PyTorch, medium precision": ["--medium"],
        "PyTorch, bf16 autocast": ["--bf16"], "PyTorch, compiled, bf16 autocast": ["--compile", "--bf16"]}
FP32_WAYS = list(WAYS)[:2]
# a caller's OMP_NUM_THREADS fixes our number of threads, and TRAIN_GPT2_ARCH the level of ARCH=portable
OF_CALLER = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "TRAIN_GPT2_")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(OF_CALLER)}
AVX2_ONLY = {"ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2",
             "MKL_ENABLE_INSTRUCTIONS": "AVX2", "TRAIN_GPT2_ARCH": "v3"}
# torch.compile's common cache takes AVX2 and AVX-512 kernels for the same, and the process crashes with the other's
AVX2_KERNELS = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(ROOT, "build/torch/avx2_kernels")}
START = time.monotonic()


def log(text):
    print(f"bench_cpu: {time.monotonic() - START:4.0f} s: {text}", file=sys.stderr, flush=True)


# ---- the programs. A program is a (name, threads) and a function that takes a turn: milliseconds of each step


def our_times(text, case, way, threads):
    """a turn of a new process of the trainer; way = (program, -f)"""
    trainer, precision = way
    rows = metrics([trainer, "-i", text, "-e", case["shape"], "-b", str(case["B"]), "-t", str(case["T"]), "-v", "0",
                    "-s", "0", "-r", "0", "-f", str(precision), "-x", str(case["steps"])],
                   {**ENVIRONMENT, "OMP_NUM_THREADS": str(threads)})
    return [row["ms"] for row in rows][case["skip"]:]


class Torch:
    """dev/oracle/bench.py: one process for all turns, since torch.compile takes long"""

    def __init__(self, case, flags, threads):
        self.case = case
        command = [TORCH, os.path.join(ROOT, "dev/oracle/bench.py"), "--threads", str(threads), *flags]
        for name in ("shape", "B", "T", "V"):
            command += ["--" + name, str(case[name])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=ENVIRONMENT)

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def times(self):
        times = self.steps(self.case["steps"])
        return times[min(self.case["skip"], len(times) // 2):]

    def close(self):
        with contextlib.suppress(OSError):  # it ended before
            self.process.stdin.close()
        self.process.wait()


def free_gigabytes():
    with open("/proc/meminfo") as memory:
        return next(int(line.split()[1]) for line in memory if line.startswith("MemAvailable")) / 1e6


@contextlib.contextmanager
def programs_of(text, case, ways, our_ways, threads):
    """{(name, threads): turn} of PyTorch's ways and ours. A way of PyTorch that cannot run is left out."""
    with contextlib.ExitStack() as stack:
        programs = {}
        for way in ways:
            for n in threads:
                if free_gigabytes() < 2 * case["GB"]:  # ours runs beside all of PyTorch's processes
                    log(f"{way} is left out: it takes {case['GB']} GB, and too little memory is free")
                    continue
                log(f"starting {way}, {case['shape']}, threads: {n}")
                torch = Torch(case, WAYS[way], n)
                stack.callback(torch.close)
                try:
                    torch.steps(1)  # waits until its model is compiled
                    programs[way, n] = torch.times
                except (OSError, ValueError):
                    log(f"{way} is left out: its process ended, with the error above")
        for name, way in our_ways.items():
            for n in threads:
                programs[name, n] = lambda way=way, n=n: our_times(text, case, way, n)
        yield programs


def our_ways():
    """{name: (program, -f)}"""
    version = subprocess.check_output([TRAINER, "--version"], text=True, env=ENVIRONMENT)
    ways = {"ours": (TRAINER, 1)}
    return {**ways, "ours, -f 2": (TRAINER, 2)} if "bf16 inputs" in version else ways


def take_turns(programs, rounds):
    """{program: [median of each round]}"""
    measured = {program: [] for program in programs}
    for i in range(rounds):
        log(f"round {i + 1} of {rounds}")
        for program, times in programs.items():
            measured[program].append(statistics.median(times()))
    return measured


# ---- steps


def best(measured, names):
    """the program with the lowest median over the rounds, of some names; None without one"""
    return min((p for p in measured if p[0] in names), key=lambda p: statistics.median(measured[p]), default=None)


def speed(measured, name, names):
    """speed of a program at its best number of threads, against the best program of some names"""
    peer = best(measured, names)
    if not peer:
        return "-"
    return f"{statistics.median(measured[peer]) / statistics.median(measured[best(measured, [name])]):.2f}x"


def share(case, measured, name, fmas):
    """time of the matmuls at the rate of fp32 FMAs, as a share of a step; fmas: {threads: GFLOP/s}"""
    program = best(measured, [name])
    gflop = 6e-9 * case["B"] * case["T"] * case["weights"]  # forward, and two products of the same size backward
    return f"{100 * gflop / fmas[program[1]] / (1e-3 * statistics.median(measured[program])):.0f} %"


def step_table(title, case, measured, fmas):
    threads = sorted({n for _, n in measured})
    lines = [f"### {title}", "", f"| ms per step (lowest to highest) | {' | '.join(f'threads: {n}' for n in threads)} "
             "| speed, PyTorch's best fp32 = 1 | speed, PyTorch's best = 1 | share of the fp32 FMAs |",
             "|---" * (len(threads) + 4) + "|"]
    for name in dict.fromkeys(name for name, _ in measured):
        times = [spread(measured[name, n]) if (name, n) in measured else "-" for n in threads]
        lines.append(f"| {name} | {' | '.join(times)} | {speed(measured, name, FP32_WAYS)} | "
                     f"{speed(measured, name, WAYS)} | {share(case, measured, name, fmas)} |")
    return lines + [""]


def step_tables(text, threads, rounds, ways, fmas):
    title, ours = "4 layers, 4 heads, 128 channels, B 12, T 64, bytes", our_ways()
    portable = {f"{name}, ARCH=portable": (PORTABLE, precision) for name, (_, precision) in ours.items()}
    with programs_of(text, PRESET, ways, {**ours, **portable}, threads) as programs:
        measured = take_turns(programs, rounds)
    with programs_of(text, D12, ways, ours, threads[-1:]) as programs:
        large = take_turns(programs, (rounds + 1) // 2)
    return step_table(title, PRESET, measured, fmas) + step_table("124M, B 4, T 64", D12, large, fmas)


# ---- GEMMs


def run_matmul(threads, rounds):
    """lines of bench_matmul: the build, and rates"""
    log(f"bench_matmul, threads: {threads}")
    command = [os.path.join(ROOT, "build/bench/bench_matmul"), str(threads), str(rounds)]
    lines = subprocess.check_output(command, text=True, env=ENVIRONMENT).splitlines()
    return [json.loads(line) for line in lines]


MATMUL_COLUMNS = {("fp32", "fma"): "FMAs", ("fp32", "ours"): "ours", ("fp32", "ours_cold"): "ours, not cached",
                  ("fp32", "onednn"): "oneDNN, its layout",
                  ("fp32", "onednn_plain"): "oneDNN, plain",
                  ("bf16", "fma"): "FMAs, bf16", ("bf16", "ours"): "ours, bf16",
                  ("bf16", "ours_cold"): "ours, bf16, not cached",
                  ("bf16", "onednn"): "oneDNN, bf16, its layout", ("bf16", "onednn_plain"): "oneDNN, bf16, plain"}


def matmul_rows(rates, columns):
    """{gemm: cells} of one model: GFLOP/s of each column and their ratio to the model's rate of FMAs"""
    rows = {}
    fma = {rate["inputs"]: rate["fma"] for rate in rates if rate["gemm"] == "all"}
    for gemm in dict.fromkeys(rate["gemm"] for rate in rates):
        by_inputs = {rate["inputs"]: rate for rate in rates if rate["gemm"] == gemm}
        rows[gemm] = [f"{by_inputs[i][program]:.0f}" +
                      (f" ({by_inputs[i][program] / fma[i]:.2f})" if program != "fma" else "")
                      for i, program in columns]
    return rows


def matmul_heads(first, columns):
    heads = first + [MATMUL_COLUMNS[column] for column in columns]
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]


def matmul_tables(by_threads):
    threads = max(by_threads)
    measured = [rate for rate in by_threads[threads][1:] if rate["gemm"] == "all"]
    columns = [c for c in MATMUL_COLUMNS if any(r["inputs"] == c[0] and r[c[1]] is not None for r in measured)]
    programs = [c for c in columns if c[1] != "fma"]
    lines = ["### GEMMs of a training step: GFLOP/s (ratio to FMAs in registers with the same inputs)", "",
             "FMAs: multiply-adds of registers, the ceiling. The fastest call counts. oneDNN's layout of B is the one "
             "that oneDNN prefers; plain is the trainer's. oneDNN's bf16 operands are bf16 in memory, ours are fp32. "
             "Operands are in the cache, but for the columns that say otherwise.",
             "", *matmul_heads(["a step's GEMMs", "threads"], columns)]
    details = []
    for model in dict.fromkeys(rate["model"] for rate in measured):
        for n in sorted(by_threads):
            rates = [rate for rate in by_threads[n][1:] if rate["model"] == model]
            lines.append(f"| {model} | {n} | {' | '.join(matmul_rows(rates, columns)['all'])} |")
        sizes = {rate["gemm"]: f"{rate['M']} x {rate['N']} x {rate['K']}" for rate in rates if rate["gemm"] != "all"}
        details += ["", f"{model}, {threads} threads:", "", *matmul_heads(["GEMM", "M x N x K"], programs)]
        rows = matmul_rows(rates, programs)
        details += [f"| {gemm} | {size} | {' | '.join(rows[gemm])} |" for gemm, size in sizes.items()]
    return lines + details + [""]


# ---- losses


def end_losses(text, torch_version):
    """validation loss after nanoGPT's CPU preset, 2000 steps, same weights and batches: {program: loss}"""
    flags = ["-i", text, "-e", "l4h4c128", "-b", "12", "-t", "64", "-x", "2000", "-l", "1e-3", "-u", "100", "-q", "0.1",
             "-c", "0.1", "-m", "100", "-s", "0", "-v", "2000"]
    losses = {}
    log("losses after 2000 steps")
    if torch_version:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([os.path.join(ROOT, "build/bench/dump_run"), folder] + flags, check=True, env=ENVIRONMENT)
            torch = [TORCH, os.path.join(ROOT, "dev/oracle/converge.py"), "--init",
                     f"{folder}/step_00000000/model.safetensors", "--batches", f"{folder}/train.i32",
                     "--val", f"{folder}/val.i32"]
            one = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}  # more are slower beside a busy neighbour
            losses["PyTorch"] = json.loads(subprocess.check_output(torch, env=one))["val_loss"]
    for name, (trainer, precision) in our_ways().items():
        losses[name] = last_val_loss([trainer, "-f", str(precision), *flags], ENVIRONMENT)
    return losses


def loss_table(losses):
    lines = ["### Validation loss after 2000 steps, same weights, batches and schedule", "",
             "| program | loss | against PyTorch |", "|---|---|---|"]
    for name, loss in losses.items():
        difference = f"{loss - losses['PyTorch']:+.4f}".replace("-0.0000", "+0.0000") if "PyTorch" in losses else "-"
        lines.append(f"| {name} | {loss:.4f} | {difference} |")
    return lines + [""]


# ---- the page


def cpu(field):
    """a field of lscpu, or ''"""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        text = subprocess.check_output(["lscpu"], text=True, env={**os.environ, "LC_ALL": "C"})
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return fields.get(field, "").strip()
    return ""


def cores():
    """physical cores that this process may use"""
    siblings = set()
    for i in os.sched_getaffinity(0):
        try:
            with open(f"/sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list") as names:
                siblings.add(names.read())
        except OSError:
            siblings.add(i)
    return len(siblings)


def version_of_torch():
    """None without PyTorch"""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output([TORCH, "-c", "import numpy, torch; print(torch.__version__)"], text=True,
                                       stderr=subprocess.DEVNULL).strip()
    log(f"there is no PyTorch in {TORCH}; scripts/setup.sh bench installs it. The tables leave out its rows")
    return None


def head(build, torch_version, rounds, load):
    name = cpu("Model name") or platform.machine()
    command = "make bench-cpu" + " MARCH=x86-64-v3" * held_to_avx2()
    return [f"# CPU benchmark: {name}", "", f"- {datetime.date.today().isoformat()}, `{command}`, rounds in which "
            f"the programs take turns: {rounds}; load average at the start {load:.1f}",
            f"- CPU: {name} ({cpu('Vendor ID')}, family {cpu('CPU family')}, model {cpu('Model')}), {cores()} cores; "
            f"our vectors: {build['vectors']}",
            f"- PyTorch {torch_version or 'none'}, compiler {build['compiler']}, oneDNN {build['onednn'] or 'none'}",
            "- Ours is `./train_gpt2 -f 1`. PyTorch runs eagerly unless marked compiled. "
            "Medium precision rounds matmul inputs: "
            "torch.set_float32_matmul_precision('medium'). A speed is at a program's best number of threads. "
            "Share of the fp32 FMAs: the time of a step's matmuls at the rate of FMAs in registers, of the step's time",
            *(["- Every program is limited to AVX2, although this CPU has AVX-512: " +
               ", ".join(f"{name}={value}" for name, value in AVX2_ONLY.items())] if held_to_avx2() else []), ""]


@functools.cache
def held_to_avx2():
    """True if the build is for AVX2 and the CPU has AVX-512"""
    with subprocess.Popen([os.path.join(ROOT, "build/bench/bench_matmul")], stdout=subprocess.PIPE,
                          env=ENVIRONMENT) as matmul:
        build = json.loads(matmul.stdout.readline())
        matmul.kill()
    return build["vectors"] == "AVX2" and "avx512f" in cpu("Flags").split()


def results_file():
    name = f"{cpu('Model name') or platform.machine()} family{cpu('CPU family')} model{cpu('Model')}"
    name += " avx2" if held_to_avx2() else ""
    name = re.sub(r"[^a-z0-9]+", "_", name.lower().replace("(r)", "").replace("(tm)", "")).strip("_")
    return os.path.join(ROOT, "dev/results/cpu", name + ".md")


def main():
    parser = argparse.ArgumentParser(description="benchmarks the trainer on this CPU beside PyTorch")
    parser.add_argument("--rounds", type=int, default=5, help=f"from {LEAST_ROUNDS} on the results file is written")
    parser.add_argument("--skip-loss", action="store_true")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    ENVIRONMENT.update({**AVX2_ONLY, **AVX2_KERNELS} if held_to_avx2() else {})
    text = king_james()
    torch_version, threads = version_of_torch(), sorted({1, cores()})
    if load > 1:
        log(f"the load average is {load:.1f}: beside other programs all times are too long, "
            "but the average also counts the compilation of the last minute")
    matmuls = {n: run_matmul(n, (args.rounds + 1) // 2) for n in threads}
    lines = head(matmuls[threads[-1]][0], torch_version, args.rounds, load)
    fmas = {n: statistics.median(rate["fma"] for rate in matmuls[n][1:] if rate["inputs"] == "fp32") for n in threads}
    bf16 = len(our_ways()) > 1
    ways = [way for way, flags in WAYS.items() if bf16 or "--bf16" not in flags]
    if not bf16:
        log("PyTorch's bf16 is left out: it would be emulated")
    lines += step_tables(text, threads, args.rounds, ways if torch_version else [], fmas)
    lines += matmul_tables(matmuls)
    if not args.skip_loss:
        lines += loss_table(end_losses(text, torch_version))
    report = "\n".join(lines)
    print(report)
    if args.rounds >= LEAST_ROUNDS:
        os.makedirs(os.path.dirname(results_file()), exist_ok=True)
        with open(results_file(), "w") as out:
            out.write(report)
        log(f"wrote {results_file()}")


if __name__ == "__main__":
    main()
