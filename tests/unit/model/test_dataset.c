/* test_dataset.c - the order of samples: numpy's shuffles, the reference's index files, splits, blends */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/model/blend.h"
#include "libcommon/model/dataset.h"
#include "libcommon/model/gpt_index.h"
#include "libcommon/model/mt19937.h"

#define TEXT "tests/data/text/text_document"
#define OWT "tests/data/text/owt_bpe_text_document"

static char dir[256];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/dataset-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(dir, &e);
}

static void expect_i32(const int32_t *got, const char *want)
{
    char *end;

    for (int i = 0; *want; i++, want = end + strspn(end, " ")) {
        long v = strtol(want, &end, 10);

        if (got[i] != v)
            fail_msg("entry %d is %d, expected %ld", i, got[i], v);
    }
}

/* ---- generator ---- */

static void test_generator(void **state)
{
    static const uint32_t want[] = { 822569775, 2137449171, 2671936806, 3512589365, 1880026316, 2629000564 };
    static const uint32_t want42[] = { 1608637542, 3421126067, 4083286876, 787846414, 3143890026, 3348747335 };
    struct mt19937 r;

    (void)state;
    mt19937_seed(&r, 1234);
    assert_int_equal(r.key[1], 3159640283u);
    for (int i = 0; i < 6; i++)
        assert_int_equal(mt19937_next(&r), want[i]);
    mt19937_seed(&r, 42);
    for (int i = 0; i < 6; i++)
        assert_int_equal(mt19937_next(&r), want42[i]);
}

static void shuffled(uint32_t seed, int n, const char *want)
{
    int32_t a[32];
    struct mt19937 r;

    for (int i = 0; i < n; i++)
        a[i] = i;
    mt19937_seed(&r, seed);
    mt19937_shuffle_32(&r, (uint32_t *)a, n - 1, 0);
    expect_i32(a, want);
}

static void test_shuffles(void **state)
{
    enum { MILLION = 1000000 };
    uint32_t *a = malloc(MILLION * sizeof *a);
    int64_t *wide = malloc(MILLION * sizeof *wide);
    int32_t small[1000];
    struct mt19937 r;

    (void)state;
    shuffled(1234, 10, "7 2 9 1 0 8 4 5 6 3");
    shuffled(1234, 16, "13 11 0 12 14 2 10 7 1 9 8 4 5 6 3 15");
    shuffled(1234, 17, "14 11 0 13 16 2 10 7 1 9 8 4 12 5 6 3 15");
    shuffled(42, 10, "8 1 5 0 7 2 9 4 3 6");
    shuffled(42, 16, "0 1 5 14 13 11 8 9 2 15 4 7 10 12 3 6");
    for (int i = 0; i < MILLION; i++)
        wide[i] = a[i] = (uint32_t)i;
    mt19937_seed(&r, 42);
    mt19937_shuffle_32(&r, a, MILLION - 1, 0);
    assert_int_equal(crc_bytes(0, a, MILLION * sizeof *a), 0x43d8504c);
    mt19937_seed(&r, 42);
    mt19937_shuffle_64(&r, (uint64_t *)wide, MILLION - 1, 0);
    for (int i = 0; i < MILLION; i++)
        assert_true(wide[i] == a[i]);
    /* Two arrays from one generator. */
    for (int i = 0; i < 1000; i++)
        small[i] = i;
    mt19937_seed(&r, 1234);
    mt19937_shuffle_32(&r, (uint32_t *)small, 999, 0);
    assert_int_equal(crc_bytes(0, small, sizeof small), 0x48a0c78b);
    for (int i = 0; i < 5; i++)
        small[i] = i;
    mt19937_shuffle_32(&r, (uint32_t *)small, 4, 0);
    expect_i32(small, "0 1 4 3 2");
    free(a);
    free(wide);
}

/* numpy masks a 64-bit draw, high word first, as soon as the bound needs 33 bits. */
static void test_wide_interval(void **state)
{
    struct mt19937 r;

    (void)state;
    mt19937_seed(&r, 1234);
    assert_int_equal(mt19937_interval(&r, (1ull << 40) - 1), (822569775ull << 32 | 2137449171) & ((1ull << 40) - 1));
    assert_int_equal(mt19937_interval(&r, 0), 0);
    assert_int_equal(mt19937_next(&r), 2671936806u);
}

/* ---- the reference's index files ---- */

static void expect_same_file(const char *a, const char *b)
{
    struct err e = {0};
    uint64_t na, nb;
    char *pa = file_slurp(a, 1 << 26, &na, &e), *pb = file_slurp(b, 1 << 26, &nb, &e);

    if (!pa || !pb)
        fail_msg("%s", e.msg);
    if (na != nb || memcmp(pa, pb, na) != 0)
        fail_msg("%s and %s differ", a, b);
    free(pa);
    free(pb);
}

static struct data_groups paths_group(const char *prefix, const char *split, int which)
{
    char *words[1] = { (char *)prefix };
    struct data_groups g = {0};
    struct err e = {0};
    double share[3];

    if (data_parse_split(split, share, &e) < 0 || data_add_paths(&g, 1, words, share, which, &e) < 0)
        fail_msg("%s", e.msg);
    return g;
}

/* Build `set` of `prefix` in the scratch folder; its three files equal those in tests/data/text. */
static void rebuild(const char *prefix, int which, int64_t n_samples)
{
    static const char *const names[] = { "train", "valid", "test" };
    static const char *const kinds[] = { "doc_idx", "sample_idx", "shuffle_idx" };
    struct dataset_opts o = { .n_samples = n_samples, .s = 128, .seed = 42, .cut = GPT_INDEX_CUT, .index_dir = dir,
                              .build = true };
    struct gpt_index_spec spec = { .name = names[which], .n_samples = n_samples, .s = 128, .seed = 42 };
    struct data_groups g = paths_group(prefix, "949,50,1", which);
    struct dataset *d;
    struct err e = {0};

    if (dataset_open(&g.group[0], &o, &d, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(dataset_name(d), names[which]);
    for (int i = 0; i < 3; i++) {
        char *base = path_base(prefix), *ours = gpt_index_path(prefix, &spec, dir, kinds[i]);
        char *home = str_fmt("tests/data/text/%s", base), *theirs = gpt_index_path(home, &spec, NULL, kinds[i]);

        expect_same_file(ours, theirs);
        free(base);
        free(ours);
        free(home);
        free(theirs);
    }
    dataset_close(d);
    data_groups_free(&g);
}

/* The index needs only the lengths: a .bin of the right size and no contents will do. */
static void lend_bin(const char *prefix, off_t bytes)
{
    struct err e = {0};
    char *bin = str_fmt("%s/owt_bpe_text_document.bin", dir), *idx = str_fmt("%s/owt_bpe_text_document.idx", dir);
    char *from = str_fmt("%s.idx", prefix), *p;
    uint64_t n;
    FILE *f = fopen(bin, "wb");

    assert_non_null(f);
    assert_int_equal(ftruncate(fileno(f), bytes), 0);
    fclose(f);
    p = file_slurp(from, 1 << 26, &n, &e);
    assert_non_null(p);
    assert_int_equal(file_replace(idx, p, n, &e), 0);
    free(bin);
    free(idx);
    free(from);
    free(p);
}

static void test_reference_indices(void **state)
{
    char *owt;

    (void)state;
    rebuild(TEXT, 0, 1200);
    rebuild(TEXT, 1, 288);
    lend_bin(OWT, 2723690);
    owt = str_fmt("%s/owt_bpe_text_document", dir);
    rebuild(owt, 0, 1200);
    free(owt);
}

/* The files that the reference left next to the data are used, not rebuilt. */
static void test_reference_files_are_read(void **state)
{
    struct dataset_opts o = { .n_samples = 1200, .s = 128, .seed = 42, .cut = GPT_INDEX_CUT };
    struct data_groups g = paths_group(TEXT, "949,50,1", 0);
    struct dataset *d;
    struct err e = {0};
    int64_t a[129], b[129];

    (void)state;
    if (dataset_open(&g.group[0], &o, &d, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(dataset_samples(d), 2980);
    for (int64_t k = 0; k < dataset_samples(d); k++)
        assert_int_equal(dataset_get(d, k, k % 2 ? a : b, &e), 0);
    dataset_close(d);
    o.n_samples = 1201;                 /* these files are not there, and build is off */
    assert_int_equal(dataset_open(&g.group[0], &o, &d, &e), -1);
    assert_int_equal(e.kind, ERR_SYS);
    assert_int_equal(e.sys, ENOENT);
    data_groups_free(&g);
}

/* ---- a toy: token of document d at position i is 100 d + i ---- */

static const int toy_len[] = { 5, 9, 3, 12, 7, 1, 8, 4, 10, 6, 2, 11 };

static char *make_toy(void)
{
    char *prefix = str_fmt("%s/toy", dir);
    struct err e = {0};
    struct mmidx_writer *w = mmidx_create(prefix, MMIDX_MMAP, MMIDX_U16, &e);

    assert_non_null(w);
    for (int d = 0; d < 12; d++) {
        int32_t t[12];

        for (int i = 0; i < toy_len[d]; i++)
            t[i] = 100 * d + i;
        assert_int_equal(mmidx_put(w, t, toy_len[d], &e), 0);
        mmidx_end_document(w);
    }
    assert_int_equal(mmidx_commit(w, &e), 0);
    mmidx_writer_free(w);
    return prefix;
}

static void toy_index(int64_t ns, uint32_t seed, int64_t samples, const char *doc, const char *row,
                      const char *shuffle)
{
    char *prefix = make_toy();
    struct gpt_index_spec spec = { .name = "train", .end_doc = 12, .n_samples = ns, .s = 8, .seed = seed,
                                   .cut = GPT_INDEX_CUT };
    struct gpt_index x;
    struct err e = {0};
    struct mmidx *m = mmidx_open(prefix, &e);

    if (!m || gpt_index_open(m, &spec, &(struct gpt_index_files){ .build = true }, &x, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(x.samples, samples);
    expect_i32(x.doc.data, doc);
    expect_i32(x.sample.data, row);
    expect_i32(x.shuffle.data, shuffle);
    gpt_index_close(&x);
    mmidx_close(m);
    free(prefix);
}

static void test_toy_indices(void **state)
{
    (void)state;
    toy_index(5, 1234, 9, "7 8 11 2 9 10 1 0 4 5 6 3", "0 0 1 4 2 2 2 10 4 4 6 4 7 3 8 6 10 6 11 6",
              "7 3 5 1 4 8 0 2 6");
    toy_index(15, 1234, 19, "7 8 11 2 9 10 1 0 4 5 6 3 7 11 2 3 1 9 5 4 0 8 6 10", "0 0",
              "7 1 6 5 8 4 3 0 2 13 18 14 11 15 17 12 10 9 16");
    toy_index(18, 1234, 19, "7 4 2 3 1 6 5 4 0 8 1 9 10 10 8 2 11 9 5 11 0 6 7 3", "0 0",
              "8 18 13 1 4 17 14 11 9 0 7 3 10 6 2 5 12 16 15");
    toy_index(21, 42, 29, "8 4 0 6 11 9 1 1 9 5 2 0 3 3 4 10 5 8 11 7 10 2 7 6 7 4 10 3 1 6 2 0 8 5 9 11", "0 0",
              "18 10 7 12 9 5 17 0 3 1 13 8 15 6 16 4 2 11 14 27 28 21 19 24 25 26 22 20 23");
}

static struct dataset *toy_dataset(const char *prefix, int64_t ns, struct err *e)
{
    struct dataset_opts o = { .n_samples = ns, .s = 8, .seed = 1234, .cut = GPT_INDEX_CUT, .build = true };
    struct data_groups g = paths_group(prefix, "1", 0);
    struct dataset *d = NULL;

    if (dataset_open(&g.group[0], &o, &d, e) < 0)
        d = NULL;
    data_groups_free(&g);
    return d;
}

static void expect_sample(const struct dataset *d, int64_t k, const char *want)
{
    int64_t got[9];
    int32_t narrow[9];
    struct err e = {0};

    if (dataset_get(d, k, got, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < 9; i++)
        narrow[i] = (int32_t)got[i];
    expect_i32(narrow, want);
}

/* Stops a build once it has done a sixth of its work since it began, or went on. */
struct stopper {
    struct gpt_index_progress progress;
    atomic_bool over;
};

static void *stop_soon(void *arg)
{
    struct stopper *s = arg;
    long long first = 0, done;

    while (!atomic_load(&s->over)) {
        done = atomic_load(&s->progress.done);
        first = first ? first : done;
        if (first && done > first + atomic_load(&s->progress.total) / 6)
            atomic_store(&s->progress.stop, true);
        usleep(20);
    }
    return NULL;
}

static int build_until_stopped(const struct mmidx *m, const struct gpt_index_spec *spec, const char *to, struct err *e)
{
    struct stopper s = { .progress = { .keep_s = 0 } };
    struct gpt_index x;
    pthread_t thread;
    int rc;

    assert_int_equal(pthread_create(&thread, NULL, stop_soon, &s), 0);
    rc = gpt_index_open(m, spec, &(struct gpt_index_files){ to, true, &s.progress }, &x, e);
    atomic_store(&s.over, true);
    pthread_join(thread, NULL);
    if (rc == 0)
        gpt_index_close(&x);
    return rc;
}

/* Stopped again and again, a build goes on from what it has kept, and makes the same files. */
static void test_build_goes_on(void **state)
{
    static const char *const kinds[] = { "doc_idx", "sample_idx", "shuffle_idx" };
    char *prefix = make_toy(), *whole = str_fmt("%s/whole", dir), *parts = str_fmt("%s/parts", dir), *record;
    struct gpt_index_spec spec = { .name = "train", .end_doc = 12, .n_samples = 200000, .s = 8, .seed = 1234,
                                   .cut = GPT_INDEX_CUT };
    struct gpt_index x;
    struct err e = {0};
    struct mmidx *m = mmidx_open(prefix, &e);
    int stops = 0;

    (void)state;
    assert_non_null(m);
    assert_int_equal(dir_make(whole, &e) | dir_make(parts, &e), 0);
    assert_int_equal(gpt_index_open(m, &spec, &(struct gpt_index_files){ whole, true, NULL }, &x, &e), 0);
    gpt_index_close(&x);
    while (build_until_stopped(m, &spec, parts, &e) < 0) {
        assert_int_equal(e.kind, ERR_STOP);
        err_clear(&e);
        assert_true(++stops < 20);
    }
    assert_true(stops >= 3);
    for (int i = 0; i < 3; i++) {
        char *a = gpt_index_path(prefix, &spec, whole, kinds[i]), *b = gpt_index_path(prefix, &spec, parts, kinds[i]);
        uint64_t na, nb;
        char *x1 = file_slurp(a, 1 << 26, &na, &e), *x2 = file_slurp(b, 1 << 26, &nb, &e);

        assert_true(x1 && x2 && na == nb && memcmp(x1, x2, na) == 0);
        free(x1);
        free(x2);
        free(a);
        free(b);
    }
    record = gpt_index_path(prefix, &spec, parts, "shuffle_idx");
    record = xrealloc(record, strlen(record) + 16);
    strcat(record, ".building");
    assert_int_equal(access(record, F_OK), -1);
    free(record);
    mmidx_close(m);
    free(prefix);
    free(whole);
    free(parts);
}

/* What another build has kept, or what is damaged, is not taken up. */
static void test_build_of_others(void **state)
{
    char *prefix = make_toy(), *to = str_fmt("%s/others", dir), *path, *record, *bytes;
    struct gpt_index_spec spec = { .name = "train", .end_doc = 12, .n_samples = 200000, .s = 8, .seed = 1234,
                                   .cut = GPT_INDEX_CUT };
    struct err e = {0};
    struct mmidx *m = mmidx_open(prefix, &e);
    struct gpt_index x;
    uint64_t n;
    uint32_t crc;

    (void)state;
    assert_int_equal(dir_make(to, &e), 0);
    assert_int_equal(gpt_index_open(m, &spec, &(struct gpt_index_files){ to, true, NULL }, &x, &e), 0);
    crc = crc_bytes(0, x.shuffle.data, (size_t)x.samples * 4);
    gpt_index_close(&x);
    path = gpt_index_path(prefix, &spec, to, "shuffle_idx");
    record = str_fmt("%s.building", path);
    for (int how = 0; how < 3; how++) {
        unlink(path);
        assert_int_equal(build_until_stopped(m, &spec, to, &e), -1);
        err_clear(&e);
        bytes = file_slurp(record, 1 << 26, &n, &e);
        assert_non_null(bytes);
        bytes[how == 0 ? 40 : how == 1 ? n - 5 : 90] ^= 1;
        assert_int_equal(file_replace(record, bytes, how == 2 ? 50 : n, &e), 0);
        free(bytes);
        assert_int_equal(gpt_index_open(m, &spec, &(struct gpt_index_files){ to, true, NULL }, &x, &e), 0);
        assert_int_equal(crc_bytes(0, x.shuffle.data, (size_t)x.samples * 4), crc);
        gpt_index_close(&x);
    }
    mmidx_close(m);
    free(prefix);
    free(to);
    free(path);
    free(record);
}

static void test_toy_samples(void **state)
{
    char *prefix = make_toy();
    struct err e = {0};
    struct dataset *d = toy_dataset(prefix, 5, &e);

    (void)state;
    if (!d)
        fail_msg("%s", e.msg);
    expect_sample(d, 0, "406 500 600 601 602 603 604 605 606");
    expect_sample(d, 1, "1110 200 201 202 900 901 902 903 904");
    dataset_close(d);
    d = toy_dataset(prefix, 18, &e);
    expect_sample(d, 0, "808 809 100 101 102 103 104 105 106");
    dataset_close(d);
    free(prefix);
}

/* Cache files that say something else: refused where the lengths show it, never followed outside. */
static void test_hostile_indices(void **state)
{
    static const char *const kinds[] = { "doc_idx", "sample_idx", "shuffle_idx" };
    char *prefix = make_toy();
    struct gpt_index_spec spec = { .name = "train", .n_samples = 5, .s = 8, .seed = 1234 };
    struct err e = {0};

    (void)state;
    dataset_close(toy_dataset(prefix, 5, &e));
    for (int i = 0; i < 3; i++) {
        char *path = gpt_index_path(prefix, &spec, NULL, kinds[i]), *p;
        uint64_t n;
        int refused = 0;

        p = file_slurp(path, 1 << 20, &n, &e);
        assert_non_null(p);
        for (uint64_t bit = 8 * 128; bit < 8 * n; bit++) {
            struct dataset *d;
            int64_t tokens[9];

            p[bit / 8] ^= (char)(1 << bit % 8);
            assert_int_equal(file_replace(path, p, n, &e), 0);
            p[bit / 8] ^= (char)(1 << bit % 8);
            d = toy_dataset(prefix, 5, &e);
            if (!d) {
                assert_int_equal(e.kind, ERR_DATA);
                assert_non_null(strstr(e.msg, ".npy: at byte "));
                err_clear(&e);
                refused++;
                continue;
            }
            for (int64_t k = 0; k < dataset_samples(d); k++)
                if (dataset_get(d, k, tokens, &e) < 0) {
                    assert_int_equal(e.kind, ERR_DATA);
                    assert_non_null(strstr(e.msg, ".npy: at byte "));
                    err_clear(&e);
                    refused++;
                }
            dataset_close(d);
        }
        assert_true(refused > 100);
        assert_int_equal(file_replace(path, p, n - 4, &e), 0);
        assert_null(toy_dataset(prefix, 5, &e));
        assert_non_null(strstr(e.msg, ".npy: at byte 128: "));
        err_clear(&e);
        assert_int_equal(file_replace(path, p, n, &e), 0);
        free(p);
        free(path);
    }
    free(prefix);
}

static void test_other_settings_are_refused(void **state)
{
    static const char *const want[] = {
        "doc_idx.npy: made for other data or settings (12 entries, expected 8); remove the three indexmap files",
        /* Six documents twice over: the same lengths, other documents. */
        "doc_idx.npy: at byte 128: document 7, expected 0 to 5: made for other data or settings; remove",
    };
    static const char *const splits[] = { "2,1", "1,1" };
    char *prefix = make_toy();
    struct dataset_opts o = { .n_samples = 5, .s = 8, .seed = 1234, .cut = GPT_INDEX_CUT, .build = true };
    struct err e = {0};

    (void)state;
    dataset_close(toy_dataset(prefix, 5, &e));
    for (int i = 0; i < 2; i++) {
        struct data_groups g = paths_group(prefix, splits[i], 0);
        struct dataset *d;

        err_clear(&e);
        assert_int_equal(dataset_open(&g.group[0], &o, &d, &e), -1);
        if (!strstr(e.msg, want[i]))
            fail_msg("%s", e.msg);
        data_groups_free(&g);
    }
    free(prefix);
}

/* The last of two epochs of 9 samples is shuffled apart when less than trunc(9 * cut) of it is used. */
static void test_cut(void **state)
{
    static const struct { int64_t ns; double cut; bool separate; } cases[] = {
        { 16, 0.95, true }, { 17, 0.95, false }, { 15, 0.80, true }, { 16, 0.80, false }, { 9, 0.95, false },
        { 10, 0.95, true }, { 18, 1.0, false },
    };
    char *prefix = make_toy();
    struct err e = {0};
    struct mmidx *m = mmidx_open(prefix, &e);

    (void)state;
    assert_non_null(m);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gpt_index_spec spec = { .name = "x", .end_doc = 12, .n_samples = cases[i].ns, .s = 8,
                                       .cut = cases[i].cut };
        struct gpt_index_plan plan;

        if (gpt_index_plan(m, &spec, &plan, &e) < 0)
            fail_msg("%s", e.msg);
        assert_int_equal(plan.epochs, cases[i].ns > 9 ? 2 : 1);
        assert_int_equal(plan.separate, cases[i].separate);
    }
    mmidx_close(m);
    free(prefix);
}

/* Where the epochs' samples do not add up, the neighbouring numbers do, as the message promises. */
static void test_last_epoch_too_short(void **state)
{
    char *prefix = make_toy();
    struct gpt_index_plan plan;
    struct err e = {0};
    struct mmidx *m = mmidx_open(prefix, &e);
    int refused = 0;

    (void)state;
    assert_non_null(m);
    for (int64_t s = 1; s < 78; s++)
        for (int64_t ns = 1; ns < 5 * 78 / s; ns++) {
            struct gpt_index_spec spec = { .name = "x", .end_doc = 12, .n_samples = ns, .s = s, .cut = 0.95 };

            err_clear(&e);
            if (gpt_index_plan(m, &spec, &plan, &e) == 0)
                continue;
            refused++;
            assert_non_null(strstr(e.msg, ": use one sample more or less, or another sequence length"));
            spec.n_samples = ns - 1;
            assert_int_equal(gpt_index_plan(m, &spec, &plan, &e), 0);
            spec.n_samples = ns + 1;
            assert_int_equal(gpt_index_plan(m, &spec, &plan, &e), 0);
        }
    assert_true(refused > 0);
    mmidx_close(m);
    free(prefix);
}

static void test_impossible(void **state)
{
    char *prefix = make_toy();
    struct gpt_index_spec spec = { .name = "x", .end_doc = 12, .n_samples = 5, .s = 8, .cut = 0.95 };
    struct gpt_index_plan plan;
    struct err e = {0};
    struct mmidx *m = mmidx_open(prefix, &e);

    (void)state;
    assert_int_equal(gpt_index_plan(m, &spec, &plan, &e), 0);
    assert_int_equal(plan.tokens, 78);
    spec.n_samples = INT64_MAX / 2;
    assert_int_equal(gpt_index_plan(m, &spec, &plan, &e), -1);
    assert_int_equal(e.kind, ERR_USAGE);
    err_clear(&e);
    spec.n_samples = 1ll << 40;
    assert_int_equal(gpt_index_plan(m, &spec, &plan, &e), -1);
    assert_non_null(strstr(e.msg, "are more than the index can hold"));
    err_clear(&e);
    spec.n_samples = 5;
    spec.end_doc = 13;
    assert_int_equal(gpt_index_plan(m, &spec, &plan, &e), -1);
    assert_non_null(strstr(e.msg, "documents 0 to 13 asked for, there are 12"));
    mmidx_close(m);
    free(prefix);
}

/* ---- splits and groups ---- */

static void split(const char *text, int64_t n, const char *want)
{
    struct err e = {0};
    struct data_part p = {0};
    int32_t got[4];

    if (data_parse_split(text, p.share, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < 3; i++) {
        int64_t first, end;

        p.split = i;
        data_part_range(&p, n, &first, &end);
        got[i] = (int32_t)first;
        got[i + 1] = (int32_t)end;
    }
    expect_i32(got, want);
}

static void range(double start, double stop, int64_t n, int64_t want_first, int64_t want_end)
{
    struct data_part p = { .split = -1, .start = start, .end = stop };
    int64_t first, end;

    data_part_range(&p, n, &first, &end);
    assert_int_equal(first, want_first);
    assert_int_equal(end, want_end);
}

static void test_splits(void **state)
{
    static const char *const wrong[] = { "", "a", "1,", "1,,2", "0,0,0", "-1,2", "1/2,3", "nan", "1;2" };
    struct err e = {0};
    double share[3];

    (void)state;
    split("949,50,1", 1000, "0 949 999 1000");
    split("949,50,1", 304230423, "0 288714672 303926193 304230423");
    split("969, 30, 1", 12, "0 12 12 12");
    split("90/5/5", 10, "0 10 10 10");
    split("949,50,1", 83, "0 79 83 83");
    split("1", 10, "0 10 10 10");
    range(0, 0.5, 5, 0, 2);
    range(0, 0.5, 7, 0, 4);
    range(0, 0.95, 12, 0, 11);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err_clear(&e);
        assert_int_equal(data_parse_split(wrong[i], share, &e), -1);
        assert_int_equal(e.kind, ERR_USAGE);
    }
}

static void test_groups(void **state)
{
    static const char *const wrong[] = {
        "no colon", ": 1 0:1 a", "n:", "n: 1 0:1", "n: 1 0:1 a b", "n: 1 1:0 a", "n: 1 0:1.5 a", "n: x 0:1 a",
        "n: 1 0:1 a,", "n: 1 0-1 a", "a/b: 1 0:1 c", "n: -1 0:1 a",
    };
    struct data_groups g = {0};
    struct err e = {0};
    char *path = str_fmt("%s/groups.txt", dir);
    const char *text = "\"valid: 0.25 0.95:1.0 /a/fr, 0.75 0.95:1.0 /a/en\" \"valid_fr: 1 0.95:1.0 /a/fr\"\n";

    (void)state;
    assert_int_equal(file_replace(path, text, strlen(text), &e), 0);
    if (data_add_group_file(&g, path, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(g.n, 2);
    assert_string_equal(g.group[0].name, "valid");
    assert_int_equal(g.group[0].n, 2);
    assert_string_equal(g.group[0].part[1].prefix, "/a/en");
    assert_true(g.group[0].part[1].weight == 0.75 && g.group[0].part[1].start == 0.95);
    assert_string_equal(g.group[1].name, "valid_fr");
    assert_int_equal(g.group[1].n, 1);
    data_groups_free(&g);
    assert_int_equal(file_replace(path, text, strlen(text) - 1, &e), 0);
    assert_int_equal(data_add_group_file(&g, path, &e), -1);
    assert_non_null(strstr(e.msg, "groups.txt: expected one line of groups"));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err_clear(&e);
        if (data_add_group(&g, wrong[i], &e) == 0)
            fail_msg("'%s' was taken", wrong[i]);
        assert_int_equal(e.kind, ERR_USAGE);
    }
    data_groups_free(&g);
    free(path);
}

/* ---- blends ---- */

static void blend_crc(const double *weight, int n, int64_t samples, uint32_t want_set, uint32_t want_sample,
                      const char *sets, const char *numbers)
{
    struct err e = {0};
    struct blend *b = blend_new(weight, n, samples, &e);
    int32_t set32[24], number32[24];
    uint32_t crc_set = 0, crc_sample = 0;

    if (!b)
        fail_msg("%s", e.msg);
    for (int64_t k = 0; k < samples; k++) {
        int64_t number;
        uint8_t byte;
        int set;

        blend_get(b, k, &set, &number);
        byte = (uint8_t)set;
        crc_set = crc_bytes(crc_set, &byte, 1);
        crc_sample = crc_bytes(crc_sample, &number, 8);
        if (k < 24) {
            set32[k] = set;
            number32[k] = (int32_t)number;
        }
    }
    expect_i32(set32, sets);
    expect_i32(number32, numbers);
    if (want_set) {
        assert_int_equal(crc_set, want_set);
        assert_int_equal(crc_sample, want_sample);
    }
    blend_free(b);
}

static void test_blends(void **state)
{
    static const double three[] = { 0.6, 0.3, 0.1 }, two[] = { 1, 1 }, eight[] = { 3, 1, 1, 1, 1, 1, 1, 1 };

    (void)state;
    blend_crc(three, 3, 1000000, 0x4886b3ca, 0x852af45d, "0 1 2 0 0 1 0 0 1 0 0 1 2 0 0 1 0 0 1 0",
              "0 0 0 1 2 1 3 4 2 5 6 3 1 7 8 4 9 10 5 11");
    blend_crc(two, 2, 24, 0, 0, "0 1 0 1 0 1", "0 0 1 1 2 2");
    blend_crc(eight, 8, 24, 0, 0, "0 1 2 3 4 0 5 6 7 0 0 1 2 3 4 0 5 6 7 0 0 1 2 3", "0 0 0 0 0 1");
    assert_int_equal(blend_request(three, 3, 1, 1000), 302);     /* ceil(1000 * 0.3 * 1.005) */
    assert_int_equal(blend_request(two, 1, 0, 1000), 1000);
}

/* Weights whose order of additions decides ties; expectations by numpy. */
static const double n28[] = {
    4, 5, 2, 7, 8, 3, 2, 2, 1, 7, 9, 5, 1, 4, 9, 9, 6, 5, 3, 2, 5, 4, 1, 5, 5, 4, 3, 5,
};
static const double n150[] = {
    3, 2, 5, 2, 8, 8, 8, 7, 4, 2, 8, 1, 7, 7, 1, 8, 5, 4, 2, 6, 1, 1, 1, 9, 1, 7, 4, 7, 1, 9,
    4, 8, 8, 9, 4, 6, 4, 4, 8, 5, 1, 7, 9, 2, 3, 5, 2, 6, 9, 7, 9, 4, 5, 5, 8, 9, 7, 1, 8, 4,
    7, 7, 3, 6, 9, 6, 2, 8, 9, 2, 3, 9, 7, 6, 8, 1, 8, 1, 5, 7, 3, 3, 9, 4, 1, 4, 9, 9, 4, 7,
    9, 6, 6, 8, 5, 9, 1, 7, 9, 3, 9, 9, 4, 7, 1, 8, 6, 9, 4, 9, 7, 8, 6, 7, 6, 1, 9, 9, 6, 8,
    1, 4, 3, 9, 3, 2, 9, 5, 1, 2, 2, 1, 8, 1, 5, 4, 5, 2, 3, 6, 5, 2, 3, 3, 5, 9, 3, 5, 5, 8,
};

static void test_blend_sums(void **state)
{
    (void)state;
    blend_crc(n28, 28, 3000, 0x13f20e76, 0x067137aa, "10 14 15 4 3 9 16 1 11 17 20 23", "0 0 0 0");
    blend_crc(n150, 150, 3000, 0x21aa2baa, 0x74156565, "23 29 33 42 48 50 55 64 68 71 82 86", "0 0 0 0");
}

static void test_blend_usage(void **state)
{
    static const double zero[] = { 0, 0 }, negative[] = { 1, -1 };
    struct err e = {0};

    (void)state;
    assert_null(blend_new(zero, 2, 10, &e));
    assert_string_equal(e.msg, "all weights of the blend are 0");
    err_clear(&e);
    assert_null(blend_new(negative, 2, 10, &e));
    assert_string_equal(e.msg, "weight 2 of the blend is -1, expected a number from 0 up");
    err_clear(&e);
    assert_null(blend_new(zero, 255, 10, &e));
    assert_string_equal(e.msg, "a blend of 255 datasets: expected 1 to 254");
}

/* Two named validation sets and a blended one, as a training run would open them. */
static void test_named_sets(void **state)
{
    char *prefix = make_toy();
    char *text = str_fmt("mix: 0.7 0:0.5 %s, 0.3 0.5:1 %s", prefix, prefix);
    struct dataset_opts o = { .n_samples = 20, .s = 8, .seed = 1234, .cut = GPT_INDEX_CUT, .build = true };
    struct data_groups g = {0};
    struct dataset *d;
    struct err e = {0};
    int64_t tokens[9];
    int low = 0;

    (void)state;
    assert_int_equal(data_add_group(&g, text, &e), 0);
    if (dataset_open(&g.group[0], &o, &d, &e) < 0)
        fail_msg("%s", e.msg);
    assert_true(dataset_samples(d) >= 20);
    for (int64_t k = 0; k < 20; k++) {
        assert_int_equal(dataset_get(d, k, tokens, &e), 0);
        low += tokens[0] < 600;
    }
    assert_int_equal(low, 14);
    dataset_close(d);
    data_groups_free(&g);
    free(text);
    /* A range without documents is a mistake; a split without is no dataset. */
    text = str_fmt("none: 1 0.99:1 %s", prefix);
    assert_int_equal(data_add_group(&g, text, &e), 0);
    assert_int_equal(dataset_open(&g.group[0], &o, &d, &e), -1);
    assert_non_null(strstr(e.msg, "none: documents 12 to 12 asked for, there are 12"));
    err_clear(&e);
    data_groups_free(&g);
    g = paths_group(prefix, "969, 30, 1", 1);
    assert_int_equal(dataset_open(&g.group[0], &o, &d, &e), 0);
    assert_null(d);
    data_groups_free(&g);
    free(text);
    free(prefix);
}

/* A data folder may be read-only: the message names the option that helps. */
static void test_read_only_folder(void **state)
{
    struct gpt_index_spec spec = { "train", 0, 10, 77, 16, 7, GPT_INDEX_CUT };
    char *folder = path_join(dir, "read-only"), *prefix = path_join(folder, "text"), *log = path_join(dir, "said");
    char want[600];
    struct err e = {0};
    uint64_t size;
    pid_t pid;
    int status;
    char *said;

    (void)state;
    assert_int_equal(mkdir(folder, 0755), 0);
    assert_int_equal(chmod(dir, 0777), 0);
    for (int i = 0; i < 2; i++) {
        char *from = str_fmt("%s%s", TEXT, i ? ".bin" : ".idx"), *to = str_fmt("%s%s", prefix, i ? ".bin" : ".idx");
        char *bytes = file_slurp(from, 1 << 26, &size, &e);

        assert_true(bytes && file_replace(to, bytes, size, &e) == 0);
        free(bytes);
        free(from);
        free(to);
    }
    assert_int_equal(chmod(folder, 0555), 0);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        struct mmidx *data;
        struct gpt_index x;

        /* Root may write anywhere; other users may lack access to the folders above. */
        if (chdir(dir) < 0 || (getuid() == 0 && setuid(65534) < 0))
            _exit(9);
        data = mmidx_open("read-only/text", &e);
        if (data && gpt_index_open(data, &spec, &(struct gpt_index_files){ .build = true }, &x, &e) == 0)
            _exit(8);
        _exit(file_replace("said", e.msg, strlen(e.msg), &(struct err){0}) < 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    said = file_slurp(log, 4096, &size, &e);
    assert_non_null(said);
    snprintf(want, sizeof want,
             ": cannot create: Permission denied; --index-dir names another folder for the index files");
    if (!str_starts(said, "read-only/text") || !str_ends(said, want))
        fail_msg("said: %s", said);
    assert_int_equal(chmod(folder, 0755), 0);
    free(said);
    free(log);
    free(prefix);
    free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generator),
        cmocka_unit_test(test_shuffles),
        cmocka_unit_test(test_wide_interval),
        cmocka_unit_test(test_reference_indices),
        cmocka_unit_test(test_reference_files_are_read),
        cmocka_unit_test(test_toy_indices),
        cmocka_unit_test(test_build_goes_on),
        cmocka_unit_test(test_build_of_others),
        cmocka_unit_test(test_toy_samples),
        cmocka_unit_test(test_hostile_indices),
        cmocka_unit_test(test_other_settings_are_refused),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_last_epoch_too_short),
        cmocka_unit_test(test_impossible),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_blends),
        cmocka_unit_test(test_blend_sums),
        cmocka_unit_test(test_blend_usage),
        cmocka_unit_test(test_named_sets),
        cmocka_unit_test(test_read_only_folder),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
