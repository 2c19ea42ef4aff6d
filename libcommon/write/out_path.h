/*
 * out_path.h - the path of an output: where it lies, and the free space there
 */
#ifndef SHARDKIT_WRITE_OUT_PATH_H
#define SHARDKIT_WRITE_OUT_PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct sink;
struct source;

/* Get the number of free bytes on the file system to which OUT will be written. */
MUST_CHECK int convert_free_space(const char *out, uint64_t *bytes, struct err *e);
/*
 * Returns the absolute path of a file or folder that need not exist. Links are resolved in the part of the path that
 * exists. The caller frees it.
 */
char *convert_resolve_path(const char *path);
/* Returns true if `inner` is `outer` or lies in it. Both paths must be results of convert_resolve_path(). */
bool convert_path_lies_in(const char *inner, const char *outer);
/* Returns the number of free bytes that convert_run() needs in order to start. `k` must not be prepared yet. */
uint64_t convert_required_space(const struct source *s, const struct sink *k);

#endif
