/*
 * pickle.h - a pickle machine that only knows data
 *
 * Runs the stream of a data.pkl (protocol <= 5, the opcodes that hold data) into a
 * tree and never executes or imports anything: a GLOBAL is a name, a REDUCE or NEWOBJ is
 * a node that holds callable and arguments as data, a BUILD hangs its state on the node.
 * So any tree can be written back (pickle_write), classes we do not know included.
 *
 * What a callable means is decided by a compile-time allow-list. A node whose class is
 * not on it has `opaque` set, is listed in the tree, and yields nothing but its name;
 * callers refuse it where its value matters.
 *
 * Bounded: pickle bytes, nesting, memo, nodes and string lengths have limits (below); the
 * tree is in one arena with a ceiling. The graph is a DAG through the memo; a cycle is
 * refused, and so is a string or int key that stands twice in one dict.
 * Threads: a tree never changes once parsed.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_H
#define SHARDKIT_FORMAT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

enum pk_type {
    PK_NONE, PK_BOOL, PK_INT,           /* i: also bool */
    PK_BIGINT,                          /* str, len: two's complement, little-endian, > 8 bytes */
    PK_FLOAT,
    PK_STR, PK_BYTES,                   /* str, len; str is NUL-terminated as well */
    PK_LIST, PK_TUPLE, PK_SET,          /* item[n] */
    PK_DICT,                            /* item[2n]: key, value, in insertion order */
    PK_GLOBAL,                          /* module, name */
    PK_CALL,                            /* REDUCE: fn(args...) */
    PK_OBJ,                             /* NEWOBJ: cls.__new__(cls, args...) */
    PK_PERSID,                          /* args: a persistent id, here always a storage tuple */
    PK_ROW,                             /* pickle_parse_table(): an object that was taken, i its number */
};

struct pk {
    enum pk_type type;
    bool opaque;                        /* its class is not on the allow-list */
    uint8_t mark, height;               /* the parser's: state of its last walk, levels below */
    uint32_t n;                         /* items; pairs for a dict */
    uint32_t cap;                       /* for builders: pointers that fit into item */
    uint32_t weight;                    /* the parser's: nodes below, shared ones counted each time */
    uint64_t at;                        /* byte in the pickle where it was made, for messages */
    union {
        int64_t i;
        double f;
        struct { const char *str; uint64_t len; };
        struct {
            struct pk **item;           /* LIST TUPLE SET DICT */
            struct pk_index *index;     /* DICT: of its string keys, made by pk_set() once there are many; or NULL */
        };
        struct { const char *module, *name; };
        struct {
            struct pk *fn;              /* CALL: callable; OBJ: class; PERSID: NULL */
            struct pk *args;            /* tuple (PERSID: the id) */
            struct pk *state;           /* BUILD's operand or NULL */
            struct pk *fill;            /* PK_LIST of APPENDS, PK_DICT of SETITEMS on the object, or NULL */
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
 * Limits of a stream. The last one stops a bomb of nested, shared lists: it bounds what
 * any walk that follows every pointer can meet, and no tree without sharing reaches it.
 */
#define PICKLE_MAX_BYTES  ((size_t)256 << 20)
#define PICKLE_MAX_DEPTH  200           /* nested values, and marks */
#define PICKLE_MAX_STACK  (4u << 20)    /* values waiting on the machine's stack */
#define PICKLE_MAX_MEMO   (64u << 20)   /* highest memo index + 1 */
#define PICKLE_MAX_ARENA  ((size_t)512 << 20)
#define PICKLE_MAX_WEIGHT (32u << 20)   /* nodes, and 16 bytes of string each, shared ones counted each time */

/*
 * Parse. `name` is for messages ("/x/y.pt: data.pkl"). Returns 0 and the tree (free with
 * pk_tree_free), or -1 and ERR_DATA with the byte inside the pickle.
 */
MUST_CHECK int pickle_parse(const void *bytes, size_t len, const char *name,
                            struct pk_tree *out, struct err *e);
/*
 * The same for a pickle that is a large table by itself, a few lines for each piece of a checkpoint of thousands of
 * ranks: it may have PICKLE_TABLE_ROOM bytes of memory for each of its own, where that is more. Objects of some classes
 * are shown as soon as they are complete; one that is taken leaves its number in the tree, and its memory is given up.
 * What is shown has not been checked: only a value that is understood to its last node may be taken.
 */
struct pickle_rows {
    const char *const (*cls)[2];        /* module and name of each class */
    int n;
    int64_t (*take)(void *ctx, int cls, const struct pk *v);    /* its number, or -1: it stays as it is */
    void *ctx;
};
MUST_CHECK int pickle_parse_table(const void *bytes, size_t len, const char *name, const struct pickle_rows *rows,
                                  struct pk_tree *out, struct err *e);
#define PICKLE_TABLE_ROOM 48
void pk_tree_free(struct pk_tree *t);
/*
 * The tree as a protocol-2 pickle that torch's weights-only unpickler takes; memoises shared nodes, and strings only
 * where that saves bytes.
 */
void pickle_write(const struct pk *root, struct strbuf *out);

/* Looking. NULL or false when the value is not what is asked for; v may be NULL. */
/* dict, OrderedDict or a Namespace-like object's state: value for a string key. */
struct pk *pk_get(const struct pk *v, const char *key);
/* The pairs of a dict, an OrderedDict (CALL with fill), or an object's state; sets *n. item[2i], item[2i+1]. */
struct pk **pk_pairs(const struct pk *v, uint32_t *n);
/* The items of a list, tuple, set, deque, torch.Size. */
struct pk **pk_items(const struct pk *v, uint32_t *n);
bool pk_as_int(const struct pk *v, int64_t *out);       /* also a bool, a numpy integer scalar */
bool pk_as_double(const struct pk *v, double *out);     /* also an int */
const char *pk_as_str(const struct pk *v);              /* NULL, too, of text with a NUL in it: it is no name */
bool pk_is_none(const struct pk *v);                    /* NULL counts as none */
/* Text, numbers, None, and lists, tuples and dicts of them: what any loader takes. */
bool pk_is_plain(const struct pk *v);
/* "megatron.enums.PositionEmbeddingType" for OBJ, CALL and GLOBAL, into buf; NULL otherwise. */
const char *pk_class(const struct pk *v, char *buf, size_t size);
bool pk_is_class(const struct pk *v, const char *module, const char *name);
/*
 * An enum member in either spelling: getattr(cls, 'alibi') returns the name; cls(3) returns
 * NULL and sets *value. Anything else: NULL and *value = INT64_MIN.
 */
const char *pk_enum(const struct pk *v, int64_t *value);
/*
 * A value as one line of JSON: sequences as arrays, dicts and object states as objects,
 * what JSON lacks as strings ("tensor f32 [4, 2]", "torch.bfloat16", "PositionEmbeddingType.alibi",
 * "NaN", "<os.system>" for an opaque value).
 */
void pk_text(const struct pk *v, struct strbuf *out);
/* Where `node` hangs below root, as "optimizer.state.0.exp_avg"; false when it does not. For messages. */
bool pk_path(const struct pk *root, const struct pk *node, struct strbuf *out);

/* Making. All memory from the arena (no ceiling), so these cannot fail. */
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
struct pk *pk_copy(struct arena *a, const struct pk *v);    /* deep, sharing kept inside */
/* The same, but first asks swap(ctx, node) for each node; what is not NULL takes its place. */
struct pk *pk_copy_swap(struct arena *a, const struct pk *v,
                        struct pk *(*swap)(void *ctx, const struct pk *node), void *ctx);

#endif
