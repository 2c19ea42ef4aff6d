/*
 * child.h - another program, run to its end: its input, what it says, how long it may take
 *
 * Its standard input is a text, what a function writes, or empty; its output and its errors are taken whole. It is in a
 * process group of its own, so that what it started goes with it when its time is over: SIGTERM, and SIGKILL 5 s later.
 * When we end before it, however, the kernel kills it (not what it started): nobody is left behind who goes on writing
 * beside the next run. Threads: any.
 */
#ifndef SHARDKIT_BASE_CHILD_H
#define SHARDKIT_BASE_CHILD_H

#include <stdbool.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

struct child_call {
    const char *const *argv;    /* argv[0] is found through PATH; NULL ends them */
    const char *input;          /* NULL: none */
    struct strbuf *out, *err;   /* what it prints is added; NULL: thrown away */
    double limit_s;             /* seconds until it is ended; 0: as long as it likes */
    bool (*stopped)(void);      /* shall it end now? may be NULL */
    int out_fd;                 /* more than 0: what it prints goes there, not to `out` */
    /*
     * In place of `input`: called in a thread of its own, writes all there is into the pipe `to`. -1: what the program
     * got is not all, so it is killed before it can take it for that. May be NULL.
     */
    int (*feed)(void *feed_arg, int to, struct err *e);
    void *feed_arg;
};

/*
 * 0, and *status is its exit status (128 and more: ended by signal *status - 128). -1: ERR_SYS when it cannot be run
 * (*status is -1 then), ERR_DATA when it took too long, ERR_STOP, and what feed() says. A program that fails while it
 * is fed has the word: 0, and its status.
 */
MUST_CHECK int child_run(const struct child_call *c, int *status, struct err *e);
/* The last line of what a program said, for a message: control characters are '?'. */
const char *child_last_words(const struct strbuf *said, char *buf, size_t size);

#endif
