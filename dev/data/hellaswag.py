#!/usr/bin/python3
"""Writes HellaSwag's validation set (10042 examples) in llm.c's eval format, which `train_gpt2 -h 1` reads.

    /usr/bin/python3 dev/data/hellaswag.py vocab.bpe                          downloads hellaswag_val.jsonl (12 MB)
    /usr/bin/python3 dev/data/hellaswag.py vocab.bpe hellaswag_val.jsonl      reads a downloaded file
    /usr/bin/python3 dev/data/hellaswag.py vocab.bpe some.jsonl -o some.bin

vocab.bpe is GPT-2's merges file; Hugging Face's merges.txt is the same. The default result is
dev/data/hellaswag/hellaswag_val.bin in the repository, where a trainer started in the repository looks for it.
llmc/files/hellaswag.h describes the format. A line of the .jsonl has "ctx", four "endings" and "label". A completion is
a space and an ending, tokenized apart from the context. Tokenizes with dev/oracle/bpe.py, which needs python3-regex.
"""
import argparse
import functools
import json
import os
import pathlib
import struct
import sys
import urllib.request

URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "hellaswag"
MAGIC, VERSION, START, CHOICES = 20240522, 1, 65535, 4


def write_aside(path, content):
    """writes under another name, then renames: the file exists whole or not at all"""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def download(path):
    try:
        with urllib.request.urlopen(URL, timeout=60) as answer:
            content = answer.read()
    except OSError as error:
        sys.exit(f"hellaswag.py: could not download {URL} ({error}); download it, and name it after the merges")
    write_aside(path, content)


def load_tokenizer(path):
    sys.path.insert(0, str(HERE.parent / "oracle"))
    try:
        import bpe
    except ModuleNotFoundError as error:
        sys.exit(f"hellaswag.py: Python has no module {error.name}; install python3-regex and use /usr/bin/python3")
    tokenizer = bpe.Bpe(path)
    tokenizer.encode_pretoken = functools.cache(tokenizer.encode_pretoken)  # most pre-tokens occur often
    return tokenizer


def read_example(line):
    """context, completions, label"""
    item = json.loads(line)
    context, endings, label = item["ctx"], item["endings"], item["label"]
    if len(endings) != CHOICES or label not in range(CHOICES):
        raise ValueError(f"{len(endings)} endings and label {label}, expected 4 and a label of 0 to 3")
    return context, [" " + ending for ending in endings], label


def encode_example(index, line, tokenizer):
    context, completions, label = read_example(line)
    lists = []
    for text in [context, *completions]:
        tokens = tokenizer.encode(text)
        if not tokens:
            raise ValueError("a context without text")
        lists += [len(tokens), *tokens]
    num_bytes = 2 * (5 + len(lists))
    if num_bytes >= 1 << 16:
        raise ValueError(f"its tokens take {num_bytes} bytes, the format allows 65535")
    words = [START, num_bytes, index, label, CHOICES, *lists]
    return struct.pack(f"<{len(words)}H", *words)


def encode_file(path, tokenizer):
    examples = []
    with open(path, encoding="utf-8") as file:
        for index, line in enumerate(file):
            try:
                examples.append(encode_example(index, line, tokenizer))
            except (KeyError, TypeError, ValueError, struct.error) as error:
                sys.exit(f"hellaswag.py: line {index + 1} of {path} is no example of HellaSwag: {error}")
    if not examples:
        sys.exit(f"hellaswag.py: {path} is empty; give HellaSwag's hellaswag_val.jsonl")
    header = [MAGIC, VERSION, len(examples), max(map(len, examples))]
    return struct.pack("<256i", *header, *[0] * 252) + b"".join(examples), len(examples)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("merges", type=pathlib.Path, help="GPT-2's merges file")
    parser.add_argument("jsonl", type=pathlib.Path, nargs="?", help="hellaswag_val.jsonl (default: download it)")
    parser.add_argument("-o", type=pathlib.Path, default=FOLDER / "hellaswag_val.bin", help="the file to write")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    jsonl = arguments.jsonl or FOLDER / "hellaswag_val.jsonl"
    try:
        tokenizer = load_tokenizer(arguments.merges)
        if not arguments.jsonl and not jsonl.exists():
            download(jsonl)
        content, count = encode_file(jsonl, tokenizer)
        write_aside(arguments.o, content)
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"hellaswag.py: {error}")
    print(f"{arguments.o}: {count} examples, {len(content)} bytes")


if __name__ == "__main__":
    main()
