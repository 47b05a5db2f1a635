#include "engine/schedule.h"

#include <math.h>
#include <string.h>

#include "io/text.h"

static const double PI = 3.14159265358979323846;

ot_status ot_schedule_parse(const char *name, ot_schedule_kind *out)
{
    static const char *const names[] = {"constant", "linear", "cosine", "wsd"};
    enum { KINDS = sizeof names / sizeof names[0] };
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(names[i], name) == 0) {
            *out = (ot_schedule_kind)i;
            return OT_OK;
        }
    }
    const char *nearest = ot_nearest_name(name, names, KINDS);
    return ot_fail(OT_ERR_USAGE, "unknown schedule '%s'; %s%s", name,
                   nearest != NULL ? "did you mean " : "expected constant, linear, cosine or wsd",
                   nearest != NULL ? nearest : "");
}

static uint64_t decay_steps(const ot_schedule *s)
{
    uint64_t wanted = s->decay_steps > 0 ? s->decay_steps : (s->total_steps + 9) / 10;
    uint64_t left = s->total_steps - s->warmup_steps;
    return wanted < left ? wanted : left;
}

/* How far the rate has fallen after the warm-up: 0 not at all, 1 all the way. */
static double fall(const ot_schedule *s, uint64_t step)
{
    if (s->total_steps <= s->warmup_steps)
        return 0;
    double progress = (double)(step - s->warmup_steps) / (double)(s->total_steps - s->warmup_steps);
    uint64_t decay = decay_steps(s), stable = s->total_steps - decay;
    switch (s->kind) {
    case OT_SCHEDULE_LINEAR:
        return progress;
    case OT_SCHEDULE_COSINE:
        return (1 - cos(PI * progress)) / 2;
    case OT_SCHEDULE_WSD:
        return step > stable ? (double)(step - stable) / (double)decay : 0;
    default:
        return 0;
    }
}

double ot_learning_rate(const ot_schedule *s, uint64_t step)
{
    if (step <= s->warmup_steps)
        return s->lr * ((double)step / (double)s->warmup_steps);
    if (step > s->total_steps)
        step = s->total_steps > s->warmup_steps ? s->total_steps : s->warmup_steps;
    return s->lr * (1 - (1 - s->min_ratio) * fall(s, step));
}

uint64_t ot_warmup_steps(double value, uint64_t total_steps)
{
    if (value >= 1)
        return (uint64_t)value;
    /* 0.07 * 100 is a little more than 7. */
    return value > 0 ? (uint64_t)ceil(value * (double)total_steps * (1 - 1e-12)) : 0;
}
