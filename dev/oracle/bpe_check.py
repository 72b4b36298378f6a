#!/usr/bin/env python3
"""Learns a vocabulary with `train_gpt2 --train-bpe` and with Hugging Face's tokenizers, and compares the merges.

    build/py/bin/python3 dev/oracle/bpe_check.py my.txt 4096 FOLDER     FOLDER is made and must not exist

tokenizers learns from the whole text as one sequence, with a ByteLevel pre-tokenizer without a prefix space, all 256
bytes as its alphabet and a minimum frequency of 2. It counts end-of-text apart, so it is asked for one token less.
"""
import json
import os
import pathlib
import subprocess
import sys

import tokenizers


def main():
    text, size, folder = pathlib.Path(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    subprocess.run([os.environ.get("TRAIN_GPT2", "./train_gpt2"), "--train-bpe", str(size), "-i", str(text), "-o",
                    str(folder)], check=True)
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    bpe.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size - 1, min_frequency=2, show_progress=False,
                                             initial_alphabet=byte_level.alphabet())
    with text.open(encoding="utf-8", newline="") as file:
        bpe.train_from_iterator([file.read()], trainer)
    bpe.add_special_tokens(["<|endoftext|>"])
    ours = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merges = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    theirs = [" ".join(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
    different = [i for i, (a, b) in enumerate(zip(merges, theirs)) if a != b]
    if different or len(merges) != len(theirs) or ours != bpe.get_vocab():
        at = different[0] if different else min(len(merges), len(theirs))
        sys.exit(f"bpe_check: {len(merges)} and {len(theirs)} merges; merge {at} is '{merges[at:at + 1]}' and "
                 f"'{theirs[at:at + 1]}'")
    print(f"the {len(merges)} merges and {len(ours)} ids are those of tokenizers {tokenizers.__version__}")


if __name__ == "__main__":
    main()
