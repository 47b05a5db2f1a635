/* Configuration files: YAML whose keys are the names of an option table, and the same written out.
 *
 *     model: 7b
 *     nvme: [/mnt/a, /mnt/b]
 *     lr: 1e-5            # '-' and '_' are equal in keys, aliases count, an empty value is none */
#ifndef OT_TOOLS_CONFIG_H
#define OT_TOOLS_CONFIG_H

#include "tools/option.h"

typedef struct ot_config ot_config;

/* Reads the file. OT_ERR_USAGE with file and line where it is no YAML mapping of names to scalars or lists. */
ot_status ot_config_open(const char *path, ot_config **out) OT_MUST_CHECK;
void ot_config_close(ot_config *config); /* NULL is allowed */

/* Sets what the file gives. OT_ERR_USAGE with file, line and the nearest name for an unknown key, a key given twice, a bad value,
 * and those of `without`, names that '|' separates. Texts in `values` live as long as the config. */
ot_status ot_config_apply(const ot_config *config, const ot_option_table *table, const char *without,
                          void *values) OT_MUST_CHECK;

/* The text that the file gives the option, or NULL: none, or a list. */
const char *ot_config_peek(const ot_config *config, const ot_option_table *table, const char *name);

/* OT_ERR_USAGE where a value that would be written is a text that is no UTF-8. */
ot_status ot_config_check(const ot_option_table *table, const char *without,
                          const void *values) OT_MUST_CHECK;

/* Writes all values but those of `without`, so that ot_config_open reads the same ones back. Options without a value are left
 * out. */
ot_status ot_config_print(const ot_option_table *table, const char *without, const void *values,
                          FILE *out) OT_MUST_CHECK;

#endif
