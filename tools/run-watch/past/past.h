/*
 * past.h - the numbers and events of a run from its first iteration on, as read from the files that it has left
 *
 * Several files may describe one run: logs of train or Megatron-LM, folders of TensorBoard's files, and the folder of
 * its checkpoints (status.json, reports, the checkpoints themselves). They are read one after the other into one struct
 * past; past_resolve() then computes the positions of all points and events on common axes. If iterations were repeated
 * after a restart, the points of both are kept.
 *
 * A log contains times only at some starts and ends. Other times are computed by adding the durations of the
 * iterations. If `dated` is true, at_s is in seconds since 1970, otherwise in seconds since the first iteration. An
 * unknown number is NaN. Threads: one.
 */
#ifndef SHARDKIT_RUN_WATCH_PAST_H
#define SHARDKIT_RUN_WATCH_PAST_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

enum past_value {
    PAST_LOSS,                  /* nats per token */
    PAST_NORM,                  /* norm of the gradient, before clipping */
    PAST_LR,
    PAST_BATCH,                 /* number of samples */
    PAST_SCALE,                 /* loss scale; fp16 only */
    PAST_SAMPLES_S,             /* samples per second */
    PAST_TFLOPS,                /* per device, as logged */
    PAST_VALUES
};

struct past_point {
    int64_t iteration;
    /*
     * at_s: time at which the iteration ended. samples, tokens: number consumed from the start of the run to the end of
     * the iteration.
     */
    double at_s, samples, tokens;
    double elapsed_s;                   /* duration of one iteration */
    double v[PAST_VALUES];
    /* this point is the first iteration after a start, or the first of a repetition */
    bool first;
};

struct past_valid {
    int64_t iteration;
    double at_s, samples, tokens, loss;
};
/* A validation set. */
struct past_set {
    char *name;
    struct past_valid *p;
    int n, cap;
};

enum past_kind { PAST_START, PAST_STOP, PAST_SAVE, PAST_BACKUP, PAST_INCIDENT, PAST_KINDS };
struct past_event {
    enum past_kind kind;
    int64_t iteration;                  /* -1: unknown */
    double at_s, samples, tokens;
    char *text;
    bool kept;                          /* for PAST_SAVE: the checkpoint still exists */
    int after;                          /* number of points that had been read before this event */
};

/* A line of the log that names the slowest rank. */
struct past_slow {
    int64_t iteration;
    int rank;
    char host[48];
    /*
     * at_s: time; compute_s: compute time of the rank; above: how much longer than the median of its stage, in percent
     */
    double at_s, compute_s, above;
    int after;
};

struct past {
    char *name;
    struct past_point *point;           /* in the order in which they were computed */
    int n, cap;
    /*
     * The indices of the points at which a stretch of increasing iterations begins (`first` is set). Valid after
     * past_resolve().
     */
    int *stretch;
    int n_stretches;
    struct past_set *set;
    int n_sets, cap_sets;
    struct past_event *event;           /* sorted by kind, then time, after past_resolve() */
    int n_events, cap_events;
    struct past_slow *slow;
    int n_slow, cap_slow;
    int64_t train_iters;                /* -1: unknown */
    bool dated;
    json_t *status;                     /* contents of train's status.json, or NULL */
};

struct past *past_new(const char *name);
void past_free(struct past *p);         /* NULL is allowed */

/* ---- reading: each function adds to the data that *p already has; it fails with ERR_SYS or ERR_DATA ---- */

/*
 * Read what is at `path`. A file is read as a log. A folder that contains event files is read as event files. Any other
 * folder is read as a run's folder: its status, reports and checkpoints and, if no iterations are known yet, the event
 * files in its subfolder tensorboard.
 */
MUST_CHECK int past_read(struct past *p, const char *path, struct err *e);
MUST_CHECK int past_read_log(struct past *p, const char *path, struct err *e);
MUST_CHECK int past_read_events(struct past *p, const char *dir, struct err *e);

/*
 * Parse the number that follows "NAME:" in a line. Returns false if the line has no such field. "nan" and "inf", as
 * Python prints them, are numbers.
 */
bool past_log_field(const char *line, const char *name, double *v);

/* ---- past.c: for the readers, and for callers that get events from another source ---- */

struct past_point *past_add_point(struct past *p, int64_t iteration);   /* the point is valid until the next call */
void past_add_valid(struct past *p, const char *name, int64_t iteration, double loss, double at_s);
/*
 * Add an event. `text` is copied. Pass -1 as iteration and NaN as at_s if they are unknown. The returned event is valid
 * until the next call.
 */
struct past_event *past_add_event(struct past *p, enum past_kind kind, int64_t iteration, double at_s,
                                  const char *text);
/*
 * Complete the data after all files have been read: compute the missing times of points, and the positions of events
 * and validation losses on every axis. Returns false if there are no points.
 */
bool past_resolve(struct past *p);
/* Returns the number of iterations that were repeated after a restart. */
int64_t past_repeated(const struct past *p);

#endif
