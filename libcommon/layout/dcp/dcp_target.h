/*
 * dcp_target.h - what a folder of torch.distributed.checkpoint will hold
 *
 * Of such a folder: its entries as they are.
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
};

struct dcp_target {
    struct arena *arena;
    const struct source *src;
    struct dcp_table table;             /* chunks are for the sink to make */
    struct dcp_part *part;              /* beside table.entry */
};

/*
 * For sources of LAYOUT_DCP. ERR_DATA: an entry cannot be read whole. What is lost goes to notes: nothing so far.
 */
struct dcp_target *dcp_target_new(const struct source *s, struct report *notes, struct err *e);
void dcp_target_free(struct dcp_target *t);             /* NULL is fine */

#endif
