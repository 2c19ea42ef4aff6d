/* executor_gather.c - choose where the output of a chunk is stored, and gather it there */
#include "libcommon/plan/executor_impl.h"

/* Returns true if the chunk consists of a single piece whose bytes need no change. */
static bool lies_together(const struct chunk *c)
{
    return !c->out && c->last_round && c->n_pieces == 1 && !gather_needs_output(&c->g) &&
           c->piece[0].src.len == c->g.len;
}

/* Returns true if the chunk can be written directly from the input buffer, without a copy. */
static bool lies_right(struct run *x, const struct chunk *c)
{
    struct err e = {0};
    int dst = c->g.item->dst;

    if (!lies_together(c) || c->g.item->n_outs)
        return false;
    if (dst < 0 || c->g.len < SMALL_WRITE || outputs_fd(x->outputs, dst, true, &e) < 0)
        return true;                    /* the chunk is only hashed, or is written through the page cache, which
                                         * needs no alignment */
    return ((uintptr_t)c->src[0] - c->dst_at) % outputs_mem_align(x->outputs, dst) == 0;
}

bool exec_find_place(struct worker *w, struct chunk *c)
{
    struct run *x = w->x;
    bool together = lies_together(c);

    if (c->out || (!plan_writes(c->g.item) && !x->o->look && !gather_needs_output(&c->g)))
        return true;
    exec_pin(x, c);
    if (lies_right(x, c)) {
        c->result = c->src[0];
        return true;
    }
    if (w->n_free == 0)
        return false;
    c->out = w->free_buf[--w->n_free];
    if (c->g.item->n_outs && together) {        /* the columns will be copied to the other buffer */
        c->result = c->src[0];
        return true;
    }
    c->result = c->g.out = c->out + c->dst_at % BLOCK;
    c->g.copy_stride = exec_chunk_bytes(x, c->g.item);
    return true;
}

/*
 * Transpose a gathered chunk of a matrix. The result is stored in a tile. If no tile is free, the chunk is prepared to
 * be written individually.
 */
static enum exec_step transpose_chunk(struct worker *w, struct chunk *c)
{
    struct run *x = w->x;
    const struct plan_item *it = c->g.item;
    uint8_t *in = c->in;                /* the bytes in this buffer have been gathered, so it can hold the result */
    struct tile tile;
    enum tiles_answer answer = TILES_NONE;
    bool written = true;

    if (c->g.len < it->len)
        answer = tiles_put(x->tiles, &c->g, it->dst_at % BLOCK, &tile);
    if (answer == TILES_COMPLETE) {
        written = exec_write_tile(x, it, &tile);
        tiles_done(x->tiles, &tile);
    }
    if (answer != TILES_NONE)
        return written ? EXEC_END : EXEC_FAILED;
    c->result = in + c->dst_at % BLOCK;
    gather_transpose(&c->g, in + c->dst_at % BLOCK);
    c->in = c->out;
    c->out = in;
    return EXEC_WRITE;
}

enum exec_step exec_gather_round(struct worker *w, struct chunk *c)
{
    struct err e = {0};
    bool agree;

    for (int i = 0; i < c->n_pieces; i++)
        if (gather_piece(&c->g, &c->piece[i], c->src[i], &e) < 0) {
            exec_fail(w->x, &e);
            return EXEC_FAILED;
        }
    if (!c->last_round)
        return EXEC_READ;
    agree = gather_end(&c->g);
    if (agree && c->g.item->transpose_row)
        return transpose_chunk(w, c);
    if (w->x->o->look &&
        w->x->o->look(w->x->o->ctx, c->g.item, plan_out_bytes(c->g.item, c->g.from), c->result, exec_out_len(c),
                      &e) < 0) {
        exec_fail(w->x, &e);
        return EXEC_FAILED;
    }
    return agree && plan_writes(c->g.item) ? EXEC_WRITE : EXEC_END;
}
