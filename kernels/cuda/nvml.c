/* The card's memory in use before there is a context, from the driver's management library, which is opened by name
 * because machines without a driver do not have it. */
#include <dlfcn.h>
#include <string.h>

#include "kernels/cuda/state.h"

/* NVML's own types, in the versions that every driver of the last ten years exports. */
typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct nvml_library {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *bus_id, void **card);
    int (*memory)(void *card, nvml_memory *out);
} nvml_library;

/* POSIX gives functions as object pointers; C has no cast for that. */
static int load(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static uint64_t ask(const nvml_library *nvml, const char *bus_id)
{
    void *card;
    nvml_memory memory;
    if (nvml->init() != 0)
        return 0;
    uint64_t used = nvml->find(bus_id, &card) == 0 && nvml->memory(card, &memory) == 0 ? memory.used : 0;
    (void)nvml->shutdown();
    return used;
}

uint64_t ot_cuda_used_bytes(const char *bus_id)
{
    nvml_library nvml;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 0;
    uint64_t used = 0;
    if (load(library, "nvmlInit_v2", &nvml.init) && load(library, "nvmlShutdown", &nvml.shutdown) &&
        load(library, "nvmlDeviceGetHandleByPciBusId_v2", &nvml.find) &&
        load(library, "nvmlDeviceGetMemoryInfo", &nvml.memory))
        used = ask(&nvml, bus_id);
    dlclose(library);
    return used;
}
