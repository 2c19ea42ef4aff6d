/*
 * collectives.c - the CPU's collectives, over a transport
 *
 * Every reduction adds in rank order (reduce.h), so the choice of algorithm never changes the result:
 *   few bytes    every member sends all its data to all others, and each computes all sums itself. This takes a single
 *   wait. With
 *                more than DIRECT_MAX ranks, the data is exchanged in log2(n) doubling steps
 *   many bytes   the data is cut into pieces that fit in the staging memory. Member i receives the i-th part of a piece
 *                from all members, adds them, and sends the sum to all. Every byte is sent 2 (n-1)/n times
 * Many ranks of one group may share a processor, and every step waits until each of them has been scheduled. Few steps
 * are therefore more important than few messages.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/comm/comm_impl.h"
#include "libcommon/comm/reduce.h"

enum {
    DIRECT_MAX = 16,                    /* maximum group size for direct exchange */
    SMALL_BYTES = 16384,                /* "few bytes" for groups of more than two members */
    /* "few bytes" for groups of two: the direct exchange sends the same number of bytes, with one wait less */
    SMALL_PAIR_BYTES = 262144,
    BROADCAST_SPLIT_BYTES = 524288,     /* broadcasts from this size on are split into parts */
    ALIGN = 64,
};

static size_t elem_array_bytes(int64_t n, enum dtype t)
{
    return (size_t)n * (size_t)dtype_size(t);
}

/*
 * Returns the k-th of the other members, counted from this member's neighbour. The members therefore do not all start
 * with the same one.
 */
static int other(const struct comm *c, int k)
{
    return (c->rank + 1 + k) % c->size;
}

/* Start to send bytes to member `to`, or to receive bytes from member `from`. */
static int post_send(struct comm *c, struct xfer *x, int to, const void *buf, size_t n_bytes, struct err *e)
{
    return group_post(c, x, &(struct group_message){ USE_COLLECTIVE, true, to, buf, n_bytes }, e);
}

static int post_receive(struct comm *c, struct xfer *x, int from, const void *buf, size_t n_bytes, struct err *e)
{
    return group_post(c, x, &(struct group_message){ USE_COLLECTIVE, false, from, buf, n_bytes }, e);
}

/* ---- few bytes ---- */

/* Exchange the b bytes at `in` directly with every other member. slot[r] is set to the bytes of member r. */
static int gather_direct(struct comm *c, const void *in, size_t b, const void **slot, size_t stride, struct err *e)
{
    struct xfer *x = c->w->xfer;
    int n = 0;

    for (int k = 0; k < c->size - 1; k++) {
        int r = other(c, k);

        slot[r] = c->w->staging + (size_t)k * stride;
        if (post_receive(c, &x[n++], r, slot[r], b, e) < 0)
            return -1;
    }
    slot[c->rank] = in;
    for (int k = 0; k < c->size - 1; k++)
        if (post_send(c, &x[n++], other(c, k), in, b, e) < 0)
            return -1;
    return group_wait_all(c->w, x, n, e);
}

/*
 * Gather in log2(n) steps that double the data. Block j of the staging memory receives the bytes of member (rank + j)
 * mod n. Before the step with distance d, this member has d blocks. The step receives up to d more blocks.
 */
static int gather_doubling(struct comm *c, const void *in, size_t b, const void **slot, size_t stride, struct err *e)
{
    char *block = c->w->staging;
    struct xfer *x = c->w->xfer;

    if (b)
        memcpy(block, in, b);
    for (int d = 1; d < c->size; d *= 2) {
        size_t len = (size_t)(d < c->size - d ? d : c->size - d) * stride;

        if (post_receive(c, &x[0], (c->rank + d) % c->size, block + (size_t)d * stride, len, e) < 0 ||
            post_send(c, &x[1], (c->rank + c->size - d) % c->size, block, len, e) < 0 ||
            group_wait_all(c->w, x, 2, e) < 0)
            return -1;
    }
    for (int j = 0; j < c->size; j++)
        slot[(c->rank + j) % c->size] = block + (size_t)j * stride;
    return 0;
}

/*
 * Gather b bytes from each member. slot[r] is set to the bytes of member r. These are in the staging memory; those of
 * this member may be `in` itself.
 */
static int gather_small(struct comm *c, const void *in, size_t b, const void **slot, struct err *e)
{
    size_t stride = align_up(b, ALIGN);

    return c->size <= DIRECT_MAX ? gather_direct(c, in, b, slot, stride, e)
                                 : gather_doubling(c, in, b, slot, stride, e);
}

static bool is_small(const struct comm *c, size_t b)
{
    return b <= (c->size == 2 ? SMALL_PAIR_BYTES : SMALL_BYTES) &&
           align_up(b, ALIGN) * (size_t)c->size <= c->w->staging_bytes;
}

/* ---- many bytes ---- */

/*
 * Returns the largest number of elements of one member's part for which the parts sent by all other members fit in the
 * staging memory.
 */
static int64_t part_max(const struct comm *c, enum dtype t)
{
    size_t b = align_down(c->w->staging_bytes / (size_t)(c->size - 1), ALIGN);

    return (int64_t)(b / (size_t)dtype_size(t));
}

/* The parts of the current piece: for each member, the address of its part and the number of elements in it. */
struct parts {
    const void **slot;
    char **at;
    int64_t *n;
};

static struct parts member_parts_new(const struct comm *c)
{
    return (struct parts){
        .slot = xcalloc((size_t)c->size, sizeof(void *)),
        .at = xcalloc((size_t)c->size, sizeof(char *)),
        .n = xcalloc((size_t)c->size, sizeof(int64_t)),
    };
}

static void member_parts_free(struct parts *p)
{
    free(p->slot);
    free(p->at);
    free(p->n);
}

/*
 * Reduce one piece. Sends the p->n[r] elements at p->at[r] to each member r, adds the parts received from all members
 * to this member's own part, and stores the sums in `out`. n[r] may be 0.
 */
static int reduce_part(struct comm *c, struct parts *p, void *out, enum dtype t, enum comm_op op, struct err *e)
{
    const int64_t *n = p->n;
    const void **slot = p->slot;
    size_t own = elem_array_bytes(n[c->rank], t), stride = align_up(own, ALIGN);
    struct xfer *x = c->w->xfer;
    int posted = 0;

    for (int k = 0; k < c->size - 1 && own; k++) {
        int r = other(c, k);

        slot[r] = c->w->staging + (size_t)k * stride;
        if (post_receive(c, &x[posted++], r, slot[r], own, e) < 0)
            return -1;
    }
    slot[c->rank] = p->at[c->rank];
    for (int k = 0; k < c->size - 1; k++) {
        int r = other(c, k);

        if (n[r] && post_send(c, &x[posted++], r, p->at[r], elem_array_bytes(n[r], t), e) < 0)
            return -1;
    }
    if (group_wait_all(c->w, x, posted, e) < 0)
        return -1;
    if (own)
        reduce_ranks(out, slot, c->size, n[c->rank], t, op);
    return 0;
}

/*
 * Exchange finished parts. The n[r] elements of each member r are received at to[r]. This member's own part must
 * already be in its place.
 */
static int gather_parts(struct comm *c, char *const *to, const int64_t *n, enum dtype t, struct err *e)
{
    struct xfer *x = c->w->xfer;
    int posted = 0;

    for (int k = 0; k < c->size - 1; k++) {
        int r = other(c, k);

        if (n[r] && post_receive(c, &x[posted++], r, to[r], elem_array_bytes(n[r], t), e) < 0)
            return -1;
    }
    for (int k = 0; k < c->size - 1 && n[c->rank]; k++)
        if (post_send(c, &x[posted++], other(c, k), to[c->rank], elem_array_bytes(n[c->rank], t), e) < 0)
            return -1;
    return group_wait_all(c->w, x, posted, e);
}

/* Split m elements at `base` into one part per member. */
static void parts_cut(struct parts *p, const struct comm *c, char *base, int64_t m, enum dtype t)
{
    for (int r = 0; r < c->size; r++) {
        int64_t first = m / c->size * r + m % c->size * r / c->size;
        int64_t end = m / c->size * (r + 1) + m % c->size * (r + 1) / c->size;

        p->at[r] = base + elem_array_bytes(first, t);
        p->n[r] = end - first;
    }
}

static int all_reduce_large(struct comm *c, const struct comm_data *d, struct parts *p, struct err *e)
{
    /* Part sizes differ by up to one element, hence the - 1. */
    int64_t piece = (part_max(c, d->t) - 1) * c->size;

    for (int64_t done = 0; done < d->n; done += piece) {
        int64_t m = d->n - done < piece ? d->n - done : piece;
        size_t at = elem_array_bytes(done, d->t);
        char *own;

        parts_cut(p, c, (char *)d->out + at, m, d->t);
        own = p->at[c->rank];
        parts_cut(p, c, (char *)d->in + at, m, d->t);
        if (reduce_part(c, p, own, d->t, d->op, e) < 0)
            return -1;
        parts_cut(p, c, (char *)d->out + at, m, d->t);
        if (gather_parts(c, p->at, p->n, d->t, e) < 0)
            return -1;
    }
    return 0;
}

static int all_reduce(struct comm *c, const struct comm_data *d, struct err *e)
{
    struct parts p = member_parts_new(c);
    size_t n_bytes = elem_array_bytes(d->n, d->t);
    int rc;

    if (is_small(c, n_bytes)) {
        rc = gather_small(c, d->in, n_bytes, p.slot, e);
        if (rc == 0)
            reduce_ranks(d->out, p.slot, c->size, d->n, d->t, d->op);
    } else {
        rc = all_reduce_large(c, d, &p, e);
    }
    member_parts_free(&p);
    return rc;
}

static int reduce_scatter(struct comm *c, const struct comm_data *d, struct err *e)
{
    struct parts p = member_parts_new(c);
    int64_t piece = part_max(c, d->t);
    int rc = 0;

    for (int64_t done = 0; done < d->n && rc == 0; done += piece) {
        int64_t m = d->n - done < piece ? d->n - done : piece;

        for (int r = 0; r < c->size; r++) {
            p.at[r] = (char *)d->in + elem_array_bytes(r * d->n + done, d->t);
            p.n[r] = m;
        }
        rc = reduce_part(c, &p, (char *)d->out + elem_array_bytes(done, d->t), d->t, d->op, e);
    }
    member_parts_free(&p);
    return rc;
}

/* Gather n elements from each member in `out`. This member's elements must already be in their place in `out`. */
static int all_gather(struct comm *c, char *out, int64_t n, enum dtype t, struct err *e)
{
    struct parts p = member_parts_new(c);
    int64_t piece = (int64_t)(XFER_MAX / (size_t)dtype_size(t));
    int rc = 0;

    for (int64_t done = 0; done < n && rc == 0; done += piece) {
        for (int r = 0; r < c->size; r++) {
            p.at[r] = out + elem_array_bytes(r * n + done, t);
            p.n[r] = n - done < piece ? n - done : piece;
        }
        rc = gather_parts(c, p.at, p.n, t, e);
    }
    member_parts_free(&p);
    return rc;
}

/* ---- broadcast ---- */

/*
 * Broadcast along a binomial tree, in log2(n) steps. A member that received the data from distance d in the ring sends
 * it to the members at distances d / 2, d / 4, ... 1.
 */
static int broadcast_tree(struct comm *c, char *buf, size_t b, int root, struct err *e)
{
    int v = (c->rank - root + c->size) % c->size, bit = 1, n = 0;
    struct xfer *x = c->w->xfer;

    for (; bit < c->size && !(v & bit); bit *= 2)
        ;
    if (v && (post_receive(c, &x[0], (v - bit + root) % c->size, buf, b, e) < 0 ||
              group_wait_all(c->w, x, 1, e) < 0))
        return -1;
    for (bit /= 2; bit; bit /= 2)
        if (v + bit < c->size &&
            post_send(c, &x[n++], (v + bit + root) % c->size, buf, b, e) < 0)
            return -1;
    return group_wait_all(c->w, x, n, e);
}

/* Broadcast in two steps. The root first sends each member a part, and the members then exchange their parts. */
static int broadcast_split(struct comm *c, char *buf, size_t b, int root, struct parts *p, struct err *e)
{
    struct xfer *x = c->w->xfer;
    int n = 0;

    parts_cut(p, c, buf, (int64_t)b, DTYPE_U8);
    if (c->rank != root) {
        if (post_receive(c, &x[0], root, p->at[c->rank], (size_t)p->n[c->rank], e) < 0 ||
            group_wait_all(c->w, x, 1, e) < 0)
            return -1;
    } else {
        for (int k = 0; k < c->size - 1; k++) {
            int r = other(c, k);

            if (post_send(c, &x[n++], r, p->at[r], (size_t)p->n[r], e) < 0)
                return -1;
        }
        if (group_wait_all(c->w, x, n, e) < 0)
            return -1;
    }
    return gather_parts(c, p->at, p->n, DTYPE_U8, e);
}

static int broadcast(struct comm *c, char *buf, size_t b, int root, struct err *e)
{
    struct parts p;
    int rc = 0;

    if (b < BROADCAST_SPLIT_BYTES || c->size == 2) {
        for (size_t done = 0; done < b && rc == 0; done += XFER_MAX)
            rc = broadcast_tree(c, buf + done, b - done < XFER_MAX ? b - done : XFER_MAX, root, e);
        return rc;
    }
    p = member_parts_new(c);
    for (size_t done = 0; done < b && rc == 0; done += XFER_MAX)
        rc = broadcast_split(c, buf + done, b - done < XFER_MAX ? b - done : XFER_MAX, root, &p, e);
    member_parts_free(&p);
    return rc;
}

/* ---- entry points ---- */

const char *collective_name(enum collective_kind kind)
{
    static const char *const names[] = { "all_reduce", "reduce_scatter", "all_gather", "broadcast" };

    return names[kind];
}

/* Handle calls that need no communication. Their result is the input, or is empty. */
static bool handle_local_collective(const struct comm *c, const struct comm_data *d)
{
    if (d->n > 0 && c->size > 1)
        return false;
    if (d->n > 0 && d->in != d->out)
        memcpy(d->out, d->in, elem_array_bytes(d->n, d->t));
    return true;
}

static int dispatch_collective(struct comm *c, const struct collective *x, struct err *e)
{
    const struct comm_data *d = &x->data;

    switch (x->kind) {
    case COLLECTIVE_ALL_REDUCE: return all_reduce(c, d, e);
    case COLLECTIVE_REDUCE_SCATTER: return reduce_scatter(c, d, e);
    case COLLECTIVE_ALL_GATHER: return all_gather(c, d->out, d->n, d->t, e);
    default: return broadcast(c, d->out, elem_array_bytes(d->n, d->t), x->root, e);
    }
}

int collectives_check(const struct comm *c, const char *name, const struct collective *x, struct err *e)
{
    if (x->kind <= COLLECTIVE_REDUCE_SCATTER && !reduce_can(x->data.t)) {
        err_usage(e, "%s of group %s: cannot reduce %s", name, c->name, dtype_name(x->data.t));
        return -1;
    }
    if (x->kind == COLLECTIVE_BROADCAST && (x->root < 0 || x->root >= c->size)) {
        err_usage(e, "%s of group %s: no member %d", name, c->name, x->root);
        return -1;
    }
    return 0;
}

int collectives_run(struct comm *c, const char *name, const struct collective *x, struct err *e)
{
    const bool gathers = x->kind == COLLECTIVE_ALL_GATHER;
    const struct comm_data *d = &x->data;
    struct comm_data own = *d;
    uint64_t number = ++c->n_calls;
    struct err inside = {0};

    if (collectives_check(c, name, x, e) < 0)
        return -1;
    if (gathers)                        /* this member's contribution within `out` */
        own.out = (char *)d->out + elem_array_bytes(c->rank * d->n, d->t);
    if (handle_local_collective(c, &own))
        return 0;
    if (gathers && d->in != own.out)
        memcpy(own.out, d->in, elem_array_bytes(d->n, d->t));
    group_call_begin(c, name, number);
    return group_call_end(c, name, number, dispatch_collective(c, x, &inside), &inside, e);
}

int collectives_barrier(struct comm *c, struct err *e)
{
    uint64_t number = ++c->n_calls;
    struct err inside = {0};
    struct parts p;
    int rc;

    if (c->size == 1)
        return 0;
    p = member_parts_new(c);
    group_call_begin(c, "barrier", number);
    rc = gather_small(c, NULL, 0, p.slot, &inside);
    member_parts_free(&p);
    return group_call_end(c, "barrier", number, rc, &inside, e);
}

/* ---- host values ---- */

int comm_host_all_reduce(struct comm *c, void *x, int64_t n, enum dtype t, enum comm_op op, struct err *e)
{
    const struct collective all = { COLLECTIVE_ALL_REDUCE, { x, x, n, t, op }, 0 };

    return collectives_run(c, "host_all_reduce", &all, e);
}

int comm_host_all_gather(struct comm *c, const void *in, void *out, size_t n_bytes, struct err *e)
{
    const struct collective x = { COLLECTIVE_ALL_GATHER, { in, out, (int64_t)n_bytes, DTYPE_U8, COMM_SUM }, 0 };

    return collectives_run(c, "host_all_gather", &x, e);
}

int comm_host_broadcast(struct comm *c, void *buf, size_t n_bytes, int root, struct err *e)
{
    const struct collective x = { COLLECTIVE_BROADCAST, { buf, buf, (int64_t)n_bytes, DTYPE_U8, COMM_SUM }, root };

    return collectives_run(c, "host_broadcast", &x, e);
}
