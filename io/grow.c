#include "io/grow.h"

#include <stdlib.h>
#include <string.h>

ot_status ot_grow_more(void *array, size_t *capacity, size_t count, size_t size, const char *what)
{
    enum { LEAST = 64 };
    size_t room = 2 * *capacity > LEAST ? 2 * *capacity : LEAST;
    room = room > count ? room : count;
    void *items;
    size_t bytes;
    memcpy(&items, array, sizeof items); /* a pointer to any type */
    items = __builtin_mul_overflow(room, size, &bytes) ? NULL : realloc(items, bytes);
    if (items == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %s: %zu of %zu bytes", what, room, size);
    memcpy(array, &items, sizeof items);
    *capacity = room;
    return OT_OK;
}
