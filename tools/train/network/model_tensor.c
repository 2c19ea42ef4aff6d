/*
 * model_tensor.c - tensor parallelism: distribution of rows, sums and gathers
 *
 * A block costs two sums over tensor ranks in each direction. If possible, the forward pass processes two halves of
 * the samples alternately, so that the sums of one half are communicated while the other half is computed. The backward
 * pass does not need halves: while a sum is communicated, it computes gradients of weights, which do not depend on the
 * sum.
 *
 * Sequence parallelism (Korthikanti et al. 2022) splits the residual stream, and all operations on its single rows,
 * over the tensor ranks: a sum becomes a reduce-scatter, and rows are gathered before each product. The number of
 * bytes communicated is the same; activations between the products need 1 / tp of the memory.
 */
#include "tools/train/network/model_impl.h"

static struct model_cut cut_of(const struct model *m, int n)
{
    const int tp = m->stage->topo.tp, share = m->opts.sequence_parallel ? tp : 1;
    struct model_cut c = { .n = n };

    for (int i = 0; i < n; i++) {
        struct model_part *p = &c.part[i];

        p->samples = m->opts.b / n;
        p->sample = i * p->samples;
        p->rows = m->rows / n;
        p->row = i * p->rows;
        p->own_rows = p->rows / share;
        p->own_at = i * p->own_rows;
        p->own_row = p->row + (share > 1 ? m->stage->tp * p->own_rows : 0);
    }
    return c;
}

void model_cut_rows(struct model *m)
{
    const int n = m->stage->topo.tp > 1 && m->opts.b % MAX_PARTS == 0 ? MAX_PARTS : 1;

    m->forward = cut_of(m, n);
    /* this rank must hold the same rows in both passes */
    m->backward = m->opts.sequence_parallel ? m->forward : cut_of(m, 1);
    m->own_rows = m->opts.sequence_parallel ? m->rows / m->stage->topo.tp : m->rows;
}

int model_sum_start(struct model *m, const struct model_cut *c, int i, void *x, struct dev_stream *s, struct err *e)
{
    const struct model_part *p = &c->part[i];
    void *rows = model_row_address(m, x, p->row, m->hidden);

    if (m->opts.sequence_parallel)
        return comm_reduce_scatter_start(m->tp_group,
                                         &(struct comm_data){ rows, model_row_address(m, x, p->own_row, m->hidden),
                                                              p->own_rows * m->hidden, m->opts.t, COMM_SUM },
                                         s, &m->sum_req[i], e);
    return comm_all_reduce_start(m->tp_group, &(struct comm_data){ rows, rows, p->rows * m->hidden, m->opts.t,
                                                                   COMM_SUM }, s, &m->sum_req[i], e);
}

int model_sum_wait(struct model *m, int i, struct dev_stream *s, struct err *e)
{
    return comm_wait(&m->sum_req[i], s, e);
}

int model_sums_start(struct model *m, const struct model_cut *c, void *x, struct dev_stream *s, struct err *e)
{
    for (int i = 0; i < c->n; i++)
        if (model_sum_start(m, c, i, x, s, e) < 0)
            return -1;
    return 0;
}

int model_sums_wait(struct model *m, const struct model_cut *c, struct dev_stream *s, struct err *e)
{
    for (int i = 0; i < c->n; i++)
        if (model_sum_wait(m, i, s, e) < 0)
            return -1;
    return 0;
}

int model_gather_start(struct model *m, const struct model_cut *c, int i, const void *x, struct dev_stream *s,
                       struct err *e)
{
    const struct model_part *p = &c->part[i];

    if (!m->opts.sequence_parallel)
        return 0;
    return comm_all_gather_start(m->tp_group,
                                 &(struct comm_data){ .in = model_row_address(m, x, p->own_at, m->hidden),
                                                      .out = model_row_address(m, m->gathered, p->row, m->hidden),
                                                      .n = p->own_rows * m->hidden,
                                                      .t = m->opts.t },
                                 s, &m->gather_req[i], e);
}

int model_gather_wait(struct model *m, int i, struct dev_stream *s, struct err *e)
{
    return comm_wait(&m->gather_req[i], s, e);
}

/*
 * A block has a few contiguous runs of replicated parameters, which lie between its split weights. Each run is summed
 * at once.
 */
int model_sum_copies(struct model *m, int block, struct dev_stream *s, struct err *e)
{
    const struct stage *g = m->stage;

    if (!m->opts.sequence_parallel)
        return 0;
    for (int i = 0; i < g->n_params; i++) {
        const struct stage_param *first = &g->param[i], *last = first;

        if (first->split || first->untrained || first->block != (block < 0 ? -1 : g->first_block + block))
            continue;
        while (i + 1 < g->n_params && !last[1].split && !last[1].untrained && last[1].block == first->block &&
               last[1].at - (last->at + last->n) < STAGE_ALIGN) {
            last++;
            i++;
        }
        if (comm_all_reduce(m->tp_group, &(struct comm_data){ grad_at(m, first->at), grad_at(m, first->at),
                                                              last->at + last->n - first->at, model_grad_dtype(m),
                                                              COMM_SUM }, s, e) < 0)
            return -1;
    }
    return 0;
}
