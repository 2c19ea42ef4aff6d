/*
 * pickle.h - parse pickles into trees of data, without executing them
 *
 * The parser runs the stream of a data.pkl (protocol <= 5, only the opcodes that hold data) and builds a tree. It never
 * executes or imports anything: a GLOBAL becomes a name, a REDUCE or NEWOBJ becomes a node that holds the callable and
 * its arguments as data, and a BUILD attaches its state to the node. Therefore pickle_write() can write any tree, even
 * one with unknown classes.
 *
 * A compile-time allow-list defines the meaning of callables. If the class of a node is not on the list, the node has
 * `opaque` set and is listed in pk_tree.opaque. Only its class name is then known, so a caller that needs the value
 * must refuse it.
 *
 * The number of bytes, the nesting, the memo, the number of nodes and the lengths of strings are limited (below), and
 * the tree is in one arena with a ceiling. The memo allows a node to have several parents. A cycle is refused, and so
 * is a string or int key that appears twice in one dict.
 *
 * Threads: a parsed tree never changes.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_H
#define SHARDKIT_FORMAT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

enum pk_type {
    PK_NONE, PK_BOOL, PK_INT,           /* value in i; also for PK_BOOL */
    PK_BIGINT,                          /* value in str[len]: two's complement, little-endian, more than 8 bytes */
    PK_FLOAT,
    PK_STR, PK_BYTES,                   /* value in str[len]; PK_STR is followed by a NUL */
    PK_LIST, PK_TUPLE, PK_SET,          /* members in item[n] */
    PK_DICT,                            /* item[2n]: key, value, in insertion order */
    PK_GLOBAL,                          /* names in module, name */
    PK_CALL,                            /* made by REDUCE: the call fn(args...) */
    PK_OBJ,                             /* made by NEWOBJ: fn.__new__(fn, args...) */
    PK_PERSID,                          /* args is a persistent id, in these files always a tuple that refers to a
                                         * storage */
    PK_ROW,                             /* only pickle_parse_table(): an object that take() accepted; i is its number */
};

struct pk {
    enum pk_type type;
    bool opaque;                        /* the class of the node is not on the allow-list */
    /* used by the parser: state of its walk, and number of levels below this node */
    uint8_t mark, height;
    uint32_t n;                         /* number of items; for a dict, number of pairs */
    /* used by code that builds trees: number of pointers for which `item` has room */
    uint32_t cap;
    uint32_t weight;                    /* used by the parser: number of nodes below this node; a shared node counts
                                         * once for each reference */
    uint64_t at;                        /* for messages: offset in the pickle of the opcode that made the node */
    union {
        int64_t i;
        double f;
        struct { const char *str; uint64_t len; };
        struct {
            struct pk **item;           /* for PK_LIST, PK_TUPLE, PK_SET, PK_DICT */
            struct pk_index *index;     /* PK_DICT: index of the dict's string keys, which pk_set() builds if there are
                                         * many keys; or NULL */
            const struct pk_made *made; /* PK_DICT: what pk_dict_made() was called with; or NULL */
        };
        struct { const char *module, *name; };
        struct {
            struct pk *fn;              /* CALL: the callable; OBJ: the class; PERSID: NULL */
            struct pk *args;            /* a tuple; PERSID: the id */
            struct pk *state;           /* operand of BUILD, or NULL */
            struct pk *fill;            /* an object's items: a PK_LIST made by APPENDS or a PK_DICT made by
                                         * SETITEMS, or NULL */
        };
    };
};

/*
 * The pairs of a dict that are made while pickle_write() writes the dict, because there are too many pairs to be in
 * memory at once. pickle_write() calls make() for i = 0 to n - 1 in this order, twice. make() allocates the key,
 * pair[0], and the value, pair[1], in `a`. They are removed from `a` before the next call. Both calls for an i must
 * return equal trees. A node of a pair must be reached only once, unless it is a string or a global. A pair must not
 * contain another dict of this kind.
 */
struct pk_made {
    uint32_t n;
    void (*make)(void *ctx, uint32_t i, struct arena *a, struct pk *pair[2]);
    void *ctx;
};

struct pk_tree {
    struct arena *arena;
    struct pk *root;
    uint32_t n_opaque;
    const struct pk **opaque;           /* every opaque node, in stream order */
    uint32_t n_acts;
    const struct pk **act;              /* every CALL, OBJ and PERSID, in stream order */
};

/*
 * Limits of a pickle. PICKLE_MAX_WEIGHT limits the number of nodes that a walk over all pointers visits. A small pickle
 * of nested lists, each shared several times, could otherwise take practically infinite time. Trees without shared
 * nodes never reach this limit.
 */
#define PICKLE_MAX_BYTES  ((size_t)256 << 20)
#define PICKLE_MAX_DEPTH  200           /* nested values; also the limit for the number of marks */
#define PICKLE_MAX_STACK  (4u << 20)    /* values on the stack of the machine */
#define PICKLE_MAX_MEMO   (64u << 20)   /* highest memo index + 1 */
#define PICKLE_MAX_ARENA  ((size_t)512 << 20)
#define PICKLE_MAX_WEIGHT (32u << 20)   /* nodes, plus one per 16 bytes of string; a shared node counts once for each
                                         * reference */

/*
 * Parse a pickle. `name` is its name in messages ("/x/y.pt: data.pkl"). Returns 0 and sets *out to the tree, which the
 * caller frees with pk_tree_free(). Returns -1 with ERR_DATA and the offset inside the pickle on failure.
 */
MUST_CHECK int pickle_parse(const void *bytes, size_t len, const char *name,
                            struct pk_tree *out, struct err *e);
/*
 * Parse a pickle that is one large table, with a few entries for each piece of a checkpoint of thousands of ranks. The
 * memory limit is PICKLE_TABLE_ROOM bytes per byte of the pickle, or the usual limit if that is larger. Each complete
 * object of one of the given classes is passed to take(). If take() accepts the object, the memory of the object is
 * released, and the tree stores only the number that take() returned (PK_ROW). The object has not been checked at this
 * time. take() must therefore check every node of it, and accept only an object that it understands completely.
 */
struct pickle_rows {
    const char *const (*cls)[2];        /* module and name of each class */
    int n;
    /* Returns the number for the object, or -1 if the object is to remain in the tree. */
    int64_t (*take)(void *ctx, int cls, const struct pk *v);
    void *ctx;
};
MUST_CHECK int pickle_parse_table(const void *bytes, size_t len, const char *name, const struct pickle_rows *rows,
                                  struct pk_tree *out, struct err *e);
#define PICKLE_TABLE_ROOM 48
void pk_tree_free(struct pk_tree *t);
/*
 * Append the tree to `out` as a pickle of protocol 2 that torch's weights-only unpickler accepts. A shared node is
 * written once, and later references read it from the memo. A string is stored in the memo only if that saves bytes.
 */
void pickle_write(const struct pk *root, struct strbuf *out);

/*
 * Functions that read a tree. They return NULL or false if v has another form. v may be NULL, except in pk_is_plain().
 */
/*
 * Return the value of the string key `key` in a dict, in an OrderedDict, or in the state of an object such as a
 * Namespace.
 */
struct pk *pk_get(const struct pk *v, const char *key);
/*
 * Return the pairs of a dict, of an OrderedDict (a CALL with fill), or of an object's state. Pair i is item[2i] (key)
 * and item[2i+1] (value). *n is set to the number of pairs.
 */
struct pk **pk_pairs(const struct pk *v, uint32_t *n);
/* Return the items of a list, tuple, set, frozenset, deque or torch.Size. *n is set to the number of items. */
struct pk **pk_items(const struct pk *v, uint32_t *n);
bool pk_as_int(const struct pk *v, int64_t *out);       /* also accepts a bool and an integer scalar of NumPy */
int64_t pk_int_or(const struct pk *v, int64_t otherwise);       /* like pk_as_int(); returns `otherwise` if v is NULL
                                                                 * or no integer */
bool pk_as_double(const struct pk *v, double *out);     /* also accepts an int */
/*
 * Return the text of a string. Returns NULL if v is not a string, or if its text contains a NUL, because such a text is
 * not a valid name.
 */
const char *pk_as_str(const struct pk *v);
bool pk_is_none(const struct pk *v);                    /* also true if v is NULL */
/* Returns true if v is a text, a number, None, or a list, tuple or dict of such values. Any loader accepts these. */
bool pk_is_plain(const struct pk *v);
/*
 * Write the class name of an OBJ, CALL or GLOBAL to buf ("megatron.enums.PositionEmbeddingType"), and return buf.
 * Returns NULL for any other value.
 */
const char *pk_class(const struct pk *v, char *buf, size_t size);
bool pk_is_class(const struct pk *v, const char *module, const char *name);
/*
 * Parse an enum member, which is pickled in one of two forms. For getattr(cls, 'alibi'), returns the name of the
 * member. For cls(3), returns NULL and sets *value to 3. For any other v, returns NULL and sets *value to INT64_MIN.
 * `value` may be NULL.
 */
const char *pk_enum(const struct pk *v, int64_t *value);
/*
 * Append a value as one line of JSON. Sequences become arrays; dicts and the states of objects become objects. A value
 * that JSON cannot express becomes a string, such as "tensor f32 [4, 2]", "torch.bfloat16",
 * "PositionEmbeddingType.alibi", "NaN", or, for an opaque value, "<os.system>".
 */
void pk_text(const struct pk *v, struct strbuf *out);
/* Returns true if pk_text() writes the same text for both values. */
bool pk_same_text(const struct pk *a, const struct pk *b);
/*
 * Append the path from root to `node`, such as "optimizer.state.0.exp_avg", for messages. Returns false if `node`
 * is not below root.
 */
bool pk_path(const struct pk *root, const struct pk *node, struct strbuf *out);

/*
 * Functions that make nodes. All memory comes from the arena, which must not have a ceiling, so these functions cannot
 * fail.
 */
struct pk *pk_none(struct arena *a);
struct pk *pk_bool(struct arena *a, bool v);
struct pk *pk_int(struct arena *a, int64_t v);
struct pk *pk_float(struct arena *a, double v);
struct pk *pk_str(struct arena *a, const char *s);          /* copies s */
struct pk *pk_list(struct arena *a);
struct pk *pk_tuple(struct arena *a);
struct pk *pk_dict(struct arena *a);
struct pk *pk_ordered_dict(struct arena *a);
/* Returns a dict whose pairs only pickle_write() sees. `made` must stay valid as long as the dict. */
struct pk *pk_dict_made(struct arena *a, const struct pk_made *made);
struct pk *pk_global(struct arena *a, const char *module, const char *name);
struct pk *pk_call(struct arena *a, struct pk *fn, struct pk *args);
struct pk *pk_object(struct arena *a, const char *module, const char *name, struct pk *state);
void pk_add(struct arena *a, struct pk *list_or_tuple, struct pk *v);
void pk_set(struct arena *a, struct pk *dict, struct pk *key, struct pk *v);    /* also replaces the value of an
                                                                                 * equal key */
void pk_set_str(struct arena *a, struct pk *dict, const char *key, struct pk *v);
void pk_set_int(struct arena *a, struct pk *dict, const char *key, int64_t v);
bool pk_remove(struct pk *dict, const char *key);
struct pk *pk_copy(struct arena *a, const struct pk *v);    /* deep copy; shared nodes remain shared; returns None if
                                                             * v is NULL */
/*
 * Copy a tree as pk_copy() does, but first call swap(ctx, node) for each node. If swap() returns a node, that node is
 * used instead of a copy.
 */
struct pk *pk_copy_swap(struct arena *a, const struct pk *v,
                        struct pk *(*swap)(void *ctx, const struct pk *node), void *ctx);

#endif
