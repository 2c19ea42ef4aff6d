/*
 * pt.c - open a .pt file
 *
 * pt_open() reads the zip directory, checks the rules for the entries (prefix, version, byte order), adds the storages
 * to the table of records, parses data.pkl, and checks each reference to a storage and each view of a storage. After
 * these checks, no tensor refers to bytes outside its storage.
 */
#include "libcommon/format/pt.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/tensor.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/pickle/pickle_classes.h"
#include "libcommon/format/pt_kind.h"
#include "libcommon/format/zip_bytes.h"

/* Maximum size of the records that are not tensors (version, byteorder, code of extensions), which are all small. */
#define MAX_SMALL_RECORD ((uint64_t)1 << 20)

/* Maximum number of records in all files together. A checkpoint of BLOOM-176B has about 10,000 records. */
enum { MAX_RECORDS = 4 << 20 };

/* Location of an entry's uncompressed bytes, and the element type that the pickle declares for it. */
struct pt_place {
    int file;
    uint64_t at;
    int record;                         /* number of the storage's record in struct files; -1 for an entry that is
                                         * not a storage */
    bool typed;                         /* dtype is set, because a typed reference in the pickle names this storage */
    enum dtype dtype;
};

struct pt {
    const char *path;
    struct arena *arena;
    struct zip *zip;
    struct pk_tree tree;
    char *prefix;
    struct pt_place *place;             /* [number of zip entries]: location of each entry */
    int *storage, n_storages;           /* record numbers of the storages */
    bool new_tree;                      /* the tree was replaced, so it is not the one in the file */
};

struct pt_opener {
    struct pt *pt;
    struct files *f;
    int file;
    struct err *e;
};

static int refuse_pt_archive(struct pt_opener *o, const char *what)
{
    err_data(o->e, o->pt->path, ERR_NO_BYTE, "not a torch.save archive (%s)", what);
    return -1;
}

static int entry_index(const struct pt *pt, const struct zip_entry *x)
{
    return (int)(x - zip_entry(pt->zip, 0));
}

/* Return the zip entry of the record `name` ("data/3"), or NULL if there is none. */
static const struct zip_entry *find_pt_record(const struct pt *pt, const char *name)
{
    char *full = str_fmt("%s/%s", pt->prefix, name);
    const struct zip_entry *x = zip_find(pt->zip, full);

    free(full);
    return x;
}

/* Return the name of a record without the prefix of the file: for "prefix/data/3" it is "data/3". */
static const char *pt_record_name(const struct pt *pt, const struct zip_entry *x)
{
    return x->name + strlen(pt->prefix) + 1;
}

static bool is_storage(const char *name)
{
    size_t n = strspn(name + (str_starts(name, "data/") ? 5 : 0), "0123456789");

    return str_starts(name, "data/") && n > 0 && n <= 20 && name[5 + n] == '\0';
}

/* ---- records ---- */

/*
 * Determine the location of every record. Compressed records are decompressed into a spool file in one pass; stored
 * records remain where they are.
 */
static int place_records(struct pt_opener *o)
{
    struct pt *pt = o->pt;
    struct archive_want *want = xcalloc((size_t)zip_n(pt->zip), sizeof *want);
    int n = 0, spool = -1, rc = -1;

    pt->place = arena_alloc(pt->arena, (size_t)zip_n(pt->zip) * sizeof *pt->place);
    for (int i = 0; i < zip_n(pt->zip); i++) {
        const struct zip_entry *x = zip_entry(pt->zip, i);

        pt->place[i] = (struct pt_place){ .file = o->file, .at = x->at, .record = -1 };
        if (x->method != 0)
            want[n++] = (struct archive_want){ .name = x->name, .size = x->size, .crc = x->crc };
    }
    if (n && (spool = archive_unpack(o->f, o->file, want, n, o->e)) < 0)
        goto out;
    for (int i = 0, k = 0; k < n; i++)
        if (zip_entry(pt->zip, i)->method != 0) {
            pt->place[i].file = spool;
            pt->place[i].at = want[k++].at;
        }
    rc = 0;
out:
    free(want);
    return rc;
}

static int bad_crc(const struct pt *pt, const struct zip_entry *x, uint32_t found, struct err *e)
{
    err_data(e, pt->path, x->at, "record %s is corrupt (crc %08x, expected %08x)", pt_record_name(pt, x), found,
             x->crc);
    return -1;
}

/*
 * Returns true if the file stores a CRC for the entry. torch can be configured to store no CRCs. In this case all CRCs
 * in the file are 0.
 */
static bool has_crc(const struct zip_entry *x)
{
    return x->crc != 0 || x->size == 0;
}

/*
 * Read a whole record and check its CRC. Returns malloc'd memory in which a NUL follows the record, or NULL on failure.
 */
static char *read_record(struct pt_opener *o, const struct zip_entry *x, uint64_t max)
{
    const struct pt_place *p = &o->pt->place[entry_index(o->pt, x)];
    uint32_t crc;
    char *buf;

    if (x->size > max) {
        err_data(o->e, o->pt->path, x->at, "record %s has %llu bytes, at most %llu are expected",
                 pt_record_name(o->pt, x), (unsigned long long)x->size, (unsigned long long)max);
        return NULL;
    }
    buf = xmalloc(x->size + 1);
    buf[x->size] = '\0';
    if (files_read(o->f, p->file, p->at, buf, x->size, o->e) < 0)
        goto fail;
    crc = crc_bytes(0, buf, x->size);
    if (has_crc(x) && crc != x->crc) {
        bad_crc(o->pt, x, crc, o->e);
        goto fail;
    }
    return buf;
fail:
    free(buf);
    return NULL;
}

/* ---- the rules for the entries of a .pt file ---- */

static int check_prefix(struct pt_opener *o)
{
    struct pt *pt = o->pt;
    const char *first = zip_entry(pt->zip, 0)->name, *slash = strchr(first, '/');
    size_t n;

    if (!slash || slash == first)
        return refuse_pt_archive(o, "its records have no prefix");
    n = (size_t)(slash - first);
    pt->prefix = arena_strndup(pt->arena, first, n);
    for (int i = 0; i < zip_n(pt->zip); i++) {
        const char *name = zip_entry(pt->zip, i)->name;

        if (strncmp(name, first, n + 1) != 0) {
            err_data(o->e, pt->path, ERR_NO_BYTE, "records under two prefixes (%s, %.*s)", pt->prefix,
                     (int)strcspn(name, "/"), name);
            return -1;
        }
    }
    if (find_pt_record(pt, "constants.pkl"))
        return refuse_pt_archive(o, "a TorchScript program");
    return 0;
}

/*
 * Return the text of a small record without its final newline. Returns NULL if there is no such record. Also returns
 * NULL, with *e set, if the record cannot be read.
 */
static char *read_word(struct pt_opener *o, const char *name)
{
    const struct zip_entry *x = find_pt_record(o->pt, name);
    char *s = x ? read_record(o, x, MAX_SMALL_RECORD) : NULL;

    if (s && x->size && s[x->size - 1] == '\n')
        s[x->size - 1] = '\0';
    return s;
}

static int check_pt_version(struct pt_opener *o)
{
    const char *name = find_pt_record(o->pt, "version") ? "version" : ".data/version";
    char *s, *end;
    long v;

    if (!find_pt_record(o->pt, name))
        return refuse_pt_archive(o, "record version missing");
    if (!(s = read_word(o, name)))
        return -1;
    v = strtol(s, &end, 10);
    if (end == s || *end || v < 1 || v > 10 || !isdigit((unsigned char)*s)) {
        err_data(o->e, o->pt->path, ERR_NO_BYTE, "not a torch.save archive (version '%.16s', 1 to 10 expected)", s);
        free(s);
        return -1;
    }
    free(s);
    return 0;
}

static int check_byteorder(struct pt_opener *o)
{
    char *s;
    int rc = 0;

    if (!find_pt_record(o->pt, "byteorder"))
        return 0;
    if (!(s = read_word(o, "byteorder")))
        return -1;
    if (strcmp(s, "little") != 0) {
        err_data(o->e, o->pt->path, ERR_NO_BYTE, strcmp(s, "big") == 0 ?
                 "big-endian checkpoint not supported" : "unknown byte order, 'little' expected");
        rc = -1;
    }
    free(s);
    return rc;
}

/*
 * Add storages and other large entries to the table of records. Other small entries are read once here to check their
 * CRC.
 */
static int add_records(struct pt_opener *o)
{
    struct pt *pt = o->pt;

    if (files_n_records(o->f) > MAX_RECORDS - zip_n(pt->zip)) {
        err_data(o->e, pt->path, ERR_NO_BYTE, "with it the checkpoint has more than %d records", MAX_RECORDS);
        return -1;
    }
    pt->storage = arena_alloc(pt->arena, (size_t)zip_n(pt->zip) * sizeof *pt->storage);
    for (int i = 0; i < zip_n(pt->zip); i++) {
        const struct zip_entry *x = zip_entry(pt->zip, i);
        const char *name = pt_record_name(pt, x);
        struct pt_place *p = &pt->place[i];

        if (strcmp(name, "data.pkl") == 0)
            continue;
        if (is_storage(name) || x->size > MAX_SMALL_RECORD) {
            struct record rec = { .at = p->at, .len = x->size, .has_crc = has_crc(x), .crc = x->crc, .name = name };

            rec.file = files_home(o->f, p->file, &rec.at);
            p->record = files_add_record(o->f, &rec);
            pt->storage[pt->n_storages++] = p->record;
        } else {
            char *s = read_record(o, x, MAX_SMALL_RECORD);

            if (!s)
                return -1;
            free(s);
        }
    }
    return 0;
}

static int read_pickle(struct pt_opener *o)
{
    const struct zip_entry *x = find_pt_record(o->pt, "data.pkl");
    char *bytes, *name;
    int rc;

    if (!x)
        return refuse_pt_archive(o, "record data.pkl missing");
    if (!(bytes = read_record(o, x, PICKLE_MAX_BYTES)))
        return -1;
    name = str_fmt("%s: data.pkl", o->pt->path);
    rc = pickle_parse(bytes, x->size, name, &o->pt->tree, o->e);
    free(name);
    free(bytes);
    return rc;
}

/* ---- storages and views ---- */

/*
 * Return the offset in the file of the byte from which node v was parsed. If the pickle is compressed, returns the
 * offset of this byte in the pickle.
 */
static uint64_t file_byte(const struct pt *pt, const struct pk *v)
{
    const struct zip_entry *x = find_pt_record(pt, "data.pkl");

    return x->method == 0 ? x->at + v->at : v->at;
}

/* The contents of a reference to a storage, such as ('storage', torch.FloatStorage, '3', 'cpu', 64). */
struct persid {
    const struct zip_entry *entry;
    enum dtype dtype;
    bool raw;                           /* the storage is an UntypedStorage, whose elements are bytes */
    int64_t n;                          /* number of elements */
};

/* Parse a reference to a storage. Returns -1 if v has another form, or if the record of the storage is missing. */
static int read_persid(const struct pt *pt, const struct pk *v, struct persid *s, struct err *e)
{
    const struct pk *id = v->args;
    const char *kind = id->n == 5 ? pk_as_str(id->item[0]) : NULL, *key = kind ? pk_as_str(id->item[2]) : NULL;
    char name[32];

    if (!kind || strcmp(kind, "storage") != 0 || !key || strlen(key) > 20 ||
        !pickle_storage_dtype(id->item[1], &s->dtype, &s->raw) || id->item[4]->type != PK_INT || id->item[4]->i < 0) {
        err_data(e, pt->path, file_byte(pt, v), "a storage reference that is not ('storage', type, key, location, n)");
        return -1;
    }
    snprintf(name, sizeof name, "data/%s", key);
    s->entry = is_storage(name) ? find_pt_record(pt, name) : NULL;
    s->n = id->item[4]->i;
    if (!s->entry) {
        err_data(e, pt->path, file_byte(pt, v), "record data/%s missing", is_storage(name) ? key : "?");
        return -1;
    }
    return 0;
}

static int check_persid(struct pt_opener *o, const struct pk *v)
{
    struct persid s;
    struct pt_place *p;
    uint64_t bytes;

    if (read_persid(o->pt, v, &s, o->e) < 0)
        return -1;
    p = &o->pt->place[entry_index(o->pt, s.entry)];
    if (!mul_u64((uint64_t)s.n, s.raw ? 1 : (uint64_t)dtype_size(s.dtype), &bytes) || bytes != s.entry->size) {
        err_data(o->e, o->pt->path, file_byte(o->pt, v),
                 "storage %s has %llu bytes, pickle expects %lld elements of %s", pt_record_name(o->pt, s.entry) + 5,
                 (unsigned long long)s.entry->size, (long long)s.n, s.raw ? "1 byte" : dtype_name(s.dtype));
        return -1;
    }
    if (!s.raw && p->typed && p->dtype != s.dtype) {
        err_data(o->e, o->pt->path, file_byte(o->pt, v), "storage %s is %s in one place and %s in another",
                 pt_record_name(o->pt, s.entry) + 5, dtype_name(p->dtype), dtype_name(s.dtype));
        return -1;
    }
    if (!s.raw) {
        p->typed = true;
        p->dtype = s.dtype;
    }
    return 0;
}

/* Parse sizes or strides. Returns false if v is not a sequence of at most PT_MAX_DIM numbers >= 0. */
static bool read_dims(const struct pk *v, int *n, int64_t *out)
{
    uint32_t count;
    struct pk **item = pk_items(v, &count);

    if (!item || count > PT_MAX_DIM)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (item[i]->type != PK_INT || item[i]->i < 0)
            return false;
        out[i] = item[i]->i;
    }
    *n = (int)count;
    return true;
}

/*
 * Compute the number of elements of the view, and whether it is contiguous. *reach is set to the index of the last
 * storage element that the view uses, plus one. Returns false on overflow.
 */
static bool measure_tensor_view(struct pt_tensor *t, uint64_t offset, uint64_t *reach)
{
    const int64_t n = shape_count(t->ndim, t->shape);
    const bool empty = n == 0;
    uint64_t step, row = 1;

    *reach = offset;
    if (n < 0)
        return false;
    for (int i = 0; i < t->ndim && !empty; i++)
        if (!mul_u64((uint64_t)t->shape[i] - 1, (uint64_t)t->stride[i], &step) || !add_u64(*reach, step, reach))
            return false;
    t->n_elems = n;
    t->contiguous = true;
    for (int i = t->ndim - 1; i >= 0 && !empty; i--) {
        if (t->shape[i] != 1 && (uint64_t)t->stride[i] != row)
            t->contiguous = false;
        row *= (uint64_t)t->shape[i];
    }
    return empty || add_u64(*reach, 1, reach);
}

static int out_of_storage(const struct pt *pt, const struct pk *v, uint64_t reach, const char *key, int64_t n,
                          struct err *e)
{
    struct strbuf path = {0};

    pk_path(pt->tree.root, v, &path);
    err_data(e, pt->path, file_byte(pt, v), "tensor '%s' reaches element %llu of storage %s, which has %lld",
             path.len ? path.buf : "", (unsigned long long)reach, key, (long long)n);
    strbuf_free(&path);
    return -1;
}

/* Fill *t from v, which must be a call for which pt_kind_flaw() returns NULL. */
static int read_pt_tensor(const struct pt *pt, const struct pk *v, struct pt_tensor *t, struct err *e)
{
    const struct pt_call c = pt_kind_call(v);
    const struct pk *args = c.args;
    struct persid s;
    int n_strides;
    uint64_t reach;

    memset(t, 0, sizeof *t);
    if (args->n != c.n_least && (c.version == 1 || args->n != c.n_least + 1))
        goto odd;
    if (args->item[0]->type != PK_PERSID || args->item[1]->type != PK_INT || args->item[1]->i < 0 ||
        !read_dims(args->item[2], &t->ndim, t->shape) || !read_dims(args->item[3], &n_strides, t->stride) ||
        n_strides != t->ndim || (c.version > 1 && args->item[4]->type != PK_BOOL))
        goto odd;
    if (read_persid(pt, args->item[0], &s, e) < 0)
        return -1;
    if (s.raw != (c.version == 3) || (s.raw && !pickle_dtype(args->item[6], &s.dtype)))
        goto odd;
    if (s.raw)
        s.n /= dtype_size(s.dtype);
    t->dtype = s.dtype;
    t->requires_grad = c.version > 1 && args->item[4]->i;
    t->record = pt->place[entry_index(pt, s.entry)].record;
    if (!measure_tensor_view(t, (uint64_t)args->item[1]->i, &reach))
        reach = UINT64_MAX;
    if (reach > (uint64_t)s.n)
        return out_of_storage(pt, v, reach, pt_record_name(pt, s.entry) + 5, s.n, e);
    t->at = (uint64_t)args->item[1]->i * (uint64_t)dtype_size(t->dtype);
    return 0;
odd:
    err_data(e, pt->path, file_byte(pt, v), "a tensor with arguments of no known form (at most %d dimensions, "
             "sizes and strides from 0)", PT_MAX_DIM);
    return -1;
}

/*
 * Returns true if v is a call that describes a view of a storage, and the values of the view are the unchanged values
 * in the storage.
 */
static bool is_tensor_call(const struct pk *v)
{
    const struct pt_call c = pt_kind_call(v);

    return c.args && !pt_kind_flaw(&c);
}

bool pt_tensor(const struct pt *pt, const struct pk *v, struct pt_tensor *t)
{
    struct err e = {0};

    v = pt_kind_unwrap(v);
    /*
     * All calls in this file were checked when it was opened. For a node of another file, read_pt_tensor() fails here.
     */
    return is_tensor_call(v) && read_pt_tensor(pt, v, t, &e) == 0;
}

bool pt_unread(const struct pt *pt, const struct pk *v, struct strbuf *what)
{
    struct pt_tensor t;

    return !pt_tensor(pt, v, &t) && pt_kind_name(v, what);
}

static int check_acts(struct pt_opener *o)
{
    const struct pk_tree *tree = &o->pt->tree;
    struct pt_tensor t;

    for (uint32_t i = 0; i < tree->n_acts; i++) {
        const struct pk *v = tree->act[i];

        if (v->type == PK_PERSID && check_persid(o, v) < 0)
            return -1;
        if (is_tensor_call(v) && read_pt_tensor(o->pt, v, &t, o->e) < 0)
            return -1;
    }
    return 0;
}

/* ---- the handle ---- */

struct pt *pt_open(struct files *f, int file, struct err *e)
{
    struct pt_opener o = { .f = f, .file = file, .e = e };

    o.pt = xcalloc(1, sizeof *o.pt);
    o.pt->path = files_name(f, file);
    o.pt->arena = arena_new(0);
    o.pt->zip = zip_open(f, file, e);
    if (!o.pt->zip || check_prefix(&o) < 0 || place_records(&o) < 0 || check_pt_version(&o) < 0 ||
        check_byteorder(&o) < 0 || read_pickle(&o) < 0 || add_records(&o) < 0 || check_acts(&o) < 0) {
        pt_close(o.pt);
        return NULL;
    }
    return o.pt;
}

void pt_close(struct pt *pt)
{
    if (!pt)
        return;
    zip_close(pt->zip);
    pk_tree_free(&pt->tree);
    arena_free(pt->arena);
    free(pt);
}

struct pt *pt_with_tree(struct arena *a, const struct pt *pt, struct pk *root)
{
    struct pt *to = arena_alloc(a, sizeof *to);

    *to = *pt;
    to->tree.root = root;
    to->new_tree = true;
    return to;
}

bool pt_has_new_tree(const struct pt *pt)
{
    return pt->new_tree;
}

const struct pk *pt_root(const struct pt *pt)
{
    return pt->tree.root;
}

const struct pk_tree *pt_tree(const struct pt *pt)
{
    return &pt->tree;
}

const struct zip *pt_zip(const struct pt *pt)
{
    return pt->zip;
}

const char *pt_path(const struct pt *pt)
{
    return pt->path;
}

const char *pt_prefix(const struct pt *pt)
{
    return pt->prefix;
}

const char *pt_dialect(const struct pt *pt)
{
    switch (zip_writer(pt->zip)) {
    case ZIP_TORCH:    return find_pt_record(pt, "byteorder") ? "torch 2" : "torch < 2";
    case ZIP_SHARDKIT: return "shardkit";
    default:           return "unknown";
    }
}

/* ---- checks for verify ---- */

static bool in_list(const char *const *list, const char *word, size_t n)
{
    for (; *list; list++)
        if (strlen(*list) == n && memcmp(*list, word, n) == 0)
            return true;
    return false;
}

/*
 * Returns true if Python would only create a plain object of the training software when it loads this opaque node.
 * Checkpoints are expected to contain such objects. Loading a function, or a class of any other module, could do
 * anything.
 */
static bool is_plain_class(const struct pk *v)
{
    static const char *const stack[] = { "megatron", "deepspeed", "torch", "apex", "numpy", "transformers", NULL };
    const struct pk *cls = pickle_getattr_class(v);

    if (!cls)
        cls = v->type == PK_GLOBAL ? v : v->fn;
    if (!cls || cls->type != PK_GLOBAL || !in_list(stack, cls->module, strcspn(cls->module, ".")))
        return false;
    return v->type != PK_CALL || pickle_getattr_class(v) || isupper((unsigned char)*cls->name);
}

bool pt_refuses_class(const struct pk *v)
{
    return v->opaque && !is_plain_class(v);
}

/* Report the classes of opaque nodes. `base` is the offset of the pickle in the file. */
static void check_opaque_classes(const struct pk_tree *tree, const char *file_name, uint64_t base, struct report *r)
{
    for (uint32_t i = 0; i < tree->n_opaque; i++) {
        const struct pk *v = tree->opaque[i];
        char name[1024];

        if (!pk_class(v, name, sizeof name))
            snprintf(name, sizeof name, "a nested class");
        if (is_plain_class(v))
            report_add(r, SEV_WARNING, "opaque", file_name, base + v->at, NULL,
                       "class %s is unknown; it is copied without being read", name);
        else
            report_add(r, SEV_ERROR, "class", file_name, base + v->at, NULL,
                       "refuses class %s (not on the allow-list; nothing was executed)", name);
    }
}

void pt_check_classes(const struct pt *pt, const char *file_name, struct report *r)
{
    const struct zip_entry *x = find_pt_record(pt, "data.pkl");

    check_opaque_classes(&pt->tree, file_name, x->method == 0 ? x->at : 0, r);
}

enum { UNREAD_VISITS = 1 << 20, UNREAD_DEPTH = 64 };

/* The name of a file, for findings about it, and the report that receives them. */
struct pt_report_to {
    const char *file_name;
    struct report *r;
};

/*
 * Report each storage in v, or in the containers in v, that belongs to no tensor. Values that are not containers are
 * not searched.
 */
static void check_bare_storages(const struct pt *pt, const struct pk *v, int depth, int *left,
                                const struct pt_report_to *of)
{
    struct strbuf what = {0};
    struct pk **item;
    uint32_t n = 0;
    bool pairs;

    if (!v || depth > UNREAD_DEPTH || --*left < 0)
        return;
    item = pk_pairs(v, &n);
    pairs = item != NULL;
    if (!item)
        item = pk_items(v, &n);
    for (uint32_t i = 0; item && i < n; i++)
        check_bare_storages(pt, item[pairs ? 2 * i + 1 : i], depth + 1, left, of);
    if (v->type == PK_PERSID && pt_kind_name(v, &what))
        report_add(of->r, SEV_ERROR, "unread", of->file_name, file_byte(pt, v), NULL, "is not read: %s", what.buf);
    strbuf_free(&what);
}

static void check_pt_unread(const struct pt *pt, const char *file_name, bool dtensors, struct report *r)
{
    const struct pk *ignored;
    int left = UNREAD_VISITS;

    check_bare_storages(pt, pt_root(pt), 0, &left, &(struct pt_report_to){ file_name, r });
    for (uint32_t i = 0; i < pt->tree.n_acts; i++) {
        const struct pk *v = pt->tree.act[i];
        struct strbuf what = {0};

        /* The class of any other value has already been reported by pt_check_classes(). */
        if ((pt_kind_call(v).args || pk_is_class(v, "torch._tensor", "_rebuild_from_type_v2")) &&
            !(dtensors && pt_kind_dtensor(v, &ignored, &ignored, &ignored)) && pt_unread(pt, v, &what))
            report_add(r, SEV_ERROR, "unread", file_name, file_byte(pt, v), NULL, "cannot be read: %s", what.buf);
        strbuf_free(&what);
    }
}

void pt_check_container(const struct pt *pt, struct files *f, int file, struct report *r)
{
    struct err e = {0};

    zip_check_end(pt->zip, f, file, r);
    if (zip_n_without_crc(pt->zip) && zip_check_container(pt->zip, f, file, r, &e) < 0)
        report_add_err(r, "read", &e);
}

static void check_all_but_dtensors(const struct pt *pt, struct files *f, int file, bool dtensors, struct report *r)
{
    pt_check_classes(pt, files_name(f, file), r);
    check_pt_unread(pt, files_name(f, file), dtensors, r);
    pt_check_container(pt, f, file, r);
    zip_check_crcs(pt->zip, f, file, r);
}

void pt_check(const struct pt *pt, struct files *f, int file, struct report *r)
{
    check_all_but_dtensors(pt, f, file, false, r);
}

void pt_check_rank_file(const struct pt *pt, struct files *f, int file, struct report *r)
{
    check_all_but_dtensors(pt, f, file, true, r);
}

static bool find_unread(const struct pt *pt, const struct pk *v, struct strbuf *what, int depth, int *left)
{
    struct pt_tensor t;
    struct pk **item;
    uint32_t n = 0;
    bool pairs;

    if (!v || depth > UNREAD_DEPTH || --*left < 0 || pt_tensor(pt, v, &t))
        return false;
    item = pk_pairs(v, &n);
    pairs = item != NULL;
    if (!item)
        item = pk_items(v, &n);
    if (!item || n == 0)
        return pt_unread(pt, v, what);
    for (uint32_t i = 0; i < n; i++)
        if (find_unread(pt, item[pairs ? 2 * i + 1 : i], what, depth + 1, left))
            return true;
    return false;
}

bool pt_find_unread(const struct pt *pt, const struct pk *v, struct strbuf *what)
{
    int left = UNREAD_VISITS;

    return find_unread(pt, v, what, 0, &left);
}

void pt_check_tree(const struct pk_tree *tree, const char *file_name, struct report *r)
{
    check_opaque_classes(tree, file_name, 0, r);
}

int pt_check_records(const struct pt *pt, struct files *f, struct err *e)
{
    enum { STEP = 1 << 20 };
    uint8_t *buf = xmalloc(STEP);
    int rc = 0;

    for (int i = 0; i < zip_n(pt->zip) && rc == 0; i++) {
        const struct zip_entry *x = zip_entry(pt->zip, i);
        uint32_t crc = 0;

        for (uint64_t at = 0; at < x->size && rc == 0; at += STEP) {
            uint64_t n = min_u64(STEP, x->size - at);

            rc = files_read(f, pt->place[i].file, pt->place[i].at + at, buf, n, e);
            if (rc == 0)
                crc = crc_bytes(crc, buf, n);
        }
        if (rc == 0 && has_crc(x) && crc != x->crc)
            rc = bad_crc(pt, x, crc, e);
    }
    free(buf);
    return rc;
}
