/*
 * pickle.h - parse pickles into trees of data, without executing them
 *
 * The parser runs the stream of a data.pkl (protocol <= 5, the opcodes that hold data) and builds a tree. It
 * never executes or imports anything: a GLOBAL becomes a name, a REDUCE or NEWOBJ becomes a node that holds
 * callable and arguments as data, and a BUILD attaches its state to the node. Therefore pickle_write() can write
 * any tree, even one with unknown classes.
 *
 * A compile-time allow-list defines the meaning of callables. A node whose class is not on the list has `opaque`
 * set, is listed in the tree, and provides only its name. Callers refuse it where they need its value.
 *
 * Pickle bytes, nesting, memo, nodes and string lengths have limits (below), and the tree is in one arena with a
 * ceiling. Through the memo the graph is a DAG. A cycle is refused, and so is a string or int key that appears
 * twice in one dict.
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
    PK_NONE, PK_BOOL, PK_INT,           /* i; a bool too */
    PK_BIGINT,                          /* str, len: two's complement, little-endian, > 8 bytes */
    PK_FLOAT,
    PK_STR, PK_BYTES,                   /* str, len; str also ends with a NUL */
    PK_LIST, PK_TUPLE, PK_SET,          /* item[n] */
    PK_DICT,                            /* item[2n]: key, value, in insertion order */
    PK_GLOBAL,                          /* module, name */
    PK_CALL,                            /* REDUCE: fn(args...) */
    PK_OBJ,                             /* NEWOBJ: cls.__new__(cls, args...) */
    PK_PERSID,                          /* args: a persistent id, here always a storage tuple */
    PK_ROW,                             /* pickle_parse_table(): an object that take() accepted; i is its number */
};

struct pk {
    enum pk_type type;
    bool opaque;                        /* its class is not on the allow-list */
    uint8_t mark, height;               /* for the parser: state of its walk; number of levels below */
    uint32_t n;                         /* number of items; of pairs for a dict */
    uint32_t cap;                       /* for builders: number of pointers that fit into item */
    uint32_t weight;                    /* for the parser: number of nodes below, shared ones counted each time */
    uint64_t at;                        /* offset in the pickle of the opcode that made it, for messages */
    union {
        int64_t i;
        double f;
        struct { const char *str; uint64_t len; };
        struct {
            struct pk **item;           /* LIST TUPLE SET DICT */
            struct pk_index *index;     /* DICT: index of its string keys, made by pk_set() for many keys; or NULL */
        };
        struct { const char *module, *name; };
        struct {
            struct pk *fn;              /* CALL: callable; OBJ: class; PERSID: NULL */
            struct pk *args;            /* a tuple (PERSID: the id) */
            struct pk *state;           /* operand of BUILD, or NULL */
            struct pk *fill;            /* for an object: PK_LIST of APPENDS or PK_DICT of SETITEMS, or NULL */
        };
    };
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
 * Limits of a stream. The last one refuses a bomb of nested, shared lists. It bounds the number of nodes that a
 * walk over all pointers can visit. No tree without sharing reaches it.
 */
#define PICKLE_MAX_BYTES  ((size_t)256 << 20)
#define PICKLE_MAX_DEPTH  200           /* nested values; also the number of marks */
#define PICKLE_MAX_STACK  (4u << 20)    /* values waiting on the machine's stack */
#define PICKLE_MAX_MEMO   (64u << 20)   /* highest memo index + 1 */
#define PICKLE_MAX_ARENA  ((size_t)512 << 20)
#define PICKLE_MAX_WEIGHT (32u << 20)   /* nodes, plus one per 16 bytes of string; shared ones counted each time */

/*
 * Parse a pickle. `name` is used in messages ("/x/y.pt: data.pkl"). Returns 0 and the tree, which the caller frees
 * with pk_tree_free(), or -1 with ERR_DATA and the offset inside the pickle.
 */
MUST_CHECK int pickle_parse(const void *bytes, size_t len, const char *name,
                            struct pk_tree *out, struct err *e);
/*
 * Parse a pickle that is one large table: a few lines for each piece of a checkpoint of thousands of ranks. Its
 * memory limit is PICKLE_TABLE_ROOM bytes per byte of the pickle, if that is more than the usual limit. Every
 * complete object of the given classes is passed to take(). If take() accepts the object, the tree stores its
 * number (PK_ROW) and its memory is released. The object has not been checked at that time, so take() must accept
 * only a value that it understands down to the last node.
 */
struct pickle_rows {
    const char *const (*cls)[2];        /* module and name of each class */
    int n;
    /* Returns the object's number, or -1 to keep the object. */
    int64_t (*take)(void *ctx, int cls, const struct pk *v);
    void *ctx;
};
MUST_CHECK int pickle_parse_table(const void *bytes, size_t len, const char *name, const struct pickle_rows *rows,
                                  struct pk_tree *out, struct err *e);
#define PICKLE_TABLE_ROOM 48
void pk_tree_free(struct pk_tree *t);
/*
 * Append the tree to out as a protocol-2 pickle that torch's weights-only unpickler accepts. Shared nodes are
 * memoized; strings only where that saves bytes.
 */
void pickle_write(const struct pk *root, struct strbuf *out);

/*
 * Readers. These functions return NULL or false if the value has another form. v may be NULL, except in
 * pk_is_plain().
 */
/*
 * Return the value for a string key of a dict, of an OrderedDict, or of the state of an object such as a
 * Namespace.
 */
struct pk *pk_get(const struct pk *v, const char *key);
/*
 * Return the pairs item[2i], item[2i+1] of a dict, an OrderedDict (CALL with fill) or an object's state, and their
 * number in *n.
 */
struct pk **pk_pairs(const struct pk *v, uint32_t *n);
/* Return the items of a list, tuple, set, frozenset, deque or torch.Size, and their number in *n. */
struct pk **pk_items(const struct pk *v, uint32_t *n);
bool pk_as_int(const struct pk *v, int64_t *out);       /* accepts a bool and a NumPy integer scalar too */
int64_t pk_int_or(const struct pk *v, int64_t otherwise);       /* the same; `otherwise` for other values and NULL */
bool pk_as_double(const struct pk *v, double *out);     /* accepts an int too */
/* Return the text of a string, or NULL. Text that contains a NUL gives NULL too, because it is not a valid name. */
const char *pk_as_str(const struct pk *v);
bool pk_is_none(const struct pk *v);                    /* true also for NULL */
/* Returns true for text, numbers, None, and lists, tuples and dicts of these, which any loader accepts. */
bool pk_is_plain(const struct pk *v);
/*
 * Write the class of an OBJ, CALL or GLOBAL to buf ("megatron.enums.PositionEmbeddingType") and return buf.
 * Returns NULL for other values.
 */
const char *pk_class(const struct pk *v, char *buf, size_t size);
bool pk_is_class(const struct pk *v, const char *module, const char *name);
/*
 * Parse an enum member in either of its two forms. For getattr(cls, 'alibi') this returns the member's name. For
 * cls(3) it returns NULL and sets *value to 3. For any other value it returns NULL and sets *value to INT64_MIN.
 * value may be NULL.
 */
const char *pk_enum(const struct pk *v, int64_t *value);
/*
 * Append a value as one line of JSON. Sequences become arrays, dicts and object states become objects. Values that
 * JSON lacks become strings ("tensor f32 [4, 2]", "torch.bfloat16", "PositionEmbeddingType.alibi", "NaN",
 * "<os.system>" for an opaque value).
 */
void pk_text(const struct pk *v, struct strbuf *out);
/* Returns true if pk_text() writes the same text for both values. */
bool pk_same_text(const struct pk *a, const struct pk *b);
/*
 * Append the path from root to `node`, such as "optimizer.state.0.exp_avg", for messages. Returns false if `node`
 * is not below root.
 */
bool pk_path(const struct pk *root, const struct pk *node, struct strbuf *out);

/* Constructors. All memory comes from the arena, which must have no ceiling, so these functions cannot fail. */
struct pk *pk_none(struct arena *a);
struct pk *pk_bool(struct arena *a, bool v);
struct pk *pk_int(struct arena *a, int64_t v);
struct pk *pk_float(struct arena *a, double v);
struct pk *pk_str(struct arena *a, const char *s);          /* copies */
struct pk *pk_list(struct arena *a);
struct pk *pk_tuple(struct arena *a);
struct pk *pk_dict(struct arena *a);
struct pk *pk_ordered_dict(struct arena *a);
struct pk *pk_global(struct arena *a, const char *module, const char *name);
struct pk *pk_call(struct arena *a, struct pk *fn, struct pk *args);
struct pk *pk_object(struct arena *a, const char *module, const char *name, struct pk *state);
void pk_add(struct arena *a, struct pk *list_or_tuple, struct pk *v);
void pk_set(struct arena *a, struct pk *dict, struct pk *key, struct pk *v);    /* replaces an equal str or int key */
void pk_set_str(struct arena *a, struct pk *dict, const char *key, struct pk *v);
void pk_set_int(struct arena *a, struct pk *dict, const char *key, int64_t v);
bool pk_remove(struct pk *dict, const char *key);
struct pk *pk_copy(struct arena *a, const struct pk *v);    /* deep; shared nodes remain shared; None for a NULL v */
/*
 * Copy as pk_copy() does, but call swap(ctx, node) for each node first. If it returns a node, that node is used
 * instead of a copy.
 */
struct pk *pk_copy_swap(struct arena *a, const struct pk *v,
                        struct pk *(*swap)(void *ctx, const struct pk *node), void *ctx);

#endif
