/*
 * layouts.h - the layouts that checkpoints have, and how a path is opened
 */
#ifndef SHARDKIT_LAYOUT_LAYOUTS_H
#define SHARDKIT_LAYOUT_LAYOUTS_H

#include "libcommon/ckpt/checkpoint.h"

/*
 * Open `path`: a tag folder of any layout and name, a folder with `latest` (or only `latest_universal`), or a tar of
 * a tag folder. With a report, damage that leaves the rest readable becomes findings and the open continues. Without
 * one (NULL), the first ERROR makes the open fail. Returns NULL and sets *e if the checkpoint cannot be opened.
 */
MUST_CHECK struct source *source_open(const char *path, const struct source_opts *o,
                                      struct report *r, struct err *e);

/*
 * The functions that source_open() calls, one per layout. `l` lists the folder's files (paths relative to it) or the
 * archive's members, which already have numbers in s->files.
 */
struct source_listing {
    int n;
    struct archive_member *member;      /* name relative to the tag folder, file number */
};
int deepspeed_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e);
int universal_pt_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                             struct report *r, struct err *e);
int universal_hdf5_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                               struct report *r, struct err *e);
int zero_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o, struct report *r,
                     struct err *e);
int hf_files_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                         struct report *r, struct err *e);

#endif
