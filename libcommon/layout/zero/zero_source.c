/*
 * zero_source.c - open a checkpoint of DeepSpeed's engine without pipeline: the phases
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/engine/zero_order.h"
#include "libcommon/layout/zero/zero_source.h"

/*
 * Add file number `file` to the source under `name`, which is the name of the lost model_states file, and report a
 * warning. In the warning, `of` states which values are read from `file`. Returns the new entry of z->s->file.
 */
static struct source_file *add_stand_in(struct zero *z, char *name, int file, struct pt *pt, const char *of)
{
    report_add(z->r, SEV_WARNING, "stand_in", z->s->path, ERR_NO_BYTE, NULL, "%s is lost: %s are those of %s", name, of,
               pt_path(pt));
    z->lost_model = name;
    z->s->file[z->s->n_files] = (struct source_file){ .name = name, .file = file, .pt = pt, .cls = FILE_WEIGHTS,
                                                      .pp = -1, .tp = z->tp, .dp = -1, .layer = -1 };
    return &z->s->file[z->s->n_files++];
}

static void free_zero_rank(struct zero_rank *rank)
{
    free(rank->run);
    free(rank->frozen);
    free(rank->settings);
    for (int i = 0; i < rank->n_more; i++)
        free(rank->more[i].name);
    free(rank->more);
}

/* A model_states file of another tag that may replace lost ones, if it fits. */
struct model_candidate {
    struct zero *z;
    int stage;                          /* 3 if the file is named like one of ZeRO-3 */
    struct strbuf refused;              /* the reasons why candidates were rejected */
};

/*
 * Open the first file in the listing that has this kind and tensor rank and that can be read. *name is set to its
 * parsed name. Returns NULL if there is none.
 */
static struct pt *open_listed(const struct zero *z, enum ds_kind kind, int tp, struct ds_name *name)
{
    for (int i = 0; i < z->l->n; i++) {
        struct err ignored = {0};
        struct pt *pt;

        *name = ds_name_parse(z->l->member[i].name);
        pt = name->kind == kind && name->mp == tp && name->dp < DS_RANK_MAX
                 ? pt_open(z->s->files, z->l->member[i].file, &ignored) : NULL;
        if (pt)
            return pt;
    }
    return NULL;
}

/* Returns the first parameter that the optimizer file `optim` of this tag lists but x does not, or NULL. */
static const char *unlisted_param(const struct zero_shape *x, const struct pt *optim)
{
    const struct pk *opt = pk_get(pt_root(optim), "optimizer_state_dict");
    uint32_t n = 0, m = 0;
    struct pk **item = pk_items(pk_get(opt, "param_slice_mappings"), &n);
    const struct zero_slot *slot;

    for (uint32_t g = 0; item && g < n; g++) {
        struct pk **pair = pk_pairs(item[g], &m);

        for (uint32_t i = 0; pair && i < m; i++)
            if (pk_as_str(pair[2 * i]) && zero_shape_find(x, pk_as_str(pair[2 * i]), &slot) < 0)
                return pk_as_str(pair[2 * i]);
    }
    return NULL;
}

/*
 * Compare an optimizer file of this tag with the candidate `model`, whose tables are in t. The same checks are made as
 * when a checkpoint is opened. Returns the first difference as text, or NULL.
 */
static char *optimizer_unlike(struct zero *t, const struct pt *model, struct pt *optim, struct ds_name *name)
{
    const struct pt_files_job j = { .ctx = t, .files = t->s->files, .pt = optim, .path = pt_path(optim), .r = t->r };
    const char *unlisted = unlisted_param(&t->shape, optim);
    char *why = NULL;

    if (unlisted)
        return str_fmt("it does not list %.100s, which is in %s", unlisted, pt_path(optim));
    if (name->bf16 && zero_shape_weights(&t->shape, model) == DTYPE_F16)
        return str_fmt("its weights are f16, %s is of a bf16 run", pt_path(optim));
    if (zero_shards_lead(t, optim, j.path)) {
        zero_shape_place(&t->shape, t->stage, t->world);
        t->name = name;
        t->rank = xcalloc((size_t)t->world, sizeof *t->rank);
        zero_shards_rank(&j);
        free_zero_rank(&t->rank[name->dp]);
        free(t->rank);
    }
    for (int i = 0; i < report_n(t->r) && !why; i++) {
        const struct finding *f = report_get(t->r, i);

        if (f->severity == SEV_ERROR && strcmp(f->code, "crc") != 0)
            why = str_fmt("%s does not fit it: %s", j.path, f->text);
    }
    return why;
}

/*
 * Compare pt, a model_states file of another tag, with the files of this tag. Returns NULL if it fits, otherwise the
 * reason as text, which the caller frees.
 */
static char *model_unlike(const struct model_candidate *c, const struct pt *pt)
{
    const struct zero *z = c->z;
    struct zero t = { .s = z->s, .o = z->o, .r = report_new(), .tp = z->tp, .l = z->l, .stage = c->stage,
                      .has_optimizer = true, .root = pt_root(pt), .path = pt_path(pt) };
    struct ds_name name, other;
    struct pt *optim = open_listed(z, DS_ZERO, z->tp, &name);
    struct pt *rank = open_listed(z, c->stage == 3 ? DS_ZERO3 : DS_MP, z->tp ? 0 : 1, &other);
    int64_t world = 0;
    char *why = NULL;

    pk_as_int(pk_get(t.root, "dp_world_size"), &world);
    t.world = world > 0 && world <= DS_RANK_MAX ? (int)world : 0;
    if (optim && name.dp >= t.world)
        why = str_fmt("its dp_world_size is %lld, %s is of rank %d", (long long)world, pt_path(optim), name.dp);
    else if (rank && !pk_same_text(pk_get(t.root, "param_shapes"), pk_get(pt_root(rank), "param_shapes")))
        why = str_fmt("its param_shapes differ from those of %s", pt_path(rank));
    else if (!zero_model_read(&t, pt))
        why = xstrdup("its tables cannot be read");
    else if (optim)
        why = optimizer_unlike(&t, pt, optim, &name);
    pt_close(optim);
    pt_close(rank);
    report_free(t.r);
    return why;
}

static bool model_fits(void *ctx, const struct pt *pt)
{
    struct model_candidate *c = ctx;
    char *why = model_unlike(c, pt), *dir = path_parent(pt_path(pt));
    const bool fits = !why;

    if (why) {
        strbuf_addf(&c->refused, "; %s is not of this run, so its files are not used: %s", dir, why);
        report_add(c->z->r, SEV_WARNING, "stand_in", c->z->s->path, ERR_NO_BYTE, NULL,
                   "%s is not of this run, so its files are not used: %s", dir, why);
    }
    free(why);
    free(dir);
    return fits;
}

/*
 * If lost data are permitted, use a model_states file of another tag of the run in place of the lost one. Shapes,
 * buffers and frozen parameters are read from it, but not the weights of trained parameters. If no tag has a file that
 * fits, returns NULL and adds the reasons to `refused`.
 */
static struct source_file *other_tags_model(struct zero *z, struct strbuf *refused)
{
    struct model_candidate c = { .z = z };
    char *name = arena_fmt(z->s->arena, "mp_rank_%02d_model_states.pt", z->tp);
    int file;
    struct pt *pt = pt_sibling(z->s, name, &file, model_fits, &c);

    if (!pt) {
        name = zero_model_name(z, 0);
        c.stage = 3;
        pt = pt_sibling(z->s, name, &file, model_fits, &c);
        z->stage = pt ? 3 : z->stage;
    }
    strbuf_addf(refused, "%s", c.refused.len ? c.refused.buf : "");
    strbuf_free(&c.refused);
    return pt ? add_stand_in(z, name, file, pt, "shapes, buffers, counters and frozen parameters") : NULL;
}

/*
 * If lost data are permitted, use the model_states file of another tensor rank of this tag in place of the lost one.
 * The slices of both ranks have the same names and shapes. No weights are read from this file, not even those of frozen
 * parameters. Returns NULL if there is none.
 */
static struct source_file *other_ranks_model(struct zero *z)
{
    for (int i = 0; i < z->l->n; i++) {
        const struct archive_member *m = &z->l->member[i];
        const struct ds_name n = ds_name_parse(m->name);
        struct err ignored = {0};
        struct pt *pt = (n.kind == DS_MP || n.kind == DS_ZERO3) && n.mp != z->tp
                            ? pt_open(z->s->files, m->file, &ignored) : NULL;

        if (!pt)
            continue;
        z->stage = n.kind == DS_ZERO3 ? 3 : z->stage;
        z->other_rank = true;
        return add_stand_in(z, z->stage == 3 ? zero_model_name(z, 0)
                                             : arena_fmt(z->s->arena, "mp_rank_%02d_model_states.pt", z->tp),
                            m->file, pt, "shapes and buffers");
    }
    return NULL;
}

/*
 * Replace the lost model_states file by another file: that of another tag, or else that of another tensor rank. Returns
 * NULL if there is neither.
 */
static struct source_file *other_model(struct zero *z, struct strbuf *refused)
{
    struct source_file *f = other_tags_model(z, refused);

    return f ? f : other_ranks_model(z);
}

/* Returns the model_states file of the next data-parallel rank above `dp` that has such a file, or NULL. */
static struct source_file *next_model(struct zero *z, int dp)
{
    struct source_file *first = NULL;

    for (int i = 0; i < z->n_files; i++) {
        bool model = z->name[i].kind == DS_MP || z->name[i].kind == DS_ZERO3;

        if (model && z->s->file[i].dp > dp && (!first || z->s->file[i].dp < first->dp))
            first = &z->s->file[i];
    }
    return first;
}

/*
 * Set *e to the error that no model_states file can be read. `refused` contains the reasons why other tags were not
 * used.
 */
static void refuse_lost_model(const struct zero *z, const struct strbuf *refused, struct err *e)
{
    const char *none = z->o->holes && !refused->len ? ", and no other tag of the run is next to it" : "";

    err_data(e, z->s->path, ERR_NO_BYTE, "no *mp_rank_%02d_model_states.pt file here: which parameters there are is "
             "unknown%s%s", z->tp, none, refused->len ? refused->buf : "");
}

/*
 * Returns the model_states file of the lowest rank that has one. If lost data are permitted, files that cannot be
 * opened are skipped.
 */
static struct source_file *first_model(struct zero *z, struct err *e)
{
    struct source_file *first = next_model(z, -2);
    struct strbuf refused = {0};

    if (!first && (!z->o->holes || z->o->no_tensors || !(first = other_model(z, &refused))))
        refuse_lost_model(z, &refused, e);
    while (first && !first->pt && !(first->pt = pt_open(z->s->files, first->file, e))) {
        const bool holes = z->o->holes && !err_is_refused(e);
        struct source_file *next = holes ? next_model(z, first->dp) : NULL;

        if (!next && holes)
            next = other_model(z, &refused);
        if (next) {
            report_add_lost(z->r, NULL, e);
        } else if (err_is_refused(e)) {
            err_add(e, "; correct this first, because the contents of the file may be intact");
        }
        first = next;
    }
    strbuf_free(&refused);
    return first;
}

/*
 * Returns true if `root` is the root of an mp_rank file of the pipeline engine. Such a file has no weights, because the
 * engine stores these in layer files. Therefore it is recognised even if all layer files are lost.
 */
static bool of_the_pipeline(const struct zero *z, const struct pk *root)
{
    uint32_t n;

    return z->stage != 3 && !pk_pairs(pk_get(root, "module"), &n);
}

static struct pt_files reading(struct zero *z)
{
    return (struct pt_files){ .s = z->s, .r = z->r, .threads = z->o->threads, .ctx = z, .holes = z->o->holes };
}

static void read_models(struct zero *z)
{
    struct pt_files o = reading(z);
    int first = 0;

    /* Skip ranks without a file, and ranks whose file could not be opened. Both have been reported. */
    while (first < z->world - 1 && (z->model_file[first] < 0 || !z->s->file[z->model_file[first]].pt))
        first++;
    if (z->lost_model)
        return;
    o.read = zero_model_rank;
    o.renumber = zero_model_renumber;
    pt_files_keep(&o, z->model_file + first, 1);
    if (z->stage == 3 && !z->o->no_tensors)
        pt_files_each(&o, z->model_file + first + 1, z->world - first - 1);
    z->too_many |= o.too_many;
}

/*
 * Opens and returns rank 0's optimizer file, or if lost data are permitted, the first optimizer file that can be
 * opened. Sets z->lead to the rank of this file. Returns NULL if there is none.
 */
static struct source_file *open_lead(struct zero *z)
{
    for (z->lead = 0; z->lead < z->world; z->lead++) {
        const int i = z->optim_file[z->lead];
        struct source_file *f = i < 0 ? NULL : &z->s->file[i];
        struct err e = {0};

        if (f && (f->pt = pt_open(z->s->files, f->file, &e)))
            return f;
        if (f && !z->o->holes)
            report_add_err(z->r, "unreadable", &e);
        else if (f)
            report_add_lost(z->r, NULL, &e);
        err_clear(&e);
        if (!z->o->holes)
            break;
    }
    z->lead = 0;
    return NULL;
}

/*
 * If lost data are permitted, open an optimizer file of another tensor rank, and list it in place of the lead rank's
 * file. The vectors in both files have the same lengths and types. Returns NULL if there is none.
 */
static struct source_file *open_other_ranks_lead(struct zero *z, struct ds_name *name)
{
    struct source *s = z->s;

    for (int i = 0; i < z->l->n && z->o->holes; i++) {
        const struct archive_member *m = &z->l->member[i];
        struct err ignored = {0};
        struct pt *pt;

        *name = ds_name_parse(m->name);
        pt = name->kind == DS_ZERO && name->mp != z->tp && name->dp >= 0 && name->dp < z->world
                 ? pt_open(s->files, m->file, &ignored) : NULL;
        if (!pt)
            continue;
        report_add(z->r, SEV_WARNING, "stand_in", s->path, ERR_NO_BYTE, NULL,
                   "no optimizer file of tensor rank %d can be read: settings and counters are those of %s", z->tp,
                   pt_path(pt));
        s->file[s->n_files] = (struct source_file){ .name = zero_optim_name(z, 0), .file = m->file, .pt = pt,
                                                    .cls = FILE_OPTIMIZER, .pp = -1, .tp = z->tp, .dp = -1,
                                                    .layer = -1 };
        return &s->file[s->n_files++];
    }
    return NULL;
}

/*
 * Read the tables of f, a file of another tensor rank, into z->like. These tables show the lengths and types of the
 * lost vectors. The vectors in f are not read.
 */
static void read_like(struct zero *z, struct ds_name *name, const struct source_file *f)
{
    struct report *ignored = report_new();
    struct zero other = *z;
    const struct pt_files_job j = { .ctx = &other, .files = z->s->files, .pt = f->pt, .path = f->name, .r = ignored };

    other.name = name;
    other.rank = arena_alloc(z->s->arena, (size_t)z->world * sizeof *other.rank);
    zero_shards_rank(&j);
    z->like = &other.rank[name->dp];
    report_free(ignored);
}

/* Report that no optimizer file of any tensor rank can be read. */
static void report_no_optimizer(struct zero *z)
{
    z->has_optimizer = false;
    report_add(z->r, z->stage == 3 ? SEV_ERROR : SEV_WARNING, "no_optimizer", z->s->path, ERR_NO_BYTE, NULL,
               "no file of optimizer states can be read: %smasters and moments are all lost",
               z->stage == 3 ? "weights, " : "");
}

/*
 * Read the optimizer files. The first one shows how vectors are partitioned. If it cannot be read, the others are not
 * read either, and the function returns false.
 */
static bool zero_read_optim_shards(struct zero *z)
{
    struct pt_files o = reading(z);
    struct source_file *f = open_lead(z);
    struct ds_name like;
    const bool other = !f && (f = open_other_ranks_lead(z, &like)) != NULL;

    z->lead_file = f;
    if (!f && z->o->holes)
        report_no_optimizer(z);
    if (!f || !zero_shards_lead(z, f->pt, files_name(z->s->files, f->file)))
        return false;
    zero_shape_place(&z->shape, z->stage, z->world);
    if (other) {
        read_like(z, &like, f);
        return true;
    }
    o.read = zero_shards_rank;
    o.renumber = zero_shards_renumber;
    pt_files_keep(&o, z->optim_file + z->lead, 1);
    if (!z->o->no_tensors)
        pt_files_each(&o, z->optim_file + z->lead + 1, z->world - z->lead - 1);
    z->too_many |= o.too_many;
    if (z->o->holes)
        zero_shards_recover(z);
    return true;
}

/* Returns the type of the parameters in `module`. This is the type in which a run without ZeRO computes. */
static enum dtype weights_of_module(const struct zero *z)
{
    for (int i = 0; i < z->n_tensors; i++)
        if (!z->tensor[i].buffer && dtype_is_float(z->tensor[i].t.dtype))
            return z->tensor[i].t.dtype;
    return DTYPE_F32;
}

static int zero_open_tag(struct zero *z, struct err *e)
{
    struct source_file *first = first_model(z, e);
    int64_t recorded = 0;
    bool known;

    if (!first)
        return -1;
    z->root = pt_root(first->pt);
    z->first = first->pt;
    z->path = files_name(z->s->files, first->file);
    if (of_the_pipeline(z, z->root))
        return 1;
    if (zero_files_ranks(z, e) < 0)
        return -1;
    z->s->topo = (struct topology){ .tp = 1, .pp = 1, .dp = z->world };
    known = zero_model_read(z, first->pt);
    if (known)
        read_models(z);
    if (known && z->has_optimizer && !z->o->no_optimizer)
        known = zero_read_optim_shards(z);
    zero_state_read(z, first->pt, known ? z->lead_file : NULL);
    if (z->too_many) {
        err_data(e, z->s->path, ERR_NO_BYTE, "more than %d records in its files: this is not a checkpoint",
                 PT_FILES_RECORDS_MAX);
        return -1;
    }
    zero_check_config_stage(z, z->root, z->path, z->r);
    /* if the optimizer files did not state the stage, read it from the run's configuration */
    if (z->stage == 0)
        pk_as_int(pk_get(pk_get(pk_get(z->root, "ds_config"), "zero_optimization"), "stage"), &recorded);
    z->s->zero_stage = z->stage ? z->stage : recorded == 2 ? 2 : 1;
    zero_params_make(z);
    z->s->weights = z->without_zero ? weights_of_module(z) : zero_shape_weights(&z->shape, first->pt);
    if (z->o->no_tensors)
        return 0;
    zero_values_make(z, first->pt);
    return 0;
}

/*
 * Open the files of one tensor rank. Returns 0 on success, -1 with *e set on error, or 1 if these are files of the
 * pipeline engine.
 */
static int open_rank(struct zero *z, const struct source_listing *l, struct err *e)
{
    int rc = zero_files_read(z, l, e);

    if (rc == 0)
        rc = zero_open_tag(z, e);
    for (int k = 0; z->rank && k < z->world; k++)
        free_zero_rank(&z->rank[k]);
    if (z->like)
        free_zero_rank(z->like);
    pt_holes_free(&z->holes);
    return rc;
}

/* Returns the number of tensor ranks: one more than the highest tensor rank in the file names. */
static int count_tensor_ranks(const struct source_listing *l)
{
    int most = 0;

    for (int i = 0; i < l->n; i++) {
        struct ds_name n = ds_name_parse(l->member[i].name);

        most = n.mp > most ? n.mp : most;
    }
    return most + 1;
}

/* Append the files of tensor rank `from` to those of s. The source s then closes these files. */
static void append_rank_files(struct source *s, const struct source *from)
{
    struct source_file *all = arena_alloc(s->arena, (size_t)(s->n_files + from->n_files + 1) * sizeof *all);

    memcpy(all, s->file, (size_t)s->n_files * sizeof *all);
    if (from->n_files)
        memcpy(all + s->n_files, from->file, (size_t)from->n_files * sizeof *all);
    s->file = all;
    s->n_files += from->n_files;
}

/* Open the tensor ranks after the first, and join the parameters of all ranks. */
static int join_ranks(struct zero *first, const struct source_listing *l, struct err *e)
{
    static const struct run_state unknown = { .iteration = -1, .consumed_samples = -1, .consumed_tokens = -1,
                                              .opt_step = -1 };
    struct source *s = first->s, **rank;
    int n = count_tensor_ranks(l), rc = 0;
    int64_t recorded;

    if (pk_as_int(pk_get(first->root, "mp_world_size"), &recorded) && recorded > n) {
        if (recorded > l->n) {
            err_data(e, s->path, ERR_NO_BYTE, "mp_world_size is %lld, and there are files of %d tensor rank%s only: "
                     "the files of the others are missing", (long long)recorded, n, n == 1 ? "" : "s");
            return -1;
        }
        n = (int)recorded;
    }
    if (n <= l->n)
        zero_tp_check_degrees(first, first->root, first->path, n);
    if (n == 1)
        return 0;
    if (n > l->n) {
        err_data(e, s->path, ERR_NO_BYTE, "a file is of tensor rank %d, but there are only %d files", n - 1, l->n);
        return -1;
    }
    rank = xcalloc((size_t)n, sizeof *rank);
    rank[0] = s;
    for (int t = 1; t < n && rc == 0; t++) {
        struct zero z = { .s = rank[t] = arena_alloc(s->arena, sizeof *s), .o = first->o, .r = first->r, .tp = t };

        *rank[t] = (struct source){ .layout = &zero_layout, .path = s->path, .tag = s->tag, .files = s->files,
                                    .arena = s->arena, .names = arena_alloc(s->arena, sizeof *s->names),
                                    .run = unknown };
        rc = open_rank(&z, l, e);
        append_rank_files(s, rank[t]);
        if (rc == 1)
            err_data(e, z.path, ERR_NO_BYTE, "has no weights, tensor rank 0 has some");
    }
    if (rc == 0)
        rc = zero_tp_join(rank, n, first, e);
    free(rank);
    return rc ? -1 : 0;
}

int zero_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                     struct report *r, struct err *e)
{
    struct zero z = { .s = s, .o = o, .r = r };
    int rc;

    s->layout = &zero_layout;
    s->read_groups = zero_groups_read;
    rc = open_rank(&z, l, e);
    if (rc == 0)
        rc = join_ranks(&z, l, e);
    if (rc == 0 && !o->no_tensors)
        rc = manifest_load(s, o->no_optimizer, r, e);
    if (rc != 1)
        return rc;
    for (int i = 0; i < s->n_files; i++) {
        pt_close(s->file[i].pt);
        s->file[i].pt = NULL;
    }
    s->n_files = 0;
    return deepspeed_source_open(s, l, o, r, e);
}

/* Returns true if the listing has no layer files. An engine without pipeline writes no such files. */
bool zero_fits(const struct source_listing *l)
{
    for (int i = 0; i < l->n; i++)
        if (ds_name_parse(l->member[i].name).kind == DS_LAYER)
            return false;
    return true;
}
