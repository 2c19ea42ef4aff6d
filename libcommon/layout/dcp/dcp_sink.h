/*
 * dcp_sink.h - write a folder of torch.distributed.checkpoint for another number of ranks
 *
 * Parameters' states are cut in rows as FSDP2 does, ceil(rows / ranks) for each of the first ranks and the rest for the
 * last; what has no rows, and what is no parameter's, lies whole with one rank. Names, their paths and every value are
 * the source's. The same source and ranks give the same bytes, whatever it was cut into before.
 */
#ifndef SHARDKIT_LAYOUT_DCP_SINK_H
#define SHARDKIT_LAYOUT_DCP_SINK_H

#include "libcommon/layout/layout.h"

/* For sources of LAYOUT_DCP; ranks from 1 on. */
struct sink *dcp_sink(const struct sink_opts *o, int ranks);

#endif
