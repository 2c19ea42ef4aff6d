/*
 * amx.h - products of bf16 by tiles: Intel's AMX, and a model of its instruction for machines without
 *
 * The instruction multiplies a tile of 16 rows by 32 numbers with one of 16 columns by 32, and adds to 16 x 16
 * sums in fp32. What it computes of a result, for its 32 numbers of the sum: e = the products at even places,
 * each added in order by an fma that begins with 0; o = those at odd places; the result becomes result + (e + o).
 * Numbers below 2^-126, as operand, sum or result, count as zeros. So a sum of k has the same bits however it is
 * cut into calls, as long as each call but the last has whole tiles, and depends on nothing but k and the operands.
 *
 * Operands are packed as one step after the other, of AMX_DEPTH numbers of the sum:
 *     a   AMX_WIDTH rows of AMX_DEPTH numbers each
 *     b   AMX_DEPTH / 2 pairs of consecutive numbers, each of AMX_WIDTH columns
 */
#ifndef SHARDKIT_KERNELS_CPU_AMX_H
#define SHARDKIT_KERNELS_CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

#define AMX_WIDTH 32                    /* two tiles of a, two of b, four of sums: all eight there are */
#define AMX_DEPTH 32
#define AMX_SLOTS (AMX_DEPTH / 2)       /* pairs of a step */

struct amx {
    /* Every thread, before its first multiply() and after its last */
    void (*begin)(void), (*end)(void);
    /* c [AMX_WIDTH, AMX_WIDTH], ldc floats a row, = (add ? c : 0) + a b over `steps` steps */
    void (*multiply)(int64_t steps, const uint32_t *a, const uint32_t *b, float *c, int64_t ldc, bool add);
};
/* The one that products of bf16 use; NULL: they use panels. Set by amx_open(). */
extern const struct amx *amx_found;

/* Is there AMX for bf16, and does the system let this process use it? Asks for that. */
bool amx_usable(void);
/* From now on: AMX, only if it is usable; its model; neither. */
void amx_open(void);
void amx_open_model(void);
void amx_close(void);

#endif
