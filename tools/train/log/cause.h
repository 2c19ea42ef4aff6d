/*
 * cause.h - why a run ends badly: names and exit statuses, one table for logs, reports and scripts
 *
 * 0 is an orderly end and 2 wrong usage, as of every tool. The others lie apart from what shells (126 and up),
 * timeout (124), sysexits (64 to 78) and Slurm use.
 */
#ifndef SHARDKIT_TRAIN_LOG_CAUSE_H
#define SHARDKIT_TRAIN_LOG_CAUSE_H

enum cause {                    /* the exit status */
    CAUSE_FAILED = 1,           /* any other failure */
    CAUSE_HANG = 41,            /* a call or a read lasted longer than --collective-timeout */
    CAUSE_LOST,                 /* a rank's process or host is gone without a word */
    CAUSE_CRASH,                /* a rank got SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT */
    CAUSE_NAN,                  /* loss, norm or state not finite, or the loss scale at its minimum */
    CAUSE_SAVE,                 /* the last checkpoint could not be saved */
    CAUSE_REPLICAS,             /* copies that must be equal are not */
    CAUSE_DEVICE,               /* the same work gave other bits */
};

/* "hang"; "failed" for what is no cause. */
const char *cause_name(int status);

#endif
