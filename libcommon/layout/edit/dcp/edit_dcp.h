/*
 * edit_dcp.h - change parameters, entries and values of folders of torch.distributed.checkpoint and of torch_dist
 *
 * Only .metadata changes. Weights, moments, steps and settings of groups follow their parameter, and entries that
 * belong to no parameter stay. Chunks keep their places in the files, which are shared; new bytes are in a new file.
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
 * Weights of another type: of masters, where there are some, rounded to nearest even; their moments and masters stay.
 * ERR_USAGE: they are of a type that is not made that; ERR_DATA as above.
 */
MUST_CHECK int edit_dcp_cast(struct edit *x, enum dtype to, struct err *e);
/*
 * All entries but the optimizer's: states of parameters, and the groups' settings. ERR_USAGE: there are none, or a
 * parameter's values lie there alone; ERR_DATA as above.
 */
MUST_CHECK int edit_dcp_drop_optimizer(struct edit *x, struct err *e);
/*
 * Write every entry as new bytes of the source's maps, in files with the old names, as far as the source has the file.
 * Returns -1 with ERR_DATA as above.
 */
MUST_CHECK int edit_dcp_rewrite(struct edit *x, struct err *e);
/* Is the entry an optimizer's: a parameter's state, or a setting of a group? */
struct dcp_entry;
bool edit_dcp_is_optimizers(struct edit *x, const struct dcp_entry *en);
/*
 * Call `tell` for the parameter that entry i of the source is a state of, or for one parameter per row of a stack.
 * edit_entries_begin() must have been called.
 */
struct dcp_part;
typedef void edit_dcp_told(void *ctx, struct edit *x, const struct dcp_part *part);
void edit_dcp_visit_parts(struct edit *x, int i, edit_dcp_told *tell, void *ctx);
/*
 * Write files again without the bytes that no entry uses. *saved receives their number. Returns -1 with ERR_DATA as
 * above.
 */
MUST_CHECK int edit_dcp_thin(struct edit *x, uint64_t *saved, struct err *e);
/*
 * Pickled values: begin, look and set, end. The value of an entry, and another in its place, of the edit's arena.
 * NULL: it has none.
 */
MUST_CHECK int edit_dcp_begin(struct edit *x, struct err *e);
const struct pk *edit_dcp_value(const struct edit *x, const char *entry);
void edit_dcp_set_value(struct edit *x, const char *entry, const struct pk *value);
MUST_CHECK int edit_dcp_end(struct edit *x, struct err *e);

#endif
