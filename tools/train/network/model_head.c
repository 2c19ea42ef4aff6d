/*
 * model_head.c - logits, loss, and the gradients of both
 *
 * Rows are processed in chunks. For each chunk the tensor ranks exchange three numbers per row: the maximum, the sum of
 * exponentials, and the target's logit. (The reference uses three reductions instead.) All ranks then compute the same
 * loss, bit by bit.
 */
#include "tools/train/network/model_impl.h"

static int chunk(struct model *m, const struct micro_batch *mb, int64_t row0, int64_t rows, struct dev_stream *s,
                 struct err *e)
{
    const struct kernels *k = m->kernels;
    const enum dtype t = m->opts.t;
    const int64_t first = m->stage->tp * m->vocab, at = row0 * m->hidden * dtype_size(t);
    const void *word = model_param_weights(m, -1, ROLE_WORD);
    void *grad;

    k->linear(&(struct kernel_linear){
        .m = rows, .n = m->vocab, .k = m->hidden, .x = (char *)m->final_norm + at, .w = word, .y = m->logits,
    }, t, s);
    if (m->on_logits)
        m->on_logits(m->on_logits_ctx, row0, rows, m->logits);
    k->xent_stat(m->stat, &(struct kernel_xent){
        .m = rows, .v = m->vocab, .first = first, .target = mb->labels + row0, .logits = m->logits,
    }, t, s);
    if (m->all_stat && comm_all_gather(m->tp_group, &(struct comm_data){ .in = m->stat, .out = m->all_stat,
                                                                         .n = rows * 3, .t = DTYPE_F32 }, s, e) < 0)
        return -1;
    k->xent_loss(m->loss_rows + row0, m->lse, m->all_stat ? m->all_stat : m->stat, m->stage->topo.tp, rows, s);
    if (!mb->training)
        return 0;
    grad = m->head_grad ? m->head_grad : grad_of(m, -1, ROLE_WORD);
    k->xent_back(&(struct kernel_xent){
        .m = rows, .v = m->vocab, .first = first, .target = mb->labels + row0, .logits = m->logits,
    }, m->lse, mb->grad_weight + row0, t, s);
    k->linear_dw(&(struct kernel_linear_dw){
        .m = rows, .n = m->vocab, .k = m->hidden, .dy = m->logits, .x = (char *)m->final_norm + at, .dw = grad,
        .add = mb->add || row0 > 0, .grad_t = m->opts.grad_t,
    }, t, s);
    k->linear_dx(&(struct kernel_linear_dx){
        .m = rows, .n = m->vocab, .k = m->hidden, .dy = m->logits, .w = word, .dx = (char *)m->d_final_norm + at,
    }, t, s);
    return 0;
}

/* Gather the rows of the final LayerNorm's output from all tensor ranks, on each of them. */
static int gather_fin(struct model *m, struct dev_stream *s, struct err *e)
{
    for (int i = 0; i < m->forward.n && m->opts.sequence_parallel; i++) {
        const struct model_part *p = &m->forward.part[i];

        if (comm_all_gather(m->tp_group,
                            &(struct comm_data){ .in = model_row_address(m, m->final_norm, p->own_row, m->hidden),
                                                 .out = model_row_address(m, m->final_norm, p->row, m->hidden),
                                                 .n = p->own_rows * m->hidden,
                                                 .t = m->opts.t },
                            s, e) < 0)
            return -1;
    }
    return 0;
}

int model_head(struct model *m, const struct micro_batch *mb, struct dev_stream *s, struct err *e)
{
    if (gather_fin(m, s, e) < 0)
        return -1;
    for (int64_t row = 0; row < m->rows; row += m->head_rows)
        if (chunk(m, mb, row, m->rows - row < m->head_rows ? m->rows - row : m->head_rows, s, e) < 0)
            return -1;
    m->kernels->weighted_sum(m->loss + 1, m->loss_rows, mb->weight, m->rows, s);
    m->kernels->sum_doubles(m->loss, m->loss + 1, 1, s);
    if (!mb->training)
        return 0;
    return model_sums_start(m, &m->backward, m->d_final_norm, s, e) < 0 ? -1 : model_sums_wait(m, &m->backward, s, e);
}
