/* UTF-8, strictly. */
#include "io/utf8.h"

#include <string.h>

int ot_utf8_length(const char *text, size_t bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80)
        return 1;
    int length = s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    /* The second byte excludes overlong forms, surrogates and what is above U+10FFFF. */
    unsigned least = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned most = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= bytes || s[i] < least || s[i] > most)
            return -i;
        least = 0x80;
        most = 0xBF;
    }
    return length > 0 ? length : -1;
}

size_t ot_utf8_valid(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        while (bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if (eight & UINT64_C(0x8080808080808080))
                break;
            at += sizeof eight;
        }
        if (at == bytes)
            break;
        int length = ot_utf8_length(text + at, bytes - at);
        if (length < 0)
            break;
        at += (size_t)length;
    }
    return at;
}

size_t ot_utf8_repair(const char *text, size_t bytes, char *out)
{
    size_t used = 0;
    for (size_t at = 0; at < bytes;) {
        int length = ot_utf8_length(text + at, bytes - at);
        if (length > 0) {
            memcpy(out + used, text + at, (size_t)length);
            used += (size_t)length;
            at += (size_t)length;
        } else {
            memcpy(out + used, "\xEF\xBF\xBD", 3);
            used += 3;
            at += (size_t)-length;
        }
    }
    return used;
}
