/* A chunk of parameters and a few optimizer steps over it, with made-up gradients and starting values;
 * tensors live as harness.h says. */
#ifndef OT_TESTS_KERNELS_CHUNK_H
#define OT_TESTS_KERNELS_CHUNK_H

#include "tests/kernels/harness.h"

enum { STEPS_MAX = 64, MASTERS = 4 };

typedef struct formats {
    ot_dtype grad;
    ot_master_format master;
    ot_dtype weight; /* OT_FP32: none */
    ot_dtype moment1, moment2;
} formats;

/* Every format of master and weight. */
extern const formats masters[MASTERS];

typedef struct chunk {
    ot_update u;
    ot_update_step step[STEPS_MAX];
    size_t steps, pieces; /* pieces: elements handed over at once, 0: all */
    tensor *grad;         /* [steps,n] */
    tensor *master, *weight, *moment1, *moment2, *scale1, *scale2; /* NULL: none */
    tensor *outputs[7];                                            /* all of them that there are */
    size_t output_count;
} chunk;

/* A chunk of n parameters: the gradients are made with seed 3, the master with seed 4 (make_random). */
void make_chunk(chunk *p, ot_optimizer kind, size_t n, size_t steps, formats f);

/* Room for `bytes` more bytes that the operation changes, zero at first. */
tensor *make_plane(chunk *p, size_t bytes);

/* Sets the master, and where it is split the weight: now, and whenever the outputs are put back. */
void set_master(chunk *p, const float *values);

/* Values that arithmetic with 0 would change. */
void set_hard_values(chunk *p);

/* The master of element i, joined where it is split. */
float master_at(const chunk *p, size_t i);

/* The arguments for elements begin .. begin+n-1 in step k. */
ot_update piece(const chunk *p, size_t k, size_t begin, size_t n);

/* The outputs' bytes; and a comparison with them, which frees them. */
void **copy_outputs(const chunk *p);
void expect_outputs(const chunk *p, void **copies);

#endif
