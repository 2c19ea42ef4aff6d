/*
 * delta_block.h - the difference between two blocks of numbers, compressed
 *
 * The bits of a number are first mapped to an integer that grows with the number: for a floating-point type the
 * magnitude of a negative number is inverted. The difference of the two integers, modulo 2^width, is then small where
 * the numbers are near. Its sign moves to the lowest bit (0, -1, 1, -2 ... become 0, 1, 2, 3 ...), so that the upper
 * bytes of small differences are 0. The differences are packed as planes (format/pack/planes.h), or, if these are
 * nearly all 0, as planes that zstd compresses together.
 */
#ifndef SHARDKIT_FORMAT_DELTA_DELTA_BLOCK_H
#define SHARDKIT_FORMAT_DELTA_DELTA_BLOCK_H

#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"

/* The buffers of one thread, for blocks of at most DELTA_BLOCK bytes. */
struct delta_coder;
struct delta_coder *delta_coder_new(void);
void delta_coder_free(struct delta_coder *k);           /* NULL is allowed */
/* Returns the maximum size of a packed block of n bytes. */
uint32_t delta_block_bound(uint32_t n);
/*
 * Pack the difference of n bytes of elements of type t into `out`, which has room for delta_block_bound(n) bytes.
 * Returns the packed size.
 */
uint32_t delta_block_pack(struct delta_coder *k, enum dtype t, const uint8_t *base, const uint8_t *result, uint32_t n,
                          uint8_t *out);
/*
 * Change n bytes of the base at `bytes` into those of the result. Returns -1 if the len bytes at `packed` cannot come
 * from delta_block_pack() for n bytes of this type; the contents of `bytes` are then undefined.
 */
MUST_CHECK int delta_block_unpack(struct delta_coder *k, enum dtype t, const uint8_t *packed, uint32_t len,
                                  uint8_t *bytes, uint32_t n);

#endif
