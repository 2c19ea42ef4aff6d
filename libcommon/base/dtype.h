/*
 * dtype.h - element types of tensors: names and sizes
 */
#ifndef SHARDKIT_BASE_DTYPE_H
#define SHARDKIT_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * All element types of known width that torch or safetensors have. One element is what torch counts as one element. For
 * F4X2 and the packed types this is a byte that holds several numbers. For F6 it is a byte, and three such bytes hold
 * four numbers. The types from F8 on are only copied, compared and decoded; sums and means are computed for F64 to
 * BF16.
 */
enum dtype {
    DTYPE_F64, DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32, DTYPE_I16, DTYPE_I8,
    DTYPE_U8, DTYPE_BOOL, DTYPE_C64, DTYPE_C128,
    DTYPE_U16, DTYPE_U32, DTYPE_U64,
    DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPE_F8_E4M3FNUZ, DTYPE_F8_E5M2FNUZ, DTYPE_F8_E8M0,
    DTYPE_F4X2,                                 /* two F4_E2M1 numbers */
    /* one of the three bytes that together hold four 6-bit numbers; torch does not have these types */
    DTYPE_F6_E2M3X4, DTYPE_F6_E3M2X4,
    DTYPE_C32, DTYPE_BC32,                      /* complex numbers: two F16 or two BF16 */
    DTYPE_QI8, DTYPE_QU8, DTYPE_QI32, DTYPE_QU4X2, DTYPE_QU2X4,         /* torch's quantized types */
    DTYPE_BITS8, DTYPE_BITS16, DTYPE_BITS1X8, DTYPE_BITS2X4, DTYPE_BITS4X2,
    DTYPE_N,
};

int dtype_size(enum dtype t);               /* size of one element in bytes */
const char *dtype_name(enum dtype t);       /* short lower-case names as in safetensors: "bf16", "f32" */
const char *dtype_torch_name(enum dtype t); /* as in torch, without "torch.": "bfloat16", "float8_e4m3fn" */
/*
 * Returns the value of one element as a double. For a complex type, this is the real part. For bits, it is the bits as
 * an unsigned integer. p need not be aligned.
 */
double dtype_value(enum dtype t, const void *p);
bool dtype_is_complex(enum dtype t);
/* If t is complex, returns the type of the real and imaginary part. Otherwise returns t. */
enum dtype dtype_real(enum dtype t);
/* Returns false for the types that exist in the safetensors format but not in torch: the 6-bit floats (F6_*). */
bool dtype_is_in_torch(enum dtype t);
/*
 * Returns false for F4X2, F6, the packed quantized types and BITS*. One element of these types is not one number, so
 * only the bits can be compared.
 */
bool dtype_is_number(enum dtype t);
/*
 * Returns true if an element of type t is stored as a sign bit and a magnitude, such that a larger magnitude has larger
 * bits. These types are F64 to BF16, and F8 except E8M0.
 */
bool dtype_is_signed_magnitude(enum dtype t);
/*
 * Returns true if t can be the type of a model's weights. These are the floating-point types of 4 to 64 bits, and the
 * type of the scales of such weights.
 */
bool dtype_is_weight(enum dtype t);
/*
 * Returns true if NaN is a value of t. This is true for complex types and for all floating-point types except FP4 and
 * FP6.
 */
bool dtype_has_nan(enum dtype t);
/* Returns true for F64, F32, F16 and BF16. Only for these types are sums and means computed. */
bool dtype_is_float(enum dtype t);
/*
 * Store a double as one element of a type for which dtype_is_float() returns true, rounded to nearest even. For a type
 * smaller than fp32 the value is rounded to fp32 first.
 */
void dtype_put(enum dtype t, double value, void *p);
float bf16_to_f32(uint16_t x);
float f16_to_f32(uint16_t x);
uint16_t f32_to_bf16(float x);              /* round to nearest even; NaN stays NaN */
uint16_t f32_to_f16(float x);               /* round to nearest even; overflow becomes infinity */
/* Returns x rounded to t, which is F16 or BF16. */
static inline uint16_t f32_to_half(enum dtype t, float x) { return t == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x); }

/*
 * The kinds of values that a checkpoint may store for each parameter: weights, fp32 master weights, and the two
 * moments.
 */
enum state { STATE_BF16, STATE_FP32, STATE_EXP_AVG, STATE_EXP_AVG_SQ, STATE_N };
const char *state_name(enum state s);       /* "bf16", "fp32", "exp_avg", "exp_avg_sq" */
/* Returns the state with that name, or -1 if there is none. */
int state_by_name(const char *name);

#endif
