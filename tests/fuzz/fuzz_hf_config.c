/* A config.json of any bytes is refused, or describes a model, and what is written for that model describes it, too. */
#include <stdlib.h>
#include <string.h>

#include "engine/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(int condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ot_hf_config *config, *made;
    if (ot_hf_config_parse("config.json", (const char *)data, bytes, &config) != OT_OK) {
        check(strncmp(ot_error_text(), "config.json", 11) == 0);
        return 0;
    }
    const ot_model_config *a = ot_hf_config_model(config);
    check(ot_model_check(a) == OT_OK);
    check(ot_hf_config_make(a, &made) == OT_OK);
    const ot_model_config *b = ot_hf_config_model(made);
    check(a->C == b->C && a->L == b->L && a->NH == b->NH && a->NKV == b->NKV && a->HD == b->HD &&
          a->F == b->F);
    check(a->V == b->V && a->positions == b->positions && a->window == b->window && a->tied == b->tied);
    check(memcmp(&a->norm_eps, &b->norm_eps, sizeof a->norm_eps) == 0 && a->rope.kind == b->rope.kind);
    check(a->bos == b->bos && a->eos == b->eos);
    ot_hf_config_close(made);
    ot_hf_config_close(config);
    return 0;
}
