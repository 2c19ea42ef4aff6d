/*
 * layout_write.h - describe a checkpoint as another layout, in order to write it
 *
 *   struct source ──► layout_describe_as(layout, request) ──► struct layout_target ──► open_sink() ──► write/convert.h
 *
 * The description contains everything that is known before a tensor is written: files, names, sizes, and which data
 * are lost. A layout that can be written has a row in writers[] (layout_write.c) with two functions. One refuses
 * requests that the layout cannot fulfil, the other makes the description. The functions that open checkpoints are in
 * another table (layouts[] in layouts.c), so that programs that only read contain no writer.
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

enum experts_form {
    EXPERTS_AS_THEY_ARE,
    EXPERTS_SPLIT,              /* one tensor per expert, under the names that save_pretrained writes */
    EXPERTS_FUSED,              /* one tensor for all experts of a layer, under the names used in memory */
};

/*
 * The options of a conversion. A layout refuses an option that it does not support. All pointers must outlive the
 * description.
 */
struct write_request {
    const char *out;                    /* folder to be written */
    bool weights_only;                  /* write no optimizer; the source was also opened without it */
    int zero_stage;                     /* 1 to 3; 0: as in the source */
    int ranks;                          /* number of ranks; 0: not given */
    int expert_ranks;                   /* dsmoe: number of expert-parallel ranks; 0: not given */
    int mesh_rows, mesh_columns;        /* for layouts of entries: a mesh of ranks; 0: not given */
    /* type of the weights, or type in which the run will compute; DTYPE_N: as it is */
    enum dtype dtype;
    bool distributed;                   /* torchdist: write the form of Megatron-core's distributed optimizer */
    /* if names change: model family, and path of config.json; NULL: not given */
    const char *rules, *config;
    int experts;                        /* an enum experts_form: how the experts of a Transformers model are written */
    bool renames;                       /* set by layout_describe_as(): the parameters get other names */
    /* topology, vocabulary, values; if nothing is requested, `step` is -1 and all other members are 0 */
    const struct ds_request *shards;
    const struct hf_options *hf;        /* for hf and hfstorage; NULL for other layouts */
    enum vocab_policy vocab;            /* universal forms: what to do with the padding rows of the vocabulary */
    bool split;                         /* HDF5: write one file per parameter */
    bool certificate, set_latest;       /* true if the option was given */
    bool accept_mismatch;               /* report contradictions between config.json and tensors as warnings */
    /*
     * The following members are needed if names change, which may require a spool file. This file is written only after
     * OUT was found to be free.
     */
    bool dry_run, force, resume;
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    bool (*stopped)(void);
};

/* What a dry run has determined. */
struct write_plan {
    const char *out;
    const struct rehearsal *r;
};

struct layout_target;
struct layout_target_ops {
    /*
     * name of the pointer file of the newest checkpoint, in the folder that contains OUT; NULL if the layout has none
     */
    const char *pointer;
    bool verifies;                      /* the sink verifies the result itself, if this was requested */
    /* Return the sink that writes the target. `t` must outlive the sink. */
    struct sink *(*open_sink)(const struct layout_target *t, const struct sink_opts *o);
    /*
     * Return a description for the line that reports the result, such as "ZeRO-2, 3 ranks, 34 parameters". The caller
     * frees it.
     */
    char *(*text)(const struct layout_target *t);
    /* Add the facts of text() to the object that --json prints. */
    void (*facts)(const struct layout_target *t, json_t *o);
    /*
     * For a dry run. plan_text() appends lines that replace the line of text(), with labels of `label_width`
     * characters. plan_facts() adds the facts in these lines to the object. Both are NULL if a dry run has nothing to
     * add.
     */
    void (*plan_text)(const struct layout_target *t, const struct write_plan *p, struct strbuf *sb);
    void (*plan_facts)(const struct layout_target *t, const struct write_plan *p, json_t *o);
    int label_width;
    /* Append a list of the contents of the result, one line per item. NULL if there is no such list. */
    void (*list)(const struct layout_target *t, struct strbuf *sb);
    void (*free)(void *of);
};

/* A source that is described as a layout. */
struct layout_target {
    const struct layout_target_ops *ops;
    void *of;                           /* description in the form of the layout; only the functions in `ops` use it */
    const struct source *src;
};

/*
 * Functions of a layout X. X_accepts() returns -1 with ERR_USAGE if the source cannot be written in this layout, or not
 * with these options. describe_as_X() fills *t, and adds to `notes` what is lost, derived or doubtful. It may change
 * the source: buffers become parameters, and groups are resolved. It returns -1 with ERR_DATA if the source lacks data.
 */
typedef int layout_accepts(const struct source *s, const struct write_request *q, struct err *e);
typedef int layout_describe(struct source *s, const struct write_request *q, struct report *notes,
                            struct layout_target *t, struct err *e);
layout_accepts deepspeed_accepts, zero_accepts, dcp_accepts, torchdist_accepts, dsmoe_accepts;
layout_describe describe_as_deepspeed, describe_as_zero, describe_as_universal_pt, describe_as_universal_hdf5,
    describe_as_universal_virtual, describe_as_hf, describe_as_hfstorage, describe_as_dcp, describe_as_torchdist,
    describe_as_dsmoe;

/* Returns true if folders of the source's layout can be written. */
bool layout_has_writer(const struct source *s);
/*
 * Describe the source as the layout `to`, which must be one that can be written. If the layout requires other
 * parameter names, and the rules of the model's family define them, the parameters get these names first. *t must be
 * all 0. The caller releases *t with layout_target_free(), even if the function fails.
 */
MUST_CHECK int layout_describe_as(const struct layout *to, struct source *s, const struct write_request *q,
                                  struct report *notes, struct layout_target *t, struct err *e);
void layout_target_free(struct layout_target *t);

/* The options of merge-tp, by which tensor ranks are joined. */
struct merge_request {
    bool repair;                        /* keep the number of tensor ranks */
    int target_tp;                      /* number of tensor ranks of the result; 0: not given */
    bool certificate;
};
/*
 * Returns -1 with ERR_USAGE if the source has no tensor ranks that can be merged, because its layout stores whole
 * tensors or because there is only one tensor rank. Also returns -1 with ERR_USAGE if the files of its engine cannot be
 * merged with these options.
 */
MUST_CHECK int layout_check_merge(const struct source *s, const struct merge_request *q, struct err *e);

#endif
