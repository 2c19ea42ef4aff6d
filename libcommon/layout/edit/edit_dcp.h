/*
 * edit_dcp.h - a folder of torch.distributed.checkpoint with other parameters: names, layers, rows; or without some
 * entries
 *
 * Its entries are written anew for as many ranks as there were: weights, moments, steps and the groups' settings follow
 * the parameter that they are of. Entries that are nobody's stay.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_DCP_H
#define SHARDKIT_LAYOUT_EDIT_DCP_H

#include "libcommon/layout/edit/edit_states.h"

/*
 * The list becomes the result's; it is the edit's in any case. ERR_USAGE: an entry that holds a parameter under a name
 * that cannot be changed; ERR_DATA: one cannot be read whole.
 */
MUST_CHECK int edit_dcp(struct edit *x, struct edit_states *list, struct err *e);
/*
 * All entries but the optimizer's, of a torch_dist folder too: states of parameters, and the groups' settings.
 * ERR_USAGE: there are none, or a parameter's values lie there alone; ERR_DATA as above.
 */
MUST_CHECK int edit_dcp_drop_optimizer(struct edit *x, struct err *e);
/* All entries as they are, without what no entry uses of the files. Of both kinds of folders. ERR_DATA as above. */
MUST_CHECK int edit_dcp_compact(struct edit *x, struct err *e);
/* Behind that: the pickled value of an entry, and another in its place, of the edit's arena. NULL: it has none. */
const struct pk *edit_dcp_value(const struct edit *x, const char *entry);
void edit_dcp_set_value(struct edit *x, const char *entry, const struct pk *value);

#endif
