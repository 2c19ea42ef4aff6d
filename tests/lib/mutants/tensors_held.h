/*
 * tensors_held.h - the tensors of safetensors files, read without the library's reader
 */
#ifndef SHARDKIT_TESTS_TENSORS_HELD_H
#define SHARDKIT_TESTS_TENSORS_HELD_H

#include "tests/lib/mutants/mutate.h"

/*
 * Returns true if the .safetensors files in `out` hold exactly the tensors of those of the set: the same names,
 * each with the type, shape and bytes that a file of the set gives it.
 */
bool tensors_held(const struct mutate_set *m, const char *out);

#endif
