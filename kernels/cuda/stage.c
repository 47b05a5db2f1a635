/* Copies of host memory that is not pinned, which the driver would copy while the caller waits: through a pinned ring of a
 * few MiB instead, one for each direction. A host function on a stream beside fills a slot, or empties it, while the slot
 * before is on its way; events order the two streams, and nobody waits.
 *
 * All operations of a copy are enqueued under one lock. Each waits only for what was enqueued before it, so two streams that
 * share the ring may delay each other but never stand still. */
#include <stdlib.h>
#include <string.h>

#include "io/host.h"
#include "io/text.h"
#include "kernels/cuda/state.h"

static ot_status pin_ring(cuda_stage *stage)
{
    enum { BYTES = OT_CUDA_STAGE_SLOTS * OT_CUDA_STAGE_BYTES };
    void *ring = aligned_alloc(OT_PAGE_BYTES, BYTES);
    if (ring == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a pinned ring");
    memset(ring, 0, BYTES);
    cudaError_t code = cudaHostRegister(ring, BYTES, cudaHostRegisterDefault);
    if (code != cudaSuccess) {
        free(ring);
        return ot_cuda_pin_refused(0, BYTES, code);
    }
    stage->ring = ring;
    return OT_OK;
}

ot_status ot_cuda_stage_open(cuda_device *device, ot_stream_kind kind, cuda_stage *stage)
{
    const ot_stream_options options = {.kind = kind, .name = "staging"};
    pthread_mutex_init(&stage->lock, NULL);
    stage->is_open = 1;
    OT_TRY(pin_ring(stage));
    for (int s = 0; s < OT_CUDA_STAGE_SLOTS; s++) {
        OT_TRY(ot_cuda_event_open(&device->base, 0, &stage->full[s]));
        OT_TRY(ot_cuda_event_open(&device->base, 0, &stage->empty[s]));
    }
    return ot_cuda_stream_open(&device->base, &options, &stage->side);
}

void ot_cuda_stage_close(cuda_stage *stage)
{
    if (!stage->is_open)
        return;
    pthread_mutex_destroy(&stage->lock);
    if (stage->ring == NULL)
        return;
    (void)cudaHostUnregister(stage->ring);
    free(stage->ring);
}

static int take_slot(cuda_stage *stage)
{
    return (int)(stage->taken++ % OT_CUDA_STAGE_SLOTS);
}

static void transfer(ot_stream *stream, void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    ot_cuda_check(stream, cudaMemcpyAsync(dst, src, bytes, kind, ot_cuda_handle(stream)), "a staged copy");
}

static void to_device(cuda_stage *stage, ot_stream *stream, char *dst, const char *src, size_t bytes)
{
    /* The source is there when the stream has come so far. */
    ot_cuda_event_record(((cuda_stream *)stream)->begin, stream);
    ot_cuda_stream_wait(stage->side, ((cuda_stream *)stream)->begin);
    for (size_t done = 0; done < bytes;) {
        int s = take_slot(stage);
        unsigned char *slot = stage->ring + (size_t)s * OT_CUDA_STAGE_BYTES;
        size_t piece = bytes - done < OT_CUDA_STAGE_BYTES ? bytes - done : OT_CUDA_STAGE_BYTES;
        ot_cuda_stream_wait(stage->side, stage->empty[s]);
        ot_cuda_stream_move(stage->side, slot, src + done, piece);
        ot_cuda_event_record(stage->full[s], stage->side);
        ot_cuda_stream_wait(stream, stage->full[s]);
        transfer(stream, dst + done, slot, piece, cudaMemcpyHostToDevice);
        ot_cuda_event_record(stage->empty[s], stream);
        done += piece;
    }
}

static void to_host(cuda_stage *stage, ot_stream *stream, char *dst, const char *src, size_t bytes)
{
    int s = 0;
    for (size_t done = 0; done < bytes;) {
        s = take_slot(stage);
        unsigned char *slot = stage->ring + (size_t)s * OT_CUDA_STAGE_BYTES;
        size_t piece = bytes - done < OT_CUDA_STAGE_BYTES ? bytes - done : OT_CUDA_STAGE_BYTES;
        ot_cuda_stream_wait(stream, stage->empty[s]);
        transfer(stream, slot, src + done, piece, cudaMemcpyDeviceToHost);
        ot_cuda_event_record(stage->full[s], stream);
        ot_cuda_stream_wait(stage->side, stage->full[s]);
        ot_cuda_stream_move(stage->side, dst + done, slot, piece);
        ot_cuda_event_record(stage->empty[s], stage->side);
        done += piece;
    }
    ot_cuda_stream_wait(stream, stage->empty[s]);
}

void ot_cuda_stage_copy(ot_stream *stream, void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    cuda_stage *stage = &ot_cuda_device(stream)->stages[kind == cudaMemcpyDeviceToHost];
    pthread_mutex_lock(&stage->lock);
    if (kind == cudaMemcpyDeviceToHost)
        to_host(stage, stream, dst, src, bytes);
    else
        to_device(stage, stream, dst, src, bytes);
    pthread_mutex_unlock(&stage->lock);
}
