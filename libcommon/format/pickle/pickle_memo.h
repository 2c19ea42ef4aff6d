/*
 * pickle_memo.h - find the values that a pickle reads again from its memo
 *
 * Python's pickler numbers nearly every value and reads few of them again. One pass over the opcodes finds the
 * numbers that are read, so that the parser keeps only those values. A table of a million rows numbers twenty
 * million values.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_MEMO_H
#define SHARDKIT_FORMAT_PICKLE_MEMO_H

#include "libcommon/format/pickle/pickle.h"

struct pickle_memo {
    uint32_t n;                 /* only numbers below this one can be stored */
    uint32_t n_stored;          /* count of stored numbers, which is the number that MEMOIZE stores next */
    uint64_t *read, *stored;    /* one bit per number */
    uint32_t *before;           /* for each word of `read`: the number of bits set in the words before it */
    struct pk **value;          /* the values whose numbers are read */
};

/* Scan a stream up to its end or its first damage. The parser reports the damage. */
void pickle_memo_scan(struct pickle_memo *o, const uint8_t *p, size_t len);
void pickle_memo_free(struct pickle_memo *o);
/* Store value i. Returns true if the pickle reads it again. */
bool pickle_memo_put(struct pickle_memo *o, uint32_t i, struct pk *v);
/* Return value i, or NULL if it was not stored. */
struct pk *pickle_memo_get(const struct pickle_memo *o, uint32_t i);

#endif
