#include "engine/lossscale.h"

void ot_loss_scale_init(ot_loss_scale *state, double fixed)
{
    *state = (ot_loss_scale){.scale = fixed > 0 ? fixed : OT_LOSS_SCALE_START, .fixed = fixed > 0};
}

static void count_good_step(ot_loss_scale *state)
{
    state->overflows = 0;
    state->good_steps++;
    if (state->fixed || state->good_steps < OT_LOSS_SCALE_GROWTH_STEPS)
        return;
    state->good_steps = 0;
    if (state->scale * 2 <= OT_LOSS_SCALE_MAX)
        state->scale *= 2;
}

static ot_status back_off(ot_loss_scale *state)
{
    if (state->fixed && state->overflows + 1 >= OT_LOSS_SCALE_OVERFLOWS_MAX)
        return ot_fail(
            OT_ERR_NUMERIC,
            "the gradient overflowed in %d steps in a row at the fixed loss scale %g; lower --loss-scale, "
            "or use --loss-scale dynamic",
            OT_LOSS_SCALE_OVERFLOWS_MAX, state->scale);
    if (!state->fixed && state->scale / 2 < OT_LOSS_SCALE_MIN)
        return ot_fail(
            OT_ERR_NUMERIC,
            "the gradient is not finite at the loss scale %g, the lowest there is; lower --lr, or use "
            "--precision bf16",
            state->scale);
    state->good_steps = 0;
    state->overflows++;
    state->skipped++;
    if (!state->fixed)
        state->scale /= 2;
    return OT_OK;
}

ot_status ot_loss_scale_step(ot_loss_scale *state, int loss_finite, int gradient_finite)
{
    if (!loss_finite)
        return ot_fail(OT_ERR_NUMERIC,
                       "the loss is not finite, which no loss scale mends; lower --lr, or use "
                       "--precision bf16");
    if (!gradient_finite)
        return back_off(state);
    count_good_step(state);
    return OT_OK;
}
