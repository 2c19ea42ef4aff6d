/*
 * evaluate.h - evaluate validation and test sets, compute the loss, write logits
 */
#ifndef SHARDKIT_TRAIN_RUN_EVALUATE_H
#define SHARDKIT_TRAIN_RUN_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct dataset;
struct trainer;

/* A set that is evaluated, and its name. */
struct evaluate_set {
    char *name;
    struct dataset *data;       /* NULL on ranks that read no data */
    int64_t at;                 /* index of the next sample */
};

/*
 * Evaluate n sets (validation or test sets), and log the results. `where` is the text for the log lines, such as
 * "iteration 20".
 */
MUST_CHECK int evaluate_all(struct trainer *t, struct evaluate_set *set, int n, const char *where, bool count,
                            struct err *e);
/*
 * Compute the mean loss in three steps. evaluate_loss_fetch() queues the copy of this rank's sum of losses to
 * *t->network.loss. optimizer_reduce() replaces this number with the sum over all ranks. evaluate_loss_mean() then
 * returns the mean over micro-batches and data-parallel ranks.
 */
void evaluate_loss_fetch(struct trainer *t);
double evaluate_loss_mean(const struct trainer *t, int64_t micro_batches);
/* --dump-logits: write the logits of the first micro-batch of the first validation set to files. */
MUST_CHECK int evaluate_dump_logits(struct trainer *t, struct err *e);

#endif
