#include "tools/ranks.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/run_state.h"
#include "io/stop.h"
#include "io/team.h"

/* ---- launching ---- */

int ot_ranks_must_launch(const ot_train_flags *flags)
{
    return flags->ranks > 1 && ot_group_launched() == 0;
}

static volatile sig_atomic_t launched_pid, stops, first_stop;

/* mpirun ends everything at once on the signals that end it, but hands these two on. */
static void hand_on(int number)
{
    if (launched_pid <= 0)
        return;
    if (first_stop == 0)
        first_stop = number;
    kill((pid_t)launched_pid, stops++ > 0 ? SIGTERM : number == SIGINT ? SIGUSR1 : SIGUSR2);
}

static void hand_on_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = hand_on, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i] != SIGHUP || (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN))
            sigaction(signals[i], &action, NULL);
}

/* What one of so many ranks of this machine gets of its cores. */
static ot_status share_threads(const ot_train_flags *flags, int64_t ranks, int64_t *threads)
{
    ot_team *team;
    *threads = flags->threads;
    if (*threads != OT_AUTO_INT)
        return OT_OK;
    OT_TRY(ot_team_open(0, &team));
    *threads = ot_team_count(team) / ranks;
    *threads = *threads > 0 ? *threads : 1;
    ot_team_close(team);
    return OT_OK;
}

/* A group of its own, so that a terminal's signals reach this process alone; and it ends with this process. */
static void become_mpirun(char **words, pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent)
        execvp(words[0], words);
    fprintf(stderr, "offtrain: --ranks: %s cannot be started: %s; it comes with OpenMPI (openmpi-bin)\n",
            words[0], strerror(errno));
    _exit(OT_ERR_DEVICE);
}

/* A rank's own code; mpirun has others of its own, and those of signals. */
static int is_ours(int code)
{
    return code <= OT_ERR_DEVICE || code == OT_STOPPED_INT || code == OT_STOPPED_TERM;
}

static ot_status wait_for(pid_t pid)
{
    int state;
    while (waitpid(pid, &state, 0) < 0)
        if (errno != EINTR)
            return ot_fail(OT_ERR_INTERNAL, "mpirun is gone: %s", strerror(errno));
    int code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    if (code == OT_OK)
        return OT_OK;
    if (is_ours(code) && code != 1)
        return ot_fail((ot_status)code, "the ranks have ended with code %d; why, they say above", code);
    if (first_stop != 0)
        return ot_fail(first_stop == SIGINT ? OT_STOPPED_INT : OT_STOPPED_TERM,
                       "stopped, the ranks were ended");
    if (code > 128)
        return ot_fail(OT_ERR_DEVICE, "a rank, or mpirun, was ended by signal %d (%s)", code - 128,
                       strsignal(code - 128));
    return ot_fail(OT_ERR_DEVICE, "mpirun has ended with code %d; why, it says above", code);
}

ot_status ot_ranks_launch(const ot_train_flags *flags, int argc, char **argv)
{
    enum { OWN_WORDS = 24 };
    char self[PATH_MAX], count[24], cores[24];
    int64_t threads;
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return ot_fail(OT_ERR_INTERNAL, "--ranks: /proc does not say which program this is");
    self[length] = '\0';
    OT_TRY(share_threads(flags, flags->ranks, &threads));
    snprintf(count, sizeof count, "%lld", (long long)flags->ranks);
    snprintf(cores, sizeof cores, "%lld", (long long)threads);
    char *own[OWN_WORDS] = {"mpirun",
                            "--oversubscribe",
                            "--bind-to",
                            "none",
                            "--mca",
                            "odls_base_sigkill_timeout",
                            "3",
                            "--mca",
                            "orte_abort_on_non_zero_status",
                            "1",
                            "-n",
                            count};
    char **words = calloc((size_t)argc + OWN_WORDS, sizeof *words);
    if (words == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the arguments");
    size_t n = 0;
    for (; own[n] != NULL; n++)
        words[n] = own[n];
    if (geteuid() == 0)
        words[n++] = "--allow-run-as-root";
    words[n++] = self;
    words[n++] = "train";
    for (int i = 0; i < argc; i++)
        words[n++] = argv[i];
    words[n++] = "--threads";
    words[n++] = cores;
    hand_on_signals();
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become_mpirun(words, parent);
    launched_pid = pid;
    free(words);
    return pid > 0 ? wait_for(pid) : ot_fail(OT_ERR_INTERNAL, "fork: %s", strerror(errno));
}

/* ---- joining ---- */

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
        return ot_fail(OT_ERR_USAGE, "--ranks %lld, but the launcher has started %d", (long long)flags->ranks,
                       launched);
    if (flags->ranks > 1 && has_all_cores())
        OT_TRY(share_threads(flags, ot_group_launched_here(), &flags->threads));
    return flags->ranks > 1 ? ot_group_open(&options, out) : OT_OK;
}

ot_status ot_ranks_refuse(const ot_train_flags *flags, const char *command)
{
    if (flags->ranks <= 1)
        return OT_OK;
    return ot_fail(OT_ERR_USAGE, "--ranks %lld: offtrain %s runs on one rank", (long long)flags->ranks,
                   command);
}

/* ---- agreeing ---- */

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
