/* show.h - print information about a run, and write its current phase to the status file */
#ifndef SHARDKIT_TRAIN_RUN_SHOW_H
#define SHARDKIT_TRAIN_RUN_SHOW_H

#include "libcommon/base/err.h"
#include "libcommon/base/report.h"
#include "tools/train/log/status.h"

struct tfevents;
struct trainer;
struct trainlog;

/* The log and the status file of a run. Ranks other than 0 have neither. */
struct run_log {
    struct trainlog *lines;
    struct tfevents *events;
    struct status status;
    /*
     * The path of the status file. NULL: there is none, or it belongs to another job. The path stays valid until all
     * threads of the world have ended.
     */
    char *status_path;
    bool status_fails;          /* the status file could not be written, and this has been reported */
};

/* Write one line to the log. Does nothing on ranks without a log. */
void show_line(struct run_log *log, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Set the current phase of the run. It appears in status.json, and in messages about a rank that makes no progress. */
void show_phase(struct trainer *t, const char *phase);
/* Set the phase in t->log.status only, without writing it. */
void show_set_phase(struct trainer *t, const char *phase);
/* Print the notes and warnings of a report. Does nothing on ranks without a log. */
void show_report(struct run_log *log, struct report *r);
/* Print the sizes of the model, the settings of the training and the devices. Also sets t->shape.params_no_embeds. */
void show_settings(struct trainer *t);

#endif
