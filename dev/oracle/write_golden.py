#!/usr/bin/env python3
"""Writes dev/test/golden/gpt2_tiny.safetensors: one tiny GPT-2, its loss, logits, gradients, ten steps of AdamW and of
Muon (torch.optim.Muon, from torch 2.9 on).

    python3 dev/oracle/write_golden.py

Computed in float64 from parameters that float32 holds exactly, then rounded to float32, so the results are exact to a
rounding. The shape tests odd sizes: T is below the longest context, and B, V and NH are odd.

  params.<name>  final.<name>  grads.<name>    before, after ten steps, and the first step's gradient before clipping
  tokens targets   [B, T] int32    row 1 begins like row 0; one row repeats a token next to itself; 0 and V-1 occur
  loss             [1]             mean cross entropy at params
  logits           [B, T, V]       at params
  losses           [10]            before each update
  grad_norms       [10]            before clipping; all above 1, so every step clips
  muon_losses, muon_final.<name>   of ten steps of Muon

Names and layouts are Hugging Face's (Conv1D matrices are [in, out]). A test must know two facts:
  - positions T and up of wpe have no gradient, but decay;
  - the key third of a c_attn.bias has gradient 0 in exact arithmetic, since softmax ignores a constant added to every
    score. In float32 the gradient is noise of about 5e-9, which AdamW normalizes, so final drifts: by 1e-3 of that
    third in ten steps, while every other tensor is right to 3e-7. train_gpt2 defines the gradient as 0.
"""
import os

import numpy as np
import torch

import model_files
from gpt2 import GPT2, MuonAndAdamW, Shape, hf_tensors, load_hf, make_adamw, train_step

SHAPE, V, MAX_T, B, T = Shape(L=2, NH=3, C=48), 67, 20, 3, 16
STEPS, LR, SEED = 10, 1e-3, 1558
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "golden", "gpt2_tiny.safetensors")


def random_parameters(model, random):
    """Normal 0.1 around 1 for LayerNorm weights and around 0 for all else: no gradient and no bias is vacuous."""
    for name, parameter in model.named_parameters():
        center = 1.0 if ".ln_" in "." + name and name.endswith("weight") else 0.0
        values = (center + 0.1 * random.standard_normal(parameter.shape)).astype(np.float32)
        parameter.data.copy_(torch.from_numpy(values))


def random_batch(random):
    """tokens and targets [B, T]: the target is the token that follows"""
    text = random.randint(0, V, size=(B, T + 1))
    text[1, : T // 2] = text[0, : T // 2]  # equal prefixes: two sequences add to the gradients of these rows of wte
    text[2, 4:7] = text[2, 3]
    text[0, 9], text[0, 10] = 0, V - 1
    text = torch.from_numpy(text)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def main():
    random = np.random.RandomState(SEED)  # numpy guarantees that the stream never changes
    model = GPT2(SHAPE, V, MAX_T).double()
    random_parameters(model, random)
    tokens, targets = random_batch(random)
    golden = {f"params.{name}": x for name, x in hf_tensors(model).items()}

    logits, loss = model(tokens, targets)
    loss.backward()
    golden.update({"logits": logits, "loss": loss.reshape(1)})
    golden.update({f"grads.{name}": x for name, x in hf_tensors(model, "grad").items()})
    model.zero_grad(set_to_none=True)

    optimizer = make_adamw(model, LR)
    losses, norms = zip(*(train_step(model, optimizer, tokens, targets) for _ in range(STEPS)))
    golden.update({"losses": torch.stack(losses), "grad_norms": torch.stack(norms)})
    golden.update({f"final.{name}": x for name, x in hf_tensors(model).items()})

    load_hf(model, {name.removeprefix("params."): x for name, x in golden.items() if name.startswith("params.")})
    optimizer = MuonAndAdamW(model, LR, products="float64")
    muon_losses, _ = zip(*(train_step(model, optimizer, tokens, targets) for _ in range(STEPS)))
    golden["muon_losses"] = torch.stack(muon_losses)
    golden.update({f"muon_final.{name}": x for name, x in hf_tensors(model).items()})

    golden = {name: x.float() for name, x in golden.items()}
    golden.update({"tokens": tokens.int(), "targets": targets.int()})
    types, tensors = {torch.float32: "F32", torch.int32: "I32"}, {}
    for name, x in sorted(golden.items()):
        entry = {"dtype": types[x.dtype], "shape": list(x.shape)}
        tensors[name] = entry, x.detach().contiguous().numpy().tobytes()
    model_files.write(PATH, tensors)
    print(f"losses {[round(x.item(), 4) for x in losses]}")
    print(f"grad norms {[round(x.item(), 3) for x in norms]}")
    print(f"{len(golden)} tensors, {os.path.getsize(PATH)} bytes: {os.path.normpath(PATH)}")


if __name__ == "__main__":
    main()
