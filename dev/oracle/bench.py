#!/usr/bin/env python3
"""Times training steps of the PyTorch model on the CPU, on random tokens, in turns with another program.

    build/torch/bin/python3 dev/oracle/bench.py --shape l4h4c128 --B 12 --T 64 --V 256 --threads 2

Answers each line "n" on stdin with a JSON list of the milliseconds of the next n steps (forward, backward, clip,
AdamW), or fewer if they take over 15 s. `scripts/setup.sh bench` installs PyPI's PyTorch, which has MKL and oneDNN.
malloc is set to reuse freed memory: with the default malloc, a d12 step (B 4, T 64) takes a quarter longer.
"""
import argparse
import json
import os
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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16; parameters stay float32")
    parser.add_argument("--medium", action="store_true", help="matmuls of float32 may round their inputs to bfloat16")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    return parser.parse_args()


def make_timed_step(args):
    """A function without arguments that takes one step on a new batch and returns its milliseconds."""
    import torch
    from gpt2 import GPT2, make_adamw, parse_shape, train_step

    torch.manual_seed(0)
    if args.medium:
        torch.set_float32_matmul_precision("medium")
    model = GPT2(parse_shape(args.shape), args.V, args.T)
    optimizer = make_adamw(model, lr=1e-3)
    if args.compile:
        model = torch.compile(model)

    def step():
        tokens, targets = torch.randint(args.V, (2, args.B, args.T))
        start = time.perf_counter()
        train_step(model, optimizer, tokens, targets, bf16=args.bf16)
        return (time.perf_counter() - start) * 1e3

    return step


def turn(step, steps, limit_ms=15e3):
    """Milliseconds of each step. On a busy machine a step may take seconds: no step begins after the limit."""
    times = []
    while len(times) < steps and sum(times) < limit_ms:
        times.append(round(step(), 4))
    return times


def main():
    args = parse_arguments()
    wanted = environment(args.threads)
    if not wanted.items() <= os.environ.items():  # exec keeps the pid and the pipe of a driver
        os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **wanted})
    step = make_timed_step(args)
    for _ in range(3):  # warm-up
        step()
    for line in sys.stdin:
        print(json.dumps(turn(step, int(line))), flush=True)


if __name__ == "__main__":
    main()
