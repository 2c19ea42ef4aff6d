/*
 * universal_pt_source.c - read zero/<parameter>/{fp32,exp_avg,exp_avg_sq}.pt
 *
 * These files are written by ds2universal or by any ds_to_universal.py (docs/formats.md, section 5). Codes of
 * findings:
 *   unreadable E      a file cannot be opened, or its container or pickle is damaged
 *   class E, opaque W see pt_check_classes()
 *   state_missing E   a parameter lacks one of its three states, or step.pt though others have it
 *   no_params E, missing_param E   no parameters, or fewer than the mp_rank files list
 *   key E             a state file without a usable `param`
 *   shape E           states of one parameter differ, or a shape contradicts the parameter's name
 *   merge_rule W      cat_dim contradicts the parameter's name
 *   merge_rule E      states of one parameter record different rules (cat_dim ...), or cat_dim is no dimension
 *   extra_file W      a file that no loader uses; if it is in a parameter's folder, loaders fail
 *   no_optimizer_state W  zero/optimizer_state.pt is absent (the 2022 converter wrote none)
 *   no_run_state W    no mp_rank files
 *   step E            step.pt files disagree
 *   leftover W        a file in tmp/, left by an aborted conversion
 *   latest W          latest_universal is empty
 *   frozen E*, buffer E*  see universal_zero_check_copies()
 *   other_rank E*     a file was saved under the name of another one
 * E*: a warning with source_opts.accept_mismatch
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/layout/universal/universal_zero.h"
#include "libcommon/model/config.h"

struct opened {
    struct source *s;
    const struct source_opts *o;
    struct report *r;
    int *param_of;              /* [n_files]: index of the parameter whose folder holds the file; -1 if none */
    struct arena *rules_arena;
    struct merge_record *rules; /* [n_params]: what the first state of each parameter records */
    struct universal_zero zero; /* `file` is -1 if the pipeline engine saved the original checkpoint */
    struct pt_holes holes;
};

/* The entries of a state file other than its tensor. They record how the slices of tensor ranks were merged. */
struct merge_record {
    const struct pk *entries;   /* a copy of the file's dict; NULL if no state has been read */
    const char *path;           /* the file */
};

static const char *path_of(const struct source *s, int i)
{
    return files_name(s->files, s->file[i].file);
}

/* ---- names ---- */

/* Returns the length of <parameter> in a name "zero/<parameter>/<rest>", and sets *rest. Returns 0 for other names. */
static size_t param_part(const char *name, const char **rest)
{
    const char *p = name + 5, *slash;

    if (!str_starts(name, "zero/") || !(slash = strchr(p, '/')) || slash == p)
        return 0;
    *rest = slash + 1;
    return (size_t)(slash - p);
}

static int state_of_file(const char *rest)
{
    for (int j = 0; j < TRAINED_STATES; j++) {
        size_t n = strlen(state_name(trained_states[j]));

        if (strncmp(rest, state_name(trained_states[j]), n) == 0 && strcmp(rest + n, ".pt") == 0)
            return trained_states[j];
    }
    return -1;
}

static bool is_mp_rank_file_name(const char *name)
{
    return str_starts(name, "mp_rank_") && str_ends(name, "_model_states.pt");
}

static bool is_universal_file_name(const char *name)
{
    return is_mp_rank_file_name(name) || ds_name_parse(name).kind == DS_ZERO3 ||
           strcmp(name, "zero/optimizer_state.pt") == 0 || strcmp(name, MANIFEST_NAME) == 0 ||
           strcmp(name, DS_REPAIR_LOG_NAME) == 0;
}

/* Returns true for files whose handles stay open because they contain run state. */
static bool is_kept(const char *name)
{
    return is_mp_rank_file_name(name) || strcmp(name, "zero/optimizer_state.pt") == 0;
}

static int by_tied_then_name(const void *a, const void *b)
{
    const struct param *x = a, *y = b;
    bool tx = param_is_tied(x->name), ty = param_is_tied(y->name);

    return tx != ty ? (tx ? -1 : 1) : str_natural_cmp(x->name, y->name);
}

/* List the folders below zero/, each once. The listing is sorted, so files of one folder are adjacent. */
static void list_param_folders(struct opened *u)
{
    struct source *s = u->s;
    int cap = 0;

    for (int i = 0; i < s->n_files; i++) {
        const char *rest;
        size_t n = param_part(s->file[i].name, &rest);
        const char *name = s->file[i].name + 5;

        if (n == 0 || (s->n_params && strlen(s->param[s->n_params - 1].name) == n &&
                       memcmp(s->param[s->n_params - 1].name, name, n) == 0))
            continue;
        if (s->n_params == cap) {
            struct param *old = s->param;

            cap = cap ? 2 * cap : 256;
            s->param = arena_alloc(s->arena, (size_t)cap * sizeof *s->param);
            if (old)
                memcpy(s->param, old, (size_t)s->n_params * sizeof *old);
        }
        s->param[s->n_params++] = (struct param){ .name = arena_strndup(s->arena, name, n), .stage = -1, .group = -1 };
    }
    if (s->n_params)
        qsort(s->param, (size_t)s->n_params, sizeof *s->param, by_tied_then_name);
}

static int find_param_folder(const struct source *s, const char *name, size_t n)
{
    struct param key = { .name = NULL };
    char *copy = str_fmt("%.*s", (int)n, name);
    const struct param *p;

    key.name = copy;
    p = bsearch(&key, s->param, (size_t)s->n_params, sizeof *s->param, by_tied_then_name);
    free(copy);
    return p ? (int)(p - s->param) : -1;
}

static void list_universal_files(struct opened *u, const struct source_listing *l)
{
    struct source *s = u->s;

    s->file = arena_alloc(s->arena, (size_t)(l->n + 1) * sizeof *s->file);
    s->n_files = l->n;
    for (int i = 0; i < l->n; i++) {
        const char *name = l->member[i].name;

        s->file[i] = (struct source_file){
            .name = arena_strndup(s->arena, name, strlen(name)), .file = l->member[i].file,
            .cls = str_starts(name, "zero/") ? FILE_OPTIMIZER : FILE_OTHER, .pp = -1, .tp = -1, .dp = -1, .layer = -1,
        };
    }
    list_param_folders(u);
    u->param_of = arena_alloc(s->arena, (size_t)(l->n + 1) * sizeof *u->param_of);
    for (int i = 0; i < s->n_files; i++) {
        const char *rest;
        size_t n = param_part(s->file[i].name, &rest);

        u->param_of[i] = n ? find_param_folder(s, s->file[i].name + 5, n) : -1;
        /* A file in a parameter's folder is not stray: DeepSpeed loads every .pt file there as a state. */
        s->file[i].stray = n == 0 && !is_universal_file_name(s->file[i].name);
        if (s->file[i].stray || (n && state_of_file(rest) < 0 && strcmp(rest, "step.pt") != 0))
            report_add(u->r, SEV_WARNING, str_starts(s->file[i].name, "tmp/") ? "leftover" : "extra_file",
                       path_of(s, i), ERR_NO_BYTE, NULL, "does not belong to a universal checkpoint");
    }
}

/* ---- tensors ---- */

/*
 * Returns the severity of a missing state. It is a warning if holes are permitted, or if the state is a moment and the
 * optimizer was not requested.
 */
static enum severity lost(const struct opened *u, enum state st)
{
    return u->o->holes || (u->o->no_optimizer && st > STATE_FP32) ? SEV_WARNING : SEV_ERROR;
}

/* Returns the severity to report if file i cannot be read. */
static enum severity lost_file(const struct opened *u, int i)
{
    const char *rest;

    if (u->param_of[i] < 0 || !param_part(u->s->file[i].name, &rest) || state_of_file(rest) < 0)
        return SEV_ERROR;
    return lost(u, (enum state)state_of_file(rest));
}

static struct pt *open_file(struct opened *u, int i)
{
    struct err e = {0};
    struct pt *pt = pt_open(u->s->files, u->s->file[i].file, &e);

    if (pt) {
        pt_check(pt, u->s->files, u->s->file[i].file, u->r);
    } else if (u->o->holes && lost_file(u, i) == SEV_WARNING) {
        report_add_lost(u->r, NULL, &e);
    } else if (lost_file(u, i) == SEV_WARNING) {
        report_add(u->r, SEV_WARNING, "unreadable", NULL, ERR_NO_BYTE, NULL, "%s", e.msg);
    } else {
        report_add_err(u->r, "unreadable", &e);
    }
    return pt;
}

static enum merge_rule rule_of_file(const struct pk *root)
{
    int64_t dim, parts;

    if (pk_get(root, "vocab_tensor") || pk_get(root, "vocab_divisibility_padding_tensor"))
        return MERGE_VOCAB;
    if (pk_as_int(pk_get(root, "param_n_sub_params"), &parts))
        return MERGE_CAT0_HALVES;
    if (!pk_as_int(pk_get(root, "cat_dim"), &dim))
        return MERGE_REPLICATED;
    return dim == 1 ? MERGE_CAT1 : MERGE_CAT0;
}

/* Returns the key of the first entry of `a` that is missing in `b` or differs from it, or NULL if there is none. */
static const char *other_entry(const struct pk *a, const struct pk *b)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(a, &n);

    for (uint32_t k = 0; pair && k < n; k++) {
        const char *key = pk_as_str(pair[2 * k]);

        if (key && strcmp(key, "param") != 0 && !pk_same_text(pair[2 * k + 1], pk_get(b, key)))
            return key;
    }
    return NULL;
}

static void add_entry_text(const struct pk *v, struct strbuf *out)
{
    if (v)
        pk_text(v, out);
    else
        strbuf_addf(out, "absent");
}

/*
 * Check the entries of a state file by which loaders split its tensor, which has `ndim` dimensions. These entries must
 * be equal in all states of the parameter.
 */
static void check_merge_entries(struct opened *u, int i, const struct pk *root, int ndim)
{
    struct merge_record *first = &u->rules[u->param_of[i]];
    struct strbuf text = {0};
    const char *key;
    int64_t dim;

    if (pk_as_int(pk_get(root, "cat_dim"), &dim) && (dim < 0 || dim >= (ndim ? ndim : 1)))
        report_add(u->r, SEV_ERROR, "merge_rule", path_of(u->s, i), ERR_NO_BYTE, u->s->param[u->param_of[i]].name,
                   "cat_dim is %lld, the tensor has %d dimensions", (long long)dim, ndim);
    if (!first->entries) {
        *first = (struct merge_record){ pk_copy(u->rules_arena, root), path_of(u->s, i) };
        return;
    }
    key = other_entry(first->entries, root);
    key = key ? key : other_entry(root, first->entries);
    if (!key)
        return;
    add_entry_text(pk_get(root, key), &text);
    strbuf_addf(&text, ", and ");
    add_entry_text(pk_get(first->entries, key), &text);
    report_add(u->r, SEV_ERROR, "merge_rule", path_of(u->s, i), ERR_NO_BYTE, u->s->param[u->param_of[i]].name,
               "%s is %s in %s: loaders split each state as its own file states", key, text.buf, first->path);
    strbuf_free(&text);
}

static struct tmap *one_extent(struct arena *a, const struct pt_tensor *t)
{
    struct tmap *m = arena_alloc(a, sizeof *m);

    m->op = TMAP_CONCAT;
    m->dtype = t->dtype;
    m->len = (uint64_t)t->n_elems * (uint64_t)dtype_size(t->dtype);
    m->n_slices = 1;
    m->slice = arena_alloc(a, sizeof *m->slice);
    m->slice->len = m->len;
    m->slice->n_extents = 1;
    m->slice->extent = arena_alloc(a, sizeof *m->slice->extent);
    *m->slice->extent = (struct extent){ t->record, t->at, m->len };
    return m;
}

static void read_state_tensor(struct opened *u, int i, enum state st, const struct pt *pt)
{
    struct param *p = &u->s->param[u->param_of[i]];
    const struct pk *root = pt_root(pt);
    const bool foreign = u->zero.file >= 0;
    struct pt_tensor t;
    bool first = true, bare = pt_tensor(pt, root, &t);
    int group = -1;

    if (!pt_tensor(pt, pk_get(root, "param"), &t) && (!bare || !foreign)) {
        report_add(u->r, SEV_ERROR, "key", path_of(u->s, i), ERR_NO_BYTE, p->name, "has no tensor 'param'%s",
                   bare ? " but without its shape, and no model_states file of ZeRO-3 records it" : "");
        return;
    }
    if (foreign)
        group = universal_zero_match_tensor(&u->zero, p->name, &t, path_of(u->s, i), u->r);
    if (group < -1)
        return;
    if (!t.contiguous || (t.dtype != DTYPE_F32 && (!foreign || group >= 0))) {
        report_add(u->r, SEV_ERROR, "key", path_of(u->s, i), ERR_NO_BYTE, p->name,
                   "'param' is %s, %d-dimensional%s, but must be contiguous f32", dtype_name(t.dtype),
                   t.ndim, t.contiguous ? "" : ", strided");
        return;
    }
    for (int k = 0; k < STATE_N; k++)
        first = first && !p->state[k];
    if (first) {
        p->ndim = t.ndim;
        memcpy(p->shape, t.shape, sizeof p->shape);
        p->merge = rule_of_file(root);
        p->group = group;
    } else if (!shape_equal(p->ndim, p->shape, t.ndim, t.shape)) {
        report_add(u->r, SEV_ERROR, "shape", path_of(u->s, i), ERR_NO_BYTE, p->name,
                   "%s has another shape than the other states", state_name(st));
        return;
    }
    p->state[st] = one_extent(u->s->arena, &t);
    check_merge_entries(u, i, root, t.ndim);
}

static void read_step_file(struct opened *u, int i, const struct pt *pt)
{
    struct run_state *run = &u->s->run;
    struct pt_tensor t;
    int64_t step;
    struct err e = {0};

    if (pt_tensor(pt, pt_root(pt), &t) && t.dtype == DTYPE_F32 && t.n_elems == 1) {
        struct extent x = { t.record, t.at, sizeof(float) };
        float v;

        if (files_read_checked(u->s->files, &x, &v, &e) < 0) {
            report_add_err(u->r, "crc", &e);
            return;
        }
        if (!adam_step_is_valid((double)v)) {
            report_add(u->r, SEV_ERROR, "step", path_of(u->s, i), ERR_NO_BYTE, NULL,
                       "is %g, but the step of the optimizer must be a whole number of 0 or more", (double)v);
            return;
        }
        step = (int64_t)v;
        run->step_is_tensor = true;
    } else if (!pk_as_int(pt_root(pt), &step) || step < 0) {
        report_add(u->r, SEV_ERROR, "step", path_of(u->s, i), ERR_NO_BYTE, NULL, "holds no step number");
        return;
    }
    if (run->step_in_state && run->opt_step != step)
        report_add(u->r, SEV_ERROR, "step", path_of(u->s, i), ERR_NO_BYTE, NULL,
                   "has step %lld, but other parameters have step %lld", (long long)step, (long long)run->opt_step);
    run->opt_step = step;
    run->step_in_state = true;
}

/* Returns true if writers of universal forms save a file of zero/ under the name `stem`.pt. */
static bool is_universal_stem(const char *stem)
{
    bool is = strcmp(stem, "step") == 0 || strcmp(stem, "optimizer_state") == 0;

    for (int j = 0; j < TRAINED_STATES; j++)
        is |= strcmp(stem, state_name(trained_states[j])) == 0;
    return is;
}

/*
 * Compare the name of a file of zero/ with the name inside its archive. torch.save() sets the name inside to that of
 * the file that it writes. If a file was copied over another one, its archive still has its old name. Names that other
 * programs give are ignored.
 */
static void check_saved_name(struct opened *u, int i, const struct pt *pt)
{
    const char *name = u->s->file[i].name, *slash = strrchr(name, '/'), *is = slash ? slash + 1 : name;
    char *was = str_fmt("%s%s", pt_prefix(pt), str_ends(pt_prefix(pt), ".pt") ? "" : ".pt");
    char *stem = str_fmt("%.*s", (int)(strlen(was) - strlen(".pt")), was);

    if ((is_universal_stem(stem) || ds_name_marks(was)) && strcmp(was, is) != 0)
        report_add(u->r, u->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "other_rank", path_of(u->s, i), ERR_NO_BYTE,
                   u->param_of[i] >= 0 ? u->s->param[u->param_of[i]].name : NULL,
                   "was saved as %s (the name inside the file), so it is another file under this name", was);
    free(was);
    free(stem);
}

static void read_universal_pt_file(struct opened *u, int i, struct pt *pt)
{
    const char *name = u->s->file[i].name, *rest;
    const struct ds_name is = ds_name_parse(name);

    if (is.kind == DS_MP)
        ds_name_check(&is, pt, path_of(u->s, i), u->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, u->r);
    else
        check_saved_name(u, i, pt);
    if (is_kept(name)) {
        u->s->file[i].pt = pt;
        return;
    }
    if (u->param_of[i] >= 0 && param_part(name, &rest)) {
        if (strcmp(rest, "step.pt") == 0)
            read_step_file(u, i, pt);
        else if (state_of_file(rest) >= 0)
            read_state_tensor(u, i, (enum state)state_of_file(rest), pt);
    }
    pt_close(pt);
}

/*
 * Open the files in batches. Many threads parse the tables of the files in a batch; then one thread stores the results.
 */
static void open_universal_pt_files(struct opened *u)
{
    enum { BATCH = 512 };
    struct source *s = u->s;
    struct pt *pt[BATCH];
    int threads = u->o->threads ? u->o->threads : 16;

    for (int first = 0; first < s->n_files; first += BATCH) {
        int n = s->n_files - first < BATCH ? s->n_files - first : BATCH;

        #pragma omp parallel for num_threads(threads < n ? threads : n) schedule(dynamic) if (s->n_files > 64)
        for (int i = 0; i < n; i++) {
            const char *name = s->file[first + i].name;
            bool tensors = u->param_of[first + i] >= 0;

            pt[i] = str_ends(name, ".pt") && (tensors ? !u->o->no_tensors : is_kept(name)) && !s->file[first + i].pt ?
                    open_file(u, first + i) : NULL;
        }
        for (int i = 0; i < n; i++)
            if (pt[i])
                read_universal_pt_file(u, first + i, pt[i]);
    }
}

/* ---- checks on the whole ---- */

static void check_param_merge_rule(struct opened *u, const struct param *p)
{
    enum merge_rule by_name = merge_rule_of(p->name);

    if (by_name != p->merge)
        report_add(u->r, SEV_WARNING, "merge_rule", u->s->path, ERR_NO_BYTE, p->name,
                   "was merged as %s, but its name implies %s", merge_rule_name(p->merge), merge_rule_name(by_name));
}

/*
 * Returns the size that the arguments give for a dimension of a parameter, or 0 if they give none. The arguments do not
 * determine the number of rows if the MLP is gated, if the head size is not the hidden size divided by the number of
 * heads, or if there are groups of heads.
 */
static int64_t stated_dimension(const struct source *s, const struct param_row *row, int dim)
{
    const struct model_config *c = &s->config;
    const struct param_dims dims = { .positions = c->max_positions, .hidden = c->hidden,
                                     .ffn = c->glu ? 0 : c->ffn_hidden };
    const int64_t lanes = pk_int_or(pk_get(s->run.args, "kv_channels"), 0);
    const int64_t groups = pk_int_or(pk_get(s->run.args, "num_key_value_heads"), c->n_heads);

    if ((lanes > 0 && lanes * c->n_heads != c->hidden) || groups != c->n_heads)
        return row->dims[dim] == 'h' && row->merge == MERGE_REPLICATED ? c->hidden : 0;
    return param_dim(&dims, row->dims[dim]);
}

/* Compare a parameter's shape with the arguments, and the rows of the embedding with the number of tokens. */
static void check_param_sizes(struct opened *u, const struct param *p)
{
    const struct source *s = u->s;
    int layer;
    const struct param_row *row = param_find(p->name, &layer);

    if (shape_count(p->ndim, p->shape) == 0)
        return;                         /* reported as a tensor without elements */
    if (row && s->config.hidden > 0 && p->ndim != row->ndim) {
        report_add(u->r, SEV_ERROR, "shape", s->path, ERR_NO_BYTE, p->name, "has %d dimensions, but must have %d",
                   p->ndim, row->ndim);
        return;
    }
    for (int d = 0; row && d < row->ndim; d++) {
        const int64_t want = stated_dimension(s, row, d);

        if (want <= 0 || p->shape[d] == want)
            continue;
        report_add(u->r, SEV_ERROR, "shape", s->path, ERR_NO_BYTE, p->name,
                   "has %lld %s, but %lld are expected from the arguments; it may have been converted without merge "
                   "rules", (long long)p->shape[d], d ? "columns" : "rows", (long long)want);
        return;
    }
    if (row && row->dims[0] == 'V' && p->shape[0] < s->config.vocab_tokens)
        report_add(u->r, SEV_ERROR, "shape", s->path, ERR_NO_BYTE, p->name,
                   "has %lld rows, fewer than the %lld tokens of the vocabulary", (long long)p->shape[0],
                   (long long)s->config.vocab_tokens);
}

/* Returns the size of a state's file, or 0 if there is none. */
static uint64_t state_file_size(const struct source *s, const struct param *p, enum state st)
{
    char *name = str_fmt("zero/%s/%s.pt", p->name, state_name(st));
    const struct source_file *f = source_file(s, name);

    free(name);
    return f ? files_size(s->files, f->file) : 0;
}

/*
 * Returns true if the state was read. If tensors are not read (no_tensors), the result is instead true if the state's
 * file exists and is not much shorter than the files of the parameter's other states.
 */
static bool has_param_state_file(const struct opened *u, const struct param *p, enum state st)
{
    /* the pickle and the zip directory may differ by this number of bytes between files */
    const uint64_t slack = 64 << 10;
    uint64_t size, most = 0;

    if (!u->o->no_tensors)
        return p->state[st] != NULL;
    size = state_file_size(u->s, p, st);
    for (int j = 0; j < TRAINED_STATES; j++)
        most = max_u64(most, state_file_size(u->s, p, trained_states[j]));
    return size > 0 && size + slack >= most;
}

/* Returns true if the parameter must have this state. A parameter that was not trained needs only fp32.pt. */
static bool is_due(const struct opened *u, const struct param *p, enum state st)
{
    const struct zero_slot *slot;

    return u->zero.file < 0 || st == STATE_FP32 || zero_shape_find(&u->zero.shape, p->name, &slot) >= 0;
}

/*
 * Replace a missing state by a hole (a map whose bytes are in no file) with the shape of another state. Returns false
 * if the parameter has no other state.
 */
static bool make_hole(struct opened *u, struct param *p, enum state st)
{
    char *name = str_fmt("zero/%s/%s.pt", p->name, state_name(st));
    struct tmap *m = NULL;

    for (int k = 0; k < STATE_N && !m; k++)
        if (p->state[k]) {
            const struct pt_tensor t = { .dtype = DTYPE_F32, .n_elems = shape_count(p->ndim, p->shape) };

            m = one_extent(u->s->arena, &t);
            *m->slice->extent = pt_hole(&u->holes, u->s, name, m->len);
            report_add(u->r, SEV_WARNING, "missing_file", u->s->path, ERR_NO_BYTE, p->name,
                       "%s is missing or unusable", name);
        }
    p->state[st] = m;
    free(name);
    return m != NULL;
}

static bool has_step_file(const struct opened *u, const struct param *p)
{
    char *name = str_fmt("zero/%s/step.pt", p->name);
    const bool there = source_file(u->s, name) != NULL;

    free(name);
    return there;
}

/*
 * Check that either all trained parameters have a step.pt or none has, because DeepSpeed's loader requires that the
 * steps of a group are equal. Forms of ZeRO-3 have no step.pt, and neither have forms of optimizers that count steps in
 * their groups.
 */
static void check_step_files(struct opened *u)
{
    const enum severity severity = lost(u, STATE_EXP_AVG);
    const struct param *with = NULL;

    for (int i = 0; i < u->s->n_params && !with; i++)
        if (has_step_file(u, &u->s->param[i]))
            with = &u->s->param[i];
    for (int i = 0; i < u->s->n_params && with; i++) {
        const struct param *p = &u->s->param[i];

        if (is_due(u, p, STATE_EXP_AVG) && !has_step_file(u, p))
            report_add(u->r, severity, "state_missing", u->s->path, ERR_NO_BYTE, p->name,
                       "zero/%s/step.pt is missing, and %s has one", p->name, with->name);
    }
}

static void check_params(struct opened *u)
{
    for (int i = 0; i < u->s->n_params; i++) {
        struct param *p = &u->s->param[i];

        for (int j = 0; j < TRAINED_STATES; j++)
            if (is_due(u, p, trained_states[j]) && !has_param_state_file(u, p, trained_states[j]) &&
                (lost(u, trained_states[j]) == SEV_ERROR || u->o->no_tensors ||
                 !make_hole(u, p, trained_states[j])))
                report_add(u->r, lost(u, trained_states[j]), "state_missing", u->s->path, ERR_NO_BYTE, p->name,
                           "zero/%s/%s.pt is missing or unusable", p->name, state_name(trained_states[j]));
        if (p->ndim && u->zero.file < 0) {
            check_param_merge_rule(u, p);
            check_param_sizes(u, p);
        }
    }
}

static void find_vocab(struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (param_ends(s->param[i].name, ROLE_WORD) && s->param[i].ndim == 2)
            s->config.vocab = s->param[i].shape[0];
}

/*
 * Report the mp_rank files that are missing. The saved arguments state the numbers of tensor-parallel ranks and
 * pipeline stages. The converter copies one file for each pair of a rank and a stage.
 */
static void check_mp_rank_files(struct opened *u)
{
    struct source *s = u->s;

    for (int mp = 0; mp < s->topo.tp * s->topo.pp; mp++) {
        bool found = false;

        for (int i = 0; i < s->n_files && !found; i++) {
            const struct ds_name n = ds_name_parse(s->file[i].name);

            found = n.kind == DS_MP && n.mp == mp;
        }
        if (!found)
            report_add(u->r, u->o->holes ? SEV_WARNING : SEV_ERROR, "missing_file", s->path, ERR_NO_BYTE, NULL,
                       "mp_rank_%02d_model_states.pt is missing: TP %d, PP %d have %d such files", mp, s->topo.tp,
                       s->topo.pp, s->topo.tp * s->topo.pp);
    }
}

static void read_universal_run_state(struct opened *u)
{
    struct source *s = u->s;
    int mp = u->zero.file;

    for (int i = 0; i < s->n_files; i++) {
        if (mp < 0 && is_mp_rank_file_name(s->file[i].name) && s->file[i].pt)
            mp = i;
        if (strcmp(s->file[i].name, "zero/optimizer_state.pt") == 0 && s->file[i].pt) {
            s->run.optimizer_pt = s->file[i].pt;
            s->run.optimizer = pt_root(s->file[i].pt);
            s->run.param_groups = pk_get(s->run.optimizer, "param_groups");
            s->zero_stage_1 = run_state_zero_stage(s->run.optimizer) > 0;
        }
    }
    if (mp >= 0)
        run_state_read(s, s->file[mp].pt);
    else
        report_add(u->r, SEV_WARNING, "no_run_state", s->path, ERR_NO_BYTE, NULL,
                   "no mp_rank_*_model_states.pt can be read, so step, arguments and topology are unknown");
    if (u->zero.file >= 0)
        universal_zero_state(&u->zero, s, u->o->holes ? SEV_WARNING : SEV_ERROR, u->r);
    else if (mp >= 0)
        check_mp_rank_files(u);
    if (!s->run.optimizer)
        report_add(u->r, SEV_WARNING, "no_optimizer_state", s->path, ERR_NO_BYTE, NULL,
                   "zero/optimizer_state.pt is missing, so DeepSpeed 0.14.1 and later cannot load this checkpoint");
}

int universal_pt_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                             struct report *r, struct err *e)
{
    struct opened u = { .s = s, .o = o, .r = r, .rules_arena = arena_new(0) };

    s->layout = &universal_pt_layout;
    s->read_groups = universal_groups_read;
    s->run.iteration = s->run.consumed_samples = s->run.consumed_tokens = s->run.opt_step = -1;
    list_universal_files(&u, l);
    u.rules = arena_alloc(u.rules_arena, ((size_t)s->n_params + 1) * sizeof *u.rules);
    u.zero = universal_zero_open(s, r);
    open_universal_pt_files(&u);
    arena_free(u.rules_arena);
    read_universal_run_state(&u);
    find_vocab(s);
    check_params(&u);
    check_step_files(&u);
    pt_holes_free(&u.holes);
    universal_check_params(s, r);
    if (!o->no_tensors && manifest_load(s, false, r, e) < 0)
        return -1;
    if (u.zero.file >= 0 && !o->no_tensors) {
        universal_zero_resolve_params(&u.zero, s);
        universal_zero_check_copies(&u.zero, s, r);
    }
    return 0;
}

bool universal_pt_marks(const char *name)
{
    const char *rest;

    if (!param_part(name, &rest))
        return strcmp(name, "zero/optimizer_state.pt") == 0;
    return state_of_file(rest) >= 0 || strcmp(rest, "step.pt") == 0;
}
