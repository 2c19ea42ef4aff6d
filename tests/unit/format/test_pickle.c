/* test_pickle.c - the pickle machine: input that it reads, input that it refuses, and output equal to its input */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/format/pickle/pickle.h"
#include "libcommon/format/pt.h"
#include "tests/lib/memzip.h"

/* String literals hold NUL bytes, so their size is taken from the array. */
#define P(s) (s), sizeof(s) - 1

static struct pk_tree parse(const void *bytes, size_t len)
{
    struct pk_tree t;
    struct err e = {0};

    if (pickle_parse(bytes, len, "t", &t, &e) < 0)
        fail_msg("%s", e.msg);
    return t;
}

static void expect_error(const void *bytes, size_t len, const char *want)
{
    struct pk_tree t;
    struct err e = {0};

    assert_int_equal(pickle_parse(bytes, len, "t", &t, &e), -1);
    assert_int_equal(e.kind, ERR_DATA);
    assert_string_equal(e.msg, want);
    assert_null(t.arena);
}

static void expect_text(const struct pk *v, const char *want)
{
    struct strbuf sb = {0};

    pk_text(v, &sb);
    assert_string_equal(sb.buf, want);
    strbuf_free(&sb);
}

static void parse_text(const void *bytes, size_t len, const char *want)
{
    struct pk_tree t = parse(bytes, len);

    expect_text(t.root, want);
    pk_tree_free(&t);
}

static void test_values(void **state)
{
    (void)state;
    parse_text(P("\x80\2N."), "null");
    parse_text(P("\x80\2(\x88\x89t."), "[true, false]");
    parse_text(P("K\377."), "255");
    parse_text(P("M\1\2."), "513");
    parse_text(P("J\377\377\377\377."), "-1");
    parse_text(P("\x8a\0."), "0");
    parse_text(P("\x8a\2\377\0."), "255");
    parse_text(P("\x8a\1\200."), "-128");
    parse_text(P("\x8a\10\0\0\0\0\0\0\0\200."), "-9223372036854775808");
    parse_text(P("\x8a\11\0\0\0\0\0\0\0\200\0."), "9223372036854775808");
    parse_text(P("\x8b\12\0\0\0\1\0\0\0\0\0\0\0\0\0."), "1");
    parse_text(P("G?\xf0\0\0\0\0\0\0."), "1.0");
    parse_text(P("G\x7f\xf8\0\0\0\0\0\0."), "\"NaN\"");
    parse_text(P("X\4\0\0\0a\"\n\1."), "\"a\\\"\\n\\u0001\"");
    parse_text(P("U\2ab."), "\"ab\"");
    parse_text(P("U\2a\377."), "\"<2 bytes>\"");
    parse_text(P("](K\1K\2e."), "[1, 2]");
    parse_text(P("}K\1K\2s."), "{\"1\": 2}");
    parse_text(P("}(U\1aK\2U\1b]u."), "{\"a\": 2, \"b\": []}");
    parse_text(P("K\1K\2K\3\x87."), "[1, 2, 3]");
    parse_text(P("]q\0h\0h\0\x86\x86."), "[[], [[], []]]");
    parse_text(P("ccollections\nOrderedDict\n)R(U\1aK\1u."), "{\"a\": 1}");
    parse_text(P("cargparse\nNamespace\n)\x81}U\1aK\1sb."), "{\"a\": 1}");
    parse_text(P("cos\nsystem\nU\2ls\x85R."), "\"<os.system>\"");
    parse_text(P("ctorch\nSize\nK\2K\3\x86\x85R."), "[2, 3]");
    parse_text(P("c__builtin__\ngetattr\ncmegatron.enums\nPositionEmbeddingType\nU\5alibi\x86R."),
               "\"PositionEmbeddingType.alibi\"");
    parse_text(P("cmegatron.enums\nPositionEmbeddingType\nK\3\x85R."), "\"PositionEmbeddingType(3)\"");
}

/* As Python's pickle.dumps(value, 4) and 5 write them, frame and all. */
static void test_newer_protocols(void **state)
{
    (void)state;
    parse_text(P("\x80\4\x95\5\0\0\0\0\0\0\0\x8c\1a\x94."), "\"a\"");
    parse_text(P("\x80\5\x8d\1\0\0\0\0\0\0\0a\x94."), "\"a\"");
    parse_text(P("\x80\4C\2a\377\x94."), "\"<2 bytes>\"");
    parse_text(P("\x80\3B\1\0\0\0a."), "\"<1 bytes>\"");
    parse_text(P("\x80\4\x8e\1\0\0\0\0\0\0\0a."), "\"<1 bytes>\"");
    parse_text(P("\x80\4\x8f\x94(K\1K\2\x90."), "[1, 2]");
    parse_text(P("\x80\4(K\1K\2\x91\x94."), "[1, 2]");
    parse_text(P("\x80\4(]\x94\x8c\1a\x94h\1h\0t."), "[[], \"a\", \"a\", []]");
    parse_text(P("\x80\4\x8c\13collections\x94\x8c\13OrderedDict\x94\x93\x94)R\x94(\x8c\1a\x94K\1u."), "{\"a\": 1}");
    parse_text(P("\x80\4\x8c\10argparse\x94\x8c\11Namespace\x94\x93\x94)}\x92}\x8c\1aK\1sb."), "{\"a\": 1}");
    parse_text(P("\x80\4\x8c\2os\x94\x8c\6system\x94\x93\x94\x8c\2ls\x85R."), "\"<os.system>\"");
    parse_text(P("\x80\4\x8c\1m\x8c\7A.inner\x93."), "\"<m.A.inner>\"");
    /* What a put index and MEMOIZE number alike. */
    parse_text(P("(]q\0K\1\x94h\1h\0t."), "[[], 1, 1, []]");
}

static void test_newer_damage(void **state)
{
    (void)state;
    expect_error(P("\x80\6N."), "t: at byte 0: pickle protocol 6 is not supported (up to 5 are)");
    expect_error(P("\x95."), "t: at byte 0: damaged pickle: ends inside an operand of 8 bytes");
    expect_error(P("\x95\3\0\0\0\0\0\0\0N."), "t: at byte 0: damaged pickle: a frame of 3 bytes, 2 are left");
    expect_error(P("\x95\377\377\377\377\377\377\377\377N."),
                 "t: at byte 0: damaged pickle: a frame of 18446744073709551615 bytes, 2 are left");
    expect_error(P("\x95\13\0\0\0\0\0\0\0\x95\1\0\0\0\0\0\0\0N."),
                 "t: at byte 9: damaged pickle: a frame inside a frame");
    expect_error(P("\x8d\377\377\377\377\377\377\377\377a."),
                 "t: at byte 0: damaged pickle: ends inside an operand of 18446744073709551615 bytes");
    expect_error(P("\x8c\1\377."), "t: at byte 0: damaged pickle: a string of 1 bytes is not UTF-8");
    expect_error(P("\x94."), "t: at byte 0: damaged pickle: stack underflow");
    expect_error(P("\x8c\1a\x93."), "t: at byte 3: damaged pickle: stack underflow");
    expect_error(P("\x8c\1aN\x93."),
                 "t: at byte 4: damaged pickle: a global whose module or name is no plain word of at most 500 letters");
    expect_error(P("\x8c\1a\x8c\3b\nc\x93."),
                 "t: at byte 8: damaged pickle: a global whose module or name is no plain word of at most 500 letters");
    expect_error(P("\x8c\1a\x8c\0\x93."),
                 "t: at byte 5: damaged pickle: a global whose module or name is no plain word of at most 500 letters");
    expect_error(P("](N\x90."), "t: at byte 3: damaged pickle: adds members to a value that takes none");
    expect_error(P("\x91."), "t: at byte 0: damaged pickle: no mark on the stack");
    expect_error(P("cm\nA\n)}\x8c\1aNs\x92."), "t: at byte 12: damaged pickle: makes an object with keyword arguments");
    expect_error(P("\x97."), "t: at byte 0: damaged pickle: its bytes lie in a buffer outside of it");
    expect_error(P("\x8f\x94(h\0\x90."), "t: at byte 0: damaged pickle: a value that contains itself");
}

static void test_damage(void **state)
{
    (void)state;
    expect_error(P(""), "t: at byte 0: damaged pickle: ends without STOP");
    expect_error(P("\x80\2N"), "t: at byte 3: damaged pickle: ends without STOP");
    expect_error(P("N.N"), "t: at byte 1: damaged pickle: 1 bytes after STOP");
    expect_error(P("."), "t: at byte 0: damaged pickle: STOP with 0 values on the stack, expected 1");
    expect_error(P("NN."), "t: at byte 2: damaged pickle: STOP with 2 values on the stack, expected 1");
    expect_error(P("(N."), "t: at byte 2: damaged pickle: STOP with 1 values on the stack, expected 1");
    expect_error(P("N\x80\2."), "t: at byte 1: damaged pickle: a protocol number in the middle");
    expect_error(P("\x99."), "t: at byte 0: damaged pickle: unsupported opcode 0x99");
    expect_error(P("0."), "t: at byte 0: damaged pickle: unsupported opcode 0x30");
    expect_error(P("\x86."), "t: at byte 0: damaged pickle: stack underflow");
    expect_error(P("N(\x85."), "t: at byte 2: damaged pickle: stack underflow");
    expect_error(P("t."), "t: at byte 0: damaged pickle: no mark on the stack");
    expect_error(P("Na."), "t: at byte 1: damaged pickle: stack underflow");
    expect_error(P("NNa."), "t: at byte 2: damaged pickle: appends to a value that takes none");
    expect_error(P("NNNs."), "t: at byte 3: damaged pickle: sets items to a value that takes none");
    expect_error(P("}(Nu."), "t: at byte 3: damaged pickle: a key without a value");
    expect_error(P("}]Ns."), "t: at byte 1: damaged pickle: a dict key that cannot be one");
    expect_error(P("}U\3a\0b]s."), "t: at byte 1: damaged pickle: a name with a NUL in it");
    parse_text(P("}U\3a\0bK\1s."), "{\"a\\u0000b\": 1}");   /* a token's number, say */
    expect_error(P("}U\1aNsU\1aNs."), "t: at byte 6: damaged pickle: a key stands twice in one dict");
    expect_error(P("h\5."), "t: at byte 0: damaged pickle: memo index 5 was never stored");
    expect_error(P("Nr\377\377\377\377."),
                 "t: at byte 1: damaged pickle: memo index 4294967295, at most 67108864 are supported");
    expect_error(P("q\0."), "t: at byte 0: damaged pickle: stack underflow");
    expect_error(P("X\377\377\377\377a."), "t: at byte 0: damaged pickle: ends inside an operand of 4294967295 bytes");
    expect_error(P("\x8b\377\377\377\377a."),
                 "t: at byte 0: damaged pickle: ends inside an operand of 4294967295 bytes");
    expect_error(P("X\1\0\0\0\377."), "t: at byte 0: damaged pickle: a string of 1 bytes is not UTF-8");
    expect_error(P("X\2\0\0\0\300\200."), "t: at byte 0: damaged pickle: a string of 2 bytes is not UTF-8");
    expect_error(P("cos\n."),
                 "t: at byte 0: damaged pickle: a global whose module or name is no plain word of at most 500 letters");
    expect_error(P("co s\nx\n."),
                 "t: at byte 0: damaged pickle: a global whose module or name is no plain word of at most 500 letters");
    expect_error(P("N)R."), "t: at byte 2: damaged pickle: calls something that is no global");
    expect_error(P("cos\nx\nNR."), "t: at byte 7: damaged pickle: arguments that are no tuple");
    expect_error(P("]Nb."), "t: at byte 2: damaged pickle: sets the state of a value that takes none");
    expect_error(P("cos\nx\n)\x81NbNb."), "t: at byte 11: damaged pickle: sets the state of a value that takes none");
}

static void test_cycle(void **state)
{
    (void)state;
    expect_error(P("]q\0h\0a."), "t: at byte 0: damaged pickle: a value that contains itself");
    expect_error(P("cos\nx\n)\x81q\0h\0b."), "t: at byte 7: damaged pickle: a value that contains itself");
}

static void test_depth(void **state)
{
    struct strbuf sb = {0};
    struct pk_tree t;

    (void)state;
    for (int i = 0; i < 199; i++)
        strbuf_addf(&sb, "]");
    for (int i = 0; i < 198; i++)
        strbuf_addf(&sb, "a");
    strbuf_addf(&sb, ".");
    t = parse(sb.buf, sb.len);
    pk_tree_free(&t);
    sb.len = 0;
    for (int i = 0; i < 201; i++)
        strbuf_addf(&sb, "]");
    for (int i = 0; i < 200; i++)
        strbuf_addf(&sb, "a");
    strbuf_addf(&sb, ".");
    expect_error(sb.buf, sb.len, "t: at byte 200: damaged pickle: nested deeper than 200");
    /* Shared levels count as well: 150 above a shared list of 100 levels seen before. */
    sb.len = 0;
    strbuf_addf(&sb, "(");
    for (int i = 0; i < 100; i++)
        strbuf_addf(&sb, "]");
    for (int i = 0; i < 99; i++)
        strbuf_addf(&sb, "a");
    strbuf_addf(&sb, "q%c", 1);
    for (int i = 0; i < 150; i++)
        strbuf_addf(&sb, "]");
    strbuf_addf(&sb, "h%c", 1);
    for (int i = 0; i < 150; i++)
        strbuf_addf(&sb, "a");
    strbuf_addf(&sb, "t.");
    expect_error(sb.buf, sb.len, "t: at byte 1: damaged pickle: nested deeper than 200");
    sb.len = 0;
    for (int i = 0; i < 201; i++)
        strbuf_addf(&sb, "(");
    expect_error(sb.buf, sb.len, "t: at byte 200: damaged pickle: nested deeper than 200");
    strbuf_free(&sb);
}

/* 2^60 values in 300 bytes: each level holds the one below twice. */
static void test_bomb(void **state)
{
    struct strbuf sb = {0};
    struct pk_tree t;
    struct err e = {0};

    (void)state;
    strbuf_addf(&sb, "]");
    for (int i = 0; i < 60; i++)
        strbuf_addf(&sb, "q%ch%c\x86", i + 1, i + 1);
    strbuf_addf(&sb, ".");
    assert_int_equal(pickle_parse(sb.buf, sb.len, "t", &t, &e), -1);
    assert_non_null(strstr(e.msg, "shared values unfold to more than 33554432"));
    strbuf_free(&sb);
}

/* As many values as bytes: the stack's limit stops it long before memory does. */
static void test_flood(void **state)
{
    size_t len = 5 << 20;
    char *bytes = xmalloc(len);

    (void)state;
    memset(bytes, 'N', len);
    expect_error(bytes, len, "t: at byte 4194304: damaged pickle: more than 4194304 values on the stack");
    free(bytes);
}

/* ---- writing ---- */

static bool equal(const struct pk *a, const struct pk *b);

static bool equal_items(const struct pk *a, const struct pk *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!equal(a->item[i], b->item[i]))
            return false;
    return true;
}

static bool equal(const struct pk *a, const struct pk *b)
{
    if (!a || !b)
        return a == b;
    if (a->type != b->type || a->opaque != b->opaque)
        return false;
    switch (a->type) {
    case PK_NONE: return true;
    case PK_BOOL: case PK_INT: return a->i == b->i;
    case PK_FLOAT: return memcmp(&a->f, &b->f, sizeof a->f) == 0;
    case PK_STR: case PK_BYTES: case PK_BIGINT: return a->len == b->len && memcmp(a->str, b->str, a->len) == 0;
    case PK_GLOBAL: return strcmp(a->module, b->module) == 0 && strcmp(a->name, b->name) == 0;
    case PK_LIST: case PK_TUPLE: case PK_SET: return a->n == b->n && equal_items(a, b, a->n);
    case PK_DICT: return a->n == b->n && equal_items(a, b, 2 * a->n);
    default:
        return equal(a->fn, b->fn) && equal(a->args, b->args) && equal(a->state, b->state) && equal(a->fill, b->fill);
    }
}

/* Read, write, read: the same tree, and written again the same bytes (so what is shared stays so). */
static void round_trip(const void *bytes, size_t len)
{
    struct pk_tree t = parse(bytes, len), u;
    struct strbuf once = {0}, twice = {0};
    struct arena *a = arena_new(0);

    pickle_write(t.root, &once);
    u = parse(once.buf, once.len);
    assert_true(equal(t.root, u.root));
    assert_int_equal(t.n_opaque, u.n_opaque);
    pickle_write(u.root, &twice);
    assert_int_equal(once.len, twice.len);
    assert_memory_equal(once.buf, twice.buf, once.len);
    twice.len = 0;
    pickle_write(pk_copy(a, t.root), &twice);
    assert_int_equal(once.len, twice.len);
    assert_memory_equal(once.buf, twice.buf, once.len);
    assert_true(once.len <= len + 16);
    strbuf_free(&once);
    strbuf_free(&twice);
    arena_free(a);
    pk_tree_free(&t);
    pk_tree_free(&u);
}

/* Sets, bytes and byte arrays have no opcodes in protocol 2: they are written as calls, which then stay so. */
static void round_trip_newer(const void *bytes, size_t len)
{
    struct pk_tree t = parse(bytes, len);
    struct strbuf written = {0};

    pickle_write(t.root, &written);
    round_trip(written.buf, written.len);
    strbuf_free(&written);
    pk_tree_free(&t);
}

static void round_trip_file(const char *path, void (*trip)(const void *bytes, size_t len))
{
    struct files *f = files_new();
    struct err e = {0};
    int file = files_add_path(f, path, &e);
    struct zip *z = zip_open(f, file, &e);
    char *bytes;

    if (!z)
        fail_msg("%s", e.msg);
    for (int i = 0; i < zip_n(z); i++) {
        const struct zip_entry *x = zip_entry(z, i);

        if (!str_ends(x->name, "/data.pkl"))
            continue;
        bytes = xmalloc(x->size);
        assert_int_equal(files_read(f, file, x->at, bytes, x->size, &e), 0);
        trip(bytes, x->size);
        free(bytes);
    }
    zip_close(z);
    files_free(f);
}

static void test_round_trips(void **state)
{
    static const char *const golden[] = {
        "tests/data/pt/layer_08.pt", "tests/data/pt/zoo_torch1.pt", "tests/data/pt/zoo_torch2.pt",
        "tests/data/bloom-tp2pp2dp2/global_step20/mp_rank_00_model_states.pt",
        "tests/data/bloom-tp2pp2dp2/global_step20/bf16_zero_pp_rank_1_mp_rank_03_optim_states.pt",
        "tests/data/gpt2-tp2pp2dp1/global_step20/mp_rank_00_model_states.pt",
    };

    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++)
        round_trip_file(golden[i], round_trip);
    round_trip_file("tests/data/pt/zoo_protocol4.pt", round_trip_newer);
    round_trip_file("tests/data/pt/zoo_protocol5.pt", round_trip_newer);
    round_trip(P("\x80\2N."));
    round_trip(P("cos\nsystem\nU\2ls\x85R."));
    round_trip(P("c__builtin__\ngetattr\ncm\nOuter\nU\5Inner\x86R)\x81}U\1aNsb."));
}

static void written(const struct pk *v, const void *want, size_t len)
{
    struct strbuf sb = {0};

    pickle_write(v, &sb);
    assert_int_equal(sb.len, len);
    assert_memory_equal(sb.buf, want, len);
    strbuf_free(&sb);
}

static void test_written_bytes(void **state)
{
    struct arena *a = arena_new(0);
    struct pk *list = pk_list(a), *pair = pk_tuple(a), *d = pk_dict(a);
    struct pk_tree t;

    (void)state;
    written(pk_int(a, 0), P("\x80\2K\0."));
    written(pk_int(a, 256), P("\x80\2M\0\1."));
    written(pk_int(a, 65536), P("\x80\2J\0\0\1\0."));
    written(pk_int(a, -1), P("\x80\2J\377\377\377\377."));
    written(pk_int(a, 2147483648), P("\x80\2\x8a\5\0\0\0\200\0."));
    written(pk_int(a, -2147483649), P("\x80\2\x8a\5\377\377\377\177\377."));
    written(pk_int(a, INT64_MIN), P("\x80\2\x8a\10\0\0\0\0\0\0\0\200."));
    written(pk_float(a, 1.0), P("\x80\2G?\xf0\0\0\0\0\0\0."));
    /* What protocol 2 has no opcode for. */
    t = parse(P("\x8f."));
    written(t.root, P("\x80\2c__builtin__\nset\n]\x85R."));
    pk_tree_free(&t);
    t = parse(P("U\2a\377."));
    written(t.root, P("\x80\2c_codecs\nencode\nX\3\0\0\0a\303\277X\6\0\0\0latin1\x86R."));
    pk_tree_free(&t);
    /* One list in two places stays one list; equal strings are written once. */
    pk_add(a, pair, list);
    pk_add(a, pair, list);
    written(pair, P("\x80\2]q\0h\0\x86."));
    pk_set_str(a, d, "a", pk_str(a, "longer string"));
    pk_set_str(a, d, "b", pk_str(a, "longer string"));
    written(d, P("\x80\2}(X\1\0\0\0aX\15\0\0\0longer stringq\0X\1\0\0\0bh\0u."));
    arena_free(a);
}

/* Pair i of a dict: a key of its own -> an object with values that are equal in all pairs, and values that are not. */
static void make_test_pair(void *ctx, uint32_t i, struct arena *a, struct pk *pair[2])
{
    struct pk *fields = pk_dict(a), *two = pk_tuple(a);
    char key[32];

    ++*(int *)ctx;
    pk_add(a, two, pk_int(a, i));
    pk_add(a, two, pk_str(a, "a name that all pairs have"));
    pk_set_str(a, fields, "first field", two);
    pk_set_str(a, fields, "second field", pk_str(a, i % 2 ? "a longer odd name" : "a longer even name"));
    snprintf(key, sizeof key, "key %u", i);
    pair[0] = pk_str(a, key);
    pair[1] = pk_object(a, "module", "Class", fields);
}

/* A dict whose pairs are made while it is written has the bytes of the same dict in memory. */
static void test_made_pairs(void **state)
{
    const uint32_t sizes[] = { 0, 1, 2, 999, 1000, 1001, 2500 };

    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct arena *a = arena_new(0);
        struct pk *whole = pk_dict(a), *made, *in_whole = pk_dict(a), *in_made = pk_dict(a), *pair[2];
        struct strbuf want = {0};
        int n_calls = 0, n_ignored = 0;
        const struct pk_made pairs = { sizes[k], make_test_pair, &n_calls };

        made = pk_dict_made(a, &pairs);
        for (uint32_t i = 0; i < sizes[k]; i++) {
            make_test_pair(&n_ignored, i, a, pair);
            pk_set(a, whole, pair[0], pair[1]);
        }
        /* Strings of the pairs are also elsewhere in the tree, before and after them. */
        pk_set_str(a, in_whole, "second field", whole);
        pk_set_str(a, in_whole, "last", pk_str(a, "a longer odd name"));
        pk_set_str(a, in_made, "second field", made);
        pk_set_str(a, in_made, "last", pk_str(a, "a longer odd name"));
        pickle_write(in_whole, &want);
        written(in_made, want.buf, want.len);
        assert_int_equal(n_calls, 2 * sizes[k]);
        strbuf_free(&want);
        arena_free(a);
    }
}

static void test_builders(void **state)
{
    struct arena *a = arena_new(0);
    struct pk *od = pk_ordered_dict(a), *o, *big = pk_list(a);
    struct strbuf sb = {0};
    struct pk_tree t;
    int64_t i;

    (void)state;
    pk_set_str(a, od, "x", pk_int(a, 1));
    pk_set_str(a, od, "y", pk_int(a, 2));
    pk_set_str(a, od, "x", pk_int(a, 3));
    pk_set(a, od, pk_int(a, 7), pk_none(a));
    expect_text(od, "{\"x\": 3, \"y\": 2, \"7\": null}");
    assert_true(pk_remove(od, "x"));
    assert_false(pk_remove(od, "x"));
    expect_text(od, "{\"y\": 2, \"7\": null}");
    assert_true(pk_as_int(pk_get(od, "y"), &i) && i == 2);
    assert_null(pk_get(od, "z"));
    assert_null(pk_get(NULL, "z"));
    o = pk_object(a, "argparse", "Namespace", pk_dict(a));
    pk_set_str(a, o, "lr", pk_float(a, 0.1));
    expect_text(o, "{\"lr\": 0.1}");
    for (int k = 0; k < 2501; k++)
        pk_add(a, big, pk_int(a, k));
    pk_set_str(a, od, "big", big);
    pickle_write(od, &sb);
    t = parse(sb.buf, sb.len);
    assert_int_equal(pk_get(t.root, "big")->n, 2501);
    pk_tree_free(&t);
    strbuf_free(&sb);
    arena_free(a);
}

/* The same values, as torch 1.13 on Python 3.11, torch 2.11 on Python 3.12 and newer protocols spell them. */
static void test_zoo(void **state)
{
    static const char *const files[] = { "tests/data/pt/zoo_torch1.pt", "tests/data/pt/zoo_torch2.pt",
                                         "tests/data/pt/zoo_protocol4.pt", "tests/data/pt/zoo_protocol5.pt" };

    (void)state;
    for (int k = 0; k < 4; k++) {
        struct files *f = files_new();
        struct err e = {0};
        struct pt *pt = pt_open(f, files_add_path(f, files[k], &e), &e);
        const struct pk *root, *v;
        int64_t i = 0;
        double d = 0;
        uint32_t n;
        char name[100];

        if (!pt)
            fail_msg("%s", e.msg);
        root = pt_root(pt);
        expect_text(pk_get(root, "ints"), "[0, 1, -1, 255, 256, 65535, 65536, 2147483647, 2147483648, -2147483648, "
                    "-2147483649, 9223372036854775807, -9223372036854775808, 9223372036854775808, "
                    "1267650600228229401496703205376, -1267650600228229401496703205376]");
        expect_text(pk_get(root, "strings"), "[\"\", \"plain\", \"quote \\\" back \\\\\", \"line\\nbreak\", "
                    "\"h\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\", \"\\ud800\"]");
        expect_text(pk_get(root, "deque"), "[[1, 2], [3, 4]]");
        expect_text(pk_get(root, "set"), "[1]");
        expect_text(pk_get(root, "frozenset"), "[2]");
        if (k >= 2)                     /* before, a call of _codecs.encode */
            expect_text(pk_get(root, "bytes"), "\"<4 bytes>\"");
        expect_text(pk_get(root, "transposed"), "\"tensor f32 [6, 4]\"");
        expect_text(pk_get(root, "dtype"), "\"torch.bfloat16\"");
        expect_text(pk_get(root, "unknown"), "\"<megatron.curriculum.Unknown>\"");
        assert_null(pk_get(pk_get(root, "unknown"), "field"));
        assert_true(pk_as_int(pk_get(root, "np_int"), &i) && i == -5);
        assert_true(pk_as_int(pk_get(root, "np_u1"), &i) && i == 200);
        assert_true(pk_as_double(pk_get(root, "np_float"), &d) && d == 0.25);
        assert_false(pk_as_int(pk_get(root, "np_float"), &i));
        assert_non_null(pk_items(pk_get(root, "size"), &n));
        assert_int_equal(n, 2);
        v = pk_get(root, "shared");
        assert_ptr_equal(v->item[0], v->item[1]);
        v = pk_get(pk_get(root, "namespace"), "position");
        if (k == 0)
            assert_string_equal(pk_enum(v, &i), "alibi");
        else
            assert_true(!pk_enum(v, &i) && i == 3);
        assert_string_equal(pk_class(v, name, sizeof name), "megatron.enums.PositionEmbeddingType");
        assert_true(pk_as_int(pk_get(pk_get(root, "fragment"), "start"), &i) && i == 3);
        assert_int_equal(pt_tree(pt)->n_opaque, 1);
        pt_close(pt);
        files_free(f);
    }
}

/* A dict takes as long for each of many keys; what compared them all would need a minute here. */
static void test_many_keys(void **state)
{
    enum { N = 200000 };
    struct arena *a = arena_new(0);
    struct pk *d = pk_dict(a), *copy;
    char key[16];
    int64_t v = 0;

    (void)state;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N; i++) {
            snprintf(key, sizeof key, "k%d", i);
            pk_set_int(a, d, key, i + round);
        }
    assert_int_equal(d->n, N);
    copy = pk_copy(a, d);
    pk_set_int(a, copy, "new", 1);
    assert_null(pk_get(d, "new"));
    assert_true(pk_remove(d, "k100"));
    assert_null(pk_get(d, "k100"));
    pk_set_int(a, d, "k101", -1);
    pk_set_int(a, d, "k100", -2);
    assert_int_equal(d->n, N);
    for (int i = 0; i < N; i += i < 200 ? 1 : 997) {
        snprintf(key, sizeof key, "k%d", i);
        assert_true(pk_as_int(pk_get(d, key), &v) && v == (i == 100 ? -2 : i == 101 ? -1 : i + 1));
        assert_true(pk_as_int(pk_get(copy, key), &v) && v == i + 1);
    }
    arena_free(a);
}

/* ---- tables: objects that leave a number ---- */

struct taken {
    int64_t n, sum;
    int refuse;                         /* every so many are not taken */
};

static int64_t take_row(void *ctx, int cls, const struct pk *v)
{
    struct taken *t = ctx;
    int64_t x = 0;

    assert_int_equal(cls, 0);
    if (t->refuse && ++t->refuse % 3 == 0)
        return -1;
    assert_true(pk_as_int(v->state->item[1], &x) || v->state->item[1]->type == PK_LIST);
    t->sum += x;
    return t->n++;
}

static void parse_rows(const void *bytes, size_t len, struct taken *t, struct pk_tree *tree)
{
    static const char *const cls[1][2] = { { "m", "R" } };
    const struct pickle_rows rows = { cls, 1, take_row, t };
    struct err e = {0};

    if (pickle_parse_table(bytes, len, "t", &rows, tree, &e) < 0)
        fail_msg("%s", e.msg);
}

/* R of a state {a: ...}. */
#define ROW_BEGIN "cm\nR\n)\x81"
#define ROW ROW_BEGIN "}U\1aK\5sb"

/* A row goes with all that only it leads to; what something else leads to stays, and so does the object then. */
static void test_rows(void **state)
{
    static const struct { const char *what, *bytes; size_t len; const char *text; } cases[] = {
#define CASE(what, bytes, text) { what, bytes, sizeof(bytes) - 1, text }
        CASE("two", "\x80\2](" ROW ROW "e.", "[0, 1]"),
        CASE("twice in the tree", "\x80\2(" ROW_BEGIN "q\1}U\1aK\5sbh\1t.", "[0, 0]"),
        CASE("arguments asked for again", "\x80\2(cm\nR\n)q\2\x81}U\1aK\5sbh\2t.", "[0, []]"),
        CASE("a part asked for again", "\x80\2](" ROW_BEGIN "}U\1a]q\1K\7asbh\1e.", "[\"<m.R>\", [7]]"),
        CASE("off the stack and back", "\x80\2](" ROW_BEGIN "q\1K\x09\x86h\1}U\1aK\5sbe.",
             "[[\"<m.R>\", 9], \"<m.R>\"]"),
        CASE("into an older list", "\x80\2(]q\0" ROW_BEGIN "}U\1ah\0K\7asbt.", "[[7], \"<m.R>\"]"),
        CASE("into an older dict", "\x80\2(}q\0" ROW_BEGIN "}U\1ah\0U\1b]ssbt.", "[{\"b\": []}, \"<m.R>\"]"),
        CASE("an older object's state", "\x80\2(cm\nS\n)\x81q\0" ROW_BEGIN "}U\1ah\0]bsbt.", "[\"<m.S>\", \"<m.R>\"]"),
        CASE("without a state", "\x80\2](" ROW_BEGIN ROW "e.", "[\"<m.R>\", 0]"),
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct taken t = {0};
        struct strbuf text = {0};
        struct pk_tree tree;

        parse_rows(cases[i].bytes, cases[i].len, &t, &tree);
        pk_text(tree.root, &text);
        if (strcmp(text.buf, cases[i].text) != 0)
            fail_msg("%s: %s, expected %s", cases[i].what, text.buf, cases[i].text);
        strbuf_free(&text);
        pk_tree_free(&tree);
    }
}

/* So many that blocks of memory come and go; some stay as they are. */
static void test_many_rows(void **state)
{
    enum { N = 60000 };
    struct strbuf sb = {0};
    struct taken t = { .refuse = 1 };
    struct pk_tree tree;
    int64_t sum = 0, row = 0, x;

    (void)state;
    strbuf_add(&sb, "\x80\2](", 4);
    for (int i = 0; i < N; i++) {
        const uint8_t low = (uint8_t)i, high = (uint8_t)(i >> 8);

        strbuf_add(&sb, ROW_BEGIN "}(U\1aM", sizeof ROW_BEGIN - 1 + 6);
        strbuf_add(&sb, &low, 1);
        strbuf_add(&sb, &high, 1);
        strbuf_addf(&sb, "U\1bX%c%c", 0, i % 2 ? 9 : 3);
        strbuf_add(&sb, "\0\0", 2);
        for (int k = 0; k < (i % 2 ? 9 : 3) * 256; k++)
            strbuf_add(&sb, "x", 1);
        strbuf_add(&sb, "ub", 2);
    }
    strbuf_add(&sb, "e.", 2);
    parse_rows(sb.buf, sb.len, &t, &tree);
    assert_int_equal(tree.root->n, N);
    for (int i = 0; i < N; i++) {
        const struct pk *v = tree.root->item[i];

        if (v->type == PK_ROW) {
            assert_int_equal(v->i, row++);
            sum += i;
            continue;
        }
        assert_true(v->type == PK_OBJ && pk_as_int(v->state->item[1], &x) && x == i);
        assert_int_equal(v->state->item[3]->len, (i % 2 ? 9 : 3) * 256);
    }
    assert_int_equal(row, t.n);
    assert_int_equal(sum, t.sum);
    assert_true(row == N / 3 * 2);
    pk_tree_free(&tree);
    strbuf_free(&sb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_newer_protocols),
        cmocka_unit_test(test_newer_damage),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_cycle),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_bomb),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_written_bytes),
        cmocka_unit_test(test_made_pairs),
        cmocka_unit_test(test_builders),
        cmocka_unit_test(test_zoo),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
