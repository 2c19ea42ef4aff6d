#include "tests/lib/resh.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"
#include "tests/lib/ptdiff.h"

static char scratch[64];

void resh_must(int ok, const struct err *e)
{
    if (!ok)
        fail_msg("%s", e->msg);
}

char *resh_in_scratch(const char *name)
{
    return path_join(scratch, name);
}

struct ds_request resh_to_topology(int tp, int pp, int dp)
{
    return (struct ds_request){ .topo = { .tp = tp, .pp = pp, .dp = dp }, .step = -1 };
}

int resh_try(const char *in, const char *out, const struct ds_request *q, struct err *e)
{
    struct source *s = source_open(in, &(struct source_opts){ .no_optimizer = q->no_optimizer }, NULL, e);
    struct report *notes = report_new();
    struct ds_target *t = s ? ds_target_new(s, q, notes, e) : NULL;
    struct sink_opts ko = { .replicas = REPLICAS_FAIL, .final_path = out, .n_parts = 1, .threads = 2 };
    struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 2, .mem_bytes = 8 << 20,
                              .progress = PROGRESS_NEVER, .force = true };
    struct convert_result res;
    int rc = t ? convert_run(s, deepspeed_sink(&ko, t), &o, &res, e) : -1;

    ds_target_free(t);
    report_free(notes);
    source_close(s);
    return rc;
}

void resh_do(const char *in, const char *out, const struct ds_request *q)
{
    struct err e = {0};

    resh_must(resh_try(in, out, q, &e) == 0, &e);
}

void resh_expect_sound(const char *dir)
{
    struct verify_opts o = { .threads = 2, .mem_bytes = 8 << 20 };
    struct report *r = report_new();
    struct err e = {0};

    resh_must(verify_run(dir, &o, r, &e) == 0, &e);
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity != SEV_NOTE) {
            char *text = finding_text(report_get(r, i));

            fail_msg("%s: %s", dir, text);
        }
    report_free(r);
}

struct resh_side resh_open_side(const char *dir, const char *name)
{
    struct resh_side s = { .f = files_new() };
    char *path = path_join(dir, name);
    struct err e = {0};
    int file = files_add_path(s.f, path, &e);

    resh_must(file >= 0, &e);
    s.pt = pt_open(s.f, file, &e);
    resh_must(s.pt != NULL, &e);
    free(path);
    return s;
}

void resh_close_side(struct resh_side *s)
{
    pt_close(s->pt);
    files_free(s->f);
}

void resh_same_file(const char *want, const char *got, const char *name, const char *const *except)
{
    char *found = ptdiff_file(want, got, name, except);

    if (found)
        fail_msg("%s", found);
}

void resh_same_bytes(const char *want, const char *got, const char *name)
{
    if (!ptdiff_same_bytes(want, got, name))
        fail_msg("%s differs between %s and %s", name, want, got);
}

void resh_same_names(const char *want, const char *got, char ***names, int *n)
{
    char **others;
    int m = ptdiff_list(got, &others);

    *n = ptdiff_list(want, names);
    assert_true(*n > 0);
    for (int i = 0; i < *n && i < m; i++)
        if (strcmp((*names)[i], others[i]) != 0)
            fail_msg("%s: %s where %s is expected", got, others[i], (*names)[i]);
    if (*n != m)
        fail_msg("%s: %d files, expected %d", got, m, *n);
    ptdiff_list_free(others, m);
}

/* Return the digests of a manifest; equal tensors give equal text. The caller frees it. */
static char *digests(const char *dir)
{
    char *path = path_join(dir, MANIFEST_NAME), *start, *end, *text;
    struct err e = {0};
    uint64_t n;
    char *all = file_slurp(path, 1 << 28, &n, &e);

    resh_must(all != NULL, &e);
    start = strstr(all, "\"tensors\"");
    end = strstr(start, "\n]");
    text = str_fmt("%.*s", (int)(end - start), start);
    free(all);
    free(path);
    return text;
}

void resh_same_digests(const char *a, const char *b)
{
    char *x = digests(a), *y = digests(b);

    if (strcmp(x, y) != 0)
        fail_msg("digests of %s and %s differ", a, b);
    free(x);
    free(y);
}

struct ckptgen resh_small_model(int tp, int pp, int dp)
{
    struct ckptgen g;

    ckptgen_defaults(&g);
    g.topo = (struct topology){ .tp = tp, .pp = pp, .dp = dp };
    g.n_layers = 8;
    g.hidden = 16;
    g.n_heads = 8;
    g.seq_len = 8;
    g.vocab_tokens = 33;
    g.vocab = 48;
    g.slim = true;
    g.threads = 2;
    return g;
}

char *resh_generate(const struct ckptgen *g, const char *name)
{
    char *dir = resh_in_scratch(name), *tag = str_fmt("%s/global_step%d", dir, (int)g->iteration);
    struct err e = {0};

    resh_must(dir_remove(dir, &e) == 0 || access(dir, F_OK) != 0, &e);
    err_clear(&e);
    resh_must(ckptgen_make(g, dir, &e) == 0, &e);
    free(dir);
    return tag;
}

int resh_make_scratch(void **state)
{
    (void)state;
    /* The tests sync many small sets, and gain nothing from a disk, so use memory where possible. */
    snprintf(scratch, sizeof scratch, "%s/shardkit-reshape-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(scratch) ? 0 : -1;
}

int resh_remove_scratch(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(scratch, &e);
}

void resh_to_universal(const char *in, const char *out, struct sink *(*open_sink)(const struct sink_opts *))
{
    struct err e = {0};
    struct source *s = source_open(in, &(struct source_opts){0}, NULL, &e);
    struct sink_opts ko = { .replicas = REPLICAS_FAIL, .final_path = out, .n_parts = 1, .threads = 2 };
    struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 2, .mem_bytes = 8 << 20,
                              .progress = PROGRESS_NEVER, .force = true };
    struct convert_result res;

    resh_must(s != NULL, &e);
    resh_must(convert_run(s, open_sink(&ko), &o, &res, &e) == 0, &e);
    source_close(s);
}

struct source *resh_open_source(const char *dir)
{
    struct err e = {0};
    struct source *s = source_open(dir, &(struct source_opts){0}, NULL, &e);

    resh_must(s != NULL, &e);
    return s;
}
