/* The parts of gpu_check. */
#ifndef OT_TESTS_CUDA_GPU_CHECK_H
#define OT_TESTS_CUDA_GPU_CHECK_H

#include "engine/trainer.h"
#include "kernels/kernels.h"

/* Prints a line; passed: 1, 0, or -1 for a figure that is only told. */
void check_line(const char *what, const char *found, int passed);

/* A line with the calling thread's last failure. */
void check_fail(const char *what);

/* Every operation of the table, in each dtype, against the CPU device. */
void check_kernels(ot_device *cuda);

/* Matrix products, attention and copies. */
void check_speeds(ot_device *cuda);

#endif
