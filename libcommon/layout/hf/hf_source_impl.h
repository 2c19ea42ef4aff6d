/*
 * hf_source_impl.h - what the hf_source_*.c files share
 *
 * hf_source.c finds tensors and gives them Megatron's names; hf_files_source.c leaves them
 * as they are; hf_source_files.c reads the folder's files; hf_source_maps.c puts maps over tensors, hf_source_spool.c
 * turns matrices round; hf_source_state.c makes up what a trainer would have written beside them.
 */
#ifndef SHARDKIT_LAYOUT_HF_SOURCE_IMPL_H
#define SHARDKIT_LAYOUT_HF_SOURCE_IMPL_H

#include "libcommon/layout/hf/hf_source.h"

/* A tensor of the folder. */
struct hf_stored {
    const char *name;                   /* without "transformer." */
    const char *full;                   /* as it is written */
    enum dtype dtype;                   /* DTYPE_N: it is not read, and `why` says so */
    const char *why;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    struct extent x;                    /* its bytes; of a view that is not contiguous their number alone */
    struct tmap *map;                   /* of such a view; else NULL */
    bool used;
};

struct hf_folder {
    struct source *s;
    const struct source_listing *l;     /* its files, in s->files already; NULL: they are looked for in s->path */
    json_t *crcs;                       /* what a manifest says of its tensors, to check as they pass by, or NULL */
    int64_t n_runs;                     /* of views that are not contiguous, together */
    int n, cap;
    struct hf_stored *tensor;           /* by name, once hf_folder_read() is done; the caller frees it */
};
/* Every tensor of the folder's files, checked against the index. Files go to s->file. */
MUST_CHECK int hf_folder_read(struct hf_folder *f, struct err *e);
struct hf_stored *hf_folder_find(const struct hf_folder *f, const char *name);         /* NULL: none */
bool hf_folder_has(const struct hf_folder *f, const char *name);        /* a file of that name */
/* Add a file of the folder to s->file (and, without a listing, to s->files); the number in s->files, or -1. */
MUST_CHECK int hf_folder_add(struct hf_folder *f, const char *name, enum file_class cls, struct err *e);

/* The shape that a folder with this configuration keeps a tensor in. */
void hf_stored_shape(const struct param_row *r, const struct hf_config *c, int64_t shape[TENSOR_MAX_DIM]);

/* A matrix [rows][cols] to be kept as [cols][rows]. */
struct hf_matrix {
    const struct hf_stored *from;
    struct tmap **to;                   /* filled in: the turned matrix */
};
MUST_CHECK int hf_spool(struct source *s, const struct hf_matrix *m, int n, const struct hf_source_opts *o,
                        struct err *e);
/* A map of one extent, in the source's arena. */
struct tmap *hf_map_of(struct source *s, enum dtype dtype, struct extent x);
/* The rows of a tensor, which has some, and its last one as often as makes `rows`: at most HF_ROWS_MORE times. */
struct tmap *hf_repeat_last(struct source *s, const struct hf_stored *t, int64_t rows);
/* Padding is a matter of some thousand rows; each is an extent. */
enum { HF_ROWS_MORE = 1 << 22 };
/* Do two tensors hold the same? 1, 0; -1: they cannot be read. CRCs are not looked at. */
MUST_CHECK int hf_same_values(const struct source *s, const struct tmap *a, const struct tmap *b, struct err *e);
MUST_CHECK int hf_same_bytes(struct source *s, const struct extent *x, const struct extent *y, struct err *e);

/* mp_rank_00_model_states.pt as a trainer would have written it, in memory, and s->run from it. c->dtype: of the
 * weights. `tokens`: V0. */
MUST_CHECK int hf_make_state(struct source *s, const struct hf_config *c, int64_t tokens, int n_groups, struct err *e);

#endif
