/* A whole model on the CPU device, computed stage by stage as the trainer does it, without the trainer. */
#ifndef OT_TESTS_ENGINE_FIXTURE_H
#define OT_TESTS_ENGINE_FIXTURE_H

#include "engine/compute.h"

typedef struct fixture {
    ot_model *model;
    ot_device *device;
    ot_stream *stream;
    ot_compute compute;
    unsigned char *arena; /* device memory, given out from its start on */
    size_t arena_used;
    void **weights; /* device: each layer's flat vector */
    float **grads;  /* the same, FP32 */
    void **x;       /* device: boundaries, the last one behind the last block */
    unsigned char *
        *kept; /* device: what each block keeps, with guard bytes behind it; NULL with full recompute */
    void *dx;
    double *loss_sum;
    int fresh;                /* nothing has been added to the gradients */
    unsigned char *workspace; /* with guard bytes behind it */
    int32_t *data;            /* device: tokens, targets, positions, doc_start */
} fixture;

typedef struct fixture_options {
    ot_model_config config;
    ot_dtype dtype;
    size_t B, T, loss_chunk;
    int threads;
    ot_recompute recompute;
} fixture_options;

/* Opens it with random weights of seed 1, whose norms' weights and biases are random too. */
fixture *fixture_open(const fixture_options *options);
void fixture_close(fixture *f);

/* FP32 values of a layer's flat vector into its weights, and its gradients out of it. */
void fixture_set_weights(fixture *f, size_t layer, const float *values);
void fixture_get_grads(fixture *f, size_t layer, float *values);

/* One micro-batch in host memory, of B*T elements each. */
typedef struct host_batch {
    const int32_t *tokens, *targets, *positions, *doc_start;
} host_batch;

/* Gradients and the sum of losses to zero. */
void fixture_begin(fixture *f);

/* Forward and backward of one micro-batch: loss_sum and gradients add up. */
void fixture_run(fixture *f, const host_batch *batch, float grad_scale);

/* Forward alone: the sum of losses adds up. */
void fixture_evaluate(fixture *f, const host_batch *batch);

double fixture_loss(fixture *f);

/* All gradients, layer after layer, padding included; freed by the caller. */
float *fixture_all_grads(fixture *f, size_t *count);

/* Logits of the micro-batch that was run last, [B*T,V]; freed by the caller. */
float *fixture_logits(fixture *f);

/* ||a - b|| / ||b|| */
double relative_distance(const float *a, const float *b, size_t n);

#endif
