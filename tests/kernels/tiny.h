/* A tiny model in device memory and the operations it is made of, with its names, sizes, inputs and reference
 * values from tests/golden. What is left to the models is their order. Any failure fails the test. */
#ifndef OT_TESTS_KERNELS_TINY_H
#define OT_TESTS_KERNELS_TINY_H

#include "kernels/kernels.h"
#include "tests/support/golden.h"

enum { TINY_PARAMETERS_MAX = 64, TINY_LAYERS_MAX = 4, TINY_NAME_BYTES = 96 };

typedef struct tiny_parameter {
    char name[TINY_NAME_BYTES];
    size_t n, rows, cols; /* a matrix is W [OC,C] */
    int is_transposed;    /* in the file: [C,OC] */
    int is_matrix;        /* has weight decay */
    void *weight;         /* in the model's dtype */
    void *master;         /* FP32: the weight itself; bf16: the low halves */
    float *grad, *moment1, *moment2;
} tiny_parameter;

/* What the forward pass of a block keeps for its backward pass. W = (NH+2*NKV)*HD. */
typedef struct tiny_layer {
    void *x, *h1;                         /* [N,C]: input, and after the first norm */
    void *qkv_raw, *qkv;                  /* [N,W]: before q/k-norm, and as attention reads it */
    void *attn;                           /* [N,NH*HD] */
    void *x_mid, *h2;                     /* [N,C]: after attention, and after the second norm */
    void *up;                             /* [N,2*F] gate and up, or [N,F] */
    void *act;                            /* [N,F] */
    float *mean1, *rstd1, *mean2, *rstd2; /* [N] */
    float *q_rstd, *k_rstd;               /* [N,NH], [N,NKV] */
    float *lse;                           /* [B,NH,T] */
} tiny_layer;

typedef struct tiny {
    golden *vectors;
    ot_dtype dtype;
    ot_device *device;
    ot_stream *stream;
    const ot_kernels *kernels;
    unsigned char *memory;
    size_t taken_bytes;
    void *workspace;
    size_t B, T, N, V, C, NH, NKV, HD, F, L, W, window, micro_batches;
    int is_gpt2, tied, qkv_bias, qk_norm;
    float eps;
    tiny_parameter parameters[TINY_PARAMETERS_MAX];
    size_t parameter_count;
    tiny_layer layers[TINY_LAYERS_MAX + 1]; /* of the last only x: the output */
    void *h, *logits;                       /* [N,C] after the last norm, [N,V] */
    float *mean, *rstd, *losses;            /* [N] */
    void *dx, *dh, *branch, *dqkv, *dattn, *dup, *dact;
    int32_t *tokens, *targets, *positions, *doc_start; /* [N] */
    float *rope_table;
    float *wide; /* one tensor in FP32, on its way */
    double *sum; /* [1] */
    ot_update_step *step;
} tiny;

void tiny_open(tiny *t, const char *name, ot_dtype dtype);
void tiny_close(tiny *t);

/* The parameter of that name, which is composed as by printf; fails where there is none. */
tiny_parameter *tiny_find(tiny *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Element `i` of a row-major array of the model's dtype. */
void *tiny_at(const tiny *t, void *array, size_t i);

/* ---- Operations, enqueued on the model's stream ---- */

/* out [N,OC] = x W^T + bias; bias may be NULL. */
void tiny_linear(tiny *t, const tiny_parameter *weight, const tiny_parameter *bias, const void *x, void *out,
                 size_t ld_out);

/* dx [N,C] = dy W, or with `accumulate` +=; the gradients of W and bias += . */
void tiny_linear_backward(tiny *t, tiny_parameter *weight, tiny_parameter *bias, const void *x,
                          const void *dy, size_t ld_dy, void *dx, int accumulate);

/* `bias` NULL: RMSNorm, and no mean. */
void tiny_norm(tiny *t, const tiny_parameter *weight, const tiny_parameter *bias, const void *x, void *y,
               float *mean, float *rstd);
void tiny_norm_backward(tiny *t, tiny_parameter *weight, tiny_parameter *bias, const void *x, float *mean,
                        float *rstd, const void *dy, const void *dresidual, void *dx);

/* The norm of H heads in rows of W elements. */
void tiny_head_norm(tiny *t, const tiny_parameter *weight, size_t H, const void *x, void *y, float *rstd);
void tiny_head_norm_backward(tiny *t, tiny_parameter *weight, size_t H, const void *x, float *rstd, void *dy);

void tiny_attention(tiny *t, tiny_layer *a);
void tiny_attention_backward(tiny *t, tiny_layer *a);
void tiny_rope(tiny *t, void *qkv, int backward);
void tiny_residual(tiny *t, const void *a, const void *b, void *out);

/* ---- Host ---- */

/* Copies to the device, and back as FP32 with everything before it done. */
void tiny_upload(tiny *t, void *device_dst, const void *host_src, size_t bytes);
void tiny_download(tiny *t, void *host_dst, const void *device_src, size_t bytes);
void tiny_read(tiny *t, const void *device_src, ot_dtype dtype, size_t n, float *out);

/* The FP32 master of a parameter. */
void tiny_read_master(tiny *t, const tiny_parameter *p, float *out);

#endif
