/*
 * edit_hf.c - write a list of tensors as the files of a Transformers model folder
 *
 * A file of weights stays unchanged if none of its tensors changes. Otherwise it is written again under the same name
 * and in the same format, and index and config.json are updated. Tensors that share their bytes in a .bin still share
 * them in the result.
 */
#include "libcommon/layout/edit/edit_hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/pt.h"
#include "libcommon/format/safetensors.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_source.h"
#include "libcommon/layout/hf/hf_config.h"
#include "libcommon/layout/hf/hf_target.h"

enum { TEXT_MAX = 1 << 28 };

/* ---- the tensors of a file ---- */

static enum state edit_weights_state(const struct edit_new *t)
{
    return t->map[STATE_FP32] ? STATE_FP32 : STATE_BF16;
}

/* Returns the number, in x->s->files, of the file that holds a parameter of the source. */
static int param_weights_file(const struct edit *x, int param)
{
    const struct param *p = &x->s->param[param];
    const struct tmap *m = p->state[p->state[STATE_FP32] ? STATE_FP32 : STATE_BF16];

    return files_record(x->s->files, m->slice[0].extent[0].record)->file;
}

/*
 * Returns the tensors of the list `to` that are stored in the file number `file`, in the list's order. *n is set to
 * their number. *same is set to true if they are exactly the tensors that the file holds now. The caller frees the
 * array.
 */
static const struct edit_new **tensors_of(const struct edit *x, const struct edit_states *to, int file, int *n,
                                          bool *same)
{
    const struct edit_new **t = xmalloc(((size_t)to->n + 1) * sizeof *t);
    int there = 0;

    *n = 0;
    *same = true;
    for (int i = 0; i < to->n; i++)
        if (param_weights_file(x, to->tensor[i].param) == file) {
            t[(*n)++] = &to->tensor[i];
            *same = *same && edit_new_is_old(x, &to->tensor[i]);
        }
    for (int i = 0; i < x->s->n_params; i++)
        there += param_weights_file(x, i) == file;
    *same = *same && there == *n;
    return t;
}

/* Returns the number of tensors that the file holds, or -1. */
static int n_stored(struct edit *x, struct edit_file *f, struct err *e)
{
    struct safetensors *st;
    uint32_t n = 0;
    int has;

    if (str_ends(f->name, ".bin")) {
        if (edit_open_pt(x, f, e) < 0)
            return -1;
        pk_pairs(pt_root(f->pt), &n);
        return (int)n;
    }
    st = safetensors_open(x->s->files, f->file, e);
    has = st ? safetensors_n(st) : -1;
    safetensors_close(st);
    return has;
}

/*
 * Returns -1 with ERR_DATA if the file holds tensors that the source could not read, because they would be lost when
 * the file is written again.
 */
static int check_all_read(struct edit *x, struct edit_file *f, struct err *e)
{
    int has = n_stored(x, f, e), there = 0;

    for (int i = 0; i < x->s->n_params; i++)
        there += param_weights_file(x, i) == f->file;
    if (has < 0 || there == has)
        return has < 0 ? -1 : 0;
    err_data(e, files_name(x->s->files, f->file), ERR_NO_BYTE,
             "holds %d tensors of an unsupported type or shape, so the file cannot be rewritten or removed",
             has - there);
    return -1;
}

/* ---- safetensors ---- */

static int make_safetensors(struct edit *x, struct edit_file *f, const struct edit_new **t, int n, struct err *e)
{
    struct safetensors_out *out = xcalloc((size_t)n + 1, sizeof *out);
    struct edit_made *made = edit_make(x, f);
    int rc;

    for (int i = 0; i < n; i++)
        out[i] = (struct safetensors_out){ .name = t[i]->name, .dtype = t[i]->dtype[edit_weights_state(t[i])],
                                           .ndim = t[i]->ndim, .shape = t[i]->shape };
    rc = safetensors_layout(out, n, f->name, &made->head, &made->size, e);
    made->part = arena_alloc(x->arena, ((size_t)n + 1) * sizeof *made->part);
    for (int i = 0; i < n && rc == 0; i++)
        for (int k = 0; k < n; k++)     /* safetensors_layout() has sorted out[] */
            if (out[k].name == t[i]->name)
                made->part[made->n++] =
                    (struct edit_part){ .of = t[i], .state = edit_weights_state(t[i]), .at = out[k].at, .same_as = -1 };
    free(out);
    return rc;
}

/* ---- pickled ---- */

static bool has_same_tensor_bytes(const struct edit_new *a, const struct edit_new *b)
{
    const enum state st = edit_weights_state(a);
    const struct tmap *m = a->map[st], *o = b->map[st];

    if (m == o)
        return a->dtype[st] == b->dtype[st];
    return o && m->len == o->len && a->dtype[st] == b->dtype[st] && m->slice->n_extents == 1 &&
           o->slice->n_extents == 1 && m->slice->extent->record == o->slice->extent->record &&
           m->slice->extent->at == o->slice->extent->at;
}

/*
 * Add a tensor to the tree `root` and to the parts of `made`. If the tensor shares the bytes of an earlier tensor, it
 * gets the same storage, otherwise a new one.
 */
static void add_bin_tensor(struct edit *x, struct pk *root, struct edit_made *made, const struct edit_new *t,
                           uint64_t *bytes)
{
    const enum state st = edit_weights_state(t);
    struct edit_part part = { .of = t, .state = st, .same_as = -1 };
    struct pt_new new = { .dtype = t->dtype[st], .ndim = t->ndim, .shape = t->shape };

    for (int i = 0; i < made->n; i++) {
        if (part.same_as < 0 && made->part[i].same_as < 0 && has_same_tensor_bytes(t, made->part[i].of)) {
            part.same_as = i;
            part.storage = made->part[i].storage;
        }
        new.storage += made->part[i].same_as < 0;
    }
    if (part.same_as < 0)
        part.storage = new.storage;
    new.storage = part.storage;
    new.storage_elems = (int64_t)(t->map[st]->len / (uint64_t)dtype_size(t->map[st]->dtype));
    bytes[part.storage] = (uint64_t)dtype_size(new.dtype) * (uint64_t)new.storage_elems;
    made->part[made->n++] = part;
    pk_set_str(x->arena, root, t->name, pt_new_tensor(x->arena, &new));
}

static int make_bin(struct edit *x, struct edit_file *f, const struct edit_new **t, int n, struct err *e)
{
    uint64_t *bytes = xcalloc((size_t)n + 1, sizeof *bytes);
    struct pk *root = pk_dict(x->arena);
    struct edit_made *made = edit_make(x, f);
    int rc = edit_open_pt(x, f, e), n_storages = 0;

    made->part = arena_alloc(x->arena, ((size_t)n + 1) * sizeof *made->part);
    for (int i = 0; i < n && rc == 0; i++) {
        add_bin_tensor(x, root, made, t[i], bytes);
        n_storages += made->part[i].same_as < 0;
    }
    if (rc == 0) {
        made->image = pt_image_new(pt_prefix(f->pt), root, n_storages, bytes);
        made->size = pt_image_size(made->image);
    }
    free(bytes);
    return rc;
}

/* ---- index and configuration ---- */

/* Returns the JSON object in a file of the source's folder. Sets *f to the file, or to NULL if there is none. */
static json_t *read_folder_json(struct edit *x, const char *name, struct edit_file **f, struct err *e)
{
    const struct source_file *file = source_file(x->s, name);
    uint64_t size = file ? files_size(x->s->files, file->file) : 0;
    char *text = file && size <= TEXT_MAX ? xmalloc(size + 1) : NULL;
    json_t *o = NULL;

    *f = file ? edit_find_file(x, file->file) : NULL;
    if (text && files_read(x->s->files, file->file, 0, text, size, e) == 0) {
        o = json_loadb(text, size, 0, NULL);
        if (!json_is_object(o))
            err_data(e, files_name(x->s->files, file->file), ERR_NO_BYTE, "no JSON object");
    } else if (file && !text) {
        err_data(e, files_name(x->s->files, file->file), ERR_NO_BYTE, "has %llu bytes, too many for %s",
                 (unsigned long long)size, name);
    }
    free(text);
    return o;
}

json_t *edit_hf_config(struct edit *x, struct err *e)
{
    struct edit_file *ignored;

    return read_folder_json(x, "config.json", &ignored, e);
}

/* Replace the contents of the file f, which are `was`, by the JSON `o`. Does nothing if the two are equal. */
static void write_json(struct edit *x, struct edit_file *f, const json_t *was, const json_t *o)
{
    struct edit_made *made;
    char *text;

    if (json_equal(was, o))
        return;
    made = edit_make(x, f);
    text = hf_json_text(o);
    strbuf_add(&made->head, text, strlen(text));
    made->size = made->head.len;
    free(text);
}

/*
 * Keep the index entries of tensors that the source could not read, because these tensors stay in their files. *total
 * is reduced to the number of bytes of these tensors.
 */
static void keep_unknown(const struct edit *x, json_t *map, json_t *was, json_int_t *total)
{
    const char *name;
    json_t *file;
    int n = 0;

    json_object_foreach(was, name, file)
        if (!source_param(x->s, name)) {
            json_object_set(map, name, file);
            n++;
        }
    for (int i = 0; i < x->s->n_params; i++) {
        const struct param *p = &x->s->param[i];

        *total -= (json_int_t)p->state[p->state[STATE_FP32] ? STATE_FP32 : STATE_BF16]->len;
    }
    *total = n && *total > 0 ? *total : 0;
}

static int write_hf_weight_index(struct edit *x, const struct edit_states *to, const char *name, struct err *e)
{
    struct edit_file *f;
    json_t *was = read_folder_json(x, name, &f, e), *o = json_deep_copy(was), *map = json_object();
    json_t *meta = json_object_get(o, "metadata");
    json_int_t total = json_integer_value(json_object_get(meta, "total_size"));

    if (o)
        keep_unknown(x, map, json_object_get(was, "weight_map"), &total);
    for (int i = 0; o && i < to->n; i++) {
        const struct edit_new *t = &to->tensor[i];
        const struct tmap *m = t->map[edit_weights_state(t)];

        if (json_object_get(map, t->name))
            err_usage(e, "two parameters of %s would have the same name %s", x->s->path, t->name);
        total += (json_int_t)(m->len / (uint64_t)dtype_size(m->dtype) *
                              (uint64_t)dtype_size(t->dtype[edit_weights_state(t)]));
        json_object_set_new(map, t->name, json_string(edit_find_file(x, param_weights_file(x, t->param))->name));
    }
    if (o) {
        if (json_object_get(meta, "total_size"))
            json_object_set_new(meta, "total_size", json_integer(total));
        json_object_set(o, "weight_map", map);
        write_json(x, f, was, o);
    }
    json_decref(map);
    json_decref(o);
    json_decref(was);
    return e->kind == ERR_NONE ? 0 : -1;
}

/* Set the keys in a configuration. A key with the value null is removed. */
static void set_config_keys(json_t *config, json_t *keys)
{
    const char *key;
    json_t *value;

    json_object_foreach(keys, key, value)
        if (json_is_null(value))
            json_object_del(config, key);
        else
            json_object_set(config, key, value);
}

static int write_config(struct edit *x, const struct edit_states *to, struct err *e)
{
    struct edit_file *f;
    json_t *was = to->config ? read_folder_json(x, "config.json", &f, e) : NULL, *o = json_deep_copy(was);

    if (o) {
        set_config_keys(o, to->config);
        write_json(x, f, was, o);
    }
    json_decref(o);
    json_decref(was);
    return e->kind == ERR_NONE ? 0 : -1;
}

/*
 * Returns true if the source has weights in files whose names end with `end`. A folder may have weights in both
 * formats, but the source reads only one.
 */
static bool has_weight_files(const struct edit *x, const char *end)
{
    for (int i = 0; i < x->s->n_files; i++)
        if (x->s->file[i].cls == FILE_WEIGHTS && str_ends(x->s->file[i].name, end))
            return true;
    return false;
}

/* Returns the number of ranks that wrote a folder of cut tensors (hfstorage): the highest rank in the files' names. */
static int count_cut_ranks(const struct source *s)
{
    int ranks = 1, rank;

    for (int i = 0; i < s->n_files; i++)
        if (s->file[i].cls == FILE_WEIGHTS && sscanf(s->file[i].name, "shard-%d-", &rank) == 1 && rank > ranks)
            ranks = rank;
    return ranks;
}

/* The target for a folder whose tensors are cut for ranks, and the config.json that the target refers to. */
struct cut_folder { struct hf_target *t; json_t *config; };

static struct sink *open_cut_folder(const struct sink_opts *o, const void *target)
{
    return hf_sink(o, ((const struct cut_folder *)target)->t);
}

static void free_cut_folder(void *target)
{
    struct cut_folder *c = target;

    hf_target_free(c->t);
    json_decref(c->config);
    free(c);
}

/* Set the types of a target's tensors to those in the list. */
static void set_target_dtypes(struct hf_target *t, const struct edit_states *to)
{
    for (int i = 0; i < t->n_tensors; i++) {
        struct hf_tensor *h = &t->tensor[i];
        const enum dtype dtype = to->tensor[h->param].dtype[h->state];

        h->len = h->len / (uint64_t)dtype_size(h->dtype) * (uint64_t)dtype_size(dtype);
        h->dtype = dtype;
    }
}

/*
 * Write a folder of tensors that are cut for ranks again as a whole, for the same number of ranks. A copy of the source
 * gets the tensors of the list, and the layout's own writer writes this copy.
 */
static int rewrite_cut_folder(struct edit *x, const struct edit_states *to, struct err *e)
{
    const int ranks = count_cut_ranks(x->s);
    struct source *src = edit_source_copy(x);
    struct cut_folder *c = xcalloc(1, sizeof *c);
    struct report *notes = report_new();
    struct hf_request q = { .named = true, .as_is = true };

    edit_source_list(x, src, to);
    c->config = edit_hf_config(x, e);
    if (c->config && to->config)
        set_config_keys(c->config, to->config);
    q.config_json = c->config;
    q.config.dtype = source_weights_dtype(src);
    c->t = e->kind == ERR_NONE ? hf_target_new(src, &q, notes, e) : NULL;
    report_free(notes);
    if (!c->t) {
        free_cut_folder(c);
        return -1;
    }
    set_target_dtypes(c->t, to);
    hfstorage_cut(c->t, ranks);
    edit_rewrite(x, &(struct edit_rewrite){ src, arena_fmt(x->arena, "%d ranks, %d tensors", ranks, c->t->n_tensors), c,
                                            open_cut_folder, free_cut_folder });
    return 0;
}

int edit_hf(struct edit *x, struct edit_states *to, struct err *e)
{
    int rc;

    x->states = to;
    rc = edit_states_check(x, to, e);
    if (rc == 0 && x->s->layout->cut_files)
        return rewrite_cut_folder(x, to, e);
    for (int i = 0; i < x->s->n_files && rc == 0; i++) {
        struct edit_file *f = edit_find_file(x, x->s->file[i].file);
        const struct edit_new **t;
        bool same;
        int n;

        if (x->s->file[i].cls != FILE_WEIGHTS)
            continue;
        t = tensors_of(x, to, f->file, &n, &same);
        if (!same)
            rc = check_all_read(x, f, e);
        if (!same && rc == 0 && n == 0)
            edit_drop(x, i);
        else if (!same && rc == 0)
            rc = str_ends(f->name, ".bin") ? make_bin(x, f, t, n, e) : make_safetensors(x, f, t, n, e);
        free(t);
    }
    if (rc == 0 && has_weight_files(x, ".safetensors"))
        rc = write_hf_weight_index(x, to, "model.safetensors.index.json", e);
    if (rc == 0 && has_weight_files(x, ".bin"))
        rc = write_hf_weight_index(x, to, "pytorch_model.bin.index.json", e);
    if (rc < 0)
        return -1;
    return write_config(x, to, e);
}

/*
 * Set the type of all floating-point tensors in the list. Returns -1 with ERR_USAGE if one of them cannot be converted.
 */
static int set_list_dtype(struct edit_states *to, enum dtype type, struct err *e)
{
    for (int i = 0; i < to->n; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct tmap *m = to->tensor[i].map[st];

            if (!m || !dtype_is_weight(m->dtype))
                continue;
            to->tensor[i].dtype[st] = type;
            if (m->dtype != type && plan_op_of(m->dtype, type) < 0)
                err_usage(e, "cast: %s has type %s, which cannot be converted to %s%s",
                          to->tensor[i].name, dtype_name(m->dtype),
                          type == DTYPE_F16 ? "fp16" : type == DTYPE_F32 ? "fp32" : "bf16",
                          m->dtype == DTYPE_F8_E4M3 || m->dtype == DTYPE_F8_E5M2
                              ? " without a quantization_config in config.json that states its scale" : "");
        }
    return e->kind == ERR_NONE ? 0 : -1;
}

json_t *edit_hf_type_keys(struct edit *x, enum dtype type, struct err *e)
{
    json_t *config = edit_hf_config(x, e), *keys = json_object();

    if (json_object_get(config, "dtype"))
        json_object_set_new(keys, "dtype", json_string(dtype_torch_name(type)));
    if (json_object_get(config, "torch_dtype") || json_object_size(keys) == 0)
        json_object_set_new(keys, "torch_dtype", json_string(dtype_torch_name(type)));
    json_decref(config);
    return keys;
}

int edit_hf_cast(struct edit *x, enum dtype type, struct err *e)
{
    struct edit_states *to = edit_states_new(x, "cast", e);

    if (!to || set_list_dtype(to, type, e) < 0) {
        edit_states_free(to);
        return -1;
    }
    to->config = edit_hf_type_keys(x, type, e);
    return edit_hf(x, to, e);
}
