/*
 * dcp_sink.h - write a folder of torch.distributed.checkpoint for a number of ranks
 *
 * Parameters' states are cut in rows as FSDP2 does, ceil(rows / ranks) for each of the first ranks and the rest for the
 * last; on a mesh each of its rows takes such a share, and deals out the columns of a matrix among its ranks, where
 * they divide evenly. What has no rows, and what is no parameter's, lies whole with one rank. The same target and
 * ranks give the same bytes, whatever the source was cut into.
 */
#ifndef SHARDKIT_LAYOUT_DCP_SINK_H
#define SHARDKIT_LAYOUT_DCP_SINK_H

#include "libcommon/layout/dcp/dcp_target.h"

/* Rank r is in row r / columns. */
struct dcp_mesh {
    int rows, columns;                  /* from 1 on */
};

/* `t` outlives the sink. */
struct sink *dcp_sink(const struct sink_opts *o, const struct dcp_target *t, struct dcp_mesh mesh);

#endif
