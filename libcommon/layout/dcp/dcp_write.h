/*
 * dcp_write.h - the bytes of a new .metadata, for the sink of this folder
 */
#ifndef SHARDKIT_LAYOUT_DCP_WRITE_H
#define SHARDKIT_LAYOUT_DCP_WRITE_H

#include "libcommon/layout/dcp/dcp_metadata.h"

/* The table as torch's loaders want it; what it says of places is where the items lie now. */
void dcp_metadata_write(const struct dcp_table *t, struct strbuf *out);

#endif
