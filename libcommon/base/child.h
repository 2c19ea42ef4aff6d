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
    const char *input;          /* the program's input; NULL: no input */
    struct strbuf *out, *err;   /* receive the program's output, which is appended; NULL: the output is discarded */
    double limit_s;             /* time limit in seconds; 0: none */
    bool (*stopped)(void);      /* polled while the program runs; if it returns true, the program is ended. May be
                                 * NULL */
    int out_fd;                 /* if > 0: descriptor that receives the program's output instead of `out` */
    /*
     * If not NULL, feed() provides the input instead of `input`. feed() runs in its own thread and must write the whole
     * input to the pipe `to`. If feed() returns -1, the input is incomplete. The program is then killed, so that it
     * does not process the incomplete input as if it were complete.
     */
    int (*feed)(void *feed_arg, int to, struct err *e);
    void *feed_arg;
};

/*
 * Run the program. Returns 0 and sets *status to the exit status of the program. A value of 128 or more means that
 * signal *status - 128 ended the program. If the program fails while feed() is writing, its exit status is reported,
 * and the error of feed() is dropped. On failure, returns -1 with one of these errors:
 *   ERR_SYS    the program cannot be run; *status is then -1
 *   ERR_DATA   the program exceeded its time limit
 *   ERR_STOP   stopped() returned true
 *   the error that feed() returned
 */
MUST_CHECK int child_run(const struct child_call *c, int *status, struct err *e);
/* Returns the last line of a program's output, for use in a message. Control characters are replaced by '?'. */
const char *child_last_words(const struct strbuf *output, char *buf, size_t size);

#endif
