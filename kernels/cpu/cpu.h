/* Inside the CPU device: how an operation gets onto a stream, and the instruction-set variants of the
 * kernels.
 *
 * An entry of the table (dispatch.c) checks its arguments and enqueues a task. When its turn comes the task
 * runs on the stream's worker and has the team compute ranges of output elements (rows, columns, blocks of a
 * sum), each member a share. What computes a range is plain C in the files of OT_VARIANT_SOURCES
 * (CMakeLists.txt), which are compiled once per instruction set; OT_VARIANT gives each function its suffix,
 * OT_VARIANT_RANGES lists them. Except for matrix products and attention all variants give the same bytes:
 * sums run in fixed lanes, whatever the vector's width. */
#ifndef OT_KERNELS_CPU_CPU_H
#define OT_KERNELS_CPU_CPU_H

#include "io/team.h"
#include "kernels/kernels.h"

/* ---- Tasks ---- */

typedef struct ot_variant ot_variant;

enum { OT_TASK_ARGS_BYTES = 384 }; /* room for the arguments of one operation in a stream's queue */

/* Runs on the stream's worker; `team` is free for it. A failure, by ot_fail, sticks to the device. */
typedef ot_status ot_cpu_task(ot_team *team, const ot_variant *variant, const void *args);

/* Enqueues `task` with a copy of `bytes` <= OT_TASK_ARGS_BYTES of arguments. */
void ot_cpu_enqueue(ot_stream *stream, ot_cpu_task *task, const void *args, size_t bytes);

/* Makes the failure that the caller has just recorded with ot_fail stick to the stream's device. */
void ot_cpu_reject(ot_stream *stream, ot_status status);

/* Threads of the largest team of the device: what workspaces per thread are sized by. */
int ot_cpu_device_threads(const ot_device *device);

/* ---- Ranges and variants ---- */

/* Computes the output elements begin .. end-1 of the operation that `args` describes; what an element is says
 * each. */
typedef void ot_cpu_range(const void *args, size_t begin, size_t end);

/* Every range that is compiled per instruction set: name in the table, function. */
#define OT_VARIANT_RANGES(X)                                                                                 \
    X(EMBEDDING_FORWARD, ot_embedding_forward)                                                               \
    X(EMBEDDING_BACKWARD, ot_embedding_backward)                                                             \
    X(NORM_FORWARD, ot_norm_forward)                                                                         \
    X(NORM_BACKWARD_ROWS, ot_norm_backward_rows)                                                             \
    X(NORM_BACKWARD_COLUMNS, ot_norm_backward_columns)                                                       \
    X(MATMUL_PACK_A, ot_matmul_pack_a)                                                                       \
    X(MATMUL_PACK_B, ot_matmul_pack_b)                                                                       \
    X(MATMUL_STORE, ot_matmul_store_rows)                                                                    \
    X(ATTENTION_PACK, ot_attention_pack)                                                                     \
    X(ATTENTION_FORWARD, ot_attention_forward_block)                                                         \
    X(ATTENTION_BACKWARD, ot_attention_backward_share)                                                       \
    X(ATTENTION_REDUCE, ot_attention_reduce_rows)                                                            \
    X(BIAS_BACKWARD, ot_bias_backward_columns)                                                               \
    X(ROPE_FORWARD, ot_rope_forward)                                                                         \
    X(ROPE_BACKWARD, ot_rope_backward)                                                                       \
    X(SWIGLU_FORWARD, ot_swiglu_forward)                                                                     \
    X(SWIGLU_BACKWARD, ot_swiglu_backward)                                                                   \
    X(GELU_FORWARD, ot_gelu_forward)                                                                         \
    X(GELU_BACKWARD, ot_gelu_backward)                                                                       \
    X(RESIDUAL_ADD, ot_residual_add)                                                                         \
    X(CROSS_ENTROPY, ot_cross_entropy_rows)                                                                  \
    X(SUM_SQUARES, ot_sum_squares_blocks)                                                                    \
    X(CAST, ot_cast_range)                                                                                   \
    X(CAST_SUM_SQUARES, ot_cast_sum_squares_blocks)                                                          \
    X(SCALE, ot_scale_range)                                                                                 \
    X(ACCUMULATE, ot_accumulate_range)                                                                       \
    X(SPLIT_MASTER, ot_split_master_range)                                                                   \
    X(JOIN_MASTER, ot_join_master_range)                                                                     \
    X(UPDATE, ot_update_range)                                                                               \
    X(ADAFACTOR_ROWS, ot_adafactor_rows)                                                                     \
    X(ADAFACTOR_SUMS, ot_adafactor_sums)                                                                     \
    X(ADAFACTOR_COLUMNS, ot_adafactor_columns)                                                               \
    X(ADAFACTOR_ROW_MEAN, ot_adafactor_row_mean)                                                             \
    X(ADAFACTOR_RMS, ot_adafactor_rms_blocks)                                                                \
    X(ADAFACTOR_APPLY, ot_adafactor_apply)

#define OT_VARIANT_ENUM(NAME, function) OT_RANGE_##NAME,
typedef enum ot_range_id { OT_VARIANT_RANGES(OT_VARIANT_ENUM) OT_RANGES } ot_range_id;

struct ot_variant {
    const char *name;
    ot_cpu_range *ranges[OT_RANGES];
};

/* In a file that is compiled per instruction set, OT_VARIANT(f) is f_baseline, f_avx2 or f_avx512. */
#ifdef OT_VARIANT_SUFFIX
#define OT_JOIN2(a, b) a##_##b
#define OT_JOIN(a, b) OT_JOIN2(a, b)
#define OT_VARIANT(name) OT_JOIN(name, OT_VARIANT_SUFFIX)
#define OT_VARIANT_DECLARE(NAME, function) ot_cpu_range OT_VARIANT(function);
OT_VARIANT_RANGES(OT_VARIANT_DECLARE)
#endif

/* The variant of that name, or with NULL the best one: NULL where it is unknown or this processor cannot run
 * it. */
const ot_variant *ot_variant_find(const char *name);

/* Has the team compute [0,total) in shares that are multiples of `grain`; the calling thread alone does what
 * is no more than one grain. */
void ot_cpu_parallel(ot_team *team, ot_cpu_range *range, const void *args, size_t total, size_t grain);

/* Enqueues just that: range `id` of the device's variant over [0,total). */
void ot_cpu_enqueue_range(ot_stream *stream, ot_range_id id, const void *args, size_t bytes, size_t total,
                          size_t grain);

/* ---- The table, and the entries in files of their own ---- */

extern const ot_kernels ot_kernels_cpu;

void ot_cpu_matmul(ot_stream *stream, const ot_matmul *args); /* matmul.c */
uint64_t ot_cpu_matmul_workspace(const ot_device *device, const ot_matmul *args);
void ot_cpu_attention_forward(ot_stream *stream, const ot_attention *args); /* attention.c */
void ot_cpu_attention_backward(ot_stream *stream, const ot_attention *args);
uint64_t ot_cpu_attention_forward_workspace(const ot_device *device, const ot_attention *args);
uint64_t ot_cpu_attention_backward_workspace(const ot_device *device, const ot_attention *args);
void ot_cpu_update(ot_stream *stream, const ot_update *args); /* update.c */
void ot_cpu_adafactor(ot_stream *stream, const ot_adafactor *args);

#endif
