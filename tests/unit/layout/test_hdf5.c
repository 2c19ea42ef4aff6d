/*
 * test_hdf5.c - index.h5 in its three forms: written, read back, damaged
 *
 * The set is small and awkward. It has two tensor ranks whose flat buffers are divided between two files each, so
 * that slices span files; every merge rule; a 3-dimensional row-parallel weight; one replicated parameter whose
 * copies differ; and padded vocabulary rows.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/crc.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/hdf5.h"
#include "libcommon/format/zip.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/model/config.h"
#include "libcommon/plan/executor.h"
#include "libcommon/write/sink.h"

enum { TP = 2, DP = 2, ROWS_KEPT = 7 };

struct spec {
    const char *name;
    enum merge_rule merge;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
};
static const struct spec specs[] = {
    { "tied_modules.embed.word_embeddings.weight", MERGE_VOCAB, 2, { 10, 6 } },
    { "3.input_layernorm.weight", MERGE_REPLICATED, 1, { 6 } },
    { "3.mlp.dense_4h_to_h.weight", MERGE_CAT1, 2, { 6, 10 } },
    { "3.mlp.dense_h_to_4h.weight", MERGE_CAT0, 2, { 1200, 4 } },
    { "3.odd.weight", MERGE_CAT1, 3, { 3, 4, 5 } },
    { "3.post_attention_layernorm.weight", MERGE_REPLICATED, 1, { 6 } },
    { "3.self_attention.query_key_value.weight", MERGE_CAT0, 2, { 8, 6 } },
    { "8.weight", MERGE_REPLICATED, 1, { 6 } },
};
enum { N = sizeof specs / sizeof *specs, DRIFTED = 5 };

static int64_t elems(const struct spec *p)
{
    int64_t n = 1;

    for (int i = 0; i < p->ndim; i++)
        n *= p->shape[i];
    return n;
}

/* Exact in fp32, different for every parameter, state and place. */
static float value(int param, enum state st, int64_t i)
{
    return (float)(param * 40000 + (int)st * 10000 + i) * 0.25f;
}

/* ---- the input ---- */

struct input {
    char *dir;                          /* scratch; shards in dir/in */
    struct source s;
    int record[TP][DP][STATE_N];
};

static int64_t slice_elems(const struct spec *p)
{
    return p->merge == MERGE_REPLICATED ? elems(p) : elems(p) / TP;
}

/* Element i of tensor rank tp's slice. */
static float slice_value(int param, enum state st, int tp, int64_t i)
{
    const struct spec *p = &specs[param];
    int64_t below = 1, row, part;

    if (p->merge == MERGE_REPLICATED)
        return value(param, st, i) + (param == DRIFTED && tp == 1 && i == 2 ? 1.0f : 0.0f);
    if (p->merge != MERGE_CAT1)
        return value(param, st, tp * slice_elems(p) + i);
    for (int d = 2; d < p->ndim; d++)
        below *= p->shape[d];
    row = p->shape[1] * below;
    part = row / TP;
    return value(param, st, i / part * row + tp * part + i % part);
}

static float *flat_of(enum state st, int tp, int64_t *n)
{
    float *flat = xcalloc(100000, sizeof *flat);

    *n = 0;
    for (int p = 0; p < N; p++)
        for (int64_t i = 0; i < slice_elems(&specs[p]); i++)
            flat[(*n)++] = slice_value(p, st, tp, i);
    *n += *n % DP;
    return flat;
}

static char *shard_name(const struct input *in, int tp, int dp)
{
    return str_fmt("%s/in/shard_%d_%d.pt", in->dir, tp, dp);
}

static void write_file(const char *path, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    assert_true(fd >= 0);
    assert_int_equal(write_all_at(fd, p, n, 0), 0);
    close(fd);
}

/* A zip of three records: one storage a state. */
static void write_shard(struct input *in, int tp, int dp)
{
    static const char *const names[] = { "archive/data/0", "archive/data/1", "archive/data/2" };
    struct zip_out rec[TRAINED_STATES] = {0};
    float *flat[TRAINED_STATES];
    const struct zip_run *run;
    struct zip_layout *l;
    char *path = shard_name(in, tp, dp);
    int n_runs, file, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int64_t n;
    struct err e = {0};

    for (int j = 0; j < TRAINED_STATES; j++) {
        flat[j] = flat_of(trained_states[j], tp, &n);
        rec[j] = (struct zip_out){ names[j], (uint64_t)(n / DP) * 4, 0, 0 };
        rec[j].crc = crc_bytes(0, flat[j] + dp * (n / DP), rec[j].size);
    }
    l = zip_layout_new(rec, TRAINED_STATES);
    n_runs = zip_layout_runs(l, &run);
    for (int i = 0; i < n_runs; i++)
        assert_int_equal(write_all_at(fd, run[i].bytes, run[i].len, run[i].at), 0);
    for (int j = 0; j < TRAINED_STATES; j++)
        assert_int_equal(write_all_at(fd, flat[j] + dp * (n / DP), rec[j].size, rec[j].at), 0);
    close(fd);
    file = files_add_path(in->s.files, path, &e);
    assert_true(file >= 0);
    for (int j = 0; j < TRAINED_STATES; j++) {
        in->record[tp][dp][trained_states[j]] =
            files_add_record(in->s.files, &(struct record){ .file = file, .at = rec[j].at, .len = rec[j].size,
                                                            .has_crc = true, .crc = rec[j].crc, .name = names[j] });
        free(flat[j]);
    }
    zip_layout_free(l);
    free(path);
}

/* Where flat elements [first, first+n) of a rank lie. */
static void fill_slice(struct input *in, struct tmap_slice *sl, enum state st, int tp, int64_t first, int64_t n,
                       int64_t partition)
{
    sl->len = (uint64_t)n * 4;
    sl->extent = arena_alloc(in->s.arena, DP * sizeof *sl->extent);
    for (int dp = 0; dp < DP; dp++) {
        int64_t a = first > dp * partition ? first : dp * partition;
        int64_t b = first + n < (dp + 1) * partition ? first + n : (dp + 1) * partition;

        if (a < b)
            sl->extent[sl->n_extents++] = (struct extent){
                in->record[tp][dp][st], (uint64_t)(a - dp * partition) * 4, (uint64_t)(b - a) * 4
            };
    }
}

static struct tmap *make_map(struct input *in, int param, enum state st, int64_t first, int64_t partition)
{
    const struct spec *p = &specs[param];
    struct tmap *m = arena_alloc(in->s.arena, sizeof *m);

    m->op = p->merge == MERGE_REPLICATED ? TMAP_REPLICAS : p->merge == MERGE_CAT1 ? TMAP_INTERLEAVE : TMAP_CONCAT;
    m->dtype = DTYPE_F32;
    m->len = (uint64_t)elems(p) * 4;
    m->row = m->op == TMAP_INTERLEAVE ? m->len / (uint64_t)p->shape[0] : 0;
    m->n_slices = TP;
    m->slice = arena_alloc(in->s.arena, TP * sizeof *m->slice);
    for (int tp = 0; tp < TP; tp++) {
        fill_slice(in, &m->slice[tp], st, tp, first, slice_elems(p), partition);
        m->slice[tp].row_part = m->row / TP;
    }
    return m;
}

static void make_params(struct input *in)
{
    int64_t n, first = 0;

    free(flat_of(STATE_FP32, 0, &n));
    in->s.n_params = N;
    in->s.param = arena_alloc(in->s.arena, N * sizeof *in->s.param);
    for (int i = 0; i < N; i++) {
        struct param *p = &in->s.param[i];

        *p = (struct param){ .name = specs[i].name, .ndim = specs[i].ndim, .merge = specs[i].merge,
                             .stage = i % 2, .group = -1 };
        memcpy(p->shape, specs[i].shape, sizeof p->shape);
        for (int j = 0; j < TRAINED_STATES; j++)
            p->state[trained_states[j]] = make_map(in, i, trained_states[j], first, n / DP);
        first += slice_elems(&specs[i]);
    }
}

static char *scratch(void)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = str_fmt("%s/test_hdf5.XXXXXX", tmp ? tmp : "/tmp");

    assert_non_null(mkdtemp(dir));
    return dir;
}

static struct input *input_new(void)
{
    struct input *in = xcalloc(1, sizeof *in);
    char *path;

    in->dir = scratch();
    path = path_join(in->dir, "in");
    assert_int_equal(mkdir(path, 0777), 0);
    in->s = (struct source){ .layout = &deepspeed_layout, .path = path, .tag = "in", .files = files_new(),
                             .arena = arena_new(0), .topo = { TP, 1, DP } };
    in->s.config = (struct model_config){ .n_layers = 1, .hidden = 6, .vocab = 10, .vocab_tokens = ROWS_KEPT,
                                          .position = "alibi" };
    in->s.run = (struct run_state){ .iteration = 20,
                                    .consumed_samples = 160,
                                    .consumed_tokens = -1,
                                    .checkpoint_version = 3.0,
                                    .ds_version = "0.12.6",
                                    .opt_step = 21,
                                    .step_in_state = true };
    for (int tp = 0; tp < TP; tp++)
        for (int dp = 0; dp < DP; dp++)
            write_shard(in, tp, dp);
    make_params(in);
    return in;
}

static void input_free(struct input *in)
{
    struct err e = {0};

    assert_int_equal(dir_remove(in->dir, &e), 0);
    files_free(in->s.files);
    arena_free(in->s.arena);
    free(in->s.path);
    free(in->dir);
    free(in);
}

/* ---- conversion ---- */

static int sink_item_done(void *ctx, struct plan_item *it, struct err *e)
{
    struct sink *k = ctx;

    return it->user ? k->ops->item_done(k, it, e) : 0;
}

/* The driver's steps, into a folder that is then renamed. */
static int convert_to(struct input *in, struct sink *k, const char *name, struct err *e)
{
    char *out = path_join(in->dir, name), *part = str_fmt("%s.part", out);
    struct plan *p = plan_new(in->s.files);
    struct exec_opts x = { .threads = 2, .mem_bytes = 8 << 20, .item_done = sink_item_done, .ctx = k };
    struct exec_stats st;
    int rc = -1;

    assert_int_equal(dir_make(part, e), 0);
    if (k->ops->prepare(k, &in->s, part, p, e) < 0)
        goto out;
    plan_close(p);
    if (exec_run(p, &x, &st, e) < 0 || k->ops->finish(k, p, e) < 0)
        goto out;
    assert_int_equal(rename(part, out), 0);
    rc = 0;
out:
    plan_free(p);
    k->ops->close(k);
    free(part);
    free(out);
    return rc;
}

static const struct sink_opts plain = { .replicas = REPLICAS_AVERAGE, .n_parts = 1, .threads = 2,
                                        .final_path = "out" };

static void convert(struct input *in, struct sink *k, const char *name)
{
    struct err e = {0};

    if (convert_to(in, k, name, &e) < 0)
        fail_msg("%s: %s", name, e.msg);
}

/* ---- reading back ---- */

static void list(struct source *s, struct source_listing *l, const char *name)
{
    struct err e = {0};
    char *path = path_join(s->path, name);
    struct stat st;

    if (stat(path, &st) == 0) {
        l->member = xrealloc(l->member, (size_t)(l->n + 1) * sizeof *l->member);
        l->member[l->n++] = (struct archive_member){ xstrdup(name), files_add_path(s->files, path, &e) };
    }
    free(path);
}

/* What source_open() would do, without its other layouts. */
static struct source *open_result(const char *path, struct report *r, struct err *e)
{
    struct source *s = xcalloc(1, sizeof *s);
    struct source_listing l = {0};
    struct source_opts o = {0};

    s->arena = arena_new(0);
    s->files = files_new();
    s->path = arena_fmt(s->arena, "%s", path);
    s->tag = "out";
    list(s, &l, "index.h5");
    for (int i = 0; i < N; i++) {
        char *name = str_fmt("zero/%s.h5", specs[i].name);

        list(s, &l, name);
        free(name);
    }
    if (universal_hdf5_source_open(s, &l, &o, r, e) < 0) {
        source_close(s);
        s = NULL;
    }
    for (int i = 0; i < l.n; i++)
        free(l.member[i].name);
    free(l.member);
    return s;
}

static float expected(int param, enum state st, int64_t i, enum replica_policy policy)
{
    float v = value(param, st, i);

    return param == DRIFTED && i == 2 && policy == REPLICAS_AVERAGE ? v + 0.5f : v;
}

/* True when every tensor of an opened result has the right bytes. */
static bool values_right(const struct source *s, int64_t rows, enum replica_policy policy)
{
    for (int i = 0; i < N; i++)
        for (int j = 0; j < TRAINED_STATES; j++) {
            enum state st = trained_states[j];
            const struct param *p = source_param(s, specs[i].name);
            int64_t n = i == 0 ? rows * 6 : elems(&specs[i]);
            static float got[10000];
            struct err e = {0};

            if (!p || !p->state[st] || p->state[st]->len != (uint64_t)n * 4 ||
                tmap_read(p->state[st], s->files, (struct tmap_range){ 0, 0, (uint64_t)n * 4 }, got, &e) < 0)
                return false;
            for (int64_t k = 0; k < n; k++)
                if (!(got[k] == expected(i, st, k, policy)))
                    return false;
        }
    return true;
}

static void check_tables(const struct source *s, int64_t rows)
{
    assert_int_equal(s->n_params, N);
    for (int i = 0; i < N; i++) {
        const struct param *p = &s->param[i];

        assert_string_equal(p->name, specs[i].name);
        assert_int_equal(p->ndim, specs[i].ndim);
        assert_int_equal(p->merge, specs[i].merge);
        assert_int_equal(p->stage, i % 2);
        assert_int_equal(p->group, -1);
        assert_int_equal(p->shape[0], i == 0 ? rows : specs[i].shape[0]);
    }
    assert_int_equal(s->run.iteration, 20);
    assert_int_equal(s->run.consumed_tokens, -1);
    assert_int_equal(s->run.opt_step, 21);
    assert_true(s->run.step_in_state);
    assert_string_equal(s->run.ds_version, "0.12.6");
    assert_int_equal(s->topo.dp, DP);
    assert_int_equal(s->config.vocab_tokens, ROWS_KEPT);
    assert_string_equal(s->config.position, "alibi");
}

static void check_result(const struct input *in, const char *name, int64_t rows, enum replica_policy policy,
                         const struct layout *layout)
{
    char *path = path_join(in->dir, name);
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = open_result(path, r, &e);

    if (!s)
        fail_msg("%s: %s", name, e.msg);
    if (report_n(r) > 0)
        fail_msg("%s: %s", name, report_get(r, 0)->text);
    assert_ptr_equal(s->layout, layout);
    check_tables(s, rows);
    assert_true(values_right(s, rows, policy));
    source_close(s);
    report_free(r);
    free(path);
}

/* ---- tests ---- */

static void test_forms(void **state)
{
    struct input *in = input_new();
    struct sink_opts o = plain;

    (void)state;
    convert(in, universal_hdf5_sink(&o), "real");
    check_result(in, "real", 10, REPLICAS_AVERAGE, &universal_hdf5_layout);
    convert(in, universal_virtual_sink(&o), "virtual");
    check_result(in, "virtual", 10, REPLICAS_AVERAGE, &universal_virtual_layout);
    o.split = true;
    convert(in, universal_hdf5_sink(&o), "split");
    check_result(in, "split", 10, REPLICAS_AVERAGE, &universal_hdf5_layout);
    o = plain;
    o.vocab = VOCAB_STRIP;
    convert(in, universal_hdf5_sink(&o), "real-strip");
    check_result(in, "real-strip", ROWS_KEPT, REPLICAS_AVERAGE, &universal_hdf5_layout);
    convert(in, universal_virtual_sink(&o), "virtual-strip");
    check_result(in, "virtual-strip", ROWS_KEPT, REPLICAS_AVERAGE, &universal_virtual_layout);
    input_free(in);
}

static void test_replicas(void **state)
{
    struct input *in = input_new();
    struct sink_opts o = plain;
    struct err e = {0};
    char *shard = shard_name(in, 1, 0);
    struct record rec = *files_record(in->s.files, in->record[1][0][STATE_FP32]);
    int fd;

    (void)state;
    o.replicas = REPLICAS_FIRST;
    convert(in, universal_virtual_sink(&o), "first");
    check_result(in, "first", 10, REPLICAS_FIRST, &universal_virtual_layout);
    o.replicas = REPLICAS_MAJORITY;
    convert(in, universal_virtual_sink(&o), "majority");
    check_result(in, "majority", 10, REPLICAS_FIRST, &universal_virtual_layout);
    o.replicas = REPLICAS_FAIL;
    assert_int_equal(convert_to(in, universal_virtual_sink(&o), "fail", &e), -1);
    assert_non_null(strstr(e.msg, "parameter '3.post_attention_layernorm.weight': 1 elements of "));

    /* A copy that differs because it is damaged is never averaged in: find 3.input_layernorm's first element. */
    fd = open(shard, O_RDWR);
    assert_int_equal(write_all_at(fd, "\x5a", 1, rec.at + 30 * 4 + 1), 0);
    close(fd);
    err_clear(&e);
    o.replicas = REPLICAS_AVERAGE;
    assert_int_equal(convert_to(in, universal_virtual_sink(&o), "damaged", &e), -1);
    assert_non_null(strstr(e.msg, "record archive/data/0 is corrupt"));
    free(shard);
    input_free(in);
}

/* Places are aligned, and do not depend on who asks: a resumed run, or another process. */
static void test_places(void **state)
{
    struct input *in = input_new();
    struct err e = {0};
    char *dir = path_join(in->dir, "parts.part");
    struct plan *p[3];
    struct sink *k[3];

    (void)state;
    assert_int_equal(dir_make(dir, &e), 0);
    for (int i = 0; i < 3; i++) {
        struct sink_opts o = plain;

        o.part = i == 1;
        o.n_parts = 2;
        o.resumed = i == 2;
        p[i] = plan_new(in->s.files);
        k[i] = universal_hdf5_sink(&o);
        if (k[i]->ops->prepare(k[i], &in->s, dir, p[i], &e) < 0)
            fail_msg("%s", e.msg);
        assert_int_equal(plan_n(p[i]), N * TRAINED_STATES);
    }
    for (int i = 0; i < N * TRAINED_STATES; i++) {
        uint64_t at = plan_item(p[0], i)->dst_at;

        assert_int_equal(plan_item(p[1], i)->dst_at, at);
        assert_int_equal(plan_item(p[2], i)->dst_at, at);
        assert_string_equal(plan_item(p[1], i)->name, plan_item(p[0], i)->name);
        if (plan_item(p[0], i)->len >= H5_ALIGN)
            assert_int_equal(at % H5_ALIGN, 0);
    }
    for (int i = 0; i < 3; i++) {
        plan_free(p[i]);
        k[i]->ops->close(k[i]);
    }
    /* Leftovers of another conversion are noticed. */
    in->s.param[0].shape[0] = 5;
    in->s.param[0].shape[1] = 12;
    struct sink_opts o = plain;
    o.resumed = true;
    k[0] = universal_hdf5_sink(&o);
    p[0] = plan_new(in->s.files);
    assert_int_equal(k[0]->ops->prepare(k[0], &in->s, dir, p[0], &e), -1);
    assert_non_null(strstr(e.msg, "has another shape than in IN"));
    plan_free(p[0]);
    k[0]->ops->close(k[0]);
    free(dir);
    input_free(in);
}

static void refuse(struct input *in, struct sink *k, const char *what)
{
    struct err e = {0};

    assert_int_equal(convert_to(in, k, "refused", &e), -1);
    if (!strstr(e.msg, what))
        fail_msg("got '%s', want '%s'", e.msg, what);
}

static void test_refusals(void **state)
{
    struct input *in = input_new();
    struct param *p = &in->s.param[2];
    struct tmap_slice *sl = &in->s.param[1].state[STATE_FP32]->slice[0];
    static const char bytes[24];
    int file = files_add_mem(in->s.files, bytes, sizeof bytes, "memory");
    struct extent x = sl->extent[0];

    (void)state;
    p->name = "../../etc/passwd";
    refuse(in, universal_hdf5_sink(&plain), "parameter '../../etc/passwd': the name cannot be that of an HDF5 group");
    p->name = ".slices";
    refuse(in, universal_virtual_sink(&plain), "parameter '.slices': the name cannot be");
    p->name = specs[2].name;
    p->state[STATE_FP32]->dtype = DTYPE_BF16;
    refuse(in, universal_virtual_sink(&plain), "fp32 has type bf16, but the HDF5 forms store only f32");
    p->state[STATE_FP32]->dtype = DTYPE_F32;
    sl->extent[0] = (struct extent){ files_add_record(in->s.files, &(struct record){ .file = file, .len = 24,
                                                                                     .name = "r" }), 0, 24 };
    refuse(in, universal_virtual_sink(&plain), "memory: an index cannot refer to it");
    sl->extent[0] = x;
    input_free(in);
}

/* Neighbouring runs of one file are one segment; others stay apart, whatever their order. */
static void test_merged_runs(void **state)
{
    struct input *in = input_new();
    struct tmap *m = in->s.param[7].state[STATE_FP32];
    char *path = path_join(in->dir, "virtual/index.h5");
    int r = in->record[0][0][STATE_FP32];
    struct extent first[2] = { { r, 40, 4 }, { r, 44, 8 } }, second = { r, 0, 12 };
    struct arena *a = arena_new(0);
    struct h5_dataset d;
    struct err e = {0};
    struct h5_in *h;

    (void)state;
    m->op = TMAP_CONCAT;
    m->slice[0] = (struct tmap_slice){ .len = 12, .n_extents = 2, .extent = first };
    m->slice[1] = (struct tmap_slice){ .len = 12, .n_extents = 1, .extent = &second };
    convert(in, universal_virtual_sink(&plain), "virtual");
    h = h5_open(path, &e);
    assert_non_null(h);
    assert_int_equal(h5_inspect_dataset(h, "/8.weight/fp32", a, &d, &e), 0);
    assert_int_equal(d.n_segments, 2);
    assert_int_equal(d.segment[0].at, files_record(in->s.files, r)->at + 40);
    assert_int_equal(d.segment[0].len, 12);
    assert_int_equal(d.segment[1].at, files_record(in->s.files, r)->at);
    h5_close(h);
    arena_free(a);
    free(path);
    input_free(in);
}

static void expect_finding(const char *path, const char *code, const char *text)
{
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = open_result(path, r, &e);
    bool found = false;

    for (int i = 0; i < report_n(r); i++)
        found |= strcmp(report_get(r, i)->code, code) == 0 && strstr(report_get(r, i)->text, text);
    if (!found)
        fail_msg("no finding '%s' with '%s'; %d others, first: %s; error: %s", code, text, report_n(r),
                 report_n(r) ? report_get(r, 0)->text : "", e.msg);
    if (s)
        source_close(s);
    report_free(r);
}

static void test_shards(void **state)
{
    struct input *in = input_new();
    char *path = path_join(in->dir, "virtual"), *shard = shard_name(in, 1, 1), *away = str_fmt("%s.away", shard);
    struct stat st;
    uint8_t byte;
    int fd;

    (void)state;
    convert(in, universal_virtual_sink(&plain), "virtual");
    fd = open(shard, O_RDWR);
    fstat(fd, &st);
    /* Inside the central directory: the last record's CRC. */
    for (off_t at = st.st_size - 22; at > 0; at--)
        if (pread(fd, &byte, 1, at) == 1 && byte == 'P') {
            char sig[4];

            if (pread(fd, sig, 4, at) == 4 && memcmp(sig, "PK\1\2", 4) == 0) {
                assert_int_equal(pread(fd, &byte, 1, at + 16), 1);
                byte ^= 1;
                assert_int_equal(pwrite(fd, &byte, 1, at + 16), 1);
                break;
            }
        }
    close(fd);
    expect_finding(path, "shard_changed", "its directory has CRC");
    assert_int_equal(truncate(shard, st.st_size - 1), 0);
    expect_finding(path, "shard_changed", "the index lists 15570; the file was changed");
    assert_int_equal(rename(shard, away), 0);
    expect_finding(path, "shard_missing", "cannot open");
    free(path);
    free(shard);
    free(away);
    input_free(in);
}

static void test_split_missing(void **state)
{
    struct input *in = input_new();
    struct sink_opts o = plain;
    char *path = path_join(in->dir, "split"), *one = str_fmt("%s/zero/8.weight.h5", path);

    (void)state;
    o.split = true;
    convert(in, universal_hdf5_sink(&o), "split");
    assert_int_equal(unlink(one), 0);
    expect_finding(path, "missing_file", "is not in");
    free(one);
    free(path);
    input_free(in);
}

/* ---- another reader ---- */

static void write_raw(const char *dir)
{
    struct err e = {0};

    assert_int_equal(dir_make(dir, &e), 0);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < TRAINED_STATES; j++) {
            enum state st = trained_states[j];
            char *path = str_fmt("%s/%s.%s", dir, specs[i].name, state_name(st));
            static float v[10000];

            for (int64_t k = 0; k < elems(&specs[i]); k++)
                v[k] = expected(i, st, k, REPLICAS_AVERAGE);
            write_file(path, v, (size_t)elems(&specs[i]) * sizeof *v);
            free(path);
        }
}

/* The same bytes through h5py, where it is installed; run from the repository's root. */
static void test_h5py(void **state)
{
    static const char *const forms[] = { "real", "virtual", "split" };
    struct input *in;
    char *raw;

    (void)state;
    if (access("tests/golden/forms/h5py_check.py", R_OK) < 0 ||
        system("/usr/bin/python3 -c 'import h5py' 2>/dev/null") != 0) {
        print_message("skipped: no h5py for /usr/bin/python3\n");
        return;
    }
    in = input_new();
    raw = path_join(in->dir, "raw");
    write_raw(raw);
    for (int i = 0; i < 3; i++) {
        struct sink_opts o = plain;
        char *cmd =
            str_fmt("/usr/bin/python3 tests/golden/forms/h5py_check.py --raw %s/%s %s >&2", in->dir, forms[i], raw);

        o.split = i == 2;
        convert(in, i == 1 ? universal_virtual_sink(&o) : universal_hdf5_sink(&o), forms[i]);
        assert_int_equal(system(cmd), 0);
        free(cmd);
    }
    free(raw);
    input_free(in);
}

/* ---- limits ---- */

static void test_most_segments(void **state)
{
    char *dir = scratch(), *path = path_join(dir, "x.h5");
    struct h5_segment *seg = xcalloc(H5_MAX_SEGMENTS, sizeof *seg);
    const int64_t shape[2] = { H5_MAX_SEGMENTS, 10 };
    struct h5_out *h = h5_create(path);
    struct arena *a = arena_new(0);
    struct h5_dataset d;
    struct h5_in *in;
    struct err e = {0};

    (void)state;
    for (int i = 0; i < H5_MAX_SEGMENTS; i++)
        seg[i] = (struct h5_segment){
            str_fmt("../a/folder/with/a/long/name/bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt", i),
            (uint64_t)i << 33, 40
        };
    h5_done(h, h5_new_external(h, &(struct h5_new){ H5_TOP, "x", 2, shape }, seg, H5_MAX_SEGMENTS));
    assert_int_equal(h5_finish(h, &e), 0);
    in = h5_open(path, &e);
    assert_non_null(in);
    assert_int_equal(h5_inspect_dataset(in, "/x", a, &d, &e), 0);
    assert_int_equal(d.n_segments, H5_MAX_SEGMENTS);
    for (int i = 0; i < H5_MAX_SEGMENTS; i++) {
        assert_string_equal(d.segment[i].path, seg[i].path);
        assert_true(d.segment[i].at == seg[i].at && d.segment[i].len == 40);
        free((char *)seg[i].path);
    }
    h5_close(in);
    arena_free(a);
    assert_int_equal(dir_remove(dir, &e), 0);
    free(seg);
    free(path);
    free(dir);
}

/*
 * Return the shell command that starts this program. Below an emulator, /proc/PID/exe is the emulator; the caller of the
 * program gives the command in TEST_SELF then.
 */
static char *own_command(void)
{
    const char *command = getenv("TEST_SELF");

    return command ? xstrdup(command) : str_fmt("/proc/%ld/exe", (long)getpid());
}

/* Another process, "--full PATH", with a limit on file sizes: the error names the cause, and exit is quiet. */
static int full_main(const char *path)
{
    struct rlimit limit = { 8192, 8192 };
    struct h5_out *h;
    struct err e = {0};

    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    h = h5_create(path);
    for (int i = 0; i < 1000; i++) {
        const int64_t n = 10;
        char name[16];

        snprintf(name, sizeof name, "d%d", i);
        h5_done(h, h5_new_dataset(h, &(struct h5_new){ H5_TOP, name, 1, &n }));
    }
    return h5_finish(h, &e) == -1 && e.kind == ERR_SYS && e.sys == EFBIG ? 0 : 1;
}

static void test_full_disk(void **state)
{
    char *dir = scratch(), *self = own_command(), *cmd = str_fmt("%s --full %s/x.h5", self, dir);
    struct err e = {0};

    (void)state;
    assert_int_equal(system(cmd), 0);
    assert_int_equal(dir_remove(dir, &e), 0);
    free(cmd);
    free(self);
    free(dir);
}

/* ---- damage ---- */

/*
 * Bytes of an index flipped, one at a time. Whatever HDF5 makes of it: no crash, no hang,
 * and what opens without a finding holds the right tensors, unless the flip hit tensor
 * bytes (that is the manifest's to find). Another process does it, so that a crash is
 * counted; not a forked one, because threads of OpenMP do not survive a fork.
 */
enum outcome { FOUND, HARMLESS, WRONG };

static enum outcome open_damaged(const char *dir, const char *path, const uint8_t *good, size_t size, size_t at)
{
    uint8_t *bad = xmalloc(size);
    struct report *r = report_new();
    struct err e = {0};
    struct source *s;
    enum outcome o = FOUND;

    memcpy(bad, good, size);
    bad[at] ^= (uint8_t)(1u << (at % 8));
    write_file(path, bad, size);
    s = open_result(dir, r, &e);
    if (s && report_count(r, SEV_ERROR) == 0)
        o = values_right(s, 10, REPLICAS_AVERAGE) ? HARMLESS : WRONG;
    if (s)
        source_close(s);
    report_free(r);
    free(bad);
    return o;
}

/* The other process: "--flip DIR GOOD FIRST STEP", one letter a flip on stdout. */
static int flip_main(char **argv)
{
    char *path = path_join(argv[2], "index.h5");
    struct err e = {0};
    uint64_t size;
    char *good = file_slurp(argv[3], 1 << 24, &size, &e);

    for (uint64_t at = strtoull(argv[4], NULL, 10); good && at < size; at += strtoull(argv[5], NULL, 10)) {
        alarm(20);
        putchar("FHW"[open_damaged(argv[2], path, (uint8_t *)good, size, at)]);
        fflush(stdout);
    }
    free(good);
    free(path);
    return 0;
}

/* Which bytes of the index belong to tensors. */
static bool *payload_of(const char *path, uint64_t size)
{
    bool *is = xcalloc(size, sizeof *is);
    struct arena *a = arena_new(0);
    struct err e = {0};
    struct h5_in *h = h5_open(path, &e);

    assert_non_null(h);
    for (int i = 0; i < N * TRAINED_STATES; i++) {
        char *name = str_fmt("/%s/%s", specs[i / 3].name, state_name(trained_states[i % 3]));
        struct h5_dataset d;

        assert_int_equal(h5_inspect_dataset(h, name, a, &d, &e), 0);
        if (d.storage == H5_CONTIGUOUS)
            memset(is + d.at, 1, d.len);
        free(name);
    }
    h5_close(h);
    arena_free(a);
    return is;
}

struct flips {
    char *path, *good;
    uint64_t size, step, next;
    bool *payload;
    int n[3], wrong, crashed;
};

static void take_outcomes(struct flips *f, FILE *out)
{
    for (int c; (c = getc(out)) != EOF; f->next += f->step) {
        enum outcome o = c == 'F' ? FOUND : c == 'H' ? HARMLESS : WRONG;

        f->n[o]++;
        if (o == WRONG && !f->payload[f->next]) {
            print_error("byte %llu: wrong tensors, no finding\n", (unsigned long long)f->next);
            f->wrong++;
        }
    }
}

static void flip_all(const char *dir, uint64_t step)
{
    struct flips f = { .path = path_join(dir, "index.h5"), .good = str_fmt("%s/good.h5", dir), .step = step };
    struct err e = {0};
    char *bytes = file_slurp(f.path, 1 << 24, &f.size, &e), *self = own_command();

    assert_non_null(bytes);
    write_file(f.good, bytes, f.size);
    f.payload = payload_of(f.path, f.size);
    while (f.next < f.size) {
        char *cmd = str_fmt("%s --flip %s %s %llu %llu", self, dir, f.good, (unsigned long long)f.next,
                            (unsigned long long)step);
        FILE *out = popen(cmd, "r");

        assert_non_null(out);
        take_outcomes(&f, out);
        if (pclose(out) != 0) {
            print_error("byte %llu: crash\n", (unsigned long long)f.next);
            f.crashed++;
            f.next += step;
        }
        free(cmd);
    }
    print_message("%llu bytes, every %lluth flipped: %d found, %d harmless, %d changed tensor bytes, "
                  "%d unnoticed, %d crashes\n",
                  (unsigned long long)f.size, (unsigned long long)step, f.n[FOUND], f.n[HARMLESS],
                  f.n[WRONG] - f.wrong, f.wrong, f.crashed);
    assert_int_equal(f.crashed, 0);
    assert_int_equal(f.wrong, 0);
    free(f.payload);
    free(self);
    free(bytes);
    free(f.good);
    free(f.path);
}

/* FLIP_STEP=1 for the long run. */
static uint64_t flip_step(void)
{
    const char *s = getenv("FLIP_STEP");

    return s && atoi(s) > 0 ? (uint64_t)atoi(s) : 97;
}

static void test_flips_real(void **state)
{
    struct input *in = input_new();
    char *dir = path_join(in->dir, "real");

    (void)state;
    convert(in, universal_hdf5_sink(&plain), "real");
    flip_all(dir, flip_step());
    free(dir);
    input_free(in);
}

static void test_flips_virtual(void **state)
{
    struct input *in = input_new();
    char *dir = path_join(in->dir, "virtual");

    (void)state;
    convert(in, universal_virtual_sink(&plain), "virtual");
    flip_all(dir, flip_step());
    free(dir);
    input_free(in);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_split_missing),
        cmocka_unit_test(test_merged_runs),
        cmocka_unit_test(test_h5py),
        cmocka_unit_test(test_most_segments),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_flips_real),
        cmocka_unit_test(test_flips_virtual),
    };

    if (argc == 6 && strcmp(argv[1], "--flip") == 0)
        return flip_main(argv);
    if (argc == 3 && strcmp(argv[1], "--full") == 0)
        return full_main(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
