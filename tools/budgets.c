/* What this machine has: RAM, device memory, room on its drives. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/log.h"
#include "io/text.h"
#include "tools/job.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t without(uint64_t bytes, uint64_t part)
{
    return bytes > part ? bytes - part : 0;
}

/* RAM for everything that is no arena: code, stacks, scratch of the matrix products, the allocator's. */
static uint64_t usable_memory(uint64_t bytes)
{
    return without(bytes, (UINT64_C(256) << 20) + bytes / 32);
}

uint64_t ot_job_machine_bytes(const ot_job *job, ot_tier tier, uint64_t bytes)
{
    return tier == OT_TIER_DEVICE ? bytes : bytes * job->local_ranks;
}

static ot_status find_memory(ot_job *job)
{
    const ot_train_flags *flags = job->flags;
    ot_limits *limits = &job->limits;
    OT_TRY(ot_memory_budget_read("", &job->memory));
    uint64_t ranks = job->local_ranks, memory = usable_memory(job->memory.bytes) / ranks;
    uint64_t host_mem = flags->host_mem / ranks;
    /* What another machine has is for the flag to say. */
    if (job->card != NULL)
        limits->host = flags->host_mem != OT_AUTO_SIZE ? host_mem : memory;
    else
        limits->host = flags->host_mem != OT_AUTO_SIZE ? smaller(host_mem, memory) : memory;
    limits->memory = job->shared ? memory : UINT64_MAX;
    if (job->shared)
        limits->device = memory;
    if (flags->gpu_mem != OT_AUTO_SIZE)
        limits->device = job->card != NULL ? flags->gpu_mem : smaller(flags->gpu_mem, limits->device);
    return OT_OK;
}

/* The folder itself, or the nearest one above it that exists. */
static void existing_folder(const char *path, char out[PATH_MAX])
{
    struct stat facts;
    snprintf(out, PATH_MAX, "%s", path);
    while (stat(out, &facts) != 0) {
        char *slash = strrchr(out, '/');
        if (slash == NULL) {
            snprintf(out, PATH_MAX, ".");
            return;
        }
        *(slash == out ? slash + 1 : slash) = '\0';
    }
}

/* Some room is left to everything else on the drive. */
static uint64_t usable_room(const ot_dir_info *info)
{
    return without(info->free_bytes, (UINT64_C(1) << 30) + info->free_bytes / 64);
}

static ot_status find_given_drives(ot_job *job)
{
    const ot_option_list *folders = &job->flags->nvme;
    uint64_t devices[OT_OPTION_LIST_MAX];
    if (folders->count > OT_STORE_DIRECTORIES_MAX)
        return ot_fail(OT_ERR_USAGE, "--nvme: %zu folders; at most %d are used", folders->count,
                       OT_STORE_DIRECTORIES_MAX);
    for (size_t i = 0; i < folders->count; i++) {
        ot_dir_info info;
        OT_TRY(ot_dir_probe(folders->items[i], &info));
        if (info.is_ram)
            return ot_fail(OT_ERR_USAGE,
                           "--nvme %s: %s lies in memory and saves none; give a folder on an SSD",
                           folders->items[i], info.filesystem);
        for (size_t k = 0; k < i; k++)
            if (ot_dir_same(folders->items[k], folders->items[i]))
                return ot_fail(OT_ERR_USAGE, "--nvme: %s is given twice; give each directory once",
                               folders->items[i]);
        devices[i] = info.device;
        size_t j = 0;
        while (devices[j] != devices[i])
            j++;
        if (j < i)
            continue;
        job->drives++;
        job->limits.nvme += usable_room(&info);
    }
    job->training.directories = folders->items;
    job->training.directory_count = folders->count;
    return OT_OK;
}

/* Without --nvme the run's own folder takes what memory does not hold, if it lies on a drive. */
static void find_own_drive(ot_job *job)
{
    char folder[PATH_MAX];
    ot_dir_info info;
    existing_folder(job->flags->output_dir, folder);
    if (ot_dir_probe(folder, &info) != OT_OK || info.is_ram || info.is_network)
        return;
    job->drives = 1;
    job->limits.nvme = usable_room(&info);
}

ot_status ot_job_find_limits(ot_job *job)
{
    OT_TRY(find_memory(job));
    if (job->flags->nvme.count > 0)
        OT_TRY(find_given_drives(job));
    else
        find_own_drive(job);
    job->limits.nvme /= job->local_ranks;
    return OT_OK;
}
