/* What a device implements: one versioned table of functions behind device.h. For implementations only.
 *
 * An implementation's device, stream and event begin with the structs below. Arguments have been checked when
 * they arrive here; each function does what the function of the same name in device.h says. A loaded
 * implementation exports one function, OT_BACKEND_SYMBOL of type ot_backend_entry. Common subset of C and
 * C++. */
#ifndef OT_KERNELS_BACKEND_H
#define OT_KERNELS_BACKEND_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One more for every change of this table, of device.h's structs or of kernels.h. */
enum { OT_BACKEND_VERSION = 4 };

/* Told after each piece of host memory that has been pinned. */
typedef void ot_pin_progress(uint64_t done_bytes, uint64_t bytes);

/* This rank's end of what joins the devices of several ranks. */
typedef struct ot_communicator ot_communicator;
enum { OT_COMMUNICATOR_ID_BYTES = 128 };

/* How the devices of several ranks work together (collective.h). Nothing here waits for a peer, but for the close. */
typedef struct ot_communicator_ops {
    /* A name for a communicator: one rank makes it, and all open it. */
    ot_status (*name)(ot_device *device, char id[OT_COMMUNICATOR_ID_BYTES]);

    /* Begins to join the others; it is done when the communicator is not busy any more. */
    ot_status (*open)(ot_device *device, const char id[OT_COMMUNICATOR_ID_BYTES], int rank, int size,
                      ot_communicator **out);

    /* Whether the last call is still being set up: until then no other is made, and nothing enqueued on its stream. Fails
     * where a peer, the way to it, or this rank has failed. Any thread. */
    ot_status (*poll)(ot_communicator *communicator, int *busy);

    /* Counts the memory that the communicator has taken by now into the device's own. OT_ERR_FIT where the cap does not
     * hold it. */
    ot_status (*measure)(ot_communicator *communicator);

    /* Ends what is under way, and waits until it has; later calls fail. Any thread. */
    void (*abort)(ot_communicator *communicator);

    /* When nothing of it is under way; after an abort too. */
    void (*close)(ot_communicator *communicator);

    /* As ot_group_gather and ot_group_scatter; they are busy at first. */
    ot_status (*gather)(ot_communicator *communicator, ot_stream *stream, void *base, size_t shard_bytes);
    ot_status (*scatter)(ot_communicator *communicator, ot_stream *stream, float *base, size_t shard);
} ot_communicator_ops;

typedef struct ot_device_ops {
    uint32_t version; /* OT_BACKEND_VERSION */
    const char *kind;

    /* The calling thread's last failure inside the implementation; NULL where it shares the program's
     * ot_fail. A loaded implementation brings its own copy of io/status.c, whose text is handed over here. */
    ot_error (*error)(void);

    ot_status (*open)(const ot_device_options *options, ot_device **out);
    void (*close)(ot_device *device);
    void (*query)(const ot_device *device, ot_device_info *out);

    ot_status (*arena_open)(ot_device *device, const char *name, uint64_t bytes, void **base);
    void (*arena_close)(ot_device *device, void *base);
    uint64_t (*bytes)(const ot_device *device);
    uint64_t (*peak_bytes)(const ot_device *device);
    ot_status (*pin)(ot_device *device, void *base, uint64_t bytes, ot_pin_progress *progress);
    void (*unpin)(ot_device *device, void *base);

    ot_status (*stream_open)(ot_device *device, const ot_stream_options *options, ot_stream **out);
    void (*stream_close)(ot_stream *stream);
    ot_status (*stream_synchronize)(ot_stream *stream);
    ot_status (*synchronize)(ot_device *device);
    ot_status (*status)(ot_device *device);

    void (*copy_h2d)(ot_stream *stream, void *dst, const void *src, size_t bytes);
    void (*copy_d2h)(ot_stream *stream, void *dst, const void *src, size_t bytes);
    void (*copy_d2d)(ot_stream *stream, void *dst, const void *src, size_t bytes);
    void (*copy_zero)(ot_stream *stream, void *dst, size_t bytes);
    void (*stream_call)(ot_stream *stream, ot_host_function *function, void *context);

    ot_status (*event_open)(ot_device *device, int timed, ot_event **out);
    void (*event_close)(ot_event *event);
    void (*event_record)(ot_event *event, ot_stream *stream);
    void (*stream_wait)(ot_stream *stream, ot_event *event);
    int (*event_reached)(const ot_event *event);
    ot_status (*event_synchronize)(ot_event *event);
    int64_t (*event_elapsed_ns)(const ot_event *from, const ot_event *to);

    /* ---- Several ranks. All NULL where kernels take host memory, over which the ranks' transport goes. ---- */

    const ot_communicator_ops *communicator;

    /* Counts at least so many bytes as the device's own. OT_ERR_FIT where the cap does not hold them. */
    ot_status (*reserve)(ot_device *device, uint64_t own_bytes);

    /* The calling thread's last failure, in the program, sticks to the device. */
    void (*fail)(ot_device *device);
} ot_device_ops;

struct ot_device {
    const ot_device_ops *ops;
    const ot_kernels *kernels;
};

struct ot_stream {
    ot_device *device;
};

struct ot_event {
    ot_device *device;
};

/* The table, or NULL where the implementation does not have `version`. `program_error` gives the calling thread's last
 * failure in the program, whose host functions fail there. */
typedef const ot_device_ops *ot_backend_entry(uint32_t version, ot_error (*program_error)(void));
#define OT_BACKEND_SYMBOL "ot_backend"

/* What an entry returned. A failure inside a loaded implementation has its text there: it is raised again here. */
ot_status ot_backend_result(const ot_device_ops *ops, ot_status status) OT_MUST_CHECK;

/* The CPU device. */
const ot_device_ops *ot_cpu_backend(void);

#ifdef __cplusplus
}
#endif
#endif
