/*
 * layout_write.h - describe a checkpoint as another layout, in order to write it
 *
 *   struct source ──► layout_describe_as(layout, request) ──► struct layout_target ──► open_sink() ──► write/convert.h
 *
 * The description contains everything that is known before a tensor is written: files, names, sizes, data that are
 * lost. A layout that can be written has a row in writers[] (layout_write.c) with two functions: one refuses requests
 * that the layout cannot fulfil, the other makes the description. The rows of layouts[], which open checkpoints, are in
 * another table, so that programs that only read contain no writer.
 */
#ifndef SHARDKIT_LAYOUT_LAYOUT_WRITE_H
#define SHARDKIT_LAYOUT_LAYOUT_WRITE_H

#include <stdbool.h>

#include <jansson.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"
#include "libcommon/base/progress.h"
#include "libcommon/model/params.h"

struct ds_request;
struct hf_options;
struct layout;
struct rehearsal;
struct report;
struct sink;
struct sink_opts;
struct source;
struct strbuf;

/*
 * The options of a conversion. A layout refuses options that are given and that it has no use for. All pointers must
 * outlive the description.
 */
struct write_request {
    const char *out;                    /* the folder to be written */
    bool weights_only;                  /* no optimizer; the source was opened without it */
    int zero_stage;                     /* 1 to 3; 0: the source's */
    int ranks;                          /* 0: not given */
    int mesh_rows, mesh_columns;        /* a mesh of ranks, for entries; 0: not given */
    enum dtype dtype;                   /* type of the weights, or type to compute with; DTYPE_N: not given */
    bool distributed;                   /* torchdist: the form of Megatron-core's distributed optimizer */
    const char *rules, *config;         /* family, and path of config.json, for a change of names; NULL: not given */
    bool renames;                       /* layout_describe_as() sets it: the parameters get other names */
    const struct ds_request *shards;    /* topology, vocabulary, values; all 0 but for `step` -1 if none is given */
    const struct hf_options *hf;        /* for hf and hfstorage, else NULL */
    enum vocab_policy vocab;            /* universal forms: padding rows of the vocabulary */
    bool split;                         /* HDF5: one file per parameter */
    bool certificate, set_latest;       /* these options are given */
    bool accept_mismatch;               /* contradictions between config.json and tensors are warnings */
    /* A change of names may need a spool file, which is written when OUT is found to be free. */
    bool dry_run, force, resume;
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    bool (*stopped)(void);
};

/* What a dry run has found out. */
struct write_plan {
    const char *out;
    const struct rehearsal *r;
};

struct layout_target;
struct layout_target_ops {
    const char *pointer;                /* file in OUT's parent that names the newest folder; NULL: there is none */
    bool verifies;                      /* the sink itself verifies the result, if that was requested */
    /* Return the sink that writes the target, which must outlive it. */
    struct sink *(*open_sink)(const struct layout_target *t, const struct sink_opts *o);
    /* Return a description for the line of the result: "ZeRO-2, 3 ranks, 34 parameters". The caller frees it. */
    char *(*text)(const struct layout_target *t);
    /* Add the same facts to the object of --json. */
    void (*facts)(const struct layout_target *t, json_t *o);
    /*
     * For a dry run: append lines in place of the line of text(), whose labels have `label_width` characters, and add
     * more facts. NULL if there are no more.
     */
    void (*plan_text)(const struct layout_target *t, const struct write_plan *p, struct strbuf *sb);
    void (*plan_facts)(const struct layout_target *t, const struct write_plan *p, json_t *o);
    int label_width;
    /* Append what the result will contain, one line each. NULL if there is no such list. */
    void (*list)(const struct layout_target *t, struct strbuf *sb);
    void (*free)(void *of);
};

/* A source described as a layout. */
struct layout_target {
    const struct layout_target_ops *ops;
    void *of;                           /* the layout's own description */
    const struct source *src;
};

/*
 * Functions of a layout. X_accepts() returns -1 with ERR_USAGE if the layout cannot be made of this source, or not
 * with these options. describe_as_X() fills *t, adds what is lost, derived or doubtful to `notes`, and may change the
 * source: buffers become parameters, groups are resolved. It returns -1 with ERR_DATA if the source lacks data.
 */
typedef int layout_accepts(const struct source *s, const struct write_request *q, struct err *e);
typedef int layout_describe(struct source *s, const struct write_request *q, struct report *notes,
                            struct layout_target *t, struct err *e);
layout_accepts deepspeed_accepts, zero_accepts, dcp_accepts, torchdist_accepts;
layout_describe describe_as_deepspeed, describe_as_zero, describe_as_universal_pt, describe_as_universal_hdf5,
    describe_as_universal_virtual, describe_as_hf, describe_as_hfstorage, describe_as_dcp, describe_as_torchdist;

/*
 * Describe the source as the layout `to`, which can be written. First gives the parameters the names that the layout
 * requires, if the rules of the model's family define them. *t must be all 0; the caller releases it with
 * layout_target_free(), even on failure.
 */
MUST_CHECK int layout_describe_as(const struct layout *to, struct source *s, const struct write_request *q,
                                  struct report *notes, struct layout_target *t, struct err *e);
void layout_target_free(struct layout_target *t);

#endif
