/*
 * model_head.c - logits, loss, and the gradients of both
 *
 * Rows are worked on in chunks. Of each chunk the tensor ranks exchange three numbers a
 * row (maximum, sum of exponentials, the target's logit), in place of the reference's
 * three reductions; everybody then knows the same loss, to the bit.
 */
#include "tools/train/model_impl.h"

static int chunk(struct model *m, const struct micro_batch *mb, int64_t row0, int64_t rows, struct dev_stream *s,
                 struct err *e)
{
    const struct kernels *k = m->k;
    const enum dtype t = m->o.t;
    const int64_t first = m->g->tp * m->v, at = row0 * m->h * dtype_size(t);
    const void *word = weight_of(m, -1, ROLE_WORD);
    float *grad;

    k->linear(&(struct kernel_linear){
        .m = rows, .n = m->v, .k = m->h, .x = (char *)m->fin + at, .w = word, .y = m->logits,
    }, t, s);
    if (m->look)
        m->look(m->look_ctx, row0, rows, m->logits);
    k->xent_stat(m->stat, &(struct kernel_xent){
        .m = rows, .v = m->v, .first = first, .target = mb->labels + row0, .logits = m->logits,
    }, t, s);
    if (m->stats && comm_all_gather(m->tp, m->stat, m->stats, rows * 3, DTYPE_F32, s, e) < 0)
        return -1;
    k->xent_loss(m->loss_rows + row0, m->lse, m->stats ? m->stats : m->stat, m->g->topo.tp, rows, s);
    if (!mb->training)
        return 0;
    grad = m->head_grad ? m->head_grad : grad_of(m, -1, ROLE_WORD);
    k->xent_back(&(struct kernel_xent){
        .m = rows, .v = m->v, .first = first, .target = mb->labels + row0, .logits = m->logits,
    }, m->lse, mb->grad_weight + row0, t, s);
    k->linear_dw(&(struct kernel_linear_dw){
        .m = rows, .n = m->v, .k = m->h, .dy = m->logits, .x = (char *)m->fin + at, .dw = grad,
        .add = mb->add || row0 > 0,
    }, t, s);
    k->linear_dx(&(struct kernel_linear_dx){
        .m = rows, .n = m->v, .k = m->h, .dy = m->logits, .w = word, .dx = (char *)m->d_fin + at,
    }, t, s);
    return 0;
}

/* All tensor ranks see all rows. */
static int gather_fin(struct model *m, struct dev_stream *s, struct err *e)
{
    for (int i = 0; i < m->there.n && m->o.sequence_parallel; i++) {
        const struct part *p = &m->there.part[i];

        if (comm_all_gather(m->tp, row_of(m, m->fin, p->number, m->h), row_of(m, m->fin, p->row, m->h),
                            p->n_own * m->h, m->o.t, s, e) < 0)
            return -1;
    }
    return 0;
}

int head(struct model *m, const struct micro_batch *mb, struct dev_stream *s, struct err *e)
{
    if (gather_fin(m, s, e) < 0)
        return -1;
    for (int64_t row = 0; row < m->m; row += m->head_rows)
        if (chunk(m, mb, row, m->m - row < m->head_rows ? m->m - row : m->head_rows, s, e) < 0)
            return -1;
    m->k->weighted_sum(m->loss + 1, m->loss_rows, mb->weight, m->m, s);
    m->k->sum_doubles(m->loss, m->loss + 1, 1, s);
    if (!mb->training)
        return 0;
    return tp_sums_start(m, &m->back, m->d_fin, s, e) < 0 ? -1 : tp_sums_wait(m, &m->back, s, e);
}
