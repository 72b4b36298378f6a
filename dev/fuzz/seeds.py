#!/usr/bin/env python3
"""Writes small valid inputs of every fuzz target:   dev/fuzz/seeds.py FOLDER

The inputs go to FOLDER/TARGET.
The formats are those of the headers in llmc/checkpoint and llmc/data; sizes are the smallest that reach every
branch."""
import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
import bpe  # noqa: E402

SEPARATOR = b"\n~~~\n"
L, NH, C, T, V = 1, 1, 2, 3, 5  # a model
CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": L, "n_head": NH, "n_embd": C,
          "n_positions": T, "vocab_size": V, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05}


def shapes(vocab):
    """name and (in, out) shape of each tensor, as in Hugging Face's files"""
    block = [("ln_1.weight", [C]), ("ln_1.bias", [C]),
             ("attn.c_attn.weight", [C, 3 * C]), ("attn.c_attn.bias", [3 * C]),
             ("attn.c_proj.weight", [C, C]), ("attn.c_proj.bias", [C]), ("ln_2.weight", [C]), ("ln_2.bias", [C]),
             ("mlp.c_fc.weight", [C, 4 * C]), ("mlp.c_fc.bias", [4 * C]), ("mlp.c_proj.weight", [4 * C, C]),
             ("mlp.c_proj.bias", [C])]
    return [("wte.weight", [vocab, C]), ("wpe.weight", [T, C])] + [("h.0." + n, s) for n, s in block] + [
        ("ln_f.weight", [C]), ("ln_f.bias", [C])]


def safetensors(tensors, dtype="BF16", size=2, fill=1):
    header, at = {}, 0
    for name, shape in tensors:
        count = size
        for n in shape:
            count *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + bytes(fill * (i % 64) for i in range(at))


def header(*numbers):
    return struct.pack("<256i", *numbers, *[0] * (256 - len(numbers)))


def words(*numbers):
    return struct.pack(f"<{len(numbers)}H", *numbers)


def lines(*objects):
    return b"".join(json.dumps(o).encode() + b"\n" for o in objects)


def llmc(version, size):
    padded = 128
    elements = sum(a * (s[1] if len(s) > 1 else 1) for a, s in ((s[0], s) for _, s in shapes(padded)))
    return header(20240326, version, T, V, L, NH, C, padded) + bytes(elements * size)


def models():
    config, tensors = json.dumps(CONFIG).encode(), shapes(V)
    weight_map = {name: "a.safetensors" if i < 8 else "b.safetensors" for i, (name, _) in enumerate(tensors)}
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}).encode()
    tied = safetensors([("transformer." + n, s) for n, s in tensors] + [("lm_head.weight", [V, C])], fill=0)
    yield b"0" + config + SEPARATOR + safetensors(tensors, "F32", 4)
    yield b"0" + config + SEPARATOR + tied
    yield b"0" + SEPARATOR + safetensors([("wte.weight", [V, 64]), ("wpe.weight", [T, 64])], "F16", 2)
    yield b"1" + SEPARATOR.join([index, config, safetensors(tensors[:8]), safetensors(tensors[8:])])


def tokenizer_files():
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "w")]
    text = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)
    tokens = [bytes([b]) for b in bpe.byte_symbols()] + [b"he", b"ll", b"hell", b"hello", b" w"]
    packed = b"".join(bytes([len(t)]) + t for t in tokens + [b"<|endoftext|>"])
    binary = header(20240328, 2, len(tokens) + 1, len(tokens)) + packed
    vocab = {s: i for i, s in enumerate([*bpe.id_symbols(merges), "<|endoftext|>"])}
    splitter = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    pairs, strings = [list(m) for m in merges], [" ".join(m) for m in merges]
    fields = {"version": "1.0", "normalizer": None, "pre_tokenizer": splitter}
    of_bytes = {"type": "BPE", "byte_fallback": True, "vocab": {f"<0x{b:02X}>": b for b in range(256)}, "merges": []}
    small = {"!": 0, '"': 1}
    return {"merges": [text.encode() + SEPARATOR + "hello world 1984 \u00e9\u4e2d'll\r\n\t\xff".encode("utf-8"),
                       binary + SEPARATOR + b"hello  hell\0\xff"],
            "tokenizer_json": [json.dumps(x, ensure_ascii=False).encode() for x in (
                {**fields, "model": {"type": "BPE", "vocab": vocab, "merges": pairs}},
                {**fields, "model": {"type": "BPE", "vocab": small, "merges": strings}},
                {"version": "1.0", "model": of_bytes}, small)]}


def hellaswag():
    examples = [(1, [[7, 8, 9], [1], [2, 3], [4], [5]]), (0, [[5], [6], [7], [8, 9], [1]])]
    blob = b""
    for i, (label, (context, *endings)) in enumerate(examples):
        body = words(label, len(endings)) + b"".join(words(len(x), *x) for x in [context, *endings])
        blob += words(65535, 6 + len(body), i) + body
    yield b"0" + header(20240522, 1, len(examples), 64) + blob
    example = {"ctx": "A man", "endings": ["eats.", "sleeps [x]", "a", "b"], "label": 1}
    yield b"1" + lines(example, {**example, "label": "2"})


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return f"{crc ^ 0xFFFFFFFF:08x}"


def manifests():
    content = {"a.bin": bytes(range(40)), "b.txt": b"text\n"}
    good = {name: {"bytes": len(data), "crc32c": crc32c(data)} for name, data in content.items()}
    hostile = ["../a.bin", ".", "", "/etc/passwd", "folder", "folder/../a.bin", "pipe", "none", "a.bin\x00",
               "manifest.json"]

    def seed(kind, text):
        return b"~~~\n".join([kind + text.encode() + b"\n", content["a.bin"] + b"\n", content["b.txt"]])
    yield seed(b"0", json.dumps({"files": good, "crc32c": "of an older version"}))
    yield seed(b"1", json.dumps(good))
    for name in hostile:
        yield seed(b"1", json.dumps({name: good["a.bin"]}))
    for entry in ({"bytes": 1e308, "crc32c": "00000000"}, {"bytes": "40"}, 1):
        yield seed(b"1", json.dumps({"a.bin": entry}))
    one = json.dumps(good["b.txt"])
    yield seed(b"1", f'{{"b.txt":{one},"b.txt":{{"bytes":5,"crc32c":"00000000"}}}}')


def data_states():
    state = {"position": 12, "sequence_length": 4, "seed": 1, "training_data": "0123456789abcdef",
             "training_tokens": 47, "validation_held_out": True}
    for change in ({}, {"position": 2**53}, {"position": -1}, {"training_data": "x"}, {"training_data": 5},
                   {"validation_held_out": False, "validation_data": "fedcba9876543210"},
                   {"validation_held_out": False, "validation_data": "x"}, {"validation_held_out": False}):
        yield b"3" + json.dumps({**state, **change}).encode()


def states():
    guard = ["0x1p+1", "-0x1.8p-3"]
    yield b"0" + json.dumps({"step": 3, "max_steps": 9, "position": 12, "sequence_length": 4, "seed": 1,
                             "training_data": "0123456789abcdef", "training_tokens": 100, "validation_held_out": True,
                             "loss_guard": guard, "norm_guard": []}).encode()
    yield from data_states()
    yield b"0" + b'{"step":' + b'[{"":' * 3000  # deeper than cJSON goes
    yield b"1" + json.dumps({"input": "a.txt", "model": "l1h1c2", "micro-batch": 2, "sequence-length": 4, "seed": 5,
                             "batch-tokens": 8, "learning-rate": 0.001, "schedule": "cosine", "recompute": 2,
                             "zero-stage": 1, "keep-best": ""}).encode()
    yield b"2" + lines({"step": 1, "loss": 2.5}, {"step": 3, "val_loss": 1.5}, {"step": 4, "val_loss": None},
                       {"step": 3, "hellaswag": 0.25}).replace(b" ", b"") + b"s:3 tel:2.5\n{\"step\":5"


def inputs():
    st = [("a", [2, 3]), ("b", []), ("c", [0])]
    return {
        "safetensors": [safetensors(st, d, n) for d, n in (("F32", 4), ("BF16", 2), ("F64", 8), ("U8", 1), ("I8", 1))],
        "model": list(models()),
        "llmc": [b"0" + llmc(3, 4), b"1" + llmc(5, 2)],
        "shards": [b"0" + bytes([3, 1]) + header(20240520, 1, 24, 300) + words(*range(24)),
                   b"1" + bytes([3, 1]) + b"A text of bytes, long enough for some sequences.\n"],
        **tokenizer_files(),
        "hellaswag": list(hellaswag()),
        "examples": [lines({"prompt": "2+2=", "completion": "4"}, {"text": "A text of more than T tokens, in pieces"},
                           {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                                         {"role": "assistant", "content": "a\nb"}]})],
        "corpus": [b"0" + lines({"text": "one"}, {"text": "two\u0000\ud83d\ude00", "id": 1}), b"10one\r\ntwo\n",
                   b"1\x1f" + b"a line of a longer text \xc3\xa9\n" * 99,
                   b"10one\n<|endoftext|>\ntwo\r\n<|endoftext|>\r\nthree <|endoftext|>\n<|endoftext|>"],
        "caches": [b"0GPU\t3\t" + b"0a" * 64 + b"\t12.50\n", b"1GPU\t 1 0 2\nGPU\tfailed\n"],
        "manifest": list(manifests()),
        "state": list(states()),
        "flags": [b"-i\na.txt\n-e\nl6h6c384\n-b\n4\n-t\n64\n-d\n1024\n-l\n3e-4\n-k\nlinear\n--plan=json",
                  b"-i\nx\n-e\ngpt3:c768\n-o\nd\n-n\n5\n-pi\ntcp\n-ps\n[::1]:29500\n-pn\n2\n-pr\n1\n-z\n1\n-tp\n2",
                  b"--help\nrecompute", b"--generate\n4\n-e\nd12\n--prompt=a\n--samples\n2", b"--micro-batc\n4"],
    }


for target, files in inputs().items():
    folder = Path(sys.argv[1]) / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(files):
        (folder / f"seed_{number}").write_bytes(data)
