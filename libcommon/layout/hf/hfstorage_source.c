/*
 * hfstorage_source.c - read model folders that torch's HuggingFaceStorageWriter wrote from many ranks (docs/formats.md,
 * section 15): find the pieces of each tensor, and join them
 *
 *   shard-00001-model-00001-of-00001.safetensors       the pieces of rank 0
 *   config.json, tokenizer files                       if the program copied them
 *
 * Each file holds at most one piece of a tensor. The file's __metadata__ entry DCP_SHARDING_INFO gives the offset of
 * each piece in its tensor. The shape of a tensor is not stored; it is the smallest shape that contains all pieces.
 *
 * Codes of findings, in addition to those of hf_files_source.c:
 *   unread E     the pieces of a tensor differ in type or number of dimensions, overlap, or leave gaps
 *   missing_file E   a second number of the names, 1 to the number after "of", is in no file's name; W with
 *                source_opts.holes
 *   ranks W      nothing in the folder gives the number of ranks, so the loss of the last file cannot be noticed
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/tile.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/hf/hf_layers.h"
#include "libcommon/layout/hf/hf_source_impl.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/layout/hf/hf_translate.h"
#include "libcommon/layout/layouts.h"

/* The numbers in the name of a file: shard-RANK-model-NUMBER-of-OF.safetensors. */
struct shard_name {
    int rank, number, of;               /* each counts from 1 */
};

/* A piece of a tensor. */
struct shard_piece {
    const char *name;
    enum dtype dtype;
    const char *why;                    /* why the piece cannot be read, or NULL */
    int ndim;
    const int64_t *at, *len;            /* offset in the tensor and shape; [ndim] elements each */
    struct extent x;
    struct shard_name in;
    const char *file;
};

struct shard_reading {
    struct hf_folder *f;
    int n, cap;
    struct shard_piece *piece;
    struct shard_name first;            /* the numbers in the name of the first file */
    int last_rank;
    int n_numbers, cap_numbers;
    int *number;                        /* the second number of each file's name */
    struct strbuf absent;               /* ranks that have no file although a higher rank has one, as text: "2, 5" */
};

/* ---- names of files ---- */

/* Parse a number of at least five digits. Returns the first character after it, or NULL. */
static const char *parse_shard_number(const char *s, int *out)
{
    const size_t n = strspn(s, "0123456789");

    if (n < 5 || n > 9)
        return NULL;
    *out = atoi(s);
    return *out > 0 ? s + n : NULL;
}

static bool parse_shard_name(const char *name, struct shard_name *out)
{
    const char *s = str_starts(name, "shard-") ? parse_shard_number(name + strlen("shard-"), &out->rank) : NULL;

    s = s && str_starts(s, "-model-") ? parse_shard_number(s + strlen("-model-"), &out->number) : NULL;
    s = s && str_starts(s, "-of-") ? parse_shard_number(s + strlen("-of-"), &out->of) : NULL;
    return s && strcmp(s, ".safetensors") == 0;
}

bool hfstorage_marks(const char *name)
{
    struct shard_name ignored;

    return parse_shard_name(name, &ignored);
}

/* ---- the pieces of a file ---- */

static int refuse_shard(const char *file, const char *name, const char *why, struct err *e)
{
    err_data(e, file, ERR_NO_BYTE, "tensor %.200s: %s", name, why);
    return -1;
}

/*
 * Read the offset of piece t into at[]. Returns -1 with ERR_DATA if `info` does not have one number per dimension of
 * the piece, or if the piece does not end below 2^63.
 */
static int read_offset(const json_t *info, const struct safetensors_tensor *t, int64_t *at, const char *file,
                       struct err *e)
{
    const json_t *list = json_object_get(json_object_get(info, t->name), "saved_offsets");

    if (!json_is_array(list))
        return refuse_shard(file, t->name, "the list of its offsets is missing in " HFSTORAGE_OFFSETS, e);
    if (json_array_size(list) != (size_t)t->ndim)
        return refuse_shard(file, t->name, "its offset in " HFSTORAGE_OFFSETS " has not as many numbers as the piece "
                            "has dimensions", e);
    for (int d = 0; d < t->ndim; d++) {
        const json_t *v = json_array_get(list, (size_t)d);

        at[d] = json_integer_value(v);
        if (!json_is_integer(v) || at[d] < 0 || at[d] > INT64_MAX - t->shape[d])
            return refuse_shard(file, t->name, "its offset in " HFSTORAGE_OFFSETS " is no position in a tensor", e);
    }
    return 0;
}

static int add_shard_piece(struct shard_reading *x, int file, const struct safetensors_tensor *t, const json_t *info,
                           const struct shard_name *in, struct err *e)
{
    struct source *s = x->f->s;
    int64_t *at = arena_alloc(s->arena, (2 * (size_t)t->ndim + 1) * sizeof *at), *len = at + t->ndim;
    const struct record r = { .file = file, .at = t->at, .len = t->len, .name = t->name };
    struct shard_piece *p;

    if (read_offset(info, t, at, files_name(s->files, file), e) < 0)
        return -1;
    if (t->ndim)
        memcpy(len, t->shape, (size_t)t->ndim * sizeof *len);
    ARRAY_ROOM(x->piece, x->cap, x->n + 1);
    p = &x->piece[x->n++];
    *p = (struct shard_piece){ .dtype = t->dtype, .ndim = t->ndim, .at = at, .len = len, .in = *in,
                               .file = files_name(s->files, file),
                               .x = { files_add_record(s->files, &r), 0, t->len } };
    /* owned by s->files; t->name is freed with the safetensors file */
    p->name = files_record(s->files, p->x.record)->name;
    if (t->dtype == DTYPE_N)
        p->why = arena_fmt(s->arena, "a tensor of type %s whose rows are no whole bytes", t->spelling);
    return 0;
}

/*
 * Returns the JSON object with the offsets of a file's pieces, or NULL with ERR_DATA. The caller releases the object.
 */
static json_t *read_offsets(const struct safetensors *st, const char *file, struct err *e)
{
    const char *text = safetensors_meta(st, HFSTORAGE_OFFSETS);
    json_error_t why;
    json_t *info = text ? json_loads(text, JSON_REJECT_DUPLICATES, &why) : NULL;

    if (!text)
        err_data(e, file, ERR_NO_BYTE, "has no " HFSTORAGE_OFFSETS " in its metadata, which gives the places of its "
                 "pieces");
    else if (!json_is_object(info))
        err_data(e, file, ERR_NO_BYTE, "its " HFSTORAGE_OFFSETS " is not a JSON object%s%s", info ? "" : ": ",
                 info ? "" : why.text);
    if (e->kind == ERR_NONE && json_object_size(info) == (size_t)safetensors_n(st))
        return info;
    if (e->kind == ERR_NONE)
        err_data(e, file, ERR_NO_BYTE, "its " HFSTORAGE_OFFSETS " lists %zu pieces, but the file has %d",
                 json_object_size(info), safetensors_n(st));
    json_decref(info);
    return NULL;
}

static int read_shard_file(struct shard_reading *x, const char *name, const struct shard_name *in, struct err *e)
{
    int file = hf_folder_add(x->f, name, FILE_WEIGHTS, e), rc = -1;
    const char *path = file < 0 ? NULL : files_name(x->f->s->files, file);
    bool cut = false;
    struct safetensors *st = file < 0 ? NULL
                                      : safetensors_open_cut(x->f->s->files, file, x->f->lost ? &cut : NULL, e);
    json_t *info;

    if (cut)
        report_add_lost(x->f->lost, NULL, e);
    info = st ? read_offsets(st, path, e) : NULL;
    if (info) {
        rc = 0;
        for (int i = 0; i < safetensors_n(st) && rc == 0; i++)
            rc = add_shard_piece(x, file, safetensors_tensor(st, i), info, in, e);
    }
    json_decref(info);
    safetensors_close(st);
    return rc;
}

/*
 * Read a file. If missing files are permitted (x->f->lost is set), a file that cannot be read is reported there as a
 * warning, its pieces are left out, and the function returns 0.
 */
static int read_or_lose_shard(struct shard_reading *x, const char *name, const struct shard_name *in, struct err *e)
{
    const int first = x->n;

    if (read_shard_file(x, name, in, e) == 0)
        return 0;
    if (!x->f->lost)
        return -1;
    report_add_lost(x->f->lost, NULL, e);
    x->n = first;
    return 0;
}

/*
 * Check that a file belongs to the same save as the first file: the number of files per rank in its name must be equal.
 */
static int check_shard_name(struct shard_reading *x, const char *name, const struct shard_name *in, struct err *e)
{
    if (x->last_rank == 0)
        x->first = *in;
    for (int rank = x->last_rank + 1; rank < in->rank && x->absent.len < 80; rank++)
        strbuf_addf(&x->absent, "%s%d", x->absent.len ? ", " : "", rank);
    x->last_rank = in->rank;
    ARRAY_ROOM(x->number, x->cap_numbers, x->n_numbers + 1);
    x->number[x->n_numbers++] = in->number;
    if (in->of == x->first.of && in->number <= in->of)
        return 0;
    err_data(e, x->f->s->path, ERR_NO_BYTE, "%s is from another save, because the files shard-%05d-* belong to a save "
                                            "of %d files for each rank", name,
             x->first.rank, x->first.of);
    return -1;
}

static int by_number(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;

    return (x > y) - (x < y);
}

/*
 * Report the first number from 1 to `of` that is not the second number in any file's name. The writer numbers the files
 * of the merged model. Each of these has a tensor, so at least one rank writes a piece of it, under that number. The
 * length of the loop depends on the list of files, not on a number from a name.
 */
static void report_missing_number(const struct shard_reading *x)
{
    int want = 1;

    if (x->n_numbers)
        qsort(x->number, (size_t)x->n_numbers, sizeof *x->number, by_number);
    for (int i = 0; i < x->n_numbers; i++)
        want += x->number[i] == want;
    if (x->n_numbers && want <= x->first.of)
        report_add(x->f->r, x->f->lost ? SEV_WARNING : SEV_ERROR, "missing_file", x->f->s->path, ERR_NO_BYTE, NULL,
                   "no rank has a file shard-*-model-%05d-of-%05d.safetensors, so the tensors of these files are lost",
                   want, x->first.of);
}

/* ---- tensors ---- */

static int by_piece_name(const void *a, const void *b)
{
    const struct shard_piece *x = a, *y = b;
    const int d = strcmp(x->name, y->name);

    return d ? d : x->in.rank != y->in.rank ? x->in.rank - y->in.rank : x->in.number - y->in.number;
}

/* Returns the reason why two pieces cannot belong to one tensor, or NULL if they can. */
static const char *piece_difference(struct arena *a, const struct shard_piece *p, const struct shard_piece *q)
{
    if (p->dtype != q->dtype)
        return arena_fmt(a, "its piece in %s has type %s, but that in %s has type %s",
                         p->file, dtype_name(p->dtype), q->file,
                         dtype_name(q->dtype));
    if (p->ndim != q->ndim)
        return arena_fmt(a, "its piece in %s has %d dimensions, but that in %s has %d",
                         p->file, p->ndim, q->file, q->ndim);
    if (p->in.number != q->in.number)
        return arena_fmt(a, "its pieces are in %s and in %s, whose second numbers differ", p->file, q->file);
    return NULL;
}

static const char *tile_reason(const struct shard_reading *x, const struct shard_piece *p, const struct tile_flaw *flaw)
{
    struct arena *a = x->f->s->arena;

    if (flaw->what == TILE_OVERLAP)
        return arena_fmt(a, "its pieces in %s and in %s share elements", p[flaw->chunk].file, p[flaw->other].file);
    if (flaw->what == TILE_OUTSIDE)
        return arena_fmt(a, "its piece in %s lies outside of the tensor", p[flaw->chunk].file);
    return arena_fmt(a, "%" PRIu64 " of its elements are in no file%s%s", flaw->n_missing,
                     x->absent.len ? "; there is no file of shard " : "", x->absent.len ? x->absent.buf : "");
}

/*
 * Compute the shape of the tensor that n pieces cover. Returns NULL on success, or the reason why the pieces cannot
 * form a tensor.
 */
static const char *covered_shape(struct arena *a, const struct shard_piece *p, int n, int64_t *shape)
{
    for (int d = 0; d < p->ndim; d++)
        shape[d] = 0;
    for (int i = 0; i < n; i++) {
        const char *why = p[i].why ? p[i].why : piece_difference(a, p, &p[i]);

        if (why)
            return why;
        for (int d = 0; d < p->ndim; d++)
            shape[d] = p[i].at[d] + p[i].len[d] > shape[d] ? p[i].at[d] + p[i].len[d] : shape[d];
    }
    return shape_bytes(p->ndim, shape, p->dtype) < 0 ? "its pieces cover more than any memory holds" : NULL;
}

/* Join n pieces to a tensor and add it to the folder. If this fails, the tensor is added with the reason (t->why). */
static void add_pieced_tensor(const struct shard_reading *x, const struct shard_piece *p, int n)
{
    struct arena *a = x->f->s->arena;
    int64_t *shape = xcalloc((size_t)p->ndim + 1, sizeof *shape);
    const char *why = covered_shape(a, p, n, shape);
    struct tile_chunk *chunk = xcalloc((size_t)n, sizeof *chunk);
    struct hf_stored *t = hf_add_tensor(x->f, p->name, why ? DTYPE_N : p->dtype, p->ndim, shape);
    struct tile_flaw flaw;

    for (int i = 0; i < n; i++) {
        chunk[i] = (struct tile_chunk){ p[i].at, p[i].len, p[i].x.len > 0, arena_alloc(a, sizeof(struct extent)) };
        *chunk[i].extent = p[i].x;
    }
    if (t->dtype != DTYPE_N) {
        t->map = tile_map(a, &(struct tile_tensor){ p->dtype, p->ndim, shape }, chunk, n, &flaw);
        if (!t->map)
            why = tile_reason(x, p, &flaw);
        else
            t->x.len = t->map->len;
    }
    if (why) {
        t->dtype = DTYPE_N;
        t->why = why;
    }
    free(chunk);
    free(shape);
}

static int read_shards(struct hf_folder *f, struct err *e)
{
    struct shard_reading x = { .f = f };
    int rc = 0;

    for (int i = 0; i < f->l->n && rc == 0; i++) {      /* the listing is sorted, so the ranks ascend */
        const char *name = f->l->member[i].name;
        struct shard_name in;

        if (!parse_shard_name(name, &in))
            continue;
        rc = check_shard_name(&x, name, &in, e);
        if (rc == 0)
            rc = read_or_lose_shard(&x, name, &in, e);
    }
    if (rc == 0)
        report_missing_number(&x);
    if (x.n)
        qsort(x.piece, (size_t)x.n, sizeof *x.piece, by_piece_name);
    for (int i = 0, first = 0; i < x.n && rc == 0; i++)
        if (i + 1 == x.n || strcmp(x.piece[i + 1].name, x.piece[first].name) != 0) {
            add_pieced_tensor(&x, &x.piece[first], i + 1 - first);
            first = i + 1;
        }
    strbuf_free(&x.absent);
    free(x.piece);
    free(x.number);
    return rc;
}

/* ---- the folder ---- */

/*
 * Warn that the number of ranks is not known, because the files do not contain it. Nothing is reported if there is a
 * manifest, or if layer rules for the model family in config.json would show that rows are missing.
 */
static void report_unknown_ranks(const struct source *s, struct report *r)
{
    struct err ignored = {0};
    json_t *config = hf_config_json(s, &ignored);

    if (!source_file(s, MANIFEST_NAME) && !(config && hf_knows_layers(config)))
        report_add(r, SEV_WARNING, "ranks", s->path, ERR_NO_BYTE, NULL,
                   "the files do not contain the number of ranks, and there is no %s, so a loss of the files of the "
                   "last rank cannot be detected", config ? "rule for the shapes of this model" : "config.json");
    json_decref(config);
}

int hfstorage_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e)
{
    s->layout = &hfstorage_layout;
    if (hf_folder_open(s, l, o, read_shards, r, e) < 0)
        return -1;
    report_unknown_ranks(s, r);
    return 0;
}
