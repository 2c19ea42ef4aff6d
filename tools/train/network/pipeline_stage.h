/*
 * pipeline_stage.h - the part of the model that one rank holds: its parameters, and their layout in memory
 *
 * A stage is a run of transformer blocks. The first stage also has the embedding at the beginning, the last one the
 * final LayerNorm and the head at the end. Weights (T) and gradients of a stage are flat buffers with the same
 * offsets. The parameters are in the order in which the backward pass finishes them, divided into buckets that data
 * parallelism reduces one by one. Every data-parallel rank owns an equal part of each bucket; it holds the fp32 master
 * weights and moments of these parts, stored contiguously (its shard). Files have a different order of these elements,
 * which is defined in checkpoint/, because memory and files are divided for different purposes.
 *
 *   flat     | bucket 0: final norm, (tied copy) | bucket 1: last block | ... | embedding |
 *   owned    |    d=0    |    d=1                |  d=0   |   d=1       | ... | d=0 | d=1 |
 *   shard d=1            |<-- first run -->|<- second ->| ...
 */
#ifndef SHARDKIT_TRAIN_NETWORK_PIPELINE_STAGE_H
#define SHARDKIT_TRAIN_NETWORK_PIPELINE_STAGE_H

#include "libcommon/base/mem.h"
#include "libcommon/model/config.h"
#include "libcommon/model/params.h"
#include "libcommon/model/pipeline_cuts.h"
#include "libcommon/model/topology.h"

/*
 * Parameters begin at multiples of this number of elements, and the size of every bucket is a multiple of dp times this
 * number. Shards therefore stay aligned for vector code and consist of whole cache lines.
 */
enum { STAGE_ALIGN = 32 };

/* A parameter as this rank holds it: the slice of this tensor-parallel rank. */
struct stage_param {
    const char *name;           /* name in which blocks are numbered from 3, such as "3.mlp.dense_4h_to_h.weight" */
    enum role role;
    int block;                  /* index of its block in the model, from 0; -1: it is outside of blocks */
    /*
     * The index of the parameter among all parameters of the model, which is the same in every topology. A tied copy
     * has the index of the original.
     */
    int id;
    bool tied_copy;             /* it is the last stage's copy of the tied embedding (PP > 1) */
    /* It is the position table of the last stage (GPT-2, PP > 1). It has no gradients: only weight decay changes it. */
    bool untrained;
    bool decays;                /* weight decay applies */
    bool split;                 /* tensor-parallel ranks hold different slices; false: they hold equal copies */
    enum merge_rule merge;
    int ndim;
    /*
     * Sizes of the merged tensor, where V includes padding rows (shape), and of the slice that one tensor-parallel rank
     * holds (slice).
     */
    int64_t shape[2], slice[2];
    int64_t n;                  /* number of elements of the slice */
    int64_t at;                 /* index of its first element in the flat buffers */
};

struct stage_bucket {
    /* Position and size of the bucket in the flat buffers, in elements. n is a multiple of dp * STAGE_ALIGN. */
    int64_t at, n;
    int64_t shard_at;           /* position in the shard of the n / dp elements that this rank owns */
    /*
     * The block whose backward pass completes the gradients of the bucket. -1: they are complete at the end of the
     * micro-batch.
     */
    int block;
};

/* A contiguous range of one parameter's slice that this rank owns. */
struct stage_run {
    int param;                  /* index in stage->param */
    int64_t from, n;            /* range of elements of the slice, in row-major order */
    int64_t shard_at;           /* position of the range in the shard */
};

struct stage {
    struct arena *arena;
    struct topology topo;
    int pp, dp, tp;             /* this rank's pipeline stage, data-parallel rank and tensor-parallel rank */
    struct model_config model;
    int first_block, n_blocks;
    bool first, last;           /* first: the stage has the embedding; last: the stage has the head */
    bool norm;                  /* the stage has the final LayerNorm, because it is the last one with blocks */
    int n_ids;                  /* number of parameters of the whole model */
    int n_params;
    struct stage_param *param;
    /*
     * [n_blocks + 1]: for each block, the indices in param[] of its parameters by role. The last row is for parameters
     * outside of blocks. -1: the stage has no such parameter.
     */
    int (*by_role)[ROLE_N];
    int n_buckets;
    struct stage_bucket *bucket;
    int64_t flat_n;             /* number of elements of the flat buffers */
    int64_t shard_n;            /* number of elements of this rank's shard */
    int n_runs;
    struct stage_run *run;      /* in ascending order of shard_at; gaps are padding */
};

/*
 * Create the stage of rank (pp, dp, tp). Stage i has blocks[i] transformer blocks; only the first and the last stage
 * may have none. The sizes must be divisible as options_check() ensures; otherwise an assertion fails.
 */
struct stage *stage_new(const struct model_config *m, struct topology topo, int pp, int dp, int tp, const int *blocks);
void stage_free(struct stage *s);                       /* NULL is allowed */
/*
 * Returns the ranges that data-parallel rank `dp` owns, in the form of stage.run[]. *n receives their number. The array
 * is allocated in the arena.
 */
struct stage_run *stage_runs(const struct stage *s, int dp, struct arena *a, int *n);
/*
 * Returns the parameter with a role. `block` counts from the stage's first block; -1 means that the parameter is
 * outside of blocks. Returns NULL if the stage has no such parameter.
 */
const struct stage_param *stage_get(const struct stage *s, int block, enum role r);

/* The buffers of one rank's stage, in device memory. */
struct stage_state {
    void *weights;              /* T [flat_n] */
    void *grads;                /* [flat_n] fp32, or T if model_opts.grad_t */
    float *master, *exp_avg, *exp_avg_sq;       /* fp32 [shard_n] */
};

#endif
