/*
 * saving.h - save checkpoints while training continues
 */
#ifndef SHARDKIT_TRAIN_RUN_SAVING_H
#define SHARDKIT_TRAIN_RUN_SAVING_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "tools/train/checkpoint/writer.h"

struct checkpoint_saver;
struct retain;
struct savelock;
struct trainer;

/* Timing of saves and iterations on this rank. Zero-initialise it. */
struct saving_pace {
    bool queued;                /* a save was due while another was being written; it is made after that one */
    int64_t begun;              /* the iteration of the last save that was begun */
    double begun_s;             /* by clock_s() */
    double stall_s;             /* how long training has been blocked by it */
    int64_t n_concurrent;           /* number of iterations since the save began, while it is in progress */
    double concurrent_s;            /* their total time */
    int64_t n_alone;            /* number of iterations without a save in progress */
    double alone_s;             /* mean time of the last few of them */
};

/* Checkpoints of the folder that the first save moves (savedir.h). Zero-initialised: none. */
struct saving_moves {
    bool due;
    int64_t after;              /* move those with larger iteration numbers; -1: all */
    char newest[64];            /* the name of the newest one */
    char tag[128];              /* the tag that `latest` is to name, if it named one of those; "": none */
};

/* The saves of a run. */
struct run_saves {
    struct writer *writer;      /* the process that writes; NULL without --save */
    struct checkpoint_saver *saver;     /* NULL without --save */
    struct savelock *lock;      /* the lock on the folder of --save; rank 0 only */
    struct retain *retain;      /* rank 0 only; NULL without --keep-last */
    uint64_t memory_bytes;      /* bytes that this rank's snapshot may use; 0: unlimited */
    int64_t saved_iteration;    /* the last iteration for which a save was begun; -1: none */
    char complete_tag[64];      /* the tag that `latest` names, as far as this run can determine */
    char saving_tag[64];        /* the tag of the last save that was begun */
    enum save_outcome reported; /* the outcome of the last save as it was reported; SAVE_NONE: not yet */
    bool keep_next;             /* the next complete checkpoint is to be kept, because the loss jumped */
    struct saving_pace pace;
    struct saving_moves moves;
};

/* Convert one option to a value of the saved arguments. Returns false if it has no value of its own there. */
struct checkpoint_value;
struct option_row;
struct train_opts;
bool saving_option(const struct train_opts *o, const struct option_row *r, struct checkpoint_value *v);
/* Open t->saves.saver, with the arguments that its checkpoints contain. */
MUST_CHECK int saving_open(struct trainer *t, struct err *e);
/*
 * Begin a save if one is due. Call it after every iteration after which the run continues. If another save is still
 * being written, --save-when-busy decides, equally on all ranks, except for the last iteration and those that
 * --save-schedule lists.
 */
MUST_CHECK int saving_step(struct trainer *t, struct err *e);
/* Record the duration of an iteration. */
void saving_record_step(struct trainer *t, double seconds);
/* Begin a save of the current iteration. A failure stops the run only if no further save would be possible. */
MUST_CHECK int saving_begin(struct trainer *t, struct err *e);
/*
 * Record that a save could not begin, or that checkpoint_check_live() failed. If replicas differ, that becomes the
 * reason of the run's end.
 */
void saving_record_failure(struct trainer *t);
/*
 * Returns true if a save has failed, as seen by this rank; then all ranks must call saving_wait_for_save(). Reports a
 * save that succeeded.
 */
bool saving_poll(struct trainer *t);
/* Keep the newest complete checkpoint, whatever --keep-last is. Rank 0 only. */
void saving_keep(struct trainer *t, const char *why);
/*
 * Wait for the save in progress and report it; sets t->saves.reported. Returns -1 if the state is not finite or the
 * ranks cannot communicate.
 */
MUST_CHECK int saving_wait_for_save(struct trainer *t, struct err *e);
/* Call it at the end of the run. If the last save failed, it is tried once more. Returns -1 if that fails, too. */
MUST_CHECK int saving_finish(struct trainer *t, struct err *e);

#endif
