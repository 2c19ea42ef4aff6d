/*
 * dcp_write.h - the bytes of a new .metadata, for the sink of this folder; and of one in which something is changed
 */
#ifndef SHARDKIT_LAYOUT_DCP_WRITE_H
#define SHARDKIT_LAYOUT_DCP_WRITE_H

#include "libcommon/layout/dcp/dcp_metadata.h"

/* The table as torch's loaders want it; what it says of places is where the items lie now. */
void dcp_metadata_write(const struct dcp_table *t, struct strbuf *out);

/* What becomes of an entry that was read: t->entry[i] with its numbers, and whether its tree is to be told anew. */
struct dcp_change {
    const struct dcp_table *t;          /* of the result; chunks' places that were read keep their numbers */
    const bool *retold;                 /* of each: its type, shape or list of chunks is another one */
};
/*
 * The .metadata `was` with these entries alone, in this order. What is said of entries and places besides stays as it
 * is, and so do the other fields; all_local_plans, which repeats the entries for a trainer that saves again, is left
 * out where one of them has changed. ERR_DATA: it cannot be read (again).
 */
MUST_CHECK int dcp_metadata_rewrite(const struct dcp_pickle *was, const struct dcp_change *c, struct strbuf *out,
                                    struct err *e);

#endif
