/* cmocka wants these headers before its own. */
#ifndef OT_TESTS_SUPPORT_TEST_H
#define OT_TESTS_SUPPORT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
