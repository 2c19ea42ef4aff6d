/*
 * fsdp_source.c - open a folder of per-rank pickles: find the files of the ranks, and put the model's tensors together
 */
#include "libcommon/layout/fsdp/fsdp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"

/* Limits for the numbers in names of files, and for the missing files that are reported by name. */
enum { RANKS_MAX = 1 << 16, MISSING_NAMED = 16 };

static const char *const kind_names[FSDP_KINDS] = { "model", "optim", "extra_state" };

/* ---- names of files ---- */

static const char *parse_rank_number(const char *s, int *out)
{
    const size_t n = strspn(s, "0123456789");

    if (n < 1 || n > 6)
        return NULL;
    *out = atoi(s);
    return s + n;
}

/* Parse a name such as "model_world_size_4_rank_0.pt". Returns false if the name has another form. */
static bool parse_fsdp_name(const char *name, enum fsdp_kind *kind, int *world, int *rank)
{
    for (int k = 0; k < FSDP_KINDS; k++) {
        const char *s = name + strlen(kind_names[k]);

        if (!str_starts(name, kind_names[k]) || !str_starts(s, "_world_size_"))
            continue;
        *kind = (enum fsdp_kind)k;
        s = parse_rank_number(s + strlen("_world_size_"), world);
        s = s && str_starts(s, "_rank_") ? parse_rank_number(s + strlen("_rank_"), rank) : NULL;
        return s && strcmp(s, ".pt") == 0;
    }
    return false;
}

bool fsdp_marks(const char *name)
{
    enum fsdp_kind kind;
    int world, rank;

    return parse_fsdp_name(name, &kind, &world, &rank) && kind == FSDP_MODEL;
}

/* ---- files ---- */

static void fsdp_add_file(struct fsdp *x, const struct archive_member *m, enum file_class cls, int rank)
{
    struct source *s = x->s;

    s->file[s->n_files++] = (struct source_file){ .name = arena_fmt(s->arena, "%s", m->name), .file = m->file,
                                                  .cls = cls, .pp = -1, .tp = -1, .dp = rank, .layer = -1 };
}

/* Find the number of ranks: all names state the same. */
static int find_world(struct fsdp *x, struct err *e)
{
    const char *first = NULL;

    for (int i = 0; i < x->l->n; i++) {
        const char *name = x->l->member[i].name;
        enum fsdp_kind kind;
        int world, rank;

        if (!parse_fsdp_name(name, &kind, &world, &rank))
            continue;
        if (first && world != x->world) {
            err_data(e, x->s->path, ERR_NO_BYTE, "%s and %s: files of two saves, of %d and %d ranks", first, name,
                     x->world, world);
            return -1;
        }
        if (world < 1 || world > RANKS_MAX || rank >= world) {
            err_data(e, x->s->path, ERR_NO_BYTE, "%s: no rank %d of %d", name, rank, world);
            return -1;
        }
        first = name;
        x->world = world;
    }
    return 0;
}

static void list_fsdp_files(struct fsdp *x)
{
    struct source *s = x->s;

    s->file = arena_alloc(s->arena, ((size_t)x->l->n + 1) * sizeof *s->file);
    for (int k = 0; k < FSDP_KINDS; k++) {
        x->file[k] = arena_alloc(s->arena, (size_t)x->world * sizeof *x->file[k]);
        memset(x->file[k], -1, (size_t)x->world * sizeof *x->file[k]);
    }
    for (int i = 0; i < x->l->n; i++) {
        const struct archive_member *m = &x->l->member[i];
        enum fsdp_kind kind;
        int world, rank;

        if (parse_fsdp_name(m->name, &kind, &world, &rank)) {
            x->file[kind][rank] = s->n_files;
            fsdp_add_file(x, m, kind == FSDP_MODEL ? FILE_WEIGHTS : kind == FSDP_OPTIM ? FILE_OPTIMIZER : FILE_OTHER,
                          rank);
        } else if (strcmp(m->name, "fsdp_config.json") == 0 || str_starts(m->name, "huggingface/") ||
                   strcmp(m->name, MANIFEST_NAME) == 0 || strcmp(m->name, DS_REPAIR_LOG_NAME) == 0) {
            fsdp_add_file(x, m, FILE_OTHER, -1);
        }
    }
}

/* Report missing files. If all files of a kind are missing, this is permitted, except for those of the model. */
static void report_missing_ranks(const struct fsdp *x)
{
    for (int k = 0; k < FSDP_KINDS; k++) {
        const enum severity severity = k == FSDP_MODEL || (k == FSDP_OPTIM && !x->o->no_optimizer) ? SEV_ERROR
                                                                                                   : SEV_WARNING;
        int n = 0, n_missing = 0;

        for (int r = 0; r < x->world; r++)
            n += x->file[k][r] >= 0;
        for (int r = 0; r < x->world && (n || k == FSDP_MODEL); r++)
            if (x->file[k][r] < 0 && ++n_missing <= MISSING_NAMED)
                report_add(x->r, severity, "missing_file", x->s->path, ERR_NO_BYTE, NULL,
                           "%s_world_size_%d_rank_%d.pt is missing", kind_names[k], x->world, r);
        if (k == FSDP_OPTIM && n == 0 && !x->o->no_optimizer)
            report_add(x->r, SEV_WARNING, "no_optimizer", x->s->path, ERR_NO_BYTE, NULL,
                       "no optimizer states here: weights only");
        if (n_missing > MISSING_NAMED)
            report_add(x->r, severity, "missing_file", x->s->path, ERR_NO_BYTE, NULL, "%d more files are missing",
                       n_missing - MISSING_NAMED);
    }
}

/* Compare fsdp_config.json with the names of the files. */
static void read_fsdp_config(struct fsdp *x)
{
    enum { MOST = 1 << 16 };
    const struct source_file *f = source_file(x->s, "fsdp_config.json");
    struct err e = {0};
    json_error_t why;
    json_t *o = NULL;
    char *text;

    if (!f)
        return;
    text = xcalloc(1, MOST + 1);
    if (files_read(x->s->files, f->file, 0, text, min_u64(files_size(x->s->files, f->file), MOST), &e) < 0) {
        report_add_err(x->r, "unreadable", &e);
    } else if (!(o = json_loads(text, 0, &why)) || !json_is_integer(json_object_get(o, "world_size"))) {
        report_add(x->r, SEV_ERROR, "ranks", files_name(x->s->files, f->file), ERR_NO_BYTE, NULL,
                   "states no number of ranks (world_size)");
    } else if (json_integer_value(json_object_get(o, "world_size")) != x->world) {
        report_add(x->r, SEV_ERROR, "ranks", files_name(x->s->files, f->file), ERR_NO_BYTE, NULL,
                   "states %" JSON_INTEGER_FORMAT " ranks, the names of the files state %d",
                   json_integer_value(json_object_get(o, "world_size")), x->world);
    }
    x->version_1 = json_integer_value(json_object_get(o, "FSDP_version")) == 1;
    json_decref(o);
    free(text);
}

static void skip_read(const struct pt_files_job *j)
{
    (void)j;
}

static void open_rank_files(struct fsdp *x)
{
    struct pt_files o = { .s = x->s, .r = x->r, .threads = x->o->threads, .ctx = x, .read = skip_read,
                          .rank_files = true };

    for (int k = 0; k < FSDP_KINDS; k++)
        if (k != FSDP_OPTIM || !x->o->no_optimizer)
            pt_files_keep(&o, x->file[k], x->world);
}

/* ---- the model ---- */

/* Add a tensor of the model. A tensor of floating-point numbers becomes a parameter, any other a buffer. */
static struct param *add_model_tensor(const struct fsdp *x, const char *name, const struct fsdp_tensor *t)
{
    struct source *s = x->s;
    struct param *p;

    if (!dtype_is_weight(t->dtype)) {
        struct source_value v = { .name = name, .map = t->map, .ndim = t->ndim, .buffer = true };

        memcpy(v.shape, t->shape, sizeof v.shape);
        fsdp_check_copies(x, name, t->map);
        fsdp_add_value(x, &v);
        return NULL;
    }
    p = &s->param[s->n_params++];
    *p = (struct param){ .name = name, .ndim = t->ndim, .merge = MERGE_REPLICATED, .stage = -1, .group = -1 };
    memcpy(p->shape, t->shape, sizeof p->shape);
    p->state[t->dtype == DTYPE_F32 || t->dtype == DTYPE_F64 ? STATE_FP32 : STATE_BF16] = t->map;
    return p;
}

/* Returns true if two tensors of a rank's file are the same part of a storage. */
static bool has_same_storage(const struct pt *pt, const struct pk *v, const struct pk *w)
{
    struct pt_dtensor a = {0}, b = {0};
    const char *why = NULL;

    return pt_dtensor(pt, v, &a, &why) && !why && pt_dtensor(pt, w, &b, &why) && !why &&
           (a.local.n_elems == 0 ? b.local.n_elems == 0 : a.local.record == b.local.record && a.local.at == b.local.at);
}

/*
 * Returns the name of an earlier tensor that has the same elements as the tensor of pair i, or NULL, in which case this
 * tensor is recorded. `known` maps the place of each tensor of rank 0 to its pair. If the two share their elements on
 * some of the ranks only, this is reported.
 */
static const char *find_tied(const struct fsdp *x, struct names *known, struct pk ***pair, uint32_t i)
{
    struct pt_dtensor d = {0};
    const char *why = NULL, *key, *name = pk_as_str(pair[0][2 * i]);
    int at;

    if (!pt_dtensor(fsdp_file(x, FSDP_MODEL, 0), pair[0][2 * i + 1], &d, &why) || why || d.local.n_elems == 0)
        return NULL;
    key = arena_fmt(x->s->arena, "%d+%" PRIu64, d.local.record, d.local.at);
    at = names_find(known, key);
    if (at < 0) {
        names_add(known, key, (int)i);
        return NULL;
    }
    for (int r = 1; r < x->world; r++)
        if (!has_same_storage(fsdp_file(x, FSDP_MODEL, r), pair[r][2 * i + 1], pair[r][2 * at + 1])) {
            report_add(x->r, SEV_ERROR, "overlap", x->s->path, ERR_NO_BYTE, name,
                       "has the elements of %s on rank 0, and others on rank %d", pk_as_str(pair[0][2 * at]), r);
            return NULL;
        }
    return arena_fmt(x->s->arena, "%s", pk_as_str(pair[0][2 * at]));
}

/* Returns the pairs in each rank's dict, and checks that all ranks list the same names in the same order. */
static struct pk ***list_rank_pairs(const struct fsdp *x, uint32_t *n)
{
    struct pk ***pair = xcalloc((size_t)x->world, sizeof *pair);

    for (int r = 0; r < x->world; r++) {
        const struct pt *pt = fsdp_file(x, FSDP_MODEL, r);
        uint32_t m = 0;

        pair[r] = pt ? pk_pairs(pt_root(pt), &m) : NULL;
        if (r == 0)
            *n = m;
        for (uint32_t i = 0; pair[r] && i < m && i < *n; i++) {
            const char *a = pair[0] ? pk_as_str(pair[0][2 * i]) : NULL, *b = pk_as_str(pair[r][2 * i]);

            if (!a || !b || strcmp(a, b) != 0) {
                m = *n + 1;             /* no rank has this number of tensors */
                break;
            }
        }
        if (pair[r] && m == *n && fsdp_is_of_rank(x, FSDP_MODEL, r, pt_root(pt)))
            continue;
        if (pt && (!pair[r] || m != *n))
            report_add(x->r, SEV_ERROR, "names", pt_path(pt), ERR_NO_BYTE, NULL,
                       r ? "lists other tensors than rank 0: it is of another run" : "is no dict of tensors by name");
        free(pair);
        return NULL;
    }
    return pair;
}

/* Read the model. Returns the parameters that the optimizer numbers. They are allocated in the arena. */
static struct fsdp_numbered read_model(struct fsdp *x)
{
    struct source *s = x->s;
    struct names *known = names_new(s->arena);
    uint32_t n = 0;
    struct pk ***pair = list_rank_pairs(x, &n);
    const size_t world = (size_t)x->world;
    struct fsdp_numbered of = { .name = arena_alloc(s->arena, ((size_t)n + 1) * sizeof *of.name),
                                .mesh = arena_alloc(s->arena, ((size_t)n + 1) * sizeof *of.mesh),
                                .value = arena_alloc(s->arena, ((size_t)n + 1) * world * sizeof *of.value) };

    s->param = arena_alloc(s->arena, ((size_t)n + 1) * sizeof *s->param);
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = arena_fmt(s->arena, "%s", pk_as_str(pair[0][2 * i]));
        const char *tied = find_tied(x, known, pair, i), *ignored;
        const struct pk **v = &of.value[(size_t)of.n * world];
        struct fsdp_tensor t;
        struct param *p = NULL;
        struct pt_dtensor d;

        for (int r = 0; r < x->world; r++)
            v[r] = pair[r][2 * i + 1];
        t = fsdp_join(x, FSDP_MODEL, v);
        if (fsdp_is_joined(x, key, &t))
            p = add_model_tensor(x, key, &t);
        if (p)
            p->shared_with = tied;
        if (!tied && pt_dtensor(fsdp_file(x, FSDP_MODEL, 0), v[0], &d, &ignored))
            of.mesh[of.n] = t.mesh, of.name[of.n++] = key;
    }
    free(pair);
    fsdp_check_placements(x, &of);
    fsdp_check_positions(x, &of);
    return of;
}

/* ---- values ---- */

/*
 * Report the file of rank `rank` if it states another rank, another number of ranks, or another value of `key` than
 * rank 0.
 */
static void check_extra_state(const struct fsdp *x, int rank)
{
    static const char *const same[] = { "lr_scheduler", "fsdp_strategy", "tag" };
    const struct pt *first = fsdp_file(x, FSDP_EXTRA, 0), *pt = fsdp_file(x, FSDP_EXTRA, rank);
    const char *path = pt ? pt_path(pt) : NULL;
    int64_t v;

    if (!pt)
        return;
    if (pk_as_int(pk_get(pt_root(pt), "rank"), &v) && v != rank)
        report_add(x->r, SEV_ERROR, "ranks", path, ERR_NO_BYTE, NULL,
                   "was saved by rank %" PRId64 ": it is that rank's file under another name", v);
    if (pk_as_int(pk_get(pt_root(pt), "world_size"), &v) && v != x->world)
        report_add(x->r, SEV_ERROR, "ranks", path, ERR_NO_BYTE, NULL,
                   "states %" PRId64 " ranks, the names of the files state %d", v, x->world);
    for (size_t i = 0; first && i < sizeof same / sizeof *same; i++) {
        const struct pk *a = pk_get(pt_root(first), same[i]), *b = pk_get(pt_root(pt), same[i]);

        if (a && b && pk_is_plain(a) && pk_is_plain(b) && !pk_same_text(a, b))
            report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "mixed_saves", path, ERR_NO_BYTE, NULL,
                       "%s differs from that of rank 0: their files are of different saves", same[i]);
    }
}

static void read_extra_state(const struct fsdp *x)
{
    const struct pt *pt = fsdp_file(x, FSDP_EXTRA, 0);
    uint32_t n = 0;
    struct pk **pair = pt ? pk_pairs(pt_root(pt), &n) : NULL;

    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_str(pair[2 * i]))
            fsdp_add_value(x, &(struct source_value){ .name = arena_fmt(x->s->arena, "%s", pk_as_str(pair[2 * i])),
                                                      .tree = pair[2 * i + 1], .pt = pt });
    for (int r = 0; r < x->world; r++)
        check_extra_state(x, r);
}

/* Set the iteration from the name of the parent folder, as in global_step_20/actor. */
static void find_fsdp_iteration(struct source *s)
{
    static const char prefix[] = "global_step_";
    char *parent = path_parent(s->path), *base = path_base(parent);
    const char *digits = str_starts(base, prefix) ? base + sizeof prefix - 1 : "";
    const size_t n = strspn(digits, "0123456789");

    if (n > 0 && n < 18 && !digits[n])
        s->run.iteration = atoll(digits);
    free(base);
    free(parent);
}

/*
 * Compare the name of a file with the name under which torch.save() wrote the file. The latter is the name of the
 * folder inside the archive. Nothing is reported if that name is not one of FSDP's, or if the file's contents have
 * already shown that it belongs to another rank.
 */
static void check_saved_name(const struct fsdp *x, enum fsdp_kind k, int r)
{
    const struct pt *pt = fsdp_file(x, k, r);
    char *saved = pt ? str_fmt("%s.pt", pt_prefix(pt)) : NULL;
    enum fsdp_kind kind;
    int world, rank;

    if (saved && parse_fsdp_name(saved, &kind, &world, &rank) && (kind != k || world != x->world || rank != r) &&
        !report_has(x->r, "ranks", pt_path(pt), ERR_NO_BYTE))
        report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "other_rank", pt_path(pt), ERR_NO_BYTE, NULL,
                   "was saved as %s (the name inside the file), so it is another file under this name", saved);
    free(saved);
}

int fsdp_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o, struct report *r,
                     struct err *e)
{
    struct fsdp x = { .s = s, .l = l, .o = o, .r = r };
    struct fsdp_numbered of;

    s->layout = &fsdp_layout;
    if (find_world(&x, e) < 0)
        return -1;
    list_fsdp_files(&x);
    report_missing_ranks(&x);
    read_fsdp_config(&x);
    find_fsdp_iteration(s);
    open_rank_files(&x);
    if (fsdp_file(&x, FSDP_MODEL, 0))
        snprintf(s->run.torch_dialect, sizeof s->run.torch_dialect, "%s", pt_dialect(fsdp_file(&x, FSDP_MODEL, 0)));
    of = read_model(&x);
    read_extra_state(&x);
    if (!o->no_optimizer)
        fsdp_read_optimizer(&x, &of);
    for (int i = 0; i < FSDP_KINDS * x.world; i++)
        check_saved_name(&x, (enum fsdp_kind)(i / x.world), i % x.world);
    return o->no_tensors ? 0 : manifest_load(s, o->no_optimizer, r, e);
}
