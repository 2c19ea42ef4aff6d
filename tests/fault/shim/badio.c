/*
 * badio.c - a disk that fails on cue: LD_PRELOAD shim for the fault scripts
 *
 * BADIO="call:n:errno" lets the n-th call of pread, pwrite, fsync, fallocate, rename, unlinkat,
 * mkdir, mmap (of large buffers), open or openat fail with that errno, once, and every later one too when n
 * ends in '+'; "call:n:kill" kills the process instead, "call:n:stop" sends it SIGINT. Call "short"
 * is write() to a file: the n-th takes half of its bytes, and every later one fails. BADIO_AT=TEXT:
 * of fsync, rename, mkdir, open and openat only those count whose path holds TEXT, BADIO_LEAST=BYTES: of
 * pread those that ask for so many. BADIO_URING=0 refuses io_uring, as containers do; without it
 * io_uring bypasses this shim. BADIO_DIRECT=0 refuses O_DIRECT and BADIO_EXCHANGE=0 the exchange of
 * two names, as some network file systems do. BADIO_SLOW=MS: every fsync takes so long,
 * BADIO_SLOW_WRITE=MS: every pwrite, BADIO_SLOW_REMOVE=MS: every unlinkat, as on a disk that is slow
 * or busy, BADIO_SLOW_RENAME=MS: every rename of BADIO_AT. BADIO_SLOW_UNMAP=MS: rank 1 takes so
 * long to let go of half a megabyte or more, as of a token file at the end. BADIO_CLOCK=SECONDS: somebody sets the wall
 * clock back by so many before every time it is read.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;

/* Is it this call's turn to fail? Sets errno. */
static int turn(const char *call)
{
    const char *spec = getenv("BADIO");
    size_t n = strlen(call);
    char *end;
    long at, now;

    if (!spec || strncmp(spec, call, n) != 0 || spec[n] != ':')
        return 0;
    at = strtol(spec + n + 1, &end, 10);
    now = atomic_fetch_add(&calls, 1) + 1;
    if (now != at && !(*end == '+' && now > at))
        return 0;
    if (strcmp(strrchr(spec, ':') + 1, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(strrchr(spec, ':') + 1, "stop") == 0)
        return raise(SIGINT);           /* and the call is done */
    errno = atoi(strrchr(spec, ':') + 1);
    return 1;
}

static int turn_of(const char *call, size_t n)
{
    const char *least = getenv("BADIO_LEAST");

    return (!least || n >= strtoul(least, NULL, 10)) && turn(call);
}

static int turn_at(const char *call, const char *path)
{
    const char *at = getenv("BADIO_AT");

    return (!at || strstr(path, at)) && turn(call);
}

static void wait_for_disk(const char *variable)
{
    const char *text = getenv(variable);
    const long ms = text ? atol(text) : 0;
    struct timespec left = { ms / 1000, ms % 1000 * 1000000 };

    /* A disk takes no notice of signals. */
    while (ms > 0 && nanosleep(&left, &left) < 0)
        continue;
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

int clock_gettime(clockid_t which, struct timespec *t)
{
    static atomic_long readings;
    int (*real)(clockid_t, struct timespec *) = next("clock_gettime");
    const char *back = getenv("BADIO_CLOCK");
    int rc = real(which, t);

    if (back && which == CLOCK_REALTIME)
        t->tv_sec -= atol(back) * (atomic_fetch_add(&readings, 1) + 1);
    return rc;
}

ssize_t pread64(int fd, void *buf, size_t n, off64_t at)
{
    ssize_t (*real)(int, void *, size_t, off64_t) = next("pread64");

    return turn_of("pread", n) ? -1 : real(fd, buf, n, at);
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t at)
{
    ssize_t (*real)(int, const void *, size_t, off64_t) = next("pwrite64");

    wait_for_disk("BADIO_SLOW_WRITE");
    return turn("pwrite") ? -1 : real(fd, buf, n, at);
}

ssize_t write(int fd, const void *buf, size_t n)
{
    ssize_t (*real)(int, const void *, size_t) = next("write");
    static int full;

    if (fd <= 2 || n < 2)
        return real(fd, buf, n);
    if (full) {
        errno = full;
        return -1;
    }
    if (turn("short")) {
        full = errno;
        n /= 2;
    }
    return real(fd, buf, n);
}

int fsync(int fd)
{
    int (*real)(int) = next("fsync");
    char link[32], path[4096] = "";

    wait_for_disk("BADIO_SLOW");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, path, sizeof path - 1) >= 0 && turn_at("fsync", path) ? -1 : real(fd);
}

int syncfs(int fd)
{
    int (*real)(int) = next("syncfs");

    return turn("fsync") ? -1 : real(fd);
}

int fallocate64(int fd, int mode, off64_t at, off64_t n)
{
    int (*real)(int, int, off64_t, off64_t) = next("fallocate64");

    return turn("fallocate") ? -1 : real(fd, mode, at, n);
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) = next("rename");
    const char *at = getenv("BADIO_AT");

    if (at && strstr(from, at))
        wait_for_disk("BADIO_SLOW_RENAME");
    return turn_at("rename", from) ? -1 : real(from, to);
}

int mkdir(const char *path, mode_t mode)
{
    int (*real)(const char *, mode_t) = next("mkdir");

    return turn_at("mkdir", path) ? -1 : real(path, mode);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    int (*real)(int, const char *, int, const char *, unsigned) = next("renameat2");
    const char *exchange = getenv("BADIO_EXCHANGE");

    if (exchange && *exchange == '0' && flags) {
        errno = EINVAL;
        return -1;
    }
    return turn_at("rename", from) ? -1 : real(from_dir, from, to_dir, to, flags);
}

int unlinkat(int dir, const char *name, int flags)
{
    int (*real)(int, const char *, int) = next("unlinkat");

    wait_for_disk("BADIO_SLOW_REMOVE");
    return turn("unlinkat") ? -1 : real(dir, name, flags);
}

void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t from)
{
    void *(*real)(void *, size_t, int, int, int, off64_t) = next("mmap64");

    return flags & MAP_ANONYMOUS && n >= 1 << 20 && turn("mmap") ? MAP_FAILED : real(at, n, prot, flags, fd, from);
}

int munmap(void *at, size_t n)
{
    int (*real)(void *, size_t) = next("munmap");
    const char *ms = getenv("BADIO_SLOW_UNMAP"), *rank = getenv("RANK");

    if (ms && n >= 1 << 19 && rank && strcmp(rank, "1") == 0)
        usleep((useconds_t)atoi(ms) * 1000);
    return real(at, n);
}

int open64(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...) = next("open64");
    const char *direct = getenv("BADIO_DIRECT");
    mode_t mode = 0;
    va_list ap;

    va_start(ap, flags);
    if (flags & (O_CREAT | O_TMPFILE))
        mode = va_arg(ap, mode_t);
    va_end(ap);
    if (direct && *direct == '0' && (flags & O_DIRECT)) {
        errno = EINVAL;
        return -1;
    }
    return turn_at("open", path) ? -1 : real(path, flags, mode);
}

/* Files of a checkpoint are opened relative to the working directory: call "openat". */
int openat64(int dir, const char *path, int flags, ...)
{
    int (*real)(int, const char *, int, ...) = next("openat64");
    mode_t mode = 0;
    va_list ap;

    va_start(ap, flags);
    if (flags & (O_CREAT | O_TMPFILE))
        mode = va_arg(ap, mode_t);
    va_end(ap);
    return turn_at("openat", path) ? -1 : real(dir, path, flags, mode);
}

struct io_uring_params;
struct io_uring;
int io_uring_queue_init(unsigned n, struct io_uring *ring, unsigned flags)
{
    int (*real)(unsigned, struct io_uring *, unsigned) = next("io_uring_queue_init");
    const char *uring = getenv("BADIO_URING");

    return uring && *uring == '0' ? -EPERM : real(n, ring, flags);
}

int io_uring_queue_init_params(unsigned n, struct io_uring *ring, struct io_uring_params *p)
{
    int (*real)(unsigned, struct io_uring *, struct io_uring_params *) = next("io_uring_queue_init_params");
    const char *uring = getenv("BADIO_URING");

    return uring && *uring == '0' ? -EPERM : real(n, ring, p);
}
