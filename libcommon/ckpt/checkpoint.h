/*
 * checkpoint.h - the contents of an opened checkpoint, in a form that does not depend on its layout
 *
 * A source is plain data: run state, configuration, and for every parameter one tensor map per state.
 */
#ifndef SHARDKIT_CKPT_CHECKPOINT_H
#define SHARDKIT_CKPT_CHECKPOINT_H

#include "libcommon/base/files.h"
#include "libcommon/base/names.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/config.h"
#include "libcommon/model/params.h"
#include "libcommon/model/topology.h"
#include "libcommon/plan/plan.h"

/*
 * The fp32 states of a trained parameter: the fp32 master weight and both moments, in the order in which a universal
 * checkpoint lists them.
 */
#define TRAINED_STATES 3
extern const enum state trained_states[TRAINED_STATES];

/* What a file contains. Used to compute sizes and to check completeness. */
enum file_class { FILE_WEIGHTS, FILE_OPTIMIZER, FILE_OTHER };

struct source_file {
    char *name;                 /* name in the tag folder: "mp_rank_00_model_states.pt" */
    int file;                   /* number in source->files */
    enum file_class cls;
    struct pt *pt;              /* handle (tables only) of a .pt file that is kept open; NULL for other files */
    int pp, tp, dp, layer;      /* ranks and layer in the file's name; -1 if the name has none */
};

/* A container inside a file, such as an item of a .distcp file: bytes [at, at + len). */
struct source_item {
    int file;
    uint64_t at, len;
};

struct param {
    /* canonical name of the parameter, as it is in the files: "3.mlp.dense_4h_to_h.weight" */
    const char *name;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];           /* shape after all slices are merged, with padding rows */
    enum merge_rule merge;
    int stage;                  /* pipeline stage that owns the parameter; -1 if unknown */
    int group;                  /* optimizer group in that stage; -1 if unknown */
    struct tmap *state[STATE_N];        /* map of each state; NULL if the checkpoint does not hold the state */
    /*
     * Weights that the files store in addition to fp32 master weights from which they were rounded. Used only for a
     * comparison. NULL if there are none.
     */
    struct tmap *copy;
    /* the copy of a tied parameter's state in the last pipeline stage; NULL if there is none */
    struct tmap *tied[STATE_N];
    uint32_t digest[STATE_N];  /* CRC-32 of the state's elements in row-major order, if the manifest lists it */
    bool has_digest[STATE_N];
    /* [st]: the name under which the files store the state, if it differs from the member `name`; otherwise NULL */
    const char *spelled[STATE_N];
    const char *shared_with;    /* if this is the second name of a tied weight: the first name; otherwise NULL */
};

/*
 * Data of a checkpoint that is not a parameter: a tensor (Adam's step counter, a generator's state) or a plain value.
 */
struct source_value {
    const char *name;           /* name in the files: "optim.state.model.norm.weight.step" */
    const struct tmap *map;     /* the elements of a tensor; NULL for a plain value */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    const struct pk *tree;      /* a plain value; NULL for a tensor */
    const struct pt *pt;        /* open file that holds the tensors in `tree`; NULL if it contains none */
    bool buffer;                /* this tensor is a buffer of the model, stored with its weights */
};

/* A tensor in the files that is a stack: each row is one state of one parameter. */
struct source_stack {
    struct source_value whole;  /* the stacked tensor, under its name in the files */
    enum state state;
    /* [whole.shape[0]]: index of each row's parameter; NULL if the parameters do not have this state */
    const int *row;
};

/* The state of the run. Values that tools use have members here; others are only in the trees of the open files. */
struct run_state {
    int64_t iteration;                  /* -1 if unknown */
    int64_t consumed_samples, consumed_tokens;      /* -1 if unknown */
    double checkpoint_version;          /* 3.0 in all known files */
    char ds_version[64];
    char torch_dialect[32];             /* program that wrote the zip container: "torch < 2", "torch 2" or "shardkit" */
    int64_t opt_step;                   /* Adam's step counter; -1 if unknown */
    /*
     * true if the counter is stored in the state of each group (as by torch's Adam), so that a conversion must write
     * step.pt
     */
    bool step_in_state;
    bool step_is_tensor;                /* if step_in_state: it is a 0-dimensional fp32 tensor; otherwise an int */
    int n_groups;
    const struct pk *args;  /* the training arguments: a Namespace in the mp_rank_00 file; owned by the source */
    /*
     * The optimizer's dict, which DeepSpeed's writers copy: the optimizer_state_dict of shard (pp 0, dp 0, tp 0), or
     * the tree of optimizer_state.pt. For Megatron-core's layout it is the dict `optimizer` of common.pt. NULL for
     * other layouts; their groups are in source.groups.
     */
    const struct pk *optimizer;
    const struct pk *param_groups;      /* list of the groups' dicts in `optimizer`, or NULL */
    struct pt *optimizer_pt;            /* the file that contains `optimizer` and `param_groups` */
    const struct pt *values_pt;  /* file whose root contains the run state and other values of the program, or NULL */
    /* names of optimizer states other than Adam's, which are values of the source; NULL if there are none */
    const char *more_states;
};

/* A tensor or value in the files that cannot be read, so that it is not part of the source. */
struct source_unread {
    const char *name;           /* name in the files */
    const char *why;            /* the reason, such as "a sparse tensor: save it after .to_dense()" */
};

struct dcp_table;
struct layout;
struct optim_groups;
struct source;
/*
 * A function that reads the optimizer's groups from the layout's own tables, for optim_groups_read(). *out is all 0
 * before the call, and stays so if the source does not define groups. Returns -1 with ERR_DATA if the tables are not
 * valid.
 */
typedef int source_read_groups(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);

struct source {
    const struct layout *layout;        /* opaque outside of libcommon/ckpt and libcommon/layout; see source_facts.h */
    char *path;  /* path of the tag folder (or archive) that was opened; a file `latest` has been followed */
    char *tag;                  /* the last component of `path` */
    struct files *files;
    struct arena *arena;
    struct topology topo;  /* topology of the shards; for a universal form, as in the mp_rank files, 0 if unknown */
    struct model_config config;
    struct run_state run;
    bool tied_embedding;        /* the last pipeline stage holds a second copy of the embedding */
    /*
     * The optimizer shards are those of ZeRO-1/2, not of BF16_Optimizer. For a universal form: it was made from such
     * shards.
     */
    bool zero_stage_1;
    /* ZeRO stage (1, 2 or 3) of a run without pipeline, also if a universal form was made from it; otherwise 0 */
    int zero_stage;
    enum dtype weights;         /* if zero_stage is not 0: the type that the run computes with */
    int n_files;
    struct source_file *file;   /* the files in the tag folder that belong to the layout, in natural order of names */
    int n_items;
    struct source_item *item;   /* containers inside files */
    int n_params;
    /*
     * The parameters in the order embedding, layers, final LayerNorm; within each of these, in natural order of names.
     */
    struct param *param;
    /* If the layout stores entries (dcp): all entries in their order, for writing them again. */
    const struct dcp_table *dcp;
    /* number of prefixes in `model`, if several prefixes of names may be those of the model; otherwise 0 */
    int n_models;
    const char **model;
    const struct optim_groups *groups;  /* the optimizer's groups (optim_groups.h); if NULL, read_groups reads them */
    /* Reads the groups. NULL if there are no groups, or if `groups` lists their parameters. */
    source_read_groups *read_groups;
    int n_values;
    struct source_value *value; /* in the order of the tables in the files */
    int n_stacks;
    struct source_stack *stack;
    int n_unread, cap_unread;
    struct source_unread *unread;
    int n_held;
    /* Open handles of containers inside files. Trees refer to them; they are closed with the source. */
    struct pt **held;
    bool weights_only;          /* opened with source_opts.no_optimizer */
    bool accept_mismatch;       /* opened with source_opts.accept_mismatch */
    /* Tables for source_param() and source_file(), in the arena. If NULL, these functions search linearly. */
    struct source_names *names;
};

struct source_names {
    struct names *param, *file, *value, *stack, *spelled;  /* each table is made by the first search that needs it */
};

struct source_opts {
    bool no_tensors;            /* stop after topology, run state and the list of files (for the summary) */
    bool no_optimizer;          /* do not open optimizer shards; only 16-bit weights are read */
    bool piped;                 /* the path "-" means a tar archive on standard input */
    /* Also accept a Transformers model folder, which has only weights (hf_files_source.c). */
    bool hf;
    /*
     * Missing files, and files that cannot be read, are only warnings. Their bytes become holes: extents in records of
     * files without bytes, so that reading them fails with ERR_DATA. In a checkpoint of the pipeline engine
     * (pipeline_files), missing mp_rank files are made from the file of another rank.
     */
    bool holes;
    bool accept_mismatch;       /* files of different saves or of wrong ranks cause a WARNING instead of an ERROR */
    /* Leave out tensors and values that cannot be read, with a WARNING. If false, each of them is an ERROR "unread". */
    bool skip_unreadable;
    const char *model;          /* for a layout of entries (dcp): prefix of the model's names; NULL: find the prefix */
    /*
     * Used if a folder of the pipeline engine has no mp_rank file, and no_optimizer is set: run_args() then makes
     * Megatron's training arguments from the file or folder `config`, in the arena. If run_args is NULL, such a folder
     * is refused; if config is NULL, the error names the option --config.
     */
    const char *config;
    struct pk *(*run_args)(const char *config, struct arena *a, struct err *e);
    int threads;                /* number of threads that open files; 0 means 16 */
};

/* Where something cannot be read, for the message: a file and a byte offset, or NULL and ERR_NO_BYTE. */
struct source_spot {
    const char *file;
    uint64_t at;
};
/*
 * Record in s->unread that `name` cannot be read, and report it. The severity depends on o->skip_unreadable. The
 * strings are copied.
 */
void source_add_unread(struct source *s, const struct source_opts *o, struct report *r, struct source_spot spot,
                       const char *name, const char *why);

void source_close(struct source *s);                    /* s may be NULL */
/*
 * Find a parameter by its name. Returns NULL if there is none. source_file() does the same for a file. Not thread-safe,
 * because the first call makes a table.
 */
struct param *source_param(const struct source *s, const char *name);
const struct source_file *source_file(const struct source *s, const char *name);
/* Remove Adam's moments from all parameters, for a result without optimizer. Masters and weights stay. */
void source_drop_moments(struct source *s);
/*
 * Set shape[] to the parameter's shape: with VOCAB_STRIP a vocabulary has only the first V0 rows, without padding.
 * Returns the size of this shape in bytes, with 4 bytes per element.
 */
uint64_t param_kept_shape(const struct source *s, const struct param *p, enum vocab_policy vocab,
                          int64_t shape[TENSOR_MAX_DIM]);
/*
 * Append the model's buffers to the parameters, for forms that store both in the same way. Each buffer gets one state:
 * STATE_BF16 if its elements have 16 bits, otherwise STATE_FP32, regardless of its type. Must be called at most once.
 */
void source_add_buffers(struct source *s);
/*
 * source_find() finds the data that a user means by `name`. This may be a parameter, NAME:STATE or NAME.STATE, a state
 * by its name in the files, a value, or a stack (whose `value` is set, too). Returns false if there is none. Not
 * thread-safe, like source_param().
 */
struct source_hit {
    struct param *param;                /* NULL for a value */
    int state;                          /* a state of `param`; -1 if the name gives none */
    const struct source_value *value;
    const struct source_stack *stack;   /* the stack that contains `value`, if it is a stack; otherwise NULL */
};
bool source_find(const struct source *s, const char *name, struct source_hit *hit);
/*
 * Find the data that the files store under exactly this name: a state (hit->state), a value or a stack. Unlike
 * source_find(), it does not prefer parameter names, because the name of one parameter may be the name of another one
 * in the files ("model.head", which the files call "model.model.head"). Returns false if there is no such data, or if
 * it cannot be read.
 */
bool source_find_entry(const struct source *s, const char *name, struct source_hit *hit);
/*
 * If the files store one state of the parameter under p->name and others under other names, returns the former.
 * Otherwise returns -1.
 */
int param_named_state(const struct param *p);

/*
 * The pointer file that Megatron-LM writes next to its checkpoint folders. It contains the number of the last one (such
 * as 5 for iter_0000005), or "release".
 */
#define LATEST_ITERATION "latest_checkpointed_iteration.txt"

#endif
