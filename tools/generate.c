/* Generation, and `offtrain generate`. Weights are streamed as in training; each token is a forward pass over the whole text
 * so far, which where weights come over PCIe or from a drive costs no more than a pass over the last token alone. */
#include "tools/generate.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/log.h"
#include "io/stop.h"
#include "io/utf8.h"
#include "kernels/random.h"
#include "tools/command.h"
#include "tools/job.h"
#include "tools/ranks.h"
#include "tools/train.h"

/* ---- one token ---- */

static int32_t likeliest(const float *logits, size_t V)
{
    size_t best = 0;
    for (size_t v = 1; v < V; v++)
        if (logits[v] > logits[best])
            best = v;
    return (int32_t)best;
}

static int by_logit(const void *a, const void *b, void *context)
{
    const float *logits = context;
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (logits[i] != logits[j])
        return logits[i] < logits[j] ? 1 : -1;
    return (i > j) - (i < j);
}

int32_t ot_choose_token(const float *logits, size_t V, double temperature, double top_p, double uniform,
                        int32_t order[])
{
    int32_t best = likeliest(logits, V);
    if (temperature <= 0)
        return best;
    double total = 0, kept = 0, sum = 0;
    for (size_t v = 0; v < V; v++) {
        order[v] = (int32_t)v;
        total += exp((double)(logits[v] - logits[best]) / temperature);
    }
    qsort_r(order, V, sizeof *order, by_logit, (void *)(uintptr_t)logits);
    size_t count = 0;
    while (count < V && (count == 0 || kept < top_p * total))
        kept += exp((double)(logits[order[count++]] - logits[best]) / temperature);
    for (size_t i = 0; i < count; i++) {
        sum += exp((double)(logits[order[i]] - logits[best]) / temperature);
        if (sum > uniform * kept)
            return order[i];
    }
    return order[count - 1];
}

static ot_status check_logits(const float *logits, size_t V)
{
    for (size_t v = 0; v < V; v++)
        if (!isfinite(logits[v]))
            return ot_fail(OT_ERR_NUMERIC,
                           "generation: logit %zu is %g; the model's weights or activations are not finite",
                           v, (double)logits[v]);
    return OT_OK;
}

/* ---- a text ---- */

ot_status ot_generation_prompt(const ot_generation *generation, const ot_tokenizer *tokenizer, ot_ids *out)
{
    ot_tokenizer_info info;
    ot_tokenizer_query(tokenizer, &info);
    if (info.bos >= 0 && info.add_bos)
        OT_TRY(ot_ids_add(out, info.bos));
    OT_TRY(ot_tokenizer_encode(tokenizer, generation->prompt, strlen(generation->prompt), 1, out));
    if (out->count == 0 && info.bos >= 0)
        return ot_ids_add(out, info.bos);
    if (out->count == 0)
        return ot_fail(OT_ERR_USAGE, "--prompt: an empty text, and the model has no token to begin with");
    return OT_OK;
}

ot_status ot_generated_text(const ot_tokenizer *tokenizer, const ot_ids *ids, char **text, size_t *bytes)
{
    char *raw;
    size_t raw_bytes;
    OT_TRY(ot_tokenizer_decode(tokenizer, ids->ids, ids->count, 0, &raw, &raw_bytes));
    for (size_t i = 0; i < raw_bytes; i++) /* NUL: no end of a text, and not every reader of JSON takes it */
        if (raw[i] == '\0')
            raw[i] = (char)0xFF;
    char *clean = malloc(3 * raw_bytes + 1);
    if (clean != NULL) {
        *bytes = ot_utf8_repair(raw, raw_bytes, clean);
        clean[*bytes] = '\0';
    }
    free(raw);
    *text = clean;
    return clean != NULL ? OT_OK
                         : ot_fail(OT_ERR_INTERNAL, "out of memory for a text of %zu bytes", raw_bytes);
}

/* The text as the only document of the first sequence; what lies behind it is not looked at. */
static void fill_data(const ot_training *t, const ot_ids *ids, int32_t *data)
{
    size_t tokens = t->B * t->T;
    for (size_t i = 0; i < tokens; i++) {
        data[i] = i < ids->count ? ids->ids[i] : 0;
        data[tokens + i] = -1;
        data[2 * tokens + i] = (int32_t)(i % t->T);
        data[3 * tokens + i] = 0;
    }
}

/* Bytes at the end that are the beginning of a character that has not come whole. */
static size_t unfinished(const char *text, size_t bytes)
{
    size_t tail = 0;
    while (tail < 3 && tail < bytes && ((unsigned char)text[bytes - 1 - tail] & 0xC0) == 0x80)
        tail++;
    if (tail == bytes)
        return 0;
    unsigned char lead = (unsigned char)text[bytes - 1 - tail];
    size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return length > tail + 1 ? tail + 1 : 0;
}

/* Hands over what the text has beyond `*shown` bytes. A byte-level tokenizer cuts characters: U+FFFD at the end is one on its
 * way. */
static ot_status hand_over(const ot_tokenizer *tokenizer, const ot_generation *g, const ot_ids *ids, int last,
                           size_t *shown)
{
    static const char replacement[] = "\xEF\xBF\xBD";
    char *text;
    size_t bytes;
    OT_TRY(ot_tokenizer_decode(tokenizer, ids->ids, ids->count, 0, &text, &bytes));
    size_t end = last ? bytes : bytes - unfinished(text, bytes);
    while (!last && end >= 3 && memcmp(text + end - 3, replacement, 3) == 0)
        end -= 3;
    if (g->piece != NULL && end > *shown)
        g->piece(g->context, text + *shown, end - *shown);
    if (end > *shown)
        *shown = end;
    free(text);
    return OT_OK;
}

static ot_status generate(ot_trainer *trainer, const ot_training *training, const ot_tokenizer *tokenizer,
                          int32_t eos, const ot_generation *g, ot_ids *ids, float *logits, int32_t *order)
{
    size_t V = training->model->config.V, shown = 0;
    ot_tokenizer_info info;
    ot_tokenizer_query(tokenizer, &info);
    if (V > info.V) /* rows that pad the embedding and stand for no token */
        V = info.V;
    for (size_t made = 0; made < g->max_tokens && ids->count < training->T; made++) {
        uint32_t words[4];
        OT_TRY(ot_stop_check());
        fill_data(training, ids, ot_trainer_data(trainer));
        OT_TRY(ot_trainer_logits(trainer, 0, ids->count - 1, logits));
        OT_TRY(check_logits(logits, V));
        ot_philox(g->seed, made, 0, words);
        int32_t id = ot_choose_token(logits, V, g->temperature, g->top_p, words[0] * 0x1p-32, order);
        if (id == eos)
            break;
        OT_TRY(ot_ids_add(ids, id));
        OT_TRY(hand_over(tokenizer, g, ids, 0, &shown));
    }
    return hand_over(tokenizer, g, ids, 1, &shown);
}

ot_status ot_generate(ot_trainer *trainer, const ot_training *training, const ot_tokenizer *tokenizer,
                      int32_t eos, const ot_generation *generation, ot_ids *ids)
{
    size_t V = training->model->config.V;
    float *logits = malloc(V * sizeof *logits);
    int32_t *order = malloc(V * sizeof *order);
    ot_status status = logits != NULL && order != NULL
                           ? generate(trainer, training, tokenizer, eos, generation, ids, logits, order)
                           : ot_fail(OT_ERR_INTERNAL, "out of memory for the logits of %zu tokens", V);
    free(logits);
    free(order);
    return status;
}

/* ---- the command ---- */

static void print_piece(void *context, const char *text, size_t bytes)
{
    (void)context;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

static ot_status print_json(const ot_job *job, size_t prompt_tokens, const ot_ids *ids)
{
    char *text;
    size_t bytes = 0;
    OT_TRY(ot_generated_text(job->data.tokenizer, ids, &text, &bytes));
    json_t *object =
        json_pack("{s:s, s:I, s:I, s:s%}", "event", "sample", "prompt_tokens", (json_int_t)prompt_tokens,
                  "tokens", (json_int_t)(ids->count - prompt_tokens), "text", text, bytes);
    int failed = object == NULL || json_dumpf(object, stdout, JSON_COMPACT) != 0;
    putchar('\n');
    json_decref(object);
    free(text);
    return failed ? ot_fail(OT_ERR_IO, "cannot write to stdout") : OT_OK;
}

static ot_status generate_text(ot_job *job, const ot_generation *generation, ot_ids *ids)
{
    size_t prompt_tokens = ids->count;
    ot_trainer *trainer;
    OT_TRY(ot_job_open_source(job));
    ot_job_release_device(job);
    OT_TRY(ot_trainer_open(&job->training, &trainer));
    ot_status status =
        ot_generate(trainer, &job->training, job->data.tokenizer, job->model->config.eos, generation, ids);
    ot_trainer_close(trainer);
    if (status == OT_OK && job->flags->json)
        return print_json(job, prompt_tokens, ids);
    if (status == OT_OK)
        putchar('\n');
    return status;
}

/* As long as the text can become. */
static ot_status choose_length(ot_train_flags *flags, size_t prompt, size_t more)
{
    ot_hf_config *file;
    ot_model_config config;
    OT_TRY(ot_job_find_model(flags->model, &file, &config));
    ot_hf_config_close(file);
    if (prompt >= config.positions)
        return ot_fail(OT_ERR_USAGE, "--prompt: %zu tokens; %s has %zu positions, so nothing can follow",
                       prompt, flags->model, config.positions);
    if (more > config.positions - prompt) {
        more = config.positions - prompt;
        ot_log(OT_LOG_INFO, "%zu tokens at most: %s has %zu positions", more, flags->model, config.positions);
    }
    flags->seq_len = (int64_t)(prompt + more);
    return OT_OK;
}

/* The job is for one sequence. */
static ot_status run_sized(ot_train_flags *flags, const ot_generation *generation, ot_ids *ids)
{
    ot_job job;
    OT_TRY(choose_length(flags, ids->count, generation->max_tokens));
    flags->batch_size = flags->global_batch_size = 1;
    ot_status status = ot_job_open_fitting(flags, &job);
    if (status == OT_OK)
        status = generate_text(&job, generation, ids);
    ot_job_close(&job);
    return status;
}

static ot_status run_generate(const ot_train_flags *flags, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    ot_train_flags own = *flags;
    const ot_generation generation = {
        .prompt = flags->sample_prompt,
        .max_tokens = (size_t)flags->max_tokens,
        .temperature = flags->temperature,
        .top_p = flags->top_p,
        .seed = (uint64_t)flags->seed,
        .piece = flags->json ? NULL : print_piece,
    };
    ot_tokenizer *tokenizer;
    ot_ids ids = {0};
    size_t V;
    if (flags->sample_prompt == NULL)
        return ot_fail(OT_ERR_USAGE, "generate: --prompt TEXT is missing");
    own.inference = 1;
    OT_TRY(ot_ranks_refuse(flags, "generate"));
    ot_stop_install();
    if (flags->model == NULL)
        return ot_fail(OT_ERR_USAGE,
                       "generate: --model is missing: a folder with a model, such as a checkpoint");
    OT_TRY(ot_tokenizer_of_model(flags->model, &tokenizer, &V));
    ot_status status = ot_generation_prompt(&generation, tokenizer, &ids);
    ot_tokenizer_close(tokenizer);
    if (status == OT_OK)
        status = run_sized(&own, &generation, &ids);
    ot_ids_free(&ids);
    return status;
}

ot_status ot_command_generate(int argc, char **argv)
{
    const ot_option_table table = ot_train_table(
        "offtrain generate",
        "Goes on with --prompt TEXT by --max-tokens N tokens (--temperature X, --top-p X, --seed N); of the\n"
        "flags of training those for model and memory hold.");
    return ot_train_with_flags(&table, argc, argv, run_generate);
}
