/*
 * checkpoint_load.c - a plan whose items end in this rank's buffers
 *
 * Every piece of the share is an item of a plan (plan.h) without a destination file: the
 * executor reads, checks, converts and combines replicas as it does for the converters, and
 * what would be written is looked at instead, and copied to the device. So memory is the
 * executor's fixed buffers whatever the model's size, and reads go round the page cache.
 *
 * Two plans run: first the replicated parameters alone (a few MB), to learn which copies
 * disagree; then everything.
 */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/plan/executor.h"
#include "libcommon/plan/tmap_slice.h"
#include "tools/train/checkpoint/checkpoint_impl.h"
#include "tools/train/checkpoint/checkpoint_turn.h"

enum { DEFAULT_MEM = 32 << 20, DEFAULT_THREADS = 2 };
/* The unread rest of a record is read for its CRC when it is no longer than what is read anyway, or than this. */
#define REST_CHEAP ((uint64_t)4 << 20)

/* Where the rows of a matrix that is turned round gather for a device, until all columns of it are there. */
struct turning {
    char *host;                 /* NULL: nothing has come yet */
    uint64_t bytes;
    int left;                   /* items that fill it */
};

/* Where an item's bytes go. */
struct fill {
    struct fill *next;
    char *dst;                  /* device memory; NULL: only looked at */
    enum dtype widen;           /* elements of this type become fp32; F32: they stay */
    int param;                  /* in the stage */
    enum state state;
    const struct turn *turn;    /* columns that become rows; NULL: bytes go as they come */
    struct turning *gathering;        /* with `turn`, where dst is a device's */
};

struct load {
    struct checkpoint *c;
    const struct stage *s;
    const struct stage_state *dst;
    const struct checkpoint_load_opts *o;
    struct report *notes;
    struct arena *arena;        /* maps of columns */
    const struct param **from;  /* [n_params] */
    bool *disagree;             /* [n_params]: copies of its masters or weights differ */
    struct plan *plan;
    struct fill *fill;
    pthread_mutex_t lock;       /* a device is fed by one thread at a time */
    float *wide;                /* under the lock */
    size_t wide_n;
    struct checkpoint_loaded *out;
};

/* ---- does it fit? ---- */

static int wrong_shape(const struct load *l, const struct stage_param *p, const struct param *q, struct err *e)
{
    const struct checkpoint_info *i = &l->c->info;

    err_usage(e, "%s: %s is [%lld, %lld], the model asked for has [%lld, %lld] (the checkpoint: %lld layers, hidden "
              "%lld, %lld heads)", i->path, q->name, (long long)q->shape[0], (long long)(q->ndim > 1 ? q->shape[1] : 1),
              (long long)p->shape[0], (long long)(p->ndim > 1 ? p->shape[1] : 1), (long long)i->model.n_layers,
              (long long)i->model.hidden, (long long)i->model.n_heads);
    return -1;
}

static int check_vocab(struct load *l, int64_t rows, int64_t have, struct err *e)
{
    int64_t V0 = l->c->info.model.vocab_tokens;

    l->out->new_rows = rows > have ? rows - have : 0;
    l->out->lost_rows = rows < have ? have - rows : 0;
    if (l->out->lost_rows && (V0 <= 0 || rows < V0)) {
        err_usage(e, "%s: %lld rows of vocabulary cannot hold the checkpoint's %lld tokens", l->c->info.path,
                  (long long)rows, (long long)(V0 > 0 ? V0 : have));
        return -1;
    }
    if (l->out->new_rows)
        report_add(l->notes, SEV_WARNING, "vocab", l->c->info.path, ERR_NO_BYTE, NULL,
                   "vocabulary grows from %lld to %lld rows: %lld rows of zeros are added, and the loss will "
                   "move (they take their share of the softmax)", (long long)have, (long long)rows,
                   (long long)l->out->new_rows);
    if (l->out->lost_rows)
        report_add(l->notes, SEV_WARNING, "vocab", l->c->info.path, ERR_NO_BYTE, NULL,
                   "vocabulary shrinks from %lld to %lld rows: trained padding rows are left behind, and the loss will "
                   "move", (long long)have, (long long)rows);
    return 0;
}

static int match(struct load *l, int i, struct err *e)
{
    const struct stage_param *p = &l->s->param[i];
    const struct param *q = checkpoint_find(l->c->src, l->c->first_layer, p);
    bool vocab = p->merge == MERGE_VOCAB;

    if (!q) {
        err_usage(e, "%s: has no parameter %s, which the model asked for has", l->c->info.path, p->name);
        return -1;
    }
    if (q->ndim != p->ndim || q->merge != p->merge || (!vocab && q->shape[0] != p->shape[0]) ||
        (p->ndim > 1 && q->shape[1] != p->shape[1]))
        return wrong_shape(l, p, q, e);
    l->from[i] = q;
    return vocab && !p->tied_copy ? check_vocab(l, p->shape[0], q->shape[0], e) : 0;
}

static int match_all(struct load *l, struct err *e)
{
    const struct checkpoint_info *c = &l->c->info;

    if (c->model.n_layers && c->model.n_layers != l->s->model.n_layers) {
        err_usage(e, "%s: has %lld layers, the model asked for %lld", c->path, (long long)c->model.n_layers,
                  (long long)l->s->model.n_layers);
        return -1;
    }
    if (c->model.n_heads && c->model.n_heads != l->s->model.n_heads) {
        err_usage(e, "%s: has %lld attention heads, the model asked for %lld", c->path, (long long)c->model.n_heads,
                  (long long)l->s->model.n_heads);
        return -1;
    }
    if (!c->has_optimizer && !l->o->no_optim) {
        const struct param *bare = source_has_moments(l->c->src) ? checkpoint_bare(l->c) : NULL;

        err_usage(e, "%s: %s%s%s; --no-load-optim or --finetune begins with fresh optimizer state", c->path,
                  bare ? "parameter " : "holds weights only", bare ? bare->name : "",
                  bare ? " has no moments of Adam, others have" : "");
        return -1;
    }
    for (int i = 0; i < l->s->n_params; i++)
        if (match(l, i, e) < 0)
            return -1;
    return 0;
}

/* ---- items ---- */

static void take_bytes(struct load *l, const struct fill *f, uint64_t at, const void *bytes, uint64_t len)
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

/* The first to come makes the room. */
static char *gathering_room(struct load *l, struct turning *g)
{
    pthread_mutex_lock(&l->lock);
    if (!g->host)
        g->host = xmalloc(g->bytes);
    pthread_mutex_unlock(&l->lock);
    return g->host;
}

/* Some elements of columns, from byte `from` of them. */
static void take_columns(struct load *l, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len)
{
    const struct fill *f = it->user;
    const enum dtype type = plan_out_dtype(it);
    const uint64_t size = (uint64_t)dtype_size(type);
    const struct turn_chunk c = { .at = (int64_t)(from / size), .n = (int64_t)(len / size), .bytes = bytes,
                                  .type = type, .widen = f->widen != DTYPE_F32 };

    turn_put(f->turn, &c, f->gathering ? gathering_room(l, f->gathering) : f->dst);
}

/* The last columns of a matrix for a device are there. */
static int item_done(void *ctx, struct plan_item *it, struct err *e)
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

/* The executor shows what it would write. */
static int look(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len, struct err *e)
{
    struct load *l = ctx;
    const struct fill *f = it->user;
    bool host = dev_on_host(l->o->dev);

    (void)e;
    if (!f || !f->dst)
        return 0;
    from -= plan_out_bytes(it, it->from);
    if (f->turn) {
        take_columns(l, it, from, bytes, len);
        return 0;
    }
    if (host && f->widen == DTYPE_F32) {
        memcpy(f->dst + from, bytes, len);
        return 0;
    }
    pthread_mutex_lock(&l->lock);
    take_bytes(l, f, from, bytes, len);
    pthread_mutex_unlock(&l->lock);
    return 0;
}

/* `r` says what of a map; the rest of it is filled in. */
static struct plan_item *add_item(struct load *l, struct plan_range r, int param, enum state st, char *dst)
{
    struct fill *f = arena_alloc(l->arena, sizeof *f);

    *f = (struct fill){ .next = l->fill, .dst = dst, .widen = DTYPE_F32, .param = param, .state = st };
    l->fill = f;
    r.policy = l->o->replicas;
    r.name = l->from[param]->name;
    r.user = f;
    return plan_item(l->plan, plan_add(l->plan, &r, -1, 0));
}

/* Elements [from, from + n) of a parameter's slice, to `dst`. */
struct want {
    int param;
    enum state state;           /* which of the rank's buffers it is for */
    const struct tmap *map;     /* of the merged tensor */
    int64_t from, n;
    char *dst;
};

/* The map that holds the slice's elements, and where in it they begin. */
static const struct tmap *slice_of(struct load *l, const struct want *w, int64_t *first)
{
    const struct stage_param *p = &l->s->param[w->param];
    const struct stage *s = l->s;
    uint64_t row, part;

    *first = p->split && p->merge != MERGE_CAT1 ? s->tp * p->n : 0;
    if (p->merge != MERGE_CAT1 || s->topo.tp == 1)
        return w->map;
    row = w->map->len / (uint64_t)p->shape[0];
    part = row / (uint64_t)s->topo.tp;
    return tmap_slice_columns(l->arena, w->map, row, (uint64_t)s->tp * part, part);
}

static enum dtype type_of(const struct load *l, enum state st)
{
    return st == STATE_BF16 ? l->o->weights : DTYPE_F32;
}

/*
 * Weights and masters differ in size, and so may source and destination: types become narrower on their way
 * (plan_op), 16 bits fp32 at its end (fill.widen).
 */
static void set_types(struct plan_item *it, enum dtype to)
{
    const enum dtype from = it->map->dtype;

    if (to == DTYPE_F32 && from != DTYPE_F32)
        ((struct fill *)it->user)->widen = from;
    else
        it->op = (enum plan_op)plan_op_of(from, to);
}

/* What lies as [in, out]: columns of it are the rows that are wanted. */
static void add_turned(struct load *l, const struct want *w)
{
    const struct stage_param *p = &l->s->param[w->param];
    const int64_t tp = l->s->topo.tp, cut0 = p->split && p->merge == MERGE_CAT0;
    const uint64_t column = (uint64_t)dtype_size(w->map->dtype), row = (uint64_t)p->shape[0] * column;
    const struct turn_slice slice = { .rows = p->slice[0], .in = p->slice[1], .whole = p->shape[0],
                                      .first = cut0 ? l->s->tp * p->slice[0] : 0,
                                      .heads = p->role == ROLE_QKV_W ? l->s->model.n_heads / tp : 0 };
    const struct tmap_part rank = { w->map, p->merge == MERGE_CAT1 ? (uint64_t)(l->s->tp * slice.in) * row : 0,
                                    (uint64_t)slice.in * row };
    const struct tmap *m = rank.len == w->map->len ? w->map : tmap_parts(l->arena, &rank, 1);
    struct turn *t = arena_alloc(l->arena, TURN_MOST * sizeof *t);
    const int n = turn_columns(&slice, w->from, w->n, t);
    struct turning *g = NULL;

    if (!dev_on_host(l->o->dev)) {
        g = arena_alloc(l->arena, sizeof *g);
        *g = (struct turning){ .bytes = (uint64_t)(w->n * dtype_size(type_of(l, w->state))), .left = n };
    }
    for (int i = 0; i < n; i++) {
        const uint64_t from = (uint64_t)t[i].at * column, len = (uint64_t)t[i].cols * column;
        const struct tmap *part = t[i].cols == slice.whole ? m : tmap_slice_columns(l->arena, m, row, from, len);
        struct plan_item *it = add_item(l, (struct plan_range){ .map = part, .len = part->len }, w->param, w->state,
                                        w->dst);

        ((struct fill *)it->user)->turn = &t[i];
        ((struct fill *)it->user)->gathering = g;
        set_types(it, type_of(l, w->state));
    }
}

static bool is_turned(const struct load *l, int param)
{
    return l->c->names.turned && l->c->names.turned[l->from[param] - l->c->src->param];
}

static void add_want(struct load *l, const struct want *w)
{
    const struct tmap *m;
    uint64_t size = (uint64_t)dtype_size(w->map->dtype);
    int64_t first, have, n = w->n;
    struct plan_range part;

    if (is_turned(l, w->param)) {
        add_turned(l, w);
        return;
    }
    m = slice_of(l, w, &first);
    have = (int64_t)(m->len / size) - first - w->from;
    n = have < n ? have : n;
    if (n <= 0)                         /* vocabulary beyond the source's last row stays zero */
        return;
    part = (struct plan_range){ .map = m, .from = (uint64_t)(first + w->from) * size, .len = (uint64_t)n * size };
    set_types(add_item(l, part, w->param, w->state, w->dst), type_of(l, w->state));
}

/* ---- which bytes ---- */

static bool is_moment(enum state st)
{
    return st == STATE_EXP_AVG || st == STATE_EXP_AVG_SQ;
}

/* The source's map for a state of a parameter's copy on this stage; NULL: zeros. */
static const struct tmap *map_of(const struct load *l, int param, enum state st)
{
    const struct stage_param *p = &l->s->param[param];
    const struct param *q = l->from[param];

    if (is_moment(st) && l->o->no_optim)
        return NULL;
    if (p->untrained && q->tied[STATE_FP32])
        return q->tied[st];
    if (p->untrained && is_moment(st))
        return NULL;
    return q->state[st] || is_moment(st) ? q->state[st] : q->state[STATE_BF16];
}

/* Weights: out of the layer files where those can be had as they are, else from the masters. */
static const struct tmap *weights_of(const struct load *l, int param)
{
    const struct tmap *w = l->from[param]->state[STATE_BF16], *master = map_of(l, param, STATE_FP32);

    if (w && !(l->s->param[param].untrained && master != w) &&
        (master == w || (w->dtype == l->o->weights && !l->disagree[param])))
        return w;
    return master;
}

static void add_weights(struct load *l)
{
    uint64_t size = (uint64_t)dtype_size(l->o->weights);

    for (int i = 0; i < l->s->n_params; i++) {
        const struct stage_param *p = &l->s->param[i];
        struct want w = { .param = i, .state = STATE_BF16, .map = weights_of(l, i), .n = p->n,
                          .dst = (char *)l->dst->weights + (uint64_t)p->at * size };

        add_want(l, &w);
    }
}

static void add_shard(struct load *l)
{
    char *const buf[STATE_N] = { NULL, (char *)l->dst->master, (char *)l->dst->exp_avg, (char *)l->dst->exp_avg_sq };

    for (int k = 0; k < l->s->n_runs; k++)
        for (int st = STATE_FP32; st < STATE_N; st++) {
            const struct stage_run *r = &l->s->run[k];
            struct want w = { .param = r->param, .state = (enum state)st, .map = map_of(l, r->param, (enum state)st),
                              .from = r->from, .n = r->n, .dst = buf[st] + (uint64_t)r->shard_at * sizeof(float) };

            if (w.map)
                add_want(l, &w);
        }
}

/* ---- the tied copy ---- */

/* Its own bytes on the last stage, to be compared with the first stage's by CRC. */
struct pair {
    int a, b;                   /* items */
};

/* A run of the tied copy is looked at beside the first stage's, which is what is loaded. */
static int add_tied_checks(struct load *l, struct pair *pair)
{
    int n = 0;

    for (int k = 0; k < l->s->n_runs; k++)
        for (int st = STATE_FP32; st < STATE_N; st++) {
            const struct stage_run *r = &l->s->run[k];
            const struct param *q = l->from[r->param];
            struct want w = { .param = r->param, .state = (enum state)st, .from = r->from, .n = r->n };
            int64_t first, have;

            if (!l->s->param[r->param].tied_copy || !q->tied[st] || !q->state[st])
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

                *(side ? &pair[n].b : &pair[n].a) = add_item(l, part, r->param, (enum state)st, NULL)->number;
            }
            n++;
        }
    return n;
}

static void report_tied(struct load *l, const struct pair *pair, int n)
{
    for (int i = 0; i < n; i++) {
        const struct plan_item *a = plan_item(l->plan, pair[i].a), *b = plan_item(l->plan, pair[i].b);
        const struct fill *f = a->user;

        if (a->crc.acc == b->crc.acc)
            continue;
        report_add(l->notes, SEV_WARNING, "tied", l->c->info.path, ERR_NO_BYTE, l->from[f->param]->name,
                   "%s: the last stage's tied copy differs from the first stage's, which is taken",
                   state_name(f->state));
    }
}

/* ---- running a plan ---- */

/* The rest of a record is read for its CRC only where that costs little. */
static void drop_dear_rests(struct plan *p)
{
    for (int i = 0; i < plan_n(p); i++) {
        struct plan_item *it = plan_item(p, i);
        const struct record *r;

        if (it->user)
            continue;
        r = files_record(plan_files(p), it->map->slice[0].extent[0].record);
        it->done = it->len > REST_CHEAP && it->len > r->len / 2;
    }
}

static int run_plan(struct load *l, struct err *e)
{
    struct exec_opts x = { .threads = l->o->threads > 0 ? l->o->threads : DEFAULT_THREADS, .look = look, .ctx = l,
                           .item_done = item_done,
                           .mem_bytes = l->o->mem_bytes ? l->o->mem_bytes : DEFAULT_MEM, .stopped = l->o->stopped };
    struct exec_stats st = {0};
    int rc;

    plan_close(l->plan);
    drop_dear_rests(l->plan);
    rc = exec_run(l->plan, &x, &st, e);
    l->out->read_bytes += st.read_bytes;
    return rc;
}

static int refuse_drift(const struct load *l, bool (*drifted)[STATE_N], struct err *e)
{
    if (l->o->replicas != REPLICAS_FAIL || !l->out->n_drifted)
        return 0;
    for (int i = 0; i < l->s->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            if (drifted[i][st]) {
                err_data(e, l->c->info.path, ERR_NO_BYTE, "parameter %s: %s: the tensor-parallel copies disagree (%d "
                         "such states on stage %d); --replicas=average, first or majority says what becomes of them",
                         l->from[i]->name, state_name((enum state)st), l->out->n_drifted, l->s->pp);
                return -1;
            }
    return 0;
}

/* First plan: do the copies agree? Only small tensors are replicated. */
static int find_drift(struct load *l, struct err *e)
{
    bool (*drifted)[STATE_N] = xcalloc((size_t)l->s->n_params, sizeof *drifted);
    int rc;

    l->plan = plan_new(l->c->src->files);
    for (int i = 0; i < l->s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct tmap *m = l->from[i]->state[st];

            /* Under REPLICAS_FAIL too all are counted first. */
            if (m && m->op == TMAP_REPLICAS && m->n_slices > 1 && !(is_moment((enum state)st) && l->o->no_optim))
                add_item(l, (struct plan_range){ .map = m, .len = m->len }, i, (enum state)st, NULL)
                    ->policy = REPLICAS_FIRST;
        }
    rc = run_plan(l, e);
    for (int i = 0; i < plan_n(l->plan) && rc == 0; i++) {
        const struct plan_item *it = plan_item(l->plan, i);
        const struct fill *f = it->user;

        if (!f || !it->n_differ)
            continue;
        l->disagree[f->param] = l->disagree[f->param] || !is_moment(f->state);
        l->out->n_drifted += !drifted[f->param][f->state];
        drifted[f->param][f->state] = true;
    }
    plan_free(l->plan);
    l->plan = NULL;
    if (rc == 0)
        rc = refuse_drift(l, drifted, e);
    free(drifted);
    return rc;
}

static int fill_all(struct load *l, struct err *e)
{
    struct pair *pair = xcalloc((size_t)l->s->n_runs * STATE_N + 1, sizeof *pair);
    int n, rc;

    l->plan = plan_new(l->c->src->files);
    add_weights(l);
    add_shard(l);
    n = l->o->no_optim ? 0 : add_tied_checks(l, pair);
    rc = run_plan(l, e);
    if (rc == 0)
        report_tied(l, pair, n);
    plan_free(l->plan);
    free(pair);
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

int checkpoint_load(struct checkpoint *c, const struct stage *s, const struct stage_state *dst,
                    const struct checkpoint_load_opts *o, struct checkpoint_loaded *out, struct err *e)
{
    struct load l = { .c = c, .s = s, .dst = dst, .o = o, .notes = o->notes, .out = out, .arena = arena_new(0),
                      .lock = PTHREAD_MUTEX_INITIALIZER };
    double begun = clock_s();
    int rc = -1;

    assert(o->weights == DTYPE_BF16 || o->weights == DTYPE_F16 || o->weights == DTYPE_F32);
    *out = (struct checkpoint_loaded){ .opt_step = o->no_optim ? 0 : c->info.opt_step, .moments = !o->no_optim };
    l.from = xcalloc((size_t)s->n_params, sizeof *l.from);
    l.disagree = xcalloc((size_t)s->n_params, sizeof *l.disagree);
    if (match_all(&l, e) < 0 || find_drift(&l, e) < 0)
        goto out;
    clear(&l);
    if (fill_all(&l, e) < 0)
        goto out;
    o->dev->stream_sync(o->stream);
    rc = o->dev->check(e);
out:
    out->wall_s = clock_s() - begun;
    for (const struct fill *f = l.fill; f; f = f->next)
        if (f->gathering && f->gathering->host) {       /* stopped half-way */
            free(f->gathering->host);
            f->gathering->host = NULL;
        }
    free(l.from);
    free(l.disagree);
    free(l.wide);
    arena_free(l.arena);
    return rc;
}
