/*
 * pickle_write.c - write a tree as a pickle, in two passes over the tree
 *
 * The first pass counts how often each node is reached. The second pass writes. If a node is reached again, a BINGET is
 * written, so that shared nodes remain shared. Numbers are written again each time. Strings and globals are written
 * again, unless a PUT and later GETs need fewer bytes.
 *
 * The pairs of a dict of pk_dict_made() are made in both passes, one at a time. The map keeps copies of their strings
 * and globals. It has no entries for their other nodes, which are reached only once.
 */
#include "libcommon/format/pickle/pickle.h"

#include <string.h>

#include "libcommon/format/pickle/pickle_map.h"

struct pickle_writer {
    struct strbuf *out;
    struct pickle_map map;
    uint32_t n_memo;
    struct arena *kept;                 /* the copies of strings and globals of made pairs that are keys of the map */
    struct arena *pair;                 /* the made pair that is being counted or written, */
    bool in_pair;                       /* and true while it is */
};

/*
 * Maximum number of items between a mark and its SETITEMS or APPENDS, the same as in CPython. It limits the size of a
 * reader's stack.
 */
enum { BATCH = 1000 };

static bool is_unmemoized_scalar(const struct pk *v)
{
    return v->type <= PK_INT || v->type == PK_FLOAT || (v->type == PK_TUPLE && v->n == 0);
}

/* Returns the entry of node v in the map; NULL if the node is never written as a reference to an earlier one. */
static struct pickle_fact *node_fact(struct pickle_writer *w, const struct pk *v)
{
    struct pickle_fact *f;

    if (is_unmemoized_scalar(v) || (w->in_pair && v->type != PK_STR && v->type != PK_GLOBAL))
        return NULL;
    f = pickle_map_get(&w->map, v);
    if (w->in_pair && f->key == v)
        f->key = pk_copy(w->kept, v);
    return f;
}

static void count_node_refs(struct pickle_writer *w, const struct pk *v);

/* Make pair i of a dict and call use() for its key and its value. */
static void visit_made_pair(struct pickle_writer *w, const struct pk_made *made, uint32_t i,
                            void (*use)(struct pickle_writer *w, const struct pk *v))
{
    const struct arena_mark start = arena_mark(w->pair);
    struct pk *pair[2];

    made->make(made->ctx, i, w->pair, pair);
    w->in_pair = true;
    use(w, pair[0]);
    use(w, pair[1]);
    w->in_pair = false;
    arena_release(w->pair, start);
}

static void count_node_refs(struct pickle_writer *w, const struct pk *v)
{
    struct pickle_fact *f = node_fact(w, v);
    uint32_t n = v->type == PK_DICT ? 2 * v->n : v->n;

    if (is_unmemoized_scalar(v) || (f && f->refs++))
        return;
    if (v->type == PK_DICT && v->made)
        for (uint32_t i = 0; i < v->made->n; i++)
            visit_made_pair(w, v->made, i, count_node_refs);
    switch (v->type) {
    case PK_LIST: case PK_TUPLE: case PK_SET: case PK_DICT:
        for (uint32_t i = 0; i < n; i++)
            count_node_refs(w, v->item[i]);
        break;
    case PK_CALL: case PK_OBJ: case PK_PERSID:
        if (v->fn)
            count_node_refs(w, v->fn);
        count_node_refs(w, v->args);
        if (v->fill)
            count_node_refs(w, v->fill);
        if (v->state)
            count_node_refs(w, v->state);
        break;
    default:
        break;
    }
}

static void put_op(struct pickle_writer *w, uint8_t op)
{
    strbuf_add(w->out, &op, 1);
}

static void put_op8(struct pickle_writer *w, uint8_t op, uint8_t v)
{
    uint8_t b[2] = { op, v };

    strbuf_add(w->out, b, 2);
}

static void put_op32(struct pickle_writer *w, uint8_t op, uint32_t v)
{
    uint8_t b[5] = { op };

    put_le32(b + 1, v);
    strbuf_add(w->out, b, 5);
}

static void write_pickle_int(struct pickle_writer *w, int64_t v)
{
    uint8_t b[10] = { 0x8a }, n = 8;

    if (v >= 0 && v <= 0xff) {
        put_op8(w, 'K', (uint8_t)v);
    } else if (v >= 0 && v <= 0xffff) {
        b[0] = 'M';
        put_le16(b + 1, (uint16_t)v);
        strbuf_add(w->out, b, 3);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        put_op32(w, 'J', (uint32_t)v);
    } else {
        put_le64(b + 2, (uint64_t)v);
        while ((int64_t)((uint64_t)v << (72 - 8 * n)) >> (72 - 8 * n) == v)
            /* remove the highest byte while the remaining bytes still represent the value */
            n--;
        b[1] = n;
        strbuf_add(w->out, b, 2u + n);
    }
}

static void put_bigint(struct pickle_writer *w, const struct pk *v)
{
    if (v->len < 256)
        put_op8(w, 0x8a, (uint8_t)v->len);
    else
        put_op32(w, 0x8b, (uint32_t)v->len);
    strbuf_add(w->out, v->str, v->len);
}

static void write_pickle_float(struct pickle_writer *w, double f)
{
    uint8_t b[9] = { 'G' };
    uint64_t bits;

    memcpy(&bits, &f, sizeof bits);
    for (int i = 0; i < 8; i++)
        b[1 + i] = (uint8_t)(bits >> (56 - 8 * i));
    strbuf_add(w->out, b, 9);
}

static void put_str(struct pickle_writer *w, const char *s, uint64_t len)
{
    put_op32(w, 'X', (uint32_t)len);
    strbuf_add(w->out, s, len);
}

static void put_global(struct pickle_writer *w, const char *module, const char *name)
{
    strbuf_addf(w->out, "c%s\n%s\n", module, name);
}

/* Write bytes as protocol 2 does: _codecs.encode(text, 'latin1'). */
static void write_pickle_bytes(struct pickle_writer *w, const struct pk *v)
{
    struct strbuf text = {0};

    for (uint64_t i = 0; i < v->len; i++) {
        uint8_t c = (uint8_t)v->str[i], two[2] = { 0xc0 | c >> 6, 0x80 | (c & 0x3f) };

        if (c < 0x80)
            strbuf_add(&text, &c, 1);
        else
            strbuf_add(&text, two, 2);
    }
    put_global(w, "_codecs", "encode");
    put_str(w, text.buf ? text.buf : "", text.len);
    put_str(w, "latin1", 6);
    put_op(w, 0x86);
    put_op(w, 'R');
    strbuf_free(&text);
}

/* Returns true if a PUT now and GETs later need fewer bytes than writing v `refs` times. */
static bool worth_memo(const struct pk *v, uint32_t refs, uint32_t next)
{
    uint64_t cost = next < 256 ? 2 : 5, len;

    if (refs < 2)
        return false;
    if (v->type == PK_STR)
        len = 5 + v->len;
    else if (v->type == PK_GLOBAL)
        len = 3 + strlen(v->module) + strlen(v->name);
    else
        return true;                    /* these nodes are always stored, because one shared list is not the same as two
                                         * equal lists */
    return cost * refs < len * (refs - 1);
}

static void write_memo_put(struct pickle_writer *w, const struct pk *v)
{
    struct pickle_fact *f = node_fact(w, v);

    if (!f || f->memo || !worth_memo(v, f->refs, w->n_memo))
        return;
    if (w->n_memo < 256)
        put_op8(w, 'q', (uint8_t)w->n_memo);
    else
        put_op32(w, 'r', w->n_memo);
    f->memo = ++w->n_memo;
}

static void write_pickle_node(struct pickle_writer *w, const struct pk *v);

/*
 * Write the items of v in batches of at most BATCH items. An item consists of `unit` pointers. A batch of a
 * single item ends with opcode `one`. A larger batch is written between a mark and opcode `many`.
 */
static void put_batches(struct pickle_writer *w, const struct pk *v, uint32_t unit, uint8_t one, uint8_t many)
{
    const struct pk_made *made = v->type == PK_DICT ? v->made : NULL;
    const uint32_t n_items = made ? made->n : v->n;

    for (uint32_t i = 0; i < n_items;) {
        uint32_t n = n_items - i < BATCH ? n_items - i : BATCH;

        if (n > 1)
            put_op(w, '(');
        for (uint32_t k = 0; made && k < n; k++)
            visit_made_pair(w, made, i + k, write_pickle_node);
        for (uint32_t k = 0; !made && k < n * unit; k++)
            write_pickle_node(w, v->item[i * unit + k]);
        put_op(w, n > 1 ? many : one);
        i += n;
    }
}

static void put_fill(struct pickle_writer *w, const struct pk *v)
{
    if (v->type == PK_DICT)
        put_batches(w, v, 2, 's', 'u');
    else
        put_batches(w, v, 1, 'a', 'e');
}

static void put_tuple(struct pickle_writer *w, const struct pk *v)
{
    if (v->n > 3)
        put_op(w, '(');
    for (uint32_t i = 0; i < v->n; i++)
        write_pickle_node(w, v->item[i]);
    put_op(w, v->n == 0 ? ')' : v->n > 3 ? 't' : (uint8_t)(0x84 + v->n));
}

/* Write a set as set([...]), because protocol 2 has no opcode for sets. */
static void put_set(struct pickle_writer *w, const struct pk *v)
{
    put_global(w, "__builtin__", "set");
    put_op(w, ']');
    put_batches(w, v, 1, 'a', 'e');
    put_op(w, 0x85);
    put_op(w, 'R');
}

static void put_act(struct pickle_writer *w, const struct pk *v)
{
    if (v->fn)
        write_pickle_node(w, v->fn);
    write_pickle_node(w, v->args);
    put_op(w, v->type == PK_CALL ? 'R' : v->type == PK_OBJ ? 0x81 : 'Q');
}

static void write_pickle_node(struct pickle_writer *w, const struct pk *v)
{
    const struct pickle_fact *f = node_fact(w, v);

    if (f && f->memo) {
        if (f->memo <= 256)
            put_op8(w, 'h', (uint8_t)(f->memo - 1));
        else
            put_op32(w, 'j', f->memo - 1);
        return;
    }
    switch (v->type) {
    case PK_NONE:   put_op(w, 'N'); break;
    case PK_BOOL:   put_op(w, v->i ? 0x88 : 0x89); break;
    case PK_ROW:        /* cannot occur, because trees with rows are never written */
    case PK_INT:    write_pickle_int(w, v->i); break;
    case PK_BIGINT: put_bigint(w, v); break;
    case PK_FLOAT:  write_pickle_float(w, v->f); break;
    case PK_STR:    put_str(w, v->str, v->len); break;
    case PK_BYTES:  write_pickle_bytes(w, v); break;
    case PK_GLOBAL: put_global(w, v->module, v->name); break;
    case PK_TUPLE:  put_tuple(w, v); break;
    case PK_SET:    put_set(w, v); break;
    case PK_LIST:   put_op(w, ']'); break;
    case PK_DICT:   put_op(w, '}'); break;
    case PK_CALL: case PK_OBJ: case PK_PERSID: put_act(w, v); break;
    }
    write_memo_put(w, v);
    if (v->type == PK_LIST || v->type == PK_DICT)
        put_fill(w, v);
    if (v->type != PK_CALL && v->type != PK_OBJ)
        return;
    if (v->fill)
        put_fill(w, v->fill);
    if (v->state) {
        write_pickle_node(w, v->state);
        put_op(w, 'b');
    }
}

void pickle_write(const struct pk *root, struct strbuf *out)
{
    struct pickle_writer w = { .out = out, .kept = arena_new(0), .pair = arena_new(0) };

    put_op8(&w, 0x80, 2);
    count_node_refs(&w, root);
    write_pickle_node(&w, root);
    put_op(&w, '.');
    pickle_map_free(&w.map);
    arena_free(w.kept);
    arena_free(w.pair);
}
