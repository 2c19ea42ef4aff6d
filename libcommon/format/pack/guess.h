/*
 * guess.h - predict bytes of a checkpoint from other bytes of the same checkpoint
 *
 * Packed files store the difference from a prediction, so the results of these functions must never change: they are
 * part of the format (docs/formats.md, section 10).
 */
#ifndef SHARDKIT_FORMAT_PACK_GUESS_H
#define SHARDKIT_FORMAT_PACK_GUESS_H

#include <stdint.h>

enum pack_guess {
    PACK_NO_GUESS,
    PACK_SAME,                  /* the bytes are equal to the other bytes */
    PACK_ROUND_BF16,            /* the bytes are bf16, predicted from fp32 that is rounded to nearest even */
    PACK_ROUND_F16,
    PACK_GUESS_N,
};

/* Returns the number of bytes from which n bytes are predicted. */
uint64_t guess_ref_bytes(enum pack_guess g, uint64_t n);
/*
 * Replace raw[n] by its exclusive-or with the prediction computed from `ref`, which must have guess_ref_bytes() bytes.
 * A second call restores raw. Returns the number of results that are not zero. Results are numbers, or bytes for
 * PACK_SAME.
 */
uint32_t guess_apply(enum pack_guess g, const uint8_t *ref, uint8_t *raw, uint32_t n);

#endif
