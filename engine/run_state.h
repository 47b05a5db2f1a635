/* What a run is, apart from the model's values: state/trainer.json of a checkpoint. */
#ifndef OT_ENGINE_RUN_STATE_H
#define OT_ENGINE_RUN_STATE_H

#include <jansson.h>

#include "engine/manifest.h"
#include "engine/trainer.h"

typedef struct ot_run_state {
    char run[OT_RUN_ID_BYTES];
    uint64_t step;    /* steps made; with the settings it is the position in the data */
    uint64_t skipped; /* of them */
    uint64_t tokens, trained_tokens;
    double seconds;    /* of all sessions */
    double nvme_bytes; /* written to NVMe by all sessions, by the ranks of the first one's machine */
    double loss;       /* of the last step; NaN: none was made, or not finite */
    ot_trainer_state trainer;
    json_t *settings; /* name → value of everything that decides the numbers. Owned by the state */
} ot_run_state;

/* A new run with a random id. */
ot_status ot_run_state_init(ot_run_state *state) OT_MUST_CHECK;
void ot_run_state_fini(ot_run_state *state);

/* FOLDER/state/trainer.json. OT_ERR_FORMAT names what is missing or cannot be. */
ot_status ot_run_state_write(const ot_run_state *state, const char *folder) OT_MUST_CHECK;
ot_status ot_run_state_read(const char *folder, ot_run_state *out) OT_MUST_CHECK;

/* Names every setting of `other` whose value is another in `one`, apart from those in `allowed` (NULL-terminated, or NULL),
 * with both values behind the two words: "lr was 0.1 and is 0.2". "" where none differs. */
void ot_settings_compare(const json_t *one, const json_t *other, const char *const allowed[],
                         const char *first_word, const char *second_word, char *text, size_t size);

/* OT_ERR_USAGE where settings differ between the run as it was and as it is asked for, apart from the names in
 * `allowed` (NULL-terminated): each one with both values. */
ot_status ot_run_state_compare(const ot_run_state *state, const json_t *settings,
                               const char *const allowed[]) OT_MUST_CHECK;

#endif
