/*
 * edit_dcp.h - change parameters, entries and values of folders of torch.distributed.checkpoint and of torch_dist
 *
 * The folder's .metadata is written again. Weights, moments, steps and settings of groups change with their parameter,
 * and entries that belong to no parameter stay. Chunks keep their places in the files, which stay unchanged; new bytes
 * are written to a new file.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_DCP_H
#define SHARDKIT_LAYOUT_EDIT_DCP_H

#include "libcommon/layout/edit/edit_states.h"

/*
 * Make the entries of `list` the parameters of the result. The edit owns the list after the call, even on error.
 * Returns -1 with ERR_USAGE if an entry contains a parameter's name in a form that cannot be changed, or with ERR_DATA
 * if an entry of the source cannot be read completely.
 */
MUST_CHECK int edit_dcp(struct edit *x, struct edit_states *list, struct err *e);
/*
 * Convert the weights to type `to`, rounded to nearest even, from the fp32 master weights if there are any. Master
 * weights and moments stay unchanged. Returns -1 with ERR_USAGE if the weights' type cannot be converted, or with
 * ERR_DATA like edit_dcp().
 */
MUST_CHECK int edit_dcp_cast(struct edit *x, enum dtype to, struct err *e);
/*
 * Drop the entries of the optimizer: states of parameters, and settings of groups. Returns -1 with ERR_USAGE if there
 * are no such entries, or if they are the only ones that hold a parameter's values. Returns -1 with ERR_DATA like
 * edit_dcp().
 */
MUST_CHECK int edit_dcp_drop_optimizer(struct edit *x, struct err *e);
/*
 * Write new files with the bytes of all entries, read through the source's maps. Files keep their names. Entries whose
 * file is missing get a new file. Returns -1 with ERR_DATA like edit_dcp().
 */
MUST_CHECK int edit_dcp_rewrite(struct edit *x, struct err *e);
/* Returns true if the entry belongs to the optimizer: it is a state of a parameter, or a setting of a group. */
struct dcp_entry;
bool edit_dcp_is_optimizers(struct edit *x, const struct dcp_entry *en);
/*
 * Call `visit` for the parameter's state that entry i of the source holds, or for each row if the entry is a stack.
 * Must be called after edit_entries_begin().
 */
struct dcp_part;
typedef void edit_dcp_visitor(void *ctx, struct edit *x, const struct dcp_part *part);
void edit_dcp_visit_parts(struct edit *x, int i, edit_dcp_visitor *visit, void *ctx);
/*
 * Write the files again without the bytes that no entry uses. *saved is set to the number of these bytes. Returns -1
 * with ERR_DATA like edit_dcp().
 */
MUST_CHECK int edit_dcp_thin(struct edit *x, uint64_t *saved, struct err *e);
/*
 * Change pickled values: first call edit_dcp_begin(), then the next two functions in any order, and finally
 * edit_dcp_end(). edit_dcp_value() returns the current value of the entry, or NULL if no entry with this name has a
 * pickled value. A value passed to edit_dcp_set_value() must be allocated in the edit's arena.
 */
MUST_CHECK int edit_dcp_begin(struct edit *x, struct err *e);
const struct pk *edit_dcp_value(const struct edit *x, const char *entry);
void edit_dcp_set_value(struct edit *x, const char *entry, const struct pk *value);
MUST_CHECK int edit_dcp_end(struct edit *x, struct err *e);

#endif
