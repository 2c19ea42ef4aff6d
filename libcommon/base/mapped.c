/*
 * mapped.c - memory-mapped files; converts SIGBUS into an error
 */
#include "libcommon/base/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

/* ---- list of all mapped files; the handler searches it for the file that contains a faulting address ---- */

struct mapped_entry {
    struct mapped_entry *next;
    struct mapped m;            /* a copy; its path belongs to the caller of mapped_open() */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;       /* protects the two variables below */
static struct mapped_entry *entries;
static struct sigaction before;                                 /* the action for SIGBUS that our handler replaced */

static void register_mapped_file(const struct mapped *m)
{
    struct mapped_entry *k = xcalloc(1, sizeof *k);

    k->m = *m;
    pthread_mutex_lock(&lock);
    k->next = entries;
    entries = k;
    pthread_mutex_unlock(&lock);
}

static void remove_entry(const struct mapped *m)
{
    struct mapped_entry **at = &entries, *k;

    pthread_mutex_lock(&lock);
    while (*at && (*at)->m.p != m->p)
        at = &(*at)->next;
    k = *at;
    if (k)
        *at = k->next;
    pthread_mutex_unlock(&lock);
    free(k);
}

/* ---- faults ---- */

struct guard {
    sigjmp_buf back;
    const uint8_t *volatile address;
    struct guard *outer;
};

static _Thread_local struct guard *guard;

static void on_fault(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (guard) {
        guard->address = info->si_addr;
        siglongjmp(guard->back, 1);
    }
    /*
     * The fault happened outside of mapped_use(). Restore the previous action; the access is then repeated and faults
     * again.
     */
    sigaction(sig, &before, NULL);
}

/*
 * Install the handler for SIGBUS if it is not installed. This is checked on every use, because MPI and other libraries
 * may later install handlers of their own.
 */
static void catch_faults(void)
{
    struct sigaction now;

    if (sigaction(SIGBUS, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)
        return;
    pthread_mutex_lock(&lock);
    if (sigaction(SIGBUS, NULL, &now) == 0 && !((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)) {
        before = now;
        /*
         * A jump leaves the handler. SA_NODEFER keeps the signal unblocked in the handler, so that the next fault is
         * caught, too.
         */
        now = (struct sigaction){.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
        sigaction(SIGBUS, &now, NULL);
    }
    pthread_mutex_unlock(&lock);
}

static int report_file_cut_short(const struct mapped *m, uint64_t at, uint64_t size, struct err *e)
{
    err_data(e, m->path, at, "became shorter while in use: it had %llu bytes when it was opened, now it has %llu",
             (unsigned long long)m->size, (unsigned long long)size);
    return -1;
}

/* Get the current size of the mapped file. Returns false if its path no longer exists or refers to another file. */
static bool size_now(const struct mapped *m, uint64_t *size)
{
    struct stat st;

    if (stat(m->path, &st) < 0 || st.st_dev != (dev_t)m->device || st.st_ino != (ino_t)m->inode)
        return false;
    *size = (uint64_t)st.st_size;
    return true;
}

/*
 * Find the reason why byte `at` cannot be read, by reading it with a system call. Returns the errno of that call, or
 * EIO if the file cannot be opened again.
 */
static int why_unreadable(const struct mapped *m, uint64_t at)
{
    int fd = open(m->path, O_RDONLY | O_CLOEXEC), why = EIO;
    char byte;

    if (fd < 0)
        return why;
    if (pread(fd, &byte, 1, (off_t)at) < 0)
        why = errno;
    close(fd);
    return why;
}

static void report_mapped_fault(const struct mapped *m, uint64_t at, struct err *e)
{
    uint64_t size;
    bool same = size_now(m, &size);

    if (same && size < m->size) {
        report_file_cut_short(m, size, size, e);
        return;
    }
    errno = same ? why_unreadable(m, at) : EIO;
    err_sys(e, m->path, "cannot read at byte %llu", (unsigned long long)at);
}

static void report_fault_address(const uint8_t *address, struct err *e)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    bool known = false;

    pthread_mutex_lock(&lock);
    for (struct mapped_entry *k = entries; k && !known; k = k->next)
        if (address >= k->m.p && address < k->m.p + align_up(k->m.size, page)) {
            report_mapped_fault(&k->m, (uint64_t)(address - k->m.p), e);
            known = true;
        }
    pthread_mutex_unlock(&lock);
    if (!known)
        err_data(e, "memory", ERR_NO_BYTE, "a page cannot be read (SIGBUS)");
}

int mapped_use(int (*use)(void *arg, struct err *e), void *arg, struct err *e)
{
    struct guard g = { .outer = guard };
    int rc;

    catch_faults();
    if (sigsetjmp(g.back, 0)) {
        guard = g.outer;
        report_fault_address(g.address, e);
        return -1;
    }
    guard = &g;
    rc = use(arg, e);
    guard = g.outer;
    return rc;
}

/* ---- files ---- */

int mapped_open(struct mapped *m, const char *path, struct err *e)
{
    struct stat st;
    int rc = -1, fd = file_open_regular(path, &st, e);

    *m = (struct mapped){ .path = xstrdup(path) };
    if (fd < 0)
        return -1;
    m->device = st.st_dev;
    m->inode = st.st_ino;
    if (st.st_size > 0) {               /* an empty file cannot be mapped */
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);

        if (p == MAP_FAILED) {
            err_sys(e, path, "cannot map %lld bytes", (long long)st.st_size);
            goto out;
        }
        m->p = p;
        m->size = (uint64_t)st.st_size;
        register_mapped_file(m);
    }
    rc = 0;
out:
    close(fd);
    return rc;
}

void mapped_close(struct mapped *m)
{
    if (m->p) {
        remove_entry(m);
        munmap((void *)m->p, m->size);
    }
    free(m->path);
    *m = (struct mapped){0};
}

int mapped_check(const struct mapped *m, struct err *e)
{
    uint64_t size;

    return size_now(m, &size) && size < m->size ? report_file_cut_short(m, size, size, e) : 0;
}
