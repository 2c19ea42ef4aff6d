/*
 * transport_mpi.c - messages through the MPI library that mpi_library.h loads; the channel is the tag
 *
 * Waiting is implemented here and does not use MPI_Wait(), in which Open MPI spins. If there are more ranks than
 * processors, spinning takes the processor away from the rank that all others wait for.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/processors.h"
#include "libcommon/comm/launch.h"
#include "libcommon/comm/mpi_library.h"
#include "libcommon/comm/socket.h"
#include "libcommon/comm/transport.h"

enum {
    SPIN_NS = 100000,           /* how long to poll before the first nap */
    CROWDED_TRIES = 4,          /* number of yields before the first nap, if ranks share processors */
    NAP_MIN_NS = 10000, NAP_MAX_NS = 200000,
};

struct mpi {
    struct transport t;
    const struct mpi_library *library;
    mpi_handle comm;
    int tag_max;
    /* Messages in transit. The elements of these arrays with the same index describe one message. */
    int n, cap;
    char *request;              /* handles of the library */
    struct xfer **xfer;
    int *ready;                 /* [cap]: the indices that MPI_Testsome() returned, and their statuses */
    char *status;
};

/* Return the address of request i. */
static char *request_at(const struct mpi *m, int i)
{
    return m->request + (size_t)i * m->library->abi.handle_size;
}

static bool is_request(const struct mpi *m, int i)
{
    mpi_handle handle = 0;

    memcpy(&handle, request_at(m, i), m->library->abi.handle_size);
    return handle != m->library->no_request;
}

static int report_mpi_error(const struct mpi_library *library, int code, const char *what, struct err *e)
{
    char text[MPI_LIBRARY_TEXT_MAX] = "";
    int len = 0;

    library->error_string(code, text, &len);
    err_data(e, "MPI", ERR_NO_BYTE, "%s: %s", what, text);
    return -1;
}

static int mpi_transport_start(struct transport *t, struct xfer *x, struct err *e)
{
    struct mpi *m = (struct mpi *)t;
    const struct mpi_library *library = m->library;
    int rc;

    if (x->channel > (uint32_t)m->tag_max) {
        err_data(e, "MPI", ERR_NO_BYTE, "too many groups: channel %u, tags end at %d", x->channel, m->tag_max);
        return -1;
    }
    if (m->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 64;
        m->request = xrealloc(m->request, (size_t)m->cap * library->abi.handle_size);
        m->xfer = xrealloc(m->xfer, (size_t)m->cap * sizeof *m->xfer);
        m->ready = xrealloc(m->ready, (size_t)m->cap * sizeof *m->ready);
        m->status = xrealloc(m->status, (size_t)m->cap * library->abi.status_size);
    }
    x->done = false;
    rc = x->is_send
        ? library->isend(x->buf, (int)x->n, library->byte, x->peer, (int)x->channel, m->comm, request_at(m, m->n))
        : library->irecv(x->buf, (int)x->n, library->byte, x->peer, (int)x->channel, m->comm, request_at(m, m->n));
    if (rc != MPI_LIBRARY_SUCCESS)
        return report_mpi_error(library, rc, x->is_send ? "cannot send" : "cannot receive", e);
    m->xfer[m->n++] = x;
    return 0;
}

/* Check a receive that MPI reports as complete. Fails if the message does not have the expected length. */
static int check_done(const struct mpi_library *library, struct xfer *x, const char *status, int code, struct err *e)
{
    char place[32];
    int got = 0;

    snprintf(place, sizeof place, "rank %d", x->peer);
    if (code == library->abi.err_truncate) {
        err_data(e, place, ERR_NO_BYTE, "sent more than the %zu bytes that were expected", x->n);
        return -1;
    }
    if (code != MPI_LIBRARY_SUCCESS)
        return report_mpi_error(library, code, place, e);
    if (!x->is_send)
        library->get_count(status, library->byte, &got);
    if (!x->is_send && (size_t)got != x->n) {
        err_data(e, place, ERR_NO_BYTE, "sent %d bytes where %zu were expected", got, x->n);
        return -1;
    }
    x->done = true;
    return 0;
}

/* Let MPI make progress once. *moved receives the number of messages that this call completed. */
static int test(struct mpi *m, int *moved, struct err *e)
{
    const struct mpi_library *library = m->library;
    int n = 0, rc = library->testsome(m->n, m->request, &n, m->ready, m->status), kept = 0;

    *moved = 0;
    if (rc != MPI_LIBRARY_SUCCESS && rc != library->abi.err_in_status)
        return report_mpi_error(library, rc, "cannot make progress", e);
    if (n == MPI_LIBRARY_UNDEFINED || n == 0)
        return 0;
    for (int i = 0; i < n; i++) {
        const char *status = m->status + (size_t)i * library->abi.status_size;
        int code = rc;

        if (rc != MPI_LIBRARY_SUCCESS)
            memcpy(&code, status + library->abi.status_error_at, sizeof code);
        if (check_done(library, m->xfer[m->ready[i]], status, code, e) < 0)
            return -1;
    }
    /* Keep the order of the remaining messages, because callers usually wait for the oldest one. */
    for (int i = 0; i < m->n; i++) {
        if (!is_request(m, i))
            continue;
        memmove(request_at(m, kept), request_at(m, i), library->abi.handle_size);
        m->xfer[kept++] = m->xfer[i];
    }
    m->n = kept;
    *moved = n;
    return 0;
}

/*
 * Pause before the next attempt to transfer data. The first attempts are made without a pause; later pauses are
 * increasingly long naps.
 */
static void idle_wait(struct mpi *m, int tries, int64_t since_ns, long *nap_ns)
{
    if (m->t.crowded ? tries < CROWDED_TRIES : clock_ns() - since_ns < SPIN_NS) {
        sched_yield();
        return;
    }
    nanosleep(&(struct timespec){.tv_nsec = *nap_ns}, NULL);
    if (*nap_ns < NAP_MAX_NS)
        *nap_ns *= 2;
}

static int mpi_transport_progress(struct transport *t, bool idle, struct err *e)
{
    struct mpi *m = (struct mpi *)t;
    int64_t since = idle ? clock_ns() : 0;
    long nap_ns = NAP_MIN_NS;
    int moved = 0;

    if (!m->n)
        return 0;
    for (int tries = 0;; tries++) {
        if (test(m, &moved, e) < 0)
            return -1;
        if (moved || !idle)
            return 0;
        idle_wait(m, tries, since, &nap_ns);
    }
}

static void mpi_close(struct transport *t, bool orderly)
{
    struct mpi *m = (struct mpi *)t;

    /* MPI_Finalize() is called only in an orderly end, because it waits until all ranks have called it. */
    if (orderly) {
        m->library->comm_free(&m->comm);
        m->library->finalize();
    }
    free(m->request);
    free(m->xfer);
    free(m->ready);
    free(m->status);
    free(m);
}

static int check_mpi_world(const struct launch *l, int rank, int size, struct err *e)
{
    if (size != l->size) {
        err_usage(e,
                  "%s started %d tasks (%s), but MPI reaches a world of %d: the launcher is part of another MPI than "
                  "the one of this program", launch_name(l->kind), l->size, l->size_name, size);
        return -1;
    }
    if (rank != l->rank) {
        err_usage(e, "%s gives this process rank %d, MPI gives it rank %d", launch_name(l->kind), l->rank, rank);
        return -1;
    }
    return 0;
}

int transport_mpi_open(const struct launch *l, struct transport **t, struct err *e)
{
    const struct mpi_library *library = mpi_library_load(l, e);
    struct mpi *m;
    int given, rank, size, found = 0, *tag_max = NULL, rc;

    if (!library)
        return -1;
    /* MPI's own waits (at start and end) must yield if ranks share processors. */
    if (l->local_size > processors_allowed())
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    rc = library->init_thread(NULL, NULL, MPI_LIBRARY_FUNNELED, &given);
    if (rc != MPI_LIBRARY_SUCCESS)
        return report_mpi_error(library, rc, "cannot start", e);
    library->comm_set_errhandler(library->world, library->errors_return);
    library->comm_rank(library->world, &rank);
    library->comm_size(library->world, &size);
    if (check_mpi_world(l, rank, size, e) < 0) {
        if (size == 1)
            library->finalize();
        return -1;
    }
    m = xcalloc(1, sizeof *m);
    m->t = (struct transport){.name = "mpi", .rank = rank, .size = size,
                              .start = mpi_transport_start, .progress = mpi_transport_progress, .close = mpi_close};
    atomic_store(&m->t.lost, -1);
    m->library = library;
    library->comm_dup(library->world, &m->comm);
    library->comm_set_errhandler(m->comm, library->errors_return);
    library->comm_get_attr(m->comm, library->abi.tag_ub, &tag_max, &found);
    m->tag_max = found ? *tag_max : 32767;
    /* Make naps really last 10 us. By default the kernel lengthens them by 50 us. */
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    *t = &m->t;
    return 0;
}
