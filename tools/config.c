/* Reading and writing through libyaml: the file as a document of nodes, the output as a row of events. */
#include "tools/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "io/text.h"
#include "io/utf8.h"

struct ot_config {
    char *path;
    yaml_document_t document;
    int loaded;
};

/* ---- reading ---- */

static ot_status load(ot_config *config, FILE *file)
{
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %s", config->path);
    yaml_parser_set_input_file(&parser, file);
    ot_status status = OT_OK;
    yaml_document_t second;
    config->loaded = yaml_parser_load(&parser, &config->document);
    int good = config->loaded && yaml_parser_load(&parser, &second);
    if (!good)
        status = ot_fail(OT_ERR_USAGE, "%s:%zu: no YAML: %s", config->path, parser.problem_mark.line + 1,
                         parser.problem != NULL ? parser.problem : "it cannot be read");
    else if (yaml_document_get_root_node(&second) != NULL)
        status = ot_fail(OT_ERR_USAGE, "%s:%zu: a second document; one is read", config->path,
                         second.start_mark.line + 1);
    if (good)
        yaml_document_delete(&second);
    yaml_parser_delete(&parser);
    return status;
}

static ot_status read_file(ot_config *config)
{
    FILE *file = fopen(config->path, "re");
    if (file == NULL)
        return ot_fail(OT_ERR_USAGE, "--config: %s: %s", config->path, strerror(errno));
    ot_status status = load(config, file);
    fclose(file);
    if (status != OT_OK)
        return status;
    const yaml_node_t *root = yaml_document_get_root_node(&config->document);
    if (root != NULL && root->type != YAML_MAPPING_NODE)
        return ot_fail(OT_ERR_USAGE, "%s:%zu: a mapping is needed, lines such as `model: 7b`", config->path,
                       root->start_mark.line + 1);
    return OT_OK;
}

ot_status ot_config_open(const char *path, ot_config **out)
{
    ot_config *config = calloc(1, sizeof *config);
    if (config == NULL || (config->path = strdup(path)) == NULL) {
        free(config);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %s", path);
    }
    ot_status status = read_file(config);
    if (status != OT_OK) {
        ot_config_close(config);
        return status;
    }
    *out = config;
    return OT_OK;
}

void ot_config_close(ot_config *config)
{
    if (config == NULL)
        return;
    if (config->loaded)
        yaml_document_delete(&config->document);
    free(config->path);
    free(config);
}

static yaml_node_t *node_of(const ot_config *config, int number)
{
    return yaml_document_get_node((yaml_document_t *)(uintptr_t)&config->document, number);
}

/* The pairs of the file; none where it is empty. */
static size_t pairs_of(const ot_config *config, const yaml_node_pair_t **pairs)
{
    const yaml_node_t *root = yaml_document_get_root_node((yaml_document_t *)(uintptr_t)&config->document);
    *pairs = root != NULL ? root->data.mapping.pairs.start : NULL;
    return root != NULL ? (size_t)(root->data.mapping.pairs.top - root->data.mapping.pairs.start) : 0;
}

/* A scalar's text, or NULL where the node is none or holds a NUL, "\0", which would end it early. */
static char *text_of(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE)
        return NULL;
    char *text = (char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

static int is_empty(const yaml_node_t *node)
{
    const char *text = text_of(node);
    return text != NULL && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (*text == '\0' || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0);
}

static int in_list(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *word = list; word != NULL; word = strchr(word, '|')) {
        word += *word == '|';
        if (strncmp(word, name, length) == 0 && (word[length] == '|' || word[length] == '\0'))
            return 1;
    }
    return 0;
}

enum { WHERE_BYTES = 512 };

static ot_status find_key(const ot_config *config, const ot_option_table *table, const char *without,
                          const yaml_node_t *key, const ot_option **out)
{
    const char *name = text_of(key);
    if (name == NULL)
        return ot_fail(OT_ERR_USAGE, "%s:%zu: a key must be a name", config->path, key->start_mark.line + 1);
    *out = ot_options_find(table, name);
    if (*out != NULL && !in_list(without, (*out)->name) && (*out)->name[0] != '_' && name[0] != '-')
        return OT_OK;
    if (*out != NULL)
        return ot_fail(OT_ERR_USAGE, "%s:%zu: %s is for the command line only", config->path,
                       key->start_mark.line + 1, name);
    char found[OT_OPTION_NAME_BYTES];
    const char *nearest = ot_options_nearest(table, name, found);
    if (nearest != NULL)
        return ot_fail(OT_ERR_USAGE, "%s:%zu: unknown key %s; did you mean %s?", config->path,
                       key->start_mark.line + 1, name, nearest);
    return ot_fail(OT_ERR_USAGE, "%s:%zu: unknown key %s; %s --help lists them", config->path,
                   key->start_mark.line + 1, name, table->command);
}

static ot_status set_list(const ot_config *config, const ot_option *option, const char *where,
                          const yaml_node_t *node, void *values)
{
    ((ot_option_list *)(void *)((char *)values + option->offset))->count = 0;
    if (node->type == YAML_SCALAR_NODE)
        return ot_option_set(option, where, text_of(node), values);
    for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
         item++) {
        char *text = text_of(node_of(config, *item));
        if (text == NULL)
            return ot_fail(OT_ERR_USAGE, "%s: an entry is no text", where);
        OT_TRY(ot_option_set(option, where, text, values));
    }
    return OT_OK;
}

static ot_status set_key(const ot_config *config, const ot_option *option, const yaml_node_t *node,
                         void *values)
{
    char where[WHERE_BYTES];
    snprintf(where, sizeof where, "%s:%zu: %s", config->path, node->start_mark.line + 1, option->name);
    int is_list = option->kind == OT_OPTION_LIST;
    if (node->type == YAML_MAPPING_NODE || (node->type == YAML_SEQUENCE_NODE && !is_list))
        return ot_fail(OT_ERR_USAGE, "%s: %s is needed%s%s", where,
                       is_list ? "a value or a list" : "one value", option->value != NULL ? ": " : "",
                       option->value != NULL ? option->value : "");
    if (is_empty(node))
        return OT_OK;
    if (node->type == YAML_SCALAR_NODE && text_of(node) == NULL)
        return ot_fail(OT_ERR_USAGE, "%s: a NUL in the text", where);
    if (is_list)
        return set_list(config, option, where, node, values);
    return ot_option_set(option, where, text_of(node), values);
}

ot_status ot_config_apply(const ot_config *config, const ot_option_table *table, const char *without,
                          void *values)
{
    const yaml_node_pair_t *pairs;
    size_t count = pairs_of(config, &pairs);
    for (size_t i = 0; i < count; i++) {
        const yaml_node_t *key = node_of(config, pairs[i].key);
        const ot_option *option = NULL, *before = NULL;
        OT_TRY(find_key(config, table, without, key, &option));
        for (size_t j = 0; j < i; j++) {
            const yaml_node_t *other = node_of(config, pairs[j].key);
            OT_TRY(find_key(config, table, without, other, &before));
            if (before == option)
                return ot_fail(OT_ERR_USAGE, "%s:%zu: %s is given a second time; the first is in line %zu",
                               config->path, key->start_mark.line + 1, option->name,
                               other->start_mark.line + 1);
        }
        OT_TRY(set_key(config, option, node_of(config, pairs[i].value), values));
    }
    return OT_OK;
}

const char *ot_config_peek(const ot_config *config, const ot_option_table *table, const char *name)
{
    const ot_option *wanted = ot_options_find(table, name);
    const yaml_node_pair_t *pairs;
    size_t count = pairs_of(config, &pairs);
    for (size_t i = 0; i < count; i++) {
        const char *key = text_of(node_of(config, pairs[i].key));
        const yaml_node_t *value = node_of(config, pairs[i].value);
        if (key != NULL && ot_options_find(table, key) == wanted && !is_empty(value))
            return text_of(value);
    }
    return NULL;
}

/* ---- writing ---- */

static int emit(yaml_emitter_t *emitter, yaml_event_t *event, int initialized)
{
    return initialized && yaml_emitter_emit(emitter, event);
}

static int emit_scalar(yaml_emitter_t *emitter, const char *text, yaml_scalar_style_t style)
{
    yaml_event_t event;
    yaml_char_t *value = (yaml_char_t *)(uintptr_t)text;
    return emit(emitter, &event,
                yaml_scalar_event_initialize(&event, NULL, NULL, value, (int)strlen(text), 1, 1, style));
}

static int emit_list(yaml_emitter_t *emitter, const ot_option_list *list)
{
    yaml_event_t event;
    int good = emit(emitter, &event,
                    yaml_sequence_start_event_initialize(&event, NULL, NULL, 1, YAML_FLOW_SEQUENCE_STYLE));
    for (size_t i = 0; good && i < list->count; i++)
        good = emit_scalar(emitter, list->items[i], YAML_DOUBLE_QUOTED_SCALAR_STYLE);
    return good && emit(emitter, &event, yaml_sequence_end_event_initialize(&event));
}

/* The shortest decimal that reads back as the same number. */
static void print_real(double value, char out[32])
{
    if (value > -1e15 && value < 1e15 && value == (double)(int64_t)value) {
        snprintf(out, 32, "%" PRId64, (int64_t)value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

static void print_size(uint64_t bytes, char out[32])
{
    static const char units[] = "\0KMGT";
    size_t unit = 0;
    for (; bytes > 0 && bytes % 1024 == 0 && unit < 4; unit++)
        bytes /= 1024;
    snprintf(out, 32, "%" PRIu64 "%.1s", bytes, &units[unit]);
}

/* The option's value as a text, or NULL where it has none; `out` has room for it. */
static const char *value_text(const ot_option *option, const void *field, char out[32])
{
    switch (option->kind) {
    case OT_OPTION_FLAG:
        return *(const int *)field ? "true" : "false";
    case OT_OPTION_INT:
        if (*(const int64_t *)field == OT_AUTO_INT)
            return option->choices;
        snprintf(out, 32, "%" PRId64, *(const int64_t *)field);
        return out;
    case OT_OPTION_REAL:
        if (*(const double *)field == OT_AUTO_REAL)
            return option->choices;
        print_real(*(const double *)field, out);
        return out;
    case OT_OPTION_SIZE:
        if (*(const uint64_t *)field == OT_AUTO_SIZE)
            return option->choices;
        print_size(*(const uint64_t *)field, out);
        return out;
    default:
        return *(const char *const *)field;
    }
}

static int emit_option(yaml_emitter_t *emitter, const ot_option *option, const void *values)
{
    const void *field = (const char *)values + option->offset;
    char text[32];
    if (option->kind == OT_OPTION_LIST) {
        const ot_option_list *list = field;
        return list->count == 0 ||
               (emit_scalar(emitter, option->name, YAML_PLAIN_SCALAR_STYLE) && emit_list(emitter, list));
    }
    const char *value = value_text(option, field, text);
    int quoted = option->kind == OT_OPTION_TEXT && option->choices == NULL;
    return value == NULL ||
           (emit_scalar(emitter, option->name, YAML_PLAIN_SCALAR_STYLE) &&
            emit_scalar(emitter, value, quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_ANY_SCALAR_STYLE));
}

static int emit_options(yaml_emitter_t *emitter, const ot_option_table *table, const char *without,
                        const void *values)
{
    yaml_event_t event;
    int good = emit(emitter, &event, yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING)) &&
               emit(emitter, &event, yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1)) &&
               emit(emitter, &event,
                    yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_MAPPING_STYLE));
    for (size_t i = 0; good && i < table->count; i++) {
        const ot_option *option = &table->options[i];
        if (option->kind != OT_OPTION_GROUP && option->name[0] != '_' && !in_list(without, option->name))
            good = emit_option(emitter, option, values);
    }
    return good && emit(emitter, &event, yaml_mapping_end_event_initialize(&event)) &&
           emit(emitter, &event, yaml_document_end_event_initialize(&event, 1)) &&
           emit(emitter, &event, yaml_stream_end_event_initialize(&event));
}

/* YAML is UTF-8, and has no escape for a byte that is none. */
static ot_status check_text(const ot_option *option, const char *text)
{
    char shown[256];
    size_t bytes = text != NULL ? strlen(text) : 0;
    if (ot_utf8_valid(text, bytes) == bytes)
        return OT_OK;
    snprintf(shown, sizeof shown, "%s", text);
    return ot_fail(OT_ERR_USAGE, "--%s: '%s' is not UTF-8, as a configuration file has to be", option->name,
                   ot_clean_utf8(shown));
}

ot_status ot_config_check(const ot_option_table *table, const char *without, const void *values)
{
    for (size_t i = 0; i < table->count; i++) {
        const ot_option *option = &table->options[i];
        const void *field = (const char *)values + option->offset;
        if (option->kind == OT_OPTION_GROUP || in_list(without, option->name))
            continue;
        if (option->kind == OT_OPTION_TEXT || option->kind == OT_OPTION_AUTO)
            OT_TRY(check_text(option, *(const char *const *)field));
        for (size_t l = 0; option->kind == OT_OPTION_LIST && l < ((const ot_option_list *)field)->count; l++)
            OT_TRY(check_text(option, ((const ot_option_list *)field)->items[l]));
    }
    return OT_OK;
}

ot_status ot_config_print(const ot_option_table *table, const char *without, const void *values, FILE *out)
{
    yaml_emitter_t emitter;
    OT_TRY(ot_config_check(table, without, values));
    if (!yaml_emitter_initialize(&emitter))
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the configuration");
    yaml_emitter_set_output_file(&emitter, out);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_emitter_set_width(&emitter, -1);
    int good = emit_options(&emitter, table, without, values) && yaml_emitter_flush(&emitter);
    yaml_emitter_delete(&emitter);
    if (!good)
        return ot_fail(OT_ERR_IO, "cannot write the configuration");
    return OT_OK;
}
