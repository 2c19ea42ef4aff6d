/*
 * err.h - what went wrong, said once, by whoever saw it first
 *
 * A function that can fail takes `struct err *e` last and returns -1 or NULL after one
 * of the calls below. The message is a whole sentence that begins with the place
 * (file, byte, parameter) and ends with what was expected and what was found, so a
 * caller only passes the failure up. The first error wins: a second call on a filled
 * err changes nothing, which lets clean-up code fail without hiding the cause.
 */
#ifndef SHARDKIT_BASE_ERR_H
#define SHARDKIT_BASE_ERR_H

#include <stdint.h>

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

enum err_kind {
    ERR_NONE,
    ERR_SYS,                    /* the system refused: open, read, write, memory, disk */
    ERR_DATA,                   /* a file says something that cannot be */
    ERR_USAGE,                  /* the caller asked for something impossible: exit 2 */
    ERR_STOP,                   /* SIGINT or SIGTERM arrived; nothing is wrong */
};

struct err {
    enum err_kind kind;
    int sys;                    /* errno of an ERR_SYS, else 0 */
    char msg[1024];
};

/* For err_data: the fault is the whole file's, no byte can be named. */
#define ERR_NO_BYTE UINT64_MAX

/* "PATH: WHAT: strerror(errno)"; errno is taken before anything else happens. */
void err_sys(struct err *e, const char *path, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* "PATH: at byte AT: WHAT", or "PATH: WHAT" with ERR_NO_BYTE. */
void err_data(struct err *e, const char *path, uint64_t at, const char *fmt, ...) PRINTF_LIKE(4, 5);
void err_usage(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
void err_stop(struct err *e);
/* Behind what is said already: the next step. */
void err_add(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
void err_clear(struct err *e);
/* Control characters become '?': a file's words in a message must not steer a terminal. */
void err_clean(char *text);

#endif
