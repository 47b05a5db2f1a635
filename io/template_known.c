/* The known templates, each as its publisher's Jinja text renders. */
#include <stdlib.h>
#include <string.h>

#include "io/grow.h"
#include "io/template_state.h"

const char *const ot_style_names[OT_STYLES] = {"none",  "chatml", "llama2", "llama3", "mistral",
                                               "gemma", "phi3",   "zephyr", "alpaca"};

static const char *const no_markers[] = {NULL};
static const char *const chatml_markers[] = {"<|im_start|>", "<|im_end|>", "<think>", "</think>", NULL};
static const char *const llama3_markers[] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", NULL};
static const char *const inst_markers[] = {"[INST]", "[/INST]", NULL};
static const char *const gemma_markers[] = {"<start_of_turn>", "<end_of_turn>", NULL};
static const char *const phi3_markers[] = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>", NULL};

const char *const *ot_style_markers(ot_style style)
{
    static const char *const *const markers[OT_STYLES] = {
        [OT_STYLE_NONE] = no_markers,      [OT_STYLE_CHATML] = chatml_markers,
        [OT_STYLE_LLAMA2] = inst_markers,  [OT_STYLE_LLAMA3] = llama3_markers,
        [OT_STYLE_MISTRAL] = inst_markers, [OT_STYLE_GEMMA] = gemma_markers,
        [OT_STYLE_PHI3] = phi3_markers,    [OT_STYLE_ZEPHYR] = phi3_markers,
        [OT_STYLE_ALPACA] = no_markers};
    return markers[style];
}

/* ---- segments ---- */

static void add(ot_segments *to, ot_segment_kind kind, const char *text, size_t bytes, int trained)
{
    if (kind == OT_SEGMENT_TEXT && bytes == 0)
        return;
    if (ot_grow(&to->items, &to->capacity, to->count + 1, sizeof *to->items, "a conversation") != OT_OK) {
        to->failed = 1;
        return;
    }
    to->items[to->count++] = (ot_segment){kind, trained, text, bytes};
}

static void text(ot_segments *to, const char *literal)
{
    add(to, OT_SEGMENT_TEXT, literal, strlen(literal), 0);
}

static void marker(ot_segments *to, const char *literal, int trained)
{
    add(to, OT_SEGMENT_MARKER, literal, strlen(literal), trained);
}

static void special(ot_segments *to, ot_segment_kind kind, int trained)
{
    add(to, kind, NULL, 0, trained);
}

/* A literal with [INST] or [/INST] in it. */
static void literal_with(ot_segments *to, const char *literal, const char *mark)
{
    const char *found = strstr(literal, mark);
    if (found == NULL) {
        text(to, literal);
        return;
    }
    add(to, OT_SEGMENT_TEXT, literal, (size_t)(found - literal), 0);
    marker(to, mark, 0);
    text(to, found + strlen(mark));
}

/* ---- turns ---- */

typedef struct span {
    const char *text;
    size_t bytes;
} span;

/* Bytes of a character that Python's strip() takes away, at the start of `text`; 0: it is none. */
static size_t space_bytes(const unsigned char *c, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (c[0] == ' ' || (c[0] >= '\t' && c[0] <= '\r') || (c[0] >= 0x1c && c[0] <= 0x1f))
        return 1;
    if (bytes >= 2 && c[0] == 0xc2 && (c[1] == 0x85 || c[1] == 0xa0))
        return 2;
    if (bytes < 3)
        return 0;
    unsigned three = (unsigned)c[0] << 16 | (unsigned)c[1] << 8 | c[2];
    int is_space = three == 0xe19a80 || (three >= 0xe28080 && three <= 0xe2808a) || three == 0xe280a8 ||
                   three == 0xe280a9 || three == 0xe280af || three == 0xe2819f || three == 0xe38080;
    return is_space ? 3 : 0;
}

static span strip(span s)
{
    size_t n;
    while ((n = space_bytes((const unsigned char *)s.text, s.bytes)) > 0)
        s = (span){s.text + n, s.bytes - n};
    for (int found = 1; found;) {
        found = 0;
        for (n = 1; n <= 3 && n <= s.bytes && !found; n++)
            if (space_bytes((const unsigned char *)s.text + s.bytes - n, n) == n) {
                s.bytes -= n;
                found = 1;
            }
    }
    return s;
}

static span strip_newlines(span s, int left, int right)
{
    while (left && s.bytes > 0 && s.text[0] == '\n')
        s = (span){s.text + 1, s.bytes - 1};
    while (right && s.bytes > 0 && s.text[s.bytes - 1] == '\n')
        s.bytes--;
    return s;
}

static span content(const ot_turn *turn)
{
    return (span){turn->text, turn->bytes};
}

static int trained(const ot_turn *turn)
{
    return turn->role == OT_ROLE_ASSISTANT && turn->trained;
}

static void say(ot_segments *to, span s, int is_trained)
{
    add(to, OT_SEGMENT_TEXT, s.text, s.bytes, is_trained);
}

static const char *role_name(ot_role role)
{
    static const char *const names[] = {"system", "user", "assistant"};
    return names[role];
}

/* What the published templates raise: after a system turn, user and assistant take turns. */
static ot_status check_alternation(const ot_template *chat, const ot_turn *turns, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ot_role wanted = i % 2 == 0 ? OT_ROLE_USER : OT_ROLE_ASSISTANT;
        if (turns[i].role != wanted)
            return ot_fail(OT_ERR_DATA,
                           "message %zu is of role %s where %s is expected: roles alternate in the chat "
                           "template %s, after a system message at most",
                           i + 1, role_name(turns[i].role), role_name(wanted), ot_style_names[chat->style]);
    }
    return OT_OK;
}

/* Takes a system turn off the front. */
static const ot_turn *take_system(const ot_turn **turns, size_t *count)
{
    if (*count == 0 || (*turns)->role != OT_ROLE_SYSTEM)
        return NULL;
    ++*turns, --*count;
    return *turns - 1;
}

static ot_status check_system(const ot_template *chat, const ot_turn *system)
{
    if (system == NULL || !chat->no_system)
        return OT_OK;
    return ot_fail(OT_ERR_DATA,
                   "a system message, which this model's chat template (%s) does not have; put it into the "
                   "first user message",
                   ot_style_names[chat->style]);
}

/* ---- the templates ---- */

static span after_last(span s, const char *word)
{
    size_t length = strlen(word);
    for (size_t at = s.bytes; at >= length; at--)
        if (memcmp(s.text + at - length, word, length) == 0)
            return (span){s.text + at, s.bytes - at};
    return s;
}

/* Qwen3: what was thought is kept behind the last question only, and the last answer always has a place for it. */
static void say_with_thought(ot_segments *to, const ot_turn *turn, int behind_question, int last)
{
    span said = content(turn), thought = {"", 0};
    const char *end = memmem(turn->text, turn->bytes, "</think>", 8);
    if (end != NULL) {
        said = strip_newlines(after_last(said, "</think>"), 1, 0);
        thought = strip_newlines((span){turn->text, (size_t)(end - turn->text)}, 0, 1);
        thought = strip_newlines(after_last(thought, "<think>"), 1, 0);
    }
    if (behind_question && (last || thought.bytes > 0)) {
        int is_trained = trained(turn);
        marker(to, "<think>", is_trained);
        add(to, OT_SEGMENT_TEXT, "\n", 1, is_trained);
        say(to, strip_newlines(thought, 1, 1), is_trained);
        add(to, OT_SEGMENT_TEXT, "\n", 1, is_trained);
        marker(to, "</think>", is_trained);
        add(to, OT_SEGMENT_TEXT, "\n\n", 2, is_trained);
        said = strip_newlines(said, 1, 0);
    }
    say(to, said, trained(turn));
}

static void chatml_head(ot_segments *to, ot_role role)
{
    marker(to, "<|im_start|>", 0);
    text(to, role_name(role));
    text(to, "\n");
}

static void chatml(const ot_template *chat, const ot_turn *turns, size_t count, ot_segments *to)
{
    size_t question = count;
    for (size_t i = 0; i < count; i++)
        if (turns[i].role == OT_ROLE_USER)
            question = i;
    if (chat->system != NULL && (count == 0 || turns[0].role != OT_ROLE_SYSTEM)) {
        chatml_head(to, OT_ROLE_SYSTEM);
        text(to, chat->system);
        marker(to, "<|im_end|>", 0);
        text(to, "\n");
    }
    for (size_t i = 0; i < count; i++) {
        chatml_head(to, turns[i].role);
        if (chat->thinks && turns[i].role == OT_ROLE_ASSISTANT)
            say_with_thought(to, &turns[i], question < count && i > question, i + 1 == count);
        else
            say(to, content(&turns[i]), trained(&turns[i]));
        marker(to, "<|im_end|>", trained(&turns[i]));
        text(to, "\n");
    }
}

static void llama3_head(ot_segments *to, ot_role role)
{
    marker(to, "<|start_header_id|>", 0);
    text(to, role_name(role));
    marker(to, "<|end_header_id|>", 0);
    text(to, "\n\n");
}

static void llama3(const ot_template *chat, const ot_turn *turns, size_t count, ot_segments *to)
{
    if (chat->dated) {
        const ot_turn *system = take_system(&turns, &count);
        llama3_head(to, OT_ROLE_SYSTEM);
        text(to, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
        if (system != NULL)
            say(to, strip(content(system)), 0);
        marker(to, "<|eot_id|>", 0);
    }
    for (size_t i = 0; i < count; i++) {
        llama3_head(to, turns[i].role);
        say(to, strip(content(&turns[i])), trained(&turns[i]));
        marker(to, "<|eot_id|>", trained(&turns[i]));
    }
}

/* Llama-2 was taught conversations as question and answer pairs, each a text of its own: BOS before every question. The first is
 * the conversation's. */
static ot_status llama2(const ot_template *chat, const ot_turn *turns, size_t count, ot_segments *to)
{
    const ot_turn *system = take_system(&turns, &count);
    OT_TRY(check_alternation(chat, turns, count));
    for (size_t i = 0; i < count; i++) {
        span said = strip(content(&turns[i]));
        if (turns[i].role == OT_ROLE_ASSISTANT) {
            add(to, OT_SEGMENT_TEXT, " ", 1, trained(&turns[i]));
            say(to, said, trained(&turns[i]));
            add(to, OT_SEGMENT_TEXT, " ", 1, trained(&turns[i]));
            special(to, OT_SEGMENT_EOS, trained(&turns[i]));
            continue;
        }
        if (i > 0 && chat->bos_each)
            special(to, OT_SEGMENT_BOS, 0);
        marker(to, "[INST]", 0);
        text(to, " ");
        if (i == 0 &&
            system != NULL) { /* the whole is stripped, so what stands at the question's start stays */
            text(to, "<<SYS>>\n");
            say(to, content(system), 0);
            text(to, said.bytes > 0 ? "\n<</SYS>>\n\n" : "\n<</SYS>>");
            if (said.bytes > 0)
                said = (span){turns[i].text, (size_t)(said.text - turns[i].text) + said.bytes};
        }
        say(to, said, 0);
        text(to, " ");
        marker(to, "[/INST]", 0);
    }
    return OT_OK;
}

static ot_status mistral(const ot_template *chat, const ot_turn *turns, size_t count, ot_segments *to)
{
    const ot_turn *system = take_system(&turns, &count);
    OT_TRY(check_system(chat, system));
    OT_TRY(check_alternation(chat, turns, count));
    size_t place = 0; /* of the system text: version 0.3 has it before the question that is asked last */
    if (chat->system_last)
        place = count == 0 ? 0 : (count - 1) & ~(size_t)1;
    for (size_t i = 0; i < count; i++) {
        span said = content(&turns[i]);
        if (turns[i].role == OT_ROLE_USER) {
            literal_with(to, chat->open, "[INST]");
            if (system != NULL && i == place) {
                say(to, content(system), 0);
                text(to, "\n\n");
            }
            say(to, said, 0);
            literal_with(to, chat->close, "[/INST]");
            continue;
        }
        if (chat->space)
            add(to, OT_SEGMENT_TEXT, " ", 1, trained(&turns[i]));
        say(to, chat->trim ? strip(said) : said, trained(&turns[i]));
        special(to, OT_SEGMENT_EOS, trained(&turns[i]));
        if (chat->gap)
            text(to, " ");
    }
    return OT_OK;
}

static ot_status gemma(const ot_template *chat, const ot_turn *turns, size_t count, ot_segments *to)
{
    const ot_turn *system = take_system(&turns, &count);
    OT_TRY(check_system(chat, system));
    OT_TRY(check_alternation(chat, turns, count));
    for (size_t i = 0; i < count; i++) {
        marker(to, "<start_of_turn>", 0);
        text(to, turns[i].role == OT_ROLE_ASSISTANT ? "model\n" : "user\n");
        if (i == 0 && system != NULL) {
            say(to, content(system), 0);
            text(to, "\n\n");
        }
        say(to, strip(content(&turns[i])), trained(&turns[i]));
        marker(to, "<end_of_turn>", trained(&turns[i]));
        text(to, "\n");
    }
    return OT_OK;
}

static void phi3(const ot_template *chat, const ot_turn *turns, size_t count, ot_segments *to)
{
    static const char *const heads[] = {"<|system|>", "<|user|>", "<|assistant|>"};
    for (size_t i = 0; i < count; i++) {
        marker(to, heads[turns[i].role], 0);
        text(to, "\n");
        say(to, content(&turns[i]), trained(&turns[i]));
        if (chat->style == OT_STYLE_ZEPHYR)
            special(to, OT_SEGMENT_EOS, trained(&turns[i]));
        else
            marker(to, "<|end|>", trained(&turns[i]));
        text(to, "\n");
    }
    if (chat->final_eos)
        special(to, OT_SEGMENT_EOS, 0);
}

/* Stanford Alpaca's prompts, and conversations as more of the same. */
static ot_status alpaca(const ot_template *chat, const ot_turn *turns, size_t count, ot_segments *to)
{
    static const char plain[] = "Below is an instruction that describes a task. Write a response that "
                                "appropriately completes the request.";
    static const char with_input[] =
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.";
    const ot_turn *system = take_system(&turns, &count);
    OT_TRY(check_alternation(chat, turns, count));
    if (system != NULL)
        say(to, content(system), 0);
    else
        text(to, count > 0 && turns[0].input != NULL ? with_input : plain);
    for (size_t i = 0; i < count; i++) {
        if (turns[i].role == OT_ROLE_ASSISTANT) {
            say(to, content(&turns[i]), trained(&turns[i]));
            special(to, OT_SEGMENT_EOS, trained(&turns[i]));
            continue;
        }
        text(to, "\n\n### Instruction:\n");
        say(to, content(&turns[i]), 0);
        if (turns[i].input != NULL) {
            text(to, "\n\n### Input:\n");
            add(to, OT_SEGMENT_TEXT, turns[i].input, turns[i].input_bytes, 0);
        }
        text(to, "\n\n### Response:\n");
    }
    return OT_OK;
}

static ot_status none(const ot_turn *turns, size_t count, ot_segments *to)
{
    if (count != 2 || turns[0].role != OT_ROLE_USER || turns[1].role != OT_ROLE_ASSISTANT)
        return ot_fail(OT_ERR_DATA, "a conversation needs a chat template; --template names one");
    say(to, content(&turns[0]), 0);
    say(to, content(&turns[1]), trained(&turns[1]));
    special(to, OT_SEGMENT_EOS, trained(&turns[1]));
    return OT_OK;
}

ot_status ot_template_render(const ot_template *chat, const ot_turn *turns, size_t count, ot_segments *out)
{
    out->count = 0;
    ot_status status = OT_OK;
    if (chat->bos)
        special(out, OT_SEGMENT_BOS, 0);
    switch (chat->style) {
    case OT_STYLE_CHATML:
        chatml(chat, turns, count, out);
        break;
    case OT_STYLE_LLAMA3:
        llama3(chat, turns, count, out);
        break;
    case OT_STYLE_PHI3:
    case OT_STYLE_ZEPHYR:
        phi3(chat, turns, count, out);
        break;
    case OT_STYLE_LLAMA2:
        status = llama2(chat, turns, count, out);
        break;
    case OT_STYLE_MISTRAL:
        status = mistral(chat, turns, count, out);
        break;
    case OT_STYLE_GEMMA:
        status = gemma(chat, turns, count, out);
        break;
    case OT_STYLE_ALPACA:
        status = alpaca(chat, turns, count, out);
        break;
    default:
        status = none(turns, count, out);
    }
    if (status == OT_OK && out->failed)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a conversation");
    return status;
}
