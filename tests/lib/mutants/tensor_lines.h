/*
 * tensor_lines.h - list the tensors of a conversion's manifest as text, and compare two such lists
 *
 * Each tensor has one line: name, state, dtype, shape, digest. The caller frees the texts.
 */
#ifndef SHARDKIT_TESTS_TENSOR_LINES_H
#define SHARDKIT_TESTS_TENSOR_LINES_H

#include <stdbool.h>

#include "libcommon/ckpt/checkpoint.h"

/* Return the "tensors" lines of the manifest in `out`, or "" if there is none. */
char *tensor_lines(const char *out);
/* Return one line for every state of every parameter of an open source: name, dtype, shape and CRC. */
char *tensor_lines_of(const struct source *s);
/* Returns true if all lines of `got` that are not in `want` are about moments or, with `masters`, about fp32. */
bool tensor_lines_only_states(const char *got, const char *want, bool masters);
/* The same, but also accepts lines of tensors that have no moments in `trained`. */
bool tensor_lines_only_untrained(const char *got, const char *want, const char *trained);
/* Return the number of lines of `got` that `want` does not have. */
int tensor_lines_n_others(const char *got, const char *want);
/* Returns true if every line of `got`, apart from the tensor's name, is a line of `want`. */
bool tensor_lines_only_names(const char *got, const char *want);

#endif
