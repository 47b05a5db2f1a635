/* `offtrain bench WHAT`: finds the benchmark and runs it. */
#include "tools/bench.h"

#include <stdio.h>
#include <string.h>

#include "io/text.h"
#include "tools/command.h"

typedef struct benchmark {
    const char *name;
    ot_status (*run)(int argc, char **argv);
    int takes_nvme; /* an option --nvme */
    const char *help;
} benchmark;

static const benchmark benchmarks[] = {
    {"adam", ot_bench_adam, 1,
     "the optimizer's update on the CPU beside a probe with the same memory traffic"},
    {"attention", ot_bench_attention, 0, "attention on the CPU beside a square matrix product"},
    {"copy", ot_bench_copy, 0, "memory bandwidth, and copies between host and device"},
    {"gemm", ot_bench_gemm, 0, "a linear layer's matrix products on the CPU beside plain oneDNN"},
    {"nvme", ot_bench_nvme, 1, "read, write and the mix of a streamed optimizer on the drives"},
    {"step", ot_bench_step, 1,
     "a training step beside its kernels alone, and beside its largest lane on NVMe"},
};
enum { BENCHMARKS = sizeof benchmarks / sizeof *benchmarks };

static void print_help(FILE *out)
{
    fprintf(out, "usage: offtrain bench WHAT [options]\nMeasures what this machine can do.\n\n");
    for (int i = 0; i < BENCHMARKS; i++)
        fprintf(out, "  %-10s %s\n", benchmarks[i].name, benchmarks[i].help);
    fprintf(out, "  %-10s all of these; --nvme DIR… for those that take it\n", "all");
    fprintf(out, "\nofftrain bench WHAT --help lists the options.\n");
}

/* One after the other; what needs folders is left out without. */
static ot_status run_all(int argc, char **argv)
{
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        print_help(stdout);
        return OT_OK;
    }
    if (argc > 0 && (strcmp(argv[0], "--nvme") != 0 || argc == 1))
        return ot_fail(OT_ERR_USAGE, "bench all takes --nvme DIR… alone, not %s", argv[0]);
    for (int i = 0; i < BENCHMARKS; i++) {
        if (argc == 0 && benchmarks[i].run == ot_bench_nvme)
            continue;
        printf("%s== %s\n", i > 0 ? "\n" : "", benchmarks[i].name);
        fflush(stdout);
        int more = benchmarks[i].takes_nvme ? argc : 0;
        OT_TRY(benchmarks[i].run(more, argv));
    }
    return OT_OK;
}

ot_status ot_command_bench(int argc, char **argv)
{
    const char *names[BENCHMARKS];
    if (argc == 0)
        return ot_fail(OT_ERR_USAGE, "bench what? offtrain bench --help lists them");
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        print_help(stdout);
        return OT_OK;
    }
    if (strcmp(argv[0], "all") == 0)
        return run_all(argc - 1, argv + 1);
    for (int i = 0; i < BENCHMARKS; i++) {
        if (strcmp(argv[0], benchmarks[i].name) == 0)
            return benchmarks[i].run(argc - 1, argv + 1);
        names[i] = benchmarks[i].name;
    }
    const char *nearest = ot_nearest_name(argv[0], names, BENCHMARKS);
    return ot_fail(OT_ERR_USAGE, "unknown benchmark '%s'; %s%s", argv[0],
                   nearest != NULL ? "did you mean " : "offtrain bench --help lists them",
                   nearest != NULL ? nearest : "");
}
