/*
 * batches.h - convert samples of a numbered dataset to micro-batches in device memory
 *
 * The global order of samples depends only on the dataset: micro-batch i of a step that begins at sample c contains
 * the samples from c + i * b * dp + d * b on, for data-parallel rank d (docs/training.md 5.4). Every rank of the
 * first and last stage reads its samples itself, from files that all of these ranks map.
 */
#ifndef SHARDKIT_TRAIN_RUN_BATCHES_H
#define SHARDKIT_TRAIN_RUN_BATCHES_H

#include "kernels/kernels.h"
#include "libcommon/comm/watch.h"
#include "libcommon/model/dataset.h"
#include "tools/train/network/model.h"

struct batches_opts {
    int b, s;
    int dp, d;                  /* data-parallel degree and rank */
    int n_slots;
    int64_t vocab;              /* V: a token at or above it is an error */
    int64_t eod;                /* end-of-document token; -1: unknown */
    bool eod_mask_loss;         /* compute no loss where the input is EOD */
    bool reset_positions;       /* positions restart at 0 after EOD */
    struct watch *watch;        /* informed of each read, so that a read that does not end can be reported */
};

struct batches;
MUST_CHECK struct batches *batches_new(const struct kernels *k, const struct batches_opts *o, struct err *e);
void batches_free(struct batches *b);           /* NULL is allowed */
uint64_t batches_bytes(const struct batches_opts *o);
/*
 * Set the source of the next micro-batches to `d`, from sample `first` on. A step consists of n micro-batches; its loss
 * is multiplied by `scale` for the gradients.
 */
void batches_begin(struct batches *b, const struct dataset *d, int64_t first, int n, double scale);
/*
 * Make micro-batch i of the step in `slot`, as pipeline_batch requires; ctx is the struct batches. Fails with ERR_DATA
 * for a token outside of the vocabulary.
 */
MUST_CHECK int batches_get(void *ctx, int i, int slot, struct micro_batch *mb, struct err *e);

#endif
