/*
 * dcp_target.h - what a folder of torch.distributed.checkpoint will hold, of whatever it is made
 *
 * Of such a folder: its entries as they are. Of any other source the entries that FSDP2 programs save: the model's
 * tensors as model.NAME, Adam's as optim.state.NAME.exp_avg, .exp_avg_sq and .step, the settings of its groups as
 * optim.param_groups.I.OPTION, and the source's plain values under their own names. Weights are the masters where there
 * are some, which loaders round as they need. What has no entry is told before anything is written.
 */
#ifndef SHARDKIT_LAYOUT_DCP_TARGET_H
#define SHARDKIT_LAYOUT_DCP_TARGET_H

#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/layout/layout.h"

/* What an entry is made of. */
struct dcp_part {
    const struct tmap *map;             /* a tensor's elements; NULL: it is pickled, tree */
    const struct param *param;          /* whose state it is; NULL: of none */
    enum state state;
    bool again;                         /* another name of what a part before it has */
    const struct pk *tree;
    const struct pt *pt;                /* where tensors inside of the tree are found; NULL: it has none */
    const struct dcp_part *row;         /* of a stack: what each row is, as a tensor of its own; else NULL */
};

/* A small file of the folder beside items and .metadata. */
struct dcp_extra {
    const char *name;
    const void *bytes;
    size_t len;
};

struct dcp_target {
    struct arena *arena;
    const struct source *src;
    struct dcp_table table;             /* chunks are for the sink to make */
    struct dcp_part *part;              /* beside table.entry */
    int n_extras;
    struct dcp_extra *extra;
};

/*
 * ERR_DATA: an entry cannot be read whole, or tables contradict each other. Buffers of another layout's source are to
 * be among its parameters. What is lost or made up goes to notes.
 */
struct dcp_target *dcp_target_new(const struct source *s, struct report *notes, struct err *e);
/* Nothing yet, for who knows other entries. */
struct dcp_target *dcp_target_empty(const struct source *s);
/* The entries of a source that is made of such a folder, as they are. */
struct dcp_target *dcp_target_same(const struct source *s, struct err *e);
void dcp_target_free(struct dcp_target *t);             /* NULL is fine */

#endif
