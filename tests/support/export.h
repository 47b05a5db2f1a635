/* What the tests of `offtrain export` share: small models in the folder of the test, and the command run there. What goes wrong fails the
 * test. */
#ifndef OT_TESTS_SUPPORT_EXPORT_H
#define OT_TESTS_SUPPORT_EXPORT_H

#include "engine/model.h"
#include "tests/support/root.h"

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
