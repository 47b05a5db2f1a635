/* Picks a device, and passes each call on to its implementation. */
#include "kernels/device.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "io/clock.h"
#include "io/log.h"
#include "io/text.h"
#include "kernels/backend.h"
#include "kernels/plugin.h"

ot_status ot_backend_result(const ot_device_ops *ops, ot_status status)
{
    if (status == OT_OK || ops->error == NULL)
        return status;
    ot_error error = ops->error();
    return ot_error_raise(&error);
}

const ot_gpu_device ot_gpu_build = {
    .kind = "cuda",
    .name = "CUDA",
#ifndef OT_HAVE_CUDA
    .missing = "this offtrain was built without the CUDA device: install the CUDA toolkit and build again",
#endif
};

/* ---- The plugin ---- */

static const char plugin_name[] = "libofftrain_cuda.so";

/* Without a driver nothing else is looked at: the libraries of CUDA take half a second to load. */
static int has_driver(void)
{
    if (getenv("OFFTRAIN_CUDA_PLUGIN") != NULL)
        return 1;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver != NULL)
        dlclose(driver);
    return driver != NULL;
}

static ot_status find_cuda(const ot_device_ops **ops)
{
    ot_backend_entry *entry;
    if (!has_driver())
        return ot_fail(OT_ERR_DEVICE, "device cuda: this machine has no NVIDIA driver (libcuda.so.1)");
    void *library = ot_plugin_open(plugin_name, "OFFTRAIN_CUDA_PLUGIN", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        return ot_fail(OT_ERR_DEVICE, "device cuda: %s",
                       reason != NULL ? reason : "this build has no CUDA device (libofftrain_cuda.so)");
    }
    void *symbol = dlsym(library, OT_BACKEND_SYMBOL);
    memcpy(&entry, &symbol, sizeof entry); /* C has no cast for it */
    *ops = entry != NULL ? entry(OT_BACKEND_VERSION, ot_error_take) : NULL;
    if (*ops == NULL)
        return ot_fail(OT_ERR_DEVICE, "device cuda: %s is of another version of offtrain; build both again",
                       plugin_name);
    return OT_OK;
}

/* ---- Opening ---- */

static ot_status open_cuda(const ot_device_options *options, ot_device **out)
{
    const ot_device_ops *ops;
    OT_TRY(find_cuda(&ops));
    return ot_backend_result(ops, ops->open(options, out));
}

static ot_status open_cpu(const ot_device_options *options, ot_device **out)
{
    const ot_device_ops *ops = ot_cpu_backend();
    return ot_backend_result(ops, ops->open(options, out));
}

/* A machine without a driver is none of a user's mistakes; one whose GPU cannot be used may be. */
static ot_status open_best(const ot_device_options *options, ot_device **out)
{
    ot_status status = open_cuda(options, out);
    if (status != OT_ERR_DEVICE)
        return status;
    ot_log(has_driver() ? OT_LOG_WARNING : OT_LOG_INFO, "%s: going on with the CPU device", ot_error_text());
    return open_cpu(options, out);
}

ot_status ot_device_open(const ot_device_options *options, ot_device **out)
{
    const char *kind = options->kind;
    if (kind == NULL || strcmp(kind, "auto") == 0)
        return open_best(options, out);
    if (strcmp(kind, "cpu") == 0)
        return open_cpu(options, out);
    if (strcmp(kind, "cuda") == 0) {
        ot_status status = open_cuda(options, out);
        return status == OT_ERR_DEVICE ? ot_fail(status, "%s; use --device cpu", ot_error_text()) : status;
    }
    return ot_fail(OT_ERR_USAGE, "device %s: unknown; use auto, cpu or cuda", kind);
}

void ot_device_close(ot_device *device)
{
    if (device != NULL)
        device->ops->close(device);
}

void ot_device_query(const ot_device *device, ot_device_info *out)
{
    device->ops->query(device, out);
}

const ot_kernels *ot_device_kernels(const ot_device *device)
{
    return device->kernels;
}

ot_status ot_device_arena_open(ot_device *device, const char *name, uint64_t bytes, void **base)
{
    return ot_backend_result(device->ops, device->ops->arena_open(device, name, bytes, base));
}

void ot_device_arena_close(ot_device *device, void *base)
{
    if (base != NULL)
        device->ops->arena_close(device, base);
}

uint64_t ot_device_bytes(const ot_device *device)
{
    return device->ops->bytes(device);
}

uint64_t ot_device_peak_bytes(const ot_device *device)
{
    return device->ops->peak_bytes(device);
}

/* The driver pins some gigabytes a second. */
static void tell_progress(uint64_t done_bytes, uint64_t bytes)
{
    enum { EVERY_NS = 2000000000 };
    static _Thread_local int64_t last_ns;
    static _Thread_local uint64_t last_bytes;
    int64_t now = ot_clock_ns();
    if (done_bytes <= last_bytes || last_ns == 0) /* another arena's */
        last_ns = now;
    last_bytes = done_bytes;
    if (now - last_ns < EVERY_NS)
        return;
    char done[OT_SIZE_TEXT_BYTES], all[OT_SIZE_TEXT_BYTES];
    last_ns = now;
    ot_log(OT_LOG_INFO, "pinning host memory: %s of %s", ot_format_size(done_bytes, done),
           ot_format_size(bytes, all));
}

ot_status ot_device_pin(ot_device *device, void *base, uint64_t bytes)
{
    return ot_backend_result(device->ops, device->ops->pin(device, base, bytes, tell_progress));
}

void ot_device_unpin(ot_device *device, void *base)
{
    device->ops->unpin(device, base);
}

ot_status ot_stream_open(ot_device *device, const ot_stream_options *options, ot_stream **out)
{
    return ot_backend_result(device->ops, device->ops->stream_open(device, options, out));
}

void ot_stream_close(ot_stream *stream)
{
    if (stream != NULL)
        stream->device->ops->stream_close(stream);
}

ot_device *ot_stream_device(const ot_stream *stream)
{
    return stream->device;
}

ot_status ot_stream_synchronize(ot_stream *stream)
{
    return ot_backend_result(stream->device->ops, stream->device->ops->stream_synchronize(stream));
}

ot_status ot_device_synchronize(ot_device *device)
{
    return ot_backend_result(device->ops, device->ops->synchronize(device));
}

ot_status ot_device_status(ot_device *device)
{
    return ot_backend_result(device->ops, device->ops->status(device));
}

void ot_copy_h2d(ot_stream *stream, void *device_dst, const void *host_src, size_t bytes)
{
    if (bytes > 0)
        stream->device->ops->copy_h2d(stream, device_dst, host_src, bytes);
}

void ot_copy_d2h(ot_stream *stream, void *host_dst, const void *device_src, size_t bytes)
{
    if (bytes > 0)
        stream->device->ops->copy_d2h(stream, host_dst, device_src, bytes);
}

void ot_copy_d2d(ot_stream *stream, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0)
        stream->device->ops->copy_d2d(stream, dst, src, bytes);
}

void ot_copy_zero(ot_stream *stream, void *dst, size_t bytes)
{
    if (bytes > 0)
        stream->device->ops->copy_zero(stream, dst, bytes);
}

void ot_stream_call(ot_stream *stream, ot_host_function *function, void *context)
{
    stream->device->ops->stream_call(stream, function, context);
}

ot_status ot_event_open(ot_device *device, int timed, ot_event **out)
{
    return ot_backend_result(device->ops, device->ops->event_open(device, timed, out));
}

void ot_event_close(ot_event *event)
{
    if (event != NULL)
        event->device->ops->event_close(event);
}

void ot_event_record(ot_event *event, ot_stream *stream)
{
    OT_ASSERT(event->device == stream->device);
    event->device->ops->event_record(event, stream);
}

void ot_stream_wait(ot_stream *stream, ot_event *event)
{
    OT_ASSERT(event->device == stream->device);
    event->device->ops->stream_wait(stream, event);
}

int ot_event_reached(const ot_event *event)
{
    return event->device->ops->event_reached(event);
}

ot_status ot_event_synchronize(ot_event *event)
{
    return ot_backend_result(event->device->ops, event->device->ops->event_synchronize(event));
}

int64_t ot_event_elapsed_ns(const ot_event *from, const ot_event *to)
{
    return from->device->ops->event_elapsed_ns(from, to);
}
