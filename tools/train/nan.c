/*
 * nan.c - where the first value that is not finite appeared
 *
 * Looked for in the order in which a step makes values: weights, then what the last
 * micro-batch left behind on its way forward, then gradients.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/files.h"
#include "tools/train/model_impl.h"
#include "tools/train/trainer.h"

enum { CHUNK = 1 << 16 };

/* Values of device memory that are not finite; the first one's number in *first. */
static int64_t count_bad(const struct trainer *t, const void *p, int64_t n, enum dtype dt, int64_t *first)
{
    const int size = dtype_size(dt);
    char *host = xmalloc((size_t)CHUNK * (size_t)size);
    int64_t bad = 0;

    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t m = n - at < CHUNK ? n - at : CHUNK;

        t->k->dev->copy(host, (const char *)p + at * size, (uint64_t)(m * size), NULL);
        t->k->dev->stream_sync(NULL);
        for (int64_t i = 0; i < m; i++)
            if (!isfinite(dtype_value(dt, host + i * size)) && bad++ == 0)
                *first = at + i;
    }
    free(host);
    return bad;
}

struct dump {
    const struct trainer *t;
    struct strbuf sb;
    int n;
};

/* One line of the dump for a tensor that holds such values. */
static void look(struct dump *d, const char *kind, const char *name, int block, const void *p, int64_t n, enum dtype dt)
{
    int64_t first = 0, bad = p ? count_bad(d->t, p, n, dt, &first) : 0;

    if (bad)
        strbuf_addf(&d->sb, "%s\n  {\"kind\": \"%s\", \"name\": \"%s\", \"block\": %d, \"elements\": %lld, "
                    "\"not_finite\": %lld, \"first\": %lld}", d->n++ ? "," : "", kind, name, block, (long long)n,
                    (long long)bad, (long long)first);
}

static void look_at_block(struct dump *d, const struct model *m, int slot, int i)
{
    const struct block_act *a = &m->slot[slot].block[i];
    const int block = m->g->first_block + i;
    const enum dtype dt = m->o.t;

    look(d, "activation", "block input", block, a->x, m->r * m->h, dt);
    /* With full recomputation the rest belongs to whichever block came last. */
    if (m->o.recompute == RECOMPUTE_FULL)
        return;
    look(d, "activation", "query_key_value", block, a->qkv, m->m * 3 * m->a, dt);
    look(d, "activation", "attention output", block, a->o, m->m * m->a, dt);
    look(d, "activation", "behind attention", block, a->y, m->r * m->h, dt);
    look(d, "activation", "mlp before gelu", block, a->pre, m->m * m->f, dt);
}

void write_nan_dump(struct trainer *t, double norm, double loss)
{
    struct dump d = { .t = t };
    const struct stage *g = t->stage;
    const int slot = (int)((t->micro_batches - 1) % t->model_opts.n_slots);
    char *path;
    struct err e = {0};

    if (!t->o.save)
        return;
    strbuf_addf(&d.sb, "{\"iteration\": %lld, \"rank\": %d, \"stage\": %d, \"dp\": %d, \"tp\": %d, \"loss\": \"%g\", "
                "\"grad_norm\": \"%g\", \"not_finite\": [", (long long)t->iteration + 1, t->place->rank, t->rank_pp,
                t->rank_dp, t->rank_tp, loss, norm);
    for (int i = 0; i < g->n_params; i++)
        look(&d, "weight", g->param[i].name, g->param[i].block,
             (char *)t->state.weights + g->param[i].at * dtype_size(t->t), g->param[i].n, t->t);
    for (int i = 0; i < g->n_blocks; i++)
        look_at_block(&d, t->model, slot, i);
    if (g->last)
        look(&d, "activation", "behind the last block", -1, model_output(t->model, slot),
             model_boundary(g, &t->model_opts), t->t);
    for (int i = 0; i < g->n_params; i++)
        look(&d, "gradient", g->param[i].name, g->param[i].block, t->state.grads + g->param[i].at, g->param[i].n,
             DTYPE_F32);
    strbuf_addf(&d.sb, "]}\n");
    path = str_fmt("%s/nan_iteration%lld.rank%d.json", t->o.save, (long long)t->iteration + 1, t->place->rank);
    if (dir_make(t->o.save, &e) < 0 || file_replace(path, d.sb.buf, d.sb.len, &e) < 0)
        fprintf(stderr, "train: %s\n", e.msg);
    free(path);
    strbuf_free(&d.sb);
}
