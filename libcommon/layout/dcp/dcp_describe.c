/*
 * dcp_describe.c - describe a folder of torch.distributed.checkpoint, in which every item is a torch.save archive
 *
 * Each rank has one file, in which its pieces of tensors and its values are placed one after the other. Values and
 * .metadata are written last. A folder without .metadata is unfinished.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/dcp_target.h"
#include "libcommon/layout/dcp/dcp_write.h"
#include "libcommon/write/folder.h"

#define PREFIX "archive"

/* One item of the result: a value, or a part of a tensor that one rank stores. */
struct dcp_piece {
    /*
     * number of pieces that one fill writes; the fill distributes the columns of its rows to these pieces. Set in the
     * first of the pieces, 0 in the others
     */
    int n_pieces;
    int entry;                          /* index in the target's table */
    const struct dcp_part *part;        /* part of the entry, or of one of its rows if it is a stack */
    int64_t layer;                      /* index of that row; -1 if the entry is not a stack */
    int rank;
    int next;                           /* index of the next piece of the same rank; -1 if there is none */
    int box, storage;                   /* index in the rank's file; storage is -1 for a value */
    /* true: the piece is the rows and columns given below; false: it is the whole tensor */
    bool cut;
    int64_t row, rows, column, columns;
    /* from: offset of row `row` in the tensor, in bytes; len: size of the piece, in bytes */
    uint64_t from, len;
    uint8_t *bytes;                     /* for a value: its archive; otherwise NULL */
    uint64_t size;                      /* for a value: size of the archive in bytes */
};

struct dcp_folder {
    const struct dcp_target *t;
    struct dcp_mesh mesh;
    int ranks;
    struct dcp_piece *piece;
    int n, cap;
    int *first;                         /* [ranks]: index of the rank's first piece; -1 if it has none */
    /* [entries]: index of the entry's first piece, and number of its pieces, which follow one another */
    struct dcp_run { int first, n; } *run;
    /* [entries]: index of the entry's first tensor in the list of the result's tensors; -1 if it has none */
    int *number;
};

/* ---- layout ---- */

/*
 * Add a piece for `rank`. Its entry, part and layer are those of *of. The returned pointer is valid until the next
 * call.
 */
static struct dcp_piece *dcp_add_rank_piece(struct dcp_folder *w, const struct dcp_piece *of, int rank)
{
    ARRAY_ROOM(w->piece, w->cap, w->n + 1);
    w->piece[w->n] = *of;
    w->piece[w->n].rank = rank;
    return &w->piece[w->n++];
}

static const struct dcp_entry *dcp_piece_entry(const struct dcp_folder *w, const struct dcp_piece *p)
{
    return &w->t->table.entry[p->entry];
}

/*
 * Returns the shape of the tensor to which piece p belongs. It is the shape of the entry, or, for a stack, the shape of
 * one row of the entry.
 */
static const int64_t *dcp_piece_shape(const struct dcp_folder *w, const struct dcp_piece *p, int *ndim)
{
    const struct dcp_entry *en = dcp_piece_entry(w, p);

    *ndim = en->ndim - (p->layer >= 0);
    return en->shape + (p->layer >= 0);
}

/*
 * Add the pieces of rows [row, row + rows) of a tensor, for the ranks first_rank, ... of one row of the mesh. If
 * mesh.columns divides the tensor's second dimension, each of these ranks gets the same number of columns; otherwise
 * the first rank gets the rows whole. The rows also remain whole if reading the source compares or sums copies, because
 * the executor cannot distribute the columns of such maps.
 */
static void dcp_add_row_pieces(struct dcp_folder *w, const struct dcp_piece *of, int64_t row, int64_t rows,
                               int first_rank)
{
    int ndim;
    const int64_t *shape = dcp_piece_shape(w, of, &ndim);
    const uint64_t bytes = of->part->map->len / (uint64_t)shape[0];
    const bool divides = ndim > 1 && shape[1] > 0 && shape[1] % w->mesh.columns == 0;
    const int n = divides && !tmap_overlays(of->part->map) ? w->mesh.columns : 1;

    for (int c = 0; c < n; c++) {
        struct dcp_piece *p = dcp_add_rank_piece(w, of, first_rank + c);

        p->cut = true;
        p->n_pieces = c == 0 ? n : 0;
        p->row = row;
        p->rows = rows;
        p->columns = ndim > 1 ? shape[1] / n : 0;
        p->column = c * p->columns;
        p->from = (uint64_t)row * bytes;
        p->len = (uint64_t)rows * bytes / (uint64_t)n;
    }
}

/*
 * Add the pieces of a tensor. If the tensor is a state of a parameter, has rows, and has a type that weights can have,
 * it is split over the ranks. Otherwise one rank stores it whole.
 */
static void add_one(struct dcp_folder *w, const struct dcp_piece *of)
{
    int ndim;
    const int64_t *shape = dcp_piece_shape(w, of, &ndim);
    const bool split = of->part->param && ndim > 0 && dtype_is_weight(w->t->table.entry[of->entry].dtype);
    int64_t n = split ? shape[0] : 0, each = (n + w->mesh.rows - 1) / w->mesh.rows;
    struct dcp_piece *p;

    for (int r = 0; r < w->mesh.rows && r * each < n; r++)
        dcp_add_row_pieces(w, of, r * each, each < n - r * each ? each : n - r * each, r * w->mesh.columns);
    if (n > 0)
        return;
    p = dcp_add_rank_piece(w, of, (int)((of->entry + (of->layer > 0 ? of->layer : 0)) % w->ranks));
    p->n_pieces = 1;
    p->len = of->part->map->len;
}

static void dcp_add_tensor_pieces(struct dcp_folder *w, int entry)
{
    const struct dcp_part *part = &w->t->part[entry];

    if (!part->row)
        add_one(w, &(struct dcp_piece){ .entry = entry, .part = part, .layer = -1 });
    for (int64_t i = 0; part->row && i < w->t->table.entry[entry].shape[0]; i++)
        add_one(w, &(struct dcp_piece){ .entry = entry, .part = &part->row[i], .layer = i });
}

static void box_of(const struct dcp_folder *w, const struct dcp_piece *p, int64_t at[TENSOR_MAX_DIM],
                   int64_t len[TENSOR_MAX_DIM])
{
    const int below = p->layer >= 0;
    int ndim;

    dcp_piece_shape(w, p, &ndim);
    memset(at, 0, TENSOR_MAX_DIM * sizeof *at);
    memcpy(len, dcp_piece_entry(w, p)->shape, TENSOR_MAX_DIM * sizeof *len);
    if (below) {
        at[0] = p->layer;
        len[0] = 1;
    }
    if (!p->cut)
        return;
    at[below] = p->row;
    len[below] = p->rows;
    if (ndim > 1) {
        at[below + 1] = p->column;
        len[below + 1] = p->columns;
    }
}

/* Make the archives of values. Number the boxes and storages in each rank's file, and link the pieces of each rank. */
static int number_dcp_pieces(struct dcp_folder *w, const struct source *s, struct err *e)
{
    int *boxes = xcalloc((size_t)w->ranks, sizeof *boxes), *storages = xcalloc((size_t)w->ranks, sizeof *storages);
    int *last = xcalloc((size_t)w->ranks, sizeof *last), rc = 0;

    w->first = xmalloc((size_t)w->ranks * sizeof *w->first);
    for (int r = 0; r < w->ranks; r++)
        w->first[r] = -1;
    for (int i = 0; i < w->n && rc == 0; i++) {
        struct dcp_piece *p = &w->piece[i];

        p->box = boxes[p->rank]++;
        p->storage = p->part->map ? storages[p->rank]++ : -1;
        p->next = -1;
        *(p->box == 0 ? &w->first[p->rank] : &w->piece[last[p->rank]].next) = i;
        last[p->rank] = i;
        if (!p->part->map)
            rc = pt_build(PREFIX, p->part->tree, p->part->pt, source_files(s), &p->bytes, &p->size, e);
    }
    free(boxes);
    free(storages);
    free(last);
    return rc;
}

static int list_dcp_pieces(void *ctx, const struct source *s, const struct sink_opts *o, struct err *e)
{
    struct dcp_folder *w = ctx;

    (void)o;
    for (int i = 0; i < w->t->table.n; i++)     /* values come first, as torch writes them */
        if (!w->t->part[i].map && !w->t->part[i].row)
            dcp_add_rank_piece(w, &(struct dcp_piece){ .entry = i, .part = &w->t->part[i], .layer = -1 },
                               w->n % w->ranks);
    for (int i = 0; i < w->t->table.n; i++)
        if (w->t->part[i].map)
            dcp_add_tensor_pieces(w, i);
    w->run = xcalloc((size_t)w->t->table.n + 1, sizeof *w->run);
    for (int i = 0; i < w->n; i++)
        if (w->run[w->piece[i].entry].n++ == 0)
            w->run[w->piece[i].entry].first = i;
    return number_dcp_pieces(w, s, e) < 0 ? -1 : w->ranks;
}

/* ---- files ---- */

/*
 * The trees of a file's archives that were made last. Archives of pieces of the same type and shape have one tree, so a
 * file of a hundred thousand experts needs a few.
 */
enum { TREES_KEPT = 32 };
struct dcp_trees {
    int n, next;                        /* number of trees; index of the one that is replaced next */
    struct dcp_tree {
        struct pt_new of;
        int64_t shape[TENSOR_MAX_DIM];
        const struct pk *root;
    } kept[TREES_KEPT];
};

/* Returns the tree of tensor *t, which has a storage of its own. */
static const struct pk *resolve_dcp_tree(struct dcp_trees *k, const struct pt_new *t, struct arena *a)
{
    const size_t bytes = (size_t)t->ndim * sizeof *t->shape;
    struct dcp_tree *to;

    for (int i = 0; i < k->n; i++)
        if (k->kept[i].of.dtype == t->dtype && k->kept[i].of.storage_elems == t->storage_elems &&
            k->kept[i].of.ndim == t->ndim && memcmp(k->kept[i].shape, t->shape, bytes) == 0)
            return k->kept[i].root;
    to = &k->kept[k->next];
    k->n = k->n < TREES_KEPT ? k->n + 1 : k->n;
    k->next = (k->next + 1) % TREES_KEPT;
    to->of = *t;
    memcpy(to->shape, t->shape, bytes);
    to->root = pt_new_tensor(a, t);
    return to->root;
}

static void describe_dcp_item(const struct dcp_folder *w, const struct dcp_piece *p, struct dcp_trees *trees,
                              struct folder_desc *d)
{
    struct folder_storage *st = arena_alloc(d->arena, sizeof *st);
    int64_t at[TENSOR_MAX_DIM], shape[TENSOR_MAX_DIM];
    struct pt_new t = { .ndim = dcp_piece_entry(w, p)->ndim, .shape = shape };

    if (!p->part->map) {
        folder_add_box(d, &(struct folder_box){ .head = p->bytes, .head_len = p->size, .size = p->size });
        return;
    }
    box_of(w, p, at, shape);
    t.dtype = p->part->map->dtype;
    t.storage_elems = (int64_t)(p->len / (uint64_t)dtype_size(t.dtype));
    *st = (struct folder_storage){ .len = p->len };
    folder_add_box(d, &(struct folder_box){ .prefix = PREFIX, .root = resolve_dcp_tree(trees, &t, d->arena),
                                            .n = 1, .storage = st });
}

/* Add one fill for *p and the p->n_pieces - 1 pieces after it. All of them have the same rows. */
static void add_dcp_fill(const struct dcp_folder *w, const struct dcp_piece *p, struct folder_desc *d)
{
    const struct dcp_part *part = p->part;
    struct folder_place *out = arena_alloc(d->keep, (size_t)p->n_pieces * sizeof *out);
    struct folder_fill f = {
        .map = part->map, .from = p->from, .len = p->len * (uint64_t)p->n_pieces, .name = dcp_piece_entry(w, p)->name,
        .param = part->param ? source_param_index(w->t->src, part->param) : -1, .state = part->state,
        .repeated = part->again, .in = p->from,
        .tensor = w->number[p->entry] < 0 ? -1 : w->number[p->entry] + (p->layer > 0 ? (int)p->layer : 0),
    };

    for (int c = 0; c < p->n_pieces; c++)
        out[c] = (struct folder_place){ p[c].rank, p[c].storage, 0 };
    f.to = *out;
    if (p->n_pieces > 1) {
        f.n_outs = p->n_pieces;
        f.out = out;
        f.part = p->len / (uint64_t)p->rows;
    }
    folder_add_fill(d, &f);
}

/*
 * Describe one file. The fills of all files are listed with file 0. They are then in the order of the target's entries,
 * which is the order of the source.
 */
static int describe_dcp_file(void *ctx, int file, struct folder_desc *d, struct err *e)
{
    const struct dcp_folder *w = ctx;
    struct dcp_trees trees = {0};

    (void)e;
    d->name = arena_fmt(d->arena, "__%d_0.distcp", file);
    for (int i = w->first[file]; i >= 0; i = w->piece[i].next)
        describe_dcp_item(w, &w->piece[i], &trees, d);
    for (int i = 0; i < w->n && file == 0 && d->keep; i++)
        if (w->piece[i].n_pieces > 0 && w->piece[i].len > 0)
            add_dcp_fill(w, &w->piece[i], d);
    return 0;
}

/* ---- the tensors of the result: states of parameters ---- */

/* Returns the number of tensors in the result that belong to the entry: the number of rows of a stack, otherwise 1. */
static uint64_t pieces_of(const struct dcp_target *t, int entry)
{
    return t->part[entry].row ? (uint64_t)t->table.entry[entry].shape[0] : 1;
}

/*
 * Returns the tensor of part p as a reader of the result will list it. For example, a tensor of doubles is not listed
 * as 16-bit weights, even if this is its state in the source.
 */
static struct folder_tensor make_dcp_tensor(const struct dcp_folder *w, const struct dcp_part *p, int ndim,
                                           const int64_t *shape)
{
    const enum state st = p->by_dtype ? dcp_state_of_dtype(p->map->dtype)
                        : p->state == STATE_BF16 && p->map->dtype == DTYPE_F64 ? STATE_FP32 : p->state;
    struct sink_tensor t = { .name = p->param->name, .param = source_param_index(w->t->src, p->param), .state = st,
                             .ndim = ndim, .dtype = p->map->dtype, .len = p->map->len };

    memcpy(t.shape, shape, (size_t)ndim * sizeof *shape);
    return (struct folder_tensor){ .of = t, .same_as = -1 };
}

static int list_dcp_tensors(void *ctx, struct folder_tensor **out)
{
    struct dcp_folder *w = ctx;
    int n = 0, cap = 0;

    *out = NULL;
    w->number = xmalloc((size_t)w->t->table.n * sizeof *w->number + 1);
    for (int i = 0; i < w->t->table.n; i++) {
        const struct dcp_part *p = &w->t->part[i];
        const struct dcp_entry *en = &w->t->table.entry[i];

        w->number[i] = p->param || p->row ? n : -1;
        ARRAY_ROOM(*out, cap, n + (int)pieces_of(w->t, i));
        for (int64_t r = 0; p->row && r < en->shape[0]; r++)
            (*out)[n++] = make_dcp_tensor(w, &p->row[r], en->ndim - 1, en->shape + 1);
        if (p->param)
            (*out)[n++] = make_dcp_tensor(w, p, en->ndim, en->shape);
    }
    return n;
}

/* ---- .metadata ---- */

/* What is written to .metadata: the target's table, in which each entry has one chunk per piece, in their order. */
struct dcp_chunking {
    const struct dcp_folder *w;
    const struct folder_file *file;
};

static int count_dcp_chunks(const void *ctx, int entry)
{
    return ((const struct dcp_chunking *)ctx)->w->run[entry].n;
}

static void make_dcp_chunk(const void *ctx, int entry, int k, struct arena *a, struct dcp_chunk *out)
{
    const struct dcp_chunking *c = ctx;
    const struct dcp_piece *p = &c->w->piece[c->w->run[entry].first + k];
    const uint64_t *place = &c->file[p->rank].box_at[p->box];
    int64_t (*box)[TENSOR_MAX_DIM] = arena_alloc(a, 2 * sizeof *box);

    box_of(c->w, p, box[0], box[1]);
    *out = (struct dcp_chunk){ box[0], box[1],
                               { .file = c->file[p->rank].name, .at = place[0], .len = place[1] - place[0] } };
}

static int finish_dcp_folder(void *ctx, const struct folder_written *done, struct err *e)
{
    struct dcp_folder *w = ctx;
    const struct dcp_chunking chunking = { w, done->file };
    struct strbuf sb = {0};
    int rc;

    dcp_metadata_write(&w->t->table, &(struct dcp_made_chunks){ count_dcp_chunks, make_dcp_chunk, &chunking }, &sb);
    rc = folder_write_small(done->dir, DCP_METADATA, sb.buf, sb.len, e);
    for (int i = 0; i < w->t->n_extras && rc == 0; i++)
        rc = folder_write_small(done->dir, w->t->extra[i].name, w->t->extra[i].bytes, w->t->extra[i].len, e);
    strbuf_free(&sb);
    return rc;
}

/* ---- the folder ---- */

static uint64_t dcp_extra_bytes(void *ctx)
{
    const struct dcp_folder *w = ctx;

    /* estimated size of the entries and chunks in .metadata */
    return 2048 * ((uint64_t)w->t->table.n + (uint64_t)w->n);
}

static void close_dcp_folder(void *ctx)
{
    struct dcp_folder *w = ctx;

    for (int i = 0; i < w->n; i++)
        free(w->piece[i].bytes);
    free(w->piece);
    free(w->first);
    free(w->run);
    free(w->number);
    free(w);
}

static const struct folder_ops dcp_folder_ops = {
    .name = "dcp",
    .begin = list_dcp_pieces,
    .describe = describe_dcp_file,
    .tensors = list_dcp_tensors,
    .extra_bytes = dcp_extra_bytes,
    .finish = finish_dcp_folder,
    .close = close_dcp_folder,
};

struct sink *dcp_sink(const struct sink_opts *o, const struct dcp_target *t, struct dcp_mesh mesh)
{
    struct dcp_folder *w = xcalloc(1, sizeof *w);

    w->t = t;
    w->mesh = mesh;
    w->ranks = mesh.rows * mesh.columns;
    return folder_sink(o, &(struct folder){ .ops = &dcp_folder_ops, .ctx = w, .by_rows = true });
}
