/*
 * shape.h - the sizes of the model, its vocabulary and the partition into pipeline stages
 */
#ifndef SHARDKIT_TRAIN_RUN_SHAPE_H
#define SHARDKIT_TRAIN_RUN_SHAPE_H

#include "libcommon/base/err.h"
#include "libcommon/model/topology.h"
#include "tools/train/options/train_options.h"

struct trainer;

/*
 * Set the architecture options that were not given from t->from. ERR_USAGE if options and checkpoint contradict each
 * other.
 */
MUST_CHECK int shape_from_checkpoint(struct trainer *t, struct err *e);
/* Set t->model_config and t->blocks. *eod receives the tokenizer's end-of-document token, or -1. */
MUST_CHECK int shape_resolve_model(struct trainer *t, int64_t *eod, struct err *e);
/*
 * Compute the number of blocks of each stage of `topo`, by the run's partition method. Returns 1 if the method leaves
 * a stage empty and the blocks were distributed evenly instead. ERR_USAGE if there are too few blocks.
 */
MUST_CHECK int shape_cut(const struct trainer *t, struct topology topo, enum opts_recompute recompute, int *blocks,
                         struct err *e);

#endif
