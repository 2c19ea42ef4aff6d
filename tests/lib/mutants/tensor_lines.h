/*
 * tensor_lines.h - what a conversion's manifest says of its tensors, and how two such texts differ
 *
 * A line a tensor: name, state, dtype, shape, digest. Texts are the caller's to free.
 */
#ifndef SHARDKIT_TESTS_TENSOR_LINES_H
#define SHARDKIT_TESTS_TENSOR_LINES_H

#include <stdbool.h>

#include "libcommon/layout/layout.h"

/* The "tensors" lines of the manifest in `out`; "" without one. */
char *tensor_lines(const char *out);
/* Of an open source: name, dtype, shape and CRC of every state of every parameter, a line each. */
char *tensor_lines_of(const struct source *s);
/* Do all lines of `got` that are not in `want` tell of moments, or, with `masters`, of fp32? */
bool tensor_lines_only_states(const char *got, const char *want, bool masters);
/* ... or of tensors that have no moments in `trained`? */
bool tensor_lines_only_untrained(const char *got, const char *want, const char *trained);
/* Number of lines of `got` that `want` does not have. */
int tensor_lines_n_others(const char *got, const char *want);
/* Is every line of `got`, but for the tensor's name, one of `want`? */
bool tensor_lines_only_names(const char *got, const char *want);

#endif
