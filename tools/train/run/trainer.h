/*
 * trainer.h - the data of one rank of a training run
 *
 *   main.c         options, the writer process, joining the job
 *   setup.c        checkpoint and options -> stage, memory, groups, weights, data
 *   devices.c      the device that the rank computes on
 *   shape.c        checkpoint and options -> sizes of the model, vocabulary, blocks of each stage
 *   memory_plan.c  how much memory each rank needs, whether it fits, and what would make it fit
 *   initial_weights.c        initial weights
 *   batches.c      training data in device memory
 *   loop.c         iterations: step, log, evaluate, save, stop
 *   step.c         one iteration
 *   sets.c         the data: training, validation and test sets
 *   evaluate.c     evaluation of validation and test sets
 *   saving.c       saving of checkpoints while training continues
 *   savelock.c     lock: only one job at a time saves into a folder
 *   savedir.c      checks of the folder of --save and of the checkpoints in it
 *   show.c         lines about a run other than its training lines
 *   trainlog*.c    training lines, and values for TensorBoard
 *   status.c       status.json, signals, the kill switch
 *   nan.c          reports of gradients that are not finite
 *   agree.c        one outcome for all ranks
 *
 * Each file has a header of the same name with its interface. --preflight, which replaces training, is in ../health;
 * reports and the run's self-checks are in ../guard.
 */
#ifndef SHARDKIT_TRAIN_RUN_TRAINER_H
#define SHARDKIT_TRAIN_RUN_TRAINER_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "libcommon/model/loss_scale.h"
#include "tools/train/guard/incident_report.h"
#include "tools/train/guard/spike.h"
#include "tools/train/guard/throughput.h"
#include "tools/train/log/cause.h"
#include "tools/train/log/status.h"
#include "tools/train/network/model.h"
#include "tools/train/network/optimizer.h"
#include "tools/train/network/pipeline_stage.h"
#include "tools/train/options/train_options.h"
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
    struct comm *tp, *dp, *pipe, *tied;         /* tied: NULL if there is no such group */
    struct topology topo;
    int rank_pp, rank_dp, rank_tp;
    const struct kernels *k;
    enum dtype t;

    struct model_config model_config;
    const char *recorded_method;   /* the partition method that the saved arguments name */
    char *saved_method;         /* the checkpoint's partition method, if the options do not give one */
    int *blocks;                /* [pp] number of transformer blocks of each stage */
    struct stage *stage;
    struct stage_state state;
    char *state_pool;           /* the allocation that contains the buffers of `state` */
    struct model_opts model_opts;
    struct model *model;
    struct pipeline *pipeline;
    struct optimizer_opts optimizer_opts;
    struct optimizer *optimizer;
    struct digest_set *digest;      /* NULL: there are no copies, or comparing them is disabled */
    /* number of tokens of a replica's step from which on the digests of all weights with copies are recorded */
    int64_t digest_tokens;
    struct batches *batches;
    struct checkpoint *from;    /* during setup only; NULL if training starts from scratch */
    struct checkpoint_saver *saver;             /* NULL without --save */

    struct dataset *train;
    int n_valid, n_test;
    struct evaluate_set *valid, *test;

    double *loss;               /* host memory, the destination of copies from the device */

    struct schedule schedule;
    bool stands;                /* the values below are valid: the run is set up and, if applicable, loaded */
    int64_t iteration, consumed_samples, consumed_valid_samples, consumed_tokens;
    double gigaflos;
    /* skew: samples that skipped iterations passed over; skipped_to: the last skipped iteration, 0 for none */
    int64_t skew, skipped_to;
    int64_t opt_step;           /* Adam's step count at the last update */
    struct loss_scale scale;    /* for fp16; else 1 */
    int64_t skipped_steps;      /* iterations without an update because a gradient overflowed */
    bool overflow;              /* the last iteration was one of these */
    double last_norm;           /* gradient norm of the last update; 0: there was none yet */
    /* a checkpoint's learning rate, for the first update with --override-lr-scheduler; negative: none */
    double stored_lr;
    int64_t micro_batches;      /* number of micro-batches of the last step */

    struct trace *trace;        /* NULL without --trace */
    struct trainlog *log;       /* only on rank 0, like the next two */
    struct tfevents *events;
    struct savelock *lock;      /* the lock on the folder of --save */
    struct status status;
    /* NULL: none, or it belongs to another job; valid until all threads of the world have ended */
    char *status_path;
    bool status_fails;          /* it could not be written, and that has been reported */
    double start_s;             /* start of the job: the earliest of its processes, in clock_wall_s() time */
    int64_t saved_iteration;    /* the last iteration for which a save was begun; -1: none */
    char complete_tag[64];      /* the tag that `latest` names, as far as this run can determine */
    char saving_tag[64];        /* the tag of the last save that was begun */
    bool save_failed;           /* the last completed save failed */
    struct saving_pace pace;
    struct saving_way way;
    uint64_t save_memory;       /* bytes that this rank's snapshot may use; 0: unlimited */
    /* at the last straggler line: its clock_s() time, and the communication time up to then */
    double told_s, calls_s;
    bool all_know;              /* about a failure: every rank has seen it, so all ranks can exit in order */
    bool not_finite;            /* about a failure: a value of the state is not finite */
    enum cause cause;           /* about a failure: the exit status; 0: CAUSE_FAILED */
    int culprit;                /* about a failure: 1 + the rank at fault; 0: none */
    char tensor[112];           /* about a failure: the tensor that shows it, or "" */
    struct report_run report;
    struct throughput throughput;       /* only on rank 0, like the next three */
    struct spike spike;
    bool spiked;                /* the next complete checkpoint is to be kept */
    struct retain *retain;      /* NULL without --keep-last */
    bool became_slow;           /* rank 0 has to report this to the other ranks */
    /* time of this run's iterations, and how much of it was spent waiting for comparisons of copies */
    double steps_s, digest_s;
    int64_t n_digests;          /* the number of these comparisons */
    int64_t slow_from;          /* since this iteration the time of every rank is measured; 0: it is not */
    double params_no_embeds;    /* number of parameters of the whole model without both embeddings */
};

/* Returns the number of ranks of the run, or the number that a dry run plans for. */
static inline int trainer_ranks_planned(const struct trainer *t)
{
    return t->o.dry_run_ranks > 0 ? (int)t->o.dry_run_ranks : t->place->size;
}
/* Returns true for a mode in which nothing is written and nothing is trained. */
static inline bool trainer_is_check_only(const struct trainer *t) { return t->o.dry_run || t->o.preflight; }
/* Returns true on rank 0, which prints. */
static inline bool trainer_is_rank0(const struct trainer *t) { return t->place->rank == 0; }

#endif
