/*
 * tcp_join.c - rank 0 collects the addresses of all ranks, and each pair of ranks is connected
 */
#include "libcommon/comm/tcp_join.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"
#include "libcommon/comm/socket.h"

/*
 * The messages. All numbers are little-endian; addresses are in network byte order.
 *   here    u64 magic, u64 job
 *   hello   u64 magic, u32 rank, u32 size, u32 port, u32 address
 *   table   u64 magic, u64 token, then for each rank: u32 address, u32 port
 *   greet   u64 token, u32 rank
 */
enum { HERE_BYTES = 16, HELLO_BYTES = 24, TABLE_HEAD = 16, TABLE_ROW = 8, GREET_BYTES = 12 };
#define MAGIC UINT64_C(0x314e494a4b444853)      /* "SHDKJIN1" */
/*
 * Time limit for the first bytes of a connection. It prevents a port scanner that sends nothing from blocking the start
 * of the job.
 */
#define HELLO_NS (2 * INT64_C(1000000000))
/*
 * Time limit for the first bytes from rank 0. Rank 0 may be busy with a port scanner for HELLO_NS. If a host drops
 * packets, each of its ports costs this time.
 */
#define HERE_NS (3 * INT64_C(1000000000))
#define ROUND_NS INT64_C(50000000)      /* pause between two rounds through the ports */

struct join {
    const struct launch *l;
    int64_t deadline_ns;
    double timeout_s;
    int listener, port;
    struct in_addr master;      /* as resolved by this rank */
    uint8_t *table;
    int *fd;
};

static int64_t soon(const struct join *j, int64_t ns)
{
    int64_t until = clock_ns() + ns;

    return until < j->deadline_ns ? until : j->deadline_ns;
}

/* Returns the i-th port that rank 0 may listen on, or 0 if there are no more. */
static int port_at(const struct launch *l, int i)
{
    if (!l->port_in_use)
        return i == 0 ? l->port : 0;
    if (i >= TCP_JOIN_PORTS)
        return 0;
    return l->port + TCP_JOIN_PORTS > 65535 ? l->port - 1 - i : l->port + 1 + i;
}

/* Format the address at which this rank looks for rank 0: "node1:29500", or "node1, ports 29501 to 29516". */
static void name_root(const struct launch *l, char *text, size_t room)
{
    if (l->port_in_use)
        snprintf(text, room, "%s, ports %d to %d", l->master, port_at(l, 0), port_at(l, TCP_JOIN_PORTS - 1));
    else
        snprintf(text, room, "%s:%d", l->master, l->port);
}

/* Format the list of ranks that have not connected: "ranks 3 5 6 and 12 more". */
static void name_missing(const struct join *j, char *text, size_t room)
{
    int shown = 0, missing = 0;
    size_t n = 0;

    for (int r = 0; r < j->l->size; r++) {
        if (r == j->l->rank || j->fd[r] >= 0)
            continue;
        missing++;
        if (shown < 8) {
            n += (size_t)snprintf(text + n, room - n, " %d", r);
            shown++;
        }
    }
    if (missing > shown)
        snprintf(text + n, room - n, " and %d more", missing - shown);
}

static void report_missing_ranks(const struct join *j, struct err *e)
{
    char missing[160] = "";

    name_missing(j, missing, sizeof missing);
    err_data(e, "start", ERR_NO_BYTE, "rank %d waited %.0f s at port %d; not connected: rank%s", j->l->rank,
             j->timeout_s, j->port, missing);
}

/*
 * Handle a new connection to rank 0. Returns 0 if it comes from a rank of this job, 1 if it does not, and -1 if the job
 * cannot start.
 */
static int recv_rank_hello(struct join *j, int fd, struct err *e)
{
    uint8_t here[HERE_BYTES], hello[HELLO_BYTES];
    uint32_t rank, size;

    put_le64(here, MAGIC);
    put_le64(here + 8, j->l->job);
    if (!socket_write(fd, here, sizeof here, soon(j, HELLO_NS)) ||
        !socket_read(fd, hello, sizeof hello, soon(j, HELLO_NS)) || get_le64(hello) != MAGIC)
        return 1;
    rank = get_le32(hello + 8);
    size = get_le32(hello + 12);
    if (size != (uint32_t)j->l->size || rank < 1 || rank >= size) {
        err_usage(e, "start: a process reports that it is rank %u of %u, but rank 0 has %s=%d", rank, size,
                  j->l->size_name, j->l->size);
        return -1;
    }
    if (j->fd[rank] >= 0) {
        err_usage(e, "start: two processes claim rank %u of %u", rank, size);
        return -1;
    }
    j->fd[rank] = fd;
    memcpy(j->table + TABLE_HEAD + rank * TABLE_ROW, hello + 20, 4);
    memcpy(j->table + TABLE_HEAD + rank * TABLE_ROW + 4, hello + 16, 4);
    return 0;
}

static size_t table_bytes(const struct join *j)
{
    return TABLE_HEAD + (size_t)j->l->size * TABLE_ROW;
}

static int join_as_root(struct join *j, struct err *e)
{
    int here = 1;

    while (here < j->l->size) {
        int fd = socket_accept(j->listener, j->deadline_ns), rc;

        if (fd < 0) {
            report_missing_ranks(j, e);
            return -1;
        }
        rc = recv_rank_hello(j, fd, e);
        if (rc)
            close(fd);
        if (rc < 0)
            return -1;
        here += !rc;
    }
    put_le64(j->table, MAGIC);
    if (getrandom(j->table + 8, 8, 0) != 8) {
        err_sys(e, "start", "no random numbers");
        return -1;
    }
    for (int r = 1; r < j->l->size; r++)
        if (!socket_write(j->fd[r], j->table, table_bytes(j), j->deadline_ns)) {
            err_data(e, "start", ERR_NO_BYTE, "rank %d went away before all had come", r);
            return -1;
        }
    return 0;
}

/*
 * Try to connect to this job's rank 0 at `port`. Returns the connection, or -1. If another program answers, *stranger
 * is set to `port`.
 */
static int try_root(struct join *j, int port, int *stranger)
{
    uint8_t here[HERE_BYTES];
    int fd = socket_try(j->master, port, soon(j, HERE_NS)), why = errno;

    if (fd < 0) {
        errno = why;
        return -1;
    }
    if (socket_read(fd, here, sizeof here, soon(j, HERE_NS)) && get_le64(here) == MAGIC &&
        get_le64(here + 8) == j->l->job)
        return fd;
    close(fd);
    *stranger = port;
    errno = ECONNREFUSED;
    return -1;
}

static int connect_to_root(struct join *j, struct err *e)
{
    char where[300];
    int stranger = 0;

    for (;;) {
        for (int i = 0, port; (port = port_at(j->l, i)); i++)
            if ((j->fd[0] = try_root(j, port, &stranger)) >= 0)
                return 0;
        if (clock_ns() + ROUND_NS >= j->deadline_ns)
            break;
        nanosleep(&(struct timespec){.tv_nsec = ROUND_NS}, NULL);
    }
    name_root(j->l, where, sizeof where);
    if (stranger)
        err_data(e, "start", ERR_NO_BYTE, "rank %d: no rank 0 of this job at %s within %.0f s; what listens at port %d "
                 "is another program, or another job", j->l->rank, where, j->timeout_s, stranger);
    else
        err_sys(e, "start", "rank %d: no rank 0 at %s within %.0f s", j->l->rank, where, j->timeout_s);
    return -1;
}

/* Send the hello to rank 0 and receive the table. */
static int register_at_root(struct join *j, struct err *e)
{
    uint8_t hello[HELLO_BYTES];
    struct sockaddr_in own;
    socklen_t len = sizeof own;
    int fd;

    if (connect_to_root(j, e) < 0)
        return -1;
    fd = j->fd[0];
    if (getsockname(fd, (struct sockaddr *)&own, &len) < 0) {
        err_sys(e, "start", "no address of our own");
        return -1;
    }
    put_le64(hello, MAGIC);
    put_le32(hello + 8, (uint32_t)j->l->rank);
    put_le32(hello + 12, (uint32_t)j->l->size);
    put_le32(hello + 16, (uint32_t)j->port);
    memcpy(hello + 20, &own.sin_addr, 4);
    if (!socket_write(fd, hello, sizeof hello, j->deadline_ns) ||
        !socket_read(fd, j->table, table_bytes(j), j->deadline_ns) || get_le64(j->table) != MAGIC) {
        err_data(e, "start", ERR_NO_BYTE, "rank %d: rank 0 at %s refused the connection; see its message", j->l->rank,
                 j->l->master);
        return -1;
    }
    return 0;
}

static int greet(struct join *j, int r, struct err *e)
{
    uint8_t word[GREET_BYTES];
    struct in_addr a;

    memcpy(&a, j->table + TABLE_HEAD + r * TABLE_ROW, 4);
    /*
     * Rank r is on the host of rank 0, and is connected to rank 0 through loopback. Other hosts therefore reach rank r
     * at the address of rank 0.
     */
    if (socket_is_loopback(a))
        a = j->master;
    j->fd[r] = socket_connect(a, (int)get_le32(j->table + TABLE_HEAD + r * TABLE_ROW + 4), j->deadline_ns);
    memcpy(word, j->table + 8, 8);
    put_le32(word + 8, (uint32_t)j->l->rank);
    if (j->fd[r] < 0 || !socket_write(j->fd[r], word, sizeof word, j->deadline_ns)) {
        err_sys(e, "start", "rank %d cannot connect to rank %d at %s", j->l->rank, r, inet_ntoa(a));
        return -1;
    }
    return 0;
}

static int connect_to_peers(struct join *j, struct err *e)
{
    int missing = j->l->size - j->l->rank - 1;

    for (int r = 1; r < j->l->rank; r++)
        if (greet(j, r, e) < 0)
            return -1;
    while (missing) {
        uint8_t word[GREET_BYTES];
        int fd = socket_accept(j->listener, j->deadline_ns);
        uint32_t r;

        if (fd < 0) {
            report_missing_ranks(j, e);
            return -1;
        }
        if (!socket_read(fd, word, sizeof word, soon(j, HELLO_NS)) || memcmp(word, j->table + 8, 8) != 0 ||
            (r = get_le32(word + 8)) <= (uint32_t)j->l->rank || r >= (uint32_t)j->l->size || j->fd[r] >= 0) {
            close(fd);
            continue;
        }
        j->fd[r] = fd;
        missing--;
    }
    return 0;
}

/* Make rank 0 listen on the first of its ports that is free. */
static int listen_as_root(struct join *j, struct err *e)
{
    char where[300];
    struct err why;

    for (int i = 0; j->listener < 0 && (j->port = port_at(j->l, i)); i++) {
        memset(&why, 0, sizeof why);
        j->listener = socket_listen(&j->port, j->l->size, &why);
    }
    if (j->listener >= 0)
        return 0;
    name_root(j->l, where, sizeof where);
    err_data(e, "start", ERR_NO_BYTE, "rank 0 cannot wait at %s: %s", where, why.msg);
    return -1;
}

static int tcp_job_join(struct join *j, struct err *e)
{
    if (socket_resolve(j->l->master, &j->master, e) < 0)
        return -1;
    if (j->l->rank == 0)
        return listen_as_root(j, e) < 0 ? -1 : join_as_root(j, e);
    j->listener = socket_listen(&j->port, j->l->size, e);
    if (j->listener < 0)
        return -1;
    return register_at_root(j, e) < 0 ? -1 : connect_to_peers(j, e);
}

int tcp_join(const struct launch *l, double timeout_s, int *fd, struct err *e)
{
    struct join j = {.l = l, .timeout_s = timeout_s, .listener = -1, .fd = fd};
    int rc;

    if (!l->master[0] || !l->port) {
        err_usage(e, "environment: %s=%d, but %s is not set", l->size_name, l->size,
                  l->master[0] ? "MASTER_PORT" : "MASTER_ADDR");
        return -1;
    }
    for (int r = 0; r < l->size; r++)
        fd[r] = -1;
    j.deadline_ns = clock_ns() + (int64_t)(timeout_s * 1e9);
    j.table = xcalloc(1, table_bytes(&j));
    rc = tcp_job_join(&j, e);
    for (int r = 0; rc < 0 && r < l->size; r++)
        if (fd[r] >= 0)
            close(fd[r]);
    if (j.listener >= 0)
        close(j.listener);
    free(j.table);
    return rc;
}
