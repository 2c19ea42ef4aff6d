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
    /* a save became due while another one was being written; it begins when that one ends */
    bool queued;
    int64_t begun;              /* the iteration of the last save that was begun */
    double begun_s;             /* by clock_s() */
    double stall_s;             /* how long training has been blocked by it */
    /* number of iterations since the current save began; counted while the save is in progress */
    int64_t n_concurrent;
    double concurrent_s;            /* their total time */
    int64_t n_alone;            /* number of iterations without a save in progress */
    double alone_s;             /* mean time of the last few of them */
};

/* Checkpoints of the folder that the first save moves (savedir.h). Zero-initialised: none. */
struct saving_moves {
    bool due;
    int64_t after;              /* move those with larger iteration numbers; -1: all */
    char newest[64];            /* the name of the newest one */
    /*
     * the tag that `latest` is to name afterwards, if it names a checkpoint that is moved; "" if all checkpoints are
     * moved, and `latest` with them
     */
    char tag[128];
};

/* The saves of a run. */
struct run_saves {
    struct writer *writer;      /* the process that writes; NULL without --save */
    struct checkpoint_saver *saver;     /* NULL without --save */
    struct savelock *lock;      /* the lock on the folder of --save; rank 0 only */
    struct retain *retain;      /* rank 0 only; NULL without --keep-last */
    uint64_t memory_bytes;      /* bytes that this rank's snapshot may use; 0: unlimited */
    int64_t saved_iteration;    /* the last iteration for which a save was begun; -1: none */
    /* the tag of the newest complete checkpoint, which `latest` names, as far as this run can determine */
    char complete_tag[64];
    char saving_tag[64];        /* the tag of the last save that was begun */
    /* the outcome of the last save, once it has been reported; SAVE_NONE: not reported yet */
    enum save_outcome reported;
    bool keep_next;             /* keep the next complete checkpoint as well, because the loss jumped */
    struct saving_pace pace;
    struct saving_moves moves;
};

/*
 * Convert the value of option *r to an entry of the saved arguments. Returns false if the option has no entry of its
 * own there.
 */
struct checkpoint_value;
struct option_row;
struct train_opts;
bool saving_option(const struct train_opts *o, const struct option_row *r, struct checkpoint_value *v);
/* Open t->saves.saver, with the arguments that its checkpoints contain. */
MUST_CHECK int saving_open(struct trainer *t, struct err *e);
/*
 * Begin a save if one is due. Call it after every iteration after which the run continues. If another save is still
 * being written, --save-when-busy decides, equally on all ranks. A save that is due in the last iteration, or in a
 * range that --save-schedule lists, waits for the other save whatever --save-when-busy is.
 */
MUST_CHECK int saving_step(struct trainer *t, struct err *e);
/* Record the duration of an iteration. */
void saving_record_step(struct trainer *t, double seconds);
/* Begin a save of the current iteration. A failure stops the run only if no further save would be possible. */
MUST_CHECK int saving_begin(struct trainer *t, struct err *e);
/*
 * Record that a save could not begin, or that checkpoint_check_live() failed. If replicas differ, this becomes the
 * reason for the end of the run.
 */
void saving_record_failure(struct trainer *t);
/*
 * Returns true if this rank has seen that a save failed; all ranks must then call saving_wait_for_save(). Prints the
 * outcome of a save that succeeded.
 */
bool saving_poll(struct trainer *t);
/*
 * Mark the newest complete checkpoint as kept, with the reason `why`, so that --keep-last does not remove it. Rank 0
 * only.
 */
void saving_keep(struct trainer *t, const char *why);
/*
 * Wait for the save in progress and report it; sets t->saves.reported. Returns -1 if the state is not finite or the
 * ranks cannot communicate.
 */
MUST_CHECK int saving_wait_for_save(struct trainer *t, struct err *e);
/*
 * Complete the saves at the end of the run. If the last save failed, it is tried once more. Returns -1 if that fails,
 * too.
 */
MUST_CHECK int saving_finish(struct trainer *t, struct err *e);

#endif
