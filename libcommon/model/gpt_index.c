/*
 * gpt_index.c - build the three indices with the same bytes as the reference, or open existing files
 */
#include "libcommon/model/gpt_index.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/crc.h"
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

/* Called by mapped_use(). */
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

/* Compute the number of epochs E. It is the smallest E >= 1 with (E T - 1) / s >= ns, that is, E T >= ns s + 1. */
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
    /* doc_idx and the positions in sample_idx have 32 bits */
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
     * The reference fails here, too. A sample may begin in one epoch and end in the next. All epochs together can
     * therefore have one sample more than samples_before_last + per_epoch; `last` is then per_epoch + 1. If the dataset
     * had one sample less, `last` would be per_epoch. If it had one sample more, there would be another epoch.
     */
    if (last > per_epoch) {
        err_usage(e, "%s: %s: the last epoch would have to give %lld of its %lld samples: %s", mmidx_prefix(data),
                  spec->name, (long long)last, (long long)per_epoch,
                  per_epoch ? "use one sample more or less, or another sequence length"
                            : "more text is needed, or a shorter sequence");
        return -1;
    }
    plan->separate = last < (int64_t)(spec->cut * (double)per_epoch);
    return 0;
}

static int check_index_shape(const struct npy *a, enum npy_type type, int ndim, int64_t rows, int64_t columns,
                             struct err *e)
{
    if (a->type == type && a->ndim == ndim && a->shape[0] == rows && a->shape[1] == columns)
        return 0;
    err_data(e, a->file.path, ERR_NO_BYTE, "made for other data or settings (%lld entries, expected %lld); "
             "remove the three indexmap files to have them rebuilt", (long long)a->shape[0], (long long)rows);
    return -1;
}

/* ---- building ---- */

/*
 * Allocate memory for n entries. The size depends on the plan, so a lack of memory must be reported as an error, and
 * must not end the program.
 */
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

/* Returns the type of the entries of shuffle_idx: u32, or i64 if the number of samples does not fit. */
static enum npy_type shuffle_type(const struct gpt_index_plan *plan)
{
    return plan->samples >= (int64_t)UINT32_MAX - 1 ? NPY_I64 : NPY_U32;
}

/*
 * The values on which the three indices depend. A build continues a partial result only if all these values are the
 * same.
 */
struct build_of {
    char magic[8];
    int64_t first_doc, end_doc, n_samples, s, tokens, epochs, samples, before_last, data_docs;
    double cut;
    uint32_t seed, separate;
};

/*
 * The state of a build. The three indices are made one after the other with one random generator, and each is written
 * when it is complete. During a long build, this struct and the current index are stored as raw memory in
 * SHUFFLE-FILE.building. A later build on the same kind of machine can continue from this file.
 */
struct build_at {
    struct build_of of;
    /* crc: checksum of the following members and the index; kind: current index (DOC, SAMPLE or SHUFFLE) */
    uint32_t crc, kind;
    int64_t done;  /* number of final entries of the current index; for sample_idx, number of rows */
    int64_t pos, offset;        /* start of the next sample: position in doc_idx, and token in the document */
    struct mt19937 rng;
};

struct building {
    const struct mmidx *data;
    const struct gpt_index_spec *spec;
    const struct gpt_index_plan *plan;
    char *const *path;          /* [N_KINDS]: path of each index file */
    struct gpt_index_progress *progress;        /* NULL if no other thread watches the build */
    struct build_at at;
    void *array;                /* the current index (at.kind) */
    const int32_t *doc;         /* doc_idx, while sample_idx is being made; otherwise NULL */
    /* time at which the last partial result was stored, and duration of storing it, by clock_s() */
    double kept_s, keep_took_s;
};

static int64_t entries(const struct building *b, uint32_t kind)
{
    return kind == DOC ? b->plan->epochs * range_docs(b->spec) : kind == SAMPLE ? b->plan->samples + 1
                                                                               : b->plan->samples;
}

static size_t entry_size(const struct building *b, uint32_t kind)
{
    return kind == DOC ? 4 : kind == SAMPLE ? 8 : shuffle_type(b->plan) == NPY_I64 ? 8 : 4;
}

static char *record_path(const struct building *b)
{
    return str_fmt("%s.building", b->path[SHUFFLE]);
}

/*
 * Returns the number of bytes of the current index to store. Rows of sample_idx that are not computed yet are left out.
 */
static size_t kept_bytes(const struct building *b)
{
    return (size_t)(b->at.kind == SAMPLE ? b->at.done : entries(b, b->at.kind)) * entry_size(b, b->at.kind);
}

static uint32_t record_crc(const struct build_at *at, const void *array, size_t n)
{
    const size_t from = offsetof(struct build_at, kind);
    const uint32_t crc = crc_bytes(0, (const char *)at + from, sizeof *at - from);

    return crc_bytes(crc, array, n);
}

/* Store the partial result. A failure is ignored, because the build can go on without it. */
static void save_partial_index(struct building *b)
{
    char *path = record_path(b);
    const size_t n = kept_bytes(b);
    struct err ignored = {0};

    b->at.crc = record_crc(&b->at, b->array, n);
    (void)!file_replace_by(path, (struct iovec[]){ { &b->at, sizeof b->at }, { b->array, n } }, 2, &ignored);
    free(path);
}

/* maximum size, in bytes, of a partial result that is stored when the build is stopped */
enum { STOP_KEEPS = 32 << 20 };

/*
 * Report the progress, and store a partial result if it is due. Called between two pieces of work, every few
 * milliseconds. Returns -1 with ERR_STOP if the build must stop.
 */
static int tick(struct building *b, struct err *e)
{
    struct gpt_index_progress *p = b->progress;
    double now;

    if (!p)
        return 0;
    atomic_store(&p->done, (b->at.kind > DOC ? entries(b, DOC) : 0) + (b->at.kind > SAMPLE ? entries(b, SAMPLE) : 0) +
                           b->at.done);
    if (atomic_load(&p->stop)) {
        /*
         * A larger result is not stored now, because storing it would delay the stop. It has been stored from time to
         * time before.
         */
        if (kept_bytes(b) < STOP_KEEPS)
            save_partial_index(b);
        err_stop(e);
        return -1;
    }
    now = clock_s();
    /* storing partial results must take at most a tenth of the time */
    if (p->keep_s > 0 && (now - b->kept_s < p->keep_s || now - b->kept_s < 10 * b->keep_took_s))
        return 0;
    save_partial_index(b);
    b->kept_s = clock_s();
    b->keep_took_s = b->kept_s - now;
    return 0;
}

enum { PIECE = 1 << 16, PIECE_DOCS = 1 << 12 };

/*
 * Shuffle entries [0, first) and [first, n) separately, each from its end downwards, as numpy does. b->at.done is the
 * number of entries already shuffled; an interrupted shuffle continues there. Returns -1 if tick() fails.
 */
static int shuffle(struct building *b, int64_t first, int64_t n, struct err *e)
{
    const bool wide = entry_size(b, b->at.kind) == 8;

    while (b->at.done < n) {
        const bool second = b->at.done >= first;
        const int64_t begin = second ? first : 0, len = second ? n - first : first;
        const int64_t from = len - 1 - (b->at.done - begin), to = from > PIECE ? from - PIECE : -1;

        if (wide)
            mt19937_shuffle_64(&b->at.rng, (uint64_t *)b->array + begin, from, to < 0 ? 0 : to);
        else
            mt19937_shuffle_32(&b->at.rng, (uint32_t *)b->array + begin, from, to < 0 ? 0 : to);
        b->at.done += from - to;
        if (tick(b, e) < 0)
            return -1;
    }
    return 0;
}

/* Make doc_idx. It consists of all documents of the range, repeated for each epoch, and then shuffled. */
static int make_doc_idx(struct building *b, struct err *e)
{
    const int64_t n = entries(b, DOC), per_epoch = range_docs(b->spec);
    int32_t *doc = b->array;

    if (b->at.done == 0)
        for (int64_t i = 0; i < b->plan->epochs; i++)
            for (int64_t d = b->spec->first_doc; d < b->spec->end_doc; d++)
                *doc++ = (int32_t)d;
    return shuffle(b, b->plan->separate ? n - per_epoch : n, n, e);
}

/*
 * Make sample_idx. It has a row for each sample. The row gives the start of the sample, as the position in doc_idx and
 * the token in this document. Called by mapped_use().
 */
static int make_sample_idx(void *arg, struct err *e)
{
    struct building *b = arg;
    int32_t *row = b->array;
    int64_t pos = b->at.pos, offset = b->at.offset, docs = 0;

    row[0] = row[1] = 0;
    for (int64_t i = b->at.done > 0 ? b->at.done : 1; i <= b->plan->samples; i++) {
        int64_t remaining = b->spec->s + 1;

        for (;; docs++) {
            int64_t left = mmidx_len(b->data, b->doc[pos]) - offset;

            remaining -= left;
            /* this token is the last token of the sample, and the first token of the next sample */
            if (remaining <= 0) {
                offset += remaining + left - 1;
                break;
            }
            pos++;
            offset = 0;
        }
        row[2 * i] = (int32_t)pos;
        row[2 * i + 1] = (int32_t)offset;
        if (docs > PIECE_DOCS || i % PIECE == 0) {
            docs = 0;
            b->at.done = i + 1;
            b->at.pos = pos;
            b->at.offset = offset;
            if (tick(b, e) < 0)
                return -1;
        }
    }
    return 0;
}

static int make_shuffle_idx(struct building *b, struct err *e)
{
    const int64_t n = entries(b, SHUFFLE);

    for (int64_t i = 0; b->at.done == 0 && i < n; i++)
        if (shuffle_type(b->plan) == NPY_I64)
            ((int64_t *)b->array)[i] = i;
        else
            ((uint32_t *)b->array)[i] = (uint32_t)i;
    return shuffle(b, b->plan->separate ? b->plan->samples_before_last : n, n, e);
}

struct docs_copy {
    const struct npy *from;
    int32_t *to;
};

/* Copy doc_idx from its file to memory. Called by mapped_use(). */
static int copy_docs(void *arg, struct err *e)
{
    const struct docs_copy *c = arg;

    (void)e;
    memcpy(c->to, c->from->data, (size_t)c->from->shape[0] * sizeof *c->to);
    return 0;
}

static int32_t *read_docs(const struct building *b, struct err *e)
{
    int32_t *doc = big_alloc(b->data, entries(b, DOC), sizeof *doc, e);
    struct npy a = {0};
    struct docs_copy copy = { &a, doc };

    if (doc && (npy_open(b->path[DOC], &a, e) < 0 ||
                check_index_shape(&a, NPY_I32, 1, entries(b, DOC), 1, e) < 0 || mapped_use(copy_docs, &copy, e) < 0)) {
        free(doc);
        doc = NULL;
    }
    npy_close(&a);
    return doc;
}

static bool is_written(const struct building *b, int kind)
{
    const int64_t rows = entries(b, (uint32_t)kind);
    struct err ignored = {0};
    struct npy a = {0};
    const bool yes =
        npy_open(b->path[kind], &a, &ignored) == 0 &&
        check_index_shape(&a, NPY_I32, kind == SAMPLE ? 2 : 1, rows, kind == SAMPLE ? 2 : 1, &ignored) == 0;

    npy_close(&a);
    return yes;
}

/* Continue a partial result if it belongs to the same indices. Otherwise begin with the first index. */
static int resume_index_build(struct building *b, struct err *e)
{
    const struct build_of of = b->at.of;
    char *path = record_path(b);
    struct err ignored = {0};
    FILE *f = fopen(path, "re");
    bool goes_on = f && fread(&b->at, sizeof b->at, 1, f) == 1 &&
                   memcmp(&of, &b->at.of, sizeof of) == 0 && b->at.kind < N_KINDS && b->at.done >= 0 &&
                   b->at.done <= entries(b, b->at.kind) && b->at.pos >= 0 && b->at.pos < entries(b, DOC) &&
                   b->at.rng.pos >= 0 && b->at.rng.pos <= 624;
    int rc = 0;

    for (uint32_t kind = 0; goes_on && kind < b->at.kind; kind++)
        goes_on = is_written(b, (int)kind);
    if (goes_on) {
        b->array = big_alloc(b->data, entries(b, b->at.kind), entry_size(b, b->at.kind), e);
        rc = b->array ? 0 : -1;
        goes_on = rc == 0 && fread(b->array, 1, kept_bytes(b), f) == kept_bytes(b) &&
                  record_crc(&b->at, b->array, kept_bytes(b)) == b->at.crc;
    }
    if (rc == 0 && !goes_on) {
        free(b->array);
        b->array = NULL;
        b->at = (struct build_at){ .of = of, .kind = DOC };
        mt19937_seed(&b->at.rng, b->spec->seed);
    }
    (void)!file_replace_sweep(path, &ignored);
    if (f)
        fclose(f);
    free(path);
    return rc;
}

/* Make the current index and write its file. */
static int build_one_index(struct building *b, struct err *e)
{
    const uint32_t kind = b->at.kind;
    const int64_t shape[2] = { entries(b, kind), 2 };
    int32_t *doc = NULL;
    int rc = -1;

    if (!b->array)
        b->array = big_alloc(b->data, shape[0], entry_size(b, kind), e);
    if (b->array && kind == SAMPLE)
        b->doc = doc = read_docs(b, e);
    if (b->array && (kind != SAMPLE || doc))
        rc = kind == DOC ? make_doc_idx(b, e) : kind == SAMPLE ? mapped_use(make_sample_idx, b, e)
                                                              : make_shuffle_idx(b, e);
    if (rc == 0)
        rc = npy_save(b->path[kind], kind == SHUFFLE ? shuffle_type(b->plan) : NPY_I32, kind == SAMPLE ? 2 : 1, shape,
                      b->array, e);
    free(doc);
    free(b->array);
    b->array = NULL;
    b->at.done = b->at.pos = b->at.offset = 0;
    return rc;
}

/* Build all three indices. The order matters, because one random generator is used for both shuffles. */
static int build_gpt_indices(const struct mmidx *data, const struct gpt_index_spec *spec,
                             const struct gpt_index_plan *plan, char *const path[N_KINDS],
                             struct gpt_index_progress *progress, struct err *e)
{
    struct building b = { .data = data, .spec = spec, .plan = plan, .path = path, .progress = progress,
                          .kept_s = clock_s() };
    char *record = record_path(&b);
    int rc;

    memcpy(b.at.of.magic, "SKORDER1", sizeof b.at.of.magic);
    b.at.of.first_doc = spec->first_doc;
    b.at.of.end_doc = spec->end_doc;
    b.at.of.n_samples = spec->n_samples;
    b.at.of.s = spec->s;
    b.at.of.tokens = plan->tokens;
    b.at.of.epochs = plan->epochs;
    b.at.of.samples = plan->samples;
    b.at.of.before_last = plan->samples_before_last;
    b.at.of.data_docs = mmidx_n(data);
    b.at.of.cut = spec->cut;
    b.at.of.seed = spec->seed;
    b.at.of.separate = plan->separate;
    if (progress)
        atomic_store(&progress->total, entries(&b, DOC) + entries(&b, SAMPLE) + entries(&b, SHUFFLE));
    rc = resume_index_build(&b, e);
    for (; rc == 0 && b.at.kind < N_KINDS; b.at.kind++)
        rc = build_one_index(&b, e);
    if (rc == 0)
        unlink(record);
    free(b.array);
    free(record);
    return rc;
}

/* ---- opening ---- */

/*
 * Check that the documents in doc_idx are in the spec's range. This detects files that were made for another range with
 * the same number of documents. The documents are shuffled, so checking the first million is sufficient. Called by
 * mapped_use().
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

static int open_gpt_indices(const struct gpt_index_spec *spec, const struct gpt_index_plan *plan,
                            char *const path[N_KINDS], struct gpt_index *x, struct err *e)
{
    x->samples = plan->samples;
    if (npy_open(path[DOC], &x->doc, e) < 0 || npy_open(path[SAMPLE], &x->sample, e) < 0 ||
        npy_open(path[SHUFFLE], &x->shuffle, e) < 0)
        return -1;
    if (check_index_shape(&x->doc, NPY_I32, 1, plan->epochs * range_docs(spec), 1, e) < 0 ||
        check_index_shape(&x->sample, NPY_I32, 2, plan->samples + 1, 2, e) < 0 ||
        check_index_shape(&x->shuffle, shuffle_type(plan), 1, plan->samples, 1, e) < 0)
        return -1;
    return mapped_use(check_docs, &(struct index_check){ &x->doc, spec }, e);
}

/* If writing failed because the folder is not writable, add a suggestion to the error. */
static void suggest_folder(struct err *e)
{
    if (e->sys == EACCES || e->sys == EROFS || e->sys == EPERM)
        err_add(e, "; --index-dir names another folder for the index files");
}

int gpt_index_open(const struct mmidx *data, const struct gpt_index_spec *spec, const struct gpt_index_files *f,
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
        path[i] = gpt_index_path(mmidx_prefix(data), spec, f->dir, kinds[i]);
        missing |= access(path[i], F_OK) < 0 && errno == ENOENT;
    }
    rc = missing && f->build ? build_gpt_indices(data, spec, &plan, path, f->progress, e) : 0;
    if (rc < 0)
        suggest_folder(e);
    if (rc == 0)
        rc = open_gpt_indices(spec, &plan, path, x, e);
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
