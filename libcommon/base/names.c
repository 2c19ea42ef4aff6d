/*
 * names.c - hash table with open addressing and FNV-1a, at most half full
 */
#include "libcommon/base/names.h"

#include <string.h>

#include "libcommon/base/hash.h"

struct names_slot {
    const char *key;            /* NULL: unused */
    int number;
};

struct names {
    struct arena *arena;
    struct names_slot *slot;
    size_t n_slots;             /* a power of two */
    size_t n_used;
    int n_added;
};

enum { FIRST_SLOTS = 64 };

struct names *names_new(struct arena *a)
{
    struct names *t = arena_alloc(a, sizeof *t);

    t->arena = a;
    t->n_slots = FIRST_SLOTS;
    t->slot = arena_alloc(a, t->n_slots * sizeof *t->slot);
    return t;
}

int names_n(const struct names *t)
{
    return t->n_added;
}

static uint64_t hash(const char *s)
{
    uint64_t h = hash_bytes(HASH_START, s, strlen(s));

    return h ^ h >> 32;
}

/* Returns the slot that holds the key, or the slot where it would be inserted. */
static struct names_slot *find_slot(const struct names *t, const char *key)
{
    size_t i = (size_t)hash(key) & (t->n_slots - 1);

    while (t->slot[i].key && strcmp(t->slot[i].key, key) != 0)
        i = (i + 1) & (t->n_slots - 1);
    return &t->slot[i];
}

static void names_grow(struct names *t)
{
    const struct names_slot *old = t->slot;
    size_t n = t->n_slots;

    t->n_slots *= 2;
    t->slot = arena_alloc(t->arena, t->n_slots * sizeof *t->slot);
    for (size_t i = 0; i < n; i++)
        if (old[i].key)
            *find_slot(t, old[i].key) = old[i];
}

void names_add(struct names *t, const char *key, int number)
{
    struct names_slot *at;

    if (2 * (t->n_used + 1) > t->n_slots)
        names_grow(t);
    at = find_slot(t, key);
    t->n_added++;
    if (at->key)
        return;
    *at = (struct names_slot){ key, number };
    t->n_used++;
}

int names_find(const struct names *t, const char *key)
{
    const struct names_slot *at = find_slot(t, key);

    return at->key ? at->number : -1;
}
