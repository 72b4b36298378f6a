#!/usr/bin/env python3
"""Compares --eval with transformers, and with lm-eval if it is installed, on a small random GPT-2.

    python3 dev/oracle/eval_check.py FOLDER                FOLDER is made: a model, its tokenizer, texts and examples
    python3 dev/oracle/eval_check.py FOLDER CHECKPOINT     the same with a copy of a checkpoint, and lm-eval only

Needs torch, transformers and tokenizers from pip. lm-eval is `pip install lm_eval accelerate`. TRAIN_GPT2 names the
program. The texts are random words of README.md; the merges are dev/test/golden/gpt2_2500.bpe. lm-eval runs a task of
perplexity, and starts a text with the model's bos_token_id: a newline of a byte model, whose tokenizer has no such
token.
Prints a line for each number: this program's, the other's, and their relative difference. A difference above 2e-5
fails.
"""
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys

import bpe

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
try:
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"eval_check.py: Python has no module {error.name}; install torch, transformers and tokenizers with pip")

ROOT = pathlib.Path(__file__).resolve().parents[2]
MERGES = ROOT / "dev/test/golden/gpt2_2500.bpe"
TRAINER = os.path.realpath(os.environ.get("TRAIN_GPT2", ROOT / "train_gpt2"))
POSITIONS = 64
TOLERANCE = 2e-5
END = "<|endoftext|>"


# ---- the model and its tokenizer

def write_tokenizer(folder):
    merges = bpe.read_merges(MERGES)
    words = [*bpe.id_symbols(merges), END]
    model = tokenizers.models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, unk_token=END)
    fast.save_pretrained(folder)
    (folder / "merges.txt").write_bytes(MERGES.read_bytes())
    return fast, len(words)


def write_model(folder):
    tokenizer, vocab = write_tokenizer(folder)
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=vocab, n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=2,
                                     initializer_range=0.3, bos_token_id=vocab - 1, eos_token_id=vocab - 1)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    return model, tokenizer


# ---- texts and examples

def phrase(words, count):
    at = random.randrange(len(words) - count)
    return " ".join(words[at:at + count])


def write_lines(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return items


def hellaswag(words, i):
    endings = [phrase(words, random.choice([1, 3, 9])) for _ in range(4)]
    return {"ctx": phrase(words, random.choice([3, 10, 30, 80])), "endings": endings, "label": str(i % 4)}


def write_data(folder):
    random.seed(3)
    words = [word for word in (ROOT / "README.md").read_text(encoding="utf-8").split() if len(word) < 10]
    write_lines(folder / "hellaswag.jsonl", [hellaswag(words, i) for i in range(120)])
    ends = ["", "\n", " \u00e9\u2003x\x1c y"]
    texts = [phrase(words, count) + random.choice(ends) for count in [1, 2, 47, 60, 100, 300]]
    write_lines(folder / "documents.jsonl", [{"text": text} for text in texts])


# ---- results

def ours(folder, *flags):
    command = [TRAINER, "-e", str(folder), "--device", "cpu", "-b", "3", *map(str, flags)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {name: float(value) for name, value in (line.split(None, 1) for line in lines) if name != "note"}


class Comparison:
    failed = 0

    def line(self, name, found, expected):
        difference = abs(found - expected) / max(abs(expected), 1e-9)
        print(f"{name:34} {found:16.6f} {expected:16.6f}   {difference:.1e}")
        self.failed += difference > TOLERANCE


def nats(model, tokens, scored):
    """the sum of the losses of the last `scored` tokens"""
    tokens = tokens[-(POSITIONS + 1):]
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]])).logits[0, -scored:]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[-scored:]), reduction="sum").item()


def text_nats(model, tokens):
    """windows that do not overlap, after an end-of-text; the last one reaches back to a full context"""
    tokens, total = [model.config.eos_token_id, *tokens], 0.0
    for done in range(1, len(tokens), POSITIONS):
        end = min(done + POSITIONS, len(tokens))
        total += nats(model, tokens[:end], end - done)
    return total


def llmc_accuracy(model, tokenizer, examples):
    correct = 0
    for item in examples:
        means = []
        for ending in item["endings"]:
            before, after = tokenizer.encode(item["ctx"]), tokenizer.encode(" " + ending)
            means.append(nats(model, before + after, len(after)) / len(after))
        correct += means.index(min(means)) == int(item["label"])
    return correct / len(examples)


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def compare_with_transformers(folder, model, tokenizer, compare):
    (folder / "text.txt").write_text((ROOT / "doc/numerics.md").read_text(encoding="utf-8")[:6000], encoding="utf-8")
    text = (folder / "text.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text)
    expected, found = text_nats(model, tokens), ours(folder, "--eval", folder / "text.txt")
    compare.line("text loss", found["loss"], expected / len(tokens))
    compare.line("text bits_per_byte", found["bits_per_byte"], expected / math.log(2) / len(text.encode()))
    found = ours(folder, "--eval", folder / "hellaswag.jsonl")
    compare.line("hellaswag acc_llmc", found["acc_llmc"],
                 llmc_accuracy(model, tokenizer, read_lines(folder / "hellaswag.jsonl")))


def compare_with_lm_eval(folder, compare):
    import lm_eval
    import lm_eval.tasks
    tasks = folder / "tasks"
    tasks.mkdir(exist_ok=True)
    (tasks / "documents.yaml").write_text(
        "task: check_documents\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
        f"    test: {folder}/documents.jsonl\ntest_split: test\n"
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n  - metric: bits_per_byte\n")
    start = json.loads((folder / "config.json").read_text())["bos_token_id"]
    results = lm_eval.simple_evaluate(
        model="hf", batch_size=4,
        model_args={"pretrained": str(folder), "dtype": "float32", "device": "cpu", "prefix_token_id": start},
        tasks=["check_documents"], bootstrap_iters=0,
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False))["results"]
    expected = {metric.split(",")[0]: value for metric, value in results["check_documents"].items()}["bits_per_byte"]
    found = ours(folder, "--eval", folder / "documents.jsonl")["bits_per_byte"]
    compare.line("lm-eval documents bits_per_byte", found, expected)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder, compare = pathlib.Path(sys.argv[1]).resolve(), Comparison()
    torch.set_num_threads(2)
    if len(sys.argv) == 3:
        shutil.copytree(sys.argv[2], folder)
        write_data(folder)
    else:
        folder.mkdir(parents=True)
        model, tokenizer = write_model(folder)
        write_data(folder)
        compare_with_transformers(folder, model, tokenizer, compare)
    try:
        compare_with_lm_eval(folder, compare)
    except ModuleNotFoundError as error:
        print(f"without the module {error.name}: not compared with lm-eval")
    sys.exit(f"eval_check.py: {compare.failed} numbers differ" if compare.failed else 0)


if __name__ == "__main__":
    main()
