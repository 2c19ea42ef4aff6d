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
    const char *recorded_method;        /* the partition method that is saved in checkpoints */
    char *saved_method;         /* the partition method in the loaded checkpoint, if the options do not give one */
    enum dtype weights;         /* T, the type of the weights in the forward and backward passes */
    double params_no_embeds;    /* number of parameters of the whole model, without the word and position embeddings */
};

/*
 * Set the architecture options that were not given from the checkpoint t->from. Fails with ERR_USAGE if a given option
 * contradicts the checkpoint.
 */
MUST_CHECK int shape_from_checkpoint(struct trainer *t, struct err *e);
/* Set the members of t->shape that neither the options nor the checkpoint determine, except for params_no_embeds. */
MUST_CHECK int shape_resolve_model(struct trainer *t, struct err *e);
/*
 * Compute the number of blocks of each stage of `topo`, by the partition method of the run. Returns 1 if the method
 * would leave a stage empty; the blocks are then distributed evenly instead. Fails with ERR_USAGE if there are too few
 * blocks.
 */
MUST_CHECK int shape_cut(const struct trainer *t, struct topology topo, enum opts_recompute recompute, int *blocks,
                         struct err *e);

#endif
