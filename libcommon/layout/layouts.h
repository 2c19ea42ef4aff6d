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
 * Open the checkpoint at `path`: a tag folder of any layout and name, a folder with a pointer file (`latest`, or
 * `latest_universal` if there is no `latest`), or a tar archive of a tag folder. If `r` is given, damage that leaves
 * the rest readable is added to `r`, and the function continues. If `r` is NULL, the first ERROR makes the open fail.
 * Returns NULL and sets *e if the checkpoint cannot be opened.
 */
MUST_CHECK struct source *source_open(const char *path, const struct source_opts *o,
                                      struct report *r, struct err *e);

/*
 * List the checkpoints of the run in `dir`. These are the folder that the pointer file (`latest`) names, and the
 * folders whose names differ from that name only by a smaller number. If there is no pointer file, the folder with the
 * largest number is used in its place. If there are no tags, model folders called checkpoint-N are listed. Returns the
 * paths in the order of the numbers; the caller frees each path and the array. Returns NULL with *e set if there are
 * none. The checkpoints are not opened.
 */
MUST_CHECK char **layout_list_steps(const char *dir, int *n, struct err *e);

/*
 * Returns true if the folder is a step of a run by the names of its files: a tag of any layout, or a model folder
 * called checkpoint-N. A folder with a pointer file is not one. The files are not opened.
 */
bool layout_is_step(const char *dir);
/*
 * Returns the name of the folder that the pointer file of the run in `dir` names, or, if there is none, the name of the
 * folder *-last of NeMo. The folder need not exist. The caller frees the name. Returns NULL if there is none, with *e
 * set if the pointer file cannot be read. *points is true if there is a pointer file.
 */
char *layout_latest_name(const char *dir, bool *points, struct err *e);

/*
 * Returns the layout that the names of a folder's files belong to, or NULL if there is none. The files are not opened.
 */
const struct layout *layout_of_folder(const char *dir);
/*
 * Returns true if the folder is a model folder whose files have pieces of tensors (hfstorage), which Transformers does
 * not load. The files are not opened.
 */
bool layout_has_cut_model(const char *dir);

/* The files of a folder, or the members of an archive. They already have numbers in s->files. */
struct source_listing {
    int n;
    struct archive_member *member;      /* name: path relative to the tag folder; file: number in s->files */
    const char *folder;         /* the folder below it with the files of the layout, such as "weights/", or "" */
};

/* The properties of each layout, defined in layout_facts.c. */
extern const struct layout deepspeed_layout, zero_layout, universal_pt_layout, universal_hdf5_layout,
    universal_virtual_layout, hf_layout, hfstorage_layout, dcp_layout, torchdist_layout, fsdp_layout,
    megatron_layout, meta_layout, litgpt_layout, dsmoe_layout, lightning_layout;
/* The properties of a single .pt file that is treated as a checkpoint of one file without parameters. */
extern const struct layout single_file_layout;

/*
 * The functions of each layout X that source_open() calls. X_source_open() sets s->layout and fills the source. It
 * returns -1 with *e set if nothing can be read; damage to parts of the checkpoint is reported as findings. X_marks()
 * returns true if only a folder of this layout has a file of the given name. If X_marks() is true for a name in a
 * folder, X_fits() is called; it returns true if the list of all names fits this layout.
 */
typedef int layout_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                        struct report *r, struct err *e);
layout_open deepspeed_source_open, zero_source_open, universal_pt_source_open, universal_hdf5_source_open,
    hf_files_source_open, hfstorage_source_open, dcp_source_open, torchdist_source_open,
    fsdp_source_open, megatron_source_open, meta_source_open, litgpt_source_open, dsmoe_source_open,
    lightning_source_open, nemo_source_open;
bool universal_pt_marks(const char *name);
bool universal_hdf5_marks(const char *name);
bool hf_marks(const char *name);
bool hfstorage_marks(const char *name);
bool fsdp_marks(const char *name);
bool megatron_marks(const char *name);
bool meta_marks(const char *name);
bool litgpt_marks(const char *name);
bool dsmoe_marks(const char *name);
bool lightning_marks(const char *name);
bool lightning_fits(const struct source_listing *l);
bool torchdist_marks(const char *name);
bool torchdist_fits(const struct source_listing *l);
bool nemo_marks(const char *path);
bool nemo_fits(const struct source_listing *l);
bool zero_fits(const struct source_listing *l);
bool dsmoe_fits(const struct source_listing *l);

/*
 * Returns true if `path` is a file *.ckpt that is a checkpoint of PyTorch Lightning. source_open() opens such a file by
 * this path.
 */
bool lightning_is_file(const char *path);

/* Returns the layout with this name ("dcp", "universal-pt"), or NULL. */
const struct layout *layout_find(const char *name);
/*
 * Returns the layout in which a source is written if no other is requested. It is the source's own layout if this
 * consists of entries, or if the source has files of experts of DeepSpeed's MoE. Otherwise it is the layout that the
 * engine loads: ZeRO's files for a ZeRO checkpoint or a universal form of one, and the pipeline engine's files for all
 * others.
 */
const struct layout *layout_of_result(const struct source *s);
/*
 * Returns true if --step of reshape also sets Adam's own step counter when the source is written as layout_of_result().
 */
bool layout_result_sets_step(const struct source *s);

/* Returns the name of pointer file kind i, such as `latest`, or NULL if i is the number of kinds. */
const char *layout_pointer_name(int i);

/* Returns true if only a tag folder has a file or folder of this name. */
bool layout_marks_entry(const char *name);

#endif
