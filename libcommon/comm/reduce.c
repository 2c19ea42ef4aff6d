/*
 * reduce.c - sums and maxima in rank order
 *
 * Elements are processed in blocks that fit in the first-level cache. For each block, the values of one rank after the
 * other are added to an accumulator, and the result is rounded and stored. Every input is read only once, and `out` may
 * be one of the inputs.
 */
#include "libcommon/comm/reduce.h"

#include <string.h>

enum { BLOCK = 1024 };

/* At -O2 gcc does not vectorise loops of unknown length. Most of the time is spent in the loops of this file. */
#if defined(__GNUC__) && !defined(__clang__)
#define VECTOR __attribute__((optimize("O3")))
#else
#define VECTOR
#endif

/* Convert bf16 to the accumulator's type. */
static inline float bf16_to_f32_accum(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to bf16 like f32_to_bf16(), but without a branch, so that the loop around the call is vectorised. */
static inline uint16_t narrow(float f)
{
    uint32_t u, rounded;

    memcpy(&u, &f, sizeof u);
    rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

/*
 * Convert fp16 to the accumulator's type. Infinity and NaN keep their exponent. The multiplication in fp32 also gives
 * the correct values of subnormal numbers.
 */
static inline float widen16(uint16_t x)
{
    uint32_t u = (uint32_t)(x & 0x7fff) << 13, special = u >= 0x0f800000 ? 0x7f800000 : 0, sign = x >> 15;
    float f;

    memcpy(&f, &u, sizeof f);
    f *= 0x1p112f;
    memcpy(&u, &f, sizeof u);
    u |= special | sign << 31;
    memcpy(&f, &u, sizeof f);
    return f;
}

/*
 * Round to fp16 like f32_to_f16(), but without a branch, so that the loop around the call is vectorised. All three
 * cases are computed, and one is selected.
 */
static inline uint16_t narrow16(float f)
{
    uint32_t u, sign, small, normal, special;
    float a;

    memcpy(&u, &f, sizeof u);
    sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    memcpy(&a, &u, sizeof a);
    a += 0.5f;                          /* the last bit of 0.5 has the value 2^-24, like that of a subnormal */
    memcpy(&small, &a, sizeof small);
    small -= 0x3f000000;
    normal = (u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13;
    special = u > 0x7f800000 ? 0x7e00 : 0x7c00;
    return (uint16_t)(sign | (u >= 0x47800000 ? special : u < 0x38800000 ? small : normal));
}

#define AS_IS(x) (x)
#define ADD(a, x) ((a) + (x))
/* The result is NaN if x or a is NaN. A comparison with > alone would lose a NaN. */
#define MAX_FLOAT(a, x) ((x) > (a) || (x) != (x) ? (x) : (a))
#define MAX_INT(a, x) ((x) > (a) ? (x) : (a))

#define DEFINE_REDUCE(name, type, acc_type, WIDEN, NARROW, OP)                                  \
    VECTOR static void name(void *out, const void *const *in, int n_ranks, int64_t n)          \
    {                                                                                           \
        acc_type acc[BLOCK];                                                                    \
                                                                                                \
        for (int64_t at = 0; at < n; at += BLOCK) {                                             \
            int m = n - at < BLOCK ? (int)(n - at) : BLOCK;                                     \
            const type *x = (const type *)in[0] + at;                                           \
            type *to = (type *)out + at;                                                        \
                                                                                                \
            for (int i = 0; i < m; i++)                                                         \
                acc[i] = WIDEN(x[i]);                                                           \
            for (int r = 1; r < n_ranks; r++) {                                                 \
                x = (const type *)in[r] + at;                                                   \
                for (int i = 0; i < m; i++)                                                     \
                    acc[i] = OP(acc[i], (acc_type)WIDEN(x[i]));                                 \
            }                                                                                   \
            for (int i = 0; i < m; i++)                                                         \
                to[i] = (type)NARROW(acc[i]);                                                   \
        }                                                                                       \
    }

DEFINE_REDUCE(sum_f64, double, double, AS_IS, AS_IS, ADD)
DEFINE_REDUCE(sum_f32, float, float, AS_IS, AS_IS, ADD)
DEFINE_REDUCE(sum_bf16, uint16_t, float, bf16_to_f32_accum, narrow, ADD)
DEFINE_REDUCE(sum_f16, uint16_t, float, widen16, narrow16, ADD)
/* 64-bit integers are added as unsigned, because only unsigned overflow is defined to wrap. */
DEFINE_REDUCE(sum_i64, uint64_t, uint64_t, AS_IS, AS_IS, ADD)
DEFINE_REDUCE(sum_i32, uint32_t, uint32_t, AS_IS, AS_IS, ADD)
DEFINE_REDUCE(sum_u8, uint8_t, uint32_t, AS_IS, AS_IS, ADD)
DEFINE_REDUCE(max_f64, double, double, AS_IS, AS_IS, MAX_FLOAT)
DEFINE_REDUCE(max_f32, float, float, AS_IS, AS_IS, MAX_FLOAT)
DEFINE_REDUCE(max_bf16, uint16_t, float, bf16_to_f32_accum, narrow, MAX_FLOAT)
DEFINE_REDUCE(max_f16, uint16_t, float, widen16, narrow16, MAX_FLOAT)
DEFINE_REDUCE(max_i64, int64_t, int64_t, AS_IS, AS_IS, MAX_INT)
DEFINE_REDUCE(max_i32, int32_t, int32_t, AS_IS, AS_IS, MAX_INT)
DEFINE_REDUCE(max_u8, uint8_t, uint32_t, AS_IS, AS_IS, MAX_INT)

typedef void reduce_fn(void *out, const void *const *in, int n_ranks, int64_t n);

static reduce_fn *const functions[2][DTYPE_N] = {
    [COMM_SUM] = {[DTYPE_F64] = sum_f64, [DTYPE_F32] = sum_f32, [DTYPE_BF16] = sum_bf16,
                  [DTYPE_F16] = sum_f16, [DTYPE_I64] = sum_i64, [DTYPE_I32] = sum_i32, [DTYPE_U8] = sum_u8},
    [COMM_MAX] = {[DTYPE_F64] = max_f64, [DTYPE_F32] = max_f32, [DTYPE_BF16] = max_bf16,
                  [DTYPE_F16] = max_f16, [DTYPE_I64] = max_i64, [DTYPE_I32] = max_i32, [DTYPE_U8] = max_u8},
};

bool reduce_can(enum dtype t)
{
    return functions[COMM_SUM][t] != NULL;
}

void reduce_ranks(void *out, const void *const *in, int n_ranks, int64_t n, enum dtype t, enum comm_op op)
{
    functions[op][t](out, in, n_ranks, n);
}
