/*
 * deepspeed.h - read a Megatron-DeepSpeed tag: declarations shared by the deepspeed_*.c files
 *
 * Other folders use layouts.h; this header is internal. The phases, in order ("a -> b": b is made from a):
 *   deepspeed_files.c   names -> ranks; the (pp, tp, dp) grid; missing and extra files
 *   deepspeed_stages.c  mp_rank files -> one stage each (deepspeed_shape.h), compared; layer files -> bf16 tensors
 *   deepspeed_shards.c  zero files -> one flat run per group and state, checked against
 *                       the partition rule
 *   deepspeed_params.c  stages -> the parameter list; runs and tensors -> tensor maps
 *   deepspeed_state.c   run state, configuration
 *   ckpt/ds_names.c     compares a file's name with the name inside the file
 *   deepspeed_lost.c    replaces lost files, for callers that can continue without them
 *   deepspeed_identity.c  values that all files of a save must share; the rank in the arguments and in the name
 *
 * Many threads open files (pt_files.h). Each stores its results in the table entry of its file. One thread makes the
 * parameter list and the tensor maps.
 *
 * Codes of findings (E error, W warning, N note; those of other folders: docs/formats.md, section 9):
 *   missing_file E          a member of the grid, or a layer, is missing
 *   extra_file E/W          a number outside the grid; a layer that no stage lists; W: a .pt file
 *                           whose name has no meaning here
 *   duplicate_file E        two files of one rank ("mp_rank_0_", "mp_rank_00_")
 *   short_file E            empty, or far shorter than its peers (only when tables are not read)
 *   degrees E               mp_world_size, dp_world_size, partition_count or args differ from the degrees
 *   two_prefixes E          both zero_pp_rank_* and bf16_zero_pp_rank_*
 *   mixed_saves E*          iteration, versions, arguments, schedules or the optimizer's step and
 *                           rate differ between files
 *   other_rank E*           saved as another file of the grid, or by another rank
 *   unreadable E            the file cannot be opened, or its container or pickle is damaged
 *   crc E                   the optimizer's step (the only tensor read here) fails its checksum
 *   class E, opaque W       see pt_check_classes()
 *   key E/W/N               a key is absent or has a wrong value; N: it can be recomputed
 *   no_optimizer W          saved with --no-save-optim: weights only
 *   groups E                group counts differ between param_shapes, fp32, state, mappings; a
 *                           state that two groups claim, or none
 *   length E                fp32, exp_avg, exp_avg_sq of a group differ in length
 *   partition E             lengths do not fit align_up(S, 2 DP) / DP; S: elements of the group
 *   padding E/N             recorded padding is not F - S, the padded minus the used size of the group; N: it spans
 *                           more than one rank
 *   mapping E               param_slice_mappings differs from the partition rule
 *   param_name E            a name that cannot be a parameter's (length, '/', control characters)
 *   shape E                 shapes differ between tensor ranks, layer file and param_shapes, or
 *                           cannot be merged by the rule
 *   names E                 parameter names or their order differ between tensor ranks
 *   stage E                 a parameter on two stages that is not a tied embedding, or twice on one
 *   tied_positions N        the last stage's position table is not trained: the first one is used
 *   dtype E                 a tensor of an unexpected or mixed dtype
 *   strided E               a tensor that is not contiguous
 *   unknown_key E/N         a layer-file tensor that param_shapes does not list; N: a buffer
 *   missing_key E           a parameter without its tensor in the layer file
 *   vocab E                 padded rows V disagree with args, or are fewer than the tokens (V0)
 *   heads E                 the number of heads is not divisible by the tensor degree
 *   checkpoint_version E/W  QKV order not supported; W: not recorded, 3.0 assumed
 *   pattern, universal_info E/W  see merge_patterns_new()
 *   merge_rule W            no rule for a name: concatenated on dim 0
 *   optimizer E             not Adam: moments missing, or additional states
 *   stand_in W              a file is lost, and deepspeed_lost.c replaces it
 * E*: a warning with source_opts.accept_mismatch. ckpt/ckpt_overlap.c reports `overlap`, for all layouts. Values are
 * compared by verify, not here.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_H
#define SHARDKIT_LAYOUT_DEEPSPEED_H

#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/engine/deepspeed_shape.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"
#include "libcommon/model/merge_patterns.h"
#include "libcommon/model/topology.h"

/* ---- tables ---- */

/* The three flat fp32 tensors of a shard (master weights and Adam's moments), in the order of ds_shard.run. */
enum { DS_FP32, DS_AVG, DS_AVG_SQ, DS_STATES };

/* The content of the mp_rank file of one rank (pp, tp). */
struct ds_rank_stage {
    struct ds_stage st;
    bool ok;                    /* the file's param_shapes was read */
    bool bad;                   /* param_shapes differs from that of the stage's other ranks: unusable */
};

struct ds_run {
    int record;                 /* record number of the flat tensor's data; -1 if the tensor is not usable */
    uint64_t at;                /* byte offset from the start of the record */
    int64_t n_elems;
};
/* The content of the optimizer shard (zero file) of one rank (pp, tp, dp). */
struct ds_shard {
    struct ds_run (*run)[DS_STATES];    /* [groups of the stage]; NULL if the shard is not usable */
    bool zero_stage_1;
};

/* One tensor of a layer file. */
struct ds_tensor {
    const char *name;           /* name of the parameter, such as "3.input_layernorm.weight"; owned by ds.index */
    struct pt_tensor t;
};
struct ds_layer {
    bool ok;                    /* the file was read */
    int n;
    struct ds_tensor *tensor;
};

/*
 * Values that must be equal in all files of one save. They are compared as text. deepspeed_identity.c lists where each
 * is stored.
 */
enum ds_mark { DS_STEP, DS_RATE, DS_SHARED, DS_MARKS = DS_SHARED + RUN_SHARED, DS_SETTINGS = DS_MARKS, DS_VALUES,
               DS_TEXTS };

struct ds {
    struct source *s;
    const struct source_opts *o;
    struct report *r;
    struct topology topo;
    int n_files;
    struct ds_name *name;       /* [n_files], parallel to s->file */
    char *(*mark)[DS_TEXTS];    /* [n_files]; NULL if the file does not have the value */
    bool bf16_prefix, joined;   /* how this folder spells the names of zero files */
    int n_missing;
    bool too_many;              /* the files have too many records, so the open fails */
    int n_layers;
    int *layer_no;              /* distinct layer numbers, ascending */
    int *mp_file;               /* [mp]: index in s->file; -1 if the file is missing */
    int *zero_file;             /* [mp * DP + dp], likewise */
    int *layer_file;            /* [i * TP + tp], likewise; i is an index in layer_no */
    struct ds_rank_stage *stage;        /* [mp] */
    /* [pp]: the stage table with which the other ranks are compared; NULL if none was read */
    const struct ds_stage **ref;
    struct ds_index index;      /* the parameters in ref[] of all stages */
    struct ds_shard *shard;     /* [mp * DP + dp] */
    struct ds_layer *layer;     /* [i * TP + tp] */
    /* an mp_rank file made from source_opts.config because no other can be opened; NULL otherwise */
    struct pt *made;
    /* index in zero_file of the shard from which the optimizer's settings are read; -1 if there is none */
    int lead;
    struct pt_holes holes;
};

/* The arguments of a function that reads one file: the file, its handle, and a report for this file only. */
struct ds_job {
    struct ds *d;
    int file;                   /* index in s->file */
    struct files *files;        /* the file table in which the records of pt are numbered */
    struct pt *pt;
    const char *path;           /* path of the file, for findings */
    struct report *r;
};
typedef void ds_read_fn(const struct ds_job *j);
typedef void ds_renumber_fn(struct ds *d, int file, int base);

/* ---- deepspeed_files.c ---- */

/*
 * Fill s->file and d->name from the listing. Returns -1 with *e set if the file names belong to a layout that is not
 * supported.
 */
MUST_CHECK int ds_files_read(struct ds *d, const struct source_listing *l, struct err *e);
/*
 * Determine the degrees from the file names and from `first`, an mp_rank file that could be opened. Returns -1 on
 * error.
 */
MUST_CHECK int ds_degrees(struct ds *d, const struct source_file *first, struct err *e);
/* Report a difference between the degrees recorded in the mp_rank file and those of the checkpoint. */
void ds_check_degrees(const struct ds_job *j);
/*
 * Compare the degrees recorded in an mp_rank file of another tag (`root`) with the file names of this tag. Returns the
 * difference as text, which the caller frees, or NULL if there is none.
 */
char *ds_degrees_unlike(const struct ds *d, const struct pk *root);
/* Assign every file to its place in the (pp, tp, dp) grid. Report missing, extra and duplicate files. */
void ds_grid(struct ds *d);
/* Write the name of a file ("layer_03-model_01-model_states.pt" and similar) into buf. Return buf. */
const char *ds_layer_name(int layer, int tp, char buf[96]);
const char *ds_mp_name(int mp, char buf[96]);
const char *ds_zero_name(const struct ds *d, int mp, int dp, char buf[96]);
/*
 * Report a missing file. ds_missing() reports the first few by name; ds_missing_rest() reports how many others are
 * missing.
 */
void ds_missing(struct ds *d, const char *name);
void ds_missing_rest(struct ds *d);
/*
 * Return the mp_rank file of the lowest rank that could be opened. After ds_degrees() has succeeded, there is such a
 * file.
 */
const struct source_file *ds_first_mp(const struct ds *d);
/* Report files that are shorter than other files of the same kind, for example truncated copies. No file is opened. */
void ds_check_sizes(struct ds *d);

/* ---- deepspeed_stages.c ---- */

ds_read_fn ds_read_stage;
/* Compare the ranks of each stage, select the rank that represents it (d->ref), and index the listed parameters. */
void ds_check_stages(struct ds *d);
/*
 * Returns true if the parameters of all stages are known. Only then is it an error if a layer file has a name that no
 * stage lists.
 */
bool ds_all_stages(const struct ds *d);

/* ---- deepspeed_stages.c, deepspeed_shards.c ---- */

ds_read_fn ds_read_layer, ds_read_shard;
ds_renumber_fn ds_renumber_layer, ds_renumber_shard;

/* ---- deepspeed_lost.c ---- */

/* Return true if the caller has allowed the open to continue without mp_rank files. */
static inline bool ds_stands_in(const struct ds *d)
{
    return !d->o->no_tensors && (d->o->holes || d->o->no_optimizer);
}
/* Return the severity with which a lost shard or layer file is reported. */
static inline enum severity ds_lost(const struct ds *d) { return d->o->holes ? SEV_WARNING : SEV_ERROR; }
/*
 * Return the open mp_rank_00 file of another tag of the run. If no other tag fits, return NULL and add the reasons to
 * *e.
 */
struct pt *ds_lost_first(struct ds *d, struct err *e);
/*
 * Make an mp_rank file from the arguments in source_opts.config and the shapes in the layer files, with a single
 * pipeline stage. Sets d->made to it and returns it. Returns NULL if the configuration does not fit the layer files, or
 * if the caller gave none; in the latter case the option that gives a configuration is added to *e.
 */
struct pt *ds_lost_config(struct ds *d, struct err *e);
/* Determine param_shapes of the stages that have no readable mp_rank file. */
void ds_find_stages(struct ds *d);
/* Make replacements for lost mp_rank files. d->ref must be set. Returns -1 with *e set on error. */
MUST_CHECK int ds_stand_in(struct ds *d, struct err *e);
/* Find the records that can still be read in shards and layer files whose container is damaged. */
void ds_recover(struct ds *d);
/* Return an extent that stands for `len` lost bytes of the file `name`. */
struct extent ds_hole(struct ds *d, const char *name, uint64_t len);

/* ---- deepspeed_params.c ---- */

/* Report layers that a stage lists but whose files are missing, and layer files that no stage lists. */
void ds_check_layers(struct ds *d);
/* Fill s->param: the parameters and the maps of their tensors. */
void ds_make_params(struct ds *d);

/* ---- deepspeed_identity.c ---- */

/*
 * Return the severity of the finding that files belong to different saves: a warning if the user has accepted this
 * (source_opts.accept_mismatch), otherwise an error.
 */
enum severity ds_mismatch(const struct ds *d);
/* Compare args.rank in the mp_rank files with the ranks in their names. */
void ds_check_ranks(struct ds *d);

/* Read the values listed in enum ds_mark from an mp_rank or zero file. */
void ds_read_marks(const struct ds_job *j);
void ds_check_marks(struct ds *d);
/*
 * Return the value v as text, which the caller frees. Equal values give the same text, and so do an int and a float of
 * the same value. Returns NULL if v is NULL.
 */
char *ds_mark_text(const struct pk *v);

/* ---- deepspeed_state.c ---- */

/* Store the shard's Adam step and learning rate in d->mark, and check that they agree in all groups of the shard. */
void ds_read_step(const struct ds_job *j, const struct pk *optimizer);
/*
 * Return the index in d->zero_file of the first shard after index `last` (-1: from the beginning) that exists and
 * belongs to a stage with all optimizer groups, so that its settings are complete. Returns -1 if there is no such
 * shard.
 */
int ds_lead_shard(const struct ds *d, int last);
/* Set s->run and s->config, and report contradictions among their values and the tensors. */
void ds_run_state(struct ds *d);

#endif
