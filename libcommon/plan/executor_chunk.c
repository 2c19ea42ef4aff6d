/* executor_chunk.c - start and end the processing of chunks and items */
#include "libcommon/plan/executor_impl.h"

void exec_give_buf(struct worker *w, uint8_t **buf)
{
    if (*buf)
        w->free_buf[w->n_free++] = *buf;
    *buf = NULL;
}

/* Call fn for each destination of the item. */
static void for_each_output(struct run *x, const struct plan_item *it, void (*fn)(struct outputs *o, int dst))
{
    if (it->dst >= 0)
        fn(x->outputs, it->dst);
    for (int i = 0; i < it->n_outs; i++)
        fn(x->outputs, it->out[i].dst);
}

void exec_pin(struct run *x, struct chunk *c)
{
    if (!c->pinned)
        for_each_output(x, c->g.item, outputs_pin);
    c->pinned = true;
}

void exec_drop_chunk(struct worker *w, struct chunk *c)
{
    w->n_reading -= c->state != CHUNK_WRITING;
    exec_give_buf(w, &c->in);
    exec_give_buf(w, &c->out);
    if (c->pinned)
        for_each_output(w->x, c->g.item, outputs_unpin);
    c->pinned = c->failed = false;
    c->state = CHUNK_UNUSED;
    w->n_active--;
}

/* ---- end of a chunk ---- */

static bool replicas_disagree(struct run *x, const struct plan_item *it, struct err *e)
{
    uint64_t elem = (uint64_t)dtype_size(it->map->dtype);
    struct tmap_cursor c;
    struct tmap_piece pc;
    const struct record *r;

    if (it->map->op != TMAP_REPLICAS || it->policy != REPLICAS_FAIL || it->n_differ == 0)
        return false;
    tmap_begin(&c, it->map, it->from + it->first_differ * elem, elem, 0);
    if (!tmap_next(&c, UINT64_MAX, &pc))
        return false;
    r = files_record(plan_files(x->plan), pc.src.record);
    err_data(e, files_name(plan_files(x->plan), r->file), r->at + pc.src.at,
             "%s: %llu of %llu elements differ between the %d tensor-parallel copies, the first is element %llu; "
             REPLICAS_NEXT_STEP, it->name,
             (unsigned long long)it->n_differ, (unsigned long long)(it->len / elem), it->map->n_slices,
             (unsigned long long)(it->from / elem + it->first_differ));
    return true;
}

static void end_item(struct run *x, struct plan_item *it)
{
    struct err e = {0};

    for_each_output(x, it, outputs_item_done);
    if (replicas_disagree(x, it, &e) || (x->o->item_done && x->o->item_done(x->o->ctx, it, &e) < 0))
        exec_fail(x, &e);
}

void exec_end_chunk(struct worker *w, struct chunk *c)
{
    struct run *x = w->x;
    struct plan_item *it = c->g.item;
    uint64_t len = c->g.len, read = len * tmap_layers(it->map);

    atomic_fetch_add(&x->read_bytes, read);
    if (plan_writes(it))
        atomic_fetch_add(&x->write_bytes, plan_out_bytes(it, len));
    progress_add(x->o->progress, read);
    exec_drop_chunk(w, c);
    if (atomic_fetch_sub(&it->left, len) == len)
        end_item(x, it);
}

/* ---- start of a chunk ---- */

static struct chunk *unused_chunk(struct worker *w)
{
    struct chunk *c = w->chunk;

    while (c->state != CHUNK_UNUSED)
        c++;
    return c;
}

struct chunk *exec_start_chunk(struct worker *w)
{
    struct run *x = w->x;
    struct chunk *c;
    uint64_t at, len;
    int item;

    if (w->exhausted || x->stop || w->n_free < 2 || w->n_reading >= w->n_bufs / 2)
        return NULL;
    if (!exec_next_chunk(x, w->lane, &item, &at, &len)) {
        w->exhausted = true;
        return NULL;
    }
    c = unused_chunk(w);
    c->state = CHUNK_READING;
    w->n_active++;
    w->n_reading++;
    c->g = (struct gather){ .plan = x->plan, .item_no = item, .item = plan_item(x->plan, item),
                            .len = len, .report = x->o->report };
    c->g.from = c->g.item->from + at;
    c->dst_at = c->g.item->dst_at +
                (c->g.item->transpose_row ? gather_matrix(&c->g).at : plan_out_bytes(c->g.item, at));
    c->in = w->free_buf[--w->n_free];
    c->result = NULL;
    gather_begin(&c->g);
    tmap_begin(&c->cursor, c->g.item->map, c->g.from, len, -1);
    return c;
}
