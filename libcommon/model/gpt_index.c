/*
 * gpt_index.c - the three indices are built or read from the reference's cache files, to the byte
 */
#include "libcommon/model/gpt_index.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/model/mt19937.h"

static const char *const kinds[] = { "doc_idx", "sample_idx", "shuffle_idx" };
enum { DOC, SAMPLE, SHUFFLE, N_KINDS };

char *gpt_index_path(const char *prefix, const struct gpt_index_spec *spec, const char *dir, const char *kind)
{
    char *base = dir ? path_base(prefix) : xstrdup(prefix), *path;

    path = str_fmt("%s%s%s_%s_indexmap_%lldns_%lldsl_%us_%s.npy", dir ? dir : "", dir ? "/" : "", base, spec->name,
                   (long long)spec->n_samples, (long long)spec->s, spec->seed, kind);
    free(base);
    return path;
}

/* ---- the plan ---- */

static int64_t range_docs(const struct gpt_index_spec *spec)
{
    return spec->end_doc - spec->first_doc;
}

struct sum {
    const struct mmidx *data;
    const struct gpt_index_spec *spec;
    int64_t tokens;
};

/* For mapped_use(). */
static int sum_tokens(void *arg, struct err *e)
{
    struct sum *s = arg;

    (void)e;
    for (int64_t d = s->spec->first_doc; d < s->spec->end_doc; d++)
        s->tokens += mmidx_len(s->data, d);
    return 0;
}

static int check_spec(const struct mmidx *data, const struct gpt_index_spec *spec, struct err *e)
{
    if (spec->first_doc < 0 || spec->end_doc > mmidx_n(data) || spec->first_doc >= spec->end_doc) {
        err_usage(e, "%s: %s: documents %lld to %lld asked for, there are %lld", mmidx_prefix(data), spec->name,
                  (long long)spec->first_doc, (long long)spec->end_doc, (long long)mmidx_n(data));
        return -1;
    }
    if (spec->s < 1 || spec->n_samples < 0) {
        err_usage(e, "%s: %s: %lld samples of %lld tokens cannot be made", mmidx_prefix(data), spec->name,
                  (long long)spec->n_samples, (long long)spec->s);
        return -1;
    }
    return 0;
}

/* Smallest E >= 1 with (E T - 1) / s >= ns, that is E T >= ns s + 1. */
static int count_epochs(const struct mmidx *data, const struct gpt_index_spec *spec, struct gpt_index_plan *plan,
                        struct err *e)
{
    uint64_t need, all;

    if (!mul_u64((uint64_t)spec->n_samples, (uint64_t)spec->s, &need) || need > INT64_MAX / 2) {
        err_usage(e, "%s: %s: %lld samples of %lld tokens are too many", mmidx_prefix(data), spec->name,
                  (long long)spec->n_samples, (long long)spec->s);
        return -1;
    }
    plan->epochs = (int64_t)(need / (uint64_t)plan->tokens) + 1;
    /* doc_idx and the positions in sample_idx are 32 bits wide. */
    if (!mul_u64((uint64_t)plan->epochs, (uint64_t)range_docs(spec), &all) || all > INT32_MAX ||
        spec->end_doc > INT32_MAX) {
        err_usage(e, "%s: %s: %lld epochs of %lld documents are more than the index can hold (%d)",
                  mmidx_prefix(data), spec->name, (long long)plan->epochs, (long long)range_docs(spec), INT32_MAX);
        return -1;
    }
    plan->samples = (plan->epochs * plan->tokens - 1) / spec->s;
    return 0;
}

int gpt_index_plan(const struct mmidx *data, const struct gpt_index_spec *spec, struct gpt_index_plan *plan,
                   struct err *e)
{
    struct sum sum = { .data = data, .spec = spec };
    int64_t last, per_epoch;

    *plan = (struct gpt_index_plan){0};
    if (check_spec(data, spec, e) < 0 || mapped_use(sum_tokens, &sum, e) < 0)
        return -1;
    plan->tokens = sum.tokens;
    if (plan->tokens < 1) {
        err_usage(e, "%s: %s: documents %lld to %lld have no tokens", mmidx_prefix(data), spec->name,
                  (long long)spec->first_doc, (long long)spec->end_doc);
        return -1;
    }
    if (count_epochs(data, spec, plan, e) < 0)
        return -1;
    if (plan->epochs == 1)
        return 0;
    plan->samples_before_last = ((plan->epochs - 1) * plan->tokens - 1) / spec->s;
    last = spec->n_samples - plan->samples_before_last;
    per_epoch = (plan->tokens - 1) / spec->s;
    /*
     * The reference stops here too. Epochs need not end where samples do: all of them together
     * may hold one more than the whole ones and the last. Then last is per_epoch + 1, and one
     * sample less ends with per_epoch, one more begins another epoch.
     */
    if (last > per_epoch) {
        err_usage(e, "%s: %s: the last epoch would have to give %lld of its %lld samples: %s", mmidx_prefix(data),
                  spec->name, (long long)last, (long long)per_epoch,
                  per_epoch ? "ask for one sample more or less, or for another sequence length"
                            : "more text is needed, or a shorter sequence");
        return -1;
    }
    plan->separate = last < (int64_t)(spec->cut * (double)per_epoch);
    return 0;
}

/* ---- building ---- */

/* Sizes follow from the plan; one that the machine has not is an error, not a crash. */
static void *big_alloc(const struct mmidx *data, int64_t n, size_t size, struct err *e)
{
    uint64_t bytes;
    void *p = NULL;

    errno = ENOMEM;
    if (mul_u64((uint64_t)n, size, &bytes))
        p = malloc(bytes ? bytes : 1);
    if (!p)
        err_sys(e, mmidx_prefix(data), "no memory for an index of %lld entries", (long long)n);
    return p;
}

/* Documents of the range `epochs` times over. */
static void fill_docs(const struct gpt_index_spec *spec, int32_t *doc, int64_t epochs)
{
    for (int64_t i = 0; i < epochs; i++)
        for (int64_t d = spec->first_doc; d < spec->end_doc; d++)
            *doc++ = (int32_t)d;
}

static void make_doc_idx(const struct gpt_index_spec *spec, const struct gpt_index_plan *plan, struct mt19937 *rng,
                         int32_t *doc)
{
    int64_t per_epoch = range_docs(spec), n = plan->epochs * per_epoch;

    fill_docs(spec, doc, plan->epochs);
    if (plan->separate) {
        mt19937_shuffle_i32(rng, doc, n - per_epoch);
        mt19937_shuffle_i32(rng, doc + n - per_epoch, per_epoch);
    } else {
        mt19937_shuffle_i32(rng, doc, n);
    }
}

struct cutting {
    const struct mmidx *data;
    const struct gpt_index_spec *spec;
    const struct gpt_index_plan *plan;
    const int32_t *doc;
    int32_t *row;
};

/* Rows (position in doc_idx, token in that document) where each sample starts. For mapped_use(). */
static int make_sample_idx(void *arg, struct err *e)
{
    const struct cutting *c = arg;
    int32_t *row = c->row;
    int64_t pos = 0, offset = 0;

    (void)e;
    row[0] = row[1] = 0;
    for (int64_t i = 1; i <= c->plan->samples; i++) {
        int64_t remaining = c->spec->s + 1;

        for (;;) {
            int64_t left = mmidx_len(c->data, c->doc[pos]) - offset;

            remaining -= left;
            if (remaining <= 0) {       /* on the sample's last token, the next one's first */
                offset += remaining + left - 1;
                break;
            }
            pos++;
            offset = 0;
        }
        row[2 * i] = (int32_t)pos;
        row[2 * i + 1] = (int32_t)offset;
    }
    return 0;
}

/* The array is u32 until that could not count the samples any more. */
static enum npy_type shuffle_type(const struct gpt_index_plan *plan)
{
    return plan->samples >= (int64_t)UINT32_MAX - 1 ? NPY_I64 : NPY_U32;
}

static void make_shuffle_idx(const struct gpt_index_plan *plan, struct mt19937 *rng, void *out)
{
    int64_t n = plan->samples, first = plan->separate ? plan->samples_before_last : n;

    if (shuffle_type(plan) == NPY_I64) {
        int64_t *a = out;

        for (int64_t i = 0; i < n; i++)
            a[i] = i;
        mt19937_shuffle_i64(rng, a, first);
        mt19937_shuffle_i64(rng, a + first, n - first);
    } else {
        uint32_t *a = out;

        for (int64_t i = 0; i < n; i++)
            a[i] = (uint32_t)i;
        mt19937_shuffle_u32(rng, a, first);
        mt19937_shuffle_u32(rng, a + first, n - first);
    }
}

/* One generator feeds both shuffles, in this order. */
static int build(const struct mmidx *data, const struct gpt_index_spec *spec, const struct gpt_index_plan *plan,
                 char *const path[N_KINDS], struct err *e)
{
    int64_t n_doc = plan->epochs * range_docs(spec), rows[2] = { plan->samples + 1, 2 };
    enum npy_type wide = shuffle_type(plan);
    int32_t *doc = big_alloc(data, n_doc, sizeof *doc, e);
    int32_t *row = doc ? big_alloc(data, rows[0], 2 * sizeof *row, e) : NULL;
    void *shuffle = row ? big_alloc(data, plan->samples, wide == NPY_I64 ? 8 : 4, e) : NULL;
    struct mt19937 rng;
    int rc = -1;

    if (!shuffle)
        goto out;
    mt19937_seed(&rng, spec->seed);
    make_doc_idx(spec, plan, &rng, doc);
    if (mapped_use(make_sample_idx, &(struct cutting){ data, spec, plan, doc, row }, e) < 0)
        goto out;
    make_shuffle_idx(plan, &rng, shuffle);
    if (npy_save(path[DOC], NPY_I32, 1, &n_doc, doc, e) < 0 ||
        npy_save(path[SAMPLE], NPY_I32, 2, rows, row, e) < 0 ||
        npy_save(path[SHUFFLE], wide, 1, &plan->samples, shuffle, e) < 0)
        goto out;
    rc = 0;
out:
    free(doc);
    free(row);
    free(shuffle);
    return rc;
}

/* ---- opening ---- */

static int check_shape(const struct npy *a, enum npy_type type, int ndim, int64_t rows, int64_t columns,
                       struct err *e)
{
    if (a->type == type && a->ndim == ndim && a->shape[0] == rows && a->shape[1] == columns)
        return 0;
    err_data(e, a->file.path, ERR_NO_BYTE, "made for other data or settings (%lld entries, expected %lld); "
             "remove the three indexmap files to have them rebuilt", (long long)a->shape[0], (long long)rows);
    return -1;
}

/*
 * Another range of the same size shows in the documents themselves; they are shuffled, so
 * the first million tell. For mapped_use().
 */
struct index_check {
    const struct npy *a;
    const struct gpt_index_spec *spec;
};

static int check_docs(void *arg, struct err *e)
{
    const struct npy *a = ((struct index_check *)arg)->a;
    const struct gpt_index_spec *spec = ((struct index_check *)arg)->spec;
    const int32_t *doc = a->data;

    for (int64_t i = 0; i < a->shape[0] && i < 1 << 20; i++)
        if (doc[i] < spec->first_doc || doc[i] >= spec->end_doc) {
            err_data(e, a->file.path, (uint64_t)((const char *)(doc + i) - (const char *)a->file.p),
                     "document %d, expected %lld to %lld: made for other data or settings; remove the three "
                     "indexmap files to have them rebuilt", doc[i], (long long)spec->first_doc,
                     (long long)spec->end_doc - 1);
            return -1;
        }
    return 0;
}

static int open_all(const struct gpt_index_spec *spec, const struct gpt_index_plan *plan, char *const path[N_KINDS],
                    struct gpt_index *x, struct err *e)
{
    x->samples = plan->samples;
    if (npy_open(path[DOC], &x->doc, e) < 0 || npy_open(path[SAMPLE], &x->sample, e) < 0 ||
        npy_open(path[SHUFFLE], &x->shuffle, e) < 0)
        return -1;
    if (check_shape(&x->doc, NPY_I32, 1, plan->epochs * range_docs(spec), 1, e) < 0 ||
        check_shape(&x->sample, NPY_I32, 2, plan->samples + 1, 2, e) < 0 ||
        check_shape(&x->shuffle, shuffle_type(plan), 1, plan->samples, 1, e) < 0)
        return -1;
    return mapped_use(check_docs, &(struct index_check){ &x->doc, spec }, e);
}

/* Beside the data nothing can be written: say what else can be done. */
static void suggest_folder(struct err *e)
{
    size_t n = strlen(e->msg);

    if (e->sys == EACCES || e->sys == EROFS || e->sys == EPERM)
        snprintf(e->msg + n, sizeof e->msg - n, "; --index-dir names another folder for the index files");
}

int gpt_index_open(const struct mmidx *data, const struct gpt_index_spec *spec, const char *dir, bool may_build,
                   struct gpt_index *x, struct err *e)
{
    struct gpt_index_plan plan;
    char *path[N_KINDS];
    bool missing = false;
    int rc;

    *x = (struct gpt_index){0};
    if (gpt_index_plan(data, spec, &plan, e) < 0)
        return -1;
    for (int i = 0; i < N_KINDS; i++) {
        path[i] = gpt_index_path(mmidx_prefix(data), spec, dir, kinds[i]);
        missing |= access(path[i], F_OK) < 0 && errno == ENOENT;
    }
    rc = missing && may_build ? build(data, spec, &plan, path, e) : 0;
    if (rc < 0)
        suggest_folder(e);
    if (rc == 0)
        rc = open_all(spec, &plan, path, x, e);
    if (rc < 0)
        gpt_index_close(x);
    for (int i = 0; i < N_KINDS; i++)
        free(path[i]);
    return rc;
}

void gpt_index_close(struct gpt_index *x)
{
    npy_close(&x->doc);
    npy_close(&x->sample);
    npy_close(&x->shuffle);
}
