/*
 * device_link.c - collectives and messages for buffers on GPUs
 *
 * Each group has one link (dev_net.h) for its collectives in the caller's stream, and one with a stream of its own
 * for started collectives. For messages, each pair of members that communicates has one link and one stream per
 * direction. A send blocks its stream until the receiver has made its call, and the calls of a stream or link are
 * executed in order. If both directions shared a stream or a link, two stages that send to each other would wait
 * forever. Events connect these streams with the caller's: a message starts after the work that the caller has queued
 * before it, and comm_wait() makes later work wait for the message.
 *
 * Links are created when they are first needed, with ids that are sent through the host. On one host, members may also
 * share memory (dev_net.h, offer). Links then carry only the data that cannot pass through the shared memory.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/comm/comm_impl.h"
#include "libcommon/comm/socket.h"

/*
 * Numbers of multiprocessors that calls outside of the caller's stream may take from computation. A message goes to one
 * neighbour only. 4 multiprocessors transfer 64 MiB, the boundary of a stage of a 7B model, in less than a millisecond.
 */
enum { MESSAGE_SMS = 4, SIDE_SMS = 16 };

struct comm_peer {
    struct lane out, in;        /* the two directions between two members */
};

void comm_use_device(struct comm_world *w, const struct dev_net *net)
{
    device_close(w->all);
    stall_free(w);
    w->net = net;
}

/* ---- links ---- */

static struct dev_link *open_link(struct comm *c, const char *id, int rank, int size, int sms, struct err *e)
{
    struct err inside = {0};
    struct dev_link *l;

    group_call_begin(c, "opening a link", 0);
    l = c->w->net->open(id, rank, size, sms, c->name, &inside);
    return group_call_end(c, "opening a link", 0, l ? 0 : -1, &inside, e) < 0 ? NULL : l;
}

/* Open a link of all members. */
static struct dev_link *group_link(struct comm *c, int sms, struct err *e)
{
    char id[DEV_NET_ID] = {0};

    if (c->rank == 0 && c->w->net->id_new(id, e) < 0)
        return NULL;
    if (comm_host_broadcast(c, id, sizeof id, 0, e) < 0)
        return NULL;
    return open_link(c, id, c->rank, c->size, sms, e);
}

/*
 * Send the n_bytes at `mine` to the other member of a pair, and receive that member's n_bytes at `theirs`, through host
 * memory.
 */
static int exchange_with_pair(struct comm *c, int other, const void *mine, void *theirs, size_t n_bytes, struct err *e)
{
    struct err inside = {0};
    struct xfer x[2];
    int rc;

    group_call_begin(c, "opening a link", 0);
    rc = group_post(c, &x[0], &(struct group_message){ USE_LINK, true, other, mine, n_bytes }, &inside);
    if (rc == 0)
        rc = group_post(c, &x[1], &(struct group_message){ USE_LINK, false, other, theirs, n_bytes }, &inside);
    if (rc == 0)
        rc = group_wait_all(c->w, x, 2, &inside);
    return group_call_end(c, "opening a link", 0, rc, &inside, e);
}

/*
 * Open one direction between two members. This opens a link with its stream and, if possible, memory of the receiver
 * that both members share, for messages of n_bytes.
 */
static int open_lane(struct comm *c, struct lane *l, int other, bool out, uint64_t n_bytes, struct err *e)
{
    const struct dev_net *net = c->w->net;
    const int me = c->rank < other ? 0 : 1;
    struct { char id[DEV_NET_ID], blob[DEV_NET_BLOB]; int32_t cannot; } word[2] = {0};

    if (me == 0 && net->id_new(word[0].id, e) < 0)
        return -1;
    if (exchange_with_pair(c, other, &word[me], &word[1 - me], sizeof *word, e) < 0)
        return -1;
    l->link = open_link(c, word[0].id, me, 2, MESSAGE_SMS, e);
    if (!l->link)
        return -1;
    l->s = net->dev->stream_new();
    word[me].cannot = !net->offer(l->link, NULL, 0, out ? 0 : n_bytes, word[me].blob);
    if (exchange_with_pair(c, other, &word[me], &word[1 - me], sizeof *word, e) < 0)
        return -1;
    if (!word[0].cannot && !word[1].cannot) {
        char blobs[2][DEV_NET_BLOB];

        memcpy(blobs[0], word[0].blob, DEV_NET_BLOB);
        memcpy(blobs[1], word[1].blob, DEV_NET_BLOB);
        word[me].cannot = !net->share(l->link, blobs);
        if (exchange_with_pair(c, other, &word[me], &word[1 - me], sizeof *word, e) < 0)
            return -1;
    }
    if (word[0].cannot || word[1].cannot)
        net->unshare(l->link);
    return 0;
}

static struct comm_peer *need_peer(struct comm *c, int other, uint64_t n_bytes, struct err *e)
{
    const bool low = c->rank < other;
    struct comm_peer *p;

    if (!c->peer)
        c->peer = xcalloc((size_t)c->size, sizeof *c->peer);
    p = &c->peer[other];
    if (p->in.link && p->out.link)
        return p;
    /*
     * Open the direction to the higher rank first, and then the direction to the lower rank, because both members must
     * open the directions in the same order.
     */
    if (open_lane(c, low ? &p->out : &p->in, other, low, n_bytes, e) < 0 ||
        open_lane(c, low ? &p->in : &p->out, other, !low, n_bytes, e) < 0)
        return NULL;
    return p;
}

static void close_lane(const struct dev_net *net, const struct lane *l)
{
    if (!l->link)
        return;
    net->dev->stream_sync(l->s);
    net->close(l->link);
    net->dev->stream_free(l->s);
}

static void close_all(struct comm *c, const struct dev_net *net)
{
    for (int r = 0; r < c->size && c->peer; r++) {
        const bool low = c->rank < r;

        close_lane(net, low ? &c->peer[r].out : &c->peer[r].in);
        close_lane(net, low ? &c->peer[r].in : &c->peer[r].out);
    }
    free(c->peer);
    c->peer = NULL;
    close_lane(net, &c->side);
    c->side = (struct lane){0};
    if (c->link)
        net->close(c->link);
    c->link = NULL;
}

/* Close a group's links. Waits for queued work, and possibly for the other members. */
void device_close(struct comm *c)
{
    if (!c->w->net || !(c->peer || c->side.link || c->link))
        return;
    watch_enter(c->w->watch, "closing a link", c->name, 0);
    close_all(c, c->w->net);
    watch_leave(c->w->watch);
}

/* ---- collectives ---- */

/*
 * Begin a call that is queued on the device. The first call of a link connects its members, so even queueing a call may
 * have to wait.
 */
static void begin_device_call(struct comm *c, const char *name, uint64_t number)
{
    group_call_begin(c, name, number);
    c->w->last = (struct last_call){ name, c->name, number, c->w->watch->in_calls_ns };
}

/*
 * End a call that began with begin_device_call(). Restores in_calls_ns, so that the time for queueing does not count as
 * waiting for other ranks. If the queue is full, the device is busy, and stall.c measures the waits of the device.
 */
static int end(struct comm *c, int rc, const struct err *inside, struct err *e)
{
    const struct last_call *q = &c->w->last;

    rc = group_call_end(c, q->name, q->number, rc, inside, e);
    c->w->watch->in_calls_ns = q->in_calls_ns;
    return rc;
}

/* Returns the size in bytes of d's n elements. */
static uint64_t comm_data_bytes(const struct comm_data *d) { return (uint64_t)d->n * (uint64_t)dtype_size(d->t); }

static int queue(const struct dev_net *net, struct dev_link *l, const struct collective *x, struct dev_stream *s,
                 struct err *e)
{
    const struct comm_data *d = &x->data;

    switch (x->kind) {
    case COLLECTIVE_ALL_REDUCE: return net->all_reduce(l, d->in, d->out, d->n, d->t, d->op == COMM_MAX, s, e);
    case COLLECTIVE_REDUCE_SCATTER: return net->reduce_scatter(l, d->in, d->out, d->n, d->t, d->op == COMM_MAX, s, e);
    case COLLECTIVE_ALL_GATHER: return net->all_gather(l, d->in, d->out, comm_data_bytes(d), s, e);
    default: return net->broadcast(l, d->out, comm_data_bytes(d), x->root, s, e);
    }
}

/* Complete calls that need no communication: in a group of one, or with n = 0. Returns false for all other calls. */
static bool handle_local_device_call(const struct comm *c, const struct comm_data *d, struct dev_stream *s)
{
    if (d->n > 0 && c->size > 1)
        return false;
    if (d->n > 0 && d->in != d->out)
        c->w->net->dev->copy(d->out, d->in, comm_data_bytes(d), s);
    return true;
}

static int queue_device_collective(struct comm *c, struct dev_link *l, const struct collective *x, struct dev_stream *s,
                                   struct err *e)
{
    struct err inside = {0};

    begin_device_call(c, collective_name(x->kind), ++c->n_calls);
    return end(c, queue(c->w->net, l, x, s, &inside), &inside, e);
}

int device_collective(struct comm *c, const struct collective *x, struct dev_stream *s, struct err *e)
{
    int stall, rc;

    if (handle_local_device_call(c, &x->data, s))
        return 0;
    if (!c->link)
        c->link = group_link(c, 0, e);
    if (!c->link)
        return -1;
    stall = stall_begin(c->w, s);
    rc = queue_device_collective(c, c->link, x, s, e);
    stall_end(c->w, stall, s);
    return rc;
}

static int need_side(struct comm *c, struct err *e)
{
    if (c->side.link)
        return 0;
    c->side.link = group_link(c, SIDE_SMS, e);
    if (!c->side.link)
        return -1;
    c->side.s = c->w->net->dev->stream_new();
    return 0;
}

/* If one member cannot share memory, no member shares memory, because all members must use the same method. */
int comm_share(struct comm *c, void *base, uint64_t bytes, uint64_t room, struct err *e)
{
    const struct dev_net *net = c->w->net;
    char mine[DEV_NET_BLOB] = {0}, *all;
    int32_t cannot;
    int rc;

    if (!net || c->size == 1)
        return 0;
    if (need_side(c, e) < 0)
        return -1;
    if (c->size > DEV_NET_SHARERS)
        return 0;
    all = xcalloc((size_t)c->size, DEV_NET_BLOB);
    cannot = !net->offer(c->side.link, base, bytes, room, mine);
    rc = comm_host_all_gather(c, mine, all, DEV_NET_BLOB, e);
    if (rc == 0)
        rc = comm_host_all_reduce(c, &cannot, 1, DTYPE_I32, COMM_MAX, e);
    if (rc == 0 && !cannot) {
        cannot = !net->share(c->side.link, all);
        rc = comm_host_all_reduce(c, &cannot, 1, DTYPE_I32, COMM_MAX, e);
    }
    if (cannot)
        net->unshare(c->side.link);
    free(all);
    return rc;
}

int device_collective_start(struct comm *c, const struct collective *x, struct dev_stream *s,
                            struct dev_event **done, struct err *e)
{
    const struct dev_ops *dev = c->w->net->dev;
    int rc;

    *done = NULL;
    if (handle_local_device_call(c, &x->data, s))
        return 0;
    if (need_side(c, e) < 0)
        return -1;
    *done = dev->event_new();
    dev->event_record(*done, s);
    dev->stream_wait(c->side.s, *done);
    rc = queue_device_collective(c, c->side.link, x, c->side.s, e);
    dev->event_record(*done, c->side.s);
    return rc;
}

/* ---- messages ---- */

int device_start(struct comm *c, const struct group_message *m, struct dev_stream *s, struct dev_event **done,
                 struct err *e)
{
    const char *name = m->is_send ? "send" : "receive";
    const uint64_t number = m->is_send ? c->n_sent : c->n_received;
    const struct dev_net *net = c->w->net;
    struct comm_peer *p = need_peer(c, m->peer, m->n_bytes, e);
    struct err inside = {0};
    struct lane *l;
    int rc;

    if (!p)
        return -1;
    l = m->is_send ? &p->out : &p->in;
    *done = net->dev->event_new();
    net->dev->event_record(*done, s);
    net->dev->stream_wait(l->s, *done);
    begin_device_call(c, name, number);
    rc = m->n_bytes == 0 ? 0 : m->is_send ? net->send(l->link, m->buf, m->n_bytes, l->s, &inside)
                                          : net->recv(l->link, (void *)m->buf, m->n_bytes, l->s, &inside);
    net->dev->event_record(*done, l->s);
    return end(c, rc, &inside, e);
}

void device_wait(struct comm *c, struct dev_event *done, struct dev_stream *s)
{
    int stall = stall_begin(c->w, s);

    c->w->net->dev->stream_wait(s, done);
    stall_end(c->w, stall, s);
    c->w->net->dev->event_free(done);
}

/* ---- waiting for the device ---- */

enum { SPIN_US = 200, NAP_US = 20, CHECK_EVERY = 256 };

/*
 * Continue pending host transfers while comm_sync() waits for the device. The rank that the device waits for may need
 * one of these messages before it can queue its part of the collective.
 */
static int move_loose(struct comm_world *w, struct err *e)
{
    if (!w->loose)
        return 0;
    if (w->t->progress(w->t, false, e) < 0)
        return -1;
    group_reap_loose(w);
    return 0;
}

int comm_sync(struct comm *c, struct dev_stream *s, struct err *e)
{
    struct comm_world *w = c->w;
    const struct timespec nap = { 0, NAP_US * 1000 };
    const struct last_call *q = &w->last;
    struct dev_event *v;
    int64_t since, in_calls;
    int rc = 0;

    if (!w->net)
        return 0;
    v = w->net->dev->event_new();
    w->net->dev->event_record(v, s);
    since = clock_ns();
    /*
     * If this wait hangs, the last queued call is reported. The duration of the wait counts as computation, because
     * most of it is.
     */
    in_calls = w->watch->in_calls_ns;
    watch_enter(w->watch, q->name ? q->name : "waiting for the GPU", q->name ? q->group : c->name, q->number);
    for (int i = 0; rc == 0 && !w->net->dev->event_done(v); i++) {
        if (clock_ns() - since > SPIN_US * 1000)
            nanosleep(&nap, NULL);
        if (i % CHECK_EVERY == 0)
            rc = w->net->check(e);
        if (rc == 0)
            rc = move_loose(w, e);
    }
    watch_leave(w->watch);
    w->watch->in_calls_ns = in_calls;
    w->net->dev->event_free(v);
    stall_read(w);
    return rc < 0 || w->net->check(e) < 0 ? -1 : w->net->dev->check(e);
}
