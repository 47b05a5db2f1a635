/* Attention on the CPU: packs K and V once for all that read them, then hands out blocks of queries, or in
 * backward shares of them, to whichever thread is free. What a block or a share computes does not depend on
 * who takes it. */
#include "kernels/cpu/attention.h"

#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/state.h"

/* Backward is cut into so many shares where there are fewer pairs of sequence and key and value head. */
enum { SHARES_WANTED = 16 };

typedef struct functions {
    ot_cpu_range *pack, *forward, *backward, *reduce;
} functions;

#ifdef OT_HAVE_X86_VARIANTS
ot_cpu_range ot_attention_pack_avx512bf16, ot_attention_forward_block_avx512bf16,
    ot_attention_backward_share_avx512bf16, ot_attention_reduce_rows_avx512bf16;
#endif

static int has_pairs(const char *variant)
{
#ifdef OT_HAVE_X86_VARIANTS
    return strcmp(variant, "avx512") == 0 && __builtin_cpu_supports("avx512bf16");
#else
    (void)variant;
    return 0;
#endif
}

static functions find_functions(const ot_variant *variant, int paired)
{
#ifdef OT_HAVE_X86_VARIANTS
    if (paired)
        return (functions){ot_attention_pack_avx512bf16, ot_attention_forward_block_avx512bf16,
                           ot_attention_backward_share_avx512bf16, ot_attention_reduce_rows_avx512bf16};
#else
    (void)paired;
#endif
    return (functions){variant->ranges[OT_RANGE_ATTENTION_PACK], variant->ranges[OT_RANGE_ATTENTION_FORWARD],
                       variant->ranges[OT_RANGE_ATTENTION_BACKWARD],
                       variant->ranges[OT_RANGE_ATTENTION_REDUCE]};
}

static size_t padded(size_t n)
{
    return ot_attention_ceiling(n, 16) * 16;
}

static ot_attention_work describe(const ot_attention *a, const char *variant, int backward)
{
    ot_attention_work w = {.args = a, .backward = backward};
    w.paired = a->dtype == OT_BF16 && has_pairs(variant);
    w.query_blocks = ot_attention_ceiling(a->T, OT_ATTENTION_QUERIES);
    w.key_blocks = ot_attention_ceiling(a->T, OT_ATTENTION_KEYS);
    w.depth = padded(ot_words(w.paired, a->HD));
    w.wide = padded(a->HD);
    w.splits = 1;
    if (backward && a->B * a->NKV > 0 && a->B * a->NKV < SHARES_WANTED)
        w.splits = ot_attention_ceiling(SHARES_WANTED, a->B * a->NKV);
    if (w.splits > w.query_blocks)
        w.splits = w.query_blocks;
    return w;
}

/* ---- Workspace ---- */

/* Packed rows, what is turned, slots of sums, then each thread's scratch: all multiples of 64 bytes. */

static size_t rows_words(const ot_attention_work *w)
{
    return w->args->B * w->args->NKV * w->key_blocks * OT_ATTENTION_KEYS * w->depth;
}

static size_t turned_words(const ot_attention_work *w)
{
    return w->args->B * w->args->NKV * w->key_blocks * w->wide * ot_attention_key_words(w);
}

static size_t slots(const ot_attention_work *w, size_t threads)
{
    return !w->backward ? 0 : w->splits > 1 ? w->args->B * w->args->NKV * w->splits : threads;
}

static size_t scratch_words(const ot_attention_work *w)
{
    return w->backward ? ot_attention_backward_scratch(w) : ot_attention_forward_scratch(w);
}

static uint64_t workspace(const ot_device *device, const ot_attention *args, int backward)
{
    if (args->B * args->T * args->NH * args->HD == 0)
        return 0;
    ot_attention_work w = describe(args, ((const cpu_device *)device)->variant->name, backward);
    size_t threads = (size_t)ot_cpu_device_threads(device);
    return sizeof(uint32_t) *
           (uint64_t)(rows_words(&w) * (backward ? 2 : 1) + turned_words(&w) +
                      slots(&w, threads) * ot_attention_slot(&w) + threads * scratch_words(&w));
}

uint64_t ot_cpu_attention_forward_workspace(const ot_device *device, const ot_attention *args)
{
    return workspace(device, args, 0);
}

uint64_t ot_cpu_attention_backward_workspace(const ot_device *device, const ot_attention *args)
{
    return workspace(device, args, 1);
}

/* ---- Running ---- */

typedef struct shares_run {
    const ot_attention_work *work;
    ot_cpu_range *range;
    uint32_t *scratch;
    size_t items;
    atomic_size_t next;
} shares_run;

static void run_shares(void *context, int index, int count)
{
    (void)count;
    shares_run *run = context;
    const ot_attention_work *w = run->work;
    ot_attention_share share = {.work = w,
                                .scratch = (unsigned char *)(run->scratch + (size_t)index * scratch_words(w)),
                                .sums =
                                    w->splits > 1 ? NULL : w->sums + (size_t)index * ot_attention_slot(w)};
    size_t item;
    while ((item = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < run->items)
        run->range(&share, item, item + 1);
}

static ot_status run_task(ot_team *team, const ot_variant *variant, const ot_attention *a, int backward)
{
    ot_attention_work w = describe(a, variant->name, backward);
    functions f = find_functions(variant, w.paired);
    w.k = a->workspace;
    w.v = w.k + rows_words(&w);
    w.turned = backward ? w.v + rows_words(&w) : w.v;
    w.sums = (float *)(w.turned + turned_words(&w));
    size_t pairs = a->B * a->NKV, threads = (size_t)ot_team_count(team);
    shares_run run = {.work = &w,
                      .range = backward ? f.backward : f.forward,
                      .scratch = (uint32_t *)(w.sums + slots(&w, threads) * ot_attention_slot(&w)),
                      .items = backward ? pairs * w.splits : a->B * a->NH * w.query_blocks};
    ot_cpu_parallel(team, f.pack, &w, pairs * w.key_blocks, 1);
    ot_team_run(team, run_shares, &run);
    if (w.splits > 1)
        ot_cpu_parallel(team, f.reduce, &w, pairs * a->T, 16);
    return OT_OK;
}

static ot_status forward_task(ot_team *team, const ot_variant *variant, const void *args)
{
    return run_task(team, variant, args, 0);
}

static ot_status backward_task(ot_team *team, const ot_variant *variant, const void *args)
{
    return run_task(team, variant, args, 1);
}

/* NULL, or what the arguments do not hold to. */
static const char *broken_rule(const ot_attention *a, int backward)
{
    size_t row = a->NH * a->HD, kv_row = a->NKV * a->HD;
    if (a->dtype != OT_FP32 && a->dtype != OT_BF16 && a->dtype != OT_FP16)
        return "a dtype of fp32, bf16 or fp16";
    if (a->NKV == 0 || a->NH % a->NKV != 0)
        return "heads that are a multiple of the key and value heads";
    if (a->T > INT32_MAX)
        return "a sequence of less than 2^31 tokens";
    if (a->ld_q < row || a->ld_kv < kv_row || a->ld_out < row ||
        (backward && (a->ld_dq < row || a->ld_dkv < kv_row)))
        return "rows that do not overlap";
    if (backward && a->lse == NULL)
        return "the lse of the forward pass";
    return a->workspace == NULL ? "a workspace" : NULL;
}

static void enqueue(ot_stream *stream, const ot_attention *args, int backward)
{
    if (args->B * args->T * args->NH * args->HD == 0)
        return;
    const char *rule = broken_rule(args, backward);
    if (rule != NULL)
        ot_cpu_reject(stream, ot_fail(OT_ERR_INTERNAL, "attention_%s: expected %s",
                                      backward ? "backward" : "forward", rule));
    else
        ot_cpu_enqueue(stream, backward ? backward_task : forward_task, args, sizeof *args);
}

void ot_cpu_attention_forward(ot_stream *stream, const ot_attention *args)
{
    enqueue(stream, args, 0);
}

void ot_cpu_attention_backward(ot_stream *stream, const ot_attention *args)
{
    enqueue(stream, args, 1);
}
