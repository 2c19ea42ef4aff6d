/*
 * copies.h - find data of one rank in the place of another rank
 *
 * A file, record or chunk that was copied over another rank's has correct checksums and the right sizes. Two ranks hold
 * different elements, so equal bytes reveal such a copy. The pieces of a parameter are compared, and the flat vectors
 * that hold many parameters.
 * Some values are legitimately equal and are ignored: values that hardly vary (zeros, ones, padding), equal rows,
 * copies of replicated and of tied parameters, and slices that a trainer on CPUs initialises with the same random
 * values on every tensor rank. Weights may also be equal in pieces by construction, such as experts that were copied
 * from one dense layer; trained moments are not.
 */
#ifndef SHARDKIT_CHECK_COPIES_H
#define SHARDKIT_CHECK_COPIES_H

#include "libcommon/check/mismatch.h"

struct report;

/*
 * Add findings "other_rank" to the report: an error for moments, a warning for complete vectors of masters, and a note
 * for pieces of weights. Reads only the start and the end of each piece.
 */
void copies_check(const struct source *s, const struct mismatch_opts *o, struct report *r);

#endif
