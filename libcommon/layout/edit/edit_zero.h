/*
 * edit_zero.h - a checkpoint of ZeRO without pipeline with other parameters: names, layers, rows
 *
 * For the three stages, of one tensor rank. Its vectors hold parameters end to end, so all of it is written anew, as
 * for reshape: every state follows its parameter, and the optimizer's groups keep their order, in which layers stand as
 * the list numbers them.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ZERO_H
#define SHARDKIT_LAYOUT_EDIT_ZERO_H

#include "libcommon/layout/edit/edit_states.h"

/*
 * The list becomes the result's; it is the edit's in any case. Notes: what is made up. ERR_USAGE: a parameter that
 * cannot be renumbered, or tensor ranks; ERR_DATA: the source's tables contradict each other.
 */
MUST_CHECK int edit_zero(struct edit *x, struct edit_states *list, struct report *notes, struct err *e);
/*
 * The same with the list as it is, and weights of another type, made of the masters where there are some; ds_config,
 * files' names and the loss scaler go with it. Of ZeRO-3, which has masters alone, a warning that their range was not
 * looked at. ERR_USAGE, too: it is of that type.
 */
MUST_CHECK int edit_zero_cast(struct edit *x, struct edit_states *list, enum dtype type, struct report *notes,
                              struct err *e);

#endif
