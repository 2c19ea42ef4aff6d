/*
 * trainer.h - one rank of a training run: what it holds, from start to end
 *
 *   main.c       options, the writer process, joining the job
 *   setup.c      checkpoint and options -> stage, memory, groups, weights, data
 *   devices.c    what it computes on
 *   shape.c      ... -> sizes of the model, vocabulary, blocks of each stage
 *   preflight.c  --preflight in place of training: tries out devices and links
 *   fresh.c      initial weights
 *   loop.c       iterations: step, log, evaluate, save, stop
 *   evaluate.c   validation and test sets
 *   saving.c     checkpoints on their way to disk
 *   savelock.c   one job at a time saves into a folder
 *   savedir.c    ... which must be able to take a checkpoint
 *   plan.c       memory: how much each rank needs, whether it fits, and what would make it fit
 *   show.c       what is printed before the first step
 *   nan.c        what is written when a gradient is not finite
 */
#ifndef SHARDKIT_TRAIN_RUN_TRAINER_H
#define SHARDKIT_TRAIN_RUN_TRAINER_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/network/model.h"
#include "tools/train/network/optimizer.h"
#include "tools/train/network/pipeline.h"
#include "tools/train/network/stage.h"
#include "tools/train/options/options.h"
#include "tools/train/options/schedule.h"
#include "tools/train/run/batches.h"
#include "tools/train/run/savelock.h"
#include "tools/train/run/status.h"
#include "tools/train/run/trainlog.h"

/* A named set that is evaluated. */
struct eval_set {
    char *name;
    struct dataset *data;       /* NULL on ranks that read no data */
    int64_t at;                 /* next sample */
};

struct trainer {
    struct train_opts o;
    struct writer *writer;
    struct comm_world *world;
    const struct comm_place *place;
    struct comm *tp, *dp, *pipe, *tied;         /* tied: NULL where there is none */
    struct topology topo;
    int rank_pp, rank_dp, rank_tp;
    const struct kernels *k;
    enum dtype t;

    struct model_config model_config;
    const char *noted_method;   /* the partition method that saved arguments name */
    char *saved_method;         /* the checkpoint's partition method, where the options do not give one */
    int *blocks;                /* [pp] transformer blocks of each stage */
    struct stage *stage;
    struct stage_state state;
    char *state_pool;           /* what the state's buffers are cut from */
    struct model_opts model_opts;
    struct model *model;
    struct pipeline *pipeline;
    struct optimizer_opts optimizer_opts;
    struct optimizer *optimizer;
    struct batches *batches;
    struct checkpoint *from;    /* while setting up; NULL from scratch */
    struct checkpoint_saver *saver;             /* NULL without --save */

    struct dataset *train;
    int n_valid, n_test;
    struct eval_set *valid, *test;

    double *loss;               /* host memory that the device copies to */

    struct schedule schedule;
    bool stands;                /* what follows is known: set up, and loaded where there was something */
    int64_t iteration, consumed_samples, consumed_valid_samples, consumed_tokens;
    double gigaflos;
    int64_t skew, skipped_to;   /* samples that skipped iterations passed over; the last of them, 0 for none */
    int64_t opt_step;           /* Adam's counter of the last update */
    double stored_lr;           /* of a checkpoint's groups: the first update's with --override-lr-scheduler; negative: none */
    int64_t micro_batches;      /* of the last step */

    struct trainlog *log;       /* rank 0 only, as are the next two */
    struct tfevents *events;
    struct savelock *lock;      /* of --save */
    struct status status;
    char *status_path;          /* NULL: none, or it is another job's */
    double start_s;             /* the job's: the earliest of its processes, by clock_wall_s() */
    int64_t saved_iteration;    /* last one that a save was begun for; -1: none */
    char complete_tag[64];      /* what `latest` names, as far as this run knows */
    char saving_tag[64];        /* the last one that a save was begun for */
    bool save_failed;           /* the last save that has ended did */
    double told_s, calls_s;     /* the last straggler line: when (clock_s()), and the time in communication until then */
    bool all_know;              /* of the failure: every rank has seen it, so all can leave in order */
    bool not_finite;            /* ... it is a value of the state that is no finite number */
    double params_no_embeds;    /* of the whole model, without both embeddings */
};

/* Ranks of the run: those that are here, or those of a dry run. */
static inline int ranks_planned(const struct trainer *t)
{
    return t->o.dry_run_ranks > 0 ? (int)t->o.dry_run_ranks : t->place->size;
}
/* Nothing is written, nothing is trained. */
static inline bool only_looks(const struct trainer *t) { return t->o.dry_run || t->o.preflight; }
static inline bool speaks(const struct trainer *t) { return t->place->rank == 0; }

/* Everything up to the first step. ERR_USAGE: exit 2. */
MUST_CHECK int trainer_setup(struct trainer *t, struct err *e);
/* For --preflight: the device's kernels, and the shape if the options or a checkpoint tell of a model (else t->stage is NULL). */
MUST_CHECK int trainer_setup_preflight(struct trainer *t, struct err *e);
void trainer_free(struct trainer *t);
/* t->k, and the way between the ranks' devices. ERR_USAGE, on every rank, where what was asked for is not there. */
MUST_CHECK int take_device(struct trainer *t, struct err *e);
/* Architecture that the options leave open, from t->from; ERR_USAGE where both say something else. */
MUST_CHECK int shape_from_checkpoint(struct trainer *t, struct err *e);
/* t->model_config, t->blocks. *eod: the tokenizer's end of document, or -1. */
MUST_CHECK int shape_settle(struct trainer *t, int64_t *eod, struct err *e);
/*
 * Blocks of each stage of `topo`, by the run's method; 1 when the method leaves a stage without and they
 * were dealt out evenly instead. ERR_USAGE when there are too few.
 */
MUST_CHECK int shape_cut(const struct trainer *t, struct topology topo, enum opts_recompute recompute, int *blocks,
                         struct err *e);
/* Set this rank's weights and masters from the seed: the same values in every topology. */
void fresh_weights(struct trainer *t);
/* Until it is done or told to stop. *reason says why; -1 for a failure. */
MUST_CHECK int trainer_run(struct trainer *t, enum status_reason *reason, struct err *e);

/* All validation sets (or test sets), logged under `where`: "iteration 20". */
MUST_CHECK int evaluate_all(struct trainer *t, struct eval_set *set, int n, const char *where, bool count,
                            struct err *e);
/*
 * The loss, mean over micro-batches and data-parallel ranks, on every rank: fetch queues its
 * copy to the host, share is for when something has waited for that.
 */
void loss_fetch(struct trainer *t);
MUST_CHECK int loss_share(struct trainer *t, int64_t micro_batches, double *loss, struct err *e);
/* --dump-logits: the first micro-batch of the first validation set. */
MUST_CHECK int dump_logits(struct trainer *t, struct err *e);

/* Begin a save of the present iteration. One that fails does not stop the run, unless nothing could be saved any more. */
MUST_CHECK int save_now(struct trainer *t, struct err *e);
/* Has a save failed, as this rank sees it? Then all call save_settle(). One that went well is told. */
bool save_poll(struct trainer *t);
/* Wait for the save under way and tell of it: t->save_failed. -1: the state is not finite, or ranks cannot speak. */
MUST_CHECK int save_settle(struct trainer *t, struct err *e);
/* At the end: a last save that failed is tried once more; -1 when nothing helps. */
MUST_CHECK int save_finish(struct trainer *t, struct err *e);
MUST_CHECK int saver_open(struct trainer *t, struct err *e);
/*
 * All ranks have come here, each with its rc and *e: 0 when all did well. Else -1 and the same *e on all, of the
 * lowest rank that failed, which it names unless all did; t->all_know. (Or they cannot speak to each other.)
 */
MUST_CHECK int agree_all_well(struct trainer *t, int rc, struct err *e);

/* Print a report's notes and warnings, from rank 0. */
void show_report(struct trainer *t, struct report *r);
void show_settings(struct trainer *t);

/* ---- plan.c: device memory, in bytes; from t's settled shape, nothing is allocated ---- */

enum { PLAN_SNAPSHOT = 6, PLAN_PROGRAM, PLAN_PARTS, PLAN_RANKS_MAX = 65536 };
struct plan {
    uint64_t part[PLAN_PARTS], total;
    int n_parts;                /* that total is the sum of: a GPU has neither the snapshot nor the program */
    int stage;
};
/* Of a rank of stage pp; all of its ranks have the same. */
void plan_stage(const struct trainer *t, int pp, struct plan *out);
/* The plan of every stage, from rank 0. */
void show_plan(struct trainer *t);
/*
 * Does every rank's plan fit into what its device has free, or into --device-memory? Every rank calls
 * it. When not: ERR_SYS and t->all_know, and rank 0 has told what would make it fit.
 */
MUST_CHECK int plan_check(struct trainer *t, struct err *e);
/* Lines of single changes that fit into `room` bytes a rank, with the bytes; of two changes where one does not do. */
void plan_advise(const struct trainer *t, uint64_t room, struct strbuf *out);
/* A dry run for other machines' GPUs: --device-memory, and not for the CPU. */
bool plan_elsewhere(const struct trainer *t);

/*
 * Can a checkpoint be saved where --save points? All ranks. ERR_USAGE when there is no room for one, ERR_DATA when a
 * host cannot make, write or rename files there. A dry run only looks.
 */
MUST_CHECK int savedir_check(struct trainer *t, struct err *e);
/* One line from rank 0, to the log. */
void say(struct trainer *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
void set_phase(struct trainer *t, const char *phase);

/*
 * A step came to a norm or loss that is not finite: *e says so, and which rank's tensor was the first.
 * Each rank's SAVE/nan_iteration<N>.rank<R>.json has all of them. -1, and another *e: ranks cannot speak.
 */
MUST_CHECK int nan_tell(struct trainer *t, double norm, double loss, struct err *e);

#endif
