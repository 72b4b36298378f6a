#!/usr/bin/env python3
"""Trains the PyTorch model from another trainer's initial weights on that trainer's batches, to compare the losses.

    python3 dev/oracle/converge.py --init init.safetensors --batches train.i32 --val val.i32

20 steps of Muon, and how far the losses and weights of train_gpt2 are from PyTorch's:

    flags='-i my.txt -e l4h4c128 -b 12 -t 64 -x 20 -l 1e-3 -u 5 -q 0.1 -c 0.1 -m 1 -v 20 -s 0 --optimizer muon'
    build/bench/dump_run dump $flags && ./train_gpt2 $flags -n 20 -o run
    python3 dev/oracle/converge.py --init dump/step_00000000/model.safetensors --batches dump/train.i32 \
        --steps 20 --warmup 5 --optimizer muon_fp32 --run run

nanoGPT's CPU preset: 4 layers, 4 heads, 128 channels, T 64, B 12, bytes as tokens. 2000 steps see 1.5 M tokens
(2000 * 12 * 64); at 0.84 M parameters that is 6 N D = 7.7 TFLOP, about a minute on two cores.

  --batches  int32 little-endian [steps][B][T+1]: tokens are the first T of each row, targets the last T
  --val      int32 little-endian [batches][B][T+1], after the last step; val_loss is the mean over batches
  --losses   a file for the loss before each update, one line a step, in the format of the trainer's metrics.jsonl
  --init     safetensors with Hugging Face's names, which gives V and the longest context
  lr of a step: lr (step + 1) / warmup before `warmup`, then a cosine from lr to 0.1 lr at `steps`

Betas, weight decay and the clipped norm are the defaults of gpt2.py; the preset's beta2 is 0.99.
"""
import argparse
import json
import math
import os

import numpy as np
import torch

import model_files
from gpt2 import GPT2, MuonAndAdamW, hf_tensors, load_hf, make_adamw, parse_shape, train_step


def parse_arguments():
    parser = argparse.ArgumentParser(description="trains the PyTorch model on dumped batches")
    parser.add_argument("--batches", required=True, help="int32 file [steps][B][T+1]")
    parser.add_argument("--val", help="int32 file [batches][B][T+1]")
    parser.add_argument("--init", required=True, help="safetensors file with Hugging Face's names")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--shape", default="l4h4c128")
    parser.add_argument("--B", type=int, default=12)
    parser.add_argument("--T", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "muon", "muon_fp32"],
                        help="muon: torch.optim.Muon, with products in bf16; muon_fp32: its code in float32")
    parser.add_argument("--run", help="folder of the other trainer's run, to compare losses and final weights")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16; parameters stay float32")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--losses", help="file to write every step's loss to")
    return parser.parse_args()


def read_batches(path, B, T):
    """[batches, B, T+1] of a raw int32 file"""
    numbers = np.fromfile(path, dtype="<i4")
    if numbers.size == 0 or numbers.size % (B * (T + 1)):
        raise SystemExit(f"{path}: found {numbers.size} tokens, expected a multiple of B * (T + 1) = {B * (T + 1)}")
    return torch.from_numpy(numbers.reshape(-1, B, T + 1))


def split(batch, device):
    """tokens and targets [B, T] of a batch [B, T+1]"""
    batch = batch.long().to(device)
    return batch[:, :-1], batch[:, 1:]


def learning_rate(args, step):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup) / (args.steps - args.warmup)
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def read_tensors(path):
    """{name: float32 tensor} of a safetensors file"""
    return {name: torch.frombuffer(bytearray(model_files.words(entry, data).tobytes()), dtype=torch.float32)
            .reshape(entry["shape"]) for name, (entry, data) in model_files.read(path).items()}


def weight_errors(model, other):
    """{name: ||ours - other's|| / ||other's||} of every tensor that is not zero"""
    ours = hf_tensors(model)
    return {name: ((ours[name] - tensor).norm() / tensor.norm()).item()
            for name, tensor in other.items() if tensor.norm() > 0}


def main():
    args = parse_arguments()
    init = read_tensors(args.init)
    batches = read_batches(args.batches, args.B, args.T)
    if len(batches) < args.steps:
        raise SystemExit(f"{args.batches}: found {len(batches)} batches, expected --steps {args.steps}")
    model = GPT2(parse_shape(args.shape), V=len(init["wte.weight"]), max_T=len(init["wpe.weight"]))
    load_hf(model, init)
    model.to(args.device)
    optimizer = (make_adamw(model, args.lr) if args.optimizer == "adamw" else
                 MuonAndAdamW(model, args.lr, products="float32" if args.optimizer == "muon_fp32" else "bfloat16"))
    trained = torch.compile(model) if args.compile else model

    losses = []
    with open(args.losses or os.devnull, "w", buffering=1) as lines:  # line by line, for killed runs
        for step in range(args.steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(args, step)
            loss, _ = train_step(trained, optimizer, *split(batches[step], args.device), bf16=args.bf16)
            losses.append(loss.item())
            print(json.dumps({"step": step + 1, "loss": losses[-1]}, separators=(",", ":")), file=lines)
    result = {"program": "pytorch", "steps": args.steps, "train_losses_last": float(np.mean(losses[-50:]))}
    if args.val:
        with torch.no_grad():
            val_losses = [model(*split(batch, args.device))[1].item()
                          for batch in read_batches(args.val, args.B, args.T)]
        result["val_loss"] = float(np.mean(val_losses))
    if args.run:
        with open(f"{args.run}/metrics.jsonl") as metrics:
            others = [step["loss"] for step in map(json.loads, metrics) if "loss" in step]
        weights = read_tensors(f"{args.run}/step_{args.steps:08}/model.safetensors")
        result["losses_off"] = max(abs(a / b - 1) for a, b in zip(losses, others, strict=True))
        result["weights_off"] = max(weight_errors(model, weights).values())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
