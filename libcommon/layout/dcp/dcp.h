/*
 * dcp.h - folders of torch.distributed.checkpoint: .metadata and __<rank>_<n>.distcp (docs/formats.md, section 12)
 *
 * Codes of findings, in addition to those of dcp_metadata.h:
 *   missing_file E   .metadata names a file that does not exist
 *   cut_short E      an item extends beyond the end of its file
 *   overlap E        two items share bytes
 *   gap W            bytes of a file that belong to no item
 *   unused N         bytes of whole items that no entry names; an edit leaves such items in the file
 *   unreadable E     an item is not a torch.save archive, or is damaged
 *   item E           the contents of an item differ from .metadata
 *   gap E, overlap E, shape E   the chunks of a tensor do not tile the tensor
 *   prefix N, numbers N, wrapper N, missing_entry E, optimizer W    see dcp_names.h
 *   step W, groups E W           see dcp_groups.h
 */
#ifndef SHARDKIT_LAYOUT_DCP_H
#define SHARDKIT_LAYOUT_DCP_H

#include "libcommon/layout/dcp/dcp_names.h"
#include "libcommon/layout/layouts.h"

struct pt;

#define DCP_METADATA ".metadata"

/*
 * Returns true if only a folder of this layout has a file of this name: .metadata, or *.distcp. Because of *.distcp, a
 * folder is also recognised if its .metadata is missing.
 */
bool dcp_marks(const char *name);

/* ---- for layouts that store their tensors in such a folder ---- */

typedef int dcp_assign(struct dcp_naming *n, struct report *r, struct err *e);
/*
 * Open a folder like dcp_source_open(), but call `assign` instead of dcp_names_assign(). It is for layouts in which
 * entry names have other meanings. Such a layout adds its additional files to the source itself.
 */
int dcp_open(struct source *s, const struct source_listing *l, const struct source_opts *o, dcp_assign *assign,
             struct report *r, struct err *e);
/*
 * Returns the index in s->files of the listed file `name` in l->folder, or -1 if the file is not listed. The second
 * function looks for the file in the folder of the checkpoint itself.
 */
int dcp_listed(const struct source_listing *l, const char *name);
int dcp_listed_at_top(const struct source_listing *l, const char *name);
/* Returns the file `name` of an opened checkpoint that is in the folder of .metadata, or NULL. */
const struct source_file *dcp_source_file(const struct source *s, const char *name);
/* Add a file to s->file. This is meant for files that only one of these layouts has. */
void dcp_add_file(struct source *s, const char *name, int file, struct pt *pt);
/* Add the file `name` in l->folder, if it is listed. */
void dcp_add_listed(struct source *s, const struct source_listing *l, const char *name, struct pt *pt);

#endif
