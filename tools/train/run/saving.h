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

/* Timing of saves and iterations on this rank. Must be zero-initialised. */
struct saving_pace {
    /* a save was due while another was being written; it begins when the other has ended */
    bool queued;
    int64_t begun;              /* iteration of the last save that was begun */
    double begun_s;             /* time of its begin, from clock_s() */
    double stall_s;             /* for how long this save has blocked training */
    /* The number of iterations since the current save began. It is counted while the save is in progress. */
    int64_t n_concurrent;
    double concurrent_s;            /* total duration of these iterations */
    int64_t n_alone;            /* number of iterations without a save in progress */
    double alone_s;             /* mean duration of the last few of these iterations */
};

/* Which checkpoints of the folder the first save must set aside (savedir.h). Zero-initialised: none. */
struct saving_moves {
    bool due;
    int64_t after;              /* checkpoints with larger iteration numbers are set aside; -1: all */
    char newest[64];            /* name of the newest of these checkpoints */
    /*
     * The name to which `latest` is set if it names a checkpoint that is set aside. "": all checkpoints and `latest`
     * are set aside.
     */
    char tag[128];
};

/* The saves of a run. */
struct run_saves {
    struct writer *writer;      /* the process that writes checkpoints; NULL without --save */
    struct checkpoint_saver *saver;     /* NULL without --save */
    struct savelock *lock;      /* the lock on the folder of --save; rank 0 only */
    struct retain *retain;      /* rank 0 only; NULL without --keep-last */
    uint64_t memory_bytes;      /* number of bytes that the snapshot of this rank may use; 0: no limit */
    int64_t saved_iteration;    /* iteration of the last save that was begun; -1: none */
    /* The newest complete checkpoint, which `latest` names, as far as this run knows. */
    char complete_tag[64];
    char saving_tag[64];        /* the checkpoint of the last save that was begun */
    /* The outcome of the last save, if it has been reported. SAVE_NONE: it has not been reported yet. */
    enum save_outcome reported;
    bool keep_next;             /* the loss jumped, so the next complete checkpoint must be marked as kept */
    struct saving_pace pace;
    struct saving_moves moves;
};

/*
 * Convert the value of the option *r to an entry *v of the saved arguments. Returns false if this option has no entry
 * in them.
 */
struct checkpoint_value;
struct option_row;
struct train_opts;
bool saving_option(const struct train_opts *o, const struct option_row *r, struct checkpoint_value *v);
/* Create t->saves.saver, including the arguments that its checkpoints will contain. */
MUST_CHECK int saving_open(struct trainer *t, struct err *e);
/*
 * Begin a save if one is due. Must be called after every iteration after which the run continues. If the previous save
 * is still being written, --save-when-busy determines what happens; the decision is the same on all ranks. If the save
 * is due in the last iteration, or in a range of --save-schedule, it waits for the previous save, whatever
 * --save-when-busy is.
 */
MUST_CHECK int saving_step(struct trainer *t, struct err *e);
/* Record the duration of an iteration. */
void saving_record_step(struct trainer *t, double seconds);
/* Begin a save of the current iteration. Returns -1 only if no later save would be possible either. */
MUST_CHECK int saving_begin(struct trainer *t, struct err *e);
/*
 * Record that a save could not begin, or that checkpoint_check_live() has failed. If replicas differ, this becomes the
 * cause of the run's failure.
 */
void saving_record_failure(struct trainer *t);
/*
 * Returns true if this rank knows that a save has failed. All ranks must then call saving_wait_for_save(). If a save
 * has succeeded, its outcome is printed.
 */
bool saving_poll(struct trainer *t);
/*
 * Mark the newest complete checkpoint as kept for the reason `why`, so that --keep-last does not remove it. Only rank 0
 * may call it.
 */
void saving_keep(struct trainer *t, const char *why);
/*
 * Wait until the save in progress has ended, set t->saves.reported to its outcome, and report the outcome. Returns -1
 * if the state is not finite, or if the ranks cannot communicate.
 */
MUST_CHECK int saving_wait_for_save(struct trainer *t, struct err *e);
/*
 * Complete the saves at the end of the run. If the last save has failed, it is tried once more. Returns -1 if it fails
 * again.
 */
MUST_CHECK int saving_finish(struct trainer *t, struct err *e);

#endif
