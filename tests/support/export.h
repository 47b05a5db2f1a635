/* What the tests of `offtrain export` share: a folder, small models in it, and the command run there. What goes wrong fails the
 * test. */
#ifndef OT_TESTS_SUPPORT_EXPORT_H
#define OT_TESTS_SUPPORT_EXPORT_H

#include "engine/model.h"
#include "tests/support/process.h"

extern char *root;     /* the folder of the running test */
extern outcome result; /* of the last command */

/* Setup and teardown of a test. */
int open_root(void **state);
int close_root(void **state);

/* The whole file ROOT/NAME, for the caller to free, and its length. */
char *contents(const char *name, size_t *bytes);

int exists(const char *name);
void expect_same_file(const char *a, const char *b);

/* Two blocks, 64 wide. */
ot_model_config config_of(const char *architecture);

/* Makes ROOT/NAME: config.json, random weights of `dtype`, and a file that goes along. */
void make_model(const char *name, const ot_model_config *c, ot_dtype dtype);

/* Runs `offtrain COMMAND` in ROOT; it ends with 0, or with `code` and a message that holds `says`. */
void must_run(const char *command);
void refused(int code, const char *says, const char *command);

#endif
