/* cmocka wants these headers before its own. */
#ifndef OT_TESTS_SUPPORT_TEST_H
#define OT_TESTS_SUPPORT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* Every combination, or every so-manyth where all would take too long: on an emulated device, with a sanitizer. */
static inline int test_is_chosen(int combination)
{
    const char *share = getenv("OT_TEST_SHARE");
    return share == NULL || combination % atoi(share) == 0;
}

#endif
