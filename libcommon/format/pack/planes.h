/*
 * planes.h - split the bytes of a frame into planes, and compress each plane separately
 *
 * The exponents of adjacent numbers are similar and their mantissas are not, so bytes with the same position in their
 * numbers are stored together. Each number is rotated left by one bit, which moves its whole exponent into the last
 * plane, and the sign below the mantissa. Byte k of all numbers is plane k. docs/formats.md, section 10, describes a
 * packed frame. A struct planes may be used by only one thread at a time.
 */
#ifndef SHARDKIT_FORMAT_PACK_PLANES_H
#define SHARDKIT_FORMAT_PACK_PLANES_H

#include <stdint.h>

#include "libcommon/base/err.h"

enum { PLANES_MAX_WIDTH = 4 };

struct planes;
/* Create a struct planes for frames of at most `most` bytes. */
struct planes *planes_new(uint32_t most);
void planes_free(struct planes *p);             /* NULL is allowed */
/* Returns the maximum size of a packed frame of n bytes. */
uint32_t planes_bound(uint32_t n);
/*
 * Pack n bytes, which are numbers of `width` bytes each, into `out`. `width` must be 1, 2 or 4 and divide n. `out` must
 * have room for planes_bound(n) bytes. Returns the packed size.
 */
uint32_t planes_pack(struct planes *p, const uint8_t *raw, uint32_t n, int width, uint8_t *out);
/* Write what planes_pack() produces for numbers that are all 0. Returns the packed size. */
uint32_t planes_pack_zeros(int width, uint8_t *out);
/*
 * Unpack `len` bytes at `packed` to raw[n]. Returns -1 if the bytes cannot come from planes_pack() for n bytes of this
 * width; the contents of raw are then undefined.
 */
MUST_CHECK int planes_unpack(struct planes *p, const uint8_t *packed, uint32_t len, int width, uint8_t *raw,
                             uint32_t n);

#endif
