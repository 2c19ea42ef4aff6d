/*
 * guess.h - predict bytes of a checkpoint from other bytes of it
 *
 * Existing packed files depend on these functions permanently: the exact bits are part of the format
 * (docs/formats.md, section 10).
 */
#ifndef SHARDKIT_FORMAT_PACK_GUESS_H
#define SHARDKIT_FORMAT_PACK_GUESS_H

#include <stdint.h>

enum pack_guess {
    PACK_NO_GUESS,
    PACK_SAME,                  /* equal to the other bytes */
    PACK_ROUND_BF16,            /* the other bytes are fp32; rounded to nearest even */
    PACK_ROUND_F16,
    PACK_GUESS_N,
};

/* Returns the number of bytes that the guess of n bytes needs. */
uint64_t guess_ref_bytes(enum pack_guess g, uint64_t n);
/*
 * Exclusive-or raw[n] with the guess computed from `ref`, which has guess_ref_bytes() bytes. A second call restores
 * raw. Returns the number of resulting numbers (bytes, for PACK_SAME) that are not zero.
 */
uint32_t guess_apply(enum pack_guess g, const uint8_t *ref, uint8_t *raw, uint32_t n);

#endif
