/*
 * edit_zero.h - change the parameters of a checkpoint of ZeRO without pipeline: names, layers, rows
 *
 * Supports all three ZeRO stages, with one tensor-parallel rank. The checkpoint is written again as a whole, as by
 * reshape, because ZeRO's vectors hold many parameters end to end. All states of a parameter change with it. The
 * optimizer's groups keep their order; selected layers are ordered by their new numbers.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ZERO_H
#define SHARDKIT_LAYOUT_EDIT_ZERO_H

#include "libcommon/layout/edit/edit_states.h"

struct report;

/*
 * Make the entries of `list` the parameters of the result. The edit owns the list after the call, even on error.
 * `notes` receives what is derived. Returns -1 with ERR_USAGE if a parameter cannot be renumbered or there are several
 * tensor-parallel ranks, or with ERR_DATA if the source's tables contradict each other.
 */
MUST_CHECK int edit_zero(struct edit *x, struct edit_states *list, struct report *notes, struct err *e);
/*
 * Write the checkpoint again with the source's own list of parameters, after salvage has filled in lost elements.
 * Several tensor-parallel ranks become one, which a warning in `notes` reports. If the checkpoint has no optimizer, the
 * description of the result contains "weights only".
 */
MUST_CHECK int edit_zero_rewrite(struct edit *x, struct report *notes, struct err *e);
/*
 * Convert the weights to `type`, from the fp32 master weights if there are any. This works like edit_zero(), but `list`
 * must be unchanged. ds_config, file names and the loss scaler are changed accordingly. If a ZeRO-3 checkpoint, which
 * has only master weights, is converted to fp16, a warning reports that the range of these weights was not checked.
 * Returns -1 with ERR_USAGE also if the checkpoint already has this type.
 */
MUST_CHECK int edit_zero_cast(struct edit *x, struct edit_states *list, enum dtype type, struct report *notes,
                              struct err *e);

#endif
