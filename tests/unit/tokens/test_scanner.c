/* test_scanner.c - known patterns cut texts without a regular expression in the same way as PCRE2 does */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "libcommon/base/files.h"
#include "libcommon/tokens/bpe_impl.h"

#define DATA "tests/data/text/"

enum { TEXTS = 4000, MOST = 120 };

static const char *const patterns[] = {
    bpe_gpt2_pattern,
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|"
    "\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

/* Parts of random texts. Characters of all classes; those of Unicode 14 at the latest, which all libraries have. */
static const char *const parts[] = {
    "a", "b", "s", "t", "re", "word", "another", "internationally", "A", "B", "The", "HTTP", "XMLReader", "camelCase", "0",
    "7", "42", "123", "2024", " ", "  ", "    ", "        ", "\t", "\n", "\r\n", "\n\n", " \n", "\v", "'", "'s", "'S", "'t",
    "'ll", "'LL", "'re", "'ve", "'Ve", "'m", "'d", "'x", "'\xc5\xbf", ".", ",", "!=", "();", "{", "}\n", "//", "/", "-", "_",
    "#", "\"", "\x01", "\x7f", "[", "`", "@", "z{", "Z[",
    "\xc3\xa9",                         /* e with acute */
    "\xc3\x9f", "\xc5\xbf",             /* sharp s, long s */
    "\xc3\x89", "\xc7\x85", "\xca\xb0", /* E with acute, title case, modifier letter */
    "\xe1\xba\xbf", "e\xcc\x81", "\xcc\x81", "\xcd\x85",        /* marks */
    "\xe0\xa4\x95\xe0\xa4\xbe", "\xe0\xa4\xbf", "\xe2\x83\x9d", /* Devanagari, spacing and enclosing marks */
    "\xe4\xbd\xa0\xe5\xa5\xbd", "\xed\x95\x9c", "\xc2\xaa",     /* letters without case */
    "\xd9\xa3", "\xe2\x85\xa7", "\xc2\xb2", "\xf0\x9d\x9f\x98", /* numbers */
    "\xc2\xa0", "\xe3\x80\x80", "\xe2\x80\xa8", "\xc2\x85", "\xe2\x80\x89", "\xe1\x9a\x80",   /* white space */
    "\xe1\xa0\x8e", "\xe2\x80\x8d", "\xe2\x80\x99", "\xe2\x80\x94", "\xf0\x9f\x9a\x80", "\xc2\xad", /* signs */
    "\xd0\x96", "\xd0\xb6", "\xce\xa9", "\xf0\x90\x90\x80", "\xf0\x90\x90\xa8", "\xd8\xb9",
};

static uint64_t random_below(uint64_t *x, uint64_t n)       /* splitmix64 (Steele, Lea, Flood 2014) */
{
    uint64_t z = *x += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

/* Texts of up to MOST parts. In half of them a few parts repeat. */
static void make_text(struct strbuf *text, uint64_t seed)
{
    size_t n_parts = sizeof parts / sizeof *parts, from = 0, n = random_below(&seed, MOST) + 1;

    if (seed % 2) {
        n_parts = 5;
        from = random_below(&seed, sizeof parts / sizeof *parts - n_parts + 1);
    }
    text->len = 0;
    for (size_t i = 0; i < n; i++) {
        const char *part = parts[from + random_below(&seed, n_parts)];

        strbuf_add(text, part, strlen(part));
    }
}

/*
 * A tokenizer that cuts by the pattern. It has tokens of whole pieces with a contraction, which are found only if the
 * text is not cut within them.
 */
static struct bpe *open_with_pattern(const char *dir, const char *pattern)
{
    static const char *const whole[] = { "word's", "\xc4\xa0word't", "another'LL", "b'm", "A's" };
    json_t *root = json_load_file(DATA "tokenizers/qwen.json", 0, NULL), *steps, *model = json_object_get(root, "model");
    char *text, *path = str_fmt("%s/t.json", dir);
    struct err e = {0};
    struct bpe *b;

    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        json_object_set_new(json_object_get(model, "vocab"), whole[i], json_integer((json_int_t)(2000 + i)));
    json_object_set_new(model, "ignore_merges", json_true());
    steps = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
    json_object_set_new(json_object_get(json_array_get(steps, 0), "pattern"), "Regex", json_string(pattern));
    text = json_dumps(root, 0);
    assert_int_equal(file_replace(path, text, strlen(text), &e), 0);
    b = bpe_open_json(path, &e);
    if (!b)
        fail_msg("%s", e.msg);
    free(text);
    free(path);
    json_decref(root);
    return b;
}

static void expect_same_pieces(const struct bpe *scanned, const struct bpe *matched, const struct strbuf *text)
{
    struct bpe_cutter cutter = {0};

    bpe_cutter_init(&cutter);
    for (size_t at = 0; at < text->len;) {
        struct bpe_match m;

        assert_int_equal(bpe_cut(&cutter, &matched->step[0], text->buf, text->len, at, &m), 1);
        if (m.start != at || bpe_piece_end(scanned->step[0].scanner, text->buf, text->len, at) != m.end)
            fail_msg("at %zu to %zu, expected %zu to %zu: %s", at,
                     bpe_piece_end(scanned->step[0].scanner, text->buf, text->len, at), m.start, m.end, text->buf);
        at = m.end;
    }
    bpe_cutter_free(&cutter);
}

static void expect_same_ids(struct bpe_encoder *const c[2], const struct strbuf *text)
{
    struct bpe_ids ids[2] = {0};
    struct err e = {0};

    for (int i = 0; i < 2; i++)
        if (bpe_encode(c[i], text->buf, text->len, &ids[i], &e) < 0)
            fail_msg("%s", e.msg);
    if (ids[0].n != ids[1].n || memcmp(ids[0].v, ids[1].v, (size_t)ids[0].n * sizeof *ids[0].v) != 0)
        fail_msg("other tokens: %s", text->buf);
    bpe_ids_free(&ids[0]);
    bpe_ids_free(&ids[1]);
}

/* In parentheses, a pattern is not known, so PCRE2 cuts by it. */
static void test_scanners(void **state)
{
    char dir[] = "/tmp/scanner-XXXXXX";
    struct err e = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char *other = str_fmt("(?:%s)", patterns[i]);
        struct bpe *b[2] = { open_with_pattern(dir, patterns[i]), open_with_pattern(dir, other) };
        struct bpe_encoder *c[2] = { bpe_encoder_new(b[0]), bpe_encoder_new(b[1]) };
        struct strbuf text = {0};

        assert_int_not_equal(b[0]->step[0].scanner, BPE_SCAN_NONE);
        assert_int_equal(b[1]->step[0].scanner, BPE_SCAN_NONE);
        for (uint64_t seed = 0; seed < TEXTS; seed++) {
            make_text(&text, seed);
            expect_same_pieces(b[0], b[1], &text);
            expect_same_ids(c, &text);
        }
        for (int k = 0; k < 2; k++) {
            bpe_encoder_free(c[k]);
            bpe_free(b[k]);
        }
        strbuf_free(&text);
        free(other);
    }
    assert_int_equal(dir_remove(dir, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scanners) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
