/*
 * pulse_jobs.h - the jobs in Slurm's queue that have a given name, as listed by squeue
 */
#ifndef SHARDKIT_RUN_WATCH_PULSE_JOBS_H
#define SHARDKIT_RUN_WATCH_PULSE_JOBS_H

#include "tools/run-watch/runwatch.h"

enum pulse_field { PULSE_ID, PULSE_PARTITION, PULSE_NAME, PULSE_STATE, PULSE_TIME, PULSE_NODES, PULSE_START,
                   PULSE_NOTES, PULSE_FIELDS };

struct pulse_jobs {
    char *text;                 /* the text that contains all fields */
    struct pulse_job {
        const char *field[PULSE_FIELDS];
    } *job;
    int n, cap;
    int n_strange;              /* number of lines that could not be parsed */
};

/*
 * List the jobs with squeue and keep those named w->job_name. If a group is given, getent lists its users first. On
 * failure (ERR_SYS, ERR_DATA) nothing is known.
 */
MUST_CHECK int pulse_jobs_read(struct pulse_jobs *j, const struct runwatch *w, struct err *e);
void pulse_jobs_free(struct pulse_jobs *j);

#endif
