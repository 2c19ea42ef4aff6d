/*
 * zero_source.h - read a checkpoint of DeepSpeed's engine without pipeline: ZeRO-1, 2 and 3
 *
 * The public interface is layouts.h; this header is internal to this folder. The phases, in order ("a -> b": b is made
 * from a):
 *   zero_files.c   names -> ranks; reports missing and extra files; refuses some by name
 *   zero_model.c   rank 0's model_states -> groups (zero_shape.h), frozen, shared, buffers; those of other ranks
 *   zero_shards.c  optim_states -> one flat run per group and state, checked against the partitioning rule
 *   zero_params.c  the parameter list; runs and tensors -> tensor maps
 *   zero_state.c   run state
 *   zero_tp.c      tensor ranks: joins sources of slices by merge rules
 *   zero_affine.c  compares the merge rules with affine_map
 *   zero_values.c  other contents of rank 0's files
 *
 * Only the order of param_shapes determines the location of a parameter. param_slice_mappings, which also record
 * locations, are only compared with it: with round_robin_gradients DeepSpeed writes those of other tensors
 * (docs/formats.md, section 11).
 *
 * Codes of findings (E error, W warning, N note; those of other folders: docs/formats.md, section 9):
 *   missing_file E        a rank's file is missing
 *   extra_file E/W        a rank that the checkpoint does not have; W: a .pt file with an unknown name
 *   duplicate_file E      two files of one rank
 *   two_prefixes E        optimizer states under both zero_pp_rank_* and bf16_zero_pp_rank_*
 *   degrees E/W           dp_world_size or partition_count differ from the number of ranks; mp_world_size or
 *                         checkpoint_parallel_dimensions from that of tensor ranks, W: autotp_size does
 *   mixed_saves E*, W, N  counters, settings, schedules or shapes differ between files; W: the optimizer's number of
 *                         steps differs from the engine's; N: a value that the caller saved differs
 *   other_rank E*         saved as another file
 *   unreadable E, class E, opaque W    as for the deepspeed layout
 *   key E/N               a key is absent or invalid
 *   no_optimizer W        no optim_states files: weights only
 *   no_moments E/W        there are master weights without moments; E: only on some ranks
 *   groups E              group counts differ between param_shapes, master weights and states
 *   partition E           a vector's length does not fit the rule
 *   padding E             recorded padding differs from the rule
 *   param_name E, shape E, dtype E, strided E    of a tensor
 *   mapping E/N           param_slice_mappings differ from param_shapes; N: the run has round_robin_gradients
 *   pattern, universal_info, merge_rule E/W   merge rules of tensor ranks
 *   missing_key E         a parameter that `module` does not hold
 *   frozen E*             a frozen parameter is another tensor in frozen_param_fragments than in `module`
 *   unlisted W/N          a tensor in `module` that no list names; N: in ZeRO-1, which does not list frozen parameters
 *   stage W               zero_stage differs from the stage in ds_config
 *   twice E               a name that two groups list, or a group and buffer_names
 *   optimizer E/N         a moment is missing that the group's settings imply; N: states other than Adam's, which are
 *                         values
 *   crc E                 the optimizer's step (the only tensor read here) fails its checksum
 * E*: a warning with source_opts.accept_mismatch. ckpt/ckpt_overlap.c reports `overlap`, for all layouts.
 */
#ifndef SHARDKIT_LAYOUT_ZERO_SOURCE_H
#define SHARDKIT_LAYOUT_ZERO_SOURCE_H

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"
#include "libcommon/layout/engine/zero_shape.h"
#include "libcommon/model/merge_parts.h"

/* The three flat states of a rank (master weights and Adam's moments), in this order. */
enum { ZERO_FP32, ZERO_AVG, ZERO_AVG_SQ, ZERO_STATES };
extern const enum state zero_states[ZERO_STATES];

struct zero_run {
    int record;                 /* record of the vector; -1 if it is not usable */
    uint64_t at;                /* offset in the record, in bytes */
    int64_t n_elems;
    enum dtype dtype;
};
/*
 * A tensor in the optimizer's state that is not one of Adam's moments, such as the momentum_buffer of SGD and Muon, or
 * a quantized state.
 */
struct zero_more {
    int group;
    char *name;                 /* keys of the tensor below the group's state, joined by dots */
    struct pt_tensor t;
};
/* The tables of one data-parallel rank. */
struct zero_rank {
    struct zero_run (*run)[ZERO_STATES];        /* [groups]; NULL if the rank's optimizer file is not usable */
    struct zero_run *frozen;    /* ZeRO-3: [n_frozen] the rank's pieces of frozen parameters; NULL if not usable */
    double step;                /* the optimizer's step counter; -1 if unknown */
    bool no_moments;            /* the rank has master weights only */
    char *settings;             /* adam_settings(); NULL if the rank's optimizer file is not usable */
    int n_more;
    struct zero_more *more;
};

/* A tensor in `module` of rank 0's model_states. */
struct zero_tensor {
    const char *name;
    struct pt_tensor t;
    const char *shared_with;    /* if this is another name of a tensor: the name with the data, or NULL */
    bool buffer, frozen, used;
};

struct zero {
    struct source *s;
    const struct source_opts *o;
    struct report *r;
    int tp;                     /* the tensor rank of these files */
    int n_files;
    struct ds_name *name;       /* [n_files], parallel to s->file */
    bool bf16_prefix;
    int stage, world;           /* stage: 1, 2 or 3; world: number of data-parallel ranks */
    int *optim_file;            /* [world]: index in s->file; -1 if missing */
    int *model_file;            /* [world], likewise; up to ZeRO-2, only the first rank has one */
    bool has_optimizer;         /* optim_states files exist, and the caller needs them */
    /* the run does not use ZeRO, so there are no groups of flat vectors, and only weights are read */
    bool without_zero;
    bool too_many;
    int lead;                   /* data-parallel rank whose optimizer file is read first; 0 unless that file is lost */
    struct source_file *lead_file;      /* the optimizer file of rank `lead`; NULL if none is read */
    /*
     * if all optimizer files of this tensor rank are lost: a data-parallel rank of another tensor rank, whose vectors
     * have the lengths of the lost ones; otherwise NULL
     */
    struct zero_rank *like;
    const struct source_listing *l;
    /*
     * name of the lost model_states file that was replaced by a file of another tag or tensor rank. The weights are
     * then holes: extents without data.
     */
    const char *lost_model;
    bool other_rank;            /* it is from another tensor rank, so frozen parameters are holes, too */
    struct pt_holes holes;
    const struct pk *root;      /* root of rank 0's model_states */
    const struct pt *first;     /* rank 0's model_states */
    const char *path;           /* path of rank 0's model_states, for findings */
    struct zero_shape shape;
    int n_frozen;
    struct zero_slot *frozen;   /* [n_frozen] names and shapes of frozen parameters */
    int n_tensors;
    struct zero_tensor *tensor; /* tensors of `module`, in its order */
    struct zero_rank *rank;     /* [world] */
};

enum severity zero_mismatch(const struct zero *z);
/*
 * Returns the severity with which lost data are reported: a warning if source_opts.holes permits lost data, otherwise
 * an error.
 */
static inline enum severity zero_lost(const struct zero *z) { return z->o->holes ? SEV_WARNING : SEV_ERROR; }

/* ---- zero_files.c ---- */

/*
 * Fill s->file and z->name from the listing. Returns -1 with *e set if a file name belongs to a checkpoint that is not
 * supported.
 */
MUST_CHECK int zero_files_read(struct zero *z, const struct source_listing *l, struct err *e);
/*
 * Set the number of ranks from the file names and from the content of rank 0's model_states, and assign every file to
 * its rank. Returns -1 with *e set if the number is out of range.
 */
MUST_CHECK int zero_files_ranks(struct zero *z, struct err *e);
/*
 * Return the name of rank r's optim_states file, or of its model_states file in ZeRO-3. The text is in the source's
 * arena.
 */
char *zero_optim_name(const struct zero *z, int r);
char *zero_model_name(const struct zero *z, int r);

/* ---- zero_model.c ---- */

/* Read the tables of pt, the model_states file of rank 0. If they cannot be read, reports this and returns false. */
bool zero_model_read(struct zero *z, const struct pt *pt);
/*
 * Read the model_states file of one rank. In ZeRO-3 every rank has one. Its shapes are compared with rank 0's, and its
 * pieces of frozen parameters are recorded.
 */
void zero_model_rank(const struct pt_files_job *j);
void zero_model_renumber(void *ctx, int file, int base);
/*
 * Compare the values in the model_states file of another tensor rank with those in the first tensor rank's file, which
 * z describes. The other file's records are numbered in `files`.
 */
void zero_model_compare_tensor_ranks(const struct zero *z, const struct pt *other, struct files *files);

/* ---- zero_shards.c ---- */

/*
 * Read from an optim_states file the ZeRO stage, and for stages 1 and 2 also the paddings inside groups. If the stage
 * contradicts the names of the model_states files, or if the paddings cannot be read, reports this and returns false.
 */
bool zero_shards_lead(struct zero *z, const struct pt *pt, const char *path);
void zero_shards_rank(const struct pt_files_job *j);
void zero_shards_renumber(void *ctx, int file, int base);
/* Warn if the stage in the ds_config of the file at `path` differs from z->stage. `root` is the root of this file. */
void zero_check_config_stage(const struct zero *z, const struct pk *root, const char *path, struct report *r);
/*
 * Recover optimizer files whose container is damaged (source_opts.holes): find their records at the offsets that these
 * have in the lead rank's file.
 */
void zero_shards_recover(struct zero *z);

/* ---- zero_params.c ---- */

void zero_params_make(struct zero *z);
/* Returns the map of tensor t of rank 0's model_states. If t is not contiguous, reports this and returns NULL. */
struct tmap *zero_tensor_map(struct zero *z, const char *name, const struct pt_tensor *t);

/* ---- zero_tp.c ---- */

/*
 * Join the sources of n tensor ranks into rank[0], which is the source that z has opened. The caller owns the files.
 * Returns -1 with ERR_DATA if no merge rules are known for the parameters.
 */
MUST_CHECK int zero_tp_join(struct source *const *rank, int n, const struct zero *z, struct err *e);

/*
 * Compare n, the number of tensor ranks that have files, with the numbers of tensor ranks and pipeline stages that the
 * root of a model_states file records.
 */
void zero_tp_check_degrees(const struct zero *z, const struct pk *root, const char *path, int n);

/* ---- zero_affine.c ---- */

/* A parameter that is joined from one slice of each tensor rank. */
struct zero_joined {
    const struct param *whole;          /* shape and merge rule of the joined parameter */
    const int64_t *slice;               /* [whole->ndim]: shape of each slice */
    const struct merge_parts *parts;    /* NULL if it is not fused */
    int tp;
    bool by_lists;                      /* its rule is from lists of patterns; otherwise from a family */
};
struct zero_affine;
/*
 * Returns the table of affine_map, or NULL if there is none. If its version is not known, reports this and returns
 * NULL.
 */
const struct zero_affine *zero_affine_read(const struct zero *z);
/* Returns true if `a`, which may be NULL, has an entry for the parameter. */
bool zero_affine_has(const struct zero_affine *a, const char *name);
/*
 * Compare the way in which a parameter is joined with the parameter's entry in `a`. If they disagree, or if the form of
 * the entry is not supported, reports an ERROR "merge_rule" for `path` and returns false.
 */
bool zero_affine_check(const struct zero_affine *a, const struct zero_joined *j, const char *path, struct report *r);

/* ---- zero_values.c ---- */

/* Fill s->value. Call it after zero_params_make() and zero_state_read(). */
void zero_values_make(struct zero *z, const struct pt *model);

/* ---- zero_state.c ---- */

/* Fill s->run from rank 0's files. `optim` is NULL if there is no optimizer file. */
void zero_state_read(struct zero *z, const struct pt *model, const struct source_file *optim);

#endif
