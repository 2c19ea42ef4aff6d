/*
 * pulse_jobs.h - the jobs of Slurm's queue that have a name, as squeue lists them
 */
#ifndef SHARDKIT_RUN_WATCH_PULSE_JOBS_H
#define SHARDKIT_RUN_WATCH_PULSE_JOBS_H

#include "tools/run-watch/runwatch.h"

enum pulse_field { PULSE_ID, PULSE_PARTITION, PULSE_NAME, PULSE_STATE, PULSE_TIME, PULSE_NODES, PULSE_START,
                   PULSE_NOTES, PULSE_FIELDS };

struct pulse_jobs {
    char *text;                 /* holds all fields */
    struct pulse_job {
        const char *field[PULSE_FIELDS];
    } *job;
    int n, cap;
    int n_strange;              /* lines that are none */
};

/*
 * Ask getent for the users, where a group is given, and squeue for their jobs; keep those called w->job_name. ERR_SYS,
 * ERR_DATA: nothing is known then.
 */
MUST_CHECK int pulse_jobs_read(struct pulse_jobs *j, const struct runwatch *w, struct err *e);
void pulse_jobs_free(struct pulse_jobs *j);

#endif
