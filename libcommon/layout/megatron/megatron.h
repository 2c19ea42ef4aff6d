/*
 * megatron.h - Megatron-LM's own folders, which its option --ckpt-format torch writes (docs/formats.md, section 17)
 *
 *   iter_<NNNNNNN>/mp_rank_<TT>[_<PPP>]/model_optim_rng.pt    weights of one tensor and pipeline rank, arguments,
 *                                                             counters, random states, and a plain optimizer
 *   iter_<NNNNNNN>/mp_rank_<TT>[_<PPP>]/distrib_optim.pt      the states of a distributed optimizer, end to end
 *
 * Parameters get the names that Megatron-core gives them in a torch_dist folder: layers count over all stages.
 *
 * Codes of findings:
 *   missing_file E   a rank has no file that the others have, or folders of different forms are mixed
 *   ranks E          the arguments state another number of tensor or pipeline ranks than there are folders
 *   mixed_saves E    files differ in the iteration or in arguments that all ranks of a save share
 *   names E          a rank lists other tensors than tensor rank 0 of its stage, or two stages have one parameter
 *   config E         the arguments state another number of layers, or other sizes or parts, than the files have
 *   missing_entry E  a tensor or a state is missing that others, or the arguments, imply
 *   counters W       the iteration differs from args.iteration or from the optimizer's step
 *   unread E         a tensor cannot be put together: the reason is given
 *   no_optimizer W   there are no files of the optimizer
 *   optimizer E      states cannot be assigned to parameters: the reason is given
 *   step E           the steps of parameters or groups differ, or are no whole numbers
 *   groups E         ranks have different settings of the optimizer
 */
#ifndef SHARDKIT_LAYOUT_MEGATRON_H
#define SHARDKIT_LAYOUT_MEGATRON_H

#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/pt.h"

struct report;
struct source;
struct source_listing;
struct source_opts;

/*
 * How tensor ranks share a tensor. Each rank has the whole tensor, some of its rows, or some of its columns. If one
 * tensor contains the gate and the up projection of a gated MLP, each rank has some rows of the gate, followed by as
 * many rows of the up projection.
 */
enum megatron_cut { CUT_NONE, CUT_ROWS, CUT_COLUMNS, CUT_GATED_ROWS, CUT_UNKNOWN };

/* A tensor of a pipeline stage. The model lists its tensors in this order. */
struct megatron_weight {
    int param;                          /* index in s->param */
    int chunk;                          /* virtual pipeline chunk of its stage */
    bool tied_copy;                     /* the last stage's copy of the embedding, the parameter `param` */
    enum megatron_cut cut;
    const struct pt_tensor *part;       /* [tp]: the tensor of each tensor rank */
};

struct megatron_stage {
    int n, cap;
    struct megatron_weight *weight;
};

enum megatron_file { MEGATRON_MODEL, MEGATRON_DISTRIBUTED, MEGATRON_FILES };

/* A folder that is being opened. */
struct megatron {
    struct source *s;
    const struct source_listing *l;
    const struct source_opts *o;
    struct report *r;
    int tp, pp, chunks;                 /* numbers of tensor ranks, of pipeline ranks, and of chunks per stage */
    bool gated;                         /* the MLP is gated: args.swiglu */
    bool whole;                         /* the models of all ranks could be read */
    int *file[MEGATRON_FILES];          /* [pp * tp]: index in s->file, or -1; rank (t, p) is at p * tp + t */
    struct megatron_stage *stage;       /* [pp] */
};

/* Returns the open file of a rank, or NULL if it is missing or could not be opened. */
const struct pt *megatron_pt(const struct megatron *x, enum megatron_file kind, int stage, int tp);

/*
 * Translates a parameter's name in the file of a pipeline stage, where each stage counts its layers from 0, to the
 * name that the parameter has in a torch_dist folder. The result is allocated in the arena. `first_layer` is the number
 * of the stage's first layer in the model. `dense` is true if the layer has a plain MLP instead of experts; the norm
 * before the MLP is then named as part of linear_fc1.
 */
const char *megatron_param_name(struct arena *a, const char *name, int first_layer, bool dense);
enum megatron_cut megatron_cut_of(const char *name, bool gated);

/*
 * Put a tensor together from the parts of all tensor ranks. Returns its map, and sets shape[] to the whole shape.
 * Returns NULL with the reason in *why if that fails.
 */
struct tmap *megatron_join(const struct megatron *x, enum megatron_cut cut, const struct pt_tensor *part,
                           int64_t shape[TENSOR_MAX_DIM], const char **why);
/* Store the map of a state of weight w. */
void megatron_set_state(const struct megatron *x, const struct megatron_weight *w, enum state st, struct tmap *map);

/*
 * Read the states, the settings and the step of the optimizer. If the states are not known, reports this and returns
 * false.
 */
bool megatron_read_optimizer(const struct megatron *x);
/*
 * Read the states of stage p from the files distrib_optim.pt of its tensor ranks. If the states cannot be assigned to
 * the weights of the stage, reports this and returns false.
 */
bool megatron_read_buffers(const struct megatron *x, int p);
/*
 * Compare parameters and arguments with each other. If `states` is true, check the states as well. Must be called after
 * everything has been read.
 */
void megatron_check(const struct megatron *x, bool states);
/* Report that the optimizer's states are not known, and how to continue without these. Returns false. */
bool megatron_refuse_optimizer(const struct megatron *x, const struct pt *pt, const char *why);

#endif
