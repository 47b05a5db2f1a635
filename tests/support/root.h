/* What the tests of the command share: a folder for each of them, and the last outcome. */
#ifndef OT_TESTS_SUPPORT_ROOT_H
#define OT_TESTS_SUPPORT_ROOT_H

#include "tests/support/process.h"

extern char *root;     /* the folder of the running test */
extern outcome result; /* of the last command */

/* Setup and teardown of a test, or of a program of tests. */
int open_root(void **state);
int close_root(void **state);

/* Fails where `text` does not hold `part`. */
void expect_in(const char *text, const char *part);

#endif
