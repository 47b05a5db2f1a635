/* Loss scaling for FP16: a state machine that a step's outcome moves (Micikevicius et al. 2018).
 *
 *     a finite gradient         the step counts; after GROWTH_STEPS of them in a row the scale doubles
 *     one that is not finite    an overflow: the step is skipped, the scale is halved
 *     ... and cannot be halved  OT_ERR_NUMERIC: the gradient is not finite whatever the scale
 *     a loss that is not finite OT_ERR_NUMERIC at once: it is not scaled, so no scale would help
 *
 * A gradient of NaN with a finite loss counts as an overflow: inf - inf inside backward gives NaN. A fixed
 * scale stays what it is, and gives up after OVERFLOWS_MAX overflows in a row. */
#ifndef OT_ENGINE_LOSSSCALE_H
#define OT_ENGINE_LOSSSCALE_H

#include <stdint.h>

#include "io/status.h"

enum {
    OT_LOSS_SCALE_START = 1 << 16,
    OT_LOSS_SCALE_MAX = 1 << 24, /* where growth ends */
    OT_LOSS_SCALE_MIN = 1,       /* the floor */
    OT_LOSS_SCALE_GROWTH_STEPS = 1000,
    OT_LOSS_SCALE_OVERFLOWS_MAX = 20, /* in a row, of a fixed scale */
};

/* Plain data: a checkpoint holds it as it is. */
typedef struct ot_loss_scale {
    double scale;
    int fixed;
    uint32_t good_steps; /* since the last change of the scale */
    uint32_t overflows;  /* in a row */
    uint64_t skipped;    /* of all steps */
} ot_loss_scale;

/* `fixed` > 0: the scale for good; 0: dynamic, from OT_LOSS_SCALE_START on. */
void ot_loss_scale_init(ot_loss_scale *state, double fixed);

/* A step has ended. The caller skips its update where `gradient_finite` is 0, whatever is returned.
 * OT_ERR_NUMERIC as above; the state is then that before the step. */
ot_status ot_loss_scale_step(ot_loss_scale *state, int loss_finite, int gradient_finite) OT_MUST_CHECK;

#endif
