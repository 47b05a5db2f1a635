/* cmocka wants these headers before its own. */
#ifndef OT_TESTS_SUPPORT_TEST_H
#define OT_TESTS_SUPPORT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* With a sanitizer everything takes several times as long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_IS_SLOW = 1 };
#else
enum { TEST_IS_SLOW = 0 };
#endif

/* Every combination, or every so-manyth where all would take too long: on an emulated device, with a sanitizer. */
static inline int test_is_chosen(int combination)
{
    const char *share = getenv("OT_TEST_SHARE");
    return share == NULL || combination % atoi(share) == 0;
}

#endif
