/*
 * dtype.h - element types of tensors: names and sizes
 */
#ifndef SHARDKIT_BASE_DTYPE_H
#define SHARDKIT_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

enum dtype {
    DTYPE_F64, DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32, DTYPE_I16, DTYPE_I8,
    DTYPE_U8, DTYPE_BOOL, DTYPE_C64, DTYPE_C128, DTYPE_N,
};

/* Dimensions of a tensor at most, in every struct that keeps a shape. */
#define TENSOR_MAX_DIM 8

int dtype_size(enum dtype t);               /* bytes of one element */
const char *dtype_name(enum dtype t);       /* "bf16", "f32": short, as safetensors spells them, lower case */
/* One element as a double (complex: the real part). p need not be aligned. */
double dtype_value(enum dtype t, const void *p);
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
