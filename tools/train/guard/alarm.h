/*
 * alarm.h - a command of the user's that hears of an incident
 */
#ifndef SHARDKIT_TRAIN_GUARD_ALARM_H
#define SHARDKIT_TRAIN_GUARD_ALARM_H

#include <stdint.h>

struct alarm_facts {
    const char *command;        /* for sh -c */
    const char *cause, *message;
    const char *report;         /* its path; "" when it could not be written */
    const char *log;            /* what the command prints is added to this file */
    const char *host;           /* at fault; "": nobody was found */
    int rank, status;           /* -1: nobody; 0: the run goes on */
    int64_t iteration;
};

/* Starts it and does not wait: it is ended after 60 s, and outlives this process. TRAIN_CAUSE and the like tell it. */
void alarm_call(const struct alarm_facts *f);

#endif
