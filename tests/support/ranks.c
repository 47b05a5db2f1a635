#include "tests/support/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A parcel on its way; one from each rank to each other at a time, as an exchange has no more. */
typedef struct way {
    const ot_parcel *sent; /* NULL: nothing */
    int tag, taken;
} way;

typedef struct thread_transport {
    ot_transport base;
    rank_hub *hub;
    int tag;
    ot_parcel *parcels;
    size_t count;
} thread_transport;

struct rank_hub {
    int size;
    ranks_fault fault;
    pthread_mutex_t lock;
    way ways[OT_RANKS_MAX][OT_RANKS_MAX]; /* [from][to] */
    int left[OT_RANKS_MAX];
    thread_transport transports[OT_RANKS_MAX];
};

static int start(ot_transport *base, int tag, ot_parcel *parcels, size_t count)
{
    thread_transport *t = (thread_transport *)base;
    t->tag = tag;
    t->parcels = parcels;
    t->count = count;
    pthread_mutex_lock(&t->hub->lock);
    for (size_t p = 0; p < count; p++)
        if (!parcels[p].incoming)
            t->hub->ways[base->rank][parcels[p].peer] = (way){&parcels[p], tag, 0};
    pthread_mutex_unlock(&t->hub->lock);
    return 0;
}

/* What a parcel to this rank finds on its way. -1: the sizes differ. */
static int take(thread_transport *t, ot_parcel *parcel)
{
    int from = parcel->peer, to = t->base.rank;
    const ranks_fault *fault = &t->hub->fault;
    way *w = &t->hub->ways[from][to];
    if (w->sent == NULL || w->taken || w->tag != t->tag)
        return 0;
    if (w->sent->bytes != parcel->bytes) {
        snprintf(t->base.error, sizeof t->base.error, "%zu bytes came, expected %zu", w->sent->bytes,
                 parcel->bytes);
        return -1;
    }
    memcpy(parcel->data, w->sent->data, parcel->bytes);
    if (fault->damage_from == from && fault->damage_to == to)
        ((unsigned char *)parcel->data)[parcel->bytes / 2] ^= 4;
    w->taken = 1;
    return 1;
}

static int test(ot_transport *base)
{
    thread_transport *t = (thread_transport *)base;
    int all = 1;
    pthread_mutex_lock(&t->hub->lock);
    for (size_t p = 0; p < t->count && all >= 0; p++) {
        ot_parcel *parcel = &t->parcels[p];
        if (!parcel->ended)
            parcel->ended = parcel->incoming ? take(t, parcel) : t->hub->ways[base->rank][parcel->peer].taken;
        all = parcel->ended < 0 ? -1 : all & parcel->ended;
    }
    pthread_mutex_unlock(&t->hub->lock);
    return all;
}

static void close_transport(ot_transport *base)
{
    (void)base;
}

static void leave(ot_transport *base, int code)
{
    rank_hub *r = ((thread_transport *)base)->hub;
    pthread_mutex_lock(&r->lock);
    r->left[base->rank] = code;
    pthread_mutex_unlock(&r->lock);
}

static int left(ot_transport *base, int peer)
{
    rank_hub *r = ((thread_transport *)base)->hub;
    pthread_mutex_lock(&r->lock);
    int code = r->left[peer];
    pthread_mutex_unlock(&r->lock);
    return code;
}

rank_hub *ranks_open(int size, ranks_fault fault)
{
    rank_hub *r = calloc(1, sizeof *r);
    must(r != NULL);
    r->size = size;
    r->fault = fault;
    pthread_mutex_init(&r->lock, NULL);
    for (int rank = 0; rank < size; rank++)
        r->transports[rank] =
            (thread_transport){.base = {rank, size, "", start, test, close_transport, leave, left}, .hub = r};
    return r;
}

void ranks_close(rank_hub *r)
{
    pthread_mutex_destroy(&r->lock);
    free(r);
}

ot_transport *ranks_transport(rank_hub *r, int rank)
{
    return &r->transports[rank].base;
}

typedef struct member {
    pthread_t thread;
    ot_transport *transport;
    double timeout_s;
    ranks_body *body;
    void *context;
} member;

static void *member_main(void *argument)
{
    const member *m = argument;
    const ot_group_options options = {m->transport, m->timeout_s};
    ot_group *group;
    must(ot_group_open(&options, &group) == OT_OK);
    m->body(group, m->context);
    ot_group_close(group);
    return NULL;
}

void ranks_run(int size, double timeout_s, ranks_body *body, void *context)
{
    rank_hub *r = ranks_open(size, (ranks_fault){-1, -1});
    member members[OT_RANKS_MAX];
    for (int rank = 0; rank < size; rank++) {
        members[rank] = (member){
            .transport = ranks_transport(r, rank), .timeout_s = timeout_s, .body = body, .context = context};
        must(pthread_create(&members[rank].thread, NULL, member_main, &members[rank]) == 0);
    }
    for (int rank = 0; rank < size; rank++)
        pthread_join(members[rank].thread, NULL);
    ranks_close(r);
}

void must_fail(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: %s does not hold; the last failure: %s\n", file, line, condition,
            ot_error_text());
    fflush(stderr);
    _exit(1);
}
