/*
 * p2p.c - messages between two members: stage boundaries, and small host values
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/comm/comm_impl.h"

static int check_peer(const struct comm *c, const char *name, int peer, struct err *e)
{
    if (peer >= 0 && peer < c->size && peer != c->rank)
        return 0;
    err_usage(e, "%s of group %s: no other member %d", name, c->name, peer);
    return -1;
}

static struct comm_req *start_message(struct comm *c, const char *name, uint64_t number, const struct group_message *m,
                                      struct err *e)
{
    int n = m->n_bytes ? (int)((m->n_bytes + XFER_MAX - 1) / XFER_MAX) : 1;
    struct comm_req *q;
    struct err inside = {0};
    int rc = 0;

    if (check_peer(c, name, m->peer, e) < 0)
        return NULL;
    q = xcalloc(1, sizeof *q + (size_t)n * sizeof *q->x);
    q->c = c;
    q->name = name;
    q->number = number;
    q->n = n;
    group_call_begin(c, name, number);
    for (int i = 0; i < n && rc == 0; i++) {
        size_t at = (size_t)i * XFER_MAX;
        struct group_message part = *m;

        part.buf = (const char *)m->buf + at;
        part.n_bytes = min_u64(m->n_bytes - at, XFER_MAX);
        rc = group_post(c, &q->x[i], &part, &inside);
    }
    if (group_call_end(c, name, number, rc, &inside, e) < 0) {
        /* Parts of the message may still be in transit and refer to the request, so it is not freed. */
        return NULL;
    }
    return q;
}

/* Start a message whose buffer is in device memory. Returns its request, or NULL with *e filled. */
static struct comm_req *start_device(struct comm *c, const char *name, const struct group_message *m,
                                     struct dev_stream *s, struct err *e)
{
    struct comm_req *q;

    if (check_peer(c, name, m->peer, e) < 0)
        return NULL;
    q = xcalloc(1, sizeof *q);
    q->c = c;
    if (device_start(c, m, s, &q->done, e) == 0)
        return q;
    free(q);
    return NULL;
}

int comm_send_start(struct comm *c, const struct comm_data *d, int to, struct dev_stream *s, struct comm_req **req,
                    struct err *e)
{
    const struct group_message m = { USE_P2P, true, to, d->in, (size_t)d->n * (size_t)dtype_size(d->t) };
    const uint64_t number = ++c->n_sent;

    *req = c->w->net ? start_device(c, "send", &m, s, e) : start_message(c, "send", number, &m, e);
    return *req ? 0 : -1;
}

int comm_recv_start(struct comm *c, const struct comm_data *d, int from, struct dev_stream *s, struct comm_req **req,
                    struct err *e)
{
    const struct group_message m = { USE_P2P, false, from, d->out, (size_t)d->n * (size_t)dtype_size(d->t) };
    const uint64_t number = ++c->n_received;

    *req = c->w->net ? start_device(c, "receive", &m, s, e) : start_message(c, "receive", number, &m, e);
    return *req ? 0 : -1;
}

/* ---- waiting ---- */

int comm_wait(struct comm_req **req, struct dev_stream *s, struct err *e)
{
    struct comm_req *q = *req;
    struct err inside = {0};
    int rc;

    if (!q)
        return 0;
    if (q->done) {
        device_wait(q->c, q->done, s);
    } else if (!group_is_done(q)) {
        group_call_begin(q->c, q->name, q->number);
        rc = group_wait_all(q->c->w, q->x, q->n, &inside);
        if (group_call_end(q->c, q->name, q->number, rc, &inside, e) < 0)
            return -1;
    }
    free(q);
    *req = NULL;
    return 0;
}

/* ---- small host values ---- */

int comm_host_send(struct comm *c, const void *buf, size_t n_bytes, int to, struct err *e)
{
    uint64_t number = ++c->n_sent;
    struct comm_req *q;
    void *copy;

    if (n_bytes > COMM_HOST_MAX) {
        err_usage(e, "host_send of group %s: %zu bytes, at most %d", c->name, n_bytes, COMM_HOST_MAX);
        return -1;
    }
    copy = xmalloc(n_bytes ? n_bytes : 1);
    if (n_bytes)
        memcpy(copy, buf, n_bytes);
    q = start_message(c, "host_send", number, &(struct group_message){ USE_HOST, true, to, copy, n_bytes }, e);
    if (!q) {
        free(copy);
        return -1;
    }
    q->next = c->w->loose;
    c->w->loose = q;
    group_reap_loose(c->w);
    return 0;
}

int comm_host_recv(struct comm *c, void *buf, size_t n_bytes, int from, struct err *e)
{
    struct comm_req *q = start_message(c, "host_recv", ++c->n_received,
                               &(struct group_message){ USE_HOST, false, from, buf, n_bytes }, e);

    return q ? comm_wait(&q, NULL, e) : -1;
}
