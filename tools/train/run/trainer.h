/*
 * trainer.h - one rank of a training run: what it holds, from start to end
 *
 *   main.c         options, the writer process, joining the job
 *   setup.c        checkpoint and options -> stage, memory, groups, weights, data
 *   devices.c      what it computes on
 *   shape.c        ... -> sizes of the model, vocabulary, blocks of each stage
 *   memory_plan.c  how much each rank needs, whether it fits, and what would make it fit
 *   fresh.c        initial weights
 *   batches.c      ... and what they are trained on
 *   loop.c         iterations: step, log, evaluate, save, stop
 *   step.c         one of them
 *   sets.c         the data: training, validation and test sets
 *   evaluate.c     validation and test sets
 *   saving.c       checkpoints on their way to disk
 *   savelock.c     one job at a time saves into a folder
 *   savedir.c      ... which must be able to take a checkpoint, and may hold some
 *   show.c         what is said of a run beside its training lines
 *   trainlog*.c    these, and what TensorBoard gets
 *   status.c       status.json, signals, the kill switch
 *   nan.c          what is written when a gradient is not finite
 *   agree.c        one outcome for all ranks
 *
 * Each has a header of that name with what it offers. --preflight, in place of training, is ../health; reports and
 * checks of the run by itself are ../guard.
 */
#ifndef SHARDKIT_TRAIN_RUN_TRAINER_H
#define SHARDKIT_TRAIN_RUN_TRAINER_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "libcommon/model/loss_scale.h"
#include "tools/train/guard/report.h"
#include "tools/train/guard/spike.h"
#include "tools/train/guard/throughput.h"
#include "tools/train/log/cause.h"
#include "tools/train/log/status.h"
#include "tools/train/network/model.h"
#include "tools/train/network/optimizer.h"
#include "tools/train/network/stage.h"
#include "tools/train/options/options.h"
#include "tools/train/options/schedule.h"
#include "tools/train/run/saving.h"

struct batches;
struct checkpoint;
struct checkpoint_saver;
struct dataset;
struct digest_set;
struct evaluate_set;
struct pipeline;
struct retain;
struct savelock;
struct tfevents;
struct trace;
struct trainlog;
struct writer;

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
    struct digest_set *digest;      /* NULL: there are no copies, or nobody wants them compared */
    int64_t digest_tokens;          /* a replica's of a step from which on all weights with copies are noted */
    struct batches *batches;
    struct checkpoint *from;    /* while setting up; NULL from scratch */
    struct checkpoint_saver *saver;             /* NULL without --save */

    struct dataset *train;
    int n_valid, n_test;
    struct evaluate_set *valid, *test;

    double *loss;               /* host memory that the device copies to */

    struct schedule schedule;
    bool stands;                /* what follows is known: set up, and loaded where there was something */
    int64_t iteration, consumed_samples, consumed_valid_samples, consumed_tokens;
    double gigaflos;
    int64_t skew, skipped_to;   /* samples that skipped iterations passed over; the last of them, 0 for none */
    int64_t opt_step;           /* Adam's counter of the last update */
    struct loss_scale scale;    /* fp16; else 1 */
    int64_t skipped_steps;      /* iterations without an update, as a gradient overflowed */
    bool overflow;              /* the last iteration was one of them */
    double last_norm;           /* of the last update; 0: none yet */
    double stored_lr;           /* a checkpoint's, for the first update with --override-lr-scheduler; negative: none */
    int64_t micro_batches;      /* of the last step */

    struct trace *trace;        /* NULL without --trace */
    struct trainlog *log;       /* rank 0 only, as are the next two */
    struct tfevents *events;
    struct savelock *lock;      /* of --save */
    struct status status;
    char *status_path;          /* NULL: none, or it is another job's; lives until no thread of the world is left */
    bool status_fails;          /* it could not be written, which has been said */
    double start_s;             /* the job's: the earliest of its processes, by clock_wall_s() */
    int64_t saved_iteration;    /* last one that a save was begun for; -1: none */
    char complete_tag[64];      /* what `latest` names, as far as this run knows */
    char saving_tag[64];        /* the last one that a save was begun for */
    bool save_failed;           /* the last save that has ended did */
    struct saving_pace pace;
    struct saving_way way;
    uint64_t save_memory;       /* bytes that this rank's snapshot may take; 0: all it wants */
    double told_s, calls_s;     /* the last straggler line: when, by clock_s(), and the time in communication so far */
    bool all_know;              /* of the failure: every rank has seen it, so all can leave in order */
    bool not_finite;            /* ... it is a value of the state that is no finite number */
    enum cause cause;           /* ... and the exit status; 0: CAUSE_FAILED */
    int culprit;                /* ... 1 + the rank whose fault it is; 0: nobody's */
    char tensor[112];           /* ... and the tensor that shows it; "" */
    struct report_run report;
    struct throughput throughput;       /* rank 0, as are the next three */
    struct spike spike;
    bool spiked;                /* the next checkpoint that is complete is to stay */
    struct retain *retain;      /* --keep-last; else NULL */
    bool became_slow;           /* rank 0 has to say so to the others */
    double steps_s, digest_s;   /* this run's iterations, and what it waited in them for copies to be compared */
    int64_t n_digests;          /* ... and how often that was */
    int64_t slow_from;          /* every rank's time is looked at since this iteration; 0: it is not */
    double params_no_embeds;    /* of the whole model, without both embeddings */
};

/* Ranks of the run: those that are here, or those of a dry run. */
static inline int trainer_ranks_planned(const struct trainer *t)
{
    return t->o.dry_run_ranks > 0 ? (int)t->o.dry_run_ranks : t->place->size;
}
/* Nothing is written, nothing is trained. */
static inline bool trainer_only_looks(const struct trainer *t) { return t->o.dry_run || t->o.preflight; }
/* Rank 0 talks. */
static inline bool trainer_speaks(const struct trainer *t) { return t->place->rank == 0; }

#endif
