/* The two signal handlers. */
#include "io/stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

/* A handler can reach nothing but a global; lock-free, so that it is safe in one. */
static atomic_int stop_signal;

static void on_signal(int number)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&stop_signal, &none, number) && number != SIGUSR1 &&
        number != SIGUSR2)
        _exit(128 + number);
}

void ot_stop_install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* ignored: nohup */
        sigaction(SIGHUP, &action, NULL);
    /* A reader that is gone and a file size limit become errors of the write. */
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
}

ot_status ot_stop_check(void)
{
    switch (atomic_load_explicit(&stop_signal, memory_order_relaxed)) {
    case 0:
        return OT_OK;
    case SIGINT:
    case SIGUSR1:
        return ot_fail(OT_STOPPED_INT, "stopped by SIGINT");
    case SIGHUP:
        return ot_fail(OT_STOPPED_TERM, "stopped by SIGHUP, the end of the terminal");
    default:
        return ot_fail(OT_STOPPED_TERM, "stopped by SIGTERM");
    }
}
