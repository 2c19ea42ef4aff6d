/*
 * memory_source.c - small files as pickles in memory, and tensor maps that lead nowhere
 */
#include "libcommon/layout/memory_source.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/run_state.h"

/* ---- small files ---- */

struct pk *memory_tensor(struct arena *a, struct memory_storages *st, const struct pt_new *t, const void *p)
{
    struct pt_new own = *t;
    struct memory_storage *to;

    own.storage = st->n++;
    own.storage_elems = 1;
    for (int i = 0; i < t->ndim; i++)
        own.storage_elems *= t->shape[i];
    ARRAY_ROOM(st->storage, st->cap, st->n);
    to = &st->storage[own.storage];
    to->len = (uint64_t)own.storage_elems * (uint64_t)dtype_size(t->dtype);
    to->bytes = xmalloc(to->len + 1);
    if (to->len)
        memcpy(to->bytes, p, to->len);
    return pt_new_tensor(a, &own);
}

struct copying {
    struct arena *arena;
    struct memory_storages *st;
    const struct pt *pt;
    struct files *files;
    struct err *e;
    bool failed;
};

/* Random states have a few KB; a file that claims more is not read for it. */
enum { COPY_MAX = 64 << 20 };

static struct pk *copy_tensor(void *ctx, const struct pk *v)
{
    struct copying *c = ctx;
    struct pt_tensor t;
    struct extent x;
    uint8_t *bytes;
    struct pk *made = NULL;

    if (v->type != PK_CALL || strncmp(v->fn->type == PK_GLOBAL ? v->fn->name : "", "_rebuild_tensor", 15) != 0 ||
        !pt_tensor(c->pt, v, &t) || c->failed)
        return NULL;
    x = (struct extent){ t.record, t.at, 0 };
    if (t.contiguous && t.n_elems <= COPY_MAX)
        x.len = (uint64_t)t.n_elems * (uint64_t)dtype_size(t.dtype);
    bytes = xmalloc(x.len + 1);
    c->failed = files_read_extent(c->files, &x, bytes, c->e) < 0;
    if (!c->failed && x.len != (uint64_t)t.n_elems * (uint64_t)dtype_size(t.dtype)) {
        err_data(c->e, pt_path(c->pt), ERR_NO_BYTE, "a tensor of %lld elements where a few bytes are expected",
                 (long long)t.n_elems);
        c->failed = true;
    }
    if (!c->failed)
        made = memory_tensor(c->arena, c->st, &(struct pt_new){ .dtype = t.dtype, .ndim = t.ndim, .shape = t.shape,
                                                                .requires_grad = t.requires_grad }, bytes);
    free(bytes);
    return made;
}

struct pk *memory_copy(struct arena *a, struct memory_storages *st, const struct pt *pt, struct files *f,
                       const struct pk *v, struct err *e)
{
    struct copying c = { .arena = a, .st = st, .pt = pt, .files = f, .e = e };
    struct pk *copy = pk_copy_swap(a, v, copy_tensor, &c);

    return c.failed ? NULL : copy;
}

uint8_t *memory_pt(const char *prefix, const struct pk *root, const struct memory_storages *st, uint64_t *size)
{
    uint64_t *len = xmalloc(((size_t)st->n + 1) * sizeof *len);
    struct pt_image *im;
    const struct zip_run *run;
    uint8_t *file;

    for (int i = 0; i < st->n; i++)
        len[i] = st->storage[i].len;
    im = pt_image_new(prefix, root, st->n, len);
    *size = pt_image_size(im);
    file = xcalloc(1, *size);
    for (int i = 0; i < st->n; i++) {
        pt_image_set_crc(im, i, crc_bytes(0, st->storage[i].bytes, len[i]));
        memcpy(file + pt_image_at(im, i), st->storage[i].bytes, len[i]);
    }
    for (int i = 0, n = pt_image_runs(im, &run); i < n; i++)
        memcpy(file + run[i].at, run[i].bytes, run[i].len);
    pt_image_free(im);
    free(len);
    return file;
}

void memory_storages_free(struct memory_storages *st)
{
    for (int i = 0; i < st->n; i++)
        free(st->storage[i].bytes);
    free(st->storage);
    memset(st, 0, sizeof *st);
}

/* ---- the parameters ---- */

static int by_place(const void *a, const void *b)
{
    const struct param *x = a, *y = b;
    int lx, ly;
    const struct param_row *rx = param_find(x->name, &lx), *ry = param_find(y->name, &ly);

    return lx != ly ? (lx > ly) - (lx < ly) : (int)rx->role - (int)ry->role;
}

/* A map that says what there would be. */
static struct tmap *stub(struct arena *a, enum dtype dtype, uint64_t n_elems)
{
    struct tmap *m = arena_alloc(a, sizeof *m);

    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = dtype, .len = n_elems * (uint64_t)dtype_size(dtype) };
    return m;
}

static int take_shape(struct source *s, const struct memory_parts *p, struct param *to, const struct pk *shape,
                      struct err *e)
{
    uint32_t n = 0;
    struct pk **dim = pk_items(shape, &n);
    uint64_t elems = 1;
    int cut;

    to->merge = merge_rule_of(to->name);
    to->ndim = (int)n;
    for (uint32_t i = 0; i < n && n <= 4; i++)
        if (!pk_as_int(dim[i], &to->shape[i]) || to->shape[i] <= 0)
            n = 0;
    cut = to->merge == MERGE_CAT1;
    if (n == 0 || n > 4 || (to->merge != MERGE_REPLICATED && cut >= (int)n)) {
        err_data(e, s->path, ERR_NO_BYTE, "parameter %s: no usable shape in param_shapes", to->name);
        return -1;
    }
    if (to->merge != MERGE_REPLICATED)
        to->shape[cut] *= p->topo.tp;
    for (uint32_t i = 0; i < n; i++)
        elems *= (uint64_t)to->shape[i];
    for (int st = 0; st < STATE_N; st++)
        if (st == STATE_BF16 || p->optimizer)
            to->state[st] = stub(s->arena, st == STATE_BF16 ? p->weights : DTYPE_F32, elems);
    return 0;
}

static int take_stage(struct source *s, const struct memory_parts *p, int pp, const struct pk *groups, int *cap,
                      struct err *e)
{
    uint32_t n_groups = 0, n;
    struct pk **group = pk_items(groups, &n_groups);

    s->run.n_groups = (int)n_groups > s->run.n_groups ? (int)n_groups : s->run.n_groups;
    for (uint32_t g = 0; g < n_groups; g++) {
        struct pk **pair = pk_pairs(group[g], &n);

        for (uint32_t i = 0; pair && i < n; i++) {
            const char *name = pk_as_str(pair[2 * i]);

            if (!name)
                continue;
            if (source_param(s, name)) {
                s->tied_embedding = true;       /* the last stage's copy */
                continue;
            }
            ARRAY_ROOM(s->param, *cap, s->n_params + 1);
            s->param[s->n_params] = (struct param){ .name = name, .stage = pp, .group = (int)g };
            if (take_shape(s, p, &s->param[s->n_params], pair[2 * i + 1], e) < 0)
                return -1;
            s->n_params++;
        }
    }
    return 0;
}

static int take_params(struct source *s, const struct memory_parts *p, struct err *e)
{
    struct param *list;
    int cap = 0, rc = 0;

    for (int pp = 0; pp < p->topo.pp && rc == 0; pp++) {
        const struct pk *groups = NULL;

        for (int i = 0; i < p->n_mp; i++)
            if (p->mp[i].pp == pp && p->mp[i].tp == 0)
                groups = pk_get(pt_root(s->file[i].pt), "param_shapes");
        if (!groups) {
            err_data(e, s->path, ERR_NO_BYTE, "no param_shapes for stage %d", pp);
            rc = -1;
        }
        if (rc == 0)
            rc = take_stage(s, p, pp, groups, &cap, e);
    }
    if (s->n_params)
        qsort(s->param, (size_t)s->n_params, sizeof *s->param, by_place);
    /* From here on the arena's, like any source's. */
    list = arena_alloc(s->arena, (size_t)s->n_params * sizeof *list + 1);
    if (s->n_params)
        memcpy(list, s->param, (size_t)s->n_params * sizeof *list);
    free(s->param);
    s->param = list;
    return rc;
}

/* ---- the source ---- */

static int add_file(struct source *s, const char *name, enum file_class cls, const void *bytes, uint64_t size,
                    struct err *e)
{
    struct source_file *f = &s->file[s->n_files];

    *f = (struct source_file){ .name = arena_fmt(s->arena, "%s", name), .cls = cls, .pp = -1, .tp = -1, .dp = -1,
                               .layer = -1 };
    f->file = files_add_mem(s->files, bytes, size, f->name);
    f->pt = pt_open(s->files, f->file, e);
    if (!f->pt)
        return -1;
    s->n_files++;
    return 0;
}

static void take_optimizer(struct source *s, const struct pt *pt)
{
    struct run_state *r = &s->run;
    const struct pk *step;
    struct pt_tensor t;

    r->optimizer = pk_get(pt_root(pt), "optimizer_state_dict");
    s->zero_stage_1 = run_state_zero_stage(r->optimizer) > 0;
    r->param_groups = pk_get(pk_get(r->optimizer, "base_optimizer_state"), "param_groups");
    step = pk_get(ds_group_state(r->optimizer, 0), "step");
    r->opt_step = 0;                    /* known, though not yet what */
    r->step_in_state = step != NULL;
    r->step_is_tensor = step && pt_tensor(pt, step, &t);
}

static int fill(struct source *s, const struct memory_parts *p, struct err *e)
{
    const struct ds spelling = { .bf16_prefix = p->bf16_prefix };
    char buf[96];

    s->file = arena_alloc(s->arena, ((size_t)p->n_mp + 1) * sizeof *s->file);
    for (int i = 0; i < p->n_mp; i++)
        if (add_file(s, ds_mp_name(topo_mp(p->topo, p->mp[i].pp, p->mp[i].tp), buf), FILE_OTHER, p->mp[i].bytes,
                     p->mp[i].size, e) < 0)
            return -1;
    if (p->n_mp)
        run_state_read(s, s->file[0].pt);
    if (p->optimizer) {
        if (add_file(s, ds_zero_name(&spelling, 0, 0, buf), FILE_OPTIMIZER, p->optimizer, p->optimizer_size, e) < 0)
            return -1;
        s->run.optimizer_pt = s->file[s->n_files - 1].pt;
        take_optimizer(s, s->run.optimizer_pt);
    }
    return take_params(s, p, e);
}

struct source *memory_source_new(const struct memory_parts *p, struct err *e)
{
    struct source *s = xcalloc(1, sizeof *s);

    s->kind = LAYOUT_DEEPSPEED;
    s->arena = arena_new(0);
    s->names = arena_alloc(s->arena, sizeof *s->names);
    s->files = files_new();
    s->path = arena_fmt(s->arena, "(new checkpoint)");
    s->tag = s->path;
    s->topo = p->topo;
    s->run.iteration = s->run.consumed_samples = s->run.consumed_tokens = s->run.opt_step = -1;
    if (fill(s, p, e) == 0) {
        const struct param *word = source_param(s, param_embedding_name(ROLE_WORD));

        /* The tensor itself is the best witness of V. */
        if (word)
            s->config.vocab = word->shape[0];
        return s;
    }
    source_close(s);
    return NULL;
}
