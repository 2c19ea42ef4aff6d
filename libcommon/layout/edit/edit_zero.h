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

#endif
