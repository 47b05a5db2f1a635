/* Pre-tokenisation: a text through the steps of the file, each of which cuts what the one before left, into words. */
#include <string.h>

#include "io/tokenizer_parts.h"

/* The pieces that a step hands on. What may still grow waits in `held`. */
typedef struct cutter {
    ot_encoder *encoder;
    const ot_split_step *step;
    size_t next; /* step */
    const char *text;
    int first, has_held, held_match;
    size_t held_begin, held_end;
} cutter;

static ot_status hand_on(const cutter *cut, size_t begin, size_t end)
{
    return ot_split(cut->encoder, cut->next, cut->text + begin, end - begin, cut->first && begin == 0);
}

static ot_status release(cutter *cut)
{
    if (!cut->has_held)
        return OT_OK;
    cut->has_held = 0;
    return hand_on(cut, cut->held_begin, cut->held_end);
}

/* One stretch of the text, which matched or did not. */
static ot_status stretch(cutter *cut, size_t begin, size_t end, int match)
{
    match ^= cut->step->invert;
    int joins = 0;
    switch (cut->step->behaviour) {
    case OT_SPLIT_REMOVED:
        return match ? OT_OK : hand_on(cut, begin, end);
    case OT_SPLIT_ISOLATED:
        return hand_on(cut, begin, end);
    case OT_SPLIT_CONTIGUOUS:
        joins = match == cut->held_match;
        break;
    case OT_SPLIT_PREVIOUS:
        joins = match && !cut->held_match;
        break;
    case OT_SPLIT_NEXT:
        joins = !match && cut->held_match;
        break;
    }
    if (cut->has_held && joins) {
        cut->held_end = end;
    } else {
        OT_TRY(release(cut));
        cut->has_held = 1;
        cut->held_begin = begin;
        cut->held_end = end;
    }
    cut->held_match = match;
    return OT_OK;
}

static ot_status cut_text(ot_encoder *encoder, size_t step, const char *text, size_t bytes, int first)
{
    cutter cut = {.encoder = encoder,
                  .step = &encoder->of->split_steps[step],
                  .next = step + 1,
                  .text = text,
                  .first = first};
    size_t done = 0;
    while (done < bytes) {
        int found;
        size_t begin, end;
        OT_TRY(ot_regex_next(&cut.step->regex, encoder, text, bytes, done, &found, &begin, &end));
        if (!found)
            break;
        if (begin > done)
            OT_TRY(stretch(&cut, done, begin, 0));
        OT_TRY(stretch(&cut, begin, end, 1));
        done = end;
    }
    if (done < bytes)
        OT_TRY(stretch(&cut, done, bytes, 0));
    return release(&cut);
}

static ot_status put_in_front(ot_encoder *encoder, size_t step, const char *text, size_t bytes, int first)
{
    const ot_split_step *prefix = &encoder->of->split_steps[step];
    ot_bytes *out = &encoder->prefixed[step];
    out->count = 0;
    OT_TRY(ot_bytes_reserve(out, (bytes + 1) * prefix->space_bytes + 1));
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ') {
            memcpy(out->data + out->count, prefix->space, prefix->space_bytes);
            out->count += prefix->space_bytes;
        } else {
            out->data[out->count++] = text[i];
        }
    }
    int has = out->count >= prefix->space_bytes && memcmp(out->data, prefix->space, prefix->space_bytes) == 0;
    if (!has && (prefix->scheme == OT_PREPEND_ALWAYS || (prefix->scheme == OT_PREPEND_FIRST && first))) {
        memmove(out->data + prefix->space_bytes, out->data, out->count);
        memcpy(out->data, prefix->space, prefix->space_bytes);
        out->count += prefix->space_bytes;
    }
    return ot_split(encoder, step + 1, out->data, out->count, first);
}

ot_status ot_split(ot_encoder *encoder, size_t step, const char *text, size_t bytes, int first)
{
    if (step == encoder->of->split_count)
        return ot_bpe(encoder, text, bytes);
    return encoder->of->split_steps[step].kind == OT_STEP_SPLIT
               ? cut_text(encoder, step, text, bytes, first)
               : put_in_front(encoder, step, text, bytes, first);
}

/* Reading the file's "pre_tokenizer". */

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static ot_status new_step(ot_tokenizer *tokenizer, ot_split_step **out)
{
    if (tokenizer->byte_level)
        return ot_fail(OT_ERR_FORMAT, "%s: pre_tokenizer: something behind ByteLevel, which must be the last",
                       tokenizer->path);
    if (tokenizer->split_count == OT_STEPS_MAX)
        return ot_fail(OT_ERR_FORMAT, "%s: pre_tokenizer has more than %d steps", tokenizer->path,
                       OT_STEPS_MAX);
    *out = &tokenizer->split_steps[tokenizer->split_count++];
    return OT_OK;
}

static ot_status read_behaviour(const json_t *node, const char *path, ot_split_behaviour *out)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *name = "Isolated";
    size_t bytes;
    if (json_object_get(node, "behavior") != NULL)
        OT_TRY(ot_json_text(node, "behavior", path, &name, &bytes));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (ot_split_behaviour)i;
            return OT_OK;
        }
    }
    return ot_fail(OT_ERR_FORMAT, "%s: pre_tokenizer: unknown behavior '%s'", path, name);
}

static ot_status read_byte_level(ot_tokenizer *tokenizer, const json_t *node)
{
    int prefix, regex;
    OT_TRY(ot_json_flag(node, "add_prefix_space", 1, tokenizer->path, &prefix));
    OT_TRY(ot_json_flag(node, "use_regex", 1, tokenizer->path, &regex));
    ot_split_step *step = NULL;
    if (prefix) {
        OT_TRY(new_step(tokenizer, &step));
        *step = (ot_split_step){
            .kind = OT_STEP_PREFIX, .space = " ", .space_bytes = 1, .scheme = OT_PREPEND_ALWAYS};
    }
    if (regex) {
        OT_TRY(new_step(tokenizer, &step));
        OT_TRY(ot_regex_compile(gpt2_pattern, sizeof gpt2_pattern - 1, 0, tokenizer->path, &step->regex));
    }
    tokenizer->byte_level = 1;
    return OT_OK;
}

static ot_status read_metaspace(ot_tokenizer *tokenizer, const json_t *node)
{
    ot_split_step *step = NULL;
    OT_TRY(new_step(tokenizer, &step));
    step->kind = OT_STEP_PREFIX;
    const char *space;
    int split;
    OT_TRY(ot_json_text(node, "replacement", tokenizer->path, &space, &step->space_bytes));
    if (step->space_bytes == 0 || step->space_bytes >= sizeof step->space)
        return ot_fail(OT_ERR_FORMAT, "%s: pre_tokenizer: Metaspace's replacement '%s' is not one character",
                       tokenizer->path, space);
    memcpy(step->space, space, step->space_bytes);
    OT_TRY(ot_json_scheme(node, tokenizer->path, &step->scheme));
    OT_TRY(ot_json_flag(node, "split", 1, tokenizer->path, &split));
    if (!split)
        return OT_OK;
    size_t bytes = step->space_bytes;
    OT_TRY(new_step(tokenizer, &step));
    step->behaviour = OT_SPLIT_NEXT;
    return ot_regex_compile(space, bytes, 1, tokenizer->path, &step->regex);
}

/* What Hugging Face splits at by a property of characters. */
static ot_status read_characters(ot_tokenizer *tokenizer, const char *pattern, ot_split_behaviour behaviour)
{
    ot_split_step *step = NULL;
    OT_TRY(new_step(tokenizer, &step));
    step->behaviour = behaviour;
    return ot_regex_compile(pattern, strlen(pattern), 0, tokenizer->path, &step->regex);
}

static ot_status read_split(ot_tokenizer *tokenizer, const json_t *node)
{
    ot_split_step *step = NULL;
    OT_TRY(new_step(tokenizer, &step));
    OT_TRY(read_behaviour(node, tokenizer->path, &step->behaviour));
    OT_TRY(ot_json_flag(node, "invert", 0, tokenizer->path, &step->invert));
    return ot_json_pattern(node, tokenizer->path, &step->regex);
}

static ot_status read_step(ot_tokenizer *tokenizer, const json_t *node, int depth)
{
    const char *type;
    size_t bytes;
    OT_TRY(ot_json_text(node, "type", tokenizer->path, &type, &bytes));
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        const json_t *list = json_object_get(node, "pretokenizers");
        if (!json_is_array(list))
            return ot_fail(OT_ERR_FORMAT, "%s: pre_tokenizer: Sequence without 'pretokenizers'",
                           tokenizer->path);
        for (size_t i = 0; i < json_array_size(list); i++)
            OT_TRY(read_step(tokenizer, json_array_get(list, i), depth + 1));
        return OT_OK;
    }
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(tokenizer, node);
    if (strcmp(type, "Split") == 0)
        return read_split(tokenizer, node);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(tokenizer, node);
    if (strcmp(type, "Digits") == 0) {
        int each;
        OT_TRY(ot_json_flag(node, "individual_digits", 0, tokenizer->path, &each));
        /* Rust's digits are of Unicode 17. */
        return read_characters(tokenizer, "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]",
                               each ? OT_SPLIT_ISOLATED : OT_SPLIT_CONTIGUOUS);
    }
    if (strcmp(type, "WhitespaceSplit") == 0)
        return read_characters(tokenizer, "\\s", OT_SPLIT_REMOVED);
    return ot_fail(
        OT_ERR_FORMAT,
        "%s: the pre_tokenizer '%s' is not supported; Sequence, ByteLevel, Split, Metaspace, Digits "
        "and WhitespaceSplit are",
        tokenizer->path, type);
}

ot_status ot_tokenizer_read_splits(ot_tokenizer *tokenizer, const json_t *node)
{
    return node == NULL || json_is_null(node) ? OT_OK : read_step(tokenizer, node, 0);
}
