/*
 * deepspeed_fill.c - determine which bytes of the source fill each part of a shard
 *
 * A tensor rank's slice of a parameter, in its own row-major order, is
 *   column-parallel   a range of the merged tensor
 *   vocabulary        the same, with zeros after the source's last row
 *   row-parallel      some columns of every row: see below
 *   GLU halves        two ranges
 *   replicated        all of it
 * A shard holds such slices one after the other. The first and the last are cut where the shard's partition begins and
 * ends. The padding of the group is zeros.
 *
 * A row-parallel tensor is divided by columns into S slices in the source and T slices in the target. gcd(S, T) - 1 of
 * the cuts are at the same columns on both sides. The columns between two such cuts form a group: whole slices of the
 * source and of the target, so that the group's rows are contiguous in both. If a group is one slice of the target, the
 * group's map is that of the slice. If a group is several slices, their shards are cut at the same rows, so each run of
 * rows is read once and distributed to the files of all the slices. A row that is cut by the border of a partition is
 * copied part by part.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed_folder.h"
#include "libcommon/model/zero_partition.h"
#include "libcommon/plan/tmap_slice.h"

/* n elements of a slice, starting at element `at`. They are a copy of the elements of `map` that start at `from`. */
struct sink_piece {
    const struct tmap *map;
    int64_t at, from, n;
    int64_t logical;                    /* index of the first element in the merged tensor */
};
enum { PIECES_MAX = 2 };

struct slice {
    const struct ds_tparam *p;
    enum state state;
    enum plan_op op;
    uint64_t size;                      /* size of an element in the source, in bytes */
    uint64_t out;                       /* size of an element in the target */
    int tp;
    int n_deal;                         /* row-parallel: number of target slices in a group of columns; otherwise 1 */
    /* the slice has n_columns columns of the merged tensor, starting at column_at, instead of all columns */
    bool by_columns;
    int64_t column_at, n_columns;       /* valid if by_columns */
    int n;
    struct sink_piece piece[PIECES_MAX];
};

/* The storage (of the file that is described) that is filled. */
struct filling {
    struct ds_folder *w;
    struct folder_desc *d;
    int file, storage;
};

/* ---- slices ---- */

static void add_slice_piece(struct slice *s, const struct tmap *map, int64_t from, int64_t n, int64_t logical)
{
    int64_t at = s->n ? s->piece[s->n - 1].at + s->piece[s->n - 1].n : 0;

    if (n > 0)
        s->piece[s->n++] = (struct sink_piece){ .map = map, .at = at, .from = from, .n = n, .logical = logical };
}

/*
 * Return a map of at least `len` bytes of zeros. All callers share one map; it is replaced only if a longer one is
 * needed.
 */
static const struct tmap *zeros(struct ds_folder *w, uint64_t len)
{
    if (!w->zero_map || w->zero_map->len < len)
        w->zero_map = tmap_slice_zeros(w->arena, source_files(w->t->src), &w->zeros, DTYPE_U8,
                                       max_u64(len, w->zero_map ? 2 * w->zero_map->len : 0));
    return w->zero_map;
}

static int gcd_slice_counts(int a, int b)
{
    return b ? gcd_slice_counts(b, a % b) : a;
}

/* Return the number of slices of equal width in each row of a row-parallel map. For other maps, return 1. */
static int slices_of(const struct tmap *m)
{
    if (m->op != TMAP_INTERLEAVE)
        return 1;
    for (int k = 1; k < m->n_slices; k++)
        if (m->slice[k].row_part != m->slice[0].row_part)
            return 1;
    return m->n_slices;
}

/*
 * Return the map of the columns of the group that contains slice s. All data-parallel shards cut the same slices, so
 * each map is made once and stored in w->columns.
 */
static const struct tmap *group_map(struct ds_folder *w, const struct slice *s, const struct tmap *m)
{
    const struct ds_tparam *p = s->p;
    size_t i = ((size_t)(p - w->t->param) * STATE_N + s->state) * (size_t)w->t->topo.tp + (size_t)(s->tp / s->n_deal);

    if (s->n_columns == p->shape[1])
        return m;
    if (!w->columns[i])
        w->columns[i] = tmap_slice_columns(w->arena, m, m->len / (uint64_t)p->shape[0],
                                           (uint64_t)s->column_at * s->size, (uint64_t)s->n_columns * s->size);
    return w->columns[i];
}

/* Find the columns of the merged tensor that belong to slice s, or, if several slices form a group, to the group. */
static void find_columns(const struct ds_folder *w, struct slice *s, int n_groups)
{
    s->n_deal = w->t->topo.tp / n_groups;
    s->n_columns = s->p->shape[1] / n_groups;
    s->column_at = s->tp / s->n_deal * s->n_columns;
    s->by_columns = n_groups > 1;
}

static void cut_vocab(struct ds_folder *w, struct slice *s, const struct tmap *m, int64_t first)
{
    int64_t have = (int64_t)(m->len / s->size) - first, n = s->p->slice_elems;
    int64_t from_source = have < 0 ? 0 : have < n ? have : n;

    add_slice_piece(s, m, first, from_source, first);
    if (from_source < n)
        add_slice_piece(s, zeros(w, (uint64_t)(n - from_source) * s->size), 0, n - from_source, first + from_source);
}

/* Describe slice s as pieces of m, which is the map of the merged tensor. */
static void cut_slice(struct ds_folder *w, struct slice *s, const struct tmap *m)
{
    int64_t n = s->p->slice_elems, half = n / 2, total = n * w->t->topo.tp;

    switch (s->p->from->merge) {
    case MERGE_REPLICATED: case MERGE_SUM:              /* ds_target_new() guarantees a single tensor rank for a sum */
        add_slice_piece(s, m, 0, n, 0);
        break;
    case MERGE_VOCAB:
        cut_vocab(w, s, m, s->tp * n);
        break;
    case MERGE_CAT0:
        add_slice_piece(s, m, s->tp * n, n, s->tp * n);
        break;
    case MERGE_CAT0_HALVES:
        add_slice_piece(s, m, s->tp * half, half, s->tp * half);
        add_slice_piece(s, m, total / 2 + s->tp * half, half, total / 2 + s->tp * half);
        break;
    case MERGE_CAT1:
        find_columns(w, s, gcd_slice_counts(slices_of(m), w->t->topo.tp));
        add_slice_piece(s, group_map(w, s, m), 0, n, 0);
        break;
    }
}

/* Describe slice s as zeros, at the positions in the merged tensor that follow from the merge rule. */
static void cut_zeros(struct ds_folder *w, struct slice *s)
{
    struct tmap m = { .len = (uint64_t)s->p->slice_elems * (uint64_t)w->t->topo.tp * s->size };

    /* Cut the tensor like a merged tensor of the same size, but read its bytes from the shared map of zeros. */
    if (s->p->from->merge == MERGE_CAT1) {
        find_columns(w, s, w->t->topo.tp);
        add_slice_piece(s, NULL, 0, s->p->slice_elems, 0);
    } else {
        cut_slice(w, s, &m);
    }
    for (int i = 0; i < s->n; i++) {
        s->piece[i].map = zeros(w, (uint64_t)s->p->slice_elems * s->size);
        s->piece[i].from = 0;
    }
}

static bool is_adam_moment_state(enum state st)
{
    return st == STATE_EXP_AVG || st == STATE_EXP_AVG_SQ;
}

/*
 * Return the last stage's own position table if the source has one. Otherwise return the first stage's table for the
 * weights, and NULL for the moments, which then become zero.
 */
static const struct tmap *untrained_table(const struct slice *s)
{
    const struct tmap *tied = s->p->from->tied[s->state];

    return tied || is_adam_moment_state(s->state) ? tied : s->p->from->state[s->state];
}

static struct slice make_slice(struct ds_folder *w, int param, enum state st, int tp, bool tied_copy)
{
    struct slice s = { .p = &w->t->param[param], .state = st, .tp = tp, .n_deal = 1 };
    const struct tmap *m = s.p->from->state[st];

    if (tied_copy && param_ends(s.p->name, ROLE_POSITION))
        m = untrained_table(&s);
    if (w->t->zero_moments && is_adam_moment_state(st))
        m = NULL;
    if (st == STATE_BF16 && !m)
        m = s.p->from->state[STATE_FP32];
    /* The fp32 master weights of an imported model are converted from its weights. */
    if (m)
        s.op = (enum plan_op)plan_op_of(m->dtype, st == STATE_BF16 ? w->t->weights : DTYPE_F32);
    s.size = (uint64_t)dtype_size(m ? m->dtype : DTYPE_F32);
    s.out = (uint64_t)dtype_size(st == STATE_BF16 ? w->t->weights : DTYPE_F32);
    if (m)
        cut_slice(w, &s, m);
    else
        cut_zeros(w, &s);
    return s;
}

/* ---- fills ---- */

/* Return the fill that writes the piece pc of slice s to byte `at` of the storage. */
static struct folder_fill slice_fill(const struct filling *x, const struct slice *s, const struct sink_piece *pc,
                                     uint64_t at, bool tied_copy)
{
    const struct ds_target *t = x->w->t;
    struct folder_fill f = {
        .map = pc->map, .from = (uint64_t)pc->from * s->size, .len = (uint64_t)pc->n * s->size, .op = s->op,
        .in = (uint64_t)pc->logical * s->out,
        .name = s->p->from->name, .to = { x->file, x->storage, at }, .param = source_param_index(t->src, s->p->from),
        .state = s->state, .tensor = -1,
        .repeated = tied_copy || (s->p->from->merge == MERGE_REPLICATED && s->tp > 0),
    };

    if (!f.repeated)
        f.tensor = x->w->number[(int)(s->p - t->param) * STATE_N + (int)s->state];
    if (s->by_columns) {
        f.row_len = (uint64_t)s->p->shape[1] * s->out;
        f.column_at = (uint64_t)s->column_at * s->out;
        f.column_len = (uint64_t)s->n_columns * s->out;
    }
    return f;
}

/* ---- row-parallel slices that are distributed from a group ---- */

/* Write a part of one row, the n elements that start at `skip`, for every slice of the group. */
static void fill_row_parts(const struct filling *x, const struct slice *s, int64_t skip, int64_t n, uint64_t at)
{
    int64_t width = s->p->slice[1], row = skip / width, column = skip % width;

    for (int i = 0; i < s->n_deal; i++) {
        const struct sink_piece pc = {
            .map = s->piece[0].map, .from = row * s->n_columns + i * width + column, .n = n,
            .logical = row * s->p->shape[1] + s->column_at + i * width + column,
        };
        struct folder_fill f = slice_fill(x, s, &pc, at, false);

        f.to.file += i * x->w->file[x->file].next_tp;
        f.row_len = 0;
        folder_add_fill(x->d, &f);
    }
}

/* Write rows [row, end) of every slice of the group, in one fill. */
static void fill_rows(const struct filling *x, const struct slice *s, int64_t row, int64_t end, uint64_t at)
{
    struct folder_place *out = arena_alloc(x->w->arena, (size_t)s->n_deal * sizeof *out);
    const struct sink_piece pc = { .map = s->piece[0].map, .from = row * s->n_columns,
                                   .n = (end - row) * s->n_columns, .logical = row * s->p->shape[1] };
    struct folder_fill f = slice_fill(x, s, &pc, at, false);

    for (int i = 0; i < s->n_deal; i++)
        out[i] = (struct folder_place){ x->file + i * x->w->file[x->file].next_tp, x->storage, at };
    f.n_outs = s->n_deal;
    f.out = out;
    f.part = (uint64_t)s->p->slice[1] * s->size;
    folder_add_fill(x->d, &f);
}

/* Write elements [skip, skip+n) of every slice of the group. Does nothing if s is not the first slice of its group. */
static void fill_slice_group(const struct filling *x, const struct slice *s, int64_t skip, int64_t n, uint64_t at)
{
    int64_t width = s->p->slice[1], end = skip + n, first = (skip + width - 1) / width, last = end / width;

    if (s->tp % s->n_deal)
        return;
    if (first * width > skip)
        fill_row_parts(x, s, skip, (first * width < end ? first * width : end) - skip, at);
    if (last > first)
        fill_rows(x, s, first, last, at + (uint64_t)(first * width - skip) * s->out);
    if (last >= first && end > last * width)
        fill_row_parts(x, s, last * width, end - last * width, at + (uint64_t)(last * width - skip) * s->out);
}

/* Write elements [skip, skip+n) of slice s to the storage, starting at byte `at`. */
static void fill_slice_range(const struct filling *x, const struct slice *s, int64_t skip, int64_t n, uint64_t at,
                             bool tied_copy)
{
    if (s->n_deal > 1) {
        fill_slice_group(x, s, skip, n, at);
        return;
    }
    for (int i = 0; i < s->n; i++) {
        const struct sink_piece *pc = &s->piece[i];
        int64_t from = skip > pc->at ? skip : pc->at, end = skip + n < pc->at + pc->n ? skip + n : pc->at + pc->n;
        const struct sink_piece cut = { .map = pc->map, .from = pc->from + from - pc->at, .n = end - from,
                                        .logical = pc->logical + from - pc->at };
        struct folder_fill f;

        if (from >= end)
            continue;
        f = slice_fill(x, s, &cut, at + (uint64_t)(from - skip) * s->out, tied_copy);
        folder_add_fill(x->d, &f);
    }
}

static void fill_weights(const struct filling *x, const struct ds_storage *st)
{
    struct slice s = make_slice(x->w, st->param, STATE_BF16, x->w->file[x->file].tp, false);

    fill_slice_range(x, &s, 0, s.p->slice_elems, 0, false);
}

/* Fill the flat storage st: the parts of parameters that fall into its partition, then zeros up to its end. */
static void fill_flat(const struct filling *x, const struct ds_storage *st)
{
    const struct ds_folder_file *file = &x->w->file[x->file];
    const struct ds_group *g = &x->w->t->stage[file->pp].group[st->group];
    uint64_t filled = 0;

    for (int i = 0; i < g->n; i++) {
        const struct ds_slice *m = &g->slice[i];
        int64_t start, skip, n = zero_fragment(m->first, m->n_elems, g->partition, file->dp, &start, &skip);
        struct slice s;

        if (n == 0)
            continue;
        s = make_slice(x->w, m->param, st->state, file->tp, m->tied_copy);
        fill_slice_range(x, &s, skip, n, (uint64_t)start * sizeof(float), m->tied_copy);
        filled = (uint64_t)(start + n) * sizeof(float);
    }
    if (filled < st->len)
        folder_add_fill(x->d, &(struct folder_fill){
            .map = zeros(x->w, st->len - filled), .len = st->len - filled, .name = "padding",
            .to = { x->file, x->storage, filled }, .param = -1, .tensor = -1 });
}

void ds_add_fills(struct ds_folder *w, int file, const struct ds_tree *x, struct folder_desc *d)
{
    for (int i = 0; i < x->n; i++) {
        const struct filling to = { w, d, file, i };

        if (x->storage[i].fill == DS_FILL_WEIGHTS)
            fill_weights(&to, &x->storage[i]);
        else if (x->storage[i].fill == DS_FILL_FLAT)
            fill_flat(&to, &x->storage[i]);
    }
}
