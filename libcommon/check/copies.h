/*
 * copies.h - is one rank's data in two ranks' places?
 *
 * A file, record or chunk that was copied over another rank's has right checksums and fits everywhere. Two ranks hold
 * different elements, so equal bytes show it: of a parameter's pieces, and of flat vectors that hold many parameters.
 * Equal by nature, and passed over, are values that hardly vary (zeros, ones, padding), equal rows, copies of
 * replicated parameters and of tied ones, and slices of tensor ranks, which a trainer on CPUs begins alike. Weights may
 * be equal in pieces where a model was made so, as experts of one dense layer are before they are trained; moments are
 * not.
 */
#ifndef SHARDKIT_CHECK_COPIES_H
#define SHARDKIT_CHECK_COPIES_H

#include "libcommon/check/mismatch.h"

struct report;

/*
 * "other_rank": an error in moments, a warning in whole vectors of masters, a note in pieces of weights. Reads the
 * start and the end of each piece.
 */
void copies_check(const struct source *s, const struct mismatch_opts *o, struct report *r);

#endif
