/*
 * view.h - a checkpoint or a single file as a flat list of tensors
 *
 * Three kinds of input are treated alike: a checkpoint (one entry per parameter and state, then the tensors that are
 * not parameters), one .pt file (its tensors by their path in the pickle), and one .h5 file.
 */
#ifndef SHARDKIT_API_VIEW_H
#define SHARDKIT_API_VIEW_H

#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"

struct view_tensor {
    const char *name;
    /* in a single .pt: the keys as JSON, "a"."b", which are unique even if names are not; else NULL */
    const char *path;
    int state;                  /* enum state; -1 in a single file and for a tensor that is not a parameter */
    enum dtype dtype;
    int ndim;
    int64_t shape[PT_MAX_DIM];
    int64_t n_elems;
    const struct tmap *map;     /* NULL: a transposed view in too many pieces to read */
    const struct param *param;  /* NULL in a single file and for a tensor that is not a parameter */
    bool buffer;                /* a buffer of the model */
};

/* A value that contains a tensor and is not read. */
struct view_unread {
    const char *name, *path;    /* as in struct view_tensor */
    const char *why;            /* "a sparse tensor: save it after .to_dense()" */
};

/* What of a checkpoint is opened and listed. The strings must outlive the view. */
struct view_select {
    const char *glob;           /* shell pattern of names; NULL: all */
    int state;                  /* this state only, -1: all; STATE_BF16 leaves the optimizer's files closed */
    const char *model;          /* as in source_opts; NULL: find the prefix */
    int threads;                /* for opening files */
};

struct view {
    char *path;
    struct view_select select;
    struct source *source;      /* NULL if the view is a single file */
    struct pt *pt;              /* the single file, if it is a .pt; else NULL */
    struct files *files;        /* of the source, or of the single file */
    struct arena *arena;        /* holds the names and maps of a single file, and the table below */
    struct names *names;        /* the first tensor of a name or path */
    int64_t n_runs;             /* number of contiguous runs in those maps */
    int n;
    struct view_tensor *tensor; /* in the checkpoint's order */
    int n_all;                  /* tensor[n] to tensor[n_all - 1]: tensors of a checkpoint that are not parameters */
    /* tensor[n_all] to tensor[n_known - 1]: stacked tensors of files, whose rows are listed above */
    int n_known;
    int n_plain;
    const struct source_value **plain;  /* values that are not tensors; those of a single .pt are named by their path */
    int n_unread;
    struct view_unread *unread;
};

/* Returns true if the path is one .pt or .h5 file and not a checkpoint (a folder, a tar, index.h5). */
bool view_is_file(const char *path);
/*
 * Open `path` and list the selected tensors; a state does not select in a single file. Damage that leaves the rest
 * readable is added to `r`, which may be NULL. Values that contain a tensor and are not read are added too, as errors
 * "unread".
 */
MUST_CHECK struct view *view_open(const char *path, const struct view_select *o, struct report *r, struct err *e);
/* List the tensors of v->source again, after the source was replaced or its names were changed. */
void view_list(struct view *v);
void view_close(struct view *v);                        /* accepts NULL */
/* Returns -1 with ERR_DATA if the pattern of names matched nothing. */
MUST_CHECK int view_check_match(const struct view *v, struct err *e);
/*
 * Find a tensor by any name that source_find() accepts, or by its name or path in a single file. `state` is the one
 * that the user wants, or -1. If no state follows from the name either, it is the one that the files store under this
 * name; else the master, which is the most precise one; else any other. Returns its index; or -1, with *plain set if
 * the name is that of a plain value, else with *e set. Not thread-safe, like source_find().
 */
int view_lookup(const struct view *v, const char *name, int state, const struct source_value **plain, struct err *e);
/*
 * Compare `crc`, the CRC of all bytes of the tensor, with the digest in the manifest. Returns 0 if they are equal or
 * the manifest has no digest.
 */
MUST_CHECK int view_check_digest(const struct view *v, const struct view_tensor *t, uint32_t crc, struct err *e);
/* Return the name for messages: "3.x.weight fp32" or, in a single file, the name alone. */
char *view_label(const struct view_tensor *t);          /* caller frees */

#endif
