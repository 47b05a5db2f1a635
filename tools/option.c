/* The option table's parser and help. */
#include "tools/option.h"

#include <string.h>

#include "io/text.h"

/* Whether `name` is one of the words of `list`, which '|' separates. */
static int in_words(const char *list, const char *name, size_t length)
{
    for (const char *word = list; word != NULL;) {
        const char *end = strchr(word, '|');
        size_t n = end != NULL ? (size_t)(end - word) : strlen(word);
        char a[64], b[64];
        if (n == length && n < sizeof a) {
            memcpy(a, word, n);
            memcpy(b, name, n);
            a[n] = b[n] = '\0';
            if (ot_name_equal(a, b))
                return 1;
        }
        word = end != NULL ? end + 1 : NULL;
    }
    return 0;
}

static const ot_option *find(const ot_option_table *table, const char *name, size_t length)
{
    for (size_t i = 0; i < table->count; i++)
        if (table->options[i].kind != OT_OPTION_GROUP && (in_words(table->options[i].name, name, length) ||
                                                          in_words(table->options[i].aliases, name, length)))
            return &table->options[i];
    return NULL;
}

const ot_option *ot_options_find(const ot_option_table *table, const char *name)
{
    return find(table, name, strlen(name));
}

enum { NAMES_MAX = 256, NAME_BYTES = OT_OPTION_NAME_BYTES };

typedef struct name_list {
    size_t count;
    const char *names[NAMES_MAX];
    char texts[NAMES_MAX][NAME_BYTES];
} name_list;

/* Adds prefix + the first `length` letters of `name`; short aliases and "_" are nothing that a long name is
 * near to. */
static void add_name(name_list *list, const char *prefix, const char *name, size_t length)
{
    if (list->count == NAMES_MAX || name[0] == '-' || name[0] == '_')
        return;
    snprintf(list->texts[list->count], NAME_BYTES, "%s%.*s", prefix, (int)length, name);
    list->names[list->count] = list->texts[list->count];
    list->count++;
}

const char *ot_options_nearest(const ot_option_table *table, const char *name, char out[OT_OPTION_NAME_BYTES])
{
    name_list list = {.count = 0};
    for (size_t i = 0; i < table->count; i++) {
        const ot_option *option = &table->options[i];
        if (option->kind == OT_OPTION_GROUP)
            continue;
        add_name(&list, "", option->name, strlen(option->name));
        if (option->kind == OT_OPTION_FLAG)
            add_name(&list, "no-", option->name, strlen(option->name));
        for (const char *alias = option->aliases; alias != NULL; alias = strchr(alias, '|')) {
            alias += *alias == '|';
            add_name(&list, "", alias, strcspn(alias, "|"));
        }
    }
    const char *nearest = ot_nearest_name(name, list.names, list.count);
    if (nearest != NULL)
        snprintf(out, OT_OPTION_NAME_BYTES, "%s", nearest);
    return nearest != NULL ? out : NULL;
}

static ot_status unknown(const ot_option_table *table, const char *argument)
{
    char typed[NAME_BYTES], found[NAME_BYTES];
    snprintf(typed, sizeof typed, "%.*s", (int)strcspn(argument, "="), argument);
    const char *nearest = ot_options_nearest(table, typed + strspn(typed, "-"), found);
    if (nearest != NULL)
        return ot_fail(OT_ERR_USAGE, "unknown option %s; did you mean --%s?", typed, nearest);
    return ot_fail(OT_ERR_USAGE, "unknown option %s; %s --help lists them", typed, table->command);
}

static ot_status add_item(const char *what, const char *item, ot_option_list *list)
{
    if (*item == '\0')
        return ot_fail(OT_ERR_USAGE, "%s: an empty entry", what);
    if (list->count == OT_OPTION_LIST_MAX)
        return ot_fail(OT_ERR_USAGE, "%s: more than %d entries", what, OT_OPTION_LIST_MAX);
    list->items[list->count++] = item;
    return OT_OK;
}

static ot_status set_items(const ot_option *option, const char *what, char *text, void *values)
{
    for (char *item = text; item != NULL;) {
        char *comma = strchr(item, ',');
        if (comma != NULL)
            *comma = '\0';
        OT_TRY(ot_option_set(option, what, item, values));
        item = comma != NULL ? comma + 1 : NULL;
    }
    return OT_OK;
}

static ot_status set_flag(const char *what, const char *text, int *flag)
{
    if (text == NULL || in_words("on|true|yes|1", text, strlen(text)))
        *flag = 1;
    else if (in_words("off|false|no|0", text, strlen(text)))
        *flag = 0;
    else
        return ot_fail(OT_ERR_USAGE, "%s: '%s' is neither on nor off", what, text);
    return OT_OK;
}

/* Whether the text is the word that a number may be. */
static int is_word(const ot_option *option, const char *text)
{
    return option->choices != NULL && in_words(option->choices, text, strlen(text));
}

ot_status ot_option_set(const ot_option *option, const char *what, char *text, void *values)
{
    void *field = (char *)values + option->offset;
    switch (option->kind) {
    case OT_OPTION_FLAG:
        return set_flag(what, text, field);
    case OT_OPTION_INT:
        if (is_word(option, text)) {
            *(int64_t *)field = OT_AUTO_INT;
            return OT_OK;
        }
        OT_TRY(ot_parse_int(text, what, field));
        if (*(int64_t *)field == OT_AUTO_INT)
            return ot_fail(OT_ERR_USAGE, "%s: %s is too small", what, text);
        return OT_OK;
    case OT_OPTION_REAL:
        if (!is_word(option, text))
            return ot_parse_real(text, what, field);
        *(double *)field = OT_AUTO_REAL;
        return OT_OK;
    case OT_OPTION_SIZE:
        if (!is_word(option, text))
            return ot_parse_size(text, what, field);
        *(uint64_t *)field = OT_AUTO_SIZE;
        return OT_OK;
    case OT_OPTION_AUTO:
    case OT_OPTION_TEXT:
        if (option->choices != NULL && !is_word(option, text))
            return ot_fail(OT_ERR_USAGE, "%s: '%s' is not one of %s", what, text, option->choices);
        *(const char **)field = text;
        return OT_OK;
    case OT_OPTION_LIST:
        return add_item(what, text, field);
    case OT_OPTION_GROUP:
        break;
    }
    return OT_OK;
}

static ot_status set(const ot_option *option, char *text, void *values)
{
    char what[80];
    if (strcmp(option->name, "_") == 0)
        return ot_option_set(option, option->value, text, values);
    snprintf(what, sizeof what, "--%s", option->name);
    if (option->kind == OT_OPTION_LIST)
        return set_items(option, what, text, values);
    return ot_option_set(option, what, text, values);
}

/* Negative numbers are values, everything else that starts with a dash and goes on is an option. */
static int is_option(const char *argument)
{
    return argument[0] == '-' && argument[1] != '\0' && strchr("0123456789.", argument[1]) == NULL;
}

ot_status ot_options_defaults(const ot_option_table *table, void *values)
{
    for (size_t i = 0; i < table->count; i++) {
        const ot_option *option = &table->options[i];
        /* Defaults are words of the table, which a list would cut: none of them is a list. */
        if (option->initial != NULL && option->kind != OT_OPTION_LIST)
            OT_TRY(set(option, (char *)(uintptr_t)option->initial, values));
    }
    return OT_OK;
}

/* `--overlap off` is `--overlap=off`, where no positional argument can be meant. */
static int is_switch(const ot_option_table *table, const char *argument)
{
    return find(table, "_", 1) == NULL && in_words("on|off|true|false|yes|no", argument, strlen(argument));
}

/* Reads the option at argv[*at] and its values; `*at` is left on the last argument that was used. */
static ot_status parse_option(const ot_option_table *table, int argc, char **argv, int *at, void *values)
{
    char *argument = argv[*at];
    int is_long = argument[1] == '-';
    const char *name = is_long ? argument + 2 : argument;
    char *equals = strchr(argument, '=');
    size_t length = equals != NULL ? (size_t)(equals - name) : strlen(name);
    char *text = equals != NULL ? equals + 1 : NULL;

    const ot_option *option = find(table, name, length);
    static char off[] = "off";
    if (option == NULL && is_long && length > 3 &&
        (strncmp(name, "no-", 3) == 0 || strncmp(name, "no_", 3) == 0)) {
        option = find(table, name + 3, length - 3);
        if (option == NULL || option->kind != OT_OPTION_FLAG)
            return unknown(table, argument);
        if (text != NULL)
            return ot_fail(OT_ERR_USAGE, "--no-%s takes no value; --%s=off is the same", option->name,
                           option->name);
        text = off;
    }
    if (option == NULL || strcmp(option->name, "_") == 0)
        return unknown(table, argument);
    if (option->kind == OT_OPTION_FLAG && text == NULL && *at + 1 < argc && is_switch(table, argv[*at + 1]))
        text = argv[++*at];
    if (option->kind == OT_OPTION_FLAG || text != NULL)
        return set(option, text, values);
    int alone = *at + 1 == argc || is_option(argv[*at + 1]);
    static char automatic[] = "auto";
    if (alone && option->kind == OT_OPTION_AUTO)
        return set(option, automatic, values);
    if (alone)
        return ot_fail(OT_ERR_USAGE, "--%s needs a value: %s", option->name, option->value);
    do
        OT_TRY(set(option, argv[++*at], values));
    while (option->kind == OT_OPTION_LIST && *at + 1 < argc && !is_option(argv[*at + 1]));
    return OT_OK;
}

int ot_options_want_help(const ot_option_table *table, int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            ot_options_help(table, stdout);
            return 1;
        }
    return 0;
}

ot_status ot_options_parse(const ot_option_table *table, int argc, char **argv, void *values, int *help)
{
    *help = ot_options_want_help(table, argc, argv);
    if (*help)
        return OT_OK;
    OT_TRY(ot_options_defaults(table, values));
    return ot_options_arguments(table, argc, argv, values);
}

/* The option that an argument names, or NULL. `*text` is what follows its equals sign, or NULL. */
static const ot_option *option_of(const ot_option_table *table, char *argument, char **text)
{
    const char *name = argument[1] == '-' ? argument + 2 : argument;
    char *equals = strchr(argument, '=');
    *text = equals != NULL ? equals + 1 : NULL;
    return find(table, name, equals != NULL ? (size_t)(equals - name) : strlen(name));
}

ot_status ot_options_arguments(const ot_option_table *table, int argc, char **argv, void *values)
{
    for (int i = 0; i < argc; i++) {
        char *text;
        const ot_option *option = is_option(argv[i]) ? option_of(table, argv[i], &text) : NULL;
        if (option != NULL && option->kind == OT_OPTION_LIST)
            ((ot_option_list *)(void *)((char *)values + option->offset))->count = 0;
    }
    const ot_option *positional = find(table, "_", 1);
    for (int i = 0; i < argc; i++) {
        if (is_option(argv[i]))
            OT_TRY(parse_option(table, argc, argv, &i, values));
        else if (positional != NULL)
            OT_TRY(set(positional, argv[i], values));
        else
            return ot_fail(OT_ERR_USAGE, "unexpected argument '%s'; %s --help", argv[i], table->command);
    }
    return OT_OK;
}

const char *ot_options_peek(const ot_option_table *table, int argc, char **argv, const char *name)
{
    const ot_option *wanted = ot_options_find(table, name);
    const char *found = NULL;
    for (int i = 0; i < argc; i++) {
        char *text;
        if (!is_option(argv[i]) || option_of(table, argv[i], &text) != wanted)
            continue;
        if (text == NULL && i + 1 < argc)
            text = argv[i + 1];
        found = text != NULL ? text : found;
    }
    return found;
}

void ot_options_help(const ot_option_table *table, FILE *out)
{
    fprintf(out, "usage: %s [options]\n%s\n\n", table->command, table->summary);
    for (size_t i = 0; i < table->count; i++) {
        const ot_option *option = &table->options[i];
        if (option->kind == OT_OPTION_GROUP) {
            fprintf(out, "%s%s:\n", i > 0 ? "\n" : "", option->name);
            continue;
        }
        char left[96];
        const char *value = option->value != NULL ? option->value : "";
        if (strcmp(option->name, "_") == 0)
            snprintf(left, sizeof left, "%s", value);
        else
            snprintf(left, sizeof left, "--%s%s%s", option->name, *value != '\0' ? " " : "", value);
        int columns = 0; /* characters, not bytes: the table holds UTF-8 */
        for (const char *c = left; *c != '\0'; c++)
            columns += (*c & 0xC0) != 0x80;
        fprintf(out, "  %s%*s %s", left, columns < 26 ? 26 - columns : 0, "", option->help);
        int is_text = option->kind == OT_OPTION_TEXT;
        if (option->choices != NULL && is_text)
            fprintf(out, ": %s", option->choices);
        if (option->initial != NULL)
            fprintf(out, " (%s)", option->initial);
        if (option->aliases != NULL)
            fprintf(out, " [%s]", option->aliases);
        fputc('\n', out);
    }
}
