/* The driver's management library, as far as kernels/cuda/nvml.c asks it: the bytes of a card in use. */
#include <stdlib.h>
#include <string.h>

#include "tests/fakecuda/fakecuda.h"

typedef struct memory {
    unsigned long long total, free, used;
} memory;

FAKECUDA_EXPORT int nvmlInit_v2(void);
FAKECUDA_EXPORT int nvmlShutdown(void);
FAKECUDA_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **card);
FAKECUDA_EXPORT int nvmlDeviceGetMemoryInfo(void *card, memory *out);

enum { DRIVER_BYTES = 1 << 20 };

static char cards[64];

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
    if (strlen(bus_id) < 8)
        return 2;
    *card = &cards[strtol(bus_id + 5, NULL, 16) - 1]; /* 0000:01:00.0 is card 0 */
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *card, memory *out)
{
    *out = (memory){.used = fakecuda_card_bytes((int)((char *)card - cards)) + DRIVER_BYTES};
    return 0;
}
