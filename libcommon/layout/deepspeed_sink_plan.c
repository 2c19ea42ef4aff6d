/*
 * deepspeed_sink_plan.c - which bytes of the source fill which place of a shard
 *
 * A tensor rank's slice of a parameter, in its own row-major order, is
 *   column-parallel   a range of the merged tensor
 *   vocabulary        the same, and zeros behind the source's last row
 *   row-parallel      some columns of every row: a map of its own (tmap_slice.h)
 *   GLU halves        two ranges
 *   replicated        all of it
 * A shard holds a run of such slices one after the other, cut where its partition begins
 * and ends, and zeros where the group's padding is.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/deepspeed_sink.h"
#include "libcommon/model/zero.h"
#include "libcommon/plan/tmap_slice.h"

/* Bytes [at, at+len) of a slice come from `map` at `from`; all in elements of the map. */
struct piece {
    const struct tmap *map;
    int64_t at, from, n;
    int64_t logical;                    /* first element in the merged tensor */
};
enum { PIECES_MAX = 2 };

struct slice {
    const struct ds_tparam *p;
    enum state state;
    enum plan_op op;
    uint64_t size;                      /* bytes of an element in the source, */
    uint64_t out;                       /* and in the target */
    int tp;
    bool by_columns;
    int n;
    struct piece piece[PIECES_MAX];
};

/* Where the files are laid out. */
struct filling {
    struct sink *k;
    struct plan *plan;
    const struct dss_file *f;
    int storage;
    uint64_t storage_at;                /* in the file */
};

/* ---- slices ---- */

static void add_piece(struct slice *s, const struct tmap *map, int64_t from, int64_t n, int64_t logical)
{
    int64_t at = s->n ? s->piece[s->n - 1].at + s->piece[s->n - 1].n : 0;

    if (n > 0)
        s->piece[s->n++] = (struct piece){ .map = map, .at = at, .from = from, .n = n, .logical = logical };
}

/* At least len bytes of zeros; one map serves all that it is long enough for. */
static const struct tmap *zeros(struct dss *w, uint64_t len)
{
    if (!w->zero_map || w->zero_map->len < len)
        w->zero_map = tmap_slice_zeros(w->arena, w->t->src->files, &w->zeros, DTYPE_U8,
                                       max_u64(len, w->zero_map ? 2 * w->zero_map->len : 0));
    return w->zero_map;
}

/* The columns of one tensor rank; shards cut the same slice, so the map is made once. */
static const struct tmap *columns(struct dss *w, const struct slice *s, const struct tmap *m)
{
    const struct ds_tparam *p = s->p;
    size_t i = ((size_t)(p - w->t->param) * STATE_N + s->state) * (size_t)w->t->topo.tp + (size_t)s->tp;
    uint64_t row = m->len / (uint64_t)p->shape[0], part = row / (uint64_t)w->t->topo.tp;

    if (!w->columns[i])
        w->columns[i] = tmap_slice_columns(w->arena, m, row, (uint64_t)s->tp * part, part);
    return w->columns[i];
}

static void cut_vocab(struct dss *w, struct slice *s, const struct tmap *m, int64_t first)
{
    int64_t have = (int64_t)(m->len / s->size) - first, n = s->p->slice_elems;
    int64_t from_source = have < 0 ? 0 : have < n ? have : n;

    add_piece(s, m, first, from_source, first);
    if (from_source < n)
        add_piece(s, zeros(w, (uint64_t)(n - from_source) * s->size), 0, n - from_source, first + from_source);
}

/* Lay the slice out from the map of the merged tensor. */
static void cut_slice(struct dss *w, struct slice *s, const struct tmap *m)
{
    int64_t n = s->p->slice_elems, half = n / 2, total = n * w->t->topo.tp;

    switch (s->p->from->merge) {
    case MERGE_REPLICATED:
        add_piece(s, m, 0, n, 0);
        break;
    case MERGE_VOCAB:
        cut_vocab(w, s, m, s->tp * n);
        break;
    case MERGE_CAT0:
        add_piece(s, m, s->tp * n, n, s->tp * n);
        break;
    case MERGE_CAT0_HALVES:
        add_piece(s, m, s->tp * half, half, s->tp * half);
        add_piece(s, m, total / 2 + s->tp * half, half, total / 2 + s->tp * half);
        break;
    case MERGE_CAT1:
        s->by_columns = w->t->topo.tp > 1;
        add_piece(s, s->by_columns ? columns(w, s, m) : m, 0, n, 0);
        break;
    }
}

/* All zeros, in the places the merge rule gives them. */
static void cut_zeros(struct dss *w, struct slice *s)
{
    struct tmap m = { .len = (uint64_t)s->p->slice_elems * (uint64_t)w->t->topo.tp * s->size };

    /* A merged tensor of zeros, cut like any other but read from the one map of zeros. */
    if (s->p->from->merge == MERGE_CAT1 && w->t->topo.tp > 1) {
        s->by_columns = true;
        add_piece(s, NULL, 0, s->p->slice_elems, 0);
    } else {
        cut_slice(w, s, &m);
    }
    for (int i = 0; i < s->n; i++) {
        s->piece[i].map = zeros(w, (uint64_t)s->p->slice_elems * s->size);
        s->piece[i].from = 0;
    }
}

static bool is_moment(enum state st)
{
    return st == STATE_EXP_AVG || st == STATE_EXP_AVG_SQ;
}

/* The last stage's own position table, where the source has one; NULL with zero moments where it has not. */
static const struct tmap *untrained_table(const struct slice *s)
{
    const struct tmap *tied = s->p->from->tied[s->state];

    return tied || is_moment(s->state) ? tied : s->p->from->state[s->state];
}

static struct slice make_slice(struct dss *w, int param, enum state st, int tp, bool tied_copy)
{
    struct slice s = { .p = &w->t->param[param], .state = st, .tp = tp };
    const struct tmap *m = s.p->from->state[st];

    if (tied_copy && strstr(s.p->name, "position_embeddings."))
        m = untrained_table(&s);
    if (w->t->zero_moments && is_moment(st))
        m = NULL;
    if (st == STATE_BF16 && !m) {
        m = s.p->from->state[STATE_FP32];
        s.op = w->t->weights == DTYPE_BF16 ? PLAN_F32_TO_BF16
             : w->t->weights == DTYPE_F16 ? PLAN_F32_TO_F16 : PLAN_COPY;
    }
    s.size = (uint64_t)dtype_size(m ? m->dtype : DTYPE_F32);
    s.out = s.op == PLAN_COPY ? s.size : s.size / 2;
    if (m)
        cut_slice(w, &s, m);
    else
        cut_zeros(w, &s);
    return s;
}

/* ---- items ---- */

static struct dss_item *new_item(struct dss *w, const struct dss_file *f, int storage, uint64_t at)
{
    struct dss_item *it = xcalloc(1, sizeof *it);

    it->file = (int)(f - w->file);
    it->storage = storage;
    it->at = at;
    it->pub.file = f->name;
    ARRAY_ROOM(w->item, w->cap_items, w->n_items + 1);
    w->item[w->n_items++] = it;
    return it;
}

static void plan_piece(const struct filling *x, const struct slice *s, const struct piece *pc, int64_t skip, int64_t n,
                       uint64_t at, bool tied_copy)
{
    struct dss *w = x->k->priv;
    struct dss_item *it = new_item(w, x->f, x->storage, at);
    int i;

    it->pub.param = s->p->from - w->t->src->param;
    it->pub.state = s->state;
    it->pub.repeated = tied_copy || (s->p->from->merge == MERGE_REPLICATED && s->tp > 0);
    it->param = (int)(s->p - w->t->param);
    it->tp = s->tp;
    it->counts = !it->pub.repeated;
    it->by_columns = s->by_columns;
    it->logical_at = (uint64_t)(pc->logical + skip) * s->out;
    i = plan_add(x->plan, pc->map, (uint64_t)(pc->from + skip) * s->size, (uint64_t)n * s->size, x->f->dst,
                 x->storage_at + at, x->k->o.replicas, s->p->from->name, it);
    plan_item(x->plan, i)->op = s->op;
}

/* Elements [skip, skip+n) of a slice to byte `at` of the storage. */
static void plan_range(const struct filling *x, const struct slice *s, int64_t skip, int64_t n, uint64_t at,
                       bool tied_copy)
{
    for (int i = 0; i < s->n; i++) {
        const struct piece *pc = &s->piece[i];
        int64_t from = skip > pc->at ? skip : pc->at, end = skip + n < pc->at + pc->n ? skip + n : pc->at + pc->n;

        if (from < end)
            plan_piece(x, s, pc, from - pc->at, end - from, at + (uint64_t)(from - skip) * s->out, tied_copy);
    }
}

static void plan_weights(const struct filling *x, const struct ds_storage *st)
{
    struct dss *w = x->k->priv;
    struct slice s = make_slice(w, st->param, STATE_BF16, x->f->tp, false);

    plan_range(x, &s, 0, s.p->slice_elems, 0, false);
}

/* One flat partition: the fragments of its parameters, and zeros to its end. */
static void plan_flat(const struct filling *x, const struct ds_storage *st)
{
    struct dss *w = x->k->priv;
    const struct ds_tgroup *g = &w->t->stage[x->f->pp].group[st->group];
    uint64_t filled = 0;

    for (int i = 0; i < g->n; i++) {
        const struct ds_member *m = &g->member[i];
        int64_t start, skip;
        int64_t n = zero_fragment(m->first, w->t->param[m->param].slice_elems, g->partition, x->f->dp, &start, &skip);
        struct slice s;

        if (n == 0)
            continue;
        s = make_slice(w, m->param, st->state, x->f->tp, m->tied_copy);
        plan_range(x, &s, skip, n, (uint64_t)start * sizeof(float), m->tied_copy);
        filled = (uint64_t)(start + n) * sizeof(float);
    }
    if (filled < st->len) {
        struct dss_item *it = new_item(w, x->f, x->storage, filled);

        it->pub.repeated = true;        /* of nothing: no tensor counts it */
        plan_add(x->plan, zeros(w, st->len - filled), 0, st->len - filled, x->f->dst, x->storage_at + filled,
                 REPLICAS_FIRST, "padding", it);
    }
}

void dss_plan_file(struct sink *k, struct dss_file *f, const struct ds_tree *t, const struct pt_image *im,
                   struct plan *plan)
{
    for (int i = 0; i < t->n; i++) {
        struct filling x = { .k = k, .plan = plan, .f = f, .storage = i, .storage_at = pt_image_at(im, i) };

        if (t->storage[i].fill == DS_FILL_WEIGHTS)
            plan_weights(&x, &t->storage[i]);
        else if (t->storage[i].fill == DS_FILL_FLAT)
            plan_flat(&x, &t->storage[i]);
    }
}

/* ---- digests ---- */

/*
 * Rows of a row-parallel slice stand apart in the merged tensor. Their ends are a whole
 * merged row from each other, so their sum goes by Horner's rule; the last one, where a
 * chunk ends inside it, is put in its place alone.
 */
void dss_look(struct sink *k, const struct plan_item *pi, uint64_t from, const void *bytes, uint64_t len)
{
    struct dss_item *it = pi->user;
    const struct dss *w = k->priv;
    const struct ds_tparam *p;
    uint64_t row, part, total, end = from + len, tail;
    uint32_t by_row, sum = 0;
    const char *b = bytes;

    if (!it->by_columns || !it->counts)
        return;
    p = &w->t->param[it->param];
    part = (uint64_t)p->slice[1] * (it->pub.state == STATE_BF16 ? (uint64_t)dtype_size(w->t->weights) : sizeof(float));
    row = part * (uint64_t)w->t->topo.tp;
    total = row * (uint64_t)p->shape[0];
    by_row = crc_factor(row);
    tail = min_u64(end % part, len);
    while (from < end - tail) {
        uint64_t n = part - from % part;

        sum = crc_times(sum, by_row) ^ crc_bytes(0, b, n);
        b += n;
        from += n;
    }
    if (len > tail)
        crc_sum_merge(&it->share, len - tail,
                      crc_shift(sum, total - ((from / part - 1) * row + ((uint64_t)it->tp + 1) * part)));
    if (tail)
        crc_sum_add(&it->share, total, from / part * row + (uint64_t)it->tp * part + from % part, tail,
                    crc_bytes(0, b, tail));
}
