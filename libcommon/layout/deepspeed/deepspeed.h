/*
 * deepspeed.h - read a Megatron-DeepSpeed tag: declarations shared by the deepspeed_*.c files
 *
 * Other folders use layout.h; this header is internal. The phases, in order:
 *   deepspeed_files.c   names -> ranks; the (pp, tp, dp) grid; missing and extra files
 *   deepspeed_stages.c  mp_rank files -> one stage each (deepspeed_shape.h), compared; layer files -> bf16 tensors
 *   deepspeed_shards.c  zero files -> one flat run per group and state, checked against
 *                       the partition rule
 *   deepspeed_params.c  stages -> the parameter list; runs and tensors -> tensor maps
 *   deepspeed_state.c   run state, configuration
 *   ../ds_names.c       compares a file's name with the name inside the file
 *   deepspeed_lost.c    replaces lost files, for callers that can continue without them
 *   deepspeed_identity.c  values that all files of a save must share; the rank in the arguments and in the name
 *
 * Many threads open files (pt_files.h), and each file has a separate slot for its results. One thread makes the
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
 *   partition E             lengths do not fit align_up(S, 2 DP) / DP
 *   padding E/N             recorded padding is not F - S; N: it spans more than one rank
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
 *   vocab E                 padded rows disagree with args, or V < V0
 *   heads E                 the number of heads is not divisible by the tensor degree
 *   checkpoint_version E/W  QKV order not supported; W: not recorded, 3.0 assumed
 *   pattern, universal_info E/W  see merge_patterns_new()
 *   merge_rule W            no rule for a name: concatenated on dim 0
 *   optimizer E             not Adam: moments missing, or additional states
 *   stand_in W              a file is lost, and deepspeed_lost.c replaces it
 * E*: a warning with source_opts.accept_mismatch. open.c reports `overlap`, for all layouts. Values are compared by
 * verify, not here.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_H
#define SHARDKIT_LAYOUT_DEEPSPEED_H

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/engine/deepspeed_shape.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"
#include "libcommon/model/merge_patterns.h"
#include "libcommon/model/topology.h"

/* ---- tables ---- */

/* The three flat states of a shard, in this order. */
enum { DS_FP32, DS_AVG, DS_AVG_SQ, DS_STATES };

/* One (pp, tp): the content of an mp_rank file. */
struct ds_rank_stage {
    struct ds_stage st;
    bool ok;                    /* param_shapes was read */
    bool bad;                   /* ... but differs from the other ranks of the stage, so it is not usable */
};

struct ds_run {
    int record;                 /* -1 if not usable */
    uint64_t at;                /* byte offset from the start of the record */
    int64_t n_elems;
};
/* One (pp, tp, dp): the content of an optimizer shard (a zero file). */
struct ds_shard {
    struct ds_run (*run)[DS_STATES];    /* [groups of the stage]; NULL if the shard is not usable */
    bool zero_stage_1;
};

/* One tensor of a layer file. Tensors are in the file's order. */
struct ds_tensor {
    const char *name;           /* name of the parameter: "3.input_layernorm.weight"; owned by the index */
    struct pt_tensor t;
};
struct ds_layer {
    bool ok;                    /* the file was read */
    int n;
    struct ds_tensor *tensor;
};

/* Values that all files of one save share, compared as text; deepspeed_identity.c lists where they are stored. */
enum ds_mark { DS_STEP, DS_RATE, DS_SHARED, DS_MARKS = DS_SHARED + RUN_SHARED, DS_SETTINGS = DS_MARKS, DS_TEXTS };

struct ds {
    struct source *s;
    const struct source_opts *o;
    struct report *r;
    struct topology topo;
    int n_files;
    struct ds_name *name;       /* [n_files], parallel to s->file */
    char *(*mark)[DS_TEXTS];    /* [n_files]; NULL if the file does not have the value */
    bool bf16_prefix, joined;   /* spelling of the zero files' names in this folder */
    int n_missing;
    bool too_many;              /* too many records: the open fails */
    int n_layers;
    int *layer_no;              /* distinct layer numbers, ascending */
    int *mp_file;               /* [mp] -> file, -1 if missing */
    int *zero_file;             /* [mp * DP + dp] */
    int *layer_file;            /* [i * TP + tp], i in layer_no */
    struct ds_rank_stage *stage;        /* [mp] */
    const struct ds_stage **ref;        /* [pp]: the stage table that the other ranks are compared with; NULL if none */
    struct ds_index index;      /* every parameter in ref of every stage */
    struct ds_shard *shard;     /* [mp * DP + dp] */
    struct ds_layer *layer;     /* [i * TP + tp] */
    struct pt *made;            /* an mp_rank file of source_opts.config, if there is no other; else NULL */
    int lead;                   /* index in zero_file of the shard with the run's optimizer settings; -1 if none */
    struct pt_holes holes;
};

/* The arguments of a function that reads one file: the file, its handle, and a report of its own. */
struct ds_job {
    struct ds *d;
    int file;                   /* index in s->file */
    struct files *files;        /* numbers the records of pt */
    struct pt *pt;
    const char *path;           /* for findings */
    struct report *r;
};
typedef void ds_read_fn(const struct ds_job *j);
typedef void ds_renumber_fn(struct ds *d, int file, int base);

/* ---- deepspeed_files.c ---- */

/* Fill s->file and d->name from the listing. Returns -1 for layouts that are rejected because of their file names. */
MUST_CHECK int ds_files_read(struct ds *d, const struct source_listing *l, struct err *e);
/* Determine the degrees from the names and the first mp_rank file that could be opened. Returns -1 on error. */
MUST_CHECK int ds_degrees(struct ds *d, const struct source_file *first, struct err *e);
/* Compare the degrees in an mp_rank file with those of the checkpoint. */
void ds_check_degrees(const struct ds_job *j);
/*
 * Compare the degrees in an mp_rank file of another tag with the names of this one's files. Returns the difference as
 * text, which the caller frees, or NULL if there is none.
 */
char *ds_degrees_unlike(const struct ds *d, const struct pk *root);
/* Put every file into the grid; report missing, extra and duplicate files. */
void ds_grid(struct ds *d);
/* Write "layer_03-model_01-model_states.pt" and similar names into buf. Return buf. */
const char *ds_layer_name(int layer, int tp, char buf[96]);
const char *ds_mp_name(int mp, char buf[96]);
const char *ds_zero_name(const struct ds *d, int mp, int dp, char buf[96]);
/* Report a missing file. The first few are reported by name; ds_missing_rest() reports the number of all others. */
void ds_missing(struct ds *d, const char *name);
void ds_missing_rest(struct ds *d);
/* Return the mp_rank file of the lowest rank that could be opened. There is one once ds_degrees() has succeeded. */
const struct source_file *ds_first_mp(const struct ds *d);
/* Report files that are shorter than their peers, for example truncated copies, without opening them. */
void ds_check_sizes(struct ds *d);

/* ---- deepspeed_stages.c ---- */

ds_read_fn ds_read_stage;
/* Compare the ranks of each stage, choose d->ref, and index the listed parameters. */
void ds_check_stages(struct ds *d);
/* Returns true if the parameters of all stages are known. Only then is an unknown name in a layer file an error. */
bool ds_all_stages(const struct ds *d);

/* ---- deepspeed_stages.c, deepspeed_shards.c ---- */

ds_read_fn ds_read_layer, ds_read_shard;
ds_renumber_fn ds_renumber_layer, ds_renumber_shard;

/* ---- deepspeed_lost.c ---- */

/* Return true if the caller can continue without mp_rank files. */
static inline bool ds_stands_in(const struct ds *d)
{
    return !d->o->no_tensors && (d->o->holes || d->o->no_optimizer);
}
/* Return the severity of a lost shard or layer file. */
static inline enum severity ds_lost(const struct ds *d) { return d->o->holes ? SEV_WARNING : SEV_ERROR; }
/*
 * Return mp_rank_00 of another tag of the run. If there is none, return NULL and add to *e why other tags were not
 * used.
 */
struct pt *ds_lost_first(struct ds *d, struct err *e);
/*
 * Make an mp_rank file from the arguments in source_opts.config and the shapes of the layer files, as if there were one
 * pipeline stage, and set d->made to it. Returns it, or NULL if the caller gave no such file (the next step is added to
 * *e) or if it does not fit the layer files.
 */
struct pt *ds_lost_config(struct ds *d, struct err *e);
/* Determine the param_shapes of stages that have no mp_rank file. */
void ds_find_stages(struct ds *d);
/* Make replacements of lost mp_rank files. d->ref must be set. */
MUST_CHECK int ds_stand_in(struct ds *d, struct err *e);
/* Find the records that can be read in shards and layer files with damaged containers. */
void ds_recover(struct ds *d);
/* Return an extent for `len` lost bytes of the file `name`. */
struct extent ds_hole(struct ds *d, const char *name, uint64_t len);

/* ---- deepspeed_params.c ---- */

/* Report layers that the stages list but the folder lacks, and the reverse. */
void ds_check_layers(struct ds *d);
/* Fill s->param, including the tensor maps. */
void ds_make_params(struct ds *d);

/* ---- deepspeed_identity.c ---- */

/* Return the severity of a finding that files are of different saves: lower if the user has accepted this. */
enum severity ds_mismatch(const struct ds *d);
/* Compare args.rank of the mp_rank files with their names. */
void ds_check_ranks(struct ds *d);

/* Read the marks of an mp_rank or zero file. */
void ds_read_marks(const struct ds_job *j);
void ds_check_marks(struct ds *d);
/*
 * Return a value as text; equal values, including an int and the equal float, give the same text. Returns NULL if
 * there is no value. Caller frees.
 */
char *ds_mark_text(const struct pk *v);

/* ---- deepspeed_state.c ---- */

/* Store Adam's step and rate of a shard as marks, and check that its groups agree. */
void ds_read_step(const struct ds_job *j, const struct pk *optimizer);
/*
 * Return the index in d->zero_file of the first existing shard after `last` (-1: from the beginning) of a stage that
 * has all optimizer groups, so that its settings are complete. -1 if there are no more.
 */
int ds_lead_shard(const struct ds *d, int last);
/* Set s->run and s->config, and compare them with the tensors and with each other. */
void ds_run_state(struct ds *d);

#endif
