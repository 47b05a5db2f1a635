/* Attention forward, over one block of queries of one head at a time. */
#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/cpu.h"

static const float LOG2_E = 1.44269504088896341f;

/* The running softmax of a block of queries (Milakov & Gimelshein 2018), in powers of two. */
typedef struct softmax {
    ot_vf max[LANE_GROUPS], sum[LANE_GROUPS];
    float decay[QUERIES]; /* of what was summed before the last block */
} softmax;

/* The scale of scores that become exponents of two. */
OT_INLINE float exponent_scale(const ot_attention *a)
{
    return a->scale * LOG2_E;
}

OT_INLINE void update_maxima(softmax *s, const query_block *q, const key_block *k, const float *scores,
                             float scale, int masked)
{
    ot_vf max[LANE_GROUPS];
    for (size_t g = 0; g < LANE_GROUPS; g++)
        max[g] = s->max[g];
    for (size_t r = 0; r < k->rows; r++)
        for (size_t g = 0; g < LANE_GROUPS; g++) {
            ot_vf x = ot_load_full(OT_FP32, scores + r * QUERIES + g * OT_LANES) * scale;
            if (masked)
                x = ot_select(sees(q, g, k->first + r), x, max[g]);
            max[g] = ot_select(x > max[g], x, max[g]);
        }
    for (size_t g = 0; g < LANE_GROUPS; g++) {
        ot_vf decay = power_of_two(s->max[g] - max[g]);
        ot_store_full(OT_FP32, s->decay + g * OT_LANES, decay);
        s->sum[g] *= decay;
        s->max[g] = max[g];
    }
}

OT_INLINE ot_vf probability(const softmax *s, const query_block *q, const key_block *k, const float *scores,
                            float scale, int masked, size_t r, size_t g)
{
    ot_vf p = power_of_two(ot_load_full(OT_FP32, scores + r * QUERIES + g * OT_LANES) * scale - s->max[g]);
    return masked ? ot_select(sees(q, g, k->first + r), p, ot_splat(0)) : p;
}

/* Scores become probabilities, up to the sum, as words for the product with V. */
OT_INLINE void exponentiate(softmax *s, const query_block *q, const key_block *k, const float *scores,
                            float scale, int masked, uint32_t *words)
{
    for (size_t r = 0; r < k->rows; r += PAIRED + 1)
        for (size_t g = 0; g < LANE_GROUPS; g++) {
            ot_vf p = probability(s, q, k, scores, scale, masked, r, g);
            s->sum[g] += p;
            if (PAIRED) {
                ot_vf next = probability(s, q, k, scores, scale, masked, r + 1, g);
                s->sum[g] += next;
                ot_store_words(words + r / 2 * QUERIES + g * OT_LANES, pair_up(p, next));
            } else {
                ot_store_words(words + r * QUERIES + g * OT_LANES, (ot_vu)p);
            }
        }
}

typedef struct buffers {
    uint32_t *queries; /* [depth,QUERIES] */
    float *scores;     /* [KEYS,QUERIES] */
    uint32_t *words;   /* probabilities: [words of KEYS,QUERIES] */
    float *out;        /* [wide,QUERIES] */
} buffers;

static buffers divide_scratch(const ot_attention_work *w, unsigned char *scratch)
{
    buffers f;
    f.queries = (uint32_t *)scratch;
    f.scores = (float *)(f.queries + w->depth * QUERIES);
    f.words = (uint32_t *)(f.scores + KEYS * QUERIES);
    f.out = (float *)(f.words + ot_attention_key_words(w) * QUERIES);
    return f;
}

OT_INLINE void attend(const ot_attention_work *w, const query_block *q, const key_block *k, size_t kv_head,
                      softmax *s, const buffers *f, int is_first)
{
    const ot_attention *a = w->args;
    size_t block = block_of(w, q->b, kv_head, k->block);
    multiply_block(&(block_product){.a = packed_rows(w, w->k, block, k->skipped),
                                    .lda = w->depth,
                                    .b = f->queries,
                                    .ldb = QUERIES,
                                    .c = f->scores,
                                    .ldc = QUERIES,
                                    .rows = k->rows,
                                    .cols = QUERIES,
                                    .words = w->depth,
                                    .start = START_ZERO});
    float scale = exponent_scale(a);
    if (k->masked) {
        update_maxima(s, q, k, f->scores, scale, 1);
        exponentiate(s, q, k, f->scores, scale, 1, f->words);
    } else {
        update_maxima(s, q, k, f->scores, scale, 0);
        exponentiate(s, q, k, f->scores, scale, 0, f->words);
    }
    multiply_block(&(block_product){.a = packed_turned(w, block, k->skipped),
                                    .lda = ot_words(PAIRED, KEYS),
                                    .b = f->words,
                                    .ldb = QUERIES,
                                    .c = f->out,
                                    .ldc = QUERIES,
                                    .rows = w->wide,
                                    .cols = QUERIES,
                                    .words = ot_words(PAIRED, k->rows),
                                    .start = is_first ? START_ZERO : START_SCALE,
                                    .factor = s->decay});
}

static void store_lse(const ot_attention *a, const query_block *q, size_t head, const softmax *s)
{
    float max[QUERIES], sum[QUERIES], *lse = a->lse + (q->b * a->NH + head) * a->T + q->first;
    memcpy(max, s->max, sizeof max);
    memcpy(sum, s->sum, sizeof sum);
    for (size_t i = 0; i < q->count; i++)
        lse[i] = (float)((double)max[i] * 0.69314718055994530942 + ot_log((double)sum[i]));
}

static void forward_block(const ot_attention_work *w, size_t b, size_t head, size_t block,
                          unsigned char *scratch)
{
    const ot_attention *a = w->args;
    buffers f = divide_scratch(w, scratch);
    query_block q = describe_queries(a, b, block);
    softmax s;
    for (size_t g = 0; g < LANE_GROUPS; g++) {
        s.max[g] = ot_splat(-1e30f); /* below every score, and finite: a difference of two is no NaN */
        s.sum[g] = ot_splat(0);
    }
    ot_operand rows = {head_rows(a->dtype, a->q, a->T, a->ld_q, a->HD, b, head, q.first), a->ld_q, q.count,
                       a->HD, 0};
    pack_queries_turned(w, &rows, f.queries);
    for (size_t i = first_key_block(&q); i <= last_key_block(&q); i++) {
        key_block k = describe_keys(&q, i);
        attend(w, &q, &k, head / (a->NH / a->NKV), &s, &f, i == first_key_block(&q));
    }
    ot_vf factor[LANE_GROUPS];
    for (size_t g = 0; g < LANE_GROUPS; g++)
        factor[g] = 1.0f / s.sum[g];
    size_t at = (b * a->T + q.first) * a->ld_out + head * a->HD;
    store_turned(w, &q, f.out, factor, ot_at_mutable(a->dtype, a->out, at), a->ld_out);
    if (a->lse != NULL)
        store_lse(a, &q, head, &s);
}

/* Elements: blocks of queries, the last of the sequence, which see most, first; in each, heads of all
 * sequences. */
void OT_VARIANT(ot_attention_forward_block)(const void *args, size_t begin, size_t end)
{
    const ot_attention_share *share = args;
    const ot_attention_work *w = share->work;
    size_t heads = w->args->B * w->args->NH;
    for (size_t item = begin; item < end; item++) {
        size_t head = item % heads, block = w->query_blocks - 1 - item / heads;
        forward_block(w, head / w->args->NH, head % w->args->NH, block, share->scratch);
    }
}

/* K, V and what is needed of them turned. Elements: blocks of keys of all heads of all sequences. */
void OT_VARIANT(ot_attention_pack)(const void *args, size_t begin, size_t end)
{
    const ot_attention_work *w = args;
    const ot_attention *a = w->args;
    size_t words = ot_attention_key_words(w);
    for (size_t item = begin; item < end; item++) {
        size_t block = item % w->key_blocks, h = item / w->key_blocks % a->NKV,
               b = item / w->key_blocks / a->NKV;
        size_t first = block * KEYS, count = a->T - first < KEYS ? a->T - first : KEYS;
        ot_operand k = {head_rows(a->dtype, a->k, a->T, a->ld_kv, a->HD, b, h, first), a->ld_kv, count, a->HD,
                        0};
        ot_operand v = {head_rows(a->dtype, a->v, a->T, a->ld_kv, a->HD, b, h, first), a->ld_kv, count, a->HD,
                        0};
        ot_pack_any(a->dtype, w->paired, 0, &k, 0, KEYS, 0, w->depth, w->k + item * KEYS * w->depth,
                    w->depth);
        if (w->backward)
            ot_pack_any(a->dtype, w->paired, 0, &v, 0, KEYS, 0, w->depth, w->v + item * KEYS * w->depth,
                        w->depth);
        ot_operand turned = w->backward ? k : v;
        turned.sum_rows = 1;
        ot_pack_any(a->dtype, w->paired, 1, &turned, 0, words, 0, w->wide, w->turned + item * w->wide * words,
                    words);
    }
}
