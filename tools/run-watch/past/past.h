/*
 * past.h - what a run has left of itself, from its first iteration on: numbers, and what happened
 *
 * Several files may tell of one run: logs of train or Megatron-LM, folders of TensorBoard's files, and the folder of
 * its checkpoints (status.json, reports, the checkpoints themselves). They are read one after the other into one struct
 * past; past_settle() then puts all of it on the same axes. Iterations that were done twice, before and behind a
 * restart, are there twice.
 *
 * A log has no times but where a start or an end says one; from there on iterations' lengths are added up. `dated`
 * tells whether at_s is seconds since 1970, or since the first iteration. A number that is not known is NaN.
 * Threads: one.
 */
#ifndef SHARDKIT_RUN_WATCH_PAST_H
#define SHARDKIT_RUN_WATCH_PAST_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

enum past_value {
    PAST_LOSS,                  /* nats a token */
    PAST_NORM,                  /* of the gradient, before clipping */
    PAST_LR,
    PAST_BATCH,                 /* samples */
    PAST_SCALE,                 /* of the loss; fp16 only */
    PAST_SAMPLES_S,             /* samples a second */
    PAST_TFLOPS,                /* of each device, as the log says them */
    PAST_VALUES
};

struct past_point {
    int64_t iteration;
    double at_s, samples, tokens;       /* when it was over, and what was consumed then */
    double elapsed_s;                   /* of one iteration */
    double v[PAST_VALUES];
    bool first;                         /* of a start, or of what is done again */
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
    int64_t iteration;                  /* -1: not known */
    double at_s, samples, tokens;
    char *text;
    bool kept;                          /* PAST_SAVE: it is there now */
    int after;                          /* points that were read before it */
};

/* A line of the log about the slowest rank. */
struct past_slow {
    int64_t iteration;
    int rank;
    char host[48];
    double at_s, compute_s, above;      /* above its stage's median by so many percent */
    int after;
};

struct past {
    char *name;
    struct past_point *point;           /* in the order in which they came to be */
    int n, cap;
    int *stretch;                       /* numbers of the points that are `first`, once it is settled */
    int n_stretches;
    struct past_set *set;
    int n_sets, cap_sets;
    struct past_event *event;           /* by kind, then time, once it is settled */
    int n_events, cap_events;
    struct past_slow *slow;
    int n_slow, cap_slow;
    int64_t train_iters;                /* -1: not known */
    bool dated;
    json_t *status;                     /* status.json of train, or NULL */
};

struct past *past_new(const char *name);
void past_free(struct past *p);         /* NULL is fine */

/* ---- reading; each adds to what is there already; ERR_SYS, ERR_DATA ---- */

/*
 * Which of the three is at `path`, and read it: a file is a log; a folder with event files is that; else a run's:
 * status, reports, checkpoints, and event files in DIR/tensorboard. Event files are read where nothing has told of
 * iterations.
 */
MUST_CHECK int past_read(struct past *p, const char *path, struct err *e);
MUST_CHECK int past_read_log(struct past *p, const char *path, struct err *e);
MUST_CHECK int past_read_events(struct past *p, const char *dir, struct err *e);

/* ---- past.c: for those that read, and for who knows of an event otherwise ---- */

struct past_point *past_add_point(struct past *p, int64_t iteration);   /* valid until the next one */
void past_add_valid(struct past *p, const char *name, int64_t iteration, double loss, double at_s);
/* `text` is copied; what is not known: iteration -1, at_s NaN. Valid until the next one. */
struct past_event *past_add_event(struct past *p, enum past_kind kind, int64_t iteration, double at_s,
                                  const char *text);
/*
 * All is read: times of points that have none, and places of events and validation losses on every axis. Returns
 * whether there is a point at all.
 */
bool past_settle(struct past *p);
/* Iterations that were done more than once. */
int64_t past_repeated(const struct past *p);

#endif
