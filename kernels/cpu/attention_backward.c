/* Attention backward, over a share of the queries of all heads that read one key and value head.
 *
 * Each block of queries passes over the keys that it sees. dq of the block is complete after that pass; dk
 * and dv add up in FP32, over blocks of queries in order, in a slot of their own for each share. The shares
 * are then added in order. */
#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/cpu.h"

typedef struct buffers {
    uint32_t *queries, *douts;          /* turned: [depth,QUERIES] */
    float *scores, *dscores;            /* [KEYS,QUERIES]: in FP32 also the rows below */
    uint32_t *words;                    /* dS for the product with K: [words of KEYS,QUERIES] */
    float *dq;                          /* [wide,QUERIES] */
    uint32_t *query_rows, *dout_rows;   /* [words of QUERIES,wide] */
    uint32_t *score_rows, *dscore_rows; /* P and dS for dv and dk: [KEYS,words of QUERIES] */
} buffers;

static buffers divide_scratch(const ot_attention_work *w, unsigned char *scratch)
{
    buffers f;
    size_t query_words = ot_attention_query_words(w);
    f.queries = (uint32_t *)scratch;
    f.douts = f.queries + w->depth * QUERIES;
    f.scores = (float *)(f.douts + w->depth * QUERIES);
    f.dscores = f.scores + KEYS * QUERIES;
    f.words = (uint32_t *)(f.dscores + KEYS * QUERIES);
    f.dq = (float *)(f.words + ot_attention_key_words(w) * QUERIES);
    f.query_rows = (uint32_t *)(f.dq + w->wide * QUERIES);
    f.dout_rows = f.query_rows + query_words * w->wide;
    f.score_rows = f.dout_rows + query_words * w->wide;
    f.dscore_rows = f.score_rows + KEYS * query_words;
    return f;
}

/* One block of queries of one head, with what its columns are computed from. */
typedef struct head_block {
    query_block q;
    ot_vf lse[LANE_GROUPS];   /* in powers of two */
    ot_vf delta[LANE_GROUPS]; /* sum of dout * out */
} head_block;

OT_INLINE float row_product(ot_dtype dtype, const void *x, const void *y, size_t n)
{
    ot_sum16 sum = {0};
    for (size_t i = 0; i < n; i += OT_SUM_LANES)
        for (size_t part = 0; part < OT_SUM_PARTS; part++) {
            size_t at = i + part * OT_LANES;
            sum.part[part] += ot_load(dtype, x, at, n) * ot_load(dtype, y, at, n);
        }
    return ot_sum_lanes(&sum);
}

OT_INLINE void load_head(ot_dtype dtype, const ot_attention *a, size_t head, head_block *h)
{
    float lse[QUERIES] = {0}, delta[QUERIES] = {0};
    const float *from = a->lse + (h->q.b * a->NH + head) * a->T + h->q.first;
    for (size_t i = 0; i < h->q.count; i++) {
        lse[i] = from[i] * 1.44269504088896341f;
        delta[i] = row_product(
            dtype, head_rows(dtype, a->out, a->T, a->ld_out, a->HD, h->q.b, head, h->q.first + i),
            head_rows(dtype, a->dout, a->T, a->ld_out, a->HD, h->q.b, head, h->q.first + i), a->HD);
    }
    memcpy(h->lse, lse, sizeof lse);
    memcpy(h->delta, delta, sizeof delta);
}

static void pack_head(const ot_attention_work *w, size_t head, const head_block *h, const buffers *f)
{
    const ot_attention *a = w->args;
    const query_block *q = &h->q;
    ot_operand rows = {head_rows(a->dtype, a->q, a->T, a->ld_q, a->HD, q->b, head, q->first), a->ld_q,
                       q->count, a->HD, 0};
    ot_operand douts = {head_rows(a->dtype, a->dout, a->T, a->ld_out, a->HD, q->b, head, q->first), a->ld_out,
                        q->count, a->HD, 0};
    pack_queries_turned(w, &rows, f->queries);
    pack_queries_turned(w, &douts, f->douts);
    rows.sum_rows = douts.sum_rows = 1;
    size_t words = ot_attention_query_words(w);
    ot_pack_any(a->dtype, PAIRED, 0, &rows, 0, words, 0, w->wide, f->query_rows, w->wide);
    ot_pack_any(a->dtype, PAIRED, 0, &douts, 0, words, 0, w->wide, f->dout_rows, w->wide);
}

/* P and dS of one row of keys and one group of queries. */
typedef struct gradient {
    ot_vf p, ds;
} gradient;

OT_INLINE gradient differentiate(const head_block *h, const key_block *k, const buffers *f, float scale,
                                 int masked, size_t r, size_t g)
{
    gradient x;
    size_t at = r * QUERIES + g * OT_LANES;
    x.p = power_of_two(ot_load_full(OT_FP32, f->scores + at) * scale - h->lse[g]);
    x.ds = x.p * (ot_load_full(OT_FP32, f->dscores + at) - h->delta[g]);
    if (masked) {
        ot_vi seen = sees(&h->q, g, k->first + r);
        x.p = ot_select(seen, x.p, ot_splat(0));
        x.ds = ot_select(seen, x.ds, ot_splat(0));
    }
    return x;
}

OT_INLINE void store_halves(uint32_t *rows, size_t r, size_t g, ot_vu pairs, int high)
{
    ot_vh h = __builtin_convertvector(high ? pairs >> 16 : pairs & 0xffff, ot_vh);
    memcpy((uint16_t *)(rows + r * (QUERIES / 2)) + g * OT_LANES, &h, sizeof h);
}

/* Scores and their gradients become P and dS, in FP32 where they are, in pairs by rows of keys and dS by
 * words, too. */
OT_INLINE void differentiate_block(const head_block *h, const key_block *k, const buffers *f, float scale,
                                   int masked)
{
    for (size_t r = 0; r < k->rows; r += PAIRED + 1)
        for (size_t g = 0; g < LANE_GROUPS; g++) {
            gradient x = differentiate(h, k, f, scale, masked, r, g);
            if (PAIRED) {
                gradient next = differentiate(h, k, f, scale, masked, r + 1, g);
                ot_vu p = pair_up(x.p, next.p), ds = pair_up(x.ds, next.ds);
                ot_store_words(f->words + r / 2 * QUERIES + g * OT_LANES, ds);
                for (int high = 0; high < 2; high++) {
                    store_halves(f->score_rows, r + (size_t)high, g, p, high);
                    store_halves(f->dscore_rows, r + (size_t)high, g, ds, high);
                }
            } else {
                ot_store_full(OT_FP32, f->scores + r * QUERIES + g * OT_LANES, x.p);
                ot_store_full(OT_FP32, f->dscores + r * QUERIES + g * OT_LANES, x.ds);
            }
        }
}

/* rows of `sums` += a [k->rows,QUERIES] b [QUERIES,wide]. */
static void add_to_keys(const ot_attention_work *w, const key_block *k, const void *a, const uint32_t *b,
                        float *sums)
{
    size_t words = ot_attention_query_words(w);
    multiply_block(&(block_product){.a = a,
                                    .lda = words,
                                    .b = b,
                                    .ldb = w->wide,
                                    .c = sums + k->first * w->wide,
                                    .ldc = w->wide,
                                    .rows = k->rows,
                                    .cols = w->wide,
                                    .words = words,
                                    .start = START_ADD});
}

static void backward_keys(const ot_attention_work *w, const head_block *h, const key_block *k, size_t kv_head,
                          const buffers *f, float *sums)
{
    size_t block = block_of(w, h->q.b, kv_head, k->block);
    block_product p = {.a = packed_rows(w, w->k, block, k->skipped),
                       .lda = w->depth,
                       .b = f->queries,
                       .ldb = QUERIES,
                       .c = f->scores,
                       .ldc = QUERIES,
                       .rows = k->rows,
                       .cols = QUERIES,
                       .words = w->depth,
                       .start = START_ZERO};
    multiply_block(&p);
    p.a = packed_rows(w, w->v, block, k->skipped);
    p.b = f->douts;
    p.c = f->dscores;
    multiply_block(&p);
    float scale = w->args->scale * 1.44269504088896341f;
    if (k->masked)
        differentiate_block(h, k, f, scale, 1);
    else
        differentiate_block(h, k, f, scale, 0);
    float *dk = sums, *dv = sums + ot_attention_slot(w) / 2;
    add_to_keys(w, k, PAIRED ? (const void *)f->score_rows : f->scores, f->dout_rows, dv);
    add_to_keys(w, k, PAIRED ? (const void *)f->dscore_rows : f->dscores, f->query_rows, dk);
    multiply_block(&(block_product){.a = packed_turned(w, block, k->skipped),
                                    .lda = ot_words(PAIRED, KEYS),
                                    .b = PAIRED ? f->words : (const uint32_t *)f->dscores,
                                    .ldb = QUERIES,
                                    .c = f->dq,
                                    .ldc = QUERIES,
                                    .rows = w->wide,
                                    .cols = QUERIES,
                                    .words = ot_words(PAIRED, k->rows),
                                    .start = k->block == first_key_block(&h->q) ? START_ZERO : START_ADD});
}

static void backward_queries(const ot_attention_work *w, size_t b, size_t head, size_t block,
                             const buffers *f, float *sums)
{
    const ot_attention *a = w->args;
    head_block h = {.q = describe_queries(a, b, block)};
    OT_WITH_DTYPE(a->dtype, load_head, a, head, &h);
    pack_head(w, head, &h, f);
    for (size_t i = first_key_block(&h.q); i <= last_key_block(&h.q); i++) {
        key_block k = describe_keys(&h.q, i);
        backward_keys(w, &h, &k, head / (a->NH / a->NKV), f, sums);
    }
    ot_vf factor[LANE_GROUPS];
    for (size_t g = 0; g < LANE_GROUPS; g++)
        factor[g] = ot_splat(a->scale);
    size_t at = (b * a->T + h.q.first) * a->ld_dq + head * a->HD;
    store_turned(w, &h.q, f->dq, factor, ot_at_mutable(a->dtype, a->dq, at), a->ld_dq);
}

OT_INLINE void reduce_row(ot_dtype dtype, const ot_attention_work *w, const float *slots, size_t t, void *dk,
                          void *dv)
{
    size_t HD = w->args->HD, slot = ot_attention_slot(w);
    for (size_t i = 0; i < HD; i += OT_LANES) {
        ot_vf k = {0}, v = {0};
        for (size_t s = 0; s < w->splits; s++) {
            const float *sums = slots + s * slot + t * w->wide;
            k += ot_load_full(OT_FP32, sums + i);
            v += ot_load_full(OT_FP32, sums + slot / 2 + i);
        }
        ot_store(dtype, dk, i, HD, k * w->args->scale);
        ot_store(dtype, dv, i, HD, v);
    }
}

/* Row t of pair (b,kv head) from the slots that start at `slots`. */
static void reduce(const ot_attention_work *w, size_t pair, size_t t, const float *slots)
{
    const ot_attention *a = w->args;
    size_t at = (pair / a->NKV * a->T + t) * a->ld_dkv + pair % a->NKV * a->HD;
    void *dk = ot_at_mutable(a->dtype, a->dk, at), *dv = ot_at_mutable(a->dtype, a->dv, at);
    OT_WITH_DTYPE(a->dtype, reduce_row, w, slots, t, dk, dv);
}

/* Elements: rows of dk and dv, of all key and value heads of all sequences; after all shares, where there are
 * several of each. */
void OT_VARIANT(ot_attention_reduce_rows)(const void *args, size_t begin, size_t end)
{
    const ot_attention_work *w = args;
    for (size_t item = begin; item < end; item++) {
        size_t pair = item / w->args->T;
        reduce(w, pair, item % w->args->T, w->sums + pair * w->splits * ot_attention_slot(w));
    }
}

/* Elements: shares, `splits` of each key and value head of each sequence. A share has every splits-th block
 * of queries of every head of the group. */
void OT_VARIANT(ot_attention_backward_share)(const void *args, size_t begin, size_t end)
{
    const ot_attention_share *share = args;
    const ot_attention_work *w = share->work;
    const ot_attention *a = w->args;
    size_t group = a->NH / a->NKV;
    buffers f = divide_scratch(w, share->scratch);
    for (size_t item = begin; item < end; item++) {
        size_t pair = item / w->splits, b = pair / a->NKV, kv_head = pair % a->NKV;
        float *sums = w->splits > 1 ? w->sums + item * ot_attention_slot(w) : share->sums;
        memset(sums, 0, ot_attention_slot(w) * sizeof *sums);
        for (size_t block = item % w->splits; block < w->query_blocks; block += w->splits)
            for (size_t head = kv_head * group; head < (kv_head + 1) * group; head++)
                backward_queries(w, b, head, block, &f, sums);
        for (size_t t = 0; w->splits == 1 && t < a->T; t++)
            reduce(w, pair, t, sums);
    }
}
