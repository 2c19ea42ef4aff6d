/*
 * pickle_memo.h - find the values that a pickle reads again from its memo
 *
 * Python's pickler stores nearly every value in its memo under a number, but reads only few values again. One pass over
 * the opcodes finds the numbers that are read, so that the parser keeps only those values. A table of a million rows
 * stores twenty million values.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_MEMO_H
#define SHARDKIT_FORMAT_PICKLE_MEMO_H

#include "libcommon/format/pickle/pickle.h"

struct pickle_memo {
    uint32_t n;                 /* only numbers below this one can be stored */
    uint32_t n_stored;          /* number of values stored so far, which is the number that MEMOIZE uses next */
    uint64_t *read, *stored;    /* one bit per number */
    uint32_t *before;           /* for each 64-bit word of `read`: the number of bits set in all earlier words */
    struct pk **value;          /* the stored values, only those that the pickle reads again */
};

/* Scan a pickle up to its end or its first damage. Damage is not reported here, but later by the parser. */
void pickle_memo_scan(struct pickle_memo *o, const uint8_t *p, size_t len);
void pickle_memo_free(struct pickle_memo *o);
/* Store value v under number i. Returns true if the pickle reads this number again. */
bool pickle_memo_put(struct pickle_memo *o, uint32_t i, struct pk *v);
/* Return the value with number i, or NULL if it was not stored. */
struct pk *pickle_memo_get(const struct pickle_memo *o, uint32_t i);

#endif
