/*
 * guess.h - what bytes of a checkpoint should be, told from other bytes of it
 *
 * A packed file depends on these for ever: the bits are the format's (docs/formats.md, section 10).
 */
#ifndef SHARDKIT_FORMAT_PACK_GUESS_H
#define SHARDKIT_FORMAT_PACK_GUESS_H

#include <stdint.h>

enum pack_guess {
    PACK_NO_GUESS,
    PACK_SAME,                  /* the same bytes */
    PACK_ROUND_BF16,            /* fp32, rounded to nearest even */
    PACK_ROUND_F16,
    PACK_GUESS_N,
};

/* Bytes that n guessed bytes are told from. */
uint64_t guess_ref_bytes(enum pack_guess g, uint64_t n);
/*
 * raw[n] ^= the guess from `ref`, guess_ref_bytes() long: twice is the way back. Returns how many numbers (bytes, of
 * PACK_SAME) are not zero then.
 */
uint32_t guess_apply(enum pack_guess g, const uint8_t *ref, uint8_t *raw, uint32_t n);

#endif
