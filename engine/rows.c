#include "engine/rows.h"

#include <stdlib.h>
#include <string.h>

#include "io/grow.h"

static const char *const kind_names[OT_ROW_KINDS] = {"text", "messages", "sharegpt", "alpaca", "completion"};

const char *ot_row_kind_name(ot_row_kind kind)
{
    return kind_names[kind];
}

static int is_given(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return value != NULL && !json_is_null(value);
}

/* The keys of each kind; a row that has those of several is of the first. */
static const struct {
    ot_row_kind kind;
    const char *key, *other;
} signs[OT_ROW_KINDS] = {
    {OT_ROW_MESSAGES, "messages", NULL},
    {OT_ROW_SHAREGPT, "conversations", NULL},
    {OT_ROW_ALPACA, "instruction", "output"},
    {OT_ROW_COMPLETION, "prompt", "completion"},
    {OT_ROW_TEXT, "text", NULL},
};

static int is_of(const json_t *row, size_t sign)
{
    return is_given(row, signs[sign].key) && (signs[sign].other == NULL || is_given(row, signs[sign].other));
}

int ot_row_detect(const json_t *row, ot_row_kind *kind)
{
    for (size_t i = 0; i < OT_ROW_KINDS; i++)
        if (is_of(row, i)) {
            *kind = signs[i].kind;
            return 1;
        }
    return 0;
}

static ot_status check_kind(const json_t *row, ot_row_kind kind)
{
    ot_row_kind found;
    for (size_t i = 0; i < OT_ROW_KINDS; i++)
        if (signs[i].kind == kind && is_of(row, i))
            return OT_OK;
    if (ot_row_detect(row, &found))
        return ot_fail(OT_ERR_DATA, "a row of kind %s in data of kind %s; give each kind a file of its own",
                       kind_names[found], kind_names[kind]);
    return ot_fail(
        OT_ERR_DATA,
        "no row of kind %s; a row has \"text\", \"messages\", \"conversations\", \"instruction\" with "
        "\"output\", or \"prompt\" with \"completion\"",
        kind_names[kind]);
}

void ot_row_turns_free(ot_row_turns *turns)
{
    free(turns->turns);
    free(turns->joined);
    *turns = (ot_row_turns){0};
}

/* ---- turns ---- */

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "a list", "a text", "a number",
                                        "a number",  "true",   "false",  "null"};
    return value == NULL ? "nothing" : names[json_typeof(value)];
}

static ot_status read_text(const json_t *object, const char *key, const char **text, size_t *bytes)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return ot_fail(OT_ERR_DATA, "\"%s\" must be a text; found %s", key, type_name(value));
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return OT_OK;
}

static ot_status add_turn(ot_row_turns *to, ot_turn turn)
{
    OT_TRY(ot_grow(&to->turns, &to->capacity, to->count + 1, sizeof *to->turns, "a conversation"));
    to->turns[to->count++] = turn;
    return OT_OK;
}

static ot_status add_text(const json_t *row, const char *key, ot_role role, ot_row_turns *out)
{
    ot_turn turn = {.role = role, .trained = 1};
    OT_TRY(read_text(row, key, &turn.text, &turn.bytes));
    return add_turn(out, turn);
}

static ot_status find_role(const char *name, size_t number, ot_role *role)
{
    static const struct {
        const char *name;
        ot_role role;
    } known[] = {{"system", OT_ROLE_SYSTEM},
                 {"user", OT_ROLE_USER},
                 {"human", OT_ROLE_USER},
                 {"gpt", OT_ROLE_ASSISTANT},
                 {"assistant", OT_ROLE_ASSISTANT}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) {
            *role = known[i].role;
            return OT_OK;
        }
    return ot_fail(
        OT_ERR_DATA,
        "message %zu is of role '%.40s'; system, user and assistant (human and gpt) can be trained", number,
        name);
}

static ot_status read_messages(const json_t *row, const char *list, const char *who, const char *what,
                               ot_row_turns *out)
{
    const json_t *messages = json_object_get(row, list), *tools = json_object_get(row, "tools");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return ot_fail(OT_ERR_DATA, "\"%s\" must be a list of messages; found %s", list,
                       json_is_array(messages) ? "an empty one" : type_name(messages));
    if (json_array_size(tools) > 0 || json_string_length(tools) > 0)
        return ot_fail(OT_ERR_DATA, "\"tools\": conversations with tools cannot be trained");
    if (list[0] == 'c' && is_given(row, "system"))
        OT_TRY(add_text(row, "system", OT_ROLE_SYSTEM, out));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i), *name = json_object_get(message, who);
        ot_role role = OT_ROLE_USER;
        if (!json_is_string(name))
            return ot_fail(OT_ERR_DATA, "message %zu of \"%s\" has no \"%s\"", i + 1, list, who);
        OT_TRY(find_role(json_string_value(name), i + 1, &role));
        if (json_array_size(json_object_get(message, "tool_calls")) > 0)
            return ot_fail(OT_ERR_DATA, "message %zu: \"tool_calls\" cannot be trained", i + 1);
        if (add_text(message, what, role, out) != OT_OK)
            return ot_fail(OT_ERR_DATA, "message %zu: %s", i + 1, ot_error_text());
    }
    return OT_OK;
}

/* Instruction and input as one question, for templates that know no input. */
static ot_status join(ot_row_turns *out, ot_turn *turn)
{
    size_t bytes = turn->bytes + 1 + turn->input_bytes;
    char *joined = realloc(out->joined, bytes);
    if (joined == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a conversation");
    memcpy(joined, turn->text, turn->bytes);
    joined[turn->bytes] = '\n';
    memcpy(joined + turn->bytes + 1, turn->input, turn->input_bytes);
    out->joined = joined;
    turn->text = joined;
    turn->bytes = bytes;
    turn->input = NULL;
    return OT_OK;
}

static ot_status read_alpaca(const json_t *row, int apart, ot_row_turns *out)
{
    ot_turn turn = {.role = OT_ROLE_USER};
    if (is_given(row, "system") && json_string_length(json_object_get(row, "system")) > 0)
        OT_TRY(add_text(row, "system", OT_ROLE_SYSTEM, out));
    OT_TRY(read_text(row, "instruction", &turn.text, &turn.bytes));
    if (is_given(row, "input"))
        OT_TRY(read_text(row, "input", &turn.input, &turn.input_bytes));
    if (turn.input_bytes == 0)
        turn.input = NULL;
    else if (!apart)
        OT_TRY(join(out, &turn));
    OT_TRY(add_turn(out, turn));
    return add_text(row, "output", OT_ROLE_ASSISTANT, out);
}

/* ---- rows ---- */

static ot_status read_turns(const json_t *row, ot_row_kind kind, int apart, ot_row_turns *out)
{
    switch (kind) {
    case OT_ROW_TEXT:
        return add_text(row, "text", OT_ROLE_USER, out);
    case OT_ROW_MESSAGES:
        return read_messages(row, "messages", "role", "content", out);
    case OT_ROW_SHAREGPT:
        return read_messages(row, "conversations", "from", "value", out);
    case OT_ROW_ALPACA:
        return read_alpaca(row, apart, out);
    default:
        OT_TRY(add_text(row, "prompt", OT_ROLE_USER, out));
        return add_text(row, "completion", OT_ROLE_ASSISTANT, out);
    }
}

ot_status ot_row_read(const json_t *row, ot_row_kind kind, ot_train_on train_on, int apart, ot_row_turns *out)
{
    out->count = 0;
    OT_TRY(check_kind(row, kind));
    OT_TRY(read_turns(row, kind, apart, out));
    if (train_on == OT_TRAIN_ON_COMPLETION)
        for (size_t i = 0; i + 1 < out->count; i++)
            out->turns[i].trained = 0;
    return OT_OK;
}
