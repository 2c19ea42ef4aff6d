/* test_certificate.c - certificates: their contents for a right result, and that a result with one wrong bit is not
 * certified */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "libcommon/check/certificate.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"
#include "tests/lib/ckptgen.h"

static char scratch[64];

static void must(int ok, const struct err *e)
{
    if (!ok)
        fail_msg("%s", e->msg);
}

static char *in_scratch(const char *name)
{
    return path_join(scratch, name);
}

/* Generate the same small model each time, except for one bit of `drift`. Returns its tag folder. */
static char *generate(const char *name, const char *drift)
{
    struct ckptgen g;
    char *dir = in_scratch(name), *tag;
    struct err e = {0};

    ckptgen_defaults(&g);
    g.topo = (struct topology){ 1, 2, 2 };
    g.slim = true;
    g.threads = 2;
    if (drift)
        assert_int_equal(ckptgen_add_drift(&g, drift), 0);
    must(ckptgen_make(&g, dir, &e) == 0, &e);
    tag = str_fmt("%s/global_step%d", dir, (int)g.iteration);
    free(dir);
    return tag;
}

static const struct ds_request request = { .topo = { .tp = 2, .pp = 1, .dp = 3 }, .step = -1 };

struct opened {
    struct source *s;
    struct ds_target *t;
    struct report *notes;
};

static struct opened open_for(const char *in, const struct ds_request *q)
{
    struct err e = {0};
    struct opened o = { .s = source_open(in, NULL, NULL, &e), .notes = report_new() };

    must(o.s != NULL, &e);
    o.t = ds_target_new(o.s, q, o.notes, &e);
    must(o.t != NULL, &e);
    return o;
}

static void close_opened(struct opened *o)
{
    ds_target_free(o->t);
    report_free(o->notes);
    source_close(o->s);
}

static void reshape(const char *in, const char *out)
{
    struct opened x = open_for(in, &request);
    struct sink_opts ko = { .replicas = REPLICAS_FAIL, .final_path = out, .n_parts = 1, .threads = 2 };
    struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 2, .mem_bytes = 8 << 20,
                              .progress = PROGRESS_NEVER, .force = true };
    struct convert_result res;
    struct err e = {0};

    must(convert_run(x.s, deepspeed_sink(&ko, x.t), &o, &res, &e) == 0, &e);
    close_opened(&x);
}

static int certify(const char *in, const char *out, struct strbuf *text, struct err *e)
{
    struct opened x = open_for(in, &request);
    struct certificate_opts o = { .out = out, .replicas = REPLICAS_FAIL, .threads = 2, .mem_bytes = 8 << 20 };
    int rc = certificate_make(x.t, NULL, out, &o, text, e);

    close_opened(&x);
    return rc;
}

static const char *const drifts[] = {
    "4.mlp.dense_4h_to_h.weight:exp_avg_sq:0:1",
    "3.input_layernorm.bias:exp_avg:0:1",
    "5.self_attention.dense.weight:fp32:0:1",
    "8.weight:bf16:0:1",
    "tied_modules.embed.word_embeddings.weight:exp_avg:0:1",
};

/* The files of the result are consistent, but one bit differs from the source. */
static void one_wrong_bit(void **state)
{
    char *in = generate("in", NULL), *out = in_scratch("out");

    (void)state;
    for (size_t i = 0; i < sizeof drifts / sizeof *drifts; i++) {
        char *other = generate("other", drifts[i]), param[80], st[16], *want;
        struct strbuf text = {0};
        struct err e = {0};

        assert_int_equal(sscanf(drifts[i], "%79[^:]:%15[^:]", param, st), 2);
        reshape(other, out);
        assert_int_equal(certify(in, out, &text, &e), -1);
        assert_int_equal(e.kind, ERR_DATA);
        want = str_fmt("%s: parameter %s: %s has digest ", out, param, st);
        if (!str_starts(e.msg, want))
            fail_msg("'%s' does not begin with '%s'", e.msg, want);
        assert_non_null(strstr(e.msg, "(equal)"));
        err_clear(&e);
        must(certify(other, out, &text, &e) == 0, &e);
        strbuf_free(&text);
        free(want);
        free(other);
    }
    free(in);
    free(out);
}

static int count(const struct report *r, const char *code)
{
    int n = 0;

    for (int i = 0; i < report_n(r); i++)
        n += report_get(r, i)->severity == SEV_ERROR && strcmp(report_get(r, i)->code, code) == 0;
    return n;
}

static int verify(const char *dir, const char *certificate, const char *code)
{
    struct verify_opts o = { .threads = 2, .mem_bytes = 8 << 20, .certificate = certificate };
    struct report *r = report_new();
    struct err e = {0};
    int n;

    must(verify_run(dir, &o, r, &e) == 0, &e);
    n = count(r, code);
    assert_int_equal(report_count(r, SEV_ERROR), n);
    report_free(r);
    return n;
}

/* With the certificate, the same bit is found later, in any topology. */
static void verified_later(void **state)
{
    char *in = generate("in", NULL), *out = in_scratch("out"), *file = in_scratch("proof");
    struct strbuf text = {0};
    struct err e = {0};

    (void)state;
    reshape(in, out);
    must(certify(in, out, &text, &e) == 0, &e);
    must(file_replace(file, text.buf, text.len, &e) == 0, &e);
    assert_int_equal(verify(out, file, "digest"), 0);
    assert_int_equal(verify(in, file, "digest"), 0);
    for (size_t i = 0; i < sizeof drifts / sizeof *drifts; i++) {
        char *other = generate("other", drifts[i]);

        assert_int_equal(verify(other, file, "digest"), 1);
        free(other);
    }
    strbuf_free(&text);
    free(in);
    free(out);
    free(file);
}

/* Tensors that exist on one side only, or have another shape. */
static void other_tensors(void **state)
{
    struct ckptgen g;
    char *in = generate("in", NULL), *out = in_scratch("out"), *file = in_scratch("proof"), *dir = in_scratch("longer");
    struct strbuf text = {0};
    struct err e = {0};

    (void)state;
    reshape(in, out);
    must(certify(in, out, &text, &e) == 0, &e);
    must(file_replace(file, text.buf, text.len, &e) == 0, &e);
    ckptgen_defaults(&g);
    g.slim = true;
    g.n_layers = 5;
    must(ckptgen_make(&g, dir, &e) == 0, &e);
    {
        struct verify_opts o = { .threads = 2, .mem_bytes = 8 << 20, .certificate = file };
        struct report *r = report_new();

        must(verify_run(dir, &o, r, &e) == 0, &e);
        /*
         * Layer 7 and the final LayerNorm's number are new, the old one is missing; the vocabulary's padding differs
         * with TP.
         */
        assert_true(count(r, "certificate") >= (12 + 2 + 2) * 4);
        report_free(r);
    }
    strbuf_free(&text);
    free(in);
    free(out);
    free(file);
    free(dir);
}

static int make_scratch(void **state)
{
    (void)state;
    snprintf(scratch, sizeof scratch, "%s/shardkit-cert-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(scratch, &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_wrong_bit), cmocka_unit_test(verified_later), cmocka_unit_test(other_tensors),
    };

    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
