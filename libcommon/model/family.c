/*
 * family.c - a file of rules is read, line by line, and names are looked up in it
 */
#include "libcommon/model/family.h"

#include <stdlib.h>
#include <string.h>

/* A family has some dozens of rules with names of some dozens of characters. */
enum { FAMILY_MAX = 256, FILE_MAX_BYTES = 1 << 20, NAME_MAX_CHARS = 200, MODELS_MAX = 32 };

struct family {
    struct arena *arena;
    const char *path, *family;
    int n_models;
    const char *model[MODELS_MAX];
    int n;
    struct family_rule rule[FAMILY_MAX];
};

/* ---- names ---- */

/* How many digits `s` begins with, as a number that an int holds; 0: none. */
static size_t digits(const char *s)
{
    size_t n = strspn(s, "0123456789");

    return n < 10 ? n : 0;
}

/* Does the name fit the pattern? *layer: its number, -1: the pattern has none. */
static bool fits(const char *pattern, const char *name, int *layer)
{
    size_t before = strcspn(pattern, "*");
    size_t n;

    *layer = -1;
    if (!pattern[before])
        return strcmp(pattern, name) == 0;
    if (strncmp(pattern, name, before) != 0)
        return false;
    n = digits(name + before);
    if (n == 0 || strcmp(pattern + before + 1, name + before + n) != 0)
        return false;
    *layer = atoi(name + before);
    return true;
}

/* "decoder.layers.*.mlp.x" as "decoder.layers.mlp.x". A number that leads the name cannot be left out. */
static bool fits_stacked(const char *pattern, const char *name)
{
    const char *star = strchr(pattern, '*');
    size_t before = star ? (size_t)(star - pattern) : 0;

    return before > 0 && star[1] == '.' && strncmp(pattern, name, before) == 0 &&
           strcmp(star + 2, name + before) == 0;
}

static bool find_in(const struct family_rule *r, const char *name, struct family_hit *hit)
{
    *hit = (struct family_hit){ .rule = r };
    for (int i = 0; i < r->n_parts; i++)
        if (fits(r->part[i], name, &hit->layer)) {
            hit->part = i;
            return true;
        }
    hit->in_shards = true;
    for (int i = 0; i < r->n_spellings; i++) {
        hit->stacked = !fits(r->shard[i], name, &hit->layer);
        if (!hit->stacked || fits_stacked(r->shard[i], name))
            return true;
    }
    return false;
}

bool family_find(const struct family *r, const char *name, struct family_hit *hit)
{
    for (int i = 0; i < r->n; i++)
        if (find_in(&r->rule[i], name, hit))
            return true;
    return false;
}

const char *family_layer_name(struct arena *a, const char *pattern, int layer)
{
    const char *star = strchr(pattern, '*');

    if (!star)
        return arena_fmt(a, "%s", pattern);
    return arena_fmt(a, "%.*s%d%s", (int)(star - pattern), pattern, layer, star + 1);
}

void family_free(struct family *r)
{
    if (!r)
        return;
    arena_free(r->arena);
    free(r);
}

const char *family_name(const struct family *r)
{
    return r->family;
}

bool family_has_model(const struct family *r, const char *model_type)
{
    for (int i = 0; i < r->n_models; i++)
        if (strcmp(r->model[i], model_type) == 0)
            return true;
    return strcmp(r->family, model_type) == 0;
}

int family_n(const struct family *r)
{
    return r->n;
}

const struct family_rule *family_at(const struct family *r, int i)
{
    return &r->rule[i];
}
