/*
The texts that lm-eval makes of HellaSwag's and WikiText's before it scores them.
defines: text_space, text_trimmed, text_locale, text_capitalize, hellaswag_clean, wikitext_clean
*/
#pragma once
#include "llmc/files/tokenizer.h"
#include <locale.h>
#include <wctype.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

// the bytes of the white space at the start of a text (bytes), with U+001C to U+001F as in Python
static inline size_t text_space(const char *text, size_t bytes) {
    size_t end = 0, length;
    while (end < bytes) {
        bool separator = text[end] >= 0x1C && text[end] <= 0x1F;
        if (tokenizer_class(text + end, bytes - end, &length) != UNICODE_SPACE && !separator) { break; }
        end += length;
    }
    return end;
}

// the bytes of a text without the white space at its end
static inline size_t text_trimmed(const char *text, size_t bytes) {
    size_t end = 0, length;
    for (size_t at = 0; at < bytes; at += length) {
        if (text_space(text + at, bytes - at) > 0) {
            length = text_space(text + at, bytes - at);
        } else {
            tokenizer_code_point(text + at, bytes - at, &length);
            end = at + length;
        }
    }
    return end;
}

// Replaces `from` by `to`, which is not longer, from left to right.
static inline void text_replace(char *text, const char *from, const char *to) {
    size_t width = strlen(from);
    char *end = text;
    while (*text) {
        bool found = strncmp(text, from, width) == 0;
        if (found) {
            memcpy(end, to, strlen(to));
            end += strlen(to);
        } else {
            *end++ = *text;
        }
        text += found ? width : 1;
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

// lm-eval's clean-up of a context or an ending of HellaSwag, in place
static inline void hellaswag_clean(char *text) {
    size_t bytes = strlen(text), space = text_space(text, bytes);
    bytes = text_trimmed(text, bytes);
    bytes = bytes > space ? bytes - space : 0;
    memmove(text, text + space, bytes);
    text[bytes] = 0;
    text_replace(text, " [title]", ". ");
    text_remove_brackets(text);
    text_replace(text, "  ", " ");
}

// Appends a code point as UTF-8; returns its bytes.
static inline size_t text_put_character(char *to, uint32_t code) {
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; code >>= 6) { to[i] = (char)(0x80 | (code & 0x3F)); }
    to[0] = (char)(n == 1 ? code : lead[n] | code);
    return n;
}

// The locale of text_capitalize; the caller frees it.
static inline locale_t text_locale(void) {
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    return utf8 ? utf8 : newlocale(LC_CTYPE_MASK, "C", (locale_t)0);  // without the first, only ASCII has capitals
}

// to = text with a capital letter, and the rest in lower case; at most 2 bytes for each byte of the text
static inline void text_capitalize(char *to, const char *text, locale_t utf8) {
    size_t bytes = strlen(text), length;
    for (size_t at = 0; at < bytes; at += length) {
        uint32_t code = tokenizer_code_point(text + at, bytes - at, &length);
        if (code == TOKENIZER_NOT_UTF8) {
            *to++ = text[at];
            continue;
        }
        wint_t changed = at == 0 ? towupper_l((wint_t)code, utf8) : towlower_l((wint_t)code, utf8);
        to += text_put_character(to, (uint32_t)changed);
    }
    *to = 0;
}

// Removes the white space inside of each opening character and the next closing one; the two may be the same.
static inline void text_trim_inside(char *text, char opening, char closing) {
    char *end = text;
    for (;;) {
        char *begin = strchr(text, opening), *close = begin ? strchr(begin + 1, closing) : NULL;
        size_t before = close ? (size_t)(begin + 1 - text) : strlen(text);
        memmove(end, text, before);
        end += before;
        if (!close) { break; }
        const char *inside = begin + 1;
        size_t bytes = text_trimmed(inside, (size_t)(close - inside)), space = text_space(inside, bytes);
        memmove(end, inside + space, bytes - space);
        end += bytes - space;
        *end++ = closing;
        text = close + 1;
    }
    *end = 0;
}

// lm-eval's text of a page of WikiText, in place: punctuation without the spaces of WikiText's tokens. lm-eval's
// pattern for /' 5/ is left out.
static inline void wikitext_clean(char *page) {
    static const char *const first[][2] = {
        {"s '", "s'"}, {" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "},
        {" ; ", "; "}, {" . ", ". "},  {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "},
    };
    static const char *const last[][2] = {
        {"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \u00B0 ", "\u00B0"},
        {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"},
    };
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) { text_replace(page, first[i][0], first[i][1]); }
    text_trim_inside(page, '(', ')');
    text_trim_inside(page, '[', ']');
    text_trim_inside(page, '{', '}');
    text_trim_inside(page, '"', '"');
    text_trim_inside(page, '\'', '\'');
    for (size_t i = 0; i < sizeof last / sizeof last[0]; i++) { text_replace(page, last[i][0], last[i][1]); }
}
