/*
 * test_golden.c - the conversion of the real trainer's files equals that of the real converter
 *
 * All three universal forms of both golden sets are compared tensor for tensor and bit for bit, read back through
 * libcommon's sources (tests/golden/ does it through torch and h5py).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"

static char scratch[] = "/tmp/shardkit-golden-XXXXXX";

static void must(int ok, const struct err *e)
{
    if (!ok)
        fail_msg("%s", e->msg);
}

static void convert(const char *in, const char *out, struct sink *(*open_sink)(const struct sink_opts *),
                    enum vocab_policy vocab)
{
    struct err e = {0};
    struct source_opts so = {0};
    struct source *s = source_open(in, &so, NULL, &e);
    struct sink_opts ko = {
        .vocab = vocab, .replicas = REPLICAS_AVERAGE, .final_path = out, .n_parts = 1, .threads = 2
    };
    struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 2, .mem_bytes = 16 << 20,
                              .progress = PROGRESS_NEVER, .verify = verify_sound };
    struct convert_result res;

    must(s != NULL, &e);
    must(convert_run(s, open_sink(&ko), &o, &res, &e) == 0, &e);
    assert_true(res.published);
    source_close(s);
}

/* ---- file by file, keys included ---- */

static void same_tensor(struct files *f, const struct pt *a, const struct pt *b, const char *key, const char *name)
{
    struct pt_tensor x, y;
    struct err e = {0};
    void *p, *q;
    size_t n;

    assert_true(pt_tensor(a, pk_get(pt_root(a), key), &x));
    if (!pt_tensor(b, pk_get(pt_root(b), key), &y))
        fail_msg("%s: our file has no '%s'", name, key);
    assert_int_equal(x.ndim, y.ndim);
    assert_memory_equal(x.shape, y.shape, (size_t)x.ndim * sizeof *x.shape);
    assert_int_equal(x.requires_grad, y.requires_grad);
    n = (size_t)x.n_elems * sizeof(float);
    p = xmalloc(n);
    q = xmalloc(n);
    must(files_read_extent(f, &(struct extent){ x.record, x.at, n }, p, &e) == 0, &e);
    must(files_read_extent(f, &(struct extent){ y.record, y.at, n }, q, &e) == 0, &e);
    if (memcmp(p, q, n) != 0)
        fail_msg("%s: '%s' differs from the reference's", name, key);
    free(p);
    free(q);
}

/* Every key the reference wrote is there with the same value, in the same order. */
static void same_file(const char *theirs, const char *ours)
{
    struct files *f = files_new();
    struct err e = {0};
    struct pt *a = pt_open(f, files_add_path(f, theirs, &e), &e), *b = pt_open(f, files_add_path(f, ours, &e), &e);
    struct pt_tensor t;
    uint32_t n;
    struct pk **pair;

    must(a && b, &e);
    pair = pk_pairs(pt_root(a), &n);
    for (uint32_t i = 0; i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        int64_t x, y;

        if (pt_tensor(a, pair[2 * i + 1], &t)) {
            same_tensor(f, a, b, key, ours);
        } else {
            assert_true(pk_as_int(pair[2 * i + 1], &x));
            assert_true(pk_as_int(pk_get(pt_root(b), key), &y));
            assert_int_equal(x, y);
        }
    }
    pt_close(a);
    pt_close(b);
    files_free(f);
}

static void bloom_pt(void **state)
{
    const char *theirs = "tests/data/bloom-tp2pp2dp2/global_step20_universal";
    char *out = path_join(scratch, "bloom_pt");
    struct err e = {0};
    struct source *s = source_open(theirs, &(struct source_opts){0}, NULL, &e);
    int n = 0;

    (void)state;
    convert("tests/data/bloom-tp2pp2dp2", out, universal_pt_sink, VOCAB_KEEP);
    must(s != NULL, &e);
    for (int i = 0; i < s->n_params; i++)
        for (int j = 0; j < TRAINED_STATES; j++, n++) {
            char *a = str_fmt("%s/zero/%s/%s.pt", theirs, s->param[i].name, state_name(trained_states[j]));
            char *b = str_fmt("%s/zero/%s/%s.pt", out, s->param[i].name, state_name(trained_states[j]));

            same_file(a, b);
            free(a);
            free(b);
        }
    assert_int_equal(n, 159);
    source_close(s);
    free(out);
}

/* ---- by CRC, any form ---- */

static uint32_t tensor_crc(const struct source *s, const struct param *p, enum state st)
{
    const struct tmap *m = p->state[st];
    char *buf = xmalloc(m->len);
    struct err e = {0};
    uint32_t crc;

    must(tmap_read(m, s->files, (struct tmap_range){ 0, 0, m->len }, buf, &e) == 0, &e);
    crc = crc_bytes(0, buf, m->len);
    free(buf);
    return crc;
}

/* Lines "name state bytes crc" as the reference's own converter made them. */
static void matches_list(const char *out, const char *list, int expected)
{
    struct err e = {0};
    struct source *s = source_open(out, &(struct source_opts){0}, NULL, &e);
    FILE *f = fopen(list, "r");
    char name[128], state[16];
    unsigned long long bytes;
    unsigned crc;
    int n = 0;

    must(s != NULL, &e);
    assert_non_null(f);
    for (; fscanf(f, "%127s %15s %llu %x", name, state, &bytes, &crc) == 4; n++) {
        const struct param *p = source_param(s, name);
        int st = state_by_name(state);

        if (!p || !p->state[st] || p->state[st]->len != bytes || tensor_crc(s, p, (enum state)st) != crc)
            fail_msg("%s: %s %s is not the reference's", out, name, state);
    }
    assert_int_equal(n, expected);
    fclose(f);
    source_close(s);
}

static void gpt2_forms(void **state)
{
    static struct sink *(*const sinks[])(const struct sink_opts *) = {
        universal_pt_sink, universal_hdf5_sink, universal_virtual_sink,
    };

    (void)state;
    for (int i = 0; i < 3; i++) {
        char *out = str_fmt("%s/gpt2_%d", scratch, i);

        convert("tests/data/gpt2-tp2pp2dp1/global_step20", out, sinks[i], VOCAB_KEEP);
        matches_list(out, "tests/data/gpt2-tp2pp2dp1/universal.crc", 153);
        free(out);
    }
}

static void bloom_forms_are_equal(void **state)
{
    char *pt = path_join(scratch, "bloom_pt");
    struct err e = {0};
    struct source *a = source_open(pt, &(struct source_opts){0}, NULL, &e), *b;
    static struct sink *(*const sinks[])(const struct sink_opts *) = { universal_hdf5_sink, universal_virtual_sink };

    (void)state;
    must(a != NULL, &e);
    for (int k = 0; k < 2; k++) {
        char *out = str_fmt("%s/bloom_%d", scratch, k);

        convert("tests/data/bloom-tp2pp2dp2", out, sinks[k], VOCAB_KEEP);
        b = source_open(out, &(struct source_opts){0}, NULL, &e);
        must(b != NULL, &e);
        assert_int_equal(a->n_params, b->n_params);
        for (int i = 0; i < a->n_params; i++)
            for (int j = 0; j < TRAINED_STATES; j++)
                assert_int_equal(tensor_crc(a, &a->param[i], trained_states[j]),
                                 tensor_crc(b, source_param(b, a->param[i].name), trained_states[j]));
        source_close(b);
        free(out);
    }
    source_close(a);
    free(pt);
}

static void strip_cuts_only_padding(void **state)
{
    char *out = path_join(scratch, "strip"), *pt = path_join(scratch, "bloom_pt");
    struct err e = {0};
    struct source *a, *b;

    (void)state;
    convert("tests/data/bloom-tp2pp2dp2", out, universal_pt_sink, VOCAB_STRIP);
    a = source_open(pt, &(struct source_opts){0}, NULL, &e);
    b = source_open(out, &(struct source_opts){0}, NULL, &e);
    must(a && b, &e);
    for (int i = 0; i < a->n_params; i++) {
        const struct param *p = &a->param[i], *q = source_param(b, p->name);
        uint64_t n = q->state[STATE_FP32]->len;
        char *x = xmalloc(n), *y = xmalloc(n);

        assert_int_equal(q->shape[0], p->merge == MERGE_VOCAB ? 257 : p->shape[0]);
        must(tmap_read(p->state[STATE_FP32], a->files, (struct tmap_range){ 0, 0, n }, x, &e) == 0, &e);
        must(tmap_read(q->state[STATE_FP32], b->files, (struct tmap_range){ 0, 0, n }, y, &e) == 0, &e);
        assert_memory_equal(x, y, n);
        free(x);
        free(y);
    }
    source_close(a);
    source_close(b);
    free(pt);
    free(out);
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
        cmocka_unit_test(bloom_pt), cmocka_unit_test(gpt2_forms), cmocka_unit_test(bloom_forms_are_equal),
        cmocka_unit_test(strip_cuts_only_padding),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
