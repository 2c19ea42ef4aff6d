/*
 * evaluate.h - validation and test sets, the loss, and a look at the logits
 */
#ifndef SHARDKIT_TRAIN_RUN_EVALUATE_H
#define SHARDKIT_TRAIN_RUN_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct dataset;
struct trainer;

/* A named set that is evaluated. */
struct evaluate_set {
    char *name;
    struct dataset *data;       /* NULL on ranks that read no data */
    int64_t at;                 /* next sample */
};

/* All validation sets (or test sets), logged under `where`: "iteration 20". */
MUST_CHECK int evaluate_all(struct trainer *t, struct evaluate_set *set, int n, const char *where, bool count,
                            struct err *e);
/*
 * The loss, mean over micro-batches and data-parallel ranks, on every rank: fetch queues its
 * copy to the host, share is for when something has waited for that.
 */
void evaluate_loss_fetch(struct trainer *t);
MUST_CHECK int evaluate_loss_share(struct trainer *t, int64_t micro_batches, double *loss, struct err *e);
/* --dump-logits: the first micro-batch of the first validation set. */
MUST_CHECK int evaluate_dump_logits(struct trainer *t, struct err *e);

#endif
