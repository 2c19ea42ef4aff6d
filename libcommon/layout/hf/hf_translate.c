/*
 * hf_translate.c - split the parameters of a trainer's checkpoint into those of Transformers
 */
#include "libcommon/layout/hf/hf_translate.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/unwrap.h"
#include "libcommon/ckpt/experts.h"
#include "libcommon/layout/hf/hf_names.h"
#include "libcommon/plan/tmap_slice.h"

/* Limits of a model. The numbers of layers and experts come from files, so they must be limited. */
enum { LAYERS_MAX = 1 << 16, EXPERTS_MAX = 1 << 16 };

/* A parameter of the Transformers model, which is a piece of the source's parameter `from`. */
struct piece {
    const struct param *from;
    const struct family_rule *rule;
    /* part: index of this piece in the rule; layer: number of the block, counted from 0; -1: in no block */
    int part, layer;
    int expert;                 /* index of the expert, if each expert is a piece; otherwise -1 */
    bool stacked;               /* true if `from` holds all layers, and this piece is one of them */
    int place;                  /* position in the model: -1 before the blocks, 0 in a block, 1 after the blocks */
};

struct translation {
    struct source *s;
    const struct family *f;
    const struct hf_sizes *z;
    struct err *e;
    int n_layers;
    int *number;  /* [blocks]: layer number of block k in the source's names, ascending; NULL if layers are stacked */
    int n, cap;
    struct piece *piece;
    int64_t n_padding;          /* number of padding rows of the vocabulary that are left out */
};

/* ---- config.json ---- */

static int64_t config_integer_or_default(const json_t *config, const char *key, const char *alias, int64_t otherwise)
{
    const json_t *v = json_object_get(config, key);

    v = v && !json_is_null(v) ? v : alias ? json_object_get(config, alias) : NULL;
    return v && json_is_integer(v) ? json_integer_value(v) : otherwise;
}

static json_t *read_folder_json(const struct source *s, const char *name, struct err *e)
{
    enum { MOST = 1 << 24 };
    const char *dir = s->layout->model_folder ? "" : s->layout->config_dir;
    char *path = dir ? str_fmt("%s%s", dir, name) : NULL;
    const struct source_file *f = path ? source_file(s, path) : NULL;
    const uint64_t size = f ? files_size(s->files, f->file) : 0;
    json_t *o = NULL;
    char *text;

    free(path);
    if (!f || size > MOST)
        return NULL;
    text = xmalloc(size + 1);
    if (files_read(s->files, f->file, 0, text, size, e) == 0)
        o = json_loadb(text, size, 0, NULL);
    free(text);
    return o;
}

json_t *hf_config_json(const struct source *s, struct err *e)
{
    return s->config_json ? json_loads(s->config_json, 0, NULL) : read_folder_json(s, "config.json", e);
}

json_t *hf_quant_json(const struct source *s, struct err *e)
{
    return read_folder_json(s, "hf_quant_config.json", e);
}

int hf_sizes_read(const json_t *config, const char *path, struct hf_sizes *z, struct err *e)
{
    int64_t hidden = config_integer_or_default(config, "hidden_size", "n_embd", 0);
    const json_t *tied = json_object_get(config, "tie_word_embeddings");

    z->layers = config_integer_or_default(config, "num_hidden_layers", "n_layer", 0);
    z->heads = config_integer_or_default(config, "num_attention_heads", "n_head", 0);
    z->groups = config_integer_or_default(config, "num_key_value_heads", NULL, z->heads);
    z->lanes = config_integer_or_default(config, "head_dim", NULL, z->heads > 0 ? hidden / z->heads : 0);
    z->vocab = config_integer_or_default(config, "vocab_size", NULL, 0);
    z->tied = json_is_boolean(tied) ? json_is_true(tied) : -1;
    z->experts = experts_count_stated(config);
    if (z->layers >= 1 && z->layers <= LAYERS_MAX && z->heads >= 1 && z->groups >= 1 && z->heads % z->groups == 0 &&
        z->heads <= 1 << 20 && z->lanes >= 1 && z->lanes <= 1 << 20 && z->vocab >= 1)
        return 0;
    err_data(e, path, ERR_NO_BYTE,
             "the layers (%lld), heads (%lld), groups (%lld), head size (%lld) and vocab_size (%lld) in it describe no "
             "valid model", (long long)z->layers, (long long)z->heads, (long long)z->groups,
             (long long)z->lanes, (long long)z->vocab);
    return -1;
}

/* ---- select the parameters ---- */

bool hf_find_rule(const struct family *f, const char *name, struct family_hit *h)
{
    static const char of_answers[] = "transformer.";
    const char *first = family_at(f, 0)->part[0];
    const char *rest = str_starts(name, of_answers) ? name + strlen(of_answers) : name;
    char *full = str_fmt("%.*s.%s", (int)strcspn(first, "."), first, rest);
    bool found = family_find(f, name, h) || (family_find(f, full, h) && !h->in_shards);

    free(full);
    return found;
}

int hf_is_in_shards(const struct source *s, const struct family *f, struct err *e)
{
    const char *in = NULL, *other = NULL;
    struct family_hit h;

    for (int i = 0; i < s->n_params; i++)       /* the second name of a tied weight does not count */
        if (!s->param[i].shared_with)
            *(family_find(f, s->param[i].name, &h) && h.in_shards ? &in : &other) = s->param[i].name;
    if (!in || !other)
        return in != NULL;
    err_data(e, s->path, ERR_NO_BYTE, "parameter %s: the rules of the family %s do not know this name in shards, "
                                      "although they know %s; config.json belongs to another model, or the names are "
                                      "of two kinds%s", other, family_name(f), in,
             s->layout->pipeline_files ? "" : ", which ckpt-edit rename can change");
    return -1;
}

/*
 * Returns the text that precedes a name of the family in one of the source's names, for the first parameter that has
 * such a prefix. Returns NULL if there is none. The text is allocated in the source's arena.
 */
static const char *strange_prefix(const struct source *s, const struct family *f)
{
    struct family_hit h;

    for (int i = 0; i < s->n_params; i++) {
        const char *name = s->param[i].name;

        for (const char *p = strchr(name, '.'); p; p = strchr(p + 1, '.'))
            if (family_find(f, p + 1, &h))
                return arena_strndup(s->arena, name, (size_t)(p + 1 - name));
    }
    return NULL;
}

/*
 * Returns how many of the source's names belong to the family. The head is not counted, because many families share its
 * name.
 */
static int names_known(const struct source *s, const struct family *f, bool unwrapped)
{
    struct family_hit h;
    int n = 0;

    for (int i = 0; i < s->n_params; i++)
        n += !hf_is_head(s->param[i].name) &&
             hf_find_rule(f, unwrapped ? unwrap_name(s->arena, s->param[i].name) : s->param[i].name, &h);
    return n;
}

bool hf_has_names_of(const struct source *s, const struct family *f)
{
    return names_known(s, f, false) > 0;
}

int hf_know_names(struct source *s, const struct family *f, struct report *notes, struct err *e)
{
    const int known = names_known(s, f, false), unwrapped = names_known(s, f, true);
    const char *prefix, *first = NULL;

    for (int i = 0; unwrapped > known && i < s->n_params; i++) {
        const char *name = unwrap_name(s->arena, s->param[i].name);

        if (!first && name != s->param[i].name)
            report_add(notes, SEV_WARNING, "wrapper", s->path, ERR_NO_BYTE, first = s->param[i].name,
                       "prefixes that wrappers of the module have added to names are removed, as in %s", name);
        s->param[i].name = name;
    }
    if (first)
        *s->names = (struct source_names){0};
    if (known || unwrapped || s->n_params == 0)
        return 0;
    if (source_one_model(s, e) < 0)
        return -1;
    prefix = strange_prefix(s, f);
    if (prefix)
        err_data(e, s->path, ERR_NO_BYTE, "parameter %s: config.json names the family %s, which has such names without "
                                          "the prefix '%s'; run ckpt-edit rename '^%s' '' IN OUT", s->param[0].name,
                 family_name(f), prefix, prefix);
    else
        err_data(e, s->path, ERR_NO_BYTE, "parameter %s: config.json names the family %s, which has no such names; "
                                          "config.json belongs to another model, or ckpt-edit rename must change the "
                                          "names",
                 s->param[0].name, family_name(f));
    return -1;
}

static int refuse_translated_param(const struct translation *t, const char *param, const char *why)
{
    err_data(t->e, t->s->path, ERR_NO_BYTE, "parameter %s: %s", param, why);
    return -1;
}

static int find_shard_name_rule(const struct translation *t, const struct param *p, struct family_hit *h)
{
    char *why;
    int rc;

    if (family_find(t->f, p->name, h) && h->in_shards)
        return 0;
    why = str_fmt("the rules of the family %s do not know this name in shards", family_name(t->f));
    rc = refuse_translated_param(t, p->name, why);
    free(why);
    return rc;
}

static int by_translated_layer(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/*
 * Find the number of layers. If layers are stacked, it is the size of the stack. Otherwise the blocks are the layer
 * numbers that occur in the names, in ascending order.
 */
static int find_translated_layers(struct translation *t)
{
    int n = 0, *number = arena_alloc(t->s->arena, ((size_t)t->s->n_params + 1) * sizeof *number);
    int64_t stacked = -1;

    for (int i = 0; i < t->s->n_params; i++) {
        const struct param *p = &t->s->param[i];
        struct family_hit h;

        if (p->shared_with)
            continue;
        if (find_shard_name_rule(t, p, &h) < 0)
            return -1;
        if (h.stacked && (p->ndim < 2 || (stacked >= 0 && p->shape[0] != stacked)))
            return refuse_translated_param(t, p->name,
                                           "the number of layers stacked in it differs from that of others");
        if (h.stacked)
            stacked = p->shape[0];
        else if (family_place(t->f, h.rule) == 0)
            number[n++] = h.layer;
    }
    if (n && stacked >= 0)
        return refuse_translated_param(t, t->s->param[0].name, "some layers are stacked, some are not");
    if (n)
        qsort(number, (size_t)n, sizeof *number, by_translated_layer);
    for (int i = 0; i < n; i++)
        if (i == 0 || number[i] != number[i - 1])
            number[t->n_layers++] = number[i];
    t->number = stacked >= 0 ? NULL : number;
    t->n_layers = stacked >= 0 ? (int)(stacked <= LAYERS_MAX ? stacked : 0) : t->n_layers;
    if (t->n_layers == t->z->layers)
        return 0;
    err_data(t->e, t->s->path, ERR_NO_BYTE, "the checkpoint has %d layers, but config.json has %lld", t->n_layers,
             (long long)t->z->layers);
    return -1;
}

static int block_of(const struct translation *t, const struct family_hit *h)
{
    const int *at;

    if (family_place(t->f, h->rule) != 0)
        return -1;
    at = bsearch(&h->layer, t->number, (size_t)t->n_layers, sizeof *at, by_translated_layer);
    return (int)(at - t->number);
}

/*
 * Add the pieces of parameter x.from: one per part, and if the rule has one parameter per expert, one per part and
 * expert.
 */
static int add_pieces(struct translation *t, struct piece x)
{
    const int axis = x.stacked;
    const int64_t n = x.rule->experts && x.from->ndim > axis ? x.from->shape[axis] : 0;

    if (x.rule->experts && (n < 1 || n > EXPERTS_MAX || (t->z->experts > 0 && n != t->z->experts))) {
        err_data(t->e, t->s->path, ERR_NO_BYTE, "parameter %s: has %lld experts, but config.json has %lld",
                 x.from->name, (long long)n, (long long)t->z->experts);
        return -1;
    }
    for (int64_t expert = 0; expert < (x.rule->each_expert ? n : 1); expert++)
        for (x.part = 0; x.part < x.rule->n_parts; x.part++) {
            x.expert = x.rule->each_expert ? (int)expert : -1;
            ARRAY_ROOM(t->piece, t->cap, t->n + 1);
            t->piece[t->n++] = x;
        }
    return 0;
}

/*
 * Compare two pieces by position in the model: parameters before the first block, the blocks, parameters after the last
 * block.
 */
static int by_piece_place(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;

    if (x->place != y->place)
        return x->place - y->place;
    if (x->layer != y->layer)
        return x->layer - y->layer;
    if (x->rule != y->rule)
        return x->rule->line - y->rule->line;
    return x->expert != y->expert ? x->expert - y->expert : x->part - y->part;
}

static const char *piece_name(const struct translation *t, const struct piece *x)
{
    return family_expert_name(t->s->arena, x->rule->part[x->part], x->layer, x->expert);
}

/* Check that no two pieces have the same name. The pieces are sorted, so equal names are adjacent. */
static int check_pieces_unique(const struct translation *t)
{
    for (int i = 1; i < t->n; i++) {
        const struct piece *x = &t->piece[i - 1], *y = &t->piece[i];

        if (by_piece_place(x, y) == 0) {
            err_data(t->e, t->s->path, ERR_NO_BYTE, "parameters %s and %s both correspond to %s of Transformers",
                     x->from->name,
                     y->from->name, piece_name(t, x));
            return -1;
        }
    }
    return 0;
}

/*
 * Set has_experts[block] to true for each block with a parameter that only layers with experts have. Returns -1 with
 * ERR_DATA if a block also has a parameter that only layers without experts have.
 */
static int find_expert_blocks(const struct translation *t, bool *has_experts)
{
    for (int k = 0; k < t->n; k++)
        if (t->piece[k].rule->moe && t->piece[k].layer >= 0)
            has_experts[t->piece[k].layer] = true;
    for (int k = 0; k < t->n; k++)
        if (t->piece[k].rule->dense && has_experts[t->piece[k].layer])
            return refuse_translated_param(t, t->piece[k].from->name,
                                           "belongs to a layer without experts, but the layer has experts, too");
    return 0;
}

/* Returns true if the rule's parameter belongs to the block. */
static bool is_in_block(const struct family_rule *r, bool has_experts)
{
    return has_experts ? !r->dense : !r->moe;
}

/* Check a rule that matches a parameter in at least one block: it must match one in every block of its kind. */
static int check_rule_in_blocks(const struct translation *t, const struct family_rule *r, const bool *has_experts)
{
    int next = 0;               /* the first block for which no piece has been found yet */
    bool met = false;

    for (int k = 0; k < t->n; k++) {
        if (t->piece[k].rule != r || t->piece[k].part > 0 || t->piece[k].expert > 0)
            continue;
        met = true;
        while (next < t->piece[k].layer && !is_in_block(r, has_experts[next]))
            next++;
        next += t->piece[k].layer == next;
    }
    while (next < t->n_layers && !is_in_block(r, has_experts[next]))
        next++;
    if (!met || next >= t->n_layers)
        return 0;
    return refuse_translated_param(t, family_layer_name(t->s->arena, r->part[0], next),
                                   "this layer has none, others have");
}

static int check_blocks(const struct translation *t)
{
    bool *has_experts = xcalloc((size_t)t->n_layers + 1, sizeof *has_experts);
    int rc = find_expert_blocks(t, has_experts);

    for (int i = 0; i < family_n(t->f) && rc == 0; i++)
        if (family_place(t->f, family_at(t->f, i)) == 0)
            rc = check_rule_in_blocks(t, family_at(t->f, i), has_experts);
    free(has_experts);
    return rc;
}

static int find_pieces(struct translation *t)
{
    int rc = 0;

    for (int i = 0; i < t->s->n_params && rc == 0; i++) {
        const struct param *p = &t->s->param[i];
        struct family_hit h;

        if (p->shared_with || find_shard_name_rule(t, p, &h) < 0)
            continue;
        for (int l = 0; h.stacked && l < t->n_layers && rc == 0; l++)
            rc = add_pieces(t, (struct piece){ p, h.rule, 0, l, -1, true, 0 });
        if (!h.stacked)
            rc = add_pieces(t, (struct piece){ p, h.rule, 0, block_of(t, &h), -1, false, family_place(t->f, h.rule) });
    }
    if (rc == 0 && t->n)
        qsort(t->piece, (size_t)t->n, sizeof *t->piece, by_piece_place);
    return rc < 0 || check_pieces_unique(t) < 0 ? -1 : check_blocks(t);
}

/* ---- elements ---- */

/* Rows [at, at + n) of the source's parameter. */
struct rows { int64_t at, n; };

/* Append the rows of one kind (0: queries, 1: keys, 2: values) of all groups. */
static void add_kind(const struct translation *t, int kind, struct rows *row, int *n)
{
    int64_t q = t->z->heads / t->z->groups, lanes = t->z->lanes;

    for (int64_t g = 0; g < t->z->groups; g++)
        row[(*n)++] = (struct rows){ (g * (q + 2) + (kind ? q + kind - 1 : 0)) * lanes, (kind ? 1 : q) * lanes };
}

/*
 * Returns the number of leading axes of x->from: one for layers if it is stacked, and one for experts if it holds all
 * experts.
 */
static int n_outer_axes(const struct piece *x)
{
    return x->stacked + x->rule->experts;
}

/*
 * Returns the map of the rows that make up a piece. `m` maps a state of x->from. If the piece contains all experts, the
 * map has these rows of each expert.
 */
static struct tmap *cut_rows(struct translation *t, const struct piece *x, const struct tmap *m, const struct rows *row,
                             int n)
{
    const int64_t rows = x->from->shape[n_outer_axes(x)], layers = x->stacked ? x->from->shape[0] : 1;
    const int64_t experts = x->rule->experts ? x->from->shape[x->stacked] : 1;
    const int n_matrices = x->rule->experts && x->expert < 0 ? (int)experts : 1;
    const uint64_t layer = m->len / (uint64_t)layers, matrix = layer / (uint64_t)experts;
    const uint64_t bytes = rows ? matrix / (uint64_t)rows : 0;
    const uint64_t begin = (x->stacked ? (uint64_t)x->layer * layer : 0) +
                           (x->expert > 0 ? (uint64_t)x->expert * matrix : 0);
    struct tmap_part *part = xcalloc((size_t)n_matrices * (size_t)n, sizeof *part);
    struct tmap *to;

    for (int i = 0; i < n_matrices * n; i++)
        part[i] = (struct tmap_part){ m, begin + (uint64_t)(i / n) * matrix + (uint64_t)row[i % n].at * bytes,
                                      (uint64_t)row[i % n].n * bytes };
    if (n == 1 && row[0].n == rows) {
        part[0].len = (uint64_t)n_matrices * matrix;
        to = tmap_parts(t->s->arena, part, 1);
    } else {
        to = tmap_parts(t->s->arena, part, n_matrices * n);
    }
    free(part);
    return to;
}

/* Returns the map of a state of a piece in which, as in Transformers, rows of gate and rows of up alternate. */
static struct tmap *interleave_rows(struct translation *t, const struct piece *x, const struct tmap *m)
{
    const int64_t rows = x->from->shape[n_outer_axes(x)];
    const struct rows gate = { 0, rows / 2 }, up = { rows / 2, rows / 2 };
    const uint64_t n_rows = (uint64_t)(rows * (x->stacked ? x->from->shape[0] : 1) * x->from->shape[x->stacked]);

    return tmap_alternate_rows(t->s->arena, cut_rows(t, x, m, &gate, 1), cut_rows(t, x, m, &up, 1), m->len / n_rows);
}

/*
 * Choose the rows of the source's parameter that make up a piece, in their order. `row` must have room for 3 * groups
 * entries. Returns the number of entries, or -1 if the shape does not fit.
 */
static int choose_piece_rows(struct translation *t, const struct piece *x, struct rows *row)
{
    const struct hf_sizes *z = t->z;
    int64_t rows = x->from->shape[n_outer_axes(x)];
    int n = 0;

    row[0] = (struct rows){ 0, rows };
    if (x->rule->qkv) {
        if (rows != (z->heads + 2 * z->groups) * z->lanes)
            return refuse_translated_param(t, x->from->name,
                                           "its number of rows is not (heads + 2 groups) x head size of config.json");
        for (int kind = 0; kind < 3; kind++)
            if (x->rule->n_parts == 1 || kind == x->part)
                add_kind(t, kind, row, &n);
        return n;
    }
    if (x->from->merge == MERGE_CAT0_HALVES && x->rule->merge != MERGE_CAT0_HALVES)
        return refuse_translated_param(t, x->from->name,
                                       "belongs to a gated MLP, which models of this family do not have in "
                                       "Transformers");
    if (x->rule->merge == MERGE_CAT0_HALVES) {
        if (x->rule->n_parts == 2)
            row[0] = (struct rows){ x->part * (rows / 2), rows / 2 };
        return rows % 2 ? refuse_translated_param(t, x->from->name,
                                                  "has an odd number of rows, which cannot be two halves") : 1;
    }
    if (x->rule->merge != MERGE_VOCAB || rows == z->vocab)
        return 1;
    if (rows < z->vocab)
        return refuse_translated_param(t, x->from->name, "has fewer rows than vocab_size in config.json");
    row[0].n = z->vocab;
    t->n_padding = rows - z->vocab;
    return 1;
}

/* Set the name and shape of a piece, which has `rows` rows. */
static void shape_piece(const struct translation *t, const struct piece *x, int64_t rows, struct param *to)
{
    const int left_out = x->stacked + (x->expert >= 0);

    *to = *x->from;
    to->name = piece_name(t, x);
    to->ndim -= left_out;
    memmove(to->shape, x->from->shape + left_out, (size_t)to->ndim * sizeof *to->shape);
    memset(to->spelled, 0, sizeof to->spelled);
    to->shape[n_outer_axes(x) - left_out] = rows;
}

static int make_translated_param(struct translation *t, const struct piece *x, struct param *to)
{
    const struct param *from = x->from;
    struct rows *row = xcalloc(3 * (size_t)t->z->groups, sizeof *row);
    int n = from->ndim > n_outer_axes(x) ? choose_piece_rows(t, x, row)
                                         : refuse_translated_param(t, from->name, "has no rows");
    int64_t rows = 0;
    bool whole;

    for (int i = 0; i < n; i++)
        rows += row[i].n;
    if (n > 0)
        shape_piece(t, x, rows, to);
    whole = n == 1 && !x->rule->interleaved && shape_equal(to->ndim, to->shape, from->ndim, from->shape);
    for (int i = 0; i < STATE_N && n > 0 && !whole; i++) {
        to->state[i] = !from->state[i]        ? NULL
                       : x->rule->interleaved ? interleave_rows(t, x, from->state[i])
                                              : cut_rows(t, x, from->state[i], row, n);
        to->tied[i] = from->tied[i] ? cut_rows(t, x, from->tied[i], row, n) : NULL;
        to->has_digest[i] = false;
    }
    if (x->rule->transposed)  /* a digest depends on the order of the elements, so it is no longer valid */
        memset(to->has_digest, 0, sizeof to->has_digest);
    free(row);
    return n < 0 ? -1 : 0;
}

const bool *hf_translate(struct source *s, const struct family *f, const struct hf_sizes *z, struct report *notes,
                         struct err *e)
{
    struct translation t = { .s = s, .f = f, .z = z, .e = e };
    struct param *to = NULL;
    bool *transposed = NULL;
    int rc = run_state_compare_heads(s, z->heads, z->groups, e);

    if (rc == 0)
        rc = find_translated_layers(&t) < 0 ? -1 : find_pieces(&t);
    if (rc == 0) {
        to = arena_alloc(s->arena, ((size_t)t.n + 1) * sizeof *to);
        transposed = arena_alloc(s->arena, (size_t)t.n + 1);
    }
    for (int i = 0; i < t.n && rc == 0; i++) {
        rc = make_translated_param(&t, &t.piece[i], &to[i]);
        transposed[i] = t.piece[i].rule->transposed;
    }
    free(t.piece);
    if (rc < 0)
        return NULL;
    s->param = to;
    s->n_params = t.n;
    if (t.n_padding)
        report_add(notes, SEV_NOTE, HF_OMITTED_ROWS, NULL, ERR_NO_BYTE, NULL,
                   "%lld padding rows after vocab_size %lld of config.json are omitted", (long long)t.n_padding,
                   (long long)z->vocab);
    return transposed;
}

struct family *hf_find_family(const char *rules, const json_t *config, struct err *e)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    /*
     * The model_type comes from the checkpoint, so it must be a plain word. If it were a path, it could name any file.
     */
    struct family *f = rules ? family_open(rules, e) : type && !strpbrk(type, "/.") ? family_open(type, e) : NULL;

    if (rules && !f && e->kind == ERR_NONE) {
        struct strbuf all = {0};

        family_list_builtin(&all);
        err_usage(e, "--rules: '%s' is not a family; the built-in families are %s, and the name of a file must have a "
                     "dot or a slash",
                  rules, all.buf);
        strbuf_free(&all);
    }
    return f;
}
