/*
 * edit_zero.h - change the parameters of a checkpoint of ZeRO without pipeline: names, layers, rows
 *
 * Supports the three stages with one tensor rank. The vectors hold parameters end to end, so the checkpoint is
 * written again as a whole, as by reshape. Every state follows its parameter. The optimizer's groups keep their
 * order, with layers in the order in which the list numbers them.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ZERO_H
#define SHARDKIT_LAYOUT_EDIT_ZERO_H

#include "libcommon/layout/edit/edit_states.h"

struct report;

/*
 * Make the list the result's. The edit owns it afterwards, even on error. `notes` lists what is derived. Returns -1
 * with ERR_USAGE if a parameter cannot be renumbered or there are several tensor ranks, or with ERR_DATA if the
 * source's tables contradict each other.
 */
MUST_CHECK int edit_zero(struct edit *x, struct edit_states *list, struct report *notes, struct err *e);
/*
 * Like edit_zero(), with an unchanged list; for salvage. Several tensor ranks become one, which is a warning in
 * `notes`. The description of the result includes that it has weights only.
 */
MUST_CHECK int edit_zero_rewrite(struct edit *x, struct report *notes, struct err *e);
/*
 * Like edit_zero(), with an unchanged list and weights of another type, made from the masters if there are any.
 * ds_config, file names and the loss scaler are changed accordingly. For ZeRO-3, which has only masters, a warning
 * reports that their range was not checked. Also returns -1 with ERR_USAGE if the checkpoint already has that type.
 */
MUST_CHECK int edit_zero_cast(struct edit *x, struct edit_states *list, enum dtype type, struct report *notes,
                              struct err *e);

#endif
