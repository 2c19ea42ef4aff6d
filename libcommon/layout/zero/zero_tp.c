/*
 * zero_tp.c - join tensor ranks (AutoTP, Megatron-DeepSpeed without pipeline) into one source
 *
 * The files of one tensor rank are a checkpoint of their own, whose parameters are slices, and are opened as such.
 * Then the slices of the same name are joined by a merge rule. The rule comes from universal_checkpoint_info, or, if
 * the files have none, from the first model family that has rules for all names (model/family.h).
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/merge_slices.h"
#include "libcommon/layout/zero/zero_source.h"
#include "libcommon/model/family.h"
#include "libcommon/model/merge_patterns.h"
#include "libcommon/plan/tmap_slice.h"

struct joining {
    struct source *const *rank;         /* [n]; the first becomes the joined source */
    int n;
    struct merge_patterns *patterns;    /* from universal_checkpoint_info; NULL if there is none */
    const struct zero_affine *affine;   /* from universal_checkpoint_info; NULL if there is none */
    int64_t vocab;                      /* original_vocab_size in it; 0 if there is none */
    int64_t hidden;                     /* hidden size; 0 if the slices do not show it */
    /* the first family with rules for all names; NULL if there is none or it is not needed */
    struct family *family;
    const struct merge_parts *parts;    /* parts of the parameter that is being joined; NULL if it is not fused */
    struct report *r;
};

/* ---- rules ---- */

static int find_tp_family(struct joining *j, const char *const *name, int n, struct err *e)
{
    const char *lacking = "";

    j->family = family_of_names(name, n, false, &lacking, e);
    if (j->family || e->kind != ERR_NONE)
        return j->family ? 0 : -1;
    err_data(e, j->rank[0]->path, ERR_NO_BYTE,
             "parameter %s: how slices of %d tensor ranks make it is not known: the checkpoint has no usable "
             "universal_checkpoint_info, and no family's rules have all names", lacking, j->n);
    return -1;
}

/*
 * Returns the family's merge rule for the parameter `name`, or -1 if it has none. The rules of a family describe the
 * trainer's parameters. Under the names of Transformers, a slice may be only a part of such a parameter. *certain is
 * set to true if every trainer splits a parameter of this name in this way.
 */
static int find_family_merge_rule(const struct family *f, const char *name, bool *certain)
{
    enum merge_rule merge;
    struct family_hit h;

    if (!family_find(f, name, &h))
        return -1;
    merge = family_merge(h.rule, name);
    /* the axis of experts precedes the rows, and a fused gate is not split along a single axis */
    if ((h.rule->experts && (h.in_shards || !h.rule->each_expert)) ||
        (!h.in_shards && merge == MERGE_CAT0_HALVES && h.rule->n_parts == 1))
        return -1;
    *certain = h.in_shards || merge == MERGE_REPLICATED;
    if (*certain)
        return (int)merge;
    if (h.rule->n_parts > 1)
        return MERGE_CAT0;
    if (h.rule->qkv)
        return -1;
    if (h.rule->transposed)
        return merge == MERGE_CAT0 ? MERGE_CAT1 : MERGE_CAT0;
    return (int)merge;
}

/* If a family has rules for all names, store it in j->family, so that its rules can be compared with the patterns. */
static void find_family_to_compare(struct joining *j, const char *const *name, int n)
{
    const char *lacking = "";
    struct err ignored = {0};

    j->family = family_of_names(name, n, false, &lacking, &ignored);
}

static int find_tp_merge_rules(struct joining *j, const struct pk *root, const char *path, struct err *e)
{
    const struct source *s = j->rank[0];
    const char **name = xmalloc(((size_t)s->n_params + 1) * sizeof *name);
    int n = 0, rc;

    for (int i = 0; i < s->n_params; i++)
        if (!s->param[i].shared_with)
            name[n++] = s->param[i].name;
    j->patterns = merge_patterns_new(pk_get(root, "universal_checkpoint_info"), name, n, true, path,
                                     j->r);
    rc = j->patterns ? 0 : find_tp_family(j, name, n, e);
    if (j->patterns)
        find_family_to_compare(j, name, n);
    free(name);
    return rc;
}

/* ---- slices ---- */

/* Returns the map of state st of p. STATE_N stands for the copy of the weights. */
static const struct tmap *slice_state_map(const struct param *p, int st)
{
    return st < STATE_N ? p->state[st] : p->copy;
}

/*
 * Returns the map of state st of a fused parameter. The map has, for each part of the parameter, the rows of all ranks
 * one after the other.
 */
static struct tmap *join_fused_parts(const struct joining *j, const struct param *whole, struct param *const *slice,
                                     int st)
{
    struct tmap_part *part = xcalloc((size_t)j->parts->n * (size_t)j->n, sizeof *part);
    uint64_t *at = xcalloc((size_t)j->n, sizeof *at);
    struct tmap *m;
    int n = 0;

    for (int k = 0; k < j->parts->n; k++)
        for (int t = 0; t < j->n; t++) {
            const struct tmap *one = slice_state_map(slice[t], st);
            const uint64_t rows = (uint64_t)merge_parts_width(j->parts, k, t, j->n);
            const uint64_t len = one->len / (uint64_t)(whole->shape[0] / j->n) * rows;

            if (len)
                part[n++] = (struct tmap_part){ one, at[t], len };
            at[t] += len;
        }
    m = tmap_parts(j->rank[0]->arena, part, n);
    free(part);
    free(at);
    return m;
}

/*
 * Join the slices of one state. Returns NULL if a rank lacks the state. If the types of the slices differ, reports this
 * and returns NULL.
 */
static struct tmap *join_maps(const struct joining *j, const struct param *whole, struct param *const *slice, int st)
{
    struct arena *a = j->rank[0]->arena;
    struct tmap *m = arena_alloc(a, sizeof *m);

    m->n_slices = j->n;
    m->slice = arena_alloc(a, (size_t)j->n * sizeof *m->slice);
    for (int t = 0; t < j->n; t++) {
        const struct tmap *one = slice_state_map(slice[t], st), *first = slice_state_map(slice[0], st);

        if (!one)
            return NULL;                /* the rank's file is not usable, which has been reported */
        if (one->dtype != first->dtype) {
            report_add(j->r, SEV_ERROR, "dtype", j->rank[0]->path, ERR_NO_BYTE, whole->name,
                       "%s on tensor rank 0, %s on %d", dtype_name(first->dtype), dtype_name(one->dtype), t);
            return NULL;
        }
        m->dtype = one->dtype;
        m->slice[t] = *one->slice;      /* the map of a single tensor rank has one slice */
    }
    if (j->parts)
        return join_fused_parts(j, whole, slice, st);
    merge_map(a, whole, st == STATE_EXP_AVG || st == STATE_EXP_AVG_SQ, m);
    return m;
}

/*
 * Find the slices of parameter p on all ranks. If one is missing or has another shape or group, reports this and
 * returns false.
 */
static bool find_slices(const struct joining *j, struct param *p, struct param **slice)
{
    slice[0] = p;
    for (int t = 1; t < j->n; t++) {
        slice[t] = source_param(j->rank[t], p->name);
        if (slice[t] && slice[t]->group == p->group &&
            shape_equal(slice[t]->ndim, slice[t]->shape, p->ndim, p->shape))
            continue;
        report_add(j->r, SEV_ERROR, "shape", j->rank[0]->path, ERR_NO_BYTE, p->name, "tensor rank %d has %s", t,
                   slice[t] ? "a slice of another shape or group than rank 0" : "no slice of it");
        return false;
    }
    return true;
}

/*
 * Returns true if all slices begin with the same values. Returns false if all of these values are the same number,
 * because equal zeros or ones do not show that the slices are copies.
 */
static bool begin_alike(const struct joining *j, struct param *const *slice)
{
    enum { BYTES = 4096 };
    char first[BYTES], other[BYTES];
    bool alike = true;

    for (int t = 0; t < j->n && alike; t++) {
        const struct tmap *m = slice[t]->state[STATE_FP32] ? slice[t]->state[STATE_FP32] : slice[t]->state[STATE_BF16];
        const struct tmap_range r = { 0, 0, m ? min_u64(m->len, BYTES) : 0 };
        struct err ignored = {0};

        const uint64_t size = m ? (uint64_t)dtype_size(m->dtype) : 1;

        if (r.len < size || tmap_read(m, j->rank[0]->files, r, t ? other : first, &ignored) < 0)
            return false;
        alike = t == 0 ? memcmp(first, first + size, r.len - size) != 0 : memcmp(first, other, r.len) == 0;
    }
    return alike;
}

/*
 * Returns the family's merge rule for p. If the rule cannot be determined, reports this and returns -1. A family's rule
 * may be wrong, because AutoTP does not split every parameter. If the rule is not certain and the slices begin with the
 * same bytes, they seem to be copies. For an embedding, the result is then MERGE_REPLICATED. For any other parameter,
 * the rule cannot be determined.
 */
static int guess_rule(const struct joining *j, const struct param *p, struct param *const *slice)
{
    bool certain = true;
    int rule = find_family_merge_rule(j->family, p->name, &certain);

    if (rule < 0)
        report_add(j->r, SEV_ERROR, "merge_rule", j->rank[0]->path, ERR_NO_BYTE, p->name,
                   "the rule of %s does not define how its slices are joined", family_name(j->family));
    if (rule < 0 || certain || !begin_alike(j, slice))
        return rule;
    if (rule == MERGE_VOCAB)
        return MERGE_REPLICATED;
    report_add(j->r, SEV_ERROR, "merge_rule", j->rank[0]->path, ERR_NO_BYTE, p->name,
               "the rule of %s is %s, but its slices begin with equal values, as copies do", family_name(j->family),
               merge_rule_name((enum merge_rule)rule));
    return -1;
}

/*
 * Check a fused parameter, whose parts are each split over the ranks. On every rank, the rows of all parts must add up
 * to the rows of the rank's slice.
 */
static bool check_parts(const struct joining *j, const struct param *p, int rule)
{
    for (int t = 0; j->parts && t < j->n; t++) {
        int64_t rows = 0, width = 0;

        for (int k = 0; k < j->parts->n && width >= 0 && rows <= p->shape[0]; k++) {
            width = merge_parts_width(j->parts, k, t, j->n);
            rows += width;
        }
        if (width >= 0 && rows == p->shape[0] && rule == MERGE_CAT0 && p->ndim > 0)
            continue;
        report_add(j->r, SEV_ERROR, "merge_rule", j->rank[0]->path, ERR_NO_BYTE, p->name,
                   "sub_param_shard_widths do not fit the slice of tensor rank %d, %lld rows by %s", t,
                   (long long)p->shape[0], merge_rule_name((enum merge_rule)rule));
        return false;
    }
    return true;
}

/*
 * Returns the hidden size of the model, or 0 if it is not known. It is the number of columns in the embedding's slice,
 * if the final norm's slice has as many elements.
 */
static int64_t find_hidden_size(const struct source *rank)
{
    static const char *const embeddings[] = { "embed_tokens.weight", "wte.weight", "word_embeddings.weight",
                                              "embed_in.weight" };
    static const char *const norms[] = { "model.norm.weight", "ln_f.weight", "final_layer_norm.weight" };
    int64_t columns = 0, norm = 0;

    for (int i = 0; i < rank->n_params; i++) {
        const struct param *p = &rank->param[i];

        for (size_t k = 0; k < sizeof embeddings / sizeof *embeddings; k++)
            columns = p->ndim == 2 && str_ends(p->name, embeddings[k]) ? p->shape[1] : columns;
        for (size_t k = 0; k < sizeof norms / sizeof *norms; k++)
            norm = p->ndim == 1 && str_ends(p->name, norms[k]) ? p->shape[0] : norm;
    }
    return columns == norm ? norm : 0;
}

/*
 * Returns true if the sizes refute `rule`: the slice already has the hidden size along the axis along which `rule`
 * would join the slices, and the family splits the parameter along the other axis. The joined tensor would then have n
 * times the hidden size.
 */
static bool is_refuted_by_size(const struct joining *j, const struct param *p, int rule, int of_family)
{
    return j->hidden > 0 && p->ndim == 2 && !j->parts &&
           ((rule == MERGE_CAT0 && of_family == MERGE_CAT1 && p->shape[0] == j->hidden) ||
            (rule == MERGE_CAT1 && of_family == MERGE_CAT0 && p->shape[1] == j->hidden));
}

/*
 * Compare the patterns' rule for p with that of the family's trainers. Warns if the patterns join the slices along
 * another axis than these trainers split, or if they join slices that are copies for these trainers. If the sizes of
 * the model refute the patterns, reports an error and returns false. A parameter that the patterns do not split is not
 * compared. One of the vocabulary is not compared either, because trainers differ there.
 */
static bool compare_rule_with_family(const struct joining *j, const struct param *p, int rule)
{
    bool certain = true;                /* ignored: a rule that is not certain also causes a warning */
    const int other = j->family ? find_family_merge_rule(j->family, p->name, &certain) : -1;
    const bool splits = rule == MERGE_CAT0 || rule == MERGE_CAT1;

    if (other == rule || !splits || (other != MERGE_CAT0 && other != MERGE_CAT1 && other != MERGE_REPLICATED))
        return true;
    if (is_refuted_by_size(j, p, rule, other)) {
        report_add(j->r, SEV_ERROR, "merge_rule", j->rank[0]->path, ERR_NO_BYTE, p->name,
                   "universal_checkpoint_info says %s, which would make %d times the hidden size of %lld of it; the "
                   "rules of the family %s say %s", merge_rule_name((enum merge_rule)rule), j->n, (long long)j->hidden,
                   family_name(j->family), merge_rule_name((enum merge_rule)other));
        return false;
    }
    report_add(j->r, SEV_WARNING, "merge_rule", j->rank[0]->path, ERR_NO_BYTE, p->name,
               "universal_checkpoint_info says %s, the rules of the family %s say %s; if the file is wrong, so is "
               "the tensor", merge_rule_name((enum merge_rule)rule), family_name(j->family),
               merge_rule_name((enum merge_rule)other));
    return true;
}

/*
 * Check a parameter that the patterns split but affine_map does not describe. If its slices begin with the same values,
 * they seem to be copies. If each of them also has all rows of the vocabulary, reports an error and returns false.
 */
static bool check_copies(const struct joining *j, const struct param *p, struct param *const *slice, int rule)
{
    const bool whole = p->ndim > 0 && j->vocab > 0 && p->shape[0] == j->vocab && rule != MERGE_CAT1;

    if (rule == MERGE_REPLICATED || zero_affine_has(j->affine, p->name) || !begin_alike(j, slice))
        return true;
    report_add(j->r, whole ? SEV_ERROR : SEV_WARNING, "merge_rule", j->rank[0]->path, ERR_NO_BYTE, p->name,
               "universal_checkpoint_info says %s, but its slices begin with equal values, as copies do%s",
               merge_rule_name((enum merge_rule)rule),
               whole ? ", and each has all rows of original_vocab_size" : "");
    return !whole;
}

static int find_slice_merge_rule(const struct joining *j, const struct param *p, struct param *const *slice)
{
    const int rule = j->patterns ? (int)merge_patterns_rule(j->patterns, p->name) : guess_rule(j, p, slice);

    if (j->patterns && !compare_rule_with_family(j, p, rule))
        return -1;
    if (rule < 0 || !check_parts(j, p, rule))
        return -1;
    return !j->patterns || check_copies(j, p, slice, rule) ? rule : -1;
}

/*
 * Check the shape and the rule of a joined parameter against affine_map and original_vocab_size. If they disagree,
 * reports an error and returns false.
 */
static bool check_joined(const struct joining *j, const struct param *whole, const struct param *slice)
{
    const struct zero_joined joined = { whole, slice->shape, j->parts, j->n, j->patterns != NULL };

    if (!zero_affine_check(j->affine, &joined, j->rank[0]->path, j->r))
        return false;
    if (whole->merge != MERGE_VOCAB || j->vocab <= whole->shape[0])
        return true;
    report_add(j->r, SEV_ERROR, "merge_rule", j->rank[0]->path, ERR_NO_BYTE, whole->name,
               "has %lld rows, original_vocab_size of universal_checkpoint_info is %lld", (long long)whole->shape[0],
               (long long)j->vocab);
    return false;
}

static void join_param(struct joining *j, struct param *p, struct param **slice)
{
    struct param whole = *p;
    int rule;

    j->parts = j->patterns ? merge_patterns_parts(j->patterns, p->name) : NULL;
    rule = find_slices(j, p, slice) ? find_slice_merge_rule(j, p, slice) : -1;
    whole.merge = rule < 0 ? MERGE_CAT0 : (enum merge_rule)rule;
    if (rule < 0 || !merge_shape(&whole, j->n, j->rank[0]->path, j->r) || !check_joined(j, &whole, p)) {
        memset(p->state, 0, sizeof p->state);
        p->copy = NULL;
        return;
    }
    for (int st = 0; st < STATE_N; st++)
        if (p->state[st])
            whole.state[st] = join_maps(j, &whole, slice, st);
    whole.copy = p->copy ? join_maps(j, &whole, slice, STATE_N) : NULL;
    *p = whole;
}

/* Give the states of a tied weight to each parameter that is another name of it. */
static void share_again(struct source *s)
{
    for (int i = 0; i < s->n_params; i++) {
        struct param *p = &s->param[i];
        const struct param *holder = p->shared_with ? source_param(s, p->shared_with) : NULL;

        if (!holder)
            continue;
        memcpy(p->shape, holder->shape, sizeof p->shape);
        memcpy(p->state, holder->state, sizeof p->state);
        p->merge = holder->merge;
    }
}

/* Compare the optimizer's settings on a tensor rank with those on rank 0. */
static void compare_rank_settings(const struct joining *j, const struct source *a, const struct source *b,
                                  enum severity severity)
{
    char *x, *y, mine[160], firsts[160];

    if (!a->run.optimizer_pt || !b->run.optimizer_pt)
        return;
    x = adam_settings(&(struct adam_file){ a->files, a->run.optimizer_pt, a->path, a->run.optimizer });
    y = adam_settings(&(struct adam_file){ b->files, b->run.optimizer_pt, b->path, b->run.optimizer });
    if (adam_settings_differ(y, x, mine, firsts) && !str_starts(mine, "param_alignment_paddings"))
        report_add(j->r, severity, "mixed_saves", pt_path(b->run.optimizer_pt), ERR_NO_BYTE, NULL,
                   "the optimizer's %s, tensor rank 0 has %s", *mine ? mine : "setting is missing",
                   *firsts ? firsts : "none");
    free(x);
    free(y);
}

/* Compare what the files of all tensor ranks state: counters, settings, and values of the user's program. */
static void compare_ranks(const struct joining *j, const struct zero *z)
{
    const enum severity severity = zero_mismatch(z);
    const struct source *a = j->rank[0];

    for (int t = 1; t < j->n; t++) {
        const struct source *b = j->rank[t];

        if (a->zero_stage != b->zero_stage || a->weights != b->weights || a->topo.dp != b->topo.dp ||
            a->run.iteration != b->run.iteration || a->run.opt_step != b->run.opt_step || a->n_params != b->n_params)
            report_add(j->r, severity, "mixed_saves", a->path, ERR_NO_BYTE, NULL,
                       "tensor rank %d has another stage, step, number of ranks or of parameters than rank 0", t);
        compare_rank_settings(j, a, b, severity);
        zero_model_compare_tensor_ranks(z, b->run.values_pt, b->files);
        if (b->run.values_pt)
            zero_tp_check_degrees(z, pt_root(b->run.values_pt), pt_path(b->run.values_pt), j->n);
    }
}

void zero_tp_check_degrees(const struct zero *z, const struct pk *root, const char *path, int n)
{
    static const char *const keys[][3] = {
        { NULL, NULL, "mp_world_size" }, { NULL, "checkpoint_parallel_dimensions", "tp_degree" },
        { NULL, "checkpoint_parallel_dimensions", "pp_degree" }, { "ds_config", "tensor_parallel", "autotp_size" },
    };

    int64_t reported = 0;

    for (int i = 0; i < 4; i++) {
        const bool stages = i == 2, config = i == 3;
        const struct pk *v = keys[i][0] ? pk_get(root, keys[i][0]) : root;
        int64_t recorded;

        if (!pk_as_int(pk_get(keys[i][1] ? pk_get(v, keys[i][1]) : v, keys[i][2]), &recorded) || recorded < 1 ||
            recorded == (stages ? 1 : n) || (config && (n == 1 || recorded == 1)) || (i == 1 && recorded == reported))
            continue;
        reported = recorded;
        report_add(z->r, config ? SEV_WARNING : zero_mismatch(z), "degrees", path, ERR_NO_BYTE, NULL,
                   "%s is %lld, but there are files of %d %s%s", keys[i][2], (long long)recorded, stages ? 1 : n,
                   stages ? "pipeline stage" : "tensor rank", stages || n == 1 ? "" : "s");
    }
}

int zero_tp_join(struct source *const *rank, int n, const struct zero *z, struct err *e)
{
    struct joining j = { .rank = rank, .n = n, .r = z->r, .affine = zero_affine_read(z),
                         .vocab = pk_int_or(pk_get(pk_get(z->root, "universal_checkpoint_info"),
                                                   "original_vocab_size"), 0),
                         .hidden = find_hidden_size(rank[0]) };
    struct param **slice = xcalloc((size_t)n, sizeof *slice);
    int rc = find_tp_merge_rules(&j, z->root, z->path, e);

    compare_ranks(&j, z);
    for (int i = 0; i < rank[0]->n_params && rc == 0; i++)
        if (!rank[0]->param[i].shared_with)
            join_param(&j, &rank[0]->param[i], slice);
    share_again(rank[0]);
    rank[0]->topo.tp = n;
    free(slice);
    family_free(j.family);
    merge_patterns_free(j.patterns);
    return rc;
}
