/* view.c - list the tensors of a checkpoint folder, a .pt file or an .h5 file in the same form */
#include "libcommon/api/view.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/base/parse.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/tile.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/hdf5.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/other_kinds.h"

/*
 * Limits for a pickle. A pickle with shared nodes can have many more paths than bytes; no real file has as many paths
 * as MAX_VISITS. MAX_RUNS limits the memory for tensors that are not contiguous to 100 MB.
 */
enum { MAX_VISITS = 1 << 20, MAX_DEPTH = 64, MAX_RUNS = 1 << 22 };

static bool is_name_selected(const struct view *v, const char *name)
{
    return !v->select.glob || fnmatch(v->select.glob, name, 0) == 0;
}

static struct view_tensor *add_view_tensor(struct view *v, int *cap)
{
    ARRAY_ROOM(v->tensor, *cap, v->n + 1);
    memset(&v->tensor[v->n], 0, sizeof *v->tensor);
    v->tensor[v->n].state = -1;
    return &v->tensor[v->n++];
}

/* ---- a checkpoint ---- */

static void list_source(struct view *v)
{
    int cap = 0;

    for (int i = 0; i < v->source->n_params; i++) {
        const struct param *p = &v->source->param[i];

        for (int st = 0; is_name_selected(v, p->name) && st < STATE_N; st++) {
            struct view_tensor *t;

            if (!p->state[st] || (v->select.state >= 0 && v->select.state != st))
                continue;
            t = add_view_tensor(v, &cap);
            t->name = p->name;
            t->param = p;
            t->state = st;
            t->map = p->state[st];
            t->dtype = t->map->dtype;
            t->ndim = p->ndim;
            memcpy(t->shape, p->shape, sizeof p->shape);
            t->n_elems = (int64_t)(t->map->len / (uint64_t)dtype_size(t->dtype));
        }
    }
}

/* Append a tensor that is not a parameter to the list of tensors. */
static void add_view_value(struct view *v, const struct source_value *x, int *cap)
{
    struct view_tensor *t;

    ARRAY_ROOM(v->tensor, *cap, v->n_known + 1);
    t = &v->tensor[v->n_known++];
    *t = (struct view_tensor){ .name = x->name, .state = -1, .dtype = x->map->dtype, .ndim = x->ndim,
                               .n_elems = (int64_t)(x->map->len / (uint64_t)dtype_size(x->map->dtype)),
                               .map = x->map, .buffer = x->buffer, .weights = x->weights };
    memcpy(t->shape, x->shape, sizeof t->shape);
}

static void list_values(struct view *v)
{
    int cap = v->n, cap_plain = 0, cap_unread = 0;

    for (int i = 0; i < v->source->n_unread; i++) {
        const struct source_unread *u = &v->source->unread[i];

        if (!is_name_selected(v, u->name))
            continue;
        ARRAY_ROOM(v->unread, cap_unread, v->n_unread + 1);
        v->unread[v->n_unread++] = (struct view_unread){ .name = u->name, .why = u->why };
    }

    v->n_known = v->n;
    for (int i = 0; v->select.state < 0 && i < v->source->n_values; i++) {
        const struct source_value *x = &v->source->value[i];

        if (!is_name_selected(v, x->name))
            continue;
        if (x->map) {
            add_view_value(v, x, &cap);
            continue;
        }
        ARRAY_ROOM(v->plain, cap_plain, v->n_plain + 1);
        v->plain[v->n_plain++] = x;
    }
    v->n_all = v->n_known;
    for (int i = 0; v->select.state < 0 && i < v->source->n_stacks; i++)
        if (v->source->stack[i].whole.map && is_name_selected(v, v->source->stack[i].whole.name))
            add_view_value(v, &v->source->stack[i].whole, &cap);
}

/* ---- one .pt file ---- */

struct view_walk {
    struct view *v;
    struct report *r;
    int cap, cap_plain, cap_unread, visits;
    bool too_many;
};

/* The position of the walk through a tree: the keys joined by dots, for messages, and the same keys as JSON. */
struct view_place {
    const char *name, *path;
    int depth;
};

/*
 * Return a map of the tensor in row-major order, with one extent per contiguous run. Returns NULL if there are too
 * many runs.
 */
static const struct tmap *make_tensor_map(struct view *v, const struct pt_tensor *t)
{
    struct tmap *m = arena_alloc(v->arena, sizeof *m);

    m->op = TMAP_CONCAT;
    m->dtype = t->dtype;
    m->len = (uint64_t)t->n_elems * (uint64_t)dtype_size(t->dtype);
    m->n_slices = 1;
    m->slice = arena_alloc(v->arena, sizeof *m->slice);
    m->slice->len = m->len;
    m->slice->extent = tile_runs(v->arena, t, MAX_RUNS - v->n_runs, &m->slice->n_extents);
    v->n_runs += m->slice->n_extents;
    return m->slice->extent ? m : NULL;
}

static const char *kept_name(struct view_walk *w, const struct view_place *at)
{
    return arena_fmt(w->v->arena, "%s", *at->name ? at->name : "(the file itself)");
}

static void add_walked_tensor(struct view_walk *w, const struct pt_tensor *pt, const struct view_place *at)
{
    struct view_tensor *t;

    if (!is_name_selected(w->v, at->name))
        return;
    t = add_view_tensor(w->v, &w->cap);
    t->name = kept_name(w, at);
    t->path = arena_fmt(w->v->arena, "%s", at->path);
    t->dtype = pt->dtype;
    t->ndim = pt->ndim;
    memcpy(t->shape, pt->shape, sizeof t->shape);
    t->n_elems = pt->n_elems;
    t->map = make_tensor_map(w->v, pt);
}

static void add_unread_tensor(struct view_walk *w, const char *why, const struct view_place *at)
{
    struct view_unread *u;

    if (!is_name_selected(w->v, at->name))
        return;
    ARRAY_ROOM(w->v->unread, w->cap_unread, w->v->n_unread + 1);
    u = &w->v->unread[w->v->n_unread++];
    *u = (struct view_unread){ kept_name(w, at), arena_fmt(w->v->arena, "%s", at->path),
                               arena_fmt(w->v->arena, "%s", why) };
    if (w->r)
        report_add(w->r, SEV_ERROR, "unread", w->v->path, ERR_NO_BYTE, u->name, "cannot be read: %s", why);
}

static void add_plain_value(struct view_walk *w, const struct pk *v, const struct view_place *at)
{
    struct source_value *x;

    if (!is_name_selected(w->v, at->name))
        return;
    x = arena_alloc(w->v->arena, sizeof *x);
    *x = (struct source_value){ .name = arena_fmt(w->v->arena, "%s", at->path), .tree = v };
    ARRAY_ROOM(w->v->plain, w->cap_plain, w->v->n_plain + 1);
    w->v->plain[w->v->n_plain++] = x;
}

static void walk(struct view_walk *w, const struct pk *v, const struct view_place *at);

static void walk_below(struct view_walk *w, const struct pk *v, const struct view_place *at, const struct pk *key,
                       uint32_t i)
{
    struct strbuf name = {0}, path = {0};

    if (at->depth) {
        strbuf_addf(&name, "%s.", at->name);
        strbuf_addf(&path, "%s.", at->path);
    }
    if (!key)
        strbuf_addf(&name, "%u", i);
    else if (pk_as_str(key))
        strbuf_addf(&name, "%s", pk_as_str(key));
    else
        pk_text(key, &name);
    if (key)
        pk_text(key, &path);
    else
        strbuf_addf(&path, "%u", i);
    walk(w, v, &(struct view_place){ name.buf, path.buf, at->depth + 1 });
    strbuf_free(&name);
    strbuf_free(&path);
}

/*
 * Add everything in the tree at v to the lists of the view. There are three lists: tensors, plain values, and values
 * that contain a tensor but cannot be read.
 */
static void walk(struct view_walk *w, const struct pk *v, const struct view_place *at)
{
    struct strbuf why = {0};
    struct pt_tensor t;
    struct pk **item;
    uint32_t n;

    if (!v || at->depth > MAX_DEPTH || ++w->visits > MAX_VISITS) {
        w->too_many |= v != NULL;
        return;
    }
    if (pt_tensor(w->v->pt, v, &t))
        add_walked_tensor(w, &t, at);
    else if ((item = pk_pairs(v, &n)) && n)
        for (uint32_t i = 0; i < n && !w->too_many; i++)
            walk_below(w, item[2 * i + 1], at, item[2 * i], i);
    else if ((item = pk_items(v, &n)) && n)
        for (uint32_t i = 0; i < n && !w->too_many; i++)
            walk_below(w, item[i], at, NULL, i);
    else if (pt_unread(w->v->pt, v, &why))
        add_unread_tensor(w, why.buf, at);
    else
        add_plain_value(w, v, at);
    strbuf_free(&why);
}

static int list_pt(struct view *v, struct report *r, struct err *e)
{
    struct view_walk w = { .v = v, .r = r };
    int file = files_add_path(v->files, v->path, e);

    if (file < 0 || !(v->pt = pt_open(v->files, file, e)))
        return -1;
    walk(&w, pt_root(v->pt), &(struct view_place){ "", "", 0 });
    if (w.too_many) {
        err_data(e, v->path, ERR_NO_BYTE, "the pickle is nested deeper than %d levels or has more than %d values",
                 MAX_DEPTH, MAX_VISITS);
        return -1;
    }
    return 0;
}

/* ---- one .h5 file ---- */

static int add_view_dataset(struct view *v, struct h5_in *h, int file, const char *name, int *cap, struct err *e)
{
    struct h5_dataset d;
    struct view_tensor *t;
    struct tmap *m;

    if (h5_inspect_dataset(h, name, v->arena, &d, e) < 0)
        return -1;
    if (d.storage != H5_CONTIGUOUS) {
        err_data(e, v->path, ERR_NO_BYTE, "dataset %s points into other files; name the folder instead", name);
        return -1;
    }
    m = arena_alloc(v->arena, sizeof *m);
    m->op = TMAP_CONCAT;
    m->dtype = DTYPE_F32;
    m->len = d.len;
    m->n_slices = 1;
    m->slice = arena_alloc(v->arena, sizeof *m->slice);
    m->slice->len = d.len;
    m->slice->n_extents = 1;
    m->slice->extent = arena_alloc(v->arena, sizeof *m->slice->extent);
    m->slice->extent->record = files_add_record(v->files, &(struct record){ .file = file, .at = d.at, .len = d.len,
                                                                            .name = arena_fmt(v->arena, "%s", name) });
    m->slice->extent->len = d.len;

    t = add_view_tensor(v, cap);
    t->name = arena_fmt(v->arena, "%s", name);
    t->map = m;
    t->dtype = DTYPE_F32;
    t->ndim = d.ndim;
    memcpy(t->shape, d.shape, sizeof d.shape);
    t->n_elems = (int64_t)(d.len / 4);
    return 0;
}

static int list_h5(struct view *v, struct err *e)
{
    int file = files_add_path(v->files, v->path, e), cap = 0, n = -1;
    struct h5_in *h = file < 0 ? NULL : h5_open(v->path, e);
    const char **name;

    if (h)
        n = h5_list(h, "/", v->arena, &name, e);
    for (int i = 0; i < n; i++)
        if (is_name_selected(v, name[i]) && add_view_dataset(v, h, file, name[i], &cap, e) < 0)
            n = -1;
    h5_close(h);
    return n < 0 ? -1 : 0;
}

/* ---- open and close ---- */

/* Number the first tensor of each name and path. */
static void number_names(struct view *v)
{
    v->names = names_new(v->arena);
    for (int i = 0; i < v->n_known; i++) {
        names_add(v->names, v->tensor[i].name, i);
        if (v->tensor[i].path)
            names_add(v->names, v->tensor[i].path, i);
    }
}

bool view_is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && !str_ends(path, "index.h5") && !archive_is_tar(path) &&
           !lightning_is_file(path) && !other_kind_of_file(path);
}

/* Open a checkpoint. If `path` is the path of an index.h5, the folder that contains this file is opened. */
static struct source *open_source(const char *path, const struct view_select *o, struct report *r, struct err *e)
{
    struct source_opts so = { .threads = o->threads, .no_optimizer = o->state == STATE_BF16,
                              .model = o->model, .hf = true, .piped = true };
    char *folder = str_ends(path, "index.h5") ? path_parent(path) : xstrdup(path);
    struct source *s = source_open(folder, &so, r, e);

    free(folder);
    return s;
}

void view_list(struct view *v)
{
    v->n = v->n_all = v->n_known = v->n_plain = v->n_unread = 0;
    free(v->tensor);
    free(v->plain);
    free(v->unread);
    v->tensor = NULL;
    v->plain = NULL;
    v->unread = NULL;
    list_source(v);
    list_values(v);
    number_names(v);
}

struct view *view_open(const char *path, const struct view_select *o, struct report *r, struct err *e)
{
    struct view *v = xcalloc(1, sizeof *v);
    int rc = 0;

    v->path = xstrdup(path);
    v->select = *o;
    v->arena = arena_new(0);
    if (view_is_file(path)) {
        v->files = files_new();
        rc = str_ends(path, ".h5") ? list_h5(v, e) : list_pt(v, r, e);
    } else {
        v->source = open_source(path, o, r, e);
        rc = v->source ? 0 : -1;
        if (v->source) {
            v->files = v->source->files;
            view_list(v);
        }
    }
    if (!v->source) {
        v->n_all = v->n_known = v->n;
        number_names(v);
    }
    if (rc == 0)
        return v;
    view_close(v);
    return NULL;
}

void view_close(struct view *v)
{
    if (!v)
        return;
    pt_close(v->pt);
    if (v->source)
        source_close(v->source);
    else
        files_free(v->files);
    arena_free(v->arena);
    free(v->plain);
    free(v->unread);
    free(v->tensor);
    free(v->path);
    free(v);
}

int view_check_match(const struct view *v, struct err *e)
{
    const char *glob = v->select.glob;

    if (v->n_all > 0 || (v->source && v->n_plain > 0) || v->n_unread > 0 || !glob)
        return 0;
    err_data(e, v->path, ERR_NO_BYTE, "no tensor matches '%s'", glob);
    return -1;
}

int view_check_digest(const struct view *v, const struct view_tensor *t, uint32_t crc, struct err *e)
{
    if (!t->param || !t->param->has_digest[t->state] || t->param->digest[t->state] == crc)
        return 0;
    err_data(e, v->source->path, ERR_NO_BYTE, "parameter %s: %s has digest %08x, expected %08x", t->name,
             state_name((enum state)t->state), crc, t->param->digest[t->state]);
    return -1;
}

char *view_label(const struct view_tensor *t)
{
    return t->state < 0 ? xstrdup(t->name) : str_fmt("%s %s", t->name, state_name((enum state)t->state));
}

/* ---- a tensor by its name ---- */

/* Find a tensor by its name or path among all n_known tensors. Returns the index of the tensor, or -1. */
static int find_named(const struct view *v, const char *name, int state)
{
    int i = v->names ? names_find(v->names, name) : -1;

    /*
     * The states of one parameter are adjacent in the list. A tensor that is not a parameter may have the same name as
     * a parameter.
     */
    for (; i >= 0 && i < v->n_known; i++) {
        const struct view_tensor *t = &v->tensor[i];

        if (t->state == state && (strcmp(t->name, name) == 0 || (t->path && strcmp(t->path, name) == 0)))
            return i;
        if (state >= 0 && strcmp(t->name, name) != 0)
            break;
    }
    return -1;
}

static int not_there(const struct view *v, const char *name, struct err *e)
{
    const char **names = xcalloc((size_t)v->n_all + 1, sizeof *names), *near;

    for (int i = 0; i < v->n_all; i++)
        names[i] = v->tensor[i].name;
    near = parse_nearest(name, names, v->n_all);
    err_data(e, v->path, ERR_NO_BYTE, "no tensor '%s'%s%s%s", name, near ? "; did you mean '" : "",
             near ? near : "", near ? "'?" : "");
    free(names);
    return -1;
}

/*
 * Choose a state of the parameter `name` if the caller gave none. The first choice is the state that the files store
 * under this name. The second choice is the fp32 master weights, which are the most precise. The last choice is any
 * other state.
 */
static int any_state(const struct view *v, const char *name)
{
    const struct param *p = v->source ? source_param(v->source, name) : NULL;
    int bare = p ? param_named_state(p) : -1, i = find_named(v, name, bare >= 0 ? bare : STATE_FP32);

    for (int st = 0; st < STATE_N && i < 0; st++)
        i = find_named(v, name, st);
    return i;
}

/*
 * Find a tensor by any name that source_find() accepts. Returns the index of the tensor, or -1. If `name` is the name
 * of a plain value, sets *plain to that value.
 */
static int find_in_source(const struct view *v, const char *name, int state, const struct source_value **plain)
{
    struct source_hit hit;

    if (!source_find(v->source, name, &hit))
        return -1;
    if (hit.value && !hit.value->map && state < 0)
        *plain = hit.value;
    if (hit.value)
        return state < 0 ? find_named(v, hit.value->name, -1) : -1;
    if (state >= 0 && hit.state >= 0 && hit.state != state)
        return -1;
    if (state >= 0 || hit.state >= 0)
        return find_named(v, hit.param->name, hit.state >= 0 ? hit.state : state);
    return any_state(v, hit.param->name);
}

int view_lookup(const struct view *v, const char *name, int state, const struct source_value **plain, struct err *e)
{
    int i = v->source ? find_in_source(v, name, state, plain) : find_named(v, name, -1);

    if (i < 0 && *plain)
        return -1;
    for (int k = 0; k < v->n_unread && i < 0; k++)
        if (strcmp(v->unread[k].name, name) == 0) {
            err_data(e, v->path, ERR_NO_BYTE, "parameter '%s': cannot be read: %s", name, v->unread[k].why);
            return -1;
        }
    for (int k = i + 1; k < v->n && i >= 0 && v->tensor[i].path && strcmp(v->tensor[i].path, name) != 0; k++)
        if (strcmp(v->tensor[k].name, name) == 0) {
            err_usage(e, "%s: two tensors are called %s: give the keys in quotes, %s or %s", v->path, name,
                      v->tensor[i].path, v->tensor[k].path);
            return -1;
        }
    if (i < 0)
        return not_there(v, name, e);
    if (!v->tensor[i].map) {
        err_data(e, v->path, ERR_NO_BYTE, "tensor %s has too many pieces to be read", name);
        return -1;
    }
    return i;
}
