/*
 * dcp_sink.h - write a folder of torch.distributed.checkpoint for a number of ranks
 *
 * States of parameters are split by rows as FSDP2 does: ceil(rows / ranks) for each of the first ranks, and the
 * remainder for the last. On a mesh each row of the mesh gets such a share, and distributes the columns of a matrix
 * over its ranks if they divide evenly. A tensor without rows, and data of no parameter, is stored whole by one
 * rank. The same target and ranks give the same bytes, however the source was split.
 */
#ifndef SHARDKIT_LAYOUT_DCP_SINK_H
#define SHARDKIT_LAYOUT_DCP_SINK_H

#include "libcommon/layout/dcp/dcp_target.h"
#include "libcommon/write/sink.h"

/* A mesh of ranks. Rank r is in row r / columns. */
struct dcp_mesh {
    int rows, columns;                  /* at least 1 */
};

/* Returns the sink; `t` must outlive it. */
struct sink *dcp_sink(const struct sink_opts *o, const struct dcp_target *t, struct dcp_mesh mesh);

#endif
