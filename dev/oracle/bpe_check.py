#!/usr/bin/env python3
"""Learns vocabularies with `train_gpt2 --train-bpe` and with Hugging Face's tokenizers, and compares the merges.

    build/py/bin/python3 dev/oracle/bpe_check.py my.txt 4096 FOLDER     FOLDER is made and must not exist

Both learn from the whole text as one sequence, with a ByteLevel pre-tokenizer without a prefix space, all 256 bytes as
the alphabet and a minimum frequency of 2. tokenizers counts end-of-text apart, so it is asked for one token less.
ByteLevelBPETokenizer.train(files) cuts a text behind each newline. It is compared with --train-bpe on the lines as
documents.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

import tokenizers


def learn(data, size, folder):
    """(merges, vocabulary) of --train-bpe"""
    subprocess.run([os.environ.get("TRAIN_GPT2", "./train_gpt2"), "--train-bpe", str(size), "-i", str(data), "-o",
                    str(folder)], check=True)
    merges = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    return merges, json.loads((folder / "vocab.json").read_text(encoding="utf-8"))


def compare(what, ours, bpe):
    bpe.add_special_tokens(["<|endoftext|>"])
    merges, vocab = ours
    theirs = [" ".join(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
    different = [i for i, (a, b) in enumerate(zip(merges, theirs)) if a != b]
    if different or len(merges) != len(theirs) or vocab != bpe.get_vocab():
        at = different[0] if different else min(len(merges), len(theirs))
        sys.exit(f"bpe_check: {what}: {len(merges)} and {len(theirs)} merges; merge {at} is '{merges[at:at + 1]}' and "
                 f"'{theirs[at:at + 1]}'")
    print(f"{what}: the {len(merges)} merges and {len(vocab)} ids are those of tokenizers {tokenizers.__version__}")


def main():
    path, size, folder = pathlib.Path(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    with path.open(encoding="utf-8", newline="") as file:
        text = file.read()
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    bpe.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size - 1, min_frequency=2, show_progress=False,
                                             initial_alphabet=byte_level.alphabet())
    bpe.train_from_iterator([text], trainer)
    compare("whole", learn(path, size, folder), bpe)
    lines = folder / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": line}) + "\n" for line in re.findall(r"[^\n]*\n|[^\n]+", text)))
    by_line = tokenizers.ByteLevelBPETokenizer()
    by_line.train([str(path)], vocab_size=size - 1, min_frequency=2, show_progress=False, special_tokens=[])
    compare("train(files)", learn(lines, size, folder / "lines"), by_line)


if __name__ == "__main__":
    main()
