/*
 * pickle_map.c - a hash table with open addressing; strings and globals are compared by content, other nodes by address
 */
#include "libcommon/format/pickle/pickle_map.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/hash.h"

static uint64_t hash_node(const struct pk *v)
{
    uint64_t h = HASH_START;

    if (v->type == PK_STR)
        h = hash_bytes(h, v->str, v->len);
    else if (v->type == PK_GLOBAL)
        h = hash_bytes(hash_bytes(h, v->module, strlen(v->module) + 1), v->name, strlen(v->name));
    else
        h = hash_bytes(h, &v, sizeof v);
    return h ^ h >> 32;
}

static bool is_same_map_key(const struct pk *a, const struct pk *b)
{
    if (a == b)
        return true;
    if (a->type != b->type)
        return false;
    if (a->type == PK_STR)
        return a->len == b->len && memcmp(a->str, b->str, a->len) == 0;
    return a->type == PK_GLOBAL && strcmp(a->name, b->name) == 0 && strcmp(a->module, b->module) == 0;
}

static struct pickle_fact *pickle_map_slot(const struct pickle_map *m, const struct pk *key)
{
    size_t i = hash_node(key) & (m->cap - 1);

    while (m->slot[i].key && !is_same_map_key(m->slot[i].key, key))
        i = (i + 1) & (m->cap - 1);
    return &m->slot[i];
}

static void pickle_map_grow(struct pickle_map *m)
{
    struct pickle_map big = { .n = m->n, .cap = m->cap ? 2 * m->cap : 64 };

    big.slot = xcalloc(big.cap, sizeof *big.slot);
    for (size_t i = 0; i < m->cap; i++)
        if (m->slot[i].key)
            *pickle_map_slot(&big, m->slot[i].key) = m->slot[i];
    free(m->slot);
    *m = big;
}

struct pickle_fact *pickle_map_get(struct pickle_map *m, const struct pk *key)
{
    struct pickle_fact *f;

    if (4 * m->n >= 3 * m->cap)
        pickle_map_grow(m);
    f = pickle_map_slot(m, key);
    if (!f->key) {
        f->key = key;
        m->n++;
    }
    return f;
}

void pickle_map_free(struct pickle_map *m)
{
    free(m->slot);
    memset(m, 0, sizeof *m);
}
