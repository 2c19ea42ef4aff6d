/*
 * executor_cut.c - where a chunk of an item ends, and who gets the next
 */
#include <assert.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/executor_impl.h"

/*
 * Dealt out by columns: whole rows, whose parts for each destination fit a buffer side by
 * side, each with a block to spare at either end; blocks, where a few rows make whole ones.
 */
static uint64_t column_chunk(const struct run *x, const struct plan_item *it)
{
    uint64_t n = (uint64_t)it->n_outs, row = n * it->part, part = plan_out_bytes(it, it->part);
    uint64_t room = min_u64(x->chunk, x->chunk + SLACK - n * 2 * BLOCK), rows = room / max_u64(row, n * part);
    uint64_t whole = BLOCK;

    assert(rows > 0 && it->map->op != TMAP_REPLICAS && !it->transpose_row);
    while (whole > 1 && part * (whole / 2) % BLOCK == 0)
        whole /= 2;
    return (rows < whole ? rows : align_down(rows, whole)) * row;
}

uint64_t exec_chunk_bytes(const struct run *x, const struct plan_item *it)
{
    uint64_t n = (uint64_t)it->map->n_slices, share;

    if (it->map->op != TMAP_REPLICAS || n < 2)
        return x->chunk;
    /* All copies lie side by side in one buffer. */
    share = (x->chunk + SLACK - BLOCK) / n;
    share = share >= BLOCK ? align_down(share, BLOCK) : align_down(share, 16);
    assert(share > 0);
    return min_u64(share, x->chunk);
}

/* Bytes from the item's byte `at` to the end of that chunk. */
static uint64_t cut_chunk(const struct run *x, const struct plan_item *it, uint64_t at)
{
    /* Counted in map bytes, of which a conversion may make half or twice as many: its output must fit a buffer too. */
    bool wider = plan_out_bytes(it, 2) > 2, narrower = plan_out_bytes(it, 2) < 2;
    uint64_t unit = exec_chunk_bytes(x, it) / (wider ? 2 : 1);
    uint64_t place = (it->dst < 0 ? 0 : wider ? it->dst_at / 2 : narrower ? 2 * it->dst_at : it->dst_at) + at;
    uint64_t len = min_u64(unit - place % unit, it->len - at);

    if (it->transpose_row) {            /* whole rows: each becomes an element of every run */
        assert(it->transpose_row <= unit && it->len % it->transpose_row == 0 && it->dst >= 0);
        return min_u64(align_down(unit, it->transpose_row), it->len - at);
    }
    if (it->n_outs)
        return min_u64(column_chunk(x, it), it->len - at);
    /* Replicas are compared, and numbers converted, by elements: an odd destination must not cut one. */
    if ((it->map->op == TMAP_REPLICAS || it->op != PLAN_COPY) && at + len < it->len) {
        uint64_t elem = plan_elem_bytes(it);

        len = len >= elem ? align_down(at + len, elem) - at : min_u64(elem, it->len - at);
    }
    return len;
}

uint64_t exec_widest_columns(struct plan *p)
{
    uint64_t most = 0;

    for (int i = 0; i < plan_n(p); i++) {
        const struct plan_item *it = plan_item(p, i);
        uint64_t n = (uint64_t)it->n_outs;

        if (n)
            most = max_u64(most, n * (max_u64(it->part, plan_out_bytes(it, it->part)) + 2 * BLOCK));
    }
    return align_up(most, BLOCK);
}

/* Twins are cut where either must be. */
static uint64_t cut_next(const struct run *x)
{
    const struct plan_item *it = plan_item(x->plan, x->next_item);
    uint64_t len = cut_chunk(x, it, x->next_at);

    return it->twins ? min_u64(len, cut_chunk(x, plan_item(x->plan, x->next_item + 1), x->next_at)) : len;
}

/* Under the lock: hand out what is next, false when nothing is. */
static bool take_next(struct run *x, int *item, uint64_t *at, uint64_t *len)
{
    while (x->next_item < plan_n(x->plan)) {
        const struct plan_item *it = plan_item(x->plan, x->next_item);
        bool turns = it->twins && !x->next_twin;

        if (it->done || (x->next_at == it->len && it->len)) {
            x->next_item += it->twins ? 2 : 1;
            x->next_at = 0;
            continue;
        }
        *item = x->next_item + x->next_twin;
        *at = x->next_at;
        *len = cut_next(x);
        x->next_twin = turns;
        if (turns)
            return true;
        x->next_at += *len;
        /* An empty item is one empty chunk. */
        if (it->len == 0)
            x->next_item += it->twins ? 2 : 1;
        return true;
    }
    return false;
}

bool exec_take_chunk(struct run *x, int *item, uint64_t *at, uint64_t *len)
{
    bool found;

    if (x->o->stopped && x->o->stopped()) {
        struct err e = {0};

        err_stop(&e);
        return exec_fail(x, &e);
    }
    pthread_mutex_lock(&x->lock);
    found = !x->stop && take_next(x, item, at, len);
    pthread_mutex_unlock(&x->lock);
    return found;
}
