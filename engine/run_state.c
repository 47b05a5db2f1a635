#include "engine/run_state.h"

#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "io/file.h"
#include "io/json_file.h"
#include "io/path.h"

#define NAME "state/trainer.json"

/* A random uuid, version 4 (RFC 9562). */
static ot_status make_id(char id[OT_RUN_ID_BYTES])
{
    unsigned char b[16];
    if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b)
        return ot_fail(OT_ERR_INTERNAL, "no random bytes for the run's id");
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    snprintf(id, OT_RUN_ID_BYTES, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
    return OT_OK;
}

ot_status ot_run_state_init(ot_run_state *state)
{
    *state = (ot_run_state){.settings = json_object(), .loss = NAN};
    if (state->settings == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a run's settings");
    return make_id(state->run);
}

void ot_run_state_fini(ot_run_state *state)
{
    json_decref(state->settings);
    *state = (ot_run_state){0};
}

ot_status ot_run_state_write(const ot_run_state *state, const char *folder)
{
    char path[PATH_MAX];
    const ot_loss_scale *scale = &state->trainer.loss_scale;
    OT_TRY(ot_path_format(path, "%s/" NAME, folder));
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:{s:f, s:b, s:i, s:i, s:I}, s:o, s:O}", "run", state->run,
        "step", (json_int_t)state->step, "skipped", (json_int_t)state->skipped, "tokens",
        (json_int_t)state->tokens, "trained_tokens", (json_int_t)state->trained_tokens, "seconds",
        state->seconds, "nvme_bytes", state->nvme_bytes, "updates", (json_int_t)state->trainer.updates,
        "loss_scale", "scale", scale->scale, "fixed", scale->fixed, "good_steps", (int)scale->good_steps,
        "overflows", (int)scale->overflows, "skipped", (json_int_t)scale->skipped, "loss",
        isfinite(state->loss) ? json_real(state->loss) : json_null(), "settings", state->settings);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    ot_status status = text != NULL ? ot_file_replace(path, text, strlen(text))
                                    : ot_fail(OT_ERR_INTERNAL, "out of memory for " NAME);
    free(text);
    json_decref(root);
    return status;
}

/* What a damaged file can say and no run ever wrote. */
static ot_status check(const char *path, const ot_run_state *state, const char *run,
                       const json_int_t counts[], size_t count)
{
    double scale = state->trainer.loss_scale.scale;
    for (size_t i = 0; i < count; i++)
        if (counts[i] < 0)
            return ot_fail(OT_ERR_FORMAT, "%s: a count is %lld; the checkpoint is damaged", path,
                           (long long)counts[i]);
    if (strlen(run) >= OT_RUN_ID_BYTES)
        return ot_fail(OT_ERR_FORMAT, "%s: run is '%.80s'; the checkpoint is damaged", path, run);
    if (!(scale > 0 && scale <= (double)FLT_MAX) || !(state->seconds >= 0) || !(state->nvme_bytes >= 0))
        return ot_fail(
            OT_ERR_FORMAT,
            "%s: scale %g, seconds %g, nvme_bytes %g are not all positive; the checkpoint is damaged", path,
            scale, state->seconds, state->nvme_bytes);
    if (!json_is_object(state->settings))
        return ot_fail(OT_ERR_FORMAT, "%s: settings is no object; the checkpoint is damaged", path);
    return OT_OK;
}

static ot_status unpack(const char *path, json_t *root, ot_run_state *out)
{
    enum { STEP, SKIPPED, TOKENS, TRAINED, UPDATES, GOOD_STEPS, OVERFLOWS, SCALE_SKIPPED, COUNTS };
    json_error_t error;
    const char *run;
    json_int_t n[COUNTS];
    ot_loss_scale *scale = &out->trainer.loss_scale;
    if (json_unpack_ex(
            root, &error, 0, "{s:s, s:I, s:I, s:I, s:I, s:F, s:F, s:I, s:{s:F, s:b, s:I, s:I, s:I}, s:o}",
            "run", &run, "step", &n[STEP], "skipped", &n[SKIPPED], "tokens", &n[TOKENS], "trained_tokens",
            &n[TRAINED], "seconds", &out->seconds, "nvme_bytes", &out->nvme_bytes, "updates", &n[UPDATES],
            "loss_scale", "scale", &scale->scale, "fixed", &scale->fixed, "good_steps", &n[GOOD_STEPS],
            "overflows", &n[OVERFLOWS], "skipped", &n[SCALE_SKIPPED], "settings", &out->settings) != 0)
        return ot_fail(OT_ERR_FORMAT, "%s: %s", path, error.text);
    OT_TRY(check(path, out, run, n, COUNTS));
    memcpy(out->run, run, strlen(run) + 1);
    out->step = (uint64_t)n[STEP];
    out->skipped = (uint64_t)n[SKIPPED];
    out->tokens = (uint64_t)n[TOKENS];
    out->trained_tokens = (uint64_t)n[TRAINED];
    out->trainer.updates = (uint64_t)n[UPDATES];
    scale->good_steps = (uint32_t)n[GOOD_STEPS];
    scale->overflows = (uint32_t)n[OVERFLOWS];
    scale->skipped = (uint64_t)n[SCALE_SKIPPED];
    const json_t *loss = json_object_get(root, "loss");
    out->loss = json_is_number(loss) ? json_number_value(loss) : NAN;
    json_incref(out->settings);
    return OT_OK;
}

ot_status ot_run_state_read(const char *folder, ot_run_state *out)
{
    char path[PATH_MAX];
    json_t *root;
    ot_run_state read = {.run = ""};
    *out = read;
    OT_TRY(ot_path_format(path, "%s/" NAME, folder));
    OT_TRY(ot_json_read(path, JSON_REJECT_DUPLICATES, &root));
    ot_status status = unpack(path, root, &read);
    json_decref(root);
    if (status == OT_OK)
        *out = read;
    return status;
}

/* ---- settings ---- */

static int is_allowed(const char *name, const char *const allowed[])
{
    for (size_t i = 0; allowed != NULL && allowed[i] != NULL; i++)
        if (strcmp(allowed[i], name) == 0 || strcmp(allowed[i], "all") == 0)
            return 1;
    return 0;
}

typedef struct differences {
    const char *first, *second; /* the words before the two values */
    char *text;
    size_t size;
} differences;

/* Adds "name was A and is B" to the text. */
static void add_value(const differences *d, const char *name, const json_t *was, const json_t *is)
{
    char *before = was != NULL ? json_dumps(was, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
    char *now = is != NULL ? json_dumps(is, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
    size_t used = strlen(d->text);
    snprintf(d->text + used, d->size - used, "%s%s %s %s %s %s", used > 0 ? ", " : "", name, d->first,
             before != NULL ? before : "not set", d->second, now != NULL ? now : "not set");
    free(before);
    free(now);
}

/* Of an object only the members that differ: "model.tied was true and is false". */
static void add_difference(const differences *d, const char *name, const json_t *was, const json_t *is)
{
    const char *member;
    json_t *value;
    if (!json_is_object(was) || !json_is_object(is)) {
        add_value(d, name, was, is);
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)is, member, value)
    {
        char full[128];
        snprintf(full, sizeof full, "%s.%s", name, member);
        if (!json_equal(json_object_get(was, member), value))
            add_difference(d, full, json_object_get(was, member), value);
    }
}

void ot_settings_compare(const json_t *one, const json_t *other, const char *const allowed[],
                         const char *first_word, const char *second_word, char *text, size_t size)
{
    const differences d = {first_word, second_word, text, size};
    const char *name;
    json_t *value;
    *text = '\0';
    json_object_foreach((json_t *)(uintptr_t)other, name, value)
    {
        const json_t *before = json_object_get(one, name);
        if (!json_equal(before, value) && !is_allowed(name, allowed))
            add_difference(&d, name, before, value);
    }
}

ot_status ot_run_state_compare(const ot_run_state *state, const json_t *settings, const char *const allowed[])
{
    char text[512];
    ot_settings_compare(state->settings, settings, allowed, "was", "and is", text, sizeof text);
    if (*text == '\0')
        return OT_OK;
    return ot_fail(
        OT_ERR_USAGE,
        "--resume: %s; give the run's own flags (its config.yaml with -c), or allow the change with "
        "--allow-changes NAME,…",
        text);
}
