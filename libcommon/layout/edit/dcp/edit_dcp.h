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
 * Make the list the result's. The edit owns it afterwards, even on error. Returns -1 with ERR_USAGE if an entry holds a
 * parameter under a name that cannot be changed, or with ERR_DATA if an entry cannot be read completely.
 */
MUST_CHECK int edit_dcp(struct edit *x, struct edit_states *list, struct err *e);
/*
 * Convert the weights to type `to`, from the masters if there are any, rounded to nearest even. Masters and moments
 * stay. Returns -1 with ERR_USAGE if the weights' type cannot be converted, or with ERR_DATA as above.
 */
MUST_CHECK int edit_dcp_cast(struct edit *x, enum dtype to, struct err *e);
/*
 * Drop the optimizer's entries: states of parameters, and settings of groups. Returns -1 with ERR_USAGE if there are
 * none or if only they hold a parameter's values, or with ERR_DATA as above.
 */
MUST_CHECK int edit_dcp_drop_optimizer(struct edit *x, struct err *e);
/*
 * Write every entry as new bytes of the source's maps, in files with the old names, as far as the source has the file.
 * Returns -1 with ERR_DATA as above.
 */
MUST_CHECK int edit_dcp_rewrite(struct edit *x, struct err *e);
/* Returns true if the entry is the optimizer's: a state of a parameter, or a setting of a group. */
struct dcp_entry;
bool edit_dcp_is_optimizers(struct edit *x, const struct dcp_entry *en);
/*
 * Call `visit` for the parameter that entry i of the source is a state of, or for one parameter per row of a stack.
 * edit_entries_begin() must have been called.
 */
struct dcp_part;
typedef void edit_dcp_visitor(void *ctx, struct edit *x, const struct dcp_part *part);
void edit_dcp_visit_parts(struct edit *x, int i, edit_dcp_visitor *visit, void *ctx);
/*
 * Write files again without the bytes that no entry uses. *saved receives their number. Returns -1 with ERR_DATA as
 * above.
 */
MUST_CHECK int edit_dcp_thin(struct edit *x, uint64_t *saved, struct err *e);
/*
 * Change pickled values. Call edit_dcp_begin(), then the two functions in any order, then edit_dcp_end().
 * edit_dcp_value() returns the entry's current value, or NULL if no entry with this name has a pickled value. A new
 * value must be from the edit's arena.
 */
MUST_CHECK int edit_dcp_begin(struct edit *x, struct err *e);
const struct pk *edit_dcp_value(const struct edit *x, const char *entry);
void edit_dcp_set_value(struct edit *x, const char *entry, const struct pk *value);
MUST_CHECK int edit_dcp_end(struct edit *x, struct err *e);

#endif
