/*
 * checkpoint_engine.h - the writer process's work: from a staging area to a published tag
 *
 * Ranks of one (pp, tp) fill the same files: a rank owns pieces of every bucket, files are
 * cut otherwise. No writer has a connection to another, so they meet in two folders that
 * rank 0's trainer made before any of them was told to begin:
 *
 *   DIR/TAG.<id>.part/          the files, each of final length from the start
 *   DIR/TAG.<id>.part.job/
 *       done.<rank>             "my pieces are on disk": the CRC parts of every storage
 *       sealed.<rank>           "the files I own have their headers": their owner has waited
 *                               for done of the data-parallel ranks of its (pp, tp)
 *       failed.<rank>           why, from a rank at fault; everybody gives up
 *
 * Rank 0 waits for all sealed, then notes what it is about to do (latest.next), renames the
 * folder to TAG, and writes `latest` last. <id> is new for every save: a process left over
 * from a killed run finds its folder gone and can harm nothing.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_ENGINE_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_ENGINE_H

#include <limits.h>

#include "libcommon/convert/replace.h"
#include "libcommon/layout/deepspeed/deepspeed_share.h"
#include "tools/train/checkpoint/checkpoint_impl.h"

/* One save, as the trainer orders it. */
struct save_order {
    struct checkpoint_now now;
    char dir[PATH_MAX];         /* --save, absolute */
    char tag[64];               /* "global_step20" */
    char part[96];              /* "global_step20.<id>.part", a name in dir; the job folder's has ".job" behind it */
};

/*
 * What a saver tells its writer once. Behind it: blocks[topo.pp], this rank's mp_rank file (checkpoint_mp_make()), its
 * share of the files (ds_share_pack()).
 */
struct save_setup {
    struct topology topo;
    int pp, dp, tp;
    struct model_config model;
    enum dtype weights;
    int threads;
    uint64_t memory_bytes;      /* as checkpoint_area_of() takes it */
    double first_gigaflos;      /* as rank 0 was loaded with, 0: it was not */
    uint64_t mp_bytes;
};
/* ---- checkpoint_carry.c ---- */

/* That message. `notes`: what could not be carried over. */
MUST_CHECK int checkpoint_carry(const struct checkpoint_saver_opts *o, struct strbuf *out, struct report *notes,
                                struct err *e);

/* ---- checkpoint_engine.c ---- */

struct save_engine;
/* What a writer hears of its trainer, and tells it, during a save. */
struct save_feed {
    bool (*gone)(void *ctx);    /* the trainer has ended */
    /* Wait until bytes up to `upto` of the state are in the area. -1: they never will be. */
    int (*await)(void *ctx, uint64_t upto, struct err *e);
    /* They may be overwritten. */
    void (*release)(void *ctx, uint64_t upto);
    void *ctx;
};
/* `area` is the staging memory, laid out by checkpoint_area_of(). */
MUST_CHECK struct save_engine *save_engine_new(const void *setup, size_t n, const void *area, struct err *e);
void save_engine_free(struct save_engine *g);           /* NULL is fine */
/*
 * Write this rank's share, and what it owns; rank 0 publishes. Once the trainer has ended, the save goes
 * on if all of the state is there, but waits for others no longer than a while.
 * On -1 the old state is as it was, and *fault says whose doing it was.
 */
MUST_CHECK int save_engine_run(struct save_engine *g, const struct save_order *o, const struct save_feed *feed,
                               enum checkpoint_fault *fault, struct err *e);
/* What this rank's files of a save take on disk. */
uint64_t save_engine_disk_bytes(const struct save_engine *g);

/* ---- checkpoint_meet.c ---- */

struct save_meeting {
    const struct save_order *o;
    struct topology topo;
    int rank;
    char *part, *job;           /* paths */
    bool (*gone)(void *ctx);
    void *ctx;
    bool echo;                  /* given up because of another rank */
};
void save_meeting_open(struct save_meeting *m, const struct save_order *o, struct topology topo, int rank,
                       bool (*gone)(void *ctx), void *ctx);
void save_meeting_close(struct save_meeting *m);
MUST_CHECK int save_meeting_tell(const struct save_meeting *m, const char *word, const void *text, size_t n,
                                 struct err *e);
/* The text that `rank` told; waits for it. NULL: another rank failed, or was lost. Caller frees. */
MUST_CHECK char *save_meeting_hear(struct save_meeting *m, const char *word, int rank, struct err *e);
/*
 * This rank cannot go on, because of `why`: the others hear of it, unless it was another's doing: then m->echo is
 * set. What they find is always a first reason.
 */
void save_meeting_fail(struct save_meeting *m, const struct err *why);
/* Rank 0: everything is in place. */
MUST_CHECK int save_meeting_publish(const struct save_meeting *m, struct err *e);
/* Rank 0: nothing will come of it. */
void save_meeting_discard(const struct save_meeting *m);
/*
 * Remove a folder in which another process, which hears of the end only now, may be making a file, or to which it may
 * just be giving its name: tries for two seconds. A .part is renamed to .gone.part first, so that it is either
 * published whole or not at all. Gone is fine; what holds something foreign stays.
 */
MUST_CHECK int save_meeting_remove(const char *path, enum replace_what what, struct err *e);

#endif
