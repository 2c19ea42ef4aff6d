/*
 * err.h - error values: what failed, formatted once, where the failure was detected
 *
 * A function that can fail has `struct err *e` as its last parameter, and returns -1 or NULL after calling one of
 * the functions below. The message is a whole sentence. It begins with the location (file, byte, parameter) and
 * ends with what was expected and what was found, so a caller only has to pass the failure up. The first error
 * wins: a second call on a filled err changes nothing. Clean-up code can therefore fail without hiding the cause.
 */
#ifndef SHARDKIT_BASE_ERR_H
#define SHARDKIT_BASE_ERR_H

#include <stdbool.h>
#include <stdint.h>

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

enum err_kind {
    ERR_NONE,
    ERR_SYS,                    /* a system call failed: open, read, write, memory, disk */
    ERR_DATA,                   /* the contents of a file are invalid */
    ERR_USAGE,                  /* the caller requested something impossible: exit status 2 */
    ERR_STOP,                   /* SIGINT or SIGTERM arrived; there is no error */
};

struct err {
    enum err_kind kind;
    int sys;                    /* errno if kind is ERR_SYS, else 0 */
    char msg[1024];
};

/* Passed to err_data() if the fault concerns the whole file, so that no byte can be named. */
#define ERR_NO_BYTE UINT64_MAX

/* Format "PATH: WHAT: strerror(errno)". errno is saved first. */
void err_sys(struct err *e, const char *path, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Format "PATH: at byte AT: WHAT", or "PATH: WHAT" with ERR_NO_BYTE. */
void err_data(struct err *e, const char *path, uint64_t at, const char *fmt, ...) PRINTF_LIKE(4, 5);
void err_usage(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
void err_stop(struct err *e);
/* Append text to the message, such as the next step for the user. */
void err_add(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
void err_clear(struct err *e);
/*
 * Returns true if the system refused to open or read something that exists, for example because of permissions or a
 * disk error. The contents are then unknown, but not lost.
 */
bool err_is_refused(const struct err *e);
/* Replace control characters by '?', so that text from a file cannot control a terminal. */
void err_clean(char *text);

#endif
