#!/usr/bin/env python3
"""Times GPT-2's training step in PyTorch, set up for speed, on token shards of the trainer.

    python3 dev/oracle/train_torch.py --model 124M --batch 64 --shards 'tokens_*.bin'

The model of gpt2.py (flash attention through F.scaled_dot_product_attention) under torch.compile, fp32 weights and
bf16 autocast, fused AdamW, gradients clipped to 1.0. After a step the gradients are set to None or zeroed in place; the
faster mode depends on the model, so both are timed, one after the other. Prints one line of JSON:
  median_ms p10_ms p90_ms   of a step after --warmup, from the batch's copy to the device to the update; faster mode
  none_ms kept_ms           medians of the modes of --gradients: set to None, zeroed in place
  tokens_per_s              batch * length / median
  first_step_s              from the start of the program to the end of the first step: imports, initial weights,
                            compilation
  reserved_bytes allocated_bytes   PyTorch's peaks on the device in the faster mode; null on a CPU
Exit status 3, with one line on stderr: out of memory on the device.
"""
import time

STARTED = time.perf_counter()  # before the import of torch, which is part of first_step_s

import argparse
import glob
import json
import statistics
import sys

import torch
from torch import nn

from gpt2 import GPT2, make_adamw, parse_shape

MODELS = {"124M": "d12", "350M": "d24", "774M": "d36", "1558M": "d48"}
HEADER_BYTES = 1024  # of a shard: 256 int32; uint16 tokens follow


def parse_arguments():
    parser = argparse.ArgumentParser(description="times GPT-2's training step in PyTorch")
    parser.add_argument("--model", default="124M", help="124M, 350M, 774M, 1558M or l<layers>h<heads>c<channels>")
    parser.add_argument("--batch", type=int, default=64, help="sequences a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens a sequence")
    parser.add_argument("--vocabulary", type=int, default=50304, help="GPT-2's 50257, padded")
    parser.add_argument("--shards", required=True, help="glob of token shards")
    parser.add_argument("--steps", type=int, default=40, help="timed steps of each mode")
    parser.add_argument("--warmup", type=int, default=10, help="steps before the timed ones, at least 1")
    parser.add_argument("--gradients", default="both", choices=["none", "kept", "both"],
                        help="after an update: set to None, zeroed in place, or both modes in turn")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.warmup < 1 or args.steps < 1:
        parser.error("--warmup and --steps take at least 1")
    return args


def read_tokens(pattern):
    """All tokens of the shards, one int64 tensor on the CPU."""
    shards = []
    for path in sorted(glob.glob(pattern)):
        with open(path, "rb") as file:
            words = torch.frombuffer(bytearray(file.read()), dtype=torch.int16, offset=HEADER_BYTES)
        shards.append(words.long() & 0xFFFF)  # uint16, which older torches lack
    if not shards:
        raise SystemExit(f"--shards: no file matches {pattern!r}; give a glob of token shards")
    return torch.cat(shards)


def make_batches(tokens, args):
    """Yields (inputs, targets), [B, T] each, on the device; starts again after the last sequence."""
    B, T = args.batch, args.length
    batches = (len(tokens) - 1) // (B * T)
    if batches == 0:
        raise SystemExit(f"--shards: {len(tokens)} tokens, but a batch takes {B * T + 1}; give more or a smaller batch")
    if args.device == "cuda":
        tokens = tokens.pin_memory()  # for asynchronous copies
    while True:
        for s in range(0, batches * B * T, B * T):
            yield tuple(tokens[s + shift: s + shift + B * T].view(B, T).to(args.device, non_blocking=True)
                        for shift in (0, 1))


def make_step(args):
    """A function of (inputs, targets, keep) that makes one update and returns the loss before it, a scalar tensor.

    keep: zero the gradients in place afterwards instead of setting them to None.
    """
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True  # for the matmuls that autocast leaves in fp32
    with torch.device(args.device):  # which also initializes the weights
        model = GPT2(parse_shape(MODELS.get(args.model, args.model)), args.vocabulary, args.length).to(args.device)
    optimizer = make_adamw(model, lr=3e-4)

    @torch.compile
    def forward(inputs, targets):
        with torch.autocast(args.device, torch.bfloat16):
            return model(inputs, targets)[1]

    def step(inputs, targets, keep):
        loss = forward(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keep)
        return loss.detach()

    return step


class Clock:
    """Times on the device, read after the last step: no step waits for the host."""

    def __init__(self, device):
        self.device, self.points = device, []

    def mark(self):
        if self.device == "cuda":
            self.points.append(torch.cuda.Event(enable_timing=True))
            self.points[-1].record()
        else:
            self.points.append(time.perf_counter())

    def milliseconds(self):
        """the times between consecutive marks"""
        wait(self.device)
        pairs = zip(self.points, self.points[1:])
        return [a.elapsed_time(b) if self.device == "cuda" else (b - a) * 1e3 for a, b in pairs]


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def percentile(values, fraction):
    """nearest rank"""
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


def measure(step, batches, args, keep):
    """Warms up and times one mode of gradients: times, peaks on the device, the last loss."""
    on_gpu = args.device == "cuda"
    if on_gpu:  # without the memory of the other mode
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(args.warmup):
        step(*next(batches), keep)
    clock = Clock(args.device)
    clock.mark()
    for _ in range(args.steps):
        loss = step(*next(batches), keep)
        clock.mark()
    times = clock.milliseconds()
    return {"median_ms": round(statistics.median(times), 3), "p10_ms": round(percentile(times, 0.1), 3),
            "p90_ms": round(percentile(times, 0.9), 3),
            "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
            "allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
            "last_loss": round(loss.item(), 5)}


def run(args):
    batches = make_batches(read_tokens(args.shards), args)
    step = make_step(args)
    modes = {"none": [False], "kept": [True], "both": [False, True]}[args.gradients]
    first_loss = step(*next(batches), modes[0])
    wait(args.device)
    first_step_s = time.perf_counter() - STARTED
    measured = {("kept_ms" if keep else "none_ms"): measure(step, batches, args, keep) for keep in modes}
    best = min(measured.values(), key=lambda mode: mode["median_ms"])
    result = {"program": "pytorch", "model": args.model, "batch": args.batch, "length": args.length,
              "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu", "steps": args.steps, **best,
              **{name: mode["median_ms"] for name, mode in measured.items()},
              "tokens_per_s": round(args.batch * args.length / best["median_ms"] * 1e3, 1),
              "first_step_s": round(first_step_s, 2), "first_loss": round(first_loss.item(), 5)}
    print(json.dumps({**result, "torch": torch.__version__}), flush=True)


def main():
    args = parse_arguments()
    try:
        run(args)
    except RuntimeError as error:  # torch's own class moves between releases; libraries raise this one
        if not any(words in str(error) for words in ("out of memory", "ALLOC_FAILED")):
            raise
        print(f"train_torch: out of memory: {error}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
