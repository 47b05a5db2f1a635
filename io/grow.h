/* Arrays that grow. */
#ifndef OT_IO_GROW_H
#define OT_IO_GROW_H

#include <stddef.h>

#include "io/status.h"

/* As ot_grow, where there is not yet room. */
ot_status ot_grow_more(void *array, size_t *capacity, size_t count, size_t size,
                       const char *what) OT_MUST_CHECK;

/* Makes room for `count` elements of `size` bytes. `array` is the address of the pointer to them, `*capacity` the room there is,
 * in elements; both start as 0 and at least double. Elements keep their values, new ones have none; free(3) gives them back.
 * OT_ERR_INTERNAL "out of memory for `what`", with the array as it was. */
static inline ot_status ot_grow(void *array, size_t *capacity, size_t count, size_t size, const char *what)
{
    return count <= *capacity ? OT_OK : ot_grow_more(array, capacity, count, size, what);
}

#endif
