/*
 * view.h - a checkpoint or a single file as a flat list of tensors
 *
 * Three kinds of input get the same form: a checkpoint (one entry per parameter and state, then the tensors that are
 * not parameters), one .pt file (one entry per tensor, named by its path in the pickle), and one .h5 file.
 */
#ifndef SHARDKIT_API_VIEW_H
#define SHARDKIT_API_VIEW_H

#include "libcommon/base/report.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/pt.h"

struct view_tensor {
    const char *name;
    /*
     * In a single .pt file: the keys of the tensor in JSON form ("a"."b"). Paths are unique even if names are not. In a
     * checkpoint: NULL
     */
    const char *path;
    int state;                  /* enum state; -1 in a single file and for a tensor that is not a parameter */
    enum dtype dtype;
    int ndim;
    int64_t shape[PT_MAX_DIM];
    int64_t n_elems;
    const struct tmap *map;     /* NULL if the tensor is a transposed view of too many pieces to be read */
    const struct param *param;  /* NULL in a single file and for a tensor that is not a parameter */
    bool buffer;                /* true for a buffer of the model, which is not trained */
    const struct tmap *weights; /* as in struct source_value */
};

/* A value that contains a tensor but cannot be read. */
struct view_unread {
    const char *name, *path;    /* as in struct view_tensor */
    const char *why;            /* the reason, such as "a sparse tensor: save it after .to_dense()" */
};

/* Selects the part of a checkpoint that is opened and listed. The strings must outlive the view. */
struct view_select {
    const char *glob;           /* shell pattern that the names must match; NULL: all tensors */
    /* list only this state; -1: all states. With STATE_BF16 the files of the optimizer are not opened */
    int state;
    const char *model;          /* as in source_opts; NULL: the prefix is detected */
    int threads;                /* number of threads that open files */
};

struct view {
    char *path;
    struct view_select select;
    struct source *source;      /* NULL if the view is a single file */
    struct pt *pt;              /* the single file if it is a .pt; else NULL */
    struct files *files;        /* the files of the source, or the single file */
    struct arena *arena;        /* holds the names and maps of a single file, and the table `tensor` */
    struct names *names;        /* maps a name or path to the index of the first tensor that has it */
    int64_t n_runs;             /* number of contiguous runs in the maps of a single file */
    int n;
    struct view_tensor *tensor; /* in the order of the checkpoint */
    /* tensor[n] to tensor[n_all - 1] are tensors of a checkpoint that are not parameters */
    int n_all;
    /*
     * tensor[n_all] to tensor[n_known - 1] are stacked tensors as the files store them. Each of their rows is also
     * listed as a separate tensor before tensor[n_all]
     */
    int n_known;
    int n_plain;
    /* values that are not tensors; in a single .pt file each of them is named by its path */
    const struct source_value **plain;
    int n_unread;
    struct view_unread *unread;
};

/*
 * Returns true if `path` is a single .pt or .h5 file. Returns false for a checkpoint: a folder, a tar, or an index.h5.
 */
bool view_is_file(const char *path);
/*
 * Open `path` and list the selected tensors. In a single file the selection of a state has no effect. Damage that does
 * not affect the rest of the data is added to the report `r`, which may be NULL. Each value that contains a tensor but
 * cannot be read is added to `r` as an error "unread".
 */
MUST_CHECK struct view *view_open(const char *path, const struct view_select *o, struct report *r, struct err *e);
/* List the tensors of v->source again. This must be called after the source was replaced or its names were changed. */
void view_list(struct view *v);
void view_close(struct view *v);                        /* accepts NULL */
/* Returns -1 with ERR_DATA if o->glob was given and matched no name. */
MUST_CHECK int view_check_match(const struct view *v, struct err *e);
/*
 * Find a tensor by its name. In a checkpoint, any name that source_find() accepts is allowed. In a single file, `name`
 * is the name or the path of the tensor. `state` is the state that the user requests, or -1. If `state` is -1 and the
 * name does not imply a state, the first of these that exists is chosen: the state that the files store under this
 * name; the fp32 master weights; any other state. Returns the tensor's index, or -1. If the result is -1 and `name` is
 * the name of a plain value, *plain is set to this value; otherwise *e is set. Not thread-safe, like source_find().
 */
int view_lookup(const struct view *v, const char *name, int state, const struct source_value **plain, struct err *e);
/*
 * Compare `crc`, which must be the CRC of all bytes of the tensor, with the digest in the manifest. Returns 0 if they
 * are equal, or if the manifest has no digest for this tensor.
 */
MUST_CHECK int view_check_digest(const struct view *v, const struct view_tensor *t, uint32_t crc, struct err *e);
/*
 * Return a name of the tensor for messages. In a checkpoint it consists of name and state ("3.x.weight fp32"), in a
 * single file only of the name.
 */
char *view_label(const struct view_tensor *t);          /* caller frees */

#endif
