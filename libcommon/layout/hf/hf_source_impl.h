/*
 * hf_source_impl.h - declarations shared by the hf_source_*.c files
 *
 * hf_source.c converts the tensors to Megatron's parameters, while hf_files_source.c leaves them unchanged.
 * hf_source_files.c reads the folder's files. hf_source_maps.c makes maps of tensors. hf_source_spool.c transposes
 * matrices. hf_source_state.c creates the run state that a trainer would have saved with the tensors.
 */
#ifndef SHARDKIT_LAYOUT_HF_SOURCE_IMPL_H
#define SHARDKIT_LAYOUT_HF_SOURCE_IMPL_H

#include "libcommon/base/files.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/hf/hf_source.h"
#include "libcommon/layout/layouts.h"

/* A tensor of the folder. */
struct hf_stored {
    const char *name;                   /* the name without "transformer." */
    const char *full;                   /* the name as stored */
    enum dtype dtype;                   /* DTYPE_N if the tensor cannot be read; `why` gives the reason */
    const char *why;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    struct extent x;                    /* location of the bytes; if `map` is set, only the length is valid */
    struct tmap *map;                   /* map of a tensor whose bytes are not contiguous; otherwise NULL */
    bool used;
};

struct hf_folder {
    struct source *s;
    /*
     * listing with the folder's files, which are then already in s->files; NULL: files are looked up in the folder
     * s->path
     */
    const struct source_listing *l;
    /* receives reports of files that the index names but that cannot be read; NULL: such a file is an error */
    struct report *lost;
    const struct source_opts *o;        /* if `l` is set: the options of source_open() */
    struct report *r;                   /* receives findings about files that can be read; may be NULL */
    /* CRCs from a manifest, by tensor, to be checked when the tensors are read; or NULL */
    json_t *crcs;
    int64_t n_runs;                     /* total number of runs of all views that are not contiguous */
    int n, cap;
    struct hf_stored *tensor;           /* sorted by name after hf_folder_read(); the caller frees the array */
};
/*
 * A function that reads the folder's files. It adds every tensor to f->tensor, in any order, and the files to s->file.
 */
typedef int hf_read_tensors(struct hf_folder *f, struct err *e);
/* Read the tensors of the files that Transformers would load, and check them against the index. */
MUST_CHECK hf_read_tensors hf_read_model_files;
/* Sort f->tensor by name. Returns -1 with ERR_DATA if a name exists twice. */
MUST_CHECK int hf_folder_sort(struct hf_folder *f, struct err *e);
/* Call `read`, and sort f->tensor. */
MUST_CHECK int hf_folder_read(struct hf_folder *f, hf_read_tensors *read, struct err *e);
/*
 * Open a model folder for source_open(). `read` finds the tensors, which are left unchanged. They are then checked
 * against config.json and the manifest.
 */
MUST_CHECK int hf_folder_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                              hf_read_tensors *read, struct report *r, struct err *e);
/*
 * Append a tensor to f->tensor and return it; the caller sets its bytes. A tensor with more than TENSOR_MAX_DIM
 * dimensions is marked as one that cannot be read.
 */
struct hf_stored *hf_add_tensor(struct hf_folder *f, const char *name, enum dtype dtype, int ndim,
                                const int64_t *shape);
struct hf_stored *hf_folder_find(const struct hf_folder *f, const char *name);         /* NULL if there is none */
bool hf_folder_has(const struct hf_folder *f, const char *name);        /* true if a file with that name exists */
/*
 * Add a file of the folder to s->file (and to s->files, if f->l is NULL). Returns the file's index in s->files, or -1.
 */
MUST_CHECK int hf_folder_add(struct hf_folder *f, const char *name, enum file_class cls, struct err *e);

/* Compute the shape that the tensor with row r has in a model folder with this configuration. */
void hf_stored_shape(const struct param_row *r, const struct hf_config *c, int64_t shape[TENSOR_MAX_DIM]);

/* A matrix that is stored as [rows][cols] and must be transposed to [cols][rows]. */
struct hf_matrix {
    const struct hf_stored *from;
    struct tmap **to;                   /* receives the map of the transposed matrix */
};
MUST_CHECK int hf_spool(struct source *s, const struct hf_matrix *m, int n, const struct hf_source_opts *o,
                        struct err *e);
/* Returns a map that consists of the extent x, allocated in the source's arena. */
struct tmap *hf_map_of(struct source *s, enum dtype dtype, struct extent x);
/* Returns the map of a stored tensor. */
struct tmap *hf_stored_map(struct source *s, const struct hf_stored *t);
/*
 * Returns the map of a tensor with copies of its last row appended, so that the result has `rows` rows. The tensor must
 * have at least one row. At most HF_ROWS_MORE rows may be appended.
 */
struct tmap *hf_repeat_last(struct source *s, const struct hf_stored *t, int64_t rows);
/* Limit for appended rows. Padding usually has a few thousand rows, and each appended row needs an extent. */
enum { HF_ROWS_MORE = 1 << 22 };
/* Returns 1 if two tensors have the same bytes, 0 if not, or -1 if one cannot be read. CRCs are not checked. */
MUST_CHECK int hf_same_values(const struct source *s, const struct tmap *a, const struct tmap *b, struct err *e);

/*
 * Fill in s->run, s->config and s->groups for a run that starts from this model. c->dtype is the type of the weights;
 * `tokens` is the vocabulary size without padding (V0).
 */
void hf_make_state(struct source *s, const struct hf_config *c, int64_t tokens, int n_groups);

#endif
