/*
 * transport_tcp.c - one TCP connection between any two ranks
 *
 * A message on the wire: u32 channel, u32 magic, u64 bytes, then the data.
 *
 * Received data is stored directly in the buffer of the receive that waits for it. A message without a matching
 * receive stays in the kernel, which slows its sender down, so memory is bounded. There is one exception: if a receive
 * on another channel waits for a later message of the same connection, the earlier message is read and kept in memory.
 * Otherwise two ranks could wait for each other's next message.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"
#include "libcommon/comm/socket.h"
#include "libcommon/comm/tcp_join.h"
#include "libcommon/comm/transport.h"

enum {
    HEAD_BYTES = 16,
    IN_BYTES = 16384,           /* size of the read-ahead buffer of a peer; large enough for many small messages */
    SPIN_NS = 50000,            /* how long to poll before sleeping in poll() */
    SLEEP_MS = 100,
};
#define MAGIC 0x6b647273u

/* A message that arrived before its receive was started. */
struct early {
    struct early *next;
    uint32_t channel;
    size_t n, got;
    char *data;
};

struct peer {
    int fd;
    /* Outgoing messages, the oldest first. */
    struct xfer *out, **out_end;
    /* The receives of all channels that wait for a message, oldest first. */
    struct xfer *want, **want_end;
    struct early *early, **early_end;
    /* The read-ahead buffer: bytes that were read from the connection but not parsed yet. */
    uint8_t *in;
    size_t in_at, in_end;
    /* The message that is being received: the receive to which it belongs, and the address for its next byte. */
    struct xfer *into;
    struct early *into_early;
    char *body;
    size_t body_left;
};

struct tcp {
    struct transport t;
    struct peer *peer;          /* [size], by rank; the element of this rank is unused */
    struct pollfd *poll;        /* [size] */
    int *polled;                /* [size]: the peer of each poll entry */
};

static int report_lost_rank(struct tcp *tcp, int r, const char *what, int why, struct err *e)
{
    char place[32];

    snprintf(place, sizeof place, "rank %d", r);
    atomic_store(&tcp->t.lost, r);
    if (why) {
        errno = why;
        err_sys(e, place, "%s", what);
    } else {
        err_data(e, place, ERR_NO_BYTE, "%s", what);
    }
    return -1;
}

static int check_message_length(int r, size_t got, size_t want, struct err *e)
{
    char place[32];

    if (got == want)
        return 0;
    snprintf(place, sizeof place, "rank %d", r);
    err_data(e, place, ERR_NO_BYTE, "sent %zu bytes where %zu were expected", got, want);
    return -1;
}

/* ---- sending ---- */

static int flush_peer_sends(struct tcp *tcp, int r, struct err *e)
{
    struct peer *p = &tcp->peer[r];

    while (p->out) {
        struct xfer *x = p->out;
        uint8_t head[HEAD_BYTES];
        struct iovec iov[2];
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
        size_t head_put = x->moved < HEAD_BYTES ? x->moved : HEAD_BYTES, body_put = x->moved - head_put;
        ssize_t k;

        put_le32(head, x->channel);
        put_le32(head + 4, MAGIC);
        put_le64(head + 8, x->n);
        iov[0] = (struct iovec){head + head_put, HEAD_BYTES - head_put};
        iov[1] = (struct iovec){(char *)x->buf + body_put, x->n - body_put};
        k = sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return 0;
            return report_lost_rank(tcp, r, "cannot send", errno, e);
        }
        x->moved += (size_t)k;
        if (x->moved < HEAD_BYTES + x->n)
            continue;
        p->out = x->next;
        if (!p->out)
            p->out_end = &p->out;
        x->done = true;
    }
    return 0;
}

/* ---- receiving ---- */

/* Remove the oldest waiting receive of a channel from the list and return it. */
static struct xfer *pop_wanted_recv(struct peer *p, uint32_t channel)
{
    for (struct xfer **at = &p->want; *at; at = &(*at)->next) {
        struct xfer *x = *at;

        if (x->channel != channel)
            continue;
        *at = x->next;
        if (!x->next)
            p->want_end = at;
        return x;
    }
    return NULL;
}

static void body_done(struct peer *p)
{
    if (p->into)
        p->into->done = true;
    p->into = NULL;
    p->into_early = NULL;
    p->body = NULL;
}

/*
 * Parse the message header at the start of the read-ahead buffer, and determine where the body is to be stored. Returns
 * 0 on success. Returns 1 if the message must stay in the buffer, because no receive waits for it.
 */
static int begin_message(struct tcp *tcp, int r, struct err *e)
{
    struct peer *p = &tcp->peer[r];
    const uint8_t *head = p->in + p->in_at;
    uint32_t channel = get_le32(head);
    uint64_t n = get_le64(head + 8);

    if (get_le32(head + 4) != MAGIC || n > XFER_MAX)
        return report_lost_rank(tcp, r, "sent something that is no message of this program", 0, e);
    p->into = pop_wanted_recv(p, channel);
    if (!p->into && !p->want)
        return 1;
    if (p->into) {
        if (check_message_length(r, n, p->into->n, e) < 0)
            return -1;
        p->body = p->into->buf;
    } else {
        struct early *k = xcalloc(1, sizeof *k);

        *k = (struct early){.channel = channel, .n = n, .data = xmalloc(n ? n : 1)};
        *p->early_end = k;
        p->early_end = &k->next;
        p->into_early = k;
        p->body = k->data;
    }
    p->in_at += HEAD_BYTES;
    p->body_left = n;
    if (!n)
        body_done(p);
    return 0;
}

static void body_moved(struct peer *p, size_t k)
{
    p->body += k;
    p->body_left -= k;
    if (p->into_early)
        p->into_early->got += k;
    if (!p->body_left)
        body_done(p);
}

/* Move the data in the read-ahead buffer to the receives to which the data belongs. */
static int distribute_read_ahead(struct tcp *tcp, int r, struct err *e)
{
    struct peer *p = &tcp->peer[r];

    for (;;) {
        size_t have = p->in_end - p->in_at;

        if (p->body) {
            size_t k = have < p->body_left ? have : p->body_left;

            if (!k)
                return 0;
            memcpy(p->body, p->in + p->in_at, k);
            p->in_at += k;
            body_moved(p, k);
        } else if (have >= HEAD_BYTES) {
            int rc = begin_message(tcp, r, e);

            if (rc)
                return rc < 0 ? -1 : 0;
        } else {
            return 0;
        }
    }
}

static bool wants_input(const struct peer *p)
{
    return p->want || p->into;
}

static int read_some(struct tcp *tcp, int r, struct err *e)
{
    struct peer *p = &tcp->peer[r];

    while (wants_input(p)) {
        bool straight = p->body && p->body_left >= IN_BYTES;      /* distribute_read_ahead() has emptied the buffer */
        size_t room;
        ssize_t k;

        if (!straight) {
            memmove(p->in, p->in + p->in_at, p->in_end - p->in_at);
            p->in_end -= p->in_at;
            p->in_at = 0;
        }
        room = straight ? p->body_left : IN_BYTES - p->in_end;
        k = recv(p->fd, straight ? (void *)p->body : p->in + p->in_end, room, MSG_DONTWAIT);
        if (k == 0)
            return report_lost_rank(tcp, r, "closed its connection", 0, e);
        if (k < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return 0;
            return report_lost_rank(tcp, r, "cannot receive", errno, e);
        }
        if (straight)
            body_moved(p, (size_t)k);
        else
            p->in_end += (size_t)k;
        if (distribute_read_ahead(tcp, r, e) < 0)
            return -1;
        if ((size_t)k < room)
            return 0;           /* the kernel has no more data; another call would be wasted */
    }
    return 0;
}

/*
 * Complete a receive whose message has already been read, as a whole or in part, and kept in memory. *taken is set if
 * there is such a message.
 */
static int recv_early_message(struct tcp *tcp, struct xfer *x, bool *taken, struct err *e)
{
    struct peer *p = &tcp->peer[x->peer];
    struct early **at = &p->early, *k;

    while (*at && (*at)->channel != x->channel)
        at = &(*at)->next;
    k = *at;
    *taken = k != NULL;
    if (!k)
        return 0;
    if (check_message_length(x->peer, k->n, x->n, e) < 0)
        return -1;
    memcpy(x->buf, k->data, k->got);
    if (p->into_early == k) {
        p->into_early = NULL;
        p->into = x;
        p->body = (char *)x->buf + k->got;
    } else {
        x->done = true;
    }
    *at = k->next;
    if (!k->next)
        p->early_end = at;
    free(k->data);
    free(k);
    return 0;
}

/* ---- the transport ---- */

static int tcp_transport_start(struct transport *t, struct xfer *x, struct err *e)
{
    struct tcp *tcp = (struct tcp *)t;
    struct peer *p = &tcp->peer[x->peer];
    bool taken;

    x->done = false;
    x->moved = 0;
    x->next = NULL;
    if (x->is_send) {
        bool idle = !p->out;

        *p->out_end = x;
        p->out_end = &x->next;
        return idle ? flush_peer_sends(tcp, x->peer, e) : 0;
    }
    if (recv_early_message(tcp, x, &taken, e) < 0)
        return -1;
    if (!taken) {
        *p->want_end = x;
        p->want_end = &x->next;
    }
    return distribute_read_ahead(tcp, x->peer, e);
}

static int fill_poll(struct tcp *tcp)
{
    int n = 0;

    for (int r = 0; r < tcp->t.size; r++) {
        const struct peer *p = &tcp->peer[r];
        short events = (short)((wants_input(p) ? POLLIN : 0) | (p->out ? POLLOUT : 0));

        if (!events)
            continue;
        tcp->poll[n] = (struct pollfd){.fd = p->fd, .events = events};
        tcp->polled[n++] = r;
    }
    return n;
}

/* Poll the connections once. If `idle` is set, poll repeatedly for a short time, and then sleep in poll(). */
static int wait_ready(struct tcp *tcp, int n, bool idle)
{
    int64_t until = clock_ns() + SPIN_NS;
    int ready = poll(tcp->poll, (nfds_t)n, 0);

    while (!ready && idle && !tcp->t.crowded && clock_ns() < until) {
        sched_yield();
        ready = poll(tcp->poll, (nfds_t)n, 0);
    }
    return !ready && idle ? poll(tcp->poll, (nfds_t)n, SLEEP_MS) : ready;
}

static int tcp_transport_progress(struct transport *t, bool idle, struct err *e)
{
    struct tcp *tcp = (struct tcp *)t;
    int n = fill_poll(tcp);

    if (!n || wait_ready(tcp, n, idle) <= 0)
        return 0;
    for (int i = 0; i < n; i++) {
        short got = tcp->poll[i].revents;
        int r = tcp->polled[i];

        if ((got & (POLLOUT | POLLERR)) && flush_peer_sends(tcp, r, e) < 0)
            return -1;
        if ((got & (POLLIN | POLLHUP | POLLERR)) && read_some(tcp, r, e) < 0)
            return -1;
    }
    return 0;
}

static void tcp_close(struct transport *t, bool orderly)
{
    struct tcp *tcp = (struct tcp *)t;

    (void)orderly;              /* not used, because connections are closed in the same way in both cases */
    for (int r = 0; r < t->size; r++) {
        struct peer *p = &tcp->peer[r];

        if (p->fd >= 0)
            close(p->fd);
        while (p->early) {
            struct early *k = p->early;

            p->early = k->next;
            free(k->data);
            free(k);
        }
        free(p->in);
    }
    free(tcp->peer);
    free(tcp->poll);
    free(tcp->polled);
    free(tcp);
}

int transport_tcp_open(const struct launch *l, double timeout_s, struct transport **t, struct err *e)
{
    size_t n = (size_t)l->size;
    int *fd = xcalloc(n, sizeof *fd);
    struct tcp *tcp;

    if (tcp_join(l, timeout_s, fd, e) < 0) {
        free(fd);
        return -1;
    }
    tcp = xcalloc(1, sizeof *tcp);
    tcp->t = (struct transport){.name = "tcp", .rank = l->rank, .size = l->size,
                                .start = tcp_transport_start, .progress = tcp_transport_progress, .close = tcp_close};
    atomic_store(&tcp->t.lost, -1);
    tcp->peer = xcalloc(n, sizeof *tcp->peer);
    tcp->poll = xcalloc(n, sizeof *tcp->poll);
    tcp->polled = xcalloc(n, sizeof *tcp->polled);
    for (size_t r = 0; r < n; r++) {
        struct peer *p = &tcp->peer[r];

        p->fd = fd[r];
        p->out_end = &p->out;
        p->want_end = &p->want;
        p->early_end = &p->early;
        p->in = xmalloc(IN_BYTES);
    }
    free(fd);
    *t = &tcp->t;
    return 0;
}
