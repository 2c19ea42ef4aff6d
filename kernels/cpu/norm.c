/*
 * norm.c - LayerNorm, the residual with dropout before it, and the gradients of both
 *
 * A row is short enough to stay in the cache, so each statistic has its own pass: first the mean, then the squares
 * of the differences from it. This loses no digits if the mean is large.
 */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/philox.h"

/* ---- forward ---- */

/* Compute the mean and 1 / sqrt(variance + eps) of a row. */
ALWAYS_INLINE void row_stat(const void *x, int64_t h, float eps, float *mean, float *rstd, enum dtype t)
{
    float sum = 0, squares = 0;

    #pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < h; j++)
        sum += load_t(x, j, t);
    *mean = sum / (float)h;
    #pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < h; j++) {
        float d = load_t(x, j, t) - *mean;

        squares += d * d;
    }
    *rstd = 1.0f / sqrtf(squares / (float)h + eps);
}

/* Normalise row i of x and store it in y, both of type T. */
ALWAYS_INLINE void row_norm_of(const struct kernel_layernorm *n, void *y, const void *x, int64_t i, enum dtype t)
{
    const int64_t h = n->h;
    const void *gamma = n->gamma, *beta = n->beta;
    float mean, rstd;

    row_stat(x, h, n->eps, &mean, &rstd, t);
    #pragma omp simd
    for (int64_t j = 0; j < h; j++)
        store_t(y, j, MADD((load_t(x, j, t) - mean) * rstd, load_t(gamma, j, t), load_t(beta, j, t)), t);
    if (n->mean)
        n->mean[i] = mean;
    if (n->rstd)
        n->rstd[i] = rstd;
}

/* Normalise row i of x. For fp16 the row is converted to fp32 in a buffer of this thread. */
ALWAYS_INLINE void row_norm(const struct kernel_layernorm *n, const void *x, int64_t i, enum dtype t)
{
    const int64_t h = n->h;
    void *y = out_t(n->y, i * h, t);
    struct kernel_layernorm wide = *n;
    float *v;

    if (t != DTYPE_F16) {
        row_norm_of(n, y, x, i, t);
        return;
    }
    v = cpu_room(omp_get_thread_num(), 3 * (uint64_t)h * sizeof *v);
    wide.gamma = f16_widen(v + h, n->gamma, h);
    wide.beta = f16_widen(v + 2 * h, n->beta, h);
    row_norm_of(&wide, v, f16_widen(v, x, h), i, DTYPE_F32);
    f16_narrow(y, v, h);
}

static void layernorm(const struct kernel_layernorm *n, enum dtype t, struct dev_stream *s)
{
    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < n->m; i++)
        WITH_T(t, row_norm(n, at_t(n->x, i * n->h, T), i, T));
}

/* Compute row i of z = residual + dropout(a + bias). */
ALWAYS_INLINE void row_residual(const struct kernel_residual_norm *r, int64_t i, enum dtype t)
{
    const int64_t h = r->norm.h;
    const void *a = at_t(r->a, i * h, t), *bias = r->bias, *residual = at_t(r->residual, i * h, t);
    void *z = out_t(r->z, i * h, t);
    float v[DROP_RUN], mask[DROP_RUN];

    for (int64_t j0 = 0; j0 < h; j0 += DROP_RUN) {
        int64_t n = min_i64(DROP_RUN, h - j0);

        load_run(v, a, j0, n, t);
        if (bias)
            add_run(v, bias, j0, n, t);
        if (drop_active(&r->drop)) {
            drop_run(mask, &r->drop, (r->drop.row0 + i) * h + j0, n);
            for (int64_t j = 0; j < n; j++)
                v[j] *= mask[j];
        }
        /* z may be the same memory as `residual`, because each element depends only on the same element */
        add_run(v, residual, j0, n, t);
        store_run(z, j0, v, n, t);
    }
}

ALWAYS_INLINE void row_residual_norm(const struct kernel_residual_norm *r, int64_t i, enum dtype t)
{
    row_residual(r, i, t);
    if (r->norm.gamma)
        row_norm(&r->norm, at_t(r->z, i * r->norm.h, t), i, t);
}

static void residual_norm(const struct kernel_residual_norm *r, enum dtype t, struct dev_stream *s)
{
    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < r->norm.m; i++)
        WITH_T(t, row_residual_norm(r, i, T));
}

/*
 * ---- gradients: rows are divided into chunks; each chunk has its own sums, which are added in order at the end ----
 */

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

/* The sums over the rows of each chunk, [chunks, stride]. Only h columns of each row are used. */
struct norm_chunks {
    const float *part;
    int64_t chunks, stride, h;
};

/* Add the sums of all chunks, and store or add the total as the gradient `out` [h] of type g. */
static void chunks_add(void *out, const struct norm_chunks *c, bool add, enum dtype g)
{
    const int64_t h = c->h;

    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t j0 = 0; j0 < h; j0 += 64) {
        int64_t n = min_i64(64, h - j0);
        float sum[64] = { 0 };

        for (int64_t i = 0; i < c->chunks; i++)
            for (int64_t j = 0; j < n; j++)
                sum[j] += c->part[i * c->stride + j0 + j];
        for (int64_t j = 0; j < n; j++)
            WITH_T(g, put_grad(out, j0 + j, sum[j], add, T));
    }
}

/* The addresses of one row in each tensor. */
struct norm_row {
    const void *dy, *x, *gamma, *add_dx;
    void *dx;
};

/*
 * Compute row i of dx. With g = dy * gamma, it is rstd * (g - mean(g) - xhat * mean(g * xhat)) + add_dx. Also adds the
 * row to the sums for dgamma and dbeta.
 */
ALWAYS_INLINE void row_norm_back_of(const struct kernel_layernorm_back *n, const struct norm_row *row, float *dgamma,
                                    float *dbeta, int64_t i, enum dtype t)
{
    const int64_t h = n->h;
    const void *dy = row->dy, *x = row->x, *gamma = row->gamma, *add_dx = row->add_dx;
    const float mean = n->mean[i], rstd = n->rstd[i];
    void *dx = row->dx;
    float sum = 0, sum_x = 0;

    #pragma omp simd reduction(+ : sum, sum_x)
    for (int64_t j = 0; j < h; j++) {
        float d = load_t(dy, j, t), xhat = (load_t(x, j, t) - mean) * rstd, g = d * load_t(gamma, j, t);

        sum += g;
        sum_x += g * xhat;
        dgamma[j] += d * xhat;
        dbeta[j] += d;
    }
    sum /= (float)h;
    sum_x /= (float)h;
    #pragma omp simd
    for (int64_t j = 0; j < h; j++) {
        float xhat = (load_t(x, j, t) - mean) * rstd, g = load_t(dy, j, t) * load_t(gamma, j, t);
        float v = rstd * (g - sum - xhat * sum_x);

        store_t(dx, j, add_dx ? load_t(add_dx, j, t) + v : v, t);
    }
}

ALWAYS_INLINE void row_norm_back(const struct kernel_layernorm_back *n, float *dgamma, float *dbeta, int64_t i,
                                 enum dtype t)
{
    const int64_t h = n->h;
    struct norm_row r = { at_t(n->dy, i * h, t), at_t(n->x, i * h, t), n->gamma,
                          n->add_dx ? at_t(n->add_dx, i * h, t) : NULL, out_t(n->dx, i * h, t) };
    void *dx = r.dx;
    float *v;

    if (t != DTYPE_F16) {
        row_norm_back_of(n, &r, dgamma, dbeta, i, t);
        return;
    }
    v = cpu_room(omp_get_thread_num(), 4 * (uint64_t)h * sizeof *v);
    r = (struct norm_row){ f16_widen(v, r.dy, h), f16_widen(v + h, r.x, h), f16_widen(v + 2 * h, r.gamma, h),
                           r.add_dx ? f16_widen(v + 3 * h, r.add_dx, h) : NULL, v };
    row_norm_back_of(n, &r, dgamma, dbeta, i, DTYPE_F32);
    f16_narrow(dx, v, h);
}

static void layernorm_back(const struct kernel_layernorm_back *n, enum dtype t, struct dev_stream *s)
{
    int64_t rows = chunk_rows(n->m), chunks = chunks_of(n->m), h = n->h;
    float *part = n->scratch;

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t c = 0; c < chunks; c++) {
        float *dgamma = part + c * 2 * h, *dbeta = dgamma + h;

        for (int64_t j = 0; j < 2 * h; j++)
            dgamma[j] = 0;
        for (int64_t i = c * rows; i < min_i64((c + 1) * rows, n->m); i++)
            WITH_T(t, row_norm_back(n, dgamma, dbeta, i, T));
    }
    chunks_add(n->dgamma, &(struct norm_chunks){ part, chunks, 2 * h, h }, n->add, n->grad_t ? t : DTYPE_F32);
    chunks_add(n->dbeta, &(struct norm_chunks){ part + h, chunks, 2 * h, h }, n->add, n->grad_t ? t : DTYPE_F32);
}

/* Compute row i of da, and add it to `sum`, the column sums. */
ALWAYS_INLINE void row_dropout_back(const struct kernel_dropout_back *d, float *sum, int64_t i, enum dtype t)
{
    const int64_t h = d->h;
    const void *dz = at_t(d->dz, i * h, t);
    void *da = out_t(d->da, i * h, t);
    float mask[DROP_RUN], v[DROP_RUN];

    for (int64_t j0 = 0; j0 < h; j0 += DROP_RUN) {
        int64_t n = min_i64(DROP_RUN, h - j0);

        drop_run(mask, &d->drop, (d->drop.row0 + i) * h + j0, n);
        load_run(v, dz, j0, n, t);
        for (int64_t j = 0; j < n; j++)
            v[j] *= mask[j];
        store_run(da, j0, v, n, t);
        add_run(sum + j0, da, j0, n, t);
    }
}

ALWAYS_INLINE void row_sum(void *da, float *sum, const void *dz, int64_t h, enum dtype t)
{
    add_run(sum, dz, 0, h, t);
    if (da != dz)
        memcpy(da, dz, (size_t)(h * bytes_t(t)));
}

/* Compute rows first .. end of da, and their column sums in `sum`. */
ALWAYS_INLINE void rows_dropout_back(const struct kernel_dropout_back *d, float *sum, int64_t first, int64_t end,
                                     enum dtype t)
{
    const int64_t h = d->h;

    for (int64_t j = 0; j < h; j++)
        sum[j] = 0;
    for (int64_t i = first; i < end; i++)
        if (drop_active(&d->drop))
            row_dropout_back(d, sum, i, t);
        else
            row_sum(out_t(d->da, i * h, t), sum, at_t(d->dz, i * h, t), h, t);
}

static void dropout_back(const struct kernel_dropout_back *d, enum dtype t, struct dev_stream *s)
{
    int64_t rows = chunk_rows(d->m), chunks = chunks_of(d->m), h = d->h;
    float *part = d->scratch;

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t c = 0; c < chunks; c++) {
        int64_t end = min_i64((c + 1) * rows, d->m);

        WITH_T(t, rows_dropout_back(d, part + c * h, c * rows, end, T));
    }
    if (d->dbias)
        chunks_add(d->dbias, &(struct norm_chunks){ part, chunks, h, h }, d->add, d->grad_t ? t : DTYPE_F32);
}

void norm_fill(struct kernels *k)
{
    k->layernorm = layernorm;
    k->layernorm_back = layernorm_back;
    k->layernorm_scratch = layernorm_scratch;
    k->residual_norm = residual_norm;
    k->dropout_back = dropout_back;
}
