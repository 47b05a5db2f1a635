/* Reads the golden vectors of tests/golden, which are safetensors files. Any failure fails the test. */
#ifndef OT_TESTS_SUPPORT_GOLDEN_H
#define OT_TESTS_SUPPORT_GOLDEN_H

#include <stddef.h>
#include <stdint.h>

typedef struct golden golden;

/* Opens tests/golden/<name>.safetensors. What it hands out lives until it is closed. */
golden *golden_open(const char *name);
void golden_close(golden *g);

int golden_has(const golden *g, const char *tensor);

/* The number of elements of a tensor, and its extent in one dimension. */
size_t golden_count(const golden *g, const char *tensor);
size_t golden_shape(const golden *g, const char *tensor, size_t dimension);
size_t golden_dimensions(const golden *g, const char *tensor);

/* The values of a tensor of floating-point numbers, and of one of 16 or 32-bit integers. */
double *golden_doubles(golden *g, const char *tensor);
int32_t *golden_integers(golden *g, const char *tensor);

/* A value of the file's configuration; "rope.factor" is `factor` in the object `rope`. */
double golden_number(const golden *g, const char *key);
const char *golden_text(const golden *g, const char *key);

/* The name of tensor `index` that begins with `prefix`, without it, in the order of the file; NULL behind the
 * last. */
const char *golden_name(const golden *g, const char *prefix, size_t index);

#endif
