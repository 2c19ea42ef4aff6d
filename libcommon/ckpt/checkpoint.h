/*
 * checkpoint.h - the contents of an opened checkpoint, in a form that does not depend on its layout
 *
 * A source is plain data: run state, configuration, and for every parameter one tensor map per state. Openers fill the
 * struct, and code that works on all of it reads its members. No header includes this one. Code that needs less
 * includes less: param.h (a parameter), source_parts.h (path, files, parameters by name), source_open.h (how to open
 * one), source_facts.h (what is true of it).
 */
#ifndef SHARDKIT_CKPT_CHECKPOINT_H
#define SHARDKIT_CKPT_CHECKPOINT_H

#include "libcommon/base/files.h"
#include "libcommon/base/names.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/config.h"
#include "libcommon/model/params.h"
#include "libcommon/model/topology.h"
#include "libcommon/plan/plan.h"

/* A container inside a file, such as an item of a .distcp file. It consists of bytes [at, at + len) of the file. */
struct source_item {
    int file;
    uint64_t at, len;
};

/* A tensor or value in the files that is not part of the source, because it cannot be read. */
struct source_unread {
    const char *name;           /* name in the files */
    const char *why;            /* the reason, such as "a sparse tensor: save it after .to_dense()" */
};

struct dcp_table;
struct layout;
struct optim_groups;
struct source;
/*
 * Reads the optimizer's groups from the layout's own tables, for optim_groups_read(). *out is all 0 before the call,
 * and stays so if the source does not define groups. Returns -1 with ERR_DATA if the tables are not valid.
 */
typedef int source_read_groups(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);

struct source {
    const struct layout *layout;        /* opaque outside of libcommon/ckpt and libcommon/layout; see source_facts.h */
    char *path;  /* path of the tag folder or archive that was opened, after following a file `latest` */
    char *tag;                  /* the last component of `path` */
    const char *left_behind;    /* for a message: the files that belong to the checkpoint but that no conversion writes;
                                 * NULL if there are none */
    struct files *files;
    struct arena *arena;
    struct topology topo;  /* topology of the shards; a universal form has that of its mp_rank files; 0 if unknown */
    struct model_config config;
    struct run_state run;
    bool tied_embedding;        /* the last pipeline stage holds a second copy of the embedding */
    /*
     * The optimizer shards are those of ZeRO-1/2, not those of BF16_Optimizer. A universal form was made from such
     * shards.
     */
    bool zero_stage_1;
    /*
     * ZeRO stage (1, 2 or 3) of a run without pipeline, or of the run from which a universal form was made; otherwise 0
     */
    int zero_stage;
    enum dtype weights;         /* if zero_stage is not 0: the type that the run computes with */
    int n_files;
    struct source_file *file;   /* the files in the tag folder that belong to the layout, in natural order of names */
    int n_items;
    struct source_item *item;   /* containers inside files */
    int n_params;
    /*
     * The parameters in the order embedding, layers, final LayerNorm. Each of these three is in natural order of names.
     */
    struct param *param;
    /* all entries in their order, if the layout stores entries (dcp); they are needed to write the entries again */
    const struct dcp_table *dcp;
    /* number of prefixes in `model`, if several prefixes of names may be that of the model; otherwise 0 */
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
    /*
     * A config.json of the same model, made from the settings in the file `config_of`. The parameters have the names
     * that the model's class in Transformers uses. NULL if the layout has no settings in another form.
     */
    const char *config_json, *config_of;
    /* the part of those settings that config_json does not express; NULL: config_json expresses all of them */
    const char *config_lacks;
    bool weights_only;          /* opened with source_opts.no_optimizer */
    bool accept_mismatch;       /* opened with source_opts.accept_mismatch */
    /* Tables for source_param() and source_file(), in the arena. If NULL, these functions search linearly. */
    struct source_names *names;
};

struct source_names {
    struct names *param, *file, *value, *stack, *spelled;  /* each table is made by the first search that needs it */
};

/* The place in the files that cannot be read, for a message: a file and a byte offset, or NULL and ERR_NO_BYTE. */
struct source_spot {
    const char *file;
    uint64_t at;
};
/*
 * Record in s->unread that `name` cannot be read, and add a finding whose severity depends on o->skip_unreadable. The
 * strings are copied.
 */
void source_add_unread(struct source *s, const struct source_opts *o, struct report *r, struct source_spot spot,
                       const char *name, const char *why);
/* Remove Adam's moments from all parameters, for a result without optimizer. Masters and weights are kept. */
void source_drop_moments(struct source *s);
/*
 * Append the buffers of the model to the parameters, for forms that store both in the same way. Each buffer gets one
 * state, regardless of its type: STATE_BF16 if its elements have 16 bits, otherwise STATE_FP32. Must be called at most
 * once.
 */
void source_add_buffers(struct source *s);
/*
 * The pointer file that Megatron-LM writes next to its checkpoint folders. It contains the number of the last folder
 * (such as 5 for iter_0000005), or "release".
 */
#define LATEST_ITERATION "latest_checkpointed_iteration.txt"

#endif
