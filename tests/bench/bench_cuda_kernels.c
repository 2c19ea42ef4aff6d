/*
 * bench_cuda_kernels - measure the speed of the GPU kernels at the shapes of one model
 *
 * bench_cuda_kernels [f16] [ROWS HIDDEN VOCABULARY [PATTERN]] prints a table of time, rate, and share of the rate
 * of a device copy (for kernels bound by memory) or of cuBLASLt without an epilogue (for products), all measured in
 * one run on random data. PATTERN is the name of a kernel, or "products". Buffers are larger than the L2 cache. The
 * default is BLOOM-1b7 with 16384 rows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "libcommon/base/clock.h"

static const struct kernels *k;
static const char *only;
static enum dtype two = DTYPE_BF16;     /* type T; with DTYPE_F16 gradients have this type, too */
static double copy_rate;                /* bytes per second, read and written */

static void *room(int64_t bytes)
{
    struct err e = {0};
    void *p = k->dev->alloc((uint64_t)bytes, &e);

    if (!p) {
        fprintf(stderr, "bench_cuda_kernels: %s\n", e.msg);
        exit(1);
    }
    return p;
}

/* Return n normal deviates of type T. Zeros are unsuitable, because the card draws less power on them and runs
 * faster. */
static void *numbers(int64_t n, enum dtype t, float std)
{
    static uint32_t key[2] = { 1, 2 };
    float *x = room(n * 4);
    void *y;

    key[0]++;
    k->normal(x, 0, n, std, key, NULL);
    if (t == DTYPE_F32)
        return x;
    y = room(n * 2);
    k->cast(y, two, x, DTYPE_F32, n, NULL);
    k->dev->stream_sync(NULL);
    k->dev->free(x);
    return y;
}

static void must_be_sound(void)
{
    struct err e = {0};

    k->dev->stream_sync(NULL);
    if (k->dev->check(&e) < 0) {
        fprintf(stderr, "bench_cuda_kernels: %s\n", e.msg);
        exit(1);
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Return the seconds of one call: the median over batches. */
static double seconds(void (*run)(void *), void *arg)
{
    enum { BATCHES = 5 };
    double took[BATCHES], t0;
    int n = 1;

    run(arg);
    must_be_sound();
    t0 = clock_s();
    run(arg);
    k->dev->stream_sync(NULL);
    t0 = clock_s() - t0;
    n = t0 < 12e-3 ? (int)(12e-3 / (t0 > 1e-5 ? t0 : 1e-5)) + 1 : 1;
    for (int b = 0; b < BATCHES; b++) {
        t0 = clock_s();
        for (int i = 0; i < n; i++)
            run(arg);
        k->dev->stream_sync(NULL);
        took[b] = (clock_s() - t0) / n;
    }
    must_be_sound();
    qsort(took, BATCHES, sizeof *took, by_size);
    return took[BATCHES / 2];
}

static void show_bytes(const char *name, void (*run)(void *), void *arg, double bytes)
{
    double s;

    if (only && copy_rate > 0 && !strstr(name, only))
        return;
    s = seconds(run, arg);
    if (copy_rate == 0)
        copy_rate = bytes / s;
    printf("%-28s %9.1f us  %7.3f TB/s  %5.1f %% of copy\n", name, s * 1e6, bytes / s * 1e-12,
           100 * bytes / s / copy_rate);
    fflush(stdout);
}

/* ---- products ---- */

struct product {
    int64_t m, n, k;
    void *x, *w, *y, *pre, *bias;
    float *dw, *dbias;
    bool add;
};

#define PRODUCT(name, call)                             \
    static void name(void *arg)                         \
    {                                                   \
        struct product *p = arg;                        \
        call;                                           \
    }
PRODUCT(run_y, k->linear(&(struct kernel_linear){
    .m = p->m, .n = p->n, .k = p->k, .x = p->x, .w = p->w, .y = p->y,
}, two, NULL))
PRODUCT(run_y_bias, k->linear(&(struct kernel_linear){
    .m = p->m, .n = p->n, .k = p->k, .x = p->x, .w = p->w, .bias = p->bias, .y = p->y,
}, two, NULL))
PRODUCT(run_y_gelu, k->linear_gelu(&(struct kernel_linear){
    .m = p->m, .n = p->n, .k = p->k, .x = p->x, .w = p->w, .bias = p->bias, .y = p->y, .pre = p->pre,
}, two, NULL))
PRODUCT(run_dx, k->linear_dx(&(struct kernel_linear_dx){
    .m = p->m, .n = p->n, .k = p->k, .dy = p->y, .w = p->w, .dx = p->x,
}, two, NULL))
PRODUCT(run_dx_add, k->linear_dx(&(struct kernel_linear_dx){
    .m = p->m, .n = p->n, .k = p->k, .dy = p->y, .w = p->w, .dx = p->x, .add = true,
}, two, NULL))
PRODUCT(run_dx_gelu, k->linear_dx_gelu(&(struct kernel_linear_dx){
    .m = p->m, .n = p->n, .k = p->k, .dy = p->y, .w = p->w, .pre = p->pre, .dx = p->x,
}, two, NULL))
PRODUCT(run_dw, k->linear_dw(&(struct kernel_linear_dw){
    .m = p->m, .n = p->n, .k = p->k, .dy = p->y, .x = p->x, .dw = p->dw, .add = p->add, .grad_t = two == DTYPE_F16,
}, two, NULL))
PRODUCT(run_dw_bias, k->linear_dw(&(struct kernel_linear_dw){
    .m = p->m, .n = p->n, .k = p->k, .dy = p->y, .x = p->x, .dw = p->dw, .dbias = p->dbias, .add = p->add,
    .grad_t = two == DTYPE_F16,
}, two, NULL))

static double show_flop(const char *layer, const char *name, void (*run)(void *), struct product *p, double beside)
{
    double s = seconds(run, p), rate = 2 * (double)p->m * (double)p->n * (double)p->k / s;

    printf("%-5s %-14s %7lld x %6lld x %5lld %9.1f us  %6.1f TFLOP/s", layer, name, (long long)p->m, (long long)p->n,
           (long long)p->k, s * 1e6, rate * 1e-12);
    if (beside > 0)
        printf("  %5.1f %% of plain", 100 * rate / beside);
    printf("\n");
    fflush(stdout);
    return rate;
}

/* `gelu`: 1 for the layer before it, 2 for the layer after it */
static void bench_layer(const char *name, int64_t m, int64_t n, int64_t l, int gelu)
{
    int64_t act = m * (n > l ? n : l);
    struct product p = { .m = m, .n = n, .k = l };
    double plain;

    p.x = numbers(m * l, two, 1);
    p.w = numbers(n * l, two, 0.02f);
    p.y = numbers(m * n, two, 1);
    p.pre = numbers(act, two, 1);
    p.bias = numbers(n, two, 1);
    p.dw = numbers(n * l, DTYPE_F32, 1);
    p.dbias = numbers(n, DTYPE_F32, 1);
    plain = show_flop(name, "dw", run_dw, &p, 0);
    p.add = true;
    show_flop(name, "dw +=", run_dw, &p, plain);
    show_flop(name, "dw, dbias +=", run_dw_bias, &p, plain);
    plain = show_flop(name, "dx", run_dx, &p, 0);
    if (gelu == 2)
        show_flop(name, "dx gelu'", run_dx_gelu, &p, plain);
    else
        show_flop(name, "dx +=", run_dx_add, &p, plain);
    k->dev->free(p.x);
    p.x = numbers(m * l, two, 1);        /* earlier calls made its values grow */
    plain = show_flop(name, "y", run_y, &p, 0);
    show_flop(name, "y bias", run_y_bias, &p, plain);
    if (gelu == 1)
        show_flop(name, "y bias gelu", run_y_gelu, &p, plain);
    k->dev->free(p.x), k->dev->free(p.w), k->dev->free(p.y), k->dev->free(p.pre), k->dev->free(p.bias);
    k->dev->free(p.dw), k->dev->free(p.dbias);
}

/* ---- memory ---- */

struct rows {
    int64_t m, h, v, n_flat;
    void *a, *b, *c, *d, *gamma, *beta, *scratch;
    float *mean, *rstd, *grad;
    float *f[4];
    void *w, *logits, *table;
    int32_t *id;
    double *sum, *tmp;
    struct kernel_adamw *step;
    struct kernel_runs *runs;
    struct kernel_dropout drop;
};

#define ROWS(name, call)                                \
    static void name(void *arg)                         \
    {                                                   \
        struct rows *r = arg;                           \
        call;                                           \
    }
ROWS(run_copy, k->dev->copy(r->f[0], r->f[1], (uint64_t)r->n_flat * 4, NULL))
ROWS(run_norm, k->layernorm(&(struct kernel_layernorm){
    .m = r->m, .h = r->h, .x = r->b, .gamma = r->gamma, .beta = r->beta, .eps = 1e-5f, .y = r->a, .mean = r->mean,
    .rstd = r->rstd,
}, two, NULL))
ROWS(run_norm_back, k->layernorm_back(&(struct kernel_layernorm_back){
    .m = r->m, .h = r->h, .dy = r->b, .x = r->c, .gamma = r->gamma, .mean = r->mean, .rstd = r->rstd, .dx = r->a,
    .dgamma = r->grad, .dbeta = r->grad + r->h, .add = true, .scratch = r->scratch,
    .grad_t = two == DTYPE_F16,
}, two, NULL))
ROWS(run_norm_back_add, k->layernorm_back(&(struct kernel_layernorm_back){
    .m = r->m, .h = r->h, .dy = r->b, .x = r->c, .gamma = r->gamma, .mean = r->mean, .rstd = r->rstd, .add_dx = r->d,
    .dx = r->a, .dgamma = r->grad, .dbeta = r->grad + r->h, .add = true, .scratch = r->scratch,
    .grad_t = two == DTYPE_F16,
}, two, NULL))
ROWS(run_residual, k->residual_norm(&(struct kernel_residual_norm){
    .a = r->b, .bias = r->beta, .residual = r->c, .drop = r->drop, .z = r->a,
    .norm = {
        .m = r->m, .h = r->h, .gamma = r->gamma, .beta = r->beta, .eps = 1e-5f, .y = r->d, .mean = r->mean,
        .rstd = r->rstd,
    },
}, two, NULL))
ROWS(run_drop_back, k->dropout_back(&(struct kernel_dropout_back){
    .m = r->m, .h = r->h, .dz = r->b, .drop = r->drop, .da = r->a, .dbias = r->grad, .add = true, .scratch = r->scratch,
    .grad_t = two == DTYPE_F16,
}, two, NULL))
ROWS(run_bias_back, k->dropout_back(&(struct kernel_dropout_back){
    .m = r->m, .h = r->h, .dz = r->a, .drop = r->drop, .da = r->a, .dbias = r->grad, .add = true, .scratch = r->scratch,
    .grad_t = two == DTYPE_F16,
}, two, NULL))
ROWS(run_gelu, k->gelu(r->a, r->b, r->m * r->h, two, NULL))
ROWS(run_embed, k->embed(&(struct kernel_embed){
    .m = r->m, .h = r->h, .rows = r->v, .id = r->id, .table = r->table, .y = r->a,
}, two, NULL))
ROWS(run_embed_back, k->embed_back(&(struct kernel_embed_back){
    .m = r->m, .h = r->h, .rows = r->v, .id = r->id, .dy = r->a, .dtable = r->f[0], .add = true, .scratch = r->scratch,
    .grad_t = two == DTYPE_F16,
}, two, NULL))
ROWS(run_finish, k->embed_finish(&(struct kernel_embed_finish){
    .m = r->m, .h = r->h, .s = 2048, .x = r->b, .position = r->c, .drop = r->drop, .y = r->a,
}, two, NULL))
ROWS(run_position_back, k->position_back(&(struct kernel_position_back){
    .m = r->m, .h = r->h, .s = 2048, .n_pos = 2048, .dx = r->a, .dposition = r->f[0], .add = true,
    .grad_t = two == DTYPE_F16,
}, two, NULL))
ROWS(run_stat, k->xent_stat(r->mean, &(struct kernel_xent){
    .m = r->m / 4, .v = r->v, .target = r->id, .logits = r->logits,
}, two, NULL))
ROWS(run_xent_back, k->xent_back(&(struct kernel_xent){
    .m = r->m / 4, .v = r->v, .target = r->id, .logits = r->logits,
}, r->mean, r->rstd, two, NULL))
ROWS(run_loss_sum, k->weighted_sum(r->sum, r->mean, r->rstd, r->m, NULL))
ROWS(run_sumsq, k->sumsq(r->sum, r->f[0], r->n_flat, r->tmp, NULL))
ROWS(run_adamw, k->adamw(&(struct kernel_adamw_buffers){
    .p = r->f[0], .m = r->f[1], .v = r->f[2], .g = r->f[3], .w = r->w, .grad_t = two == DTYPE_F16,
}, r->runs, r->step, two, NULL))
ROWS(run_cast, k->cast(r->w, two, r->f[0], DTYPE_F32, r->n_flat, NULL))
ROWS(run_add, k->add(r->f[0], r->f[1], r->n_flat, DTYPE_F32, NULL))
ROWS(run_scale, k->scale(r->f[0], 1, r->n_flat, DTYPE_F32, NULL))

/* Return ids distributed as in text: frequency falls with 1 / rank. */
static int32_t *text_ids(int64_t m, int64_t v)
{
    int32_t *id = malloc((size_t)m * sizeof *id), *dev = room(m * 4);
    double x = 1;
    uint64_t state = 1;

    for (int64_t i = 0; i < m; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x = (double)(state >> 11) * 0x1p-53;
        double rank = 1;

        for (double span = (double)v; x > 0 && rank * 2 < span; x -= 1 / 18.0)
            rank *= 2;                          /* each doubling of the rank has about the same probability */
        id[i] = (int32_t)(rank + (double)(state % (uint64_t)rank)) % (int32_t)v;
    }
    k->dev->copy(dev, id, (uint64_t)m * 4, NULL);
    k->dev->stream_sync(NULL);
    free(id);
    return dev;
}

static void bench_memory(int64_t m, int64_t h, int64_t v)
{
    struct kernel_adamw step = { 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.05f, 1 };
    int64_t n = m * h, flat = 256 << 20, scratch;
    double act = 2.0 * (double)n, logits = 2.0 * (double)(m / 4) * (double)v, all = 4.0 * (double)flat;
    struct rows r = { .m = m, .h = h, .v = v, .n_flat = flat, .a = numbers(n, two, 1), .b = numbers(n, two, 1),
                      .c = numbers(n, two, 1), .d = numbers(n, two, 1), .gamma = numbers(h, two, 1),
                      .beta = numbers(h, two, 1) };

    scratch = (int64_t)k->layernorm_scratch(m, h) + (int64_t)k->embed_scratch(m, v);
    r.scratch = room(scratch);
    r.mean = numbers(3 * m, DTYPE_F32, 0.01f), r.rstd = numbers(m, DTYPE_F32, 1);
    r.grad = numbers(2 * h, DTYPE_F32, 1);
    for (int i = 0; i < 4; i++)
        r.f[i] = numbers(flat > v * h ? flat : v * h, DTYPE_F32, i == 2 ? 0 : 0.1f);
    r.w = numbers(flat, two, 1), r.logits = numbers(m / 4 * v, two, 1), r.table = numbers(v * h, two, 1);
    r.id = text_ids(m, v);
    r.sum = room(8), r.tmp = room(k->sumsq_scratch(flat) * 8), r.step = room(sizeof step);
    r.runs = k->runs_new(&(struct kernel_run){ .n = flat, .decay = 0.1f }, 1, &(struct err){0});
    k->dev->copy(r.step, &step, sizeof step, NULL);

    show_bytes("copy", run_copy, &r, 2 * all);
    show_bytes("layernorm", run_norm, &r, 2 * act);
    show_bytes("layernorm_back", run_norm_back, &r, 3 * act);
    show_bytes("layernorm_back, added", run_norm_back_add, &r, 4 * act);
    show_bytes("residual_norm", run_residual, &r, 4 * act);
    show_bytes("dropout_back: bias only", run_bias_back, &r, act);
    show_bytes("gelu", run_gelu, &r, 2 * act);
    show_bytes("embed", run_embed, &r, 2 * act);
    show_bytes("embed_finish", run_finish, &r, 2 * act);
    show_bytes("embed_back", run_embed_back, &r, 5 * act);
    show_bytes("position_back", run_position_back, &r, act);
    r.drop = (struct kernel_dropout){ 0.1f, { 5, 6 }, 0 };
    show_bytes("residual_norm, dropout", run_residual, &r, 4 * act);
    show_bytes("dropout_back", run_drop_back, &r, 2 * act);
    show_bytes("xent_stat", run_stat, &r, logits);
    show_bytes("xent_back", run_xent_back, &r, 2 * logits);
    show_bytes("weighted_sum", run_loss_sum, &r, 8.0 * (double)m);
    show_bytes("sumsq", run_sumsq, &r, all);
    show_bytes("adamw", run_adamw, &r, 30.0 * (double)flat);
    show_bytes("cast to bf16", run_cast, &r, 6.0 * (double)flat);
    show_bytes("add", run_add, &r, 3 * all);
    show_bytes("scale", run_scale, &r, 2 * all);
}

int main(int argc, char **argv)
{
    struct kernel_opts o = {0};
    struct err e = {0};
    int64_t m, h, v;

    if (argc > 1 && !strcmp(argv[1], "f16")) {
        two = DTYPE_F16;
        argv++, argc--;
    }
    m = argc > 3 ? atoll(argv[1]) : 16384;
    h = argc > 3 ? atoll(argv[2]) : 2048;
    v = argc > 3 ? atoll(argv[3]) : 250880;
    only = argc > 4 ? argv[4] : NULL;
    k = kernels_cuda_open(&o, &e);
    if (!k) {
        fprintf(stderr, "bench_cuda_kernels: %s\n", e.msg);
        return 1;
    }
    if (!only || !strcmp(only, "products")) {
        bench_layer("qkv", m, 3 * h, h, 0);
        bench_layer("proj", m, h, h, 0);
        bench_layer("fc1", m, 4 * h, h, 1);
        bench_layer("fc2", m, h, 4 * h, 2);
        bench_layer("head", m / 4, v, h, 0);
    }
    if (!only || strcmp(only, "products") != 0)
        bench_memory(m, h, v);
    kernels_close(k);
    return 0;
}
