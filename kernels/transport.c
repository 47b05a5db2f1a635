/* Finds what carries the ranks' parcels. */
#include "kernels/transport.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/collective.h"
#include "kernels/plugin.h"

int ot_group_launched(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *text = getenv(sizes[i]);
        if (text != NULL && atoi(text) > 0)
            return atoi(text);
    }
    return 0;
}

int ot_group_launched_local(void)
{
    static const char *const numbers[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID",
                                          "LOCAL_RANK"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *text = getenv(numbers[i]);
        if (text != NULL)
            return atoi(text);
    }
    return 0;
}

static const char plugin_name[] = "libofftrain_mpi.so";

ot_status ot_transport_open_mpi(ot_transport **out)
{
    char error[OT_TRANSPORT_TEXT_BYTES] = "it is of another version of offtrain; build both again";
    ot_transport_entry *entry = NULL;
    /* MPI's own plugins look for its symbols among the global ones. */
    void *library = ot_plugin_open(plugin_name, "OFFTRAIN_MPI_PLUGIN", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        const char *reason = dlerror();
        return ot_fail(OT_ERR_DEVICE, "several ranks need MPI: %s",
                       reason != NULL ? reason : "libofftrain_mpi.so is not beside the program");
    }
    void *symbol = dlsym(library, OT_TRANSPORT_SYMBOL);
    memcpy(&entry, &symbol, sizeof entry); /* C has no cast for it */
    *out = entry != NULL ? entry(OT_TRANSPORT_VERSION, error) : NULL;
    return *out != NULL ? OT_OK : ot_fail(OT_ERR_DEVICE, "%s: %s", plugin_name, error);
}
