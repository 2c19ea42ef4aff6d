/*
 * diff_pair.c - find for each tensor of one checkpoint the corresponding tensor of the other
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/check/mismatch.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/model/params.h"
#include "tools/ckpt-inspect/diff.h"

struct key {
    char *text;
    const struct view_tensor *tensor;
    bool used;
};

static int diff_key_cmp(const void *a, const void *b)
{
    return strcmp(((const struct key *)a)->text, ((const struct key *)b)->text);
}

/*
 * Return the number of the first layer, or -1 if there are no layers. Layers are counted from the first one, because
 * forks of the trainers number them differently (docs/formats.md, section 4.1).
 */
static int first_layer(const struct view *v)
{
    int first = -1;

    for (int i = 0; v->source && i < v->n; i++) {
        char kind[128];
        int layer = -1;

        param_kind(v->tensor[i].name, &layer, kind);
        if (layer >= 0 && !str_starts(kind, "final_layernorm") && (first < 0 || layer < first))
            first = layer;
    }
    return first;
}

/* Used instead of the number of the first layer if the numbers in names are not numbers of pipeline layers. */
enum { PLAIN_NAMES = -2 };

static bool has_plain_names(const struct diff *d)
{
    return (d->a->source && source_stores_any_model(d->a->source)) ||
           (d->b->source && source_stores_any_model(d->b->source));
}

static char *key_text(const struct view *v, const struct view_tensor *t, int first)
{
    char kind[128];
    int layer = -1;

    if (!v->source)
        return xstrdup(t->path ? t->path : t->name);
    if (!t->param)
        return str_fmt("value %s", t->name);
    /* The names of a Transformers model may or may not have this prefix. */
    if (str_starts(t->name, "transformer."))
        return str_fmt("%s %s", t->name + strlen("transformer."), state_name((enum state)t->state));
    if (first == PLAIN_NAMES)
        return str_fmt("%s %s", t->name, state_name((enum state)t->state));
    param_kind(t->name, &layer, kind);
    if (layer < 0 || str_starts(kind, "final_layernorm"))
        return str_fmt("%s %s", kind, state_name((enum state)t->state));
    return str_fmt("%d.%s %s", layer - first, kind, state_name((enum state)t->state));
}

static struct key *sorted_keys(const struct view *v, int first)
{
    struct key *k = xcalloc((size_t)v->n_all + 1, sizeof *k);

    for (int i = 0; i < v->n_all; i++) {
        k[i].text = key_text(v, &v->tensor[i], first);
        k[i].tensor = &v->tensor[i];
    }
    qsort(k, (size_t)v->n_all, sizeof *k, diff_key_cmp);
    return k;
}

static void keys_free(struct key *k, int n)
{
    for (int i = 0; i < n; i++)
        free(k[i].text);
    free(k);
}

/*
 * Returns true if both tensors are vocabularies that differ only in the number of rows, because they are padded
 * differently.
 */
static bool common_rows(const struct view_tensor *a, const struct view_tensor *b)
{
    if (!a->param || a->param->merge != MERGE_VOCAB || a->ndim != b->ndim || a->ndim < 1)
        return false;
    return shape_equal(a->ndim - 1, a->shape + 1, b->ndim - 1, b->shape + 1);
}

static bool forms_differ(const struct diff *d)
{
    const struct source *a = d->a->source, *b = d->b->source;

    return a && b && !source_same_form(a, b);
}

static bool can_round(const struct view_tensor *a, const struct view_tensor *b)
{
    return a->map && b->map && a->param && b->param &&
           (a->dtype == DTYPE_F32 ? mismatch_can_compare(b->map, a->map)
                                  : b->dtype == DTYPE_F32 && mismatch_can_compare(a->map, b->map));
}

static void match_pair_tensors(struct diff *d, struct diff_pair *p)
{
    const struct view_tensor *a = p->a, *b = p->b;
    bool same_shape = shape_equal(a->ndim, a->shape, b->ndim, b->shape);

    p->fewer_rows = !same_shape && common_rows(a, b);
    p->rounded = a->dtype != b->dtype && same_shape && forms_differ(d) && can_round(a, b);
    if (p->rounded)
        return;
    if (a->dtype != b->dtype)
        p->unlike = "dtype";
    else if (!same_shape && !p->fewer_rows)
        p->unlike = "shape";
    else if (!a->map || !b->map)
        p->unlike = "pieces";
    if (p->unlike)
        return;
    p->job = d->n_jobs++;
    d->job[p->job] = (struct stats_job){
        .a = a->map, .a_files = d->a->files, .b = b->map, .b_files = d->b->files,
        .len = min_u64(a->map->len, b->map->len), .name = a->name,
    };
}

/*
 * ---- layouts that store the same tensor in different ways ----
 *
 * ZeRO-3, universal forms and torch.distributed store only the fp32 master of a trained parameter; other layouts also
 * store 16-bit weights. Frozen parameters only have weights, which a universal form converts to fp32. A model folder
 * and a folder of torch.distributed store buffers among the weights; ZeRO stores them separately.
 */

/*
 * Find a key, which is the name of a parameter and a state, or the name of a value. Frees `text`. Returns NULL if no
 * tensor has the key.
 */
static struct key *find_diff_key(struct key *k, int n, char *text)
{
    struct key want = { text, NULL, false };
    struct key *found = n ? bsearch(&want, k, (size_t)n, sizeof *k, diff_key_cmp) : NULL;

    free(text);
    return found;
}

/* Return the key of state `st` of the parameter to which tensor t belongs. The caller frees it. */
static char *key_of_state(const struct view *v, const struct view_tensor *t, int first, enum state st)
{
    struct view_tensor other = *t;

    other.state = (int)st;
    return key_text(v, &other, first);
}

static bool is_weight_tensor(const struct view_tensor *t)
{
    return t->param && (t->state == STATE_BF16 || t->state == STATE_FP32);
}

/* One side of the comparison, and the sorted keys of its tensors. */
struct side {
    const struct view *v;
    int first;                          /* number of the first layer */
    struct key *k;
};

static struct side side_of(const struct view *v, int first)
{
    return (struct side){ v, first, sorted_keys(v, first) };
}

static void side_free(struct side *s)
{
    keys_free(s->k, s->v->n_all);
}

/*
 * Find the tensor that the other side stores instead of t: the master instead of weights or the reverse, or a buffer
 * that is among the weights on one side and separate on the other. Returns its key, or NULL if there is none.
 */
static struct key *find_otherwise(const struct side *mine, const struct view_tensor *t, const struct side *others)
{
    struct key *k = others->k;
    const int n = others->v->n_all;
    const char *name = t->name;
    const enum state other = t->state == STATE_BF16 ? STATE_FP32 : STATE_BF16;
    struct key *found;

    if (is_weight_tensor(t)) {
        found = find_diff_key(k, n, key_of_state(mine->v, t, mine->first, other));
        return found || t->param->state[STATE_EXP_AVG]
                   ? found
                   : find_diff_key(k, n, str_fmt("value %s", name));
    }
    if (t->param)
        return NULL;
    found = find_diff_key(k, n, str_fmt("%s fp32", name));
    return found ? found : find_diff_key(k, n, str_fmt("%s bf16", name));
}

/*
 * Returns true if t is the second name of a tied tensor, and the other side has it under its first name. Model folders
 * and some other layouts leave out second names.
 */
static bool is_second_name(const struct diff *d, const struct side *mine, const struct view_tensor *t,
                           const struct side *others)
{
    struct view_tensor first;

    if (!t->param || !t->param->shared_with || !(forms_differ(d) || source_is_model_alone(mine->v->source)))
        return false;
    first = *t;
    first.name = t->param->shared_with;
    return find_diff_key(others->k, others->v->n_all, key_text(mine->v, &first, mine->first)) ||
           find_otherwise(mine, &first, others);
}

/*
 * Returns true if the parameter of t has both weights and a master. In this case only the one that the other layout
 * also stores is compared.
 */
static bool has_both(const struct view_tensor *t)
{
    return t->param && t->param->state[STATE_BF16] && t->param->state[STATE_FP32];
}

/*
 * Set held[st] for each state that at least one parameter of the view has, regardless of --param. If a side does not
 * store a state at all (bf16 in a universal form), this is not a difference.
 */
static void find_states(const struct view *v, bool held[STATE_N])
{
    for (int i = 0; v->source && i < source_n_params(v->source); i++)
        for (int st = 0; st < STATE_N; st++)
            held[st] |= source_param_at(v->source, i)->state[st] != NULL;
}

static bool held_by_both(const struct diff *d, const struct view_tensor *t)
{
    return t->state < 0 || (d->state_in_a[t->state] && d->state_in_b[t->state]);
}

/*
 * Returns true if the tensor is left out because the other side stores this state for no parameter. It is not left out
 * if it is the only trace of a parameter that the other side does not have.
 */
static bool is_state_of_one_side(const struct diff *d, const struct view_tensor *t, const struct view *other)
{
    if (held_by_both(d, t))
        return false;
    if (forms_differ(d) || !t->param || !other->source || source_param(other->source, t->param->name))
        return true;
    for (int st = 0; st < STATE_N; st++)
        if (t->param->state[st] && d->state_in_a[st] && d->state_in_b[st])
            return true;
    return false;
}

/*
 * Returns true if the tensor is the step counter of a Megatron-core optimizer, and the other side has the same step in
 * the settings of its groups. Which of the two places has it depends on the optimizer's form.
 */
static bool is_step_elsewhere(const struct diff *d, const struct view_tensor *t)
{
    return !t->param && str_ends(t->name, "optimizer.state.common_step") && d->a->source && d->b->source &&
           d->a->source->run.opt_step >= 0 && d->a->source->run.opt_step == d->b->source->run.opt_step;
}

static bool is_optimizer_value(const struct view_tensor *t)
{
    return !t->param && str_starts(t->name, "optimizer.state.");
}

/* Returns true if the checkpoint has states of an optimizer, as states of parameters or as values of other kinds. */
static bool has_optimizer_states(const struct view *v)
{
    for (int i = 0; v->source && i < source_n_params(v->source); i++)
        for (int st = STATE_EXP_AVG; st < STATE_N; st++)
            if (source_param_at(v->source, i)->state[st])
                return true;
    for (int i = v->n; i < v->n_all; i++)
        if (is_optimizer_value(&v->tensor[i]))
            return true;
    return false;
}

/*
 * Returns true if it is no difference that the other side lacks the tensor. This is never so for a parameter. For other
 * tensors it is so in two cases. If the layouts differ, such tensors have other names and locations. If the tensor is a
 * state of the optimizer, the other side may have no states of an optimizer, for example because of --weights-only.
 */
static bool is_apart(const struct diff *d, const struct view_tensor *t, const struct view *other)
{
    return !t->param && (forms_differ(d) || (d->a->source && is_optimizer_value(t) && !has_optimizer_states(other)));
}

static int by_unread_path(const void *a, const void *b)
{
    const struct view_unread *x = *(const struct view_unread *const *)a, *y = *(const struct view_unread *const *)b;

    return strcmp(x->path ? x->path : x->name, y->path ? y->path : y->name);
}

/* List the tensors that could not be read on at least one side, each name once. */
static void list_diff_unread(struct diff *d)
{
    int n = 0;

    d->unread = xcalloc((size_t)d->a->n_unread + (size_t)d->b->n_unread + 1, sizeof *d->unread);
    for (int i = 0; i < d->a->n_unread; i++)
        d->unread[n++] = &d->a->unread[i];
    for (int i = 0; i < d->b->n_unread; i++)
        d->unread[n++] = &d->b->unread[i];
    if (n)
        qsort(d->unread, (size_t)n, sizeof *d->unread, by_unread_path);
    for (int i = 0; i < n; i++)
        if (i == 0 || by_unread_path(&d->unread[i - 1], &d->unread[i]) != 0)
            d->unread[d->n_unread++] = d->unread[i];
}

void diff_pair(struct diff *d)
{
    int first = has_plain_names(d) ? PLAIN_NAMES : first_layer(d->a);
    struct side a = side_of(d->a, first), b = side_of(d->b, first == PLAIN_NAMES ? first : first_layer(d->b));
    struct key *found;

    list_diff_unread(d);
    find_states(d->a, d->state_in_a);
    find_states(d->b, d->state_in_b);
    d->pair = xcalloc((size_t)d->a->n_all + 1, sizeof *d->pair);
    d->job = xcalloc((size_t)d->a->n_all + 1, sizeof *d->job);
    d->only_b = xcalloc((size_t)d->b->n_all + 1, sizeof *d->only_b);
    d->master = xcalloc((size_t)d->a->n_all + (size_t)d->b->n_all + 1, sizeof *d->master);
    for (int i = 0; i < d->a->n_all; i++) {
        struct diff_pair *p = &d->pair[d->n];

        found = find_diff_key(b.k, d->b->n_all, key_text(d->a, &d->a->tensor[i], first));
        p->a = &d->a->tensor[i];
        p->job = -1;
        p->rounded = false;
        if (!found && forms_differ(d)) {
            found = find_otherwise(&a, p->a, &b);
            if (found && (has_both(p->a) || has_both(found->tensor))) {
                d->n_forms_a += held_by_both(d, p->a);
                continue;
            }
            p->rounded =
                found && is_weight_tensor(p->a) && is_weight_tensor(found->tensor) && can_round(p->a, found->tensor);
        }
        if (!found && (is_state_of_one_side(d, p->a, d->b) || is_step_elsewhere(d, p->a)))
            continue;
        if (!found && is_apart(d, p->a, d->b)) {
            d->n_values_a++;
            continue;
        }
        if (!found && is_second_name(d, &a, p->a, &b)) {
            d->n_second_a++;
            continue;
        }
        if (!found && p->a->weights) {
            d->master[d->n_masters++] = p->a;
            continue;
        }
        d->n++;
        if (!found)
            continue;
        found->used = true;
        p->b = found->tensor;
        if (!p->rounded)
            match_pair_tensors(d, p);
    }
    d->n_masters_a = d->n_masters;
    for (int i = 0; i < d->b->n_all; i++)
        if (!b.k[i].used && forms_differ(d) && (found = find_otherwise(&b, b.k[i].tensor, &a)) &&
            (has_both(b.k[i].tensor) || has_both(found->tensor)))
            d->n_forms_b += held_by_both(d, b.k[i].tensor);
        else if (!b.k[i].used && is_apart(d, b.k[i].tensor, d->a))
            d->n_values_b++;
        else if (!b.k[i].used && is_second_name(d, &b, b.k[i].tensor, &a))
            d->n_second_b++;
        else if (!b.k[i].used && b.k[i].tensor->weights)
            d->master[d->n_masters++] = b.k[i].tensor;
        else if (!b.k[i].used && !is_state_of_one_side(d, b.k[i].tensor, d->a) && !is_step_elsewhere(d, b.k[i].tensor))
            d->only_b[d->n_only_b++] = b.k[i].tensor;
    side_free(&a);
    side_free(&b);
}

/* Compare one pair block by block, after rounding. */
static int compare_rounded(const struct diff *d, struct diff_pair *p, struct err *e)
{
    enum { N = 1 << 16 };
    const bool a_wide = p->a->dtype == DTYPE_F32;
    const struct view_tensor *w = a_wide ? p->b : p->a, *m = a_wide ? p->a : p->b;
    struct files *w_files = a_wide ? d->b->files : d->a->files, *m_files = a_wide ? d->a->files : d->b->files;
    const uint64_t size = (uint64_t)dtype_size(w->dtype), elems = w->map->len / size;
    uint32_t *weights = xmalloc(N * sizeof *weights), *masters = xmalloc(N * sizeof *masters);
    int rc = 0;

    p->diff = (struct stats_diff){ .n = elems };
    for (uint64_t at = 0; at < elems && rc == 0; at += N) {
        const uint64_t n = min_u64(N, elems - at);
        struct mismatch_count c = {0};

        if (tmap_read(w->map, w_files, (struct tmap_range){ 0, at * size, n * size }, weights, e) < 0 ||
            tmap_read(m->map, m_files, (struct tmap_range){ 0, at * 4, n * 4 }, masters, e) < 0) {
            rc = -1;
        } else {
            mismatch_compare(&c, w->dtype, weights, masters, n);
            if (c.n_differ && p->diff.n_differ == 0)
                p->diff.first = at;
            p->diff.n_differ += c.n_differ;
        }
    }
    free(weights);
    free(masters);
    return rc;
}

/*
 * Check the CRCs of the records with the tensors that are compared after rounding (an fp32 tensor on one side, a 16-bit
 * tensor on the other). Check those in checkpoint A if of_a is true, else those in B.
 */
static int check_rounded_records(const struct diff *d, bool of_a, const struct stats_opts *so, struct err *e)
{
    struct stats_job *job = xcalloc((size_t)d->n + 1, sizeof *job);
    int n = 0, rc;

    for (int i = 0; i < d->n; i++)
        if (d->pair[i].rounded) {
            const struct tmap *m = of_a ? d->pair[i].a->map : d->pair[i].b->map;

            job[n++] = (struct stats_job){ .a = m, .a_files = of_a ? d->a->files : d->b->files, .len = m->len };
        }
    rc = n ? stats_run(job, n, so, e) : 0;
    free(job);
    return rc;
}

int diff_rounded(struct diff *d, const struct stats_opts *so, struct err *e)
{
    if (check_rounded_records(d, true, so, e) < 0 || check_rounded_records(d, false, so, e) < 0)
        return -1;
    for (int i = 0; i < d->n; i++)
        if (d->pair[i].rounded && compare_rounded(d, &d->pair[i], e) < 0)
            return -1;
    return 0;
}

int diff_masters(struct diff *d, const struct stats_opts *so, struct err *e)
{
    struct stats_job *job = xcalloc((size_t)d->n_masters + 1, sizeof *job);
    int rc;

    for (int i = 0; i < d->n_masters; i++) {
        struct files *files = i < d->n_masters_a ? d->a->files : d->b->files;

        job[i] = (struct stats_job){ .a = d->master[i]->map, .a_files = files, .b = d->master[i]->weights,
                                     .b_files = files, .len = d->master[i]->map->len, .name = d->master[i]->name };
    }
    rc = d->n_masters ? stats_run(job, d->n_masters, so, e) : 0;
    for (int i = 0; i < d->n_masters && rc == 0; i++)
        if (job[i].diff.n_differ == 0)
            *(i < d->n_masters_a ? &d->n_forms_a : &d->n_forms_b) += 1;
        else if (i < d->n_masters_a)
            d->pair[d->n++] = (struct diff_pair){ .a = d->master[i], .job = -1 };
        else
            d->only_b[d->n_only_b++] = d->master[i];
    free(job);
    return rc;
}
