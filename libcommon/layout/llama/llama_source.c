/*
 * llama_source.c - open a folder of .pth files by the rules of its form
 */
#include "libcommon/layout/llama/llama.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/archive.h"
#include "libcommon/layout/engine/tile_join.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"

/*
 * Limits for sizes in settings, for the runs of a part that is not contiguous, and for missing files that are reported
 * by name.
 */
enum { SIZE_MOST = 1 << 28, RUNS_MAX = 1 << 20, MISSING_NAMED = 16 };

static const char head_name[] = "lm_head.weight";

/* ---- files ---- */

/* Returns true if the file is known to accompany the weights, such as settings and tokenizers. */
static bool is_named_file(const struct llama *x, const char *name)
{
    static const char *const known[] = { MANIFEST_NAME, DS_REPAIR_LOG_NAME, "checklist.chk", "tokenizer.model",
                                         "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                         "generation_config.json", "config.json", "hyperparameters.yaml", "README.md",
                                         "LICENSE" };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], name) == 0)
            return true;
    return strcmp(name, x->form->settings) == 0;
}

static void list_llama_files(struct llama *x)
{
    struct source *s = x->s;

    s->file = arena_alloc(s->arena, ((size_t)x->l->n + 1) * sizeof *s->file);
    for (int i = 0; i < x->l->n; i++) {
        const int rank = x->form->rank_of(x->l->member[i].name);

        x->n_ranks = rank >= x->n_ranks ? rank + 1 : x->n_ranks;
    }
    x->file = arena_alloc(s->arena, ((size_t)x->n_ranks + 1) * sizeof *x->file);
    memset(x->file, -1, (size_t)x->n_ranks * sizeof *x->file);
    for (int i = 0; i < x->l->n; i++) {
        const struct archive_member *m = &x->l->member[i];
        const int rank = x->form->rank_of(m->name);

        if (rank < 0 && !is_named_file(x, m->name))
            continue;
        if (rank >= 0)
            x->file[rank] = s->n_files;
        s->file[s->n_files++] =
            (struct source_file){ .name = arena_fmt(s->arena, "%s", m->name), .file = m->file,
                                  .cls = rank >= 0 ? FILE_WEIGHTS : FILE_OTHER, .pp = -1, .tp = rank, .dp = -1,
                                  .layer = -1 };
    }
}

static const struct pt *rank_pt(const struct llama *x, int rank)
{
    return x->file[rank] < 0 ? NULL : x->s->file[x->file[rank]].pt;
}

static void report_missing_rank(const struct llama *x, int rank)
{
    report_add(x->r, SEV_ERROR, "missing_file", x->s->path, ERR_NO_BYTE, NULL, "consolidated.%02d.pth is missing",
               rank);
}

/*
 * Report the file of rank `rank` if torch saved it under the name of another rank. The archive in the file contains
 * that name.
 */
static void check_saved_name(const struct llama *x, int rank)
{
    char *name = str_fmt("%s.pth", pt_prefix(rank_pt(x, rank)));
    const int saved = x->form->rank_of(name);

    if (saved >= 0 && saved != rank)
        report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "other_rank", pt_path(rank_pt(x, rank)),
                   ERR_NO_BYTE, NULL, "was saved as %s: it is that rank's file under another name", name);
    free(name);
}

static void skip_read(const struct pt_files_job *j)
{
    (void)j;
}

/* Open the files of all ranks. If a file is missing or cannot be opened, reports this and returns false. */
static bool open_llama_files(struct llama *x)
{
    struct pt_files o = { .s = x->s, .r = x->r, .threads = x->o->threads, .ctx = x, .read = skip_read };
    bool all = true;

    for (int i = 0; i < x->n_ranks; i++)
        if (x->file[i] < 0)
            report_missing_rank(x, i);
    pt_files_keep(&o, x->file, x->n_ranks);
    for (int i = 0; i < x->n_ranks; i++)
        if (rank_pt(x, i))
            check_saved_name(x, i);
        else
            all = false;
    return all;
}

/* ---- settings ---- */

int llama_refuse_settings(const struct llama *x, struct err *e, const char *why)
{
    err_data(e, x->settings_path, ERR_NO_BYTE, "%s", why);
    return -1;
}

int llama_set_sizes(struct llama *x, struct err *e)
{
    struct llama_sizes *z = &x->sizes;

    if (z->lanes < 1 && z->heads > 0 && z->hidden % z->heads == 0)
        z->lanes = z->hidden / z->heads;
    if (z->hidden < 1 || z->layers < 1 || z->heads < 1 || z->groups < 1 || z->lanes < 1 || z->lanes % 2 != 0 ||
        z->heads % z->groups != 0 || z->hidden > SIZE_MOST || z->heads > SIZE_MOST || z->lanes > SIZE_MOST ||
        z->layers > SIZE_MOST || z->vocab > SIZE_MOST || z->ffn > SIZE_MOST) {
        err_data(e, x->settings_path, ERR_NO_BYTE, "the hidden size (%" PRId64 "), layers (%" PRId64 "), heads (%"
                 PRId64 "), heads of keys (%" PRId64 ") and head size (%" PRId64 ") in it describe no valid model",
                 z->hidden, z->layers, z->heads, z->groups, z->lanes);
        return -1;
    }
    json_object_update_new(x->config, json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:b, s:b, s:b}", "torch_dtype",
                                                "float32", "hidden_size", z->hidden,
                                                "num_hidden_layers", z->layers, "num_attention_heads", z->heads,
                                                "num_key_value_heads", z->groups, "hidden_act", "silu", "mlp_bias", 0,
                                                "attention_bias", 0, "tie_word_embeddings", 0));
    if (z->lanes * z->heads != z->hidden)
        json_object_set_new(x->config, "head_dim", json_integer(z->lanes));
    return 0;
}

static int read_llama_settings(struct llama *x, struct err *e)
{
    enum { MOST = 1 << 20 };
    const struct source_file *f = source_file(x->s, x->form->settings);
    const uint64_t size = f ? files_size(x->s->files, f->file) : 0;
    char *text;
    int rc;

    if (!f) {
        err_data(e, x->s->path, ERR_NO_BYTE, "%s is missing, which states the numbers of layers and heads",
                 x->form->settings);
        return -1;
    }
    x->settings_path = files_name(x->s->files, f->file);
    if (size > MOST)
        return llama_refuse_settings(x, e, "has more than 1 MiB, so it is no list of settings");
    text = xcalloc(1, size + 1);
    rc = files_read(x->s->files, f->file, 0, text, size, e);
    if (rc == 0 && strlen(text) != size)
        rc = llama_refuse_settings(x, e, "is no text");
    if (rc == 0)
        rc = x->form->read_settings(x, text, e);
    free(text);
    return rc;
}

/* ---- tensors ---- */

/* A tensor of the files: its rule, the digits of the layer number in its name, and its part on each rank. */
struct llama_tensor {
    const char *name;
    const struct llama_rule *rule;
    const char *layer;
    int layer_digits;
    struct pt_tensor *part;             /* [n_ranks] */
};

/*
 * Returns true if the name matches the pattern, in which '*' stands for a number. Sets *at to the position of this
 * number, and *digits to its length.
 */
static bool fits_pattern(const char *pattern, const char *name, const char **at, int *digits)
{
    const char *star = strchr(pattern, '*');
    const size_t n = star ? (size_t)(star - pattern) : 0;

    *at = name;
    *digits = 0;
    if (!star)
        return strcmp(pattern, name) == 0;
    if (strncmp(pattern, name, n) != 0)
        return false;
    *at = name + n;
    *digits = (int)strspn(*at, "0123456789");
    return *digits > 0 && *digits <= 6 && strcmp(*at + *digits, star + 1) == 0;
}

static const struct llama_rule *find_llama_rule(const struct llama *x, const char *name, struct llama_tensor *t)
{
    for (int i = 0; i < x->form->n_rules; i++)
        if (fits_pattern(x->form->rule[i].from, name, &t->layer, &t->layer_digits))
            return &x->form->rule[i];
    return NULL;
}

/* Returns the name of part k of the tensor in Transformers. */
static const char *name_in_transformers(const struct llama *x, const struct llama_tensor *t, int k)
{
    const char *to = t->rule->to[k], *star = strchr(to, '*');

    return star ? arena_fmt(x->s->arena, "%.*s%.*s%s", (int)(star - to), to, t->layer_digits, t->layer, star + 1) : to;
}

/* Returns the dimension in which ranks cut the tensor, or -1 if each rank has the whole tensor. */
static int cut_dimension(const struct llama *x, const struct llama_tensor *t)
{
    const struct pt_tensor *p = &t->part[0];

    if (x->n_ranks == 1 || t->rule->cut == LLAMA_WHOLE)
        return -1;
    if (t->rule->cut == LLAMA_COLUMNS)
        return 1;
    return t->rule->cut == LLAMA_EMBEDDING && p->shape[1] != x->sizes.hidden ? 1 : 0;
}

/* Check the parts of all ranks. Returns NULL, or the reason why the parts do not form a tensor. */
static const char *check_llama_parts(const struct llama *x, const struct llama_tensor *t)
{
    const struct pt_tensor *p = t->part;

    for (int i = 1; i < x->n_ranks; i++)
        if (p[i].dtype != p[0].dtype || !shape_equal(p[i].ndim, p[i].shape, p[0].ndim, p[0].shape))
            return arena_fmt(x->s->arena, "ranks 0 and %d have it with different shapes or types", i);
    if (!dtype_is_weight(p[0].dtype))
        return "its elements are no floating-point numbers, as weights are";
    if (p[0].ndim != 1 && p[0].ndim != 2)
        return "it has neither one nor two dimensions";
    if (p[0].ndim == 1 && (t->rule->cut == LLAMA_COLUMNS || t->rule->cut == LLAMA_EMBEDDING))
        return "it has one dimension instead of two";
    if (p[0].n_elems == 0)
        return "it has no elements";
    if (t->rule->turned && p[0].shape[0] % x->sizes.lanes != 0)
        return arena_fmt(x->s->arena, "its %" PRId64 " rows are not whole heads of %" PRId64, p[0].shape[0],
                         x->sizes.lanes);
    return NULL;
}

/* Returns rows [from, from + n) of t, in the order that these rows have in Transformers. */
static struct pt_tensor view_of_rows(const struct llama *x, const struct pt_tensor *t, int64_t from, int64_t n,
                                     bool turned)
{
    const int64_t lanes = x->sizes.lanes, cols = t->ndim > 1 ? t->shape[1] : 1;
    struct pt_tensor v = *t;

    v.at += (uint64_t)(from * t->stride[0]) * (uint64_t)dtype_size(t->dtype);
    v.shape[0] = n;
    v.n_elems = n * cols;
    if (turned) {
        v.ndim = 4;
        memcpy(v.shape, (int64_t[]){ n / lanes, 2, lanes / 2, cols }, 4 * sizeof *v.shape);
        memcpy(v.stride, (int64_t[]){ lanes * t->stride[0], t->stride[0], 2 * t->stride[0],
                                      t->ndim > 1 ? t->stride[1] : 1 }, 4 * sizeof *v.stride);
        v.contiguous = false;
    }
    return v;
}

/* Rows [from, from + n) of each rank's part. */
struct llama_rows {
    int64_t from, n;
};

/* Make the map of these rows, joined from all ranks. Returns NULL with the reason in *why if that fails. */
static struct tmap *join_rows(const struct llama *x, const struct llama_tensor *t, struct llama_rows rows,
                              int64_t shape[TENSOR_MAX_DIM], const char **why)
{
    const struct pt_tensor *first = &t->part[0];
    struct tile_part *p = xcalloc((size_t)x->n_ranks, sizeof *p);
    const int dim = cut_dimension(x, t);
    struct tmap *map = NULL;

    memcpy(shape, first->shape, TENSOR_MAX_DIM * sizeof *shape);
    shape[0] = rows.n;
    if (dim >= 0)
        shape[dim] *= x->n_ranks;
    if (shape_bytes(first->ndim, shape, first->dtype) < 0)
        *why = "its shape is of more bytes than any memory holds";
    for (int i = 0; i < x->n_ranks && !*why; i++) {
        const struct pt_tensor v = view_of_rows(x, &t->part[i], rows.from, rows.n, t->rule->turned);

        p[i] = (struct tile_part){ .ndim = first->ndim, .rank = i };
        memcpy(p[i].len, first->shape, sizeof p[i].len);
        p[i].len[0] = rows.n;
        if (dim >= 0)
            p[i].at[dim] = i * p[i].len[dim];
        p[i].extent = tile_runs(x->s->arena, &v, RUNS_MAX, &p[i].n_extents);
        if (!p[i].extent)
            *why = "its elements are scattered over its storage";
    }
    if (!*why)
        map = tile_join(x->s->arena, &(struct tile_tensor){ first->dtype, first->ndim, shape }, p, x->n_ranks, why);
    free(p);
    return map;
}

/* The model that is being read. */
struct llama_reader {
    struct llama *x;
    const struct pk *model0;
    struct names *known;                /* name in Transformers -> index of the parameter */
    struct names *places;               /* maps the place of rank 0's tensor in a storage to the parameter's index */
};

/* Report that a tensor cannot be read. If there is a rule for the tensor, its name in Transformers is reported. */
static void refuse_tensor(const struct llama *x, const struct llama_tensor *t, const char *why)
{
    const struct source_spot spot = { x->s->path, ERR_NO_BYTE };

    if (!t->rule || !t->rule->to[0])
        source_add_unread(x->s, x->o, x->r, spot, t->name, why);
    for (int k = 0; t->rule && k < 3 && t->rule->to[k]; k++)
        source_add_unread(x->s, x->o, x->r, spot, name_in_transformers(x, t, k),
                          arena_fmt(x->s->arena, "%s: %s", t->name, why));
}

static void add_llama_param(const struct llama_reader *d, const struct llama_tensor *t, int k, struct llama_rows rows)
{
    const struct llama *x = d->x;
    struct source *s = x->s;
    const char *name = name_in_transformers(x, t, k), *why = NULL, *place;
    int64_t shape[TENSOR_MAX_DIM];
    struct tmap *map = join_rows(x, t, rows, shape, &why);
    struct param *p;
    int same;

    if (!why && names_find(d->known, name) >= 0)
        why = arena_fmt(s->arena, "another tensor is %s, too", name);
    if (why) {
        refuse_tensor(x, t, why);
        return;
    }
    place = arena_fmt(s->arena, "%d+%" PRIu64 "+%" PRId64, t->part[0].record, t->part[0].at, rows.from);
    same = names_find(d->places, place);
    names_add(d->known, name, s->n_params);
    names_add(d->places, place, s->n_params);
    p = &s->param[s->n_params++];
    *p = (struct param){ .name = name, .ndim = t->part[0].ndim, .merge = MERGE_REPLICATED, .stage = -1, .group = -1 };
    if (same >= 0 && strcmp(s->param[same].name, head_name) == 0)
        s->param[same].shared_with = name;
    else if (same >= 0)
        p->shared_with = s->param[same].name;
    memcpy(p->shape, shape, sizeof p->shape);
    p->state[map->dtype == DTYPE_F32 || map->dtype == DTYPE_F64 ? STATE_FP32 : STATE_BF16] = map;
}

/* Add what a tensor becomes. */
static void add_llama_tensor(const struct llama_reader *d, const struct llama_tensor *t)
{
    const struct llama *x = d->x;
    const struct llama_sizes *z = &x->sizes;
    const int64_t rows[3] = { z->heads * z->lanes, z->groups * z->lanes, z->groups * z->lanes };
    int64_t from = 0;

    if (!t->rule->to[1]) {
        add_llama_param(d, t, 0, (struct llama_rows){ 0, t->part[0].shape[0] });
        return;
    }
    if (t->part[0].shape[0] != rows[0] + rows[1] + rows[2]) {
        refuse_tensor(x, t,
                      arena_fmt(x->s->arena, "it has %" PRId64 " rows, but by %s there are %" PRId64 " of queries and %"
                                PRId64 " each of keys and values", t->part[0].shape[0], x->form->settings, rows[0],
                                rows[1]));
        return;
    }
    for (int k = 0; k < 3; from += rows[k++])
        add_llama_param(d, t, k, (struct llama_rows){ from, rows[k] });
}

/* Returns the dict of tensors in a file: the root, or the value of its key "model". */
static const struct pk *dict_of_model(const struct pt *pt)
{
    const struct pk *below = pk_get(pt_root(pt), "model");
    uint32_t n;

    return below && pk_pairs(below, &n) ? below : pt_root(pt);
}

static void read_llama_tensor(const struct llama_reader *d, const char *name)
{
    const struct llama *x = d->x;
    struct llama_tensor t = { .name = arena_fmt(x->s->arena, "%s", name) };
    const char *why = NULL;

    t.rule = find_llama_rule(x, t.name, &t);
    t.part = arena_alloc(x->s->arena, (size_t)x->n_ranks * sizeof *t.part);
    for (int i = 0; i < x->n_ranks && !why; i++)
        if (!pt_tensor(rank_pt(x, i), pk_get(dict_of_model(rank_pt(x, i)), name), &t.part[i]))
            why = "it is no tensor that can be read";
    if (!t.rule)
        why = "no rule has this name, so what it is in Transformers is not known";
    else if (!why && !t.rule->to[0]) {
        report_add(x->r, SEV_NOTE, "omitted", x->s->path, ERR_NO_BYTE, t.name,
                   "is omitted: Transformers computes it from rope_theta");
        return;
    }
    if (!why)
        why = check_llama_parts(x, &t);
    if (why)
        refuse_tensor(x, &t, why);
    else
        add_llama_tensor(d, &t);
}

/* Compare the names of a rank with those of rank 0. If the names differ, reports this and returns false. */
static bool has_names_of_first(const struct llama_reader *d, int rank, struct pk **first, uint32_t n)
{
    const struct pk *model = dict_of_model(rank_pt(d->x, rank));
    uint32_t m = 0;
    const char *lacks = NULL;

    pk_pairs(model, &m);
    for (uint32_t i = 0; i < n && !lacks; i++)
        if (!pk_get(model, pk_as_str(first[2 * i])))
            lacks = pk_as_str(first[2 * i]);
    if (!lacks && m == n)
        return true;
    report_add(d->x->r, SEV_ERROR, "names", pt_path(rank_pt(d->x, rank)), ERR_NO_BYTE, lacks,
               lacks ? "is missing, but rank 0 has it: the files are of different models, or one is damaged"
                     : "lists tensors that rank 0 lacks: the files are of different models, or one is damaged");
    return false;
}

/*
 * Compare the number of files with the number of ranks among which the heads were divided. If they differ, reports this
 * and returns false.
 */
static bool check_number_of_ranks(const struct llama_reader *d)
{
    const struct llama *x = d->x;
    const int64_t rows = x->sizes.heads * x->sizes.lanes;
    struct pt_tensor t;

    if (!pt_tensor(rank_pt(x, 0), pk_get(d->model0, "layers.0.attention.wq.weight"), &t) || t.ndim != 2 ||
        t.shape[0] < 1 || t.shape[0] * x->n_ranks == rows)
        return true;
    report_add(x->r, SEV_ERROR, "ranks", x->s->path, ERR_NO_BYTE, "layers.0.attention.wq.weight",
               "has %" PRId64 " rows on each of %d rank%s, but by %s there are %" PRId64 " in all%s", t.shape[0],
               x->n_ranks, x->n_ranks == 1 ? "" : "s", x->form->settings, rows,
               rows % t.shape[0] == 0 && rows / t.shape[0] > x->n_ranks ? ": files are missing" : "");
    return false;
}

static void read_llama_model(struct llama *x)
{
    struct source *s = x->s;
    struct llama_reader d = { .x = x, .model0 = dict_of_model(rank_pt(x, 0)), .known = names_new(s->arena),
                              .places = names_new(s->arena) };
    uint32_t n = 0;
    struct pk **pair = pk_pairs(d.model0, &n);
    bool whole = pair != NULL;

    for (uint32_t i = 0; i < n && whole; i++)
        whole = pk_as_str(pair[2 * i]) != NULL;
    if (!whole) {
        report_add(x->r, SEV_ERROR, "unread", pt_path(rank_pt(x, 0)), ERR_NO_BYTE, NULL,
                   "is no dict of tensors by name");
        return;
    }
    for (int i = 1; i < x->n_ranks; i++)
        whole = has_names_of_first(&d, i, pair, n) && whole;
    if (!whole || !check_number_of_ranks(&d))
        return;
    s->param = arena_alloc(s->arena, ((size_t)n * 3 + 1) * sizeof *s->param);
    for (uint32_t i = 0; i < n; i++)
        read_llama_tensor(&d, pk_as_str(pair[2 * i]));
}

/* Report a tensor that a layer has although the settings exclude it, or lacks although they require it. */
static void check_stated(const struct llama *x, bool stated, const char *end, const char *setting)
{
    for (int64_t i = 0; i < x->sizes.layers && i < x->s->n_params; i++) {
        const char *name = arena_fmt(x->s->arena, "model.layers.%" PRId64 ".self_attn.%s", i, end);

        if ((source_param(x->s, name) != NULL) == stated)
            continue;
        report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "config", x->settings_path, ERR_NO_BYTE,
                   name, stated ? "is missing, but %s is true" : "is in the files, but %s is not true", setting);
        return;
    }
}

/* Make the config.json of the source. It includes the sizes that only the tensors show. */
static void set_llama_config(struct llama *x)
{
    struct source *s = x->s;
    const struct param *table = source_param(s, "model.embed_tokens.weight");
    const struct param *up = source_param(s, "model.layers.0.mlp.up_proj.weight");
    const struct param *head = source_param(s, head_name);
    const int64_t vocab = x->sizes.vocab > 0 ? x->sizes.vocab : table ? table->shape[0] : -1;
    const int64_t ffn = x->sizes.ffn > 0 ? x->sizes.ffn : up ? up->shape[0] : -1;
    char *text;

    if (vocab > 0)
        json_object_set_new(x->config, "vocab_size", json_integer(vocab));
    if (ffn > 0)
        json_object_set_new(x->config, "intermediate_size", json_integer(ffn));
    if (head && head->shared_with && table && strcmp(head->shared_with, table->name) == 0)
        json_object_set_new(x->config, "tie_word_embeddings", json_true());
    text = json_dumps(x->config, JSON_INDENT(2));
    s->config_json = text ? arena_fmt(s->arena, "%s\n", text) : NULL;
    s->config_of = x->form->settings;
    free(text);
}

int llama_open(struct llama *x, struct err *e)
{
    struct source *s = x->s;
    int rc;

    s->layout = x->form->layout;
    list_llama_files(x);
    x->config = json_object();
    rc = read_llama_settings(x, e);
    if (rc == 0 && open_llama_files(x)) {
        read_llama_model(x);
        snprintf(s->run.torch_dialect, sizeof s->run.torch_dialect, "%s", pt_dialect(rank_pt(x, 0)));
    }
    if (rc == 0) {
        if (s->n_params && s->n_unread == 0) {
            check_stated(x, x->sizes.norms, "q_norm.weight", "norm_qk");
            check_stated(x, x->sizes.norms, "k_norm.weight", "norm_qk");
            check_stated(x, x->sizes.biases, "q_proj.bias", "attn_bias");
        }
        set_llama_config(x);
        rc = x->o->no_tensors ? 0 : manifest_load(s, x->o->no_optimizer, x->r, e);
    }
    json_decref(x->config);
    return rc;
}
