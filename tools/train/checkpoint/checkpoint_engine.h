/*
 * checkpoint_engine.h - the work of the writer process: from the staging area to a published checkpoint folder
 *
 * All data-parallel ranks with the same pipeline stage and tensor rank write to the same files, because a rank owns
 * pieces of every bucket and files are divided differently. Writers have no connections to each other. They communicate
 * through two folders that rank 0's trainer creates before any writer begins (TAG is the name of the checkpoint
 * folder):
 *
 *   DIR/TAG.<id>.part/          the files, each of final length from the start
 *   DIR/TAG.<id>.part.job/
 *       done.<rank>             the pieces of this rank are on disk; the file has the CRCs of its parts of every
 *                               storage
 *       sealed.<rank>           the files that this rank owns have their headers; the rank has waited for the done
 *                               files of all ranks that write to them
 *       failed.<rank>           written by a rank at fault, with the reason; all ranks then abandon the save
 *
 * Rank 0 waits for all sealed files, then records what it is about to do (latest.next), renames the folder to TAG,
 * and writes `latest` last. <id> is different for every save, so a process left over from a killed run finds its
 * folder missing and cannot damage anything.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_ENGINE_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_ENGINE_H

#include <limits.h>

#include "libcommon/layout/deepspeed/deepspeed_share.h"
#include "tools/train/checkpoint/checkpoint_impl.h"

/* One save, as ordered by the trainer. */
struct save_order {
    struct checkpoint_now now;
    char dir[PATH_MAX];         /* --save, as an absolute path */
    char tag[64];               /* "global_step20" */
    /* "global_step20.<id>.part", a name in dir; the job folder's name has ".job" appended */
    char part[96];
};

/*
 * The configuration that a saver sends to its writer once. After this struct, the message has blocks[topo.pp], this
 * rank's mp_rank file (from checkpoint_mp_make()), and this rank's share of the files (from ds_share_pack()).
 */
struct save_setup {
    struct topology topo;
    int pp, dp, tp;
    struct model_config model;
    enum dtype weights;
    int threads;
    uint64_t memory_bytes;      /* argument of checkpoint_area_of() */
    double first_gigaflos;      /* gigaflos of the first stage in the loaded checkpoint; 0: none was loaded */
    uint64_t mp_bytes;
};
/* ---- checkpoint_template.c ---- */

/*
 * Store the message that configures a writer in *out; writer_setup() sends it. `notes` receives what could not be
 * carried over from the loaded checkpoint.
 */
MUST_CHECK int checkpoint_template_make(const struct checkpoint_saver_opts *o, struct strbuf *out, struct report *notes,
                                        struct err *e);

/* ---- checkpoint_engine.c ---- */

struct save_engine;
/* The functions by which a writer communicates with its trainer during a save. */
struct save_feed {
    bool (*gone)(void *ctx);    /* returns true if the trainer has ended */
    /* Wait until the bytes of the state before `upto` are in the staging area. Returns -1 if they will never arrive. */
    int (*await)(void *ctx, uint64_t upto, struct err *e);
    /* Report that the staging area's bytes before `upto` may be overwritten. */
    void (*release)(void *ctx, uint64_t upto);
    void *ctx;
};
/* Create an engine. `area` is the staging memory, laid out by checkpoint_area_of(). */
MUST_CHECK struct save_engine *save_engine_new(const void *setup, size_t n, const void *area, struct err *e);
void save_engine_free(struct save_engine *g);           /* NULL is allowed */
/*
 * Write this rank's part of the save and complete the files that it owns. Rank 0 also publishes the checkpoint. After
 * the end of the trainer, the save continues only if the whole state is in the staging area, and waits for other ranks
 * only for a limited time. Returns the outcome for this rank. If the outcome is not SAVE_COMPLETE, the previous
 * checkpoint is unchanged and *e has the reason.
 */
enum save_outcome save_engine_run(struct save_engine *g, const struct save_order *o, const struct save_feed *feed,
                                  struct err *e);
/* Returns the number of bytes of disk space that this rank's files of a save need. */
uint64_t save_engine_disk_bytes(const struct save_engine *g);

/* ---- checkpoint_rendezvous.c ---- */

struct save_rendezvous {
    const struct save_order *o;
    struct topology topo;
    int rank;
    char *part, *job;           /* paths of the two folders of the save */
    bool (*gone)(void *ctx);
    void *ctx;
    bool echo;                  /* the save was abandoned because another rank failed */
};
void save_rendezvous_open(struct save_rendezvous *m, const struct save_order *o, struct topology topo, int rank,
                          bool (*gone)(void *ctx), void *ctx);
void save_rendezvous_close(struct save_rendezvous *m);
MUST_CHECK int save_rendezvous_post(const struct save_rendezvous *m, const char *word, const void *text, size_t n,
                                    struct err *e);
/*
 * Wait for the file `word`.`rank` and return its text. Returns NULL if a rank failed or was lost. The caller frees the
 * text.
 */
MUST_CHECK char *save_rendezvous_wait_for(struct save_rendezvous *m, const char *word, int rank, struct err *e);
/*
 * Publish to the other ranks that this rank cannot continue, with the reason `why`. If another rank's failure is the
 * cause, the function publishes nothing and sets m->echo, so that only original reasons are published.
 */
void save_rendezvous_fail(struct save_rendezvous *m, const struct err *why);
/* Publish the checkpoint, on rank 0, when all files are complete. */
MUST_CHECK int save_rendezvous_publish(const struct save_rendezvous *m, struct err *e);
/* Remove the folders of a save that failed, on rank 0. */
void save_rendezvous_discard(const struct save_rendezvous *m);

#endif
