#!/usr/bin/env python3
"""Writes llmc/data/unicode_classes.h: which code points are letters, numbers and white space to GPT-2's pre-tokenizer.

    /usr/bin/python3 dev/data/unicode_classes.py > llmc/data/unicode_classes.h

Tests every code point with the `regex` module (Debian: python3-regex), which GPT-2 used: 806 ranges, 1 s.
"""
import regex

CLASSES = {1: regex.compile(r"\p{L}"), 2: regex.compile(r"\p{N}"), 3: regex.compile(r"\s")}  # of UnicodeClass
SURROGATES = range(0xD800, 0xE000)  # never in valid UTF-8

HEADER = """\
/*
Unicode's letters, numbers and white space. Generated: do not edit.
  /usr/bin/python3 dev/data/unicode_classes.py > llmc/data/unicode_classes.h     (python3-regex %s, Unicode 15)
defines: UnicodeClass, unicode_class
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE } UnicodeClass;

// `count` code points from `first` on. kind: a UnicodeClass, so 1 is a letter, 2 a number, 3 white space
static const struct {
    uint32_t first;
    uint16_t count;
    uint8_t kind;
} unicode_ranges[] = {
    // clang-format off
"""
FOOTER = """\
    // clang-format on
};

// \\p{L}, \\p{N}, \\s or none of them; by bisection. Anything that is not a code point is OTHER.
static inline UnicodeClass unicode_class(uint32_t code) {
    size_t low = 0, high = sizeof unicode_ranges / sizeof unicode_ranges[0];
    while (high - low > 1) {  // the range of `code`, if any, is in low..high-1
        size_t middle = (low + high) / 2;
        if (unicode_ranges[middle].first > code) {
            high = middle;
        } else {
            low = middle;
        }
    }
    // a code before the first range wraps around
    bool found = code - unicode_ranges[low].first < unicode_ranges[low].count;
    return found ? (UnicodeClass)unicode_ranges[low].kind : UNICODE_OTHER;
}
"""


def class_of(code):
    if code in SURROGATES:
        return None
    return next((kind for kind, pattern in CLASSES.items() if pattern.fullmatch(chr(code))), None)


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
    print(HEADER % regex.__version__, end="")
    line = "   "
    for first, count, kind in ranges():
        row = f" {{0x{first:X}, {count}, {kind}}},"
        if len(line) + len(row) > 120:
            print(line)
            line = "   "
        line += row
    print(line)
    print(FOOTER, end="")


main()
