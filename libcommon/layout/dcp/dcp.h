/*
 * dcp.h - folders of torch.distributed.checkpoint: .metadata and __<rank>_<n>.distcp (docs/formats.md, section 12)
 *
 * Codes of findings, besides those of dcp_metadata.h:
 *   missing_file E   .metadata names a file that is not there
 *   cut_short E      an item lies behind its file's end
 *   overlap E        two items share bytes
 *   gap W            bytes of a file that are no item's
 *   unused N         bytes of whole items that no entry names: an edit leaves them where they are
 *   unreadable E     an item is no torch.save archive, or a damaged one
 *   item E           an item holds something else than .metadata says
 *   gap E, overlap E, shape E   of a tensor: chunks that do not tile it
 *   prefix N, numbers N, wrapper N, missing_entry E, optimizer W    see dcp_names.h
 *   step W           see dcp_groups.h
 */
#ifndef SHARDKIT_LAYOUT_DCP_H
#define SHARDKIT_LAYOUT_DCP_H

#include "libcommon/layout/dcp/dcp_names.h"

#define DCP_METADATA ".metadata"

/* A name that only such a folder has: .metadata, or files whose .metadata was never written. */
bool dcp_marks(const char *name);
int dcp_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o, struct report *r,
                    struct err *e);

/* ---- for layouts that keep their tensors in such a folder ---- */

typedef int dcp_assign(struct dcp_naming *n, struct report *r, struct err *e);
/*
 * dcp_source_open() with other rules of names, as of dcp_names_assign(). Files that `assign`'s layout adds are its own
 * to list.
 */
int dcp_open(struct source *s, const struct source_listing *l, const struct source_opts *o, dcp_assign *assign,
             struct report *r, struct err *e);
/* The listed file's number in s->files; -1: it is not there. */
int dcp_listed(const struct source_listing *l, const char *name);
/* One more file of the layout. */
void dcp_add_file(struct source *s, const char *name, int file, struct pt *pt);

#endif
