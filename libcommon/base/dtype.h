/*
 * dtype.h - element types of tensors: names and sizes
 */
#ifndef SHARDKIT_BASE_DTYPE_H
#define SHARDKIT_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Every type of known width of torch and safetensors. An element is what torch counts as one: of F4X2 and the packed
 * types a byte, which holds several numbers. F8 and below are copied, compared and decoded; sums and means are taken
 * of F64 to BF16 alone.
 */
enum dtype {
    DTYPE_F64, DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32, DTYPE_I16, DTYPE_I8,
    DTYPE_U8, DTYPE_BOOL, DTYPE_C64, DTYPE_C128,
    DTYPE_U16, DTYPE_U32, DTYPE_U64,
    DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPE_F8_E4M3FNUZ, DTYPE_F8_E5M2FNUZ, DTYPE_F8_E8M0,
    DTYPE_F4X2,                                 /* two of F4_E2M1 */
    DTYPE_C32, DTYPE_BC32,                      /* complex, of two F16 or BF16 */
    DTYPE_QI8, DTYPE_QU8, DTYPE_QI32, DTYPE_QU4X2, DTYPE_QU2X4,         /* quantized */
    DTYPE_BITS8, DTYPE_BITS16, DTYPE_BITS1X8, DTYPE_BITS2X4, DTYPE_BITS4X2,
    DTYPE_N,
};

/* Dimensions of a tensor at most, in every struct that keeps a shape. */
#define TENSOR_MAX_DIM 8
#define TENSOR_MAX_DIM_TEXT "8"               /* for messages */

int dtype_size(enum dtype t);               /* bytes of one element */
const char *dtype_name(enum dtype t);       /* "bf16", "f32": short, as safetensors spells them, lower case */
const char *dtype_torch_name(enum dtype t); /* "bfloat16", "float8_e4m3fn": as torch spells them, without "torch." */
/* One element as a double (complex: the real part; bits: as a whole number). p need not be aligned. */
double dtype_value(enum dtype t, const void *p);
bool dtype_is_complex(enum dtype t);
/* The type of a complex one's two parts; any other type itself. */
enum dtype dtype_real(enum dtype t);
/* False of F4X2, the packed quantized types and BITS*: an element is no number, only its bits can be compared. */
bool dtype_is_number(enum dtype t);
/* Stored as a sign and a magnitude that grows with the bits: F64 to BF16, and F8 but for E8M0. */
bool dtype_is_signed_magnitude(enum dtype t);
/* What a model's weights may be: floating point of 4 to 64 bits, and the scales of such. */
bool dtype_is_weight(enum dtype t);
/* f64, f32, f16, bf16: the types that sums and means are taken of. */
bool dtype_is_float(enum dtype t);
/* One element of such a type out of a double, by way of fp32 where it is smaller: rounded to nearest even. */
void dtype_put(enum dtype t, double value, void *p);
float bf16_to_f32(uint16_t x);
float f16_to_f32(uint16_t x);
uint16_t f32_to_bf16(float x);              /* round to nearest even; NaN stays NaN */
uint16_t f32_to_f16(float x);               /* the same; overflow becomes infinity */

/* Which value of a parameter. */
enum state { STATE_BF16, STATE_FP32, STATE_EXP_AVG, STATE_EXP_AVG_SQ, STATE_N };
const char *state_name(enum state s);       /* "bf16", "fp32", "exp_avg", "exp_avg_sq" */
/* -1 when no state has that name. */
int state_by_name(const char *name);

#endif
