/*
 * hf_source_files.c - read the tensors of a model folder
 *
 * As in Transformers, the first of these files that exists is used: model.safetensors, its index, pytorch_model.bin,
 * its index. An index must list exactly the tensors that its files hold.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/tile.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/pt.h"
#include "libcommon/format/safetensors.h"
#include "libcommon/layout/hf/hf_source_impl.h"

/*
 * FILES_MAX: maximum number of files in an index. RUNS_MAX: maximum total number of runs in views that are not
 * contiguous. This limits the memory for runs to 100 MB.
 */
enum { FILES_MAX = 100000, RUNS_MAX = 1 << 22 };
#define INDEX_MAX ((uint64_t)256 << 20)

static const char prefix[] = "transformer.";

/* Returns the index in s->files of the file `name` in the listing f->l, or -1 if it is not listed. */
static int listed_file(const struct hf_folder *f, const char *name)
{
    for (int i = 0; i < f->l->n; i++)
        if (strcmp(f->l->member[i].name, name) == 0)
            return f->l->member[i].file;
    return -1;
}

bool hf_folder_has(const struct hf_folder *f, const char *name)
{
    char *path;
    struct stat st;
    bool yes;

    if (f->l)
        return listed_file(f, name) >= 0;
    path = path_join(f->s->path, name);
    yes = stat(path, &st) == 0;
    free(path);
    return yes;
}

static int hf_folder_file_number(const struct hf_folder *f, const char *name, struct err *e)
{
    char *path;
    int file;

    if (f->l) {
        file = listed_file(f, name);
        if (file < 0)
            err_data(e, f->s->path, ERR_NO_BYTE, "%s is missing, but the index lists it", name);
        return file;
    }
    path = path_join(f->s->path, name);
    file = files_add_path(f->s->files, path, e);
    free(path);
    return file;
}

int hf_folder_add(struct hf_folder *f, const char *name, enum file_class cls, struct err *e)
{
    struct source *s = f->s;
    int file = hf_folder_file_number(f, name, e);
    struct source_file *grown;

    if (file < 0)
        return -1;
    if ((s->n_files & (s->n_files - 1)) == 0) {         /* double the room at each power of 2 */
        grown = arena_alloc(s->arena, (s->n_files ? 2 * (size_t)s->n_files : 1) * sizeof *grown);
        if (s->n_files)
            memcpy(grown, s->file, (size_t)s->n_files * sizeof *grown);
        s->file = grown;
    }
    s->file[s->n_files++] = (struct source_file){ .name = arena_fmt(s->arena, "%s", name), .file = file, .cls = cls,
                                                  .pp = -1, .tp = -1, .dp = -1, .layer = -1 };
    return file;
}

/* ---- tensors of one file ---- */

static const char *base_name(const struct hf_folder *f, const char *name)
{
    return arena_fmt(f->s->arena, "%s", str_starts(name, prefix) ? name + sizeof prefix - 1 : name);
}

struct hf_stored *hf_add_tensor(struct hf_folder *f, const char *name, enum dtype dtype, int ndim,
                                const int64_t *shape)
{
    struct hf_stored *t;

    ARRAY_ROOM(f->tensor, f->cap, f->n + 1);
    t = &f->tensor[f->n++];
    *t = (struct hf_stored){ .name = base_name(f, name), .full = arena_fmt(f->s->arena, "%s", name),
                             .dtype = ndim > TENSOR_MAX_DIM ? DTYPE_N : dtype, .ndim = ndim };
    if (ndim > TENSOR_MAX_DIM)
        t->why = arena_fmt(f->s->arena, "a tensor of %d dimensions, at most " TENSOR_MAX_DIM_TEXT " are supported",
                           ndim);
    if (ndim)
        memcpy(t->shape, shape, (size_t)(ndim < TENSOR_MAX_DIM ? ndim : TENSOR_MAX_DIM) * sizeof *shape);
    return t;
}

/*
 * Add a record for a tensor. The safetensors format has no checksums, so the record gets the CRC in the export's
 * manifest, if there is one.
 */
static int add_safetensors_record(struct hf_folder *f, int file, const struct safetensors_tensor *from)
{
    const json_t *crc = json_object_get(f->crcs, from->name);
    const char *name = !crc ? from->name : arena_fmt(f->s->arena,
                                                     "%s (according to manifest.json; remove it if the model was "
                                                     "changed on purpose)", from->name);

    return files_add_record(f->s->files, &(struct record){ .file = file, .at = from->at, .len = from->len,
                                                           .has_crc = crc != NULL, .name = name,
                                                           .crc = (uint32_t)json_integer_value(crc) });
}

static int read_safetensors(struct hf_folder *f, int file, struct err *e)
{
    bool cut = false;
    struct safetensors *st = safetensors_open_cut(f->s->files, file, f->lost ? &cut : NULL, e);

    if (cut)
        report_add_lost(f->lost, NULL, e);
    for (int i = 0; st && i < safetensors_n(st); i++) {
        const struct safetensors_tensor *from = safetensors_tensor(st, i);
        struct hf_stored *t = hf_add_tensor(f, from->name, from->dtype, from->ndim, from->shape);

        if (from->dtype == DTYPE_N && !t->why)
            t->why = arena_fmt(f->s->arena, "a tensor of type %s whose rows are not a whole number of "
                                            "bytes", from->spelling);
        t->x = (struct extent){ add_safetensors_record(f, file, from), 0, from->len };
    }
    safetensors_close(st);
    return st ? 0 : -1;
}

/*
 * Make a map that reads a view, whose elements are not contiguous, in row-major order. It has one extent for each
 * contiguous run of elements.
 */
static void store_view_extents(struct hf_folder *f, struct hf_stored *t, const struct pt_tensor *from)
{
    struct tmap *m = hf_map_of(f->s, from->dtype, (struct extent){ from->record, from->at, pt_tensor_bytes(from) });

    m->slice->extent = tile_runs(f->s->arena, from, RUNS_MAX - f->n_runs, &m->slice->n_extents);
    t->x.len = m->len;
    if (m->slice->extent) {
        f->n_runs += m->slice->n_extents;
        t->map = m;
    } else {
        t->dtype = DTYPE_N;
        t->why = "a view in too many pieces: save it after .contiguous()";
    }
}

/* Add the value v with the key `name` of the pickled dict as a tensor. */
static void add_hf_pickled_tensor(struct hf_folder *f, const struct pt *pt, const char *name, const struct pk *v)
{
    struct strbuf why = {0};
    struct pt_tensor from;
    struct hf_stored *t;

    if (!pt_tensor(pt, v, &from)) {
        t = hf_add_tensor(f, name, DTYPE_N, 0, NULL);
        t->why = arena_fmt(f->s->arena, "%s", pt_unread(pt, v, &why) ? why.buf : "another value instead of a tensor");
        strbuf_free(&why);
        return;
    }
    t = hf_add_tensor(f, name, from.dtype, from.ndim, from.shape);
    if (from.contiguous)
        t->x = (struct extent){ from.record, from.at, pt_tensor_bytes(&from) };
    else
        store_view_extents(f, t, &from);
}

static int read_bin(struct hf_folder *f, int file, struct err *e)
{
    struct pt *pt = pt_open(f->s->files, file, e);
    uint32_t n = 0;
    struct pk **pair = pt ? pk_pairs(pt_root(pt), &n) : NULL;
    int rc = pair ? 0 : -1;

    if (pt && !pair)
        err_data(e, pt_path(pt), ERR_NO_BYTE, "holds no dict of tensors");
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        const char *name = pk_as_str(pair[2 * i]);

        if (name) {
            add_hf_pickled_tensor(f, pt, name, pair[2 * i + 1]);
            continue;
        }
        err_data(e, pt_path(pt), ERR_NO_BYTE, "a key of its dict is not a string, but parameter names are strings");
        rc = -1;
    }
    if (pt && f->r)
        pt_check_container(pt, f->s->files, file, f->r);
    pt_close(pt);                       /* the records of the tensors stay in s->files */
    return rc;
}

static int read_hf_weights_file(struct hf_folder *f, const char *name, struct err *e)
{
    int file = hf_folder_add(f, name, FILE_WEIGHTS, e);

    return file < 0 ? -1 : str_ends(name, ".bin") ? read_bin(f, file, e) : read_safetensors(f, file, e);
}

/* ---- the index ---- */

static bool is_listed(char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static int by_weights_file_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/*
 * Collect the distinct file names in weight_map in *names. Each must be a base name with the extension `extension`. The
 * strings are allocated from `a`; the caller frees *names. Returns the number of names, or -1 with ERR_DATA.
 */
static int files_of_index(struct arena *a, const json_t *map, const char *path, const char *extension, char ***names,
                          struct err *e)
{
    int n = 0, cap = 0;
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)map, key, v) {
        const char *name = json_string_value(v);

        if (!name || strchr(name, '/') || strchr(name, '\\') || *name == '.' || !str_ends(name, extension) ||
            n == FILES_MAX) {
            err_data(e, path, ERR_NO_BYTE, "weight_map: %.100s: '%.100s' is not a file next to the index", key,
                     name ? name : "?");
            return -1;
        }
        if (is_listed(*names, n, name))
            continue;
        ARRAY_ROOM(*names, cap, n + 1);
        (*names)[n++] = arena_fmt(a, "%s", name);
    }
    if (n)
        qsort(*names, (size_t)n, sizeof **names, by_weights_file_name);
    return n;
}

/*
 * Check that weight_map assigns to the file `name` every tensor that was read from it (f->tensor from index `first`
 * on).
 */
static int check_index_tensors(const struct hf_folder *f, int first, const json_t *map, const char *path,
                               const char *name, struct err *e)
{
    for (int i = first; i < f->n; i++) {
        char *full = str_fmt("%s%s", prefix, f->tensor[i].name);
        const json_t *v = json_object_get(map, full);
        const char *listed = json_string_value(v ? v : json_object_get(map, f->tensor[i].name));

        free(full);
        if (listed && strcmp(listed, name) == 0)
            continue;
        err_data(e, path, ERR_NO_BYTE, "weight_map: %.100s is in the file %.100s, but the map lists %.100s for it",
                 f->tensor[i].name, name, listed ? listed : "no file");
        return -1;
    }
    return 0;
}

/*
 * Add the tensors that weight_map assigns to the file `name`, which cannot be read, and mark these tensors with the
 * reason in *e. *e is reported as a warning and cleared.
 */
static void lose_file(struct hf_folder *f, const json_t *map, const char *name, struct err *e)
{
    const char *why = arena_fmt(f->s->arena, "its file %s is lost or damaged", name), *key;
    json_t *v;

    report_add_lost(f->lost, NULL, e);
    json_object_foreach((json_t *)map, key, v)
        if (json_string_value(v) && strcmp(json_string_value(v), name) == 0)
            hf_add_tensor(f, key, DTYPE_N, 0, NULL)->why = why;
}

static int read_listed(struct hf_folder *f, const json_t *map, const char *path, const char *extension, struct err *e)
{
    char **names = NULL;
    int n = files_of_index(f->s->arena, map, path, extension, &names, e), rc = n < 0 ? -1 : 0;

    for (int i = 0; i < n; i++) {
        int first = f->n;

        if (rc == 0 && read_hf_weights_file(f, names[i], e) < 0) {
            f->n = first;
            rc = f->lost ? 0 : -1;
            if (rc == 0)
                lose_file(f, map, names[i], e);
        } else if (rc == 0 && check_index_tensors(f, first, map, path, names[i], e) < 0) {
            rc = -1;
        }
    }
    free(names);
    if (rc == 0 && (size_t)f->n != json_object_size(map)) {
        err_data(e, path, ERR_NO_BYTE, "weight_map lists %zu tensors, its files hold %d", json_object_size(map), f->n);
        rc = -1;
    }
    return rc;
}

static int by_place(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;

    if (x->record != y->record)
        return x->record < y->record ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/*
 * Warn if `total`, the size of all tensors according to the index at `path`, is wrong. Loaders ignore this number.
 * Tensors that share their bytes in a .bin file may be counted once or several times. Nothing is checked if a tensor
 * cannot be read, or if a tensor is a view, because the writer may have counted the bytes of its whole storage.
 */
static void check_total_size(const struct hf_folder *f, const json_t *total, const char *path)
{
    struct extent *x = xmalloc(((size_t)f->n + 1) * sizeof *x);
    uint64_t least = 0, most = 0;
    bool read = true;

    for (int i = 0; i < f->n; i++) {
        read &= f->tensor[i].dtype != DTYPE_N && !f->tensor[i].map;
        x[i] = f->tensor[i].x;
        most += x[i].len;
    }
    if (f->n)
        qsort(x, (size_t)f->n, sizeof *x, by_place);
    for (int i = 0; i < f->n; i++)
        least += i && by_place(&x[i - 1], &x[i]) == 0 ? 0 : x[i].len;
    if (read && (!json_is_number(total) || json_number_value(total) < (double)least ||
                 json_number_value(total) > (double)most))
        report_add(f->r, SEV_WARNING, "index_size", path, ERR_NO_BYTE, NULL,
                   "total_size is %.17g, but the tensors have %llu bytes", json_number_value(total),
                   (unsigned long long)most);
    free(x);
}

static int read_hf_index(struct hf_folder *f, const char *name, const char *extension, struct err *e)
{
    int rc = -1, file = hf_folder_add(f, name, FILE_OTHER, e);
    const char *path = file < 0 ? name : files_name(f->s->files, file);
    uint64_t len = file < 0 ? 0 : files_size(f->s->files, file);
    char *text = file < 0 || len > INDEX_MAX ? NULL : xmalloc(len + 1);
    json_error_t je;
    json_t *o = NULL, *map, *total;

    if (file >= 0 && !text)
        err_data(e, path, ERR_NO_BYTE, "has %llu bytes, too many for an index", (unsigned long long)len);
    if (text && files_read(f->s->files, file, 0, text, len, e) == 0) {
        o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
        map = json_object_get(o, "weight_map");
        if (!o)
            err_data(e, path, (uint64_t)(je.position > 0 ? je.position : 0), "no JSON: %s", je.text);
        else if (!json_is_object(map))
            err_data(e, path, ERR_NO_BYTE, "has no weight_map");
        else
            rc = read_listed(f, map, path, extension, e);
    }
    total = json_object_get(json_object_get(o, "metadata"), "total_size");
    if (rc == 0 && f->r && total)
        check_total_size(f, total, path);
    json_decref(o);
    free(text);
    return rc;
}

/* ---- the folder ---- */

static int by_stored_name(const void *a, const void *b)
{
    return strcmp(((const struct hf_stored *)a)->name, ((const struct hf_stored *)b)->name);
}

int hf_read_model_files(struct hf_folder *f, struct err *e)
{
    if (hf_folder_has(f, "model.safetensors"))
        return read_hf_weights_file(f, "model.safetensors", e);
    if (hf_folder_has(f, "model.safetensors.index.json"))
        return read_hf_index(f, "model.safetensors.index.json", ".safetensors", e);
    if (hf_folder_has(f, "pytorch_model.bin"))
        return read_hf_weights_file(f, "pytorch_model.bin", e);
    if (hf_folder_has(f, "pytorch_model.bin.index.json"))
        return read_hf_index(f, "pytorch_model.bin.index.json", ".bin", e);
    err_data(e, f->s->path, ERR_NO_BYTE,
             "holds no model (model.safetensors, pytorch_model.bin or an index of either)");
    return -1;
}

int hf_folder_sort(struct hf_folder *f, struct err *e)
{
    if (f->n)
        qsort(f->tensor, (size_t)f->n, sizeof *f->tensor, by_stored_name);
    for (int i = 1; i < f->n; i++)
        if (strcmp(f->tensor[i - 1].name, f->tensor[i].name) == 0) {
            err_data(e, f->s->path, ERR_NO_BYTE, "tensor %.100s exists twice", f->tensor[i].name);
            return -1;
        }
    return 0;
}

int hf_folder_read(struct hf_folder *f, hf_read_tensors *read, struct err *e)
{
    return read(f, e) < 0 ? -1 : hf_folder_sort(f, e);
}

struct hf_stored *hf_folder_find(const struct hf_folder *f, const char *name)
{
    const struct hf_stored key = { .name = name };

    return f->n ? bsearch(&key, f->tensor, (size_t)f->n, sizeof *f->tensor, by_stored_name) : NULL;
}
