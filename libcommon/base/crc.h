/*
 * crc.h - CRC-32 of pieces, and of the whole that they form, in any order
 *
 * The polynomial is that of zip (0xEDB88320 reflected). ISA-L computes it at 30 GB/s and more per core, so every
 * byte that passes through a tool is checked.
 *
 * For a whole cut into pieces p_0 .. p_k, crc(whole) is the exclusive-or of crc_shift(crc(p_i), bytes after p_i),
 * because CRC over GF(2) is linear (zlib's crc32_combine uses the same identity). A crc_sum accumulates this.
 * Threads, processes and a resumed run can therefore deliver pieces in any order, and only eight bytes per whole
 * have to be stored.
 */
#ifndef SHARDKIT_BASE_CRC_H
#define SHARDKIT_BASE_CRC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the CRC-32 of p[0..n), continuing from `crc` (0 to begin). */
uint32_t crc_bytes(uint32_t crc, const void *p, size_t n);
/*
 * Returns crc_bytes(crc, src, n) and copies src to dst in the same pass. A large copy bypasses the caches. Use this for
 * buffers that a device reads next, not for bytes that the processor needs again soon.
 */
uint32_t crc_copy(uint32_t crc, void *restrict dst, const void *restrict src, size_t n);
/* Returns the CRC of a sequence of n zero bytes. */
uint32_t crc_zeros(uint64_t n);
/*
 * Returns the share that a piece with CRC `crc` has in the CRC of a whole. n_after is the number of bytes of the whole
 * that follow the piece.
 */
uint32_t crc_shift(uint32_t crc, uint64_t n_after);
/*
 * Returns the factor for which crc_shift(crc, n_after) == crc_times(crc, factor). Computing the factor once is faster
 * if many pieces have the same n_after.
 */
uint32_t crc_factor(uint64_t n_after);
uint32_t crc_times(uint32_t crc, uint32_t factor);

struct crc_sum {
    _Atomic uint32_t acc;
    /* number of bytes added so far; when it equals the length of the whole, acc is the CRC of the whole */
    _Atomic uint64_t seen;
};

/*
 * Add the CRC of piece [at, at+len) of a whole of `total` bytes. May be called from any thread and in any order. Each
 * byte must be part of exactly one piece.
 */
void crc_sum_add(struct crc_sum *s, uint64_t total, uint64_t at, uint64_t len, uint32_t crc);
/*
 * Add a CRC that crc_shift() has already shifted. It is either the CRC of one piece of `len` bytes, or the sum of
 * another struct for the same whole with `len` bytes seen. Returns the value of `seen` directly after this addition.
 * Therefore exactly one caller receives the length of the whole.
 */
uint64_t crc_sum_merge(struct crc_sum *s, uint64_t len, uint32_t shifted);

#endif
