/*
 * view.h - a checkpoint or a single file as a flat list of tensors
 *
 * ls, cat, stats and diff work alike on a checkpoint (one entry per parameter and
 * state, then tensors that are no parameter's), on one .pt file (its tensors by their
 * path in the pickle) and on one .h5 file.
 */
#ifndef SHARDKIT_CKPT_INSPECT_VIEW_H
#define SHARDKIT_CKPT_INSPECT_VIEW_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/layout.h"
#include "tools/ckpt-inspect/inspect.h"

struct view_tensor {
    const char *name;
    const char *path;           /* in a single .pt: the keys as JSON, "a"."b", where names may be the same; or NULL */
    int state;                  /* enum state; -1 in a single file, and of no parameter's */
    enum dtype dtype;
    int ndim;
    int64_t shape[PT_MAX_DIM];
    int64_t n_elems;
    const struct tmap *map;     /* NULL: a transposed view in too many pieces to read */
    const struct param *param;  /* NULL in a single file, and of no parameter's */
};

/* What bears a tensor and is not read. */
struct view_unread {
    const char *name, *path;    /* as of a tensor */
    const char *why;            /* "a sparse tensor: save it after .to_dense()" */
};

struct view {
    char *path;
    struct source *source;      /* NULL: a single file */
    struct pt *pt;              /* the single file, if it is a .pt */
    struct files *files;        /* the source's, or of the single file */
    struct arena *arena;        /* names and maps of a single file */
    int64_t n_runs;             /* contiguous runs in those maps */
    int n;
    struct view_tensor *tensor; /* in the checkpoint's order */
    int n_all;                  /* tensor[n] to tensor[n_all - 1]: a checkpoint's that are no parameter's */
    int n_known;                /* tensor[n_all] to tensor[n_known - 1]: tensors of files whose rows stand above */
    int n_plain;
    const struct source_value **plain;  /* its values that are no tensors; of a single .pt by their view_tensor.path */
    int n_unread;
    struct view_unread *unread;
};

/* True for a path that is one .pt or .h5 file rather than a checkpoint (a folder, a tar, index.h5). */
bool view_is_file(const char *path);
/*
 * Open `path`, keeping the tensors that --param and --state ask for (a state is no
 * condition on a single file). Damage that leaves the rest readable goes to `r`, which may be NULL, and so does what
 * bears a tensor and is not read, as an error "unread".
 */
MUST_CHECK struct view *view_open(const struct inspect *in, const char *path, struct report *r, struct err *e);
void view_close(struct view *v);                        /* NULL is fine */
/*
 * For comparing: where one of two views is a model of Transformers and the other a checkpoint,
 * open the model anew under Megatron's names and in its shapes. -1: Megatron has no such model.
 */
MUST_CHECK int view_match(const struct inspect *in, struct view *a, struct view *b, struct err *e);
/* -1 and ERR_DATA when --param matched nothing. */
MUST_CHECK int view_check_match(const struct inspect *in, const struct view *v, struct err *e);
/* Among all tensors, those of n_known too, by its name or path; -1: none. */
int view_find(const struct view *v, const char *name, int state);
/* `crc` is that of all bytes of the tensor: is it the one a manifest tells? 0 where none does. */
MUST_CHECK int view_check_digest(const struct view *v, const struct view_tensor *t, uint32_t crc, struct err *e);
/* Name for people: "3.x.weight fp32" or, in a single file, the name alone. */
char *view_label(const struct view_tensor *t);          /* caller frees */

#endif
