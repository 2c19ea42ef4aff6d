/*
 * shape.h - the model's sizes, its vocabulary and the pipeline's cut
 */
#ifndef SHARDKIT_TRAIN_RUN_SHAPE_H
#define SHARDKIT_TRAIN_RUN_SHAPE_H

#include "libcommon/base/err.h"
#include "libcommon/model/topology.h"
#include "tools/train/options/options.h"

struct trainer;

/* Architecture that the options leave open, from t->from; ERR_USAGE where both say something else. */
MUST_CHECK int shape_from_checkpoint(struct trainer *t, struct err *e);
/* t->model_config, t->blocks. *eod: the tokenizer's end of document, or -1. */
MUST_CHECK int shape_settle_model(struct trainer *t, int64_t *eod, struct err *e);
/*
 * Blocks of each stage of `topo`, by the run's method; 1 when the method leaves a stage without and they
 * were dealt out evenly instead. ERR_USAGE when there are too few.
 */
MUST_CHECK int shape_cut(const struct trainer *t, struct topology topo, enum opts_recompute recompute, int *blocks,
                         struct err *e);

#endif
