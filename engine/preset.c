/* The presets: dimensions as in the published configurations of the models. */
#include <string.h>

#include "engine/model.h"
#include "io/text.h"

typedef struct preset {
    const char *name;
    ot_model_config config;
} preset;

/* What all models of a release have in common. */
#define LLAMA2                                                                                               \
    .family = OT_FAMILY_LLAMA, .architecture = "LlamaForCausalLM", .V = 32000, .positions = 4096,            \
    .norm_eps = 1e-5f, .rope = {.kind = OT_ROPE_PLAIN, .theta = 10000}, .bos = 1, .eos = 2, .init_std = 0.02
#define LLAMA3(stretch)                                                                                      \
    .family = OT_FAMILY_LLAMA, .architecture = "LlamaForCausalLM", .V = 128256, .positions = 131072,         \
    .norm_eps = 1e-5f,                                                                                       \
    .rope = {.kind = OT_ROPE_LLAMA3,                                                                         \
             .theta = 500000,                                                                                \
             .factor = (stretch),                                                                            \
             .low_freq_factor = 1,                                                                           \
             .high_freq_factor = 4,                                                                          \
             .original_positions = 8192},                                                                    \
    .bos = 128000, .eos = 128001, .init_std = 0.02
#define QWEN2                                                                                                \
    .family = OT_FAMILY_LLAMA, .architecture = "Qwen2ForCausalLM",                                           \
    .rope = {.kind = OT_ROPE_PLAIN, .theta = 1e6}, .qkv_bias = 1, .bos = -1, .eos = 151643, .init_std = 0.02
#define SMOLLM2                                                                                              \
    .family = OT_FAMILY_LLAMA, .architecture = "LlamaForCausalLM", .HD = 64, .V = 49152, .positions = 8192,  \
    .norm_eps = 1e-5f, .rope = {.kind = OT_ROPE_PLAIN, .theta = 100000}, .tied = 1, .bos = 0, .eos = 0

static const preset presets[] = {
    /* Ours: bytes, then BOS and EOS. */
    {"tiny",
     {.family = OT_FAMILY_LLAMA,
      .architecture = "LlamaForCausalLM",
      .C = 128,
      .L = 4,
      .NH = 4,
      .NKV = 2,
      .HD = 32,
      .F = 384,
      .V = 258,
      .positions = 2048,
      .norm_eps = 1e-5f,
      .rope = {.kind = OT_ROPE_PLAIN, .theta = 10000},
      .tied = 1,
      .bos = 256,
      .eos = 257,
      .init_std = 0.02}},
    {"124m",
     {.family = OT_FAMILY_GPT2,
      .architecture = "GPT2LMHeadModel",
      .C = 768,
      .L = 12,
      .NH = 12,
      .NKV = 12,
      .HD = 64,
      .F = 3072,
      .V = 50257,
      .positions = 1024,
      .norm_eps = 1e-5f,
      .gelu = OT_GELU_TANH,
      .tied = 1,
      .bos = -1, /* its one special token is put behind a document, never in front */
      .eos = 50256,
      .init_std = 0.02}},
    {"135m", {SMOLLM2, .C = 576, .L = 30, .NH = 9, .NKV = 3, .F = 1536, .init_std = 1.0 / 24}},
    {"360m", {SMOLLM2, .C = 960, .L = 32, .NH = 15, .NKV = 5, .F = 2560, .init_std = 0.02}},
    {"0.5b",
     {QWEN2, .C = 896, .L = 24, .NH = 14, .NKV = 2, .HD = 64, .F = 4864, .V = 151936, .positions = 32768,
      .norm_eps = 1e-6f, .tied = 1}},
    {"1b", {LLAMA3(32), .C = 2048, .L = 16, .NH = 32, .NKV = 8, .HD = 64, .F = 8192, .tied = 1}},
    {"3b", {LLAMA3(32), .C = 3072, .L = 28, .NH = 24, .NKV = 8, .HD = 128, .F = 8192, .tied = 1}},
    {"7b", {LLAMA2, .C = 4096, .L = 32, .NH = 32, .NKV = 32, .HD = 128, .F = 11008}},
    {"8b", {LLAMA3(8), .C = 4096, .L = 32, .NH = 32, .NKV = 8, .HD = 128, .F = 14336}},
    {"13b", {LLAMA2, .C = 5120, .L = 40, .NH = 40, .NKV = 40, .HD = 128, .F = 13824}},
    {"14b",
     {QWEN2, .C = 5120, .L = 48, .NH = 40, .NKV = 8, .HD = 128, .F = 13824, .V = 152064, .positions = 131072,
      .norm_eps = 1e-5f}},
    {"32b",
     {QWEN2, .C = 5120, .L = 64, .NH = 40, .NKV = 8, .HD = 128, .F = 27648, .V = 152064, .positions = 131072,
      .norm_eps = 1e-5f}},
    {"70b", {LLAMA3(8), .C = 8192, .L = 80, .NH = 64, .NKV = 8, .HD = 128, .F = 28672}},
};

enum { PRESETS = sizeof presets / sizeof presets[0] };

const char *ot_model_preset_name(size_t index)
{
    return index < PRESETS ? presets[index].name : NULL;
}

ot_status ot_model_preset(const char *name, ot_model_config *out)
{
    const char *names[PRESETS];
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *out = presets[i].config;
            return OT_OK;
        }
        names[i] = presets[i].name;
    }
    const char *nearest = ot_nearest_name(name, names, PRESETS);
    return ot_fail(OT_ERR_USAGE, "unknown model '%s'; %s%s", name,
                   nearest != NULL
                       ? "did you mean "
                       : "presets go from tiny to 70b, and a folder with config.json is a model, too",
                   nearest != NULL ? nearest : "");
}
