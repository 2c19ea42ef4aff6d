/*
 * test_base.c - errors, small memory, files, words
 */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/base/parse.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"

static char scratch[] = "/tmp/shardkit-base-XXXXXX";

static void errors_say_the_place_first(void **state)
{
    struct err e = {0};

    (void)state;
    err_data(&e, "/x/y.pt", 66816, "record %s has %d bytes", "data/3", 4096);
    assert_string_equal(e.msg, "/x/y.pt: at byte 66816: record data/3 has 4096 bytes");
    errno = EIO;
    err_sys(&e, "/z", "cannot read");           /* the first error stays */
    assert_int_equal(e.kind, ERR_DATA);
    err_clear(&e);
    errno = ENOENT;
    err_sys(&e, "/z", "cannot open");
    assert_string_equal(e.msg, "/z: cannot open: No such file or directory");
    assert_int_equal(e.sys, ENOENT);
}

static void sizes_and_numbers(void **state)
{
    static const char *const bad[] = { "", "K", "12Q", "1_", "_1", "99999999999999999999", "1KB", "-1" };
    uint64_t v;
    int64_t n;

    (void)state;
    assert_int_equal(parse_size("96M", &v), 0);
    assert_true(v == 96ull << 20);
    assert_int_equal(parse_size("1_000k", &v), 0);
    assert_true(v == 1000ull << 10);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (parse_size(bad[i], &v) == 0)
            fail_msg("'%s' was taken for a size", bad[i]);
    assert_int_equal(parse_int("-12", -12, 0, &n), 0);
    assert_true(n == -12);
    assert_int_equal(parse_int("-13", -12, 0, &n), -1);
}

static void nearest_words(void **state)
{
    static const char *const words[] = { "format", "force", "threads", "verify" };
    static const char *const swapped[] = { "step", "set", "version", "test", "help", "verify" };

    (void)state;
    assert_string_equal(parse_nearest("fromat", words, 4), "format");
    assert_string_equal(parse_nearest("thread", words, 4), "threads");
    assert_null(parse_nearest("zzzzzz", words, 4));
    /* Two exchanged neighbours count as one mistake, not two. */
    assert_string_equal(parse_nearest("hlep", swapped, 6), "help");
    assert_string_equal(parse_nearest("verfiy", swapped, 6), "verify");
    assert_string_equal(parse_nearest("tset", swapped, 6), "set");
    assert_string_equal(parse_nearest("hepl", swapped, 6), "help");
    assert_string_equal(parse_nearest("ehlp", swapped, 6), "help");
}

static void natural_order(void **state)
{
    (void)state;
    assert_true(str_natural_cmp("rank_2_mp", "rank_10_mp") < 0);
    assert_true(str_natural_cmp("layer_99", "layer_100") < 0);
    assert_true(str_natural_cmp("a", "a1") < 0);
    assert_true(str_natural_cmp("01", "1") != 0);
    assert_int_equal(str_natural_cmp("x7y", "x7y"), 0);
}

static void arenas_have_a_ceiling(void **state)
{
    struct arena *a = arena_new(1 << 20);
    size_t n = 0;

    (void)state;
    assert_null(arena_alloc(a, SIZE_MAX));
    assert_null(arena_alloc(a, SIZE_MAX - 3));
    while (arena_alloc(a, 1000))
        n++;
    assert_in_range(n, 1000, 1048);
    arena_free(a);
}

static void bf16_rounds_to_even(void **state)
{
    static const struct { uint32_t f32; uint16_t bf16; } cases[] = {
        { 0x3f800000, 0x3f80 }, { 0x3f808000, 0x3f80 }, { 0x3f818000, 0x3f82 }, { 0x3f808001, 0x3f81 },
        { 0x7f7fffff, 0x7f80 }, { 0x80000000, 0x8000 }, { 0x7f800001, 0x7fc0 }, { 0xff800000, 0xff80 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float f;

        memcpy(&f, &cases[i].f32, sizeof f);
        if (f32_to_bf16(f) != cases[i].bf16)
            fail_msg("%08x: got %04x, want %04x", cases[i].f32, f32_to_bf16(f), cases[i].bf16);
    }
}

static void values_of_every_type(void **state)
{
    static const uint8_t ones[16] = { 1, 0, 0, 0, 0, 0, 0, 0 };
    uint16_t half = 0xc100;                     /* -2.5 */

    (void)state;
    assert_true(dtype_value(DTYPE_I64, ones) == 1 && dtype_value(DTYPE_U8, ones) == 1);
    assert_true(dtype_value(DTYPE_F16, &half) == -2.5);
    for (int t = 0; t < DTYPE_N; t++) {
        assert_true(dtype_size((enum dtype)t) > 0 && dtype_name((enum dtype)t) && dtype_torch_name((enum dtype)t));
        for (int u = 0; u < t; u++)
            assert_true(strcmp(dtype_name((enum dtype)t), dtype_name((enum dtype)u)) != 0 &&
                        strcmp(dtype_torch_name((enum dtype)t), dtype_torch_name((enum dtype)u)) != 0);
    }
}

/* Values as torch 2.15 converts the same bits to float64. */
static void values_of_8_bits(void **state)
{
    static const struct { enum dtype t; uint8_t bits; double value;
    } cases[] = {
        { DTYPE_F8_E4M3, 0x7e, 448 },      { DTYPE_F8_E4M3, 0x81, -0x1p-9 },     { DTYPE_F8_E4M3, 0x38, 1 },
        { DTYPE_F8_E4M3, 0xff, NAN },      { DTYPE_F8_E5M2, 0x7b, 57344 },       { DTYPE_F8_E5M2, 0xfc, -INFINITY },
        { DTYPE_F8_E5M2, 0x7d, NAN },      { DTYPE_F8_E5M2, 0x01, 0x1p-16 },     { DTYPE_F8_E4M3FNUZ, 0x7f, 240 },
        { DTYPE_F8_E4M3FNUZ, 0x80, NAN },  { DTYPE_F8_E4M3FNUZ, 0x01, 0x1p-10 }, { DTYPE_F8_E5M2FNUZ, 0xff, -57344 },
        { DTYPE_F8_E5M2FNUZ, 0x80, NAN },  { DTYPE_F8_E5M2FNUZ, 0x01, 0x1p-17 }, { DTYPE_F8_E8M0, 0x7f, 1 },
        { DTYPE_F8_E8M0, 0x00, 0x1p-127 }, { DTYPE_F8_E8M0, 0xff, NAN },         { DTYPE_QI8, 0xff, -1 },
        { DTYPE_QU8, 0xff, 255 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double v = dtype_value(cases[i].t, &cases[i].bits);

        if (!(v == cases[i].value || (isnan(v) && isnan(cases[i].value))))
            fail_msg("%s %02x: got %g, want %g", dtype_name(cases[i].t), cases[i].bits, v, cases[i].value);
    }
}

/* Every double survives a round trip through its text, and text written by a person is kept unchanged. */
static void reals_round_trip(void **state)
{
    static const struct { double v; const char *text; } cases[] = {
        { 0.1, "0.1" }, { 1e-8, "1e-8" }, { 3, "3.0" }, { 1.0 / 3, "0.3333333333333333" }, { -0.0, "-0.0" },
        { 5.82076609134674e-11, "5.82076609134674e-11" }, { 0x1p-1074, "4.94065645841247e-324" },
        { 0.1 + 0.2, "0.30000000000000004" }, { 1.7976931348623157e308, "1.7976931348623157e308" },
    };
    json_t *o = json_pack("{s:s, s:b, s:b, s:[f,i,n]}", "e\"0.10e\\", "1.50e+3 \" 2.0", "t", 1, "f", 0, "list", 2.5, 7);
    char *text = text_dump(o, JSON_COMPACT | JSON_SORT_KEYS), *plain = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);

    (void)state;
    assert_string_equal(text, plain);
    free(text);
    free(plain);
    json_decref(o);
    assert_null(text_dump(NULL, 0));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = json_real(cases[i].v);

        text = text_dump(v, JSON_ENCODE_ANY);
        assert_string_equal(text, cases[i].text);
        assert_true(strtod(text, NULL) == cases[i].v);
        free(text);
        json_decref(v);
    }
}

static void replace_is_whole_or_nothing(void **state)
{
    char *path = path_join(scratch, "f"), *text;
    struct err e = {0};
    uint64_t n;

    (void)state;
    assert_int_equal(file_replace(path, "one", 3, &e), 0);
    assert_int_equal(file_replace(path, "three", 5, &e), 0);
    text = file_slurp(path, 100, &n, &e);
    assert_string_equal(text, "three");
    free(text);
    assert_null(file_slurp(path, 4, &n, &e));
    assert_non_null(strstr(e.msg, "has 5 bytes, but at most 4"));
    err_clear(&e);
    assert_int_equal(file_replace("/nowhere/at/all", "x", 1, &e), -1);
    free(path);
}

static void windows_and_short_files(void **state)
{
    char *path = path_join(scratch, "w"), buf[8] = "";
    struct err e = {0};
    struct files *f = files_new();
    int file, win, rec;

    (void)state;
    assert_int_equal(file_replace(path, "0123456789", 10, &e), 0);
    file = files_add_path(f, path, &e);
    win = files_add_window(f, path, 4, 3, "w:inner", &e);
    assert_int_equal(files_read(f, win, 1, buf, 2, &e), 0);
    assert_string_equal(buf, "56");
    assert_int_equal(files_read(f, win, 1, buf, 3, &e), -1);
    assert_non_null(strstr(e.msg, "w:inner: at byte 1: is too short"));
    err_clear(&e);
    assert_int_equal(files_add_window(f, path, 8, 3, "w:past", &e), -1);
    err_clear(&e);
    rec = files_add_record(f, &(struct record){ .file = file, .at = 2, .len = 5, .has_crc = true, .crc = 7,
                                                .name = "data/0" });
    assert_int_equal(files_read_extent(f, &(struct extent){ rec, 1, 2 }, buf, &e), 0);
    assert_string_equal(buf, "34");
    /* The file shrinks after it was opened. */
    assert_int_equal(truncate(path, 5), 0);
    assert_int_equal(files_read(f, file, 0, buf, 8, &e), -1);
    assert_non_null(strstr(e.msg, "became shorter while it was read"));
    files_free(f);
    free(path);
}

static void folders_go_without_following_links(void **state)
{
    char *dir = path_join(scratch, "d"), *sub = path_join(dir, "a/b"), *keep = path_join(scratch, "keep");
    char *link = path_join(dir, "a/link"), *kept = path_join(keep, "file");
    struct err e = {0};

    (void)state;
    assert_int_equal(dir_make(sub, &e), 0);
    assert_int_equal(dir_make(keep, &e), 0);
    assert_int_equal(file_replace(kept, "x", 1, &e), 0);
    assert_int_equal(dir_make(kept, &e), -1);
    assert_non_null(strstr(e.msg, "exists, but is not a folder"));
    err_clear(&e);
    assert_int_equal(symlink(keep, link), 0);
    if (dir_remove(dir, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_not_equal(access(dir, F_OK), 0);
    assert_int_equal(access(kept, F_OK), 0);
    free(kept);
    free(link);
    free(keep);
    free(sub);
    free(dir);
}

static void paths(void **state)
{
    static const struct { const char *path, *parent, *base; } cases[] = {
        { "a/b/", "a", "b" }, { "a", ".", "a" }, { "/a", "/", "a" }, { "/a/b//", "/a", "b" },
    };
    struct err e = {0};
    char *rel;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *p = path_parent(cases[i].path), *b = path_base(cases[i].path);

        assert_string_equal(p, cases[i].parent);
        assert_string_equal(b, cases[i].base);
        free(p);
        free(b);
    }
    rel = path_relative("/usr/bin", "/usr/lib", &e);
    assert_string_equal(rel, "../lib");
    free(rel);
    rel = path_relative("/usr", "/usr/lib", &e);
    assert_string_equal(rel, "lib");
    free(rel);
}

static void names_are_found_among_many(void **state)
{
    enum { N = 50000 };
    struct arena *a = arena_new(0);
    struct names *t = names_new(a);

    (void)state;
    assert_int_equal(names_find(t, "0.bias"), -1);
    for (int i = 0; i < N; i++)
        names_add(t, arena_fmt(a, "%d.bias", i), i);
    names_add(t, "7.bias", N);                  /* the first one is kept */
    assert_int_equal(names_n(t), N + 1);
    for (int i = 0; i < N; i++)
        assert_int_equal(names_find(t, arena_fmt(a, "%d.bias", i)), i);
    assert_int_equal(names_find(t, "50000.bias"), -1);
    arena_free(a);
}

/* Parameters of a source are found while it grows, and after it was sorted. */
static void parameters_are_found_by_name(void **state)
{
    struct source s = { .arena = arena_new(0) };
    struct param list[] = { { .name = "b" }, { .name = "c" }, { .name = "a" } }, first = list[0];

    (void)state;
    s.names = arena_alloc(s.arena, sizeof *s.names);
    s.param = list;
    s.n_params = 2;
    assert_null(source_param(&s, "a"));
    s.n_params = 3;
    assert_ptr_equal(source_param(&s, "a"), &list[2]);
    list[0] = list[2];
    list[2] = first;
    assert_ptr_equal(source_param(&s, "a"), &list[0]);
    assert_ptr_equal(source_param(&s, "b"), &list[2]);
    s.names = NULL;
    assert_ptr_equal(source_param(&s, "c"), &list[1]);
    arena_free(s.arena);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

static int teardown(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(scratch, &e);
}

/* Every character survives a round trip. Surrogates are accepted only where Python accepts them. */
static void every_character_is_utf8(void **state)
{
    char u[4];

    (void)state;
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        size_t n = (size_t)utf8_put(u, c);
        bool surrogate = c >= 0xd800 && c < 0xe000;

        if (utf8_check(u, n) != (surrogate ? 0 : n) || utf8_check_python(u, n) != n)
            fail_msg("U+%04X, %zu bytes", c, n);
        if (n > 1 && utf8_check_python(u, n - 1) != 0)
            fail_msg("U+%04X cut short", c);
    }
}

static void what_is_no_utf8_is_found(void **state)
{
    static const struct { const char *text; size_t sound; } cases[] = {
        { "seven b\x80", 7 }, { "\xc1\xbf", 0 }, { "a\xe0\x9f\xbf", 1 }, { "\xf0\x8f\xbf\xbf", 0 },
        { "12345678\xf4\x90\x80\x80", 8 }, { "\xf5\x80\x80\x80", 0 }, { "\xe2\x82", 0 }, { "\xe2\x28\xa1", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(utf8_check(cases[i].text, strlen(cases[i].text)), cases[i].sound);
        assert_int_equal(utf8_check_python(cases[i].text, strlen(cases[i].text)), cases[i].sound);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_say_the_place_first), cmocka_unit_test(sizes_and_numbers),
        cmocka_unit_test(nearest_words), cmocka_unit_test(natural_order),
        cmocka_unit_test(arenas_have_a_ceiling), cmocka_unit_test(bf16_rounds_to_even),
        cmocka_unit_test(values_of_every_type), cmocka_unit_test(values_of_8_bits),
        cmocka_unit_test(reals_round_trip),
        cmocka_unit_test(replace_is_whole_or_nothing),
        cmocka_unit_test(windows_and_short_files), cmocka_unit_test(folders_go_without_following_links),
        cmocka_unit_test(paths), cmocka_unit_test(names_are_found_among_many),
        cmocka_unit_test(parameters_are_found_by_name),
        cmocka_unit_test(every_character_is_utf8),
        cmocka_unit_test(what_is_no_utf8_is_found),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
