/*
 * test_stream.c - a packed file is restored exactly, or an error is reported
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <archive.h>
#include <archive_entry.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/stream.h"

static char file[64];

struct bytes {
    uint8_t *p;
    size_t n;
};

/* Text that packs, but not to nothing. */
static struct bytes make_text(size_t n)
{
    struct bytes t = { xmalloc(n + 1), n };
    uint32_t x = 12345;

    for (size_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        t.p[i] = (uint8_t)((x >> 24) % 7 ? 'a' + (x >> 24) % 13 : '\n');
    }
    return t;
}

static const struct {
    const char *name;
    int (*add)(struct archive *);
} packers[] = {
    { "gzip", archive_write_add_filter_gzip },
    { "zstd", archive_write_add_filter_zstd },
    { "xz", archive_write_add_filter_xz },
};
enum { PACKERS = sizeof packers / sizeof *packers };

static struct bytes pack(struct bytes text, int (*add)(struct archive *))
{
    struct bytes out = { xmalloc(text.n + 4096), 0 };
    struct archive *a = archive_write_new();
    struct archive_entry *entry = archive_entry_new();

    add(a);
    archive_write_set_format_raw(a);
    archive_write_set_bytes_in_last_block(a, 1);
    assert_int_equal(archive_write_open_memory(a, out.p, text.n + 4096, &out.n), ARCHIVE_OK);
    archive_entry_set_filetype(entry, AE_IFREG);
    assert_int_equal(archive_write_header(a, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(a, text.p, text.n), (la_ssize_t)text.n);
    archive_entry_free(entry);
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_write_free(a);
    return out;
}

static void store(const void *p, size_t n)
{
    FILE *f = fopen(file, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

/* Read the file in pieces of `step`: is it want[0..n)? -1: refused, the reason in *e; 0: something else came. */
static int reads_as(const void *want, size_t n, size_t step, struct err *e)
{
    struct stream *s = stream_open(file, NULL, e);
    uint8_t *got = xmalloc(n + step + 1);
    size_t len = 0;
    ssize_t k = s ? 0 : -1;

    while (s && len <= n && (k = stream_read(s, got + len, step, e)) > 0)
        len += (size_t)k;
    stream_close(s);
    k = k < 0 ? -1 : len == n && (n == 0 || memcmp(got, want, n) == 0);
    free(got);
    return (int)k;
}

static void comes_out_as_it_went_in(void **state)
{
    static const size_t sizes[] = { 0, 1, 9, 1000, 700001 }, steps[] = { 1000, 65536, 1 << 20 };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct bytes text = make_text(sizes[i]);
        struct err e = {0};

        for (size_t k = 0; k < 3; k++) {
            store(text.p, text.n);
            assert_int_equal(reads_as(text.p, text.n, steps[k], &e), 1);
            for (int p = 0; p < PACKERS; p++) {
                struct bytes packed = pack(text, packers[p].add);

                store(packed.p, packed.n);
                assert_int_equal(reads_as(text.p, text.n, steps[k], &e), 1);
                free(packed.p);
            }
        }
        free(text.p);
    }
}

/* What `cat a.gz b.gz` makes is one text; gzip also allows zeros that fill up a tape's block. */
static void pieces_are_one_text(void **state)
{
    struct bytes text = make_text(5000);
    uint8_t *twice = xmalloc(2 * text.n);
    struct err e = {0};

    (void)state;
    memcpy(twice, text.p, text.n);
    memcpy(twice + text.n, text.p, text.n);
    for (int p = 0; p < PACKERS; p++) {
        struct bytes packed = pack(text, packers[p].add);
        uint8_t *both = xcalloc(2, packed.n + 512);

        memcpy(both, packed.p, packed.n);
        memcpy(both + packed.n, packed.p, packed.n);
        store(both, 2 * packed.n);
        assert_int_equal(reads_as(twice, 2 * text.n, 4096, &e), 1);
        /* The second piece is cut short anywhere. */
        for (size_t cut = 1; cut < packed.n; cut += cut < 40 ? 1 : 97) {
            struct err refused = {0};

            store(both, packed.n + cut);
            if (reads_as(twice, 2 * text.n, 4096, &refused) != -1)
                fail_msg("%s: accepted with %zu bytes of the second piece", packers[p].name, cut);
        }
        if (p == 0) {
            store(both, 2 * packed.n + 512);
            assert_int_equal(reads_as(twice, 2 * text.n, 4096, &e), 1);
        }
        memcpy(both + packed.n, "something else", 14);
        store(both, packed.n + 14);
        assert_int_equal(reads_as(text.p, text.n, 4096, &e), -1);
        err_clear(&e);
        free(both);
        free(packed.p);
    }
    free(twice);
    free(text.p);
}

static void damage_is_no_end(void **state)
{
    struct bytes text = make_text(20000);

    (void)state;
    for (int p = 0; p < PACKERS; p++) {
        struct bytes packed = pack(text, packers[p].add);

        /* From the length at which the packing can be recognised. */
        for (size_t cut = 10; cut < packed.n; cut += cut < 40 || cut + 40 > packed.n ? 1 : 131) {
            struct err e = {0};

            store(packed.p, cut);
            if (reads_as(text.p, text.n, 4096, &e) != -1 || e.kind != ERR_DATA || !strstr(e.msg, file))
                fail_msg("%s of %zu bytes, cut to %zu: %s", packers[p].name, packed.n, cut, e.msg);
        }
        for (size_t bit = 80; bit < 8 * packed.n; bit += 1009) {
            struct err e = {0};
            int rc;

            packed.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
            store(packed.p, packed.n);
            rc = reads_as(text.p, text.n, 4096, &e);
            /* libarchive writes Zstandard without the checksum that its own program writes. */
            if (rc == 0 && packers[p].add != archive_write_add_filter_zstd)
                fail_msg("%s: bit %zu flipped, and another text came out", packers[p].name, bit);
            packed.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        free(packed.p);
    }
    free(text.p);
}

static void other_packings_are_named(void **state)
{
    static const struct { const char *bytes, *word; size_t n;
    } cases[] = {
        { "BZh91AY&SY\x4e\xec", "bzcat", 12 },
        { "\x04\x22\x4d\x18\x64\x40", "lz4", 6 },
        { "PK\3\4\x14\0\0\0", "unzip", 8 },
    };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct err e = {0};

        store(cases[i].bytes, cases[i].n);
        assert_int_equal(reads_as("", 0, 10, &e), -1);
        assert_int_equal(e.kind, ERR_DATA);
        assert_non_null(strstr(e.msg, cases[i].word));
    }
}

/* A pipe that gives one byte at a time: what it is shows late. */
static void pipes_are_slow(void **state)
{
    struct bytes text = make_text(300), packed = pack(text, packers[0].add);
    struct err e = {0};
    char got[400];
    size_t len = 0;
    int fd[2], saved = dup(STDIN_FILENO);
    struct stream *s;
    ssize_t k;

    (void)state;
    assert_int_equal(pipe(fd), 0);
    assert_true(dup2(fd[0], STDIN_FILENO) == STDIN_FILENO);
    close(fd[0]);
    if (fork() == 0) {
        for (size_t i = 0; i < packed.n; i++) {
            if (write(fd[1], packed.p + i, 1) != 1)
                _exit(1);
            if (i < 12)
                usleep(1000);
        }
        _exit(0);
    }
    close(fd[1]);
    s = stream_open("-", NULL, &e);
    assert_non_null(s);
    assert_string_equal(stream_packing(s), "gzip");
    while ((k = stream_read(s, got + len, sizeof got - len, &e)) > 0)
        len += (size_t)k;
    assert_int_equal(len, text.n);
    assert_memory_equal(got, text.p, len);
    assert_int_equal(stream_input_bytes(s), packed.n);
    stream_close(s);
    dup2(saved, STDIN_FILENO);
    close(saved);
    free(text.p);
    free(packed.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_out_as_it_went_in),
        cmocka_unit_test(pieces_are_one_text),
        cmocka_unit_test(damage_is_no_end),
        cmocka_unit_test(other_packings_are_named),
        cmocka_unit_test(pipes_are_slow),
    };
    int rc;

    snprintf(file, sizeof file, "/tmp/shardkit-stream-%ld", (long)getpid());
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(file);
    return rc;
}
