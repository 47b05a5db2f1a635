/* The events of the CUDA device. On a lost device nothing waits: every point counts as reached. */
#include <stdlib.h>

#include "kernels/cuda/state.h"

static cudaEvent_t handle_of(const ot_event *event)
{
    return ((const cuda_event *)event)->handle;
}

static cuda_device *device_of(const ot_event *event)
{
    return (cuda_device *)event->device;
}

ot_status ot_cuda_event_open(ot_device *base, int timed, ot_event **out)
{
    cuda_device *device = (cuda_device *)base;
    ot_cuda_enter(device);
    cuda_event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for an event");
    unsigned flags = cudaEventBlockingSync | (timed ? 0u : (unsigned)cudaEventDisableTiming);
    ot_status status = ot_cuda_error(cudaEventCreateWithFlags(&event->handle, flags), "an event");
    if (status != OT_OK) {
        free(event);
        return status;
    }
    event->base.device = base;
    event->next = device->events;
    device->events = event;
    *out = &event->base;
    return OT_OK;
}

void ot_cuda_event_close(ot_event *base)
{
    cuda_event **link = &device_of(base)->events;
    while (*link != (cuda_event *)base)
        link = &(*link)->next;
    *link = (*link)->next;
    ot_cuda_enter(device_of(base));
    (void)cudaEventDestroy(handle_of(base));
    free(base);
}

void ot_cuda_event_record(ot_event *event, ot_stream *stream)
{
    ot_cuda_enter(device_of(event));
    ot_cuda_check(stream, cudaEventRecord(handle_of(event), ot_cuda_handle(stream)), "recording an event");
}

void ot_cuda_stream_wait(ot_stream *stream, ot_event *event)
{
    ot_cuda_enter(device_of(event));
    ot_cuda_check(stream, cudaStreamWaitEvent(ot_cuda_handle(stream), handle_of(event), 0),
                  "waiting for an event");
}

int ot_cuda_event_reached(const ot_event *event)
{
    ot_cuda_enter(device_of(event));
    return cudaEventQuery(handle_of(event)) != cudaErrorNotReady;
}

ot_status ot_cuda_event_synchronize(ot_event *event)
{
    cuda_device *device = device_of(event);
    ot_cuda_enter(device);
    cudaError_t code = cudaEventSynchronize(handle_of(event));
    if (code != cudaSuccess && device->streams != NULL)
        ot_cuda_check(&device->streams->base, code, "waiting for an event");
    return ot_cuda_status(event->device);
}

int64_t ot_cuda_event_elapsed_ns(const ot_event *from, const ot_event *to)
{
    float ms = 0;
    ot_cuda_enter(device_of(from));
    return cudaEventElapsedTime(&ms, handle_of(from), handle_of(to)) == cudaSuccess
               ? (int64_t)((double)ms * 1e6)
               : 0;
}
