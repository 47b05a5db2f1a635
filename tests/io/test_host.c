/* Arenas: budget, alignment, zeroed and touched pages, report, order of closing. */
#include <errno.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/host.h"
#include "io/log.h"
#include "tests/support/test.h"

#define MIB (UINT64_C(1) << 20)

static int open_host(void **state)
{
    ot_host *host;
    assert_int_equal(ot_host_open(32 * MIB, &host), OT_OK);
    *state = host;
    return 0;
}

static int close_host(void **state)
{
    ot_host_close(*state);
    return 0;
}

/* The kernel's resident size of this process. */
static uint64_t resident_bytes(void)
{
    uint64_t whole, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%" SCNu64 " %" SCNu64, &whole, &pages), 2);
    fclose(file);
    return pages * OT_PAGE_BYTES;
}

static void rounding(void **state)
{
    (void)state;
    assert_int_equal(ot_round_up(0, 4096), 0);
    assert_int_equal(ot_round_up(1, 4096), 4096);
    assert_int_equal(ot_round_up(4096, 4096), 4096);
    assert_int_equal(ot_round_up(UINT64_C(152064) * 3584 * 4 + 1, 4096), UINT64_C(2179989504) + 4096);
}

static void arenas_are_aligned_zeroed_and_resident(void **state)
{
    static const ot_arena_pages pages[] = {OT_PAGES_TRANSPARENT, OT_PAGES_SMALL, OT_PAGES_EXPLICIT,
                                           OT_PAGES_BEST};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        uint64_t before = resident_bytes();
        ot_arena *arena;
        assert_int_equal(ot_arena_open(*state, "slots", 5 * MIB, pages[i], &arena), OT_OK);
        assert_int_equal(ot_arena_bytes(arena), 6 * MIB);
        unsigned char *base = ot_arena_base(arena);
        assert_int_equal((uintptr_t)base % OT_HUGE_PAGE_BYTES, 0);
        unsigned char in_core[6 * 256];
        assert_int_equal(mincore(base, 6 * MIB, in_core), 0);
        for (size_t page = 0; page < sizeof in_core; page++)
            assert_int_equal(in_core[page] & 1, 1);
        if (pages[i] == OT_PAGES_SMALL) /* reserved huge pages are not counted as resident */
            assert_true(resident_bytes() >= before + 5 * MIB);
        for (size_t at = 0; at < 6 * MIB; at++)
            if (base[at] != 0)
                fail_msg("byte %zu is %d", at, base[at]);
        memset(base, 0xFF, 6 * MIB); /* all of it is ours */
        ot_arena_close(arena);
    }
}

static void closing_gives_the_memory_back(void **state)
{
    ot_arena *arena;
    assert_int_equal(ot_arena_open(*state, "slots", 16 * MIB, OT_PAGES_SMALL, &arena), OT_OK);
    void *base = ot_arena_base(arena);
    ot_arena_close(arena);
    unsigned char in_core[4096];
    assert_int_equal(mincore(base, 16 * MIB, in_core), -1);
    assert_int_equal(errno, ENOMEM); /* nothing is mapped there */
}

static void blocks_are_aligned_and_apart(void **state)
{
    static const struct {
        uint64_t bytes, alignment, offset;
    } takes[] = {{1, 1, 0},     {3, 4096, 4096},    {0, 64, 4160},
                 {10, 8, 4160}, {4096, 4096, 8192}, {1, OT_HUGE_PAGE_BYTES, 2 * MIB}};
    ot_arena *arena;
    assert_int_equal(ot_arena_open(*state, "slots", 4 * MIB, OT_PAGES_TRANSPARENT, &arena), OT_OK);
    void *block;
    for (size_t i = 0; i < sizeof takes / sizeof *takes; i++) {
        assert_int_equal(ot_arena_take(arena, takes[i].bytes, takes[i].alignment, &block), OT_OK);
        assert_ptr_equal(block, (char *)ot_arena_base(arena) + takes[i].offset);
    }
    ot_arena_report report;
    assert_int_equal(ot_host_report(*state, &report, 1), 1);
    assert_int_equal(report.taken_bytes, 2 * MIB + 1);
    assert_int_equal(ot_arena_take(arena, 2 * MIB - 1, 1, &block), OT_OK); /* to the last byte */
    assert_int_equal(ot_arena_take(arena, 0, 1, &block), OT_OK);
    assert_int_equal(ot_arena_take(arena, 1, 1, &block), OT_ERR_INTERNAL);
    assert_non_null(strstr(ot_error_text(), "slots"));
}

static void too_big_blocks_do_not_wrap(void **state)
{
    ot_arena *arena;
    void *block;
    assert_int_equal(ot_arena_open(*state, "slots", 2 * MIB, OT_PAGES_TRANSPARENT, &arena), OT_OK);
    assert_int_equal(ot_arena_take(arena, 4096, 1, &block), OT_OK);
    assert_int_equal(ot_arena_take(arena, UINT64_MAX - 4095, 1, &block), OT_ERR_INTERNAL);
    assert_int_equal(ot_arena_take(arena, UINT64_MAX, OT_HUGE_PAGE_BYTES, &block), OT_ERR_INTERNAL);
    assert_int_equal(ot_arena_take(arena, 1, OT_HUGE_PAGE_BYTES, &block), OT_ERR_INTERNAL);
    assert_int_equal(ot_arena_take(arena, 2 * MIB - 4096, 1, &block), OT_OK);
}

static void the_budget_holds(void **state)
{
    ot_arena *weights, *states, *more;
    assert_int_equal(ot_arena_open(*state, "weights", 20 * MIB, OT_PAGES_TRANSPARENT, &weights), OT_OK);
    assert_int_equal(ot_arena_open(*state, "states", 10 * MIB + 1, OT_PAGES_TRANSPARENT, &states), OT_OK);
    assert_int_equal(ot_host_bytes(*state), 32 * MIB);
    assert_int_equal(ot_arena_open(*state, "grads", 1, OT_PAGES_TRANSPARENT, &more), OT_ERR_FIT);
    static const char *const words[] = {"grads", "32 MiB", "weights 20 MiB", "states 12 MiB", "--host-mem"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_non_null(strstr(ot_error_text(), words[i]));
    ot_arena_close(states);
    assert_int_equal(ot_host_bytes(*state), 20 * MIB);
    assert_int_equal(ot_host_peak_bytes(*state), 32 * MIB);
    assert_int_equal(ot_host_budget_bytes(*state), 32 * MIB);
    assert_int_equal(ot_arena_open(*state, "grads", 12 * MIB, OT_PAGES_TRANSPARENT, &more), OT_OK);
}

static void absurd_sizes_do_not_fit(void **state)
{
    static const uint64_t sizes[] = {33 * MIB, UINT64_MAX / 2, UINT64_MAX - 4096, UINT64_MAX};
    ot_arena *arena;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(ot_arena_open(*state, "slots", sizes[i], OT_PAGES_TRANSPARENT, &arena), OT_ERR_FIT);
    assert_int_equal(ot_host_bytes(*state), 0);
}

static void the_kernels_refusal_is_told(void **state)
{
    (void)state;
    ot_host *host;
    ot_arena *arena;
    assert_int_equal(ot_host_open(UINT64_MAX, &host), OT_OK);
    assert_int_equal(ot_arena_open(host, "slots", UINT64_C(1) << 60, OT_PAGES_TRANSPARENT, &arena),
                     OT_ERR_IO);
    assert_non_null(strstr(ot_error_text(), "slots"));
    assert_non_null(strstr(ot_error_text(), strerror(ENOMEM)));
    assert_int_equal(ot_host_bytes(host), 0);
    ot_host_close(host);
}

static void check_names(const ot_host *host, const char *const names[], size_t count)
{
    ot_arena_report reports[8];
    assert_int_equal(ot_host_report(host, reports, 8), count);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(reports[i].name, names[i]);
}

static void arenas_close_in_any_order(void **state)
{
    static const int orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}};
    static const char *const names[] = {"a", "b", "c", "d"};
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        ot_arena *arenas[4];
        for (int i = 0; i < 4; i++)
            assert_int_equal(ot_arena_open(*state, names[i], 2 * MIB, OT_PAGES_TRANSPARENT, &arenas[i]),
                             OT_OK);
        int open[4] = {1, 1, 1, 1};
        for (int step = 0; step < 4; step++) {
            const char *left[4];
            size_t count = 0;
            for (int i = 0; i < 4; i++)
                if (open[i])
                    left[count++] = names[i];
            check_names(*state, left, count);
            open[orders[o][step]] = 0;
            ot_arena_close(arenas[orders[o][step]]);
        }
        assert_int_equal(ot_host_bytes(*state), 0);
    }
    ot_arena_close(NULL);
    ot_host_close(NULL);
}

static void an_arena_opened_after_the_last_closed_is_listed(void **state)
{
    ot_arena *arena;
    assert_int_equal(ot_arena_open(*state, "a", 1, OT_PAGES_TRANSPARENT, &arena), OT_OK);
    assert_int_equal(ot_arena_open(*state, "b", 1, OT_PAGES_TRANSPARENT, &arena), OT_OK);
    ot_arena_close(arena);
    assert_int_equal(ot_arena_open(*state, "c", 1, OT_PAGES_TRANSPARENT, &arena), OT_OK);
    check_names(*state, (const char *const[]){"a", "c"}, 2);
}

static void a_report_may_be_cut(void **state)
{
    ot_arena *arena;
    ot_arena_report reports[2] = {0};
    assert_int_equal(ot_arena_open(*state, "a", 2 * MIB, OT_PAGES_TRANSPARENT, &arena), OT_OK);
    assert_int_equal(ot_arena_open(*state, "b", 4 * MIB, OT_PAGES_TRANSPARENT, &arena), OT_OK);
    assert_int_equal(ot_host_report(*state, NULL, 0), 2);
    assert_int_equal(ot_host_report(*state, reports, 1), 2);
    assert_string_equal(reports[0].name, "a");
    assert_int_equal(reports[0].bytes, 2 * MIB);
    assert_null(reports[1].name);
}

/* Small pages are never counted as huge. Transparent ones are where the kernel has them on: then all of an
 * arena that is touched after the advice is huge, unless memory is fragmented, so only some of it is asked
 * for. */
static void huge_pages_are_reported(void **state)
{
    ot_arena *arena;
    ot_arena_report reports[3];
    char mode[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file != NULL) {
        assert_non_null(fgets(mode, sizeof mode, file));
        fclose(file);
    }
    assert_int_equal(ot_arena_open(*state, "small", 8 * MIB, OT_PAGES_SMALL, &arena), OT_OK);
    assert_int_equal(ot_arena_open(*state, "huge", 12 * MIB, OT_PAGES_TRANSPARENT, &arena), OT_OK);
    assert_int_equal(ot_arena_open(*state, "next", 12 * MIB, OT_PAGES_TRANSPARENT, &arena), OT_OK);
    assert_int_equal(ot_host_report(*state, reports, 3), 3);
    assert_int_equal(reports[0].huge_bytes, 0);
    for (int i = 1; i < 3; i++) { /* neighbours in memory, each with its own */
        assert_true(reports[i].huge_bytes <= 12 * MIB);
        if (strstr(mode, "[madvise]") != NULL || strstr(mode, "[always]") != NULL)
            assert_true(reports[i].huge_bytes >= 2 * MIB);
    }
}

static char logged[2048];

static void keep_line(ot_log_level level, const char *line)
{
    if (level == OT_LOG_WARNING)
        snprintf(logged, sizeof logged, "%s", line);
}

static void missing_reserved_pages_are_logged(void **state)
{
    ot_arena *arena;
    uint64_t reserved = 0;
    FILE *file = fopen("/proc/sys/vm/nr_hugepages", "r");
    if (file == NULL || fscanf(file, "%" SCNu64, &reserved) != 1 || reserved > 0)
        skip();
    fclose(file);
    ot_log_open(OT_LOG_INFO, keep_line);
    ot_status best = ot_arena_open(*state, "slots", 2 * MIB, OT_PAGES_BEST, &arena);
    assert_string_equal(logged, "");
    ot_status status = ot_arena_open(*state, "slots", 2 * MIB, OT_PAGES_EXPLICIT, &arena);
    ot_log_open(OT_LOG_INFO, NULL);
    assert_int_equal(best, OT_OK);
    assert_int_equal(status, OT_OK);
    assert_non_null(strstr(logged, "slots"));
    assert_non_null(strstr(logged, "vm.nr_hugepages"));
}

static void objects_are_counted(void **state)
{
    (void)state;
    ot_object_report before = ot_object_bytes();
    char *volatile object = malloc(8 * MIB);
    assert_non_null(object);
    memset(object, 1, 8 * MIB);
    ot_object_report during = ot_object_bytes();
    free(object);
    if (strcmp(before.allocator, "libc") == 0) {
        assert_string_equal(before.version, "");
        assert_int_equal(during.allocated_bytes, 0);
        return;
    }
    assert_string_equal(before.allocator, "jemalloc");
    assert_true(before.version[0] >= '3' && before.version[0] <= '9');
    assert_true(during.allocated_bytes >= before.allocated_bytes + 8 * MIB);
    assert_true(during.resident_bytes >= during.allocated_bytes);
    assert_true(ot_object_bytes().allocated_bytes <= during.allocated_bytes - 8 * MIB);
}

/* The policy of an arena's pages as the kernel tells it; node 0 is everywhere. */
static void arenas_lie_near_where_that_is_asked(void **state)
{
    ot_arena *arenas[2];
    int policy[2];
    unsigned long nodes[2][16] = {{0}};
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            ot_host_prefer(*state, 0);
        assert_int_equal(ot_arena_open(*state, "near", 2 * MIB, OT_PAGES_SMALL, &arenas[i]), OT_OK);
        if (syscall(SYS_get_mempolicy, &policy[i], nodes[i], 1024, ot_arena_base(arenas[i]), MPOL_F_ADDR) !=
            0)
            skip(); /* a kernel without nodes, or a sandbox */
    }
    if (syscall(SYS_mbind, ot_arena_base(arenas[0]), 4096, MPOL_DEFAULT, NULL, 0, 0) != 0)
        skip();
    assert_int_equal(policy[0], MPOL_DEFAULT);
    assert_int_equal(policy[1], MPOL_PREFERRED);
    assert_int_equal(nodes[1][0], 1);
    ot_host_prefer(*state, 900); /* no such node: an arena all the same */
    ot_arena *other;
    assert_int_equal(ot_arena_open(*state, "far", MIB, OT_PAGES_BEST, &other), OT_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_host, close_host)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding),          TEST(arenas_are_aligned_zeroed_and_resident),
        TEST(closing_gives_the_memory_back), TEST(blocks_are_aligned_and_apart),
        TEST(too_big_blocks_do_not_wrap),    TEST(the_budget_holds),
        TEST(absurd_sizes_do_not_fit),       cmocka_unit_test(the_kernels_refusal_is_told),
        TEST(arenas_close_in_any_order),     TEST(an_arena_opened_after_the_last_closed_is_listed),
        TEST(a_report_may_be_cut),           TEST(arenas_lie_near_where_that_is_asked),
        TEST(huge_pages_are_reported),       TEST(missing_reserved_pages_are_logged),
        TEST(objects_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
