/*
 * diff_pair.c - which tensor of the one checkpoint is which of the other
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "tools/ckpt-inspect/diff.h"

struct key {
    char *text;
    const struct view_tensor *tensor;
    bool used;
};

static int key_cmp(const void *a, const void *b)
{
    return strcmp(((const struct key *)a)->text, ((const struct key *)b)->text);
}

/* Numbers of layers differ between forks (docs/formats.md, section 4.1), so they are counted from the first one. */
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

/* In place of a first layer: numbers in names are no pipeline's. */
enum { PLAIN_NAMES = -2 };

static bool has_plain_names(const struct diff *d)
{
    return (d->a->source && d->a->source->kind > LAYOUT_HF) || (d->b->source && d->b->source->kind > LAYOUT_HF);
}

static char *key_text(const struct view *v, const struct view_tensor *t, int first)
{
    char kind[128];
    int layer = -1;

    if (!v->source)
        return xstrdup(t->path ? t->path : t->name);
    if (!t->param)
        return str_fmt("value %s", t->name);
    /* Models of Transformers are written with the prefix and without. */
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
    qsort(k, (size_t)v->n_all, sizeof *k, key_cmp);
    return k;
}

static void keys_free(struct key *k, int n)
{
    for (int i = 0; i < n; i++)
        free(k[i].text);
    free(k);
}

/* Same trailing dimensions, and a vocabulary whose padding may differ. */
static bool common_rows(const struct view_tensor *a, const struct view_tensor *b)
{
    if (!a->param || a->param->merge != MERGE_VOCAB || a->ndim != b->ndim || a->ndim < 1)
        return false;
    return memcmp(a->shape + 1, b->shape + 1, (size_t)(a->ndim - 1) * sizeof *a->shape) == 0;
}

static void pair_up(struct diff *d, struct diff_pair *p)
{
    const struct view_tensor *a = p->a, *b = p->b;
    bool same_shape = a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;

    p->fewer_rows = !same_shape && common_rows(a, b);
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

/* A state that one side lacks altogether (bf16 in a universal form) is no difference; --param has no say in that. */
static void find_states(const struct view *v, bool held[STATE_N])
{
    for (int i = 0; v->source && i < v->source->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            held[st] |= v->source->param[i].state[st] != NULL;
}

static bool held_by_both(const struct diff *d, const struct view_tensor *t)
{
    return t->state < 0 || (d->state_in_a[t->state] && d->state_in_b[t->state]);
}

/* What is no parameter's has another name and place in another layout: to lack it is no difference there. */
static bool is_apart(const struct diff *d, const struct view_tensor *t)
{
    const struct source *a = d->a->source, *b = d->b->source;

    return a && b && !t->param && (a->kind != b->kind || a->zero_stage != b->zero_stage);
}

static int by_path(const void *a, const void *b)
{
    const struct view_unread *x = *(const struct view_unread *const *)a, *y = *(const struct view_unread *const *)b;

    return strcmp(x->path ? x->path : x->name, y->path ? y->path : y->name);
}

/* What either side did not read: one of each name. */
static void list_unread(struct diff *d)
{
    int n = 0;

    d->unread = xcalloc((size_t)d->a->n_unread + (size_t)d->b->n_unread + 1, sizeof *d->unread);
    for (int i = 0; i < d->a->n_unread; i++)
        d->unread[n++] = &d->a->unread[i];
    for (int i = 0; i < d->b->n_unread; i++)
        d->unread[n++] = &d->b->unread[i];
    if (n)
        qsort(d->unread, (size_t)n, sizeof *d->unread, by_path);
    for (int i = 0; i < n; i++)
        if (i == 0 || by_path(&d->unread[i - 1], &d->unread[i]) != 0)
            d->unread[d->n_unread++] = d->unread[i];
}

void diff_pair(struct diff *d)
{
    int first = has_plain_names(d) ? PLAIN_NAMES : first_layer(d->a);
    struct key *a = sorted_keys(d->a, first);
    struct key *b = sorted_keys(d->b, first == PLAIN_NAMES ? first : first_layer(d->b));

    list_unread(d);
    find_states(d->a, d->state_in_a);
    find_states(d->b, d->state_in_b);
    d->pair = xcalloc((size_t)d->a->n_all + 1, sizeof *d->pair);
    d->job = xcalloc((size_t)d->a->n_all + 1, sizeof *d->job);
    d->only_b = xcalloc((size_t)d->b->n_all + 1, sizeof *d->only_b);
    for (int i = 0; i < d->a->n_all; i++) {
        struct key want = { key_text(d->a, &d->a->tensor[i], first), NULL, false };
        struct key *found = bsearch(&want, b, (size_t)d->b->n_all, sizeof *b, key_cmp);
        struct diff_pair *p = &d->pair[d->n];

        free(want.text);
        if (!held_by_both(d, &d->a->tensor[i]))
            continue;
        if (!found && is_apart(d, &d->a->tensor[i])) {
            d->n_values_a++;
            continue;
        }
        d->n++;
        p->a = &d->a->tensor[i];
        p->job = -1;
        if (!found)
            continue;
        found->used = true;
        p->b = found->tensor;
        pair_up(d, p);
    }
    for (int i = 0; i < d->b->n_all; i++)
        if (!b[i].used && is_apart(d, b[i].tensor))
            d->n_values_b++;
        else if (!b[i].used && held_by_both(d, b[i].tensor))
            d->only_b[d->n_only_b++] = b[i].tensor;
    keys_free(a, d->a->n_all);
    keys_free(b, d->b->n_all);
}
