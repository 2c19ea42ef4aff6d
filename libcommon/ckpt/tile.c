/*
 * tile.c - sort boxes, check them for gaps and overlaps, and convert them to slices
 */
#include "libcommon/ckpt/tile.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"

/* A chunk that has elements, and its index in the caller's array. */
struct tile_one {
    const struct tile_chunk *chunk;
    int number, ndim;
};

static int tile_cmp(const void *a, const void *b)
{
    const struct tile_one *x = a, *y = b;

    for (int d = 0; d < x->ndim; d++)
        if (x->chunk->at[d] != y->chunk->at[d])
            return x->chunk->at[d] < y->chunk->at[d] ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static bool is_chunk_inside_tensor(const struct tile_tensor *t, const struct tile_chunk *c)
{
    for (int d = 0; d < t->ndim; d++)
        if (c->at[d] < 0 || c->len[d] < 0 || c->at[d] > t->shape[d] || c->len[d] > t->shape[d] - c->at[d])
            return false;
    return true;
}

static bool has_chunk_overlap(int ndim, const struct tile_chunk *x, const struct tile_chunk *y)
{
    for (int d = 0; d < ndim; d++)
        if (x->at[d] + x->len[d] <= y->at[d] || y->at[d] + y->len[d] <= x->at[d])
            return false;
    return true;
}

/*
 * Returns true, and sets *flaw, if two tiles overlap. The tiles must be sorted by their first row. A tile can then
 * share elements only with tiles that begin before its end.
 */
static bool overlap(const struct tile_one *tile, int n, struct tile_flaw *flaw)
{
    for (int i = 0; i < n; i++) {
        const struct tile_chunk *x = tile[i].chunk;

        for (int k = i + 1; k < n && (tile[i].ndim == 0 || tile[k].chunk->at[0] < x->at[0] + x->len[0]); k++)
            if (has_chunk_overlap(tile[i].ndim, x, tile[k].chunk)) {
                flaw->what = TILE_OVERLAP;
                flaw->chunk = tile[i].number;
                flaw->other = tile[k].number;
                return true;
            }
    }
    return false;
}

/*
 * Sort the tiles of a tensor by their first row, and omit those without elements. Returns the number of tiles, or -1
 * with *flaw set if the tiles do not tile the tensor.
 */
static int sort_tiles(const struct tile_tensor *t, const struct tile_chunk *chunk, int n, struct tile_one *tile,
                      struct tile_flaw *flaw)
{
    uint64_t all = (uint64_t)shape_count(t->ndim, t->shape), have = 0;
    int n_tiles = 0;

    for (int i = 0; i < n; i++) {
        if (!is_chunk_inside_tensor(t, &chunk[i])) {
            flaw->what = TILE_OUTSIDE;
            flaw->chunk = i;
            return -1;
        }
        if (shape_count(t->ndim, chunk[i].len) == 0)
            continue;
        tile[n_tiles++] = (struct tile_one){ &chunk[i], i, t->ndim };
    }
    qsort(tile, (size_t)n_tiles, sizeof *tile, tile_cmp);
    if (overlap(tile, n_tiles, flaw))
        return -1;
    /*
     * The tiles do not overlap and are inside the tensor. They therefore cover the tensor if they have as many elements
     * together as the tensor.
     */
    for (int i = 0; i < n_tiles; i++)
        have += (uint64_t)shape_count(t->ndim, tile[i].chunk->len);
    if (have != all) {
        flaw->what = TILE_GAP;
        flaw->n_missing = all - have;
        return -1;
    }
    return n_tiles;
}

/*
 * Returns the box of chunk c for a map. If the chunk covers the last dimensions completely, these are combined with the
 * dimension before them to one contiguous run.
 */
static struct tmap_box *make_box(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *c)
{
    /*
     * Only the levels that are used are allocated, because there may be a million boxes. A box must therefore not be
     * copied as a struct.
     */
    struct tmap_box *b = arena_alloc(a, offsetof(struct tmap_box, level) +
                                            ((size_t)t->ndim + 1) * sizeof *b->level);
    /* row: distance in the tensor, in bytes, between two steps of the level */
    uint64_t row = (uint64_t)dtype_size(t->dtype), inside = 1;
    int d = t->ndim;

    while (d > 0 && c->len[d - 1] == t->shape[d - 1])
        row *= (uint64_t)t->shape[--d];
    /* The last level is the contiguous run. It is the chunk's part of dimension d - 1 with all dimensions after it. */
    b->n = d > 0 ? d : 1;
    b->level[b->n - 1] = (struct tmap_level){ .stride = 1, .len = row };
    if (d > 0) {
        b->level[d - 1].at = (uint64_t)c->at[d - 1] * row;
        b->level[d - 1].len = (uint64_t)c->len[d - 1] * row;
        row *= (uint64_t)t->shape[d - 1];
    }
    for (int i = d - 2; i >= 0; i--) {
        b->level[i] = (struct tmap_level){ row, (uint64_t)c->at[i], (uint64_t)c->len[i], 0 };
        row *= (uint64_t)t->shape[i];
    }
    for (int i = b->n - 1; i >= 0; i--) {
        b->level[i].inside = inside;
        inside *= b->level[i].len;
    }
    return b;
}

static bool rows_alone(const struct tile_tensor *t, const struct tile_one *tile, int n)
{
    for (int i = 0; i < n; i++)
        for (int d = 1; d < t->ndim; d++)
            if (tile[i].chunk->len[d] != t->shape[d])
                return false;
    return true;
}

struct tmap *tile_map(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *chunk, int n,
                      struct tile_flaw *flaw)
{
    struct tile_one *tile = xcalloc((size_t)n + 1, sizeof *tile);
    int n_tiles = sort_tiles(t, chunk, n, tile, flaw);
    struct tmap *m = NULL;

    if (n_tiles >= 0) {
        m = arena_alloc(a, sizeof *m);
        *m = (struct tmap){ .op = rows_alone(t, tile, n_tiles) ? TMAP_CONCAT : TMAP_BOXES, .dtype = t->dtype,
                            .len = (uint64_t)shape_bytes(t->ndim, t->shape, t->dtype), .n_slices = n_tiles };
        m->slice = arena_alloc(a, ((size_t)n_tiles + 1) * sizeof *m->slice);
    }
    for (int i = 0; i < n_tiles; i++) {
        const struct tile_chunk *c = tile[i].chunk;

        m->slice[i] = (struct tmap_slice){ .len = (uint64_t)shape_bytes(t->ndim, c->len, t->dtype),
                                           .n_extents = c->n_extents, .extent = c->extent,
                                           .box = m->op == TMAP_BOXES ? make_box(a, t, c) : NULL };
    }
    free(tile);
    return m;
}

/* ---- rows ---- */

/*
 * Returns the extents of bytes [from, from + len) of a chunk. The bytes of a chunk are those of its extents, one after
 * the other.
 */
static struct extent *cut_extents(struct arena *a, const struct tile_chunk *c, uint64_t from, uint64_t len, int *n)
{
    struct extent *x = arena_alloc(a, ((size_t)c->n_extents + 1) * sizeof *x);

    *n = 0;
    for (int i = 0; i < c->n_extents && len > 0; i++) {
        const struct extent *y = &c->extent[i];
        uint64_t skip = min_u64(from, y->len), take = min_u64(y->len - skip, len);

        from -= skip;
        len -= take;
        if (take)
            x[(*n)++] = (struct extent){ y->record, y->at + skip, take };
    }
    return x;
}

/*
 * Returns the part of the chunk that lies in row `row`, as a chunk of a tensor with one dimension less. The chunk must
 * contain the row. The part shares the arrays of positions and lengths with the chunk.
 */
static struct tile_chunk cut_chunk_row(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *c,
                                       int64_t row)
{
    uint64_t bytes = (uint64_t)shape_bytes(t->ndim - 1, c->len + 1, t->dtype);
    struct tile_chunk part = { .at = c->at + 1, .len = c->len + 1 };

    part.extent = cut_extents(a, c, (uint64_t)(row - c->at[0]) * bytes, bytes, &part.n_extents);
    return part;
}

struct tile_chunk *tile_rows(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *chunk, int n,
                             int64_t most, int **first)
{
    int64_t rows = t->shape[0], total = 0;
    struct tile_chunk *out;
    int *end;

    for (int i = 0; i < n && total <= most; i++)
        total += chunk[i].len[0];
    if (total > most || rows > most)
        return NULL;
    out = xcalloc((size_t)total + 1, sizeof *out);
    *first = xcalloc((size_t)rows + 1, sizeof **first);
    end = xcalloc((size_t)rows + 1, sizeof *end);
    for (int i = 0; i < n; i++)
        for (int64_t r = chunk[i].at[0]; r < chunk[i].at[0] + chunk[i].len[0]; r++)
            (*first)[r + 1]++;
    for (int64_t r = 0; r < rows; r++)
        end[r] = (*first)[r + 1] += (*first)[r];
    for (int i = n - 1; i >= 0; i--)
        for (int64_t r = chunk[i].at[0]; r < chunk[i].at[0] + chunk[i].len[0]; r++)
            out[--end[r]] = cut_chunk_row(a, t, &chunk[i], r);
    free(end);
    return out;
}

/* ---- strides ---- */

/* Returns true if the dimensions from `dim` on are stored in row-major order without gaps. */
static bool tail_contiguous(const struct pt_tensor *t, int dim)
{
    int64_t want = 1;

    for (int i = t->ndim - 1; i >= dim; i--) {
        if (t->shape[i] != 1 && t->stride[i] != want)
            return false;
        want *= t->shape[i];
    }
    return true;
}

static uint64_t run_place(const struct pt_tensor *t, int dims, int64_t run)
{
    uint64_t at = 0;

    for (int i = dims - 1; i >= 0; i--) {
        at += (uint64_t)(run % t->shape[i]) * (uint64_t)t->stride[i];
        run /= t->shape[i];
    }
    return t->at + at * (uint64_t)dtype_size(t->dtype);
}

struct extent *tile_runs(struct arena *a, const struct pt_tensor *t, int64_t most, int *n)
{
    int64_t n_runs = t->n_elems > 0;
    struct extent *x;
    int dims = 0;

    for (; t->n_elems > 0 && !tail_contiguous(t, dims); dims++) {
        if (t->shape[dims] > most / n_runs)
            return NULL;
        n_runs *= t->shape[dims];
    }
    x = arena_alloc(a, ((size_t)n_runs + !n_runs) * sizeof *x);
    for (int64_t i = 0; i < n_runs; i++)
        x[i] = (struct extent){ t->record, run_place(t, dims, i),
                                (uint64_t)(t->n_elems / n_runs) * (uint64_t)dtype_size(t->dtype) };
    *n = (int)n_runs;
    return x;
}
