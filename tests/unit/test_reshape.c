/*
 * test_reshape.c - sharded checkpoints in another topology
 *
 * Three yardsticks: what the real trainer wrote (golden sets, reshaped to their own
 * topology), what the generator writes at the target topology by itself, and the way back,
 * which must end in the same bytes.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/convert.h"
#include "libcommon/layout/deepspeed_target.h"
#include "libcommon/layout/manifest.h"
#include "libcommon/layout/verify.h"
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

/* ---- doing it ---- */

static struct ds_request to_topology(int tp, int pp, int dp)
{
    return (struct ds_request){ .topo = { .tp = tp, .pp = pp, .dp = dp }, .step = -1 };
}

static int try_reshape(const char *in, const char *out, const struct ds_request *q, struct err *e)
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

static void reshape(const char *in, const char *out, const struct ds_request *q)
{
    struct err e = {0};

    must(try_reshape(in, out, q, &e) == 0, &e);
}

/* Sound, and nothing to warn of. */
static void expect_sound(const char *dir)
{
    struct verify_opts o = { .threads = 2, .mem_bytes = 8 << 20 };
    struct report *r = report_new();
    struct err e = {0};

    must(verify_run(dir, &o, r, &e) == 0, &e);
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity != SEV_NOTE) {
            char *text = finding_text(report_get(r, i));

            fail_msg("%s: %s", dir, text);
        }
    report_free(r);
}

/* ---- equal trees ---- */

struct side {
    struct files *f;
    struct pt *pt;
};

struct comparison {
    struct side a, b;
    const char *file;
    const char *const *except;          /* paths that may differ; NULL ends */
    struct strbuf path;
};

static bool excepted(const struct comparison *c)
{
    for (int i = 0; c->except && c->except[i]; i++)
        if (strcmp(c->except[i], c->path.buf) == 0)
            return true;
    return false;
}

static void differ(const struct comparison *c, const char *how)
{
    fail_msg("%s: %s: %s", c->file, c->path.buf, how);
}

static void same_tensor(const struct comparison *c, const struct pt_tensor *x, const struct pt_tensor *y)
{
    size_t n = (size_t)x->n_elems * (size_t)dtype_size(x->dtype);
    struct err e = {0};
    char *p, *q;

    if (x->dtype != y->dtype || x->ndim != y->ndim || x->requires_grad != y->requires_grad || !y->contiguous ||
        memcmp(x->shape, y->shape, (size_t)x->ndim * sizeof *x->shape) != 0)
        differ(c, "tensors of another shape");
    p = xmalloc(n + 1);
    q = xmalloc(n + 1);
    must(files_read_extent(c->a.f, &(struct extent){ x->record, x->at, n }, p, &e) == 0, &e);
    must(files_read_extent(c->b.f, &(struct extent){ y->record, y->at, n }, q, &e) == 0, &e);
    if (memcmp(p, q, n) != 0)
        differ(c, "tensors of other values");
    free(p);
    free(q);
}

static void same_value(struct comparison *c, const struct pk *x, const struct pk *y);

static void same_below(struct comparison *c, const struct pk *x, const struct pk *y, const char *name)
{
    size_t len = c->path.len;

    strbuf_addf(&c->path, "%s%s", len ? "." : "", name);
    if (!x != !y)
        differ(c, "only one of them has it");
    if (x && !excepted(c))
        same_value(c, x, y);
    c->path.len = len;
    c->path.buf[len] = '\0';
}

static void same_items(struct comparison *c, const struct pk *x, const struct pk *y)
{
    if (x->n != y->n)
        differ(c, "another number of items");
    for (uint32_t i = 0; i < x->n; i++) {
        struct strbuf key = {0};

        if (x->type == PK_DICT) {
            if (x->item[2 * i]->type == PK_STR)
                strbuf_addf(&key, "%s", x->item[2 * i]->str);
            else
                pk_text(x->item[2 * i], &key);
            same_below(c, x->item[2 * i], y->item[2 * i], "(key)");
            same_below(c, x->item[2 * i + 1], y->item[2 * i + 1], key.buf);
        } else {
            strbuf_addf(&key, "%u", i);
            same_below(c, x->item[i], y->item[i], key.buf);
        }
        strbuf_free(&key);
    }
}

static void same_value(struct comparison *c, const struct pk *x, const struct pk *y)
{
    struct pt_tensor s, t;
    bool tensor = pt_tensor(c->a.pt, x, &s);

    if (x->type != y->type || tensor != pt_tensor(c->b.pt, y, &t))
        differ(c, "another type");
    if (tensor) {
        same_tensor(c, &s, &t);
        return;
    }
    switch (x->type) {
    case PK_NONE: break;
    case PK_BOOL: case PK_INT:
        if (x->i != y->i)
            differ(c, "another number");
        break;
    case PK_FLOAT:
        if (memcmp(&x->f, &y->f, sizeof x->f) != 0)
            differ(c, "another number");
        break;
    case PK_STR: case PK_BYTES: case PK_BIGINT:
        if (x->len != y->len || memcmp(x->str, y->str, x->len) != 0)
            differ(c, "another text");
        break;
    case PK_GLOBAL:
        if (strcmp(x->module, y->module) != 0 || strcmp(x->name, y->name) != 0)
            differ(c, "another class");
        break;
    case PK_LIST: case PK_TUPLE: case PK_SET: case PK_DICT:
        same_items(c, x, y);
        break;
    case PK_CALL: case PK_OBJ: case PK_PERSID:
        if (x->fn)
            same_below(c, x->fn, y->fn, "(fn)");
        same_below(c, x->args, y->args, "(args)");
        /* An object's state and an OrderedDict's pairs are what a reader sees: no step of their own. */
        if (!x->state != !y->state || !x->fill != !y->fill)
            differ(c, "another kind of object");
        if (x->state)
            same_value(c, x->state, y->state);
        if (x->fill)
            same_value(c, x->fill, y->fill);
        break;
    }
}

static struct side open_side(const char *dir, const char *name)
{
    struct side s = { .f = files_new() };
    char *path = path_join(dir, name);
    struct err e = {0};
    int file = files_add_path(s.f, path, &e);

    must(file >= 0, &e);
    s.pt = pt_open(s.f, file, &e);
    must(s.pt != NULL, &e);
    free(path);
    return s;
}

static void close_side(struct side *s)
{
    pt_close(s->pt);
    files_free(s->f);
}

static void same_file(const char *want, const char *got, const char *name, const char *const *except)
{
    struct comparison c = { .a = open_side(want, name), .b = open_side(got, name), .file = name, .except = except };

    strbuf_addf(&c.path, "%s", "");
    same_value(&c, pt_root(c.a.pt), pt_root(c.b.pt));
    strbuf_free(&c.path);
    close_side(&c.a);
    close_side(&c.b);
}

/* ---- folders ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The trainer's files of a tag folder, sorted. */
static int list(const char *dir, char ***out)
{
    DIR *d = opendir(dir);
    struct dirent *ent;
    int n = 0, cap = 0;

    assert_non_null(d);
    *out = NULL;
    while ((ent = readdir(d))) {
        if (!str_ends(ent->d_name, ".pt"))
            continue;
        ARRAY_ROOM(*out, cap, n + 1);
        (*out)[n++] = xstrdup(ent->d_name);
    }
    closedir(d);
    qsort(*out, (size_t)n, sizeof **out, by_name);
    return n;
}

static void free_list(char **names, int n)
{
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

static void same_names(const char *want, const char *got, char ***names, int *n)
{
    char **others;
    int m = list(got, &others);

    *n = list(want, names);
    for (int i = 0; i < *n && i < m; i++)
        if (strcmp((*names)[i], others[i]) != 0)
            fail_msg("%s: %s where %s is expected", got, others[i], (*names)[i]);
    if (*n != m)
        fail_msg("%s: %d files, expected %d", got, m, *n);
    free_list(others, m);
}

static bool same_bytes(const char *a, const char *b, const char *name)
{
    char *pa = path_join(a, name), *pb = path_join(b, name);
    uint64_t na, nb;
    struct err e = {0};
    char *x = file_slurp(pa, 1 << 28, &na, &e), *y = file_slurp(pb, 1 << 28, &nb, &e);
    bool same;

    must(x && y, &e);
    same = na == nb && memcmp(x, y, na) == 0;
    free(x);
    free(y);
    free(pa);
    free(pb);
    return same;
}

/* The digests of a manifest: equal text for equal tensors. Caller frees. */
static char *digests(const char *dir)
{
    char *path = path_join(dir, MANIFEST_NAME), *start, *end, *text;
    struct err e = {0};
    uint64_t n;
    char *all = file_slurp(path, 1 << 28, &n, &e);

    must(all != NULL, &e);
    start = strstr(all, "\"tensors\"");
    end = strstr(start, "\n]");
    text = str_fmt("%.*s", (int)(end - start), start);
    free(all);
    free(path);
    return text;
}

static void same_digests(const char *a, const char *b)
{
    char *x = digests(a), *y = digests(b);

    if (strcmp(x, y) != 0)
        fail_msg("digests of %s and %s differ", a, b);
    free(x);
    free(y);
}

static const char *const rng_keys[] = { "random_rng_state", "np_rng_state", "torch_rng_state", "cuda_rng_state",
                                        "rng_tracker_states", NULL };

/* ---- golden sets ---- */

static void own_topology(const char *in, const char *name)
{
    char *out = in_scratch(name), **names;
    struct ds_request q = to_topology(0, 0, 0);
    int n;

    reshape(in, out, &q);
    expect_sound(out);
    same_names(in, out, &names, &n);
    assert_true(n > 0);
    for (int i = 0; i < n; i++)
        same_file(in, out, names[i], NULL);
    free_list(names, n);
    free(out);
}

static void golden_own_topology(void **state)
{
    (void)state;
    own_topology("tests/data/bloom-tp2pp2dp2/global_step20", "bloom");
    own_topology("tests/data/gpt2-tp2pp2dp1/global_step20", "gpt2");
}

/* ---- against the generator at the target topology ---- */

/* A model that TP 8 and PP 5 can cut, a few KB a file. */
static struct ckptgen small_model(int tp, int pp, int dp)
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

static char *generate(const struct ckptgen *g, const char *name)
{
    char *dir = in_scratch(name), *tag = str_fmt("%s/global_step%d", dir, (int)g->iteration);
    struct err e = {0};

    must(dir_remove(dir, &e) == 0 || access(dir, F_OK) != 0, &e);
    err_clear(&e);
    must(ckptgen_make(g, dir, &e) == 0, &e);
    free(dir);
    return tag;
}

/* The generator's batch grows with DP, and with it what was consumed: not what a reshape changes. */
static const char *const batch_keys[] = {
    "args.global_batch_size", "args.consumed_train_samples", "args.consumed_train_tokens",
    "args.deepspeed_configuration", "lr_scheduler.num_steps", "lr_scheduler.num_tokens", "global_samples", "tokens",
    NULL,
};
/* The same, for ranks whose random states the source does not have. */
static const char *const batch_and_rng_keys[] = {
    "args.global_batch_size", "args.consumed_train_samples", "args.consumed_train_tokens",
    "args.deepspeed_configuration", "lr_scheduler.num_steps", "lr_scheduler.num_tokens", "global_samples", "tokens",
    "random_rng_state", "np_rng_state", "torch_rng_state", "cuda_rng_state", "rng_tracker_states", NULL,
};

static bool has_rank(const char *name, struct topology target, struct topology source)
{
    int mp;

    return sscanf(name, "mp_rank_%d_", &mp) != 1 || (mp / target.tp < source.pp && mp % target.tp < source.tp);
}

static void expect_like_generated(struct ckptgen a, struct ckptgen b)
{
    char *in = generate(&a, "a"), *want = generate(&b, "b"), *out = in_scratch("out"), **names;
    struct ds_request q = to_topology(b.topo.tp, b.topo.pp, b.topo.dp);
    int n;

    /* The generator deals layers out as newer versions do, whatever version it notes. */
    q.balance_given = true;
    q.balance = PIPELINE_SPREAD;
    reshape(in, out, &q);
    expect_sound(out);
    same_names(want, out, &names, &n);
    for (int i = 0; i < n; i++)
        same_file(want, out, names[i], has_rank(names[i], b.topo, a.topo) ? batch_keys : batch_and_rng_keys);
    free_list(names, n);
    free(in);
    free(want);
    free(out);
}

struct pair {
    struct topology a, b;
};

static const struct pair generated[] = {
    {{2, 2, 2}, {2, 2, 2}}, {{2, 2, 2}, {4, 1, 3}}, {{4, 1, 3}, {1, 3, 2}}, {{1, 1, 1}, {8, 5, 1}},
    {{8, 1, 2}, {2, 4, 3}}, {{1, 3, 12}, {4, 2, 7}}, {{2, 5, 1}, {1, 1, 11}}, {{4, 3, 2}, {8, 2, 5}},
};

static void like_generated(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof generated / sizeof *generated; i++)
        expect_like_generated(small_model(generated[i].a.tp, generated[i].a.pp, generated[i].a.dp),
                              small_model(generated[i].b.tp, generated[i].b.pp, generated[i].b.dp));
}

/* Every convention a set can have is carried along. */
static void like_generated_variants(void **state)
{
    (void)state;
    for (int v = 0; v < 9; v++) {
        struct ckptgen a = small_model(2, 2, 3), b = small_model(4, 3, 2);

        for (int k = 0; k < 2; k++) {
            struct ckptgen *g = k ? &b : &a;

            g->lnum = v == 0 ? CKPTGEN_LNUM_OLD : v == 1 ? CKPTGEN_LNUM_MSMD : CKPTGEN_LNUM_NEW;
            g->n_groups = v == 2 ? 2 : 3;
            g->step = v == 3 ? CKPTGEN_STEP_INT : v == 4 ? CKPTGEN_STEP_GROUP : CKPTGEN_STEP_TENSOR;
            g->no_mappings = v == 5;
            g->zero1 = v == 6;
            g->partition = v == 7 ? "type:transformer" : "type:transformer|embedding";
            g->absolute_positions = v == 8;
            g->embed_layernorm = v != 8;
        }
        expect_like_generated(a, b);
    }
}

/* ---- there and back ---- */

/* A0 -> B -> A0': the same bytes, but for random states of ranks that B did not have. */
static void there_and_back(const char *a0, struct topology a, struct topology b)
{
    char *there = in_scratch("there"), *back = in_scratch("back"), **names;
    struct ds_request q = to_topology(b.tp, b.pp, b.dp), r = to_topology(a.tp, a.pp, a.dp);
    int n;

    reshape(a0, there, &q);
    reshape(there, back, &r);
    same_digests(a0, there);
    same_digests(a0, back);
    same_names(a0, back, &names, &n);
    for (int i = 0; i < n; i++) {
        if (!has_rank(names[i], a, b))
            same_file(a0, back, names[i], rng_keys);
        else if (!same_bytes(a0, back, names[i]))
            fail_msg("TP %d PP %d DP %d -> TP %d PP %d DP %d and back: %s differs", a.tp, a.pp, a.dp, b.tp, b.pp, b.dp,
                     names[i]);
    }
    free_list(names, n);
    free(there);
    free(back);
}

static void grid(void **state)
{
    static const struct topology from[] = { {2, 2, 2}, {1, 3, 5}, {4, 1, 1}, {8, 2, 1}, {1, 1, 12}, {2, 5, 3} };
    static const struct topology to[] = {
        {1, 1, 1}, {2, 1, 3}, {4, 1, 2}, {8, 1, 1}, {1, 2, 7}, {2, 2, 2}, {4, 3, 1}, {1, 4, 2}, {2, 5, 1}, {8, 2, 2},
        {1, 1, 11},
    };

    (void)state;
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        struct ckptgen g = small_model(from[i].tp, from[i].pp, from[i].dp);
        char *in = generate(&g, "a"), *a0 = in_scratch("a0");
        struct ds_request q = to_topology(0, 0, 0);

        reshape(in, a0, &q);
        for (size_t k = 0; k < sizeof to / sizeof *to; k++)
            there_and_back(a0, from[i], to[k]);
        free(in);
        free(a0);
    }
}

/* Tensor degrees of which neither divides the other: groups of columns, and rows that partitions cut. */
static void uneven_tensor_ranks(void **state)
{
    static const struct topology from[] = { {4, 2, 1}, {3, 1, 5}, {1, 2, 7} };
    /* DP 61 and 97: partitions that end inside a row which another began. */
    static const struct topology to[] = { {6, 1, 61}, {4, 2, 3}, {2, 1, 97}, {12, 1, 2}, {3, 2, 1} };

    (void)state;
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        struct ckptgen g = small_model(from[i].tp, from[i].pp, from[i].dp);
        char *in, *a0 = in_scratch("a0");
        struct ds_request q = to_topology(0, 0, 0);

        g.hidden = 24;
        g.n_heads = 12;
        g.n_layers = 3;
        in = generate(&g, "a");
        reshape(in, a0, &q);
        expect_sound(a0);
        for (size_t k = 0; k < sizeof to / sizeof *to; k++)
            there_and_back(a0, from[i], to[k]);
        free(in);
        free(a0);
    }
}

static void golden_there_and_back(void **state)
{
    char *a0 = in_scratch("bloom");

    (void)state;
    there_and_back(a0, (struct topology){ 2, 2, 2 }, (struct topology){ 4, 3, 3 });
    there_and_back(a0, (struct topology){ 2, 2, 2 }, (struct topology){ 1, 1, 1 });
    free(a0);
    a0 = in_scratch("gpt2");
    there_and_back(a0, (struct topology){ 2, 2, 1 }, (struct topology){ 4, 4, 2 });
    there_and_back(a0, (struct topology){ 2, 2, 1 }, (struct topology){ 1, 2, 5 });
    free(a0);
}

/* ---- from universal forms ---- */

static void to_universal(const char *in, const char *out, struct sink *(*open_sink)(const struct sink_opts *))
{
    struct err e = {0};
    struct source *s = source_open(in, &(struct source_opts){0}, NULL, &e);
    struct sink_opts ko = { .replicas = REPLICAS_FAIL, .final_path = out, .n_parts = 1, .threads = 2 };
    struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 2, .mem_bytes = 8 << 20,
                              .progress = PROGRESS_NEVER, .force = true };
    struct convert_result res;

    must(s != NULL, &e);
    must(convert_run(s, open_sink(&ko), &o, &res, &e) == 0, &e);
    source_close(s);
}

/*
 * The weights of a sound set are its masters rounded, so even the layer files come out the
 * same. The last stage's position table is not in these forms, hence bloom.
 */
static void from_universal(void **state)
{
    struct sink *(*const forms[])(const struct sink_opts *) = { universal_pt_sink, universal_hdf5_sink,
                                                                universal_virtual_sink };
    struct ckptgen g = small_model(2, 2, 3);
    char *in = generate(&g, "a"), *want = in_scratch("want"), *mid = in_scratch("mid"), *out = in_scratch("out");
    struct ds_request q = to_topology(4, 3, 2);

    (void)state;
    reshape(in, want, &q);
    for (int i = 0; i < 3; i++) {
        char **names;
        int n;

        to_universal(in, mid, forms[i]);
        reshape(mid, out, &q);
        expect_sound(out);
        same_digests(want, out);
        same_names(want, out, &names, &n);
        for (int k = 0; k < n; k++)
            if (!same_bytes(want, out, names[k]))
                fail_msg("from universal form %d: %s differs", i, names[k]);
        free_list(names, n);
    }
    free(in);
    free(want);
    free(mid);
    free(out);
}

static struct source *open_source(const char *dir)
{
    struct err e = {0};
    struct source *s = source_open(dir, &(struct source_opts){0}, NULL, &e);

    must(s != NULL, &e);
    return s;
}

/* The reference's own converter keeps neither step nor settings: made up, and the tensors are the same. */
static void from_reference_universal(void **state)
{
    char *a0 = in_scratch("bloom"), *out = in_scratch("out"), **names;
    struct ds_request q = to_topology(0, 0, 0);
    struct source *s;
    int n;

    (void)state;
    reshape("tests/data/bloom-tp2pp2dp2/global_step20_universal", out, &q);
    expect_sound(out);
    same_digests(a0, out);
    same_names(a0, out, &names, &n);
    for (int i = 0; i < n; i++)
        if (!strstr(names[i], "zero") && !same_bytes(a0, out, names[i]))
            fail_msg("%s differs", names[i]);
    free_list(names, n);
    s = open_source(out);
    assert_int_equal(s->run.opt_step, 21);
    assert_int_equal(s->run.step_is_tensor, 1);
    source_close(s);
    free(a0);
    free(out);
}

/* ---- what else can be changed ---- */

static int64_t value(const char *dir, const char *file, const char *a, const char *b)
{
    struct side s = open_side(dir, file);
    const struct pk *v = pk_get(pt_root(s.pt), a);
    int64_t i = INT64_MIN;

    pk_as_int(b ? pk_get(v, b) : v, &i);
    close_side(&s);
    return i;
}

static void vocabulary(void **state)
{
    struct ckptgen g = small_model(2, 2, 2);
    char *in = generate(&g, "a"), *out = in_scratch("out"), *back = in_scratch("back");
    struct ds_request q = to_topology(4, 1, 3), r = to_topology(2, 2, 2);
    const char *name = "tied_modules.embed.word_embeddings.weight";
    struct source *s, *t;
    struct err e = {0};
    float *x, *y;

    (void)state;
    q.vocab = 80;
    reshape(in, out, &q);
    expect_sound(out);
    assert_int_equal(value(out, "mp_rank_03_model_states.pt", "args", "padded_vocab_size"), 80);
    s = open_source(in);
    t = open_source(out);
    assert_int_equal(source_param(t, name)->shape[0], 80);
    for (int st = STATE_FP32; st < STATE_N; st++) {
        x = xcalloc(80 * 16, sizeof *x);
        y = xcalloc(80 * 16, sizeof *y);
        must(tmap_read(source_param(s, name)->state[st], s->files, 0, 0, 48 * 16 * 4, x, &e) == 0, &e);
        must(tmap_read(source_param(t, name)->state[st], t->files, 0, 0, 80 * 16 * 4, y, &e) == 0, &e);
        assert_memory_equal(x, y, 80 * 16 * sizeof *x);         /* x ends in zeros */
        free(x);
        free(y);
    }
    source_close(s);
    source_close(t);
    r.vocab = 48;
    reshape(out, back, &r);
    q = to_topology(0, 0, 0);
    reshape(in, out, &q);
    same_digests(out, back);
    free(in);
    free(out);
    free(back);
}

static void conventions(void **state)
{
    struct ckptgen a = small_model(2, 2, 2), b = a;
    char *in, *like, *out = in_scratch("out"), **names;
    struct ds_request q = to_topology(0, 0, 0);
    int n;

    (void)state;
    b.lnum = CKPTGEN_LNUM_OLD;
    b.n_groups = 2;
    b.partition = "type:transformer";
    in = generate(&a, "a");
    like = generate(&b, "b");
    q.like = source_open(like, &(struct source_opts){ .no_tensors = true }, NULL, &(struct err){0});
    assert_non_null(q.like);
    reshape(in, out, &q);
    expect_sound(out);
    /* Values follow names, so weights of renumbered layers differ: names and shapes are compared. */
    same_names(like, out, &names, &n);
    for (int i = 0; i < n; i++)
        if (str_starts(names[i], "mp_rank_"))
            same_file(like, out, names[i], NULL);
    free_list(names, n);
    source_close((struct source *)q.like);

    q = to_topology(0, 3, 0);
    q.stages = (const int[]){ 1, 6, 1 };
    q.n_stages = 3;
    reshape(in, out, &q);
    expect_sound(out);
    free(in);
    free(like);
    free(out);
}

static void surgery(void **state)
{
    struct ckptgen g = small_model(2, 2, 2);
    char *in = generate(&g, "a"), *out = in_scratch("out");
    struct ds_request q = to_topology(1, 1, 1);
    const char *sets[] = { "args.train_iters=77", "lr_scheduler.max_lr=0.5" };
    struct source *s;
    float v[48];
    struct err e = {0};

    (void)state;
    q.zero_moments = true;
    q.step = 5;
    reshape(in, out, &q);
    expect_sound(out);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "iteration", NULL), 5);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "global_steps", NULL), 5);
    s = open_source(out);
    assert_int_equal(s->run.opt_step, 0);
    must(tmap_read(source_param(s, "3.self_attention.query_key_value.bias")->state[STATE_EXP_AVG], s->files, 0, 0,
                   sizeof v, v, &e) == 0, &e);
    for (int i = 0; i < 48; i++)
        assert_true(v[i] == 0);
    source_close(s);

    q = to_topology(1, 1, 1);
    q.step = 30;
    q.set = sets;
    q.n_set = 2;
    assert_int_equal(try_reshape(in, out, &q, &e), -1);
    assert_string_equal(e.msg, "--set args.train_iters=77: expected KEY=VALUE with a KEY of mp_rank_00 as ckpt-inspect "
                        "args prints it");
    err_clear(&e);
    sets[0] = "args.seed=77";
    reshape(in, out, &q);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "args", "seed"), 77);
    s = open_source(out);
    assert_int_equal(s->run.opt_step, 31);
    source_close(s);

    q = to_topology(4, 1, 1);
    q.no_optimizer = true;
    reshape(in, out, &q);
    s = source_open(out, &(struct source_opts){ .no_optimizer = true }, NULL, &e);
    must(s != NULL, &e);
    assert_int_equal(s->n_files, 4 * 11 + 1);
    source_close(s);
    free(in);
    free(out);
}

/* ---- what cannot be ---- */

static void expect_refused(const char *in, struct ds_request q, enum err_kind kind, const char *want)
{
    char *out = in_scratch("refused");
    struct err e = {0};

    assert_int_equal(try_reshape(in, out, &q, &e), -1);
    assert_string_equal(e.msg, want);
    assert_int_equal(e.kind, kind);
    assert_int_not_equal(access(out, F_OK), 0);
    free(out);
}

static void refusals(void **state)
{
    struct ckptgen g = small_model(2, 2, 2);
    char *in = generate(&g, "a");
    struct ds_request q = to_topology(3, 0, 0);

    (void)state;
    expect_refused(in, q, ERR_USAGE, "8 heads cannot be split over TP 3");
    q = to_topology(0, 9, 0);
    expect_refused(in, q, ERR_USAGE, "8 layers cannot fill 9 pipeline stages");
    q = to_topology(0, 0, 0);
    q.vocab = 49;
    expect_refused(in, q, ERR_USAGE, "padded vocabulary 49 is not divisible by TP 2");
    q.vocab = 32;
    expect_refused(in, q, ERR_USAGE, "a padded vocabulary of 32 rows cannot hold 33 tokens");
    q = to_topology(0, 0, 0);
    q.stages = (const int[]){ 3, 2 };
    q.n_stages = 2;
    expect_refused(in, q, ERR_USAGE, "the stages given hold 5 layers, the model has 8");
    q = to_topology(0, 0, 0);
    q.method = "uniform";
    q.topo.pp = 4;
    expect_refused(in, q, ERR_USAGE, "stage 3 would have 0 layers and no parameter in optimizer group 0");
    q.method = "profile";
    expect_refused(in, q, ERR_USAGE, "partition method 'profile' is not supported: expected type:transformer, "
                   "type:transformer|embedding, parameters or uniform");
    q = to_topology(0, 3, 0);
    q.stages = (const int[]){ 4, 0, 4 };
    q.n_stages = 3;
    expect_refused(in, q, ERR_USAGE, "stage 1 would have 0 layers and no parameter in optimizer group 0");
    /* DeepSpeed's own cut would leave the last stage nothing but the tied head. */
    q = to_topology(0, 6, 0);
    q.method = "type:transformer|embedding";
    expect_refused(in, q, ERR_USAGE, "'type:transformer|embedding' cuts 8 layers over 6 stages so that the embedding "
                   "or the final LayerNorm is not on the stage that holds its tied copy; give the layers of each stage");
    free(in);
}

/* Write a file again with another tree. */
static void rewrite(const char *dir, const char *name, void (*edit)(struct arena *a, struct pk *root))
{
    struct side s = open_side(dir, name);
    struct arena *a = arena_new(0);
    struct pk *root = pk_copy(a, pt_root(s.pt));
    char *path = path_join(dir, name), *prefix = str_fmt("%.*s", (int)strlen(name) - 3, name);
    uint8_t *bytes;
    uint64_t size;
    struct err e = {0};

    edit(a, root);
    must(pt_build(prefix, root, s.pt, s.f, &bytes, &size, &e) == 0, &e);
    must(file_replace(path, bytes, size, &e) == 0, &e);
    free(bytes);
    free(path);
    free(prefix);
    arena_free(a);
    close_side(&s);
}

/* ZeRO-1 with elastic_checkpoint: a list of states, and the step beside it. */
static void make_elastic(struct arena *a, struct pk *root)
{
    struct pk *opt = pk_get(root, "optimizer_state_dict"), *list = pk_list(a);
    uint32_t n;
    struct pk **pair = pk_pairs(pk_get(pk_get(opt, "base_optimizer_state"), "state"), &n);

    for (uint32_t i = 0; i < n; i++) {
        pk_remove(pair[2 * i + 1], "step");
        pk_add(a, list, pair[2 * i + 1]);
    }
    pk_set_str(a, opt, "base_optimizer_state", list);
    pk_set_str(a, opt, "base_optimizer_state_step", pk_int(a, 21));
}

static void elastic_zero(void **state)
{
    struct ckptgen g = small_model(1, 1, 2);
    struct ds_request q = to_topology(1, 1, 1);
    char *in, *mid = in_scratch("mid"), *out = in_scratch("out"), *want = in_scratch("want"), *msg, **names;
    int n;

    (void)state;
    g.zero1 = true;
    in = generate(&g, "a");
    reshape(in, want, &q);
    n = list(in, &names);
    for (int i = 0; i < n; i++)
        if (strstr(names[i], "zero"))
            rewrite(in, names[i], make_elastic);
    free_list(names, n);
    msg = str_fmt("%s/zero_pp_rank_0_mp_rank_00_optim_states.pt: elastic ZeRO shards (elastic_checkpoint) cannot be written "
                  "again; ds2universal reads them, and what it makes can be reshaped", in);
    expect_refused(in, q, ERR_DATA, msg);
    /* And so it is. */
    to_universal(in, mid, universal_pt_sink);
    reshape(mid, out, &q);
    expect_sound(out);
    same_digests(want, out);
    free(msg);
    free(in);
    free(mid);
    free(out);
    free(want);
}

/* As Microsoft's fork lists them with --untie-embeddings-and-output-weights. */
static void untie(struct arena *a, struct pk *root)
{
    struct pk *group = pk_items(pk_get(root, "param_shapes"), &(uint32_t){0})[0];
    uint32_t n;
    struct pk **pair = pk_pairs(group, &n);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(pk_as_str(pair[2 * i]), "tied_modules.embed.word_embeddings.weight") == 0)
            pair[2 * i] = pk_str(a, "1.word_embeddings.weight");
}

static void untied_embeddings(void **state)
{
    struct ckptgen g = small_model(1, 1, 1);
    struct ds_request q = to_topology(2, 1, 1);
    char *in, *msg;

    (void)state;
    g.no_mappings = true;
    in = generate(&g, "a");
    rewrite(in, "mp_rank_00_model_states.pt", untie);
    msg = str_fmt("%s: parameter 1.word_embeddings.weight: embedding and output head are untied; only tied ones can be "
                  "resharded", in);
    expect_refused(in, q, ERR_DATA, msg);
    free(msg);
    free(in);
}

static void drifted_replicas(void **state)
{
    struct ckptgen g = small_model(2, 2, 2);
    struct err e = {0};
    struct ds_request q = to_topology(4, 1, 1);
    char *in, *out = in_scratch("out2");

    (void)state;
    assert_int_equal(ckptgen_add_drift(&g, "4.input_layernorm.weight:exp_avg:1"), 0);
    in = generate(&g, "a");
    assert_int_equal(try_reshape(in, out, &q, &e), -1);
    assert_int_equal(e.kind, ERR_DATA);
    assert_non_null(strstr(e.msg, "4.input_layernorm.weight: 1 of 16 elements differ between the 2 tensor-parallel"));
    assert_int_not_equal(access(out, F_OK), 0);
    free(in);
    free(out);
}

static int make_scratch(void **state)
{
    (void)state;
    /* Many small sets, and a sync for each: a disk gains the tests nothing. */
    snprintf(scratch, sizeof scratch, "%s/shardkit-reshape-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
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
        cmocka_unit_test(golden_own_topology), cmocka_unit_test(golden_there_and_back),
        cmocka_unit_test(like_generated), cmocka_unit_test(like_generated_variants), cmocka_unit_test(grid),
        cmocka_unit_test(uneven_tensor_ranks), cmocka_unit_test(elastic_zero), cmocka_unit_test(untied_embeddings),
        cmocka_unit_test(from_universal), cmocka_unit_test(from_reference_universal),
        cmocka_unit_test(vocabulary), cmocka_unit_test(conventions),
        cmocka_unit_test(surgery), cmocka_unit_test(refusals), cmocka_unit_test(drifted_replicas),
    };

    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
