/*
 * checkpoint_write.h - the writer process's work: from a staging area to a published tag
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
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_WRITE_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_WRITE_H

#include <limits.h>

#include "libcommon/base/crc.h"
#include "libcommon/convert/replace.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "tools/train/checkpoint/checkpoint_impl.h"

/* One save, as the trainer orders it. */
struct save_order {
    struct checkpoint_now now;
    char dir[PATH_MAX];         /* --save, absolute */
    char tag[64];               /* "global_step20" */
    char part[96];              /* "global_step20.<id>.part", a name in dir; the job folder's has ".job" behind it */
};

struct save_engine;
/* `area` is the staging memory, laid out by checkpoint_area_of(). */
MUST_CHECK struct save_engine *save_engine_new(const void *setup, size_t n, const void *area, struct err *e);
void save_engine_free(struct save_engine *g);           /* NULL is fine */
/*
 * Write this rank's share, and what it owns; rank 0 publishes. gone(ctx) tells that the
 * trainer has ended: the save goes on then, but waits for others no longer than a while.
 * On -1 the old state is as it was, and *fault says whose doing it was.
 */
MUST_CHECK int save_engine_run(struct save_engine *g, const struct save_order *o, bool (*gone)(void *ctx), void *ctx,
                               enum checkpoint_fault *fault, struct err *e);
/* What all files of a save take on disk. */
uint64_t save_engine_disk_bytes(struct save_engine *g);

/* ---- for checkpoint_files.c and checkpoint_write.c ---- */

/* Where one of the stage's parameters goes. */
struct checkpoint_place {
    int param;                  /* in target->param */
    int group;
    int64_t first;              /* in the flat group */
    int layer_file;             /* in file[]; -1: the copy on the last stage has none */
};

/* A file that the ranks of this (pp, tp) fill. */
struct save_file {
    char *name, *prefix;
    int layer;                  /* its number, or -1: an optimizer shard */
    int dp;                     /* the shard's; of a layer file the rank that owns it */
    struct ds_tree tree;        /* of the save under way, as all below */
    struct pt_image *im;
    struct crc_sum *sum;        /* [tree.n] */
    int dst;                    /* in the plan; -1: this rank has nothing for it */
};

struct save_engine {
    struct checkpoint_base set;
    struct stage *s;
    struct source *mem;
    struct ds_target *t;
    struct arena *arena;
    const char *area;
    struct checkpoint_area at;
    int rank;
    struct checkpoint_place *place;        /* [s->n_params] */
    int n_files;
    struct save_file *file;     /* layer files, then the shards of dp 0 .. */
};

/* Make trees and images of all files of this (pp, tp), as this save has them; and drop them. */
void save_engine_lay_out(struct save_engine *g, const struct checkpoint_now *now);
void save_engine_forget(struct save_engine *g);
/* The whole mp_rank file of this rank's (pp, tp); caller frees. */
MUST_CHECK uint8_t *save_engine_mp_file(const struct save_engine *g, const struct checkpoint_now *now,
                                        const char *prefix, uint64_t *size, struct err *e);

/* ---- checkpoint_meet.c ---- */

struct save_meeting {
    const struct save_order *o;
    int rank, size;
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
 * Remove a folder in which another process, which hears of the end only now, may be making a file, or which it may
 * just be renaming: tries for two seconds. Gone is fine; what holds something foreign stays.
 */
MUST_CHECK int save_meeting_remove(const char *path, enum replace_what what, struct err *e);

#endif
