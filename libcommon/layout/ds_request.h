/*
 * ds_request.h - what the options of a conversion request of a sharded checkpoint
 *
 * Layouts that are not divided into tensor or pipeline ranks read the request to refuse options that they do not
 * support.
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
    /*
     * Megatron-DeepSpeed since 2022-07: the first block is layer 3; one number is left out before the final LayerNorm
     */
    NUMBERING_NEW,
    NUMBERING_OLD,              /* Megatron-DeepSpeed before 2022-07: as above, but two numbers are left out */
    NUMBERING_MSMD,             /* Microsoft's fork: the first block is layer 2; no number is left out */
};

struct ds_set {
    const char *text;                   /* KEY=VALUE, such as "args.lr=0.001" */
    bool any_type;                      /* the new value may have another type than the present one */
};

struct ds_request {
    struct topology topo;               /* degrees; 0: as in the source */
    const char *method;                 /* --pp-partition-method; NULL: by the rules in deepspeed_target.h */
    bool balance_given;
    enum pipeline_balance balance;
    const int *stages;                  /* [n_stages]: number of layers of each stage; NULL: computed */
    int n_stages;
    /* only with `stages`: if the last stage has no layers, the final LayerNorm is on this stage */
    bool norm_last;
    int64_t vocab;                      /* rows of the vocabulary; if 0, the rules in deepspeed_target.h decide */
    /* block i of the result is a copy of the source's block picked[i]; NULL: all blocks in their order */
    const int *picked;
    int n_picked;
    /* convert weights to the type `weights`, from the fp32 master weights if there are any */
    bool cast;
    int n_groups;                       /* number of optimizer groups, 2 or 3; 0: as in the source */
    enum ds_numbering numbering;
    /* checkpoint whose numbering, groups and partition method are used; NULL: those of the source */
    const struct source *like;
    bool no_optimizer;                  /* write no optimizer state */
    bool zero_moments;                  /* set both moments and the step to 0 */
    int64_t step;                       /* the iteration to record; -1: as in the source */
    const struct ds_set *set;           /* values to be changed (deepspeed_edit.h) */
    int n_set;
    /*
     * The tensors of the source are not used. Only its groups and the content of its files are. The caller provides the
     * tensors (deepspeed_share.h), with weights of the type `weights`. Names of files, and the order in layer files,
     * are those of a trainer.
     */
    bool no_tensors;
    enum dtype weights;
};

/*
 * Returns the name of a given option that only 3D shards have a use for, such as "--stages", or NULL if there is none.
 * Degrees, --pad-vocab-size-to, --like and --drop-optimizer are not checked here, because their use depends on the
 * layout.
 */
const char *ds_request_option(const struct ds_request *d);

#endif
