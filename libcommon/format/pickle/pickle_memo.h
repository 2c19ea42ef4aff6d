/*
 * pickle_memo.h - which values of a pickle are asked for again
 *
 * Python's pickler numbers nearly every value and reads few of them again. One pass over the opcodes finds these, so
 * that the machine keeps no others: a table of a million rows numbers twenty million values.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_MEMO_H
#define SHARDKIT_FORMAT_PICKLE_MEMO_H

#include "libcommon/format/pickle/pickle.h"

struct pickle_memo {
    uint32_t n;                 /* numbers below this one may be stored */
    uint32_t n_stored;          /* filled ones: where MEMOIZE puts the next */
    uint64_t *read, *stored;    /* a bit each */
    uint32_t *before;           /* of each word of `read` the bits that stand before it */
    struct pk **value;          /* of those that are read */
};

/* Look through a stream, as far as it is one; what is wrong with it the machine finds. */
void pickle_memo_scan(struct pickle_memo *o, const uint8_t *p, size_t len);
void pickle_memo_free(struct pickle_memo *o);
/* Store value i. Returns whether it is asked for again. */
bool pickle_memo_put(struct pickle_memo *o, uint32_t i, struct pk *v);
/* NULL: it was not stored. */
struct pk *pickle_memo_get(const struct pickle_memo *o, uint32_t i);

#endif
