/*
 * mutate_claims.c - mutations that leave each file well formed but change names, types, numbers and places
 */
#include <jansson.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "tests/lib/mutants/mutate_impl.h"

/* ---- JSON ---- */

/* Return the number of bytes of JSON in a file and set *at to their start: the whole of a .json, or the header of a
 * safetensors file. Returns 0 if it has none. */
static uint64_t json_part(const struct mutate_file *f, uint64_t *at)
{
    *at = str_ends(f->name, ".safetensors") ? 8 : 0;
    if (*at == 0)
        return str_ends(f->name, ".json") ? f->size : 0;
    return f->size > 8 && get_le32(f->bytes) <= f->size - 8 ? get_le32(f->bytes) : 0;
}

/* A node of a document and its place: its container, and its key or index there. */
struct place {
    json_t *in, *value;
    const char *key;
    size_t index;
};
enum { PLACES = 4096 };

static int list_places(json_t *in, struct place *p, int n)
{
    json_t *v;
    const char *key;
    size_t i;

    if (json_is_object(in)) {
        json_object_foreach(in, key, v) {
            if (n == PLACES)
                return n;
            p[n] = (struct place){ in, v, key, 0 };
            n = list_places(v, p, n + 1);
        }
    } else if (json_is_array(in)) {
        json_array_foreach(in, i, v) {
            if (n == PLACES)
                return n;
            p[n] = (struct place){ in, v, NULL, i };
            n = list_places(v, p, n + 1);
        }
    }
    return n;
}

static void put(const struct place *p, json_t *v)
{
    if (p->key)
        json_object_set_new(p->in, p->key, v);
    else
        json_array_set_new(p->in, p->index, v);
}

/* Return another value of the same type. */
static json_t *other_value(struct mutation *m, const json_t *v)
{
    const json_int_t i = json_integer_value(v);
    const json_int_t ints[] = { i + 1, i - 1, 0, -1, i * 2, i / 2, 1ll << 40, i + 4 };
    char text[64];

    if (json_is_integer(v))
        return json_integer(ints[mutate_pick(m, 8)]);
    if (json_is_real(v))
        return json_real(json_real_value(v) * (double)mutate_pick(m, 3));
    if (json_is_boolean(v))
        return json_boolean(!json_is_true(v));
    if (json_is_string(v) && json_string_length(v) > 0 && json_string_length(v) < sizeof text) {
        strcpy(text, json_string_value(v));
        text[mutate_pick(m, strlen(text))] = (char)('0' + mutate_pick(m, 10));
        return json_string(text);
    }
    return mutate_pick(m, 2) ? json_null() : json_integer(1);
}

static void change_node(struct mutation *m, const struct place *p, int n)
{
    const struct place *a = &p[mutate_pick(m, (uint64_t)n)], *b = &p[mutate_pick(m, (uint64_t)n)];
    const uint64_t how = mutate_pick(m, 5);

    strbuf_addf(m->what, "%s ", a->key ? a->key : "item");
    if (how < 2) {
        strbuf_addf(m->what, "has another value");
        put(a, other_value(m, a->value));
    } else if (how == 2) {              /* prefer siblings: two tensors, two offsets, two shapes */
        json_t *copy = json_deep_copy(a->value);

        for (int i = 0; i < 64 && (b == a || b->in != a->in); i++)
            b = &p[mutate_pick(m, (uint64_t)n)];
        strbuf_addf(m->what, "and %s are exchanged", b->key ? b->key : "item");
        put(a, json_deep_copy(b->value));
        if (b != a && b->in == a->in)
            put(b, copy);
        else
            json_decref(copy);
    } else if (how == 3) {
        strbuf_addf(m->what, "is removed");
        if (a->key)
            json_object_del(a->in, a->key);
        else
            json_array_remove(a->in, a->index);
    } else {
        strbuf_addf(m->what, "has the value of %s", b->key ? b->key : "item");
        put(a, json_deep_copy(b->value));
    }
}

void mutate_json(struct mutation *m)
{
    struct place *p = xcalloc(PLACES, sizeof *p);
    struct mutate_file *f = NULL;
    uint64_t at = 0, len = 0;
    json_t *root = NULL;
    int n = 0;

    for (int i = 0; i < 200 && n == 0; i++) {
        f = mutate_any_file(m);
        len = json_part(f, &at);
        root = len ? json_loadb((const char *)f->bytes + at, len, JSON_DECODE_ANY, NULL) : NULL;
        n = root ? list_places(root, p, 0) : 0;
    }
    if (n > 0) {
        const struct mutate_file was = *f;
        char *text;

        strbuf_addf(m->what, "%s: ", f->name);
        change_node(m, p, n);
        text = json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY);
        f->size = at + strlen(text) + (was.size - at - len);
        f->bytes = xcalloc(1, f->size + 1);
        if (at)
            put_le32(f->bytes, (uint32_t)strlen(text));
        memcpy(f->bytes + at, text, strlen(text));
        memcpy(f->bytes + at + strlen(text), was.bytes + at + len, was.size - at - len);
        f->changed = true;
        free(text);
    }
    json_decref(root);
    free(p);
}

/* ---- pickles ---- */

/* A pickle of a file that may be changed: a bare one, or a record whose checksum must be repaired afterwards. */
struct pickled {
    struct mutate_file *f;
    struct mutate_entry record;
    bool is_record;
    uint8_t *p;
    uint64_t len;
};

static bool any_pickle(struct mutation *m, struct pickled *x)
{
    for (int tries = 0; tries < 200; tries++) {
        struct mutate_file *f = mutate_any_file(m);
        struct mutate_entry e[MUTATE_ENTRIES];
        int n, from;

        *x = (struct pickled){ .f = f };
        if (strcmp(f->name, ".metadata") == 0) {
            mutate_own(f, f->size);
            x->p = f->bytes;
            x->len = f->size;
            return true;
        }
        if (mutate_is_bare(f->name) || f->changed)
            continue;
        n = mutate_entries(f, e, MUTATE_ENTRIES);
        from = n > 0 ? (int)mutate_pick(m, (uint64_t)n) : 0;
        for (int i = 0; i < n; i++)
            if (str_ends(e[(from + i) % n].name, "/data.pkl")) {
                mutate_own(f, f->size);
                x->record = e[(from + i) % n];
                x->is_record = true;
                x->p = f->bytes + x->record.at;
                x->len = x->record.size;
                return true;
            }
    }
    return false;
}

static void seal(struct pickled *x)
{
    if (x->is_record)
        mutate_put_crc(x->f, &x->record);
}

/* Find the text of the first string at or after a random position. Returns its length, or 0. */
static uint64_t any_string(struct mutation *m, const struct pickled *x, uint64_t *at)
{
    const uint64_t from = mutate_pick(m, x->len);

    for (uint64_t k = 0; k < x->len; k++) {
        const uint64_t i = (from + k) % x->len;
        const bool is_short = x->p[i] == 0x8c;
        const uint64_t head = is_short ? 2 : 5;
        uint64_t n;

        if ((x->p[i] != 'X' && !is_short) || i + head >= x->len)
            continue;
        n = is_short ? x->p[i + 1] : get_le32(x->p + i + 1);
        if (n == 0 || n > 100 || i + head + n > x->len)
            continue;
        *at = i + head;
        for (uint64_t c = 0; c < n && n; c++)
            n = x->p[*at + c] < ' ' || x->p[*at + c] > '~' ? 0 : n;
        if (n)
            return n;
    }
    return 0;
}

void mutate_name_of(struct mutation *m)
{
    struct pickled x;
    uint64_t a, b, n;

    if (!any_pickle(m, &x) || (n = any_string(m, &x, &a)) == 0)
        return;
    strbuf_addf(m->what, "%s: %.*s at %llu ", x.f->name, (int)n, (const char *)x.p + a, (unsigned long long)a);
    for (int tries = 0; tries < 400; tries++)
        if (any_string(m, &x, &b) == n && b != a && memcmp(x.p + a, x.p + b, n) != 0) {
            strbuf_addf(m->what, "and %.*s", (int)n, (const char *)x.p + b);
            for (uint64_t i = 0; i < n; i++) {
                const uint8_t c = x.p[a + i];

                x.p[a + i] = x.p[b + i];
                x.p[b + i] = c;
            }
            seal(&x);
            return;
        }
    x.p[a + mutate_pick(m, n)] = (uint8_t)('0' + mutate_pick(m, 10));
    strbuf_addf(m->what, "becomes %.*s", (int)n, (const char *)x.p + a);
    seal(&x);
}

/* Each row lists names of equal length. */
static const char *const types[][5] = {
    { "FloatStorage", "ShortStorage" }, { "HalfStorage", "ByteStorage", "CharStorage", "BoolStorage", "LongStorage" },
    { "float32", "float16", "float64" }, { "int32", "int64", "int16", "uint8" }, { "\"F32\"", "\"I32\"", "\"U32\"" },
    { "\"BF16\"", "\"BOOL\"" }, { "\"F16\"", "\"I16\"", "\"U16\"" }, { "\"I64\"", "\"F64\"", "\"U64\"", "\"C64\"" },
};

/* Replace one of these names in `n` bytes. */
static bool replace_type(struct mutation *m, uint8_t *p, uint64_t n)
{
    const uint64_t from = mutate_pick(m, n);

    for (uint64_t k = 0; k < n; k++) {
        const uint64_t i = (from + k) % n;

        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (int a = 0; a < 5 && types[t][a]; a++) {
                const uint64_t len = strlen(types[t][a]);
                int b;

                if (i + len > n || memcmp(p + i, types[t][a], len) != 0)
                    continue;
                do
                    b = (int)mutate_pick(m, 5);
                while (!types[t][b] || b == a);
                strbuf_addf(m->what, "%s at %llu becomes %s", types[t][a], (unsigned long long)i, types[t][b]);
                memcpy(p + i, types[t][b], len);
                return true;
            }
    }
    return false;
}

void mutate_type(struct mutation *m)
{
    struct mutate_file *f = mutate_any_file(m);
    uint64_t at = 0, len = json_part(f, &at);
    struct pickled x;

    if (len > 0) {
        mutate_own(f, f->size);
        strbuf_addf(m->what, "%s: ", f->name);
        replace_type(m, f->bytes + at, len);
    } else if (any_pickle(m, &x)) {
        strbuf_addf(m->what, "%s: ", x.f->name);
        if (replace_type(m, x.p, x.len))
            seal(&x);
    }
}

/* ---- bytes ---- */

void mutate_payload(struct mutation *m)
{
    for (int tries = 0; tries < 100; tries++) {
        struct mutate_file *f = mutate_any_file(m);
        uint64_t at = 0, len = json_part(f, &at), from, n;

        if (at == 0 || len == 0 || at + len >= f->size)
            continue;
        mutate_own(f, f->size);
        from = at + len + mutate_pick(m, f->size - at - len);
        n = 1 + mutate_pick(m, 16);
        for (uint64_t i = from; i < from + n && i < f->size; i++)
            f->bytes[i] = (uint8_t)mutate_pick(m, 256);
        strbuf_addf(m->what, "%s: %llu bytes at %llu", f->name, (unsigned long long)n, (unsigned long long)from);
        return;
    }
}

void mutate_empty(struct mutation *m)
{
    const struct mutate_file *like = mutate_any_file(m);
    const bool all = mutate_pick(m, 4) == 0;

    for (int i = 0; i < m->s->n; i++) {
        struct mutate_file *f = &m->s->file[i];

        if (f == like || (all && mutate_are_alike(f->name, like->name)))
            mutate_own(f, 0);
    }
    strbuf_addf(m->what, "%s%s", like->name, all ? " and others of its kind" : "");
}
