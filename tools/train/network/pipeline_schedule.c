/* pipeline_schedule.c - the 1F1B schedule, with the messages of comm.h */
#include <stdlib.h>

#include "tools/train/network/pipeline_schedule.h"

struct pipeline {
    struct pipeline_parts of;
    struct model_opts opts;
    int64_t n_elems;                    /* number of elements of a boundary tensor */
    struct micro_batch *batch;          /* [slots] */
    struct comm_req **output_sent;      /* [slots] sends of outputs that have been started */
    /* Two buffers for gradients at a stage boundary: one is being sent while the other is computed. */
    void *grad[2];
    struct comm_req *grad_sent[2];
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

struct pipeline *pipeline_new(const struct pipeline_parts *of, struct err *e)
{
    struct pipeline *p = xcalloc(1, sizeof *p);
    const uint64_t bytes = pipeline_bytes(of->stage, of->opts);

    p->of = *of;
    p->opts = *of->opts;
    p->n_elems = model_boundary(of->stage, of->opts);
    p->batch = xcalloc((size_t)of->opts->n_slots, sizeof *p->batch);
    p->output_sent = xcalloc((size_t)of->opts->n_slots, sizeof *p->output_sent);
    p->grad[0] = of->kernels->dev->alloc(bytes, e);
    if (!p->grad[0]) {
        pipeline_free(p);
        return NULL;
    }
    p->grad[1] = has_boundary(of->stage) ? (char *)p->grad[0] + bytes / 2 : p->grad[0];
    return p;
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    p->of.kernels->dev->free(p->grad[0]);
    free(p->batch);
    free(p->output_sent);
    free(p);
}

static int receive(struct pipeline *p, void *buf, int from, struct dev_stream *s, struct err *e)
{
    struct comm_req *req = NULL;

    if (comm_recv_start(p->of.group, &(struct comm_data){ .out = buf, .n = p->n_elems, .t = p->opts.t }, from, s, &req,
                        e) < 0)
        return -1;
    return comm_wait(&req, s, e);
}

static int forward(struct pipeline *p, int i, int n, bool training, struct dev_stream *s, struct err *e)
{
    const int slot = i % p->opts.n_slots;
    struct micro_batch *mb = &p->batch[slot];

    watch_phase(p->of.watch, training ? "forward" : "evaluation", p->step, i);
    /* The output of this slot will be overwritten, so its previous output must have been sent. */
    if (comm_wait(&p->output_sent[slot], s, e) < 0 || p->of.get(p->of.ctx, i, slot, mb, e) < 0)
        return -1;
    mb->training = training;
    mb->step = p->step;
    mb->add = i > 0;
    mb->last = i == n - 1;
    if (!p->of.stage->first && receive(p, model_input(p->of.model, slot), p->of.stage->pp - 1, s, e) < 0)
        return -1;
    if (model_forward(p->of.model, slot, mb, s, e) < 0)
        return -1;
    if (p->of.stage->last)
        return 0;
    return comm_send_start(p->of.group, &(struct comm_data){ .in = model_output(p->of.model, slot), .n = p->n_elems,
                                                             .t = p->opts.t }, p->of.stage->pp + 1, s,
                           &p->output_sent[slot], e);
}

static int backward(struct pipeline *p, int i, struct dev_stream *s, struct err *e)
{
    const int slot = i % p->opts.n_slots, side = i % 2;

    watch_phase(p->of.watch, "backward", p->step, i);
    if (comm_wait(&p->grad_sent[side], s, e) < 0)
        return -1;
    if (!p->of.stage->last && receive(p, p->grad[side], p->of.stage->pp + 1, s, e) < 0)
        return -1;
    if (model_backward(p->of.model, slot, &p->batch[slot], p->grad[side], s, e) < 0)
        return -1;
    if (p->of.stage->first)
        return 0;
    return comm_send_start(p->of.group, &(struct comm_data){ .in = p->grad[side], .n = p->n_elems, .t = p->opts.t },
                           p->of.stage->pp - 1, s, &p->grad_sent[side], e);
}

/* Wait until all sends are complete. */
static int wait_for_pipeline_sends(struct pipeline *p, struct dev_stream *s, struct err *e)
{
    for (int i = 0; i < p->opts.n_slots; i++)
        if (comm_wait(&p->output_sent[i], s, e) < 0)
            return -1;
    return comm_wait(&p->grad_sent[0], s, e) < 0 ? -1 : comm_wait(&p->grad_sent[1], s, e);
}

int pipeline_train(struct pipeline *p, int n, int64_t step, struct dev_stream *s, struct err *e)
{
    const int most = p->of.stage->topo.pp - p->of.stage->pp - 1, ahead = most < n ? most : n;

    p->step = step;
    if (p->of.stage->last)
        model_loss_begin(p->of.model, s);
    for (int i = 0; i < ahead; i++)
        if (forward(p, i, n, true, s, e) < 0)
            return -1;
    for (int i = 0; i < n; i++) {
        if (ahead + i < n && forward(p, ahead + i, n, true, s, e) < 0)
            return -1;
        if (backward(p, i, s, e) < 0)
            return -1;
    }
    return wait_for_pipeline_sends(p, s, e);
}

int pipeline_eval(struct pipeline *p, int n, struct dev_stream *s, struct err *e)
{
    if (p->of.stage->last)
        model_loss_begin(p->of.model, s);
    for (int i = 0; i < n; i++)
        if (forward(p, i, n, false, s, e) < 0)
            return -1;
    return wait_for_pipeline_sends(p, s, e);
}
