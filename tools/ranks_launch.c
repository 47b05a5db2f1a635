/* `--ranks N`: this program once a rank, under mpirun. What the user sees and sends passes through here: mpirun ends a run when its
 * output is closed, has texts of its own for every failure, and loses a signal that comes before its ranks do. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/clock.h"
#include "io/stop.h"
#include "tools/ranks.h"
#include "tools/scratch.h"

int ot_ranks_must_launch(const ot_train_flags *flags)
{
    return flags->ranks > 1 && ot_group_launched() == 0;
}

/* ---- stopping ---- */

static volatile sig_atomic_t stops, first_stop; /* what a handler can reach */

static void on_stop(int number)
{
    if (first_stop == 0)
        first_stop = number;
    stops++;
}

/* Without SA_RESTART: a write to a reader that sleeps is interrupted. */
static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_stop}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i] != SIGHUP || (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN))
            sigaction(signals[i], &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
}

/* ---- the run ---- */

typedef struct launch {
    pid_t pid;        /* of mpirun */
    int over;         /* it has ended */
    int out, err;     /* the reading ends of its streams; -1: closed */
    int64_t ended_ns; /* when a second signal has come; 0: none has */
    int unwritten;    /* nobody reads what the ranks print */
} launch;

/* A group of its own, so that a terminal's signals reach this process alone; and it ends with this process. The signals of
 * hand_on must not end it before it is ready for them. */
static void become_mpirun(char **words, pid_t parent, int out, int err)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    setenv(OT_RANKS_LAUNCHED, "1", 1);
    if (dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0 && getppid() == parent)
        execvp(words[0], words);
    fprintf(stderr, "offtrain: --ranks: %s cannot be started: %s; it comes with OpenMPI (openmpi-bin)\n",
            words[0], strerror(errno));
    _exit(OT_ERR_DEVICE);
}

static ot_status start(char **words, launch *l)
{
    int out[2], err[2];
    pid_t parent = getpid();
    *l = (launch){.out = -1, .err = -1};
    if (pipe2(out, O_CLOEXEC) != 0)
        return ot_fail(OT_ERR_INTERNAL, "--ranks: a pipe: %s", strerror(errno));
    l->out = out[0];
    if (pipe2(err, O_CLOEXEC) == 0) {
        l->err = err[0];
        l->pid = fork();
        if (l->pid == 0)
            become_mpirun(words, parent, out[1], err[1]);
        close(err[1]);
    }
    int error = errno;
    close(out[1]);
    return l->pid > 0 ? OT_OK : ot_fail(OT_ERR_INTERNAL, "--ranks: fork: %s", strerror(error));
}

/* mpirun ends everything at once on the signals that end it, but gives these two to its ranks, for which any number of them is
 * one request: they are sent until all have ended, since those that come early are lost. Ranks without an mpirun end, too. */
static void hand_on(launch *l)
{
    const int64_t patience_ns = 2000000000;
    if (l->over)
        return;
    if (stops == 1)
        kill(l->pid, first_stop == SIGINT ? SIGUSR1 : SIGUSR2);
    else if (stops > 1 && l->ended_ns == 0) {
        kill(l->pid, SIGTERM);
        l->ended_ns = ot_clock_ns();
    } else if (stops > 1 && ot_clock_ns() - l->ended_ns > patience_ns)
        kill(l->pid, SIGKILL);
}

/* A reader that is gone ends no training: the rest goes nowhere. */
static int write_all(launch *l, int fd, const char *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t written = write(fd, data + at, bytes - at);
        if (written > 0)
            at += (size_t)written;
        else if (written < 0 && errno != EINTR)
            return -1;
        hand_on(l);
    }
    return 0;
}

/* Passes on what has come. */
static void relay(launch *l, int *from, int to)
{
    char data[1 << 14];
    ssize_t bytes = read(*from, data, sizeof data);
    if (bytes > 0) {
        if (write_all(l, to, data, (size_t)bytes) != 0 && to == STDOUT_FILENO)
            l->unwritten = 1;
    } else if (bytes == 0 || errno != EINTR) {
        close(*from);
        *from = -1;
    }
}

/* Until mpirun has ended; returns how. What a dead one has printed is there, and what others could add is not waited for. */
static int watch(launch *l)
{
    enum { LOOK_MS = 100, END_MS = 5 };
    int state = 0;
    for (;;) {
        struct pollfd ends[2] = {{.fd = l->out, .events = POLLIN}, {.fd = l->err, .events = POLLIN}};
        int is_silent = l->out < 0 && l->err < 0;
        hand_on(l);
        int ready = poll(ends, 2, l->over ? 0 : is_silent ? END_MS : LOOK_MS);
        if (ready > 0 && ends[0].revents != 0)
            relay(l, &l->out, STDOUT_FILENO);
        if (ready > 0 && ends[1].revents != 0)
            relay(l, &l->err, STDERR_FILENO);
        if (ready > 0)
            continue;
        if (l->over)
            return state;
        l->over = waitpid(l->pid, &state, WNOHANG) == l->pid;
    }
}

/* A rank's own code; mpirun has others of its own, and those of signals. */
static int is_ours(int code)
{
    return (code > OT_ERR_INTERNAL && code <= OT_ERR_DEVICE) || ot_is_stopped((ot_status)code);
}

static ot_status judge(const launch *l, int state)
{
    int code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    if (code == OT_OK)
        return l->unwritten ? ot_fail(OT_ERR_IO, "cannot write the output") : OT_OK;
    if (first_stop != 0 && (l->ended_ns != 0 || !is_ours(code)))
        return ot_fail(first_stop == SIGINT ? OT_STOPPED_INT : OT_STOPPED_TERM,
                       "stopped, the ranks were ended");
    if (is_ours(code))
        return ot_fail((ot_status)code, "%s", ""); /* which the ranks have told */
    if (code > 128 && code < 128 + NSIG)
        return ot_fail(OT_ERR_DEVICE, "a rank, or mpirun, was ended by signal %d (%s)", code - 128,
                       strsignal(code - 128));
    return ot_fail(
        OT_ERR_DEVICE,
        "a rank, or mpirun, has ended with code %d; where nothing above says why, mpirun -n 2 hostname may",
        code);
}

/* ---- the command ---- */

enum { OWN_WORDS = 40 };

typedef struct command {
    char self[PATH_MAX], count[24], cores[24];
    char **words;
} command;

/* On this machine alone, which needs no ssh; quietly, the ranks tell what goes wrong; and the ranks that are left when one has
 * gone get a second to go, too. */
static ot_status write_command(const ot_train_flags *flags, int argc, char **argv, char *scratch,
                               command *out)
{
    int threads;
    ssize_t length = readlink("/proc/self/exe", out->self, sizeof out->self - 1);
    if (length <= 0)
        return ot_fail(OT_ERR_INTERNAL, "--ranks: /proc does not say which program this is");
    out->self[length] = '\0';
    OT_TRY(ot_ranks_share_threads(flags, flags->ranks, &threads));
    snprintf(out->count, sizeof out->count, "%lld", (long long)flags->ranks);
    snprintf(out->cores, sizeof out->cores, "%d", threads);
    char *own[OWN_WORDS] = {"mpirun",
                            "--quiet",
                            "--oversubscribe",
                            "--bind-to",
                            "none",
                            "--mca",
                            "plm",
                            "isolated",
                            "--mca",
                            "odls_base_sigkill_timeout",
                            "1",
                            "--mca",
                            "orte_abort_on_non_zero_status",
                            "1",
                            "-n",
                            out->count};
    char *places[] = {"--mca", "orte_tmpdir_base", scratch, "--mca", "btl_vader_backing_directory", scratch};
    out->words = calloc((size_t)argc + OWN_WORDS, sizeof *out->words);
    if (out->words == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the arguments");
    size_t n = 0;
    for (; own[n] != NULL; n++)
        out->words[n] = own[n];
    for (size_t i = 0; *scratch != '\0' && i < sizeof places / sizeof *places; i++)
        out->words[n++] = places[i];
    if (geteuid() == 0)
        out->words[n++] = "--allow-run-as-root";
    out->words[n++] = out->self;
    out->words[n++] = "train";
    for (int i = 0; i < argc; i++)
        out->words[n++] = argv[i];
    out->words[n++] = "--threads";
    out->words[n++] = out->cores;
    return OT_OK;
}

ot_status ot_ranks_launch(const ot_train_flags *flags, int argc, char **argv)
{
    command c = {.words = NULL};
    launch l;
    ot_scratch scratch;
    catch_signals();
    ot_scratch_open(&scratch);
    ot_status status = write_command(flags, argc, argv, scratch.path, &c);
    if (status == OT_OK)
        status = start(c.words, &l);
    if (status == OT_OK)
        status = judge(&l, watch(&l));
    ot_scratch_close(&scratch);
    free(c.words);
    return status;
}
