/*
The texts that lm-evaluation-harness makes of HellaSwag's before it scores them.
defines: text_without_space, hellaswag_clean, hellaswag_context
*/
#pragma once
#include "llmc/data/tokenizer.h"
#include <locale.h>
#include <wctype.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

// the bytes of a text (bytes) without the white space at its end
static inline size_t text_without_space(const char *text, size_t bytes) {
    size_t end = 0, length;
    for (size_t at = 0; at < bytes; at += length) {
        if (tokenizer_class(text + at, bytes - at, &length) != UNICODE_SPACE) { end = at + length; }
    }
    return end;
}

// Replaces `from` by `to`, which is shorter, from left to right.
static inline void text_replace(char *text, const char *from, const char *to) {
    char *end = text;
    for (size_t width = strlen(from); *text;) {
        if (strncmp(text, from, width) == 0) {
            end = stpcpy(end, to);
            text += width;
        } else {
            *end++ = *text++;
        }
    }
    *end = 0;
}

// Removes each [ with the next ] in the same line.
static inline void text_remove_brackets(char *text) {
    char *end = text;
    while (*text) {
        size_t inside = *text == '[' ? strcspn(text, "]\n") : 0;
        if (inside > 0 && text[inside] == ']') {
            text += inside + 1;
        } else {
            *end++ = *text++;
        }
    }
    *end = 0;
}

// Cleans a context or an ending in place.
static inline void hellaswag_clean(char *text) {
    size_t bytes = text_without_space(text, strlen(text)), start = 0, length;
    while (start < bytes && tokenizer_class(text + start, bytes - start, &length) == UNICODE_SPACE) { start += length; }
    memmove(text, text + start, bytes - start);
    text[bytes - start] = 0;
    text_replace(text, " [title]", ". ");
    text_remove_brackets(text);
    text_replace(text, "  ", " ");
}

// Writes a code point as UTF-8. Returns its bytes.
static inline size_t text_put(char *to, uint32_t code) {
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = bytes; i-- > 1; code >>= 6) { to[i] = (char)(0x80 | (code & 0x3F)); }
    to[0] = (char)(lead[bytes == 1 ? 0 : bytes] | code);
    return bytes;
}

// to (4 bytes for each of the text, and a NUL) = Python's text.capitalize(). Bytes that are not UTF-8 stay. Without the
// locale C.UTF-8, only ASCII has capitals.
static inline void text_capitalize(char *to, const char *text) {
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (!utf8) { utf8 = newlocale(LC_CTYPE_MASK, "C", (locale_t)0); }
    size_t bytes = strlen(text), length;
    for (size_t at = 0; at < bytes; at += length) {
        wint_t code = tokenizer_code_point(text + at, bytes - at, &length);
        if (code == TOKENIZER_NOT_UTF8) {
            *to++ = text[at];
        } else {
            to += text_put(to, (uint32_t)(at == 0 ? towupper_l(code, utf8) : towlower_l(code, utf8)));
        }
    }
    *to = 0;
    freelocale(utf8);
}

// the context of an example, from three fields of its line; the caller frees it
static inline char *hellaswag_context(const char *activity_label, const char *ctx_a, const char *ctx_b) {
    size_t size = strlen(activity_label) + strlen(ctx_a) + 4 * strlen(ctx_b) + 4;
    char *text = (char *)xmalloc(size);
    int length = snprintf(text, size, "%s: %s ", activity_label, ctx_a);
    text_capitalize(text + length, ctx_b);
    hellaswag_clean(text);
    return text;
}
