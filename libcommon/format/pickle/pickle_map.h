/*
 * pickle_map.h - a hash map from tree nodes to small facts, for writing and copying
 *
 * Equal strings are the same key, and so are equal globals. Any other node is a key by its address.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_MAP_H
#define SHARDKIT_FORMAT_PICKLE_MAP_H

#include "libcommon/format/pickle/pickle.h"

struct pickle_fact {
    const struct pk *key;               /* NULL: an empty slot */
    struct pk *copy;                    /* used by pk_copy */
    uint32_t refs, memo;                /* used by pickle_write: number of visits; memo index + 1 once stored */
};

struct pickle_map {                     /* must be zero-initialized */
    struct pickle_fact *slot;
    size_t n, cap;
};

/* Return the facts of a node, zeroed if the node is new. The pointer is valid until the next call. */
struct pickle_fact *pickle_map_get(struct pickle_map *m, const struct pk *key);
void pickle_map_free(struct pickle_map *m);

#endif
