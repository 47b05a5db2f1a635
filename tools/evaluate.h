/* The mean loss over a whole dataset. */
#ifndef OT_TOOLS_EVALUATE_H
#define OT_TOOLS_EVALUATE_H

#include "engine/data.h"
#include "engine/trainer.h"

typedef struct ot_evaluation {
    double loss, perplexity; /* of the trained tokens */
    uint64_t tokens;
    double seconds;
} ot_evaluation;

/* Every window once, a step's sequences at a time. Changes nothing but the trainer's data. A stop signal ends it: ot_stop_check's
 * status. OT_ERR_DATA where no token is trained, OT_ERR_NUMERIC where the loss is not finite. */
ot_status ot_evaluate(ot_trainer *trainer, const ot_training *training, const ot_dataset *dataset,
                      ot_evaluation *out) OT_MUST_CHECK;

#endif
