/*
 * universal_pt_describe.c - describe zero/<parameter>/{fp32,exp_avg,exp_avg_sq}.pt
 *
 * There is one file per parameter and state. Each holds a dict that both readers accept (docs/formats.md, section
 * 5.2):
 *   cat_dim                            if TP slices were concatenated
 *   vocab_divisibility_padding_tensor  if all rows of the vocabulary are kept; bigscience's loader reads it
 *   vocab_tensor True                  for the vocabulary; DeepSpeed >= 0.12.3 reads it
 *   param                              the merged tensor
 * For ZeRO-3 the file holds no dict but the flattened tensor, as ZeRO-3's loader requires. A tensor without optimizer
 * states (a frozen parameter, the second name of a tied weight, a buffer) has only fp32.pt, which is made from the
 * weights if there is no fp32 master weight.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/layout/engine/zero_shape.h"
#include "libcommon/write/folder.h"

/*
 * Returns true if the padding tensor is a row of zeros. As in DeepSpeed's converter, the padding tensor is the last row
 * of the vocabulary, or zeros if no row is padding.
 */
static bool padding_is_zero_row(const struct source *s, const struct param *p)
{
    return s->config.vocab_tokens == p->shape[0];
}

/*
 * Returns true if the file of this parameter has a padding tensor. A form whose padding rows are stripped has none,
 * even if there was no row to strip, because readers of this form add padding themselves.
 */
static bool has_padding_tensor(const struct param *p, enum vocab_policy vocab)
{
    return p->merge == MERGE_VOCAB && p->ndim == 2 && vocab == VOCAB_KEEP;
}

/*
 * Returns the padding tensor. requires_grad is set as in DeepSpeed's converter. There, the last row of the fp32 master
 * weight is a view and inherits requires_grad, while zeros are a new tensor.
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

/* Returns the container of one state of a parameter, with its 1 or 2 storages. It is allocated in the arena. */
static struct folder_box state_file_box(struct arena *a, const struct source *s, const struct param *p, enum state st,
                                        enum vocab_policy vocab)
{
    struct folder_box b = { .prefix = state_name(st), .n = 1, .storage = arena_alloc(a, 2 * sizeof *b.storage) };
    struct pk *root = pk_dict(a);
    const bool trained = universal_is_trained(s, p);
    int64_t shape[TENSOR_MAX_DIM];
    struct pt_new t = { .dtype = universal_state_of(s, p, st, vocab).dtype, .ndim = p->ndim, .shape = shape,
                        .requires_grad = st == STATE_FP32 && trained };

    t.storage_elems = (int64_t)(param_kept_shape(s, p, vocab, shape) / sizeof(float));
    b.storage[0] = (struct folder_storage){ .len = (uint64_t)t.storage_elems * (uint64_t)dtype_size(t.dtype) };
    if (s->zero_stage == 3 && s->topo.tp <= 1 && trained) {
        t.ndim = 1;
        t.shape = &t.storage_elems;
        b.root = pt_new_tensor(a, &t);
        return b;
    }
    if (universal_pt_cat_dim(p->merge) >= 0 && trained)
        pk_set_str(a, root, "cat_dim", pk_int(a, universal_pt_cat_dim(p->merge)));
    if (p->merge == MERGE_CAT0_HALVES)
        pk_set_str(a, root, "param_n_sub_params", pk_int(a, 2));
    if (has_padding_tensor(p, vocab)) {
        pk_set_str(a, root, "vocab_divisibility_padding_tensor", padding_tensor(a, s, p, st));
        if (padding_is_zero_row(s, p))  /* no fill writes to this storage, so its bytes stay zero */
            b.storage[b.n++] = (struct folder_storage){ .len = (uint64_t)p->shape[1] * sizeof(float) };
    }
    if (p->merge == MERGE_VOCAB)
        pk_set_str(a, root, "vocab_tensor", pk_bool(a, true));
    pk_set_str(a, root, "param", pt_new_tensor(a, &t));
    b.root = root;
    return b;
}

struct pt_image *universal_pt_image(const struct source *s, const struct param *p, enum state st,
                                    enum vocab_policy vocab)
{
    struct arena *a = arena_new(0);
    const struct folder_box b = state_file_box(a, s, p, st, vocab);
    const uint64_t size[2] = { b.storage[0].len, b.n > 1 ? b.storage[1].len : 0 };
    struct pt_image *im = pt_image_new(b.prefix, b.root, b.n, size);

    arena_free(a);
    return im;
}

bool universal_pt_zero_row(const struct source *s, const struct param *p, enum vocab_policy vocab)
{
    return has_padding_tensor(p, vocab) && padding_is_zero_row(s, p);
}

/* ---- the files of the states: each parameter has TRAINED_STATES files ---- */

struct universal_folder {
    const struct source *src;
    enum vocab_policy vocab;
    int n;
    /* [files]: index of the file's tensor among all tensors of the result; -1 if the file is not created */
    int *number;
};

/*
 * Check that each parameter's name can be the name of a folder, whatever kind of file the name was read from. A name
 * must not lead out of the output folder.
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

static int begin_universal_folder(void *ctx, const struct source *s, const struct sink_opts *o, struct err *e)
{
    struct universal_folder *u = ctx;

    u->src = s;
    u->vocab = o->vocab;
    if (check_param_folder_names(s, e) < 0 || universal_check_states(s, e) < 0)
        return -1;
    u->number = xmalloc((size_t)s->n_params * TRAINED_STATES * sizeof *u->number + 1);
    for (int i = 0; i < s->n_params * TRAINED_STATES; i++) {
        const enum state st = trained_states[i % TRAINED_STATES];

        u->number[i] = universal_state_of(s, &s->param[i / TRAINED_STATES], st, u->vocab).map ? u->n++ : -1;
    }
    return s->n_params * TRAINED_STATES;
}

static int describe_state_file(void *ctx, int file, struct folder_desc *d, struct err *e)
{
    const struct universal_folder *w = ctx;
    const enum state st = trained_states[file % TRAINED_STATES];
    const struct param *p = &w->src->param[file / TRAINED_STATES];
    const struct universal_state u = universal_state_of(w->src, p, st, w->vocab);
    struct folder_box b;

    (void)e;
    if (w->number[file] < 0)
        return 0;
    d->name = arena_fmt(d->keep ? d->keep : d->arena, "zero/%s/%s.pt", p->name, state_name(st));
    b = state_file_box(d->arena, w->src, p, st, w->vocab);
    folder_add_box(d, &b);
    folder_add_fill(d, &(struct folder_fill){
        .map = u.map, .len = u.len, .op = (enum plan_op)u.op, .name = d->name, .to = { .file = file },
        .param = file / TRAINED_STATES, .state = st, .tensor = w->number[file] });
    return 0;
}

static int list_universal_tensors(void *ctx, struct folder_tensor **out)
{
    const struct universal_folder *w = ctx;
    const struct source *s = w->src;
    struct folder_tensor *t = xcalloc((size_t)w->n + 1, sizeof *t);

    for (int i = 0; i < s->n_params * TRAINED_STATES; i++) {
        const struct param *p = &s->param[i / TRAINED_STATES];
        const enum state st = trained_states[i % TRAINED_STATES];
        struct folder_tensor *x = &t[w->number[i] < 0 ? 0 : w->number[i]];

        if (w->number[i] < 0)
            continue;
        x->same_as = -1;
        x->of = (struct sink_tensor){ .name = p->name, .param = i / TRAINED_STATES, .state = st, .ndim = p->ndim,
                                      .dtype = universal_state_of(s, p, st, w->vocab).dtype };
        x->of.len = param_kept_shape(s, p, w->vocab, x->of.shape) / sizeof(float) * (uint64_t)dtype_size(x->of.dtype);
    }
    *out = t;
    return w->n;
}

/* ---- files other than tensors ---- */

static int write_step(const char *dir, const struct param *p, const void *bytes, uint64_t size, struct err *e)
{
    char *path = str_fmt("%s/zero/%s/step.pt", dir, p->name);
    int rc = 0, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    /*
     * file_replace() is not used here, because it is slow: there are hundreds of these small files. The folder is
     * published as a whole anyway.
     */
    if (fd < 0 || write_all_at(fd, bytes, size, 0) < 0) {
        err_sys(e, path, "cannot write");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    free(path);
    return rc;
}

static int write_steps(const struct source *s, const char *dir, struct err *e)
{
    uint8_t *bytes;
    uint64_t size;
    int rc = 0;

    /* ZeRO-3 needs no step.pt, because its loader reads the counter from optimizer_state.pt. */
    if (s->zero_stage == 3)
        return 0;
    universal_step(s, &bytes, &size);
    for (int i = 0; size && i < s->n_params && rc == 0; i++)
        if (universal_is_trained(s, &s->param[i]))
            rc = write_step(dir, &s->param[i], bytes, size, e);
    free(bytes);
    return rc;
}

static int finish_universal_folder(void *ctx, const struct folder_written *w, struct err *e)
{
    const struct source *s = ((const struct universal_folder *)ctx)->src;
    uint8_t *bytes = NULL;
    uint64_t size;
    int rc = universal_optimizer_state(s, &bytes, &size, e);

    if (rc == 0)
        rc = folder_write_small(w->dir, "zero/optimizer_state.pt", bytes, size, e);
    free(bytes);
    if (rc == 0)
        rc = write_steps(s, w->dir, e);
    if (rc == 0)
        rc = universal_copy_mp_ranks(s, w->dir, e);
    return rc;
}

/* ---- the folder ---- */

static uint64_t universal_folder_extra_bytes(void *ctx)
{
    const struct source *s = ((const struct universal_folder *)ctx)->src;

    return universal_extra_bytes(s) + (uint64_t)s->n_params * 4096;     /* each parameter may have a step.pt */
}

static void close_universal_folder(void *ctx)
{
    free(((struct universal_folder *)ctx)->number);
    free(ctx);
}

static const struct folder_ops universal_folder_ops = {
    .name = "universal-pt",
    .begin = begin_universal_folder,
    .describe = describe_state_file,
    .tensors = list_universal_tensors,
    .extra_bytes = universal_folder_extra_bytes,
    .finish = finish_universal_folder,
    .close = close_universal_folder,
};

struct sink *universal_pt_sink(const struct sink_opts *o)
{
    return folder_sink(o, &(struct folder){ .ops = &universal_folder_ops,
                                            .ctx = xcalloc(1, sizeof(struct universal_folder)) });
}
