/*
 * universal_pt_sink.c - write zero/<parameter>/{fp32,exp_avg,exp_avg_sq}.pt
 *
 * There is one file per parameter and state. Each holds a dict that both readers accept (docs/formats.md, section
 * 5.2):
 *   cat_dim                            if TP slices were concatenated
 *   vocab_divisibility_padding_tensor  vocabulary with its rows kept: bigscience's loader
 *   vocab_tensor True                  vocabulary: DeepSpeed >= 0.12.3
 *   param                              the merged tensor
 * For ZeRO-3 a parameter's file is the bare tensor, flattened, as its loader requires. A tensor without optimizer
 * states (frozen, a tied weight's second name, a buffer) has only fp32.pt, made from the weights if there is no
 * master. The payload is a plan item that writes directly into the file. The container's own bytes are written when
 * its CRC is known, so a file without a directory is unfinished.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/format/pt.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/layout/zero/zero_target.h"
#include "libcommon/write/sink.h"

static const float *make_zero_float_row(int64_t n)
{
    return xcalloc((size_t)n, sizeof(float));
}

/*
 * Returns true if the padding tensor is a row of zeros. The reference stores the last row, or zeros if no row is
 * padding.
 */
static bool padding_is_zero_row(const struct source *s, const struct param *p)
{
    return s->config.vocab_tokens == p->shape[0];
}

/*
 * Returns true if the file has a padding tensor. A stripped form has none, even if no rows were stripped: its
 * readers add the padding themselves.
 */
static bool has_padding_tensor(const struct param *p, enum vocab_policy vocab)
{
    return p->merge == MERGE_VOCAB && p->ndim == 2 && vocab == VOCAB_KEEP;
}

/*
 * Returns the padding tensor, with requires_grad as in the reference: a row of the master is a view of it, zeros are
 * a new tensor.
 */
static struct pk *padding_tensor(struct arena *a, const struct source *s, const struct param *p, enum state st)
{
    int64_t rows = p->shape[0], h = p->shape[1];

    if (padding_is_zero_row(s, p))
        return pt_new_tensor(a, &(struct pt_new){ .storage = 1, .dtype = DTYPE_F32, .storage_elems = h, .ndim = 1,
                                                  .shape = &h });
    return pt_new_tensor(a, &(struct pt_new){ .dtype = DTYPE_F32, .storage_elems = rows * h,
                                              .offset_elems = (rows - 1) * h, .ndim = 1, .shape = &h,
                                              .requires_grad = st == STATE_FP32 });
}

static int universal_pt_cat_dim(enum merge_rule m)
{
    return m == MERGE_REPLICATED ? -1 : m == MERGE_CAT1 ? 1 : 0;
}

/*
 * Returns the container of one parameter and state. It is deterministic, so it can be created a second time when the
 * CRC is known.
 */
static struct pt_image *make_state_file_image(const struct sink *k, const struct param *p, enum state st)
{
    const struct source *s = k->src;
    struct arena *a = arena_new(0);
    struct pk *root = pk_dict(a);
    struct universal_state u = universal_state_of(s, p, st, k->o.vocab);
    struct pt_image *im;
    struct pt_new t = { .dtype = u.dtype, .ndim = p->ndim,
                        .requires_grad = st == STATE_FP32 && universal_is_trained(s, p) };
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t size[2];
    int n_storages = 1;

    t.shape = shape;
    t.storage_elems = (int64_t)(param_kept_shape(s, p, k->o.vocab, shape) / sizeof(float));
    size[0] = (uint64_t)t.storage_elems * (uint64_t)dtype_size(u.dtype);
    if (s->zero_stage == 3 && s->topo.tp <= 1 && universal_is_trained(s, p)) {
        t.ndim = 1;
        t.shape = &t.storage_elems;
        root = pt_new_tensor(a, &t);
        goto out;
    }
    if (universal_pt_cat_dim(p->merge) >= 0 && universal_is_trained(s, p))
        pk_set_str(a, root, "cat_dim", pk_int(a, universal_pt_cat_dim(p->merge)));
    if (p->merge == MERGE_CAT0_HALVES)
        pk_set_str(a, root, "param_n_sub_params", pk_int(a, 2));
    if (has_padding_tensor(p, k->o.vocab)) {
        pk_set_str(a, root, "vocab_divisibility_padding_tensor", padding_tensor(a, s, p, st));
        if (padding_is_zero_row(s, p)) {
            size[1] = (uint64_t)p->shape[1] * sizeof(float);
            n_storages = 2;
        }
    }
    if (p->merge == MERGE_VOCAB)
        pk_set_str(a, root, "vocab_tensor", pk_bool(a, true));
    pk_set_str(a, root, "param", pt_new_tensor(a, &t));
out:
    im = pt_image_new(state_name(st), root, n_storages, size);
    arena_free(a);
    return im;
}

struct pt_image *universal_pt_image(const struct source *s, const struct param *p, enum state st,
                                    enum vocab_policy vocab)
{
    const struct sink k = { .src = s, .o.vocab = vocab };

    return make_state_file_image(&k, p, st);
}

bool universal_pt_zero_row(const struct source *s, const struct param *p, enum vocab_policy vocab)
{
    return has_padding_tensor(p, vocab) && padding_is_zero_row(s, p);
}

/* ---- prepare ---- */

static struct sink_item *new_state_file_item(int param, enum state st, char *file)
{
    struct sink_item *it = xcalloc(1, sizeof *it);

    it->param = param;
    it->state = st;
    it->file = file;
    return it;
}

struct pt_sink {
    struct sink_item **item;
    int n, cap;
};

static void add_state(struct sink *k, int i, enum state st, struct plan *plan)
{
    struct pt_sink *w = k->priv;
    const struct param *p = &k->src->param[i];
    const struct universal_state u = universal_state_of(k->src, p, st, k->o.vocab);
    struct pt_image *im = make_state_file_image(k, p, st);
    char *file = str_fmt("zero/%s/%s.pt", p->name, state_name(st));
    char *path = path_join(k->dir, file);
    struct sink_item *it = new_state_file_item(i, st, file);
    int n;

    ARRAY_ROOM(w->item, w->cap, w->n + 1);
    w->item[w->n++] = it;
    n = plan_add(plan, &(struct plan_range){ .map = u.map, .len = u.len, .policy = k->o.replicas, .name = file,
                                             .user = it },
                 plan_add_sized(plan, path, pt_image_size(im)), pt_image_at(im, 0));
    plan_item(plan, n)->op = (enum plan_op)u.op;
    pt_image_free(im);
    free(path);
}

/*
 * Check the parameters' names. They become names of folders, whatever file they were read from, and none may lead
 * out of the form.
 */
static int check_param_folder_names(const struct source *s, struct err *e)
{
    for (int i = 0; i < s->n_params; i++)
        if (!zero_is_name(s->param[i].name)) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter '%.80s': the name cannot be one of a folder (a dot in front, "
                     "slashes and blanks cannot be in it)", s->param[i].name);
            return -1;
        }
    return 0;
}

static int universal_pt_sink_prepare(struct sink *k, const struct source *s, const char *dir, struct plan *plan,
                                     struct err *e)
{
    k->src = s;
    k->dir = xstrdup(dir);
    if (check_param_folder_names(s, e) < 0 || universal_check_states(s, e) < 0)
        return -1;
    for (int i = 0; i < s->n_params; i++) {
        char *folder = str_fmt("%s/zero/%s", dir, s->param[i].name);
        int rc = k->o.part == 0 ? dir_make(folder, e) : 0;

        free(folder);
        if (rc < 0)
            return -1;
        for (int j = 0; j < TRAINED_STATES; j++)
            if (universal_state_of(s, &s->param[i], trained_states[j], k->o.vocab).map)
                add_state(k, i, trained_states[j], plan);
    }
    return 0;
}

/* ---- the bytes around the payload ---- */

static int write_zero_row(int fd, struct pt_image *im, const struct param *p)
{
    size_t n = (size_t)p->shape[1] * sizeof(float);
    const float *row = make_zero_float_row(p->shape[1]);
    int rc;

    pt_image_set_crc(im, 1, crc_bytes(0, row, n));
    rc = write_all_at(fd, row, n, pt_image_at(im, 1));
    free((void *)row);
    return rc;
}

static int universal_pt_sink_item_done(struct sink *k, struct plan_item *pi, struct err *e)
{
    const struct sink_item *it = pi->user;
    const struct param *p = &k->src->param[it->param];
    struct pt_image *im = make_state_file_image(k, p, it->state);
    char *path = path_join(k->dir, it->file);
    const struct zip_run *run;
    int n, rc = 0, fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0) {
        err_sys(e, path, "cannot open");
        rc = -1;
        goto out;
    }
    pt_image_set_crc(im, 0, pi->crc.acc);
    if (universal_pt_zero_row(k->src, p, k->o.vocab))
        rc = write_zero_row(fd, im, p);
    n = pt_image_runs(im, &run);
    for (int i = 0; i < n && rc == 0; i++)
        rc = write_all_at(fd, run[i].bytes, run[i].len, run[i].at);
    if (rc < 0)
        err_sys(e, path, "cannot write the headers");
out:
    if (fd >= 0)
        close(fd);
    free(path);
    pt_image_free(im);
    return rc;
}

/* ---- files other than tensors ---- */

static int write_small(const char *dir, const char *name, const void *bytes, uint64_t size, struct err *e)
{
    char *path = path_join(dir, name);
    int rc = file_replace(path, bytes, size, e);

    free(path);
    return rc;
}

static int write_step(const struct sink *k, const struct param *p, const void *bytes, uint64_t size, struct err *e)
{
    char *path = str_fmt("%s/zero/%s/step.pt", k->dir, p->name);
    int rc = 0, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    /* file_replace() is not used: these are hundreds of small files, published together with their folder. */
    if (fd < 0 || write_all_at(fd, bytes, size, 0) < 0) {
        err_sys(e, path, "cannot write");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    free(path);
    return rc;
}

static int write_steps(struct sink *k, struct err *e)
{
    uint8_t *bytes;
    uint64_t size;
    int rc = 0;

    /* ZeRO-3's loader reads the counter from optimizer_state.pt. */
    if (k->src->zero_stage == 3)
        return 0;
    universal_step(k->src, &bytes, &size);
    for (int i = 0; size && i < k->src->n_params && rc == 0; i++)
        if (universal_is_trained(k->src, &k->src->param[i]))
            rc = write_step(k, &k->src->param[i], bytes, size, e);
    free(bytes);
    return rc;
}

static int universal_pt_sink_finish(struct sink *k, struct plan *plan, struct err *e)
{
    uint8_t *bytes = NULL;
    uint64_t size;
    int rc;

    (void)plan;
    rc = universal_optimizer_state(k->src, &bytes, &size, e);
    if (rc == 0)
        rc = write_small(k->dir, "zero/optimizer_state.pt", bytes, size, e);
    free(bytes);
    if (rc == 0)
        rc = write_steps(k, e);
    if (rc == 0)
        rc = universal_copy_mp_ranks(k->src, k->dir, e);
    return rc;
}

static void universal_pt_sink_close(struct sink *k)
{
    struct pt_sink *w = k->priv;

    for (int i = 0; i < w->n; i++) {
        free(w->item[i]->file);
        free(w->item[i]);
    }
    free(w->item);
    free(w);
    free(k->dir);
    free(k);
}

static const struct sink_ops ops = {
    .name = "universal-pt",
    .estimate = universal_estimate,
    .prepare = universal_pt_sink_prepare,
    .item_done = universal_pt_sink_item_done,
    .finish = universal_pt_sink_finish,
    .close = universal_pt_sink_close,
};

struct sink *universal_pt_sink(const struct sink_opts *o)
{
    struct sink *k = xcalloc(1, sizeof *k);

    k->ops = &ops;
    k->o = *o;
    k->priv = xcalloc(1, sizeof(struct pt_sink));
    return k;
}
