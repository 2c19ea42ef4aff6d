/*
 * trainer.h - the data of one rank of a training run
 *
 *   setup.c        checkpoint and options -> device, stage, memory, groups, weights, data
 *   run_ranks.c    the ranks of the job, and this one's groups
 *   resume.c       the checkpoint that the run continues
 *   shape.c        checkpoint and options -> sizes of the model, vocabulary, blocks of each stage
 *   memory_plan.c  how much memory each rank needs, whether it fits, and what would make it fit
 *   run_network.c  memory and initial weights of the rank's part of the model
 *   sets.c         the data: training, validation and test sets
 *   batches.c      training data in device memory
 *   loop.c         iterations: step, log, evaluate, save, stop
 *   step.c         one iteration
 *   evaluate.c     evaluation of validation and test sets
 *   saving.c       saving of checkpoints while training continues
 *   savedir.c      checks of the folder of --save and of the checkpoints in it
 *   show.c         lines about a run other than its training lines, and its status
 *   nan.c          reports of gradients that are not finite
 *
 * Each file has a header of the same name. It contains the interface, and the part of the trainer's data that this file
 * owns. A function receives the parts that it needs; functions that need most of them receive the trainer. --preflight,
 * which replaces training, is in ../health; reports and the run's self-checks are in ../guard.
 */
#ifndef SHARDKIT_TRAIN_RUN_TRAINER_H
#define SHARDKIT_TRAIN_RUN_TRAINER_H

#include "kernels/kernels.h"
#include "tools/train/guard/incident_report.h"
#include "tools/train/options/train_options.h"
#include "tools/train/run/run_network.h"
#include "tools/train/run/run_progress.h"
#include "tools/train/run/run_ranks.h"
#include "tools/train/run/saving.h"
#include "tools/train/run/sets.h"
#include "tools/train/run/shape.h"
#include "tools/train/run/show.h"
#include "tools/train/run/step.h"

struct checkpoint;
struct trace;

struct trainer {
    struct train_opts o;
    struct run_ranks ranks;
    const struct kernels *k;            /* the kernels of the device that this rank uses */
    /* The checkpoint of --load. It is open during the setup only; NULL if training starts from scratch. */
    struct checkpoint *from;
    struct run_shape shape;
    struct run_network network;
    struct run_sets sets;
    struct run_progress progress;
    struct run_copies copies;
    struct run_log log;
    struct run_saves saves;
    struct trace *trace;                /* NULL without --trace */
    struct report_run report;
    struct run_failure failure;
};

/* Returns the number of ranks of the run, or the number of ranks that a dry run plans for. */
static inline int trainer_ranks_planned(const struct trainer *t)
{
    return t->o.dry_run_ranks > 0 ? (int)t->o.dry_run_ranks : t->ranks.place->size;
}
/* Returns true if the program only checks something (--dry-run or --preflight), so that it does not train. */
static inline bool trainer_is_check_only(const struct trainer *t) { return t->o.dry_run || t->o.preflight; }
/* Returns true on rank 0, which prints. */
static inline bool trainer_is_rank0(const struct trainer *t) { return run_ranks_is_rank0(&t->ranks); }

#endif
