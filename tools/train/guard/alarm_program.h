/*
 * alarm_program.h - run a command of the user when an incident occurs
 */
#ifndef SHARDKIT_TRAIN_GUARD_ALARM_PROGRAM_H
#define SHARDKIT_TRAIN_GUARD_ALARM_PROGRAM_H

#include <stdint.h>

struct alarm_facts {
    const char *command;        /* passed to sh -c */
    const char *cause, *message;
    const char *report;         /* path of the report; "" if it could not be written */
    const char *log;            /* the command's output is appended to this file */
    const char *host;           /* the host at fault; "": unknown */
    /* rank: the rank at fault, -1 if unknown; status: the exit status, 0 if the run continues */
    int rank, status;
    int64_t iteration;
};

/*
 * Start the command without waiting for it. It is killed after 60 s and may outlive this process. Variables such as
 * TRAIN_CAUSE describe the incident to it.
 */
void alarm_call(const struct alarm_facts *f);

#endif
