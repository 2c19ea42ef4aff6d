/*
 * xent.c - cross entropy over a vocabulary that may be split over ranks
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"

#define XENT_RUN 1024                   /* number of exponentials added in fp32 before the sum is added to a double */

/*
 * run_top() returns the largest of `top` and n numbers. run_sum() returns the sum of the n exponentials relative to
 * `top`.
 */
ALWAYS_INLINE float run_top(const void *x, float top, int64_t n, enum dtype t)
{
    #pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < n; j++) {
        float z = load_t(x, j, t);

        top = z > top ? z : top;                /* a NaN is ignored here; it makes the sum of exponentials NaN */
    }
    return top;
}

ALWAYS_INLINE float run_sum(const void *x, float top, int64_t n, enum dtype t)
{
    float part = 0;

    #pragma omp simd reduction(+ : part)
    for (int64_t j = 0; j < n; j++)
        part += exp_f32(load_t(x, j, t) - top);
    return part;
}

/*
 * Compute the three values of a row that xent_stat() stores. Runs of fp16 are widened first; other types are read in
 * place.
 */
ALWAYS_INLINE void row_xent(float stat[3], const void *x, int64_t target, int64_t v, enum dtype t)
{
    const bool half = t == DTYPE_F16;
    const enum dtype as = half ? DTYPE_F32 : t;
    float top = -INFINITY, wide[XENT_RUN];
    double sum = 0;

    for (int64_t j = 0; j < v; j += XENT_RUN) {
        const int64_t n = min_i64(XENT_RUN, v - j);

        top = run_top(half ? f16_widen(wide, at_t(x, j, t), n) : at_t(x, j, t), top, n, as);
    }
    for (int64_t j = 0; j < v; j += XENT_RUN) {
        const int64_t n = min_i64(XENT_RUN, v - j);

        sum += run_sum(half ? f16_widen(wide, at_t(x, j, t), n) : at_t(x, j, t), top, n, as);
    }
    stat[0] = top;
    stat[1] = (float)sum;
    stat[2] = target >= 0 && target < v ? load_t(x, target, t) : 0;
}

static void xent_stat(float *stat, const struct kernel_xent *x, enum dtype t, struct dev_stream *s)
{
    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < x->m; i++)
        WITH_T(t, row_xent(stat + 3 * i, at_t(x->logits, i * x->v, T), x->target[i] - x->first, x->v, T));
}

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
/*
 * The loop over ranks is not vectorised, because this ends gcc 12 for aarch64 with an internal error. There are only
 * few ranks.
 */
__attribute__((optimize("no-tree-loop-vectorize")))
#endif
static void xent_loss(float *loss, float *lse, const float *stat, int tp, int64_t m, struct dev_stream *s)
{
    (void)s;
    for (int64_t i = 0; i < m; i++) {
        double top = -INFINITY, sum = 0, logit = 0, all;

        for (int r = 0; r < tp; r++)
            top = fmax(top, stat[(r * m + i) * 3]);
        for (int r = 0; r < tp; r++) {
            const float *of = stat + (r * m + i) * 3;

            sum += of[1] * exp(of[0] - top);
            logit += of[2];
        }
        all = top + log(sum);
        lse[i] = (float)all;
        loss[i] = (float)(all - logit);
    }
}

ALWAYS_INLINE void row_xent_back(void *x, int64_t target, float lse, float scale, int64_t v, enum dtype t)
{
    const bool half = t == DTYPE_F16;
    const enum dtype as = half ? DTYPE_F32 : t;
    float at_target = 0, wide[XENT_RUN];

    if (target >= 0 && target < v)
        at_target = (exp_f32(load_t(x, target, t) - lse) - 1.0f) * scale;
    for (int64_t j = 0; j < v; j += XENT_RUN) {
        const int64_t n = min_i64(XENT_RUN, v - j);
        float *run = half ? f16_widen(wide, at_t(x, j, t), n) : out_t(x, j, t);

        for (int64_t i = 0; i < n; i++)
            store_t(run, i, exp_f32(load_t(run, i, as) - lse) * scale, as);
        if (half)
            f16_narrow(out_t(x, j, t), wide, n);
    }
    if (target >= 0 && target < v)
        store_t(x, target, at_target, t);
}

static void xent_back(const struct kernel_xent *x, const float *lse, const float *scale, enum dtype t,
                      struct dev_stream *s)
{
    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < x->m; i++) {
        int64_t target = x->target[i] - x->first;

        WITH_T(t, row_xent_back(out_t(x->logits, i * x->v, T), target, lse[i], scale[i], x->v, T));
    }
}

void xent_fill(struct kernels *k)
{
    k->xent_stat = xent_stat;
    k->xent_loss = xent_loss;
    k->xent_back = xent_back;
}
