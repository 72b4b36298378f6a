#!/usr/bin/env python3
"""GPT-2's tokenizer in plain Python, from its paper and its pattern: the oracle of llmc/data/tokenizer.h.

    python3 dev/oracle/bpe.py ../shared/data/vocab.bpe > dev/test/golden/bpe.txt
    head -n 2501 ../shared/data/vocab.bpe > dev/test/golden/gpt2_2500.bpe
    python3 dev/oracle/bpe.py dev/test/golden/gpt2_2500.bpe > dev/test/golden/bpe_2500.txt

The first command reads GPT-2's whole merges file, which is not in this repository. The file gpt2_2500.bpe in it has the
version line and the first 2500 merges. Writes a line for each text of TEXTS: the UTF-8 in hexadecimal ("-" if empty),
then the token ids. Bpe needs python3-regex, the module GPT-2 used. Merges by the list of pairs, in one left-to-right
pass for each pair, without a heap.
"""
import sys
from pathlib import Path

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

TEXTS = [
    "", "Hello world", " the", "a", " ", "\n", "hello  world", "trailing   ", "   leading", "a\n\n\nb",
    "a \n b\t\tc\r\n", "tabs\t\tand  spaces \t mixed", "I'm you're we've they'll he'd it's don't",
    "I'M YOU'RE 'S 'T don''t ''ll '", "'", " 's", "'relay 'very 'many 'dog 'llama", "rock 'n' roll's",
    "\u2019s don\u2019t", "0 1 12 123 1234 12345 3.14159 1,000,000", "x2y3 4z",
    "\u0661\u0662\u0663 \u00bd \u2167 \u2460 \u3007 \u00b2\u00b3", "!!!???...", "a_b-c+d=e",
    "#include <stdio.h>\nint main(void) { return 0; }\n", "caf\u00e9 na\u00efve \u00fcber \u00df \u00c5ngstr\u00f6m",
    "cafe\u0301 o\u0308 a\u030a\u0323", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u3053\u3093\u306b\u3061\u306f \u4e16\u754c\u3001\u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f600 \U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7",
    "\U00020000\U0002a6d6\U00031350 \U0001d400\U0001d7d8", "a\u180eb", "a\u0085b \u0085\u0085c", "\ufeffa \ufeffb",
    "a\u00a0b\u00a0\u00a0c", "a\u2003\u2003b\u2028c\u2029d\u3000e \u3000 f", "a\u200bb\u2060c\u00add",
    "a\u001cb\u001d\u001e\u001fc", "\x00\x01\x7f\x00\x00", " \x0b\x0cx \x0b", "  \u00a0 \u00e9",
    "\u0378\ue000\ufffd\U0010ffff", "\u1885\u1886 \u19da \u2e2f", "<|endoftext|>",
    "The<|endoftext|>end <|endoftext|>", " SolidGoldMagikarp", "antidisestablishmentarianism" * 3, "a" * 200,
    "=" * 90, " " * 70, "\n" * 9, "ab" * 50 + "0" * 50 + " " * 17 + "zq" * 20,
    "The quick brown fox jumps over the lazy dog.",
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n",
]


def byte_symbols():
    """{byte: character of the merges file}, in the order of the byte ids"""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + k) for k, byte in enumerate(others)}


def read_merges(path):
    """the pairs of a merges file"""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [tuple(line.split()) for line in lines if not line.startswith("#version")]


def id_symbols(merges):
    """the characters of each id, without end-of-text"""
    return [*byte_symbols().values(), *map("".join, merges)]


class Bpe:
    def __init__(self, path):
        import regex
        merges = read_merges(path)
        self.pretokens = regex.compile(PATTERN).findall
        self.symbol = byte_symbols()
        self.rank = {pair: i for i, pair in enumerate(merges)}
        self.id = {symbol: i for i, symbol in enumerate(id_symbols(merges))}

    def encode(self, text):
        return [token for pretoken in self.pretokens(text) for token in self.encode_pretoken(pretoken)]

    def encode_pretoken(self, pretoken):
        word = [self.symbol[byte] for byte in pretoken.encode("utf-8")]
        while pairs := self.rank.keys() & set(zip(word, word[1:])):
            word = self.merge(word, min(pairs, key=self.rank.get))
        return [self.id[symbol] for symbol in word]

    @staticmethod
    def merge(word, pair):
        merged, i = [], 0
        while i < len(word):
            step = 2 if tuple(word[i : i + 2]) == pair else 1
            merged.append("".join(word[i : i + step]))
            i += step
        return merged


def main():
    bpe = Bpe(sys.argv[1])
    for text in TEXTS:
        print(text.encode("utf-8").hex() or "-", *bpe.encode(text))


if __name__ == "__main__":
    main()
