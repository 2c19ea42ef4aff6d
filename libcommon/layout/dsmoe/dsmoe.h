/*
 * dsmoe.h - checkpoints of DeepSpeed's engine with layers of DeepSpeed's MoE: ZeRO-0, 1 and 2 (docs/formats.md,
 * section 19)
 *
 *   mp_rank_00_model_states.pt                             all weights but those of experts, counters, settings
 *   layer_<m>_expert_<e>_mp_rank_00_model_states.pt        weights of expert e of the m-th layer that has experts
 *   [bf16_]zero_pp_rank_<d>_mp_rank_00_optim_states.pt     ZeRO-1/2: partitions of data-parallel rank d
 *   expp_rank_<r>_mp_rank_00_optim_states.pt               ZeRO-0: the whole optimizer of expert-parallel rank r
 *
 * Experts are numbered over all ranks, as the names in their files are. The optimizer's files number those of their
 * rank: expert i of expert-parallel rank r is expert r * (experts / ranks) + i of the layer.
 *
 * Codes of findings (E*: a warning with source_opts.accept_mismatch):
 *   missing_file E   the file of an expert or of a rank is missing; W: of the optimizer, if it is not read
 *   extra_file E     the file of an expert or of a rank that the checkpoint does not have
 *   duplicate_file E two files of one expert or rank
 *   other_rank E*    saved as another file
 *   names E          a file has tensors of another expert, or an expert has other tensors than expert 0 of its layer
 *   config E         num_experts contradicts the layers with a gate, or the rows of a gate
 *   unread E         a tensor that cannot be read: the reason is given
 *   no_optimizer W   there are no files of the optimizer
 *   no_moments W     there are masters without moments
 *   optimizer E      states cannot be assigned to parameters: the reason is given
 *   partition E      the length of a vector does not fit the rule
 *   padding E        recorded padding differs from the rule
 *   mapping E        param_slice_mappings differ from param_shapes
 *   degrees E        numbers of ranks contradict each other
 *   mixed_saves E*   settings or steps differ between files
 *   unlisted W/N     a weight that no list names
 *   crc E            the optimizer's step (the only tensor read here) fails its checksum
 */
#ifndef SHARDKIT_LAYOUT_DSMOE_H
#define SHARDKIT_LAYOUT_DSMOE_H

#include "libcommon/base/names.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/pt.h"

struct report;
struct source;
struct source_listing;
struct source_opts;

/* A tensor in an expert's file, under the name that it has there. */
struct dsmoe_tensor {
    char *name;
    struct pt_tensor t;
};

/* The file of one expert, as it was read. */
struct dsmoe_expert {
    int file;                           /* index in s->file; -1 if it is missing */
    bool read;                          /* false if the file could not be opened */
    int n, cap;
    struct dsmoe_tensor *tensor;
    char *odd;                          /* name of the first entry that is no tensor; NULL if there is none */
};

/* A layer with experts, in the order of the model. */
struct dsmoe_layer {
    const char *prefix;                 /* name of its tensors up to the number of the expert, with a dot at its end */
    int n_experts;
    struct dsmoe_expert *expert;        /* [n_experts] */
};

/* The optimizer of one rank. */
struct dsmoe_optim {
    const struct pt *pt;
    const struct pk *tree;              /* DeepSpeed's dict */
    int rank;                           /* data-parallel rank; of a file of ZeRO-0 the expert-parallel rank */
};

struct dsmoe {
    struct source *s;
    const struct source_listing *l;
    const struct source_opts *o;
    struct report *r;
    struct ds_name *name;               /* [s->n_files] */
    const struct pt *model;             /* mp_rank_00_model_states.pt */
    const struct pk *root;              /* its root */
    int world;                          /* number of data-parallel ranks */
    int n_layers;
    struct dsmoe_layer *layer;
    bool whole;                         /* the weights of all experts could be read */
    struct names *known;                /* name -> index in s->param */
    bool sharded;                       /* the optimizer's files are those of ZeRO-1/2 */
    bool bf16_prefix;
    int n_ranks;                        /* number of ranks that have, or should have, a file of the optimizer */
    int *optim_file;                    /* [n_ranks]: index in s->file, or -1 */
};

/* ---- dsmoe_experts.c ---- */

/* Returns the severity of a contradiction between files. */
enum severity dsmoe_mismatch(const struct dsmoe *x);
/*
 * Read num_experts and find the layers with experts in `module`. Returns -1 with *e set if they are not of this form.
 */
MUST_CHECK int dsmoe_find_layers(struct dsmoe *x, struct err *e);
/* Assign the files of experts, report those that are missing, and read the others. */
void dsmoe_read_experts(struct dsmoe *x);
void dsmoe_free_experts(struct dsmoe *x);
/*
 * Returns the layer to which the tensor `name` of an expert belongs, and sets *expert to the number in the name and
 * *rest to the part after it. Returns NULL if it is no such tensor.
 */
const struct dsmoe_layer *dsmoe_layer_of(const struct dsmoe *x, const char *name, int *expert, const char **rest);

/* ---- dsmoe_model.c ---- */

/* Returns a new map of the `n` elements of a tensor, with room for `n_extents` extents. */
struct tmap *dsmoe_new_map(const struct dsmoe *x, enum dtype dtype, int64_t n, int n_extents);
/* Make the parameters and values of the model from the files that were read. */
void dsmoe_make_params(struct dsmoe *x);

/* ---- dsmoe_groups.c ---- */

/* Returns torch's dict, with the members state and param_groups, in DeepSpeed's dict. */
const struct pk *dsmoe_torch_dict(const struct pk *tree);
/* Report that states cannot be assigned to parameters, with the way to go on without them. Returns false. */
bool dsmoe_refuse_optimizer(const struct dsmoe *x, const struct pt *pt, const char *why);
/*
 * Returns the name over all ranks of a parameter that the optimizer of expert-parallel rank `ep`, of `n_ep`, calls
 * `name`; NULL if the model has no such parameter.
 */
const char *dsmoe_global_name(const struct dsmoe *x, const char *name, int ep, int n_ep);
/* Returns the number n in a group's name "ep_size_<n>", or -1. */
int dsmoe_group_ranks(const struct pk *settings);
/* Returns true if the settings are those of a group of experts. */
bool dsmoe_is_expert_group(const struct pk *settings);
/* Returns the settings of group g of a rank. */
const struct pk *dsmoe_settings(const struct dsmoe_optim *f, int g);
/* Make s->groups, which have no parameters yet. */
void dsmoe_new_groups(const struct dsmoe *x, const struct dsmoe_optim *f);
/* Sort the parameters of s->groups[g] in the order of the model. */
void dsmoe_sort_group(const struct dsmoe *x, int g);
/* Report the first state in a state dict that is not one of Adam's, and return false. */
bool dsmoe_adam_alone(const struct dsmoe *x, const struct dsmoe_optim *f, const struct pk *state);
/*
 * Record the step in a state dict, which all groups and ranks share. Reports one that differs or is no number, and both
 * moments without a step.
 */
void dsmoe_set_step(const struct dsmoe *x, const struct dsmoe_optim *f, const struct pk *state);

/* ---- dsmoe_partitions.c, dsmoe_whole.c ---- */

/*
 * Assign the states in the n files of ZeRO-1/2, or of ZeRO-0, to parameters. Return false after a report if they cannot
 * be assigned.
 */
bool dsmoe_read_partitions(struct dsmoe *x, const struct dsmoe_optim *f, int n);
bool dsmoe_read_whole(struct dsmoe *x, const struct dsmoe_optim *f, int n);

/* Returns the state dict of a parameter by its number in `states` of ZeRO-0, or NULL. */
const struct pk *dsmoe_state_of_number(const struct pk *states, int64_t number);

/* ---- dsmoe_optimizer.c ---- */

/* Read the states, settings and steps of the optimizer. */
void dsmoe_read_optimizer(struct dsmoe *x);

#endif
