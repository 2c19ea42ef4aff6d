/*
 * dcp_write.h - the bytes of a new .metadata for the sink of this folder, and of a changed one
 */
#ifndef SHARDKIT_LAYOUT_DCP_WRITE_H
#define SHARDKIT_LAYOUT_DCP_WRITE_H

#include "libcommon/layout/dcp/dcp_metadata.h"

/* Write the table as torch's loaders require it. Its places are the current locations of the items. */
void dcp_metadata_write(const struct dcp_table *t, struct strbuf *out);

/* A changed table for dcp_metadata_rewrite(): its entries, and which of them need new pickled objects. */
struct dcp_change {
    /* table of the result, in which places of chunks that were read keep their numbers */
    const struct dcp_table *t;
    const bool *changed;                /* [entries]: true if the entry's type, shape or list of chunks has changed */
};
/*
 * Write the .metadata `was` with only these entries, in this order. Other fields of entries and places are
 * unchanged, and so are the other fields of the object. all_local_plans, which repeats the entries for a trainer
 * that saves again, is removed if an entry has changed. Returns -1 with ERR_DATA if `was` cannot be read again.
 */
MUST_CHECK int dcp_metadata_rewrite(const struct dcp_pickle *was, const struct dcp_change *c, struct strbuf *out,
                                    struct err *e);

#endif
