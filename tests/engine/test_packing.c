/* Packing: every piece once, no window overfull, not many more windows than needed, and the same each time. */
#include <stdlib.h>
#include <string.h>

#include "engine/packing.h"
#include "kernels/random.h"
#include "tests/support/test.h"

static uint32_t length_of(uint64_t i, uint64_t seed, size_t T)
{
    uint32_t word[4];
    ot_philox(seed, i, 0, word);
    /* Short ones are common, and whole windows come up. */
    return word[1] % 8 == 0 ? (uint32_t)T : 1 + (uint32_t)(word[0] % T) / (1 + word[2] % 8);
}

static ot_piece *make(uint64_t n, size_t T, uint64_t seed, uint64_t *sum)
{
    ot_piece *pieces = malloc(n * sizeof *pieces);
    *sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        pieces[i] = (ot_piece){.start = i, .length = length_of(i, seed, T)};
        *sum += pieces[i].length;
    }
    return pieces;
}

static void check(const ot_windows *w, uint64_t n, size_t T, uint64_t seed)
{
    unsigned char *seen = calloc(n, 1);
    uint64_t last_first = 0;
    assert_int_equal(w->first[0], 0);
    assert_int_equal(w->first[w->count], n);
    for (uint64_t window = 0; window < w->count; window++) {
        uint64_t used = 0;
        assert_true(w->first[window + 1] > w->first[window]);
        for (uint64_t i = w->first[window]; i < w->first[window + 1]; i++) {
            const ot_piece *piece = &w->pieces[i];
            assert_int_equal(seen[piece->start]++, 0);
            assert_int_equal(piece->length, length_of(piece->start, seed, T));
            assert_true(i == w->first[window] || piece->start > piece[-1].start);
            used += piece->length;
        }
        assert_true(used <= T);
        assert_true(window == 0 || w->pieces[w->first[window]].start > last_first);
        last_first = w->pieces[w->first[window]].start;
    }
    free(seen);
}

static void best_fit_by_definition(void **state)
{
    (void)state;
    static const size_t lengths[] = {2, 63, 64, 65, 700, 4096, 5000};
    for (size_t t = 0; t < sizeof lengths / sizeof *lengths; t++)
        for (uint64_t n = 1; n < 3000; n = n * 5 + 1) {
            size_t T = lengths[t];
            uint64_t sum;
            ot_windows w, again;
            assert_int_equal(ot_windows_pack(make(n, T, t, &sum), n, T, 1, &w), OT_OK);
            check(&w, n, T, t);
            /* Best fit decreasing uses at most 11/9 of the best plus 6/9 (Johnson 1973), and the best is no less than the sum. */
            assert_true(w.count * T >= sum);
            /* No two windows less than half full: the second would have fitted into the first. */
            uint64_t half_empty = 0;
            for (uint64_t window = 0; window < w.count; window++) {
                uint64_t used = 0;
                for (uint64_t i = w.first[window]; i < w.first[window + 1]; i++)
                    used += w.pieces[i].length;
                half_empty += 2 * used <= T;
            }
            assert_true(half_empty <= 1);
            assert_int_equal(ot_windows_pack(make(n, T, t, &sum), n, T, 1, &again), OT_OK);
            assert_int_equal(again.count, w.count);
            assert_memory_equal(again.pieces, w.pieces, n * sizeof *w.pieces);
            ot_windows_free(&w);
            ot_windows_free(&again);
        }
}

/* Lengths for which the best is known: thirds, and complements. */
static void perfect_fits_are_found(void **state)
{
    (void)state;
    enum { T = 90, PAIRS = 45 };
    ot_piece *pieces = malloc(2 * PAIRS * sizeof *pieces);
    for (uint32_t i = 0; i < PAIRS; i++) {
        pieces[2 * i] = (ot_piece){.start = 2 * i, .length = i + 1};
        pieces[2 * i + 1] = (ot_piece){.start = 2 * i + 1, .length = T - i - 1};
    }
    ot_windows w;
    assert_int_equal(ot_windows_pack(pieces, 2 * PAIRS, T, 1, &w), OT_OK);
    assert_int_equal(w.count, PAIRS);
    ot_windows_free(&w);
}

static void one_each_without_packing(void **state)
{
    (void)state;
    uint64_t sum;
    ot_windows w;
    assert_int_equal(ot_windows_pack(make(100, 64, 3, &sum), 100, 64, 0, &w), OT_OK);
    assert_int_equal(w.count, 100);
    check(&w, 100, 64, 3);
    ot_windows_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(best_fit_by_definition),
        cmocka_unit_test(perfect_fits_are_found),
        cmocka_unit_test(one_each_without_packing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
