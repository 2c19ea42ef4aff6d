/*
 * checkpoint_load.c - read a checkpoint's state into this rank's buffers
 *
 * Every piece that this rank needs is an item of a plan (plan.h) without a destination file. The executor reads,
 * checks, converts and combines replicas as it does for the converters. Instead of writing the bytes to a file, it
 * passes them to a callback, which copies them to the device. Only the fixed buffers of the executor are needed,
 * however large the model is. Reads bypass the page cache.
 *
 * Two plans are run. The first plan has only the replicated parameters (a few MB), to find copies that differ. The
 * second plan has everything. Data-parallel ranks run the second plan together (checkpoint_share.c): it contains the
 * items of all of them, and each rank runs its own items.
 */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/plan/elements.h"
#include "libcommon/plan/executor.h"
#include "libcommon/plan/tmap_slice.h"
#include "libcommon/comm/comm.h"
#include "tools/train/checkpoint/checkpoint_impl.h"
#include "tools/train/checkpoint/checkpoint_share.h"
#include "tools/train/checkpoint/checkpoint_transpose.h"

enum { DEFAULT_MEM = 32 << 20, DEFAULT_THREADS = 2 };
/*
 * A limit for reading bytes only to check a CRC. The rest of a record is read for this purpose if it has at most this
 * many bytes, or at most as many bytes as the part of the record that is needed.
 */
#define REST_CHEAP ((uint64_t)4 << 20)

/*
 * A host buffer in which the rows of a transposed matrix are collected until all its columns have been read. The rows
 * are then copied to the device.
 */
struct gathered_matrix {
    char *host;                 /* NULL: nothing has been read yet */
    uint64_t bytes;
    int left;                   /* number of items that have not been read yet */
};

/* The destination of an item's bytes. Items that other ranks run have a destination as well, which is not used. */
struct fill {
    struct fill *next;
    char *dst;                  /* memory of the device; NULL: the item is only checked */
    /* device memory for a copy of the values in the weights' type; NULL: the values are not needed as weights */
    char *rounded;
    /* If not F32: the 16-bit type of the elements, which are converted to fp32 after they are read. */
    enum dtype widen;
    int param;                  /* index in the stage */
    enum state state;
    /* the destination of columns that become rows; NULL: the bytes of the item are copied unchanged */
    const struct transpose_part *transposed;
    /* host buffer in which the columns are collected before the matrix is copied to a device */
    struct gathered_matrix *gathering;
};

/* A tied copy of the embedding on the last stage and the first stage's original. They are compared by CRC. */
struct pair {
    int a, b;                   /* indices of the two items */
};

struct load {
    struct checkpoint *c;
    const struct stage *s;
    const struct stage_state *dst;
    const struct checkpoint_load_opts *o;
    struct report *notes;
    struct arena *arena;        /* for maps of columns, and for runs of elements */
    struct comm *dp;            /* the ranks that share the reading; NULL: this rank reads alone */
    struct load_share share;
    const struct param **from;  /* [n_params] */
    const struct tmap *(*columns)[STATE_N];     /* [n_params]: the maps of columns that slice_of() has created */
    /* [n_params]: true if the copies of this parameter's master weights or weights differ */
    bool *disagree;
    struct plan *plan;
    struct fill *fill;
    struct pair *pair;
    int n_pairs, cap_pairs;
    pthread_mutex_t lock;       /* only one thread at a time copies to a device */
    float *wide;                /* protected by the lock */
    size_t wide_n;
    struct checkpoint_loaded *out;
};

/* ---- items ---- */

static void store_loaded_bytes(struct load *l, const struct fill *f, uint64_t at, const void *bytes, uint64_t len)
{
    const struct dev_ops *dev = l->o->dev;
    const char *from = bytes;

    if (f->widen != DTYPE_F32) {
        size_t n = len / (uint64_t)dtype_size(f->widen);

        if (n > l->wide_n)
            l->wide = xrealloc(l->wide, (l->wide_n = n) * sizeof *l->wide);
        for (size_t i = 0; i < n; i++)
            l->wide[i] = (float)dtype_value(f->widen, from + i * (size_t)dtype_size(f->widen));
        from = (const char *)l->wide;
        at = at / (uint64_t)dtype_size(f->widen) * sizeof(float);
        len = n * sizeof(float);
    }
    dev->copy(f->dst + at, from, len, l->o->stream);
    dev->stream_sync(l->o->stream);
}

/*
 * Compute weights from master weights, for weights that are not read separately. The master weights are rounded to the
 * weights' type, or copied unchanged if they are stored in that type.
 */
static void store_rounded_weights(struct load *l, const struct plan_item *it, uint64_t at, const void *bytes,
                                  uint64_t len)
{
    const struct fill *f = it->user;
    const enum dtype type = plan_out_dtype(it), to = l->o->weights;
    const uint64_t size = (uint64_t)dtype_size(type), n = len / size, n_bytes = n * (uint64_t)dtype_size(to);
    struct elements_loss ignored = {0};
    char *as_weights = xmalloc(max_u64(len, n_bytes));

    memcpy(as_weights, bytes, len);
    if (type != to)
        elements_convert((enum plan_op)plan_op_of(type, to), as_weights, n, &ignored);
    pthread_mutex_lock(&l->lock);
    l->o->dev->copy(f->rounded + at / size * (uint64_t)dtype_size(to), as_weights, n_bytes, l->o->stream);
    l->o->dev->stream_sync(l->o->stream);
    pthread_mutex_unlock(&l->lock);
    free(as_weights);
}

/* Returns the host buffer of a gathered matrix. The first call allocates it. */
static char *gathering_room(struct load *l, struct gathered_matrix *g)
{
    pthread_mutex_lock(&l->lock);
    if (!g->host)
        g->host = xmalloc(g->bytes);
    pthread_mutex_unlock(&l->lock);
    return g->host;
}

/* Store elements of columns that become rows. `from` is the byte offset of the elements in the columns. */
static void store_transposed_columns(struct load *l, const struct plan_item *it, uint64_t from, const void *bytes,
                                     uint64_t len)
{
    const struct fill *f = it->user;
    const enum dtype type = plan_out_dtype(it);
    const uint64_t size = (uint64_t)dtype_size(type);
    const struct transpose_chunk c = { .at = (int64_t)(from / size), .n = (int64_t)(len / size), .bytes = bytes,
                                  .type = type, .widen = f->widen != DTYPE_F32 };

    transpose_put(f->transposed, &c, f->gathering ? gathering_room(l, f->gathering) : f->dst);
}

/* When the last columns of a matrix have been read, copy the whole matrix to the device. */
static int load_item_done(void *ctx, struct plan_item *it, struct err *e)
{
    struct load *l = ctx;
    const struct fill *f = it->user;

    (void)e;
    if (!f || !f->gathering)
        return 0;
    pthread_mutex_lock(&l->lock);
    if (--f->gathering->left == 0) {
        l->o->dev->copy(f->dst, f->gathering->host, f->gathering->bytes, l->o->stream);
        l->o->dev->stream_sync(l->o->stream);
        free(f->gathering->host);
        f->gathering->host = NULL;
    }
    pthread_mutex_unlock(&l->lock);
    return 0;
}

/* Store the bytes of an item in memory. The executor calls this function instead of writing to a file. */
static int load_on_bytes(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len,
                         struct err *e)
{
    struct load *l = ctx;
    const struct fill *f = it->user;
    bool host = dev_on_host(l->o->dev);

    (void)e;
    if (!f || !f->dst)
        return 0;
    from -= plan_out_bytes(it, it->from);
    if (f->transposed) {
        store_transposed_columns(l, it, from, bytes, len);
        return 0;
    }
    if (f->rounded)
        store_rounded_weights(l, it, from, bytes, len);
    if (host && f->widen == DTYPE_F32) {
        memcpy(f->dst + from, bytes, len);
        return 0;
    }
    pthread_mutex_lock(&l->lock);
    store_loaded_bytes(l, f, from, bytes, len);
    pthread_mutex_unlock(&l->lock);
    return 0;
}

/* A request for elements [from, from + n) of a parameter's slice, to be stored at `dst`. */
struct want {
    int param;
    int dp;                     /* the data-parallel rank that needs them */
    enum state state;           /* this state selects the destination buffer */
    const struct tmap *map;     /* map of the merged tensor from which elements are requested */
    int64_t from, n;
    char *dst;
    char *rounded;              /* see struct fill */
};

/* Add an item to the plan. The caller sets the map and its range in `r`; this function sets the other fields. */
static struct plan_item *add_load_item(struct load *l, struct plan_range r, const struct want *w)
{
    struct fill *f = arena_alloc(l->arena, sizeof *f);
    struct plan_item *it;

    *f = (struct fill){ .next = l->fill, .dst = w->dst, .rounded = w->rounded, .widen = DTYPE_F32,
                        .param = w->param, .state = w->state };
    l->fill = f;
    r.policy = l->o->replicas;
    r.name = l->from[w->param]->name;
    r.user = f;
    it = plan_item(l->plan, plan_add(l->plan, &r, -1, 0));
    it->done = l->dp && w->dp != l->s->dp;
    return it;
}

/*
 * Returns the map that contains the slice's elements. *first is set to the index of the slice's first element in that
 * map.
 */
static const struct tmap *slice_of(struct load *l, const struct want *w, int64_t *first)
{
    const struct stage_param *p = &l->s->param[w->param];
    const struct stage *s = l->s;
    const struct tmap **columns = &l->columns[w->param][w->state];
    uint64_t row, part;

    *first = p->split && p->merge != MERGE_CAT1 ? s->tp * p->n : 0;
    if (p->merge != MERGE_CAT1 || s->topo.tp == 1)
        return w->map;
    row = w->map->len / (uint64_t)p->shape[0];
    part = row / (uint64_t)s->topo.tp;
    if (!*columns)
        *columns = tmap_slice_columns(l->arena, w->map, row, (uint64_t)s->tp * part, part);
    return *columns;
}

static enum dtype loaded_state_dtype(const struct load *l, enum state st)
{
    return st == STATE_BF16 ? l->o->weights : DTYPE_F32;
}

/*
 * Set the conversion of an item to the type `to`. The element sizes of source and destination may differ, as those of
 * master weights and weights do. The executor converts to narrower types (plan_op). Conversions from 16 bits to fp32
 * are done at the end, by fill.widen.
 */
static void set_types(struct plan_item *it, enum dtype to)
{
    const enum dtype from = it->map->dtype;

    if (to == DTYPE_F32 && from != DTYPE_F32)
        ((struct fill *)it->user)->widen = from;
    else
        it->op = (enum plan_op)plan_op_of(from, to);
}

/* Request rows of a matrix that is stored as [in, out]. These rows are columns of the stored matrix. */
static void add_transposed_rows(struct load *l, const struct want *w)
{
    const struct stage_param *p = &l->s->param[w->param];
    const int64_t tp = l->s->topo.tp, cut0 = p->split && p->merge == MERGE_CAT0;
    const uint64_t column = (uint64_t)dtype_size(w->map->dtype), row = (uint64_t)p->shape[0] * column;
    const struct transpose_slice slice = { .rows = p->slice[0], .in = p->slice[1], .whole = p->shape[0],
                                      .first = cut0 ? l->s->tp * p->slice[0] : 0,
                                      .heads = p->role == ROLE_QKV_W ? l->s->model.n_heads / tp : 0 };
    const struct tmap_part rank = { w->map, p->merge == MERGE_CAT1 ? (uint64_t)(l->s->tp * slice.in) * row : 0,
                                    (uint64_t)slice.in * row };
    const struct tmap *m = rank.len == w->map->len ? w->map : tmap_parts(l->arena, &rank, 1);
    struct transpose_part *t = arena_alloc(l->arena, TRANSPOSE_MOST * sizeof *t);
    const int n = transpose_columns(&slice, w->from, w->n, t);
    struct gathered_matrix *g = NULL;

    if (!dev_on_host(l->o->dev)) {
        g = arena_alloc(l->arena, sizeof *g);
        *g = (struct gathered_matrix){ .bytes = (uint64_t)(w->n * dtype_size(loaded_state_dtype(l, w->state))),
                                       .left = n };
    }
    for (int i = 0; i < n; i++) {
        const uint64_t from = (uint64_t)t[i].at * column, len = (uint64_t)t[i].cols * column;
        const struct tmap *part = t[i].cols == slice.whole ? m : tmap_slice_columns(l->arena, m, row, from, len);
        struct plan_item *it = add_load_item(l, (struct plan_range){ .map = part, .len = part->len }, w);

        ((struct fill *)it->user)->transposed = &t[i];
        ((struct fill *)it->user)->gathering = g;
        set_types(it, loaded_state_dtype(l, w->state));
    }
}

static bool is_transposed_param(const struct load *l, int param)
{
    return l->c->names.transposed && l->c->names.transposed[source_param_index(l->c->src, l->from[param])];
}

static void add_want(struct load *l, const struct want *w)
{
    const struct tmap *m;
    uint64_t size = (uint64_t)dtype_size(w->map->dtype);
    int64_t first, have, n = w->n;
    struct plan_range part;

    if (is_transposed_param(l, w->param)) {
        add_transposed_rows(l, w);
        return;
    }
    m = slice_of(l, w, &first);
    have = (int64_t)(m->len / size) - first - w->from;
    n = have < n ? have : n;
    if (n <= 0)                         /* vocabulary rows after the source's last row stay zero */
        return;
    part = (struct plan_range){ .map = m, .from = (uint64_t)(first + w->from) * size, .len = (uint64_t)n * size };
    set_types(add_load_item(l, part, w), loaded_state_dtype(l, w->state));
}

/* ---- choosing the bytes ---- */

static bool is_moment_state(enum state st)
{
    return st == STATE_EXP_AVG || st == STATE_EXP_AVG_SQ;
}

/*
 * Returns the source's map of a state of the given parameter. If the parameter is a copy on this stage, this is the map
 * of the copy. Returns NULL if the state is to be zero.
 */
static const struct tmap *find_loaded_map(const struct load *l, int param, enum state st)
{
    const struct stage_param *p = &l->s->param[param];
    const struct param *q = l->from[param];

    if (is_moment_state(st) && l->o->no_optim)
        return NULL;
    if (p->untrained && q->tied[STATE_FP32])
        return q->tied[st];
    if (p->untrained && is_moment_state(st))
        return NULL;
    return q->state[st] || is_moment_state(st) ? q->state[st] : q->state[STATE_BF16];
}

/*
 * Returns the map from which the weights are read: the map of the layer files if these can be used unchanged, else the
 * map of the master weights.
 */
static const struct tmap *find_weights_map(const struct load *l, int param)
{
    const struct tmap *w = l->from[param]->state[STATE_BF16], *master = find_loaded_map(l, param, STATE_FP32);

    if (w && !(l->s->param[param].untrained && master != w) &&
        (master == w || (w->dtype == l->o->weights && !l->disagree[param])))
        return w;
    return master;
}

/*
 * Returns true if the plan includes the optimizer state of data-parallel rank dp. The plan always includes the state of
 * this rank. It includes the states of other ranks if the ranks share the reading.
 */
static bool plans_for(const struct load *l, int dp)
{
    return l->dp || dp == l->s->dp;
}

static char *weights_at(const struct load *l, const struct stage_run *r)
{
    return (char *)l->dst->weights + (l->s->param[r->param].at + r->from) * dtype_size(l->o->weights);
}

/* Returns true if this rank computes the weights from master weights that the plan reads in any case. */
static bool come_along(const struct load *l, int param, int dp)
{
    return plans_for(l, dp) && !is_transposed_param(l, param) &&
           find_weights_map(l, param) == find_loaded_map(l, param, STATE_FP32);
}

/*
 * Request the weights of a run of elements. If the ranks share the reading, this rank requests only its own part,
 * otherwise all weights.
 */
static void add_wanted_weights(struct load *l, const struct stage_run *r, int dp)
{
    const struct want w = { .param = r->param, .dp = dp, .state = STATE_BF16, .map = find_weights_map(l, r->param),
                            .from = r->from, .n = r->n, .dst = weights_at(l, r) };

    if (!come_along(l, r->param, dp))
        add_want(l, &w);
}

static void add_shard(struct load *l, const struct stage_run *r, int dp)
{
    char *const buf[STATE_N] = { NULL, (char *)l->dst->master, (char *)l->dst->exp_avg, (char *)l->dst->exp_avg_sq };

    for (int st = STATE_FP32; st < STATE_N; st++) {
        const struct want w = { .param = r->param, .dp = dp, .state = (enum state)st,
                                .map = find_loaded_map(l, r->param, (enum state)st), .from = r->from, .n = r->n,
                                .dst = buf[st] + (uint64_t)r->shard_at * sizeof(float),
                                .rounded = st == STATE_FP32 && come_along(l, r->param, dp) ? weights_at(l, r) : NULL };

        if (w.map)
            add_want(l, &w);
    }
}

/* ---- the tied copy ---- */

/*
 * Request a run of the tied copy and the same run of the first stage's embedding, so that the two can be compared. The
 * values of the embedding are loaded.
 */
static void add_tied_check(struct load *l, const struct stage_run *r, int dp)
{
    const struct param *q = l->from[r->param];

    for (int st = STATE_FP32; st < STATE_N && l->s->param[r->param].tied_copy; st++) {
        struct want w = { .param = r->param, .dp = dp, .state = (enum state)st, .from = r->from, .n = r->n };
        int64_t first, have;
        int item[2];

        if (!q->tied[st] || !q->state[st])
            continue;
        w.map = q->state[st];
        slice_of(l, &w, &first);
        have = (int64_t)(w.map->len / sizeof(float)) - first - w.from;
        if (have <= 0)
            continue;
        have = have < w.n ? have : w.n;
        for (int side = 0; side < 2; side++) {
            const struct tmap *m = side ? q->tied[st] : q->state[st];
            const struct plan_range part = { .map = m, .from = (uint64_t)(first + w.from) * sizeof(float),
                                             .len = (uint64_t)have * sizeof(float) };

            item[side] = add_load_item(l, part, &w)->number;
        }
        ARRAY_ROOM(l->pair, l->cap_pairs, l->n_pairs + 1);
        l->pair[l->n_pairs++] = (struct pair){ item[0], item[1] };
    }
}

static void report_tied(struct load *l)
{
    for (int i = 0; i < l->n_pairs; i++) {
        const struct plan_item *a = plan_item(l->plan, l->pair[i].a), *b = plan_item(l->plan, l->pair[i].b);
        const struct fill *f = a->user;

        if (a->done || a->crc.acc == b->crc.acc)
            continue;
        report_add(l->notes, SEV_WARNING, "tied", l->c->info.path, ERR_NO_BYTE, l->from[f->param]->name,
                   "%s: the last stage's tied copy differs from the first stage's, which is used",
                   state_name(f->state));
    }
}

/* ---- running a plan ---- */

/*
 * Choose the records whose unneeded rest is also read, to check the CRC. The rest must be short (REST_CHEAP). If ranks
 * share the reading, these records are distributed over the ranks.
 */
static void distribute_record_rests(const struct load *l)
{
    int n = 0;

    for (int i = 0; i < plan_n(l->plan); i++) {
        struct plan_item *it = plan_item(l->plan, i);
        const struct record *r;

        if (it->user)
            continue;
        r = files_record(plan_files(l->plan), it->map->slice[0].extent[0].record);
        it->done = (it->len > REST_CHEAP && it->len > r->len / 2) || (l->dp && n % l->s->topo.dp != l->s->dp);
        n++;
    }
}

static int run_own(struct load *l, struct err *e)
{
    struct exec_opts x = { .threads = l->o->threads > 0 ? l->o->threads : DEFAULT_THREADS,
                           .look = load_on_bytes,
                           .ctx = l,
                           .item_done = load_item_done,
                           .mem_bytes = l->o->mem_bytes ? l->o->mem_bytes : DEFAULT_MEM,
                           .stopped = l->o->stopped };
    struct exec_stats st = {0};
    int rc;

    plan_close(l->plan);
    distribute_record_rests(l);
    rc = exec_run(l->plan, &x, &st, e);
    l->out->read_bytes += st.read_bytes;
    return rc;
}

/*
 * Run the plan, if rc is 0. *on is set to true if all ranks that share the reading succeeded and the data is correct.
 * If the function returns 0 and *on is false, another rank failed, and that rank will report the reason.
 */
static int run_load_plan(struct load *l, int rc, bool *on, struct err *e)
{
    if (rc == 0)
        rc = run_own(l, e);
    *on = rc == 0;
    return l->dp ? load_share_check(&l->share, l->plan, rc, on, e) : rc;
}

static int refuse_drift(const struct load *l, bool (*drifted)[STATE_N], struct err *e)
{
    if (l->o->replicas != REPLICAS_FAIL || !l->out->n_drifted)
        return 0;
    for (int i = 0; i < l->s->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            if (drifted[i][st]) {
                err_data(e, l->c->info.path, ERR_NO_BYTE, "parameter %s: %s: the tensor-parallel copies disagree (%d "
                                                          "such states on stage %d); --replicas average, first or "
                                                          "majority resolves them",
                         l->from[i]->name, state_name((enum state)st), l->out->n_drifted, l->s->pp);
                return -1;
            }
    return 0;
}

/*
 * Plan to read all replicated tensors, which are small. If ranks share the reading, each tensor is read by one of them.
 */
static void plan_replicas(struct load *l)
{
    int n = 0;

    l->plan = plan_new(source_files(l->c->src));
    for (int i = 0; i < l->s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct want w = { .param = i, .dp = n % l->s->topo.dp, .state = (enum state)st };
            const struct tmap *m = l->from[i]->state[st];

            if (!m || m->op != TMAP_REPLICAS || m->n_slices < 2 || (is_moment_state((enum state)st) && l->o->no_optim))
                continue;
            /* read all copies even with REPLICAS_FAIL, so that all differing copies are counted */
            add_load_item(l, (struct plan_range){ .map = m, .len = m->len }, &w)->policy = REPLICAS_FIRST;
            n++;
        }
}

/*
 * Run the first plan, which finds replicated tensors whose copies differ. rc and *on have the same meaning as in
 * run_load_plan().
 */
static int find_drift(struct load *l, int rc, bool *on, struct err *e)
{
    bool (*drifted)[STATE_N] = xcalloc((size_t)l->s->n_params, sizeof *drifted);

    if (rc == 0)
        plan_replicas(l);
    rc = run_load_plan(l, rc, on, e);
    for (int i = 0; *on && i < plan_n(l->plan); i++) {
        const struct plan_item *it = plan_item(l->plan, i);
        const struct fill *f = it->user;

        if (f && it->n_differ)
            drifted[f->param][f->state] = true;
    }
    plan_free(l->plan);
    l->plan = NULL;
    if (*on && l->dp)
        rc = load_share_any(&l->share, drifted[0], l->s->n_params * STATE_N, e);
    for (int i = 0; *on && i < l->s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            l->disagree[i] = l->disagree[i] || (drifted[i][st] && !is_moment_state((enum state)st));
            l->out->n_drifted += drifted[i][st];
        }
    if (*on && rc == 0)
        rc = refuse_drift(l, drifted, e);
    *on = *on && rc == 0;
    free(drifted);
    return rc;
}

/* Run the second plan, which loads everything. */
static int fill_all(struct load *l, bool *on, struct err *e)
{
    const int n = l->s->topo.dp;
    struct stage_run **run = xcalloc((size_t)n, sizeof *run);
    int *n_runs = xcalloc((size_t)n, sizeof *n_runs), rc;

    for (int d = 0; d < n; d++)
        run[d] = stage_runs(l->s, d, l->arena, &n_runs[d]);
    l->plan = plan_new(source_files(l->c->src));
    for (int d = 0; d < n; d++)
        for (int k = 0; k < n_runs[d]; k++)
            add_wanted_weights(l, &run[d][k], d);
    for (int d = 0; d < n; d++)
        for (int k = 0; k < n_runs[d] && plans_for(l, d); k++)
            add_shard(l, &run[d][k], d);
    for (int d = 0; d < n && !l->o->no_optim; d++)
        for (int k = 0; k < n_runs[d] && plans_for(l, d); k++)
            add_tied_check(l, &run[d][k], d);
    free(run);
    free(n_runs);
    rc = run_load_plan(l, 0, on, e);
    if (*on)
        report_tied(l);
    return rc;
}

static void clear(const struct load *l)
{
    const struct dev_ops *d = l->o->dev;
    uint64_t shard = (uint64_t)l->s->shard_n * sizeof(float);

    d->zero(l->dst->weights, (uint64_t)l->s->flat_n * (uint64_t)dtype_size(l->o->weights), l->o->stream);
    d->zero(l->dst->master, shard, l->o->stream);
    d->zero(l->dst->exp_avg, shard, l->o->stream);
    d->zero(l->dst->exp_avg_sq, shard, l->o->stream);
}

static int load_all(struct load *l, struct err *e)
{
    bool on;
    int rc = checkpoint_match(l->c, l->s, l->o, l->from, l->out, e);

    rc = find_drift(l, rc, &on, e);
    if (!on)
        return rc;
    clear(l);
    rc = fill_all(l, &on, e);
    if (!on)
        return rc;
    l->o->dev->stream_sync(l->o->stream);
    if (l->dp && load_share_weights(&l->share, l->dst->weights, l->o->weights, l->o->stream, e) < 0)
        return -1;
    return l->o->dev->check(e);
}

static void load_free(struct load *l)
{
    for (const struct fill *f = l->fill; f; f = f->next)
        if (f->gathering && f->gathering->host) {       /* the load was stopped before all columns were read */
            free(f->gathering->host);
            f->gathering->host = NULL;
        }
    plan_free(l->plan);
    free(l->pair);
    free(l->from);
    free(l->columns);
    free(l->disagree);
    free(l->wide);
    arena_free(l->arena);
}

int checkpoint_load(struct checkpoint *c, const struct stage *s, const struct stage_state *dst,
                    const struct checkpoint_load_opts *o, struct checkpoint_loaded *out, struct err *e)
{
    struct load l = { .c = c, .s = s, .dst = dst, .o = o, .notes = o->notes, .out = out, .arena = arena_new(0),
                      .dp = s->topo.dp > 1 ? o->dp : NULL, .share = { o->dp, s, c->info.path },
                      .lock = PTHREAD_MUTEX_INITIALIZER };
    double begun = clock_s();
    int rc;

    assert(o->weights == DTYPE_BF16 || o->weights == DTYPE_F16 || o->weights == DTYPE_F32);
    *out = (struct checkpoint_loaded){ .opt_step = o->no_optim ? 0 : c->info.opt_step, .moments = !o->no_optim };
    l.from = xcalloc((size_t)s->n_params, sizeof *l.from);
    l.columns = xcalloc((size_t)s->n_params, sizeof *l.columns);
    l.disagree = xcalloc((size_t)s->n_params, sizeof *l.disagree);
    rc = load_all(&l, e);
    out->wall_s = clock_s() - begun;
    load_free(&l);
    return rc;
}
