/*
 * hf_shards.c - combine the parameters of a Transformers model into Megatron-core's parameters
 */
#include "libcommon/layout/hf/hf_shards.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/hf/hf_source_impl.h"
#include "libcommon/plan/tmap_slice.h"

/* A parameter of the Transformers model, and its place as a part of a Megatron-core parameter. */
struct fusion_part {
    struct param *from;
    const struct family_rule *rule;
    int part, layer;  /* part: index of this part in the rule; layer: layer number, -1 outside of the layers */
    int expert;                 /* number of the expert in the name; -1 if there is none */
    int place;                  /* position in the model: -1 before the layers, 0 in a layer, 1 after the layers */
};

struct fusion {
    struct source *s;
    const struct family *f;
    const struct hf_sizes *z;
    const struct hf_source_opts *o;
    struct report *notes;
    struct err *e;
    int n;
    struct fusion_part *member;
    int n_experts;              /* number of experts of a layer: that of config.json, else that of the names; or 0 */
    bool *has_experts;          /* [layers]: true for layers with a parameter that only layers with experts have */
    int n_buffers;              /* number of buffers that are left out */
};

static int refuse_fused_param(const struct fusion *x, const char *param, const char *why)
{
    err_data(x->e, x->s->path, ERR_NO_BYTE, "%s: %s", param, why);
    return -1;
}

static enum state fused_weight_state(const struct param *p)
{
    return p->state[STATE_FP32] ? STATE_FP32 : STATE_BF16;
}

/* ---- select the parameters ---- */

static int add_fusion_part(struct fusion *x, struct param *p)
{
    struct family_hit h;
    char *why = NULL;

    if (!hf_find_rule(x->f, p->name, &h) || h.in_shards) {
        if (hf_is_buffer(p->name)) {
            x->n_buffers++;
            return 0;
        }
        why = str_fmt("the rules of the family %s have no such name of Transformers", family_name(x->f));
    } else if (!family_core_name(h.rule)) {
        why = str_fmt("the rules of %s have no equivalent of it in Megatron-core", family_name(x->f));
    } else if (x->z->experts > 0 && h.expert >= x->z->experts) {
        why = str_fmt("belongs to expert %d, but config.json has %lld experts", h.expert, (long long)x->z->experts);
    } else if (h.layer >= x->z->layers) {
        why = str_fmt("belongs to layer %d, but config.json has %lld layers", h.layer, (long long)x->z->layers);
    }
    if (why) {
        refuse_fused_param(x, p->name, why);
        free(why);
        return -1;
    }
    x->member[x->n++] = (struct fusion_part){ p, h.rule, h.part, h.layer, h.expert, family_place(x->f, h.rule) };
    if (h.rule->moe)
        x->has_experts[h.layer] = true;
    if (h.expert >= x->n_experts)
        x->n_experts = h.expert + 1;
    return 0;
}

/* Compare two parts by position in the model. Parts of the same Megatron-core parameter are adjacent in this order. */
static int by_fusion_place(const void *a, const void *b)
{
    const struct fusion_part *x = a, *y = b;

    if (x->place != y->place)
        return x->place - y->place;
    if (x->layer != y->layer)
        return x->layer - y->layer;
    if (x->rule != y->rule)
        return x->rule->line - y->rule->line;
    return x->expert != y->expert ? x->expert - y->expert : x->part - y->part;
}

/*
 * Returns the number of parts that make up one Megatron-core parameter. If each expert has its own parts, those of all
 * experts count.
 */
static int n_fused_parts(const struct fusion *x, const struct family_rule *r)
{
    return r->n_parts * (r->each_expert ? x->n_experts : 1);
}

/*
 * Returns the first layer, starting at `layer`, that has the rule's parameter, or the number of layers if there is
 * none.
 */
static int next_layer_of(const struct fusion *x, const struct family_rule *r, int layer)
{
    while (layer < x->z->layers && (x->has_experts[layer] ? r->dense : r->moe))
        layer++;
    return layer;
}

/*
 * Check a rule that matches at least one parameter: it must match all of its parts in all layers. A rule for layers
 * with experts, or for layers without experts, must match in all layers of that kind.
 */
static int check_fusion_rule_complete(const struct fusion *x, const struct family_rule *r)
{
    const bool numbered = family_place(x->f, r) == 0;
    const int n = n_fused_parts(x, r);
    int layer = numbered ? next_layer_of(x, r, 0) : 0, due = 0, n_met = 0;

    for (int i = 0; i < x->n; i++) {
        const struct fusion_part *m = &x->member[i];

        if (m->rule != r)
            continue;
        n_met++;
        if (m->layer > layer || (numbered && m->layer < layer) ||
            (m->expert > 0 ? m->expert : 0) * r->n_parts + m->part != due)
            break;
        if (++due == n) {
            due = 0;
            layer = numbered ? next_layer_of(x, r, layer + 1) : 1;
        }
    }
    if (n_met == 0 || layer >= (numbered ? x->z->layers : 1))
        return 0;
    return refuse_fused_param(x, family_expert_name(x->s->arena, r->part[due % r->n_parts], layer, due / r->n_parts),
                              "is missing, but the other layers have it");
}

static int check_members(const struct fusion *x)
{
    for (int i = 1; i < x->n; i++)
        if (by_fusion_place(&x->member[i - 1], &x->member[i]) == 0) {
            err_data(x->e, x->s->path, ERR_NO_BYTE, "%s and %s are two names of the same parameter",
                     x->member[i - 1].from->name, x->member[i].from->name);
            return -1;
        }
    for (int i = 0; i < x->n; i++)
        if (x->member[i].rule->dense && x->has_experts[x->member[i].layer])
            return refuse_fused_param(x, x->member[i].from->name,
                                      "belongs to a layer without experts, but the layer has experts, too");
    for (int i = 0; i < family_n(x->f); i++)
        if (check_fusion_rule_complete(x, family_at(x->f, i)) < 0)
            return -1;
    return 0;
}

/*
 * Check that all tensors have the same floating-point type, because all weights of Megatron have one type. Tensors that
 * are fp32 by their rule may differ.
 */
static int check_fused_dtypes(const struct fusion *x)
{
    const struct param *first = NULL;

    for (int i = 0; i < x->n; i++) {
        const struct param *p = x->member[i].from;
        const enum dtype t = p->state[fused_weight_state(p)]->dtype;

        if (!dtype_is_float(t))
            return refuse_fused_param(x, p->name, "does not have a floating-point type");
        if (x->member[i].rule->fp32)
            continue;
        first = first ? first : p;
        if (t == first->state[fused_weight_state(first)]->dtype)
            continue;
        err_data(x->e, x->s->path, ERR_NO_BYTE, "%s has type %s, but %s has type %s; Megatron-core needs weights of "
                                                "one type, and export-hf --dtype writes such a folder", first->name,
                 dtype_name(first->state[fused_weight_state(first)]->dtype), p->name, dtype_name(t));
        return -1;
    }
    return 0;
}

/* ---- the head ---- */

static bool is_fusion_head_rule(const struct family_rule *r)
{
    return r->merge == MERGE_VOCAB && hf_is_head(r->part[0]);
}

static const struct tmap *map_of_weights(const struct param *p)
{
    return p->state[fused_weight_state(p)];
}

/*
 * Compare a stored head with the embedding `table`. Returns 1 if they share a tensor, or if config.json ties them and
 * their values are equal. Returns 0 without comparing if config.json does not tie them, or if there is no embedding.
 * Returns -1 if config.json ties them, but they differ or cannot be read.
 */
static int check_head_is_tied(const struct fusion *x, const struct param *head, const struct param *table)
{
    int same;

    if (x->z->tied == 0 || !table)
        return 0;
    if (head->shared_with)
        return 1;
    if (x->z->tied < 0)
        return 0;
    same = hf_same_values(x->s, map_of_weights(head), map_of_weights(table), x->e);
    if (same == 0)
        return refuse_fused_param(x, head->name,
                                  "differs from the embedding, although config.json ties the two "
                                  "(tie_word_embeddings)");
    return same;
}

static int resolve_fused_head(struct fusion *x)
{
    static const char apart[] = "the head is not tied to the embedding; start Megatron with "
                                "--untie-embeddings-and-output-weights";
    const struct param *table = NULL;
    const struct family_rule *rule = NULL;
    int head = -1, tied = 1;

    for (int i = 0; i < family_n(x->f); i++)
        rule = is_fusion_head_rule(family_at(x->f, i)) ? family_at(x->f, i) : rule;
    for (int i = 0; i < x->n; i++)
        if (x->member[i].rule == rule)
            head = i;
        else if (x->member[i].rule->merge == MERGE_VOCAB)
            table = x->member[i].from;
    if (!rule)
        return 0;
    if (head < 0 && x->z->tied == 0)
        return refuse_fused_param(x, rule->part[0], "is missing, and config.json does not tie it to the embedding");
    if (head >= 0)
        tied = check_head_is_tied(x, x->member[head].from, table);
    if (tied < 0)
        return -1;
    if (head >= 0 && tied) {
        memmove(&x->member[head], &x->member[head + 1], (size_t)(x->n - head - 1) * sizeof *x->member);
        x->n--;
    }
    report_add(x->notes, SEV_NOTE, "head", NULL, ERR_NO_BYTE, NULL, "%s", tied ? "the head is the embedding" : apart);
    return 0;
}

/* ---- bytes ---- */

/*
 * If the manifest has the CRC of a whole tensor, attach this CRC to the tensor's record. The CRC is then checked when
 * the record is read, whichever parameter the tensor becomes a part of.
 */
static void attach_manifest_crcs(const struct fusion *x)
{
    for (int i = 0; i < x->n; i++) {
        struct param *p = x->member[i].from;
        const enum state st = fused_weight_state(p);
        const struct tmap *m = map_of_weights(p);
        const struct extent *t = m->n_slices == 1 && m->slice->n_extents == 1 ? m->slice->extent : NULL;
        struct record r;

        if (!t)
            continue;
        r = *files_record(x->s->files, t->record);
        if (!p->has_digest[st] || r.has_crc || t->at != 0 || t->len != r.len)
            continue;
        r.has_crc = true;
        r.crc = p->digest[st];
        p->state[st] = hf_map_of(x->s, p->state[st]->dtype,
                                 (struct extent){ files_add_record(x->s->files, &r), 0, r.len });
    }
}

static struct hf_stored stored_as(const struct param *p)
{
    struct tmap *m = p->state[fused_weight_state(p)];
    struct hf_stored t = { .name = p->name, .full = p->name, .dtype = m->dtype, .ndim = p->ndim, .map = m,
                           .x = { .len = m->len } };

    memcpy(t.shape, p->shape, sizeof t.shape);
    return t;
}

/* Transpose the parameters that Transformers stores as [in, out], which are matrices, or a matrix for each expert. */
static int transpose_fused_matrices(struct fusion *x)
{
    struct param **p = xcalloc((size_t)x->n + 1, sizeof *p);
    int n = 0, rc = 0;

    for (int i = 0; i < x->n && rc == 0; i++) {
        const struct fusion_part *m = &x->member[i];

        if (m->rule->transposed && m->from->ndim != 2 + m->rule->experts)
            rc = refuse_fused_param(x, m->from->name, "is not a matrix, but its rule transposes it");
        else if (m->rule->transposed)
            p[n++] = m->from;
    }
    if (rc == 0)
        rc = hf_transpose_params(x->s, p, n, x->o, x->e);
    free(p);
    return rc;
}

/* ---- rows ---- */

/* Rows [at, at + n) of the part with number `of`. The first length of a part is its number of rows. */
struct fusion_rows { int of; int64_t at, n; };

/*
 * Choose the rows of queries, keys and values in the order (group, kind, lane): for each group its queries, then its
 * key, then its value.
 */
static int fuse_qkv(const struct fusion *x, const struct fusion_part *m, struct fusion_rows *row)
{
    const struct hf_sizes *z = x->z;
    const int64_t q = z->heads / z->groups;
    const int64_t rows[3] = { z->heads * z->lanes, z->groups * z->lanes, z->groups * z->lanes };
    const bool apart = m->rule->n_parts == 3;
    int n = 0;

    for (int i = 0; i < m->rule->n_parts; i++)
        if (m[i].from->shape[0] != (apart ? rows[i] : rows[0] + rows[1] + rows[2]))
            return refuse_fused_param(x, m[i].from->name,
                                      "its number of rows does not match the heads, groups and head size in "
                                      "config.json");
    for (int64_t g = 0; g < z->groups; g++)
        for (int kind = 0; kind < 3; kind++) {
            const int64_t each = kind ? z->lanes : q * z->lanes;
            const int64_t before = apart || kind == 0 ? 0 : kind == 1 ? rows[0] : rows[0] + rows[1];

            row[n++] = (struct fusion_rows){ apart ? kind : 0, before + g * each, each };
        }
    return n;
}

/*
 * Choose the rows of the parts that make up a Megatron-core parameter, in order. m points to the first part. `row` must
 * have room for 3 * groups entries, plus one per part. Returns the number of entries, or -1 if the shapes do not fit.
 */
static int choose_fused_rows(const struct fusion *x, const struct fusion_part *m, struct fusion_rows *row)
{
    const struct param *first = m->from;
    const int n = n_fused_parts(x, m->rule);

    for (int i = 0; i < n; i++) {
        const struct param *p = m[i].from;

        if (p->ndim < 1 || p->shape[0] < 1 || p->state[fused_weight_state(p)]->len == 0 ||
            !shape_equal(p->ndim - 1, p->shape + 1, first->ndim - 1, first->shape + 1))
            return refuse_fused_param(x, p->name, "its shape does not match the tensors that it is joined with");
        if ((m->rule->merge == MERGE_CAT0_HALVES || n > m->rule->n_parts) && p->shape[0] != first->shape[0])
            return refuse_fused_param(x, p->name, n > m->rule->n_parts ? "has other rows than the other experts"
                                                                       : "has other rows than the other half");
        row[i] = (struct fusion_rows){ i, 0, p->shape[0] };
    }
    if (m->rule->qkv)
        return fuse_qkv(x, m, row);
    if (m->rule->merge == MERGE_VOCAB && first->shape[0] != x->z->vocab)
        return refuse_fused_param(x, first->name, "its number of rows is not vocab_size in config.json");
    if (m->rule->experts && !m->rule->each_expert && first->shape[0] != x->n_experts)
        return refuse_fused_param(x, first->name, "does not have the number of experts in config.json");
    return n;
}

/*
 * Returns the map of one state of a parameter, which is made of these rows of its parts. All parts must have the state.
 */
static struct tmap *fuse(const struct fusion *x, enum state st, const struct fusion_part *m,
                         const struct fusion_rows *row, int n)
{
    struct tmap_part *part = xcalloc((size_t)n, sizeof *part);
    struct tmap *to;

    for (int i = 0; i < n; i++) {
        const struct param *p = m[row[i].of].from;
        const struct tmap *map = p->state[st];
        const uint64_t bytes = map->len / (uint64_t)p->shape[0];

        part[i] = (struct tmap_part){ map, (uint64_t)row[i].at * bytes, (uint64_t)row[i].n * bytes };
    }
    to = tmap_parts(x->s->arena, part, n);
    free(part);
    return to;
}

/* Returns the map of a parameter of all experts, changed so that rows of gate and rows of up alternate, gate first. */
static struct tmap *separate_halves(const struct fusion *x, const struct param *p, const struct tmap *m)
{
    const int64_t experts = p->shape[0], rows = p->shape[1];
    const uint64_t row = m->len / (uint64_t)(experts * rows), half = m->len / (uint64_t)(2 * experts);
    const struct tmap *kind[] = { tmap_slice_columns(x->s->arena, m, 2 * row, 0, row),
                                  tmap_slice_columns(x->s->arena, m, 2 * row, row, row) };
    struct tmap_part *part = xcalloc((size_t)(2 * experts), sizeof *part);
    struct tmap *to;

    for (int64_t i = 0; i < 2 * experts; i++)
        part[i] = (struct tmap_part){ kind[i % 2], (uint64_t)(i / 2) * half, half };
    to = tmap_parts(x->s->arena, part, (int)(2 * experts));
    free(part);
    return to;
}

/*
 * Set the shape of a parameter that is made of n parts. If there is a part for each expert, the experts are the first
 * axis.
 */
static void shape_fused_param(const struct fusion *x, const struct fusion_part *m, const struct fusion_rows *row, int n,
                              struct param *to)
{
    int64_t rows = 0;

    for (int i = 0; i < n; i++)
        rows += row[i].n;
    if (m->rule->each_expert) {
        memmove(to->shape + 1, m->from->shape, (size_t)to->ndim * sizeof *to->shape);
        to->shape[to->ndim++ > 0] = rows / x->n_experts;
    }
    to->shape[0] = m->rule->each_expert ? x->n_experts : rows;
}

/* Check that the parts of a parameter have the same states, and are in one group of the optimizer. */
static int check_fused_states(const struct fusion *x, const struct fusion_part *m, int n)
{
    const struct param *first = m->from;

    for (int i = 1; i < n; i++)
        for (int st = 0; st < STATE_N; st++)
            if (!m[i].from->state[st] != !first->state[st] || m[i].from->group != first->group)
                return refuse_fused_param(x, m[i].from->name,
                                          "has other states, or is in another group of the optimizer, than the tensors "
                                          "that it is joined with");
    if (first->state[STATE_EXP_AVG] && m->rule->merge == MERGE_VOCAB && x->o->repeat_to > first->shape[0])
        return refuse_fused_param(x, first->name, "has states of the optimizer, to which no rows are added; omit "
                                                  "--pad-vocab-size-to");
    return 0;
}

/* Make the Megatron-core parameter *to from its parts; m points to the first part. */
static int make_fused_param(const struct fusion *x, const struct fusion_part *m, struct param *to)
{
    struct fusion_rows *row = xcalloc(3 * (size_t)x->z->groups + (size_t)n_fused_parts(x, m->rule), sizeof *row);
    const int n = choose_fused_rows(x, m, row);
    const enum state st = fused_weight_state(m->from);
    int rc = n < 0 || check_fused_states(x, m, n_fused_parts(x, m->rule)) < 0 ? -1 : 0;

    *to = *m->from;
    to->name = family_layer_name(x->s->arena, family_core_name(m->rule), m->layer);
    to->merge = family_merge(m->rule, family_core_name(m->rule));
    to->shared_with = NULL;
    memset(to->spelled, 0, sizeof to->spelled);
    if (rc == 0 && (n > 1 || (n == 1 && m->rule->each_expert))) {
        shape_fused_param(x, m, row, n, to);
        for (int i = 0; i < STATE_N; i++) {
            to->state[i] = m->from->state[i] ? fuse(x, (enum state)i, m, row, n) : NULL;
            to->has_digest[i] = false;
        }
        memset(to->tied, 0, sizeof to->tied);
        to->copy = NULL;
    } else if (n == 1 && m->rule->interleaved && (to->ndim < 2 || to->shape[1] % 2)) {
        rc = refuse_fused_param(x, m->from->name, "has no rows in pairs of gate and up");
    } else if (n == 1 && m->rule->interleaved) {
        for (int i = 0; i < STATE_N; i++) {
            to->state[i] = to->state[i] ? separate_halves(x, to, to->state[i]) : NULL;
            to->has_digest[i] = false;
        }
    } else if (n == 1 && m->rule->merge == MERGE_VOCAB && x->o->repeat_to > to->shape[0]) {
        const struct hf_stored t = stored_as(m->from);

        to->shape[0] = x->o->repeat_to;
        to->state[st] = hf_repeat_last(x->s, &t, x->o->repeat_to);
        to->has_digest[st] = false;
    }
    free(row);
    return rc;
}

static int check_repeated_vocab_rows(const struct fusion *x)
{
    const int64_t rows = x->o->repeat_to;

    if (rows == 0 || (rows >= x->z->vocab && rows - x->z->vocab <= HF_ROWS_MORE))
        return 0;
    err_usage(x->e, "a vocabulary of %lld rows was requested, but vocab_size is %lld", (long long)rows,
              (long long)x->z->vocab);
    return -1;
}

static void report_fusion_notes(const struct fusion *x)
{
    if (x->n_buffers)
        report_add(x->notes, SEV_NOTE, "buffers", NULL, ERR_NO_BYTE, NULL,
                   "%d masks and tables were omitted, because Transformers computes them", x->n_buffers);
    if (x->o->repeat_to > x->z->vocab)
        report_add(x->notes, SEV_NOTE, "vocabulary", NULL, ERR_NO_BYTE, NULL,
                   "%lld rows after the vocabulary of %lld rows are copies of its last row",
                   (long long)(x->o->repeat_to - x->z->vocab), (long long)x->z->vocab);
}

int hf_to_shards(struct source *s, const struct family *f, const struct hf_sizes *z, const struct hf_source_opts *o,
                 struct report *notes, struct err *e)
{
    struct fusion x = { .s = s, .f = f, .z = z, .o = o, .notes = notes, .e = e };
    struct param *to = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof *to);
    int rc = check_repeated_vocab_rows(&x), n = 0;

    x.member = xcalloc((size_t)s->n_params + 1, sizeof *x.member);
    x.has_experts = xcalloc((size_t)z->layers + 1, sizeof *x.has_experts);
    x.n_experts = z->experts > 0 ? (int)z->experts : 0;
    for (int i = 0; i < s->n_params && rc == 0; i++)
        rc = add_fusion_part(&x, &s->param[i]);
    if (rc == 0 && x.n == 0)
        rc = refuse_fused_param(&x, "config.json", "the folder has no tensor of the model");
    if (rc == 0)
        qsort(x.member, (size_t)x.n, sizeof *x.member, by_fusion_place);
    if (rc == 0 && (check_members(&x) < 0 || check_fused_dtypes(&x) < 0 || resolve_fused_head(&x) < 0))
        rc = -1;
    if (rc == 0) {
        attach_manifest_crcs(&x);
        rc = transpose_fused_matrices(&x);
    }
    for (int i = 0; i < x.n && rc == 0; i += n_fused_parts(&x, x.member[i].rule))
        rc = make_fused_param(&x, &x.member[i], &to[n++]);
    free(x.member);
    free(x.has_experts);
    if (rc < 0)
        return -1;
    report_fusion_notes(&x);
    s->param = to;
    s->n_params = n;
    s->names = arena_alloc(s->arena, sizeof *s->names);
    if (s->layout->model_folder)
        s->run.iteration = 0;
    return 0;
}
