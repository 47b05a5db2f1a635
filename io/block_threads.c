/* The backend for systems without io_uring: threads that call pread and pwrite. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/block.h"

enum { THREADS_MAX = 32 };

/* A ring of pieces that never overflows: it has room for every piece in flight. */
typedef struct piece_ring {
    ot_block_piece **pieces;
    size_t first, count;
} piece_ring;

typedef struct thread_pool {
    pthread_mutex_t mutex;
    pthread_cond_t work, finished; /* `waiting` or `stop` has changed; `done` has */
    piece_ring waiting, done;
    size_t capacity;
    int stop;
    int *files;
    pthread_t threads[THREADS_MAX];
    int thread_count;
} thread_pool;

static void push(thread_pool *pool, piece_ring *ring, ot_block_piece *piece)
{
    OT_ASSERT(ring->count < pool->capacity);
    ring->pieces[(ring->first + ring->count++) % pool->capacity] = piece;
}

static ot_block_piece *pop(thread_pool *pool, piece_ring *ring)
{
    ot_block_piece *piece = ring->pieces[ring->first];
    ring->first = (ring->first + 1) % pool->capacity;
    ring->count--;
    return piece;
}

static int64_t transfer(int file, const ot_block_piece *piece)
{
    ssize_t n = piece->direction == OT_BLOCK_READ
                    ? pread(file, piece->data, piece->bytes, (off_t)piece->offset)
                    : pwrite(file, piece->data, piece->bytes, (off_t)piece->offset);
    return n >= 0 ? n : -errno;
}

static void *thread_main(void *argument)
{
    thread_pool *self = argument;
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        while (self->waiting.count == 0 && !self->stop)
            pthread_cond_wait(&self->work, &self->mutex);
        if (self->stop)
            break;
        ot_block_piece *piece = pop(self, &self->waiting);
        pthread_mutex_unlock(&self->mutex);
        int64_t result = transfer(self->files[piece->file], piece);
        pthread_mutex_lock(&self->mutex);
        piece->result = result;
        push(self, &self->done, piece);
        pthread_cond_signal(&self->finished);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

static void threads_close(void *state)
{
    thread_pool *self = state;
    pthread_mutex_lock(&self->mutex);
    self->stop = 1;
    pthread_cond_broadcast(&self->work);
    pthread_mutex_unlock(&self->mutex);
    for (int i = 0; i < self->thread_count; i++)
        pthread_join(self->threads[i], NULL);
    pthread_cond_destroy(&self->finished);
    pthread_cond_destroy(&self->work);
    pthread_mutex_destroy(&self->mutex);
    free(self->files);
    free(self->waiting.pieces);
    free(self->done.pieces);
    free(self);
}

static ot_status threads_open(const ot_block_setup *setup, void **state)
{
    ot_status status;
    thread_pool *self = calloc(1, sizeof *self);
    if (self == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for I/O threads");
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->work, NULL);
    pthread_cond_init(&self->finished, NULL);
    self->capacity = setup->capacity;
    self->waiting.pieces = calloc(setup->capacity, sizeof *self->waiting.pieces);
    self->done.pieces = calloc(setup->capacity, sizeof *self->done.pieces);
    self->files = calloc(setup->file_count, sizeof *self->files);
    if (self->waiting.pieces == NULL || self->done.pieces == NULL || self->files == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for I/O threads"), out);
    memcpy(self->files, setup->files, setup->file_count * sizeof *self->files);
    while (self->thread_count < THREADS_MAX && (uint32_t)self->thread_count < setup->capacity) {
        int code = pthread_create(&self->threads[self->thread_count], NULL, thread_main, self);
        if (code != 0 && self->thread_count == 0)
            OT_TRY_GOTO(ot_fail(OT_ERR_IO, "cannot start an I/O thread: %s", strerror(code)), out);
        if (code != 0)
            break; /* fewer will do */
        self->thread_count++;
    }
    *state = self;
    return OT_OK;
out:
    threads_close(self);
    return status;
}

static ot_status threads_submit(void *state, ot_block_piece *const pieces[], size_t count)
{
    thread_pool *self = state;
    pthread_mutex_lock(&self->mutex);
    for (size_t i = 0; i < count; i++)
        push(self, &self->waiting, pieces[i]);
    pthread_cond_broadcast(&self->work);
    pthread_mutex_unlock(&self->mutex);
    return OT_OK;
}

static ot_status threads_wait(void *state, ot_block_piece *done[], size_t max, size_t *count)
{
    thread_pool *self = state;
    pthread_mutex_lock(&self->mutex);
    while (self->done.count == 0)
        pthread_cond_wait(&self->finished, &self->mutex);
    for (*count = 0; *count < max && self->done.count > 0;)
        done[(*count)++] = pop(self, &self->done);
    pthread_mutex_unlock(&self->mutex);
    return OT_OK;
}

const ot_block_backend ot_block_threads = {"threads", threads_open, threads_submit, threads_wait,
                                           threads_close};
