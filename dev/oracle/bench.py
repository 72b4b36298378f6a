#!/usr/bin/python3
"""Times training steps of the PyTorch model: forward, backward, clip, AdamW, on random tokens.

    build/torch/bin/python3 dev/oracle/bench.py --shape l4h4c128 --B 12 --T 64 --V 256 --threads 1 2

Prints one line of JSON per thread count. With --serve it takes turns with another program: it answers each line "n" on
stdin with a JSON list of the milliseconds of the next n steps, or fewer if they take over 15 s, at one thread count.

`scripts/setup.sh bench` installs PyPI's PyTorch, which has MKL and oneDNN. Another PyTorch may call a slower BLAS:
state its `gemm_gflops`, its fp32 rate at 1024^3, beside every comparison.
malloc is set to reuse freed memory: with the default malloc, a d12 step (B 4, T 64) takes a quarter longer.
"""
import argparse
import json
import os
import subprocess
import sys
import time

KEEP_FREED_MEMORY = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1000000000000"


def environment(threads):
    """Environment variables to set before the process starts: malloc and BLAS libraries read them when loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {"GLIBC_TUNABLES": KEEP_FREED_MEMORY, **{name: str(threads) for name in names}}


def parse_arguments():
    parser = argparse.ArgumentParser(description="times training steps of the PyTorch model")
    parser.add_argument("--shape", default="l4h4c128", help="d12, d24, d36, d48 or l<layers>h<heads>c<channels>")
    parser.add_argument("--B", type=int, default=12, help="sequences a step")
    parser.add_argument("--T", type=int, default=64, help="tokens a sequence")
    parser.add_argument("--V", type=int, default=256, help="vocabulary (GPT-2's: 50257, padded 50304)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="CPU thread counts, one after another")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3, help="steps before the clock counts")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16; parameters stay float32")
    parser.add_argument("--medium", action="store_true", help="matmuls of float32 may round their inputs to bfloat16")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model (torch 2)")
    parser.add_argument("--serve", action="store_true", help="answer each line n on stdin with n steps' milliseconds")
    args = parser.parse_args()
    if args.serve and len(args.threads) > 1:
        parser.error("--serve takes one number of --threads")
    return args


def make_timed_step(args):
    """A function without arguments that takes one step on a new batch and returns its milliseconds."""
    import torch
    from gpt2 import GPT2, make_adamw, parse_shape, train_step

    torch.manual_seed(0)
    if args.device != "cpu":
        torch.backends.cuda.matmul.allow_tf32 = True  # TF32 matmuls, as most users set it
    if args.medium:
        torch.set_float32_matmul_precision("medium")
    model = GPT2(parse_shape(args.shape), args.V, args.T).to(args.device)
    optimizer = make_adamw(model, lr=1e-3)
    if args.compile:
        model = torch.compile(model)

    def wait():
        if args.device != "cpu":
            torch.cuda.synchronize()

    def step():
        tokens, targets = torch.randint(args.V, (2, args.B, args.T), device=args.device)
        wait()
        start = time.perf_counter()
        train_step(model, optimizer, tokens, targets, bf16=args.bf16)
        wait()
        return (time.perf_counter() - start) * 1e3

    return step


def gemm_gflops(n=1024, tries=9):
    """GFLOP/s of an n x n x n float32 matmul on the CPU, the median of some tries"""
    import torch

    a, seconds = torch.randn(n, n), []
    for _ in range(tries):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / sorted(seconds)[tries // 2] / 1e9


def report(args, times):
    import numpy as np
    import torch

    p10, median, p90 = np.percentile(times, [10, 50, 90])
    settings = {key: vars(args)[key] for key in ("shape", "B", "T", "V", "device", "bf16", "medium", "compile")}
    print(json.dumps({"program": "pytorch", **settings, "threads": args.threads[0], "steps": len(times),
                      "median_ms": round(median, 3), "p10_ms": round(p10, 3), "p90_ms": round(p90, 3),
                      "gemm_gflops": round(gemm_gflops(), 1), "torch": torch.__version__}), flush=True)


def turn(step, steps, limit_ms=15e3):
    """Milliseconds of each step. On a busy machine a step may take seconds: no step begins after the limit."""
    times = []
    while len(times) < steps and sum(times) < limit_ms:
        times.append(round(step(), 4))
    return times


def main():
    args = parse_arguments()
    if len(args.threads) > 1:
        for threads in args.threads:
            subprocess.run([sys.executable] + sys.argv + ["--threads", str(threads)], check=True)
        return
    wanted = environment(args.threads[0])
    if not wanted.items() <= os.environ.items():  # exec keeps the pid and the pipe of a driver
        os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **wanted})
    step = make_timed_step(args)
    for _ in range(args.warmup):
        step()
    if args.serve:
        for line in sys.stdin:
            print(json.dumps(turn(step, int(line))), flush=True)
    else:
        report(args, [step() for _ in range(args.steps)])


if __name__ == "__main__":
    main()
