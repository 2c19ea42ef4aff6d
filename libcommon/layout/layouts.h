/*
 * layouts.h - the layouts that checkpoints have, and how a path is opened
 */
#ifndef SHARDKIT_LAYOUT_LAYOUTS_H
#define SHARDKIT_LAYOUT_LAYOUTS_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct report;
struct source_opts;

/*
 * Open `path`: a tag folder of any layout and name, a folder with `latest` (or only `latest_universal`), or a tar of
 * a tag folder. With a report, damage that leaves the rest readable becomes findings and the open continues. Without
 * one (NULL), the first ERROR makes the open fail. Returns NULL and sets *e if the checkpoint cannot be opened.
 */
MUST_CHECK struct source *source_open(const char *path, const struct source_opts *o,
                                      struct report *r, struct err *e);

/*
 * List the checkpoints of the run in `dir`: the folder that a pointer file (`latest`) names, and those whose names
 * differ from it only by a smaller number. Without a pointer file, the folder with the largest number takes its place.
 * Returns their paths, the smallest number first; the caller frees each and the array. Returns NULL with *e set if
 * there is none. The checkpoints are not opened.
 */
MUST_CHECK char **layout_list_steps(const char *dir, int *n, struct err *e);

/* Returns the layout of a folder by the names of its files, which are not opened. NULL if it has none. */
const struct layout *layout_of_folder(const char *dir);

/*
 * The files of a folder (paths relative to it) or the members of an archive, which already have numbers in s->files.
 */
struct source_listing {
    int n;
    struct archive_member *member;      /* name relative to the tag folder, file number */
};

/* The facts of each layout: layout_facts.c. */
extern const struct layout deepspeed_layout, zero_layout, universal_pt_layout, universal_hdf5_layout,
    universal_virtual_layout, hf_layout, hfstorage_layout, dcp_layout, torchdist_layout;

/*
 * The functions that source_open() calls, by layout. X_source_open() sets s->layout and fills the source; it returns -1
 * with *e set if nothing can be read, and reports damage of parts. X_marks() returns true for a name inside the folder
 * that only this layout has. X_fits() returns true if all names together are of the layout, which one of them marks.
 */
typedef int layout_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                        struct report *r, struct err *e);
layout_open deepspeed_source_open, zero_source_open, universal_pt_source_open, universal_hdf5_source_open,
    hf_files_source_open, hfstorage_source_open, dcp_source_open, torchdist_source_open;
bool universal_pt_marks(const char *name);
bool universal_hdf5_marks(const char *name);
bool hf_marks(const char *name);
bool hfstorage_marks(const char *name);
bool torchdist_marks(const char *name);
bool torchdist_fits(const struct source_listing *l);
bool zero_fits(const struct source_listing *l);

/* Returns the layout with this name ("dcp", "universal-pt"), or NULL. */
const struct layout *layout_find(const char *name);
/*
 * Returns the layout in which a source is written again if no other is requested: its own, or the one of the same
 * engine that is loaded, for a universal form.
 */
const struct layout *layout_of_result(const struct source *s);

/* Returns true for the name of a file or folder that only the folder of a tag has. */
bool layout_marks_entry(const char *name);

#endif
