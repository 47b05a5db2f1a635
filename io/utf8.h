/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef OT_IO_UTF8_H
#define OT_IO_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Of the first character of `bytes` > 0 bytes at `text`: its length, 1 to 4, or where there is none, minus the number of bytes
 * that one U+FFFD stands for, as Python and Rust count them (the longest beginning of a character, else one byte). */
int ot_utf8_length(const char *text, size_t bytes);

/* How many of the bytes, from the first one on, are valid. */
size_t ot_utf8_valid(const char *text, size_t bytes);

/* Copies the text with U+FFFD for what is no UTF-8. `out` has room for 3 * bytes; returns how many are used. */
size_t ot_utf8_repair(const char *text, size_t bytes, char *out);

/* The first character of valid text and its length. */
static inline uint32_t ot_utf8_decode(const char *text, size_t *length)
{
    const unsigned char *s = (const unsigned char *)text;
    *length = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    switch (*length) {
    case 1:
        return s[0];
    case 2:
        return (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
    case 3:
        return (s[0] & 0xFu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    default:
        return (s[0] & 7u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
    }
}

/* Where the last character of valid text of `bytes` > 0 begins. */
static inline size_t ot_utf8_last(const char *text, size_t bytes)
{
    do
        bytes--;
    while (((unsigned char)text[bytes] & 0xC0) == 0x80);
    return bytes;
}

#endif
