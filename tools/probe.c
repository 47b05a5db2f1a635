/* Sixty-four elements at a time, so that every stream is passed in whole cache lines, in the order of the
 * streams. */
#include "tools/probe.h"

#include <string.h>

enum { GROUP = 64, GRAIN = 4096 };

/* A quarter of a cache line: every machine has such registers. Additions of integers cost next to nothing. */
typedef uint64_t part __attribute__((vector_size(16)));

enum { LINE_PARTS = 4, LINE_BYTES = LINE_PARTS * sizeof(part) };

typedef struct probe {
    const ot_probe_stream *streams;
    size_t count, n;
} probe;

/* Reads, changes or writes the line at `at`, as `access` says. `sum` keeps reads from being left out. */
static inline __attribute__((always_inline)) void pass_line(ot_probe_access access, unsigned char *at,
                                                            part sum[LINE_PARTS])
{
    part x[LINE_PARTS] = {{0}};
    for (size_t i = 0; i < LINE_PARTS; i++) {
        if (access != OT_PROBE_WRITE)
            memcpy(&x[i], at + i * sizeof(part), sizeof(part));
        if (access == OT_PROBE_READ)
            sum[i] += x[i];
    }
    for (size_t i = 0; i < LINE_PARTS && access != OT_PROBE_READ; i++) {
        x[i] += 1;
        memcpy(at + i * sizeof(part), &x[i], sizeof(part));
    }
}

static void pass_share(void *context, int index, int count)
{
    const probe *p = context;
    size_t begin, end;
    part sum[LINE_PARTS] = {{0}};
    ot_team_share(p->n, GRAIN, index, count, &begin, &end);
    for (size_t i = begin; i + GROUP <= end; i += GROUP)
        for (size_t s = 0; s < p->count; s++) {
            ot_probe_access access = p->streams[s].access;
            size_t width = p->streams[s].width;
            unsigned char *at = (unsigned char *)p->streams[s].base + i * width, *stop = at + GROUP * width;
            if (access == OT_PROBE_READ)
                for (; at < stop; at += LINE_BYTES)
                    pass_line(OT_PROBE_READ, at, sum);
            else if (access == OT_PROBE_WRITE)
                for (; at < stop; at += LINE_BYTES)
                    pass_line(OT_PROBE_WRITE, at, sum);
            else
                for (; at < stop; at += LINE_BYTES)
                    pass_line(OT_PROBE_CHANGE, at, sum);
        }
    uint64_t kept = sum[0][0] + sum[1][0] + sum[2][0] + sum[3][0];
    __asm__ volatile("" : : "r"(kept));
}

void ot_probe_run(ot_team *team, const ot_probe_stream *streams, size_t count, size_t n)
{
    probe p = {streams, count, n};
    ot_team_run(team, pass_share, &p);
}

uint64_t ot_probe_bytes(const ot_probe_stream *streams, size_t count, size_t n)
{
    uint64_t width = 0;
    for (size_t i = 0; i < count; i++)
        width += streams[i].width * (streams[i].access == OT_PROBE_CHANGE ? 2 : 1);
    return width * n;
}
