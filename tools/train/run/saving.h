/*
 * saving.h - checkpoints on their way to disk
 */
#ifndef SHARDKIT_TRAIN_RUN_SAVING_H
#define SHARDKIT_TRAIN_RUN_SAVING_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct trainer;

/* Saves and iterations, as this rank times them. Zero-initialise. */
struct saving_pace {
    bool queued;                /* a save fell due while another was being written, and is to be made behind it */
    int64_t begun;              /* the iteration of the last save that was begun */
    double begun_s;             /* by clock_s() */
    double stall_s;             /* that training has stood for it */
    int64_t n_beside;           /* iterations since it was begun, as long as it goes on: */
    double beside_s;            /* their sum */
    int64_t n_alone;            /* iterations without a save beside them, */
    double alone_s;             /* and the mean of the last few */
};

/* Checkpoints of the folder that the first save moves aside (savedir.h). Zero-initialise: none. */
struct saving_way {
    bool due;
    int64_t after;              /* those of larger numbers; -1: all */
    char newest[64];            /* the newest one's name */
    char tag[128];              /* what `latest` names where it named one of them; "": nothing */
};

/* One option as a value of the saved arguments. False: it has none of its own. */
struct checkpoint_value;
struct option_row;
struct train_opts;
bool saving_option(const struct train_opts *o, const struct option_row *r, struct checkpoint_value *v);
/* t->saver, with the arguments that its checkpoints carry. */
MUST_CHECK int saving_open(struct trainer *t, struct err *e);
/*
 * Behind every iteration that the run goes on from: begin a save if one is due. When another is still being written,
 * --save-when-busy decides, all ranks alike, but for the last iteration and what --save-schedule lists.
 */
MUST_CHECK int saving_step(struct trainer *t, struct err *e);
/* An iteration took so long. */
void saving_note_step(struct trainer *t, double seconds);
/* Begin a save of the present iteration. One that fails stops the run only if nothing could be saved any more. */
MUST_CHECK int saving_begin(struct trainer *t, struct err *e);
/* A save could not begin, or checkpoint_check_live() failed. Where replicas differ, the run's end says so. */
void saving_note_failure(struct trainer *t);
/* Has a save failed, as this rank sees it? Then all call saving_settle_save(). One that went well is told. */
bool saving_poll(struct trainer *t);
/* What is complete now stays, whatever --keep-last says; rank 0. */
void saving_keep(struct trainer *t, const char *why);
/* Wait for the save under way and tell of it: t->save_failed. -1: the state is not finite, or ranks cannot speak. */
MUST_CHECK int saving_settle_save(struct trainer *t, struct err *e);
/* At the end: a last save that failed is tried once more; -1 when nothing helps. */
MUST_CHECK int saving_finish(struct trainer *t, struct err *e);

#endif
