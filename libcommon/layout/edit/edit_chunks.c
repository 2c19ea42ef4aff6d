/*
 * edit_chunks.c - archives of chunks: plan them, write their containers, sum up their digests
 */
#include "libcommon/layout/edit/edit_chunks.h"

#include "libcommon/format/pt.h"
#include "libcommon/plan/plan.h"
#include "libcommon/write/sink.h"

static uint64_t edit_bytes_size(const struct edit_bytes *b)
{
    return b->map->len / (uint64_t)dtype_size(b->map->dtype) * (uint64_t)dtype_size(b->dtype);
}

uint64_t edit_new_bytes(const struct edit_new *t, enum state st)
{
    return t->map[st]->len / (uint64_t)dtype_size(t->map[st]->dtype) * (uint64_t)dtype_size(t->dtype[st]);
}

/* Returns the container of a chunk. It is created when needed, because there may be very many. */
static struct pt_image *image_of(const struct edit_chunk *c)
{
    const uint64_t bytes = edit_bytes_size(c->of);
    struct arena *a = arena_new(0);
    const struct pt_new t = { .dtype = c->of->dtype, .ndim = c->ndim, .shape = c->shape,
                              .storage_elems = (int64_t)(bytes / (uint64_t)dtype_size(c->of->dtype)) };
    struct pt_image *im = pt_image_new("archive", pt_new_tensor(a, &t), 1, &bytes);

    arena_free(a);
    return im;
}

uint64_t edit_chunk_size(const struct edit_chunk *c)
{
    struct pt_image *im = c->of->whole ? NULL : image_of(c);
    const uint64_t size = im ? pt_image_size(im) : c->of->map->len;

    pt_image_free(im);
    return size;
}

void edit_chunks_plan(struct edit_made *made, struct arena *a, struct plan *p, int dst)
{
    for (int i = 0; i < made->n_chunks; i++) {
        struct edit_chunk *c = &made->chunk[i];
        struct pt_image *im = c->of->whole ? NULL : image_of(c);
        struct sink_item *it = arena_alloc(a, sizeof *it);
        const struct plan_range r = { .map = c->of->map, .len = c->of->map->len, .policy = REPLICAS_FIRST,
                                      .name = c->name, .user = it };

        *it = (struct sink_item){ .repeated = true, .priv = c };
        c->item = r.len ? plan_add(p, &r, c->seen_only ? -1 : dst, c->at + (im ? pt_image_at(im, 0) : 0)) : -1;
        if (c->item >= 0 && r.map->dtype != c->of->dtype)
            plan_item(p, c->item)->op = (enum plan_op)plan_op_of(r.map->dtype, c->of->dtype);
        pt_image_free(im);
    }
}

int edit_chunks_write(const struct edit_made *made, struct plan *p, int fd)
{
    int rc = 0;

    for (int i = 0; i < made->n_chunks && rc == 0; i++) {
        const struct edit_chunk *c = &made->chunk[i];
        struct pt_image *im = c->seen_only || c->of->whole ? NULL : image_of(c);
        const struct zip_run *run;

        if (!im)
            continue;
        if (c->item >= 0)
            pt_image_set_crc(im, 0, plan_item(p, c->item)->crc.acc);
        for (int k = 0, n = pt_image_runs(im, &run); k < n && rc == 0; k++)
            rc = write_all_at(fd, run[k].bytes, run[k].len, c->at + run[k].at);
        pt_image_free(im);
    }
    return rc;
}

struct edit_runs edit_runs_of(uint64_t elem, int ndim, const int64_t *shape, const int64_t *at, const int64_t *len)
{
    struct edit_runs r = { .ndim = ndim, .outer = ndim, .run = elem, .n = 1, .at = at, .len = len };

    r.stride[ndim] = elem;
    for (int d = ndim - 1; d >= 0; d--)
        r.stride[d] = r.stride[d + 1] * (uint64_t)shape[d];
    /* the dimension is fully covered, so the run extends over it */
    while (r.outer > 0 && len[r.outer - 1] == shape[r.outer - 1])
        r.outer--;
    r.outer = r.outer > 0 ? r.outer - 1 : 0;
    for (int d = 0; d < ndim; d++)
        *(d < r.outer ? &r.n : &r.run) *= (uint64_t)len[d];
    return r;
}

uint64_t edit_runs_place(const struct edit_runs *r, uint64_t k)
{
    uint64_t place = r->outer < r->ndim ? (uint64_t)r->at[r->outer] * r->stride[r->outer + 1] : 0;

    for (int d = r->outer - 1; d >= 0; k /= (uint64_t)r->len[d--])
        place += ((uint64_t)r->at[d] + k % (uint64_t)r->len[d]) * r->stride[d + 1];
    return place;
}

void edit_chunk_on_bytes(struct edit_chunk *c, const struct edit_states *to, uint64_t from, const void *bytes,
                         uint64_t len)
{
    const struct edit_new *t = c->of->tensor < 0 ? NULL : &to->tensor[c->of->tensor];
    struct edit_runs r;

    if (!t)
        return;
    r = edit_runs_of((uint64_t)dtype_size(c->of->dtype), t->ndim, t->shape, c->of->at, c->shape + (c->ndim - t->ndim));
    for (uint64_t at = from, n; at < from + len; at += n) {
        n = min_u64(r.run - at % r.run, from + len - at);
        crc_sum_add(&c->sum, edit_new_bytes(t, c->of->state), edit_runs_place(&r, at / r.run) + at % r.run, n,
                    crc_bytes(0, (const uint8_t *)bytes + (at - from), n));
    }
}

void edit_chunks_sum(const struct edit_made *made, struct plan *p, struct edit_chunk_sum *sum)
{
    for (int i = 0; i < made->n_chunks; i++) {
        const struct edit_chunk *c = &made->chunk[i];
        struct edit_chunk_sum *s = c->of->tensor < 0 ? NULL : &sum[c->of->tensor * STATE_N + (int)c->of->state];

        if (!s || c->item < 0)
            continue;
        s->crc ^= plan_item(p, c->item)->share.acc;
        s->len += edit_bytes_size(c->of);
    }
}
