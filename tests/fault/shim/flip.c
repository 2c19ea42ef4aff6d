/*
 * flip.c - a library to preload: a bit of memory flips while a program runs
 *
 * FLIP="FILE:N:AT:BIT": when FILE appears, bit BIT of byte AT flips in the N-th (from 0) block of pages that
 * posix_memalign() has given; FILE.done says how long the log on standard output was by then. FILE gone and there
 * again: it flips once more. AT may be a part of the block, 1/3, rounded to 256 bytes. Where trainers on processors
 * have their state: block 0. A BIT of 100 and more: bit BIT - 100 flips again and again.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char when[4096], done[4104];
static int which, bit;
static long at, parts;          /* parts > 0: at / parts of the block */
static atomic_int n_blocks;
static _Atomic(unsigned char *) block;

static void *wait_and_flip(void *arg)
{
    struct stat log;
    FILE *f;

    for (;;) {
        while (access(when, F_OK) < 0)
            usleep(2000);
        f = fopen(done, "w");
        if (f) {
            fprintf(f, "%lld\n", fstat(STDOUT_FILENO, &log) == 0 ? (long long)log.st_size : -1);
            fclose(f);
        }
        do {
            unsigned char *p = atomic_load(&block);

            if (p)
                p[at] ^= (unsigned char)(1 << bit % 100);
            usleep(300);
        } while (bit >= 100);
        while (access(when, F_OK) == 0)
            usleep(2000);
    }
    return arg;
}

int posix_memalign(void **p, size_t unit, size_t bytes)
{
    static int (*given)(void **, size_t, size_t);
    int rc;

    if (!given)
        *(void **)&given = dlsym(RTLD_NEXT, "posix_memalign");
    rc = given(p, unit, bytes);
    if (rc == 0 && unit >= 4096 && *when && atomic_fetch_add(&n_blocks, 1) == which) {
        pthread_t t;

        if (parts > 0)
            at = ((long)bytes * at / parts + 128) / 256 * 256;
        atomic_store(&block, *p);
        if (pthread_create(&t, NULL, wait_and_flip, NULL) == 0)
            pthread_detach(t);
    }
    return rc;
}

/* What has been given back is somebody else's. */
void free(void *p)
{
    static void (*given)(void *);
    unsigned char *hit = p;

    if (!given)
        *(void **)&given = dlsym(RTLD_NEXT, "free");
    if (hit)
        atomic_compare_exchange_strong(&block, &hit, NULL);
    given(p);
}

__attribute__((constructor)) static void begin(void)
{
    const char *what = getenv("FLIP");

    if (what && sscanf(what, "%4095[^:]:%d:%ld:%d", when, &which, &at, &bit) != 4 &&
        sscanf(what, "%4095[^:]:%d:%ld/%ld:%d", when, &which, &at, &parts, &bit) != 5)
        when[0] = '\0';
    snprintf(done, sizeof done, "%s.done", when);
}
