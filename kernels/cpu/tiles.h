/*
 * tiles.h - a product's operands, bf16, packed for amx.h
 */
#ifndef SHARDKIT_KERNELS_CPU_TILES_H
#define SHARDKIT_KERNELS_CPU_TILES_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/panels.h"

/*
 * A part of x as panels of AMX_WIDTH rows, each up(part.nk, AMX_DEPTH) numbers long, one after the other. Rows and
 * numbers beyond the part's are zeros.
 */
#define tiles_pack_a ISA_NAME(tiles_pack_a)
#define tiles_pack_b ISA_NAME(tiles_pack_b)
void tiles_pack_a(uint32_t *panels, const struct operand *x, struct operand_part part);
void tiles_pack_b(uint32_t *panels, const struct operand *x, struct operand_part part);

#endif
