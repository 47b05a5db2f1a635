/* Collective operations on a stream: of a device with host memory as host functions, of another by the device itself. */
#include "kernels/group.h"

/* A host function. */
static ot_status run_call(void *context, ot_status before)
{
    const ot_group_call *c = context;
    ot_group *group = c->group;
    ot_status status = OT_OK;
    if (before == OT_OK)
        status = c->verb == OT_VERB_GATHER ? ot_group_gather_now(group, c->what, c->base, c->shard)
                                           : ot_group_scatter_now(group, c->what, c->base, c->shard);
    pthread_mutex_lock(&group->lock);
    group->run++;
    pthread_cond_signal(&group->ended);
    pthread_mutex_unlock(&group->lock);
    return status;
}

static void enqueue(ot_group *group, ot_stream *stream, ot_group_call given)
{
    pthread_mutex_lock(&group->lock);
    while (group->enqueued - group->run == OT_GROUP_CALLS_MAX)
        pthread_cond_wait(&group->ended, &group->lock);
    ot_group_call *c = &group->calls[group->enqueued++ % OT_GROUP_CALLS_MAX];
    pthread_mutex_unlock(&group->lock);
    *c = given;
    ot_stream_call(stream, run_call, c);
}

void ot_group_gather(ot_group *group, ot_stream *stream, const char *what, void *base, size_t shard_bytes)
{
    if (group == NULL || shard_bytes == 0)
        return;
    if (stream->device->ops->communicator != NULL)
        ot_attachment_gather(group->attachment, stream, what, base, shard_bytes);
    else
        enqueue(group, stream, (ot_group_call){group, OT_VERB_GATHER, what, base, shard_bytes});
}

void ot_group_scatter(ot_group *group, ot_stream *stream, const char *what, float *base, size_t shard)
{
    if (group == NULL || shard == 0)
        return;
    if (stream->device->ops->communicator != NULL)
        ot_attachment_scatter(group->attachment, stream, what, base, shard);
    else
        enqueue(group, stream, (ot_group_call){group, OT_VERB_SCATTER, what, base, shard});
}
