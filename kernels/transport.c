/* Finds out what has started the ranks, and so what carries their parcels. */
#include "kernels/transport.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/collective.h"
#include "kernels/plugin.h"

/* ---- the launcher ---- */

/* A number of the environment, or -1. */
static int number(const char *name)
{
    const char *text = getenv(name);
    char *end;
    long value = text != NULL && *text != '\0' ? strtol(text, &end, 10) : -1;
    return value >= 0 && value <= 1 << 20 && *end == '\0' ? (int)value : -1;
}

/* Of srun's "2(x3),1", tasks node by node, the first. */
static int first_of_list(const char *name)
{
    const char *text = getenv(name);
    int value = text != NULL ? atoi(text) : 0;
    return value > 0 ? value : 0;
}

/* Of the names, up to NULL, the first that is there, above 0; and which it is. */
static int first_number(const char *const names[], const char **name)
{
    for (size_t i = 0; names[i] != NULL; i++)
        if (number(names[i]) > 0) {
            *name = names[i];
            return number(names[i]);
        }
    return 0;
}

/* torchrun's own store has the port that it names. */
static uint32_t meeting_port(int port)
{
    const char *taken = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (taken == NULL || strcmp(taken, "True") != 0)
        return (uint32_t)port;
    return (uint32_t)(port < 65535 ? port + 1 : port - 1);
}

/* Ranks that MPI knows nothing of. */
static int is_in_environment(ot_world *world)
{
    static const char *const sizes[] = {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};
    static const char *const ranks[] = {"RANK", "SLURM_PROCID"};
    int port = number("MASTER_PORT");
    const char *host = getenv("MASTER_ADDR");
    for (size_t i = 0; host != NULL && *host != '\0' && port > 0 && port <= 65535 && i < 2; i++) {
        int size = number(sizes[i]), rank = number(ranks[i]);
        if (size < 1 || rank < 0 || rank >= size)
            continue;
        *world = (ot_world){
            .size = size, .named_by = sizes[i], .rank = rank, .host = host, .port = meeting_port(port)};
        return 1;
    }
    return 0;
}

void ot_world_find(ot_world *world)
{
    static const char *const by_mpi[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    static const char *const by_srun[] = {"SLURM_STEP_NUM_TASKS", NULL};
    static const char *const here[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE",
                                       NULL};
    const char *ignored;
    *world = (ot_world){.size = 0};
    world->size = first_number(by_mpi, &world->named_by);
    if (world->size == 0 && !is_in_environment(world))
        world->size = first_number(by_srun, &world->named_by);
    if (world->size == 0)
        return;
    world->here = first_number(here, &ignored);
    if (world->here == 0)
        world->here = first_of_list("SLURM_STEP_TASKS_PER_NODE");
    if (world->here == 0 || world->here > world->size)
        world->here = world->size;
}

ot_status ot_group_check_launch(void)
{
    const char *size = getenv("WORLD_SIZE"), *host = getenv("MASTER_ADDR");
    int count = number("WORLD_SIZE"), rank = number("RANK"), port = number("MASTER_PORT");
    if (size == NULL || number("OMPI_COMM_WORLD_SIZE") > 0 || number("PMI_SIZE") > 0 || count == 1)
        return OT_OK;
    if (count < 1 || count > OT_RANKS_MAX)
        return ot_fail(OT_ERR_USAGE, "WORLD_SIZE=%s: expected 1 to %d; unset it, or let the launcher set it",
                       size, OT_RANKS_MAX);
    const char *text = getenv("RANK");
    if (text != NULL && (rank < 0 || rank >= count))
        return ot_fail(OT_ERR_USAGE, "RANK=%s with WORLD_SIZE=%d: expected 0 to %d", text, count, count - 1);
    if (text == NULL && number("SLURM_PROCID") < 0)
        return ot_fail(OT_ERR_USAGE, "WORLD_SIZE=%d, but no RANK: set it for each process, or unset both",
                       count);
    if (host == NULL || *host == '\0' || port < 1 || port > 65535)
        return ot_fail(
            OT_ERR_USAGE,
            "WORLD_SIZE=%d, but no MASTER_ADDR and MASTER_PORT of 1 to 65535, where the ranks meet; "
            "set both, or unset WORLD_SIZE",
            count);
    return OT_OK;
}

int ot_group_launched(void)
{
    ot_world world;
    ot_world_find(&world);
    return world.size;
}

const char *ot_group_launched_by(void)
{
    ot_world world;
    ot_world_find(&world);
    return world.named_by;
}

int ot_group_launched_here(void)
{
    ot_world world;
    ot_world_find(&world);
    return world.here;
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

/* ---- MPI ---- */

static const char plugin_name[] = "libofftrain_mpi.so";

static ot_status open_mpi(ot_transport **out)
{
    char error[OT_TRANSPORT_TEXT_BYTES] = "it is of another version of offtrain; build both again";
    ot_transport_entry *entry = NULL;
    /* MPI's own plugins look for its symbols among the global ones. */
    void *library = ot_plugin_open(plugin_name, "OFFTRAIN_MPI_PLUGIN", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        const char *reason = dlerror();
        return reason != NULL ? ot_fail(OT_ERR_DEVICE, "several ranks need MPI: %s", reason)
                              : ot_fail(OT_ERR_DEVICE,
                                        "several ranks need MPI: %s is not beside the program or in ../lib; "
                                        "build offtrain again, or name it in OFFTRAIN_MPI_PLUGIN",
                                        plugin_name);
    }
    void *symbol = dlsym(library, OT_TRANSPORT_SYMBOL);
    memcpy(&entry, &symbol, sizeof entry); /* C has no cast for it */
    *out = entry != NULL ? entry(OT_TRANSPORT_VERSION, error) : NULL;
    return *out != NULL ? OT_OK : ot_fail(OT_ERR_DEVICE, "%s: %s", plugin_name, error);
}

/* ---- either ---- */

ot_status ot_transport_join(double timeout_s, ot_transport **out)
{
    ot_world world;
    ot_world_find(&world);
    if (world.host != NULL)
        return ot_transport_open_tcp(&world, timeout_s, out);
    OT_TRY(open_mpi(out));
    if (world.size == 0 || (*out)->size == world.size)
        return OT_OK;
    int found = (*out)->size;
    (*out)->close(*out);
    *out = NULL;
    return ot_fail(
        OT_ERR_DEVICE,
        "the launcher has started %d ranks, of which MPI finds %d; with srun either --mpi=pmix, or "
        "export MASTER_ADDR (the first host) and MASTER_PORT (a free port there)",
        world.size, found);
}
