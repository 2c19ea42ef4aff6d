/*
 * dcp_target.h - the contents of a torch.distributed.checkpoint folder to be written
 *
 * For a source of this layout: its entries unchanged. For any other source, the entries that FSDP2 programs save:
 * the model's tensors as model.NAME, Adam's states as optim.state.NAME.exp_avg, .exp_avg_sq and .step, the settings
 * of its groups as optim.param_groups.I.OPTION, and the source's plain values under their own names. Weights are the
 * masters if there are any; loaders round them as needed. Data without an entry is reported before anything is
 * written.
 */
#ifndef SHARDKIT_LAYOUT_DCP_TARGET_H
#define SHARDKIT_LAYOUT_DCP_TARGET_H

#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/write/sink.h"

/* The contents of an entry. */
struct dcp_part {
    const struct tmap *map;             /* a tensor's elements; NULL if it is the pickled tree */
    const struct param *param;          /* the parameter whose state it is, or NULL */
    enum state state;
    /* the state follows from the type, by dcp_state_of_dtype(), because a reader derives it in this way */
    bool by_dtype;
    bool again;                         /* another name of an earlier part */
    const struct pk *tree;
    const struct pt *pt;                /* open file with the tensors that the tree contains; NULL if there are none */
    const struct dcp_part *row;         /* for a stack: an array with each row as a tensor of its own; otherwise NULL */
};

/* A small file of the folder other than items and .metadata. */
struct dcp_extra {
    const char *name;
    const void *bytes;
    size_t len;
};

struct dcp_target {
    struct arena *arena;
    const struct source *src;
    struct dcp_table table;             /* without chunks, which the sink creates */
    struct dcp_part *part;              /* parallel to table.entry */
    int n_extras;
    struct dcp_extra *extra;
};

/*
 * Returns a target, or NULL with ERR_DATA if an entry cannot be read whole or tables contradict each other. Buffers
 * of a source of another layout must be among its parameters. `notes` lists what is lost or derived.
 */
struct dcp_target *dcp_target_new(const struct source *s, struct report *notes, struct err *e);
/* Returns an empty target, for layouts that add their own entries. */
struct dcp_target *dcp_target_empty(const struct source *s);
/* Returns the entries of a source of this layout, unchanged. */
struct dcp_target *dcp_target_same(const struct source *s, struct err *e);
void dcp_target_free(struct dcp_target *t);             /* t may be NULL */

/* A mesh of ranks. Rank r is in row r / columns. */
struct dcp_mesh {
    int rows, columns;                  /* at least 1 */
};

/*
 * Returns the sink that writes `t`, which must outlive it, for a mesh of ranks.
 *
 * States of parameters are split by rows as FSDP2 does: ceil(rows / ranks) for each of the first ranks, and the
 * remainder for the last. On a mesh each row of the mesh gets such a share, and distributes the columns of a matrix
 * over its ranks if they divide evenly. A tensor without rows, and data of no parameter, is stored whole by one
 * rank. The same target and ranks give the same bytes, however the source was split.
 */
struct sink *dcp_sink(const struct sink_opts *o, const struct dcp_target *t, struct dcp_mesh mesh);

#endif
