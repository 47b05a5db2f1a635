#include "tools/ranks.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/run_state.h"
#include "io/stop.h"
#include "io/team.h"

/* ---- joining ---- */

ot_status ot_ranks_share_threads(const ot_train_flags *flags, int64_t ranks, int *threads)
{
    ot_team *team;
    *threads = (int)flags->threads;
    if (flags->threads != OT_AUTO_INT)
        return OT_OK;
    OT_TRY(ot_team_open(0, &team));
    int cores = ot_team_count(team);
    ot_team_close(team);
    *threads = cores > ranks ? cores / (int)ranks : 1;
    return OT_OK;
}

/* Whether the launcher has left this process all cores. */
static int has_all_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == sysconf(_SC_NPROCESSORS_ONLN);
}

ot_status ot_ranks_join(ot_train_flags *flags, ot_group **out)
{
    const ot_group_options options = {.timeout_s = flags->rank_timeout};
    int launched = ot_group_launched();
    *out = NULL;
    OT_TRY(ot_group_check_launch());
    if (launched > 0 && launched != flags->ranks)
        return ot_fail(OT_ERR_USAGE, "--ranks %lld, but the launcher has started %d (%s)",
                       (long long)flags->ranks, launched, ot_group_launched_by());
    if (flags->ranks > 1 && has_all_cores()) {
        int threads;
        OT_TRY(ot_ranks_share_threads(flags, ot_group_launched_here(), &threads));
        flags->threads = threads;
    }
    return flags->ranks > 1 ? ot_group_open(&options, out) : OT_OK;
}

ot_status ot_ranks_refuse(const ot_train_flags *flags, const char *command)
{
    const char *variable = ot_group_launched_by();
    if (flags->ranks <= 1)
        return OT_OK;
    if (variable != NULL)
        return ot_fail(OT_ERR_USAGE,
                       "%s=%lld in the environment: offtrain %s runs on one rank; unset it, or start it once "
                       "without a launcher",
                       variable, (long long)flags->ranks, command);
    return ot_fail(OT_ERR_USAGE, "--ranks %lld: offtrain %s runs on one rank", (long long)flags->ranks,
                   command);
}

/* ---- leaving ---- */

/* A failure that another rank tells. */
static ot_status end_quietly(ot_status status)
{
    return ot_fail(status, "%s", "");
}

/* The last failure as this rank has it: its own, with the rank; "" where another one tells it. */
static ot_status name_failure(ot_group *group, ot_status own)
{
    const ot_error failure = ot_error_take();
    int who, rank = ot_group_rank(group);
    if (own == OT_ERR_NUMERIC) /* the numbers are everybody's */
        return rank == 0 ? own : end_quietly(own);
    int code = ot_group_left(group, &who);
    if (code != 0 && getenv(OT_RANKS_LAUNCHED) != NULL)
        return end_quietly((ot_status)code);
    if (code != 0)
        return ot_fail((ot_status)code, "rank %d has failed, and says why", who);
    return ot_group_has_failed(group) ? ot_error_raise(&failure)
                                      : ot_fail(own, "rank %d: %s", rank, failure.text);
}

ot_status ot_ranks_leave(ot_group *group, ot_status own, int agreed)
{
    int is_stop = ot_is_stopped(own), together = own == OT_OK || is_stop || agreed;
    if (group == NULL)
        return own;
    if (is_stop && ot_group_rank(group) > 0)
        own = OT_OK; /* one stop, told once */
    else if (!together)
        own = name_failure(group, own);
    if (own != OT_OK && *ot_error_text() != '\0')
        fprintf(stderr, "offtrain: %s\n", ot_error_text());
    if (together)
        ot_group_close(group);
    else
        ot_group_leave(group, (int)own);
    return own;
}

/* ---- agreeing ---- */

ot_status ot_ranks_agree(ot_group *group, ot_status own)
{
    double codes[OT_RANKS_MAX] = {0};
    const ot_error failure = ot_error_take();
    int first = 0, rank = ot_group_rank(group);
    if (group == NULL || ot_group_has_failed(group))
        return own;
    codes[rank] = own;
    OT_TRY(ot_group_sum(group, "whether all go on", codes, OT_RANKS_MAX));
    while (first < ot_group_size(group) && (int)codes[first] == OT_OK)
        first++;
    if (first == ot_group_size(group))
        return OT_OK;
    if (first != rank)
        return end_quietly((ot_status)codes[first]);
    return rank == 0 ? ot_error_raise(&failure) : ot_fail(own, "rank %d: %s", rank, failure.text);
}

ot_status ot_ranks_share_training(ot_group *group, ot_training *t)
{
    struct {
        uint64_t B, M, budget[OT_TIERS];
        ot_rates rates;
    } choice = {.B = t->B, .M = t->M, .rates = t->rates};
    memcpy(choice.budget, t->budget, sizeof choice.budget);
    OT_TRY(ot_group_broadcast(group, "the choices of the plan", 0, &choice, sizeof choice));
    t->B = choice.B;
    t->M = choice.M;
    t->rates = choice.rates;
    memcpy(t->budget, choice.budget, sizeof choice.budget);
    t->group = group;
    t->rank = ot_group_rank(group);
    return OT_OK;
}

ot_status ot_ranks_compare_settings(ot_group *group, const json_t *settings)
{
    if (group == NULL)
        return OT_OK;
    ot_status status = OT_OK;
    char difference[512], *text = json_dumps(settings, JSON_COMPACT);
    uint64_t bytes = text != NULL ? strlen(text) + 1 : 0;
    OT_TRY_GOTO(ot_group_broadcast(group, "the length of the settings", 0, &bytes, sizeof bytes), out);
    if (ot_group_rank(group) > 0) {
        free(text);
        text = calloc(1, bytes + 1);
    }
    if (text == NULL)
        OT_TRY_GOTO(ot_fail(OT_ERR_INTERNAL, "out of memory for the settings"), out);
    OT_TRY_GOTO(ot_group_broadcast(group, "the settings", 0, text, bytes), out);
    json_t *first = json_loads(text, 0, NULL);
    ot_settings_compare(first, settings, NULL, "of rank 0 is", "and here", difference, sizeof difference);
    if (*difference != '\0')
        status = ot_fail(OT_ERR_USAGE, "%s; all ranks need the same flags and data", difference);
    json_decref(first);
out:
    free(text);
    return status;
}

static ot_status make_folder(const char *in, int rank, ot_rank_folders *out)
{
    char *path;
    if (asprintf(&path, "%s/rank-%d", in, rank) < 0)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the name of a folder");
    out->paths[out->count++] = path;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return ot_fail(OT_ERR_IO, "%s: cannot be made: %s", path, strerror(errno));
    return OT_OK;
}

ot_status ot_ranks_make_folders(ot_group *group, ot_training *training, ot_rank_folders *out)
{
    int rank = ot_group_rank(group);
    *out = (ot_rank_folders){.count = 0};
    if (rank == 0)
        return OT_OK;
    for (size_t i = 0; i < training->directory_count; i++)
        OT_TRY(make_folder(training->directories[i], rank, out));
    training->directories = (const char *const *)out->paths;
    return OT_OK;
}

void ot_ranks_remove_folders(ot_rank_folders *folders)
{
    while (folders->count > 0) {
        char *path = folders->paths[--folders->count];
        (void)rmdir(path);
        free(path);
    }
}

ot_status ot_ranks_stop_check(ot_group *group)
{
    ot_status own = ot_stop_check();
    if (group == NULL)
        return own;
    double asked[2] = {own == OT_STOPPED_INT, own == OT_STOPPED_TERM};
    OT_TRY(ot_group_sum(group, "whether to stop", asked, 2));
    if (asked[0] > 0)
        return ot_fail(OT_STOPPED_INT, "stopped by SIGINT");
    return asked[1] > 0 ? ot_fail(OT_STOPPED_TERM, "stopped by SIGTERM") : OT_OK;
}
