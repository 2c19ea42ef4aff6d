/*
 * deepspeed_target.h - a sharded checkpoint that is to be made out of a source
 *
 * ds_target_new() turns a wish (degrees, stages, numbering ...) into the whole shape of the
 * result: which stage and group each parameter belongs to, in which order, how long every
 * flat buffer is. It refuses what cannot be, so that nothing is written before that is
 * known. deepspeed_sink() then writes it, one file per rank as the trainer would.
 *
 * What the source does not say is settled by these rules, and told in the notes:
 *   stages     as in the source while PP stays; else by its pp_partition_method and the
 *              balancing of its DeepSpeed version
 *   V          the source's; when TP does not divide it, the next multiple of
 *              make_vocab_size_divisible_by * TP, the new rows being zeros
 *   RNG        rank (pp, tp) takes the states of the source's rank (pp mod PP, tp mod TP)
 *   optimizer  the universal form of 2022 keeps neither settings nor step: they are made from the
 *              arguments and the iteration, in a form that torch's and apex's Adam both load
 *   layers     when they are picked, stages are dealt out anew, as with another PP
 *   tied copy  the last stage repeats the first stage's embedding, weights and moments; a
 *              gpt2 position table of the last stage, which nobody trains, is carried over,
 *              or made from the first stage's with zero moments where the source has none
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_TARGET_H
#define SHARDKIT_LAYOUT_DEEPSPEED_TARGET_H

#include "libcommon/base/mem.h"
#include "libcommon/layout/deepspeed/deepspeed_shape.h"
#include "libcommon/model/pipeline.h"

enum ds_numbering {
    NUMBERING_KEEP,
    NUMBERING_NEW,              /* Megatron-DeepSpeed since 2022-07: layers from 3, final LayerNorm behind a gap of 1 */
    NUMBERING_OLD,              /* before: a gap of 2 */
    NUMBERING_MSMD,             /* Microsoft's fork: layers from 2, no gap */
};

struct ds_set {
    const char *text;                   /* "args.lr=0.001" */
    bool any_type;                      /* also where the value's type changes */
};

struct ds_request {
    struct topology topo;               /* 0: as the source */
    const char *method;                 /* --pp-partition-method; NULL: see above */
    bool balance_given;
    enum pipeline_balance balance;
    const int *stages;                  /* layers of each stage, or NULL */
    int n_stages;
    bool norm_last;                     /* with stages: a last one without layers has the final LayerNorm, too */
    int64_t vocab;                      /* 0: see above */
    const int *picked;                  /* block i becomes what the source's block picked[i] is; NULL: all stay */
    int n_picked;
    bool cast;                          /* weights become `weights`: of masters where there are some */
    int n_groups;                       /* 2 or 3; 0: as the source */
    enum ds_numbering numbering;
    const struct source *like;          /* take numbering, groups and partition method from it; or NULL */
    bool no_optimizer;                  /* write none */
    bool zero_moments;                  /* both moments 0, step 0 */
    int64_t step;                       /* the iteration to claim; -1: the source's */
    const struct ds_set *set;           /* deepspeed_edit.h */
    int n_set;
    /*
     * The source tells what files say and how parameters are grouped, but its tensors are not taken: they are the
     * caller's (deepspeed_share.h), of dtype `weights`. Files are spelled, and layer files ordered, as a trainer does.
     */
    bool no_tensors;
    enum dtype weights;
};

/* One parameter, in the order of the layer files. */
struct ds_tparam {
    int param;                          /* in src->param */
    const struct param *from;
    const char *name;                   /* as the target numbers layers */
    const char *key;                    /* inside its layer file */
    int layer;                          /* number of its layer file */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM], slice[TENSOR_MAX_DIM];         /* merged, and of one tensor rank */
    int64_t slice_elems;
    bool decays;
    int order;                          /* among its module's parameters in the layer file ... */
    int place;                          /* ... and in the optimizer's lists */
};

/* A value of the mp_rank files that is changed. */
struct ds_edit {
    const char *path;                   /* "args.lr" */
    struct pk *value;
};

struct ds_target {
    struct arena *arena;
    const struct source *src;
    struct topology topo;
    int n_layers, first_layer, final_norm, embedding;   /* numbers of layer files */
    int norm_stage;                     /* that holds the final LayerNorm: the last one, or that before a lone head */
    int n_groups;
    int64_t vocab;
    const char *method;                 /* to be noted in args; NULL: leave */
    int n_params;
    struct ds_tparam *param;
    struct ds_stage *stage;             /* [pp]; a group without parameters is left out */
    bool optimizer, zero_moments;
    const struct pk *opt, *param_groups;        /* what the shards share; made up where the source has none */
    bool step_in_state, step_is_tensor;
    bool bf16_prefix, joined;           /* spelling of zero files */
    bool no_tensors;                    /* of the source */
    enum dtype weights;
    int64_t iteration, opt_step;        /* -1: as they are */
    int local_ranks;                    /* GPUs of a node; 0: local_rank is the rank */
    struct ds_edit *edit;               /* of the mp_rank files */
    int n_edits;
    const struct strbuf *repair_log;    /* to be written beside the files, as DS_REPAIR_LOG_NAME; NULL: none */
};

/*
 * Settle everything. Notes (what is made up or left behind) and warnings go to `notes`.
 * NULL: ERR_USAGE for a target that cannot be, ERR_DATA for a source that lacks what it
 * takes. The strings of the request must outlive the target.
 */
MUST_CHECK struct ds_target *ds_target_new(const struct source *s, const struct ds_request *q, struct report *notes,
                                           struct err *e);
void ds_target_free(struct ds_target *t);               /* NULL is fine */
int ds_target_n_files(const struct ds_target *t);       /* of the trainer's */
/* Does the last of several stages repeat this parameter of the embedding? Not its LayerNorm. */
static inline bool ds_has_copy(const char *name)
{
    return !param_ends(name, ROLE_WORD_NORM_W) && !param_ends(name, ROLE_WORD_NORM_B);
}

/* The sink; `t` must outlive it. */
struct sink *deepspeed_sink(const struct sink_opts *o, const struct ds_target *t);

#endif
