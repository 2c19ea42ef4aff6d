/*
 * dtype.c - names, sizes and conversions of element types
 */
#include "libcommon/base/dtype.h"

#include <math.h>
#include <string.h>

static const struct { const char *name; int size; } types[DTYPE_N] = {
    [DTYPE_F64] = {"f64", 8}, [DTYPE_F32] = {"f32", 4}, [DTYPE_F16] = {"f16", 2},
    [DTYPE_BF16] = {"bf16", 2}, [DTYPE_I64] = {"i64", 8}, [DTYPE_I32] = {"i32", 4},
    [DTYPE_I16] = {"i16", 2}, [DTYPE_I8] = {"i8", 1}, [DTYPE_U8] = {"u8", 1},
    [DTYPE_BOOL] = {"bool", 1}, [DTYPE_C64] = {"c64", 8}, [DTYPE_C128] = {"c128", 16},
};

int dtype_size(enum dtype t)
{
    return types[t].size;
}

const char *dtype_name(enum dtype t)
{
    return types[t].name;
}

static double f16_value(uint16_t x)
{
    int exp = x >> 10 & 31, man = x & 1023;
    double v = exp == 31 ? (man ? NAN : INFINITY)
             : exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);

    return x & 0x8000 ? -v : v;
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
    union { double f64; float f32; int64_t i64; int32_t i32; int16_t i16; uint16_t u16; int8_t i8; uint8_t u8; } v;

    memcpy(&v, p, (size_t)(t == DTYPE_C64 ? 4 : t == DTYPE_C128 ? 8 : dtype_size(t)));
    switch (t) {
    case DTYPE_F64: case DTYPE_C128: return v.f64;
    case DTYPE_F32: case DTYPE_C64: return v.f32;
    case DTYPE_F16: return f16_value(v.u16);
    case DTYPE_BF16: return bf16_to_f32(v.u16);
    case DTYPE_I64: return (double)v.i64;
    case DTYPE_I32: return v.i32;
    case DTYPE_I16: return v.i16;
    case DTYPE_I8: return v.i8;
    case DTYPE_U8: case DTYPE_BOOL: return v.u8;
    case DTYPE_N: break;
    }
    return NAN;
}

float f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exp = x >> 10 & 31, man = x & 1023, u;
    float f;

    if (exp == 0) {                     /* a subnormal counts in steps of 2^-24, exactly */
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
    if (a < 0x1p-14f)                   /* subnormal: a count of 2^-24, exact in fp32 */
        return sign | (uint16_t)lrintf(a * 0x1p24f);
    int exp;
    float man = frexpf(a, &exp);        /* a = man * 2^exp, 1/2 <= man < 1 */

    /* A carry out of the mantissa raises the exponent, as it should. */
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
