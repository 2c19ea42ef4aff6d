/*
 * fakegpu.c - a GPU without hardware, for a whole trainer
 *
 *     cc -shared -fPIC -I. -o fakegpu.so tests/fault/shim/fakegpu.c tests/lib/fakedev.c
 *     SHARDKIT_CUDA=./fakegpu.so FAKEGPU_NET=FILE train ...
 *
 * It is what the trainer loads in place of shardkit-cuda.so. Kernels are the CPU's, each queued in a stream that really
 * runs beside the host (fakedev.h), so what is read too early, or waits in a circle, shows. As with CUDA memory that is
 * neither the device's nor pinned is read when a copy from it is queued, and a copy to it is waited for. FAKEGPU_NET
 * is a file that the ranks share, new for each job. FAKEGPU_STANDS=NAME: device 1 stands for good in the first kernel
 * of that name, or, of "save", in the first copy beside the passes to memory that was pinned.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "libcommon/base/mem.h"
#include "tests/lib/fakedev.h"

static const struct kernels *cpu;
static int ordinal;
static const char *stands = "";

/* Is it here that this device is to stand? */
static bool stands_in(const char *name) { return ordinal == 1 && strcmp(name, stands) == 0; }
static void stand(void)
{
    for (;;)
        pause();
}

/* ---- memory that the device reaches at any time ---- */

enum { RANGES = 4096 };
static struct {
    const char *p;
    uint64_t n;
} range[RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void note_range(void *p, uint64_t n)
{
    int i = 0;

    pthread_mutex_lock(&lock);
    while (range[i].p)
        if (++i == RANGES)
            abort();
    range[i].p = p;
    range[i].n = n;
    pthread_mutex_unlock(&lock);
}

static void drop_range(const void *p)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES && p; i++)
        if (range[i].p == p)
            range[i].p = NULL;
    pthread_mutex_unlock(&lock);
}

static bool is_known(const void *p)
{
    bool known = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES && !known; i++)
        known = range[i].p && (const char *)p >= range[i].p && (const char *)p < range[i].p + range[i].n;
    pthread_mutex_unlock(&lock);
    return known;
}

static void *dev_alloc(uint64_t n, struct err *e)
{
    void *p = NULL;

    (void)e;
    if (posix_memalign(&p, 4096, n + !n))
        abort();
    memset(p, 0xff, n);                 /* a NaN to whoever counts on zeros */
    note_range(p, n);
    return p;
}

/* As cudaFree() does, it waits for what is queued and may still use it. */
static void dev_free(void *p)
{
    if (p)
        fakedev.stream_sync(NULL);
    drop_range(p);
    free(p);
}

static int dev_pin(void *p, uint64_t n, struct err *e)
{
    (void)e;
    note_range(p, n);
    return 0;
}

static void dev_unpin(void *p) { drop_range(p); }

struct late_copy {
    void *dst;
    uint64_t n;
    char bytes[];
};

static void run_copy(void *args)
{
    const struct late_copy *c = args;

    memcpy(c->dst, c->bytes, c->n);
}

static void stand_for(void *args)
{
    (void)args;
    stand();
}

static void dev_copy(void *dst, const void *src, uint64_t n, struct dev_stream *s)
{
    struct late_copy *c;

    if (s && stands_in("save"))
        fakedev_call(s, stand_for, NULL, 0);

    if (is_known(src)) {
        fakedev.copy(dst, src, n, s);
    } else {
        c = xmalloc(sizeof *c + n);
        c->dst = dst;
        c->n = n;
        memcpy(c->bytes, src, n);
        fakedev_call(s, run_copy, c, sizeof *c + n);
        free(c);
    }
    if (!is_known(dst))
        fakedev.stream_sync(s);
}

static void dev_memory(uint64_t *total, uint64_t *left) { *total = *left = UINT64_C(16) << 30; }

static void dev_who(struct dev_who *who)
{
    *who = (struct dev_who){ .model = "fake" };
    snprintf(who->uuid, sizeof who->uuid, "GPU-fake-%d", ordinal);
    snprintf(who->pci, sizeof who->pci, "0000:%02x:00.0", ordinal);
}

/* ---- kernels ---- */

/* A row a kernel: its arguments as members, as parameters, as values, and as the CPU's call has them. */
#define QUEUED(name, members, params, values, call)                     \
    struct name##_args { members };                                     \
    static void run_##name(void *args)                                  \
    {                                                                   \
        const struct name##_args *a = args;                             \
                                                                        \
        if (stands_in(#name))                                           \
            stand();                                                    \
        cpu->name call;                                                 \
    }                                                                   \
    static void name params                                             \
    {                                                                   \
        const struct name##_args a = values;                            \
        fakedev_call(s, run_##name, &a, sizeof a);                      \
    }
#define LIST(...) { __VA_ARGS__ }
#define QUEUED_STRUCT(name, type) \
    QUEUED(name, struct type x; enum dtype t;, (const struct type *x, enum dtype t, struct dev_stream *s), \
           LIST(*x, t), (&a->x, a->t, NULL))

QUEUED_STRUCT(linear, kernel_linear)
QUEUED_STRUCT(linear_gelu, kernel_linear)
QUEUED_STRUCT(linear_dx, kernel_linear_dx)
QUEUED_STRUCT(linear_dx_gelu, kernel_linear_dx)
QUEUED_STRUCT(linear_dw, kernel_linear_dw)
QUEUED_STRUCT(layernorm, kernel_layernorm)
QUEUED_STRUCT(layernorm_back, kernel_layernorm_back)
QUEUED_STRUCT(residual_norm, kernel_residual_norm)
QUEUED_STRUCT(dropout_back, kernel_dropout_back)
QUEUED_STRUCT(attention, kernel_attention)
QUEUED_STRUCT(embed, kernel_embed)
QUEUED_STRUCT(embed_back, kernel_embed_back)
QUEUED_STRUCT(embed_finish, kernel_embed_finish)
QUEUED_STRUCT(position_back, kernel_position_back)
/* Fields and parameters as arguments of a macro, and lists of uses, are laid by hand. */
/* clang-format off */
QUEUED(gelu, void *y; const void *pre; int64_t n; enum dtype t;,
       (void *y, const void *pre, int64_t n, enum dtype t, struct dev_stream *s), LIST(y, pre, n, t),
       (a->y, a->pre, a->n, a->t, NULL))
QUEUED(attention_back, struct kernel_attention x; struct kernel_attention_back g; enum dtype t;,
       (const struct kernel_attention *x, const struct kernel_attention_back *g, enum dtype t, struct dev_stream *s),
       LIST(*x, *g, t), (&a->x, &a->g, a->t, NULL))
QUEUED(xent_stat, float *stat; struct kernel_xent x; enum dtype t;,
       (float *stat, const struct kernel_xent *x, enum dtype t, struct dev_stream *s), LIST(stat, *x, t),
       (a->stat, &a->x, a->t, NULL))
QUEUED(xent_loss, float *loss; float *lse; const float *stat; int tp; int64_t m;,
       (float *loss, float *lse, const float *stat, int tp, int64_t m, struct dev_stream *s),
       LIST(loss, lse, stat, tp, m), (a->loss, a->lse, a->stat, a->tp, a->m, NULL))
QUEUED(xent_back, struct kernel_xent x; const float *lse; const float *scale; enum dtype t;,
       (const struct kernel_xent *x, const float *lse, const float *scale, enum dtype t, struct dev_stream *s),
       LIST(*x, lse, scale, t), (&a->x, a->lse, a->scale, a->t, NULL))
QUEUED(weighted_sum, double *out; const float *x; const float *w; int64_t n;,
       (double *out, const float *x, const float *w, int64_t n, struct dev_stream *s), LIST(out, x, w, n),
       (a->out, a->x, a->w, a->n, NULL))
QUEUED(sum_doubles, double *y; const double *x; int64_t n;,
       (double *y, const double *x, int64_t n, struct dev_stream *s), LIST(y, x, n), (a->y, a->x, a->n, NULL))
QUEUED(sumsq, double *out; const float *x; int64_t n; double *tmp;,
       (double *out, const float *x, int64_t n, double *tmp, struct dev_stream *s), LIST(out, x, n, tmp),
       (a->out, a->x, a->n, a->tmp, NULL))
#define QUEUED_RUNS(name, type) \
    QUEUED(name, type *out; const void *x; enum dtype t; const struct kernel_runs *r;, \
           (type *out, const void *x, enum dtype t, const struct kernel_runs *r, struct dev_stream *s), \
           LIST(out, x, t, r), (a->out, a->x, a->t, a->r, NULL))
QUEUED_RUNS(sumsq_runs, double)
QUEUED_RUNS(first_not_finite, int64_t)
QUEUED(digest_runs, uint64_t *out; int64_t n; struct kernel_digests d;,
       (uint64_t *out, int64_t n, const struct kernel_digests *d, struct dev_stream *s), LIST(out, n, *d),
       (a->out, a->n, &a->d, NULL))
QUEUED(adamw, struct kernel_adamw_buffers b; const struct kernel_runs *r; const struct kernel_adamw *step;
       enum dtype t;,
       (const struct kernel_adamw_buffers *b, const struct kernel_runs *r, const struct kernel_adamw *step,
        enum dtype t, struct dev_stream *s), LIST(*b, r, step, t), (&a->b, a->r, a->step, a->t, NULL))
QUEUED(cast, void *dst; enum dtype to; const void *src; enum dtype from; int64_t n;,
       (void *dst, enum dtype to, const void *src, enum dtype from, int64_t n, struct dev_stream *s),
       LIST(dst, to, src, from, n), (a->dst, a->to, a->src, a->from, a->n, NULL))
QUEUED(scale, void *x; float f; int64_t n; enum dtype t;,
       (void *x, float f, int64_t n, enum dtype t, struct dev_stream *s), LIST(x, f, n, t), (a->x, a->f, a->n, a->t,
           NULL))
QUEUED(add, void *y; const void *x; int64_t n; enum dtype t;,
       (void *y, const void *x, int64_t n, enum dtype t, struct dev_stream *s), LIST(y, x, n, t),
       (a->y, a->x, a->n, a->t, NULL))
QUEUED(normal, float *x; int64_t first; int64_t n; float std; uint32_t key[2];,
       (float *x, int64_t first, int64_t n, float std, const uint32_t key[2], struct dev_stream *s),
       LIST(x, first, n, std, { key[0], key[1] }), (a->x, a->first, a->n, a->std, a->key, NULL))
/* clang-format on */

/* ---- the door ---- */

static const struct dev_net *open_net(struct err *e)
{
    const char *path = getenv("FAKEGPU_NET");

    if (path)
        return fakenet_open(fakenet_at(path), false);
    err_usage(e, "FAKEGPU_NET names no file");
    return NULL;
}

static void fake_close(const struct kernels *k)
{
    (void)k;
    kernels_close(cpu);
}

const struct kernels *kernels_cuda_open(const struct kernel_opts *o, struct err *e)
{
    static struct dev_ops dev;
    static struct kernels k;

    cpu = kernels_cpu_open(o, e);
    if (!cpu)
        return NULL;
    ordinal = o->device;
    stands = getenv("FAKEGPU_STANDS") ? getenv("FAKEGPU_STANDS") : "";
    dev = fakedev;
    dev.name = "cuda";
    dev.alloc = dev.alloc_host = dev_alloc;
    dev.free = dev.free_host = dev_free;
    dev.copy = dev_copy;
    dev.memory = dev_memory;
    dev.who = dev_who;
    dev.pin = dev_pin;
    dev.unpin = dev_unpin;
    /* What only counts, or makes lists, stays the CPU's. */
    k = *cpu;
    /* clang-format off */
#define TAKE(name) k.name = name;
    TAKE(linear) TAKE(linear_gelu) TAKE(linear_dx) TAKE(linear_dx_gelu) TAKE(linear_dw) TAKE(gelu) TAKE(layernorm)
    TAKE(layernorm_back) TAKE(residual_norm) TAKE(dropout_back) TAKE(attention) TAKE(attention_back) TAKE(embed)
    TAKE(embed_back) TAKE(embed_finish) TAKE(position_back) TAKE(xent_stat) TAKE(xent_loss) TAKE(xent_back)
    TAKE(weighted_sum) TAKE(sum_doubles) TAKE(sumsq) TAKE(sumsq_runs) TAKE(first_not_finite) TAKE(digest_runs)
    TAKE(adamw) TAKE(cast) TAKE(scale) TAKE(add) TAKE(normal)
#undef TAKE
    k.dev = &dev;
    k.net = open_net;
    k.close = fake_close;
    return &k;
}
/* clang-format on */
