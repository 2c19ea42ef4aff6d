/*
 * hf_gpt_names.c - map parameters of any layout to the canonical places of a GPT
 *
 * Every name in the files is mapped to a place (block, role) of the model. Two parameters must not have the same place,
 * and no place of the architecture may stay empty. For each place, a canonical parameter is made from the tensor maps
 * of the files' parameter, with the rows in Megatron's order.
 */
#include "libcommon/layout/hf/hf_gpt_names.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/hf/hf_config.h"
#include "libcommon/layout/hf/hf_source_impl.h"
#include "libcommon/layout/hf/hf_translate.h"
#include "libcommon/model/config.h"
#include "libcommon/model/family.h"
#include "libcommon/plan/tmap_slice.h"

/*
 * Layer numbers in the canonical names, as the current trainer writes these. The first block is layer FIRST_LAYER.
 * Between the last block and the final norm, NORM_GAP numbers are not used, because layers with these numbers have no
 * parameters.
 */
enum { FIRST_LAYER = 3, NORM_GAP = 1 };

/* The place that a parameter name maps to. */
struct canon_place {
    const struct family_rule *rule;     /* the family's rule for the name; NULL if the name is canonical */
    const struct param_row *row;        /* row of the parameter table; NULL for the head */
    int layer;                          /* layer number in the name; -1 if there is none */
    bool in_shards, stacked;
};

struct canon {
    struct source *s;
    enum hf_arch arch;
    struct family *f;           /* family of the names in the files; NULL if the names are canonical */
    struct hf_gpt_naming *out;
    struct err *e;
    int n_blocks, lowest;       /* number of blocks; lowest block number in the names */
    /*
     * [(n_blocks + 1) * ROLE_N]: parameters of the files by block and role; the last ROLE_N are outside of the blocks
     */
    struct param **slot;
    struct canon_place *place;        /* [s->n_params]: the place of each parameter */
    bool *skip;                 /* [s->n_params]: true for buffers and for the head, which get no slot */
    int n_made;
    struct param *made;
    bool *transposed;               /* [n_made]: true if the matrix is stored as [in, out] */
};

static int refuse_gpt_param(const struct canon *c, const char *param, const char *why)
{
    err_data(c->e, c->s->path, ERR_NO_BYTE, "parameter %s: %s", param, why);
    return -1;
}

/* ---- choose the family ---- */

static bool has_gpt_names(const struct source *s)
{
    int layer;

    for (int i = 0; i < s->n_params; i++)
        if (!param_find(s->param[i].name, &layer))
            return false;
    return s->n_params > 0;
}

static int count_hits(const struct source *s, const struct family *f)
{
    struct family_hit h;
    int n = 0;

    for (int i = 0; i < s->n_params; i++)
        n += hf_find_rule(f, s->param[i].name, &h);
    return n;
}

/*
 * Choose BLOOM or GPT-2, whichever family's rules match more names. If both match equally many, GPT-2 is chosen,
 * because its rules contain all names that Megatron-core uses. Returns -1 if a family's rules cannot be read.
 */
static int choose_family(struct canon *c)
{
    int most = -1;

    for (int a = 0; a < HF_N; a++) {
        struct family *f = family_open(hf_arch_name((enum hf_arch)a), c->e);
        int n = f ? count_hits(c->s, f) : -1;

        if (n > most || (n == most && f)) {
            family_free(c->f);
            c->f = f;
            c->arch = (enum hf_arch)a;
            most = n;
        } else {
            family_free(f);
        }
    }
    return c->f ? 0 : -1;
}

/* Refuse a name that neither BLOOM nor GPT-2 has. If another family has this name, the error mentions that family. */
static int refuse_stranger(const struct canon *c, const char *name)
{
    struct err ignored = {0};
    struct family_hit h;

    for (int i = 0; family_builtin(i); i++) {
        struct family *f = family_open(family_builtin(i), &ignored);
        bool has = f && hf_find_rule(f, name, &h);

        family_free(f);
        if (!has)
            continue;
        err_data(c->e, c->s->path, ERR_NO_BYTE, "parameter %s: belongs to the family %s, but only BLOOM and GPT-2 can "
                                                "be trained",
                 name, family_builtin(i));
        return -1;
    }
    return refuse_gpt_param(c, name, "is not a parameter of BLOOM or GPT-2, and only these can be trained");
}

/* ---- places ---- */

static bool is_head_rule(const struct family_rule *r)
{
    return r->merge == MERGE_VOCAB && hf_is_head(r->part[0]);
}

/* Returns the row of the parameter table for the parameter that a rule describes. */
static const struct param_row *family_rule_param_row(const struct canon *c, const struct family_rule *r)
{
    int layer;

    return param_find(family_layer_name(c->s->arena, r->shard[0], FIRST_LAYER), &layer);
}

static int find_gpt_place(struct canon *c, int i)
{
    const struct param *p = &c->s->param[i];
    struct canon_place *to = &c->place[i];
    struct family_hit h;

    if (!c->f) {
        to->in_shards = true;
        to->row = param_find(p->name, &to->layer);
    } else if (hf_find_rule(c->f, p->name, &h)) {
        *to = (struct canon_place){ h.rule, family_rule_param_row(c, h.rule), h.layer, h.in_shards, h.stacked };
    } else if (hf_is_buffer(p->name)) {
        c->skip[i] = true;
        c->out->n_buffers++;
        return 0;
    } else {
        return refuse_stranger(c, p->name);
    }
    if (to->stacked)
        return refuse_gpt_param(c, p->name, "its layers are stacked in one tensor and cannot be separated");
    if (to->rule && is_head_rule(to->rule)) {
        c->skip[i] = true;
        c->out->head = p;
    }
    return 0;
}

static bool is_of_block(const struct canon_place *p)
{
    return p->row && p->row->place == PLACE_BLOCK;
}

static int count_gpt_blocks(struct canon *c)
{
    int highest = -1;

    c->lowest = -1;
    for (int i = 0; i < c->s->n_params; i++) {
        const struct canon_place *p = &c->place[i];

        if (!is_of_block(p))
            continue;
        highest = p->layer > highest ? p->layer : highest;
        c->lowest = c->lowest < 0 || p->layer < c->lowest ? p->layer : c->lowest;
    }
    c->lowest = c->f ? 0 : c->lowest;
    c->n_blocks = highest - c->lowest + 1;
    if (highest >= 0 && c->n_blocks <= c->s->n_params)
        return 0;
    err_data(c->e, c->s->path, ERR_NO_BYTE, highest < 0 ? "holds no transformer layer"
             : "its layers have numbers greater than the count of its parameters");
    return -1;
}

static struct param **gpt_role_slot(const struct canon *c, int block, enum role r)
{
    return &c->slot[(block < 0 ? c->n_blocks : block) * ROLE_N + (int)r];
}

static int fill_slots(struct canon *c)
{
    c->slot = xcalloc(((size_t)c->n_blocks + 1) * ROLE_N, sizeof *c->slot);
    for (int i = 0; i < c->s->n_params; i++) {
        const struct canon_place *p = &c->place[i];
        struct param **to;

        if (c->skip[i])
            continue;
        to = gpt_role_slot(c, is_of_block(p) ? p->layer - c->lowest : -1, p->row->role);
        if (*to) {
            err_data(c->e, c->s->path, ERR_NO_BYTE, "%s and %s are two names of the same parameter", (*to)->name,
                     c->s->param[i].name);
            return -1;
        }
        *to = &c->s->param[i];
    }
    return 0;
}

/* Returns the name under which the parameter with this row and block should be in the files. The caller frees it. */
static char *expected_name(const struct canon *c, const struct param_row *r, int block)
{
    if (c->f && !c->place[0].in_shards)
        return hf_name(c->arch, r, block, true);
    for (int i = 0; c->f && i < family_n(c->f); i++)
        if (family_rule_param_row(c, family_at(c->f, i)) == r && family_core_name(family_at(c->f, i)))
            return xstrdup(family_layer_name(c->s->arena, family_core_name(family_at(c->f, i)), block));
    return hf_param_name(r, r->place == PLACE_BLOCK ? c->lowest + block : c->lowest + c->n_blocks + NORM_GAP);
}

static int check_slots(const struct canon *c)
{
    for (int block = -1; block < c->n_blocks; block++)
        for (int r = 0; r < ROLE_N; r++) {
            const struct param_row *row = param_row((enum role)r);
            char *name;

            if (!row->hf[c->arch].name || (block >= 0) != (row->place == PLACE_BLOCK) ||
                *gpt_role_slot(c, block, row->role))
                continue;
            name = expected_name(c, row, block);
            refuse_gpt_param(c, name, "is missing");
            free(name);
            return -1;
        }
    return 0;
}

/* ---- types and sizes ---- */

static int check_param_dtypes(const struct canon *c, const struct param *p)
{
    for (int st = 0; st < STATE_N; st++) {
        const enum dtype t = p->state[st] ? p->state[st]->dtype : DTYPE_F32;

        if (t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16)
            continue;
        err_data(c->e, c->s->path, ERR_NO_BYTE, "parameter %s: has type %s; only fp32, bf16 and fp16 can be trained",
                 p->name,
                 t == DTYPE_N ? "an unknown type" : dtype_name(t));
        return -1;
    }
    if (!p->state[STATE_FP32] && !p->state[STATE_BF16])
        return refuse_gpt_param(c, p->name, "has no weights that can be read");
    return 0;
}

/*
 * Check the folder's config.json, if there is one, and read the number of heads and epsilon from it. A model that
 * computes differently from the trainer is refused, because the trainer would train it wrongly without notice.
 */
static int check_config(const struct canon *c, int64_t *heads)
{
    const struct source_file *f = c->s->layout->model_folder ? source_file(c->s, "config.json") : NULL;
    const uint64_t size = f ? files_size(c->s->files, f->file) : 0;
    const char *path = f ? files_name(c->s->files, f->file) : NULL;
    char *text = f ? xcalloc(1, size + 1) : NULL;
    struct hf_config h;
    int rc = f ? files_read(c->s->files, f->file, 0, text, size, c->e) : -1;

    if (rc == 0)
        rc = hf_config_read(path, text, size, &h, c->e);
    free(text);
    if (!f)
        return 0;
    if (rc < 0)
        return -1;
    *heads = h.n_heads;
    c->out->epsilon = h.epsilon;
    if (h.post_layernorm_residual)
        err_data(c->e, path, ERR_NO_BYTE, "'apply_residual_connection_post_layernorm' is true, which cannot be "
                                          "trained");
    else if (strcmp(h.activation, "gelu") == 0)
        err_data(c->e, path, ERR_NO_BYTE, "'activation_function' is 'gelu' (the erf form), but only the tanh form can "
                                          "be trained");
    else
        return 0;
    return -1;
}

static void read_sizes(struct canon *c, int64_t heads)
{
    struct model_config m = {0};
    const struct param *word = *gpt_role_slot(c, -1, ROLE_WORD), *up = *gpt_role_slot(c, 0, ROLE_UP_B);
    const struct param *position = *gpt_role_slot(c, -1, ROLE_POSITION);

    model_config_from_args(&m, c->s->run.args);
    m.n_layers = c->n_blocks;
    m.hidden = word->ndim == 2 ? word->shape[1] : 0;
    m.vocab = word->shape[0];
    m.ffn_hidden = up->shape[0];
    m.n_heads = heads > 0 ? heads : m.n_heads;
    m.max_positions = position ? position->shape[0] : m.max_positions;
    m.embed_layernorm = *gpt_role_slot(c, -1, ROLE_WORD_NORM_W) != NULL;
    strcpy(m.position, position ? "absolute" : "alibi");
    c->s->config = m;
    c->out->heads = m.n_heads;
}

/* ---- the parameters ---- */

/*
 * Returns m with its rows reordered from (kind, head) to (head, kind), where kind is query, key or value. `part` must
 * have room for 3 * heads entries.
 */
static struct tmap *reorder(const struct canon *c, const struct tmap *m, struct tmap_part *part)
{
    const int64_t n = c->out->heads;
    const uint64_t run = m->len / (uint64_t)(3 * n);

    for (int64_t i = 0; i < 3 * n; i++)
        part[i] = (struct tmap_part){ m, (uint64_t)(i % 3 * n + i / 3) * run, run };
    return tmap_parts(c->s->arena, part, 3 * (int)n);
}

/* Reorder the rows of a parameter from (kind, head, lane), GPT-2's order, to (head, kind, lane), Megatron's order. */
static int restore_qkv_rows(const struct canon *c, struct param *p, const char *name)
{
    const int64_t n = c->out->heads;
    struct tmap_part *part;

    if (n <= 0) {
        err_usage(c->e, "%s: parameter %s: the number of heads is unknown; give --num-attention-heads",
                  c->s->path, name);
        return -1;
    }
    if (n > p->shape[0] || p->shape[0] % (3 * n) != 0)
        return refuse_gpt_param(c, name, "its number of rows does not match the queries, keys and values of the heads");
    part = xcalloc(3 * (size_t)n, sizeof *part);
    for (int st = 0; st < STATE_N; st++)
        p->state[st] = p->state[st] ? reorder(c, p->state[st], part) : NULL;
    p->copy = p->copy ? reorder(c, p->copy, part) : NULL;
    free(part);
    return 0;
}

/*
 * Make the canonical parameter *to from the files' parameter with this row and block. Sets *transposed if the matrix is
 * stored as [in, out].
 */
static int make_gpt_param(const struct canon *c, const struct param_row *row, int block, struct param *to,
                          bool *transposed)
{
    const struct param *from = *gpt_role_slot(c, block, row->role);
    const struct canon_place *place = &c->place[from - c->s->param];
    const bool other = place->rule && !place->in_shards;
    const int layer = block >= 0 ? FIRST_LAYER + block : FIRST_LAYER + c->n_blocks + NORM_GAP;
    char *name = hf_param_name(row, layer);

    *to = *from;
    if (c->f)
        to->name = arena_fmt(c->s->arena, "%s", name);
    free(name);
    to->merge = row->merge;
    to->shared_with = NULL;
    memset(to->spelled, 0, sizeof to->spelled);
    memset(to->has_digest, 0, sizeof to->has_digest);
    if (check_param_dtypes(c, from) < 0)
        return -1;
    if (from->ndim != row->ndim)
        return refuse_gpt_param(c, from->name, row->ndim == 2 ? "is no matrix" : "is no vector");
    /* if there are no fp32 master weights, use the weights instead, widened to fp32 */
    if (!to->state[STATE_FP32])
        to->state[STATE_FP32] = to->state[STATE_BF16];
    *transposed = other && hf_is_transposed(c->arch, row);
    if (*transposed) {
        to->shape[0] = from->shape[1];
        to->shape[1] = from->shape[0];
    }
    return other && row->hf[c->arch].change == HF_QKV_ROWS ? restore_qkv_rows(c, to, from->name) : 0;
}

/*
 * Set out->table to the embedding. If a head is stored but shares its tensor with the embedding, set out->head to NULL,
 * because the two need not be compared. If the embedding has no states of its own, it gets those of the head.
 */
static void resolve_head_table(struct canon *c)
{
    struct param **table = gpt_role_slot(c, -1, ROLE_WORD);
    struct hf_gpt_naming *o = c->out;

    o->table = *table;
    if (!o->head)
        return;
    if (o->table->shared_with && strcmp(o->table->shared_with, o->head->name) == 0)
        memcpy((*table)->state, o->head->state, sizeof o->head->state);
    if (o->table->shared_with || o->head->shared_with)
        o->head = NULL;
}

static int make_gpt_place_params(struct canon *c, enum param_place place, int block)
{
    for (int r = 0; r < ROLE_N; r++) {
        const struct param_row *row = param_row((enum role)r);

        if (row->place != place || !*gpt_role_slot(c, block, row->role))
            continue;
        if (make_gpt_param(c, row, block, &c->made[c->n_made], &c->transposed[c->n_made]) < 0)
            return -1;
        c->n_made++;
    }
    return 0;
}

static int make_all(struct canon *c)
{
    struct source *s = c->s;
    int rc;

    c->made = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof *c->made);
    c->transposed = arena_alloc(s->arena, (size_t)s->n_params + 1);
    rc = make_gpt_place_params(c, PLACE_EMBEDDING, -1);
    for (int block = 0; block < c->n_blocks && rc == 0; block++)
        rc = make_gpt_place_params(c, PLACE_BLOCK, block);
    if (rc < 0 || make_gpt_place_params(c, PLACE_FINAL, -1) < 0)
        return -1;
    s->param = c->made;
    s->n_params = c->n_made;
    s->n_stacks = 0;                    /* the entries of s->stack are indices of the previous parameters */
    s->names = arena_alloc(s->arena, sizeof *s->names);
    c->out->transposed = c->transposed;
    return 0;
}

/* ---- public functions ---- */

static int find_places(struct canon *c)
{
    const int n = c->s->n_params;

    c->place = xcalloc((size_t)n + 1, sizeof *c->place);
    c->skip = xcalloc((size_t)n + 1, sizeof *c->skip);
    for (int i = 0; i < n; i++)
        if (find_gpt_place(c, i) < 0)
            return -1;
    return count_gpt_blocks(c);
}

static const char *whose_names(const struct canon *c)
{
    return !c->f ? "the pipeline engine" : c->place[0].in_shards ? "Megatron-core" : "Transformers";
}

int gpt_names_apply(struct source *s, int64_t heads, struct hf_gpt_naming *out, struct err *e)
{
    struct canon c = { .s = s, .out = out, .e = e };
    int rc = -1;

    *out = (struct hf_gpt_naming){0};
    if (check_config(&c, &heads) < 0 || (!has_gpt_names(s) && choose_family(&c) < 0) || find_places(&c) < 0 ||
        fill_slots(&c) < 0)
        goto out;
    if (!c.f)
        c.arch = *gpt_role_slot(&c, -1, ROLE_POSITION) ? HF_GPT2 : HF_BLOOM;
    if (check_slots(&c) < 0)
        goto out;
    read_sizes(&c, heads);
    resolve_head_table(&c);
    out->names = whose_names(&c);
    rc = make_all(&c);
out:
    family_free(c.f);
    free(c.slot);
    free(c.place);
    free(c.skip);
    return rc;
}

static const struct tmap *param_weights_map(const struct param *p)
{
    return p->state[STATE_FP32] ? p->state[STATE_FP32] : p->state[STATE_BF16];
}

int gpt_names_check_head(const struct source *s, const struct hf_gpt_naming *c, struct err *e)
{
    const struct tmap *a = c->head ? param_weights_map(c->head) : NULL, *b = a ? param_weights_map(c->table) : NULL;
    const int same = !a ? 1 : b ? hf_same_values(s, a, b, e) : 0;

    if (same == 0)
        err_data(e, s->path, ERR_NO_BYTE, "parameter %s: differs from %s, but the head must be the embedding",
                 c->head->name, c->table->name);
    return same == 1 ? 0 : -1;
}
