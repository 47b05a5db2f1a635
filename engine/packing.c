/* Best fit, decreasing. The room that is left in a window is a number up to T, so windows with equal room are a list, and a bitmap
 * with a summary finds the least room that is enough. */
#include "engine/packing.h"

#include <stdlib.h>
#include <string.h>

#define NOTHING UINT64_MAX

typedef struct rooms {
    size_t T;
    uint64_t *head;           /* [T+1]: a window with that much room */
    uint64_t *next;           /* [n]: another with as much */
    uint64_t *bits, *summary; /* room r has a window; bits[i] is not 0 */
} rooms;

static int rooms_open(rooms *r, size_t T, uint64_t n)
{
    r->T = T;
    size_t words = T / 64 + 1;
    r->head = malloc((T + 1) * sizeof *r->head);
    r->next = malloc(n * sizeof *r->next);
    r->bits = calloc(words, sizeof *r->bits);
    r->summary = calloc(words / 64 + 1, sizeof *r->summary);
    for (size_t i = 0; r->head != NULL && i <= T; i++)
        r->head[i] = NOTHING;
    return r->head != NULL && r->next != NULL && r->bits != NULL && r->summary != NULL;
}

static void rooms_close(rooms *r)
{
    free(r->head);
    free(r->next);
    free(r->bits);
    free(r->summary);
}

static void rooms_put(rooms *r, size_t room, uint64_t window)
{
    if (room == 0)
        return;
    r->next[window] = r->head[room];
    r->head[room] = window;
    r->bits[room / 64] |= UINT64_C(1) << room % 64;
    r->summary[room / 4096] |= UINT64_C(1) << room / 64 % 64;
}

/* The first set bit from `from` on below `end`, or `end`. */
static size_t next_bit(const uint64_t *bits, size_t from, size_t end)
{
    for (size_t i = from / 64; i * 64 < end; i++) {
        uint64_t word = bits[i];
        if (i == from / 64)
            word &= UINT64_MAX << from % 64;
        if (word != 0) {
            size_t found = i * 64 + (size_t)__builtin_ctzll(word);
            return found < end ? found : end;
        }
    }
    return end;
}

/* Takes the window with the least room of at least `length`; NOTHING where there is none. */
static uint64_t rooms_take(rooms *r, size_t length, size_t *room)
{
    size_t word = length / 64, words = r->T / 64 + 1;
    uint64_t here = r->bits[word] & UINT64_MAX << length % 64;
    if (here == 0) {
        word = next_bit(r->summary, word + 1, words);
        if (word == words)
            return NOTHING;
        here = r->bits[word];
    }
    *room = word * 64 + (size_t)__builtin_ctzll(here);
    uint64_t window = r->head[*room];
    r->head[*room] = r->next[window];
    if (r->head[*room] == NOTHING) {
        r->bits[word] &= ~(UINT64_C(1) << *room % 64);
        if (r->bits[word] == 0)
            r->summary[word / 64] &= ~(UINT64_C(1) << word % 64);
    }
    return window;
}

/* Numbers of the pieces, the longest first, equal ones in their order. */
static uint64_t *sort_by_length(const ot_piece *pieces, uint64_t n, size_t T)
{
    uint64_t *order = malloc(n * sizeof *order), *at = calloc(T + 2, sizeof *at);
    if (order != NULL && at != NULL) {
        for (uint64_t i = 0; i < n; i++)
            at[T - pieces[i].length + 1]++;
        for (size_t length = 0; length <= T; length++)
            at[length + 1] += at[length];
        for (uint64_t i = 0; i < n; i++)
            order[at[T - pieces[i].length]++] = i;
    } else {
        free(order);
        order = NULL;
    }
    free(at);
    return order;
}

/* Gives each piece its window. Returns 0 where memory is short. */
static int best_fit(const ot_piece *pieces, uint64_t n, size_t T, uint64_t *window_of, uint64_t *windows)
{
    rooms r = {0};
    uint64_t *order = sort_by_length(pieces, n, T);
    int done = rooms_open(&r, T, n) && order != NULL;
    *windows = 0;
    for (uint64_t i = 0; done && i < n; i++) {
        size_t length = pieces[order[i]].length, room = T;
        uint64_t window = rooms_take(&r, length, &room);
        if (window == NOTHING) {
            window = (*windows)++;
            room = T;
        }
        window_of[order[i]] = window;
        rooms_put(&r, room - length, window);
    }
    rooms_close(&r);
    free(order);
    return done;
}

/* Windows in the order of their first pieces: without a shuffle, data comes about as it was written. */
static void renumber(uint64_t *window_of, uint64_t n, uint64_t *number, uint64_t windows)
{
    uint64_t next = 0;
    memset(number, 0xff, windows * sizeof *number);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t *to = &number[window_of[i]];
        if (*to == NOTHING)
            *to = next++;
        window_of[i] = *to;
    }
}

/* Pieces window by window, each window's in their order. */
static int arrange(const ot_piece *pieces, const uint64_t *window_of, uint64_t n, ot_windows *out)
{
    out->pieces = malloc(n * sizeof *out->pieces);
    if (out->pieces == NULL)
        return 0;
    memset(out->first, 0, (out->count + 1) * sizeof *out->first);
    for (uint64_t i = 0; i < n; i++)
        out->first[window_of[i] + 1]++;
    for (uint64_t i = 0; i < out->count; i++)
        out->first[i + 1] += out->first[i];
    for (uint64_t i = 0; i < n; i++)
        out->pieces[out->first[window_of[i]]++] = pieces[i];
    for (uint64_t i = out->count; i > 0; i--)
        out->first[i] = out->first[i - 1];
    out->first[0] = 0;
    return 1;
}

static int pack(const ot_piece *pieces, uint64_t n, size_t T, ot_windows *out)
{
    uint64_t *window_of = malloc(n * sizeof *window_of);
    int done = window_of != NULL && best_fit(pieces, n, T, window_of, &out->count);
    if (done) {
        out->first = malloc((out->count + 1) * sizeof *out->first);
        done = out->first != NULL;
    }
    if (done) {
        renumber(window_of, n, out->first, out->count);
        done = arrange(pieces, window_of, n, out);
    }
    free(window_of);
    return done;
}

ot_status ot_windows_pack(ot_piece *pieces, uint64_t n, size_t T, int packing, ot_windows *out)
{
    *out = (ot_windows){0};
    OT_ASSERT(n > 0);
    int done;
    if (packing) {
        done = pack(pieces, n, T, out);
        free(pieces);
    } else {
        out->pieces = pieces;
        out->count = n;
        out->first = malloc((n + 1) * sizeof *out->first);
        done = out->first != NULL;
        for (uint64_t i = 0; done && i <= n; i++)
            out->first[i] = i;
    }
    if (done)
        return OT_OK;
    ot_windows_free(out);
    return ot_fail(OT_ERR_INTERNAL, "out of memory for %llu pieces of documents", (unsigned long long)n);
}

void ot_windows_free(ot_windows *windows)
{
    free(windows->pieces);
    free(windows->first);
    *windows = (ot_windows){0};
}
