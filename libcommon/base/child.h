/*
 * child.h - run another program to its end, with its input, output, errors and a time limit
 *
 * The standard input is a text, what a function writes, or empty. Output and errors are read completely after the
 * program ended. The program runs in a process group of its own. When its time is over, the whole group receives
 * SIGTERM, and SIGKILL 5 s later. If this process ends first, in whatever way, the kernel kills the program (but
 * not processes that it started), so that no leftover process writes while the next run is active. All functions
 * may be called from any thread.
 */
#ifndef SHARDKIT_BASE_CHILD_H
#define SHARDKIT_BASE_CHILD_H

#include <stdbool.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

struct child_call {
    const char *const *argv;    /* NULL-terminated; argv[0] is searched in PATH */
    const char *input;          /* NULL: no input */
    struct strbuf *out, *err;   /* output is appended; NULL: discarded */
    double limit_s;             /* time limit in seconds; 0: none */
    bool (*stopped)(void);      /* polled; true ends the program. May be NULL */
    int out_fd;                 /* if > 0: the output goes to this descriptor, not to `out` */
    /*
     * Replaces `input`: called in a thread of its own, writes the whole input to the pipe `to`. Returning -1 means
     * that the input is incomplete; the program is then killed so that it cannot mistake it for the whole input.
     * May be NULL.
     */
    int (*feed)(void *feed_arg, int to, struct err *e);
    void *feed_arg;
};

/*
 * Run the program. Returns 0 and sets *status to the exit status (128 and more: ended by signal *status - 128).
 * Returns -1 with ERR_SYS if the program cannot be run (*status is then -1), ERR_DATA if it exceeded the time
 * limit, ERR_STOP, or the error of feed(). If a program fails while feed() is writing, its own failure is reported:
 * returns 0 and its status.
 */
MUST_CHECK int child_run(const struct child_call *c, int *status, struct err *e);
/* Returns the last line of a program's output for use in a message. Control characters are replaced by '?'. */
const char *child_last_words(const struct strbuf *output, char *buf, size_t size);

#endif
