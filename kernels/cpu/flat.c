/*
 * flat.c - operations on flat buffers: the optimizer, sums, conversions, initial weights
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/philox.h"
#include "libcommon/base/mem.h"

/*
 * number of elements per work item; sums are split at multiples of it, so they do not depend on the number of threads
 */
#define RUN 4096

/*
 * Loop over runs of RUN elements. One thread processes a run. In the body, the run begins at element i.
 */
#define FOR_RUNS(n)                                                                 \
    _Pragma("omp parallel for num_threads(cpu_threads) schedule(static)")           \
    for (int64_t i = 0; i < (n); i += RUN)

/* ---- sums ---- */

static void weighted_sum(double *out, const float *x, const float *w, int64_t n, struct dev_stream *s)
{
    double sum = 0;

    (void)s;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (w ? w[i] : 1);
    *out = sum;
}

static int64_t sumsq_scratch(int64_t n)
{
    return (n + RUN - 1) / RUN;
}

ALWAYS_INLINE double squares(const void *x, int64_t i, int64_t end, enum dtype t)
{
    double sum = 0;

    #pragma omp simd reduction(+ : sum)
    for (int64_t j = i; j < end; j++)
        sum += (double)load_t(x, j, t) * load_t(x, j, t);       /* exact: 24 + 24 bits fit in 53 */
    return sum;
}

static void sumsq_of(double *out, const void *x, enum dtype t, int64_t n, double *tmp)
{
    double total = 0;

    FOR_RUNS(n)
        WITH_T(t, tmp[i / RUN] = squares(x, i, min_i64(i + RUN, n), T));
    /* An omp reduction is not used, because it adds in the order in which the threads finish. */
    for (int64_t c = 0; c < sumsq_scratch(n); c++)
        total += tmp[c];
    *out = total;
}

static void sumsq(double *out, const float *x, int64_t n, double *tmp, struct dev_stream *s)
{
    (void)s;
    sumsq_of(out, x, DTYPE_F32, n, tmp);
}

/* ---- AdamW ---- */

struct flat_stretch {
    int64_t at, n;
};

/*
 * Update the elements `part` of run r. For fp16, `part` has at most HALF_RUN elements, so that the widened and the
 * rounded numbers stay in the cache.
 */
ALWAYS_INLINE void adamw_part(const struct kernel_adamw_buffers *b, const struct kernel_run *r,
                              struct flat_stretch part, const struct kernel_adamw *step, enum dtype t, enum dtype grad)
{
    const int64_t at = part.at, n = part.n;
    const struct kernel_adamw a = *step;
    float *p = b->p + r->at + at, *m = b->m + r->at + at, *v = b->v + r->at + at;
    const bool half = grad == DTYPE_F16;
    const void *g = at_t(b->g, r->at + at, grad);
    float wide[HALF_RUN];
    void *w = out_t(b->w, r->w_at + at, t);
    float rest1 = 1 - a.beta1, rest2 = 1 - a.beta2, decay = r->decay;

    if (half)
        f16_widen(wide, g, n);
    #pragma omp simd                    /* five buffers that do not overlap */
    for (int64_t i = 0; i < n; i++) {
        float gi = (half ? wide[i] : load_t(g, i, grad)) * a.grad_scale;
        float mi = a.beta1 * m[i] + rest1 * gi;
        float vi = a.beta2 * v[i] + rest2 * gi * gi;
        float update = (mi / a.c1) / (sqrtf(vi / a.c2) + a.eps) + decay * p[i];
        float pi = p[i] - a.lr * update;

        m[i] = mi;
        v[i] = vi;
        p[i] = pi;
        if (t != DTYPE_F16)
            store_t(w, i, pi, t);
    }
    if (t == DTYPE_F16)
        f16_narrow(w, p, n);
}

static void adamw_run(const struct kernel_adamw_buffers *b, const struct kernel_run *r, struct flat_stretch part,
                      const struct kernel_adamw *step, enum dtype t)
{
    const int64_t most = t == DTYPE_F16 ? HALF_RUN : part.n;

    for (int64_t i = 0; i < part.n; i += most) {
        const struct flat_stretch x = { part.at + i, min_i64(most, part.n - i) };

        if (b->grad_t)
            WITH_T(t, adamw_part(b, r, x, step, T, T));
        else
            WITH_T(t, adamw_part(b, r, x, step, T, DTYPE_F32));
    }
}

/* ---- lists of runs ---- */

struct kernel_runs {
    double *tmp;                        /* scratch memory for the sum of squares of the longest run */
    int n;
    struct kernel_run run[];
};

static struct kernel_runs *runs_new(const struct kernel_run *run, int n, struct err *e)
{
    struct kernel_runs *r = xmalloc(sizeof *r + (size_t)n * sizeof *run);
    int64_t most = 0;

    (void)e;
    r->n = n;
    for (int i = 0; i < n; i++) {
        r->run[i] = run[i];
        most = run[i].n > most ? run[i].n : most;
    }
    r->tmp = xmalloc((size_t)(sumsq_scratch(most) + 1) * sizeof *r->tmp);
    return r;
}

static void runs_free(struct kernel_runs *r)
{
    if (r)
        free(r->tmp);
    free(r);
}

static void sumsq_runs(double *out, const void *x, enum dtype t, const struct kernel_runs *r, struct dev_stream *s)
{
    (void)s;
    for (int i = 0; i < r->n; i++)
        sumsq_of(out + r->run[i].out, at_t(x, r->run[i].at, t), t, r->run[i].n, r->tmp);
}

/*
 * Returns the index of the first element in [from, end) that is not finite, or INT64_MAX if all are finite. An element
 * x is tested by x - x, which is NaN both for infinity and for NaN.
 */
ALWAYS_INLINE int64_t first_in_run(const void *x, int64_t from, int64_t end, enum dtype t)
{
    while (from < end && load_t(x, from, t) - load_t(x, from, t) == 0)
        from++;
    return from < end ? from : INT64_MAX;
}

/* ---- digests ---- */

ALWAYS_INLINE uint64_t digest_word(uint64_t w, int64_t i)
{
    uint64_t u = (w ^ (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;

    u = (u ^ u >> 32) * 0x94d049bb133111ebu;
    return u ^ u >> 29;
}

static uint64_t digest_of(const char *x, int64_t bytes)
{
    const int64_t words = bytes / 8;
    uint64_t sum = 0, rest = 0;

    #pragma omp parallel for num_threads(cpu_threads) schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < words; i++) {
        uint64_t w;

        memcpy(&w, x + 8 * i, 8);
        sum += digest_word(w, i);
    }
    memcpy(&rest, x + 8 * words, (size_t)(bytes % 8));
    return bytes % 8 ? sum + digest_word(rest, words) : sum;
}

static void digest_runs(uint64_t *out, int64_t n, const struct kernel_digests *all, struct dev_stream *s)
{
    (void)s;
    memset(out, 0, (size_t)n * sizeof *out);
    for (const struct kernel_digest *d = all->of; d < all->of + all->n; d++) {
        const int size = dtype_size(d->t);

        for (int i = 0; i < d->runs->n; i++) {
            const struct kernel_run *r = &d->runs->run[i];

            out[d->out + r->out] = digest_of((const char *)d->x + r->at * size, r->n * size);
        }
    }
}

static void first_not_finite(int64_t *out, const void *x, enum dtype t, const struct kernel_runs *r,
                             struct dev_stream *s)
{
    int64_t least = INT64_MAX;

    (void)s;
    for (int k = 0; k < r->n; k++) {
        const int64_t at = r->run[k].at, n = r->run[k].n;

        #pragma omp parallel for num_threads(cpu_threads) schedule(static) reduction(min : least)
        for (int64_t i = 0; i < n; i += RUN)
            WITH_T(t, least = min_i64(least, first_in_run(x, at + i, at + min_i64(i + RUN, n), T)));
    }
    *out = least == INT64_MAX ? -1 : least;
}

static void adamw(const struct kernel_adamw_buffers *b, const struct kernel_runs *r, const struct kernel_adamw *step,
                  enum dtype t, struct dev_stream *s)
{
    (void)s;
    for (int k = 0; k < r->n; k++) {
        const struct kernel_run *x = &r->run[k];

        FOR_RUNS(x->n)
            adamw_run(b, x, (struct flat_stretch){ i, min_i64(RUN, x->n - i) }, step, t);
    }
}

/* ---- conversions and sums of buffers ---- */

static void cast(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n, struct dev_stream *s)
{
    (void)s;
    FOR_RUNS(n) {
        int64_t end = min_i64(i + RUN, n);

        if (to == from)
            memcpy(out_t(dst, i, to), at_t(src, i, to), (size_t)((end - i) * bytes_t(to)));
        else if (to == DTYPE_F32)
            WITH_T(from, load_run((float *)dst + i, src, i, end - i, T));
        else
            WITH_T(to, store_run(dst, i, (const float *)src + i, end - i, T));
    }
}

/* Multiply elements i .. i + n of x by f; n <= RUN. */
ALWAYS_INLINE void scale_run(void *x, float f, int64_t i, int64_t n, enum dtype t)
{
    float v[RUN];

    load_run(v, x, i, n, t);
    for (int64_t j = 0; j < n; j++)
        v[j] *= f;
    store_run(x, i, v, n, t);
}

ALWAYS_INLINE void sum_run(void *y, const void *x, int64_t i, int64_t n, enum dtype t)
{
    float v[RUN];

    load_run(v, y, i, n, t);
    add_run(v, x, i, n, t);
    store_run(y, i, v, n, t);
}

static void scale(void *x, float f, int64_t n, enum dtype t, struct dev_stream *s)
{
    (void)s;
    FOR_RUNS(n)
        WITH_T(t, scale_run(x, f, i, min_i64(RUN, n - i), T));
}

static void add(void *y, const void *x, int64_t n, enum dtype t, struct dev_stream *s)
{
    (void)s;
    FOR_RUNS(n)
        WITH_T(t, sum_run(y, x, i, min_i64(RUN, n - i), T));
}

static void sum_doubles(double *y, const double *x, int64_t n, struct dev_stream *s)
{
    (void)s;
    for (int64_t i = 0; i < n; i++)     /* there are only a few elements */
        y[i] += x[i];
}

/* ---- initial weights ---- */

/*
 * Returns a uniform random number in the open interval (0, 1). It consists of 52 random bits plus half of the last bit.
 */
static double uniform(uint32_t high, uint32_t low)
{
    return ((double)(((uint64_t)high << 32 | low) >> 12) + 0.5) * 0x1p-52;
}

/* Compute two normal deviates, number 2 * block and number 2 * block + 1, from the words w of a Philox block. */
static void two_deviates(float x[2], const uint32_t w[4])
{
    double radius = sqrt(-2 * log(uniform(w[0], w[1]))), angle = 2 * M_PI * uniform(w[2], w[3]);

    x[0] = (float)(radius * cos(angle));
    x[1] = (float)(radius * sin(angle));
}

static void normal(float *x, int64_t first, int64_t n, float std, const uint32_t key[2], struct dev_stream *s)
{
    int64_t skip = first % 2;

    (void)s;
    /* i counts from the start of the first Philox block. x[0] is deviate number `skip` of that count. */
    FOR_RUNS(skip + n)
        for (int64_t j = i; j < min_i64(i + RUN, skip + n); j += 2 * PHILOX_LANES) {
            uint32_t word[4 * PHILOX_LANES];
            float pair[2 * PHILOX_LANES];

            philox_blocks(word, (uint64_t)(first + j) / 2, key, 10);
            for (int l = 0; l < PHILOX_LANES; l++)
                two_deviates(pair + 2 * l, word + 4 * l);
            for (int64_t l = max_i64(skip - j, 0); l < min_i64(2 * PHILOX_LANES, skip + n - j); l++)
                x[j + l - skip] = std * pair[l];
        }
}

void flat_fill(struct kernels *k)
{
    k->weighted_sum = weighted_sum;
    k->sum_doubles = sum_doubles;
    k->sumsq = sumsq;
    k->sumsq_scratch = sumsq_scratch;
    k->runs_new = runs_new;
    k->runs_free = runs_free;
    k->sumsq_runs = sumsq_runs;
    k->first_not_finite = first_not_finite;
    k->digest_runs = digest_runs;
    k->adamw = adamw;
    k->cast = cast;
    k->scale = scale;
    k->add = add;
    k->normal = normal;
}
