#!/usr/bin/env python3
"""Writes llmc/data/unicode_classes.h: which code points are letters, numbers and white space to GPT-2's pre-tokenizer.

    pip install --target build/unicode unicodedata2==16.0.0
    PYTHONPATH=build/unicode python3 dev/data/unicode_classes.py > llmc/data/unicode_classes.h

Unicode 16, as in tiktoken 0.14 and Hugging Face's tokenizers 0.23: dev/test/test_tokenize.sh compares every code point
with tokenizers. In another version, letters and numbers that Unicode has added would be cut differently.
"""
import sys
import textwrap

import unicodedata2

VERSION = "16.0.0"
CONTROLS = [*range(9, 14), 0x85]  # the white space outside of the categories Zs, Zl and Zp

HEADER = """\
/*
Unicode's letters, numbers and white space. Generated: do not edit.
  dev/data/unicode_classes.py > llmc/data/unicode_classes.h     (Unicode %s)
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE } UnicodeClass;

// Each range as two numbers: the first code point, and how many.
// clang-format off
"""
FOOTER = """\
// clang-format on

// by bisection
static inline bool unicode_has(const uint32_t *ranges, size_t numbers, uint32_t code) {
    size_t low = 0, high = numbers / 2;
    while (high - low > 1) {  // the range of `code`, if any, is in low..high-1
        size_t middle = (low + high) / 2;
        if (ranges[2 * middle] > code) {
            high = middle;
        } else {
            low = middle;
        }
    }
    return code - ranges[2 * low] < ranges[2 * low + 1];  // a code before the first range wraps around
}
#define UNICODE_HAS(ranges, code) unicode_has(ranges, sizeof(ranges) / sizeof *(ranges), code)

// \\p{L}, \\p{N}, \\s or none of them. Anything that is not a code point is OTHER.
static inline UnicodeClass unicode_class(uint32_t code) {
    if (UNICODE_HAS(unicode_letters, code)) { return UNICODE_LETTER; }
    if (UNICODE_HAS(unicode_numbers, code)) { return UNICODE_NUMBER; }
    return UNICODE_HAS(unicode_spaces, code) ? UNICODE_SPACE : UNICODE_OTHER;
}
"""


def class_of(code):
    category = unicodedata2.category(chr(code))  # Cs, and so no class, of a surrogate
    if code in CONTROLS:
        return "spaces"
    return {"L": "letters", "N": "numbers", "Z": "spaces"}.get(category[0])


def ranges():
    """(first, count, class) of each longest range of code points of one class"""
    first, current = 0, None
    for code in range(0x110001):
        kind = class_of(code) if code < 0x110000 else None
        if kind != current:
            if current:
                yield first, code - first, current
            first, current = code, kind


def main():
    if unicodedata2.unidata_version != VERSION:
        sys.exit(f"unicode_classes.py: found Unicode {unicodedata2.unidata_version}, expected {VERSION}; install "
                 f"unicodedata2=={VERSION}")
    print(HEADER % VERSION, end="")
    all_ranges = list(ranges())
    for kind in ("letters", "numbers", "spaces"):
        print(f"static const uint32_t unicode_{kind}[] = {{")
        rows = [f"{first},_{count}," for first, count, of_kind in all_ranges if of_kind == kind]
        lines = textwrap.fill(" ".join(rows), 120, initial_indent="    ", subsequent_indent="    ")
        print(lines.replace("_", " "))
        print("};")
    print(FOOTER, end="")


main()
