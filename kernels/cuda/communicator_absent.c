/* Stands for communicator.c where NCCL's header was not there to build with: one rank needs none, several are told. */
#include "kernels/cuda/state.h"

static ot_status absent(void)
{
    return ot_fail(OT_ERR_DEVICE,
                   "several ranks on GPUs need NCCL, which this build is without: install its header "
                   "(libnccl-dev) and build offtrain again, or use --ranks 1");
}

static ot_status absent_name(ot_device *device, char id[OT_COMMUNICATOR_ID_BYTES])
{
    (void)device;
    (void)id;
    return absent();
}

static ot_status absent_open(ot_device *device, const char id[OT_COMMUNICATOR_ID_BYTES], int rank, int size,
                             ot_communicator **out)
{
    (void)device;
    (void)id;
    (void)rank;
    (void)size;
    (void)out;
    return absent();
}

/* Without one to be had, nobody gets to the rest. */
const ot_communicator_ops ot_cuda_communicator = {.name = absent_name, .open = absent_open};
