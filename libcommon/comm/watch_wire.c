/*
 * watch_wire.c - connections between the monitors, and their messages
 *
 * Messages have one fixed size and are rare. Connections are made while the ranks start. The transport already
 * exists and is used to distribute the address on which rank 0 listens.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/comm/socket.h"
#include "libcommon/comm/watch_impl.h"

enum { JOIN_S = 60, TRY_S = 3 };

void conn_send(struct conn *c, const struct wire *head, const char *text)
{
    struct wire m = *head;

    if (c->fd < 0)
        return;
    if (text)
        snprintf(m.text, sizeof m.text, "%s", text);
    /* A failure is ignored. If the peer has gone, the next read from this connection detects it. */
    (void)send(c->fd, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int conn_read(struct conn *c, uint64_t token, int *why)
{
    if (c->got == sizeof c->in)
        c->got = 0;
    while (c->got < sizeof c->in) {
        ssize_t k = recv(c->fd, (char *)&c->in + c->got, sizeof c->in - c->got, MSG_DONTWAIT);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && errno == EAGAIN)
            return 0;
        if (k <= 0) {
            *why = k < 0 ? errno : 0;
            return -1;
        }
        c->got += (size_t)k;
    }
    c->in.text[WIRE_TEXT - 1] = '\0';
    if (c->in.token != token) {
        *why = EPROTO;
        return -1;
    }
    return 1;
}

void conn_close(struct conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* Add all IPv4 addresses of this host that other hosts might be able to reach. */
static void own_addresses(struct watch_offer *offer)
{
    struct ifaddrs *list;

    if (getifaddrs(&list) < 0)
        return;
    for (struct ifaddrs *i = list; i && offer->n_addresses < OFFER_ADDRESSES; i = i->ifa_next) {
        struct in_addr a;

        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP))
            continue;
        a = ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr;
        if (!socket_is_loopback(a))
            offer->address[offer->n_addresses++] = a.s_addr;
    }
    freeifaddrs(list);
}

int watch_offer(struct watch *w, struct watch_offer *offer, struct err *e)
{
    int port = 0, fd = socket_listen(&port, w->size, e);

    memset(offer, 0, sizeof *offer);
    if (fd < 0)
        return -1;
    if (getrandom(&offer->token, sizeof offer->token, 0) != sizeof offer->token) {
        err_sys(e, "monitor", "no random numbers");
        close(fd);
        return -1;
    }
    offer->port = port;
    own_addresses(offer);
    w->token = offer->token;
    return fd;
}

/*
 * Receive the first message of a new connection. Returns the rank that sent it, or -1 if it does not come from this
 * job.
 */
static int recv_monitor_hello(struct watch *w, int fd, int64_t deadline)
{
    struct wire m;
    int64_t soon = clock_ns() + TRY_S * SECOND;

    if (!socket_read(fd, &m, sizeof m, soon < deadline ? soon : deadline) || m.token != w->token ||
        m.kind != WIRE_HELLO || m.rank < 1 || m.rank >= w->size || w->conn[m.rank].fd >= 0)
        return -1;
    return m.rank;
}

int watch_accept(struct watch *w, int listener, struct err *e)
{
    int64_t deadline = clock_ns() + JOIN_S * SECOND;
    int missing = w->size - 1;

    while (missing) {
        int fd = socket_accept(listener, deadline), r;

        if (fd < 0) {
            err_sys(e, "monitor", "%d ranks did not connect within %d s", missing, JOIN_S);
            close(listener);
            return -1;
        }
        r = recv_monitor_hello(w, fd, deadline);
        if (r < 0) {
            close(fd);
            continue;
        }
        w->conn[r].fd = fd;
        missing--;
    }
    close(listener);
    return 0;
}

/*
 * Connect to rank 0. The connection uses loopback if rank 0 is on this host, and otherwise the first address of rank 0
 * that answers.
 */
static int reach_root(struct watch *w, const struct watch_offer *offer)
{
    int64_t deadline = clock_ns() + JOIN_S * SECOND;

    if (w->place[w->rank].node == w->place[0].node) {
        struct in_addr a = {htonl(INADDR_LOOPBACK)};

        return socket_connect(a, offer->port, deadline);
    }
    do {
        for (int i = 0; i < offer->n_addresses; i++) {
            struct in_addr a = {offer->address[i]};
            int fd = socket_connect(a, offer->port, clock_ns() + TRY_S * SECOND);

            if (fd >= 0)
                return fd;
        }
    } while (offer->n_addresses && clock_ns() < deadline);
    return -1;
}

int watch_connect(struct watch *w, const struct watch_offer *offer, struct err *e)
{
    struct wire hello = {.token = offer->token, .kind = WIRE_HELLO, .rank = w->rank};

    w->token = offer->token;
    w->conn[0].fd = reach_root(w, offer);
    if (w->conn[0].fd < 0 || !socket_write(w->conn[0].fd, &hello, sizeof hello, clock_ns() + JOIN_S * SECOND)) {
        err_sys(e, "monitor", "rank %d cannot connect to rank 0 on %s, port %d", w->rank, w->place[0].host,
                offer->port);
        return -1;
    }
    return 0;
}
