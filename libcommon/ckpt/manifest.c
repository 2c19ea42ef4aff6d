/*
 * manifest.c - read the manifest of a folder, and compare it with the files
 */
#include "libcommon/ckpt/manifest.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/plan/tmap.h"

enum { MANIFEST_MAX = 256 << 20 };

/* ---- the folder's files, sorted ---- */

static int cmp_manifest_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void manifest_free_names(struct manifest_names *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->name[i]);
    free(l->name);
}

static int list_under(struct manifest_names *l, const char *dir, const char *prefix, int depth, struct err *e)
{
    char *path = path_join(dir, prefix);
    DIR *d = opendir(path);
    struct dirent *ent;
    int rc = 0;

    if (!d || depth > 16) {
        err_sys(e, path, "cannot list the folder");
        rc = -1;
    }
    while (rc == 0 && (ent = readdir(d))) {
        char *name, *full;
        struct stat st;

        if (strcmp(ent->d_name, ".") == 0 || strcmp(ent->d_name, "..") == 0)
            continue;
        name = *prefix ? path_join(prefix, ent->d_name) : xstrdup(ent->d_name);
        full = path_join(dir, name);
        if (lstat(full, &st) == 0 && S_ISDIR(st.st_mode)) {
            rc = list_under(l, dir, name, depth + 1, e);
            free(name);
        } else if (strcmp(name, MANIFEST_NAME) == 0) {
            free(name);
        } else {
            ARRAY_ROOM(l->name, l->cap, l->n + 1);
            l->name[l->n++] = name;
        }
        free(full);
    }
    if (d)
        closedir(d);
    free(path);
    return rc;
}

int manifest_list_folder(struct manifest_names *l, const char *dir, struct err *e)
{
    if (list_under(l, dir, "", 0, e) < 0)
        return -1;
    if (l->n)
        qsort(l->name, (size_t)l->n, sizeof *l->name, cmp_manifest_names);
    return 0;
}

/* ---- CRC of a whole file, computed from bytes that are read and from CRCs of plan items ---- */

int file_sum_add(struct file_sum *x, uint64_t at, uint64_t end, struct err *e)
{
    uint64_t size = files_size(x->files, x->file);

    for (; at < end; at += FILE_SUM_BUFFER) {
        uint64_t n = min_u64(FILE_SUM_BUFFER, end - at);

        if (files_read(x->files, x->file, at, x->buf, n, e) < 0)
            return -1;
        crc_sum_add(&x->sum, size, at, n, crc_bytes(0, x->buf, n));
    }
    return 0;
}

/* ---- reading ---- */

/*
 * Returns the manifest after checking its own CRC. Returns NULL if there is no manifest. If the manifest is damaged,
 * reports the damage and returns NULL.
 */
static json_t *load_json(const struct source *s, struct report *r, struct err *e)
{
    static const char tail[] = "\"crc32\":\"";
    const struct source_file *f = source_file(s, MANIFEST_NAME);
    uint64_t size = f ? files_size(s->files, f->file) : 0;
    const char *name = f ? files_name(s->files, f->file) : "";
    json_t *o = NULL;
    json_error_t je;
    char *buf;

    if (!f)
        return NULL;
    if (size > MANIFEST_MAX || size < sizeof tail + 8) {
        report_add(r, SEV_ERROR, "manifest", name, ERR_NO_BYTE, NULL,
                   "has %llu bytes, which cannot be the size of a manifest", (unsigned long long)size);
        return NULL;
    }
    buf = xcalloc(1, size + 1);
    if (files_read(s->files, f->file, 0, buf, size, e) == 0) {
        char hex[9], *last = buf + size - (sizeof tail - 1) - 12;     /* 12 is the length of: xxxxxxxx"\n}\n */

        snprintf(hex, sizeof hex, "%08x", crc_bytes(0, buf, (size_t)(last - buf)));
        if (memcmp(last, tail, sizeof tail - 1) != 0 || memcmp(last + sizeof tail - 1, hex, 8) != 0 ||
            memcmp(last + sizeof tail + 7, "\"\n}\n", 4) != 0)
            report_add(r, SEV_ERROR, "manifest", name, (uint64_t)(last - buf), NULL,
                       "the CRC-32 of the manifest does not match (expected %s)", hex);
        else if (!(o = json_loadb(buf, size, JSON_REJECT_DUPLICATES, &je)))
            report_add(r, SEV_ERROR, "manifest", name, (uint64_t)je.position, NULL, "is not JSON: %s", je.text);
        else if (json_integer_value(json_object_get(o, "version")) != 1)
            report_add(r, SEV_ERROR, "manifest", name, ERR_NO_BYTE, NULL,
                       "has version %lld instead of 1, so a later release wrote it",
                       (long long)json_integer_value(json_object_get(o, "version")));
    }
    free(buf);
    return o;
}

static bool hex_crc(const json_t *o, uint32_t *crc)
{
    const char *s = json_string_value(json_object_get(o, "crc32"));
    char *end;

    if (!s || strlen(s) != 8)
        return false;
    *crc = (uint32_t)strtoul(s, &end, 16);
    return *end == '\0';
}

/*
 * Compute the digest of a tensor from the CRCs of its records, without reading the records. Returns false if the tensor
 * does not consist of whole records, or a record has no CRC.
 */
static bool digest_of_records(const struct source *s, const struct tmap *m, uint32_t *digest)
{
    int n = m->op == TMAP_REPLICAS ? 1 : m->n_slices;
    struct crc_sum sum = {0};
    uint64_t at = 0;

    for (int k = 0; k < n; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++) {
            const struct extent *x = &m->slice[k].extent[i];
            const struct record *rec = files_record(s->files, x->record);

            if (tmap_scatters(m) || m->op == TMAP_SUM || !rec->has_crc || x->at != 0 || x->len != rec->len)
                return false;
            crc_sum_add(&sum, m->len, at, x->len, rec->crc);
            at += x->len;
        }
    *digest = sum.acc;
    return at == m->len;
}

/*
 * Compare the manifest's digest of a tensor with the CRCs of the tensor's records. This detects exchanged files at
 * once. Other damage is detected when the bytes are read.
 */
static void check_param_digest(const struct source *s, struct param *p, int st, struct report *r)
{
    uint32_t digest;

    if (!p->state[st] || !digest_of_records(s, p->state[st], &digest) || digest == p->digest[st])
        return;
    report_add(r, SEV_ERROR, "digest", NULL, ERR_NO_BYTE, p->name, "%s has digest %08x, expected %08x",
               state_name((enum state)st), digest, p->digest[st]);
    p->has_digest[st] = false;          /* to report the difference only once */
}

/* If a tensor is exactly one record, and the record has no CRC, set the record's CRC to the tensor's digest. */
static void give_crc(const struct source *s, const struct param *p, int st)
{
    const struct tmap *m = p->state[st];
    const struct extent *x = m->n_slices == 1 && m->slice[0].n_extents == 1 ? m->slice[0].extent : NULL;
    const struct record *rec = x && !tmap_scatters(m) ? files_record(s->files, x->record) : NULL;

    if (rec && !rec->has_crc && x->at == 0 && x->len == rec->len && m->len == rec->len)
        files_set_crc(s->files, x->record, p->digest[st], MANIFEST_NAME);
}

void manifest_give_crcs(const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            if (s->param[i].state[st] && s->param[i].has_digest[st])
                give_crc(s, &s->param[i], st);
}

/* Returns true if `shape` is absent or equals the parameter's shape. */
static bool is_listed_shape(const json_t *shape, const struct param *p)
{
    if (shape && json_array_size(shape) != (size_t)p->ndim)
        return false;
    for (int d = 0; shape && d < p->ndim; d++)
        if (json_integer_value(json_array_get(shape, (size_t)d)) != p->shape[d])
            return false;
    return true;
}

static void load_tensor_digest(struct source *s, const json_t *t, bool weights_only, const char *file, struct report *r)
{
    const char *name = json_string_value(json_object_get(t, "name"));
    const char *state = json_string_value(json_object_get(t, "state"));
    const char *dtype = json_string_value(json_object_get(t, "dtype"));
    struct param *p = name ? source_param(s, name) : NULL;
    int st = state ? state_by_name(state) : -1;
    uint32_t digest;

    if (weights_only && st >= 0 && st != STATE_BF16 && (!p || !p->state[st]))
        return;
    if (!p || st < 0 || !p->state[st] || !hex_crc(t, &digest))
        report_add(r, SEV_ERROR, "manifest", file, ERR_NO_BYTE, name,
                   "lists state %s, but the checkpoint does not have it",
                   state ? state : "(none)");
    else if (!is_listed_shape(json_object_get(t, "shape"), p))
        report_add(r, SEV_ERROR, "manifest", file, ERR_NO_BYTE, name, "lists another shape than the checkpoint has");
    else if (p->has_digest[st] && p->digest[st] != digest)
        report_add(r, SEV_ERROR, "manifest", file, ERR_NO_BYTE, name, "lists state %s twice, with different digests",
                   state);
    else {
        /* A form that stores fp32 weights and equal masters lists one state twice. */
        p->has_digest[st] = true;
        p->digest[st] = digest;
    }
    if (p && st >= 0 && p->state[st] && dtype && strcmp(dtype, dtype_name(p->state[st]->dtype)) != 0)
        report_add(r, SEV_WARNING, "manifest", file, ERR_NO_BYTE, name, "lists state %s as %.20s, the checkpoint "
                   "holds %s", state, dtype, dtype_name(p->state[st]->dtype));
}

/*
 * Returns true if the manifest must list the state. Second names of tied weights need not be listed. Nor do integers
 * for the layout dcp in manifests of earlier releases, and tensors without elements in the HDF5 forms. A list made by
 * an edit (`edited`) may omit 16-bit weights, as lists of earlier releases did. It may also omit any tensor of a model
 * folder, because it lists only the tensors whose digests were known, and the CRCs of the files cover the others.
 */
static bool is_listed_state(const struct source *s, const struct param *p, int st, bool edited)
{
    if (edited && s->layout->model_folder)
        return false;
    return p->state[st] && p->state[st]->len && (st != STATE_BF16 || (!edited && !p->shared_with)) &&
           (!s->layout->integers_unlisted || dtype_is_weight(p->state[st]->dtype));
}

/*
 * Returns true if a manifest that was written for `layout` describes the source. All layouts of entries are accepted
 * for each other, because it is determined only later which of them a folder has.
 */
static bool is_own_layout(const struct source *s, const char *layout)
{
    return layout && (strcmp(layout, s->layout->name) == 0 || strcmp(layout, MANIFEST_EDITED) == 0 ||
                      (s->layout->entries && (strcmp(layout, "dcp") == 0 || strcmp(layout, "torchdist") == 0)));
}

static void load_tensor_digests(struct source *s, const json_t *o, bool weights_only, const char *file,
                                struct report *r)
{
    const json_t *list = json_object_get(o, "tensors"), *t;
    const char *layout = json_string_value(json_object_get(o, "layout"));
    const char *format = json_string_value(json_object_get(o, "format"));
    const bool edited = layout && strcmp(layout, MANIFEST_EDITED) == 0;
    size_t i;

    if (!is_own_layout(s, layout)) {
        report_add(r, SEV_ERROR, "manifest", file, ERR_NO_BYTE, NULL,
                   "is that of a checkpoint of the layout %.40s, this one is %s: it belongs to another folder",
                   layout ? layout : "(none)", s->layout->name);
        return;
    }
    if (!format || strcmp(format, MANIFEST_FORMAT_NAME) != 0)
        report_add(r, SEV_WARNING, "manifest", file, ERR_NO_BYTE, NULL, "states the format %.40s, expected %s",
                   format ? format : "(none)", MANIFEST_FORMAT_NAME);
    json_array_foreach(list, i, t)
        load_tensor_digest(s, t, weights_only, file, r);
    /* the manifest of a virtual form lists no tensors, because their bytes are in the shards */
    if (json_array_size(list) == 0 && !s->layout->entries) {
        if (s->n_params && !edited && !s->layout->points_only)
            report_add(r, SEV_WARNING, "manifest", file, ERR_NO_BYTE, NULL,
                       "lists no tensors: only the files as a whole are compared");
        return;
    }
    for (int k = 0; k < s->n_params; k++)
        for (int st = 0; st < STATE_N; st++)
            if (is_listed_state(s, &s->param[k], st, edited) && !s->param[k].has_digest[st])
                report_add(r, SEV_ERROR, "manifest", file, ERR_NO_BYTE, s->param[k].name,
                           "state %s has no entry in the manifest", state_name((enum state)st));
    for (int k = 0; k < s->n_params; k++)
        for (int st = 0; st < STATE_N; st++)
            if (s->param[k].has_digest[st])
                check_param_digest(s, &s->param[k], st, r);
}

int manifest_load(struct source *s, bool weights_only, struct report *r, struct err *e)
{
    const struct source_file *f = source_file(s, MANIFEST_NAME);
    json_t *o = load_json(s, r, e);

    if (o)
        load_tensor_digests(s, o, weights_only, files_name(s->files, f->file), r);
    json_decref(o);
    return e->kind == ERR_NONE ? 0 : -1;
}

json_t *manifest_crcs(const struct source *s, struct err *e)
{
    struct report *r = report_new();
    json_t *o = load_json(s, r, e), *crcs = json_object(), *t;
    uint32_t crc;
    size_t i;

    json_array_foreach(json_object_get(o, "tensors"), i, t)
        if (hex_crc(t, &crc))
            json_object_set_new(crcs, json_string_value(json_object_get(t, "name")), json_integer(crc));
    if (report_first_error(r, e) < 0 || e->kind != ERR_NONE) {
        json_decref(crcs);
        crcs = NULL;
    }
    json_decref(o);
    report_free(r);
    return crcs;
}

/* Returns the index of the first run with this or a higher file number. The runs are sorted by file. */
static int find_first_file_run(const struct manifest_run *run, int n_runs, int file)
{
    int i = 0, hi = n_runs;

    while (i < hi) {
        int mid = i + (hi - i) / 2;

        if (run[mid].file < file)
            i = mid + 1;
        else
            hi = mid;
    }
    return i;
}

/*
 * Compute the CRC of a whole file. The CRCs of known runs are combined, and only the bytes between the runs are read.
 */
static int sum_file(struct file_sum *x, const struct manifest_run *run, int n_runs, struct err *e)
{
    uint64_t size = files_size(x->files, x->file), at = 0;

    for (int i = find_first_file_run(run, n_runs, x->file); i < n_runs && run[i].file == x->file; i++) {
        if (file_sum_add(x, at, run[i].at, e) < 0)
            return -1;
        crc_sum_add(&x->sum, size, run[i].at, run[i].len, run[i].crc);
        at = run[i].at + run[i].len;
    }
    return file_sum_add(x, at, size, e);
}

struct manifest_known {
    const struct manifest_run *run;
    int n_runs;
    char *buf;
};

/*
 * Returns true if the file belongs to the optimizer, and the source was opened without its optimizer. Such a file is
 * recognised by its number of unread bytes, which is larger than headers and pickles can be. The file is not checked,
 * because reading it would take as long as converting the optimizer.
 */
static bool is_left_out(const struct source *s, int file, const struct manifest_known *k)
{
    enum { AROUND_MAX = 16 << 20 };
    uint64_t known = 0;

    if (!s->weights_only)
        return false;
    for (int i = find_first_file_run(k->run, k->n_runs, file); i < k->n_runs && k->run[i].file == file; i++)
        known += k->run[i].len;
    return files_size(s->files, file) - known > AROUND_MAX;
}

/*
 * If the source is an archive, returns the index of its member `name` in s->files, or -1. All members of an archive are
 * in s->files.
 */
static int find_archive_member_file(const struct source *s, const char *name)
{
    for (int i = 0; i < files_count(s->files); i++) {
        const char *shown = files_name(s->files, i);
        const size_t n = strlen(shown), len = strlen(name);

        if (n > len && strcmp(shown + n - len, name) == 0 && (shown[n - len - 1] == '/' || shown[n - len - 1] == ':'))
            return i;
    }
    return -1;
}

/*
 * Returns the index in s->files of a file that is listed in the manifest but does not belong to the layout. Returns -1
 * if there is no such file.
 */
static int find_non_layout_file(struct source *s, const char *name)
{
    struct err ignored = {0};
    struct stat st;
    char *path;
    int file = -1;

    if (name[0] == '/' || strstr(name, ".."))
        return -1;
    if (lstat(s->path, &st) == 0 && S_ISREG(st.st_mode))
        return find_archive_member_file(s, name);
    path = path_join(s->path, name);
    if (lstat(path, &st) == 0 && S_ISREG(st.st_mode))
        file = files_add_path(s->files, path, &ignored);
    free(path);
    return file;
}

/* Returns true if a file with this name may hold tensors in some layout. */
static bool may_hold_tensors(const char *name)
{
    static const char *const suffix[] = { ".pt", ".bin", ".safetensors", ".distcp", ".h5" };

    for (size_t i = 0; i < sizeof suffix / sizeof *suffix; i++)
        if (str_ends(name, suffix[i]))
            return true;
    return false;
}

static int check_manifest_file(struct source *s, const json_t *t, const struct manifest_known *k, struct report *r,
                               struct err *e)
{
    const char *name = json_string_value(json_object_get(t, "name"));
    const struct source_file *f = name ? source_file(s, name) : NULL;
    uint64_t want = (uint64_t)json_integer_value(json_object_get(t, "size_bytes")), size;
    struct file_sum x = { .files = s->files, .buf = k->buf };
    uint32_t crc;

    if (!name || !hex_crc(t, &crc)) {
        report_add(r, SEV_ERROR, "manifest", MANIFEST_NAME, ERR_NO_BYTE, NULL, "an entry of files is incomplete");
        return 0;
    }
    x.file = f ? f->file : find_non_layout_file(s, name);
    if (x.file < 0) {
        /*
         * If only the weights are read, a lost file of tensors may hold only states that are not needed. The layout
         * itself reports a tensor that is missing.
         */
        report_add(r, s->weights_only && may_hold_tensors(name) ? SEV_WARNING : SEV_ERROR, "file_missing", name,
                   ERR_NO_BYTE, NULL, "is missing, but the manifest lists it");
        return 0;
    }
    size = files_size(s->files, x.file);
    if (size != want) {
        report_add(r, SEV_ERROR, "file_size", files_name(s->files, x.file), ERR_NO_BYTE, NULL,
                   "has %llu bytes, but the manifest lists %llu", (unsigned long long)size, (unsigned long long)want);
        return 0;
    }
    if (is_left_out(s, x.file, k))
        return 0;
    if (sum_file(&x, k->run, k->n_runs, e) < 0)
        return -1;
    if (x.sum.acc != crc)
        report_add(r, SEV_ERROR, "file_crc", files_name(s->files, x.file), ERR_NO_BYTE, NULL,
                   "differs from what was written (crc %08x, expected %08x)", x.sum.acc, crc);
    return 0;
}

static void find_unlisted(const struct source *s, const json_t *list, struct report *r)
{
    json_t *known = json_object(), *t;
    bool *has_tensors = xcalloc((size_t)files_count(s->files) + 1, sizeof *has_tensors);
    size_t i;

    for (int k = 0; k < files_n_records(s->files); k++)
        has_tensors[files_record(s->files, k)->file] = true;

    json_array_foreach(list, i, t)
        json_object_set_new(known, json_string_value(json_object_get(t, "name")), json_true());
    for (int k = 0; k < s->n_files; k++) {
        const struct source_file *f = &s->file[k];
        /*
         * A file that does not belong to the layout causes only a WARNING, because users may add notes to a checkpoint,
         * or a README or a tokenizer to a model.
         */
        const bool is_extra = f->cls == FILE_OTHER && !f->pt && !has_tensors[f->file];
        const enum severity severity = is_extra ? SEV_WARNING : SEV_ERROR;

        if (!f->stray && strcmp(f->name, MANIFEST_NAME) != 0 && !json_object_get(known, f->name) &&
            !(s->layout->model_folder && f->cls != FILE_WEIGHTS))
            report_add(r, severity, "file_unlisted", files_name(s->files, f->file), ERR_NO_BYTE, NULL,
                       "is not in the manifest");
    }
    free(has_tensors);
    json_decref(known);
}

int manifest_check(struct source *s, const struct manifest_run *run, int n_runs, struct report *r, struct err *e)
{
    /* these findings are not reported again, because manifest_load() has reported them when the source was opened */
    struct report *earlier = report_new();
    json_t *o = load_json(s, earlier, e), *t;
    const json_t *list = json_object_get(o, "files");
    struct manifest_known k = { .run = run, .n_runs = n_runs, .buf = xmalloc(FILE_SUM_BUFFER) };
    size_t i;
    int rc = e->kind == ERR_NONE ? 0 : -1;

    json_array_foreach(list, i, t)
        if (rc == 0)
            rc = check_manifest_file(s, t, &k, r, e);
    if (o)
        find_unlisted(s, list, r);
    free(k.buf);
    json_decref(o);
    report_free(earlier);
    return rc;
}

/* ---- a folder that is not open as a source ---- */

bool manifest_is_ours(const char *dir)
{
    char *path = path_join(dir, MANIFEST_NAME), head[64] = "";
    struct stat st;
    /* Only regular files are opened. Opening a pipe would block until a writer opens it. */
    FILE *f = lstat(path, &st) == 0 && S_ISREG(st.st_mode) ? fopen(path, "re") : NULL;

    if (f) {
        head[fread(head, 1, sizeof head - 1, f)] = '\0';
        fclose(f);
    }
    free(path);
    return strstr(head, MANIFEST_FORMAT) != NULL;
}

/*
 * Returns the entry with this name in the manifest's "files", or NULL. The caller releases *whole, the whole manifest,
 * with json_decref().
 */
static const json_t *find_listed(const char *dir, const char *name, json_t **whole)
{
    char *path = path_join(dir, MANIFEST_NAME), *text;
    const json_t *list, *found = NULL;
    struct err ignored = {0};
    uint64_t size;

    text = file_slurp(path, MANIFEST_MAX, &size, &ignored);
    *whole = text ? json_loadb(text, size, 0, NULL) : NULL;
    free(text);
    list = json_object_get(*whole, "files");
    for (size_t i = 0; i < json_array_size(list) && !found; i++) {
        const char *s = json_string_value(json_object_get(json_array_get(list, i), "name"));

        found = s && strcmp(s, name) == 0 ? json_array_get(list, i) : NULL;
    }
    free(path);
    return found;
}

bool manifest_holds(const char *dir, const char *name)
{
    json_t *whole = NULL;
    const json_t *listed = manifest_is_ours(dir) ? find_listed(dir, name, &whole) : NULL;
    char *path = path_join(dir, name), *bytes = NULL;
    struct err ignored = {0};
    uint64_t size;
    uint32_t crc;
    bool same = false;

    if (listed && hex_crc(listed, &crc))
        bytes = file_slurp(path, MANIFEST_MAX, &size, &ignored);
    if (bytes)
        same = json_integer_value(json_object_get(listed, "size_bytes")) == (json_int_t)size &&
               crc_bytes(0, bytes, size) == crc;
    free(bytes);
    free(path);
    json_decref(whole);
    return same;
}

json_t *manifest_files(const struct source *s)
{
    struct report *r = report_new();
    struct err ignored = {0};
    json_t *o = load_json(s, r, &ignored), *files = o ? json_object() : NULL, *f;
    size_t i;

    json_array_foreach(json_object_get(o, "files"), i, f)
        json_object_set(files, json_string_value(json_object_get(f, "name")), f);
    json_decref(o);
    report_free(r);
    return files;
}

bool manifest_digest(const struct source *s, const char *name, enum state st, uint32_t *crc)
{
    struct report *r = report_new();
    struct err ignored = {0};
    json_t *o = load_json(s, r, &ignored), *t;
    bool found = false;
    size_t i;

    json_array_foreach(json_object_get(o, "tensors"), i, t) {
        const char *of = json_string_value(json_object_get(t, "name"));
        const char *state = json_string_value(json_object_get(t, "state"));

        if (of && state && strcmp(of, name) == 0 && strcmp(state, state_name(st)) == 0)
            found = hex_crc(t, crc);
    }
    json_decref(o);
    report_free(r);
    return found;
}

bool manifest_listed(const json_t *files, const char *name, uint64_t size, uint32_t *crc)
{
    const json_t *f = json_object_get(files, name);

    return f && json_integer_value(json_object_get(f, "size_bytes")) == (json_int_t)size && hex_crc(f, crc);
}
