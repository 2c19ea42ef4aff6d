/*
 * tiles.h - collect transposed matrices in memory until they can be written in long runs
 *
 * A chunk of some rows becomes a short run in every row of the destination: 1 KiB if 512 rows of bf16 fit in a chunk.
 * Writing such short runs would take more time than everything else. Adjacent chunks of one matrix are therefore first
 * collected in a tile of up to 32 MiB. If the matrix fits in one tile, the tile has the same layout as the file.
 * Otherwise the runs in a tile have a length of some KiB.
 *
 * There are three tiles. If none is free when the first chunk of a new tile arrives, this chunk and all others of the
 * same tile are written individually. No thread ever waits for a tile, so there can be no deadlock. All functions may
 * be called from any thread.
 */
#ifndef SHARDKIT_PLAN_TILES_H
#define SHARDKIT_PLAN_TILES_H

#include "libcommon/plan/gather.h"

struct tiles;
/* Create the tiles; chunk_bytes is the executor's chunk size. Memory is allocated when a tile is first needed. */
struct tiles *tiles_new(uint64_t chunk_bytes);
void tiles_free(struct tiles *t);

/*
 * A complete tile: n runs of `run` bytes each. The runs belong to the item's bytes at offsets at, at + stride, at + 2 *
 * stride and so on.
 */
struct tile {
    uint8_t *bytes;             /* the runs, stored consecutively */
    uint64_t n, run, stride, at;
};
enum tiles_answer {
    TILES_NONE,                 /* there is no free tile: the caller writes the chunk itself */
    TILES_KEPT,                 /* the bytes were stored in a tile that is not complete yet */
    TILES_COMPLETE,             /* the chunk completed a tile: the caller writes *tile, then calls tiles_done() */
};
/*
 * Store a chunk of a transposed item in its tile. Must be called after gather_end(). `skew`, 0 .. 4095, is the offset
 * of the tile's first byte from a multiple of 4096. The caller chooses `skew` so that the tile can be written with
 * O_DIRECT. If the result is TILES_COMPLETE, the CRC of the tile has been added to the CRC of the item.
 */
enum tiles_answer tiles_put(struct tiles *t, const struct gather *g, unsigned skew, struct tile *tile);
void tiles_done(struct tiles *t, const struct tile *tile);

#endif
