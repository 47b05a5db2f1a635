/* The io_uring backend: registered files, registered buffers where the kernel allows them, one submission for
 * many pieces, completions checked one by one. */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/block.h"
#include "io/host.h"
#include "io/log.h"

enum { SUBMIT_TRIES = 1000, SUBMIT_TRY_EVERY_NS = 10000000 };
static const uint64_t REGISTERED_BYTES_MAX = 1u << 30; /* of one buffer: the kernel's limit */

typedef struct uring {
    struct io_uring ring;
    struct iovec *buffers; /* registered, sorted as given; NULL: none */
    unsigned buffer_count;
    unsigned unsubmitted; /* prepared entries the kernel has not taken yet */
    unsigned in_kernel;   /* entries it has taken whose completion was not seen */
} uring;

/* What most often stands behind an errno of io_uring_setup or of a first transfer. */
static const char *likely_cause(int code)
{
    switch (code) {
    case EPERM:
    case EACCES:
        return "forbidden by kernel.io_uring_disabled or by a container's seccomp profile";
    case ENOSYS:
        return "the kernel is older than 5.1, was built without io_uring, or a sandbox hides it";
    case ENOMEM:
        return "the memlock limit is too low: raise ulimit -l or LimitMEMLOCK";
    case EOPNOTSUPP:
        return "this file system or sandbox does not support it";
    case EINVAL:
        return "the kernel is too old for it";
    default:
        return "unexpected";
    }
}

static ot_status refuse(const char *what, int code)
{
    return ot_fail(OT_ERR_IO, "io_uring is not available (%s: %s, %s; %s)", what, strerrorname_np(code),
                   strerror(code), likely_cause(code));
}

static ot_status open_ring(uring *self, unsigned entries)
{
    /* Without COOP_TASKRUN each completion interrupts the thread; kernels before 5.19 do not know it. */
    int code = io_uring_queue_init(entries, &self->ring, IORING_SETUP_COOP_TASKRUN);
    if (code == -EINVAL)
        code = io_uring_queue_init(entries, &self->ring, 0);
    return code == 0 ? OT_OK : refuse("io_uring_setup", -code);
}

/* Registers the buffers in parts of at most 1 GiB, so that the kernel pins and maps their pages once and not
 * for each transfer. A refusal costs speed only. */
static ot_status register_buffers(uring *self, const ot_block_buffer buffers[], size_t count)
{
    size_t parts = 0;
    for (size_t i = 0; i < count; i++)
        parts += (size_t)((buffers[i].bytes + REGISTERED_BYTES_MAX - 1) / REGISTERED_BYTES_MAX);
    if (parts == 0)
        return OT_OK;
    self->buffers = calloc(parts, sizeof *self->buffers);
    if (self->buffers == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu registered buffers", parts);
    for (size_t i = 0; i < count; i++)
        for (uint64_t at = 0; at < buffers[i].bytes; at += REGISTERED_BYTES_MAX) {
            uint64_t left = buffers[i].bytes - at;
            self->buffers[self->buffer_count++] = (struct iovec){
                (char *)buffers[i].base + at, left < REGISTERED_BYTES_MAX ? left : REGISTERED_BYTES_MAX};
        }
    int code = io_uring_register_buffers(&self->ring, self->buffers, self->buffer_count);
    if (code == 0)
        return OT_OK;
    ot_log(OT_LOG_WARNING, "io_uring: buffers are not registered (%s, %s; %s): transfers cost more CPU time",
           strerrorname_np(-code), strerror(-code), likely_cause(-code));
    free(self->buffers);
    self->buffers = NULL;
    self->buffer_count = 0;
    return OT_OK;
}

/* Reads a page of each file, since a sandbox can allow a ring and refuse every transfer on it. An empty file
 * is fine. */
static ot_status try_read(uring *self, size_t file_count)
{
    void *page = aligned_alloc(OT_PAGE_BYTES, OT_PAGE_BYTES);
    if (page == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a page");
    int code = 0;
    for (size_t file = 0; file < file_count && code == 0; file++) {
        struct io_uring_sqe *entry = io_uring_get_sqe(&self->ring);
        io_uring_prep_read(entry, (int)file, page, OT_PAGE_BYTES, 0);
        entry->flags |= IOSQE_FIXED_FILE;
        struct io_uring_cqe *completion;
        do
            code = io_uring_submit_and_wait(&self->ring, 1);
        while (code == -EINTR);
        if (code >= 0)
            code = io_uring_wait_cqe(&self->ring, &completion);
        if (code == 0) {
            code = completion->res < 0 && completion->res != -EIO ? completion->res
                                                                  : 0; /* EIO: the drive, not io_uring */
            io_uring_cqe_seen(&self->ring, completion);
        }
    }
    free(page);
    return code == 0 ? OT_OK : refuse("first read", -code);
}

static void uring_close(void *state)
{
    uring *self = state;
    /* The kernel takes a ring down after the process has gone on, and would hold files and pages until then:
     * a removed file's space would still be missing, and its folder busy. Both calls fail where nothing is
     * registered. */
    io_uring_unregister_buffers(&self->ring);
    io_uring_unregister_files(&self->ring);
    io_uring_queue_exit(&self->ring);
    free(self->buffers);
    free(self);
}

static ot_status uring_open(const ot_block_setup *setup, void **state)
{
    uring *self = calloc(1, sizeof *self);
    if (self == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for an io_uring");
    ot_status status = open_ring(self, setup->capacity);
    if (status != OT_OK) {
        free(self);
        return status;
    }
    int code = io_uring_register_files(&self->ring, setup->files, (unsigned)setup->file_count);
    if (code != 0)
        OT_TRY_GOTO(refuse("registering files", -code), out);
    OT_TRY_GOTO(try_read(self, setup->file_count), out);
    OT_TRY_GOTO(register_buffers(self, setup->buffers, setup->buffer_count), out);
    *state = self;
    return OT_OK;
out:
    uring_close(self);
    return status;
}

/* The registered buffer that holds all of the piece, or -1. */
static int find_buffer(const uring *self, const ot_block_piece *piece)
{
    const char *data = piece->data;
    for (unsigned i = 0; i < self->buffer_count; i++) {
        const char *base = self->buffers[i].iov_base;
        if (data >= base && data + piece->bytes <= base + self->buffers[i].iov_len)
            return (int)i;
    }
    return -1;
}

static void prepare(const uring *self, struct io_uring_sqe *entry, ot_block_piece *piece)
{
    int buffer = find_buffer(self, piece);
    unsigned bytes = (unsigned)piece->bytes;
    if (piece->direction == OT_BLOCK_READ && buffer >= 0)
        io_uring_prep_read_fixed(entry, piece->file, piece->data, bytes, piece->offset, buffer);
    else if (piece->direction == OT_BLOCK_READ)
        io_uring_prep_read(entry, piece->file, piece->data, bytes, piece->offset);
    else if (buffer >= 0)
        io_uring_prep_write_fixed(entry, piece->file, piece->data, bytes, piece->offset, buffer);
    else
        io_uring_prep_write(entry, piece->file, piece->data, bytes, piece->offset);
    entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(entry, piece);
}

/* Hands the prepared entries to the kernel. What it does not take now (out of memory for a request, say)
 * stays in the ring and goes with the next call. */
static ot_status flush_entries(uring *self)
{
    while (self->unsubmitted > 0) {
        int code = io_uring_submit(&self->ring);
        if (code == -EINTR)
            continue;
        if (code == -EAGAIN || code == -EBUSY || code == 0)
            return OT_OK;
        if (code < 0)
            return ot_fail(OT_ERR_IO, "io_uring_enter failed: %s", strerror(-code));
        self->unsubmitted -= (unsigned)code;
        self->in_kernel += (unsigned)code;
    }
    return OT_OK;
}

static ot_status uring_submit(void *state, ot_block_piece *const pieces[], size_t count)
{
    uring *self = state;
    for (size_t i = 0; i < count; i++) {
        struct io_uring_sqe *entry = io_uring_get_sqe(&self->ring);
        OT_ASSERT(entry != NULL); /* the ring holds the capacity */
        prepare(self, entry, pieces[i]);
    }
    self->unsubmitted += (unsigned)count;
    return flush_entries(self);
}

static ot_status uring_wait(void *state, ot_block_piece *done[], size_t max, size_t *count)
{
    uring *self = state;
    struct io_uring_cqe *completion;
    OT_TRY(flush_entries(self));
    /* With nothing in the kernel no completion can come: what it did not take has to go first. */
    for (int tries = 0; self->in_kernel == 0; tries++) {
        if (tries == SUBMIT_TRIES)
            return ot_fail(OT_ERR_IO, "io_uring takes no requests: the kernel is out of memory");
        nanosleep(&(struct timespec){.tv_nsec = SUBMIT_TRY_EVERY_NS}, NULL);
        OT_TRY(flush_entries(self));
    }
    int code;
    do
        code = io_uring_wait_cqe(&self->ring, &completion);
    while (code == -EINTR);
    if (code != 0)
        return ot_fail(OT_ERR_IO, "waiting for io_uring failed: %s", strerror(-code));
    *count = 0;
    unsigned head, seen = 0;
    io_uring_for_each_cqe(&self->ring, head, completion)
    {
        if (*count == max)
            break;
        ot_block_piece *piece = io_uring_cqe_get_data(completion);
        piece->result = completion->res;
        done[(*count)++] = piece;
        seen++;
    }
    io_uring_cq_advance(&self->ring, seen);
    self->in_kernel -= seen;
    return OT_OK;
}

const ot_block_backend ot_block_uring = {"io_uring", uring_open, uring_submit, uring_wait, uring_close};
