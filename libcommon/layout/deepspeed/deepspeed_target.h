/*
 * deepspeed_target.h - the complete description of a sharded checkpoint that is made from a source
 *
 * ds_target_new() turns a request (degrees, stages, numbering ...) into the whole shape of the result: the stage and
 * group of each parameter, their order, and the length of every flat buffer. It refuses impossible requests, so that
 * nothing is written before this is known. deepspeed_sink() then writes it, one file per rank as the trainer would.
 *
 * These rules decide what the source does not specify; the notes report it:
 *   stages     as in the source if PP is unchanged; else by its pp_partition_method and the
 *              balancing of its DeepSpeed version
 *   V          the source's; if TP does not divide it, the next multiple of
 *              make_vocab_size_divisible_by * TP, where the new rows are zeros
 *   RNG        rank (pp, tp) receives the states of the source's rank (pp mod PP, tp mod TP)
 *   optimizer  the universal form of 2022 keeps neither settings nor step: they are made from the
 *              arguments and the iteration, in a form that torch's and apex's Adam both load
 *   layers     if the request picks layers, the stages are computed again, as for another PP
 *   tied copy  the last stage repeats the first stage's embedding, weights and moments. GPT-2's
 *              position table on the last stage is never trained: it is copied from the source's
 *              last stage, or made from the first stage's with zero moments if there is none
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_TARGET_H
#define SHARDKIT_LAYOUT_DEEPSPEED_TARGET_H

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/layout/engine/deepspeed_shape.h"
#include "libcommon/layout/ds_request.h"
#include "libcommon/write/sink.h"

/* One parameter, in the order of the layer files. */
struct ds_tparam {
    int param;                          /* index in src->param */
    const struct param *from;
    const char *name;                   /* the source's name, with the layer number in the target */
    const char *key;                    /* key in its layer file */
    int layer;                          /* number of its layer file */
    int ndim;
    /* shape of the merged tensor, and of one tensor rank's slice */
    int64_t shape[TENSOR_MAX_DIM], slice[TENSOR_MAX_DIM];
    int64_t slice_elems;
    bool decays;
    int order;                          /* position among the parameters of its module in the layer file */
    int place;                          /* position in the optimizer's list of parameters */
};

/* A new value of the mp_rank files. */
struct ds_edit {
    const char *path;                   /* such as "args.lr" */
    struct pk *value;
};

struct ds_target {
    struct arena *arena;
    const struct source *src;
    struct topology topo;
    int n_layers, first_layer, final_norm, embedding;   /* numbers of layer files */
    /* stage with the final LayerNorm: the last one, or the one before it if the last stage has only the head */
    int norm_stage;
    int n_groups;
    int64_t vocab;
    const char *method;                 /* partition method to be recorded in args; NULL: leave it unchanged */
    int n_params;
    struct ds_tparam *param;
    struct ds_stage *stage;             /* [pp]; groups without parameters are omitted */
    bool optimizer, zero_moments;
    /* the optimizer's tree for all shards; made up if the source has no such tree */
    const struct pk *opt, *param_groups;
    const struct pk *mp_root;           /* tree of the first mp_rank file; NULL if the file is lost */
    bool made;                          /* mp_root was made here: the source, a new run, has no mp_rank files */
    bool step_in_state, step_is_tensor;
    bool bf16_prefix, joined;           /* how names of zero files are spelled */
    bool no_tensors;                    /* the source's tensors are not used (ds_request) */
    enum dtype weights;
    int64_t iteration, opt_step;        /* values to be recorded; -1: as in the source */
    int local_ranks;                    /* GPUs per node; 0 if local_rank is to be equal to rank */
    struct ds_edit *edit;               /* changes to the mp_rank files */
    int n_edits;
};

/*
 * Compute the target. Adds to `notes` what is made up or lost, and warnings. Returns NULL with ERR_USAGE if the
 * requested target is impossible, or with ERR_DATA if the source lacks necessary data. The strings in `q` must outlive
 * the target.
 */
MUST_CHECK struct ds_target *ds_target_new(const struct source *s, const struct ds_request *q, struct report *notes,
                                           struct err *e);
void ds_target_free(struct ds_target *t);               /* accepts NULL */
int ds_target_n_files(const struct ds_target *t);       /* number of files that the trainer would write */
/*
 * Returns true if the last of several stages has a copy of the embedding's parameter `name`. Only the embedding's
 * LayerNorm has no copy.
 */
static inline bool ds_has_copy(const char *name)
{
    return !param_ends(name, ROLE_WORD_NORM_W) && !param_ends(name, ROLE_WORD_NORM_B);
}

/* Return the sink that writes `t`; `t` must outlive it. */
struct sink *deepspeed_sink(const struct sink_opts *o, const struct ds_target *t);

struct layout_target;
/* Returns the target that describe_as_deepspeed() made (layout_write.h). NULL if t describes another layout. */
const struct ds_target *ds_target_of(const struct layout_target *t);

#endif
