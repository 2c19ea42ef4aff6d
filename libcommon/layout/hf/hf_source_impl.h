/*
 * hf_source_impl.h - declarations shared by the hf_source_*.c files
 *
 * hf_source.c finds tensors and gives them Megatron's names. hf_files_source.c leaves them unchanged.
 * hf_source_files.c reads the folder's files. hf_source_maps.c makes maps of tensors. hf_source_spool.c transposes
 * matrices. hf_source_state.c creates the state that a trainer would have written with them.
 */
#ifndef SHARDKIT_LAYOUT_HF_SOURCE_IMPL_H
#define SHARDKIT_LAYOUT_HF_SOURCE_IMPL_H

#include "libcommon/base/files.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_source.h"
#include "libcommon/layout/layouts.h"

/* A tensor of the folder. */
struct hf_stored {
    const char *name;                   /* without "transformer." */
    const char *full;                   /* the name as stored */
    enum dtype dtype;                   /* DTYPE_N if the tensor is not read; `why` is the reason */
    const char *why;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    struct extent x;                    /* its bytes; for a view that is not contiguous only the length is valid */
    struct tmap *map;                   /* map of such a view; otherwise NULL */
    bool used;
};

struct hf_folder {
    struct source *s;
    const struct source_listing *l;     /* its files, already in s->files; NULL to search in s->path */
    struct report *lost;                /* receives files of an index that are lost; NULL: such a file is an error */
    json_t *crcs;                       /* CRCs of the tensors from a manifest, checked as they are read, or NULL */
    int64_t n_runs;                     /* total over all views that are not contiguous */
    int n, cap;
    struct hf_stored *tensor;           /* sorted by name after hf_folder_read(); the caller frees it */
};
/* Read every tensor of the folder's files and check them against the index. Files are added to s->file. */
MUST_CHECK int hf_folder_read(struct hf_folder *f, struct err *e);
struct hf_stored *hf_folder_find(const struct hf_folder *f, const char *name);         /* NULL if there is none */
bool hf_folder_has(const struct hf_folder *f, const char *name);        /* true if a file with that name exists */
/*
 * Add a file of the folder to s->file (and, without a listing, to s->files). Returns the number in s->files, or -1.
 */
MUST_CHECK int hf_folder_add(struct hf_folder *f, const char *name, enum file_class cls, struct err *e);

/* Compute the shape in which a folder with this configuration stores a tensor. */
void hf_stored_shape(const struct param_row *r, const struct hf_config *c, int64_t shape[TENSOR_MAX_DIM]);

/* A matrix [rows][cols] to be stored as [cols][rows]. */
struct hf_matrix {
    const struct hf_stored *from;
    struct tmap **to;                   /* receives the transposed matrix */
};
MUST_CHECK int hf_spool(struct source *s, const struct hf_matrix *m, int n, const struct hf_source_opts *o,
                        struct err *e);
/* Returns a map of one extent, allocated in the source's arena. */
struct tmap *hf_map_of(struct source *s, enum dtype dtype, struct extent x);
/*
 * Returns the rows of a tensor, which must have at least one, followed by copies of the last row up to `rows` rows.
 * At most HF_ROWS_MORE copies are allowed.
 */
struct tmap *hf_repeat_last(struct source *s, const struct hf_stored *t, int64_t rows);
/* Padding is some thousand rows; each copy is an extent. */
enum { HF_ROWS_MORE = 1 << 22 };
/* Returns 1 if two tensors hold the same bytes, 0 if not, -1 if they cannot be read. CRCs are not checked. */
MUST_CHECK int hf_same_values(const struct source *s, const struct tmap *a, const struct tmap *b, struct err *e);
MUST_CHECK int hf_same_bytes(struct source *s, const struct extent *x, const struct extent *y, struct err *e);

/*
 * Create mp_rank_00_model_states.pt in memory as a trainer would have written it, and s->run from it. c->dtype is
 * the type of the weights; `tokens` is the vocabulary size without padding (V0).
 */
MUST_CHECK int hf_make_state(struct source *s, const struct hf_config *c, int64_t tokens, int n_groups, struct err *e);

#endif
