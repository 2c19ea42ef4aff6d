/* outputs.c - destination files, which are opened when needed and closed when many are open */
#include "libcommon/plan/outputs.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libcommon/base/mem.h"

/*
 * Limits for the number of files that are kept open although no chunk uses them: KEEP_OPEN files, and 1 / KEEP_SHARE of
 * the descriptor limit.
 */
enum { KEEP_OPEN = 64, KEEP_SHARE = 16 };
enum { DIRECT_ALIGN = 4096 };

struct output {
    int fd, fd_direct;                  /* -1: not open */
    unsigned mem_align;
    bool refused;
    int pins, items_left;
    uint8_t *map;                       /* NULL: not mapped */
    uint64_t map_size;
    _Atomic int writers;
};

struct outputs {
    pthread_mutex_t lock;
    struct plan *plan;
    bool direct, in_memory;
    int n_open, keep_open;
    struct output *out;
};

struct outputs *outputs_new(struct plan *p, bool direct)
{
    struct outputs *o = xcalloc(1, sizeof *o);

    pthread_mutex_init(&o->lock, NULL);
    o->plan = p;
    o->direct = direct;
    /* All destinations are assumed to be on the file system of the first one. */
    o->in_memory = plan_n_dst(p) > 0 && path_in_memory(plan_dst(p, 0)->path);
    o->keep_open = (int)min_u64(KEEP_OPEN, (uint64_t)(files_open_limit() / KEEP_SHARE));
    o->out = xcalloc((size_t)plan_n_dst(p) + 1, sizeof *o->out);
    for (int i = 0; i < plan_n_dst(p); i++)
        o->out[i] = (struct output){ .fd = -1, .fd_direct = -1, .refused = !direct };
    for (int i = 0; i < plan_n(p); i++) {
        const struct plan_item *it = plan_item(p, i);

        if (it->done)
            continue;
        if (it->dst >= 0)
            o->out[it->dst].items_left++;
        for (int k = 0; k < it->n_outs; k++)
            o->out[it->out[k].dst].items_left++;
    }
    return o;
}

/* Close the file's descriptors if it is open and not pinned. Must be called with the lock held. */
static void close_idle_output(struct outputs *o, struct output *x)
{
    if (x->pins || (x->fd < 0 && x->fd_direct < 0))
        return;
    if (x->map)
        munmap(x->map, x->map_size);
    x->map = NULL;
    if (x->fd >= 0)
        close(x->fd);
    if (x->fd_direct >= 0)
        close(x->fd_direct);
    x->fd = x->fd_direct = -1;
    o->n_open--;
}

void outputs_free(struct outputs *o)
{
    if (!o)
        return;
    for (int i = 0; i < plan_n_dst(o->plan); i++) {
        o->out[i].pins = 0;
        close_idle_output(o, &o->out[i]);
    }
    pthread_mutex_destroy(&o->lock);
    free(o->out);
    free(o);
}

bool outputs_in_memory(const struct outputs *o)
{
    return o->in_memory;
}

void outputs_pin(struct outputs *o, int dst)
{
    pthread_mutex_lock(&o->lock);
    o->out[dst].pins++;
    pthread_mutex_unlock(&o->lock);
}

void outputs_unpin(struct outputs *o, int dst)
{
    struct output *x = &o->out[dst];

    pthread_mutex_lock(&o->lock);
    x->pins--;
    if (o->n_open > o->keep_open)
        close_idle_output(o, x);
    pthread_mutex_unlock(&o->lock);
}

void outputs_item_done(struct outputs *o, int dst)
{
    struct output *x = &o->out[dst];

    pthread_mutex_lock(&o->lock);
    if (--x->items_left == 0)
        close_idle_output(o, x);
    pthread_mutex_unlock(&o->lock);
}

void outputs_refuse_direct(struct outputs *o, int dst)
{
    pthread_mutex_lock(&o->lock);
    o->out[dst].refused = true;
    pthread_mutex_unlock(&o->lock);
}

/*
 * Returns the alignment in memory that the file system requires. Linux 6.1 and later report it. Otherwise returns the
 * page size, which is sufficient for every disk.
 */
static unsigned direct_mem_align(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx st;

    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 &&
        st.stx_mask & STATX_DIOALIGN && st.stx_dio_mem_align && st.stx_dio_mem_align <= DIRECT_ALIGN)
        return st.stx_dio_mem_align;
#else
    (void)fd;
#endif
    return DIRECT_ALIGN;
}

unsigned outputs_mem_align(struct outputs *o, int dst)
{
    return o->out[dst].mem_align;
}

int outputs_fd(struct outputs *o, int dst, bool direct, struct err *e)
{
    struct output *x = &o->out[dst];
    int *slot = direct ? &x->fd_direct : &x->fd, fd;
    bool was_open;

    pthread_mutex_lock(&o->lock);
    was_open = x->fd >= 0 || x->fd_direct >= 0;
    if (*slot < 0 && !(direct && x->refused)) {
        *slot = open(plan_dst(o->plan, dst)->path,
                     (o->in_memory ? O_RDWR : O_WRONLY) | O_CLOEXEC | (direct ? O_DIRECT : 0));
        if (*slot < 0 && direct && errno == EINVAL)
            x->refused = true;
        else if (*slot < 0)
            err_sys(e, plan_dst(o->plan, dst)->path, "cannot open for writing");
        else if (direct)
            x->mem_align = direct_mem_align(*slot);
        o->n_open += !was_open && *slot >= 0;
    }
    fd = direct && x->refused ? -1 : *slot;
    pthread_mutex_unlock(&o->lock);
    return fd;
}

uint8_t *outputs_map(struct outputs *o, int dst, uint64_t *size)
{
    struct output *x = &o->out[dst];
    struct err ignored = {0};
    struct stat st;
    void *map;
    int fd;

    if (!o->in_memory)
        return NULL;
    fd = outputs_fd(o, dst, false, &ignored);
    pthread_mutex_lock(&o->lock);
    if (fd >= 0 && !x->map && fstat(fd, &st) == 0 && st.st_size > 0) {
        map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) {
            x->map = map;
            x->map_size = (uint64_t)st.st_size;
        }
    }
    map = x->map;
    *size = x->map_size;
    pthread_mutex_unlock(&o->lock);
    return map;
}

bool outputs_enter(struct outputs *o, int dst)
{
    return atomic_fetch_add(&o->out[dst].writers, 1) == 0;
}

void outputs_leave(struct outputs *o, int dst)
{
    atomic_fetch_sub(&o->out[dst].writers, 1);
}
