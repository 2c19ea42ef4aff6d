/*
 * api.c - the C interface of libshardkit.so (include/shardkit.h) over views, readers and verify
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "include/shardkit.h"
#include "libcommon/api/view.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/processors.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/plan/reader.h"

/* number of bytes that sk_read() reads in one step; merging copies needs a buffer of this size for each copy */
enum { READ_AT_ONCE = 8 << 20 };

enum { MAX_THREADS = 1024 };            /* as the option --threads */

/*
 * This lock protects the stop flag below and the HDF5 library, which is not thread-safe. sk_open() and sk_verify() use
 * the lock.
 */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static const volatile int *stop_flag;

static bool is_stop_set(void)
{
    return stop_flag && *stop_flag;
}

int sk_abi(void)
{
    return SHARDKIT_ABI;
}

const char *sk_version(void)
{
    return SHARDKIT_VERSION;
}

/* ---- errors, options, findings ---- */

static void give_error(const struct err *e, struct sk_error *out)
{
    static const int code[] = { [ERR_SYS] = SK_ERROR_SYSTEM, [ERR_DATA] = SK_ERROR_DATA, [ERR_USAGE] = SK_ERROR_USAGE,
                                [ERR_STOP] = SK_ERROR_STOPPED };

    if (!out)
        return;
    out->code = code[e->kind];
    out->system = e->sys;
    snprintf(out->text, sizeof out->text, "%s", e->kind == ERR_STOP ? "stopped by the caller" : e->msg);
}

/*
 * Copy the options that a caller has set to `out`, a struct of `size` bytes. The caller may have been compiled with an
 * older or a newer header. Members that the caller's header lacks become 0. Returns -1 with ERR_USAGE if the caller has
 * set members that this library does not have.
 */
static int copy_options(void *out, size_t size, const void *given, struct err *e)
{
    size_t n = 0;

    memset(out, 0, size);
    if (!given)
        return 0;
    memcpy(&n, given, sizeof n);
    for (size_t i = size; i < n; i++)
        if (((const char *)given)[i]) {
            err_usage(e, "options of %zu bytes are set, this library knows %zu; use a later libshardkit", n, size);
            return -1;
        }
    if (n < sizeof n) {
        err_usage(e, "the member `size` of the options is %zu; it must be their size", n);
        return -1;
    }
    memcpy(out, given, min_u64(n, size));
    return 0;
}

/* Check the arguments that sk_open() and sk_verify() share. */
static int check_arguments(const char *path, int threads, struct err *e)
{
    if (!path)
        err_usage(e, "path is NULL");
    else if (threads < 0 || threads > MAX_THREADS)
        err_usage(e, "threads is %d, expected 1 to %d, or 0 for the default", threads, MAX_THREADS);
    return e->kind == ERR_NONE ? 0 : -1;
}

struct finding_list {
    struct report *report;      /* owns all strings of the findings except their texts */
    int n;
    struct sk_finding *finding;
};

static void list_findings(struct finding_list *l)
{
    l->n = report_n(l->report);
    l->finding = xcalloc((size_t)l->n + 1, sizeof *l->finding);
    for (int i = 0; i < l->n; i++) {
        const struct finding *f = report_get(l->report, i);

        l->finding[i] = (struct sk_finding){
            .severity = f->severity == SEV_ERROR ? SK_ERROR : f->severity == SEV_WARNING ? SK_WARNING : SK_NOTE,
            .code = f->code, .text = finding_text(f), .file = f->file, .at = f->at, .parameter = f->param,
        };
    }
}

static void free_findings(struct finding_list *l)
{
    for (int i = 0; i < l->n; i++)
        free((char *)(uintptr_t)l->finding[i].text);
    free(l->finding);
    report_free(l->report);
}

/* ---- open and close ---- */

struct sk_checkpoint {
    struct view *view;
    struct finding_list findings;       /* findings of the call that opened the checkpoint */
    enum replica_policy replicas;
    struct sk_info info;
    struct sk_tensor *tensor;           /* [view->n_known]: one per entry of view->tensor */
    pthread_mutex_t names;              /* protects the source's tables of names, which are built when they are first
                                         * needed */
};

static void list_tensors(struct sk_checkpoint *c)
{
    const struct view *v = c->view;

    c->tensor = xcalloc((size_t)v->n_known + 1, sizeof *c->tensor);
    for (int i = 0; i < v->n_known; i++) {
        const struct view_tensor *t = &v->tensor[i];
        int size = dtype_size(t->dtype);

        c->tensor[i] = (struct sk_tensor){
            .kind = i < v->n ? SK_PARAMETER : i >= v->n_all ? SK_STACK : t->buffer ? SK_BUFFER : SK_OTHER,
            .name = t->name, .state = t->state < 0 ? NULL : state_name((enum state)t->state),
            .dtype = dtype_name(t->dtype), .item_size = size, .ndim = t->ndim, .shape = t->shape,
            .elements = t->n_elems, .bytes = (uint64_t)t->n_elems * (uint64_t)size,
        };
    }
}

static struct sk_checkpoint *open_view(const char *path, const struct sk_open_options *o, struct err *e)
{
    static const enum replica_policy policy[] = {
        [SK_REPLICAS_AVERAGE] = REPLICAS_AVERAGE, [SK_REPLICAS_FIRST] = REPLICAS_FIRST,
        [SK_REPLICAS_MAJORITY] = REPLICAS_MAJORITY, [SK_REPLICAS_FAIL] = REPLICAS_FAIL,
    };
    const struct view_select select = { .state = -1, .model = o->model, .threads = o->threads };
    struct sk_checkpoint *c = xcalloc(1, sizeof *c);

    pthread_mutex_init(&c->names, NULL);
    c->findings.report = report_new();
    if (o->replicas < 0 || o->replicas > SK_REPLICAS_FAIL) {
        err_usage(e, "replicas is %d, expected 0 to %d", o->replicas, SK_REPLICAS_FAIL);
    } else {
        c->replicas = policy[o->replicas];
        c->view = view_open(path, &select, c->findings.report, e);
    }
    if (!c->view || (!o->damaged && report_first_error(c->findings.report, e) < 0)) {
        sk_close(c);
        return NULL;
    }
    files_hold(c->view->files);
    list_findings(&c->findings);
    list_tensors(c);
    c->info = (struct sk_info){ .path = c->view->path, .layout = "file", .iteration = -1 };
    if (c->view->source)
        c->info = (struct sk_info){ .path = source_path(c->view->source), .layout = source_layout_name(c->view->source),
                                    .iteration = source_run(c->view->source)->iteration };
    return c;
}

struct sk_checkpoint *sk_open(const char *path, const struct sk_open_options *options, struct sk_error *error)
{
    struct sk_checkpoint *c = NULL;
    struct sk_open_options o;
    struct err e = {0};

    if (copy_options(&o, sizeof o, options, &e) == 0 && check_arguments(path, o.threads, &e) == 0) {
        pthread_mutex_lock(&one_at_a_time);
        c = open_view(path, &o, &e);
        pthread_mutex_unlock(&one_at_a_time);
    }
    if (!c)
        give_error(&e, error);
    return c;
}

void sk_close(struct sk_checkpoint *c)
{
    if (!c)
        return;
    view_close(c->view);
    free_findings(&c->findings);
    free(c->tensor);
    pthread_mutex_destroy(&c->names);
    free(c);
}

const struct sk_info *sk_info(const struct sk_checkpoint *c)
{
    return c ? &c->info : NULL;
}

const struct sk_finding *sk_findings(const struct sk_checkpoint *c, int *n)
{
    if (n)
        *n = c ? c->findings.n : 0;
    return c ? c->findings.finding : NULL;
}

/* ---- tensors ---- */

int64_t sk_count(const struct sk_checkpoint *c)
{
    return c ? c->view->n_known : 0;
}

const struct sk_tensor *sk_tensor(const struct sk_checkpoint *c, int64_t i)
{
    return c && i >= 0 && i < c->view->n_known ? &c->tensor[i] : NULL;
}

int64_t sk_find(struct sk_checkpoint *c, const char *name, const char *state, struct sk_error *error)
{
    const struct source_value *plain = NULL;
    int i = -1, st = state ? state_by_name(state) : -1;
    struct err e = {0};

    if (!c || !name) {
        err_usage(&e, "%s is NULL", c ? "name" : "the checkpoint");
    } else if (state && st < 0) {
        err_usage(&e, "no state is called '%s'; expected bf16, fp32, exp_avg or exp_avg_sq", state);
    } else {
        pthread_mutex_lock(&c->names);
        i = view_lookup(c->view, name, st, &plain, &e);
        pthread_mutex_unlock(&c->names);
    }
    if (plain)
        err_data(&e, c->info.path, ERR_NO_BYTE, "%s is a plain value and no tensor", name);
    if (i < 0)
        give_error(&e, error);
    return i;
}

/* Read a range in steps of READ_AT_ONCE bytes. This limits the memory that merging copies needs. */
static int read_range(const struct sk_checkpoint *c, const struct view_tensor *t, struct tmap_range range, uint8_t *buf,
                      struct err *e)
{
    const uint64_t size = (uint64_t)dtype_size(t->dtype), step = READ_AT_ONCE / size * size;
    struct reader *r = reader_new(t->map, c->view->files, c->replicas, range.from, range.len);
    int rc = 0;
    uint32_t crc;

    for (uint64_t at = 0, n; at < range.len && rc == 0; at += n) {
        n = min_u64(step, range.len - at);
        rc = reader_read(r, range.from + at, n, buf + at, e);
    }
    if (rc == 0 && reader_crc(r, &crc))
        rc = view_check_digest(c->view, t, crc, e);
    reader_free(r);
    return rc;
}

int sk_read(const struct sk_checkpoint *c, int64_t i, int64_t first, int64_t n, void *buf, size_t size,
            struct sk_error *error)
{
    const struct sk_tensor *s = sk_tensor(c, i);
    struct err e = {0};
    int rc = -1;

    if (!s)
        err_usage(&e, "no tensor has number %lld; there are %lld", (long long)i, (long long)sk_count(c));
    else if (first < 0 || n < 0 || first > s->elements - n)
        err_usage(&e, "%s has %lld elements; %lld from number %lld are not in it", s->name, (long long)s->elements,
                  (long long)n, (long long)first);
    else if ((uint64_t)n * (uint64_t)s->item_size > size)
        err_usage(&e, "%s: %lld elements need %llu bytes, the buffer has %zu", s->name, (long long)n,
                  (unsigned long long)n * (unsigned)s->item_size, size);
    else if (!buf && n > 0)
        err_usage(&e, "%s: the buffer is NULL", s->name);
    else if (!c->view->tensor[i].map)
        err_data(&e, c->info.path, ERR_NO_BYTE, "tensor %s has too many pieces to be read", s->name);
    else
        rc = n ? read_range(c, &c->view->tensor[i],
                            (struct tmap_range){ 0, (uint64_t)first * (uint64_t)s->item_size,
                                                 (uint64_t)n * (uint64_t)s->item_size }, buf, &e) : 0;
    if (rc < 0)
        give_error(&e, error);
    return rc;
}

/*
 * Find the bytes of tensor i on disk, like sk_locate(). Returns the number of the file that holds these bytes in the
 * table of files, or -1 if there is none.
 */
static int locate_file(const struct sk_checkpoint *c, int64_t i, struct sk_place *place)
{
    const struct tmap *m = sk_tensor(c, i) ? c->view->tensor[i].map : NULL;
    struct files *f = m ? c->view->files : NULL;
    struct tmap_cursor cursor;
    struct tmap_piece p;
    uint64_t done = 0;
    int slice = -1, file = -1;

    if (!m || m->len == 0)
        return -1;
    if (tmap_overlays(m) && m->n_slices > 1) {
        if (m->op != TMAP_REPLICAS || c->replicas != REPLICAS_FIRST)
            return -1;
        slice = 0;
    }
    tmap_begin(&cursor, m, 0, m->len, slice);
    while (tmap_next(&cursor, UINT64_MAX, &p)) {
        const struct record *rec = files_record(f, p.src.record);
        uint64_t at;
        const char *path = files_path(f, rec->file, &at);

        at += rec->at + p.src.at;
        if (done == 0) {
            file = rec->file;
            *place = (struct sk_place){ path, at };
        }
        if (!path || p.dst != done || (p.n > 1 && p.stride != p.run) || at != place->at + done ||
            (path != place->path && strcmp(path, place->path) != 0))
            return -1;
        done += p.src.len;
    }
    return done == m->len ? file : -1;
}

int sk_locate(const struct sk_checkpoint *c, int64_t i, struct sk_place *place)
{
    struct sk_place found;

    if (!place || locate_file(c, i, &found) < 0)
        return 0;
    *place = found;
    return 1;
}

int sk_place_descriptor(const struct sk_checkpoint *c, int64_t i, struct sk_error *error)
{
    const struct sk_tensor *s = sk_tensor(c, i);
    struct sk_place place;
    int file = locate_file(c, i, &place), fd = -1;
    struct err e = {0};

    if (!s)
        err_usage(&e, "no tensor has number %lld; there are %lld", (long long)i, (long long)sk_count(c));
    else if (file < 0)
        err_data(&e, c->info.path, ERR_NO_BYTE, "the bytes of %s do not lie whole in one file", s->name);
    else
        fd = files_fd_copy(c->view->files, file, &e);
    if (fd < 0)
        give_error(&e, error);
    return fd;
}

/* ---- verify ---- */

struct verification {
    struct sk_verification is;          /* first member: the caller holds a pointer to it */
    struct finding_list findings;
};

static struct verification *run_verify(const char *path, const struct sk_verify_options *o, struct err *e)
{
    struct verification *v = xcalloc(1, sizeof *v);
    struct verify_stats st = {0};
    const struct verify_opts opts = {
        .lenient = o->lenient, .allow_drift = o->allow_drift, .certificate = o->certificate, .model = o->model,
        .threads = o->threads > 0 ? o->threads : processors_default_threads(1), .mem_bytes = o->memory,
        .progress = PROGRESS_NEVER, .stopped = is_stop_set, .stats = &st,
    };
    struct report *r = v->findings.report = report_new();

    if (is_stop_set())
        err_stop(e);
    if (e->kind != ERR_NONE || verify_run(path, &opts, r, e) < 0) {
        sk_verification_free(&v->is);
        return NULL;
    }
    list_findings(&v->findings);
    v->is = (struct sk_verification){
        .errors = report_count(r, SEV_ERROR), .warnings = report_count(r, SEV_WARNING), .n = v->findings.n,
        .finding = v->findings.finding, .layout = st.layout, .files = st.n_files,
        .bytes = st.size_bytes,
    };
    v->is.sound = v->is.errors == 0 && !(o->strict && v->is.warnings > 0);
    return v;
}

struct sk_verification *sk_verify(const char *path, const struct sk_verify_options *options, struct sk_error *error)
{
    struct verification *v = NULL;
    struct sk_verify_options o;
    struct err e = {0};

    if (copy_options(&o, sizeof o, options, &e) == 0 && check_arguments(path, o.threads, &e) == 0) {
        pthread_mutex_lock(&one_at_a_time);
        stop_flag = o.stop;
        v = run_verify(path, &o, &e);
        stop_flag = NULL;
        pthread_mutex_unlock(&one_at_a_time);
    }
    if (!v)
        give_error(&e, error);
    return v ? &v->is : NULL;
}

void sk_verification_free(struct sk_verification *is)
{
    struct verification *v = (struct verification *)is;

    if (!v)
        return;
    free_findings(&v->findings);
    free(v);
}
