/*
 * hf_source.c - convert all tensors of a folder to Megatron's parameters; a tensor that is left over is an error
 */
#include "libcommon/layout/hf/hf_source.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/layout/hf/hf_source_impl.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/plan/tmap_permute.h"
#include "libcommon/plan/tmap_slice.h"

/* Layer numbers in Megatron's names, as the current trainer writes them. A target may number the layers differently. */
enum { FIRST_LAYER = 3, NORM_GAP = 1 };

struct opening {
    struct source *s;
    const struct hf_source_opts *o;
    struct hf_config c;
    struct hf_folder folder;
    struct report *r;
    struct err *e;
    struct hf_matrix *matrix;           /* matrices to transpose */
    const struct param_row **matrix_row;
    struct param **matrix_param;
    int n_matrices;
    int zeros;                          /* index of a record of zeros, for a dry run; -1 until the record is created */
    bool stored;                        /* true if all tensors in the files have the weights' type, c.dtype */
};

/* ---- names ---- */

/*
 * Check a head that is stored in the files. It must equal the embedding, because in Megatron the embedding is the head.
 */
static int check_imported_head(struct opening *x)
{
    struct hf_stored *head = hf_folder_find(&x->folder, PARAM_HEAD);
    const struct hf_stored *table = hf_folder_find(&x->folder, param_row(ROLE_WORD)->hf[x->c.arch].name);
    int same = 1;

    if (!head)
        return 0;
    head->used = true;
    if (!table || table->x.len != head->x.len || table->dtype != head->dtype) {
        err_data(x->e, x->s->path, ERR_NO_BYTE,
                 PARAM_HEAD " does not have the shape of the embedding, which is the head in Megatron");
        return -1;
    }
    same = hf_same_values(x->s, hf_stored_map(x->s, head), hf_stored_map(x->s, table), x->e);
    if (same == 0)
        err_data(x->e, x->s->path, ERR_NO_BYTE, PARAM_HEAD
                 " differs from the embedding, but the head of Megatron is the embedding");
    return same > 0 ? 0 : -1;
}

static int64_t dimension(const struct hf_config *c, char letter)
{
    return param_dim(&(struct param_dims){ c->vocab, c->positions, c->hidden, c->ffn }, letter);
}

void hf_stored_shape(const struct param_row *r, const struct hf_config *c, int64_t shape[TENSOR_MAX_DIM])
{
    for (int d = 0; d < r->ndim; d++)
        shape[d] = dimension(c, r->dims[hf_is_transposed(c->arch, r) ? r->ndim - 1 - d : d]);
}

static int check_imported_tensor(struct opening *x, const struct param_row *r, const struct hf_stored *t)
{
    struct strbuf want = {0}, got = {0};
    bool right = t->ndim == r->ndim;
    int64_t shape[TENSOR_MAX_DIM];

    hf_stored_shape(r, &x->c, shape);
    for (int d = 0; d < r->ndim; d++) {
        right = right && t->shape[d] == shape[d];
        strbuf_addf(&want, "%s%lld", d ? ", " : "", (long long)shape[d]);
    }
    for (int d = 0; d < t->ndim && d < TENSOR_MAX_DIM; d++)
        strbuf_addf(&got, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
    if (t->why) {
        err_data(x->e, x->s->path, ERR_NO_BYTE, "tensor %s: cannot be read: %s", t->name, t->why);
        right = false;
    } else if (t->map && t->map->op != TMAP_CONCAT && r->hf[x->c.arch].change == HF_QKV_ROWS) {
        err_data(x->e, x->s->path, ERR_NO_BYTE, "tensor %s: is not cut by rows, as query, key and value are: export-hf "
                 "without --import writes a folder in which it is whole", t->name);
        right = false;
    } else if (!right)
        err_data(x->e, x->s->path, ERR_NO_BYTE, "tensor %s: has shape [%s], but config.json describes [%s]", t->name,
                 got.buf ? got.buf : "", want.buf);
    else if (t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_F32) {
        err_data(x->e, x->s->path, ERR_NO_BYTE, "tensor %s: is neither bf16, fp16 nor fp32", t->name);
        right = false;
    }
    strbuf_free(&want);
    strbuf_free(&got);
    return right ? 0 : -1;
}

/* ---- parameters ---- */

/*
 * Reorder rows from (kind, head, lane), GPT-2's order, to (head, kind, lane), Megatron's order. A kind is query, key or
 * value.
 */
static struct tmap *restore_imported_qkv_rows(struct opening *x, const struct tmap *m)
{
    int64_t n = x->c.n_heads;
    struct arena *scratch = arena_new(0);
    int64_t *order = tmap_permute_transposed(scratch, 3, n);
    struct tmap *to = tmap_permute(x->s->arena, m, m->len / (uint64_t)(3 * n), order);

    arena_free(scratch);
    return to;
}

/*
 * Set the states of a parameter to `m`, the tensor in the files. It becomes the fp32 master weight. If all tensors have
 * the type of the weights, it also becomes the weight.
 */
static void set_states(struct opening *x, struct param *p, struct tmap *m)
{
    p->state[STATE_FP32] = m;
    p->state[STATE_BF16] = x->stored ? m : NULL;
}

static int add_imported_param(struct opening *x, const struct param_row *r, int block, int layer)
{
    char *hf = hf_name(x->c.arch, r, block, false), *name = hf_param_name(r, layer);
    struct hf_stored *t = hf_folder_find(&x->folder, hf);
    struct param *p = &x->s->param[x->s->n_params++];
    int rc = -1;

    if (!t) {
        err_data(x->e, x->s->path, ERR_NO_BYTE, "tensor %s is missing", hf);
        goto out;
    }
    if (check_imported_tensor(x, r, t) < 0)
        goto out;
    t->used = true;
    *p = (struct param){ .name = arena_fmt(x->s->arena, "%s", name), .ndim = r->ndim, .merge = merge_rule_of(name),
                         .stage = 0, .group = -1 };
    for (int d = 0; d < r->ndim; d++)
        p->shape[d] = dimension(&x->c, r->dims[d]);
    if (hf_is_transposed(x->c.arch, r)) {
        x->matrix_row[x->n_matrices] = r;
        x->matrix_param[x->n_matrices] = p;
        x->matrix[x->n_matrices++] = (struct hf_matrix){ .from = t, .to = &p->state[STATE_FP32] };
    } else if (r->dims[0] == 'V' && x->o->repeat_to > p->shape[0]) {
        set_states(x, p, hf_repeat_last(x->s, t, x->o->repeat_to));
        p->shape[0] = x->o->repeat_to;
    } else {
        struct tmap *m = hf_stored_map(x->s, t);

        set_states(x, p, r->hf[x->c.arch].change == HF_QKV_ROWS ? restore_imported_qkv_rows(x, m) : m);
    }
    rc = 0;
out:
    free(hf);
    free(name);
    return rc;
}

static int add_imported_place(struct opening *x, enum param_place place, int block, int layer)
{
    for (int r = 0; r < ROLE_N; r++)
        if (param_row(r)->place == place && param_row(r)->hf[x->c.arch].name &&
            add_imported_param(x, param_row(r), block, layer) < 0)
            return -1;
    return 0;
}

/* Returns -1 with an error that lists all tensors which belong to no parameter. */
static int check_unused(struct opening *x)
{
    struct strbuf names = {0};
    int n = 0;

    for (int i = 0; i < x->folder.n; i++)
        if (!x->folder.tensor[i].used && !hf_is_buffer(x->folder.tensor[i].name))
            strbuf_addf(&names, "%s%.100s", n++ ? ", " : "", x->folder.tensor[i].name);
    if (n)
        err_data(x->e, x->s->path, ERR_NO_BYTE, "%d tensor%s without an equivalent in Megatron: %s", n,
                 n == 1 ? "" : "s", names.buf);
    strbuf_free(&names);
    return n ? -1 : 0;
}

static bool all_of(const struct opening *x, enum dtype dtype)
{
    for (int i = 0; i < x->folder.n; i++)
        if (x->folder.tensor[i].dtype != dtype && !hf_is_buffer(x->folder.tensor[i].name))
            return false;
    return true;
}

/*
 * Choose the type of the weights: the type that the caller requests, or else the type of the tensors, or else the one
 * in config.json.
 */
static void resolve_imported_dtype(struct opening *x)
{
    const bool half = all_of(x, DTYPE_F16) || (x->c.dtype == DTYPE_F16 && !all_of(x, DTYPE_BF16));

    x->c.dtype = x->o->dtype_given ? x->o->dtype : half ? DTYPE_F16 : DTYPE_BF16;
    x->stored = all_of(x, x->c.dtype);
}

static int add_imported_params(struct opening *x)
{
    int final = FIRST_LAYER + (int)x->c.n_layers + NORM_GAP;
    size_t most;

    /*
     * The number of layers must not exceed the number of tensors, because a number from a file must not determine how
     * much memory is allocated.
     */
    if (x->c.n_layers > x->folder.n) {
        err_data(x->e, x->s->path, ERR_NO_BYTE, "config.json has %lld layers, but the files have %d tensors",
                 (long long)x->c.n_layers, x->folder.n);
        return -1;
    }
    if (x->o->repeat_to > x->c.vocab + HF_ROWS_MORE) {
        err_usage(x->e, "a vocabulary of %lld rows was requested, but vocab_size is %lld", (long long)x->o->repeat_to,
                  (long long)x->c.vocab);
        return -1;
    }
    most = (size_t)ROLE_N * ((size_t)x->c.n_layers + 2);
    x->s->param = arena_alloc(x->s->arena, most * sizeof *x->s->param);
    x->matrix = xcalloc(most, sizeof *x->matrix);
    x->matrix_row = xcalloc(most, sizeof *x->matrix_row);
    x->matrix_param = xcalloc(most, sizeof *x->matrix_param);
    resolve_imported_dtype(x);
    if (check_imported_head(x) < 0 || add_imported_place(x, PLACE_EMBEDDING, -1, -1) < 0)
        return -1;
    for (int k = 0; k < x->c.n_layers; k++)
        if (add_imported_place(x, PLACE_BLOCK, k, FIRST_LAYER + k) < 0)
            return -1;
    return add_imported_place(x, PLACE_FINAL, -1, final) < 0 ? -1 : check_unused(x);
}

/* ---- transposed weights ---- */

static int transpose_imported_matrices(struct opening *x)
{
    if (x->n_matrices == 0)
        return 0;
    if (x->o->spool_dir && hf_spool(x->s, x->matrix, x->n_matrices, x->o, x->e) < 0)
        return -1;
    for (int i = 0; i < x->n_matrices; i++) {
        const struct hf_stored *t = x->matrix[i].from;
        struct param *p = x->matrix_param[i];

        if (!x->o->spool_dir)
            p->state[STATE_FP32] = tmap_slice_zeros(x->s->arena, x->s->files, &x->zeros, t->dtype, t->x.len);
        if (x->matrix_row[i]->hf[x->c.arch].change == HF_QKV_TRANSPOSE)
            p->state[STATE_FP32] = restore_imported_qkv_rows(x, p->state[STATE_FP32]);
        set_states(x, p, p->state[STATE_FP32]);
    }
    return 0;
}

/* ---- public functions ---- */

static int read_imported_config(struct opening *x)
{
    char *path = path_join(x->s->path, "config.json"), *text;
    uint64_t len;
    int rc = -1;

    text = file_slurp(path, 1 << 24, &len, x->e);
    if (text && hf_config_read(path, text, len, &x->c, x->e) == 0 &&
        hf_folder_add(&x->folder, "config.json", FILE_OTHER, x->e) >= 0)
        rc = 0;
    free(text);
    free(path);
    return rc;
}

/* Load the tensors' CRCs from the manifest, if the folder was exported by this program. */
static int read_manifest(struct opening *x)
{
    if (!hf_folder_has(&x->folder, MANIFEST_NAME))
        return 0;
    if (hf_folder_add(&x->folder, MANIFEST_NAME, FILE_OTHER, x->e) < 0)
        return -1;
    x->folder.crcs = manifest_crcs(x->s, x->e);
    return x->folder.crcs ? 0 : -1;
}

/*
 * Add the tensors and files of x->o->from. This is a model folder of the layout hfstorage that source_open() has
 * opened.
 */
static int copy_opened_tensors(struct opening *x)
{
    const struct source *from = x->o->from;
    const int shift = files_join(x->s->files, from->files, x->e);

    for (int i = 0; shift >= 0 && i < from->n_params; i++) {
        const struct param *p = &from->param[i];
        const struct tmap *m = p->state[STATE_FP32] ? p->state[STATE_FP32] : p->state[STATE_BF16];
        struct hf_stored *t = hf_add_tensor(&x->folder, p->name, m->dtype, p->ndim, p->shape);

        t->map = tmap_shifted(x->s->arena, m, shift);
        t->x.len = m->len;
    }
    return shift < 0 ? -1 : hf_folder_sort(&x->folder, x->e);
}

/* Read the tensors of the folder's files, or copy them from x->o->from if the folder has another layout. */
static int read_imported_tensors(struct opening *x)
{
    if (x->o->from && x->o->from->layout != &hf_layout)
        return copy_opened_tensors(x);
    return hf_folder_read(&x->folder, hf_read_model_files, x->e);
}

static void report_synthesized_state(struct opening *x)
{
    report_add(x->r, SEV_NOTE, "fresh", NULL, ERR_NO_BYTE, NULL,
               "iteration 0, no learning-rate schedule, no random states: "
               "start the trainer with --finetune, or with --override-lr-scheduler --no-load-rng");
    if (!x->stored)
        report_add(x->r, SEV_NOTE, "fresh", NULL, ERR_NO_BYTE, NULL,
                   "weights are stored as %s %s, masters with the values in the files%s",
                   x->c.dtype == DTYPE_F32 ? "widened to" : "rounded to", dtype_name(x->c.dtype),
                   x->o->dtype_given ? "" : "; --dtype selects another type");
    if (x->c.dtype == DTYPE_F16)
        report_add(x->r, SEV_NOTE, "fresh", NULL, ERR_NO_BYTE, NULL,
                   "fp16 weights: the optimizer shards are those of ZeRO stage 1, and the options of the trainer "
                   "define the initial loss scale");
}

struct source *hf_source_open(const char *dir, const struct hf_source_opts *o, struct report *r, struct err *e)
{
    struct source *s = xcalloc(1, sizeof *s);
    struct opening x = { .s = s, .o = o, .r = r, .e = e, .zeros = -1 };
    int rc = -1;
    char *base = path_base(dir);
    int64_t tokens;

    s->layout = &hf_layout;
    s->arena = arena_new(0);
    s->names = arena_alloc(s->arena, sizeof *s->names);
    s->files = files_new();
    s->path = arena_fmt(s->arena, "%s", dir);
    s->tag = arena_fmt(s->arena, "%s", base);
    s->topo = (struct topology){ .tp = 1, .pp = 1, .dp = 1 };
    s->tied_embedding = true;
    free(base);
    x.folder = (struct hf_folder){ .s = s, .r = r };
    if (read_imported_config(&x) < 0 || read_manifest(&x) < 0 ||
        read_imported_tensors(&x) < 0 || add_imported_params(&x) < 0 || transpose_imported_matrices(&x) < 0)
        goto out;
    tokens = o->vocab_tokens ? o->vocab_tokens : x.c.vocab;
    if (o->repeat_to > x.c.vocab)
        x.c.vocab = o->repeat_to;
    hf_make_state(s, &x.c, tokens, o->n_groups);
    report_synthesized_state(&x);
    rc = 0;
out:
    json_decref(x.folder.crcs);
    free(x.folder.tensor);
    free(x.matrix);
    free(x.matrix_row);
    free(x.matrix_param);
    if (rc == 0)
        return s;
    source_close(s);
    return NULL;
}
