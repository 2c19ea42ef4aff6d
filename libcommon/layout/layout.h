/*
 * layout.h - the two small interfaces: a source to read a checkpoint, a sink to write one
 *
 * A source is a layout opened for reading. Opening reads tables only; afterwards the
 * struct is plain data: run state, configuration, and for every parameter a tensor map
 * per state. A sink is a layout opened for writing: it takes a source, adds what it
 * wants to a plan, and finishes files as their items complete. So every converter is
 * source -> plan -> executor -> sink (plan/, layout/convert.h), and M + N layouts make
 * M x N converters.
 */
#ifndef SHARDKIT_LAYOUT_LAYOUT_H
#define SHARDKIT_LAYOUT_LAYOUT_H

#include "libcommon/base/files.h"
#include "libcommon/base/names.h"
#include "libcommon/base/report.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/config.h"
#include "libcommon/model/params.h"
#include "libcommon/model/topology.h"
#include "libcommon/plan/plan.h"

enum layout_kind {
    LAYOUT_DEEPSPEED,           /* 3D shards: layer_*, mp_rank_*, [bf16_]zero_* */
    LAYOUT_UNIVERSAL_PT,        /* zero/<parameter>/<state>.pt */
    LAYOUT_UNIVERSAL_HDF5,      /* index.h5 that holds the bytes (or one .h5 a parameter) */
    LAYOUT_UNIVERSAL_VIRTUAL,   /* index.h5 that points into shards */
    LAYOUT_HF,                  /* a model folder of Hugging Face Transformers: hf_source.h */
    /* Further ones are of no family that we know: config may be all 0. */
    LAYOUT_ZERO,                /* DeepSpeed's engine without pipeline, ZeRO-1, 2, 3: mp_rank_00_* or zero_pp_rank_* */
    LAYOUT_DCP,                 /* torch.distributed.checkpoint: dcp/dcp.h */
    LAYOUT_TORCHDIST,           /* Megatron-core's torch_dist: torchdist/torchdist.h */
};
/* "deepspeed", "universal-pt", "universal-hdf5", "universal-virtual", "hf", "zero", "dcp", "torchdist". */
const char *layout_name(enum layout_kind k);

/* What belongs to a file, for sizes and completeness. */
enum file_class { FILE_WEIGHTS, FILE_OPTIMIZER, FILE_OTHER };

struct source_file {
    char *name;                 /* inside the tag folder: "mp_rank_00_model_states.pt" */
    int file;                   /* number in source->files */
    enum file_class cls;
    struct pt *pt;              /* kept open for .pt files (tables only), else NULL */
    int pp, tp, dp, layer;      /* coordinates, -1 where they do not apply */
};

/* A container of its own inside a file: an item of a .distcp. */
struct source_item {
    int file;
    uint64_t at, len;
};

struct param {
    const char *name;           /* canonical, as the files spell it: "3.mlp.dense_4h_to_h.weight" */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];           /* full merged shape, padding rows included */
    enum merge_rule merge;
    int stage;                  /* pipeline stage that owns it; -1 where unknown */
    int group;                  /* optimizer group on that stage; -1 where unknown */
    struct tmap *state[STATE_N];        /* NULL: this checkpoint does not hold it */
    struct tmap *copy;          /* weights that stand next to masters and are those, rounded: to be compared; or NULL */
    struct tmap *tied[STATE_N];         /* the last stage's copy of a tied parameter, or NULL */
    uint32_t digest[STATE_N];           /* CRC-32 of the logical bytes, where a manifest told */
    bool has_digest[STATE_N];
    const char *spelled[STATE_N];       /* what the files call the state, where that is not NAME; or NULL */
    const char *shared_with;    /* another name of that parameter's tensors (a tied weight's second one); or NULL */
};

/* What a checkpoint holds beside its parameters: a tensor (Adam's step, a generator's state) or a plain value. */
struct source_value {
    const char *name;           /* as the files spell it: "optim.state.model.norm.weight.step" */
    const struct tmap *map;     /* a tensor's elements; NULL: a plain value */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    const struct pk *tree;      /* the plain value; NULL: a tensor */
    const struct pt *pt;        /* where tensors inside the tree are found; NULL: it has none */
    bool buffer;                /* the model's: it goes where its weights go */
};

/* A tensor of the files whose rows are states of a parameter each. */
struct source_stack {
    struct source_value whole;  /* by the files' name */
    enum state state;
    const int *row;             /* numbers of the parameters, [whole.shape[0]]; NULL: they have no such state */
};

/* Everything that is not tensor data, typed where tools use it; the trees stay in the pt handles. */
struct run_state {
    int64_t iteration;                  /* -1: unknown */
    int64_t consumed_samples, consumed_tokens;      /* -1: unknown */
    double checkpoint_version;          /* 3.0 */
    char ds_version[64];
    char torch_dialect[32];             /* "torch < 2", "torch 2", "shardkit": who wrote the container */
    int64_t opt_step;                   /* Adam's counter; -1: unknown */
    bool step_in_state;                 /* state[g]['step'] exists (torch Adam), so step.pt is due */
    bool step_is_tensor;                /* ... as a 0-dim fp32 tensor rather than an int */
    int n_groups;
    const struct pk *args;              /* Namespace of mp_rank_00; belongs to the source */
    const struct pk *optimizer;         /* optimizer_state_dict of shard (pp 0, dp 0, tp 0), or of optimizer_state.pt */
    const struct pk *param_groups;      /* list of dicts, or NULL */
    struct pt *optimizer_pt;            /* the file both live in */
    const char *more_states;            /* names of states that no Adam has, which are values; NULL: there are none */
};

/* A tensor or value of the files that cannot be read here, and that the source does not have. */
struct source_unread {
    const char *name;           /* as the files spell it */
    const char *why;            /* "a sparse tensor: save it after .to_dense()" */
};

struct dcp_table;
struct source {
    enum layout_kind kind;
    char *path;                 /* the tag folder (or archive) as opened, "latest" already followed */
    char *tag;                  /* its base name */
    struct files *files;
    struct arena *arena;
    struct topology topo;       /* of the shards; for universal forms what mp_rank files say, 0 when unknown */
    struct model_config config;
    struct run_state run;
    bool tied_embedding;        /* the last stage holds a second copy */
    bool zero_stage_1;          /* ZeRO-1/2 shards rather than BF16_Optimizer's; a universal form: made of such */
    int zero_stage;             /* LAYOUT_ZERO, and a universal form of such: 1, 2 or 3 */
    struct pt *zero_root;       /* its model_states, where zero_fresh.h has made them; among `file`; else NULL */
    enum dtype weights;         /* of those: what the run computes with */
    int n_files;
    struct source_file *file;   /* every file of the tag that belongs to the layout, natural order */
    int n_items;
    struct source_item *item;   /* zips inside files */
    int n_params;
    struct param *param;        /* order: embedding, layers, final LayerNorm; natural order of names inside */
    const struct dcp_table *dcp;        /* LAYOUT_DCP: the entries in their order, for whoever writes them again */
    int n_models;               /* LAYOUT_DCP: prefixes of several models of which any may be the one; else 0 */
    const char **model;
    bool groups_by_settings;    /* LAYOUT_DCP: run.param_groups were made of settings by parameter, not listed */
    int n_values;
    struct source_value *value; /* in the order of the files' tables */
    int n_stacks;
    struct source_stack *stack;
    int n_unread, cap_unread;
    struct source_unread *unread;
    int n_held;
    struct pt **held;           /* handles of containers inside files that trees need; closed with the source */
    bool weights_only;          /* opened with no_optimizer */
    bool accept_mismatch;       /* opened with it */
    struct source_names *names; /* for source_param() and source_file(), the arena's; NULL: they compare all */
};

struct source_names {
    struct names *param, *file, *value, *stack, *spelled;       /* made when first asked */
};

struct source_opts {
    bool no_tensors;            /* stop after topology, run state and the file list (the summary) */
    bool no_optimizer;          /* do not open optimizer shards (bf16 only) */
    bool piped;                 /* "-" is a tar archive on standard input */
    bool hf;                    /* a model of Transformers may be opened, too: weights alone (hf_files_source.c) */
    /*
     * Files that are lost or cannot be read are warnings, and their bytes holes: extents of records of files without
     * bytes, so that reading one is ERR_DATA. mp_rank files are made again from another rank's (LAYOUT_DEEPSPEED).
     */
    bool holes;
    bool accept_mismatch;       /* files of different saves or ranks are a warning, not an ERROR */
    bool skip_unreadable;       /* what cannot be read is left out with a warning; else it is an ERROR "unread" */
    const char *model;          /* LAYOUT_DCP: prefix of the model's tensors, where there are several; NULL: find it */
    int threads;                /* for opening files; 0 = 16 */
};

/* Where something unreadable lies, for the message: a file and a byte, or NULL and ERR_NO_BYTE. */
struct source_spot {
    const char *file;
    uint64_t at;
};
/* Record that `name` is not read, and report it as `o` wants. Copies the strings. */
void source_add_unread(struct source *s, const struct source_opts *o, struct report *r, struct source_spot spot,
                       const char *name, const char *why);

/*
 * Open `path`: a tag folder of any layout and name, a folder with `latest` (or only
 * `latest_universal`), or a tar of a tag folder. With a report, damage that leaves the
 * rest readable becomes findings and the open goes on; without (NULL), the first ERROR
 * fails it. NULL and *e when nothing could be opened at all.
 */
MUST_CHECK struct source *source_open(const char *path, const struct source_opts *o,
                                      struct report *r, struct err *e);
/* Beside tags, as Megatron-LM leaves it: the number of its last iter_0000005, or "release". */
#define LATEST_ITERATION "latest_checkpointed_iteration.txt"
void source_close(struct source *s);                    /* NULL is fine */
/* By name, NULL: none. Not from two threads at once: the first to ask makes a table. */
struct param *source_param(const struct source *s, const char *name);
const struct source_file *source_file(const struct source *s, const char *name);
/* Of no family of models that we know: names are the model's own, and config is all 0. */
bool source_is_foreign(const struct source *s);
/*
 * Is it known which tensors are the model's? For what makes another layout of it. -1 and ERR_USAGE: several models
 * could be meant; the message lists them and the option that chooses one (source_opts.model).
 */
MUST_CHECK int source_one_model(const struct source *s, struct err *e);
/* Does any parameter have Adam's moments? */
bool source_has_moments(const struct source *s);
/*
 * Put the model's buffers behind the parameters, for forms that keep both alike: each with one state, STATE_BF16 where
 * it is of 16 bits, else STATE_FP32 (of whatever type). Once.
 */
void source_add_buffers(struct source *s);
/*
 * What a person means by a name: a parameter's, NAME:STATE or NAME.STATE, a state as the files spell it, a value's, or
 * that of a stack, which is a value, too. false: nothing of that name. Threads as source_param().
 */
struct source_hit {
    struct param *param;                /* NULL: a value */
    int state;                          /* of the parameter; -1: none was said */
    const struct source_value *value;
    const struct source_stack *stack;   /* ... which is the whole of it; or NULL */
};
bool source_find(const struct source *s, const char *name, struct source_hit *hit);
/*
 * What the files call exactly so: a state, which `hit` says, a value or a stack. A parameter may be called as the files
 * call another one ("model.head", which is "model.model.head" there). false: nothing, or nothing that can be read.
 */
bool source_find_entry(const struct source *s, const char *name, struct source_hit *hit);
/* The state that the files call by the parameter's bare name, where they call another one otherwise; else -1. */
int param_named_state(const struct param *p);

/*
 * The openers behind source_open(), one per layout file. `names` lists the folder (paths
 * relative to it) or the archive's members, already numbered in s->files.
 */
struct source_listing {
    int n;
    struct archive_member *member;      /* name relative to the tag folder, file number */
};
int deepspeed_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e);
int universal_pt_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                             struct report *r, struct err *e);
int universal_hdf5_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                               struct report *r, struct err *e);
int zero_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o, struct report *r,
                     struct err *e);
int hf_files_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                         struct report *r, struct err *e);

/* ---- sinks ---- */

enum vocab_policy { VOCAB_KEEP, VOCAB_STRIP };

struct sink_opts {
    enum vocab_policy vocab;
    enum replica_policy replicas;
    bool split;                 /* hdf5: one file a parameter */
    const char *final_path;     /* OUT as it will be called, for relative paths and names; OUT.part is written */
    int part, n_parts;          /* this process fills its share; part 0 makes shared files */
    bool resumed;               /* OUT.part already holds an earlier run's work */
    bool rehearsal;             /* no tensor will be written: files take no room (rehearsal.h) */
    int threads;
    void (*warn)(void *ctx, const char *text);  /* about drifted copies that no plan item will tell of; may be NULL */
    void *ctx;
};

/* What one plan item is for: item->user points here. Owned by the sink. */
struct sink_item {
    int param;
    enum state state;
    char *file;                 /* destination inside the folder: "zero/3.x/fp32.pt", "index.h5" */
    bool repeated;              /* another item reads the same elements: disagreements are counted there */
    void *priv;
};

/* One logical tensor that a sink wrote, for the manifest: digests are those of the merged tensor. */
struct sink_tensor {
    const char *name;
    int param;                  /* in the source */
    enum state state;
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t len;               /* bytes */
    uint32_t crc;
};

struct sink;
struct sink_ops {
    const char *name;
    /*
     * Make what is shared in `dir` (OUT.part), and add an item to the plan for everything
     * tensor-sized. Destinations that plan_add_sized() gave a length are created afterwards (sink_make_files()),
     * others here. A sink whose tensors lie in memory wants no source (deepspeed_share.h).
     */
    int (*prepare)(struct sink *k, const struct source *s, const char *dir, struct plan *p, struct err *e);
    /* An item's bytes are all written: write what surrounds them (headers with CRCs). Any thread. */
    int (*item_done)(struct sink *k, struct plan_item *it, struct err *e);
    /* All items of all parts are done: write what needs them all (small .pt files, attributes). Part 0 only. */
    int (*finish)(struct sink *k, struct plan *p, struct err *e);
    void (*close)(struct sink *k);
    /*
     * For sinks whose items are not whole tensors, else NULL:
     *   estimate   disk room at most, before prepare()
     *   look       every chunk of an item as it is written (exec_opts.look)
     *   tensors    what was written, once all items are done: how many, caller frees *out
     */
    uint64_t (*estimate)(const struct sink *k, const struct source *s);
    void (*look)(struct sink *k, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len);
    int (*tensors)(const struct sink *k, struct plan *p, struct sink_tensor **out);
    /* The CRC of a file of the result that the sink did not write and yet knows, for the manifest. NULL: of none. */
    bool (*known_crc)(const struct sink *k, const char *name, uint64_t size, uint32_t *crc);
    bool points_only;           /* copies no tensor bytes: the result refers to the source's files */
};
struct sink {
    const struct sink_ops *ops;
    struct sink_opts o;
    const struct source *src;
    char *dir;
    bool no_optimizer;          /* leaves the flat states behind: tied copies are not compared */
    bool no_manifest;           /* the result gets none */
    const char *room_advice;    /* what saves room, for the message when it is short; NULL: nothing does */
    int n_drifted;              /* parameter states whose copies disagreed, where no plan item counts them */
    void *priv;
};
/*
 * Create the plan's sized destinations with their final length and, but for a rehearsal, their room: once, after
 * prepare(), by part 0. Several at a time, since on tmpfs making room is most of a conversion's work in the kernel.
 * Which one fails first is told; a disk that is full for two is told of either.
 */
MUST_CHECK int sink_make_files(const struct sink *k, const struct plan *p, struct err *e);
struct sink *universal_pt_sink(const struct sink_opts *o);
struct sink *universal_hdf5_sink(const struct sink_opts *o);
struct sink *universal_virtual_sink(const struct sink_opts *o);

#endif
