/* pickle_tree.c - functions that read, construct and copy trees */
#include "libcommon/format/pickle/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/format/pickle/pickle_classes.h"
#include "libcommon/format/pickle/pickle_map.h"

/* ---- reading ---- */

const char *pk_class(const struct pk *v, char *buf, size_t size)
{
    if (pickle_getattr_class(v))
        v = pickle_getattr_class(v);
    else if (v && (v->type == PK_CALL || v->type == PK_OBJ))
        v = pickle_getattr_class(v->fn) ? pickle_getattr_class(v->fn) : v->fn;
    if (!v || v->type != PK_GLOBAL)
        return NULL;
    snprintf(buf, size, "%s.%s", v->module, v->name);
    return buf;
}

bool pk_is_none(const struct pk *v)
{
    return !v || v->type == PK_NONE;
}

static bool is_plain_data(const struct pk *v, int depth)
{
    uint32_t n = v->type == PK_DICT ? 2 * v->n : v->type == PK_LIST || v->type == PK_TUPLE ? v->n : 0;

    if (v->type > PK_DICT || v->type == PK_SET || v->type == PK_BIGINT || depth > 32)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!is_plain_data(v->item[i], depth + 1))
            return false;
    return true;
}

bool pk_is_plain(const struct pk *v)
{
    return is_plain_data(v, 0);
}

const char *pk_as_str(const struct pk *v)
{
    return v && v->type == PK_STR && strlen(v->str) == v->len ? v->str : NULL;
}

/*
 * pk_pairs() and pk_items() return this for an empty container, because NULL means that the value is not a container.
 */
static struct pk *nothing[1];

static struct pk **pairs_of(const struct pk *dict, uint32_t *n)
{
    *n = dict ? dict->n : 0;
    return dict && dict->n ? dict->item : nothing;
}

struct pk **pk_pairs(const struct pk *v, uint32_t *n)
{
    *n = 0;
    if (!v || v->opaque)
        return NULL;
    if (v->type == PK_DICT)
        return pairs_of(v, n);
    if (pk_is_class(v, "collections", "OrderedDict") && v->type == PK_CALL)
        return pairs_of(v->fill, n);
    if (v->type == PK_OBJ && (!v->state || v->state->type == PK_DICT))
        return pairs_of(v->state, n);
    return NULL;
}

static bool is_key(const struct pk *k, const char *key, size_t len)
{
    return k->type == PK_STR && k->len == len && memcmp(k->str, key, len) == 0;
}

/* An index of the first n pairs of a dict by their keys. It is built for dicts that get many pairs. */
struct pk_index {
    struct names *pair;
    uint32_t n;
};

/*
 * Return the dict that holds the pairs of v. v must be a value that pk_pairs() accepts. Returns NULL if v has no pairs
 * yet.
 */
static struct pk *dict_of(const struct pk *v)
{
    if (v->type == PK_DICT)
        return (struct pk *)v;
    return v->type == PK_CALL ? v->fill : v->state;
}

struct pk *pk_get(const struct pk *v, const char *key)
{
    size_t len = strlen(key);
    uint32_t n;
    struct pk **item = pk_pairs(v, &n);
    const struct pk_index *known = n ? dict_of(v)->index : NULL;
    const int at = known && known->n == n ? names_find(known->pair, key) : -1;

    if (at >= 0 && is_key(item[2 * at], key, len))
        return item[2 * at + 1];
    for (uint32_t i = 0; i < n && !(known && known->n == n && at < 0); i++)
        if (is_key(item[2 * i], key, len))
            return item[2 * i + 1];
    return NULL;
}

/* Return the list or tuple that is the only argument of a call, or the fill of a deque. */
static const struct pk *call_items(const struct pk *v)
{
    const struct pk *arg = v->args->n == 1 ? v->args->item[0] : NULL;

    if (pk_is_class(v, "collections", "deque") && v->fill)
        return v->fill;
    if (pk_is_class(v, "torch", "Size") || pk_is_class(v, "collections", "deque") ||
        pickle_is_builtin(v->fn, "set") || pickle_is_builtin(v->fn, "frozenset"))
        return arg;
    return NULL;
}

struct pk **pk_items(const struct pk *v, uint32_t *n)
{
    *n = 0;
    if (!v || v->opaque)
        return NULL;
    if (v->type == PK_CALL) {
        bool empty = v->args->n == 0 && !v->fill && !pk_is_class(v, "torch", "Size") &&
                     (pk_is_class(v, "collections", "deque") || pickle_is_builtin(v->fn, "set") ||
                      pickle_is_builtin(v->fn, "frozenset"));

        if (empty)
            return nothing;
        v = call_items(v);
    }
    if (!v || (v->type != PK_LIST && v->type != PK_TUPLE && v->type != PK_SET))
        return NULL;
    *n = v->n;
    return v->n ? v->item : nothing;
}

/* ---- numbers, including NumPy's scalars ---- */

/*
 * Get at most 8 bytes from a bytes value or from a call _codecs.encode(text, 'latin1'). *bits is set to the bytes, read
 * as a little-endian number. Returns the number of bytes, or 0 for any other value.
 */
static uint64_t short_bytes(const struct pk *raw, uint64_t *bits)
{
    bool latin1 = pk_is_class(raw, "_codecs", "encode") && !raw->opaque;
    uint64_t n = 0;

    if (!latin1 && raw->type != PK_BYTES)
        return 0;
    if (latin1)
        raw = raw->args->item[0];
    *bits = 0;
    for (uint64_t i = 0; i < raw->len; i++, n++) {
        uint8_t c = (uint8_t)raw->str[i];

        if (n == 8 || (latin1 && c > 0xc3))
            return 0;
        if (latin1 && c >= 0x80)        /* a character that UTF-8 encodes in two bytes */
            c = (uint8_t)(c << 6 | ((uint8_t)raw->str[++i] & 0x3f));
        *bits |= (uint64_t)c << 8 * n;
    }
    return n;
}

/*
 * Parse numpy.core.multiarray.scalar(dtype, bytes). *bits is set to the bytes (at most 8). Returns the type string
 * ("f8"), or NULL for any other value.
 */
static const char *numpy_scalar(const struct pk *v, uint64_t *bits)
{
    const struct pk *dtype, *order;
    const char *code;
    uint64_t n;

    if (!v || v->type != PK_CALL || v->opaque || strcmp(v->fn->name, "scalar") != 0 || v->args->n != 2)
        return NULL;
    dtype = v->args->item[0];
    if (!pk_is_class(dtype, "numpy", "dtype") || dtype->type != PK_CALL || dtype->args->n == 0)
        return NULL;
    order = dtype->state && dtype->state->type == PK_TUPLE && dtype->state->n > 1 ? dtype->state->item[1] : NULL;
    if (order && pk_as_str(order) && *pk_as_str(order) == '>')
        return NULL;                    /* big-endian numbers are not supported, because no writer of checkpoints
                                         * uses them */
    code = pk_as_str(dtype->args->item[0]);
    n = short_bytes(v->args->item[1], bits);
    return code && n && strlen(code) == 2 && (uint64_t)(code[1] - '0') == n ? code : NULL;
}

bool pk_as_int(const struct pk *v, int64_t *out)
{
    const char *code;
    uint64_t bits;
    int shift;

    if (v && (v->type == PK_INT || v->type == PK_BOOL)) {
        *out = v->i;
        return true;
    }
    code = numpy_scalar(v, &bits);
    if (!code || !strchr("iub", code[0]) || (code[0] == 'u' && bits > INT64_MAX))
        return false;
    shift = code[0] == 'i' ? 64 - 8 * (code[1] - '0') : 0;
    *out = (int64_t)(bits << shift) >> shift;
    return true;
}

int64_t pk_int_or(const struct pk *v, int64_t otherwise)
{
    int64_t i;

    return pk_as_int(v, &i) ? i : otherwise;
}

bool pk_as_double(const struct pk *v, double *out)
{
    const char *code;
    uint64_t bits;
    int64_t i;

    if (v && v->type == PK_FLOAT) {
        *out = v->f;
        return true;
    }
    if (pk_as_int(v, &i)) {
        *out = (double)i;
        return true;
    }
    code = numpy_scalar(v, &bits);
    if (code && strcmp(code, "f8") == 0) {
        memcpy(out, &bits, sizeof *out);
        return true;
    }
    if (code && strcmp(code, "f4") == 0) {
        uint32_t half = (uint32_t)bits;
        float f;

        memcpy(&f, &half, sizeof f);
        *out = f;
        return true;
    }
    return false;
}

const char *pk_enum(const struct pk *v, int64_t *value)
{
    int64_t none;

    if (!value)
        value = &none;
    *value = INT64_MIN;
    if (pickle_getattr_class(v))
        return pk_as_str(v->args->item[1]);
    /* An enum class that is not on the allow-list looks like any other class that is called with one int. */
    if (v && v->type == PK_CALL && v->args->n == 1 && v->args->item[0]->type == PK_INT &&
        (v->opaque || (pickle_uses(v->fn) & USE_ENUM)))
        *value = v->args->item[0]->i;
    return NULL;
}

/* ---- paths ---- */

static void append_path_step(struct strbuf *out, const struct pk *key, uint32_t i)
{
    if (out->len)
        strbuf_add(out, ".", 1);
    if (key && key->type == PK_STR)
        /* control characters are replaced, because they could control the terminal on which the message is printed */
        for (uint64_t k = 0; k < key->len; k++)
            strbuf_add(out, (uint8_t)key->str[k] < ' ' || key->str[k] == 0x7f ? "?" : &key->str[k], 1);
    else
        strbuf_addf(out, "%lld", key && key->type == PK_INT ? (long long)key->i : (long long)i);
}

/* Search depth-first. The limit on the weight of a tree also limits the time of the search. */
bool pk_path(const struct pk *root, const struct pk *node, struct strbuf *out)
{
    bool dict = root && (root->type == PK_DICT || pk_is_class(root, "collections", "OrderedDict") ||
                         (root->type == PK_OBJ && root->state && root->state->type == PK_DICT));
    size_t len = out->len;
    struct pk **item;
    uint32_t n;

    if (root == node)
        return true;
    item = dict ? pk_pairs(root, &n) : pk_items(root, &n);
    for (uint32_t i = 0; item && i < n; i++) {
        append_path_step(out, dict ? item[2 * i] : NULL, i);
        if (pk_path(item[dict ? 2 * i + 1 : i], node, out))
            return true;
        out->len = len;
    }
    return false;
}

/* ---- constructing ---- */

static struct pk *make_pickle_node(struct arena *a, enum pk_type type)
{
    struct pk *v = arena_alloc(a, sizeof *v);

    v->type = type;
    return v;
}

struct pk *pk_none(struct arena *a)
{
    return make_pickle_node(a, PK_NONE);
}

struct pk *pk_bool(struct arena *a, bool b)
{
    struct pk *v = make_pickle_node(a, PK_BOOL);

    v->i = b;
    return v;
}

struct pk *pk_int(struct arena *a, int64_t i)
{
    struct pk *v = make_pickle_node(a, PK_INT);

    v->i = i;
    return v;
}

struct pk *pk_float(struct arena *a, double f)
{
    struct pk *v = make_pickle_node(a, PK_FLOAT);

    v->f = f;
    return v;
}

struct pk *pk_str(struct arena *a, const char *s)
{
    struct pk *v = make_pickle_node(a, PK_STR);

    v->len = strlen(s);
    v->str = arena_strndup(a, s, v->len);
    return v;
}

struct pk *pk_list(struct arena *a)
{
    return make_pickle_node(a, PK_LIST);
}

struct pk *pk_tuple(struct arena *a)
{
    return make_pickle_node(a, PK_TUPLE);
}

struct pk *pk_dict(struct arena *a)
{
    return make_pickle_node(a, PK_DICT);
}

struct pk *pk_dict_made(struct arena *a, const struct pk_made *made)
{
    struct pk *v = pk_dict(a);

    v->made = made;
    return v;
}

struct pk *pk_ordered_dict(struct arena *a)
{
    struct pk *v = pk_call(a, pk_global(a, "collections", "OrderedDict"), pk_tuple(a));

    v->fill = pk_dict(a);
    return v;
}

struct pk *pk_global(struct arena *a, const char *module, const char *name)
{
    struct pk *v = make_pickle_node(a, PK_GLOBAL);

    v->module = arena_strndup(a, module, strlen(module));
    v->name = arena_strndup(a, name, strlen(name));
    return v;
}

struct pk *pk_call(struct arena *a, struct pk *fn, struct pk *args)
{
    struct pk *v = make_pickle_node(a, PK_CALL);

    v->fn = fn;
    v->args = args;
    return v;
}

struct pk *pk_object(struct arena *a, const char *module, const char *name, struct pk *state)
{
    struct pk *v = make_pickle_node(a, PK_OBJ);

    v->fn = pk_global(a, module, name);
    v->args = pk_tuple(a);
    v->state = state;
    return v;
}

/* Make room for `more` (1 or 2) pointers after the first `used` pointers of v->item. */
static void grow_node_items(struct arena *a, struct pk *v, uint32_t used, uint32_t more)
{
    struct pk **item;

    if (used + more <= v->cap)
        return;
    v->cap = v->cap < 4 ? 4 : 2 * v->cap;
    item = arena_alloc(a, v->cap * sizeof *item);
    if (used)
        memcpy(item, v->item, used * sizeof *item);
    v->item = item;
}

void pk_add(struct arena *a, struct pk *v, struct pk *x)
{
    grow_node_items(a, v, v->n, 1);
    v->item[v->n++] = x;
}

/* Returns true if the keys are equal ints or equal strings. */
static bool same_key(const struct pk *a, const struct pk *b)
{
    if (a->type == PK_INT && b->type == PK_INT)
        return a->i == b->i;
    return a->type == PK_STR && is_key(b, a->str, a->len);
}


static void index_next(struct pk *d)
{
    const struct pk *key = d->item[2 * d->index->n];

    if (key->type == PK_STR)
        names_add(d->index->pair, key->str, (int)d->index->n);
    d->index->n++;
}

/* Append a pair. The dict must not contain the key yet. */
static void append_dict_pair(struct arena *a, struct pk *dict, struct pk *key, struct pk *v)
{
    struct pk *d = dict_of(dict);

    if (!d)
        d = dict->fill = pk_dict(a);    /* this OrderedDict had no pairs in its file */
    grow_node_items(a, d, 2 * d->n, 2);
    d->item[2 * d->n] = key;
    d->item[2 * d->n + 1] = v;
    d->n++;
    if (d->index && d->index->n + 1 == d->n)
        index_next(d);
}

/*
 * Look up a key in the index of d, after adding all pairs of d that the index lacks. Returns the index of the pair with
 * this key, or -1 if there is none. Returns -2 if the index cannot decide, so that the key must be compared with all
 * pairs.
 */
static int64_t find_indexed(struct arena *a, struct pk *d, const struct pk *key)
{
    enum { MANY = 32 };
    int i;

    if (d->n < MANY || key->type != PK_STR || strlen(key->str) != key->len)
        return -2;
    if (!d->index || d->index->n > d->n) {
        d->index = arena_alloc(a, sizeof *d->index);
        d->index->pair = names_new(a);
    }
    while (d->index->n < d->n)
        index_next(d);
    i = names_find(d->index->pair, key->str);
    return i < 0 ? -1 : same_key(key, d->item[2 * i]) ? i : -2;
}

static int64_t find_dict_pair(struct arena *a, struct pk *d, const struct pk *key)
{
    int64_t found = d ? find_indexed(a, d, key) : -1;

    if (found != -2)
        return found;
    for (uint32_t i = 0; i < d->n; i++)
        if (same_key(key, d->item[2 * i]))
            return i;
    return -1;
}

void pk_set(struct arena *a, struct pk *dict, struct pk *key, struct pk *v)
{
    struct pk *d = dict_of(dict);
    const int64_t i = find_dict_pair(a, d, key);

    if (i >= 0)
        d->item[2 * i + 1] = v;
    else
        append_dict_pair(a, dict, key, v);
}

void pk_set_str(struct arena *a, struct pk *dict, const char *key, struct pk *v)
{
    pk_set(a, dict, pk_str(a, key), v);
}

void pk_set_int(struct arena *a, struct pk *dict, const char *key, int64_t v)
{
    pk_set_str(a, dict, key, pk_int(a, v));
}

bool pk_remove(struct pk *dict, const char *key)
{
    struct pk *d = dict_of(dict);
    size_t len = strlen(key);

    for (uint32_t i = 0; d && i < d->n; i++)
        if (is_key(d->item[2 * i], key, len)) {
            d->index = NULL;
            memmove(d->item + 2 * i, d->item + 2 * i + 2, (size_t)(d->n - i - 1) * 2 * sizeof *d->item);
            d->n--;
            return true;
        }
    return false;
}

/* ---- copying ---- */

struct copier {
    struct arena *a;
    struct pickle_map map;
    struct pk *(*swap)(void *ctx, const struct pk *node);
    void *ctx;
};

static struct pk *copy_pickle_node(struct copier *c, const struct pk *v);

static void copy_inside(struct copier *c, struct pk *to, const struct pk *v)
{
    uint32_t n = v->type == PK_DICT ? 2 * v->n : v->n;

    switch (v->type) {
    case PK_STR: case PK_BYTES: case PK_BIGINT:
        to->str = arena_strndup(c->a, v->str, v->len);
        break;
    case PK_GLOBAL:
        to->module = arena_strndup(c->a, v->module, strlen(v->module));
        to->name = arena_strndup(c->a, v->name, strlen(v->name));
        break;
    case PK_LIST: case PK_TUPLE: case PK_SET: case PK_DICT:
        to->cap = n;
        to->index = NULL;
        to->item = arena_alloc(c->a, n * sizeof *to->item);
        for (uint32_t i = 0; i < n; i++)
            to->item[i] = copy_pickle_node(c, v->item[i]);
        break;
    case PK_CALL: case PK_OBJ: case PK_PERSID:
        to->fn = v->fn ? copy_pickle_node(c, v->fn) : NULL;
        to->args = copy_pickle_node(c, v->args);
        to->state = v->state ? copy_pickle_node(c, v->state) : NULL;
        to->fill = v->fill ? copy_pickle_node(c, v->fill) : NULL;
        break;
    default:
        break;
    }
}

static struct pk *copy_pickle_node(struct copier *c, const struct pk *v)
{
    struct pk *to = pickle_map_get(&c->map, v)->copy;

    if (to)
        return to;
    to = c->swap ? c->swap(c->ctx, v) : NULL;
    if (!to) {
        to = arena_alloc(c->a, sizeof *to);
        *to = *v;
        copy_inside(c, to, v);
    }
    pickle_map_get(&c->map, v)->copy = to;      /* the entry must be looked up again, because the map may have grown */
    return to;
}

struct pk *pk_copy_swap(struct arena *a, const struct pk *v,
                        struct pk *(*swap)(void *ctx, const struct pk *node), void *ctx)
{
    struct copier c = { .a = a, .swap = swap, .ctx = ctx };
    struct pk *to;

    if (!v)
        return pk_none(a);
    to = copy_pickle_node(&c, v);

    pickle_map_free(&c.map);
    return to;
}

struct pk *pk_copy(struct arena *a, const struct pk *v)
{
    return pk_copy_swap(a, v, NULL, NULL);
}
