/* `offtrain version`: what was built, by what, and what this processor can do. */
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "io/host.h"
#include "io/machine.h"
#include "kernels/device.h"
#include "tools/command.h"
#include "tools/json.h"
#include "tools/option.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

typedef struct version_options {
    int json;
} version_options;

static const ot_option options[] = {
    {.name = "json", .offset = offsetof(version_options, json), .help = "one JSON object instead of lines"},
};
static const ot_option_table table = {
    .command = "offtrain version",
    .summary = "Prints the version, the features and the instruction sets of this processor.",
    .options = options,
    .count = sizeof options / sizeof *options,
};

typedef struct facts {
    const char *allocator;
    char allocator_version[32];
    const char *sets[OT_ISA_NAMES_MAX];
    size_t set_count;
} facts;

static facts find_facts(void)
{
    facts found;
    ot_object_report objects = ot_object_bytes();
    found.allocator = objects.allocator;
    /* "5.3.0-0-g54eaed1d…": the hash is of no use here. */
    snprintf(found.allocator_version, sizeof found.allocator_version, "%.*s",
             (int)strcspn(objects.version, "-"), objects.version);
    found.set_count = ot_isa_names(ot_isa_find(), found.sets);
    return found;
}

static ot_status print_json(const facts *found)
{
    json_t *sets = json_array();
    for (size_t i = 0; i < found->set_count; i++)
        json_array_append_new(sets, json_string(found->sets[i]));
    json_t *features = json_pack("{s:s, s:s, s:s, s:b}", "io_uring", OT_LIBURING_VERSION, "allocator",
                                 found->allocator, "allocator_version", found->allocator_version,
                                 ot_gpu_build.kind, ot_gpu_build.missing == NULL);
    json_t *object = json_pack("{s:s, s:s, s:o, s:o}", "version", OT_VERSION, "compiler", COMPILER,
                               "features", features, "instruction_sets", sets);
    return ot_json_line(object, stdout, "the JSON output");
}

static void print_lines(const facts *found)
{
    printf("offtrain %s\n", OT_VERSION);
    printf("compiler          %s\n", COMPILER);
    printf("io_uring          liburing %s\n", OT_LIBURING_VERSION);
    printf("allocator         %s%s%s\n", found->allocator, found->allocator_version[0] != '\0' ? " " : "",
           found->allocator_version);
    printf("%-4s device       %s%s\n", ot_gpu_build.name, ot_gpu_build.missing == NULL ? "yes" : "no, ",
           ot_gpu_build.missing == NULL ? "" : ot_gpu_build.missing);
    printf("instruction sets ");
    for (size_t i = 0; i < found->set_count; i++)
        printf(" %s", found->sets[i]);
    putchar('\n');
}

ot_status ot_command_version(int argc, char **argv)
{
    version_options given = {0};
    int help;
    OT_TRY(ot_options_parse(&table, argc, argv, &given, &help));
    if (help)
        return OT_OK;
    facts found = find_facts();
    if (given.json)
        return print_json(&found);
    print_lines(&found);
    return OT_OK;
}
