/*
 * stage.h - what one rank holds of the model: its parameters, and where they lie in memory
 *
 * A stage is a run of transformer blocks, with the embedding in front on the first stage
 * and the final LayerNorm and the head behind on the last. Weights (T) and gradients
 * of a stage are flat buffers with the same offsets, in the order in which the backward pass
 * finishes them, cut into buckets that data parallelism reduces one by one. Every data-
 * parallel rank owns an equal part of each bucket: of that part it holds masters and moments
 * (its shard), laid end to end. Where files put the same elements is the checkpoint's
 * business (checkpoint/), for memory and files are cut for different ends.
 *
 *   flat     | bucket 0: final norm, (tied copy) | bucket 1: last block | ... | embedding |
 *   owned    |    d=0    |    d=1                |  d=0   |   d=1       | ... | d=0 | d=1 |
 *   shard d=1            |<-- first run -->|<- second ->| ...
 */
#ifndef SHARDKIT_TRAIN_NETWORK_STAGE_H
#define SHARDKIT_TRAIN_NETWORK_STAGE_H

#include "libcommon/base/mem.h"
#include "libcommon/model/config.h"
#include "libcommon/model/params.h"
#include "libcommon/model/pipeline.h"
#include "libcommon/model/topology.h"

/*
 * Elements. Parameters begin at multiples of it, and every bucket divides by dp times it: shards stay aligned for
 * vector code and whole cache lines.
 */
enum { STAGE_ALIGN = 32 };

/* One parameter as this rank holds it: its tensor-parallel slice. */
struct stage_param {
    const char *name;           /* canonical, blocks numbered from 3: "3.mlp.dense_4h_to_h.weight" */
    enum role role;
    int block;                  /* 0-based in the model; -1 outside blocks */
    int id;                     /* among the model's parameters, in every topology alike; a tied copy: the original's */
    bool tied_copy;             /* the last stage's copy of the embedding (PP > 1) */
    bool untrained;             /* the last stage's position table (GPT-2, PP > 1): only decays */
    bool decays;                /* weight decay applies */
    bool split;                 /* tensor ranks hold different slices; false: equal copies */
    enum merge_rule merge;
    int ndim;
    int64_t shape[2], slice[2]; /* merged (V padded rows included), and of one tensor rank */
    int64_t n;                  /* elements of the slice */
    int64_t at;                 /* its first element in the flat buffers */
};

struct stage_bucket {
    int64_t at, n;              /* elements of the flat buffers; n is a multiple of dp * 32 */
    int64_t shard_at;           /* where this rank's n / dp elements begin in its shard */
    int block;                  /* the block whose backward pass completes it; -1: the end of the micro-batch */
};

/* A run of one parameter's slice that this rank owns. */
struct stage_run {
    int param;                  /* in stage->param */
    int64_t from, n;            /* elements of the slice, row-major */
    int64_t shard_at;           /* in the shard */
};

struct stage {
    struct arena *arena;
    struct topology topo;
    int pp, dp, tp;             /* this rank's coordinates */
    struct model_config model;
    int first_block, n_blocks;
    bool first, last;           /* holds the embedding; holds the head */
    bool norm;                  /* holds the final norm: the last stage that has blocks */
    int n_ids;                  /* parameters of the whole model */
    int n_params;
    struct stage_param *param;
    int (*by_role)[ROLE_N];     /* [n_blocks + 1]: numbers in param of each block's parameters, the last row those
                                 * outside blocks; -1 where there is none */
    int n_buckets;
    struct stage_bucket *bucket;
    int64_t flat_n;             /* elements of the flat buffers */
    int64_t shard_n;            /* elements of this rank's shard */
    int n_runs;
    struct stage_run *run;      /* ascending in shard_at; gaps are padding */
};

/*
 * The share of rank (pp, dp, tp) when blocks[i] transformer blocks are on stage i; the first may have none, and the
 * last. The sizes must divide (options_check has seen to it); asserts otherwise.
 */
struct stage *stage_new(const struct model_config *m, struct topology topo, int pp, int dp, int tp, const int *blocks);
void stage_free(struct stage *s);                       /* NULL is fine */
/* What data-parallel rank `dp` owns of each parameter, as run[] has it of this rank; *n of them, in the arena. */
struct stage_run *stage_runs(const struct stage *s, int dp, struct arena *a, int *n);
/* The parameter of a role; block 0 is the stage's first, -1 for those outside blocks. NULL: none here. */
const struct stage_param *stage_get(const struct stage *s, int block, enum role r);

/* The buffers of one rank, in device memory. */
struct stage_state {
    void *weights;              /* T [flat_n] */
    void *grads;                /* [flat_n] fp32, or T (model_opts.grad_t) */
    float *master, *exp_avg, *exp_avg_sq;       /* fp32 [shard_n] */
};

#endif
