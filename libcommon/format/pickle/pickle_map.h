/*
 * pickle_map.h - a hash map from tree nodes to a few numbers about each node, for writing and copying trees
 *
 * Strings with equal text are the same key, and so are equal globals. All other nodes are distinguished by their
 * address.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_MAP_H
#define SHARDKIT_FORMAT_PICKLE_MAP_H

#include "libcommon/format/pickle/pickle.h"

struct pickle_fact {
    const struct pk *key;               /* NULL: an empty slot */
    struct pk *copy;                    /* the node's copy, used by pk_copy() */
    uint32_t refs, memo;                /* for pickle_write(): number of references to the node, and its memo index + 1
                                         * after it was stored */
};

struct pickle_map {                     /* must be zero-initialized */
    struct pickle_fact *slot;
    size_t n, cap;
};

/* Return the entry of node `key`. The members are zero if the node is new. The pointer is valid until the next call. */
struct pickle_fact *pickle_map_get(struct pickle_map *m, const struct pk *key);
void pickle_map_free(struct pickle_map *m);

#endif
