/* Programs that a test starts, watches and ends. What goes wrong with that fails the test. */
#ifndef OT_TESTS_SUPPORT_PROCESS_H
#define OT_TESTS_SUPPORT_PROCESS_H

#include <sys/types.h>

typedef struct process {
    pid_t pid; /* 0: none */
    int out, err;
} process;

typedef struct outcome {
    int code; /* the exit code, or minus the signal that ended it */
    char out[8192], err[8192];
} outcome;

/* Starts the one program that the line names; a shell reads the line and becomes the program, so the pid is
 * its own. */
void process_start(process *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

int process_runs(const process *p);

void process_signal(const process *p, int number);

/* Waits until it has ended. One that has not after two minutes hangs: it is killed, and the test fails. */
void process_wait(process *p, outcome *result);

/* Kills it where it still runs; for teardowns. */
void process_kill(process *p);

/* Start and wait. Returns the code. */
int process_run(outcome *result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What the last line of a run tells, which has ended well. */
typedef struct run_end {
    double loss;
    char hash[32];
} run_end;
run_end must_end_well(const outcome *result);

/* Lines in a text, a last one without its end included. */
int count_lines(const char *text);

#endif
