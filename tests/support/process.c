/* Child processes, with memory files for their output, which never fill up and block them. */
#include "tests/support/process.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/test.h"

enum { HANGS_AFTER_MS = 120000, LOOK_EVERY_MS = 2 };

static void start(process *p, const char *format, va_list arguments)
{
    char line[2048] = "exec ";
    int n = vsnprintf(line + strlen(line), sizeof line - strlen(line), format, arguments);
    assert_in_range(n, 1, sizeof line - 16);
    p->out = memfd_create("stdout", MFD_CLOEXEC);
    p->err = memfd_create("stderr", MFD_CLOEXEC);
    assert_true(p->out >= 0 && p->err >= 0);
    fflush(NULL); /* or the child would print it too */
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        if (dup2(p->out, STDOUT_FILENO) < 0 || dup2(p->err, STDERR_FILENO) < 0)
            _exit(126);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
}

void process_start(process *p, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    start(p, format, arguments);
    va_end(arguments);
}

int process_runs(const process *p)
{
    siginfo_t info = {0};
    assert_int_equal(waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid == 0;
}

void process_signal(const process *p, int number)
{
    assert_int_equal(kill(p->pid, number), 0);
}

static void read_all(int fd, char *text, size_t size)
{
    ssize_t n = pread(fd, text, size - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    close(fd);
}

void process_wait(process *p, outcome *result)
{
    int status, waited_ms = 0;
    for (; process_runs(p) && waited_ms < HANGS_AFTER_MS; waited_ms += LOOK_EVERY_MS)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_EVERY_MS * 1000000L}, NULL);
    if (waited_ms >= HANGS_AFTER_MS)
        kill(p->pid, SIGKILL);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    p->pid = 0;
    result->code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    read_all(p->out, result->out, sizeof result->out);
    read_all(p->err, result->err, sizeof result->err);
    if (waited_ms >= HANGS_AFTER_MS)
        fail_msg("a process hangs; it said:\n%s%s", result->out, result->err);
}

void process_kill(process *p)
{
    if (p->pid == 0)
        return;
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    p->pid = 0;
    close(p->out);
    close(p->err);
}

int process_run(outcome *result, const char *format, ...)
{
    process p;
    va_list arguments;
    va_start(arguments, format);
    start(&p, format, arguments);
    va_end(arguments);
    process_wait(&p, result);
    return result->code;
}

int count_lines(const char *text)
{
    int lines = 0;
    for (const char *c = text; *c != '\0'; c++)
        lines += *c == '\n' || c[1] == '\0';
    return lines;
}

run_end must_end_well(const outcome *result)
{
    run_end done;
    const char *loss = strstr(result->out, "loss="), *hash = strstr(result->out, "params=");
    if (result->code != 0 || loss == NULL || hash == NULL || sscanf(hash, "params=%31s", done.hash) != 1)
        fail_msg("%d: %s%s", result->code, result->out, result->err);
    done.loss = strtod(loss + 5, NULL);
    return done;
}
