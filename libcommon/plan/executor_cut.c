/* executor_cut.c - compute where a chunk of an item ends, and which chunk a worker gets next */
#include <assert.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/executor_impl.h"

/*
 * Returns the chunk size of an item whose columns are distributed over several destinations. A chunk consists of whole
 * rows. Its parts for all destinations must fit next to each other in one buffer, each with a spare block at both ends.
 * If a few rows are a multiple of the block size, chunks are multiples of it, too.
 */
static uint64_t column_chunk(const struct run *x, const struct plan_item *it)
{
    uint64_t n = (uint64_t)it->n_outs, row = n * it->part, part = plan_out_bytes(it, it->part);
    uint64_t room = min_u64(x->chunk, x->chunk + SLACK - n * 2 * BLOCK), rows = room / max_u64(row, n * part);
    uint64_t whole = BLOCK;

    assert(rows > 0 && !tmap_overlays(it->map) && !it->transpose_row);
    while (whole > 1 && part * (whole / 2) % BLOCK == 0)
        whole /= 2;
    return (rows < whole ? rows : align_down(rows, whole)) * row;
}

uint64_t exec_chunk_bytes(const struct run *x, const struct plan_item *it)
{
    uint64_t n = (uint64_t)it->map->n_slices, share;

    if (tmap_layers(it->map) < 2)
        return x->chunk;
    /* All copies of the chunk are stored in one buffer, one after the other. */
    share = (x->chunk + SLACK - BLOCK) / n;
    share = share >= BLOCK ? align_down(share, BLOCK) : align_down(share, 16);
    assert(share > 0);
    return min_u64(share, x->chunk);
}

/* Returns the number of bytes from byte `at` of the item to the end of the chunk that contains this byte. */
static uint64_t cut_chunk(const struct run *x, const struct plan_item *it, uint64_t at)
{
    /*
     * Lengths count bytes of the map. A conversion may halve or double the size. The converted chunk must also fit in a
     * buffer.
     */
    bool wider = plan_out_bytes(it, 2) > 2, narrower = plan_out_bytes(it, 2) < 2;
    uint64_t unit = exec_chunk_bytes(x, it) / (wider ? 2 : 1);
    uint64_t place = (it->dst < 0 ? 0 : wider ? it->dst_at / 2 : narrower ? 2 * it->dst_at : it->dst_at) + at;
    uint64_t len = min_u64(unit - place % unit, it->len - at);

    if (it->transpose_row) {            /* whole rows, because each becomes one element of every run */
        assert(it->transpose_row <= unit && it->len % it->transpose_row == 0 && it->dst >= 0);
        return min_u64(align_down(unit, it->transpose_row), it->len - at);
    }
    if (it->n_outs)
        return min_u64(column_chunk(x, it), it->len - at);
    /*
     * Replicas are compared, numbers are converted, and invalid values are counted one element at a time. A chunk must
     * therefore not end inside an element, even if the destination offset is not a multiple of the element size.
     */
    if ((tmap_overlays(it->map) || it->op != PLAN_COPY || it->values != PLAN_VALUES_NONE) && at + len < it->len) {
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

/* ---- handing out chunks ---- */

/*
 * Divide the plan into lanes of equal numbers of bytes. On an in-memory file system, each write holds a lock of the
 * file while it copies, so workers that write to the same file would wait for each other. Each worker therefore starts
 * in a lane of its own. On a disk there is one lane, so that reads and writes stay in the order in which the files are
 * stored.
 */
void exec_share_lanes(struct run *x, int workers)
{
    int n = plan_n(x->plan), k = 0;
    uint64_t total = 0, before = 0;

    x->n_lanes = outputs_in_memory(x->outputs) ? workers : 1;
    x->lane = xcalloc((size_t)x->n_lanes, sizeof *x->lane);
    for (int i = 0; i < n; i++)
        total += plan_item(x->plan, i)->left;
    for (int i = 0; i < n; i++) {
        bool joined = i > 0 && plan_item(x->plan, i - 1)->twins;

        while (!joined && k + 1 < x->n_lanes && before >= total / (uint64_t)x->n_lanes * (uint64_t)(k + 1)) {
            x->lane[k++].end = i;
            x->lane[k].item = i;
        }
        before += plan_item(x->plan, i)->left;
    }
    for (x->lane[k].end = n; ++k < x->n_lanes; )
        x->lane[k] = (struct exec_lane){ .item = n, .end = n };
}

/*
 * Returns the length of the lane's next chunk. If the next item has a twin, the chunk ends at the nearest position
 * where a chunk of either item must end.
 */
static uint64_t cut_next(const struct run *x, const struct exec_lane *l)
{
    const struct plan_item *it = plan_item(x->plan, l->item);
    uint64_t len = cut_chunk(x, it, l->at);

    return it->twins ? min_u64(len, cut_chunk(x, plan_item(x->plan, l->item + 1), l->at)) : len;
}

/* Get the lane's next chunk. Returns false if the lane has no more chunks. Must be called with the lock held. */
static bool next_lane_chunk(struct run *x, struct exec_lane *l, int *item, uint64_t *at, uint64_t *len)
{
    while (l->item < l->end) {
        const struct plan_item *it = plan_item(x->plan, l->item);
        bool turns = it->twins && !l->twin;

        if (it->done || (l->at == it->len && it->len)) {
            l->item += it->twins ? 2 : 1;
            l->at = 0;
            continue;
        }
        *item = l->item + l->twin;
        *at = l->at;
        *len = cut_next(x, l);
        l->twin = turns;
        if (turns)
            return true;
        l->at += *len;
        /* An empty item consists of one empty chunk. */
        if (it->len == 0)
            l->item += it->twins ? 2 : 1;
        return true;
    }
    return false;
}

bool exec_next_chunk(struct run *x, int lane, int *item, uint64_t *at, uint64_t *len)
{
    bool found = false;

    if (x->o->stopped && x->o->stopped()) {
        struct err e = {0};

        err_stop(&e);
        return exec_fail(x, &e);
    }
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < x->n_lanes && !found && !x->stop; i++)
        found = next_lane_chunk(x, &x->lane[(lane + i) % x->n_lanes], item, at, len);
    pthread_mutex_unlock(&x->lock);
    return found;
}
