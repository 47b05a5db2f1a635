/* Status codes and error text.
 *
 * Every fallible function returns an ot_status. The code tells the kind of failure and is the exit code of
 * the process that gives up on it; the text, which names the object, what was found, what was expected and
 * what to do, is kept per thread until the next failure of that thread. Libraries never print and never exit.
 */
#ifndef OT_IO_STATUS_H
#define OT_IO_STATUS_H

#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ot_status {
    OT_OK = 0,
    OT_ERR_INTERNAL = 1,   /* a bug of ours, or out of memory for a small object */
    OT_ERR_USAGE = 2,      /* a flag or a configuration value */
    OT_ERR_FIT = 3,        /* the plan does not fit into the budgets */
    OT_ERR_DATA = 4,       /* training data */
    OT_ERR_FORMAT = 5,     /* model, tokenizer or checkpoint file */
    OT_ERR_IO = 6,         /* no space, read or write error, checksum */
    OT_ERR_NUMERIC = 7,    /* loss or gradient not finite */
    OT_ERR_DEVICE = 8,     /* device or collective */
    OT_STOPPED_INT = 130,  /* stopped by SIGINT after a clean end */
    OT_STOPPED_TERM = 143, /* stopped by SIGTERM after a clean end */
} ot_status;

#define OT_MUST_CHECK __attribute__((warn_unused_result))

enum { OT_ERROR_TEXT_BYTES = 1024 };

/* A failure that has been taken off the thread it happened on, to be raised again on another. */
typedef struct ot_error {
    ot_status status;
    int line;
    const char *file; /* a string literal */
    char text[OT_ERROR_TEXT_BYTES];
} ot_error;

/* Records a failure of the calling thread and returns `status`. The text may quote ot_error_text(): what
 * stands there is read before it is replaced. Longer texts are cut at OT_ERROR_TEXT_BYTES. */
#define ot_fail(status, ...) ot_fail_at((status), __FILE__, __LINE__, __VA_ARGS__)
ot_status ot_fail_at(ot_status status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5))) OT_MUST_CHECK;

/* The text of the calling thread's last failure; valid until its next one. "" before the first. */
const char *ot_error_text(void);

/* The last failure of the calling thread, by value: hand it to another thread, which raises it with
 * ot_error_raise. Without a failure its status is OT_OK. */
ot_error ot_error_take(void);
ot_status ot_error_raise(const ot_error *error) OT_MUST_CHECK;

/* The only two macros of the project that hide control flow. */
#define OT_TRY(expression)                                                                                   \
    do {                                                                                                     \
        ot_status ot_try_status_ = (expression);                                                             \
        if (ot_try_status_ != OT_OK)                                                                         \
            return ot_try_status_;                                                                           \
    } while (0)

/* For functions that clean up: needs a local `ot_status status` and jumps to `label` with the failure in it.
 */
#define OT_TRY_GOTO(expression, label)                                                                       \
    do {                                                                                                     \
        status = (expression);                                                                               \
        if (status != OT_OK)                                                                                 \
            goto label;                                                                                      \
    } while (0)

/* For our own bugs only, never for input or I/O; always on, and `condition` must be free of side effects. */
#define OT_ASSERT(condition)                                                                                 \
    do {                                                                                                     \
        if (__builtin_expect(!(condition), 0))                                                               \
            ot_assert_fail(__FILE__, __LINE__, #condition);                                                  \
    } while (0)
void ot_assert_fail(const char *file, int line, const char *condition) __attribute__((noreturn, cold));

#ifdef __cplusplus
}
#endif
#endif
