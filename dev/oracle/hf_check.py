#!/usr/bin/env python3
"""Checks that Hugging Face's GPT-2 and the trainer load each other's checkpoints as the same model.

    python3 dev/oracle/hf_check.py CHECKPOINT_FOLDER [TRAINER]            TRAINER: ./train_gpt2, built for fp32

Checks two folders: a checkpoint of the trainer, and a model with random weights that GPT2LMHeadModel.save_pretrained
writes. GPT2LMHeadModel.from_pretrained must find every tensor and no other tensor in both. Then it compares
  logits  with those of dev/oracle/gpt2.py on random tokens: the largest difference
  loss    with the trainer's validation loss (-e FOLDER) of random tokens: the difference
The same random model, saved by transformers in several files and by model_files.py as llm.c's file, must give the
trainer the very same loss. Exit status 1 if a difference is above 1e-4, or one of those losses is another.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as error:
    sys.exit(f"hf_check.py needs PyTorch and transformers ({error}): pip install torch transformers safetensors")

from gpt2 import GPT2, Shape, load_hf
from model_files import write_llmc

LIMIT = 1e-4
B, SEQUENCES = 4, 8  # of the tokens whose loss is compared


def open_hf(folder):
    model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    wrong = {key: list(names) for key, names in info.items() if names}
    if wrong:
        sys.exit(f"{folder}: GPT2LMHeadModel did not find exactly its own tensors: {wrong}")
    return model.eval()


def open_oracle(folder, config):
    tensors = {name.removeprefix("transformer."): x.float() for name, x in
               load_file(os.path.join(folder, "model.safetensors")).items()}
    model = GPT2(Shape(config.n_layer, config.n_head, config.n_embd), config.vocab_size, config.n_positions)
    load_hf(model, tensors)
    return model


@torch.no_grad()
def logits_difference(hf, folder):
    tokens = torch.randint(hf.config.vocab_size, (2, hf.config.n_positions))
    logits, _ = open_oracle(folder, hf.config)(tokens, tokens)
    return (hf(tokens).logits - logits).abs().max().item()


@torch.no_grad()
def hf_loss(hf, tokens, T):
    rows = tokens.unfold(0, T + 1, T).long()  # the last token of a row is the first of the next
    logits = hf(rows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def trainer_loss(trainer, folder, tokens, vocab, T):
    """the validation loss before the first step, from metrics.jsonl"""
    with tempfile.TemporaryDirectory() as scratch:
        data, run = os.path.join(scratch, "tokens.bin"), os.path.join(scratch, "run")
        with open(data, "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, len(tokens), 0 if vocab == 50257 else vocab, *[0] * 252))
            file.write(struct.pack(f"<{len(tokens)}H", *tokens.tolist()))
        command = [trainer, "-e", folder, "-i", data, "-j", data, "-b", B, "-t", T, "-d", B * T, "-x", 1, "-v", 1,
                   "-m", -1, "-s", 0, "-o", run]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{trainer} -e {folder} failed: {done.stderr.strip()}")
        with open(os.path.join(run, "metrics.jsonl")) as file:
            return next(line["val_loss"] for line in map(json.loads, file) if "val_loss" in line)


def loss_difference(hf, folder, trainer):
    T = min(hf.config.n_positions, 256)
    tokens = torch.randint(hf.config.vocab_size, (SEQUENCES * T + 1,))
    ours, theirs = trainer_loss(trainer, folder, tokens, hf.config.vocab_size, T), hf_loss(hf, tokens, T)
    return abs(ours - theirs), f"trainer {ours:.6f}, transformers {theirs:.6f}"


def check(name, folder, trainer):
    hf = open_hf(folder)
    c = hf.config
    print(f"{name}: {c.n_layer} layers, {c.n_head} heads, {c.n_embd} channels, {c.n_positions} positions, "
          f"{c.vocab_size} tokens")
    logits = logits_difference(hf, folder)
    loss, detail = loss_difference(hf, folder, trainer)
    print(f"  logits differ by {logits:.2g} at most\n  losses differ by {loss:.2g} ({detail})")
    return max(logits, loss)


def save_random_hf(folder):
    """Saves a model with every tensor far from its initial value: one left out, swapped or transposed is noticed."""
    config = GPT2Config(vocab_size=301, n_positions=40, n_embd=48, n_layer=3, n_head=3, bos_token_id=300,
                        eos_token_id=300)
    model = GPT2LMHeadModel(config)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder, safe_serialization=True)
    return model


def check_other_files(model, folder, trainer):
    """the largest difference of the trainer's loss between model.safetensors and other forms of the model"""
    c = model.config
    tokens = torch.randint(c.vocab_size, (SEQUENCES * c.n_positions + 1,))
    several, llmc = os.path.join(folder, "several"), os.path.join(folder, "model.bin")
    model.save_pretrained(several, safe_serialization=True, max_shard_size="50KB")
    write_llmc(folder, llmc, False)
    files = sum(name.endswith(".safetensors") for name in os.listdir(several))
    if files < 2:
        sys.exit(f"transformers saved {files} files, expected several")
    losses = [trainer_loss(trainer, path, tokens, c.vocab_size, c.n_positions) for path in (folder, several, llmc)]
    print(f"the same model in {files} files, and as llm.c's file\n  losses {losses}")
    return max(losses) - min(losses)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if not os.path.isdir(sys.argv[1]):
        sys.exit(f"hf_check.py: there is no folder {sys.argv[1]}; give a checkpoint, such as runs/mine/step_00000100")
    trainer = os.path.abspath(sys.argv[2] if len(sys.argv) == 3 else "train_gpt2")
    if not os.access(trainer, os.X_OK):
        sys.exit(f"hf_check.py: there is no program {trainer}; run make, or give the trainer's path after the folder")
    torch.manual_seed(1558)
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    worst = check("the trainer's checkpoint", sys.argv[1], trainer)
    with tempfile.TemporaryDirectory() as folder:
        model = save_random_hf(folder)
        worst = max(worst, check("a model saved by transformers", folder, trainer))
        other = check_other_files(model, folder, trainer)
    verdict = "the same" if worst <= LIMIT and other == 0 else "NOT THE SAME"
    print(f"worst difference {worst:.2g}, at most {LIMIT:g} is allowed; between files {other:g}: {verdict}")
    sys.exit(worst > LIMIT or other != 0)


if __name__ == "__main__":
    main()
