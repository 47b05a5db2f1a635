#include "tests/support/tiny.h"

const ot_model_config tiny_config = {
    .family = OT_FAMILY_LLAMA,
    .architecture = "LlamaForCausalLM",
    .C = 32,
    .L = 2,
    .NH = 4,
    .NKV = 2,
    .HD = 16,
    .F = 96,
    .V = 131,
    .positions = 64,
    .norm_eps = 1e-5f,
    .rope = {.kind = OT_ROPE_PLAIN, .theta = 10000},
    .bos = -1,
    .eos = -1,
    .init_std = 0.05,
};

ot_training tiny_training(const ot_model *model)
{
    return (ot_training){
        .model = model,
        .B = 1,
        .T = 24,
        .M = 4,
        .dtype = OT_BF16,
        .state_dtype = OT_FP32,
        .grad_dtype = OT_BF16,
        .optimizer = OT_OPTIMIZER_ADAMW,
        .beta1 = 0.9f,
        .beta2 = 0.99f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .max_grad_norm = 1,
        .seed = 7,
        .weights = {.automatic = 1},
        .states = {.automatic = 1},
        .grads = {.automatic = 1},
        .acts = {.automatic = 1},
        .overlap = 1,
        .budget = {UINT64_C(1) << 30, UINT64_C(1) << 30, 0},
        .device = "cpu",
        .threads = 2,
    };
}
