/* Finds what carries the ranks' parcels. */
#include "kernels/transport.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/collective.h"

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

static const char plugin_name[] = "libofftrain_mpi.so";

/* Beside the program, or where it was installed. It stays open until the program ends. MPI's own plugins look for its
 * symbols among the global ones. */
static void *open_plugin(void)
{
    const int flags = RTLD_NOW | RTLD_GLOBAL;
    static const char *const folders[] = {"", "../lib/"};
    char folder[PATH_MAX], path[PATH_MAX + 64];
    const char *named = getenv("OFFTRAIN_MPI_PLUGIN");
    if (named != NULL)
        return dlopen(named, flags);
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    folder[slash != NULL ? slash + 1 - folder : 0] = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s%s%s", folder, folders[i], plugin_name);
        if (access(path, F_OK) == 0)
            return dlopen(path, flags);
    }
    return NULL;
}

ot_status ot_transport_open_mpi(ot_transport **out)
{
    char error[OT_TRANSPORT_TEXT_BYTES] = "it is of another version of offtrain; build both again";
    ot_transport_entry *entry = NULL;
    (void)dlerror();
    void *library = open_plugin();
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
