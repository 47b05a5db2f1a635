/* The inner loops of attention: products of packed blocks, masks, powers of two. Compiled per instruction
 * set, and once more for processors that multiply BF16 pairs, with contraction of a*b+c allowed: the variants
 * differ in rounding. */
#ifndef OT_KERNELS_CPU_ATTENTION_BLOCK_H
#define OT_KERNELS_CPU_ATTENTION_BLOCK_H

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "kernels/cpu/attention.h"
#include "kernels/cpu/pack.h"

#if defined(__AVX512BF16__)
enum { PAIRED = 1 };
#else
enum { PAIRED = 0 };
#endif

/* ---- Products ---- */

/* So many sums as the registers hold beside the vectors of B and one factor: ROWS rows of VECTORS vectors. */
#if OT_LANES == 16
enum { ROWS = 6, VECTORS = 4 };
#else
enum { ROWS = 6, VECTORS = 2 };
#endif

typedef enum start {
    START_ZERO,  /* C = A B */
    START_ADD,   /* C += A B */
    START_SCALE, /* C = C * factor[column] + A B */
} start;

typedef struct block_product {
    const uint32_t *a; /* [rows,words] */
    const uint32_t *b; /* [words,cols] */
    float *c;          /* [rows,cols] */
    size_t lda, ldb, ldc;
    size_t rows, cols, words; /* cols: a multiple of 16 */
    start start;
    const float *factor;
} block_product;

OT_INLINE ot_vf multiply_add(ot_vf sum, uint32_t a, ot_vf b)
{
#if defined(__AVX512BF16__)
    return (ot_vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
#else
    float factor;
    memcpy(&factor, &a, sizeof factor);
    return sum + factor * b;
#endif
}

/* `rows` <= ROWS and `vectors` <= VECTORS are constants where this is called. */
OT_INLINE void product_tile(const block_product *p, size_t row, size_t col, size_t rows, size_t vectors)
{
    ot_vf sum[ROWS][VECTORS];
    const uint32_t *a = p->a + row * p->lda, *b = p->b + col;
    float *c = p->c + row * p->ldc + col;
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < vectors; v++) {
            sum[r][v] = (ot_vf){0};
            if (p->start != START_ZERO)
                sum[r][v] = ot_load_full(OT_FP32, c + r * p->ldc + v * OT_LANES);
            if (p->start == START_SCALE)
                sum[r][v] *= ot_load_full(OT_FP32, p->factor + col + v * OT_LANES);
        }
    for (size_t k = 0; k < p->words; k++) {
        ot_vf x[VECTORS];
        for (size_t v = 0; v < vectors; v++)
            x[v] = ot_load_full(OT_FP32, b + k * p->ldb + v * OT_LANES);
        for (size_t r = 0; r < rows; r++)
            for (size_t v = 0; v < vectors; v++)
                sum[r][v] = multiply_add(sum[r][v], a[r * p->lda + k], x[v]);
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < vectors; v++)
            memcpy(c + r * p->ldc + v * OT_LANES, &sum[r][v], sizeof sum[r][v]);
}

OT_INLINE void product_columns(const block_product *p, size_t col, size_t vectors)
{
    size_t row = 0;
    for (; row + 6 <= p->rows; row += 6)
        product_tile(p, row, col, 6, vectors);
    if (p->rows - row >= 4) {
        product_tile(p, row, col, 4, vectors);
        row += 4;
    }
    for (; row + 2 <= p->rows; row += 2)
        product_tile(p, row, col, 2, vectors);
    if (row < p->rows)
        product_tile(p, row, col, 1, vectors);
}

static __attribute__((noinline)) void multiply_block(const block_product *product)
{
    block_product p = *product;
    size_t col = 0;
    for (; col + VECTORS * OT_LANES <= p.cols; col += VECTORS * OT_LANES)
        product_columns(&p, col, VECTORS);
    for (; col < p.cols; col += OT_LANES)
        product_columns(&p, col, 1);
}

/* ---- Elements ---- */

/* 2^x to 2e-7, for x <= 0, where the least is 2^-126. The polynomial interpolates at Chebyshev's points of
 * [-1/2,1/2]. */
OT_INLINE ot_vf power_of_two(ot_vf x)
{
    x = ot_select(x < -126.0f, ot_splat(-126.0f), x);
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    ot_vf shifted = x + magic;
    ot_vf r = x - (shifted - magic);
    ot_vf p = ot_splat(0.00133908633f);
    p = p * r + 0.00967603177f;
    p = p * r + 0.0555035695f;
    p = p * r + 0.240221068f;
    p = p * r + 0.693147182f;
    p = p * r + 1.00000012f;
    return p * (ot_vf)(((ot_vi)shifted + (127 - 0x4b400000)) << 23);
}

/* To BF16 pairs: a in the low halves, b in the high ones. */
OT_INLINE ot_vu pair_up(ot_vf a, ot_vf b)
{
#if defined(__AVX512BF16__)
    ot_vh low, high;
    __m256bh l = _mm512_cvtneps_pbh((__m512)a), h = _mm512_cvtneps_pbh((__m512)b);
    memcpy(&low, &l, sizeof low);
    memcpy(&high, &h, sizeof high);
#else
    ot_vh low = ot_to_bf16(a), high = ot_to_bf16(b);
#endif
    return __builtin_convertvector(low, ot_vu) | __builtin_convertvector(high, ot_vu) << 16;
}

/* ---- What a block of queries sees ---- */

enum { QUERIES = OT_ATTENTION_QUERIES, KEYS = OT_ATTENTION_KEYS, LANE_GROUPS = QUERIES / OT_LANES };

/* Queries first .. first+QUERIES-1 of sequence b, of which `count` exist; each sees the keys from lowest[i]
 * to itself. */
typedef struct query_block {
    size_t b, first, count;
    ot_vi lowest[LANE_GROUPS];
    int32_t lowest_of_first, lowest_of_last;
} query_block;

OT_INLINE int32_t lowest_key(const ot_attention *a, size_t b, size_t t)
{
    size_t lowest = a->doc_start != NULL ? (size_t)a->doc_start[b * a->T + t] : 0;
    if (a->window > 0 && t + 1 > a->window && t + 1 - a->window > lowest)
        lowest = t + 1 - a->window;
    return (int32_t)lowest;
}

OT_INLINE query_block describe_queries(const ot_attention *a, size_t b, size_t block)
{
    query_block q = {.b = b, .first = block * QUERIES};
    q.count = a->T - q.first < QUERIES ? a->T - q.first : QUERIES;
    int32_t lowest[QUERIES];
    for (size_t i = 0; i < QUERIES; i++)
        lowest[i] = lowest_key(a, b, i < q.count ? q.first + i : q.first + q.count - 1);
    memcpy(q.lowest, lowest, sizeof lowest);
    q.lowest_of_first = lowest[0];
    q.lowest_of_last = lowest[QUERIES - 1];
    return q;
}

/* The keys first .. first+rows-1 of key block `block` that some query sees, in steps; `masked`: not by every
 * query. */
typedef struct key_block {
    size_t block, skipped, rows; /* skipped: the rows of the block before `first` */
    size_t first;
    int masked;
} key_block;

OT_INLINE size_t first_key_block(const query_block *q)
{
    return (size_t)q->lowest_of_first / KEYS;
}

OT_INLINE size_t last_key_block(const query_block *q)
{
    return (q->first + q->count - 1) / KEYS;
}

OT_INLINE key_block describe_keys(const query_block *q, size_t block)
{
    key_block k = {.block = block};
    size_t base = block * KEYS, lowest = (size_t)q->lowest_of_first, end = q->first + q->count;
    k.skipped = lowest > base ? (lowest - base) / OT_ATTENTION_STEP * OT_ATTENTION_STEP : 0;
    size_t stop =
        end - base < KEYS ? ot_attention_ceiling(end - base, OT_ATTENTION_STEP) * OT_ATTENTION_STEP : KEYS;
    k.first = base + k.skipped;
    k.rows = stop - k.skipped;
    k.masked = (size_t)q->lowest_of_last > k.first || base + stop - 1 > q->first;
    return k;
}

/* -1 for the queries of a group of lanes that see `key`. */
OT_INLINE ot_vi sees(const query_block *q, size_t group, size_t key)
{
    ot_vi t = ot_lane_numbers() + (int32_t)(q->first + group * OT_LANES);
    return (t >= (int32_t)key) & (q->lowest[group] <= (int32_t)key);
}

/* ---- Operands ---- */

/* Rows of one head: of q, out, dout and dq, or of k and v. */
OT_INLINE const void *head_rows(ot_dtype dtype, const void *tensor, size_t T, size_t ld, size_t HD, size_t b,
                                size_t h, size_t t)
{
    return ot_at(dtype, tensor, (b * T + t) * ld + h * HD);
}

OT_INLINE size_t block_of(const ot_attention_work *w, size_t b, size_t h, size_t block)
{
    return (b * w->args->NKV + h) * w->key_blocks + block;
}

OT_INLINE const uint32_t *packed_rows(const ot_attention_work *w, const uint32_t *packed, size_t block,
                                      size_t row)
{
    return packed + (block * KEYS + row) * w->depth;
}

/* `row`: the key from which on the words are wanted. */
OT_INLINE const uint32_t *packed_turned(const ot_attention_work *w, size_t block, size_t row)
{
    return w->turned + block * w->wide * ot_words(PAIRED, KEYS) + ot_words(PAIRED, row);
}

/* Queries (or dout), turned: [depth,QUERIES]. */
OT_INLINE void pack_queries_turned(const ot_attention_work *w, const ot_operand *rows, uint32_t *dst)
{
    ot_pack_any(w->args->dtype, PAIRED, 1, rows, 0, QUERIES, 0, w->depth, dst, QUERIES);
}

/* Writes [wide,QUERIES] in FP32, times factor[query], as rows of `dtype`. */
OT_INLINE void store_turned(const ot_attention_work *w, const query_block *q, const float *src,
                            const ot_vf factor[LANE_GROUPS], void *rows, size_t ld)
{
    size_t HD = w->args->HD;
    for (size_t g = 0; g < LANE_GROUPS && g * OT_LANES < q->count; g++)
        for (size_t i = 0; i < HD; i += OT_LANES) {
            ot_vu x[OT_LANES];
            for (size_t l = 0; l < OT_LANES; l++)
                x[l] = (ot_vu)(ot_load_full(OT_FP32, src + (i + l) * QUERIES + g * OT_LANES) * factor[g]);
            ot_transpose(x);
            for (size_t l = 0; l < OT_LANES && g * OT_LANES + l < q->count; l++) {
                void *row = ot_at_mutable(w->args->dtype, rows, (g * OT_LANES + l) * ld);
                OT_WITH_DTYPE(w->args->dtype, ot_store, row, i, HD, (ot_vf)x[l]);
            }
        }
}

#endif
