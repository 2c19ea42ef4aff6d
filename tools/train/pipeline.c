/* pipeline.c - the 1F1B schedule over comm.h */
#include <stdlib.h>

#include "tools/train/pipeline.h"

struct pipeline {
    const struct stage *g;
    struct model *m;
    const struct kernels *k;
    struct comm *pipe;
    struct watch *watch;
    struct model_opts o;
    int64_t n_elems;                    /* of a boundary tensor */
    struct micro_batch *mb;             /* [slots] */
    struct comm_req **sent;             /* [slots] outputs on their way */
    void *d[2];                         /* gradients at the boundary: one on its way, one in work */
    struct comm_req *d_sent[2];
    int64_t step;
};

static bool has_boundary(const struct stage *g) { return g->topo.pp > 1; }

uint64_t pipeline_bytes(const struct stage *g, const struct model_opts *o)
{
    uint64_t one = (uint64_t)model_boundary(g, o) * (uint64_t)dtype_size(o->t);

    return align_up(one, 256) * (has_boundary(g) ? 2 : 1);
}

uint64_t pipeline_boxes(const struct stage *g, const struct model_opts *o)
{
    const uint64_t one = (uint64_t)model_boundary(g, o) * (uint64_t)dtype_size(o->t);

    return align_up(one, 256) * 2 * (uint64_t)(!g->first + !g->last);
}

struct pipeline *pipeline_new(const struct stage *g, struct model *m, const struct kernels *k,
                              const struct model_opts *o, struct comm *pipe, struct watch *watch, struct err *e)
{
    struct pipeline *p = xcalloc(1, sizeof *p);

    p->g = g;
    p->m = m;
    p->k = k;
    p->pipe = pipe;
    p->watch = watch;
    p->o = *o;
    p->n_elems = model_boundary(g, o);
    p->mb = xcalloc((size_t)o->n_slots, sizeof *p->mb);
    p->sent = xcalloc((size_t)o->n_slots, sizeof *p->sent);
    p->d[0] = k->dev->alloc(pipeline_bytes(g, o), e);
    if (!p->d[0]) {
        pipeline_free(p);
        return NULL;
    }
    p->d[1] = has_boundary(g) ? (char *)p->d[0] + pipeline_bytes(g, o) / 2 : p->d[0];
    return p;
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    p->k->dev->free(p->d[0]);
    free(p->mb);
    free(p->sent);
    free(p);
}

static int receive(struct pipeline *p, void *buf, int from, struct dev_stream *s, struct err *e)
{
    struct comm_req *req = NULL;

    if (comm_recv_start(p->pipe, buf, p->n_elems, p->o.t, from, s, &req, e) < 0)
        return -1;
    return comm_wait(&req, s, e);
}

static int forward(struct pipeline *p, int i, int n, bool training, pipeline_batch get, void *ctx, struct dev_stream *s,
                   struct err *e)
{
    const int slot = i % p->o.n_slots;

    watch_phase(p->watch, training ? "forward" : "evaluation", p->step, i);
    /* The slot's last output must have left before it is written over. */
    if (comm_wait(&p->sent[slot], s, e) < 0 || get(ctx, i, slot, &p->mb[slot], e) < 0)
        return -1;
    p->mb[slot].training = training;
    p->mb[slot].step = p->step;
    p->mb[slot].add = i > 0;
    p->mb[slot].last = i == n - 1;
    if (!p->g->first && receive(p, model_input(p->m, slot), p->g->pp - 1, s, e) < 0)
        return -1;
    if (model_forward(p->m, slot, &p->mb[slot], s, e) < 0)
        return -1;
    if (p->g->last)
        return 0;
    return comm_send_start(p->pipe, model_output(p->m, slot), p->n_elems, p->o.t, p->g->pp + 1, s, &p->sent[slot], e);
}

static int backward(struct pipeline *p, int i, struct dev_stream *s, struct err *e)
{
    const int slot = i % p->o.n_slots, side = i % 2;

    watch_phase(p->watch, "backward", p->step, i);
    if (comm_wait(&p->d_sent[side], s, e) < 0)
        return -1;
    if (!p->g->last && receive(p, p->d[side], p->g->pp + 1, s, e) < 0)
        return -1;
    if (model_backward(p->m, slot, &p->mb[slot], p->d[side], s, e) < 0)
        return -1;
    if (p->g->first)
        return 0;
    return comm_send_start(p->pipe, p->d[side], p->n_elems, p->o.t, p->g->pp - 1, s, &p->d_sent[side], e);
}

/* Everything that was sent has arrived. */
static int settle(struct pipeline *p, struct dev_stream *s, struct err *e)
{
    for (int i = 0; i < p->o.n_slots; i++)
        if (comm_wait(&p->sent[i], s, e) < 0)
            return -1;
    return comm_wait(&p->d_sent[0], s, e) < 0 ? -1 : comm_wait(&p->d_sent[1], s, e);
}

int pipeline_train(struct pipeline *p, int n, int64_t step, pipeline_batch get, void *ctx, struct dev_stream *s,
                   struct err *e)
{
    const int most = p->g->topo.pp - p->g->pp - 1, ahead = most < n ? most : n;

    p->step = step;
    if (p->g->last)
        model_loss_begin(p->m, s);
    for (int i = 0; i < ahead; i++)
        if (forward(p, i, n, true, get, ctx, s, e) < 0)
            return -1;
    for (int i = 0; i < n; i++) {
        if (ahead + i < n && forward(p, ahead + i, n, true, get, ctx, s, e) < 0)
            return -1;
        if (backward(p, i, s, e) < 0)
            return -1;
    }
    return settle(p, s, e);
}

int pipeline_eval(struct pipeline *p, int n, pipeline_batch get, void *ctx, struct dev_stream *s, struct err *e)
{
    if (p->g->last)
        model_loss_begin(p->m, s);
    for (int i = 0; i < n; i++)
        if (forward(p, i, n, false, get, ctx, s, e) < 0)
            return -1;
    return settle(p, s, e);
}
