/*
 * blend.c - choose for each sample the dataset whose share so far is furthest below its weight
 */
#include "libcommon/model/blend.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

/*
 * In weight * k - taken, the product must be rounded before the subtraction, as in the reference. A fused multiply-add
 * would decide ties differently.
 */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

enum { BLOCK = 4096 };

struct blend {
    int n;
    int64_t samples;
    uint8_t *set;                       /* [samples]: the dataset of each sample */
    int64_t *before;                    /* [blocks][n]: number of samples of each dataset that precede the block */
};

/*
 * Sum in numpy's order of additions, which is pairwise in eight lanes. The last bit of a weight depends on the order.
 */
static double numpy_sum(const double *a, int n)
{
    double r[8], sum;
    int i;

    if (n < 8) {
        sum = 0;
        for (i = 0; i < n; i++)
            sum += a[i];
        return sum;
    }
    if (n > 128) {
        int half = n / 2 - n / 2 % 8;

        return numpy_sum(a, half) + numpy_sum(a + half, n - half);
    }
    memcpy(r, a, sizeof r);
    for (i = 8; i < n - n % 8; i++)
        r[i % 8] += a[i];
    sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++)
        sum += a[i];
    return sum;
}

static double plain_sum(const double *a, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += a[i];
    return sum;
}

/* Normalise the weights twice, with two different sums, as the reference does in two places. */
static void normalise(const double *weight, int n, double *w)
{
    double sum = plain_sum(weight, n);

    for (int i = 0; i < n; i++)
        w[i] = weight[i] / sum;
    sum = numpy_sum(w, n);
    for (int i = 0; i < n; i++)
        w[i] /= sum;
}

int64_t blend_request(const double *weight, int n, int i, int64_t n_samples)
{
    if (n == 1)
        return n_samples;
    return (int64_t)ceil((double)n_samples * (weight[i] / plain_sum(weight, n)) * 1.005);
}

static void choose_blend_datasets(struct blend *b, const double *w)
{
    int64_t taken[BLEND_MAX] = {0};

    for (int64_t k = 0; k < b->samples; k++) {
        double x = (double)(k > 0 ? k : 1), most = w[0] * x - (double)taken[0];
        int best = 0;

        if (k % BLOCK == 0)
            memcpy(b->before + k / BLOCK * b->n, taken, (size_t)b->n * sizeof *taken);
        for (int i = 1; i < b->n; i++) {
            double lag = w[i] * x - (double)taken[i];

            if (lag > most) {           /* on ties, the first dataset is chosen */
                most = lag;
                best = i;
            }
        }
        b->set[k] = (uint8_t)best;
        taken[best]++;
    }
}

static int check_blend_weights(const double *weight, int n, struct err *e)
{
    if (n < 1 || n > BLEND_MAX) {
        err_usage(e, "a blend of %d datasets: expected 1 to %d", n, BLEND_MAX);
        return -1;
    }
    for (int i = 0; i < n; i++)
        if (!(weight[i] >= 0) || !isfinite(weight[i])) {
            err_usage(e, "weight %d of the blend is %g, expected a number from 0 up", i + 1, weight[i]);
            return -1;
        }
    if (!(plain_sum(weight, n) > 0)) {
        err_usage(e, "all weights of the blend are 0");
        return -1;
    }
    return 0;
}

struct blend *blend_new(const double *weight, int n, int64_t samples, struct err *e)
{
    double w[BLEND_MAX];
    struct blend *b;

    if (check_blend_weights(weight, n, e) < 0)
        return NULL;
    b = xcalloc(1, sizeof *b);
    b->n = n;
    b->samples = samples;
    b->set = malloc((size_t)samples + 1);
    b->before = calloc((size_t)(samples / BLOCK + 1) * (size_t)n, sizeof *b->before);
    if (!b->set || !b->before) {
        errno = ENOMEM;
        err_sys(e, "blend", "no memory for %lld samples", (long long)samples);
        blend_free(b);
        return NULL;
    }
    normalise(weight, n, w);
    choose_blend_datasets(b, w);
    return b;
}

void blend_free(struct blend *b)
{
    if (!b)
        return;
    free(b->set);
    free(b->before);
    free(b);
}

void blend_get(const struct blend *b, int64_t k, int *set, int64_t *sample)
{
    int64_t first = k - k % BLOCK, count = 0;
    uint8_t want;

    assert(k >= 0 && k < b->samples);
    want = b->set[k];
    for (int64_t i = first; i < k; i++)
        count += b->set[i] == want;
    *set = want;
    *sample = b->before[k / BLOCK * b->n + want] + count;
}
