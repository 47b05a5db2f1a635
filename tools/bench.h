/* The benchmarks behind `offtrain bench`. Each gets the arguments after its own name. */
#ifndef OT_TOOLS_BENCH_H
#define OT_TOOLS_BENCH_H

#include "io/status.h"

ot_status ot_bench_adam(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_bench_attention(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_bench_copy(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_bench_gemm(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_bench_nvme(int argc, char **argv) OT_MUST_CHECK;
ot_status ot_bench_step(int argc, char **argv) OT_MUST_CHECK;

#endif
