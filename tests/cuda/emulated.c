/* Part of the emulated plugin: kernels go through the fake runtime's streams, and what the emulator finds wrong in one
 * is said at once, since a card would only say "launch failure". */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fakecuda/fakecuda.h"
#include "tests/simt/control.h"

typedef struct launch {
    simt_run *run;
    void *context;
} launch;

static cudaError_t run_kernel(void *context)
{
    launch kernel = *(launch *)context;
    free(context);
    cudaError_t error = kernel.run(kernel.context);
    if (error != cudaSuccess)
        fprintf(stderr, "simt: %s\n", simt_error());
    return error;
}

static cudaError_t enqueue(cudaStream_t stream, simt_run *run, void *context)
{
    launch *kernel = malloc(sizeof *kernel);
    if (kernel == NULL)
        return cudaErrorMemoryAllocation;
    *kernel = (launch){run, context};
    cudaError_t error = fakecuda_launch(stream, run_kernel, kernel);
    if (error != cudaSuccess)
        free(kernel);
    return error;
}

/* FAKECUDA_SEED sets the order of threads, too: forward, reverse, then random ones. */
static __attribute__((constructor)) void join_emulators(void)
{
    const char *seed = getenv("FAKECUDA_SEED");
    uint64_t number = seed != NULL ? strtoull(seed, NULL, 10) : 0;
    simt_set_order(number < SIMT_RANDOM ? (simt_order)number : SIMT_RANDOM, number);
    simt_set_hook(enqueue);
}
