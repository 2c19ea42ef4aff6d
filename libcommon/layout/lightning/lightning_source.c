/*
 * lightning_source.c - open a checkpoint of PyTorch Lightning: its tensors, counters and values
 */
#include "libcommon/layout/lightning/lightning.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"

/* ---- the file ---- */

bool lightning_marks(const char *name)
{
    return !strchr(name, '/') && str_ends(name, ".ckpt");
}

bool lightning_fits(const struct source_listing *l)
{
    int n = 0;

    for (int i = 0; i < l->n; i++)
        n += lightning_marks(l->member[i].name);
    return n == 1;
}

bool lightning_is_file(const char *path)
{
    struct files *f;
    struct err ignored = {0};
    struct stat st;
    struct pt *pt = NULL;
    bool yes;
    int file;

    if (!str_ends(path, ".ckpt") || stat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    f = files_new();
    file = files_add_path(f, path, &ignored);
    pt = file < 0 ? NULL : pt_open(f, file, &ignored);
    yes = pt && pk_get(pt_root(pt), "state_dict") && pk_get(pt_root(pt), "pytorch-lightning_version");
    pt_close(pt);
    files_free(f);
    return yes;
}

static void skip_read(const struct pt_files_job *j)
{
    (void)j;
}

/*
 * Returns true if loading the class or function `name` ("module.Class") could do more than make an object of the user's
 * program. This is so for a function that is called, and for classes in those modules of Python that can access the
 * system.
 */
static bool acts_when_loaded(const struct pk *v, const char *name)
{
    static const char *const modules[] = { "builtins", "__builtin__", "os", "posix", "nt", "sys", "subprocess",
                                           "importlib", "runpy", "shutil", "socket", "ctypes", "pickle", "marshal",
                                           "code", "pty", "multiprocessing", "webbrowser", "operator", "timeit" };
    const char *last = strrchr(name, '.');
    const size_t n = strcspn(name, ".");

    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (strlen(modules[i]) == n && strncmp(modules[i], name, n) == 0)
            return true;
    return v->type == PK_CALL && !isupper((unsigned char)(last ? last[1] : *name));
}

/*
 * Report the classes and functions that could do more than make an object when the file is loaded. Returns true if
 * there are none.
 */
static bool check_lightning_classes(const struct lightning *x)
{
    const struct pk_tree *tree = pt_tree(x->pt);
    bool good = true;

    for (uint32_t i = 0; i < tree->n_opaque; i++) {
        const struct pk *v = tree->opaque[i];
        char name[1024];

        if (!pt_refuses_class(v))
            continue;
        if (pk_class(v, name, sizeof name) && !acts_when_loaded(v, name))
            continue;
        report_add(x->r, SEV_ERROR, "class", x->path, ERR_NO_BYTE, NULL,
                   "refuses class %s (not on the allow-list; nothing was executed)",
                   pk_class(v, name, sizeof name) ? name : "a nested class");
        good = false;
    }
    return good;
}

/*
 * Open the file. check_lightning_classes() reports its classes instead of pt_files_keep(), because hyper_parameters and
 * callbacks may hold objects of the user's classes. If the file cannot be opened, reports this and returns false.
 */
static bool open_lightning_file(struct lightning *x, const struct source_listing *l)
{
    struct source *s = x->s;
    const struct archive_member *m = l->member;
    struct report *found = report_new();
    struct pt_files o = { .s = s, .r = found, .threads = x->o->threads, .ctx = x, .read = skip_read };

    while (!lightning_marks(m->name))
        m++;
    s->file = arena_alloc(s->arena, sizeof *s->file);
    s->file[s->n_files++] = (struct source_file){ .name = arena_fmt(s->arena, "%s", m->name), .file = m->file,
                                                  .cls = FILE_WEIGHTS, .pp = -1, .tp = -1, .dp = -1, .layer = -1 };
    pt_files_keep(&o, &(int){ 0 }, 1);
    for (int i = 0; i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);

        if (strcmp(f->code, "class") != 0)
            report_add(x->r, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    report_free(found);
    x->pt = s->file[0].pt;
    x->path = files_name(s->files, m->file);
    return x->pt && check_lightning_classes(x);
}

/* ---- the model ---- */

/*
 * Returns the length of the first component of all n names, including its dot, or 0 if the names begin with different
 * components.
 */
static size_t shared_attribute(struct pk *const *pair, uint32_t n)
{
    const char *first = n ? pk_as_str(pair[0]) : NULL;
    const size_t len = first && strchr(first, '.') ? strcspn(first, ".") + 1 : 0;

    for (uint32_t i = 0; i < n && len; i++) {
        const char *name = pk_as_str(pair[2 * i]);

        if (!name || strncmp(name, first, len) != 0)
            return 0;
    }
    return len;
}

static void add_model_value(struct lightning *x, const char *name, const struct pt_tensor *t, struct tmap *map)
{
    struct source_value v = { .name = name, .map = map, .ndim = t->ndim, .buffer = true };

    memcpy(v.shape, t->shape, sizeof v.shape);
    lightning_add_value(x, &v);
}

/* Read a tensor of state_dict. `places` maps the place of a parameter's elements to the parameter. */
static void read_lightning_tensor(struct lightning *x, const char *name, const struct pk *v, struct names *places)
{
    struct source *s = x->s;
    struct pt_tensor t;
    struct tmap *map = NULL;
    struct param *p;
    const char *place;
    int same;

    if (!pt_tensor(x->pt, v, &t) || !(map = lightning_map(x, &t))) {
        source_add_unread(s, x->o, x->r, (struct source_spot){ x->path, ERR_NO_BYTE }, name,
                          map ? "its elements are scattered over its storage" : "it is no tensor that can be read");
        return;
    }
    if (!dtype_is_weight(t.dtype)) {
        add_model_value(x, name, &t, map);
        return;
    }
    place = arena_fmt(s->arena, "%d+%" PRIu64, t.record, t.at);
    same = t.n_elems ? names_find(places, place) : -1;
    p = &s->param[s->n_params];
    *p = (struct param){ .name = name, .ndim = t.ndim, .merge = MERGE_REPLICATED, .stage = -1, .group = -1,
                         .shared_with = same >= 0 ? s->param[same].name : NULL };
    memcpy(p->shape, t.shape, sizeof p->shape);
    p->state[t.dtype == DTYPE_F32 || t.dtype == DTYPE_F64 ? STATE_FP32 : STATE_BF16] = map;
    if (same < 0) {
        names_add(places, place, s->n_params);
        x->tensor[x->n_tensors++] = (struct lightning_tensor){ name, t.ndim, p->shape };
    }
    s->n_params++;
}

/* Read the model. If the file does not have a dict of tensors, reports this and returns false. */
static bool read_lightning_model(struct lightning *x)
{
    struct source *s = x->s;
    struct names *places = names_new(s->arena);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(pt_root(x->pt), "state_dict"), &n);
    const size_t len = pair ? shared_attribute(pair, n) : 0;

    for (uint32_t i = 0; pair && i < n; i++)
        if (!pk_as_str(pair[2 * i]))
            pair = NULL;
    if (!pair) {
        report_add(x->r, SEV_ERROR, "unread", x->path, ERR_NO_BYTE, NULL, "state_dict is no dict of tensors by name");
        return false;
    }
    if (len)
        report_add(x->r, SEV_NOTE, "prefix", x->path, ERR_NO_BYTE, NULL,
                   "all names in state_dict begin with '%.*s', which the names of the parameters lack", (int)len,
                   pk_as_str(pair[0]));
    s->param = arena_alloc(s->arena, ((size_t)n + 1) * sizeof *s->param);
    x->tensor = arena_alloc(s->arena, ((size_t)n + 1) * sizeof *x->tensor);
    for (uint32_t i = 0; i < n; i++)
        read_lightning_tensor(x, arena_fmt(s->arena, "%s", pk_as_str(pair[2 * i]) + len), pair[2 * i + 1], places);
    return true;
}

int lightning_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e)
{
    struct lightning x = { .s = s, .o = o, .r = r };

    (void)e;
    s->layout = &lightning_layout;
    if (!open_lightning_file(&x, l) || !read_lightning_model(&x))
        return 0;
    snprintf(s->run.torch_dialect, sizeof s->run.torch_dialect, "%s", pt_dialect(x.pt));
    s->run.iteration = pk_int_or(pk_get(pt_root(x.pt), "global_step"), -1);
    run_state_check_counter(x.path, "global_step", pk_get(pt_root(x.pt), "global_step"), r);
    lightning_read_values(&x);
    if (!o->no_optimizer)
        lightning_read_optimizer(&x);
    return 0;
}
