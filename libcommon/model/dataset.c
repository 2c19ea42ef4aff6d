/*
 * dataset.c - read the tokens of a sample, given its number in a dataset
 */
#include "libcommon/model/dataset.h"

#include <assert.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/model/blend.h"
#include "libcommon/model/gpt_index.h"

struct dataset_part {
    struct mmidx *data;
    struct gpt_index index;
    int64_t s;
};

struct dataset {
    char *name;
    int n;
    struct dataset_part *part;
    struct blend *blend;                /* NULL if there is only one part */
    int64_t samples;
};

static double *weights(const struct data_group *g)
{
    double *w = xcalloc((size_t)g->n, sizeof *w);

    for (int i = 0; i < g->n; i++)
        w[i] = g->part[i].weight;
    return w;
}

/* Open the data of all parts, and count the parts that select documents. */
static int open_data(struct dataset *d, const struct data_group *g, int *n_filled, struct err *e)
{
    *n_filled = 0;
    for (int i = 0; i < g->n; i++) {
        int64_t first, end;

        d->part[i].data = mmidx_open(g->part[i].prefix, e);
        if (!d->part[i].data)
            return -1;
        data_part_range(&g->part[i], mmidx_n(d->part[i].data), &first, &end);
        *n_filled += first < end;
    }
    return 0;
}

static int open_dataset_indices(struct dataset *d, const struct data_group *g, const struct dataset_opts *o,
                                struct err *e)
{
    const struct gpt_index_files files = { o->index_dir, o->build, o->progress };
    double *w = weights(g);
    int rc = 0;

    for (int i = 0; i < g->n && rc == 0; i++) {
        struct dataset_part *p = &d->part[i];
        struct gpt_index_spec spec = {
            .name = g->name, .n_samples = blend_request(w, g->n, i, o->n_samples), .s = o->s, .seed = o->seed,
            .cut = o->cut,
        };

        data_part_range(&g->part[i], mmidx_n(p->data), &spec.first_doc, &spec.end_doc);
        p->s = o->s;
        if (o->progress) {
            atomic_store(&o->progress->total, 0);
            atomic_store(&o->progress->done, 0);
            atomic_store(&o->progress->part, i);
            atomic_store(&o->progress->n_parts, g->n);
        }
        rc = gpt_index_open(p->data, &spec, &files, &p->index, e);
        if (rc == 0)
            d->samples += p->index.samples;
    }
    if (rc == 0 && g->n > 1) {
        d->blend = blend_new(w, g->n, d->samples, e);
        rc = d->blend ? 0 : -1;
    }
    free(w);
    return rc;
}

int dataset_open(const struct data_group *g, const struct dataset_opts *o, struct dataset **out, struct err *e)
{
    struct dataset *d = xcalloc(1, sizeof *d);
    int n_filled, rc;

    *out = NULL;
    d->name = xstrdup(g->name);
    d->n = g->n;
    d->part = xcalloc((size_t)g->n, sizeof *d->part);
    rc = open_data(d, g, &n_filled, e);
    /* With --split a dataset may be empty. An explicit range that is empty is a mistake. */
    if (rc == 0 && (n_filled > 0 || g->part[0].split < 0)) {
        rc = open_dataset_indices(d, g, o, e);
        if (rc == 0) {
            *out = d;
            return 0;
        }
    }
    dataset_close(d);
    return rc;
}

void dataset_close(struct dataset *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n; i++) {
        gpt_index_close(&d->part[i].index);
        mmidx_close(d->part[i].data);
    }
    blend_free(d->blend);
    free(d->part);
    free(d->name);
    free(d);
}

const char *dataset_name(const struct dataset *d)
{
    return d->name;
}

int64_t dataset_samples(const struct dataset *d)
{
    return d->samples;
}

static int astray(const struct npy *a, int64_t i, struct err *e)
{
    uint64_t item = a->type == NPY_I64 ? 8 : 4, head = (uint64_t)((const char *)a->data - (const char *)a->file.p);

    err_data(e, a->file.path, head + item * (uint64_t)i, "entry %lld leads outside the data; remove the three "
             "indexmap files to have them rebuilt", (long long)i);
    return -1;
}

/* A request for the tokens of sample k of a part. */
struct dataset_reading {
    const struct dataset_part *part;
    int64_t k, *tokens;
};

/*
 * Read a sample. Every entry of the index files that is used is checked here, because another program may have written
 * the files. Checking all entries at each start would cost more than training ever reads. Called by mapped_use().
 */
static int part_read(void *arg, struct err *e)
{
    const struct dataset_reading *r = arg;
    const struct dataset_part *p = r->part;
    const struct gpt_index *x = &p->index;
    const int64_t k = r->k;
    int64_t *tokens = r->tokens;
    const int32_t *doc = x->doc.data, *row = x->sample.data;
    int64_t j = x->shuffle.type == NPY_I64 ? ((const int64_t *)x->shuffle.data)[k]
                                           : ((const uint32_t *)x->shuffle.data)[k];
    int64_t pos, offset, got = 0;

    if (j < 0 || j >= x->samples)
        return astray(&x->shuffle, k, e);
    pos = row[2 * j];
    offset = row[2 * j + 1];
    while (got < p->s + 1) {
        int64_t n;

        if (pos < 0 || pos >= x->doc.shape[0] || offset < 0)
            return astray(&x->sample, 2 * j, e);
        if (doc[pos] < 0 || doc[pos] >= mmidx_n(p->data))
            return astray(&x->doc, pos, e);
        n = mmidx_len(p->data, doc[pos]) - offset;
        if (n < 0)
            return astray(&x->sample, 2 * j + 1, e);
        if (n > p->s + 1 - got)
            n = p->s + 1 - got;
        mmidx_read(p->data, doc[pos], offset, n, tokens + got);
        got += n;
        pos++;
        offset = 0;
    }
    return 0;
}

/* Read a sample. Fails if a file was truncated after it was opened, because some of the tokens are then zeros. */
static int part_get(const struct dataset_part *p, int64_t k, int64_t *tokens, struct err *e)
{
    const struct gpt_index *x = &p->index;
    struct dataset_reading r = { p, k, tokens };
    struct err why = {0};
    int rc = mapped_use(part_read, &r, &why);

    if (mmidx_check(p->data, e) < 0 || mapped_check(&x->doc.file, e) < 0 || mapped_check(&x->sample.file, e) < 0 ||
        mapped_check(&x->shuffle.file, e) < 0)
        return -1;
    if (rc < 0)
        *e = why;
    return rc;
}

int dataset_get(const struct dataset *d, int64_t k, int64_t *tokens, struct err *e)
{
    int i = 0;

    assert(k >= 0 && k < d->samples);
    if (d->blend)
        blend_get(d->blend, k, &i, &k);
    /*
     * The last samples of a blend may need more samples of a part than the part has. The first n_samples samples do
     * not.
     */
    if (k >= d->part[i].index.samples) {
        err_usage(e, "%s: sample %lld of %s asked for, it has %lld", d->name, (long long)k,
                  mmidx_prefix(d->part[i].data), (long long)d->part[i].index.samples);
        return -1;
    }
    return part_get(&d->part[i], k, tokens, e);
}
