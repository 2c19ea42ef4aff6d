/*
 * ds_request.h - what the options of a conversion request of a sharded checkpoint
 *
 * Layouts that are not divided by tensor or pipeline ranks read it to refuse options that they have no use for.
 */
#ifndef SHARDKIT_LAYOUT_DS_REQUEST_H
#define SHARDKIT_LAYOUT_DS_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/model/pipeline_cuts.h"
#include "libcommon/model/topology.h"

struct source;

enum ds_numbering {
    NUMBERING_KEEP,
    NUMBERING_NEW,              /* Megatron-DeepSpeed since 2022-07: layers from 3, final LayerNorm after a gap of 1 */
    NUMBERING_OLD,              /* before: a gap of 2 */
    NUMBERING_MSMD,             /* Microsoft's fork: layers from 2, no gap */
};

struct ds_set {
    const char *text;                   /* "args.lr=0.001" */
    bool any_type;                      /* also allow a change of the value's type */
};

struct ds_request {
    struct topology topo;               /* 0: as in the source */
    const char *method;                 /* --pp-partition-method; NULL: see above */
    bool balance_given;
    enum pipeline_balance balance;
    const int *stages;                  /* number of layers of each stage, or NULL */
    int n_stages;
    bool norm_last;                     /* with stages: a last stage without layers also has the final LayerNorm */
    int64_t vocab;                      /* 0: see above */
    const int *picked;                  /* block i is a copy of the source's block picked[i]; NULL: all blocks,
                                           unchanged */
    int n_picked;
    bool cast;                          /* convert weights to the type `weights`, from masters if there are any */
    int n_groups;                       /* 2 or 3; 0: as in the source */
    enum ds_numbering numbering;
    const struct source *like;          /* use its numbering, groups and partition method; or NULL */
    bool no_optimizer;                  /* write no optimizer state */
    bool zero_moments;                  /* set both moments and the step to 0 */
    int64_t step;                       /* the iteration to record; -1: the source's */
    const struct ds_set *set;           /* deepspeed_edit.h */
    int n_set;
    /*
     * The source provides the content of files and the grouping of parameters, but its tensors are not used: the
     * caller provides them (deepspeed_share.h), of dtype `weights`. File names and the order in layer files are those
     * of a trainer.
     */
    bool no_tensors;
    enum dtype weights;
};

#endif
