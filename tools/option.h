/* One table of options generates the parser, the aliases, --help, the keys of configuration files (config.h) and the
 * nearest-name hints. */
#ifndef OT_TOOLS_OPTION_H
#define OT_TOOLS_OPTION_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "io/status.h"

typedef enum ot_option_kind {
    OT_OPTION_FLAG,  /* int, 1 where given; --name=off and --no-name give 0 */
    OT_OPTION_INT,   /* int64_t */
    OT_OPTION_REAL,  /* double */
    OT_OPTION_SIZE,  /* uint64_t, bytes */
    OT_OPTION_TEXT,  /* const char *, points into argv or the table */
    OT_OPTION_AUTO,  /* a text, "auto" where no value follows */
    OT_OPTION_LIST,  /* ot_option_list: `--name A B --name C` and `--name=A,B` add up */
    OT_OPTION_GROUP, /* no option: a heading of --help */
} ot_option_kind;

/* What a number is where the word in its `choices` was given instead: "auto". No number that can be typed. */
#define OT_AUTO_INT INT64_MIN
#define OT_AUTO_REAL (-INFINITY)
#define OT_AUTO_SIZE UINT64_MAX

enum { OT_OPTION_LIST_MAX = 64 };

typedef struct ot_option_list {
    size_t count;
    const char *items[OT_OPTION_LIST_MAX];
} ot_option_list;

typedef struct ot_option {
    const char *name; /* without the dashes; "_" for positional arguments, which are a list */
    ot_option_kind kind;
    size_t offset;       /* of the value in the struct that is filled */
    const char *value;   /* what --help calls the value: "DIR…"; NULL for a flag */
    const char *initial; /* the default as typed, or NULL: zero */
    const char
        *choices; /* the allowed words, separated by '|', or NULL; of a number: the one word it may be */
    const char *help;
    const char *aliases; /* other names, separated by '|', or NULL; a one-letter alias is "-x" */
} ot_option;

typedef struct ot_option_table {
    const char *command; /* "offtrain bench nvme" */
    const char *summary; /* the line under the usage */
    const ot_option *options;
    size_t count;
} ot_option_table;

/* Sets every default in `values`, then reads argv[0..argc-1]. '-' and '_' are equal in names. Fails with
 * OT_ERR_USAGE, naming what was found and the nearest known name. `*help` becomes 1 where --help or -h was given: the help is on
 * stdout then, and nothing else is checked. Texts in `values` point into argv, which lists may cut at commas. */
ot_status ot_options_parse(const ot_option_table *table, int argc, char **argv, void *values,
                           int *help) OT_MUST_CHECK;

/* The parts of ot_options_parse, for what comes in between. A list that `argv` names replaces the one in `values`. */
int ot_options_want_help(const ot_option_table *table, int argc, char **argv);
ot_status ot_options_defaults(const ot_option_table *table, void *values) OT_MUST_CHECK;
ot_status ot_options_arguments(const ot_option_table *table, int argc, char **argv,
                               void *values) OT_MUST_CHECK;

/* The value that argv gives the option last, or NULL; nothing is checked. */
const char *ot_options_peek(const ot_option_table *table, int argc, char **argv, const char *name);

/* The option of that name or alias, or NULL. */
const ot_option *ot_options_find(const ot_option_table *table, const char *name);

/* Sets one value; `what` names it in messages. A list gets one more entry, which is not cut at commas. */
ot_status ot_option_set(const ot_option *option, const char *what, char *text, void *values) OT_MUST_CHECK;

/* The known name that is nearest to `name`, or NULL, in `out`. */
enum { OT_OPTION_NAME_BYTES = 64 };
const char *ot_options_nearest(const ot_option_table *table, const char *name,
                               char out[OT_OPTION_NAME_BYTES]);

/* Usage, summary and one line an option. */
void ot_options_help(const ot_option_table *table, FILE *out);

#endif
