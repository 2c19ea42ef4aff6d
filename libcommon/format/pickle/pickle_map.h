/*
 * pickle_map.h - a hash map from tree nodes to small facts, for writing and copying
 *
 * Strings and globals are one key when they are equal; every other node is its own key.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_MAP_H
#define SHARDKIT_FORMAT_PICKLE_MAP_H

#include "libcommon/format/pickle/pickle.h"

struct pickle_fact {
    const struct pk *key;               /* NULL: an empty slot */
    struct pk *copy;                    /* pk_copy */
    uint32_t refs, memo;                /* pickle_write: how often met; memo index + 1 once stored */
};

struct pickle_map {                     /* zero-initialise */
    struct pickle_fact *slot;
    size_t n, cap;
};

/* The node's facts, zeroed when it is new. Valid until the next call. */
struct pickle_fact *pickle_map_get(struct pickle_map *m, const struct pk *key);
void pickle_map_free(struct pickle_map *m);

#endif
