/* Regular expressions of tokenizer files, which are written for Onigmo in Ruby's syntax, through PCRE2.
 *
 * Only what means the same in both, or can be spelled so, is let through; the rest is refused by name. Spelled anew: \s, which in
 * PCRE2 has U+180E in it, and the categories of characters, of which PCRE2's may be of an older Unicode. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "io/tokenizer_parts.h"

#define SPACE "\\t-\\r\\x{85}\\p{Z}"

typedef struct pattern {
    const char *text, *where;
    size_t bytes, at;
    int caseless; /* inside (?i: ), whose own depth is depth_caseless */
    size_t depth, depth_caseless;
    int quantifiable, in_class;
    ot_bytes out;
} pattern;

static ot_status refuse(const pattern *p, size_t length, const char *why)
{
    if (length > p->bytes - p->at)
        length = p->bytes - p->at;
    return ot_fail(OT_ERR_FORMAT, "%s: '%.*s' in the regular expression %.*s is not supported: %s", p->where,
                   (int)length, p->text + p->at, p->bytes > 400 ? 400 : (int)p->bytes, p->text, why);
}

/* Whether the pattern goes on with `text`. */
static int ahead(const pattern *p, const char *text)
{
    size_t length = strlen(text);
    return p->bytes - p->at >= length && memcmp(p->text + p->at, text, length) == 0;
}

static ot_status emit(pattern *p, size_t consumed, const char *text)
{
    p->at += consumed;
    return ot_bytes_add(&p->out, text, strlen(text));
}

static ot_status emit_same(pattern *p, size_t count)
{
    p->at += count;
    return ot_bytes_add(&p->out, p->text + p->at - count, count);
}

/* The class of a general category, as a class of its own or inside one. */
static ot_status emit_category(pattern *p, size_t consumed, const char *name, int negated)
{
    char own[16];
    snprintf(own, sizeof own, "%s\\p{%s}", p->in_class ? "" : negated ? "[^" : "[", name);
    OT_TRY(emit(p, consumed, own));
    OT_TRY(ot_unicode_newer(name, &p->out));
    return emit(p, 0, p->in_class ? "" : "]");
}

/* \p{L}, \P{Lu}, \p{^N}: general categories only, since scripts and the rest differ in name or in members. */
static ot_status property(pattern *p)
{
    static const char categories[] =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp "
        "Cc Cf ";
    char name[8] = " ";
    size_t length = 1, at = p->at + 3;
    if (!ahead(p, "\\p{") && !ahead(p, "\\P{"))
        return refuse(p, 3, "write \\p{L}");
    int caret = at < p->bytes && p->text[at] == '^', negated = caret ^ (p->text[p->at + 1] == 'P');
    at += (size_t)caret;
    while (at < p->bytes && isalpha((unsigned char)p->text[at]) && length < sizeof name - 2)
        name[length++] = p->text[at++];
    strcpy(name + length, " ");
    if (at == p->bytes || p->text[at] != '}' || strstr(categories, name) == NULL)
        return refuse(p, at - p->at + 1, "general categories such as \\p{L} are");
    if (p->caseless || (negated && p->in_class))
        return refuse(p, at - p->at + 1,
                      p->caseless ? "a property that ignores case" : "all but a property, in a class");
    name[length] = '\0';
    return emit_category(p, at + 1 - p->at, name + 1, negated);
}

/* \uHHHH and \x{H…} */
static ot_status code_point(pattern *p)
{
    int braces = p->text[p->at + 1] == 'x';
    size_t at = p->at + 2, digits = 0;
    if (braces && (at == p->bytes || p->text[at++] != '{'))
        return refuse(p, 4, "write \\x{41}");
    char text[16] = "\\x{";
    while (at < p->bytes && isxdigit((unsigned char)p->text[at]) && digits < (braces ? 6 : 4))
        text[3 + digits++] = p->text[at++];
    if (digits == 0 || (!braces && digits < 4) || (braces && (at == p->bytes || p->text[at++] != '}')))
        return refuse(p, at - p->at, "no such character");
    strcpy(text + 3 + digits, "}");
    return emit(p, at - p->at, text);
}

static ot_status escape(pattern *p)
{
    char c = p->at + 1 < p->bytes ? p->text[p->at + 1] : '\0';
    switch (c) {
    case 'p':
    case 'P':
        return property(p);
    case 'u':
    case 'x':
        return code_point(p);
    case 's':
        return emit(p, 2, p->in_class ? SPACE : "[" SPACE "]");
    case 'S':
        return p->in_class ? refuse(p, 2, "in a class") : emit(p, 2, "[^" SPACE "]");
    case 'd':
        return emit_category(p, 2, "Nd", 0);
    case 'D':
        return p->in_class ? refuse(p, 2, "in a class") : emit_category(p, 2, "Nd", 1);
    case 'r':
    case 'n':
    case 't':
        return emit_same(p, 2);
    default:
        return ispunct((unsigned char)c) ? emit_same(p, 2) : refuse(p, 2, "this escape");
    }
}

static ot_status character_class(pattern *p)
{
    if (p->caseless)
        return refuse(p, 1, "a class that ignores case");
    p->in_class = 1;
    OT_TRY(emit_same(p, 1));
    if (ahead(p, "^"))
        OT_TRY(emit_same(p, 1));
    if (ahead(p, "]"))
        return refuse(p, 1, "an empty class");
    while (p->at < p->bytes && p->text[p->at] != ']') {
        if (ahead(p, "[") || ahead(p, "&&"))
            return refuse(p, 2, "classes in classes and their intersections");
        OT_TRY(p->text[p->at] == '\\' ? escape(p) : emit_same(p, 1));
    }
    if (p->at == p->bytes)
        return refuse(p, 0, "a class without its end");
    p->in_class = 0;
    p->quantifiable = 1;
    return emit_same(p, 1);
}

static ot_status group(pattern *p)
{
    static const char *const kinds[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    size_t length = 1;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (ahead(p, kinds[i]))
            length = strlen(kinds[i]);
    if (length == 1 && (ahead(p, "(?") || ahead(p, "(*")))
        return refuse(p, 4, "this kind of group");
    p->depth++;
    if (ahead(p, "(?i:") && !p->caseless) {
        p->caseless = 1;
        p->depth_caseless = p->depth;
    }
    p->quantifiable = 0;
    return emit_same(p, length);
}

static ot_status group_end(pattern *p)
{
    if (p->depth == 0)
        return refuse(p, 1, "it closes nothing");
    if (p->caseless && p->depth == p->depth_caseless)
        p->caseless = 0;
    p->depth--;
    p->quantifiable = 1;
    return emit_same(p, 1);
}

/* ? * + with ? or + behind, {n}, {n,} and {n,m}. */
static ot_status quantifier(pattern *p)
{
    if (!p->quantifiable)
        return refuse(p, 1, "a quantifier here");
    size_t length = 1;
    if (p->text[p->at] == '{') {
        size_t left = p->bytes - p->at, digits = 0;
        const char *text = p->text + p->at;
        while (length < left && isdigit((unsigned char)text[length]))
            length++, digits++;
        length += digits > 0 && length < left && text[length] == ',';
        while (length < left && isdigit((unsigned char)text[length]))
            length++;
        if (digits == 0 || length == left || text[length] != '}')
            return refuse(p, length + 1, "write {1,3}");
        length++;
        if (length < left && strchr("?+", text[length]) != NULL)
            return refuse(p, length + 1, "a suffix of {n,m}");
    } else if (p->at + 1 < p->bytes && (p->text[p->at + 1] == '?' || p->text[p->at + 1] == '+')) {
        length = 2;
    }
    p->quantifiable = 0;
    return emit_same(p, length);
}

/* A character for itself. Ignoring case, Onigmo takes some pairs of letters for a ligature. */
static ot_status literal(pattern *p)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    for (size_t i = 0; p->caseless && i < sizeof pairs / sizeof *pairs && p->bytes - p->at >= 2; i++)
        if (strncasecmp(p->text + p->at, pairs[i], 2) == 0)
            return refuse(p, 2, "letters of a ligature, ignoring case");
    if (p->caseless && (unsigned char)p->text[p->at] >= 0x80)
        return refuse(p, 4, "a character beyond ASCII, ignoring case");
    p->quantifiable = 1;
    return emit_same(p, 1);
}

static ot_status translate(pattern *p)
{
    while (p->at < p->bytes) {
        switch (p->text[p->at]) {
        case '\\':
            OT_TRY(escape(p));
            p->quantifiable = 1;
            break;
        case '[':
            OT_TRY(character_class(p));
            break;
        case '(':
            OT_TRY(group(p));
            break;
        case ')':
            OT_TRY(group_end(p));
            break;
        case '?':
        case '*':
        case '+':
        case '{':
            OT_TRY(quantifier(p));
            break;
        case '|':
            p->quantifiable = 0;
            OT_TRY(emit_same(p, 1));
            break;
        case '^':
        case '$':
            return refuse(p, 1, "anchors of lines");
        default:
            OT_TRY(literal(p));
        }
    }
    return OT_OK;
}

static ot_status compile(const char *text, size_t bytes, uint32_t options, const char *where, ot_regex *out)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* "." is everything but \n */
    int error;
    size_t offset;
    out->code = pcre2_compile((PCRE2_SPTR)text, bytes, options | PCRE2_UTF, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (out->code == NULL) {
        char message[128];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
        return ot_fail(OT_ERR_FORMAT, "%s: the regular expression %.*s: %s", where,
                       bytes > 400 ? 400 : (int)bytes, text, message);
    }
    uint32_t matches_empty = 0;
    pcre2_pattern_info(out->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty)
        return ot_fail(OT_ERR_FORMAT,
                       "%s: the regular expression %.*s matches nothing at all, which is not supported",
                       where, bytes > 400 ? 400 : (int)bytes, text);
    out->jit = pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE) == 0;
    return OT_OK;
}

ot_status ot_regex_compile(const char *text, size_t bytes, int literal_text, const char *where, ot_regex *out)
{
    if (bytes == 0 || bytes > 1 << 16)
        return ot_fail(OT_ERR_FORMAT, "%s: a pattern of %zu bytes; 1 to 65536 are supported", where, bytes);
    if (literal_text)
        return compile(text, bytes, PCRE2_LITERAL, where, out);
    pattern p = {.text = text, .bytes = bytes, .where = where};
    ot_status status = translate(&p);
    if (status == OT_OK)
        status = compile(p.out.data, p.out.count, PCRE2_UCP, where, out);
    free(p.out.data);
    return status;
}

void ot_regex_free(ot_regex *regex)
{
    pcre2_code_free(regex->code);
    *regex = (ot_regex){0};
}

ot_status ot_regex_next(const ot_regex *regex, ot_encoder *encoder, const char *text, size_t bytes,
                        size_t from, int *found, size_t *begin, size_t *end)
{
    int rc = regex->jit ? pcre2_jit_match(regex->code, (PCRE2_SPTR)text, bytes, from, 0, encoder->match,
                                          encoder->context)
                        : pcre2_match(regex->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK,
                                      encoder->match, encoder->context);
    *found = rc >= 0;
    if (rc >= 0) {
        const size_t *offsets = pcre2_get_ovector_pointer(encoder->match);
        *begin = offsets[0];
        *end = offsets[1];
        return OT_OK;
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return OT_OK;
    char message[128];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
    return ot_fail(OT_ERR_DATA,
                   "the tokenizer's regular expression fails on a text of %zu bytes at byte %zu: %s", bytes,
                   from, message);
}
