/*
 * pickle_parse.c - run the opcodes of a pickle, and build a tree from them
 *
 * A pickle is a program for a stack machine. Here, every opcode creates or joins nodes of a tree, and no opcode
 * resolves a name. The machine uses:
 *
 *   stack   values that later opcodes use; a mark is a saved height of the stack
 *   memo    maps an index to a node, so that one node can have several parents
 *   (, x.., t/u/e   '(' sets a mark; 't', 'u' and 'e' make a tuple, pairs or items of the values above it
 *
 * There are two phases. run_pickle_machine() builds the tree. resolve_node() walks the tree once. It refuses cycles,
 * trees that are too deep, and trees in which shared nodes would be visited too often. It finds the opaque nodes, and
 * makes the lists in struct pk_tree.
 */
#include "libcommon/base/text.h"
#include "libcommon/format/pickle/pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/format/pickle/pickle_classes.h"
#include "libcommon/format/pickle/pickle_memo.h"

enum {
    OP_MARK = '(', OP_STOP = '.', OP_BINFLOAT = 'G', OP_BININT = 'J', OP_BININT1 = 'K',
    OP_BININT2 = 'M', OP_NONE = 'N', OP_BINPERSID = 'Q', OP_REDUCE = 'R', OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U', OP_BINUNICODE = 'X', OP_EMPTY_LIST = ']', OP_APPEND = 'a',
    OP_BUILD = 'b', OP_GLOBAL = 'c', OP_APPENDS = 'e', OP_BINGET = 'h', OP_LONG_BINGET = 'j',
    OP_BINPUT = 'q', OP_LONG_BINPUT = 'r', OP_SETITEM = 's', OP_TUPLE = 't', OP_EMPTY_TUPLE = ')',
    OP_SETITEMS = 'u', OP_EMPTY_DICT = '}', OP_PROTO = 0x80, OP_NEWOBJ = 0x81, OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86, OP_TUPLE3 = 0x87, OP_NEWTRUE = 0x88, OP_NEWFALSE = 0x89, OP_LONG1 = 0x8a,
    OP_LONG4 = 0x8b,
    /* protocols 3 to 5 */
    OP_BINBYTES = 'B', OP_SHORT_BINBYTES = 'C', OP_SHORT_BINUNICODE = 0x8c, OP_BINUNICODE8 = 0x8d,
    OP_BINBYTES8 = 0x8e, OP_EMPTY_SET = 0x8f, OP_ADDITEMS = 0x90, OP_FROZENSET = 0x91, OP_NEWOBJ_EX = 0x92,
    OP_STACK_GLOBAL = 0x93, OP_MEMOIZE = 0x94, OP_FRAME = 0x95, OP_BYTEARRAY8 = 0x96, OP_NEXT_BUFFER = 0x97,
    OP_READONLY_BUFFER = 0x98,
};

enum { PROTOCOL_MAX = 5 };

/* Maximum length of the name of a module or class. CPython has no limit; real names have fewer than 100 letters. */
enum { MAX_NAME = 500 };

/*
 * An object that take() may replace by its number (a row, PK_ROW) when the object's state has been set. If take()
 * accepts the object, its memory is released, so nothing else may refer to its nodes. This is certain under three
 * conditions: the object has been on the stack since it was made; no value that was made after it is read again from
 * the memo; nothing was added to a value that is older than it. Otherwise v is set to NULL, and the object stays in the
 * tree.
 */
struct open_row {
    struct pk *v;                       /* the object; NULL: none */
    int cls;
    uint32_t depth;                     /* index of the object on the stack */
    struct arena_mark begin, inside;    /* positions in the arena: before v and its empty arguments, and after v */
    /* v has no arguments and is not read again from the memo, so v itself can be released, too */
    bool lone;
};

struct machine {
    const uint8_t *p;
    size_t len, at, op_at;              /* at: offset of the next byte; op_at: offset of the current opcode */
    const char *name;
    struct err *e;
    struct arena *a;
    size_t ceiling;                     /* memory limit of the arena */
    struct pk **stack;
    uint32_t n, cap;
    uint32_t mark[PICKLE_MAX_DEPTH];
    uint32_t n_marks;
    struct pickle_memo memo;
    size_t frame_end;
    const struct pickle_rows *rows;     /* NULL: take() is never called */
    struct open_row row;
    struct arena_mark before_tuple;     /* position in the arena before the last empty tuple, and offset in the
                                         * pickle after its opcode */
    size_t after_tuple;
};

static int __attribute__((format(printf, 3, 0)))
report_pickle_damage_at(struct machine *m, uint64_t at, const char *fmt, va_list ap)
{
    char text[256];

    vsnprintf(text, sizeof text, fmt, ap);
    err_data(m->e, m->name, at, "damaged pickle: %s", text);
    return -1;
}

/* Report damage at the offset of the current opcode. Returns -1. */
static int PRINTF_LIKE(2, 3) report_pickle_damage(struct machine *m, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    report_pickle_damage_at(m, m->op_at, fmt, ap);
    va_end(ap);
    return -1;
}

static int too_big(struct machine *m)
{
    return report_pickle_damage(m, "needs more than %zu MiB of memory", m->ceiling >> 20);
}

/* Return the next n bytes of the stream, or NULL if fewer are left. */
static const uint8_t *read_operand_bytes(struct machine *m, uint64_t n)
{
    const uint8_t *p = m->p + m->at;

    if (n > m->len - m->at) {
        report_pickle_damage(m, "ends inside an operand of %llu bytes", (unsigned long long)n);
        return NULL;
    }
    m->at += n;
    return p;
}

/* ---- stack and memo ---- */

static struct pk *new_node(struct machine *m, enum pk_type type)
{
    struct pk *v = arena_alloc(m->a, sizeof *v);

    if (!v) {
        too_big(m);
        return NULL;
    }
    v->type = type;
    v->at = m->op_at;
    return v;
}

static int push(struct machine *m, struct pk *v)
{
    if (!v)
        return -1;
    if (m->n == PICKLE_MAX_STACK)
        return report_pickle_damage(m, "more than %u values on the stack", PICKLE_MAX_STACK);
    ARRAY_ROOM(m->stack, m->cap, m->n + 1);
    m->stack[m->n++] = v;
    return 0;
}

/* Close m->row if its object is no longer on the stack. Must be called after values were removed from the stack. */
static void lower(struct machine *m)
{
    if (m->n <= m->row.depth)
        m->row.v = NULL;
}

/*
 * Close m->row if v is older than the row's object, because a change of v may make v refer to nodes of that object.
 * Must be called before v changes.
 */
static void changed(struct machine *m, const struct pk *v)
{
    if (m->row.v && v->at <= m->row.v->at && v != m->row.v)
        m->row.v = NULL;
}

/*
 * Return the number of values that opcodes can reach. Values below the newest mark are out of reach until the mark is
 * removed.
 */
static uint32_t n_reachable(const struct machine *m)
{
    return m->n - (m->n_marks ? m->mark[m->n_marks - 1] : 0);
}

static struct pk *pop(struct machine *m)
{
    if (n_reachable(m) == 0) {
        report_pickle_damage(m, "stack underflow");
        return NULL;
    }
    m->n--;
    lower(m);
    return m->stack[m->n];
}

static struct pk *top(struct machine *m)
{
    if (n_reachable(m) == 0) {
        report_pickle_damage(m, "stack underflow");
        return NULL;
    }
    return m->stack[m->n - 1];
}

static int put_mark(struct machine *m)
{
    if (m->n_marks == PICKLE_MAX_DEPTH)
        return report_pickle_damage(m, "nested deeper than %d", PICKLE_MAX_DEPTH);
    m->mark[m->n_marks++] = m->n;
    return 0;
}

/*
 * Pop all values above the newest mark, and the mark. *item is set to the values, and is valid until the next push.
 * Returns the number of values, or -1 if there is no mark.
 */
static int64_t pop_to_mark(struct machine *m, struct pk ***item)
{
    uint32_t from;

    if (!m->n_marks)
        return report_pickle_damage(m, "no mark on the stack");
    from = m->mark[--m->n_marks];
    *item = m->stack + from;
    from = m->n - from;
    m->n -= from;
    lower(m);
    return from;
}

static int memo_put(struct machine *m, uint32_t i)
{
    struct pk *v = top(m);

    if (!v)
        return -1;
    if (i >= PICKLE_MAX_MEMO)
        return report_pickle_damage(m, "memo index %u, at most %u are supported", i, PICKLE_MAX_MEMO);
    if (pickle_memo_put(&m->memo, i, v)) {
        if (v != m->row.v)
            m->row.v = NULL;
        m->row.lone = false;
    }
    return 0;
}

static int memo_get(struct machine *m, uint32_t i)
{
    struct pk *v = pickle_memo_get(&m->memo, i);

    return v ? push(m, v) : report_pickle_damage(m, "memo index %u was never stored", i);
}

/* ---- scalars ---- */

static int push_int(struct machine *m, enum pk_type type, int64_t i)
{
    struct pk *v = new_node(m, type);

    if (!v)
        return -1;
    v->i = i;
    return push(m, v);
}

static int push_float(struct machine *m)
{
    const uint8_t *p = read_operand_bytes(m, 8);
    struct pk *v = p ? new_node(m, PK_FLOAT) : NULL;
    uint64_t bits = 0;

    if (!v)
        return -1;
    for (int i = 0; i < 8; i++)         /* this is the only big-endian number in the format */
        bits = bits << 8 | p[i];
    memcpy(&v->f, &bits, sizeof v->f);
    return push(m, v);
}

static int push_string(struct machine *m, enum pk_type type, const uint8_t *p, uint64_t len)
{
    struct pk *v = new_node(m, type);

    if (!v)
        return -1;
    v->len = len;
    v->str = arena_strndup(m->a, (const char *)p, len);
    return v->str ? push(m, v) : too_big(m);
}

/*
 * Push an integer of n bytes, in two's complement and little-endian. It becomes a PK_INT if it fits into 64 bits, else
 * a PK_BIGINT.
 */
static int push_long(struct machine *m, uint64_t n)
{
    const uint8_t *p = read_operand_bytes(m, n);
    uint64_t v = 0;

    if (!p)
        return -1;
    while (n > 1 && (p[n - 1] == 0 || p[n - 1] == 0xff) && (p[n - 1] ^ p[n - 2]) < 0x80)
        n--;                            /* remove a byte that only repeats the sign */
    if (n > 8)
        return push_string(m, PK_BIGINT, p, n);
    for (uint64_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << 8 * i;
    if (n && n < 8 && p[n - 1] >= 0x80)
        v |= UINT64_MAX << 8 * n;
    return push_int(m, PK_INT, (int64_t)v);
}

static bool is_utf8(const uint8_t *p, uint64_t n) { return utf8_check_python((const char *)p, n) == n; }

/*
 * Read a length, which is a number of `len_bytes` bytes (1, 4 or 8), and return the bytes that follow it. *len is set
 * to the number of these bytes.
 */
static const uint8_t *read_counted_operand(struct machine *m, int len_bytes, uint64_t *len)
{
    const uint8_t *p = read_operand_bytes(m, (uint64_t)len_bytes);

    if (!p)
        return NULL;
    *len = len_bytes == 1 ? *p : len_bytes == 4 ? get_le32(p) : get_le64(p);
    return read_operand_bytes(m, *len);
}

static int push_unicode(struct machine *m, int len_bytes)
{
    uint64_t len;
    const uint8_t *p = read_counted_operand(m, len_bytes, &len);

    if (!p)
        return -1;
    if (!is_utf8(p, len))
        return report_pickle_damage(m, "a string of %llu bytes is not UTF-8", (unsigned long long)len);
    return push_string(m, PK_STR, p, len);
}

static int push_bytes(struct machine *m, int len_bytes)
{
    uint64_t len;
    const uint8_t *p = read_counted_operand(m, len_bytes, &len);

    return p ? push_string(m, PK_BYTES, p, len) : -1;
}

/* Push a string of Python 2. A string that is valid UTF-8 becomes text, any other string becomes bytes. */
static int push_str8(struct machine *m, int len_bytes)
{
    uint64_t len;
    const uint8_t *p = read_counted_operand(m, len_bytes, &len);

    return p ? push_string(m, is_utf8(p, len) ? PK_STR : PK_BYTES, p, len) : -1;
}

/*
 * Return the length of the name of a module or class at p. Only printable ASCII characters are counted, so that
 * messages can contain the name.
 */
static size_t word_len(const uint8_t *p, size_t room)
{
    size_t n = 0;

    while (n < room && n <= MAX_NAME && p[n] > ' ' && p[n] < 0x7f)
        n++;
    return n;
}

static int no_word(struct machine *m)
{
    return report_pickle_damage(m, "a global whose module or name is no plain word of at most %d letters", MAX_NAME);
}

/* Read one of the two lines of a GLOBAL. */
static char *read_global_line(struct machine *m)
{
    const uint8_t *p = m->p + m->at;
    size_t room = m->len - m->at, n = word_len(p, room);
    char *s;

    if (n == 0 || n == room || p[n] != '\n') {
        no_word(m);
        return NULL;
    }
    m->at += n + 1;
    s = arena_strndup(m->a, (const char *)p, n);
    if (!s)
        too_big(m);
    return s;
}

static int push_global(struct machine *m)
{
    struct pk *v = new_node(m, PK_GLOBAL);

    if (!v || !(v->module = read_global_line(m)) || !(v->name = read_global_line(m)))
        return -1;
    return push(m, v);
}

static bool is_word(const struct pk *v)
{
    return v->type == PK_STR && v->len > 0 && v->len <= MAX_NAME && word_len((const uint8_t *)v->str, v->len) == v->len;
}

/* Push a global in the form of protocol 4, in which module and name are strings on the stack. */
static int push_stack_global(struct machine *m)
{
    struct pk *name = pop(m), *module = name ? pop(m) : NULL, *v = module ? new_node(m, PK_GLOBAL) : NULL;

    if (!v)
        return -1;
    if (!is_word(name) || !is_word(module))
        return no_word(m);
    v->module = module->str;
    v->name = name->str;
    return push(m, v);
}

/* ---- containers ---- */

/* Make room for `more` pointers after the first n items of v. */
static int room(struct machine *m, struct pk *v, uint32_t n, uint32_t more)
{
    uint64_t want = (uint64_t)n + more;
    struct pk **item;

    if (want <= v->cap)
        return 0;
    if (v->cap && want < 2 * (uint64_t)v->cap)
        want = 2 * (uint64_t)v->cap;
    item = want <= UINT32_MAX ? arena_alloc(m->a, want * sizeof *item) : NULL;
    if (!item)
        return too_big(m);
    if (n)
        memcpy(item, v->item, n * sizeof *item);
    v->item = item;
    v->cap = (uint32_t)want;
    return 0;
}

static int push_tuple(struct machine *m, struct pk **item, uint32_t n)
{
    struct pk *v = new_node(m, PK_TUPLE);

    if (!v || room(m, v, 0, n) < 0)
        return -1;
    if (n)
        memcpy(v->item, item, n * sizeof *item);
    v->n = n;
    return push(m, v);
}

static int push_empty_tuple(struct machine *m)
{
    m->before_tuple = arena_mark(m->a);
    m->after_tuple = m->at;
    return push(m, new_node(m, PK_TUPLE));
}

static int push_marked_tuple(struct machine *m)
{
    struct pk **item = NULL;
    int64_t n = pop_to_mark(m, &item);

    return n < 0 ? -1 : push_tuple(m, item, (uint32_t)n);
}

static int push_small_tuple(struct machine *m, uint32_t n)
{
    if (n_reachable(m) < n)
        return report_pickle_damage(m, "stack underflow");
    m->n -= n;
    lower(m);
    return push_tuple(m, m->stack + m->n, n);
}

/*
 * Return the container that receives items of this type. It is the value on top of the stack or, if that is an object,
 * the `fill` of the object.
 */
static struct pk *container(struct machine *m, enum pk_type type)
{
    struct pk *v = top(m);

    if (v)
        changed(m, v);
    if (!v || v->type == type)
        return v;
    if ((v->type != PK_CALL && v->type != PK_OBJ) || v->state || (v->fill && v->fill->type != type)) {
        report_pickle_damage(m, "%s to a value that takes none", type == PK_LIST ? "appends" : "sets items");
        return NULL;
    }
    if (!v->fill)
        v->fill = new_node(m, type);
    return v->fill;
}

static int append_list_items(struct machine *m, struct pk **item, int64_t n)
{
    struct pk *v = container(m, PK_LIST);

    if (!v || room(m, v, v->n, (uint32_t)n) < 0)
        return -1;
    if (n)
        memcpy(v->item + v->n, item, (size_t)n * sizeof *item);
    v->n += (uint32_t)n;
    return 0;
}

static int add_pairs(struct machine *m, struct pk **item, int64_t n)
{
    struct pk *v = container(m, PK_DICT);

    if (!v)
        return -1;
    if (n % 2)
        return report_pickle_damage(m, "a key without a value");
    if (room(m, v, 2 * v->n, (uint32_t)n) < 0)
        return -1;
    if (n)
        memcpy(v->item + 2 * v->n, item, (size_t)n * sizeof *item);
    v->n += (uint32_t)n / 2;
    return 0;
}

static int add_set_members(struct machine *m, struct pk **item, int64_t n)
{
    struct pk *v = top(m);

    if (!v)
        return -1;
    changed(m, v);
    if (v->type != PK_SET)
        return report_pickle_damage(m, "adds members to a value that takes none");
    if (room(m, v, v->n, (uint32_t)n) < 0)
        return -1;
    if (n)
        memcpy(v->item + v->n, item, (size_t)n * sizeof *item);
    v->n += (uint32_t)n;
    return 0;
}

static int add_marked(struct machine *m, int (*add)(struct machine *, struct pk **, int64_t))
{
    struct pk **item = NULL;
    int64_t n = pop_to_mark(m, &item);

    return n < 0 ? -1 : add(m, item, n);
}

static int add_top(struct machine *m, uint32_t n, int (*add)(struct machine *, struct pk **, int64_t))
{
    if (n_reachable(m) <= n)
        return report_pickle_damage(m, "stack underflow");
    m->n -= n;
    lower(m);
    return add(m, m->stack + m->n, n);
}

/* ---- objects ---- */

static void begin_row(struct machine *m, struct pk *v)
{
    const bool bare = v->args->n == 0 && m->after_tuple == m->op_at;
    int k = 0;

    if (v->fn->type != PK_GLOBAL)
        return;
    while (k < m->rows->n && (strcmp(v->fn->module, m->rows->cls[k][0]) != 0 ||
                              strcmp(v->fn->name, m->rows->cls[k][1]) != 0))
        k++;
    if (k == m->rows->n)
        return;
    m->row = (struct open_row){ .v = v, .cls = k, .depth = m->n, .inside = arena_mark(m->a), .lone = bare,
                           .begin = m->before_tuple };
}

/*
 * Complete the row m->row, whose object is on top of the stack and has just received its state. If m->rows->take()
 * accepts the object, a PK_ROW node replaces the object, and its memory is released.
 */
static int end_row(struct machine *m)
{
    struct open_row row = m->row;
    struct pk *v = row.v;
    const uint64_t at = v->at;
    int64_t number;

    m->row.v = NULL;
    number = m->n == row.depth + 1 && !v->fill ? m->rows->take(m->rows->ctx, row.cls, v) : -1;
    if (number < 0)
        return 0;
    v->args = v->state = NULL;
    arena_release(m->a, row.lone ? row.begin : row.inside);
    /* A PK_ROW node is allocated without the members after `i`, because only its type, offset and number are read. */
    if (row.lone && !(v = arena_alloc(m->a, offsetof(struct pk, i) + sizeof v->i)))
        return too_big(m);
    v->type = PK_ROW;
    v->at = at;
    v->i = number;
    m->stack[row.depth] = v;
    return 0;
}

static int push_act(struct machine *m, enum pk_type type)
{
    struct pk *args = pop(m), *fn = args && type != PK_PERSID ? pop(m) : NULL, *v;

    if (!args || (type != PK_PERSID && !fn))
        return -1;
    if (args->type != PK_TUPLE)
        return report_pickle_damage(m, "arguments that are no tuple");
    /* A nested class is pickled as the call getattr(outer, 'inner'), so fn may also be a call. */
    if (fn && fn->type != PK_GLOBAL && fn->type != PK_CALL)
        return report_pickle_damage(m, "calls something that is no global");
    v = new_node(m, type);
    if (!v)
        return -1;
    v->fn = fn;
    v->args = args;
    if (type == PK_OBJ && m->rows)
        begin_row(m, v);
    return push(m, v);
}

/* Push the call NAME(arg). Protocol 2 and pickle_write() represent this value by such a call. */
static int push_builtin(struct machine *m, const char *name, struct pk *arg)
{
    struct pk *fn = arg ? new_node(m, PK_GLOBAL) : NULL, *args = fn ? new_node(m, PK_TUPLE) : NULL;
    struct pk *v = args ? new_node(m, PK_CALL) : NULL;

    if (!v || room(m, args, 0, 1) < 0)
        return -1;
    fn->module = "__builtin__";
    fn->name = name;
    args->item[0] = arg;
    args->n = 1;
    v->fn = fn;
    v->args = args;
    return push(m, v);
}

static int push_frozenset(struct machine *m)
{
    struct pk **item = NULL, *list;
    int64_t n = pop_to_mark(m, &item);

    list = n < 0 ? NULL : new_node(m, PK_LIST);
    if (!list || room(m, list, 0, (uint32_t)n) < 0)
        return -1;
    if (n)
        memcpy(list->item, item, (size_t)n * sizeof *item);
    list->n = (uint32_t)n;
    return push_builtin(m, "frozenset", list);
}

static int push_bytearray(struct machine *m)
{
    return push_bytes(m, 8) < 0 ? -1 : push_builtin(m, "bytearray", pop(m));
}

/* Push cls.__new__(cls, *args, **kwargs). None of the supported classes has keyword arguments. */
static int push_newobj_ex(struct machine *m)
{
    struct pk *named = pop(m);

    if (!named)
        return -1;
    if (named->type != PK_DICT || named->n)
        return report_pickle_damage(m, "makes an object with keyword arguments");
    return push_act(m, PK_OBJ);
}

/*
 * Check a frame. A frame is only a hint about the number of bytes that a reader should read at once. A frame that
 * overlaps another frame or the end of the pickle is damage.
 */
static int frame(struct machine *m)
{
    const uint8_t *p = read_operand_bytes(m, 8);
    uint64_t len = p ? get_le64(p) : 0;

    if (!p)
        return -1;
    if (m->op_at < m->frame_end)
        return report_pickle_damage(m, "a frame inside a frame");
    if (len > m->len - m->at)
        return report_pickle_damage(m, "a frame of %llu bytes, %zu are left", (unsigned long long)len, m->len - m->at);
    m->frame_end = m->at + (size_t)len;
    return 0;
}

static int set_object_state(struct machine *m)
{
    struct pk *state = pop(m), *v = state ? top(m) : NULL;

    if (!v)
        return -1;
    if ((v->type != PK_CALL && v->type != PK_OBJ) || v->state)
        return report_pickle_damage(m, "sets the state of a value that takes none");
    changed(m, v);
    v->state = state;
    return m->row.v == v ? end_row(m) : 0;
}

static int proto(struct machine *m)
{
    const uint8_t *p = read_operand_bytes(m, 1);

    if (!p)
        return -1;
    if (m->op_at != 0)
        return report_pickle_damage(m, "a protocol number in the middle");
    if (*p > PROTOCOL_MAX) {
        err_data(m->e, m->name, m->op_at, "pickle protocol %d is not supported (up to %d are)", *p, PROTOCOL_MAX);
        return -1;
    }
    return 0;
}

/* ---- the loop ---- */

static int run_memo(struct machine *m, uint8_t op)
{
    bool wide = op == OP_LONG_BINPUT || op == OP_LONG_BINGET;
    const uint8_t *p = read_operand_bytes(m, wide ? 4 : 1);
    uint32_t i;

    if (!p)
        return -1;
    i = wide ? get_le32(p) : *p;
    return op == OP_BINPUT || op == OP_LONG_BINPUT ? memo_put(m, i) : memo_get(m, i);
}

static int run_int(struct machine *m, uint8_t op)
{
    static const uint8_t width[256] = { [OP_BININT] = 4, [OP_BININT1] = 1, [OP_BININT2] = 2,
                                        [OP_LONG1] = 1, [OP_LONG4] = 4 };
    const uint8_t *p = read_operand_bytes(m, width[op]);

    if (!p)
        return -1;
    switch (op) {
    case OP_BININT:  return push_int(m, PK_INT, (int32_t)get_le32(p));
    case OP_BININT1: return push_int(m, PK_INT, *p);
    case OP_BININT2: return push_int(m, PK_INT, get_le16(p));
    case OP_LONG1:   return push_long(m, *p);
    default:         return push_long(m, get_le32(p));
    }
}

/* Run an opcode that was added after protocol 2. */
static int step_newer(struct machine *m, uint8_t op)
{
    switch (op) {
    case OP_SHORT_BINBYTES: return push_bytes(m, 1);
    case OP_BINBYTES:       return push_bytes(m, 4);
    case OP_BINBYTES8:      return push_bytes(m, 8);
    case OP_SHORT_BINUNICODE: return push_unicode(m, 1);
    case OP_BINUNICODE8:    return push_unicode(m, 8);
    case OP_BYTEARRAY8:     return push_bytearray(m);
    case OP_EMPTY_SET:      return push(m, new_node(m, PK_SET));
    case OP_ADDITEMS:       return add_marked(m, add_set_members);
    case OP_FROZENSET:      return push_frozenset(m);
    case OP_NEWOBJ_EX:      return push_newobj_ex(m);
    case OP_STACK_GLOBAL:   return push_stack_global(m);
    case OP_MEMOIZE:        return memo_put(m, m->memo.n_stored);
    case OP_FRAME:          return frame(m);
    case OP_NEXT_BUFFER:
    case OP_READONLY_BUFFER: return report_pickle_damage(m, "its bytes lie in a buffer outside of it");
    default:                return report_pickle_damage(m, "unsupported opcode 0x%02x", op);
    }
}

static int step(struct machine *m, uint8_t op)
{
    switch (op) {
    case OP_PROTO:          return proto(m);
    case OP_MARK:           return put_mark(m);
    case OP_NONE:           return push(m, new_node(m, PK_NONE));
    case OP_NEWTRUE:        return push_int(m, PK_BOOL, 1);
    case OP_NEWFALSE:       return push_int(m, PK_BOOL, 0);
    case OP_BININT:
    case OP_BININT1:
    case OP_BININT2:
    case OP_LONG1:
    case OP_LONG4:          return run_int(m, op);
    case OP_BINFLOAT:       return push_float(m);
    case OP_BINUNICODE:     return push_unicode(m, 4);
    case OP_SHORT_BINSTRING: return push_str8(m, 1);
    case OP_BINSTRING:      return push_str8(m, 4);
    case OP_EMPTY_DICT:     return push(m, new_node(m, PK_DICT));
    case OP_EMPTY_LIST:     return push(m, new_node(m, PK_LIST));
    case OP_EMPTY_TUPLE:    return push_empty_tuple(m);
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:         return push_small_tuple(m, op - OP_TUPLE1 + 1u);
    case OP_TUPLE:          return push_marked_tuple(m);
    case OP_APPEND:         return add_top(m, 1, append_list_items);
    case OP_APPENDS:        return add_marked(m, append_list_items);
    case OP_SETITEM:        return add_top(m, 2, add_pairs);
    case OP_SETITEMS:       return add_marked(m, add_pairs);
    case OP_GLOBAL:         return push_global(m);
    case OP_REDUCE:         return push_act(m, PK_CALL);
    case OP_NEWOBJ:         return push_act(m, PK_OBJ);
    case OP_BINPERSID:      return push_act(m, PK_PERSID);
    case OP_BUILD:          return set_object_state(m);
    case OP_BINPUT:
    case OP_LONG_BINPUT:
    case OP_BINGET:
    case OP_LONG_BINGET:    return run_memo(m, op);
    default:                return step_newer(m, op);
    }
}

static int run_pickle_machine(struct machine *m)
{
    for (;;) {
        m->op_at = m->at;
        if (m->at == m->len)
            return report_pickle_damage(m, "ends without STOP");
        if (m->p[m->at] == OP_STOP)
            break;
        m->at++;
        if (step(m, m->p[m->op_at]) < 0)
            return -1;
    }
    if (m->at + 1 != m->len)
        return report_pickle_damage(m, "%zu bytes after STOP", m->len - m->at - 1);
    if (m->n != 1 || m->n_marks)
        return report_pickle_damage(m, "STOP with %u values on the stack, expected 1", m->n);
    return 0;
}

/* ---- one walk over the finished tree ---- */

enum { NEW, ON_PATH, DONE };

struct lists {
    struct machine *m;
    const struct pk **opaque, **act;
    uint32_t n_opaque, cap_opaque, n_acts, cap_acts;
};

/* Report damage at the offset of the opcode that made the node. Returns -1. */
static int PRINTF_LIKE(3, 4) report_node_damage(struct lists *l, const struct pk *v, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    report_pickle_damage_at(l->m, v->at, fmt, ap);
    va_end(ap);
    return -1;
}

static int compare_dict_keys(const void *pa, const void *pb)
{
    const struct pk *a = *(struct pk *const *)pa, *b = *(struct pk *const *)pb;

    if (a->type != b->type)
        return a->type < b->type ? -1 : 1;
    if (a->type == PK_INT)
        return a->i < b->i ? -1 : a->i > b->i;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return memcmp(a->str, b->str, a->len);
}

/*
 * Returns true for scalar values. The key of a scalar in a dict may be any text, such as a token of a vocabulary. The
 * key of any other value is the name of a tensor or of a part of the state.
 */
static bool is_scalar_node(const struct pk *v)
{
    return v->type <= PK_BYTES;
}

/*
 * Refuse duplicate and invalid keys. Python would silently use the second value of a duplicate key. No writer makes
 * such a dict.
 */
static int check_dict_keys(struct lists *l, const struct pk *dict)
{
    struct pk **key = xmalloc((dict->n + 1) * sizeof *key);
    uint32_t n = 0;
    int rc = 0;

    for (uint32_t i = 0; i < dict->n && rc == 0; i++) {
        struct pk *k = dict->item[2 * i];

        if (k->type == PK_STR || k->type == PK_INT)
            key[n++] = k;
        else if (k->type == PK_LIST || k->type == PK_DICT || k->type == PK_SET)
            rc = report_node_damage(l, k, "a dict key that cannot be one");
        if (rc == 0 && k->type == PK_STR && !is_scalar_node(dict->item[2 * i + 1]) && memchr(k->str, '\0', k->len))
            rc = report_node_damage(l, k, "a name with a NUL in it");
    }
    if (n > 1)
        qsort(key, n, sizeof *key, compare_dict_keys);
    for (uint32_t i = 1; i < n && rc == 0; i++)
        if (compare_dict_keys(&key[i - 1], &key[i]) == 0)
            rc = report_node_damage(l, key[i], "a key stands twice in one dict");
    free(key);
    return rc;
}

static int resolve_node(struct lists *l, struct pk *v, int depth, bool called);

/* Walk a child node, and add its weight and height to those of its parent. */
static int resolve_child_node(struct lists *l, struct pk *v, struct pk *child, int depth, bool called)
{
    if (!child)
        return 0;
    if (resolve_node(l, child, depth + 1, called) < 0)
        return -1;
    if (child->height + 1 > v->height)
        v->height = (uint8_t)(child->height + 1);
    v->weight = v->weight + child->weight < v->weight ? UINT32_MAX : v->weight + child->weight;
    return 0;
}

static int resolve_child_nodes(struct lists *l, struct pk *v, int depth)
{
    uint64_t n = 0;

    switch (v->type) {
    case PK_STR: case PK_BYTES: case PK_BIGINT:
        v->weight += (uint32_t)(v->len / 16);
        return 0;
    case PK_LIST: case PK_TUPLE: case PK_SET:
        n = v->n;
        break;
    case PK_DICT:
        n = 2 * (uint64_t)v->n;
        break;
    case PK_CALL: case PK_OBJ: case PK_PERSID:
        if (resolve_child_node(l, v, v->fn, depth, true) < 0 || resolve_child_node(l, v, v->args, depth, false) < 0 ||
            resolve_child_node(l, v, v->fill, depth, false) < 0)
            return -1;
        return resolve_child_node(l, v, v->state, depth, false);
    default:
        return 0;
    }
    for (uint64_t i = 0; i < n; i++)
        if (resolve_child_node(l, v, v->item[i], depth, false) < 0)
            return -1;
    return v->type == PK_DICT ? check_dict_keys(l, v) : 0;
}

static void list_node(struct lists *l, struct pk *v, bool called)
{
    if (v->type == PK_CALL || v->type == PK_OBJ || v->type == PK_PERSID) {
        ARRAY_ROOM(l->act, l->cap_acts, l->n_acts + 1);
        l->act[l->n_acts++] = v;
    }
    /* If the class is called, it is checked together with the call. */
    if (!called && pickle_is_opaque(v)) {
        v->opaque = true;
        ARRAY_ROOM(l->opaque, l->cap_opaque, l->n_opaque + 1);
        l->opaque[l->n_opaque++] = v;
    }
}

static int resolve_node(struct lists *l, struct pk *v, int depth, bool called)
{
    /* The same global may be called in one place of the tree and be a plain value in another place. */
    if (v->mark == DONE && v->type == PK_GLOBAL && !called && !v->opaque)
        list_node(l, v, false);
    if (v->mark == DONE)
        return depth + v->height < PICKLE_MAX_DEPTH
                   ? 0
                   : report_node_damage(l, v, "nested deeper than %d", PICKLE_MAX_DEPTH);
    if (v->mark == ON_PATH)
        return report_node_damage(l, v, "a value that contains itself");
    if (depth >= PICKLE_MAX_DEPTH)
        return report_node_damage(l, v, "nested deeper than %d", PICKLE_MAX_DEPTH);
    v->mark = ON_PATH;
    v->weight = 1;
    if (resolve_child_nodes(l, v, depth) < 0)
        return -1;
    if (v->weight > PICKLE_MAX_WEIGHT)
        return report_node_damage(l, v, "shared values unfold to more than %u", PICKLE_MAX_WEIGHT);
    v->mark = DONE;
    list_node(l, v, called && v->type == PK_GLOBAL);
    return 0;
}

static int at_cmp(const void *pa, const void *pb)
{
    const struct pk *a = *(const struct pk *const *)pa, *b = *(const struct pk *const *)pb;

    return a->at < b->at ? -1 : a->at > b->at;
}

/* Copy a list of nodes into the arena, sorted by their offset in the pickle. */
static int keep_list(struct machine *m, const struct pk **list, uint32_t n, const struct pk ***out)
{
    const struct pk **kept = arena_alloc(m->a, (n + 1) * sizeof *kept);

    if (!kept)
        return too_big(m);
    if (n) {
        memcpy(kept, list, n * sizeof *kept);
        qsort(kept, n, sizeof *kept, at_cmp);
    }
    *out = kept;
    return 0;
}

static int finish_pickle_tree(struct machine *m, struct pk_tree *t)
{
    struct lists l = { .m = m };
    int rc = resolve_node(&l, m->stack[0], 0, false);

    if (rc == 0)
        rc = keep_list(m, l.opaque, l.n_opaque, &t->opaque);
    if (rc == 0)
        rc = keep_list(m, l.act, l.n_acts, &t->act);
    t->n_opaque = l.n_opaque;
    t->n_acts = l.n_acts;
    t->root = m->stack[0];
    free(l.opaque);
    free(l.act);
    return rc;
}

/* Parse the whole pickle. The caller must have set the bytes, name, error, rows and memory limit in m. */
static int parse(struct machine *m, struct pk_tree *out)
{
    int rc;

    memset(out, 0, sizeof *out);
    if (m->len > PICKLE_MAX_BYTES) {
        err_data(m->e, m->name, ERR_NO_BYTE, "the pickle has %zu bytes, at most %zu are supported", m->len,
                 PICKLE_MAX_BYTES);
        return -1;
    }
    m->a = out->arena = arena_new(m->ceiling);
    ARRAY_ROOM(m->stack, m->cap, 256);
    pickle_memo_scan(&m->memo, m->p, m->len);
    rc = run_pickle_machine(m);
    if (rc == 0)
        rc = finish_pickle_tree(m, out);
    if (rc < 0)
        pk_tree_free(out);
    free(m->stack);
    pickle_memo_free(&m->memo);
    return rc;
}

int pickle_parse(const void *bytes, size_t len, const char *name, struct pk_tree *out, struct err *e)
{
    return parse(&(struct machine){ .p = bytes, .len = len, .name = name, .e = e, .ceiling = PICKLE_MAX_ARENA }, out);
}

int pickle_parse_table(const void *bytes, size_t len, const char *name, const struct pickle_rows *rows,
                       struct pk_tree *out, struct err *e)
{
    const size_t room = len > PICKLE_MAX_BYTES ? 0 : len * PICKLE_TABLE_ROOM;

    return parse(&(struct machine){ .p = bytes, .len = len, .name = name, .e = e, .rows = rows,
                                    .ceiling = room > PICKLE_MAX_ARENA ? room : PICKLE_MAX_ARENA }, out);
}

void pk_tree_free(struct pk_tree *t)
{
    arena_free(t->arena);
    memset(t, 0, sizeof *t);
}
