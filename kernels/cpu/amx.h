/*
 * amx.h - matrix products of bf16 with tiles: Intel's AMX, and a software model of its instruction for machines
 * without it
 *
 * The instruction multiplies a tile of 16 rows of 32 numbers with a tile of 16 columns of 32 numbers, and adds the
 * products to 16 x 16 sums in fp32. For each result and its 32 products it computes: e = the products at even
 * indices, each added in order by an fma that begins with 0; o = the same for odd indices; result = result + (e +
 * o). Operands, sums and results below 2^-126 count as zeros. The bits of a sum of k products therefore depend only on
 * k and the operands. They do not depend on how the sum is split into calls, as long as each call but the last has
 * whole tiles.
 *
 * Operands are packed as a sequence of steps of AMX_DEPTH numbers of the sum:
 *     a   AMX_WIDTH rows of AMX_DEPTH numbers each
 *     b   AMX_DEPTH / 2 pairs of consecutive numbers, each of AMX_WIDTH columns
 */
#ifndef SHARDKIT_KERNELS_CPU_AMX_H
#define SHARDKIT_KERNELS_CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

/*
 * number of rows and columns of a result; its four tiles of sums, two tiles of a and two tiles of b are all eight tiles
 */
#define AMX_WIDTH 32
#define AMX_DEPTH 32
#define AMX_SLOTS (AMX_DEPTH / 2)       /* pairs per step */

struct amx {
    /* Each thread must call begin() before its first multiply() and end() after its last one. */
    void (*begin)(void), (*end)(void);
    /*
     * Set c [AMX_WIDTH, AMX_WIDTH] to the product of the packed operands a and b over `steps` steps. With `add`, the
     * product is added to c. c has ldc floats per row.
     */
    void (*multiply)(int64_t steps, const uint32_t *a, const uint32_t *b, float *c, int64_t ldc, bool add);
};
/*
 * The AMX implementation that products of bf16 use, or NULL if these products use panels.h. amx_open() and
 * amx_open_model() set it.
 */
extern const struct amx *amx_found;

/* Returns true if the CPU has AMX for bf16 and the system lets this process use it. Requests the permission. */
bool amx_usable(void);
/*
 * Each of these functions selects what all later products of bf16 use: AMX if it is usable, the software model of AMX,
 * or neither.
 */
void amx_open(void);
void amx_open_model(void);
void amx_close(void);

#endif
