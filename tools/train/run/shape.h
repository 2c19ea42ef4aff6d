/*
 * shape.h - the sizes of the model, its vocabulary and the partition into pipeline stages
 */
#ifndef SHARDKIT_TRAIN_RUN_SHAPE_H
#define SHARDKIT_TRAIN_RUN_SHAPE_H

#include "libcommon/base/err.h"
#include "libcommon/base/dtype.h"
#include "libcommon/model/config.h"
#include "libcommon/model/topology.h"
#include "tools/train/options/train_options.h"

struct trainer;

/* The sizes of the model and its partition into stages. */
struct run_shape {
    struct model_config config;
    int64_t eod;                /* the tokenizer's end-of-document token; -1: unknown */
    int *blocks;                /* [pp] number of transformer blocks of each stage */
    const char *recorded_method;        /* the partition method that the saved arguments name */
    char *saved_method;         /* the checkpoint's partition method, if the options do not give one */
    enum dtype weights;         /* T, the type of the weights that the passes use */
    double params_no_embeds;    /* number of parameters of the whole model without both embeddings */
};

/*
 * Set the architecture options that were not given from t->from. ERR_USAGE if options and checkpoint contradict each
 * other.
 */
MUST_CHECK int shape_from_checkpoint(struct trainer *t, struct err *e);
/* Set the members of t->shape that the options and the checkpoint leave open, except for params_no_embeds. */
MUST_CHECK int shape_resolve_model(struct trainer *t, struct err *e);
/*
 * Compute the number of blocks of each stage of `topo`, by the run's partition method. Returns 1 if the method leaves
 * a stage empty and the blocks were distributed evenly instead. ERR_USAGE if there are too few blocks.
 */
MUST_CHECK int shape_cut(const struct trainer *t, struct topology topo, enum opts_recompute recompute, int *blocks,
                         struct err *e);

#endif
