/*
 * source_overlap.h - do two tensors of an opened checkpoint claim the same bytes?
 */
#ifndef SHARDKIT_LAYOUT_SOURCE_OVERLAP_H
#define SHARDKIT_LAYOUT_SOURCE_OVERLAP_H

#include "libcommon/layout/layout.h"

/* ERROR "overlap" for every pair of neighbours in a file that share bytes, the first few by name. */
void source_overlap(const struct source *s, struct report *r);

#endif
