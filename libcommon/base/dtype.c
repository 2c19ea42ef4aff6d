/*
 * dtype.c - names, sizes and conversions of element types; sizes and text of shapes
 */
#include "libcommon/base/dtype.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/base/tensor.h"

static const struct { const char *name, *torch; int size; } types[DTYPE_N] = {
    [DTYPE_F64] = {"f64", "float64", 8}, [DTYPE_F32] = {"f32", "float32", 4}, [DTYPE_F16] = {"f16", "float16", 2},
    [DTYPE_BF16] = {"bf16", "bfloat16", 2}, [DTYPE_I64] = {"i64", "int64", 8}, [DTYPE_I32] = {"i32", "int32", 4},
    [DTYPE_I16] = {"i16", "int16", 2}, [DTYPE_I8] = {"i8", "int8", 1}, [DTYPE_U8] = {"u8", "uint8", 1},
    [DTYPE_BOOL] = {"bool", "bool", 1}, [DTYPE_C64] = {"c64", "complex64", 8},
    [DTYPE_C128] = {"c128", "complex128", 16}, [DTYPE_U16] = {"u16", "uint16", 2}, [DTYPE_U32] = {"u32", "uint32", 4},
    [DTYPE_U64] = {"u64", "uint64", 8}, [DTYPE_F8_E4M3] = {"f8_e4m3", "float8_e4m3fn", 1},
    [DTYPE_F8_E5M2] = {"f8_e5m2", "float8_e5m2", 1}, [DTYPE_F8_E4M3FNUZ] = {"f8_e4m3fnuz", "float8_e4m3fnuz", 1},
    [DTYPE_F8_E5M2FNUZ] = {"f8_e5m2fnuz", "float8_e5m2fnuz", 1}, [DTYPE_F8_E8M0] = {"f8_e8m0", "float8_e8m0fnu", 1},
    [DTYPE_F4X2] = {"f4x2", "float4_e2m1fn_x2", 1}, [DTYPE_F6_E2M3X4] = {"f6_e2m3x4", "float6_e2m3fn_x4", 1},
    [DTYPE_F6_E3M2X4] = {"f6_e3m2x4", "float6_e3m2fn_x4", 1}, [DTYPE_C32] = {"c32", "complex32", 4},
    [DTYPE_BC32] = {"bc32", "bcomplex32", 4}, [DTYPE_QI8] = {"qi8", "qint8", 1}, [DTYPE_QU8] = {"qu8", "quint8", 1},
    [DTYPE_QI32] = {"qi32", "qint32", 4}, [DTYPE_QU4X2] = {"qu4x2", "quint4x2", 1},
    [DTYPE_QU2X4] = {"qu2x4", "quint2x4", 1}, [DTYPE_BITS8] = {"bits8", "bits8", 1},
    [DTYPE_BITS16] = {"bits16", "bits16", 2}, [DTYPE_BITS1X8] = {"bits1x8", "bits1x8", 1},
    [DTYPE_BITS2X4] = {"bits2x4", "bits2x4", 1}, [DTYPE_BITS4X2] = {"bits4x2", "bits4x2", 1},
};

int dtype_size(enum dtype t)
{
    return types[t].size;
}

const char *dtype_name(enum dtype t)
{
    return types[t].name;
}

const char *dtype_torch_name(enum dtype t)
{
    return types[t].torch;
}

/*
 * Returns the value of an 8-bit float with the given number of mantissa bits and the given bias. NaN and infinity are
 * not handled.
 */
static double f8_value(uint8_t x, int mantissa_bits, int bias)
{
    int exp = (x & 127) >> mantissa_bits, man = x & ((1 << mantissa_bits) - 1);
    double v = exp ? ldexp((1 << mantissa_bits) + man, exp - bias - mantissa_bits)
                   : ldexp(man, 1 - bias - mantissa_bits);

    return x & 0x80 ? -v : v;
}

static double f8_e4m3_value(uint8_t x)
{
    return (x & 127) == 127 ? NAN : f8_value(x, 3, 7);
}

static double f8_e5m2_value(uint8_t x)
{
    if ((x & 127) >= 0x7c)
        return (x & 127) > 0x7c ? NAN : x & 0x80 ? -INFINITY : INFINITY;
    return f8_value(x, 2, 15);
}

/*
 * Returns the value of an 8-bit float of a type without minus zero. In such a type, the bits of minus zero are the only
 * NaN, and there is no infinity.
 */
static double f8_fnuz_value(uint8_t x, int mantissa_bits, int bias)
{
    return x == 0x80 ? NAN : f8_value(x, mantissa_bits, bias);
}

static double f16_value(uint16_t x)
{
    int exp = x >> 10 & 31, man = x & 1023;
    double v = exp == 31 ? (man ? NAN : INFINITY)
             : exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);

    return x & 0x8000 ? -v : v;
}

enum dtype dtype_real(enum dtype t)
{
    switch (t) {
    case DTYPE_C128: return DTYPE_F64;
    case DTYPE_C64: return DTYPE_F32;
    case DTYPE_C32: return DTYPE_F16;
    case DTYPE_BC32: return DTYPE_BF16;
    default: return t;
    }
}

bool dtype_is_complex(enum dtype t)
{
    return dtype_real(t) != t;
}

bool dtype_is_in_torch(enum dtype t)
{
    return t != DTYPE_F6_E2M3X4 && t != DTYPE_F6_E3M2X4;
}

bool dtype_is_number(enum dtype t)
{
    return t != DTYPE_F4X2 && dtype_is_in_torch(t) && t < DTYPE_QU4X2;
}

bool dtype_is_signed_magnitude(enum dtype t)
{
    return dtype_is_float(t) || (t >= DTYPE_F8_E4M3 && t <= DTYPE_F8_E5M2FNUZ);
}

bool dtype_is_weight(enum dtype t)
{
    return dtype_is_float(t) || (t >= DTYPE_F8_E4M3 && t <= DTYPE_F6_E3M2X4);
}

bool dtype_has_nan(enum dtype t)
{
    return dtype_is_float(dtype_real(t)) || (t >= DTYPE_F8_E4M3 && t <= DTYPE_F8_E8M0);
}

bool dtype_is_float(enum dtype t)
{
    return t == DTYPE_F64 || t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16;
}

void dtype_put(enum dtype t, double value, void *p)
{
    const float narrow = (float)value;
    const uint16_t half = t == DTYPE_F16 ? f32_to_f16(narrow) : f32_to_bf16(narrow);

    if (t == DTYPE_F64)
        memcpy(p, &value, sizeof value);
    else if (t == DTYPE_F32)
        memcpy(p, &narrow, sizeof narrow);
    else
        memcpy(p, &half, sizeof half);
}

double dtype_value(enum dtype t, const void *p)
{
    union { double f64; float f32; int64_t i64; uint64_t u64; int32_t i32; uint32_t u32; int16_t i16; uint16_t u16;
            int8_t i8; uint8_t u8; } v;

    memcpy(&v, p, (size_t)dtype_size(dtype_real(t)));
    switch (dtype_real(t)) {
    case DTYPE_F64: return v.f64;
    case DTYPE_F32: return v.f32;
    case DTYPE_F16: return f16_value(v.u16);
    case DTYPE_BF16: return bf16_to_f32(v.u16);
    case DTYPE_I64: return (double)v.i64;
    case DTYPE_I32: case DTYPE_QI32: return v.i32;
    case DTYPE_I16: return v.i16;
    case DTYPE_I8: case DTYPE_QI8: return v.i8;
    case DTYPE_U64: return (double)v.u64;
    case DTYPE_U32: return v.u32;
    case DTYPE_U16: case DTYPE_BITS16: return v.u16;
    case DTYPE_U8: case DTYPE_BOOL: case DTYPE_QU8: case DTYPE_F4X2: case DTYPE_QU4X2: case DTYPE_QU2X4:
    case DTYPE_F6_E2M3X4: case DTYPE_F6_E3M2X4:
    case DTYPE_BITS8: case DTYPE_BITS1X8: case DTYPE_BITS2X4: case DTYPE_BITS4X2: return v.u8;
    case DTYPE_F8_E4M3: return f8_e4m3_value(v.u8);
    case DTYPE_F8_E5M2: return f8_e5m2_value(v.u8);
    case DTYPE_F8_E4M3FNUZ: return f8_fnuz_value(v.u8, 3, 8);
    case DTYPE_F8_E5M2FNUZ: return f8_fnuz_value(v.u8, 2, 16);
    case DTYPE_F8_E8M0: return v.u8 == 255 ? NAN : ldexp(1, v.u8 - 127);
    case DTYPE_C64: case DTYPE_C128: case DTYPE_C32: case DTYPE_BC32: case DTYPE_N: break;
    }
    return NAN;
}

float f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exp = x >> 10 & 31, man = x & 1023, u;
    float f;

    if (exp == 0) {                     /* a subnormal is a multiple of 2^-24, represented exactly */
        f = (float)man * 0x1p-24f;
        return sign ? -f : f;
    }
    u = sign | (exp == 31 ? 0x7f800000 : (exp + 112) << 23) | man << 13;
    memcpy(&f, &u, sizeof f);
    return f;
}

float bf16_to_f32(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t f32_to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);      /* a NaN must not round to infinity */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

uint16_t f32_to_f16(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    float a = fabsf(x);

    if (isnan(x))
        return sign | 0x7e00;
    if (a >= 65520)
        return sign | 0x7c00;
    if (a < 0x1p-14f)                   /* a subnormal is a multiple of 2^-24, exact in fp32 */
        return sign | (uint16_t)lrintf(a * 0x1p24f);
    int exp;
    float man = frexpf(a, &exp);        /* a = man * 2^exp, 1/2 <= man < 1 */

    /* If rounding carries out of the mantissa, the addition increments the exponent, which is correct. */
    return sign | (uint16_t)(((exp + 13) << 10) + (int)lrintf(man * 2048));
}

static const char *const states[STATE_N] = { "bf16", "fp32", "exp_avg", "exp_avg_sq" };

const char *state_name(enum state s)
{
    return states[s];
}

int state_by_name(const char *name)
{
    for (int i = 0; i < STATE_N; i++)
        if (strcmp(states[i], name) == 0)
            return i;
    return -1;
}

/* ---- tensor.h ---- */

/* Returns the product of n and all lengths in `shape`, or -1 if a length is negative or the product overflows. */
static int64_t multiply_lengths(int64_t n, int ndim, const int64_t *shape)
{
    for (int d = 0; d < ndim; d++)
        if (shape[d] < 0 || __builtin_mul_overflow(n, shape[d], &n))
            return -1;
    return n;
}

int64_t shape_count(int ndim, const int64_t *shape)
{
    return multiply_lengths(1, ndim, shape);
}

int64_t shape_bytes(int ndim, const int64_t *shape, enum dtype t)
{
    return multiply_lengths(dtype_size(t), ndim, shape);
}

bool shape_equal(int x_ndim, const int64_t *x, int y_ndim, const int64_t *y)
{
    return x_ndim == y_ndim && (x_ndim == 0 || memcmp(x, y, (size_t)x_ndim * sizeof *x) == 0);
}

const char *shape_text(int ndim, const int64_t *shape, char buf[SHAPE_TEXT])
{
    int len = snprintf(buf, SHAPE_TEXT, "[");

    for (int d = 0; d < ndim; d++)
        len += snprintf(buf + len, (size_t)(SHAPE_TEXT - len), "%s%" PRId64, d ? ", " : "", shape[d]);
    snprintf(buf + len, (size_t)(SHAPE_TEXT - len), "]");
    return buf;
}
