#!/usr/bin/env python3
"""Tokenizes with ./train_gpt2, tiktoken and tokenizers: the same ids on 100 MB of mixed text, and MB/s on one core.

    make bench-tokenizer                                   installs tiktoken and tokenizers from pip into build/py
    build/py/bin/python3 dev/bench/bench_tokenizer.py vocab.bpe english.txt [--megabytes 100] [--rounds 5]

The mixed text is made here from a seed: English from the file, Python's own sources, Chinese and Japanese characters,
emoji, numbers of other scripts, white space of all kinds. Its documents are lines of JSON.
Each time of train_gpt2 is that of the whole program, which reads files and writes shards. tiktoken and tokenizers
encode pieces of 64 KiB that are in memory. Programs run in turns. The ids of a shard are those of vocab.bpe.
"""
import argparse
import array
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import sysconfig
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import bpe  # noqa: E402

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
END_OF_TEXT = "<|endoftext|>"
PROGRAM = os.environ.get("TRAIN_GPT2", "./train_gpt2")


def token_bytes(merges):
    """The bytes of each id."""
    byte_of = {symbol: byte for byte, symbol in bpe.byte_symbols().items()}
    return [*(bytes(map(byte_of.get, token)) for token in bpe.id_symbols(merges)), END_OF_TEXT.encode()]


def mixed_documents(english, megabytes, seed=1):
    """Texts of 1 to 40 KB, together so many megabytes of UTF-8."""
    draw = random.Random(seed)
    sources = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    sources = [s for s in sources if "site-packages" not in s.parts]
    code = "\n".join(s.read_text(encoding="utf-8", errors="ignore") for s in sources[:600])
    numbers = [chr(c) for c in range(0x100, 0x20000) if chr(c).isnumeric()]
    spaces = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003", "\u2028", " \n ", "\u0085"]
    emoji = [chr(c) for c in range(0x1F300, 0x1F650)] + ["\u200d", "\ufe0f", "\U0001F3FD"]
    words = ["don't", "I'll", "we've", "they're", "'s", "'S", "I'M", "x=1;", "3.14", "e\u0301", "na\u00efve", "\u0639"]

    def cut(text):
        begin, length = draw.randrange(len(text)), draw.randrange(1000, 40000)
        return text[begin:begin + length]

    def drawn(alphabet, length):
        return "".join(draw.choices(alphabet, k=length))

    cjk = [chr(c) for c in [*range(0x4E00, 0x9FA5), *range(0x3041, 0x30FF)]] + ["\u3002", "\uff0c"] * 800
    kinds = [lambda: cut(english), lambda: cut(code), lambda: drawn(cjk, 3000), lambda: drawn(emoji, 1000),
             lambda: drawn(words + spaces + numbers, 2000), lambda: drawn([*words, *spaces, *cjk[:40], "9"], 4000)]
    size = 0
    while size < megabytes * 1e6:
        document = draw.choices(kinds, weights=[5, 4, 2, 1, 1, 1])[0]()
        size += len(document.encode())
        yield document


def tokenize(folder, vocab, text, name, *flags):
    """Runs the trainer with one thread; returns its shards' path and its seconds."""
    for old in folder.glob(f"{name}_*"):
        old.unlink()
    command = [PROGRAM, "-i", str(text), "--tokenizer", vocab, "--tokenize", str(folder / name), "--val-share", "0",
               *flags]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"bench_tokenizer: {' '.join(command)} failed: {done.stderr.strip()}")
    return folder / f"{name}_train_000001.bin", seconds


def shard_ids(path):
    ids = array.array("H", path.read_bytes()[1024:])
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def check_ids(folder, vocab, english, megabytes, encoding):
    """Compares the ids of all documents."""
    documents = list(mixed_documents(english, megabytes))
    path = folder / "mixed.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for i, document in enumerate(documents):
            file.write(json.dumps({"text": document}, ensure_ascii=i % 2 == 0) + "\n")
    shard, _ = tokenize(folder, vocab, path, "mixed")
    ids, at = shard_ids(shard), 0
    for number, document in enumerate(documents, 1):
        expected = [*encoding.encode_ordinary(document), encoding.eot_token]
        if ids[at:at + len(expected)].tolist() != expected:
            sys.exit(f"bench_tokenizer: document {number} of {path} has other ids than tiktoken's")
        at += len(expected)
    if at != len(ids):
        sys.exit(f"bench_tokenizer: {len(ids) - at} ids after the last document")
    size = sum(len(document.encode()) for document in documents)
    print(f"the ids of {len(documents)} documents, {size / 1e6:.1f} MB of mixed text, {at} ids: those of tiktoken")


def measure(folder, vocab, merges, english, rounds, encoding):
    """MB/s on one core. A text below 32 MB is repeated."""
    import tokenizers
    names = {name: i for i, name in enumerate(bpe.id_symbols(merges))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(names, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = english * -(-32_000_000 // len(english))
    path = folder / "english.txt"
    path.write_text(text, encoding="utf-8")
    pieces = [text[i:i + 65536] for i in range(0, len(text), 65536)]
    size = path.stat().st_size

    def timed(function):
        began = time.perf_counter()
        for piece in pieces:
            function(piece)
        return time.perf_counter() - began

    runs = {"train_gpt2": lambda: tokenize(folder, vocab, path, "english")[1],
            "tiktoken": lambda: timed(encoding.encode_ordinary),
            "tokenizers": lambda: timed(tokenizer.encode)}
    rates = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            rates[name].append(size / 1e6 / run())
    print(f"{size / 1e6:.1f} MB of English, one thread, {rounds} rounds in turns")
    for name, found in rates.items():
        print(f"  {name:12} {statistics.median(found):6.1f} MB/s  ({min(found):.1f} to {max(found):.1f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("merges", help="GPT-2's vocab.bpe")
    parser.add_argument("english", type=pathlib.Path, help="a text for the times")
    parser.add_argument("--megabytes", type=float, default=100, help="of mixed text (default 100)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/bench_tokenizer"))
    arguments = parser.parse_args()
    for path in (arguments.merges, arguments.english):
        if not os.path.isfile(path):
            sys.exit(f"bench_tokenizer: there is no {path}; give make bench-tokenizer MERGES=FILE, GPT-2's vocab.bpe, "
                     "and TEXT=FILE")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        import tiktoken
    except ModuleNotFoundError as error:
        sys.exit(f"bench_tokenizer: Python has no module {error.name}; run it with make bench-tokenizer")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    english = arguments.english.read_text(encoding="utf-8")
    merges = bpe.read_merges(arguments.merges)
    ranks = {token: i for i, token in enumerate(token_bytes(merges)[:-1])}
    encoding = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                                 special_tokens={END_OF_TEXT: len(ranks)})
    check_ids(arguments.folder, arguments.merges, english, arguments.megabytes, encoding)
    if arguments.rounds:
        measure(arguments.folder, arguments.merges, merges, english, arguments.rounds, encoding)


if __name__ == "__main__":
    main()
