/*
 * copies.h - find data of one rank in the place of another rank
 *
 * If a file, record or chunk was copied over that of another rank, its checksums and sizes are still correct. Two ranks
 * hold different elements, so equal bytes reveal such a copy. The pieces of each parameter are compared with each
 * other, and so are the flat vectors, which hold many parameters. Some values are legitimately equal and are ignored:
 * values that hardly vary (zeros, ones, padding), equal rows, copies of replicated and of tied parameters, and slices
 * that a trainer on CPUs initialises with the same random values on every tensor rank. Weights may also be equal in
 * pieces by construction, such as experts that were copied from one dense layer; the moments of such weights still
 * differ after training.
 */
#ifndef SHARDKIT_CHECK_COPIES_H
#define SHARDKIT_CHECK_COPIES_H

#include "libcommon/check/mismatch.h"

struct report;

/*
 * Add findings "other_rank" to the report: an error for equal moments, a warning for equal flat vectors of fp32
 * masters, and a note for equal pieces of weights. Two equal states of one parameter that are not zero are an error,
 * because the data of one state is in the place of the other. The function reads only the start and the end of each
 * piece, and compares the CRCs of records.
 */
void copies_check(const struct source *s, const struct mismatch_opts *o, struct report *r);

#endif
