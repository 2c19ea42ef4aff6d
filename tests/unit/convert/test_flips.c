/*
 * test_flips.c - every flipped bit is detected, and none reaches a published tensor
 *
 * One random bit of every byte of a small generated set is flipped, each alone, and verify must find it. Random
 * flips in sets that the real trainer wrote follow. Conversions of damaged sets must fail or publish exactly the
 * tensors of the sound set. SOAK=1 does more.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"
#include "tests/lib/ckptgen.h"

enum { MAX_FILES = 256 };

static char scratch[] = "/tmp/shardkit-flips-XXXXXX";
static uint64_t rng_state = 88172645463325252ull;

static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    return rng_state ^= rng_state << 17;
}

/* Sanitized builds are ten times slower, so they test a sample. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SAMPLE = 20 };
#else
enum { SAMPLE = 1 };
#endif

/* FLIP_SHARE=4 tests a fourth of them, for a quick check. */
static int share(void)
{
    const char *given = getenv("FLIP_SHARE");
    int n = SAMPLE == 1 && given ? atoi(given) : SAMPLE;

    return n > 0 ? n : 1;
}

static int times(int ci, int soak)
{
    return getenv("SOAK") ? soak : ci / share();
}

/* ---- sets ---- */

struct set {
    char *root;                         /* the folder that holds `latest` */
    char *file[MAX_FILES];
    uint64_t size[MAX_FILES], total;
    int n;
};

static void add_files(struct set *s, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *ent;
    struct stat st;

    assert_non_null(d);
    while ((ent = readdir(d))) {
        char *path = path_join(dir, ent->d_name);

        assert_return_code(lstat(path, &st), 0);
        if (S_ISDIR(st.st_mode) && ent->d_name[0] != '.')
            add_files(s, path);
        if (!S_ISREG(st.st_mode)) {
            free(path);
            continue;
        }
        assert_true(s->n < MAX_FILES);
        s->file[s->n] = path;
        s->size[s->n++] = (uint64_t)st.st_size;
        s->total += (uint64_t)st.st_size;
    }
    closedir(d);
}

static void open_set(struct set *s, const char *root)
{
    memset(s, 0, sizeof *s);
    s->root = xstrdup(root);
    add_files(s, root);
}

static void free_set(struct set *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->file[i]);
    free(s->root);
}

static void make_tiny(struct set *s, const char *name)
{
    struct ckptgen g;
    struct err e = {0};
    char *dir = path_join(scratch, name);

    ckptgen_defaults(&g);
    g.topo = (struct topology){ .tp = 2, .pp = 1, .dp = 2 };
    g.n_layers = 1;
    g.hidden = 8;
    g.n_heads = 2;
    g.vocab_tokens = 13;
    g.vocab = 16;
    g.slim = true;
    g.threads = 1;
    if (ckptgen_make(&g, dir, &e) < 0)
        fail_msg("%s", e.msg);
    open_set(s, dir);
    free(dir);
}

static void copy_golden(struct set *s, const char *from, const char *name)
{
    char *dir = path_join(scratch, name);
    char *cmd = str_fmt("mkdir %s && cp -r %s/latest %s/$(cat %s/latest) %s && chmod -R u+w %s", dir, from, from, from,
                        dir, dir);

    assert_int_equal(system(cmd), 0);
    open_set(s, dir);
    free(cmd);
    free(dir);
}

/* ---- one flip ---- */

struct flip {
    const char *file;
    uint64_t at;
    uint8_t bit;
};

static void toggle(const struct flip *f)
{
    int fd = open(f->file, O_RDWR);
    uint8_t b;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &b, 1, (off_t)f->at), 1);
    b ^= f->bit;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)f->at), 1);
    close(fd);
}

static struct flip random_flip(const struct set *s)
{
    uint64_t at = rng() % s->total;
    int i = 0;

    while (at >= s->size[i])
        at -= s->size[i++];
    return (struct flip){ s->file[i], at, (uint8_t)(1 << rng() % 8) };
}

static bool verify_finds(const struct set *s)
{
    struct verify_opts o = { .threads = 1, .progress = PROGRESS_NEVER };
    struct report *r = report_new();
    struct err e = {0};
    bool found = verify_run(s->root, &o, r, &e) < 0 || report_count(r, SEV_ERROR) + report_count(r, SEV_WARNING) > 0;

    report_free(r);
    return found;
}

static void must_find(const struct set *s, const struct flip *f)
{
    bool found;

    toggle(f);
    found = verify_finds(s);
    toggle(f);
    if (!found)
        fail_msg("%s: byte %llu, bit %02x: flipped and not found", f->file, (unsigned long long)f->at, f->bit);
}

static void every_byte(void **state)
{
    struct set s;

    (void)state;
    make_tiny(&s, "tiny");
    assert_true(s.total < 200000);
    assert_false(verify_finds(&s));
    for (int i = 0; i < s.n; i++)
        for (uint64_t at = 0; at < s.size[i]; at += (uint64_t)share())
            must_find(&s, &(struct flip){ s.file[i], at, (uint8_t)(1 << rng() % 8) });
    assert_false(verify_finds(&s));
    printf("    %s of %llu bytes in %d files\n", share() == 1 ? "every one" : "a sample", (unsigned long long)s.total,
           s.n);
    free_set(&s);
}

static void golden(void **state)
{
    static const char *const sets[] = {
        "tests/data/bloom-tp2pp2dp2", "tests/data/gpt2-tp2pp2dp1", "tests/data/zero/zero2-edge-3ranks/ckpt",
        "tests/data/zero/zero3-edge-2ranks/ckpt",
    };

    (void)state;
    for (int k = 0; k < 4; k++) {
        struct set s;
        char name[32];

        snprintf(name, sizeof name, "golden%d", k);
        copy_golden(&s, sets[k], name);
        assert_false(verify_finds(&s));
        for (int i = 0; i < times(1000, 20000); i++) {
            struct flip f = random_flip(&s);

            must_find(&s, &f);
        }
        free_set(&s);
    }
}

/* ---- conversions ---- */

static int convert(const char *in, const char *out, struct sink *(*open_sink)(const struct sink_opts *))
{
    struct err e = {0};
    struct source_opts so = { .threads = 1 };
    struct source *s = source_open(in, &so, NULL, &e);
    struct sink_opts ko = { .replicas = REPLICAS_FAIL, .final_path = out, .n_parts = 1, .threads = 1 };
    struct convert_opts o = { .out = out, .options_text = "", .force = true, .n_parts = 1, .threads = 1,
                              .mem_bytes = 8 << 20, .progress = PROGRESS_NEVER };
    struct convert_result res;
    int rc = s ? convert_run(s, open_sink(&ko), &o, &res, &e) : -1;

    source_close(s);
    return rc;
}

/* Return the "tensors" lines of OUT's manifest: names, shapes and digests. The caller frees them. */
static char *tensor_lines(const char *out)
{
    struct err e = {0};
    uint64_t size;
    char *path = path_join(out, MANIFEST_NAME), *text = file_slurp(path, 1 << 24, &size, &e), *from, *copy;

    free(path);
    if (!text)
        fail_msg("%s", e.msg);
    from = strstr(text, "\"tensors\"");
    *strstr(from, "\n],") = '\0';
    copy = xstrdup(from);
    free(text);
    return copy;
}

static void conversions(void **state)
{
    struct set s;
    char *out = path_join(scratch, "out"), *sound, *got;
    int published = 0, n = times(200, 20000);

    (void)state;
    make_tiny(&s, "convert");
    assert_int_equal(convert(s.root, out, universal_pt_sink), 0);
    sound = tensor_lines(out);
    for (int i = 0; i < n; i++) {
        struct flip f = random_flip(&s);
        struct err e = {0};

        assert_int_equal(dir_remove(out, &e), 0);
        toggle(&f);
        if (convert(s.root, out, i % 2 ? universal_pt_sink : universal_hdf5_sink) == 0) {
            got = tensor_lines(out);
            if (strcmp(got, sound) != 0)
                fail_msg("%s: byte %llu, bit %02x: a wrong tensor was published", f.file, (unsigned long long)f.at,
                         f.bit);
            free(got);
            published++;
        } else {
            assert_int_not_equal(access(out, F_OK), 0);
            assert_int_equal(dir_make(out, &e), 0);
        }
        toggle(&f);
    }
    printf("    %d damaged sets: %d refused, %d converted to the right tensors\n", n, n - published, published);
    /* Some flips are in bytes that no tensor depends on, and others are in tensors. */
    assert_true(published > 0 && published < n);
    free(sound);
    free(out);
    free_set(&s);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte),
        cmocka_unit_test(golden),
        cmocka_unit_test(conversions),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
