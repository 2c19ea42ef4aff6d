/*
 * batches.h - convert samples of a numbered dataset to micro-batches in device memory
 *
 * The global order of samples depends only on the dataset: micro-batch i of a step that begins at sample c contains
 * the samples from c + i * b * dp + d * b on, for data-parallel rank d (docs/training.md 5.4). Every rank of the first
 * and of the last stage reads its samples itself, from files that are mapped into the memory of all these ranks.
 */
#ifndef SHARDKIT_TRAIN_RUN_BATCHES_H
#define SHARDKIT_TRAIN_RUN_BATCHES_H

#include "kernels/kernels.h"
#include "libcommon/comm/watch.h"
#include "libcommon/model/dataset.h"
#include "tools/train/network/model.h"

struct batches_opts {
    int b, s;
    int dp, d;                  /* number of data-parallel ranks, and this rank's number among them */
    int n_slots;
    int64_t vocab;              /* number of rows of the vocabulary; every token must be less than this number */
    int64_t eod;                /* end-of-document token; -1: unknown */
    bool eod_mask_loss;         /* compute no loss where the input is EOD */
    bool reset_positions;       /* positions start again at 0 after EOD */
    struct watch *watch;        /* is informed of each read, so that it can report a read that does not end */
};

struct batches;
MUST_CHECK struct batches *batches_new(const struct kernels *k, const struct batches_opts *o, struct err *e);
void batches_free(struct batches *b);           /* NULL is allowed */
uint64_t batches_bytes(const struct batches_opts *o);
/*
 * Set the source of the following micro-batches to the dataset `d`, from sample number `first` on. A step has n
 * micro-batches. For the gradients, its loss is multiplied by `scale`.
 */
void batches_begin(struct batches *b, const struct dataset *d, int64_t first, int n, double scale);
/*
 * Read micro-batch i of the step and copy it to `slot`. This is a pipeline_batch function; ctx is the struct batches.
 * Fails with ERR_DATA if a token is outside of the vocabulary.
 */
MUST_CHECK int batches_get(void *ctx, int i, int slot, struct micro_batch *mb, struct err *e);

#endif
