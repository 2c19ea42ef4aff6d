/*
 * model_tensor.c - tensor parallelism: who holds which rows, sums and gathers
 *
 * A block costs two sums over tensor ranks each way. On a GPU the forward pass works on
 * two halves of the samples in turn, so that the sums of one half travel while the other is computed; the
 * backward pass needs no halves, as the weights' gradients do not wait for a sum.
 *
 * Sequence parallelism (Korthikanti et al. 2022) keeps the residual stream, and all that is done on it row by
 * row, split over the tensor ranks: a sum becomes a reduce-scatter, and rows are gathered before each product.
 * The bytes that travel are the same; activations between the products take 1 / tp of the memory.
 */
#include "tools/train/model_impl.h"

static struct cut cut_of(const struct model *m, int n)
{
    const int tp = m->g->topo.tp, share = m->o.sequence_parallel ? tp : 1;
    struct cut c = { .n = n };

    for (int i = 0; i < n; i++) {
        struct part *p = &c.part[i];

        p->samples = m->o.b / n;
        p->sample = i * p->samples;
        p->rows = m->m / n;
        p->row = i * p->rows;
        p->n_own = p->rows / share;
        p->own = i * p->n_own;
        p->number = p->row + (share > 1 ? m->g->tp * p->n_own : 0);
    }
    return c;
}

void cut_rows(struct model *m)
{
    const int n = m->g->topo.tp > 1 && m->o.b % MAX_PARTS == 0 ? MAX_PARTS : 1;

    m->there = cut_of(m, n);
    /* Own rows must be the same ones both ways. */
    m->back = m->o.sequence_parallel ? m->there : cut_of(m, 1);
    m->r = m->o.sequence_parallel ? m->m / m->g->topo.tp : m->m;
}

int tp_sum_start(struct model *m, const struct cut *c, int i, void *x, struct dev_stream *s, struct err *e)
{
    const struct part *p = &c->part[i];
    void *rows = row_of(m, x, p->row, m->h);

    if (m->o.sequence_parallel)
        return comm_reduce_scatter_start(m->tp, rows, row_of(m, x, p->number, m->h), p->n_own * m->h, m->o.t, COMM_SUM,
                                         s, &m->sum[i], e);
    return comm_all_reduce_start(m->tp, rows, rows, p->rows * m->h, m->o.t, COMM_SUM, s, &m->sum[i], e);
}

int tp_sum_wait(struct model *m, int i, struct dev_stream *s, struct err *e) { return comm_wait(&m->sum[i], s, e); }

int tp_sums_start(struct model *m, const struct cut *c, void *x, struct dev_stream *s, struct err *e)
{
    for (int i = 0; i < c->n; i++)
        if (tp_sum_start(m, c, i, x, s, e) < 0)
            return -1;
    return 0;
}

int tp_sums_wait(struct model *m, const struct cut *c, struct dev_stream *s, struct err *e)
{
    for (int i = 0; i < c->n; i++)
        if (tp_sum_wait(m, i, s, e) < 0)
            return -1;
    return 0;
}

int tp_gather_start(struct model *m, const struct cut *c, int i, const void *x, struct dev_stream *s, struct err *e)
{
    const struct part *p = &c->part[i];

    if (!m->o.sequence_parallel)
        return 0;
    return comm_all_gather_start(m->tp, row_of(m, x, p->own, m->h), row_of(m, m->full, p->row, m->h), p->n_own * m->h,
                                 m->o.t, s, &m->gather[i], e);
}

int tp_gather_wait(struct model *m, int i, struct dev_stream *s, struct err *e)
{
    return comm_wait(&m->gather[i], s, e);
}

/* Copies lie between the split weights of a block in a few runs: one sum each. */
int tp_sum_copies(struct model *m, int block, struct dev_stream *s, struct err *e)
{
    const struct stage *g = m->g;

    if (!m->o.sequence_parallel)
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
        if (comm_all_reduce(m->tp, m->st.grads + first->at, m->st.grads + first->at, last->at + last->n - first->at,
                            DTYPE_F32, COMM_SUM, s, e) < 0)
            return -1;
    }
    return 0;
}
