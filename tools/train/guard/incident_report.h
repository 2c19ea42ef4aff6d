/*
 * incident_report.h - write reports of incidents to SAVE/reports/RUN, for people and for programs that restart the job
 *
 * RUN is "20261122T215533Z-JOB": the job's start in UTC and its id in the batch system, or else "pid" and the process
 * id of rank 0. The folder is created with its first file, so a run without incidents creates none.
 *
 *   report.json            why the job ended. There is only one per RUN: the first one is kept. It appears only when it
 *                          is complete
 *   rank00003.txt          what that rank was doing when the job ended or it crashed, and the stacks of its threads
 *   slow-step1234.json     like report.json, about an incident after which the run continued
 *
 * A report is one line of JSON (docs/operations.md describes its keys). Writing it allocates no memory and acquires
 * no lock, so it also works when the heap or a lock is corrupted. Data that cannot be obtained is omitted. A process
 * must have only one report_run, because signal handlers access it.
 */
#ifndef SHARDKIT_TRAIN_GUARD_INCIDENT_REPORT_H
#define SHARDKIT_TRAIN_GUARD_INCIDENT_REPORT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "libcommon/comm/comm.h"
#include "libcommon/model/topology.h"

struct report_run {
    const struct comm_world *world;     /* NULL: reports are disabled, because there is no folder to write them to */
    const int64_t *iteration;           /* the last completed iteration; below 0: the run is not set up yet */
    const char *const *phase;           /* the phase of this rank; *phase may be NULL */
    const struct topology *topo;
    char save[PATH_MAX], name[80];      /* save: absolute path of --save; name: the RUN part of the path */
    const char *alarm;                  /* --alarm-command: a shell command; NULL: none */
};

struct report_incident {
    const char *cause;          /* such as "hang" */
    int status;                 /* exit status of the job; 0: the run continues */
    const char *message;
    const char *file;           /* file name in the folder of RUN, such as "report.json" */
    int rank;                   /* the rank at fault; -1: unknown */
    int signal;                 /* the signal of a crash; else 0 */
    const char *tensor;         /* NULL: none */
    const struct watch_doing *doing;    /* [size of the world], or NULL */
};

/*
 * Set up *r for reports in the folder `save`, which must exist. Writes nothing. All ranks must call this function.
 * start_s is the start time of the job.
 */
MUST_CHECK int report_open(struct report_run *r, struct comm_world *world, const char *save, double start_s,
                           struct err *e);
/* Compute the path of the file `file` of the run *r. The file need not exist. */
void report_path(const struct report_run *r, const char *file, char path[PATH_MAX]);
/*
 * Write the report and start the alarm command. Returns false if the report could not be written, or if another rank
 * has already written one. In the latter case no command is started.
 */
bool report_write(const struct report_run *r, const struct report_incident *x);
/*
 * Sync a report that has been written to disk. Without this call, the file may be empty after a power failure. Fails
 * with ERR_SYS.
 */
MUST_CHECK int report_sync(const struct report_run *r, const char *file, struct err *e);
/* Append `line` and the stacks of all threads to the text file of this rank. Async-signal-safe. */
void report_stacks(const struct report_run *r, const char *line);

#endif
