/*
 * report.h - what happened, in SAVE/reports/RUN, for people and for whoever starts the job again
 *
 * RUN is "20261122T215533Z-JOB": the job's start in UTC and its id in the batch system, else "pid" and rank 0's. Its
 * folder is made with its first file, so a run that is well leaves none.
 *
 *   report.json            why the job ended; once a RUN: it appears whole, and the first one stays
 *   rank00003.txt          what that rank did when the job ended or it crashed, and the stacks of its threads
 *   slow-step1234.json     like report.json; told, and the run went on
 *
 * A report is one line of JSON (docs/operations.md has its keys). Writing takes no memory and no lock, so it also works
 * where these are spoilt; what cannot be written is left out. One report_run a process, which signal handlers reach.
 */
#ifndef SHARDKIT_TRAIN_GUARD_REPORT_H
#define SHARDKIT_TRAIN_GUARD_REPORT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "libcommon/comm/comm.h"
#include "libcommon/model/topology.h"

struct report_run {
    const struct comm_world *world;     /* NULL: there is nowhere to write to */
    const int64_t *iteration;           /* the last one that is done; below 0: not set up yet */
    const char *const *phase;           /* what this rank is at; it may be NULL */
    const struct topology *topo;
    char save[PATH_MAX], name[80];      /* absolute; RUN */
    const char *alarm;                  /* --alarm-command, or NULL */
};

struct report_incident {
    const char *cause;          /* "hang" */
    int status;                 /* exit status; 0: the run goes on */
    const char *message;
    const char *file;           /* in the folder of RUN: "report.json" */
    int rank;                   /* whose fault; -1: nobody was found */
    int signal;                 /* of a crash; else 0 */
    const char *tensor;         /* NULL: none */
    const struct watch_doing *doing;    /* [size of the world], or NULL */
};

/* Set up r for `save`, an existing folder; nothing is written. All ranks. The job began at start_s. */
MUST_CHECK int report_open(struct report_run *r, struct comm_world *world, const char *save, double start_s,
                           struct err *e);
/* Where it is, or would be. */
void report_path(const struct report_run *r, const char *file, char path[PATH_MAX]);
/* Write it and call the alarm. False: it could not be written, or somebody else has (then no alarm is called). */
bool report_write(const struct report_run *r, const struct report_incident *x);
/* What was written is on disk; else a power cut may leave it empty. ERR_SYS. */
MUST_CHECK int report_sync(const struct report_run *r, const char *file, struct err *e);
/* This rank's own text: `line`, then what all threads do. Async-signal-safe. */
void report_stacks(const struct report_run *r, const char *line);

#endif
