/*
 * hf_saved.c - names that Transformers changes when it saves a model, and tied weights
 *
 * The tables below contain the text models of transformers/conversion_mapping.py (5.23). A model whose model_type is
 * not listed has the same names in memory and on disk.
 */
#include "libcommon/layout/hf/hf_saved.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/experts.h"
#include "libcommon/layout/hf/hf_names.h"
#include "libcommon/layout/hf/hf_source_impl.h"
#include "libcommon/plan/tmap_slice.h"

enum { MOST_PARTS = 2, MODELS_MAX = 24 };

/*
 * The end of a parameter's name in memory, and its replacements in files. '#' in a replacement stands for the expert's
 * number.
 */
struct saved_name {
    const char *memory;
    int n;                              /* number of parts with equal numbers of rows, such as gate and up */
    const char *disk[MOST_PARTS];
};

struct saved_family {
    const char *model[MODELS_MAX];      /* values of model_type, ended by NULL */
    const struct saved_name *name;      /* table of names; the last row has memory == NULL */
};

static const struct saved_name neox[] = {
    { "lm_head.weight", 1, { "embed_out.weight" } },
    { NULL, 0, { NULL } },
};

static const struct saved_name mixtral[] = {
    { ".mlp.experts.gate_up_proj", 2, { ".block_sparse_moe.experts.#.w1.weight",
                                        ".block_sparse_moe.experts.#.w3.weight" } },
    { ".mlp.experts.down_proj", 1, { ".block_sparse_moe.experts.#.w2.weight" } },
    { ".mlp.gate.weight", 1, { ".block_sparse_moe.gate.weight" } },
    { ".mlp.e_score_correction_bias", 1, { ".block_sparse_moe.e_score_correction_bias" } },
    { NULL, 0, { NULL } },
};

static const struct saved_name phimoe[] = {
    { ".mlp.experts.gate_up_proj", 2, { ".block_sparse_moe.experts.#.w1.weight",
                                        ".block_sparse_moe.experts.#.w3.weight" } },
    { ".mlp.experts.down_proj", 1, { ".block_sparse_moe.experts.#.w2.weight" } },
    { ".mlp.router.weight", 1, { ".block_sparse_moe.gate.weight" } },
    { NULL, 0, { NULL } },
};

static const struct saved_name qwen_moe[] = {
    { ".mlp.experts.gate_up_proj", 2, { ".mlp.experts.#.gate_proj.weight", ".mlp.experts.#.up_proj.weight" } },
    { ".mlp.experts.down_proj", 1, { ".mlp.experts.#.down_proj.weight" } },
    { NULL, 0, { NULL } },
};

static const struct saved_name jamba[] = {
    { ".feed_forward.experts.gate_up_proj", 2, { ".feed_forward.experts.#.gate_proj.weight",
                                                 ".feed_forward.experts.#.up_proj.weight" } },
    { ".feed_forward.experts.down_proj", 1, { ".feed_forward.experts.#.down_proj.weight" } },
    { NULL, 0, { NULL } },
};

static const struct saved_name granite_moe[] = {
    { ".block_sparse_moe.experts.gate_up_proj", 1, { ".block_sparse_moe.input_linear.weight" } },
    { ".block_sparse_moe.experts.down_proj", 1, { ".block_sparse_moe.output_linear.weight" } },
    { ".block_sparse_moe.router.weight", 1, { ".block_sparse_moe.router.layer.weight" } },
    { NULL, 0, { NULL } },
};

static const struct saved_family families[] = {
    { { "gpt_neox" }, neox },
    { { "mixtral", "minimax", "minimax_m2" }, mixtral },
    { { "phimoe" }, phimoe },
    { { "qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe", "flex_olmo", "afmoe", "deepseek_v2", "deepseek_v3",
        "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa",
        "longcat_flash", "solar_open", "mellum", "hunyuan_v1_moe", "cohere2_moe" }, qwen_moe },
    { { "jamba" }, jamba },
    { { "granitemoe", "granitemoeshared", "granitemoehybrid" }, granite_moe },
};

/*
 * Ends of names that are second names of tied weights. `first` is the end of the first name of the same tensor; NULL
 * means that the tensor is the embedding.
 */
static const struct tied_name { const char *second, *first; } tied_names[] = {
    { "lm_head.weight", NULL }, { "embed_out.weight", NULL }, { "output_layer.weight", NULL },
    { "generator_lm_head.weight", NULL }, { "vocab_projector.weight", NULL },
    { "lm_head.decoder.weight", NULL }, { "lm_head.decoder.bias", "lm_head.bias" },
    { "predictions.decoder.weight", NULL }, { "predictions.decoder.bias", "predictions.bias" },
    { "encoder.embed_tokens.weight", "shared.weight" }, { "decoder.embed_tokens.weight", "shared.weight" },
};

struct saving {
    struct source *s;
    const struct saved_name *name;      /* NULL if the names in memory and on disk are the same */
    struct param *to;
    int n, cap;
    int n_renamed, n_left_out;
    struct err *e;
};

static int refuse_saved_param(const struct saving *x, const char *param, const char *why)
{
    err_data(x->e, x->s->path, ERR_NO_BYTE, "parameter %s: %s", param, why);
    return -1;
}

/* ---- names ---- */

static const struct saved_name *names_of(const char *model)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (int k = 0; k < MODELS_MAX && families[i].model[k]; k++)
            if (strcmp(families[i].model[k], model) == 0)
                return families[i].name;
    return NULL;
}

/*
 * Returns true if `name` ends with `end` at a word boundary: "lm_head.weight" and "model.lm_head.weight" end with
 * "lm_head.weight", "old_lm_head.weight" does not.
 */
static bool ends_at_word_boundary(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);

    return str_ends(name, end) && (n == k || *end == '.' || name[n - k - 1] == '.');
}

static const struct saved_name *find_saved_name(const struct saving *x, const char *name)
{
    for (const struct saved_name *r = x->name; r && r->memory; r++)
        if (ends_at_word_boundary(name, r->memory))
            return r;
    return NULL;
}

static struct param *add_saved_param(struct saving *x, const struct param *from)
{
    ARRAY_ROOM(x->to, x->cap, x->n + 1);
    x->to[x->n] = *from;
    return &x->to[x->n++];
}

static const char *disk_name(struct saving *x, const char *name, const struct saved_name *r, int part, int64_t expert)
{
    const int before = (int)(strlen(name) - strlen(r->memory));
    const char *to = r->disk[part], *mark = strchr(to, '#');

    if (!mark)
        return arena_fmt(x->s->arena, "%.*s%s", before, name, to);
    return arena_fmt(x->s->arena, "%.*s%.*s%lld%s", before, name, (int)(mark - to), to, (long long)expert, mark + 1);
}

static struct tmap *cut_saved_tensor_part(struct saving *x, const struct tmap *m, uint64_t i, uint64_t n)
{
    return m ? tmap_parts(x->s->arena, &(struct tmap_part){ m, m->len / n * i, m->len / n }, 1) : NULL;
}

/*
 * Split a tensor [experts, parts * rows, columns], which holds all experts of a layer, into one tensor for each expert
 * and part.
 */
static int add_experts(struct saving *x, const struct param *p, const struct saved_name *r)
{
    if (p->ndim != 3 || p->shape[1] % r->n)
        return refuse_saved_param(x, p->name, "does not have the shape [experts, rows, columns] of such a model");
    for (int64_t expert = 0; expert < p->shape[0]; expert++)
        for (int k = 0; k < r->n; k++) {
            struct param *to = add_saved_param(x, p);

            to->name = disk_name(x, p->name, r, k, expert);
            to->ndim = 2;
            to->shape[0] = p->shape[1] / r->n;
            to->shape[1] = p->shape[2];
            for (int st = 0; st < STATE_N; st++)
                to->state[st] = cut_saved_tensor_part(x, p->state[st], (uint64_t)(expert * r->n + k),
                                                      (uint64_t)(p->shape[0] * r->n));
            to->copy = cut_saved_tensor_part(x, p->copy, (uint64_t)(expert * r->n + k), (uint64_t)(p->shape[0] * r->n));
            memset(to->has_digest, 0, sizeof to->has_digest);
            memset(to->spelled, 0, sizeof to->spelled);
        }
    return 0;
}

/* ---- tied weights ---- */

static bool is_tied_embedding_name(const char *name)
{
    static const char *const ends[] = { "embed_tokens.weight", "wte.weight", "word_embeddings.weight",
                                        "embed_in.weight", "embeddings.weight", "tok_embeddings.weight",
                                        "shared.weight" };

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_at_word_boundary(name, ends[i]))
            return true;
    return false;
}

static const struct tied_name *tied_name_of(const char *name)
{
    const struct tied_name *found = NULL;

    for (size_t i = 0; i < sizeof tied_names / sizeof *tied_names; i++)
        if (ends_at_word_boundary(name, tied_names[i].second) &&
            (!found || strlen(tied_names[i].second) > strlen(found->second)))
            found = &tied_names[i];
    return found;
}

/* Returns the parameter whose second name `p` is, or NULL if there is none. */
static const struct param *find_first_tied_param(const struct saving *x, const struct param *p,
                                                 const struct tied_name *t)
{
    for (int i = 0; i < x->s->n_params; i++) {
        const struct param *q = &x->s->param[i];

        if (q == p || q->shared_with || !shape_equal(q->ndim, q->shape, p->ndim, p->shape))
            continue;
        if (t->first ? ends_at_word_boundary(q->name, t->first) : is_tied_embedding_name(q->name))
            return q;
    }
    return NULL;
}

static const struct tmap *saved_weights_map(const struct param *p)
{
    return p->state[STATE_FP32] ? p->state[STATE_FP32] : p->state[STATE_BF16];
}

/*
 * Returns 1 if `p` is the second name of a tied weight and must be left out, 0 if `p` is written. Returns -1 if `p` is
 * a head that must be equal to the embedding, but differs.
 */
static int is_second(const struct saving *x, const struct param *p)
{
    const struct tied_name *t = tied_name_of(p->name);
    const struct param *first = t ? find_first_tied_param(x, p, t) : NULL;
    int same;

    if (!t || p->shared_with || !first)
        return t && p->shared_with;
    same = saved_weights_map(p) && saved_weights_map(first)
               ? hf_same_values(x->s, saved_weights_map(p), saved_weights_map(first), x->e)
               : 1;
    if (same == 0 && hf_is_head(p->name)) {
        err_data(x->e, x->s->path, ERR_NO_BYTE, "parameter %s: differs from %s, although config.json ties the two "
                                                "(tie_word_embeddings); --config tie_word_embeddings=false writes a "
                                                "model with both", p->name,
                 first->name);
        return -1;
    }
    return same;
}

/* ---- conversion of all parameters ---- */

static int add_saved(struct saving *x, const struct param *p, bool tied)
{
    const struct saved_name *r = find_saved_name(x, p->name);
    int second = tied ? is_second(x, p) : 0;
    struct param *to;

    if (second < 0)
        return -1;
    x->n_left_out += second;
    if (second)
        return 0;
    x->n_renamed += r != NULL;
    if (r && strchr(r->disk[0], '#'))
        return add_experts(x, p, r);
    to = add_saved_param(x, p);
    if (r) {
        to->name = disk_name(x, p->name, r, 0, 0);
        memset(to->spelled, 0, sizeof to->spelled);
    }
    return 0;
}

static int by_saved_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/*
 * Returns -1 with ERR_DATA if two parameters get the same name. This happens if the source has a parameter under both
 * its name in memory and its name on disk.
 */
static int check_saved_names_unique(const struct saving *x)
{
    const char **name = xmalloc(((size_t)x->n + 1) * sizeof *name);
    int rc = 0;

    for (int i = 0; i < x->n; i++)
        name[i] = x->to[i].name;
    if (x->n)
        qsort(name, (size_t)x->n, sizeof *name, by_saved_name);
    for (int i = 1; i < x->n && rc == 0; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            rc = refuse_saved_param(x, name[i], "exists under the name that it has in memory, too");
    free(name);
    return rc;
}

static void replace_saved_params(const struct saving *x)
{
    struct source *s = x->s;

    s->param = arena_alloc(s->arena, ((size_t)x->n + 1) * sizeof *s->param);
    memcpy(s->param, x->to, (size_t)x->n * sizeof *s->param);
    s->n_params = x->n;
    s->n_stacks = 0;                    /* the entries of s->stack are indices of the previous parameters */
    s->names = arena_alloc(s->arena, sizeof *s->names);
}

/* ---- the inverse ---- */

/* A parameter in memory that is being put together. */
struct fused_param {
    const char *name;
    const struct saved_name *row;
    int n, cap;
    struct fused_member { const struct param *of; int64_t place; } *member;     /* place: expert * parts + part */
};

struct fusing {
    struct saving x;
    struct names *known;                /* names in memory, with the index of their fused_param */
    int n, cap;
    struct fused_param *fused;
};

/*
 * Find the table row and the part that give the parameter its name on disk. Returns the parameter's name in memory,
 * which is in the source's arena. Returns NULL if no row has the name. *expert is set to -1 if the row has no experts.
 */
static const char *memory_name(const struct fusing *f, const char *name, const struct saved_name **row, int *part,
                               int64_t *expert)
{
    for (const struct saved_name *r = f->x.name; r && r->memory; r++)
        for (int k = 0; k < r->n; k++) {
            const char *disk = r->disk[k], *mark = strchr(disk, '#'), *at = name + strlen(name), *digits;
            const size_t before = mark ? (size_t)(mark - disk) : strlen(disk);

            *row = r;
            *part = k;
            *expert = -1;
            if (mark && str_ends(name, mark + 1)) {
                digits = at -= strlen(mark + 1);
                while (digits > name && digits[-1] >= '0' && digits[-1] <= '9')
                    digits--;
                if (digits == at || at - digits > 5 || (size_t)(digits - name) < before)
                    continue;
                *expert = atoi(digits);
                at = digits;
            } else if (mark || strlen(name) < before) {
                continue;
            }
            at -= before;
            if (strncmp(at, disk, before) == 0 && (*disk == '.' || at == name || at[-1] == '.'))
                return arena_fmt(f->x.s->arena, "%.*s%s", (int)(at - name), name, r->memory);
        }
    return NULL;
}

static void add_fused_member(struct fusing *f, const struct param *p)
{
    const struct saved_name *row = NULL;
    int part, i;
    int64_t expert;
    const char *name = memory_name(f, p->name, &row, &part, &expert);
    struct fused_param *to;

    i = name && expert >= 0 ? names_find(f->known, name) : -1;
    if (i < 0) {
        i = f->n;
        ARRAY_ROOM(f->fused, f->cap, f->n + 1);
        f->fused[f->n++] = (struct fused_param){ .name = name ? name : p->name,
                                                 .row = name && expert >= 0 ? row : NULL };
        if (name && expert >= 0)
            names_add(f->known, name, i);
        f->x.n_renamed += name != NULL;
    }
    to = &f->fused[i];
    ARRAY_ROOM(to->member, to->cap, to->n + 1);
    to->member[to->n++] = (struct fused_member){ p, name && expert >= 0 ? expert * row->n + part : 0 };
}

static int by_fused_place(const void *a, const void *b)
{
    const struct fused_member *x = a, *y = b;

    return (x->place > y->place) - (x->place < y->place);
}

static struct tmap *fuse_state(const struct fusing *f, const struct fused_param *from, int st)
{
    struct tmap_part *part = xcalloc((size_t)from->n, sizeof *part);
    struct tmap *to = NULL;
    int n = 0;

    for (int i = 0; i < from->n; i++) {
        const struct tmap *m = from->member[i].of->state[st];

        if (m)
            part[n++] = (struct tmap_part){ m, 0, m->len };
    }
    if (n == from->n)
        to = tmap_parts(f->x.s->arena, part, n);
    free(part);
    return to;
}

static int make_fused(struct fusing *f, struct fused_param *from)
{
    const struct param *first = from->member->of;
    const int parts = from->row ? from->row->n : 1;
    struct param *to;

    qsort(from->member, (size_t)from->n, sizeof *from->member, by_fused_place);
    for (int i = 0; i < from->n && from->row; i++) {
        const struct param *p = from->member[i].of;
        const struct tmap *m = saved_weights_map(p), *m0 = saved_weights_map(first);

        if (from->member[i].place != i || (i == from->n - 1 && from->n % parts))
            return refuse_saved_param(&f->x, p->name, "the tensors of its layer are not those of experts 0, 1, 2, ...");
        if (p->ndim != 2 || !shape_equal(p->ndim, p->shape, first->ndim, first->shape) || !m || !m0 ||
            m->dtype != m0->dtype)
            return refuse_saved_param(&f->x, p->name, "has another shape or type than those of other experts");
    }
    to = add_saved_param(&f->x, first);
    to->name = from->name;
    memset(to->spelled, 0, sizeof to->spelled);
    if (!from->row)
        return 0;
    to->ndim = 3;
    to->shape[0] = from->n / parts;
    to->shape[1] = parts * first->shape[0];
    to->shape[2] = first->shape[1];
    for (int st = 0; st < STATE_N; st++)
        to->state[st] = fuse_state(f, from, st);
    to->copy = NULL;
    memset(to->has_digest, 0, sizeof to->has_digest);
    return 0;
}

int hf_fused_names(struct source *s, const json_t *config, struct report *notes, struct err *e)
{
    const char *model = json_string_value(json_object_get(config, "model_type"));
    struct fusing f = { .x = { .s = s, .name = model ? names_of(model) : NULL, .e = e } };
    int rc = 0;

    f.known = names_new(s->arena);
    for (int i = 0; i < s->n_params; i++)
        add_fused_member(&f, &s->param[i]);
    for (int i = 0; i < f.n; i++) {
        if (rc == 0)
            rc = make_fused(&f, &f.fused[i]);
        free(f.fused[i].member);
    }
    free(f.fused);
    if (rc == 0)
        rc = check_saved_names_unique(&f.x);
    if (rc == 0 && f.x.n_renamed) {
        replace_saved_params(&f.x);
        report_add(notes, SEV_NOTE, "names", NULL, ERR_NO_BYTE, NULL,
                   "%d parameters have the names that the model has in memory", f.x.n_renamed);
    }
    free(f.x.to);
    return rc;
}

/* Returns the first parameter whose name has ".experts." and, if `numbered`, the number of an expert after it. */
static const char *find_expert_name(const struct source *s, bool numbered)
{
    static const char word[] = ".experts.";

    for (int i = 0; i < s->n_params; i++) {
        const char *at = strstr(s->param[i].name, word);

        if (at && (!numbered || (at[strlen(word)] >= '0' && at[strlen(word)] <= '9')))
            return s->param[i].name;
    }
    return NULL;
}

int hf_check_experts_form(const struct source *s, const json_t *config, bool split, struct err *e)
{
    const char *model = json_string_value(json_object_get(config, "model_type")), *example;
    const bool is_split = find_expert_name(s, true) != NULL;

    for (const struct saved_name *r = model ? names_of(model) : NULL; r && r->memory; r++)
        if (strchr(r->disk[0], '#') && (find_expert_name(s, false) || experts_count_stated(config) > 0))
            return 0;
    example = find_expert_name(s, is_split);
    if (!example && experts_count_stated(config) <= 0)
        err_usage(e, "%s: --experts: the model has no experts; omit the option", s->path);
    else if (split != is_split)
        err_usage(e, "%s: --experts %s: %s%s%smodels of the type '%.60s' have one form in Transformers, with one "
                     "tensor for %s; omit the option", s->path, split ? "split" : "fused", example ? "parameter " : "",
                  example ? example : "", example ? ": " : "", model ? model : "",
                  is_split ? "each expert" : "all experts of a layer");
    return split == is_split && (example || experts_count_stated(config) > 0) ? 0 : -1;
}

bool hf_ties_head(const json_t *config)
{
    return json_is_true(json_object_get(config, "tie_word_embeddings"));
}

bool hf_saved_renames(const struct source *s, const json_t *config)
{
    const char *model = json_string_value(json_object_get(config, "model_type"));
    const struct saving x = { .name = model ? names_of(model) : NULL };

    for (int i = 0; i < s->n_params; i++)
        if (find_saved_name(&x, s->param[i].name))
            return true;
    return false;
}

int hf_saved_names(struct source *s, const json_t *config, bool tied, struct report *notes, struct err *e)
{
    const char *model = json_string_value(json_object_get(config, "model_type"));
    struct saving x = { .s = s, .name = model ? names_of(model) : NULL, .e = e };
    int rc = 0;

    for (int i = 0; i < s->n_params && rc == 0; i++)
        rc = add_saved(&x, &s->param[i], tied);
    if (rc == 0 && x.n_renamed)
        rc = check_saved_names_unique(&x);
    if (rc == 0 && (x.n_renamed || x.n_left_out))
        replace_saved_params(&x);
    if (rc == 0 && x.n_renamed)
        report_add(notes, SEV_NOTE, "names", NULL, ERR_NO_BYTE, NULL,
                   "%d parameters have the names that save_pretrained writes", x.n_renamed);
    if (rc == 0 && x.n_left_out)
        report_add(notes, SEV_NOTE, "shared", NULL, ERR_NO_BYTE, NULL,
                   "%d second names of tied weights were omitted", x.n_left_out);
    free(x.to);
    return rc;
}
