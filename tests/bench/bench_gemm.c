/*
 * bench_gemm.c - compare the CPU's matrix products with OpenBLAS and oneDNN at the trainer's shapes
 *
 * Usage: bench_gemm [-t THREADS[,THREADS..]] [-r ROUNDS] [SHAPE]. The defaults are 1,2,8 threads (those that the
 * machine has), 5 rounds and all shapes. For each product it measures y = x w^T, dx = dy w and dw = dy^T x, in fp32
 * and bf16. The implementations run alternately, the fastest call of each counts, and results must agree. The exit
 * status is 1 if they do not.
 *
 * Neither library is linked. libopenblas.so.0 (fp32 only) and libdnnl.so.2 are loaded if they are found, so on a
 * machine without packages this program and the libraries can share one folder, with LD_LIBRARY_PATH. oneDNN needs
 * its header at compile time (version 2) and is called through its matmul primitive. Operands are stored as the
 * trainer has them, since weights change with every step. The OpenBLAS of Debian 12 treats CPUs newer than itself
 * as old ones: set OPENBLAS_CORETYPE=SkylakeX where AVX-512 is available.
 */
#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "libcommon/base/clock.h"

#if __has_include(<dnnl.h>)
#include <dnnl.h>
#if DNNL_VERSION_MAJOR == 2
#define HAVE_DNNL 1
#endif
#endif

enum { OWN, OPENBLAS, ONEDNN, RIVALS };
static const char *const names[RIVALS] = { "ours", "OpenBLAS", "oneDNN" };

static const struct kernels *k;

static void *room(int64_t bytes)
{
    struct err e = {0};
    void *p = k->dev->alloc((uint64_t)bytes, &e);

    if (!p) {
        fprintf(stderr, "bench_gemm: %s\n", e.msg);
        exit(1);
    }
    return p;
}

/* Return n normal deviates of type T. */
static void *numbers(int64_t n, enum dtype t)
{
    static uint32_t key[2] = { 1, 2 };
    float *x = room(n * 4);
    void *y;

    key[0]++;
    k->normal(x, 0, n, 0.5f, key, NULL);
    if (t == DTYPE_F32)
        return x;
    y = room(n * 2);
    k->cast(y, t, x, DTYPE_F32, n, NULL);
    k->dev->free(x);
    return y;
}

/*
 * A product in the form that all implementations use: c [m, n] = a b, with a [m, k] at a[i * a_row + l * a_col], b
 * [k, n] at b[l * b_row + j * b_col], and c row-major.
 */
struct product {
    const void *a, *b;
    int64_t a_row, a_col, b_row, b_col;
    int64_t m, n, k;
    enum dtype t, c_t;
    void *c[RIVALS];
    void *primitive;                    /* used by oneDNN */
};

/* ---- shardkit: the three calls of the layer, with the layer's own m, n, k ---- */

enum kind { Y, DX, DW, KINDS };
static const char *const kinds[KINDS] = { "y", "dx", "dw" };

static void run_own(enum kind kind, const struct product *p)
{
    if (kind == Y)
        k->linear(&(struct kernel_linear){
            .m = p->m, .n = p->n, .k = p->k, .x = p->a, .w = p->b, .y = p->c[OWN],
        }, p->t, NULL);
    else if (kind == DX)
        k->linear_dx(&(struct kernel_linear_dx){
            .m = p->m, .n = p->k, .k = p->n, .dy = p->a, .w = p->b, .dx = p->c[OWN],
        }, p->t, NULL);
    else
        k->linear_dw(&(struct kernel_linear_dw){
            .m = p->k, .n = p->m, .k = p->n, .dy = p->a, .x = p->b, .dw = p->c[OWN],
        }, p->t, NULL);
}

/* ---- OpenBLAS ---- */

static struct {
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                  int ldb, float beta, float *c, int ldc);
    void (*set_threads)(int n);
} blas;

static bool find(void *lib, const char *name, void *function)
{
    *(void **)function = dlsym(lib, name);
    return *(void **)function != NULL;
}

static void load_openblas(void)
{
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    char *(*config)(void);

    if (!lib || !find(lib, "cblas_sgemm", &blas.sgemm) || !find(lib, "openblas_set_num_threads", &blas.set_threads)) {
        printf("no OpenBLAS: %s\n", dlerror());
        blas.sgemm = NULL;
        return;
    }
    printf("%s\n", find(lib, "openblas_get_config", &config) ? config() : "OpenBLAS");
}

static void run_openblas(const struct product *p)
{
    enum { ROW = 101, AS_IS = 111, TURNED = 112 };
    bool ta = p->a_col != 1, tb = p->b_col != 1;

    blas.sgemm(ROW, ta ? TURNED : AS_IS, tb ? TURNED : AS_IS, (int)p->m, (int)p->n, (int)p->k, 1, p->a,
               (int)(ta ? p->a_col : p->a_row), p->b, (int)(tb ? p->b_col : p->b_row), 0, p->c[OPENBLAS], (int)p->n);
}

/* ---- oneDNN ---- */

#ifdef HAVE_DNNL
#define DNNL_CALLS(X)                                                                                               \
    X(engine_create) X(stream_create) X(stream_wait) X(memory_desc_init_by_strides) X(matmul_desc_init)             \
    X(primitive_desc_create) X(primitive_create) X(primitive_execute) X(memory_create) X(primitive_desc_destroy)    \
    X(primitive_destroy) X(memory_destroy) X(version)
#define MEMBER(f) __typeof__(dnnl_##f) *f;
static struct { DNNL_CALLS(MEMBER) } dnnl;
static dnnl_engine_t engine;
static dnnl_stream_t stream;

struct primitive {
    dnnl_primitive_t run;
    dnnl_memory_t a, b, c;
};

static void must(dnnl_status_t status, const char *what)
{
    if (status != dnnl_success) {
        fprintf(stderr, "bench_gemm: oneDNN: %s: status %d\n", what, (int)status);
        exit(1);
    }
}

static bool load_onednn(void)
{
    void *lib = dlopen("libdnnl.so.2", RTLD_NOW);
    const dnnl_version_t *v;
    bool all = lib != NULL;

#define FIND(f) all = all && find(lib, "dnnl_" #f, &dnnl.f);
    DNNL_CALLS(FIND)
    if (!all) {
        printf("no oneDNN: %s\n", dlerror());
        return false;
    }
    v = dnnl.version();
    printf("oneDNN %d.%d.%d\n", v->major, v->minor, v->patch);
    must(dnnl.engine_create(&engine, dnnl_cpu, 0), "engine");
    must(dnnl.stream_create(&stream, engine, dnnl_stream_default_flags), "stream");
    return true;
}

static dnnl_memory_t matrix(dnnl_memory_desc_t *d, const void *p, const dnnl_dims_t size, const dnnl_dims_t stride,
                            enum dtype t)
{
    dnnl_memory_t m;

    must(dnnl.memory_desc_init_by_strides(d, 2, size, t == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32, stride), "shape");
    must(dnnl.memory_create(&m, d, engine, (void *)p), "memory");
    return m;
}

/* Prepare the primitive. It is created once for each number of threads. */
static void prepare_onednn(struct product *p)
{
    struct primitive *x = calloc(1, sizeof *x);
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t d;
    dnnl_primitive_desc_t pd;

    x->a = matrix(&a, p->a, (dnnl_dims_t){ p->m, p->k }, (dnnl_dims_t){ p->a_row, p->a_col }, p->t);
    x->b = matrix(&b, p->b, (dnnl_dims_t){ p->k, p->n }, (dnnl_dims_t){ p->b_row, p->b_col }, p->t);
    x->c = matrix(&c, p->c[ONEDNN], (dnnl_dims_t){ p->m, p->n }, (dnnl_dims_t){ p->n, 1 }, p->c_t);
    must(dnnl.matmul_desc_init(&d, &a, &b, NULL, &c), "matmul");
    must(dnnl.primitive_desc_create(&pd, &d, NULL, engine, NULL), "matmul for this CPU");
    must(dnnl.primitive_create(&x->run, pd), "primitive");
    dnnl.primitive_desc_destroy(pd);
    p->primitive = x;
}

static void run_onednn(const struct product *p)
{
    const struct primitive *x = p->primitive;
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, x->a }, { DNNL_ARG_WEIGHTS, x->b }, { DNNL_ARG_DST, x->c } };

    must(dnnl.primitive_execute(x->run, stream, 3, args), "execution");
    must(dnnl.stream_wait(stream), "execution");
}

static void end_onednn(struct product *p)
{
    struct primitive *x = p->primitive;

    dnnl.primitive_destroy(x->run);
    dnnl.memory_destroy(x->a);
    dnnl.memory_destroy(x->b);
    dnnl.memory_destroy(x->c);
    free(x);
}
#else
static bool load_onednn(void)
{
    printf("no oneDNN: compiled without dnnl.h of version 2\n");
    return false;
}
static void prepare_onednn(struct product *p) { (void)p; }
static void run_onednn(const struct product *p) { (void)p; }
static void end_onednn(struct product *p) { (void)p; }
#endif

/* ---- comparing ---- */

static bool here[RIVALS];
static int rounds = 5, wrong;
static struct sum {
    double log_ratio, worst;
    int n;
} sums[2][RIVALS];                      /* [bf16][rival] */

static void run_one(int rival, enum kind kind, const struct product *p)
{
    if (rival == OWN)
        run_own(kind, p);
    else if (rival == OPENBLAS)
        run_openblas(p);
    else
        run_onednn(p);
}

/* Check a rival's result. Its relative distance from shardkit's result must be that of roundings. */
static void check(const struct product *p, int rival)
{
    double apart = 0, norm = 0, most = p->c_t == DTYPE_BF16 ? 0x1p-7 : 1e-4;
    const int size = dtype_size(p->c_t);

    for (int64_t i = 0; i < p->m * p->n; i++) {
        double own = dtype_value(p->c_t, (char *)p->c[OWN] + i * size);
        double other = dtype_value(p->c_t, (char *)p->c[rival] + i * size);

        apart += (own - other) * (own - other);
        norm += own * own;
    }
    if (!(sqrt(apart) <= most * sqrt(norm))) {
        printf("%s differs from ours by %.3g of its norm\n", names[rival], sqrt(apart / norm));
        wrong++;
    }
}

static void measure(enum kind kind, const struct product *p, const bool *takes_part, double *best)
{
    for (int r = 0; r < RIVALS; r++)
        if (takes_part[r]) {
            best[r] = INFINITY;
            run_one(r, kind, p);
            if (r != OWN)
                check(p, r);
        }
    for (int i = 0; i < rounds; i++)
        for (int r = 0; r < RIVALS; r++)
            for (double begin = clock_s(), t = begin; takes_part[r] && t - begin < 0.05;) {
                double from = t;

                run_one(r, kind, p);
                t = clock_s();
                best[r] = fmin(best[r], t - from);
            }
}

static void report(const struct product *p, const bool *takes_part, const double *best)
{
    double flop = 2e-9 * (double)p->m * (double)p->n * (double)p->k;

    printf("  ours %7.1f GFLOP/s", flop / best[OWN]);
    for (int r = OWN + 1; r < RIVALS; r++)
        if (takes_part[r]) {
            struct sum *s = &sums[p->t == DTYPE_BF16][r];
            double ratio = best[r] / best[OWN];

            printf("  %s %7.1f, ours %.2f of it", names[r], flop / best[r], ratio);
            s->log_ratio += log(ratio);
            s->worst = s->n++ ? fmin(s->worst, ratio) : ratio;
        }
    printf("\n");
    fflush(stdout);
}

static const struct shape {
    const char *name;
    int64_t m, n, k;                    /* rows, outputs, inputs */
} shapes[] = {
    { "toy", 256, 192, 64 },
    { "qkv-256", 1024, 768, 256 }, { "proj-256", 1024, 256, 256 }, { "fc1-256", 1024, 1024, 256 },
    { "fc2-256", 1024, 256, 1024 }, { "head-256", 1024, 8192, 256 },
    { "qkv-1024", 2048, 3072, 1024 }, { "proj-1024", 2048, 1024, 1024 }, { "fc1-1024", 2048, 4096, 1024 },
    { "fc2-1024", 2048, 1024, 4096 }, { "head-1024", 256, 50304, 1024 },
    { "qkv-2048", 2048, 6144, 2048 }, { "proj-2048", 2048, 2048, 2048 }, { "fc1-2048", 2048, 8192, 2048 },
    { "fc2-2048", 2048, 2048, 8192 }, { "head-2048", 64, 62720, 2048 },
};

/* Return product `kind` of a layer: x [m, k], w [n, k], dy [m, n]. */
static struct product product_of(const struct shape *z, enum kind kind, enum dtype t)
{
    const int64_t m = z->m, n = z->n, l = z->k;

    if (kind == Y)
        return (struct product){
            .m = m, .n = n, .k = l, .a_row = l, .a_col = 1, .b_row = 1, .b_col = l, .t = t, .c_t = t,
        };
    if (kind == DX)
        return (struct product){
            .m = m, .n = l, .k = n, .a_row = n, .a_col = 1, .b_row = l, .b_col = 1, .t = t, .c_t = t,
        };
    return (struct product){
        .m = n, .n = l, .k = m, .a_row = 1, .a_col = n, .b_row = l, .b_col = 1, .t = t, .c_t = DTYPE_F32,
    };
}

static void compare(const struct shape *z, enum kind kind, enum dtype t, int threads)
{
    struct product p = product_of(z, kind, t);
    const bool takes_part[RIVALS] = { true, here[OPENBLAS] && t == DTYPE_F32, here[ONEDNN] };
    void *a = numbers(p.m * p.k, t), *b = numbers(p.k * p.n, t);
    double best[RIVALS];

    p.a = a, p.b = b;
    for (int r = 0; r < RIVALS; r++)
        p.c[r] = takes_part[r] ? numbers(p.m * p.n, p.c_t) : NULL;
    if (takes_part[ONEDNN])
        prepare_onednn(&p);
    printf("%d threads  %-9s %-2s m %5lld n %6lld k %5lld  %-4s", threads, z->name, kinds[kind], (long long)z->m,
           (long long)z->n, (long long)z->k, dtype_name(t));
    measure(kind, &p, takes_part, best);
    report(&p, takes_part, best);
    if (takes_part[ONEDNN])
        end_onednn(&p);
    k->dev->free(a);
    k->dev->free(b);
    for (int r = 0; r < RIVALS; r++)
        k->dev->free(p.c[r]);
}

static void summary(int threads)
{
    for (int bf = 0; bf < 2; bf++)
        for (int r = OWN + 1; r < RIVALS; r++)
            if (sums[bf][r].n)
                printf("%d threads  %s: ours %.3f of %s (geometric mean of %d), the least %.3f\n", threads,
                       bf ? "bf16" : "fp32", exp(sums[bf][r].log_ratio / sums[bf][r].n), names[r], sums[bf][r].n,
                       sums[bf][r].worst);
    memset(sums, 0, sizeof sums);
}

static int with_threads(int threads, const char *only)
{
    struct kernel_opts o = { .threads = threads };
    struct err e = {0};

    k = kernels_cpu_open(&o, &e);
    if (!k) {
        fprintf(stderr, "bench_gemm: %s\n", e.msg);
        return -1;
    }
    omp_set_num_threads(threads);       /* for oneDNN */
    if (here[OPENBLAS])
        blas.set_threads(threads);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 2 && (!only || strcmp(only, shapes[i].name) == 0); t++)
            for (enum kind kind = Y; kind < KINDS; kind++)
                compare(&shapes[i], kind, t ? DTYPE_BF16 : DTYPE_F32, threads);
    summary(threads);
    kernels_close(k);
    return 0;
}

int main(int argc, char **argv)
{
    const char *list = "1,2,8", *only = NULL;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int c;

    while ((c = getopt(argc, argv, "t:r:")) != -1)
        if (c == 't')
            list = optarg;
        else if (c == 'r')
            rounds = atoi(optarg);
        else
            return 2;
    only = optind < argc ? argv[optind] : NULL;
    load_openblas();
    here[OPENBLAS] = blas.sgemm != NULL;
    here[ONEDNN] = load_onednn();
    for (const char *p = list; p; p = strchr(p, ',')) {
        int threads = atoi(p += *p == ',');

        if (threads > cores)
            printf("%d threads: not measured, there are %ld cores\n", threads, cores);
        else if (with_threads(threads, only) < 0)
            return 1;
    }
    return wrong != 0;
}
