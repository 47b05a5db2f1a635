/* The mathematics: the table of operations that every device implements.
 *
 * Dimensions: B sequences, T tokens each, N = B*T tokens (rows), C width, V vocabulary, L layers, NH query
 * heads, NKV key and value heads, HD head dimension, F feed-forward width, OC output width. A shape [N,C] is
 * row-major; `ld_x` is the distance of two rows of x in elements, at least the row's length, so that a tensor
 * can be a part of a wider one (q, k and v in one [N,(NH+2*NKV)*HD], gate and up in one [N,2*F]).
 *
 * Rules for every operation:
 * - It is enqueued on `stream` (device.h) and returns at once. It never allocates and never blocks. The
 *   struct of arguments is copied during the call; what its pointers name stays valid and unchanged until the
 *   operation has run. Arguments that make no sense stick to the device as a failure.
 * - Pointers are device memory, or on a device with host_memory any memory; aligned to their element (16
 *   bytes are faster). Outputs overlap no input unless "in place" is allowed.
 * - `dtype` is the type of activations and of the weights they meet: OT_FP32, OT_BF16 or OT_FP16. All
 *   arithmetic is FP32 or wider; a 16-bit output is rounded once, to nearest even, unless said otherwise. Out
 *   of FP16's range is inf.
 * - "=" overwrites, "+=" adds to what is there. Gradients of weights are FP32 and always "+=": they add up
 *   over micro-batches. Gradients of activations are of type `dtype` and "=".
 * - The same arguments give the same bytes, whatever the number of threads and whatever runs beside: no
 *   atomics, sums in a fixed order.
 * - A count of zero is no work. inf and NaN pass through; no operation hides them.
 * - `workspace` is device memory of `X_workspace(...)` bytes, aligned to 64 bytes, for this operation alone
 *   until it has run; 0 bytes: it may be NULL.
 *
 * Common subset of C and C++. */
#ifndef OT_KERNELS_KERNELS_H
#define OT_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Embedding ---- */

/* Forward: out[n,:] = table[tokens[n],:], or with `add` out[n,:] += that (the positions of GPT-2).
 * Backward: dtable[tokens[n],:] += dout[n,:], for each row of the table in ascending n.
 * 0 <= tokens[n] < V. */
typedef struct ot_embedding {
    ot_dtype dtype;
    size_t N, C, V;
    const int32_t *tokens; /* [N] */
    const void *table;     /* [V,C] */
    void *out;             /* [N,C] */
    int add;
    const void *dout; /* [N,C] */
    float *dtable;    /* [V,C] += */
    void *workspace;  /* backward: embedding_workspace */
} ot_embedding;

/* ---- Norms ---- */

typedef enum ot_norm_kind {
    OT_RMSNORM,   /* y = x * rstd * weight, rstd = 1/sqrt(mean(x^2) + eps): Zhang & Sennrich 2019 */
    OT_LAYERNORM, /* y = (x - mean) * rstd * weight + bias, var biased: Ba, Kiros & Hinton 2016 */
} ot_norm_kind;

/* Norms H groups of C elements in each of N rows: H = 1 for a norm over the row; H = heads and C = HD for
 * q/k-norm, all heads sharing one weight. Group (n,h) of x starts at x + n*ld_x + h*C. Forward keeps rstd
 * (and mean) for backward; NULL where there will be none. y may be x where backward gets another x. Backward,
 * with xhat = (x - mean) * rstd (mean 0 for RMSNorm), g = dy * weight, averages over C:
 *   dx = dresidual + rstd * (g - xhat * avg(g * xhat) [- avg(g) for LayerNorm])
 *   dweight += sum over n,h of dy * xhat,   dbias += sum over n,h of dy.
 * dx may be dresidual or dy. */
typedef struct ot_norm {
    ot_norm_kind kind;
    ot_dtype dtype;
    size_t N, H, C;
    float eps;
    size_t ld_x, ld_y;     /* ld_y: of y and dy */
    const void *x;         /* [N,H,C] */
    const void *weight;    /* [C] */
    const void *bias;      /* [C], LayerNorm; NULL: none */
    void *y;               /* [N,H,C] = */
    float *mean;           /* [N,H], LayerNorm: forward =, backward reads */
    float *rstd;           /* [N,H]: forward =, backward reads */
    const void *dy;        /* [N,H,C] */
    const void *dresidual; /* [N,H,C]: gradient that reaches x another way; NULL: none */
    size_t ld_dx;          /* of dx and dresidual */
    void *dx;              /* [N,H,C] =; NULL: not wanted */
    float *dweight;        /* [C] +=; NULL: not wanted */
    float *dbias;          /* [C] +=; NULL: none */
    void *workspace;       /* backward: norm_workspace */
} ot_norm;

/* ---- Matrix products ---- */

typedef enum ot_matmul_op {
    OT_MATMUL_FORWARD, /* Y [N,OC] = X [N,C] W^T [C,OC] + bias [OC]:  a = X, b = W,  out = Y */
    OT_MATMUL_DX,      /* dX [N,C] = dY [N,OC] W [OC,C]:              a = dY, b = W, out = dX */
    OT_MATMUL_DW,      /* dW [OC,C] = dY^T [OC,N] X [N,C]:            a = dY, b = X, out = dW, FP32 */
} ot_matmul_op;

/* Sums in FP32. out has out_dtype: `dtype` or OT_FP32 (always OT_FP32 for DW). `accumulate`: adds to what
 * is in out (read, added in FP32, rounded once); otherwise out is overwritten, unread. */
typedef struct ot_matmul {
    ot_matmul_op op;
    ot_dtype dtype; /* of a, b and bias */
    ot_dtype out_dtype;
    size_t N, C, OC;
    const void *a, *b;
    size_t ld_a, ld_b;
    const void *bias; /* FORWARD: [OC], NULL: none */
    void *out;
    size_t ld_out;
    int accumulate;
    void *workspace; /* matmul_workspace */
} ot_matmul;

/* dbias[OC] += sum over n of dy[n,:], in ascending n within fixed lanes. */
typedef struct ot_bias_backward {
    ot_dtype dtype;
    size_t N, OC, ld_dy;
    const void *dy;  /* [N,OC] */
    float *dbias;    /* [OC] += */
    void *workspace; /* bias_backward_workspace */
} ot_bias_backward;

/* ---- Rotary position embedding ---- */

/* In place, rotating half against half: with (c,s) of position p = positions[n] and i < HD/2,
 *   x[i], x[i+HD/2] = x[i]*c[i] - x[i+HD/2]*s[i], x[i+HD/2]*c[i] + x[i]*s[i]   (Su et al. 2021, Hugging
 * Face's order). Backward rotates by the negative angle. H heads lie side by side in each row. */
typedef struct ot_rope {
    ot_dtype dtype;
    size_t N, H, HD; /* HD even */
    const int32_t
        *positions;     /* [N], each within the table; they start again at 0 with each document of a pack */
    const float *table; /* ot_rope_table, on the device: [positions,2,HD/2], cosines then sines */
    size_t ld_x;
    void *x; /* [N,H,HD] in place */
} ot_rope;

typedef enum ot_rope_kind {
    OT_ROPE_PLAIN,
    OT_ROPE_LINEAR, /* angles divided by factor */
    OT_ROPE_LLAMA3, /* low frequencies divided by factor, high ones kept, smooth between (transformers,
                     * modeling_rope_utils.py, _compute_llama3_parameters) */
} ot_rope_kind;

typedef struct ot_rope_scaling {
    ot_rope_kind kind;
    double theta; /* base: 10000, 500000 */
    double factor, low_freq_factor, high_freq_factor;
    double original_positions;
} ot_rope_scaling;

/* The inverse frequency theta^(-2i/HD), scaled. */
double ot_rope_frequency(const ot_rope_scaling *scaling, size_t i, size_t HD);

/* Fills a table of `positions` rows in host memory; the caller copies it to the device. The inverse
 * frequencies theta^(-2i/HD) are rounded to FP32, as the reference does; the angles p*inv_freq are not, and so within
 * p*2^-25 of the exact ones: 0.004 at position 131,071. Plain function of the host. */
void ot_rope_table(const ot_rope_scaling *scaling, size_t HD, size_t positions, float *table);

static inline size_t ot_rope_table_bytes(size_t HD, size_t positions)
{
    return positions * (HD / 2) * 2 * sizeof(float);
}

/* ---- Attention ---- */

/* Causal grouped-query attention; query head h reads key and value head h / (NH/NKV). Within a sequence,
 * token t sees the keys j with max(doc_start[t], t-window+1) <= j <= t:
 *   out[t] = sum_j softmax_j(scale * q[t].k[j]) v[j],   lse[t] = log sum_j exp(scale * q[t].k[j]).
 * Forward and backward in blocks (Dao et al. 2022, Milakov & Gimelshein 2018): memory grows with T, never
 * with T^2. Backward, with P = exp(scale*q.k - lse) and D = sum(dout*out) over HD: dv = P^T dout, dS = P
 * (dout v^T - D), dq = scale dS k, dk = scale dS^T q, dk and dv summed over the heads of a group. */
typedef struct ot_attention {
    ot_dtype dtype;
    size_t B, T, NH, NKV, HD; /* NH a multiple of NKV; any HD */
    float scale;              /* 1/sqrt(HD) as a rule */
    size_t window;            /* keys seen, the token itself counted; 0: all */
    const int32_t *doc_start; /* [B,T]: index in its sequence of the first token of t's document, 0 <=
                               * doc_start[t] <= t, never falling; NULL: one document a sequence */
    size_t ld_q, ld_kv, ld_out;
    const void *q;     /* [B,T,NH,HD] */
    const void *k, *v; /* [B,T,NKV,HD] */
    void *out;         /* [B,T,NH,HD]: forward =, backward reads */
    float *lse;        /* [B,NH,T]: forward = (NULL: not wanted), backward reads */
    const void *dout;  /* [B,T,NH,HD], ld_out */
    size_t ld_dq, ld_dkv;
    void *dq;        /* [B,T,NH,HD] = */
    void *dk, *dv;   /* [B,T,NKV,HD] = */
    void *workspace; /* attention_forward_workspace, attention_backward_workspace */
} ot_attention;

/* ---- Activations ---- */

/* out = silu(gate) * up, silu(x) = x / (1 + exp(-x)) (Shazeer 2020). Backward, with s = 1/(1+exp(-gate)):
 * dgate = dout*up*s*(1 + gate*(1-s)), dup = dout*gate*s; dgate may be gate and dup may be up. */
typedef struct ot_swiglu {
    ot_dtype dtype;
    size_t N, F;
    size_t ld_gate;        /* of gate and up */
    const void *gate, *up; /* [N,F] */
    size_t ld_out;         /* of out and dout */
    void *out;             /* [N,F] = */
    const void *dout;      /* [N,F] */
    size_t ld_dgate;       /* of dgate and dup */
    void *dgate, *dup;     /* [N,F] = */
} ot_swiglu;

typedef enum ot_gelu_kind {
    OT_GELU_TANH, /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GPT-2's */
    OT_GELU_ERF,  /* x/2 (1 + erf(x/sqrt(2))): Hendrycks & Gimpel 2016 */
} ot_gelu_kind;

/* y = gelu(x); backward dx = dy * gelu'(x). n elements side by side. y may be x; dx may be dy or x. */
typedef struct ot_gelu {
    ot_gelu_kind kind;
    ot_dtype dtype;
    size_t n;
    const void *x;
    void *y;
    const void *dy;
    void *dx;
} ot_gelu;

/* out = a + b over n elements; out may be a or b. */
typedef struct ot_residual {
    ot_dtype dtype;
    size_t n;
    const void *a, *b;
    void *out;
} ot_residual;

/* ---- Loss ---- */

/* Over a chunk of N tokens: losses[n] = log sum_v exp(logits[n,v]) - logits[n,targets[n]], and where
 * `backward` is set, in place, logits[n,v] = (softmax(logits[n,:])[v] - (v == targets[n])) * scale. A masked
 * target, -1, gives a loss and a gradient of 0. */
typedef struct ot_cross_entropy {
    ot_dtype dtype; /* of the logits */
    size_t N, V, ld_logits;
    void *logits;           /* [N,V] */
    const int32_t *targets; /* [N]: 0 .. V-1, or -1 */
    float *losses;          /* [N] = */
    int backward;
    float scale; /* loss scale / trained tokens of the whole step */
} ot_cross_entropy;

/* ---- Sums ---- */

/* A sum over a plane must not depend on how the plane is cut into chunks: it is made of one FP64 partial for
 * every OT_SUM_BLOCK elements, summed in fixed lanes, so a chunk that starts at a multiple of it gives the
 * same partials as the whole. The partials are then added up one after the other (`sum_partials`, or the
 * host). */
enum { OT_SUM_BLOCK = 65536 };

static inline size_t ot_sum_blocks(size_t n)
{
    return (n + OT_SUM_BLOCK - 1) / OT_SUM_BLOCK;
}

/* partials[i] = sum of squares of block i. inf or NaN in x gives inf or NaN, and finite FP32 values cannot
 * overflow FP64, so this is the overflow test of a step, too. */
typedef struct ot_sum_squares {
    ot_dtype dtype;
    size_t n;
    const void *x;
    double *partials; /* [ot_sum_blocks(n)] = */
} ot_sum_squares;

/* out[0] = (add ? out[0] : 0) + x[0] + x[1] + ..., in this order, in FP64. */
typedef struct ot_sum {
    size_t n;
    const void *x; /* sum_losses: FP32; sum_partials: FP64 */
    double *out;
    int add;
} ot_sum;

/* ---- Conversions ---- */

typedef enum ot_rounding {
    OT_ROUND_NEAREST,    /* to nearest, ties to even */
    OT_ROUND_STOCHASTIC, /* up with a probability equal to the distance from below: the expected value is x */
} ot_rounding;

/* dst = src over n elements, between OT_FP32, OT_BF16 and OT_FP16. Stochastic rounding, from OT_FP32 only,
 * adds random bits below the last kept one and cuts: word 0 of ot_philox(seed, first + i, sequence) for
 * element i (random.h). inf and NaN stay what they are; NaN stays quiet. */
typedef struct ot_cast {
    ot_dtype dst_dtype, src_dtype;
    size_t n;
    const void *src;
    void *dst;
    ot_rounding rounding;
    uint64_t seed, sequence, first; /* first: number of element 0, so that a chunk rounds as its plane does */
} ot_cast;

/* A gradient on its way out: dst = round_to_nearest(src * scale), and partials[i] = sum of squares of block i
 * of dst as it was rounded, so that what overflows only in 16 bits is seen. */
typedef struct ot_cast_sum_squares {
    ot_dtype dst_dtype;
    size_t n;
    const float *src;
    float scale;
    void *dst;        /* may be src for OT_FP32 */
    double *partials; /* [ot_sum_blocks(n)] = */
} ot_cast_sum_squares;

/* x *= factor over n elements. */
typedef struct ot_scale {
    ot_dtype dtype;
    size_t n;
    void *x;
    float factor;
} ot_scale;

/* dst += src * factor over n elements. */
typedef struct ot_accumulate {
    ot_dtype src_dtype;
    size_t n;
    float *dst;
    const void *src;
    float factor;
} ot_accumulate;

/* The split master: hi, a bf16 weight, and lo, an int16 remainder, with master = (hi << 16) + lo exactly (mod
 * 2^32). hi = (raw + 0x8000) >> 16, rounded half up on the raw pattern; lo = raw - (hi << 16). */
typedef struct ot_split {
    size_t n;
    float *master; /* split_master reads, join_master = */
    uint16_t *hi;
    int16_t *lo;
} ot_split;

/* ---- Optimizer ---- */

typedef enum ot_optimizer {
    OT_OPTIMIZER_ADAMW,
    OT_OPTIMIZER_ADAM,
    OT_OPTIMIZER_SGD,
    OT_OPTIMIZER_LION,
    OT_OPTIMIZER_ADAFACTOR,
} ot_optimizer;

typedef enum ot_master_format {
    OT_MASTER_FP32,
    OT_MASTER_SPLIT, /* hi in `weight` (bf16), lo in `master` */
} ot_master_format;

/* Elements of one block of 8-bit moments. A chunk starts at a multiple of it. */
enum { OT_MOMENT_BLOCK = 256 };

/* What differs from step to step, read when the operation runs, so that the list can be enqueued before the
 * gradient's norm is known. In memory that the device reads; written by the caller before, ordered by the
 * stream or an event. */
typedef struct ot_update_step {
    int32_t skip;     /* 1: overflow: the operation changes nothing */
    float grad_scale; /* g = grad * grad_scale: 1/S * min(1, c/(norm+1e-6)) */
    float lr;
    float bias1,
        bias2; /* 1 - beta1^k and 1 - beta2^k, k the steps taken with this one, skipped ones not counted */
    float beta2_adafactor; /* 1 - k^-0.8 */
    uint64_t number;       /* k: stochastic rounding differs from step to step */
} ot_update_step;

/* One fused pass over n parameters p (the FP32 master), with g = grad * grad_scale, in FP32:
 *   AdamW   p -= lr*wd*p; m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g^2;
 *           p -= lr/bias1 * m / (sqrt(v)/sqrt(bias2) + eps)
 *           (Loshchilov & Hutter 2019, torch.optim.AdamW)
 *   Adam    g += wd*p, then as above without the decay (Kingma & Ba 2015, torch.optim.Adam)
 *   SGD     g += wd*p; m = b1*m + g; p -= lr*m (torch.optim.SGD, dampening 0)
 *   Lion    p -= lr*wd*p; p -= lr*sign(b1*m + (1-b1)*g); m = b2*m + (1-b2)*g (Chen et al. 2023)
 * and the 16-bit weight from the new master in the same pass. SGD and Lion have no moment2.
 *
 * Formats of moments: FP32; BF16, rounded stochastically; INT8, blocks of OT_MOMENT_BLOCK with a scale s each,
 * the largest magnitude in the block, q rounded stochastically:
 *   moment1 signed, m = q/127 * s;
 *   moment2 unsigned, of the square root, v = (q/255 * s)^2, q at least 1 where v > 0 (a v of 0 would make a
 *   large step of the rounding of m).
 * With FP32 nothing is random. Random words are those of ot_philox(seed, first + i, number): word 0 moment1,
 * word 1 moment2.
 *
 * The weight is rounded to nearest even; with the split master it is the high half. lr = 0 leaves p as it is,
 * bit for bit. Weight decay differs by tensor: the caller calls once for each run of parameters with the same. */
typedef struct ot_update {
    ot_optimizer kind;
    size_t n;
    float beta1, beta2, eps, weight_decay;
    const ot_update_step *step;
    ot_dtype grad_dtype;
    const void *grad; /* [n] */
    ot_master_format master_format;
    void *master; /* [n]: float, or int16_t lo */
    ot_dtype weight_dtype;
    void
        *weight; /* [n] =; read, too, with the split master; NULL: none (OT_FP32: the master is the weight) */
    ot_dtype moment1_format, moment2_format;
    void *moment1, *moment2; /* [n] */
    float *scale1, *scale2;  /* [ceil(n/OT_MOMENT_BLOCK)], OT_INT8 only */
    uint64_t seed, first;    /* first: number of element 0 in the model */
} ot_update;

/* Adafactor (Shazeer & Stern 2018, algorithm 4, with a given lr, no parameter scaling, no first moment) for a
 * matrix of [rows,cols], of which one operation handles rows first_row .. first_row+n_rows-1. RMS and APPLY may
 * begin and end within a row: element 0 is that of first_column in first_row. Passes over all the rows:
 *   STATS: r[i] = b2*r[i] + (1-b2)*avg_j(g[i,j]^2 + eps1) for its rows;
 *          column_sums[j] += sum_i(g[i,j]^2 + eps1), which the caller zeroes before the first rows;
 *   COLUMNS, once: c[j] = b2*c[j] + (1-b2)*column_sums[j]/rows; row_mean[0] = avg_i r[i];
 *   RMS:   u[i,j] = g[i,j] / sqrt(r[i]/row_mean * c[j]); partials as in ot_sum_squares over the rows at hand;
 *   APPLY: p -= lr*wd*p; p -= lr*u / max(1, sqrt(square_sum[0]/(rows*cols))), and the weight, as in ot_update.
 * b2 = step->beta2_adafactor. A vector (rows = 1) has the full second moment in c: u = g / sqrt(c), and STATS
 * and COLUMNS give c[j] = b2*c[j] + (1-b2)*(g[j]^2 + eps1). From `update`: n, the gradient of these elements,
 * and step; in APPLY their master and weight, the formats of both, and weight_decay. */
typedef enum ot_adafactor_pass {
    OT_ADAFACTOR_STATS,
    OT_ADAFACTOR_COLUMNS,
    OT_ADAFACTOR_RMS,
    OT_ADAFACTOR_APPLY,
} ot_adafactor_pass;

typedef struct ot_adafactor {
    ot_adafactor_pass pass;
    ot_update update;
    size_t rows, cols, first_row, first_column;
    float eps1;               /* 1e-30 */
    float *r;                 /* [rows] */
    float *c;                 /* [cols] */
    float *column_sums;       /* [cols] */
    float *row_mean;          /* [1] */
    double *partials;         /* RMS: [ot_sum_blocks(n)] = */
    const double *square_sum; /* APPLY: [1] */
} ot_adafactor;

/* ---- The table ---- */

struct ot_kernels {
    void (*embedding_forward)(ot_stream *stream, const ot_embedding *args);
    void (*embedding_backward)(ot_stream *stream, const ot_embedding *args);
    void (*norm_forward)(ot_stream *stream, const ot_norm *args);
    void (*norm_backward)(ot_stream *stream, const ot_norm *args);
    void (*matmul)(ot_stream *stream, const ot_matmul *args);
    void (*bias_backward)(ot_stream *stream, const ot_bias_backward *args);
    void (*rope_forward)(ot_stream *stream, const ot_rope *args);
    void (*rope_backward)(ot_stream *stream, const ot_rope *args);
    void (*attention_forward)(ot_stream *stream, const ot_attention *args);
    void (*attention_backward)(ot_stream *stream, const ot_attention *args);
    void (*swiglu_forward)(ot_stream *stream, const ot_swiglu *args);
    void (*swiglu_backward)(ot_stream *stream, const ot_swiglu *args);
    void (*gelu_forward)(ot_stream *stream, const ot_gelu *args);
    void (*gelu_backward)(ot_stream *stream, const ot_gelu *args);
    void (*residual_add)(ot_stream *stream, const ot_residual *args);
    void (*cross_entropy)(ot_stream *stream, const ot_cross_entropy *args);
    void (*sum_squares)(ot_stream *stream, const ot_sum_squares *args);
    void (*sum_losses)(ot_stream *stream, const ot_sum *args);
    void (*sum_partials)(ot_stream *stream, const ot_sum *args);
    void (*cast)(ot_stream *stream, const ot_cast *args);
    void (*cast_sum_squares)(ot_stream *stream, const ot_cast_sum_squares *args);
    void (*scale)(ot_stream *stream, const ot_scale *args);
    void (*accumulate)(ot_stream *stream, const ot_accumulate *args);
    void (*split_master)(ot_stream *stream, const ot_split *args);
    void (*join_master)(ot_stream *stream, const ot_split *args);
    void (*update)(ot_stream *stream, const ot_update *args);
    void (*adafactor)(ot_stream *stream, const ot_adafactor *args);

    /* Bytes of workspace for the operation; of `args` only dtypes, dimensions and flags are read. Plain
     * functions. */
    uint64_t (*embedding_workspace)(const ot_device *device, const ot_embedding *args);
    uint64_t (*norm_workspace)(const ot_device *device, const ot_norm *args);
    uint64_t (*matmul_workspace)(const ot_device *device, const ot_matmul *args);
    uint64_t (*bias_backward_workspace)(const ot_device *device, const ot_bias_backward *args);
    uint64_t (*attention_forward_workspace)(const ot_device *device, const ot_attention *args);
    uint64_t (*attention_backward_workspace)(const ot_device *device, const ot_attention *args);
};

#ifdef __cplusplus
}
#endif
#endif
