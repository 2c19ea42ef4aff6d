/*
 * zero.h - reading a checkpoint of DeepSpeed's engine without pipeline: ZeRO-1, 2 and 3
 *
 * layout.h is the door; this header is for the room only. The order of phases:
 *   zero_files.c   names -> ranks; what is missing or extra; what is refused by name
 *   zero_model.c   rank 0's model_states -> groups (zero_shape.h), frozen, shared, buffers; those of other ranks
 *   zero_shards.c  optim_states -> one flat run per group and state, checked against the rule of the cut
 *   zero_params.c  the parameter list; runs and tensors -> tensor maps
 *   zero_state.c   run state
 *   zero_tp.c      tensor ranks: sources of slices joined by merge rules
 *   zero_values.c  what else rank 0's files hold
 *
 * The order of param_shapes alone says where a parameter lies. What a file says of it in param_slice_mappings is not
 * read: with round_robin_gradients DeepSpeed writes those of other tensors (docs/formats.md, section 11).
 *
 * Codes of findings (E error, W warning, N note; those of other rooms: docs/formats.md, section 9):
 *   missing_file E        a rank's file is not there
 *   extra_file E/W        a rank that the checkpoint does not have; W: a .pt file whose name means nothing here
 *   duplicate_file E      two files of one rank
 *   two_prefixes E        both zero_pp_rank_* and bf16_zero_pp_rank_* of optimizer states
 *   degrees E             dp_world_size or partition_count say otherwise
 *   mixed_saves E*, W, N  counters, settings, schedules or shapes differ between files; W: the optimizer counts other
 *                         steps than the engine; N: what the caller saved differs
 *   other_rank E*         saved as another file
 *   unreadable E, class E, opaque W    as for the deepspeed layout
 *   key E/N               a key is absent or not what it should be
 *   no_optimizer W        no optim_states files: weights only
 *   no_moments E/W        masters alone; E: on some ranks
 *   groups E              group counts differ between param_shapes, masters and states
 *   partition E           a vector's length does not fit the rule
 *   padding E             recorded padding is not what the rule gives
 *   param_name E, shape E, dtype E, strided E    of a tensor
 *   mapping N             param_slice_mappings differ from the order of param_shapes: not used
 *   pattern, universal_info, merge_rule E/W   merge rules of tensor ranks
 *   missing_key E         a parameter that `module` does not hold
 *   twice E               a name that two groups list
 *   optimizer E/N         a moment is missing that the group's settings ask for; N: other states than Adam's, which are
 *                         values
 *   crc E                 the optimizer's step (the only tensor read here) fails its checksum
 * E*: a warning with source_opts.accept_mismatch. `overlap` is open.c's, for all layouts.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_H
#define SHARDKIT_LAYOUT_ZERO_H

#include "libcommon/layout/adam_state.h"
#include "libcommon/layout/ds_names.h"
#include "libcommon/layout/layout.h"
#include "libcommon/layout/pt_files.h"
#include "libcommon/layout/zero/zero_shape.h"

/* The three flat states of a rank, in this order. */
enum { ZERO_FP32, ZERO_AVG, ZERO_AVG_SQ, ZERO_STATES };
extern const enum state zero_states[ZERO_STATES];

struct zero_run {
    int record;                 /* -1: not usable */
    uint64_t at;                /* bytes from the record's start */
    int64_t n_elems;
    enum dtype dtype;
};
/* A tensor of the optimizer's state that is no moment of Adam's: momentum_buffer of SGD and Muon, a quantised state. */
struct zero_more {
    int group;
    char *name;                 /* its keys below the group's state, joined by dots */
    struct pt_tensor t;
};
/* One data-parallel rank. */
struct zero_rank {
    struct zero_run (*run)[ZERO_STATES];        /* [groups]; NULL: its optimizer file is not usable */
    struct zero_run *frozen;    /* [n_frozen] ZeRO-3: its pieces; NULL: not usable */
    double step;                /* the optimizer's counter; -1: unknown */
    bool no_moments;            /* masters alone */
    char *settings;             /* adam_settings(); NULL: its optimizer file is not usable */
    int n_more;
    struct zero_more *more;
};

/* A tensor of rank 0's `module`. */
struct zero_tensor {
    const char *name;
    struct pt_tensor t;
    const char *shared_with;    /* its holder's name, where it is another name of one */
    bool buffer, frozen, used;
};

struct zero {
    struct source *s;
    const struct source_opts *o;
    struct report *r;
    int tp;                     /* the tensor rank whose files these are */
    int n_files;
    struct ds_name *name;       /* [n_files], beside s->file */
    bool bf16_prefix;
    int stage, world;           /* stage: 1, 2, 3 */
    int *optim_file;            /* [world] -> s->file; -1 missing */
    int *model_file;            /* [world]; up to ZeRO-2 all but the first are -1 */
    bool has_optimizer;         /* there are optim_states files, and they are wanted */
    bool without_zero;          /* a run without ZeRO, which has no groups of flat vectors: weights alone are read */
    bool too_many;
    int lead;                   /* the rank whose optimizer file is read first: 0, but for lost ones */
    const char *lost_model;     /* the lost model_states, for which another tag's stand in: its weights are holes */
    struct pt_holes holes;
    const struct pk *root;      /* of rank 0's model_states */
    const char *path;           /* its name, for findings */
    struct zero_shape shape;
    int n_frozen;
    struct zero_slot *frozen;   /* names and shapes */
    int n_tensors;
    struct zero_tensor *tensor; /* of `module`, in its order */
    struct zero_rank *rank;     /* [world] */
};

enum severity zero_mismatch(const struct zero *z);
/* Of what is lost: a warning where holes are allowed. */
static inline enum severity zero_lost(const struct zero *z) { return z->o->holes ? SEV_WARNING : SEV_ERROR; }

/* ---- zero_files.c ---- */

/* Fill s->file and z->name from the listing; -1 for what is refused by name. */
MUST_CHECK int zero_files_read(struct zero *z, const struct source_listing *l, struct err *e);
/* Settle the number of ranks from names and what rank 0 says; put every file to its rank. -1: absurd. */
MUST_CHECK int zero_files_ranks(struct zero *z, struct err *e);
/* The name of a rank's file of optimizer states, or of ZeRO-3's model_states; in the source's arena. */
char *zero_optim_name(const struct zero *z, int r);
char *zero_model_name(const struct zero *z, int r);

/* ---- zero_model.c ---- */

/* Rank 0's tables. false: told; nothing can be read. */
bool zero_model_read(struct zero *z, const struct pt *pt);
/* Of the other ranks of ZeRO-3 (and rank 0): shapes compared, pieces of frozen parameters found. */
void zero_model_rank(const struct pt_files_job *j);
void zero_model_renumber(void *ctx, int file, int base);

/* ---- zero_shards.c ---- */

/* What a rank's optim_states say of the layout itself: the stage, paddings inside of groups. */
bool zero_shards_lead(struct zero *z, const struct pt *pt, const char *path);
void zero_shards_rank(const struct pt_files_job *j);
void zero_shards_renumber(void *ctx, int file, int base);
/* Records of damaged optimizer files, found where the lead's has them (source_opts.holes). */
void zero_shards_recover(struct zero *z);

/* ---- zero_params.c ---- */

void zero_params_make(struct zero *z);
/* All of a tensor of rank 0's file; NULL: it is not contiguous, which is told. */
struct tmap *zero_tensor_map(struct zero *z, const char *name, const struct pt_tensor *t);

/* ---- zero_tp.c ---- */

/*
 * rank[0] becomes the whole of n tensor ranks' sources, of which z opened it; files are the caller's. ERR_DATA: which
 * rules apply is not known.
 */
MUST_CHECK int zero_tp_join(struct source *const *rank, int n, const struct zero *z, struct err *e);

/* ---- zero_values.c ---- */

/* s->value; the parameters are made, the run state is read. */
void zero_values_make(struct zero *z, const struct pt *model);

/* ---- zero_state.c ---- */

/* s->run, from rank 0's files; optim NULL: there is none. */
void zero_state_read(struct zero *z, const struct pt *model, const struct source_file *optim);

#endif
