/*
 * cause.h - why a run failed: names and exit statuses, in one table for logs, reports and scripts
 *
 * Status 0 is an orderly end and 2 is wrong usage, as in every tool of the project. The other values do not collide
 * with those of shells (126 and up), timeout (124), sysexits (64 to 78) and Slurm.
 */
#ifndef SHARDKIT_TRAIN_LOG_CAUSE_H
#define SHARDKIT_TRAIN_LOG_CAUSE_H

enum cause {                    /* the values are exit statuses */
    CAUSE_FAILED = 1,           /* any other failure */
    CAUSE_HANG = 41,            /* a collective call or a read took longer than --collective-timeout */
    CAUSE_LOST,                 /* a rank's process or host disappeared without reporting an error */
    CAUSE_CRASH,                /* a rank received SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT */
    CAUSE_NAN,                  /* loss, norm or state is not finite, or the loss scale is at its minimum */
    CAUSE_SAVE,                 /* the last checkpoint could not be saved */
    CAUSE_REPLICAS,             /* copies that must be equal differ */
    CAUSE_DEVICE,               /* repeating the same work gave different bits */
};

/* Returns the name of a cause, such as "hang"; "failed" if the status is not in the table. */
const char *cause_name(int status);

#endif
