/* The built-in sample: short stories from a small grammar. It is regular enough that a small model learns its words within
 * seconds and its sentences within minutes. */
#include <stdlib.h>
#include <string.h>

#include "engine/data.h"
#include "kernels/random.h"

enum { SAMPLE_BYTES = 1000000, SAMPLE_SEED = 20260101 };

static const char *const names[] = {"Anna",  "Ben",   "Clara", "David", "Emma",
                                    "Felix", "Greta", "Hugo",  "Ida",   "Jonas"};
static const char *const places[] = {"the harbour", "the old mill",  "the market", "the forest",
                                     "the library", "the long hill", "the river",  "the station"};
static const char *const things[] = {"a brass key",       "a red kite",     "a letter",     "a small drum",
                                     "a basket of pears", "a wooden horse", "a green coat", "an old map",
                                     "a lantern",         "a silver coin"};
static const char *const colours[] = {"pale", "golden", "dark", "clear", "grey", "bright"};
static const char *const times[] = {
    "In the morning",     "At noon", "In the evening", "After the rain", "On the first day of spring",
    "When the bells rang"};
static const char *const feelings[] = {"glad", "tired", "curious", "quiet", "proud", "afraid"};

/* A sentence: text in which % and a letter stand for a word from a list; the same letter is the same word in one story. */
static const char *const openings[] = {
    "%T %A went to %P with %O.\n",
    "%T the sky over %P was %C, and %A found %O there.\n",
    "%A and %B lived near %P, and they had %O.\n",
};
static const char *const middles[] = {
    "\"Where did you get %O?\" asked %B.\n",
    "\"I found it at %P,\" said %A, \"and I will give it back.\"\n",
    "They walked from %P to %Q, and the light was %C.\n",
    "%B was %F, but %A was not.\n",
    "At %Q they met somebody who had lost %O.\n",
    "%A looked at %B and counted: one, two, three, four, five.\n",
    "The road to %Q was long, so %A and %B sang a song.\n",
};
static const char *const endings[] = {
    "So %A kept %O, and %B was %F.\n\n",
    "In the end they all went home from %Q, and everybody was %F.\n\n",
    "%T %A came back to %P once more, and nothing had changed.\n\n",
};

typedef struct story {
    uint64_t number, drawn; /* the generator's counter */
    const char *word[26];   /* by letter */
} story;

static size_t draw(story *s, size_t count)
{
    uint32_t word[4];
    ot_philox(SAMPLE_SEED, s->drawn++, s->number, word);
    return (size_t)(((uint64_t)word[0] * count) >> 32);
}

#define PICK(s, list) ((list)[draw((s), sizeof(list) / sizeof *(list))])

static void cast(story *s)
{
    size_t a = draw(s, sizeof names / sizeof *names), p = draw(s, sizeof places / sizeof *places);
    s->word['A' - 'A'] = names[a];
    s->word['B' - 'A'] = names[(a + 1 + draw(s, 9)) % 10];
    s->word['P' - 'A'] = places[p];
    s->word['Q' - 'A'] = places[(p + 1 + draw(s, 7)) % 8];
    s->word['O' - 'A'] = PICK(s, things);
    s->word['C' - 'A'] = PICK(s, colours);
    s->word['F' - 'A'] = PICK(s, feelings);
    s->word['T' - 'A'] = PICK(s, times);
}

static size_t append(const story *s, const char *sentence, char *out)
{
    char *at = out;
    for (const char *c = sentence; *c != '\0'; c++)
        if (*c == '%') {
            const char *word = s->word[*++c - 'A'];
            at = stpcpy(at, word);
        } else
            *at++ = *c;
    return (size_t)(at - out);
}

char *ot_builtin_text(size_t *bytes)
{
    enum { STORY_BYTES_MAX = 2048 };
    char *text = malloc(SAMPLE_BYTES + STORY_BYTES_MAX);
    if (text == NULL)
        return NULL;
    size_t length = 0;
    for (uint64_t number = 0; length < SAMPLE_BYTES; number++) {
        story s = {.number = number};
        cast(&s);
        length += append(&s, PICK(&s, openings), text + length);
        for (size_t i = 2 + draw(&s, 3); i > 0; i--)
            length += append(&s, PICK(&s, middles), text + length);
        length += append(&s, PICK(&s, endings), text + length);
    }
    *bytes = SAMPLE_BYTES;
    return text;
}
