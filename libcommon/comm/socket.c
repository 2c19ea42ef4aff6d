/*
 * socket.c - connect and accept with a deadline, and transfer whole buffers
 */
#include "libcommon/comm/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"

static void set_option(int fd, int level, int name, int value)
{
    /* The result is ignored, because each of these options only improves the connection. */
    (void)setsockopt(fd, level, name, &value, sizeof value);
}

/*
 * Set the options that all connections between ranks have. With these, a dead machine is detected after 10 + 4 * 5 s.
 */
static void set_up(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
}

int socket_listen(int *port, int backlog, struct err *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0)
        set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, backlog) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) < 0) {
        err_sys(e, "network", "cannot listen on port %d", *port);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *port = ntohs(a.sin_port);
    return fd;
}

int socket_resolve(const char *host, struct in_addr *a, struct err *e)
{
    struct addrinfo hint = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    int rc = getaddrinfo(host, NULL, &hint, &found);

    if (rc) {
        err_data(e, host, ERR_NO_BYTE, "cannot find this host: %s", gai_strerror(rc));
        return -1;
    }
    *a = ((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr;
    freeaddrinfo(found);
    return 0;
}

bool socket_is_loopback(struct in_addr a)
{
    return ntohl(a.s_addr) >> 24 == 127;
}

/* Wait until fd is ready for `events`. Returns false if the deadline is reached first. */
static bool ready(int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        int64_t left = deadline_ns - clock_ns();
        struct pollfd p = {.fd = fd, .events = events};
        int rc = poll(&p, 1, left > 0 ? (int)(left / 1000000 + 1) : 0);

        if (rc > 0)
            return true;
        if (rc == 0 || errno != EINTR) {
            if (rc == 0)
                errno = ETIMEDOUT;
            return false;
        }
    }
}

static int begin_connect(const struct sockaddr_in *to, int64_t deadline_ns)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), why = 0;
    socklen_t len = sizeof why;

    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)to, sizeof *to) == 0)
        return fd;
    if (errno == EINPROGRESS && ready(fd, POLLOUT, deadline_ns) &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) == 0 && why == 0)
        return fd;
    if (!why)
        why = errno;
    close(fd);
    errno = why;
    return -1;
}

/*
 * Returns true if the socket is connected to itself. This can happen on loopback: a connection to an unused port may be
 * assigned that same port as its own.
 */
static bool is_self(int fd)
{
    struct sockaddr_in a, b;
    socklen_t la = sizeof a, lb = sizeof b;

    return getsockname(fd, (struct sockaddr *)&a, &la) == 0 && getpeername(fd, (struct sockaddr *)&b, &lb) == 0 &&
           a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr;
}

int socket_try(struct in_addr addr, int port, int64_t deadline_ns)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = addr};
    int fd = begin_connect(&to, deadline_ns);

    if (fd < 0)
        return -1;
    if (is_self(fd)) {
        close(fd);
        errno = ECONNREFUSED;
        return -1;
    }
    set_up(fd);
    return fd;
}

int socket_connect(struct in_addr addr, int port, int64_t deadline_ns)
{
    for (;;) {
        int fd = socket_try(addr, port, deadline_ns);

        if (fd >= 0 || clock_ns() + 20000000 >= deadline_ns)
            return fd;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

int socket_accept(int listener, int64_t deadline_ns)
{
    for (;;) {
        int fd;

        if (!ready(listener, POLLIN, deadline_ns))
            return -1;
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            set_up(fd);
            return fd;
        }
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
            return -1;
    }
}

bool socket_read(int fd, void *buf, size_t n, int64_t deadline_ns)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = recv(fd, (char *)buf + got, n - got, 0);

        if (k > 0)
            got += (size_t)k;
        else if (k == 0 || (errno != EAGAIN && errno != EINTR))
            return false;
        else if (!ready(fd, POLLIN, deadline_ns))
            return false;
    }
    return true;
}

bool socket_write(int fd, const void *buf, size_t n, int64_t deadline_ns)
{
    for (size_t put = 0; put < n;) {
        ssize_t k = send(fd, (const char *)buf + put, n - put, MSG_NOSIGNAL);

        if (k >= 0)
            put += (size_t)k;
        else if (errno != EAGAIN && errno != EINTR)
            return false;
        else if (!ready(fd, POLLOUT, deadline_ns))
            return false;
    }
    return true;
}
