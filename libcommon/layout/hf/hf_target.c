/*
 * hf_target.c - map a source to the tensors and files of a model folder
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/pt.h"
#include "libcommon/format/safetensors.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/plan/tmap_permute.h"

/* ---- layers ---- */

struct layers {
    int n;
    int *number;                        /* [n]: layer number of block k in the source's names, ascending */
    int final;                          /* layer number of the final LayerNorm; -1 if there is none */
};

static int by_block_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/*
 * Find the layers of the model. The blocks are the layer numbers that occur in the names, in ascending order; they
 * begin at 2 or 3. Between the last block and the final LayerNorm, a number may be left out.
 */
static int find_exported_layers(const struct hf_target *t, struct layers *l, struct err *e)
{
    const struct source *s = t->src;
    int n = 0;

    *l = (struct layers){ .final = -1, .number = xmalloc((size_t)s->n_params * sizeof *l->number + 1) };
    for (int i = 0; i < s->n_params; i++) {
        int layer;
        const struct param_row *r = hf_row_of(t->q.config.arch, s->param[i].name, &layer);

        if (!r) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: %s of Transformers has no equivalent", s->param[i].name,
                     t->q.config.arch == HF_BLOOM ? "BLOOM" : "GPT-2");
            return -1;
        }
        if (r->place == PLACE_BLOCK)
            l->number[n++] = layer;
        else if (r->place == PLACE_FINAL)
            l->final = layer;
    }
    if (n)
        qsort(l->number, (size_t)n, sizeof *l->number, by_block_number);
    for (int i = 0; i < n; i++)
        if (i == 0 || l->number[i] != l->number[i - 1])
            l->number[l->n++] = l->number[i];
    if (l->n == t->q.config.n_layers)
        return 0;
    err_data(e, s->path, ERR_NO_BYTE, "the checkpoint has %d layers, but the arguments have %lld", l->n,
             (long long)t->q.config.n_layers);
    return -1;
}

/* ---- tensors ---- */

/*
 * Returns true if p is a position table that a converter has damaged. DeepSpeed's converter to the universal form
 * merges this table as if it were split, although every tensor-parallel rank has the whole table. If there are several
 * pipeline stages, the converter writes the last stage's copy, which is not trained.
 */
static bool is_bad_table(const struct source *s, const struct param_row *r, const struct param *p)
{
    bool ours = p->has_digest[STATE_FP32], has_info = false;

    if (!s->layout->state_files || s->layout->datasets || r->dims[0] != 's')
        return false;
    for (int i = 0; i < s->n_files && !has_info; i++)
        has_info = s->file[i].pt && pk_get(pt_root(s->file[i].pt), "universal_checkpoint_info");
    return p->shape[0] != s->config.max_positions || (!ours && !has_info && s->topo.pp > 1);
}

static int check_exported_shape(const struct hf_target *t, const struct param_row *r, const struct param *p,
                                struct err *e)
{
    /* The number of rows of the vocabulary is not checked, because some universal forms hold no padding rows. */
    const struct param_dims dims = { p->shape[0], t->q.config.positions, t->q.config.hidden, t->q.config.ffn };
    struct strbuf shape = {0};
    bool right = p->ndim == r->ndim;

    if (is_bad_table(t->src, r, p)) {
        err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: the converter that wrote this universal checkpoint "
                                               "corrupts position tables; export the sharded checkpoint instead",
                 p->name);
        return -1;
    }
    for (int d = 0; d < r->ndim && right; d++)
        right = p->shape[d] == param_dim(&dims, r->dims[d]);
    if (right)
        return 0;
    for (int d = 0; d < p->ndim; d++)
        strbuf_addf(&shape, "%s%lld", d ? ", " : "", (long long)p->shape[d]);
    err_data(e, t->src->path, ERR_NO_BYTE,
             "parameter %s: its shape [%s] does not match the arguments (hidden %lld, ffn %lld, positions %lld)",
             p->name, shape.buf ? shape.buf : "", (long long)t->q.config.hidden,
             (long long)t->q.config.ffn, (long long)t->q.config.positions);
    strbuf_free(&shape);
    return -1;
}

/*
 * Choose the state of a parameter to write. These are the weights if they have the requested dtype. Otherwise the fp32
 * master weights are used, so that values are rounded only once, or, if there are none, the weights, converted.
 */
static const struct tmap *choose_state(const struct hf_target *t, const struct param *p, enum state *st)
{
    const struct tmap *weights = p->state[STATE_BF16];

    *st = weights && (weights->dtype == t->q.config.dtype || !p->state[STATE_FP32]) ? STATE_BF16 : STATE_FP32;
    return p->state[*st];
}

/*
 * Reorder rows from (head, kind, lane), Megatron's order, to (kind, head, lane), GPT-2's order. A kind is query, key or
 * value.
 */
static const struct tmap *reorder_rows(const struct hf_target *t, const struct tmap *m)
{
    int64_t n = t->q.config.n_heads;
    struct arena *scratch = arena_new(0);
    int64_t *order = tmap_permute_transposed(scratch, n, 3);
    const struct tmap *to = tmap_permute(t->arena, m, m->len / (uint64_t)(3 * n), order);

    arena_free(scratch);
    return to;
}

static int add_exported_tensor(struct hf_target *t, const struct param_row *r, int block, int layer, struct err *e)
{
    struct hf_tensor *to = &t->tensor[t->n_tensors++];
    char *name = hf_param_name(r, layer), *hf = hf_name(t->q.config.arch, r, block, !t->q.bare_names);
    const struct param *p = source_param(t->src, name);
    enum hf_arch arch = t->q.config.arch;
    bool flip = hf_is_transposed(arch, r);
    int rc = -1;

    if (!p) {
        err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s is missing, but the model requires it", name);
        goto out;
    }
    if (check_exported_shape(t, r, p, e) < 0)
        goto out;
    *to = (struct hf_tensor){ .name = arena_fmt(t->arena, "%s", hf), .row = r, .param = (int)(p - t->src->param),
                              .transposed = flip, .ndim = r->ndim, .dtype = t->q.config.dtype };
    to->map = choose_state(t, p, &to->state);
    if (!to->map || plan_op_of(to->map->dtype, t->q.config.dtype) < 0) {
        err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: %s", p->name,
                 to->map ? "is of no floating dtype" : "has no weights");
        goto out;
    }
    if (r->hf[arch].change == HF_QKV_ROWS || r->hf[arch].change == HF_QKV_TRANSPOSE) {
        if (to->map->op != TMAP_CONCAT) {
            err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: is not cut by rows, as query, key and value are",
                     p->name);
            goto out;
        }
        to->map = reorder_rows(t, to->map);
    }
    for (int d = 0; d < r->ndim; d++) {
        to->shape[d] = p->shape[flip ? r->ndim - 1 - d : d];
        if (r->dims[d] == 'V' && t->q.vocab)
            to->shape[d] = t->q.vocab;
    }
    to->len = (uint64_t)shape_bytes(r->ndim, to->shape, t->q.config.dtype);
    t->tensor_bytes += to->len;
    rc = 0;
out:
    free(name);
    free(hf);
    return rc;
}

static int add_exported_place(struct hf_target *t, enum param_place place, int block, int layer, struct err *e)
{
    for (int r = 0; r < ROLE_N; r++)
        if (param_row(r)->place == place && param_row(r)->hf[t->q.config.arch].name &&
            add_exported_tensor(t, param_row(r), block, layer, e) < 0)
            return -1;
    return 0;
}

static int add_exported_tensors(struct hf_target *t, struct err *e)
{
    struct layers l;
    int rc = find_exported_layers(t, &l, e);

    t->tensor = arena_alloc(t->arena, (size_t)ROLE_N * (size_t)(l.n + 2) * sizeof *t->tensor);
    if (rc == 0)
        rc = add_exported_place(t, PLACE_EMBEDDING, -1, -1, e);
    for (int k = 0; k < l.n && rc == 0; k++)
        rc = add_exported_place(t, PLACE_BLOCK, k, l.number[k], e);
    if (rc == 0)
        rc = add_exported_place(t, PLACE_FINAL, -1, l.final, e);
    free(l.number);
    if (rc == 0 && t->n_tensors != t->src->n_params) {
        err_data(e, t->src->path, ERR_NO_BYTE, "the checkpoint has %d parameters, but the model has %d",
                 t->src->n_params, t->n_tensors);
        rc = -1;
    }
    return rc;
}

/* ---- a model of any family ---- */

/*
 * Returns the type in which a parameter is written. Buffers, integers and booleans keep their type. Returns DTYPE_N for
 * numbers that must be converted but cannot be.
 */
static enum dtype named_dtype(const struct hf_target *t, const struct param *p, const struct tmap *m)
{
    if (t->q.as_is)
        return m->dtype;
    for (int i = 0; i < t->src->n_values; i++)
        if (t->src->value[i].buffer && strcmp(t->src->value[i].name, p->name) == 0)
            return m->dtype;
    if (m->dtype == t->q.config.dtype || plan_op_of(m->dtype, t->q.config.dtype) >= 0)
        return t->q.config.dtype;
    return dtype_is_weight(m->dtype) || dtype_is_complex(m->dtype) ? DTYPE_N : m->dtype;
}

static int add_named_tensor(struct hf_target *t, int param, struct err *e)
{
    const struct param *p = &t->src->param[param];
    struct hf_tensor *to = &t->tensor[t->n_tensors++];

    *to = (struct hf_tensor){ .name = p->name, .param = param, .ndim = p->ndim,
                              .transposed = t->q.transposed && t->q.transposed[param] &&
                                            (p->ndim == 2 || p->ndim == 3) };
    memcpy(to->shape, p->shape, sizeof to->shape);
    if (to->transposed) {               /* of a tensor of three dimensions, each matrix */
        to->shape[p->ndim - 2] = p->shape[p->ndim - 1];
        to->shape[p->ndim - 1] = p->shape[p->ndim - 2];
    }
    to->map = choose_state(t, p, &to->state);
    if (!to->map) {
        err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: has no weights", p->name);
        return -1;
    }
    to->dtype = named_dtype(t, p, to->map);
    if (to->dtype == DTYPE_N) {
        err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s has type %s, which cannot be converted to %s; without "
                                               "--dtype tensors keep their types",
                 p->name, dtype_name(to->map->dtype), dtype_name(t->q.config.dtype));
        return -1;
    }
    if (t->q.format != HF_BIN && !safetensors_has(to->dtype)) {
        err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s has type %s, which safetensors cannot store; use "
                                               "export-hf --format bin", p->name, dtype_name(to->dtype));
        return -1;
    }
    to->len = tmap_bytes_as(to->map, to->dtype);
    t->tensor_bytes += to->len;
    return 0;
}

/*
 * Add all parameters. A head that shares the embedding's tensor is left out, as in Transformers, because config.json
 * ties the two. For other shared tensors it is not known which name Transformers expects, so all names are written.
 */
static int add_named_tensors(struct hf_target *t, struct report *notes, struct err *e)
{
    int n_shared = 0;

    t->tensor = arena_alloc(t->arena, ((size_t)t->src->n_params + 1) * sizeof *t->tensor);
    for (int i = 0; i < t->src->n_params; i++) {
        bool left_out = t->src->param[i].shared_with && hf_is_head(t->src->param[i].name);

        n_shared += left_out;
        if (!left_out && add_named_tensor(t, i, e) < 0)
            return -1;
    }
    if (n_shared)
        report_add(notes, SEV_NOTE, "shared", NULL, ERR_NO_BYTE, NULL,
                   "%d second names of tied weights were omitted", n_shared);
    if (!t->q.config_json)
        report_add(notes, SEV_WARNING, "config", NULL, ERR_NO_BYTE, NULL,
                   "no config.json is written; --config FILE copies that of the model");
    return 0;
}

/* ---- files ---- */

/*
 * Assign each tensor to a file, so that no file exceeds the size limit. Files are numbered in the order in which they
 * become full.
 */
static void share_by_size(struct hf_target *t)
{
    uint64_t open_bytes = 0;
    int *open = xmalloc((size_t)t->n_tensors * sizeof *open), n_open = 0;

    for (int i = 0; i <= t->n_tensors; i++) {
        bool end = i == t->n_tensors;
        uint64_t len = end ? 0 : t->tensor[i].len;

        if (!end && len > t->q.max_shard_bytes) {
            /* a file of its own; its number is lower than that of the file that is not full yet */
            t->tensor[i].file = t->n_files++;
            continue;
        }
        if (n_open && (end || open_bytes + len > t->q.max_shard_bytes)) {
            for (int k = 0; k < n_open; k++)
                t->tensor[open[k]].file = t->n_files;
            t->n_files++;
            n_open = 0;
            open_bytes = 0;
        }
        if (!end)
            open[n_open++] = i;
        open_bytes += len;
    }
    free(open);
}

static void share_by_layer(struct hf_target *t)
{
    int block = 0;
    const struct param_row *first = NULL;

    for (int i = 0; i < t->n_tensors; i++) {
        const struct param_row *r = t->tensor[i].row;

        if (r->place == PLACE_BLOCK && !first)
            first = r;
        block += r == first;
        t->tensor[i].file = r->place == PLACE_EMBEDDING ? 0 : r->place == PLACE_BLOCK ? block : block + 1;
    }
    t->n_files = block + 2;
}

static void name_files(struct hf_target *t)
{
    bool bin = t->q.format == HF_BIN;
    const char *base = bin ? "pytorch_model" : "model", *end = bin ? "bin" : "safetensors";

    t->file = arena_alloc(t->arena, (size_t)t->n_files * sizeof *t->file);
    for (int i = 0; i < t->n_files; i++)
        t->file[i].name = t->n_files == 1 ? arena_fmt(t->arena, "%s.%s", base, end)
                        : arena_fmt(t->arena, "%s%c%05d-of-%05d.%s", base, t->q.per_layer ? '_' : '-', i + 1,
                                    t->n_files, end);
}

/* List the pieces of a folder whose tensors are not cut: each tensor is one piece. */
static void list_whole_pieces(struct hf_target *t)
{
    int *next = xcalloc((size_t)t->n_files + 1, sizeof *next);

    t->n_pieces = t->n_tensors;
    t->piece = arena_alloc(t->arena, ((size_t)t->n_pieces + 1) * sizeof *t->piece);
    for (int i = 0; i < t->n_tensors; i++)
        t->file[t->tensor[i].file].n++;
    for (int i = 0, first = 0; i < t->n_files; first += t->file[i++].n)
        next[i] = t->file[i].first = first;
    for (int i = 0; i < t->n_tensors; i++) {
        const struct hf_tensor *x = &t->tensor[i];

        t->piece[next[x->file]++] = (struct hf_piece){ .of = x, .file = x->file, .rows = x->ndim ? x->shape[0] : 1,
                                                       .len = x->len };
    }
    free(next);
}

const char *hf_index_name(const struct hf_target *t)
{
    if (t->n_files == 1 || t->form)
        return NULL;
    return t->q.format == HF_BIN ? "pytorch_model.bin.index.json" : "model.safetensors.index.json";
}

/* ---- the target ---- */

static int resolve_exported_vocab(struct hf_target *t, struct report *notes, struct err *e)
{
    const struct param *p = source_param(t->src, param_embedding_name(ROLE_WORD));
    int64_t rows = p ? p->shape[0] : 0;

    if (t->q.vocab > rows) {
        err_usage(e, "the embedding has %lld rows, fewer than the %lld requested",
                  (long long)rows, (long long)t->q.vocab);
        return -1;
    }
    t->q.config.vocab = t->q.vocab ? t->q.vocab : rows;
    for (int i = 0; i < HF_TOKENS; i++)
        if (t->q.config.token[i] >= t->q.config.vocab) {
            report_add(notes, SEV_WARNING, "token", NULL, ERR_NO_BYTE, NULL,
                       "token id %lld is not below vocab_size %lld, so it is omitted from config.json",
                       (long long)t->q.config.token[i], (long long)t->q.config.vocab);
            t->q.config.token[i] = -1;
        }
    if (t->q.tokenizer && t->q.tokenizer->largest_id >= t->q.config.vocab)
        report_add(notes, SEV_WARNING, "token", NULL, ERR_NO_BYTE, NULL,
                   "the tokenizer has id %lld, but vocab_size is %lld",
                   (long long)t->q.tokenizer->largest_id, (long long)t->q.config.vocab);
    return 0;
}

/* ---- config.json ---- */

/*
 * Returns the type that most bytes of the tensors have. Only fp32, fp16 and bf16 count. Returns DTYPE_N if no tensor
 * has one of these types.
 */
static enum dtype dtype_of_most(const struct hf_target *t)
{
    static const enum dtype types[] = { DTYPE_F32, DTYPE_F16, DTYPE_BF16 };
    enum dtype most = DTYPE_N;
    uint64_t most_bytes = 0;

    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        uint64_t bytes = 0;

        for (int i = 0; i < t->n_tensors; i++)
            bytes += t->tensor[i].dtype == types[k] ? t->tensor[i].len : 0;
        if (bytes > most_bytes) {
            most_bytes = bytes;
            most = types[k];
        }
    }
    return most;
}

/*
 * Set the dtype in config.json to the type that most bytes of the tensors have. The dtype of a quantized model is left
 * unchanged, because such a model does not compute in the type of its stored weights.
 */
static void set_dtype(const struct hf_target *t, json_t *config)
{
    const char *key = json_object_get(config, "dtype") ? "dtype" : "torch_dtype";
    const enum dtype most = dtype_of_most(t);

    if (most != DTYPE_N && json_object_get(config, key) && !json_object_get(t->q.override, key) &&
        !json_object_get(config, "quantization_config"))
        json_object_set_new(config, key, json_string(hf_dtype_word(most)));
}

json_t *hf_target_config(const struct hf_target *t)
{
    json_t *own = t->q.named && t->q.config_json ? json_deep_copy(t->q.config_json) : NULL;

    if (own && t->q.override)
        json_object_update(own, (json_t *)t->q.override);
    if (own)
        set_dtype(t, own);
    return own;
}

static void report_exported_states(const struct hf_target *t, struct report *notes)
{
    int n_masters = 0, n_converted = 0;
    enum dtype from = DTYPE_F32;

    for (int i = 0; i < t->n_tensors; i++) {
        const struct hf_tensor *x = &t->tensor[i];
        bool converted = x->state == STATE_BF16 && x->map->dtype != x->dtype;

        n_masters += x->state == STATE_FP32;
        n_converted += converted;
        from = converted ? x->map->dtype : from;
    }
    report_add(notes, SEV_NOTE, "state", NULL, ERR_NO_BYTE, NULL, "%d tensors from fp32 masters, %d from weights",
               n_masters, t->n_tensors - n_masters);
    if (n_converted)
        report_add(notes, SEV_WARNING, "state", NULL, ERR_NO_BYTE, NULL,
                   "IN has no fp32 masters, so %d tensors are converted from the %s weights", n_converted,
                   dtype_name(from));
}

struct hf_target *hf_target_new(const struct source *s, const struct hf_request *q, struct report *notes, struct err *e)
{
    struct hf_target *t = xcalloc(1, sizeof *t);

    t->arena = arena_new(0);
    t->src = s;
    t->q = *q;
    if (q->format == HF_BIN && source_in_torch(s, e) < 0)
        goto failed;
    if (q->named ? add_named_tensors(t, notes, e) < 0
                 : resolve_exported_vocab(t, notes, e) < 0 || add_exported_tensors(t, e) < 0)
        goto failed;
    if (q->per_layer)
        share_by_layer(t);
    else
        share_by_size(t);
    name_files(t);
    list_whole_pieces(t);
    report_exported_states(t, notes);
    return t;
failed:
    hf_target_free(t);
    return NULL;
}

void hf_target_free(struct hf_target *t)
{
    if (!t)
        return;
    arena_free(t->arena);
    free(t);
}
