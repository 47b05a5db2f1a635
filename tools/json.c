#include "tools/json.h"

#include <math.h>

ot_status ot_json_line(json_t *object, FILE *out, const char *what)
{
    int failed = object == NULL || json_dumpf(object, out, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0;
    failed |= fputc('\n', out) == EOF;
    failed |= fflush(out) != 0;
    json_decref(object);
    return failed ? ot_fail(OT_ERR_IO, "cannot write %s", what) : OT_OK;
}

json_t *ot_json_count(uint64_t count)
{
    return json_integer((json_int_t)count);
}

json_t *ot_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}
