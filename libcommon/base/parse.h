/*
 * parse.h - parse sizes and whole numbers, and suggest words for misspelt ones
 */
#ifndef SHARDKIT_BASE_PARSE_H
#define SHARDKIT_BASE_PARSE_H

#include <stdint.h>

#include "libcommon/base/err.h"

/*
 * Parse a size such as "96M" into bytes. The suffixes K, M, G and T are powers of 1024; without a suffix the number is
 * in bytes. '_' is allowed between digits.
 */
MUST_CHECK int parse_size(const char *s, uint64_t *out);
MUST_CHECK int parse_int(const char *s, int64_t min, int64_t max, int64_t *out);
/* Returns the word among n words that is nearest to `s` by edit distance. Returns NULL if no word is near. */
const char *parse_nearest(const char *s, const char *const *words, int n);

#endif
