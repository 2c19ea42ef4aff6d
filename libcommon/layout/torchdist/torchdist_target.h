/*
 * torchdist_target.h - what a folder of Megatron-core's torch_dist will hold
 *
 * Of such a folder: its entries, objects and common.pt as they are. dcp_sink() writes it: a target of it is one of
 * dcp's with two more files.
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_TARGET_H
#define SHARDKIT_LAYOUT_TORCHDIST_TARGET_H

#include "libcommon/layout/dcp/dcp_target.h"

/*
 * For sources of LAYOUT_TORCHDIST. ERR_DATA: an entry cannot be read whole. What becomes another form goes to notes.
 * For dcp_target_free().
 */
struct dcp_target *torchdist_target_new(const struct source *s, struct report *notes, struct err *e);

#endif
