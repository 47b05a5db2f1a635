/* --place weights=device,states=host:40%,grads=auto,acts=nvme */
#include <stdlib.h>
#include <string.h>

#include "io/text.h"
#include "tools/train_flags.h"

static const char *const plane_words[] = {"weights", "states", "grads", "acts"};
static const char *const tier_words[] = {"device", "host", "nvme", "auto"};
enum { PLANE_WORDS = 4, TIER_WORDS = 4, WORD_BYTES = 32, AUTO_WORD = OT_TIERS };

/* The number of the word among `words`, or -1. */
static int find_word(const char *word, const char *const words[], int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    return -1;
}

static ot_status unknown_word(const char *entry, const char *what, const char *word,
                              const char *const words[], int count)
{
    const char *nearest = ot_nearest_name(word, words, (size_t)count);
    char all[128] = "";
    for (int i = 0; i < count; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s",
                 i == 0          ? ""
                 : i + 1 < count ? ", "
                                 : " and ",
                 words[i]);
    if (nearest != NULL)
        return ot_fail(OT_ERR_USAGE, "--place %s: '%s' is no %s; did you mean %s?", entry, word, what,
                       nearest);
    return ot_fail(OT_ERR_USAGE, "--place %s: '%s' is no %s; there are %s", entry, word, what, all);
}

/* "40%", "0.4" → 0.4 */
static ot_status parse_share(const char *entry, const char *text, double *share)
{
    char *end;
    double value = strtod(text, &end);
    int percent = *end == '%';
    if (end == text || end[percent] != '\0' || !(value >= 0 && value <= (percent ? 100 : 1)))
        return ot_fail(OT_ERR_USAGE, "--place %s: '%s' is no share; write 40%% or 0.4", entry, text);
    *share = percent ? value / 100 : value;
    return OT_OK;
}

/* What the plan takes: gradients are with their states on the device, but not without them. */
static ot_status check_tier(const char *entry, int plane, int tier)
{
    if (tier == OT_TIER_DEVICE && plane == 2)
        return ot_fail(
            OT_ERR_USAGE,
            "--place %s: gradients stay on the device where states=device; write host or nvme for the others",
            entry);
    return OT_OK;
}

static ot_status parse_entry(const char *entry, int *plane, ot_placement *out)
{
    char name[WORD_BYTES], tier[WORD_BYTES];
    const char *equals = strchr(entry, '='), *colon = equals != NULL ? strchr(equals, ':') : NULL;
    if (equals == NULL)
        return ot_fail(OT_ERR_USAGE,
                       "--place %s: write PLANE=TIER, for example states=host or weights=device:50%%", entry);
    snprintf(name, sizeof name, "%.*s", (int)(equals - entry), entry);
    snprintf(tier, sizeof tier, "%.*s", colon != NULL ? (int)(colon - equals - 1) : (int)strlen(equals + 1),
             equals + 1);
    *plane = find_word(name, plane_words, PLANE_WORDS);
    if (*plane < 0)
        return unknown_word(entry, "plane", name, plane_words, PLANE_WORDS);
    int where = find_word(tier, tier_words, TIER_WORDS);
    if (where < 0)
        return unknown_word(entry, "tier", tier, tier_words, TIER_WORDS);
    if (where == AUTO_WORD && colon != NULL)
        return ot_fail(OT_ERR_USAGE, "--place %s: auto takes no share", entry);
    OT_TRY(check_tier(entry, *plane, where));
    *out = where == AUTO_WORD ? (ot_placement){.automatic = 1} : (ot_placement){0, (ot_tier)where, 1};
    if (colon != NULL)
        OT_TRY(parse_share(entry, colon + 1, &out->share));
    if (out->share == 0 && where == OT_TIER_DEVICE) /* which the plan would take for no placement */
        *out = (ot_placement){0, OT_TIER_HOST, 1};
    return OT_OK;
}

/* With all states on the device nothing of weights and gradients is anywhere else. */
static ot_status check_together(const ot_places *places)
{
    const ot_placement *states = &places->states, *others[] = {&places->weights, &places->grads};
    static const char *const names[] = {"weights", "grads"};
    if (states->automatic || states->tier != OT_TIER_DEVICE || states->share < 1)
        return OT_OK;
    for (int i = 0; i < 2; i++)
        if (!others[i]->automatic && (others[i]->tier != OT_TIER_DEVICE || others[i]->share < 1))
            return ot_fail(OT_ERR_USAGE,
                           "--place: with states=device all %s are on the device, too; leave %s out, or give "
                           "states a share, as states=device:50%%",
                           names[i], names[i]);
    return OT_OK;
}

ot_status ot_places_parse(const ot_option_list *list, ot_places *out)
{
    *out =
        (ot_places){.weights.automatic = 1, .states.automatic = 1, .grads.automatic = 1, .acts.automatic = 1};
    ot_placement *planes[PLANE_WORDS] = {&out->weights, &out->states, &out->grads, &out->acts};
    int seen[PLANE_WORDS] = {0};
    for (size_t i = 0; i < list->count; i++) {
        int plane = 0;
        ot_placement placement = {.automatic = 1};
        OT_TRY(parse_entry(list->items[i], &plane, &placement));
        if (seen[plane]++)
            return ot_fail(OT_ERR_USAGE, "--place: %s is placed twice", plane_words[plane]);
        *planes[plane] = placement;
    }
    return check_together(out);
}
