/*
 * cpu_device.c - the CPU as a device: device memory is host memory, and work is complete when a call returns
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"
#include "libcommon/base/mem.h"

#define PAGE      4096u
#define HUGE_PAGE (2u << 20)

static void *cpu_alloc(uint64_t bytes, struct err *e)
{
    /* Use huge pages for large buffers, because a matrix product accesses hundreds of rows at the same time. */
    size_t unit = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : PAGE;
    void *p = NULL;
    int sys = bytes > SIZE_MAX / 2 ? ENOMEM : posix_memalign(&p, unit, bytes + !bytes);

    if (sys) {
        errno = sys;
        err_sys(e, "cpu", "cannot allocate %llu bytes", (unsigned long long)bytes);
        return NULL;
    }
    if (unit == HUGE_PAGE)
        /* a failure is ignored, because the program is only slower without huge pages */
        madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void cpu_free(void *p)
{
    free(p);
}

static void cpu_copy(void *dst, const void *src, uint64_t bytes, struct dev_stream *s)
{
    (void)s;
    if (bytes)
        memmove(dst, src, bytes);
}

static void cpu_zero(void *dst, uint64_t bytes, struct dev_stream *s)
{
    (void)s;
    if (bytes)
        memset(dst, 0, bytes);
}

static struct dev_stream *cpu_stream_new(void)
{
    return NULL;
}

static void cpu_stream_nothing(struct dev_stream *s)
{
    (void)s;
}

static struct dev_event *cpu_event_new(void)
{
    return NULL;
}

static void cpu_event_free(struct dev_event *v)
{
    (void)v;
}

static void cpu_event_record(struct dev_event *v, struct dev_stream *s)
{
    (void)v;
    (void)s;
}

static void cpu_stream_wait(struct dev_stream *s, struct dev_event *v)
{
    (void)s;
    (void)v;
}

static bool cpu_event_done(struct dev_event *v)
{
    (void)v;
    return true;
}

static int cpu_check(struct err *e)
{
    (void)e;
    return 0;
}

static void cpu_who(struct dev_who *who)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256], *at;

    memset(who, 0, sizeof *who);
    while (f && !who->model[0] && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0 && (at = strstr(line, ": ")))
            snprintf(who->model, sizeof who->model, "%.*s", (int)strcspn(at + 2, "\n"), at + 2);
    if (f)
        fclose(f);
}

static double cpu_seconds_between(struct dev_event *from, struct dev_event *to)
{
    (void)from;
    (void)to;
    return 0;
}

const struct dev_ops cpu_dev = {
    .name = "cpu",
    .alloc = cpu_alloc, .free = cpu_free,
    .alloc_host = cpu_alloc, .free_host = cpu_free,
    .copy = cpu_copy, .zero = cpu_zero,
    .stream_new = cpu_stream_new, .stream_free = cpu_stream_nothing, .stream_sync = cpu_stream_nothing,
    .event_new = cpu_event_new, .event_free = cpu_event_free, .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait, .event_done = cpu_event_done,
    .memory = mem_host, .check = cpu_check, .who = cpu_who,
    .timer_new = cpu_event_new, .seconds_between = cpu_seconds_between,
};
