/*
 * gemm_tiles.h - pack the bf16 operands of a product for amx.h
 */
#ifndef SHARDKIT_KERNELS_CPU_GEMM_TILES_H
#define SHARDKIT_KERNELS_CPU_GEMM_TILES_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/panels.h"

/*
 * Pack a part of x as consecutive panels of AMX_WIDTH rows. A panel is up(part.nk, AMX_DEPTH) numbers long. Rows and
 * numbers after the end of the part are zeros.
 */
#define tiles_pack_a ISA_NAME(tiles_pack_a)
#define tiles_pack_b ISA_NAME(tiles_pack_b)
void tiles_pack_a(uint32_t *panels, const struct operand *x, struct operand_part part);
void tiles_pack_b(uint32_t *panels, const struct operand *x, struct operand_part part);

#endif
