/*
 * universal_hdf5.c - write index.h5 with the tensors inside
 *
 * 1. prepare: the library creates every group, attribute and dataset, allocates space for each
 *    dataset, and closes the file.
 * 2. The offsets of the datasets become destinations of plan items. The executor fills them in
 *    parallel without the library.
 * 3. finish: writes the small files next to the index.
 * index.h5 gets its final name when its groups, attributes and datasets are complete. Another process, or a later run
 * that resumes, therefore finds either all of them or no index, and reads the offsets from the index itself.
 */
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/layout/universal/universal_hdf5.h"
#include "libcommon/model/config.h"
#include "libcommon/write/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- shared by both HDF5 forms ---- */

/*
 * Returns true if `name` can be the name of a link in a group. Returns false for names with a slash, with a leading dot
 * (reserved for this program's own groups), or with '%', which HDF5 expands in virtual datasets.
 */
bool universal_hdf5_is_name(const char *name)
{
    return name[0] && name[0] != '.' && !strchr(name, '/') && !strchr(name, '%');
}

bool universal_hdf5_holds(const char *file)
{
    return strcmp(file, INDEX_NAME) == 0 || (str_starts(file, "zero/") && str_ends(file, ".h5"));
}

static int check_state(const struct source *s, const struct param *p, enum state st, bool as_is, struct err *e)
{
    const struct universal_state u = universal_state_of(s, p, st, VOCAB_KEEP);
    const struct tmap *m = as_is ? p->state[st] : u.map;

    if (as_is && !m) {
        err_data(e, s->path, ERR_NO_BYTE, "parameter '%s' has no %s state, which an HDF5 index requires; use "
                                          "ds2universal --format pt", p->name, state_name(st));
        return -1;
    }
    if (!m || (as_is ? m->dtype : u.dtype) == DTYPE_F32)
        return 0;
    err_data(e, s->path, ERR_NO_BYTE, "parameter '%s': %s has type %s, but the HDF5 forms store only f32", p->name,
             state_name(st), dtype_name(m->dtype));
    return -1;
}

int universal_hdf5_check(const struct source *s, bool as_is, struct err *e)
{
    if (universal_check_states(s, e) < 0)
        return -1;
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        if (!universal_hdf5_is_name(p->name)) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter '%s': the name cannot be that of an HDF5 group", p->name);
            return -1;
        }
        if (p->ndim < 1 || p->ndim > H5_MAX_DIM) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter '%s' has %d dimensions, but 1 to %d are supported", p->name,
                     p->ndim, H5_MAX_DIM);
            return -1;
        }
        for (int j = 0; j < TRAINED_STATES; j++)
            if (check_state(s, p, trained_states[j], as_is, e) < 0)
                return -1;
    }
    return 0;
}

static int count_mp_ranks(const struct source *s)
{
    int n = universal_makes_mp_rank(s);

    for (int i = 0; i < s->n_files; i++)
        n += s->layout->mp_rank_files && str_starts(s->file[i].name, "mp_rank_");
    return n;
}

static void put_model(struct h5_out *h, const struct model_config *c)
{
    h5_set_int(h, H5_TOP, "model_layers", c->n_layers);
    h5_set_int(h, H5_TOP, "model_hidden", c->hidden);
    h5_set_int(h, H5_TOP, "model_heads", c->n_heads);
    h5_set_int(h, H5_TOP, "model_ffn_hidden", c->ffn_hidden);
    h5_set_int(h, H5_TOP, "model_seq_len", c->seq_len);
    h5_set_int(h, H5_TOP, "model_max_positions", c->max_positions);
    h5_set_int(h, H5_TOP, "model_vocab_padded", c->vocab);
    h5_set_int(h, H5_TOP, "model_vocab_tokens", c->vocab_tokens);
    h5_set_int(h, H5_TOP, "model_embed_layernorm", c->embed_layernorm);
    h5_set_str(h, H5_TOP, "model_position", c->position);
}

static void write_run_attributes(struct h5_out *h, const struct run_state *r)
{
    struct strbuf groups = {0};

    h5_set_int(h, H5_TOP, "iteration", r->iteration);
    h5_set_int(h, H5_TOP, "consumed_samples", r->consumed_samples);
    h5_set_int(h, H5_TOP, "consumed_tokens", r->consumed_tokens);
    h5_set_double(h, H5_TOP, "checkpoint_version", r->checkpoint_version);
    h5_set_str(h, H5_TOP, "ds_version", r->ds_version);
    h5_set_int(h, H5_TOP, "optimizer_step", r->opt_step);
    h5_set_int(h, H5_TOP, "optimizer_step_in_state", r->step_in_state);
    h5_set_int(h, H5_TOP, "optimizer_step_is_tensor", r->step_is_tensor);
    h5_set_int(h, H5_TOP, "optimizer_n_groups", r->n_groups);
    /*
     * These attributes are for human readers. Programs read zero/optimizer_state.pt instead. An attribute holds at most
     * 64 KiB.
     */
    if (r->param_groups)
        pk_text(r->param_groups, &groups);
    if (groups.len > 0 && groups.len < 32768)
        h5_set_str(h, H5_TOP, "optimizer_param_groups", groups.buf);
    strbuf_free(&groups);
}

void universal_hdf5_put_root(struct h5_out *h, const struct sink *k)
{
    const struct source *s = k->src;
    struct arena *a = arena_new(0);
    const struct run_state run = universal_run_state(s, a);

    h5_set_str(h, H5_TOP, "format", INDEX_FORMAT);
    h5_set_int(h, H5_TOP, "format_version", INDEX_VERSION);
    h5_set_str(h, H5_TOP, "layout", k->ops->name);
    h5_set_str(h, H5_TOP, "generator", "shardkit " SHARDKIT_VERSION);
    h5_set_str(h, H5_TOP, "readme",
               "Each group /NAME is a parameter: datasets fp32 (master weight), exp_avg and exp_avg_sq (Adam's "
               "moments), float32, full merged shape. A universal-virtual index points into other files: set "
               "HDF5_EXTFILE_PREFIX='${ORIGIN}' before reading. -1 means unknown.");
    h5_set_int(h, H5_TOP, "split", k->o.split);
    h5_set_int(h, H5_TOP, "n_parameters", s->n_params);
    h5_set_int(h, H5_TOP, "n_mp_rank_files", count_mp_ranks(s));
    h5_set_str(h, H5_TOP, "source_tag", s->tag);
    h5_set_str(h, H5_TOP, "source_layout", s->layout->name);
    h5_set_int(h, H5_TOP, "source_tp", s->topo.tp);
    h5_set_int(h, H5_TOP, "source_pp", s->topo.pp);
    h5_set_int(h, H5_TOP, "source_dp", s->topo.dp);
    h5_set_int(h, H5_TOP, "tied_embedding", s->tied_embedding);
    write_run_attributes(h, &run);
    put_model(h, &s->config);
    arena_free(a);
}

static int hdf5_cat_dim(enum merge_rule m)
{
    return m == MERGE_REPLICATED ? -1 : m == MERGE_CAT1 ? 1 : 0;
}

void universal_hdf5_put_param(struct h5_out *h, int64_t object, const struct sink *k, const struct param *p)
{
    int64_t shape[TENSOR_MAX_DIM];

    h5_set_str(h, object, "merge_rule", merge_rule_name(p->merge));
    if (hdf5_cat_dim(p->merge) >= 0)
        h5_set_int(h, object, "cat_dim", hdf5_cat_dim(p->merge));
    if (!universal_is_trained(k->src, p))
        h5_set_int(h, object, "trained", 0);
    if (p->stage >= 0)
        h5_set_int(h, object, "stage", p->stage);
    if (p->group >= 0)
        h5_set_int(h, object, "optimizer_group", p->group);
    if (k->src->run.opt_step >= 0)
        h5_set_int(h, object, "step", k->src->run.opt_step);
    if (p->merge == MERGE_VOCAB) {
        param_kept_shape(k->src, p, k->o.vocab, shape);
        h5_set_int(h, object, "vocab_rows_kept", shape[0]);
        h5_set_int(h, object, "vocab_rows_padded", p->shape[0]);
    }
}

/*
 * Allocate disk space for the file, so that a full disk is reported before the tensors are written. It is not an error
 * if the file system cannot reserve space.
 */
static int reserve_index_space(const struct sink *k, int fd, const char *path, struct err *e)
{
    struct stat st;

    if (k->o.rehearsal)
        return 0;
    if (fstat(fd, &st) == 0 && (fallocate(fd, 0, 0, st.st_size) == 0 ||
                                (errno != ENOSPC && errno != EFBIG && errno != EDQUOT)))
        return 0;
    err_sys(e, path, "cannot make room for %llu bytes", (unsigned long long)st.st_size);
    return -1;
}

int universal_hdf5_publish(const struct sink *k, const char *from, const char *to, struct err *e)
{
    int rc = -1, fd = open(from, O_WRONLY | O_CLOEXEC);

    if (fd < 0) {
        err_sys(e, from, "cannot open");
        return -1;
    }
    if (reserve_index_space(k, fd, from, e) < 0)
        goto out;
    if (!k->o.rehearsal && (k->o.split ? syncfs(fd) : fsync(fd)) < 0) {
        err_sys(e, from, "cannot sync");
        goto out;
    }
    if (rename(from, to) < 0) {
        err_sys(e, to, "cannot rename from %s", from);
        goto out;
    }
    rc = 0;
out:
    close(fd);
    return rc;
}

int universal_hdf5_finish(struct sink *k, struct plan *plan, struct err *e)
{
    char *path = path_join(k->dir, "zero/optimizer_state.pt"), *zero = path_parent(path);
    uint8_t *bytes = NULL;
    uint64_t size;
    int rc = -1;

    (void)plan;
    if (dir_make(zero, e) < 0 ||
        ((k->src->run.optimizer || universal_makes_mp_rank(k->src)) &&
         (universal_optimizer_state(k->src, &bytes, &size, e) < 0 || file_replace(path, bytes, size, e) < 0)))
        goto out;
    rc = universal_copy_mp_ranks(k->src, k->dir, e);
out:
    free(bytes);
    free(zero);
    free(path);
    return rc;
}

/* ---- 1. tables ---- */

static bool has_hdf5_state(const struct sink *k, const struct param *p, enum state st)
{
    return universal_state_of(k->src, p, st, k->o.vocab).map != NULL;
}

static void put_states(struct h5_out *h, int64_t in, const struct sink *k, const struct param *p)
{
    int64_t shape[TENSOR_MAX_DIM];

    param_kept_shape(k->src, p, k->o.vocab, shape);
    for (int j = 0; j < TRAINED_STATES; j++)
        if (has_hdf5_state(k, p, trained_states[j]))
            h5_done(h, h5_new_dataset(h, &(struct h5_new){ in, state_name(trained_states[j]), p->ndim, shape }));
}

static int reserve_path(const struct sink *k, const char *path, struct err *e)
{
    int rc, fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0) {
        err_sys(e, path, "cannot open");
        return -1;
    }
    rc = reserve_index_space(k, fd, path, e);
    close(fd);
    return rc;
}

/*
 * Create the file of a parameter under its final name. This is safe because no reader opens the file before the index
 * links to it.
 */
static int make_param_file(const struct sink *k, const struct param *p, const char *path, struct err *e)
{
    struct h5_out *h = h5_create(path);

    h5_set_str(h, H5_TOP, "format", INDEX_FORMAT);
    h5_set_int(h, H5_TOP, "format_version", INDEX_VERSION);
    h5_set_str(h, H5_TOP, "parameter", p->name);
    universal_hdf5_put_param(h, H5_TOP, k, p);
    put_states(h, H5_TOP, k, p);
    return h5_finish(h, e) < 0 ? -1 : reserve_path(k, path, e);
}

/*
 * Returns the name, relative to the folder, of the file that holds the parameter's data: "zero/<parameter>.h5" with
 * --split, otherwise the index.
 */
static char *data_file(const struct sink *k, const struct param *p)
{
    return k->o.split ? str_fmt("zero/%s.h5", p->name) : xstrdup(INDEX_NAME);
}

static int put_linked(struct h5_out *h, const struct sink *k, const struct param *p, struct err *e)
{
    char *file = data_file(k, p), *path = path_join(k->dir, file);
    int rc = make_param_file(k, p, path, e);

    if (rc == 0)
        h5_put_link(h, p->name, file);
    free(path);
    free(file);
    return rc;
}

static void put_inside(struct h5_out *h, const struct sink *k, const struct param *p)
{
    int64_t group = h5_new_group(h, H5_TOP, p->name);

    universal_hdf5_put_param(h, group, k, p);
    put_states(h, group, k, p);
    h5_done(h, group);
}

static int make_hdf5_index(const struct sink *k, const char *path, struct err *e)
{
    char *part = str_fmt("%s.new", path), *zero = path_join(k->dir, "zero");
    struct h5_out *h = h5_create(part);
    int rc = k->o.split ? dir_make(zero, e) : 0;

    universal_hdf5_put_root(h, k);
    for (int i = 0; i < k->src->n_params && rc == 0; i++) {
        if (k->o.split)
            rc = put_linked(h, k, &k->src->param[i], e);
        else
            put_inside(h, k, &k->src->param[i]);
    }
    if (rc == 0)
        rc = h5_finish(h, e) < 0 ? -1 : universal_hdf5_publish(k, part, path, e);
    else
        h5_abandon(h);
    free(zero);
    free(part);
    return rc;
}

/* ---- 2. destinations ---- */

struct hdf5_sink {
    struct sink_item **item;
    char **name;                        /* names of the items, for messages */
    int n, cap, name_cap;
    struct arena *arena;
};

/*
 * Check that the dataset has the shape that this source requires. The shape may differ if the folder is being resumed
 * but was begun by a conversion of another source.
 */
static int check_dataset_shape(const struct h5_in *h, const struct h5_dataset *d, const struct param *p,
                               const int64_t *shape, enum state st, struct err *e)
{
    if (d->storage == H5_CONTIGUOUS && shape_equal(d->ndim, d->shape, p->ndim, shape))
        return 0;
    err_data(e, h5_path(h), ERR_NO_BYTE, "parameter '%s': %s has another shape than in IN, so another conversion wrote "
                                         "the file", p->name, state_name(st));
    return -1;
}

/* Add a plan item that writes the state to its dataset. */
static void hdf5_add_plan_item(struct sink *k, struct plan *plan, int param, enum state st, int dst,
                               const struct h5_dataset *d)
{
    const struct param *p = &k->src->param[param];
    const struct universal_state u = universal_state_of(k->src, p, st, k->o.vocab);
    struct hdf5_sink *w = k->priv;
    int n;
    struct sink_item *it = xcalloc(1, sizeof *it);

    it->param = param;
    it->state = st;
    it->file = data_file(k, p);
    ARRAY_ROOM(w->item, w->cap, w->n + 1);
    ARRAY_ROOM(w->name, w->name_cap, w->n + 1);
    w->name[w->n] = str_fmt("%s %s", p->name, state_name(st));
    w->item[w->n] = it;
    n = plan_add(plan, &(struct plan_range){ .map = u.map, .len = u.len, .policy = k->o.replicas,
                                             .name = w->name[w->n], .user = it }, dst, d->at);
    plan_item(plan, n)->op = (enum plan_op)u.op;
    w->n++;
}

static int hdf5_add_param_states(struct sink *k, struct h5_in *h, int param, int dst, struct plan *plan, struct err *e)
{
    struct hdf5_sink *w = k->priv;
    const struct param *p = &k->src->param[param];
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t len = param_kept_shape(k->src, p, k->o.vocab, shape);

    for (int j = 0; j < TRAINED_STATES; j++) {
        enum state st = trained_states[j];
        char *path = k->o.split ? str_fmt("/%s", state_name(st)) : str_fmt("/%s/%s", p->name, state_name(st));
        struct h5_dataset d;
        int rc = 0;

        if (has_hdf5_state(k, p, st)) {
            rc = h5_inspect_dataset(h, path, w->arena, &d, e);
            if (rc == 0)
                rc = check_dataset_shape(h, &d, p, shape, st, e);
            if (rc == 0 && len > 0)
                hdf5_add_plan_item(k, plan, param, st, dst, &d);
        }
        free(path);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static int add_inside(struct sink *k, const char *path, struct plan *plan, struct err *e)
{
    struct h5_in *h = h5_open(path, e);
    int rc = h ? 0 : -1, dst = h ? plan_add_dst(plan, path) : -1;

    for (int i = 0; i < k->src->n_params && rc == 0; i++)
        rc = hdf5_add_param_states(k, h, i, dst, plan, e);
    h5_close(h);
    return rc;
}

static int add_linked(struct sink *k, struct plan *plan, struct err *e)
{
    int rc = 0;

    for (int i = 0; i < k->src->n_params && rc == 0; i++) {
        char *file = data_file(k, &k->src->param[i]), *path = path_join(k->dir, file);
        struct h5_in *h = h5_open(path, e);

        rc = h ? hdf5_add_param_states(k, h, i, plan_add_dst(plan, path), plan, e) : -1;
        h5_close(h);
        free(path);
        free(file);
    }
    return rc;
}

static int hdf5_sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *plan, struct err *e)
{
    char *path = path_join(dir, INDEX_NAME);
    int rc;

    k->src = s;
    k->dir = xstrdup(dir);
    rc = universal_hdf5_check(s, false, e);
    if (rc == 0 && k->o.part == 0 && !(k->o.resumed && access(path, F_OK) == 0))
        rc = make_hdf5_index(k, path, e);
    if (rc == 0)
        rc = k->o.split ? add_linked(k, plan, e) : add_inside(k, path, plan, e);
    free(path);
    return rc;
}

static int hdf5_sink_item_done(struct sink *k, struct plan_item *it, struct err *e)
{
    (void)k, (void)it, (void)e;
    return 0;                           /* nothing to do: a dataset's bytes have no header or trailer */
}

static void hdf5_sink_close(struct sink *k)
{
    struct hdf5_sink *w = k->priv;

    for (int i = 0; i < w->n; i++) {
        free(w->item[i]->file);
        free(w->item[i]);
        free(w->name[i]);
    }
    free(w->item);
    free(w->name);
    arena_free(w->arena);
    free(w);
    free(k->dir);
    free(k);
}

static const struct sink_ops ops = {
    .name = "universal-hdf5",
    .estimate = universal_estimate,
    .prepare = hdf5_sink_prepare,
    .item_done = hdf5_sink_item_done,
    .finish = universal_hdf5_finish,
    .close = hdf5_sink_close,
};

struct sink *universal_hdf5_sink(const struct sink_opts *o)
{
    struct sink *k = xcalloc(1, sizeof *k);
    struct hdf5_sink *w = xcalloc(1, sizeof *w);

    k->ops = &ops;
    k->o = *o;
    k->priv = w;
    w->arena = arena_new(0);
    return k;
}
