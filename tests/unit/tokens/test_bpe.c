/* test_bpe.c - tokens of texts compared with the tokenizers library's, invalid files, JSONL lines */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "libcommon/base/files.h"
#include "libcommon/base/text.h"
#include "libcommon/format/mmidx.h"
#include "libcommon/tokens/bpe_impl.h"
#include "libcommon/tokens/jsonl.h"

#define DATA "tests/data/text/"

static char dir[256];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/bpe-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(dir, &e);
}

/* Write a file. It is not synchronised with the disk, which would take most of the time of these tests. */
static void put(const char *name, const char *text, char path[300])
{
    FILE *f;

    snprintf(path, 300, "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static struct bpe *open_named(const char *name)
{
    char *path = str_fmt(DATA "tokenizers/%s.json", name);
    struct err e = {0};
    struct bpe *b = strcmp(name, "gpt2") == 0 ? bpe_open_gpt2(DATA "bpe-vocab.json", DATA "bpe-merges.txt", &e)
                                              : bpe_open_json(path, &e);

    if (!b)
        fail_msg("%s", e.msg);
    free(path);
    return b;
}

/* ---- texts ---- */

/* One line of expected.jsonl. Encoded twice, so that the second answer is the cache's. */
static void check_line(const char *line)
{
    json_error_t je;
    json_t *o = json_loads(line, JSON_ALLOW_NUL, &je), *want = json_object_get(o, "ids"), *text;
    struct bpe *b = open_named(json_string_value(json_object_get(o, "tokenizer")));
    struct bpe_encoder *c = bpe_encoder_new(b);
    struct bpe_ids ids = {0};
    struct err e = {0};

    text = json_object_get(o, "text");
    for (int turn = 0; turn < 2; turn++) {
        ids.n = 0;
        if (bpe_encode(c, json_string_value(text), json_string_length(text), &ids, &e) < 0)
            fail_msg("%s", e.msg);
        if (ids.n != (int64_t)json_array_size(want))
            fail_msg("%lld tokens: %s", (long long)ids.n, line);
        for (int64_t i = 0; i < ids.n; i++)
            if (ids.v[i] != json_integer_value(json_array_get(want, (size_t)i)))
                fail_msg("token %lld is %d: %s", (long long)i, ids.v[i], line);
    }
    bpe_ids_free(&ids);
    bpe_encoder_free(c);
    bpe_free(b);
    json_decref(o);
}

static void test_expected(void **state)
{
    FILE *f = fopen(DATA "tokenizers/expected.jsonl", "r");
    char *line = NULL;
    size_t cap = 0;
    int n = 0;

    (void)state;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        check_line(line);
        n++;
    }
    assert_int_equal(n, 302);
    free(line);
    fclose(f);
}

/* The reference's documents: decoded and encoded again they are the same tokens. */
static void round_trip(struct bpe *b, const char *prefix)
{
    struct err e = {0};
    struct mmidx *m = mmidx_open(prefix, &e);
    struct bpe_encoder *c = bpe_encoder_new(b);
    struct bpe_ids ids = {0};
    struct strbuf text = {0};

    if (!m)
        fail_msg("%s", e.msg);
    for (int64_t d = 0; d < mmidx_n(m); d++) {
        int64_t n = mmidx_len(m, d) - 1, *want = calloc((size_t)n + 1, sizeof *want);

        mmidx_read(m, d, 0, n + 1, want);
        assert_int_equal(want[n], bpe_eod(b));
        text.len = 0;
        ids.n = 0;
        assert_int_equal(bpe_decode(b, want, n, &text, &e), 0);
        assert_int_equal(bpe_encode(c, text.buf, text.len, &ids, &e), 0);
        assert_int_equal(ids.n, n);
        for (int64_t i = 0; i < n; i++)
            if (ids.v[i] != want[i])
                fail_msg("document %lld, token %lld: %d, expected %lld", (long long)d, (long long)i, ids.v[i],
                         (long long)want[i]);
        free(want);
    }
    strbuf_free(&text);
    bpe_ids_free(&ids);
    bpe_encoder_free(c);
    mmidx_close(m);
    bpe_free(b);
}

static void test_round_trips(void **state)
{
    (void)state;
    round_trip(bpe_bytes(), DATA "text_document");
    round_trip(open_named("gpt2"), DATA "owt_slice");
}

/* Tokens as the vocabulary spells them, and the bytes they stand for. */
static void test_spelling(void **state)
{
    static const struct { const char *spelled, *bytes;
    } cases[] = {
        { "A", "A" },           { "~", "~" },           { "\xc4\xa0", " " },    { "\xc4\x8a", "\n" },
        { "\xc5\x83", "\xad" }, { "\xc4\xa1", "\x7f" }, { "\xc5\x82", "\xa0" }, { "\xc2\xa1", "\xa1" },
        { "\xc3\xbf", "\xff" }, { "</s>", "</s>" },
    };
    struct bpe *b = open_named("bloom");
    const int64_t beyond = bpe_vocab_size(b);
    struct strbuf out = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(bpe_vocab_size(b), 600);
    assert_int_equal(bpe_find(b, "nowhere"), -1);
    assert_int_equal(bpe_eod(b), 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t id = bpe_find(b, cases[i].spelled);

        assert_true(id >= 0);
        out.len = 0;
        assert_int_equal(bpe_decode(b, &id, 1, &out, &e), 0);
        assert_string_equal(out.buf, cases[i].bytes);
    }
    assert_int_equal(bpe_decode(b, &beyond, 1, &out, &e), -1);
    assert_string_equal(e.msg, "tokens: number 600 at position 0 is not in the vocabulary of 600");
    strbuf_free(&out);
    bpe_free(b);
}

static void expect_ids(struct bpe *b, const char *text, const char *want)
{
    struct bpe_encoder *c = bpe_encoder_new(b);
    struct bpe_ids ids = {0};
    struct strbuf got = {0};
    struct err e = {0};

    if (bpe_encode(c, text, strlen(text), &ids, &e) < 0)
        fail_msg("%s", e.msg);
    for (int64_t i = 0; i < ids.n; i++)
        strbuf_addf(&got, "%s%d", i ? " " : "", ids.v[i]);
    assert_string_equal(got.buf, want);
    strbuf_free(&got);
    bpe_ids_free(&ids);
    bpe_encoder_free(c);
    bpe_free(b);
}

/* U+180E is no white space, though \s of PCRE2 takes it: it and "!" are one piece, in which bytes join. */
static void test_white_space(void **state)
{
    json_t *vocab = json_load_file(DATA "byte-vocab.json", 0, NULL);
    char v[300], m[300], *text;
    struct err e = {0};
    struct bpe *b;

    (void)state;
    json_object_set_new(vocab, "\xc4\xb0!", json_integer(257));         /* byte 0x8e and "!" */
    text = json_dumps(vocab, 0);
    put("v.json", text, v);
    put("m.txt", "\xc4\xb0 !\n", m);
    b = bpe_open_gpt2(v, m, &e);
    if (!b)
        fail_msg("%s", e.msg);
    expect_ids(b, "\xe1\xa0\x8e!", "225 160 257");
    free(text);
    json_decref(vocab);
}

/* A token that no merge makes is found only where the model ignores merges. */
static void test_ignore_merges(void **state)
{
    (void)state;
    for (int ignore = 0; ignore < 2; ignore++) {
        json_t *root = json_load_file(DATA "tokenizers/llama.json", 0, NULL), *model = json_object_get(root, "model");
        char path[300], *text;
        struct err e = {0};
        struct bpe *b;

        json_object_set_new(json_object_get(model, "vocab"), "\xc4\xa0zqzq", json_integer(600));
        json_object_set_new(model, "ignore_merges", json_boolean(ignore));
        text = json_dumps(root, 0);
        put("t.json", text, path);
        b = bpe_open_json(path, &e);
        if (!b)
            fail_msg("%s", e.msg);
        expect_ids(b, " zqzq", ignore ? "0 600" : "0 222 91 82 91 82");
        free(text);
        json_decref(root);
    }
}

/* ---- forms of tokenizer.json ---- */

/* Write each merge as "left right", as the tokenizers library did before 2024, or as ["left", "right"]. */
static void write_merges_as(json_t *root, bool pairs)
{
    json_t *model = json_object_get(root, "model"), *merges = json_array(), *m;
    size_t i;

    json_array_foreach(json_object_get(model, "merges"), i, m) {
        const char *left = json_string_value(json_array_get(m, 0)), *right = json_string_value(json_array_get(m, 1));
        char *both = json_is_string(m) ? xstrdup(json_string_value(m)) : str_fmt("%s %s", left, right);
        char *gap = strchr(both, ' ');

        json_array_append_new(merges, pairs ? json_pack("[s%, s]", both, (size_t)(gap - both), gap + 1)
                                            : json_string(both));
        free(both);
    }
    json_object_set_new(model, "merges", merges);
}

static void expect_same_tokens(const char *path, const char *name, const char *text)
{
    struct bpe *both[2] = { open_named(name), NULL };
    struct bpe_ids ids[2] = {0};
    struct err e = {0};

    both[1] = bpe_open_json(path, &e);
    if (!both[1])
        fail_msg("%s", e.msg);
    assert_int_equal(bpe_vocab_size(both[0]), bpe_vocab_size(both[1]));
    for (int i = 0; i < 2; i++) {
        struct bpe_encoder *c = bpe_encoder_new(both[i]);

        if (bpe_encode(c, text, strlen(text), &ids[i], &e) < 0)
            fail_msg("%s", e.msg);
        bpe_encoder_free(c);
        bpe_free(both[i]);
    }
    assert_int_equal(ids[0].n, ids[1].n);
    assert_memory_equal(ids[0].v, ids[1].v, (size_t)ids[0].n * sizeof *ids[0].v);
    bpe_ids_free(&ids[0]);
    bpe_ids_free(&ids[1]);
}

/* The file gives the same tokens in each form of JSON. The scan reads those that the tokenizers library writes. */
static void test_forms(void **state)
{
    static const struct { size_t flags; bool scanned;
    } forms[] = {
        { 0, true },                    { JSON_INDENT(2), true },       { JSON_COMPACT, true },
        { JSON_ENSURE_ASCII, false },   { JSON_SORT_KEYS, false },
    };
    static const char *const names[] = { "bloom", "llama", "star", "qwen" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names * 2; i++) {
        const char *name = names[i / 2];
        char *from = str_fmt(DATA "tokenizers/%s.json", name), path[300], *text = NULL;
        json_t *root = json_load_file(from, 0, NULL);

        write_merges_as(root, i % 2);
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
            struct bpe *b = bpe_new();
            struct strbuf rest = {0};

            free(text);
            text = json_dumps(root, forms[k].flags);
            assert_int_equal(bpe_scan_model(b, text, strlen(text), &rest), forms[k].scanned);
            put("t.json", text, path);
            expect_same_tokens(path, name, "The \"quick\" brown fox\\n\tjumps, 12345 times: don't \xc3\xa9\xe4\xbd\xa0 !=");
            strbuf_free(&rest);
            bpe_free(b);
        }
        free(text);
        free(from);
        json_decref(root);
    }
}

/* A file that is cut at any byte, or has one byte that is no UTF-8, is an error. */
static void test_damaged_form(void **state)
{
    uint64_t size;
    struct err e = {0};
    char path[300], *text = file_slurp(DATA "tokenizers/star.json", 1 << 20, &size, &e);

    (void)state;
    assert_non_null(text);
    while (size && text[size - 1] != '}')
        size--;
    for (uint64_t n = 0; n < size; n += n < 200 || n > size - 200 ? 1 : 37) {
        char was = text[n];

        text[n] = '\0';
        put("t.json", text, path);
        assert_null(bpe_open_json(path, &e));
        assert_int_equal(e.kind, ERR_DATA);
        e = (struct err){0};
        text[n] = '\xff';
        put("t.json", text, path);
        assert_null(bpe_open_json(path, &e));
        assert_int_equal(e.kind, ERR_DATA);
        e = (struct err){0};
        text[n] = was;
    }
    free(text);
}

/* Pieces far longer than any word: merging takes n log n, the expressions no stack. */
static void test_long_pieces(void **state)
{
    enum { N = 2000000 };
    static const char fills[] = { 'a', ' ', '\n', '!' };
    static const char *const names[] = { "gpt2", "bloom", "llama" };
    char *text = malloc(N);

    (void)state;
    for (size_t t = 0; t < sizeof names / sizeof *names; t++) {
        struct bpe *b = open_named(names[t]);
        struct bpe_encoder *c = bpe_encoder_new(b);

        for (size_t i = 0; i < sizeof fills; i++) {
            struct bpe_ids ids = {0};
            struct strbuf back = {0};
            struct err e = {0};
            int64_t *wide;

            memset(text, fills[i], N);
            if (bpe_encode(c, text, N, &ids, &e) < 0)
                fail_msg("%s", e.msg);
            wide = malloc((size_t)ids.n * sizeof *wide);
            for (int64_t k = 0; k < ids.n; k++)
                wide[k] = ids.v[k];
            assert_int_equal(bpe_decode(b, wide, ids.n, &back, &e), 0);
            /* llama's template puts one token before it */
            assert_int_equal(back.len, N + (t == 2 ? strlen("<|begin_of_text|>") : 0));
            free(wide);
            bpe_ids_free(&ids);
            strbuf_free(&back);
        }
        bpe_encoder_free(c);
        bpe_free(b);
    }
    free(text);
}

static void test_utf8(void **state)
{
    static const struct { const char *text; size_t n, sound; } cases[] = {
        { "plain", 5, 5 }, { "\xc3\xa9", 2, 2 }, { "ab\xc3", 3, 2 }, { "\xc0\x80", 2, 0 }, { "x\xed\xa0\x80", 4, 1 },
        { "\xf4\x8f\xbf\xbf", 4, 4 }, { "\xf4\x90\x80\x80", 4, 0 }, { "\xe0\x9f\xbf", 3, 0 }, { "\xe0\xa0\x80", 3, 3 },
        { "\xf0\x8f\xbf\xbf", 4, 0 }, { "\xf0\x90\x80\x80", 4, 4 }, { "\x80", 1, 0 }, { "12345678\xff", 9, 8 },
        { "\xed\x9f\xbf\xee\x80\x80", 6, 6 }, { "\xe2\x82\x41", 3, 0 },
    };
    struct bpe *b = open_named("gpt2");
    struct bpe_encoder *c = bpe_encoder_new(b);
    struct bpe_ids ids = {0};
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(utf8_check(cases[i].text, cases[i].n), cases[i].sound);
    assert_int_equal(bpe_encode(c, "ab\xff" "c", 4, &ids, &e), -1);
    assert_string_equal(e.msg, "text: at byte 2: not UTF-8 (byte 0xff)");
    bpe_ids_free(&ids);
    bpe_encoder_free(c);
    bpe_free(b);
}

/* ---- files that are no good ---- */

static void expect_json_error(const char *text, const char *want)
{
    char path[300];
    struct err e = {0};
    struct bpe *b;

    put("t.json", text, path);
    b = bpe_open_json(path, &e);
    assert_null(b);
    assert_int_equal(e.kind, ERR_DATA);
    if (!str_starts(e.msg, path) || strcmp(e.msg + strlen(path), want) != 0)
        fail_msg("%s", e.msg);
}

/* tokenizer.json with one value replaced, by JSON text. */
static void expect_change(const char *name, const char *section, const char *key, const char *value, const char *want)
{
    char *path = str_fmt(DATA "tokenizers/%s.json", name), *text;
    json_t *root = json_load_file(path, 0, NULL), *o = section ? json_object_get(root, section) : root;

    assert_non_null(root);
    json_object_set_new(o, key, json_loads(value, JSON_DECODE_ANY, NULL));
    text = json_dumps(root, 0);
    expect_json_error(text, want);
    free(text);
    free(path);
    json_decref(root);
}

static void test_unsupported(void **state)
{
    (void)state;
    expect_json_error("", ": at byte 0: '[' or '{' expected near end of file");
    expect_json_error("{", ": at byte 1: string or '}' expected near end of file");
    expect_json_error("[]", ": at byte 0: no JSON object");
    expect_json_error("{}", ": the model's type is none, expected BPE");
    expect_change("bloom", NULL, "normalizer", "{\"type\":\"NFKC\"}", ": a normalizer (NFKC) is not supported");
    expect_change("bloom", "model", "type", "\"Unigram\"", ": the model's type is Unigram, expected BPE");
    expect_change("bloom", "model", "byte_fallback", "true", ": model.byte_fallback is not supported");
    expect_change("bloom", "model", "dropout", "0.1", ": model.dropout is not supported");
    expect_change("bloom", "model", "merges", "[[\"a\",\"qq\"]]",
                  ": model.merges[0]: the vocabulary has no token for its part: right");
    expect_change("bloom", "model", "vocab", "{\"a\":0}",
                  ": model.vocab: no token for byte 0x00: no byte-level vocabulary");
    expect_change("bloom", NULL, "pre_tokenizer", "{\"type\":\"Metaspace\"}",
                  ": pre_tokenizer: type Metaspace is not supported");
    expect_change("bloom", NULL, "pre_tokenizer", "{\"type\":\"Digits\"}",
                  ": the pre_tokenizer has no ByteLevel: no byte-level BPE");
    expect_change("bloom", NULL, "pre_tokenizer",
                  "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"[a&&b]\"}}",
                  ": pre_tokenizer: '[a&&b]': && in a class is not supported");
    expect_change("bloom", NULL, "pre_tokenizer",
                  "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"(a\"}}",
                  ": pre_tokenizer: '(a': missing closing parenthesis");
    expect_change("bloom", NULL, "pre_tokenizer",
                  "{\"type\":\"Split\",\"behavior\":\"Contiguous\",\"pattern\":{\"Regex\":\"a\"}}",
                  ": pre_tokenizer: Split with behavior Contiguous is not supported");
    expect_change("bloom", NULL, "post_processor", "{\"type\":\"BertProcessing\"}",
                  ": post_processor: type BertProcessing is not supported");
    expect_change("bloom", "model", "vocab", "{\"a\":0,\"b\":0}",
                  ": model.vocab: token 'b': its id is used twice, missing, or above 4194304");
    expect_json_error("{\"model\":{\"vocab\":{\"a\":0,\"a\":0},\"merges\":[\"a a\"]}}",
                      ": at byte 28: duplicate object key near '\"a\"'");
    expect_json_error("{\"model\":{\"vocab\":{},\"merges\":[],\"vocab\":{}}}",
                      ": at byte 40: duplicate object key near '\"vocab\"'");
    expect_change("bloom", NULL, "added_tokens", "[{\"id\":2,\"content\":\"other\"}]",
                  ": added_tokens[0]: no content, or its id is used twice");
}

static void expect_gpt2_error(const char *vocab, const char *merges, const char *want)
{
    char v[300], m[300];
    struct err e = {0};

    put("v.json", vocab, v);
    put("m.txt", merges, m);
    assert_null(bpe_open_gpt2(vocab[0] ? v : DATA "byte-vocab.json", m, &e));
    if (!strstr(e.msg, want))
        fail_msg("%s", e.msg);
}

static void test_gpt2_errors(void **state)
{
    (void)state;
    expect_gpt2_error("{\"a\": \"b\"}", "", "v.json: token 'a': its id is used twice, missing, or above 4194304");
    expect_gpt2_error("{\"a\": 0, \"b\": 0}", "", "its id is used twice, missing, or above 4194304");
    expect_gpt2_error("{\"a\": -1}", "", "its id is used twice, missing, or above 4194304");
    expect_gpt2_error("{\"a\": 99999999}", "", "its id is used twice, missing, or above 4194304");
    expect_gpt2_error("{\"a\": 0}", "", "v.json: no token for byte 0x00");
    expect_gpt2_error("{\"a\": 0", "", "v.json: at byte 7: '}' expected near end of file");
    expect_gpt2_error("", "#version: 0.2\nab\n", "m.txt: at byte 14: line 2: expected two tokens and a blank");
    expect_gpt2_error("", "a b\n", "m.txt: at byte 0: line 1: the vocabulary has no token for its part: joined");
}

/* ---- JSONL ---- */

static void jsonl_takes(const char *line, const char *want, size_t len)
{
    static const char *const key = "text";
    struct jsonl_fault fault;
    struct jsonl_value v;
    struct strbuf text = {0};

    if (jsonl_read(line, strlen(line), &(struct jsonl_wanted){ 1, &key, &v, &text }, &fault) < 0)
        fail_msg("%s: at %zu: %s", line, fault.at, fault.what);
    assert_int_equal(v.len, len);
    assert_memory_equal(text.buf + v.at, want, len);
    strbuf_free(&text);
}

static void jsonl_refuses(const char *line, size_t at, const char *what)
{
    static const char *const key = "text";
    struct jsonl_fault fault;
    struct jsonl_value v;
    struct strbuf text = {0};

    if (jsonl_read(line, strlen(line), &(struct jsonl_wanted){ 1, &key, &v, &text }, &fault) == 0)
        fail_msg("taken: %s", line);
    if (fault.at != at || strcmp(fault.what, what) != 0)
        fail_msg("%s: at %zu: %s", line, fault.at, fault.what);
    strbuf_free(&text);
}

static void test_jsonl(void **state)
{
    struct strbuf deep = {0};

    (void)state;
    jsonl_takes("{\"text\": \"plain\"}", "plain", 5);
    jsonl_takes(" { \"a\" : [1, -2.5e+3, {\"b\": null}], \"text\":\"\", \"z\":NaN } \r", "", 0);
    jsonl_takes("{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t", 8);
    jsonl_takes("{\"text\":\"\\u00e9\\u20ac\\ud83d\\ude00\\u0000.\"}", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\0.", 11);
    jsonl_takes("{\"text\":\"first\",\"text\":\"last\"}", "last", 4);
    jsonl_takes("{\"\\u0074ext\":\"spelled\"}", "spelled", 7);
    jsonl_takes("{\"other\":\"\\ud800\",\"text\":\"x\",\"n\":123456789012345678901234567890}", "x", 1);
    jsonl_refuses("", 0, "expected a JSON object");
    jsonl_refuses("[]", 0, "expected a JSON object");
    jsonl_refuses("{}", 0, "no key \"text\"");
    jsonl_refuses("{\"text\": 5}", 9, "the value of \"text\" is no string");
    jsonl_refuses("{\"text\": \"a", 11, "a string has no end");
    jsonl_refuses("{\"text\": \"a\\", 12, "a string has no end");
    jsonl_refuses("{\"text\": \"a\\x\"}", 12, "an unknown escape");
    jsonl_refuses("{\"text\": \"\\ud83d!\"}", 12, "the lone surrogate \\ud83d is no character");
    jsonl_refuses("{\"text\": \"\\ude00\\ud83d\"}", 12, "the lone surrogate \\ude00 is no character");
    jsonl_refuses("{\"text\": \"\\ud83d\\ud83d\"}", 12, "the lone surrogate \\ud83d is no character");
    jsonl_refuses("{\"text\": \"\\u12g4\"}", 12, "\\u needs four hexadecimal digits");
    jsonl_refuses("{\"text\": \"\t\"}", 10, "control character 0x09 in a string");
    jsonl_refuses("{\"text\": \"\xff\"}", 10, "not UTF-8 (byte 0xff)");
    jsonl_refuses("{\"text\": \"a\"", 12, "expected ',' or '}'");
    jsonl_refuses("{\"text\": \"a\",}", 13, "expected a string");
    jsonl_refuses("{\"text\": \"a\"} x", 14, "something follows the object");
    jsonl_refuses("{\"a\": 01, \"text\": \"a\"}", 7, "expected ',' or '}'");
    jsonl_refuses("{\"a\": tru, \"text\": \"a\"}", 6, "expected a value");
    jsonl_refuses("{\"a\" 1}", 5, "expected ':'");
    strbuf_addf(&deep, "{\"a\":");
    for (int i = 0; i < 600; i++)
        strbuf_add(&deep, "[", 1);
    jsonl_refuses(deep.buf, 505, "more than 500 levels");
    strbuf_free(&deep);
}

static void test_quote(void **state)
{
    struct strbuf out = {0};

    (void)state;
    assert_int_equal(jsonl_quote(&out, "a\"\\\n\x01\xc3\xa9", 7), 0);
    assert_string_equal(out.buf, "\"a\\\"\\\\\\n\\u0001\xc3\xa9\"");
    out.len = 0;
    assert_int_equal(jsonl_quote(&out, "\xff" "a\xc3", 3), 2);
    assert_string_equal(out.buf, "\"\xef\xbf\xbd" "a\xef\xbf\xbd\"");
    strbuf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expected),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_spelling),
        cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_damaged_form),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_gpt2_errors),
        cmocka_unit_test(test_jsonl),
        cmocka_unit_test(test_quote),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
