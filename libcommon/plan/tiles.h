/*
 * tiles.h - transposed matrices, gathered until they can be written in long runs
 *
 * A chunk of some rows becomes a short run of every destination row: 1 KiB where 512 rows
 * of bf16 fit a chunk, and writing such runs costs more than everything else. So chunks of
 * one matrix are put side by side in a tile of up to 32 MiB first. A matrix that fits one
 * lies there as it will on disk; of a larger one each tile gives runs of some KiB.
 *
 * There are three tiles. A chunk that finds none goes its own way, as do all others of its
 * tile: nobody waits for a tile, so nobody waits forever.
 * Threads: any.
 */
#ifndef SHARDKIT_PLAN_TILES_H
#define SHARDKIT_PLAN_TILES_H

#include "libcommon/plan/gather.h"

struct tiles;
/* chunk_bytes: the executor's; tiles take memory when they are first needed. */
struct tiles *tiles_new(uint64_t chunk_bytes);
void tiles_free(struct tiles *t);

/* A complete tile: n runs of `run` bytes, for item bytes at, at + stride ... */
struct tile {
    uint8_t *bytes;             /* the runs, one behind the other */
    uint64_t n, run, stride, at;
};
enum tiles_answer {
    TILES_NONE,                 /* there is no room: the chunk is written by itself */
    TILES_KEPT,                 /* its bytes are in a tile that waits for others */
    TILES_COMPLETE,             /* they were the last: *tile is to be written, then tiles_done() */
};
/*
 * After gather_end() for a chunk of a transposed item: put it into its tile. `skew` 0 ..
 * 4095: where a tile's bytes begin past a multiple of 4096, so that a disk can take them
 * directly. When the tile is complete, the item's CRC has what it adds.
 */
enum tiles_answer tiles_put(struct tiles *t, const struct gather *g, unsigned skew, struct tile *tile);
void tiles_done(struct tiles *t, const struct tile *tile);

#endif
