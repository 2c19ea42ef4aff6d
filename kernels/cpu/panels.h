/*
 * panels.h - the innermost part of every matrix product
 *
 * The method follows Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), and BLIS.
 * Operands are copied into panels in the order in which the micro-kernel reads them. This copy also converts bf16
 * and fp16 to fp32, and transposes where needed. The micro-kernel then keeps a PANEL_A x PANEL_B tile of the result
 * in registers.
 *
 * A panel of width W holds W rows of an operand as a sequence of slots:
 *     slot 0: row 0, row 1, .. row W-1;  slot 1: row 0, ..
 * A slot is one fp32 of each row or, on machines that multiply bf16 (PANEL_PAIRS), two consecutive bf16. Rows after
 * the operand's last row are zeros.
 */
#ifndef SHARDKIT_KERNELS_CPU_PANELS_H
#define SHARDKIT_KERNELS_CPU_PANELS_H

#include "kernels/cpu/cpu.h"

/*
 * The sizes of the panels. The micro-kernel uses PANEL_A * 2 registers for sums, 2 for B, and one for A. AVX-512 has 32
 * registers, other sets have 16.
 */
#if defined(__AVX512F__)
#define PANEL_A 12
#define PANEL_B 32
#elif defined(__AVX2__) && defined(__FMA__)
#define PANEL_A 6
#define PANEL_B 16
#else
#define PANEL_A 4
#define PANEL_B 8
#endif
#define PANEL_LCM 96                    /* a multiple of every PANEL_A and PANEL_B */

#ifdef __AVX512BF16__
#define PANEL_PAIRS 1
#else
#define PANEL_PAIRS 0
#endif

/*
 * An operand of a product. k is the index over which the product sums. Element (i, k) is p[i * ld + k] or, if `across`,
 * p[k * ld + i].
 */
struct operand {
    const void *p;
    int64_t ld;
    bool across;
    enum dtype t;
};

/* A part of an operand: rows i0 .. i0 + n and columns k0 .. k0 + nk. */
struct operand_part {
    int64_t i0, n, k0, nk;
};

/*
 * Pack a part of x as consecutive panels of `width` rows, which is PANEL_A or PANEL_B. With `pairs`, a slot is two
 * bf16, and an odd nk is padded with a zero.
 */
#define panels_pack ISA_NAME(panels_pack)
void panels_pack(void *panels, const struct operand *x, struct operand_part part, int width, bool pairs);

/* Transpose the first `cols` columns of from [rows, ld] into to [cols, to_step]. Both are fp32. */
#define panel_transpose ISA_NAME(panel_transpose)
void panel_transpose(float *to, int64_t to_step, const float *from, int64_t ld, int64_t rows, int64_t cols);

/*
 * A block of PANEL_A rows, stored slot by slot. `step` is the distance in floats between two slots. It is PANEL_A if
 * the slots are packed without gaps.
 */
struct panel_rows {
    const float *p;
    int64_t step;
};

/*
 * Set c [PANEL_A, PANEL_B] to the product of a panel of rows `a` and a packed panel b, summed over `slots` slots. With
 * `add`, the product is added to c.
 */
#define panel_multiply ISA_NAME(panel_multiply)
void panel_multiply(int64_t slots, struct panel_rows a, const float *b, float *c, int64_t ldc, bool add);
/* Multiply like panel_multiply(). Both a and b are packed, with pairs (see panels_pack()). */
#define panel_multiply_pairs ISA_NAME(panel_multiply_pairs)
void panel_multiply_pairs(int64_t slots, const uint32_t *a, const uint32_t *b, float *c, int64_t ldc, bool add);

#endif
