/*
 * stats.c - statistics and distances of tensors, chunk by chunk
 *
 * A run is a sequence of chunks (job 0 from its first byte to its last, job 1, ...).
 * It is worked off in waves: the threads of a wave take its chunks in any order, then
 * the wave's results are joined in sequence order. So the order of additions depends on
 * the tensors alone, and a wave's results are all that has to be remembered.
 */
#include "libcommon/plan/stats.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

/* Elements turned into doubles at a time: 8 KiB, so they stay in the first-level cache. */
#define BLOCK 1024
/* Independent sums: one chain of additions would wait four cycles for each. */
#define LANES 4
#define WAVE_PER_THREAD 16

/* n elements as doubles; the common types without a call for each. */
static void to_doubles(enum dtype t, const void *p, uint64_t n, double *out)
{
    const uint8_t *b = p;
    int size = dtype_size(t);

    for (uint64_t i = 0; i < n; i++) {
        if (t == DTYPE_F32) {
            float f;

            memcpy(&f, b + 4 * i, 4);
            out[i] = f;
        } else if (t == DTYPE_BF16) {
            uint32_t bits = (uint32_t)get_le16(b + 2 * i) << 16;
            float f;

            memcpy(&f, &bits, 4);
            out[i] = f;
        } else {
            out[i] = dtype_value(t, b + (uint64_t)size * i);
        }
    }
}

static void add_block(struct stats *s, const double *v, uint64_t n)
{
    double sum[LANES] = {0}, sum_sq[LANES] = {0};
    double lo = INFINITY, hi = -INFINITY;
    struct stats b = { .n = n };

    for (uint64_t i = 0; i < n; i++) {
        double x = v[i];

        if (!isfinite(x)) {
            b.n_nan += isnan(x) != 0;
            b.n_inf += isinf(x) != 0;
            continue;
        }
        sum[i % LANES] += x;
        sum_sq[i % LANES] += x * x;
        lo = x < lo ? x : lo;
        hi = x > hi ? x : hi;
        b.n_zero += x == 0;
        b.n_negative += x < 0;
    }
    b.min = lo;
    b.max = hi;
    for (int k = 0; k < LANES; k++) {
        b.sum += sum[k];
        b.sum_sq += sum_sq[k];
    }
    stats_join(s, &b);
}

void stats_add(struct stats *s, enum dtype t, const void *p, uint64_t n)
{
    double v[BLOCK];

    for (uint64_t at = 0; at < n; at += BLOCK) {
        uint64_t m = min_u64(BLOCK, n - at);

        to_doubles(t, (const uint8_t *)p + at * (uint64_t)dtype_size(t), m, v);
        add_block(s, v, m);
    }
}

uint64_t stats_n_finite(const struct stats *s)
{
    return s->n - s->n_nan - s->n_inf;
}

void stats_join(struct stats *s, const struct stats *next)
{
    if (stats_n_finite(next) > 0) {
        bool first = stats_n_finite(s) == 0;

        s->min = first || next->min < s->min ? next->min : s->min;
        s->max = first || next->max > s->max ? next->max : s->max;
    }
    s->n += next->n;
    s->n_nan += next->n_nan;
    s->n_inf += next->n_inf;
    s->n_zero += next->n_zero;
    s->n_negative += next->n_negative;
    s->sum += next->sum;
    s->sum_sq += next->sum_sq;
}

double stats_norm(const struct stats *s)
{
    return sqrt(s->sum_sq);
}

double stats_mean(const struct stats *s)
{
    uint64_t n = stats_n_finite(s);

    return n ? s->sum / (double)n : 0;
}

/* ---- distances ---- */

/* The bits of a float of `bits` width, in numeric order around zero: -0 and +0 are both 0. */
static int64_t float_order(uint64_t v, int bits)
{
    uint64_t sign = 1ull << (bits - 1);
    int64_t magnitude = (int64_t)(v & (sign - 1));

    return v & sign ? -magnitude : magnitude;
}

static bool is_float(enum dtype t)
{
    return t == DTYPE_F64 || t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16;
}

uint64_t ulp_distance(enum dtype t, const void *a, const void *b)
{
    int size = dtype_size(t);
    uint64_t x = 0, y = 0;
    int64_t i, k;

    if (memcmp(a, b, (size_t)size) == 0)
        return 0;
    if (t == DTYPE_C64 || t == DTYPE_C128)
        return STATS_NO_ULPS;
    memcpy(&x, a, (size_t)size);
    memcpy(&y, b, (size_t)size);
    if (is_float(t)) {
        bool a_nan = isnan(dtype_value(t, a)), b_nan = isnan(dtype_value(t, b));

        if (a_nan || b_nan)
            return a_nan && b_nan ? 0 : STATS_NO_ULPS;
        i = float_order(x, size * 8);
        k = float_order(y, size * 8);
    } else if (t == DTYPE_U8 || t == DTYPE_BOOL) {
        i = (int64_t)x;
        k = (int64_t)y;
    } else {
        int shift = 64 - size * 8;

        /* Sign-extend; an arithmetic right shift of what was moved to the top. */
        i = (int64_t)(x << shift) >> shift;
        k = (int64_t)(y << shift) >> shift;
    }
    return i > k ? (uint64_t)i - (uint64_t)k : (uint64_t)k - (uint64_t)i;
}

static void diff_element(struct stats_diff *d, enum dtype t, const uint8_t *a, const uint8_t *b)
{
    double x = dtype_value(t, a), y = dtype_value(t, b);
    uint64_t ulps = ulp_distance(t, a, b);

    if (d->n_differ == 0)
        d->first = d->n;
    d->n_differ++;
    d->max_ulps = max_u64(d->max_ulps, ulps);
    if (isfinite(x) && isfinite(y)) {
        double gap = fabs(x - y);

        d->max_abs = gap > d->max_abs ? gap : d->max_abs;
        d->diff_sq += gap * gap;
        d->ref_sq += x * x;
    }
}

void stats_diff_add(struct stats_diff *d, enum dtype t, const void *a, const void *b, uint64_t n)
{
    uint64_t size = (uint64_t)dtype_size(t);
    const uint8_t *pa = a, *pb = b;

    for (uint64_t at = 0; at < n; at += BLOCK) {
        uint64_t m = min_u64(BLOCK, n - at);
        const uint8_t *qa = pa + at * size, *qb = pb + at * size;

        /* Most blocks of most pairs are equal: those only count for the reference's norm. */
        if (memcmp(qa, qb, m * size) == 0) {
            struct stats s = {0};

            stats_add(&s, t, qa, m);
            d->ref_sq += s.sum_sq;
            d->n += m;
            continue;
        }
        for (uint64_t i = 0; i < m; i++, d->n++) {
            if (memcmp(qa + i * size, qb + i * size, size) != 0) {
                diff_element(d, t, qa + i * size, qb + i * size);
            } else {
                double x = dtype_value(t, qa + i * size);

                d->ref_sq += isfinite(x) ? x * x : 0;
            }
        }
    }
}

void stats_diff_join(struct stats_diff *d, const struct stats_diff *next)
{
    if (d->n_differ == 0)
        d->first = d->n + next->first;
    d->n += next->n;
    d->n_differ += next->n_differ;
    d->max_ulps = max_u64(d->max_ulps, next->max_ulps);
    d->max_abs = next->max_abs > d->max_abs ? next->max_abs : d->max_abs;
    d->diff_sq += next->diff_sq;
    d->ref_sq += next->ref_sq;
}

double stats_diff_rel_l2(const struct stats_diff *d)
{
    return d->ref_sq > 0 ? sqrt(d->diff_sq) / sqrt(d->ref_sq) : sqrt(d->diff_sq);
}

/* ---- tensors ---- */

int stats_read(const struct tmap *m, struct files *f, enum replica_policy policy,
               uint64_t from, uint64_t len, void *buf, struct err *e)
{
    int n = m->n_slices, rc = -1;
    const void **copy;
    uint8_t *bytes;

    if (m->op != TMAP_REPLICAS || n == 1 || policy == REPLICAS_FIRST)
        return tmap_read(m, f, 0, from, len, buf, e);

    copy = xcalloc((size_t)n, sizeof *copy);
    bytes = xmalloc((size_t)n * len);
    for (int k = 0; k < n; k++) {
        copy[k] = bytes + (uint64_t)k * len;
        if (tmap_read(m, f, k, from, len, bytes + (uint64_t)k * len, e) < 0)
            goto out;
    }
    if (replicas_combine(copy, n, len, m->dtype, policy, buf) > 0 && policy == REPLICAS_FAIL) {
        const struct record *r = files_record(f, m->slice[0].extent[0].record);

        err_data(e, files_name(f, r->file), r->at + m->slice[0].extent[0].at,
                 "the %d tensor-parallel copies disagree", n);
        goto out;
    }
    rc = 0;
out:
    free(copy);
    free(bytes);
    return rc;
}

/* The bytes of job k that one chunk takes. Copies are held side by side while they are combined. */
static uint64_t chunk_bytes(const struct stats_job *job)
{
    int copies = 1;

    if (job->a->op == TMAP_REPLICAS)
        copies = job->a->n_slices;
    if (job->b && job->b->op == TMAP_REPLICAS && job->b->n_slices > copies)
        copies = job->b->n_slices;
    return max_u64(STATS_CHUNK / (uint64_t)copies / 16 * 16, 16);
}

struct chunk {
    int job;
    uint64_t from, len;
    struct stats stats;
    struct stats_diff diff;
    struct err err;
};

static void chunk_do(struct chunk *c, const struct stats_job *job, enum replica_policy policy, uint8_t *buf)
{
    enum dtype t = job->a->dtype;
    uint64_t n = c->len / (uint64_t)dtype_size(t);

    if (stats_read(job->a, job->a_files, policy, c->from, c->len, buf, &c->err) < 0)
        return;
    if (!job->b) {
        stats_add(&c->stats, t, buf, n);
        return;
    }
    if (stats_read(job->b, job->b_files, policy, c->from, c->len, buf + STATS_CHUNK, &c->err) < 0)
        return;
    stats_diff_add(&c->diff, t, buf, buf + STATS_CHUNK, n);
}

/* Take the next chunks of the sequence; *job and *from say where it goes on. */
static int wave_fill(struct chunk *wave, int room, const struct stats_job *jobs, int n_jobs,
                     int *job, uint64_t *from)
{
    int n = 0;

    while (n < room && *job < n_jobs) {
        const struct stats_job *j = &jobs[*job];
        uint64_t len = min_u64(chunk_bytes(j), j->len - *from);

        if (len > 0)
            wave[n++] = (struct chunk){ .job = *job, .from = *from, .len = len };
        *from += len;
        if (*from == j->len) {
            ++*job;
            *from = 0;
        }
    }
    return n;
}

static int wave_join(const struct chunk *wave, int n, struct stats_job *jobs, struct err *e)
{
    for (int i = 0; i < n; i++) {
        struct stats_job *j = &jobs[wave[i].job];

        if (wave[i].err.kind != ERR_NONE) {
            *e = wave[i].err;
            return -1;
        }
        stats_join(&j->stats, &wave[i].stats);
        stats_diff_join(&j->diff, &wave[i].diff);
    }
    return 0;
}

int stats_run(struct stats_job *job, int n, const struct stats_opts *o, struct err *e)
{
    int room = o->threads * WAVE_PER_THREAD, next = 0, rc = 0;
    struct chunk *wave = xcalloc((size_t)room, sizeof *wave);
    uint8_t *buf = xmalloc((size_t)o->threads * 2 * STATS_CHUNK);
    uint64_t from = 0;

    for (int i = 0; i < n; i++) {
        memset(&job[i].stats, 0, sizeof job[i].stats);
        memset(&job[i].diff, 0, sizeof job[i].diff);
    }
    while (rc == 0 && next < n) {
        int n_chunks = wave_fill(wave, room, job, n, &next, &from);

        if (o->stopped && o->stopped()) {
            err_stop(e);
            rc = -1;
            break;
        }
        #pragma omp parallel for schedule(dynamic) num_threads(o->threads)
        for (int i = 0; i < n_chunks; i++) {
            size_t thread = (size_t)omp_get_thread_num();

            chunk_do(&wave[i], &job[wave[i].job], o->replicas, buf + thread * 2 * STATS_CHUNK);
        }
        rc = wave_join(wave, n_chunks, job, e);
    }
    free(buf);
    free(wave);
    return rc;
}
