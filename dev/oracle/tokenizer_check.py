#!/usr/bin/env python3
"""Compares tokenizers in the forms in which GPT-2s are published with Hugging Face's transformers.

    build/py/bin/python3 dev/oracle/tokenizer_check.py DUMP_TOKENS FOLDER     FOLDER is made and must not exist

Each form is rebuilt small, from a vocabulary learned from the texts below: the files and their shape are the published
ones, the tokens are fewer. DUMP_TOKENS is build/test/dump_tokens. Ids of a prompt are compared with transformers' ids;
ids of a training text with those of split_special_tokens, where special tokens stay text. Prints a line for each form.
dev/test/test_tokenizer.c has the forms that are refused.
"""
import json
import os
import pathlib
import subprocess
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import tokenizers  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

GERMAN = "Der schöne Fluß fließt über die Brücke, und die Brücke überquert den Fluß. Größe, Maß und Übermaß! "
CHINESE = "今天天气很好，我们去公园散步。公园里的花很好看，天气也很好。今天我们很高兴。"
ARABIC = "ذهب الولد إلى المدرسة في الصباح، وعاد الولد من المدرسة في المساء. المدرسة كبيرة. "
ENGLISH = ("The cat sat on the mat, and the cats saw that the mat wasn't theirs.\n\n"
           "    def f(x):\n        return x + 1\n")
END = "<|endoftext|>"
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SPACES = [" " * n for n in range(31, 1, -1)] + ["\t" * n for n in range(9, 1, -1)]
BYTE_LEVEL = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)


def learn(text, size=400):
    """(vocab, merges) with ids in GPT-2's order, without end-of-text."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = BYTE_LEVEL
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, min_frequency=2, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator([text * 3], trainer)
    model = json.loads(bpe.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def write(folder, name, content, newline="\n"):
    if not isinstance(content, (str, bytes)):
        content = json.dumps(content, ensure_ascii=False)
    data = content if isinstance(content, bytes) else content.replace("\n", newline).encode()
    (folder / name).write_bytes(data)


def merges_text(merges):
    return "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)


def added(content, token_id, special, **more):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": not special, "special": special, **more}


def files(folder, vocab, merges, config=None, **more):
    """vocab.json and merges.txt; more: further files by name, with _ for the dot."""
    write(folder, "vocab.json", vocab)
    write(folder, "merges.txt", merges_text(merges))
    write(folder, "config.json", {"model_type": "gpt2", "vocab_size": len(vocab), **(config or {})})
    for name, content in more.items():
        write(folder, name + ".json", content)


def fast(folder, vocab, merges, added_tokens=(), pairs=False, model=None, **parts):
    """tokenizer.json; parts: its other parts."""
    listed = [list(pair) for pair in merges] if pairs else [" ".join(pair) for pair in merges]
    write(folder, "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added_tokens), "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "vocab": vocab, "merges": listed, **(model or {})}, **parts})
    write(folder, "config.json", {"model_type": "gpt2", "vocab_size": len(vocab)})


def with_end(vocab):
    return {**vocab, END: len(vocab)}


def shifted(vocab, first=ROBERTA):
    return {**{name: i for i, name in enumerate(first)}, **{name: i + len(first) for name, i in vocab.items()}}


def gpt2_medium(folder):
    vocab, merges = learn(ENGLISH)
    files(folder, with_end(vocab), merges)
    fast(folder, with_end(vocab), merges, [added(END, len(vocab), True, normalized=True)])


def distilgpt2(folder):
    vocab, merges = learn(ENGLISH)
    files(folder, with_end(vocab), merges, tokenizer_config={"model_max_length": 1024})


def cerebras(folder):
    vocab, merges = learn(ENGLISH)
    end = {"content": END, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    files(folder, with_end(vocab), merges, special_tokens_map={"bos_token": END, "eos_token": END, "unk_token": END},
          tokenizer_config={"tokenizer_class": "GPT2Tokenizer", "add_bos_token": False, "add_prefix_space": False,
                            "bos_token": {"__type": "AddedToken", **end}, "eos_token": END, "errors": "replace"})


def german(folder):
    vocab, merges = learn(GERMAN)
    vocab = shifted(vocab)
    files(folder, {**vocab, END: len(vocab)}, merges,
          tokenizer_config={"tokenizer_class": "GPT2Tokenizer", "additional_special_tokens": ROBERTA})


def chinese(folder):
    vocab, merges = learn(CHINESE, 340)
    fast(folder, with_end(vocab), merges, [added(END, len(vocab), True)], pairs=True, model={"type": "BPE"})


def arabic(folder):
    vocab, merges = learn(ARABIC)
    files(folder, {END: 0, **{name: i + 1 for name, i in vocab.items()}}, merges)


def roberta_order(folder):
    vocab, merges = learn(ENGLISH)
    files(folder, shifted(vocab), merges, tokenizer_config={
        "tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "pad_token": "<pad>", "added_tokens_decoder": {
            str(i): {key: value for key, value in added(name, i, True, lstrip=name == "<mask>").items() if key != "id"}
            for i, name in enumerate(ROBERTA)}})


def codegen(folder):
    vocab, merges = learn(ENGLISH)
    vocab = with_end(vocab)
    files(folder, vocab, merges, added_tokens={text: len(vocab) + i for i, text in enumerate(SPACES)})
    fast(folder, vocab, merges, [added(END, len(vocab) - 1, True)] +
         [added(text, len(vocab) + i, False) for i, text in enumerate(SPACES)])


def phi_1(folder):
    vocab, merges = learn(ENGLISH)
    vocab = with_end(vocab)
    files(folder, vocab, merges, added_tokens={text: len(vocab) + i for i, text in enumerate(SPACES)},
          tokenizer_config={"tokenizer_class": "CodeGenTokenizer", "add_prefix_space": False, "bos_token": END,
                            "eos_token": END, "unk_token": END})


def p50k_base(folder):
    """End-of-text in the middle of the merges, as in tiktoken: runs of spaces follow it."""
    vocab, merges = learn(ENGLISH)
    vocab = {name: i for i, name in enumerate(name for name, i in sorted(vocab.items(), key=lambda item: item[1]))}
    vocab[END] = len(vocab)
    for n in range(2, 24):
        if "Ġ" * n not in vocab:
            vocab["Ġ" * n] = len(vocab)
            merges.append(("Ġ" * (n - 1), "Ġ"))
    files(folder, vocab, merges)


def windows(folder):
    vocab, merges = learn(ENGLISH)
    files(folder, with_end(vocab), merges)
    write(folder, "merges.txt", merges_text(merges), "\r\n")


def no_last_newline(folder):
    vocab, merges = learn(ENGLISH)
    files(folder, with_end(vocab), merges)
    write(folder, "merges.txt", merges_text(merges)[:-1])


def chat_tokens(folder):
    vocab, merges = learn(ENGLISH)
    vocab = with_end(vocab)
    fast(folder, vocab, merges, [added(END, len(vocab) - 1, True), added("<|im_start|>", len(vocab), True),
                                 added("<|im_end|>", len(vocab) + 1, True), added("the cat", len(vocab) + 2, False)])


def split_pattern(folder):
    vocab, merges = learn(ENGLISH)
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    fast(folder, with_end(vocab), merges, [added(END, len(vocab), True)], pre_tokenizer={
        "type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]})


def two_ways(folder):
    """Two merges that make one token: merges are more than tokens."""
    vocab, merges = learn(ENGLISH)
    merges = merges + [("t", "he")] if ("t", "he") not in merges else merges
    vocab = dict(vocab)
    for left, right in merges:
        vocab.setdefault(left, len(vocab)), vocab.setdefault(right, len(vocab))
        vocab.setdefault(left + right, len(vocab))
    files(folder, with_end(vocab), merges)


FORMS = [gpt2_medium, distilgpt2, cerebras, german, chinese, arabic, roberta_order, codegen, phi_1, p50k_base, windows,
         no_last_newline, chat_tokens, split_pattern, two_ways]
TEXTS = [ENGLISH, GERMAN, CHINESE, ARABIC, "", "  a  b\n\n\n  c   ", "x" + END + "y <s></s>z  <mask> w<unk>",
         "<|im_start|>user\nthe cat<|im_end|>", "\t\t\tif x:\n" + " " * 40 + "y", "e\u0301 \u00a0 \u2028 😀 it's I'LL"]


def compare(program, folder, text, reference):
    done = subprocess.run([program, str(folder)], input=text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        return done.stderr.decode().strip()
    found = json.loads(done.stdout)
    for name, split in ("prompt", False), ("text", True):
        expected = reference(text, split_special_tokens=split)["input_ids"]
        if found[name] != expected:
            return f"{name} {text!r}: {found[name]}, expected {expected}"
    decoded = bytes.fromhex(found["decoded"]).decode()
    strips = "<mask>" in text and decoded.replace(" <mask>", "<mask>") == text.replace("  <mask>", "<mask>")
    if decoded != text and not strips:
        return f"{text!r} is decoded as {decoded!r}"
    return "" if found["end"] == reference.eos_token_id else f"end {found['end']}, expected {reference.eos_token_id}"


def check(program, folder):
    reference = AutoTokenizer.from_pretrained(str(folder))
    return next(filter(None, (compare(program, folder, text, reference) for text in TEXTS)), "")


def main():
    program, root = sys.argv[1], pathlib.Path(sys.argv[2])
    failed = 0
    for form in FORMS:
        folder = root / form.__name__
        folder.mkdir(parents=True)
        form(folder)
        trouble = check(program, folder)
        failed += bool(trouble)
        print(f"{form.__name__}: {trouble or 'the same ids'}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
