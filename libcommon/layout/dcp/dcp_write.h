/*
 * dcp_write.h - make the bytes of a .metadata, either a new one or a changed version of an existing one
 */
#ifndef SHARDKIT_LAYOUT_DCP_WRITE_H
#define SHARDKIT_LAYOUT_DCP_WRITE_H

#include "libcommon/layout/dcp/dcp_metadata.h"

/*
 * The chunks of the entries of a table, made one at a time, for a table with too many chunks to be in memory at once.
 * count() returns the number of chunks of an entry. make() sets *out to chunk k of the entry; it allocates what *out
 * points to in `a`, whose owner frees it after the chunk was written.
 */
struct dcp_made_chunks {
    int (*count)(const void *ctx, int entry);
    void (*make)(const void *ctx, int entry, int k, struct arena *a, struct dcp_chunk *out);
    const void *ctx;
};
/*
 * Append to `out` a .metadata with the entries and places of t, in the form that torch's loaders require. The places
 * must be where the items now are. `made` gives the chunks of the entries; if it is NULL, t has them.
 */
void dcp_metadata_write(const struct dcp_table *t, const struct dcp_made_chunks *made, struct strbuf *out);

/* The entries that dcp_metadata_rewrite() writes, and which of them need new pickled objects. */
struct dcp_change {
    /* table of the result. Places that were read keep their numbers in it. */
    const struct dcp_table *t;
    const bool *changed;                /* [entries]: true if the entry's type, shape or list of chunks has changed */
};
/*
 * Write the .metadata `was` with the entries of c->t only, in their order. All other fields of entries and places, and
 * of the Metadata object, are kept. Only all_local_plans is removed if an entry has changed: it repeats the entries,
 * and a trainer that saves again would use the old ones. Returns -1 with ERR_DATA if `was` cannot be parsed again.
 */
MUST_CHECK int dcp_metadata_rewrite(const struct dcp_pickle *was, const struct dcp_change *c, struct strbuf *out,
                                    struct err *e);

#endif
