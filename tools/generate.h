/* Text from a model, token by token. */
#ifndef OT_TOOLS_GENERATE_H
#define OT_TOOLS_GENERATE_H

#include "engine/trainer.h"
#include "io/tokenizer.h"

typedef struct ot_generation {
    const char *prompt;
    size_t max_tokens;
    double temperature; /* 0: always the likeliest token */
    double top_p;       /* tokens are drawn from the likeliest ones whose probabilities add up to this */
    uint64_t seed;
    /* Called with each piece of text as it comes, UTF-8 that ends with a whole character; NULL: nobody listens. */
    void (*piece)(void *context, const char *text, size_t bytes);
    void *context;
} ot_generation;

/* Ids of the prompt, with BOS where the model's texts begin with it or the prompt is empty. OT_ERR_USAGE for an empty prompt of a
 * model without BOS. */
ot_status ot_generation_prompt(const ot_generation *generation, const ot_tokenizer *tokenizer,
                               ot_ids *out) OT_MUST_CHECK;

/* Goes on from the ids in `ids` until EOS, max_tokens more, or the trainer's T tokens, and appends what comes. Overwrites the
 * trainer's data, changes nothing else. `eos`: -1: none. */
ot_status ot_generate(ot_trainer *trainer, const ot_training *training, const ot_tokenizer *tokenizer,
                      int32_t eos, const ot_generation *generation, ot_ids *ids) OT_MUST_CHECK;

/* The text of ids as UTF-8, with U+FFFD for what is none and for NUL, as they come where a model's tokens are bytes. `*text` ends with a NUL; the caller
 * frees it. */
ot_status ot_generated_text(const ot_tokenizer *tokenizer, const ot_ids *ids, char **text,
                            size_t *bytes) OT_MUST_CHECK;

/* The token that the logits [V] give; `uniform` in [0,1) decides where temperature > 0. `order` is room for V indices. */
int32_t ot_choose_token(const float *logits, size_t V, double temperature, double top_p, double uniform,
                        int32_t order[]);

#endif
