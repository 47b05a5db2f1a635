/* Sizes, numbers and nearest names. */
#include "io/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "io/utf8.h"

static int size_shift(const char *unit)
{
    static const char letters[] = "KMGT";
    if (*unit == '\0' || strcasecmp(unit, "B") == 0)
        return 0;
    const char *letter = strchr(letters, toupper((unsigned char)*unit));
    if (letter == NULL)
        return -1;
    if (unit[1] != '\0' && strcasecmp(unit + 1, "B") != 0 && strcasecmp(unit + 1, "iB") != 0)
        return -1;
    return 10 * (int)(letter - letters + 1);
}

ot_status ot_parse_size(const char *text, const char *what, uint64_t *bytes)
{
    static const char digits[] = "0123456789";
    size_t length = strspn(text, digits), whole = length;
    if (length > 0 && text[length] == '.')
        length += 1 + strspn(text + length + 1, digits);
    int shift = size_shift(text + length);
    if (whole == 0 || shift < 0)
        return ot_fail(OT_ERR_USAGE, "%s: '%s' is not a size; write for example 24G, 512M or 1.5T", what,
                       text);
    /* Whole numbers do not go through a double, which holds 53 bits. */
    uint64_t number = strtoull(text, NULL, 10);
    double scaled = ldexp(strtod(text, NULL), shift);
    if (length == whole ? number > (uint64_t)INT64_MAX >> shift : scaled >= 0x1p63)
        return ot_fail(OT_ERR_USAGE, "%s: '%s' is more than 2^63-1 bytes", what, text);
    *bytes = length == whole ? number << shift : (uint64_t)scaled;
    return OT_OK;
}

ot_status ot_parse_int(const char *text, const char *what, int64_t *value)
{
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno == ERANGE || isspace((unsigned char)*text))
        return ot_fail(OT_ERR_USAGE, "%s: '%s' is not a whole number", what, text);
    *value = parsed;
    return OT_OK;
}

ot_status ot_parse_real(const char *text, const char *what, double *value)
{
    char *end;
    double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(parsed) || isspace((unsigned char)*text) ||
        strpbrk(text, "xX") != NULL)
        return ot_fail(OT_ERR_USAGE, "%s: '%s' is not a number", what, text);
    *value = parsed;
    return OT_OK;
}

const char *ot_format_size(uint64_t bytes, char out[OT_SIZE_TEXT_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    /* The second test is for what two decimals would round up to 1024. */
    while ((value >= 1024 || (unit > 0 && value >= 1023.995)) && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    int whole = value == floor(value);
    snprintf(out, OT_SIZE_TEXT_BYTES, whole ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return out;
}

const char *ot_format_number(double value, char out[OT_NUMBER_TEXT_BYTES])
{
    snprintf(out, OT_NUMBER_TEXT_BYTES, value >= 1000 && value < 1e15 ? "%.0f" : "%.4g", value);
    return out;
}

static char folded(char c)
{
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

int ot_name_equal(const char *a, const char *b)
{
    while (*a != '\0' && (*a == '_' ? '-' : *a) == (*b == '_' ? '-' : *b)) {
        a++;
        b++;
    }
    return *a == '\0' && *b == '\0';
}

int ot_ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

char *ot_clean_utf8(char *text)
{
    for (char *at = text; *at != '\0';) {
        int length = ot_utf8_length(at, strnlen(at, 4));
        if (length < 0)
            *at = '?';
        at += length > 0 ? length : 1;
    }
    return text;
}

enum { NAME_LENGTH_MAX = 63 };

/* Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours cost one
 * each. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t rows[3][NAME_LENGTH_MAX + 1];
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = above[j - 1] + (folded(a[i - 1]) != folded(b[j - 1]));
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
                folded(a[i - 2]) == folded(b[j - 1]) && above2[j - 2] + 1 < best)
                best = above2[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[a_length % 3][b_length];
}

const char *ot_nearest_name(const char *name, const char *const names[], size_t count)
{
    size_t length = strlen(name);
    const char *nearest = NULL;
    size_t nearest_distance = SIZE_MAX;
    for (size_t i = 0; i < count && length <= NAME_LENGTH_MAX; i++) {
        size_t other = strlen(names[i]);
        if (other > NAME_LENGTH_MAX)
            continue;
        size_t distance = edit_distance(name, length, names[i], other);
        size_t longest = length > other ? length : other;
        if (distance < nearest_distance && 3 * distance <= longest) {
            nearest = names[i];
            nearest_distance = distance;
        }
    }
    return nearest;
}
