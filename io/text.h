/* Small text helpers for flags, configuration and reports: sizes, and the nearest name to a mistyped one. */
#ifndef OT_IO_TEXT_H
#define OT_IO_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

/* Parses a size: a number, with or without a fraction, and K, M, G or T (powers of 1024) with or without B or
 * iB, in either case. Fails with OT_ERR_USAGE on anything else and on more than 2^63-1 bytes. `what` names
 * the value in the message, e.g. "--gpu-mem". */
ot_status ot_parse_size(const char *text, const char *what, uint64_t *bytes) OT_MUST_CHECK;

/* Whole and real numbers, the whole text or OT_ERR_USAGE; infinities and NaN are refused. */
ot_status ot_parse_int(const char *text, const char *what, int64_t *value) OT_MUST_CHECK;
ot_status ot_parse_real(const char *text, const char *what, double *value) OT_MUST_CHECK;

enum { OT_SIZE_TEXT_BYTES = 24, OT_NUMBER_TEXT_BYTES = 32 };

/* A number that is not negative, with four digits, or more where it is whole thousands: "0.1464", "27.97", "12290" into `out`, which it
 * returns. From 10^15 on with an exponent. */
const char *ot_format_number(double value, char out[OT_NUMBER_TEXT_BYTES]);

/* "1.50 GiB", "4 KiB", "17 B" into `out`, which it returns. */
const char *ot_format_size(uint64_t bytes, char out[OT_SIZE_TEXT_BYTES]);

/* The one of `names` closest to `name` by edit distance (optimal string alignment), '-' and '_' being equal;
 * NULL where none is close enough to be meant (more than a third of its letters differ). */
const char *ot_nearest_name(const char *name, const char *const names[], size_t count);

/* Makes a text valid UTF-8, in place, for JSON: every byte that is none, as in a path or where a text was cut, becomes '?'.
 * Returns it. */
char *ot_clean_utf8(char *text);

/* Whether the text ends with `end`. */
int ot_ends_with(const char *text, const char *end);

/* Whether two flag or key names are equal, '-' and '_' being equal. */
int ot_name_equal(const char *a, const char *b);

#endif
