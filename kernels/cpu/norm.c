/*
 * norm.c - LayerNorm, the residual with dropout in front of it, and both ways back
 *
 * A row is short enough to stay in the cache, so the statistics take a pass each: the mean
 * first, then the squares of what is left, which loses no digits when the mean is large.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/philox.h"

/* ---- forward ---- */

/* Mean and 1 / sqrt(variance + eps) of a row */
ALWAYS_INLINE void row_stat(const void *x, int64_t h, float eps, float *mean, float *rstd, bool bf)
{
    float sum = 0, squares = 0;

    #pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < h; j++)
        sum += load_t(x, j, bf);
    *mean = sum / (float)h;
    #pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < h; j++) {
        float d = load_t(x, j, bf) - *mean;

        squares += d * d;
    }
    *rstd = 1.0f / sqrtf(squares / (float)h + eps);
}

ALWAYS_INLINE void row_norm(void *y, float *mean, float *rstd, const void *x, const void *gamma, const void *beta,
                            int64_t h, float eps, bool bf)
{
    float mu, r;

    row_stat(x, h, eps, &mu, &r, bf);
    #pragma omp simd
    for (int64_t j = 0; j < h; j++)
        store_t(y, j, MADD((load_t(x, j, bf) - mu) * r, load_t(gamma, j, bf), load_t(beta, j, bf)), bf);
    if (mean)
        *mean = mu;
    if (rstd)
        *rstd = r;
}

static void layernorm(void *y, float *mean, float *rstd, const void *x, const void *gamma, const void *beta,
                      int64_t m, int64_t h, float eps, enum dtype t, struct dev_stream *s)
{
    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        float *mu = mean ? mean + i : NULL, *r = rstd ? rstd + i : NULL;

        if (t == DTYPE_BF16)
            row_norm(out_t(y, i * h, true), mu, r, at_t(x, i * h, true), gamma, beta, h, eps, true);
        else
            row_norm(out_t(y, i * h, false), mu, r, at_t(x, i * h, false), gamma, beta, h, eps, false);
    }
}

/* z = residual + dropout(a + bias), one row */
ALWAYS_INLINE void row_residual(void *z, const void *a, const void *bias, const void *residual,
                                const struct kernel_dropout *drop, int64_t row, int64_t h, bool bf)
{
    float v[DROP_RUN], mask[DROP_RUN];

    for (int64_t j0 = 0; j0 < h; j0 += DROP_RUN) {
        int64_t n = min_i64(DROP_RUN, h - j0);

        for (int64_t j = 0; j < n; j++)
            v[j] = load_t(a, j0 + j, bf);
        if (bias)
            for (int64_t j = 0; j < n; j++)
                v[j] += load_t(bias, j0 + j, bf);
        if (drop_active(drop)) {
            drop_run(mask, drop, (drop->row0 + row) * h + j0, n);
            for (int64_t j = 0; j < n; j++)
                v[j] *= mask[j];
        }
        #pragma omp simd                /* z may be residual: each element depends on its own alone */
        for (int64_t j = 0; j < n; j++)
            store_t(z, j0 + j, load_t(residual, j0 + j, bf) + v[j], bf);
    }
}

ALWAYS_INLINE void row_residual_norm(void *z, void *y, float *mean, float *rstd, const void *a, const void *bias,
                                     const void *residual, const struct kernel_dropout *drop, const void *gamma,
                                     const void *beta, int64_t i, int64_t h, float eps, bool bf)
{
    void *zi = out_t(z, i * h, bf);

    row_residual(zi, at_t(a, i * h, bf), bias, at_t(residual, i * h, bf), drop, i, h, bf);
    if (gamma)
        row_norm(out_t(y, i * h, bf), mean ? mean + i : NULL, rstd ? rstd + i : NULL, zi, gamma, beta, h, eps, bf);
}

static void residual_norm(void *z, void *y, float *mean, float *rstd, const void *a, const void *bias,
                          const void *residual, const struct kernel_dropout *drop, const void *gamma,
                          const void *beta, int64_t m, int64_t h, float eps, enum dtype t, struct dev_stream *s)
{
    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < m; i++)
        if (t == DTYPE_BF16)
            row_residual_norm(z, y, mean, rstd, a, bias, residual, drop, gamma, beta, i, h, eps, true);
        else
            row_residual_norm(z, y, mean, rstd, a, bias, residual, drop, gamma, beta, i, h, eps, false);
}

/* ---- back: rows in chunks, each with its own sums over rows, added in the chunks' order ---- */

#define MAX_CHUNKS 128

static int64_t chunk_rows(int64_t m)
{
    return max_i64(16, (m + MAX_CHUNKS - 1) / MAX_CHUNKS);
}

static int64_t chunks_of(int64_t m)
{
    return (m + chunk_rows(m) - 1) / chunk_rows(m);
}

static uint64_t layernorm_scratch(int64_t m, int64_t h)
{
    return (uint64_t)chunks_of(m) * 2 * (uint64_t)h * sizeof(float);
}

/* out [h] (+)= sums over the chunks of part [chunks, stride] */
static void chunks_add(float *out, const float *part, int64_t chunks, int64_t stride, int64_t h, bool add)
{
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t j0 = 0; j0 < h; j0 += 64) {
        int64_t n = min_i64(64, h - j0);
        float sum[64] = { 0 };

        for (int64_t c = 0; c < chunks; c++)
            for (int64_t j = 0; j < n; j++)
                sum[j] += part[c * stride + j0 + j];
        for (int64_t j = 0; j < n; j++)
            out[j0 + j] = (add ? out[j0 + j] : 0) + sum[j];
    }
}

/* With g = dy * gamma: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + add_dx */
ALWAYS_INLINE void row_norm_back(void *dx, float *dgamma, float *dbeta, const void *dy, const void *x,
                                 const void *gamma, float mean, float rstd, const void *add_dx, int64_t h, bool bf)
{
    float sum = 0, sum_x = 0;

    #pragma omp simd reduction(+ : sum, sum_x)
    for (int64_t j = 0; j < h; j++) {
        float d = load_t(dy, j, bf), xhat = (load_t(x, j, bf) - mean) * rstd, g = d * load_t(gamma, j, bf);

        sum += g;
        sum_x += g * xhat;
        dgamma[j] += d * xhat;
        dbeta[j] += d;
    }
    sum /= (float)h;
    sum_x /= (float)h;
    #pragma omp simd
    for (int64_t j = 0; j < h; j++) {
        float xhat = (load_t(x, j, bf) - mean) * rstd, g = load_t(dy, j, bf) * load_t(gamma, j, bf);
        float v = rstd * (g - sum - xhat * sum_x);

        store_t(dx, j, add_dx ? load_t(add_dx, j, bf) + v : v, bf);
    }
}

static void layernorm_back(void *dx, float *dgamma, float *dbeta, const void *dy, const void *x, const void *gamma,
                           const float *mean, const float *rstd, const void *add_dx, int64_t m, int64_t h, bool add,
                           void *scratch, enum dtype t, struct dev_stream *s)
{
    int64_t rows = chunk_rows(m), chunks = chunks_of(m);
    bool bf = t == DTYPE_BF16;
    float *part = scratch;

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t c = 0; c < chunks; c++) {
        float *dg = part + c * 2 * h, *db = dg + h;

        for (int64_t j = 0; j < 2 * h; j++)
            dg[j] = 0;
        for (int64_t i = c * rows; i < min_i64((c + 1) * rows, m); i++) {
            const void *dyi = at_t(dy, i * h, bf), *xi = at_t(x, i * h, bf);
            const void *ai = add_dx ? at_t(add_dx, i * h, bf) : NULL;

            if (bf)
                row_norm_back(out_t(dx, i * h, true), dg, db, dyi, xi, gamma, mean[i], rstd[i], ai, h, true);
            else
                row_norm_back(out_t(dx, i * h, false), dg, db, dyi, xi, gamma, mean[i], rstd[i], ai, h, false);
        }
    }
    chunks_add(dgamma, part, chunks, 2 * h, h, add);
    chunks_add(dbeta, part + h, chunks, 2 * h, h, add);
}

/* One row of da, and its share of the column sums */
ALWAYS_INLINE void row_dropout_back(void *da, float *sum, const void *dz, const struct kernel_dropout *drop,
                                    int64_t row, int64_t h, bool bf)
{
    float mask[DROP_RUN];

    for (int64_t j0 = 0; j0 < h; j0 += DROP_RUN) {
        int64_t n = min_i64(DROP_RUN, h - j0);

        drop_run(mask, drop, (drop->row0 + row) * h + j0, n);
        #pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            float v = round_t(load_t(dz, j0 + j, bf) * mask[j], bf);

            store_t(da, j0 + j, v, bf);
            sum[j0 + j] += v;
        }
    }
}

ALWAYS_INLINE void row_sum(void *da, float *sum, const void *dz, int64_t h, bool bf)
{
    for (int64_t j = 0; j < h; j++)
        sum[j] += load_t(dz, j, bf);
    if (da != dz)
        for (int64_t j = 0; j < h; j++)
            store_t(da, j, load_t(dz, j, bf), bf);
}

/* Rows first .. end of da, and their column sums */
ALWAYS_INLINE void rows_dropout_back(void *da, float *sum, const void *dz, const struct kernel_dropout *drop,
                                     int64_t first, int64_t end, int64_t h, bool bf)
{
    for (int64_t j = 0; j < h; j++)
        sum[j] = 0;
    for (int64_t i = first; i < end; i++) {
        void *dai = out_t(da, i * h, bf);
        const void *dzi = at_t(dz, i * h, bf);

        if (drop_active(drop))
            row_dropout_back(dai, sum, dzi, drop, i, h, bf);
        else
            row_sum(dai, sum, dzi, h, bf);
    }
}

static void dropout_back(void *da, float *dbias, const void *dz, const struct kernel_dropout *drop, int64_t m,
                         int64_t h, bool add, void *scratch, enum dtype t, struct dev_stream *s)
{
    int64_t rows = chunk_rows(m), chunks = chunks_of(m);
    float *part = scratch;

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t c = 0; c < chunks; c++) {
        int64_t end = min_i64((c + 1) * rows, m);

        if (t == DTYPE_BF16)
            rows_dropout_back(da, part + c * h, dz, drop, c * rows, end, h, true);
        else
            rows_dropout_back(da, part + c * h, dz, drop, c * rows, end, h, false);
    }
    if (dbias)
        chunks_add(dbias, part, chunks, h, h, add);
}

void norm_fill(struct kernels *k)
{
    k->layernorm = layernorm;
    k->layernorm_back = layernorm_back;
    k->layernorm_scratch = layernorm_scratch;
    k->residual_norm = residual_norm;
    k->dropout_back = dropout_back;
}
