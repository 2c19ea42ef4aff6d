/*
 * writer.c - start the writer process of a rank, and communicate with it
 *
 * The trainer sends messages to the writer over a socket. Each consists of a header and bytes: AREA (size of the
 * staging area), SETUP, SAVE and END. The writer replies to each message except END. A second socket, `flow`, is used
 * by the thread that copies the state. During a save, it sends the position up to which the state is in the staging
 * area, and receives the position up to which the area may be overwritten.
 */
#include "tools/train/checkpoint/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "tools/train/checkpoint/checkpoint_engine.h"

enum message { MSG_AREA, MSG_SETUP, MSG_SAVE, MSG_END };

struct header {
    enum message what;
    uint64_t n;
};

struct reply {
    int rc;
    double wall_s;
    uint64_t bytes;             /* in the reply to SETUP: disk space that this rank's files need */
    enum save_outcome outcome;  /* in the reply to SAVE */
    struct err err;
};

struct writer {
    pid_t pid;
    int sock, flow, memfd;
    void *area;
    uint64_t area_bytes, disk_bytes;
    pthread_t toucher;
    bool touching;
    int touch_errno;            /* errno of the thread that touches the pages; valid after the thread has been joined */
    /* All bytes of the state before this position may be overwritten in the area. Used by the copying thread. */
    uint64_t released;
    bool saving;
    bool dead;
};

/* ---- the socket ---- */

static bool send_all(int fd, const void *p, size_t n)
{
    while (n) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p = (const char *)p + k;
        n -= (size_t)k;
    }
    return true;
}

/* Returns false if the other process has ended. */
static bool recv_all(int fd, void *p, size_t n)
{
    while (n) {
        ssize_t k = recv(fd, p, n, 0);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p = (char *)p + k;
        n -= (size_t)k;
    }
    return true;
}

/* ---- the writer's side ---- */

struct serving {
    int sock, flow, memfd;
    uint64_t filled;            /* number of bytes of the current save's state that are in the staging area */
    void *area;
    uint64_t area_bytes;
    struct save_engine *engine;
};

static bool trainer_gone(void *ctx)
{
    const struct serving *s = ctx;
    struct pollfd p = { .fd = s->sock, .events = POLLRDHUP };

    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

static int await_state(void *ctx, uint64_t upto, struct err *e)
{
    struct serving *s = ctx;

    while (s->filled < upto)
        if (!recv_all(s->flow, &s->filled, sizeof s->filled)) {
            errno = EPIPE;
            err_sys(e, "checkpoint writer", "the trainer ended before its state was copied");
            return -1;
        }
    return 0;
}

static void release_state(void *ctx, uint64_t upto)
{
    const struct serving *s = ctx;

    /* an error is ignored: if the trainer has ended, the next await reports it */
    (void)!send_all(s->flow, &upto, sizeof upto);
}

static int serve_area(struct serving *s, const void *msg, struct err *e)
{
    memcpy(&s->area_bytes, msg, sizeof s->area_bytes);
    s->area = mmap(NULL, s->area_bytes, PROT_READ, MAP_SHARED, s->memfd, 0);
    if (s->area != MAP_FAILED)
        return 0;
    err_sys(e, "staging area", "cannot map %llu bytes", (unsigned long long)s->area_bytes);
    return -1;
}

static int serve_save(struct serving *s, const struct save_order *o, struct reply *r)
{
    const struct save_feed feed = { trainer_gone, await_state, release_state, s };

    s->filled = 0;
    r->outcome = save_engine_run(s->engine, o, &feed, &r->err);
    return r->outcome == SAVE_COMPLETE ? 0 : -1;
}

static void serve(struct serving *s, const struct header *h, const void *msg, struct reply *r)
{
    double begun = clock_s();

    if (h->what == MSG_AREA) {
        r->rc = serve_area(s, msg, &r->err);
    } else if (h->what == MSG_SETUP) {
        save_engine_free(s->engine);
        s->engine = save_engine_new(msg, h->n, s->area, &r->err);
        r->rc = s->engine ? 0 : -1;
        r->bytes = s->engine ? save_engine_disk_bytes(s->engine) : 0;
    } else {
        r->rc = serve_save(s, msg, r);
    }
    r->wall_s = clock_s() - begun;
}

/*
 * Detach from the trainer: close its files, because a launcher waits until its pipes are closed, and ignore the signals
 * that are meant for the trainer.
 */
static void detach_writer(const struct serving *s)
{
    static const int ignored[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGQUIT };
    int null = open("/dev/null", O_RDWR);

    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    for (int fd = 0; fd < 3 && null >= 0; fd++)
        dup2(null, fd);
    for (int fd = 3, end = (int)sysconf(_SC_OPEN_MAX); fd < (end < 65536 ? end : 65536); fd++)
        if (fd != s->sock && fd != s->flow && fd != s->memfd)
            close(fd);
    prctl(PR_SET_NAME, "ckpt-writer");
}

static _Noreturn void run_writer(int sock, int flow, int memfd)
{
    struct serving s = { .sock = sock, .flow = flow, .memfd = memfd };
    struct header h;

    detach_writer(&s);
    while (recv_all(sock, &h, sizeof h) && h.what != MSG_END) {
        void *msg = malloc(h.n + 1);
        struct reply r = { .rc = -1 };

        if (!msg || !recv_all(sock, msg, h.n))
            break;
        serve(&s, &h, msg, &r);
        free(msg);
        if (!send_all(sock, &r, sizeof r))
            break;
    }
    _exit(0);
}

/* ---- the trainer's side ---- */

struct writer *writer_start(struct err *e)
{
    int pair[4] = { -1, -1, -1, -1 }, memfd = memfd_create("checkpoint-staging", MFD_CLOEXEC);
    struct writer *w;
    pid_t pid = -1;

    if (memfd >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0 &&
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair + 2) == 0)
        pid = fork();
    if (pid == 0)
        run_writer(pair[1], pair[3], memfd);
    if (pid < 0) {
        err_sys(e, "checkpoint writer", "cannot start the process");
        if (memfd >= 0)
            close(memfd);
        for (int i = 0; i < 4; i++)
            if (pair[i] >= 0)
                close(pair[i]);
        return NULL;
    }
    close(pair[1]);
    close(pair[3]);
    w = xcalloc(1, sizeof *w);
    w->pid = pid;
    w->sock = pair[0];
    w->flow = pair[2];
    w->memfd = memfd;
    return w;
}

long writer_pid(const struct writer *w)
{
    return w->pid;
}

/* Set *e to the reason why the writer has not answered. Returns -1. */
static int report_lost_writer(struct writer *w, struct err *e)
{
    int status = 0;

    if (!w->dead)
        waitpid(w->pid, &status, 0);
    w->dead = true;
    w->saving = false;
    errno = EPIPE;
    if (WIFSIGNALED(status))
        err_sys(e, "checkpoint writer", "process %ld was ended by signal %d", (long)w->pid, WTERMSIG(status));
    else
        err_sys(e, "checkpoint writer", "process %ld has ended (status %d)", (long)w->pid, WEXITSTATUS(status));
    return -1;
}

static int post(struct writer *w, enum message what, const void *msg, size_t n, struct err *e)
{
    struct header h = { .what = what, .n = n };

    if (w->dead || !send_all(w->sock, &h, sizeof h) || !send_all(w->sock, msg, n))
        return report_lost_writer(w, e);
    return 0;
}

static int recv_writer_reply(struct writer *w, struct reply *r, struct err *e)
{
    if (!recv_all(w->sock, r, sizeof *r))
        return report_lost_writer(w, e);
    if (r->rc < 0)
        *e = r->err;
    return r->rc;
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23          /* Linux 5.14 */
#endif

/*
 * Touch all pages of the staging area in advance. The first save is then not slowed down by it, and a lack of memory is
 * an error now instead of a fatal signal later.
 */
static void *touch_area_pages(void *arg)
{
    enum { STEP = 64 << 20 };
    struct writer *w = arg;

    for (uint64_t at = 0, n; at < w->area_bytes; at += n) {
        n = w->area_bytes - at < STEP ? w->area_bytes - at : STEP;
        if (madvise((char *)w->area + at, n, MADV_POPULATE_WRITE) == 0)
            continue;
        w->touch_errno = errno;
        if (errno != EINVAL)
            break;
        /* The kernel does not support MADV_POPULATE_WRITE. posix_fallocate() also creates the pages. */
        w->touch_errno = posix_fallocate(w->memfd, (off_t)at, (off_t)n);
        if (w->touch_errno)
            break;
    }
    return NULL;
}

int writer_area_begin(struct writer *w, uint64_t bytes, struct err *e)
{
    w->area_bytes = bytes;
    if (ftruncate(w->memfd, (off_t)bytes) < 0 ||
        (w->area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->memfd, 0)) == MAP_FAILED) {
        err_sys(e, "staging area", "cannot have %llu bytes of memory", (unsigned long long)bytes);
        w->area = NULL;
        return -1;
    }
    w->touching = pthread_create(&w->toucher, NULL, touch_area_pages, w) == 0;
    if (!w->touching)
        touch_area_pages(w);
    return 0;
}

static int end_touching(struct writer *w, struct err *e)
{
    if (w->touching)
        pthread_join(w->toucher, NULL);
    w->touching = false;
    if (!w->touch_errno)
        return 0;
    errno = w->touch_errno;
    err_sys(e, "staging area", "cannot have %llu bytes of memory", (unsigned long long)w->area_bytes);
    return -1;
}

void *writer_area(struct writer *w, uint64_t bytes, struct err *e)
{
    struct reply r;

    if (!w->area && writer_area_begin(w, bytes, e) < 0)
        return NULL;
    if (end_touching(w, e) < 0 || post(w, MSG_AREA, &w->area_bytes, sizeof w->area_bytes, e) < 0 ||
        recv_writer_reply(w, &r, e) < 0)
        return NULL;
    return w->area;
}

int writer_setup(struct writer *w, const void *msg, size_t n, uint64_t *disk_bytes, struct err *e)
{
    struct reply r;

    if (post(w, MSG_SETUP, msg, n, e) < 0 || recv_writer_reply(w, &r, e) < 0)
        return -1;
    *disk_bytes = r.bytes;
    return 0;
}

int writer_save(struct writer *w, const void *msg, size_t n, struct err *e)
{
    w->released = 0;
    if (post(w, MSG_SAVE, msg, n, e) < 0)
        return -1;
    w->saving = true;
    return 0;
}

int writer_filled(struct writer *w, uint64_t upto)
{
    return send_all(w->flow, &upto, sizeof upto) ? 0 : -1;
}

int writer_room(struct writer *w, uint64_t upto)
{
    while (w->released < upto)
        if (!recv_all(w->flow, &w->released, sizeof w->released))
            return -1;
    return 0;
}

enum save_outcome writer_result(struct writer *w, bool block, double *wall_s, struct err *e)
{
    struct pollfd p = { .fd = w->sock, .events = POLLIN };
    struct reply r = { .outcome = SAVE_FAILED };

    if (!w->saving)
        return SAVE_NONE;
    if (!block && poll(&p, 1, 0) <= 0)
        return SAVE_WRITING;
    w->saving = false;
    if (recv_writer_reply(w, &r, e) < 0)
        return w->dead ? SAVE_FAILED : r.outcome;
    *wall_s = r.wall_s;
    return r.outcome;
}

void writer_end(struct writer *w)
{
    struct header h = { .what = MSG_END };

    if (!w)
        return;
    if (!w->dead) {
        send_all(w->sock, &h, sizeof h);
        waitpid(w->pid, NULL, 0);
    }
    if (w->touching)
        pthread_join(w->toucher, NULL);
    if (w->area)
        munmap(w->area, w->area_bytes);
    close(w->sock);
    close(w->flow);
    close(w->memfd);
    free(w);
}
