/* The driver's management library, as far as kernels/cuda/nvml.c asks it: the bytes of a card in use. Of several cards
 * the fakes count the sum. */
#include "tests/fakecuda/fakecuda.h"

typedef struct memory {
    unsigned long long total, free, used;
} memory;

FAKECUDA_EXPORT int nvmlInit_v2(void);
FAKECUDA_EXPORT int nvmlShutdown(void);
FAKECUDA_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **card);
FAKECUDA_EXPORT int nvmlDeviceGetMemoryInfo(void *card, memory *out);

enum { DRIVER_BYTES = 1 << 20 };

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **card)
{
    static char only;
    (void)bus_id;
    *card = &only;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *card, memory *out)
{
    (void)card;
    *out = (memory){.used = fakecuda_count().device_bytes + DRIVER_BYTES};
    return 0;
}
