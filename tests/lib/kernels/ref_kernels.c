#include "tests/lib/kernels/ref_kernels.h"

#include <math.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"

/* ---- random numbers ---- */

void ref_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2], int rounds)
{
    uint32_t x[4] = { counter[0], counter[1], counter[2], counter[3] };

    for (uint32_t round = 0; round < (uint32_t)rounds; round++) {
        uint64_t p0 = 0xD2511F53ull * x[0], p1 = 0xCD9E8D57ull * x[2];
        uint32_t next[4] = {
            (uint32_t)(p1 >> 32) ^ x[1] ^ (key[0] + round * 0x9E3779B9u), (uint32_t)p1,
            (uint32_t)(p0 >> 32) ^ x[3] ^ (key[1] + round * 0xBB67AE85u), (uint32_t)p0,
        };

        for (int i = 0; i < 4; i++)
            x[i] = next[i];
    }
    for (int i = 0; i < 4; i++)
        out[i] = x[i];
}

static double factor(const struct kernel_dropout *d, uint32_t u)
{
    uint32_t limit = (uint32_t)floor(d->p * 65536.0 + 0.5);

    return u >= limit ? 1 / (1 - limit / 65536.0) : 0;
}

double ref_drop(const struct kernel_dropout *d, int64_t i)
{
    uint32_t w[4], counter[4] = { (uint32_t)(i / 8), (uint32_t)(i / 8 >> 32), 0, 0 };

    if (d->p == 0)
        return 1;
    ref_philox(w, counter, d->key, 7);
    return factor(d, w[i % 8 / 2] >> i % 2 * 16 & 0xffff);
}

double ref_drop_attention(const struct kernel_dropout *d, int64_t sample, int64_t head, int64_t query, int64_t key)
{
    uint32_t u = 0, bit = (uint32_t)(query % 2 * 16 + key % 16);

    if (d->p == 0)
        return 1;
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t w[4], counter[4] = { (uint32_t)(key / 16) * 4 + j, (uint32_t)(query / 2), (uint32_t)head,
                                      (uint32_t)sample };

        ref_philox(w, counter, d->key, 7);
        for (uint32_t i = 0; i < 4; i++)
            u |= (w[i] >> bit & 1) << (4 * j + i);
    }
    return factor(d, u);
}

double ref_normal(const uint32_t key[2], int64_t i)
{
    uint32_t w[4], counter[4] = { (uint32_t)(i / 2), (uint32_t)(i / 2 >> 32), 0, 0 };

    ref_philox(w, counter, key, 10);
    double u = (floor((w[0] * 4294967296.0 + w[1]) / 4096) + 0.5) / 4503599627370496.0;
    double v = (floor((w[2] * 4294967296.0 + w[3]) / 4096) + 0.5) / 4503599627370496.0;
    double r = sqrt(-2 * log(u)), pi = 3.14159265358979323846;

    return i % 2 ? r * sin(2 * pi * v) : r * cos(2 * pi * v);
}

/* ---- GELU ---- */

double ref_round(double x, enum dtype t)
{
    const float f = (float)x;

    return t == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(f)) : t == DTYPE_F16 ? f16_to_f32(f32_to_f16(f)) : f;
}

double ref_gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456 * x * (1 + 0.044715 * x * x)));
}

double ref_gelu_slope(double x)
{
    double t = tanh(0.79788456 * x * (1 + 0.044715 * x * x));

    return 0.5 * x * (1 - t * t) * (0.79788456 + 0.1070322243 * x * x) + 0.5 * (1 + t);
}

/* ---- linear ---- */

void ref_linear(double *y, const double *x, const double *w, const double *bias, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = bias ? bias[j] : 0;

            for (int64_t l = 0; l < k; l++)
                sum += x[i * k + l] * w[j * k + l];
            y[i * n + j] = sum;
        }
}

void ref_linear_back(double *dx, double *dw, double *dbias, const double *dy, const double *x, const double *w,
                     int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; dx && i < m * k; i++)
        dx[i] = 0;
    for (int64_t i = 0; dw && i < n * k; i++)
        dw[i] = 0;
    for (int64_t j = 0; dbias && j < n; j++)
        dbias[j] = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double d = dy[i * n + j];

            for (int64_t l = 0; dx && l < k; l++)
                dx[i * k + l] += d * w[j * k + l];
            for (int64_t l = 0; dw && l < k; l++)
                dw[j * k + l] += d * x[i * k + l];
            if (dbias)
                dbias[j] += d;
        }
}

/* ---- LayerNorm ---- */

static void moments(const double *x, int64_t h, double eps, double *mean, double *rstd)
{
    double sum = 0, squares = 0;

    for (int64_t j = 0; j < h; j++)
        sum += x[j];
    *mean = sum / (double)h;
    for (int64_t j = 0; j < h; j++)
        squares += (x[j] - *mean) * (x[j] - *mean);
    *rstd = 1 / sqrt(squares / (double)h + eps);
}

void ref_layernorm(double *y, double *mean, double *rstd, const double *x, const double *gamma, const double *beta,
                   int64_t m, int64_t h, double eps)
{
    for (int64_t i = 0; i < m; i++) {
        double mu, r;

        moments(x + i * h, h, eps, &mu, &r);
        for (int64_t j = 0; j < h; j++)
            y[i * h + j] = (x[i * h + j] - mu) * r * gamma[j] + beta[j];
        if (mean)
            mean[i] = mu;
        if (rstd)
            rstd[i] = r;
    }
}

void ref_layernorm_back(double *dx, double *dgamma, double *dbeta, const double *dy, const double *x,
                        const double *gamma, int64_t m, int64_t h, double eps)
{
    for (int64_t j = 0; j < h; j++)
        dgamma[j] = dbeta[j] = 0;
    for (int64_t i = 0; i < m; i++) {
        const double *d = dy + i * h, *xi = x + i * h;
        double mu, r, sum_g = 0, sum_gx = 0;

        moments(xi, h, eps, &mu, &r);
        for (int64_t j = 0; j < h; j++) {
            double xhat = (xi[j] - mu) * r;

            sum_g += d[j] * gamma[j];
            sum_gx += d[j] * gamma[j] * xhat;
            dgamma[j] += d[j] * xhat;
            dbeta[j] += d[j];
        }
        for (int64_t j = 0; j < h; j++)
            dx[i * h + j] = r / (double)h * ((double)h * d[j] * gamma[j] - sum_g - (xi[j] - mu) * r * sum_gx);
    }
}

/* ---- attention ---- */

/* Compute the probabilities of one query over keys 0 .. query, before dropout. Returns lse. */
static double probabilities(double *p, const struct ref_attention *a, int64_t sample, int64_t head, int64_t query)
{
    int64_t ld = a->heads * a->hd;
    const double *q = a->q + (sample * a->s + query) * ld + head * a->hd;
    double top = -INFINITY, sum = 0;

    for (int64_t j = 0; j <= query; j++) {
        const double *k = a->k + (sample * a->s + j) * ld + head * a->hd;
        double dot = 0;

        for (int64_t d = 0; d < a->hd; d++)
            dot += q[d] * k[d];
        p[j] = a->scale * dot + (a->bias ? a->bias[head * a->s + j] : 0);
        if (a->round_unit != 0)
            p[j] = ref_round(p[j] / a->round_unit, a->t) * a->round_unit;
        top = p[j] > top ? p[j] : top;
    }
    for (int64_t j = 0; j <= query; j++)
        sum += exp(p[j] - top);
    for (int64_t j = 0; j <= query; j++)
        p[j] = exp(p[j] - top) / sum;
    return top + log(sum);
}

static double drop_at(const struct ref_attention *a, int64_t sample, int64_t head, int64_t query, int64_t key)
{
    return ref_drop_attention(&a->drop, a->drop.row0 / a->s + sample, a->head0 + head, query, key);
}

void ref_attention(double *o, double *lse, const struct ref_attention *a)
{
    int64_t ld = a->heads * a->hd;
    double *p = xmalloc((size_t)a->s * sizeof *p);

    for (int64_t i = 0; i < a->b * a->s * a->heads; i++) {
        int64_t sample = i / (a->s * a->heads), query = i / a->heads % a->s, head = i % a->heads;
        double *to = o + (sample * a->s + query) * ld + head * a->hd;

        lse[(sample * a->heads + head) * a->s + query] = probabilities(p, a, sample, head, query);
        for (int64_t d = 0; d < a->hd; d++)
            to[d] = 0;
        for (int64_t j = 0; j <= query; j++) {
            double kept = p[j] * drop_at(a, sample, head, query, j);

            for (int64_t d = 0; d < a->hd; d++)
                to[d] += kept * a->v[(sample * a->s + j) * ld + head * a->hd + d];
        }
    }
    free(p);
}

/* softmax' : ds = p (dp - sum over keys of p dp) */
void ref_attention_back(double *dq, double *dk, double *dv, const double *d_o, const struct ref_attention *a)
{
    int64_t ld = a->heads * a->hd, n = a->b * a->s * ld;
    double *p = xmalloc((size_t)a->s * sizeof *p), *dp = xmalloc((size_t)a->s * sizeof *dp);

    for (int64_t i = 0; i < n; i++)
        dq[i] = dk[i] = dv[i] = 0;
    for (int64_t i = 0; i < a->b * a->s * a->heads; i++) {
        int64_t sample = i / (a->s * a->heads), query = i / a->heads % a->s, head = i % a->heads;
        int64_t at_q = (sample * a->s + query) * ld + head * a->hd;
        double mean = 0;

        probabilities(p, a, sample, head, query);
        for (int64_t j = 0; j <= query; j++) {
            int64_t at_k = (sample * a->s + j) * ld + head * a->hd;
            double keep = drop_at(a, sample, head, query, j), dot = 0;

            for (int64_t d = 0; d < a->hd; d++) {
                dot += d_o[at_q + d] * a->v[at_k + d];
                dv[at_k + d] += p[j] * keep * d_o[at_q + d];
            }
            dp[j] = keep * dot;
            mean += p[j] * dp[j];
        }
        for (int64_t j = 0; j <= query; j++) {
            int64_t at_k = (sample * a->s + j) * ld + head * a->hd;
            double ds = p[j] * (dp[j] - mean) * a->scale;

            for (int64_t d = 0; d < a->hd; d++) {
                dq[at_q + d] += ds * a->k[at_k + d];
                dk[at_k + d] += ds * a->q[at_q + d];
            }
        }
    }
    free(p);
    free(dp);
}

/* ---- loss, optimizer ---- */

void ref_xent(double *loss, double *lse, double *dlogits, const double *logits, const int32_t *target,
              const double *scale, int64_t m, int64_t v)
{
    for (int64_t i = 0; i < m; i++) {
        const double *x = logits + i * v;
        double top = -INFINITY, sum = 0;

        for (int64_t j = 0; j < v; j++)
            top = fmax(top, x[j]);
        for (int64_t j = 0; j < v; j++)
            sum += exp(x[j] - top);
        lse[i] = top + log(sum);
        loss[i] = lse[i] - x[target[i]];
        for (int64_t j = 0; dlogits && j < v; j++)
            dlogits[i * v + j] = (exp(x[j] - top) / sum - (j == target[i])) * scale[i];
    }
}

double ref_adamw(double p, double *m, double *v, double g, double decay, const struct kernel_adamw *step)
{
    double b1 = step->beta1, b2 = step->beta2;

    g *= step->grad_scale;
    *m = b1 * *m + (1 - b1) * g;
    *v = b2 * *v + (1 - b2) * g * g;
    return p - step->lr * (*m / step->c1 / (sqrt(*v / step->c2) + step->eps) + decay * p);
}

/* ---- finite differences ---- */

double ref_gradient_error(double (*f)(const void *arg), const void *arg, double *x, int64_t n, const double *grad)
{
    double largest = 0, worst = 0, h = 1e-5;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(grad[i]));
    for (int64_t i = 0; i < n; i++) {
        double at = x[i], up, down;

        x[i] = at + h;
        up = f(arg);
        x[i] = at - h;
        down = f(arg);
        x[i] = at;
        /* fmax() would ignore a NaN. */
        double err = fabs((up - down) / (2 * h) - grad[i]) / largest;

        if (!(err <= worst))
            worst = err;
    }
    return worst;
}
