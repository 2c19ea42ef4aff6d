/*
 * planes.h - the bytes of a frame as planes, each packed by itself
 *
 * The exponents of neighbouring numbers are alike and their mantissas are not, so bytes of the same place in their
 * numbers lie together: a number is turned left by one bit, which puts all of its exponent into the last plane and
 * the sign behind the mantissa, and byte k of all numbers is plane k. What a packed frame holds is in docs/formats.md,
 * section 10.
 * Threads: a planes belongs to one.
 */
#ifndef SHARDKIT_FORMAT_PACK_PLANES_H
#define SHARDKIT_FORMAT_PACK_PLANES_H

#include <stdint.h>

#include "libcommon/base/err.h"

enum { PLANES_MAX_WIDTH = 4 };

struct planes;
/* For frames of at most `most` bytes. */
struct planes *planes_new(uint32_t most);
void planes_free(struct planes *p);             /* NULL is fine */
/* Bytes that a packed frame of n may need. */
uint32_t planes_bound(uint32_t n);
/* n bytes of numbers of `width` (1, 2 or 4, which divides n) into out, which has planes_bound(n). How many bytes. */
uint32_t planes_pack(struct planes *p, const uint8_t *raw, uint32_t n, int width, uint8_t *out);
/* The same of numbers that are all 0, told without looking. */
uint32_t planes_pack_zeros(int width, uint8_t *out);
/* The way back; -1 when `packed` is not what planes_pack() makes of n bytes of that width. Then raw holds anything. */
MUST_CHECK int planes_unpack(struct planes *p, const uint8_t *packed, uint32_t len, int width, uint8_t *raw,
                             uint32_t n);

#endif
