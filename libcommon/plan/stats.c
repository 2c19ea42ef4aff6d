/*
 * stats.c - statistics and distances of elements in memory
 *
 * Elements are converted to doubles in blocks that fit in the first-level cache. They are added in four independent
 * sums (lanes), always in the same order, so vector registers of any width give the same bits.
 */
#include "libcommon/plan/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

/*
 * Number of elements that are converted to doubles at a time. The doubles take 8 KiB, which stay in the first-level
 * cache.
 */
#define BLOCK 1024
/* Number of independent sums. With only one sum, each addition would have to wait four cycles for the previous one. */
#define LANES 4
typedef double vec __attribute__((vector_size(8 * LANES)));
typedef int64_t mask __attribute__((vector_size(8 * LANES)));

/* Convert n elements to doubles. For the common types this needs no function call per element. */
static void to_doubles(enum dtype t, const void *p, uint64_t n, double *out)
{
    const uint8_t *b = p;
    int size = dtype_size(t);

    if (t == DTYPE_F32) {
        #pragma omp simd
        for (uint64_t i = 0; i < n; i++) {
            float f;

            memcpy(&f, b + 4 * i, 4);
            out[i] = f;
        }
    } else if (t == DTYPE_BF16) {
        #pragma omp simd
        for (uint64_t i = 0; i < n; i++) {
            uint16_t half;
            uint32_t bits;
            float f;

            memcpy(&half, b + 2 * i, 2);
            bits = (uint32_t)half << 16;
            memcpy(&f, &bits, 4);
            out[i] = f;
        }
    } else {
        for (uint64_t i = 0; i < n; i++)
            out[i] = dtype_value(t, b + (uint64_t)size * i);
    }
}

/*
 * Select, in each lane, v where m is set and w otherwise. This is a macro because the way in which functions receive
 * vectors differs between processors.
 */
#define CHOOSE(m, v, w) ((vec)(((m) & (mask)(v)) | (~(m) & (mask)(w))))

/*
 * Fill the lanes that follow the n elements with NaN, which is excluded from all sums. Returns the number of elements
 * including the filled lanes.
 */
static uint64_t fill_lanes(double *v, uint64_t n)
{
    uint64_t all = (n + LANES - 1) / LANES * LANES;

    for (uint64_t i = n; i < all; i++)
        v[i] = NAN;
    return all;
}

/* Add n values to *s. They may be infinite or NaN. v must have room for whole lanes. */
static void add_doubles(struct stats *s, double *v, uint64_t n)
{
    uint64_t all = fill_lanes(v, n), n_finite = 0;
    vec sum = {0}, sum_sq = {0}, lo = (vec){0} + INFINITY, hi = (vec){0} - INFINITY;
    mask zero = {0}, negative = {0}, finite = {0}, nan = {0};
    struct stats b = { .n = n, .min = INFINITY, .max = -INFINITY };

    for (uint64_t i = 0; i < all; i += LANES) {
        vec x, y;
        mask fin;

        memcpy(&x, v + i, sizeof x);
        fin = x - x == 0;                       /* false for infinities and NaN */
        y = (vec)((mask)x & fin);
        sum += y;
        sum_sq += y * y;
        lo = CHOOSE(fin & (x < lo), x, lo);
        hi = CHOOSE(fin & (x > hi), x, hi);
        zero -= x == 0;                         /* a comparison that is true gives -1 */
        negative -= fin & (x < 0);
        finite -= fin;
        nan -= x != x;
    }
    for (int k = 0; k < LANES; k++) {
        b.sum += sum[k];
        b.sum_sq += sum_sq[k];
        b.min = lo[k] < b.min ? lo[k] : b.min;
        b.max = hi[k] > b.max ? hi[k] : b.max;
        b.n_zero += (uint64_t)zero[k];
        b.n_negative += (uint64_t)negative[k];
        b.n_nan += (uint64_t)nan[k];
        n_finite += (uint64_t)finite[k];
    }
    b.n_inf = all - n_finite - b.n_nan;
    b.n_nan -= all - n;
    b.min += 0.0;                               /* changes -0 to 0, so that the result does not depend on which of the
                                                 * two came first */
    b.max += 0.0;
    stats_join(s, &b);
}

/*
 * ---- the common types: their bits are tested, for several floats at a time, before sums are computed ----
 *
 * This code is compiled twice, because it takes half the time on processors with vectors of twice the width. The
 * additions and their order are the same in both versions, so the results have the same bits.
 */
#define TWICE static inline __attribute__((always_inline))

/* Store the elements of a block in bits[], as the bits of floats. Returns false if the type is neither f32 nor bf16. */
static bool to_f32_bits(enum dtype t, const void *p, uint64_t n, int32_t *bits)
{
    const uint8_t *b = p;

    if (t == DTYPE_F32)
        memcpy(bits, p, n * 4);
    else if (t == DTYPE_BF16)
        for (uint64_t i = 0; i < n; i++) {
            uint16_t half;

            memcpy(&half, b + 2 * i, 2);
            bits[i] = (int32_t)((uint32_t)half << 16);
        }
    return t == DTYPE_F32 || t == DTYPE_BF16;
}

TWICE bool all_finite(const int32_t *bits, uint64_t n)
{
    int32_t odd = 0;

    #pragma omp simd reduction(|:odd)
    for (uint64_t i = 0; i < n; i++)
        odd |= (bits[i] & INT32_MAX) >= 0x7f800000;
    return !odd;
}

/*
 * ordered() maps the bits of a float to an integer, such that integers and floats have the same order. from_ordered()
 * does the reverse.
 */
TWICE int32_t ordered(int32_t bits)
{
    return bits ^ (bits >> 31 & INT32_MAX);
}

TWICE double from_ordered(int32_t k)
{
    int32_t bits = ordered(k);
    float f;

    memcpy(&f, &bits, 4);
    return f + 0.0;                             /* turns -0 into 0 */
}

/* Compute the same sums as add_doubles(), with the same additions in the same order. */
TWICE void sum_f32_bits(struct stats *s, const int32_t *bits, uint64_t n)
{
    typedef float quad __attribute__((vector_size(4 * LANES)));
    vec sum = {0}, sum_sq = {0};
    uint64_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        quad f;
        vec x;

        memcpy(&f, bits + i, sizeof f);
        x = __builtin_convertvector(f, vec);
        sum += x;
        sum_sq += x * x;
    }
    for (; i < n; i++) {
        float f;

        memcpy(&f, bits + i, 4);
        sum[i % LANES] += f;
        sum_sq[i % LANES] += (double)f * f;
    }
    for (int k = 0; k < LANES; k++) {
        s->sum += sum[k];
        s->sum_sq += sum_sq[k];
    }
}

TWICE void add_finite(struct stats *s, const int32_t *bits, uint64_t n)
{
    struct stats b = { .n = n };
    int32_t lo = INT32_MAX, hi = INT32_MIN, zero = 0, signs = 0, minus_zero = 0;

    sum_f32_bits(&b, bits, n);
    #pragma omp simd reduction(min:lo) reduction(max:hi)
    for (uint64_t i = 0; i < n; i++) {
        int32_t k = ordered(bits[i]);

        lo = k < lo ? k : lo;
        hi = k > hi ? k : hi;
    }
    #pragma omp simd reduction(+:zero, signs, minus_zero)
    for (uint64_t i = 0; i < n; i++) {
        zero += (bits[i] & INT32_MAX) == 0;
        signs += bits[i] < 0;
        minus_zero += bits[i] == INT32_MIN;
    }
    b.min = from_ordered(lo);
    b.max = from_ordered(hi);
    b.n_zero = (uint64_t)zero;
    b.n_negative = (uint64_t)(signs - minus_zero);
    stats_join(s, &b);
}

/*
 * Add a block of floats. If some of the floats are not finite, adds nothing and returns false. If `sums_only` is set,
 * only the sums are computed.
 */
TWICE bool add_floats_any(struct stats *s, const int32_t *bits, uint64_t n, bool sums_only)
{
    if (!all_finite(bits, n))
        return false;
    if (sums_only)
        sum_f32_bits(s, bits, n);
    else
        add_finite(s, bits, n);
    return true;
}

#ifdef __x86_64__
__attribute__((target("avx2")))
static bool add_floats_avx2(struct stats *s, const int32_t *bits, uint64_t n, bool sums_only)
{
    return add_floats_any(s, bits, n, sums_only);
}
#endif

static bool add_floats(struct stats *s, const int32_t *bits, uint64_t n, bool sums_only)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return add_floats_avx2(s, bits, n, sums_only);
#endif
    return add_floats_any(s, bits, n, sums_only);
}

void stats_add(struct stats *s, enum dtype t, const void *p, uint64_t n)
{
    int32_t bits[BLOCK];
    double v[BLOCK];                            /* BLOCK is a multiple of LANES */

    for (uint64_t at = 0; at < n; at += BLOCK) {
        const uint8_t *b = (const uint8_t *)p + at * (uint64_t)dtype_size(t);
        uint64_t m = min_u64(BLOCK, n - at);

        if (to_f32_bits(t, b, m, bits) && add_floats(s, bits, m, false))
            continue;
        to_doubles(t, b, m, v);
        add_doubles(s, v, m);
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

/*
 * Map the bits of a float of `bits` bits to an integer, such that integers and floats have the same order. -0 and +0
 * both become 0.
 */
static int64_t float_order(uint64_t v, int bits)
{
    uint64_t sign = 1ull << (bits - 1);
    int64_t magnitude = (int64_t)(v & (sign - 1));

    return v & sign ? -magnitude : magnitude;
}

static bool is_unsigned(enum dtype t)
{
    return t == DTYPE_U8 || t == DTYPE_BOOL || t == DTYPE_U16 || t == DTYPE_U32 || t == DTYPE_U64 || t == DTYPE_QU8 ||
           t == DTYPE_F8_E8M0;
}

uint64_t ulp_distance(enum dtype t, const void *a, const void *b)
{
    int size = dtype_size(t);
    uint64_t x = 0, y = 0;
    int64_t i, k;

    if (memcmp(a, b, (size_t)size) == 0)
        return 0;
    if (dtype_is_complex(t) || !dtype_is_number(t))
        return STATS_NO_ULPS;
    memcpy(&x, a, (size_t)size);
    memcpy(&y, b, (size_t)size);
    if (dtype_is_signed_magnitude(t)) {
        bool a_nan = isnan(dtype_value(t, a)), b_nan = isnan(dtype_value(t, b));

        if (a_nan || b_nan)
            return a_nan && b_nan ? 0 : STATS_NO_ULPS;
        i = float_order(x, size * 8);
        k = float_order(y, size * 8);
    } else if (is_unsigned(t)) {
        return x > y ? x - y : y - x;
    } else {
        int shift = 64 - size * 8;

        /* The value is shifted to the top, and then arithmetically to the right. This extends the sign. */
        i = (int64_t)(x << shift) >> shift;
        k = (int64_t)(y << shift) >> shift;
    }
    return i > k ? (uint64_t)i - (uint64_t)k : (uint64_t)k - (uint64_t)i;
}

/*
 * Returns the largest distance in ulps among n pairs of elements. Blocks of the common types without NaN are computed
 * with vectors.
 */
static uint64_t block_ulps(enum dtype t, const uint8_t *a, const uint8_t *b, uint64_t n, bool any_nan)
{
    uint64_t size = (uint64_t)dtype_size(t), most = 0;
    int64_t most_f32 = 0;
    int32_t most_bf16 = 0;

    if (t == DTYPE_F32 && !any_nan) {
        #pragma omp simd reduction(max:most_f32)
        for (uint64_t i = 0; i < n; i++) {
            int32_t x, y;
            int64_t gap;

            memcpy(&x, a + 4 * i, 4);
            memcpy(&y, b + 4 * i, 4);
            x = x < 0 ? -(x & INT32_MAX) : x;   /* now the integers have the order of the floats, and -0 and +0 are
                                                 * both 0 */
            y = y < 0 ? -(y & INT32_MAX) : y;
            gap = (int64_t)x - y;
            gap = gap < 0 ? -gap : gap;
            most_f32 = gap > most_f32 ? gap : most_f32;
        }
        return (uint64_t)most_f32;
    }
    if (t == DTYPE_BF16 && !any_nan) {
        #pragma omp simd reduction(max:most_bf16)
        for (uint64_t i = 0; i < n; i++) {
            int16_t x, y;
            int32_t gap;

            memcpy(&x, a + 2 * i, 2);
            memcpy(&y, b + 2 * i, 2);
            gap = (x < 0 ? -(x & INT16_MAX) : x) - (y < 0 ? -(y & INT16_MAX) : y);
            gap = gap < 0 ? -gap : gap;
            most_bf16 = gap > most_bf16 ? gap : most_bf16;
        }
        return (uint64_t)most_bf16;
    }
    for (uint64_t i = 0; i < n; i++)
        most = max_u64(most, ulp_distance(t, a + i * size, b + i * size));
    return most;
}

/* Returns the number of elements whose bits differ. */
static uint64_t count_differing_elems(enum dtype t, const uint8_t *a, const uint8_t *b, uint64_t n)
{
    uint64_t size = (uint64_t)dtype_size(t), n_differ = 0;

    if (size == 4) {
        #pragma omp simd reduction(+:n_differ)
        for (uint64_t i = 0; i < n; i++) {
            uint32_t x, y;

            memcpy(&x, a + 4 * i, 4);
            memcpy(&y, b + 4 * i, 4);
            n_differ += x != y;
        }
        return n_differ;
    }
    for (uint64_t i = 0; i < n; i++)
        n_differ += memcmp(a + i * size, b + i * size, size) != 0;
    return n_differ;
}

/*
 * Add to d the sums of the differences and squares over all pairs v[i], w[i] in which both values are finite. Returns
 * true if v or w contains a NaN.
 */
static bool add_gaps(struct stats_diff *d, double *v, double *w, uint64_t n)
{
    uint64_t all = fill_lanes(v, n);
    vec diff_sq = {0}, ref_sq = {0}, most = {0};
    mask nan = {0};
    int64_t n_nan = 0;

    fill_lanes(w, n);
    for (uint64_t i = 0; i < all; i += LANES) {
        vec x, y, gap;
        mask fin;

        memcpy(&x, v + i, sizeof x);
        memcpy(&y, w + i, sizeof y);
        nan -= (x != x) | (y != y);
        fin = (x - x == 0) & (y - y == 0);
        gap = (vec)((mask)(x - y) & fin & INT64_MAX);           /* clearing the sign bit gives the absolute value */
        x = (vec)((mask)x & fin);
        diff_sq += gap * gap;
        ref_sq += x * x;
        most = CHOOSE(gap > most, gap, most);
    }
    for (int k = 0; k < LANES; k++) {
        d->diff_sq += diff_sq[k];
        d->ref_sq += ref_sq[k];
        d->max_abs = most[k] > d->max_abs ? most[k] : d->max_abs;
        n_nan += nan[k];
    }
    return (uint64_t)n_nan > all - n;
}

/* Returns the number of elements whose bits differ and for which at least one value is not finite. */
static uint64_t count_not_finite(uint64_t size, const uint8_t *a, const uint8_t *b, const double *v, const double *w,
                                 uint64_t n)
{
    uint64_t count = 0;
    int64_t any = 0;

    #pragma omp simd reduction(+:any)
    for (uint64_t i = 0; i < n; i++)
        any += (v[i] - v[i] != 0) | (w[i] - w[i] != 0);
    for (uint64_t i = 0; any && i < n; i++)
        count += (v[i] - v[i] != 0 || w[i] - w[i] != 0) && memcmp(a + i * size, b + i * size, size) != 0;
    return count;
}

static void diff_block(struct stats_diff *d, enum dtype t, const uint8_t *a, const uint8_t *b, uint64_t n)
{
    uint64_t size = (uint64_t)dtype_size(t), first = 0;
    double v[BLOCK], w[BLOCK];
    bool any_nan;

    to_doubles(t, a, n, v);
    to_doubles(t, b, n, w);
    any_nan = add_gaps(d, v, w, n);
    while (d->n_differ == 0 && memcmp(a + first * size, b + first * size, size) == 0)
        first++;
    if (d->n_differ == 0)
        d->first = d->n + first;
    d->n_differ += count_differing_elems(t, a, b, n);
    d->n_not_finite += count_not_finite(size, a, b, v, w, n);
    d->max_ulps = max_u64(d->max_ulps, block_ulps(t, a, b, n, any_nan));
    d->n += n;
}

/* In most pairs of tensors most blocks are equal. An equal block contributes only to the norm of the reference. */
static void equal_block(struct stats_diff *d, enum dtype t, const uint8_t *a, uint64_t n)
{
    struct stats s = {0};
    int32_t bits[BLOCK];

    if (!to_f32_bits(t, a, n, bits) || !add_floats(&s, bits, n, true))
        stats_add(&s, t, a, n);
    d->ref_sq += s.sum_sq;
    d->n += n;
}

void stats_diff_add(struct stats_diff *d, enum dtype t, const void *a, const void *b, uint64_t n)
{
    uint64_t size = (uint64_t)dtype_size(t);

    for (uint64_t at = 0; at < n; at += BLOCK) {
        const uint8_t *x = (const uint8_t *)a + at * size, *y = (const uint8_t *)b + at * size;
        uint64_t m = min_u64(BLOCK, n - at);

        if (memcmp(x, y, m * size) == 0)
            equal_block(d, t, x, m);
        else
            diff_block(d, t, x, y, m);
    }
}

void stats_diff_join(struct stats_diff *d, const struct stats_diff *next)
{
    if (d->n_differ == 0)
        d->first = d->n + next->first;
    d->n += next->n;
    d->n_differ += next->n_differ;
    d->n_not_finite += next->n_not_finite;
    d->max_ulps = max_u64(d->max_ulps, next->max_ulps);
    d->max_abs = next->max_abs > d->max_abs ? next->max_abs : d->max_abs;
    d->diff_sq += next->diff_sq;
    d->ref_sq += next->ref_sq;
}

double stats_diff_rel_l2(const struct stats_diff *d)
{
    return d->ref_sq > 0 ? sqrt(d->diff_sq) / sqrt(d->ref_sq) : sqrt(d->diff_sq);
}

/*
 * ---- invalid values ----
 *
 * A block is first tested as a whole. Its elements are counted only if it contains an invalid value. The test uses the
 * bits of a number without the sign. Infinity and NaN have an exponent of all ones. The test adds the difference
 * between the sign bit and this exponent to the bits. The sum has the sign bit set exactly for infinity and NaN. The
 * test runs at 20 GB/s per core on data in the cache, so it does not slow down a conversion.
 */
enum { ODD_BLOCK = 4096, ODD_LANES = 32 };      /* size of a block, and of a vector, in bytes */
typedef uint32_t wide __attribute__((vector_size(ODD_LANES)));
typedef uint16_t narrow __attribute__((vector_size(ODD_LANES)));

/*
 * Returns true if b has an element that must be counted. Only whole lanes are tested. `room` is the difference
 * described above.
 */
TWICE bool any_odd_32(const uint8_t *b, uint64_t len, uint32_t room, bool negative)
{
    wide odd = {0}, below = {0};
    uint32_t all = 0;

    for (uint64_t i = 0; i < len; i += ODD_LANES) {
        wide x, magnitude;

        memcpy(&x, b + i, ODD_LANES);
        magnitude = x & 0x7fffffff;
        odd |= magnitude + room;
        below |= x & -magnitude;        /* sets the sign bit for negative numbers, but not for -0 */
    }
    if (negative)
        odd |= below;
    for (int k = 0; k < ODD_LANES / 4; k++)
        all |= odd[k];
    return all >> 31;
}

TWICE bool any_odd_16(const uint8_t *b, uint64_t len, uint16_t room, bool negative)
{
    narrow odd = {0}, below = {0};
    uint16_t all = 0;

    for (uint64_t i = 0; i < len; i += ODD_LANES) {
        narrow x, magnitude;

        memcpy(&x, b + i, ODD_LANES);
        magnitude = x & 0x7fff;
        odd |= magnitude + room;
        below |= x & -magnitude;
    }
    if (negative)
        odd |= below;
    for (int k = 0; k < ODD_LANES / 2; k++)
        all |= odd[k];
    return all >> 15;
}

static const struct bits {
    uint32_t infinity, sign;
} bits_of[] = {
    [DTYPE_F32] = { 0x7f800000, 0x80000000 }, [DTYPE_BF16] = { 0x7f80, 0x8000 }, [DTYPE_F16] = { 0x7c00, 0x8000 },
};

TWICE bool any_odd(enum dtype t, const uint8_t *b, uint64_t len, bool negative)
{
    const uint32_t room = bits_of[t].sign - bits_of[t].infinity;

    return t == DTYPE_F32 ? any_odd_32(b, len, room, negative) : any_odd_16(b, len, (uint16_t)room, negative);
}

#ifdef __x86_64__
__attribute__((target("avx2")))
static bool any_odd_avx2(enum dtype t, const uint8_t *b, uint64_t len, bool negative)
{
    return any_odd(t, b, len, negative);
}
#endif

static bool block_is_odd(enum dtype t, const uint8_t *b, uint64_t len, bool negative)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return any_odd_avx2(t, b, len, negative);
#endif
    return any_odd(t, b, len, negative);
}

static void count_nonfinite(struct values *v, enum dtype t, const uint8_t *b, uint64_t len, bool negative)
{
    const struct bits of = bits_of[t];
    const uint64_t size = (uint64_t)dtype_size(t);

    for (uint64_t i = 0; i < len; i += size) {
        uint32_t x = 0, magnitude;

        memcpy(&x, b + i, size);
        magnitude = x & ~of.sign;
        v->n_nan += magnitude > of.infinity;
        v->n_inf += magnitude == of.infinity;
        v->n_negative += negative && magnitude <= of.infinity && x > of.sign;
    }
}

/*
 * The bits of types of one byte. A byte b can be NaN or infinite only if ((b ^ flip) & mask) >= least. All other bytes
 * are numbers.
 */
static const struct byte_bits {
    uint8_t flip, mask, least;
} byte_bits_of[] = {
    [DTYPE_F8_E4M3] = { 0, 0x7f, 0x7f }, [DTYPE_F8_E5M2] = { 0, 0x7f, 0x7c },
    [DTYPE_F8_E4M3FNUZ] = { 0x7f, 0xff, 0xff }, [DTYPE_F8_E5M2FNUZ] = { 0x7f, 0xff, 0xff },
    [DTYPE_F8_E8M0] = { 0, 0xff, 0xff },
};

static bool any_odd_byte(enum dtype t, const uint8_t *b, uint64_t len)
{
    const struct byte_bits of = byte_bits_of[t];
    uint8_t odd = 0;

    #pragma omp simd reduction(|:odd)
    for (uint64_t i = 0; i < len; i++)
        odd |= (uint8_t)((b[i] ^ of.flip) & of.mask) >= of.least;
    return odd;
}

/* Count by the values of the elements. This is slow, and the types that need it are rare in large tensors. */
static void count_by_value(struct values *v, enum dtype t, const uint8_t *b, uint64_t len, bool negative)
{
    const uint64_t size = (uint64_t)dtype_size(t);

    for (uint64_t i = 0; i + size <= len; i += size) {
        const double x = dtype_value(t, b + i);

        v->n_nan += isnan(x) != 0;
        v->n_inf += isinf(x) != 0;
        v->n_negative += negative && x < 0;
        v->n_zero += x == 0;
    }
}

/* Count in elements of fp32, bf16 or fp16. */
static void add_words(struct values *v, enum dtype t, const uint8_t *b, uint64_t len, bool negative)
{
    uint64_t at = 0;

    while (at < len) {
        const uint64_t n = len - at < ODD_BLOCK ? len - at : ODD_BLOCK, lanes = n / ODD_LANES * ODD_LANES;

        if (lanes == 0 || block_is_odd(t, b + at, lanes, negative)) {
            count_nonfinite(v, t, b + at, n, negative);
            at += n;
        } else {
            at += lanes;
        }
    }
}

/* Count in elements of one byte. */
static void add_bytes(struct values *v, enum dtype t, const uint8_t *b, uint64_t len, bool negative)
{
    for (uint64_t at = 0; at < len; at += ODD_BLOCK) {
        const uint64_t n = len - at < ODD_BLOCK ? len - at : ODD_BLOCK;

        if (negative || any_odd_byte(t, b + at, n))
            count_by_value(v, t, b + at, n, negative);
    }
}

void values_add_scales(struct values *v, enum dtype t, const void *bytes, uint64_t len)
{
    if (dtype_has_nan(t))
        count_by_value(v, t, bytes, len, true);
}

void values_add(struct values *v, enum dtype type, const void *bytes, uint64_t len, bool negative)
{
    const enum dtype t = dtype_real(type);
    const uint8_t *b = bytes;

    if (!dtype_has_nan(t))
        return;
    if (t == DTYPE_F64)
        count_by_value(v, t, b, len, negative);
    else if (dtype_size(t) == 1)
        add_bytes(v, t, b, len, negative);
    else
        add_words(v, t, b, len, negative);
}
