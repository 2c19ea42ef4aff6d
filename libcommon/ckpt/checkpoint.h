/*
 * checkpoint.h - what an opened checkpoint is, whatever layout it has
 *
 * plain data: run state, configuration, and for every parameter one tensor map per state.
 */
#ifndef SHARDKIT_CKPT_CHECKPOINT_H
#define SHARDKIT_CKPT_CHECKPOINT_H

#include "libcommon/base/files.h"
#include "libcommon/base/names.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/config.h"
#include "libcommon/model/params.h"
#include "libcommon/model/topology.h"
#include "libcommon/plan/plan.h"

/*
 * The fp32 states of a trained parameter: their number, and the states in the order in which a universal checkpoint
 * writes them.
 */
#define TRAINED_STATES 3
extern const enum state trained_states[TRAINED_STATES];

/* The contents of a file, for sizes and completeness. */
enum file_class { FILE_WEIGHTS, FILE_OPTIMIZER, FILE_OTHER };

struct source_file {
    char *name;                 /* inside the tag folder: "mp_rank_00_model_states.pt" */
    int file;                   /* number in source->files */
    enum file_class cls;
    struct pt *pt;              /* handle (tables only) of a .pt file that is kept open; NULL for other files */
    int pp, tp, dp, layer;      /* coordinates; -1 where not applicable */
};

/* A container inside a file: an item of a .distcp. */
struct source_item {
    int file;
    uint64_t at, len;
};

struct param {
    /* canonical name of the parameter, as spelled in the files: "3.mlp.dense_4h_to_h.weight" */
    const char *name;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];           /* full merged shape, padding rows included */
    enum merge_rule merge;
    int stage;                  /* pipeline stage that owns it; -1 if unknown */
    int group;                  /* optimizer group on that stage; -1 if unknown */
    struct tmap *state[STATE_N];        /* NULL if the checkpoint does not hold it */
    /*
     * a rounded copy of the masters, which the files store as weights next to them, for comparison; NULL if there is
     * none
     */
    struct tmap *copy;
    struct tmap *tied[STATE_N];         /* the last stage's copy of a tied parameter, or NULL */
    uint32_t digest[STATE_N];           /* CRC-32 of the logical bytes, if a manifest lists it */
    bool has_digest[STATE_N];
    /* [st]: the name of the state in the files, if it differs from `name`; or NULL */
    const char *spelled[STATE_N];
    const char *shared_with;    /* for a tied weight that is a second name: the parameter of the first name; or NULL */
};

/* Data of a checkpoint other than parameters: a tensor (Adam's step, a generator's state) or a plain value. */
struct source_value {
    const char *name;           /* as spelled in the files: "optim.state.model.norm.weight.step" */
    const struct tmap *map;     /* a tensor's elements; NULL for a plain value */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    const struct pk *tree;      /* the plain value; NULL for a tensor */
    const struct pt *pt;        /* open file of the tensors that the tree contains; NULL if there are none */
    bool buffer;                /* a buffer of the model, which is stored with its weights */
};

/* A tensor of the files whose rows are states of one parameter each. */
struct source_stack {
    struct source_value whole;  /* the tensor, under its name in the files */
    enum state state;
    const int *row;             /* indices of the parameters, [whole.shape[0]]; NULL if they do not have this state */
};

/* Everything except tensor data. Members that tools use are typed; the trees stay in the pt handles. */
struct run_state {
    int64_t iteration;                  /* -1 if unknown */
    int64_t consumed_samples, consumed_tokens;      /* -1 if unknown */
    double checkpoint_version;          /* 3.0 */
    char ds_version[64];
    char torch_dialect[32];             /* program that wrote the container: "torch < 2", "torch 2", "shardkit" */
    int64_t opt_step;                   /* Adam's counter; -1 if unknown */
    /* true if state[g]['step'] exists (torch Adam), so that a conversion must write step.pt */
    bool step_in_state;
    bool step_is_tensor;                /* ... as a 0-dim fp32 tensor rather than an int */
    int n_groups;
    const struct pk *args;              /* Namespace of mp_rank_00; owned by the source */
    /*
     * Trees of DeepSpeed's files, which its writers copy: optimizer_state_dict of shard (pp 0, dp 0, tp 0), or of
     * optimizer_state.pt, and its list of groups. NULL for other layouts, whose groups are in source.groups; those of
     * Megatron-core have their dict `optimizer`.
     */
    const struct pk *optimizer;
    const struct pk *param_groups;      /* list of dicts, or NULL */
    struct pt *optimizer_pt;            /* the file of both */
    const struct pt *values_pt;         /* file whose root holds run state and other values of the program, or NULL */
    /* names of states that are not Adam's, which are values; NULL if there are none */
    const char *more_states;
};

/* A tensor or value of the files that cannot be read. It is not part of the source. */
struct source_unread {
    const char *name;           /* as spelled in the files */
    const char *why;            /* "a sparse tensor: save it after .to_dense()" */
};

struct dcp_table;
struct optim_groups;
struct source;
/*
 * Read the optimizer's groups from the layout's own tables, for optim_groups_read(). out is all 0 before the call, and
 * stays so if the source does not define groups. Returns -1 with ERR_DATA.
 */
typedef int source_read_groups(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);

struct source {
    const struct layout *layout;
    char *path;                 /* path of the tag folder (or archive) that was opened, with "latest" resolved */
    char *tag;                  /* its base name */
    struct files *files;
    struct arena *arena;
    struct topology topo;       /* topology of the shards; for universal forms from the mp_rank files, 0 if unknown */
    struct model_config config;
    struct run_state run;
    bool tied_embedding;        /* the last stage holds a second copy */
    /* shards are ZeRO-1/2's rather than BF16_Optimizer's; for a universal form: made from such shards */
    bool zero_stage_1;
    int zero_stage;             /* 1, 2 or 3 if zero_files, and for a universal form made from such; otherwise 0 */
    enum dtype weights;         /* type that such a run computes with */
    int n_files;
    struct source_file *file;   /* every file of the tag that belongs to the layout, in natural order */
    int n_items;
    struct source_item *item;   /* zips inside files */
    int n_params;
    /* the parameters: embedding, layers, final LayerNorm; within each of these in natural order of names */
    struct param *param;
    /* for a layout of entries: the table of all entries in their order, for writing them again */
    const struct dcp_table *dcp;
    int n_models;               /* number of prefixes of names that may be the model's, if there are several; else 0 */
    const char **model;
    const struct optim_groups *groups;  /* the optimizer's groups (optim_groups.h); NULL: read_groups reads them */
    /* reads the groups; NULL if there are no groups, or if `groups` lists their parameters */
    source_read_groups *read_groups;
    int n_values;
    struct source_value *value; /* in the order of the files' tables */
    int n_stacks;
    struct source_stack *stack;
    int n_unread, cap_unread;
    struct source_unread *unread;
    int n_held;
    /* open handles of containers inside files, to which trees refer; closed with the source */
    struct pt **held;
    bool weights_only;          /* opened with no_optimizer */
    bool accept_mismatch;       /* opened with accept_mismatch */
    /* tables for source_param() and source_file(), in the arena; NULL to search linearly */
    struct source_names *names;
};

struct source_names {
    struct names *param, *file, *value, *stack, *spelled;       /* each is made when first needed */
};

struct source_opts {
    bool no_tensors;            /* stop after topology, run state and the file list (for the summary) */
    bool no_optimizer;          /* do not open optimizer shards (bf16 only) */
    bool piped;                 /* "-" is a tar archive on standard input */
    /* also accept a model folder of Transformers, which has only weights (hf_files_source.c) */
    bool hf;
    /*
     * Files that are lost or cannot be read are reported as warnings. Their bytes become holes: extents of records
     * of files without bytes, so that reading one fails with ERR_DATA. Missing mp_rank files are made from another
     * rank's (pipeline_files).
     */
    bool holes;
    bool accept_mismatch;       /* files of different saves or ranks cause a warning instead of an ERROR */
    /* leave out tensors and values that cannot be read, with a warning; otherwise each is an ERROR "unread" */
    bool skip_unreadable;
    const char *model;          /* prefix of the model's tensors in a layout of entries; NULL: find the prefix */
    /*
     * Pipeline files without any mp_rank file, with no_optimizer: run_args() makes Megatron's arguments from the file
     * or folder `config`, in the arena. Without run_args such a folder is refused; without config, the error names the
     * option --config.
     */
    const char *config;
    struct pk *(*run_args)(const char *config, struct arena *a, struct err *e);
    int threads;                /* for opening files; 0 = 16 */
};

/* The location of something that cannot be read, for the message: a file and a byte offset, or NULL and ERR_NO_BYTE. */
struct source_spot {
    const char *file;
    uint64_t at;
};
/* Record that `name` is not read, and report that with the severity that `o` requests. Copies the strings. */
void source_add_unread(struct source *s, const struct source_opts *o, struct report *r, struct source_spot spot,
                       const char *name, const char *why);

void source_close(struct source *s);                    /* s may be NULL */
/*
 * Find a parameter by its name. Returns NULL if there is none; source_file() does the same for a file. Not thread-safe:
 * the first call makes a table.
 */
struct param *source_param(const struct source *s, const char *name);
const struct source_file *source_file(const struct source *s, const char *name);
/* Returns true if the model belongs to no known family. Names are then the model's own, and config is all 0. */
bool source_has_unknown_family(const struct source *s);
/*
 * Returns true if the parameters have the model's own names: in every model folder, and in any checkpoint of a model
 * that belongs to no known family.
 */
bool source_has_own_names(const struct source *s);
/*
 * Returns true for a save by DeepSpeed's engine without pipeline, and for a universal form made from such a save.
 * Groups are then the engine's own, and the type that the engine computes with is recorded.
 */
bool source_is_from_zero(const struct source *s);
/* Returns the ZeRO stage, 1 to 3, of a save for which source_is_from_zero() returns true; 0 for others. */
int source_zero_stage(const struct source *s);
/* Returns true if the masters are the only weights of trained parameters, as with ZeRO-3. */
bool source_masters_alone(const struct source *s);
/* Returns true if both sources have the same layout and ZeRO stage. Their numbers of ranks may differ. */
bool source_same_form(const struct source *a, const struct source *b);
/*
 * Returns true if the pipeline engine's optimizer is stored in the form of ZeRO-1, as in fp16 runs, and not in that of
 * BF16_Optimizer.
 */
bool source_has_zero1_optimizer(const struct source *s);
/*
 * Returns the type of the weights that the trainer computed with. Under ZeRO it is the one that the opener determined.
 * Else it is that of the first parameter's 16-bit weights; without these, fp32 if names are the model's own, else
 * params_dtype in the arguments, else bf16.
 */
enum dtype source_weights_dtype(const struct source *s);
/*
 * Returns a description of the ranks, such as "TP 2, PP 2, DP 2 (8 ranks)" or "ZeRO-2, 4 ranks"; NULL if they are
 * unknown. The caller frees it.
 */
char *source_topology_text(const struct source *s);
/*
 * Check that the model's tensors are identified, before another layout is made from the source. Returns -1 with
 * ERR_USAGE if there may be several models; the message lists them and the option that chooses one
 * (source_opts.model).
 */
MUST_CHECK int source_one_model(const struct source *s, struct err *e);
/* Check that torch has the type of every parameter, before files of torch are made. Returns -1 with ERR_DATA if not. */
MUST_CHECK int source_in_torch(const struct source *s, struct err *e);
/* Returns true if any parameter has Adam's moments. */
bool source_has_moments(const struct source *s);
/*
 * Returns the number of bytes of one state with 4 bytes per element: of all rows, or with VOCAB_STRIP only of the first
 * V0 rows of a vocabulary. Sets shape[] accordingly.
 */
uint64_t param_kept_shape(const struct source *s, const struct param *p, enum vocab_policy vocab,
                          int64_t shape[TENSOR_MAX_DIM]);
/*
 * Append the model's buffers to the parameters, for forms that store both alike. Each gets one state: STATE_BF16 if
 * its elements have 16 bits, else STATE_FP32, whatever its type. Call it only once.
 */
void source_add_buffers(struct source *s);
/*
 * The data that a user means by a name: a parameter, NAME:STATE or NAME.STATE, a state as spelled in the files, a
 * value, or a stack, which is a value, too. source_find() returns false if there is none. Not thread-safe, like
 * source_param().
 */
struct source_hit {
    struct param *param;                /* NULL for a value */
    int state;                          /* state of the parameter; -1 if none was given */
    const struct source_value *value;
    const struct source_stack *stack;   /* ... the stack that `value` is the whole of; or NULL */
};
bool source_find(const struct source *s, const char *name, struct source_hit *hit);
/*
 * Find the data with exactly this name in the files: a state, which hit->state gives, a value or a stack. A
 * parameter's own name may be another one's name in the files ("model.head", which is "model.model.head" in the
 * files). Returns false if there is none, or none that can be read.
 */
bool source_find_entry(const struct source *s, const char *name, struct source_hit *hit);
/*
 * Returns the state that has the parameter's bare name in the files, if another state has a different name there.
 * Returns -1 otherwise.
 */
int param_named_state(const struct param *p);

/* The pointer file that Megatron-LM writes next to its tags: the number of its last iter_0000005, or "release". */
#define LATEST_ITERATION "latest_checkpointed_iteration.txt"

#endif
