/*
 * kernel_times.c - measure where the GPU's time in a step goes: a library that CUDA loads into any program
 *
 *   CUDA_INJECTION64_PATH=.../libkernel_times.so KERNEL_TIMES_OUT=FILE train ...
 *
 * The library records each kernel, copy and fill with its begin and end by the GPU's clock (CUPTI activities). When
 * the program ends, it writes a table with calls per step, time per step, share, mean and name. The duration of a
 * step, the busy time of the GPU and its idle time follow.
 *
 * A step begins with each kernel whose name contains KERNEL_TIMES_STEP (default "gather", the embedding's forward
 * kernel, which runs once per micro-batch). The first KERNEL_TIMES_SKIP (4) steps are left out, as is the last one,
 * which has no end. KERNEL_TIMES_TRACE=FILE also receives every event of those steps as CSV: step, begin and
 * duration in us, grid, name. "%p" in a file name becomes the process id.
 */
#include <cupti.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_BYTES (4u << 20)
#define NAMES_MAX    4096
/* From the C++ runtime. Returns NULL if `name` is not mangled. The caller frees the result. */
extern char *__cxa_demangle(const char *name, char *out, size_t *len, int *status);
/* The entry point that CUDA calls in a library that it loads. */
int InitializeInjection(void);

struct event {
    uint64_t begin, end;                /* ns, the GPU's clock */
    int name;                           /* index into names[] */
    int grid[3];
};
struct total { uint64_t ns; int64_t calls; int name; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char *mangled, *plain; } names[NAMES_MAX];
static int n_names;
static struct event *events;
static size_t n_events, cap_events;

static void must(CUptiResult r, const char *what)
{
    const char *why = "?";

    if (r == CUPTI_SUCCESS)
        return;
    cuptiGetResultString(r, &why);
    fprintf(stderr, "kernel_times: %s: %s\n", what, why);
}

/* Shorten a name: "void (anonymous namespace)::row_stat<__nv_bfloat16>(float*, ...)" becomes
 * "row_stat<__nv_bfloat16>". */
static char *plain_name(const char *mangled)
{
    int status = -1, depth = 0;
    char *s = __cxa_demangle(mangled, NULL, NULL, &status), *from, *at;

    if (status != 0 || !s)
        return strdup(mangled);
    from = strncmp(s, "void ", 5) == 0 ? s + 5 : s;
    if (strncmp(from, "(anonymous namespace)::", 23) == 0)
        from += 23;
    for (at = from; *at; at++) {
        depth += (*at == '<') - (*at == '>');
        if (depth == 0 && *at == '(')
            break;
    }
    *at = '\0';
    for (at = from; *at; at++)          /* a comma would break the CSV trace */
        if (*at == ',')
            *at = ';';
    memmove(s, from, strlen(from) + 1);
    return s;
}

/* Copy the name. CUPTI frees its strings with the module that contains the kernel. */
static int intern(const char *name)
{
    for (int i = 0; i < n_names; i++)
        if (strcmp(names[i].mangled, name) == 0)
            return i;
    if (n_names == NAMES_MAX)
        return NAMES_MAX - 1;
    names[n_names].mangled = strdup(name);
    names[n_names].plain = plain_name(name);
    return n_names++;
}

static void add(const char *name, uint64_t begin, uint64_t end, int x, int y, int z)
{
    if (n_events == cap_events) {
        cap_events = cap_events ? 2 * cap_events : 1 << 16;
        events = realloc(events, cap_events * sizeof *events);
        if (!events)
            abort();
    }
    events[n_events++] = (struct event){ begin, end, intern(name), { x, y, z } };
}

static void add_record(const CUpti_Activity *r)
{
    if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)r;

        add(k->name ? k->name : "?", k->start, k->end, k->gridX, k->gridY, k->gridZ);
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const CUpti_ActivityMemcpy6 *)r;

        add(m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD ? "copy to GPU"
            : m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy from GPU" : "copy", m->start, m->end, 0, 0, 0);
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)r;

        add("fill", m->start, m->end, 0, 0, 0);
    }
}

/* ---- CUPTI's side ---- */

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    CUpti_Activity *r = NULL;

    (void)ctx, (void)stream, (void)size;
    pthread_mutex_lock(&lock);
    while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS)
        add_record(r);
    pthread_mutex_unlock(&lock);
    free(buffer);
}

/* ---- the report ---- */

static FILE *open_file(const char *variable)
{
    const char *name = getenv(variable), *p = name ? strstr(name, "%p") : NULL;
    char path[4096];
    FILE *f;

    if (!name)
        return NULL;
    if (p)
        snprintf(path, sizeof path, "%.*s%ld%s", (int)(p - name), name, (long)getpid(), p + 2);
    else
        snprintf(path, sizeof path, "%s", name);
    f = fopen(path, "w");
    if (!f)
        fprintf(stderr, "kernel_times: %s: cannot create\n", path);
    return f;
}

static int by_begin(const void *a, const void *b)
{
    const struct event *x = a, *y = b;

    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int by_time(const void *a, const void *b)
{
    const struct total *x = a, *y = b;

    return (x->ns < y->ns) - (x->ns > y->ns);
}

/* Return the time in which at least one event ran. Events are sorted by begin. */
static uint64_t busy_ns(const struct event *from, const struct event *to)
{
    uint64_t busy = 0, until = 0;

    for (const struct event *e = from; e < to; e++) {
        uint64_t begin = e->begin > until ? e->begin : until;

        if (e->end > begin) {
            busy += e->end - begin;
            until = e->end;
        }
    }
    return busy;
}

static void write_table(FILE *f, const struct event *from, const struct event *to, int steps)
{
    static struct total total[NAMES_MAX];
    double all = (double)(to->begin - from->begin) / 1e6 / steps, busy = (double)busy_ns(from, to) / 1e6 / steps;

    for (int i = 0; i < n_names; i++)
        total[i].name = i;
    for (const struct event *e = from; e < to; e++) {
        total[e->name].ns += e->end - e->begin;
        total[e->name].calls++;
    }
    qsort(total, (size_t)n_names, sizeof *total, by_time);
    fprintf(f, "%8s %9s %7s %10s  %s\n", "calls", "ms/step", "share", "mean us", "kernel");
    for (int i = 0; i < n_names && total[i].calls > 0; i++) {
        double ms = (double)total[i].ns / 1e6 / steps;

        fprintf(f, "%8.1f %9.3f %6.2f%% %10.2f  %s\n", (double)total[i].calls / steps, ms, 100 * ms / all,
                (double)total[i].ns / 1e3 / (double)total[i].calls, names[total[i].name].plain);
    }
    fprintf(f, "%d steps of %.3f ms: busy %.3f ms, idle %.3f ms (%.2f%%)\n", steps, all, busy, all - busy,
            100 * (all - busy) / all);
}

/* Runs when the program ends. */
static void report(void)
{
    const char *mark = getenv("KERNEL_TIMES_STEP"), *skip = getenv("KERNEL_TIMES_SKIP");
    const struct event *from = NULL, *to = NULL;
    int left = skip ? atoi(skip) : 4, steps = -1, step = -1;
    FILE *out, *trace;

    must(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flush");
    pthread_mutex_lock(&lock);
    if (n_events == 0)                  /* a program that started this one, for example mpirun */
        return;
    qsort(events, n_events, sizeof *events, by_begin);
    for (const struct event *e = events; e < events + n_events; e++) {
        if (!strstr(names[e->name].plain, mark ? mark : "gather") || left-- > 0)
            continue;
        from = from ? from : e;
        to = e;
        steps++;
    }
    out = open_file("KERNEL_TIMES_OUT");
    if (steps < 1)
        fprintf(stderr, "kernel_times: %zu events, but fewer than two steps after those left out\n", n_events);
    else
        write_table(out ? out : stderr, from, to, steps);
    if (out)
        fclose(out);
    trace = steps < 1 ? NULL : open_file("KERNEL_TIMES_TRACE");
    for (const struct event *e = from; trace && e < to; e++) {
        step += strstr(names[e->name].plain, mark ? mark : "gather") != NULL;
        fprintf(trace, "%d,%.3f,%.3f,%dx%dx%d,%s\n", step, (double)(e->begin - from->begin) / 1e3,
                (double)(e->end - e->begin) / 1e3, e->grid[0], e->grid[1], e->grid[2], names[e->name].plain);
    }
    if (trace)
        fclose(trace);
}

int InitializeInjection(void)
{
    must(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "register");
    must(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "kernels");
    must(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY), "copies");
    must(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET), "fills");
    /* Flush periodically, so that nearly all events have arrived even if the program ends abnormally. */
    must(cuptiActivityFlushPeriod(500), "flush period");
    atexit(report);
    return 1;
}
