/*
 * diff_members.c - compare the parameters of the optimizers' groups
 *
 * Groups of the two sides are paired by their common parameters, so that their order does not count. If the layouts,
 * the pipeline stages or the numbers of groups differ, a group may have been split or merged; groups with equal
 * settings then count as one.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/source_facts.h"
#include "tools/ckpt-inspect/diff.h"

enum { BETAS, LR, DECAY, EPS, N_SETTINGS };
enum { CLASSES_MAX = 512 };             /* of more classes, the numbers are compared */

/* The groups of one side, put into classes. */
struct members {
    const struct source *s;
    struct optim_groups groups;
    int n;                              /* number of classes */
    const char **text;                  /* [groups.n]: what the class is, for the output */
    struct names *of;                   /* the class of each parameter */
};

/* Write setting `k` of a group as text. Returns false if the group does not have it as numbers. */
static bool add_setting(struct strbuf *sb, const struct pk *settings, int k)
{
    static const char *const names[N_SETTINGS] = { NULL, "lr", "weight_decay", "eps" };
    double v, w;

    if (k == BETAS && optim_settings_betas(settings, &v, &w))
        strbuf_addf(sb, "%sbetas %.9g, %.9g", sb->len ? ", " : "", v, w);
    else if (k != BETAS && optim_settings_number(settings, names[k], &v))
        strbuf_addf(sb, "%s%s %.9g", sb->len ? ", " : "", names[k], v);
    else
        return false;
    return true;
}

/* Remove from `both` the settings that a group does not have. */
static void keep_common_settings(const struct members *m, bool both[N_SETTINGS])
{
    for (int g = 0; g < m->groups.n; g++)
        for (int k = 0; k < N_SETTINGS; k++) {
            struct strbuf sb = {0};

            both[k] &= add_setting(&sb, m->groups.group[g].settings, k);
            strbuf_free(&sb);
        }
}

/*
 * Assign a class to each group. The class is the group's number or, if `both` is given, the number of the first group
 * with the same settings.
 */
static void classify_groups(struct members *m, struct arena *a, const bool *both)
{
    struct names *known = names_new(a);

    m->of = names_new(a);
    m->text = arena_alloc(a, ((size_t)m->groups.n + 1) * sizeof *m->text);
    for (int g = 0; g < m->groups.n; g++) {
        struct strbuf sb = {0};
        int at;

        if (!both)
            strbuf_addf(&sb, "%d", g);
        for (int k = 0; both && k < N_SETTINGS; k++)
            if (both[k])
                add_setting(&sb, m->groups.group[g].settings, k);
        at = names_find(known, sb.buf ? sb.buf : "");
        if (at < 0) {
            at = m->n++;
            m->text[at] = arena_strndup(a, sb.buf ? sb.buf : "", sb.len);
            names_add(known, m->text[at], at);
        }
        for (int i = 0; i < m->groups.group[g].n; i++)
            if (names_find(m->of, m->groups.group[g].param[i]) < 0)
                names_add(m->of, m->groups.group[g].param[i], at);
        strbuf_free(&sb);
    }
}

/* A parameter that both sides have, and its classes; -1: the side has it in no group. */
struct grouped_param {
    const char *name;
    int a, b;
};

/* List the parameters of the pairs of tensors, each once. Returns their number. */
static int list_members(const struct diff *d, const struct members *a, const struct members *b, struct arena *arena,
                        struct grouped_param **out)
{
    struct names *seen = names_new(arena);
    int n = 0;

    *out = arena_alloc(arena, ((size_t)d->n + 1) * sizeof **out);
    for (int i = 0; i < d->n; i++) {
        const struct param *x = d->pair[i].a->param, *y = d->pair[i].b ? d->pair[i].b->param : NULL;
        struct grouped_param m;

        if (!x || !y || names_find(seen, x->name) >= 0)
            continue;
        names_add(seen, x->name, i);
        m = (struct grouped_param){ x->name, names_find(a->of, x->name), names_find(b->of, y->name) };
        /* only some layouts list frozen parameters, but every layout lists a parameter with moments in a group */
        if ((m.a >= 0 && m.b >= 0) || ((m.a >= 0 || m.b >= 0) && source_same_layout(a->s, b->s) &&
                                       x->state[STATE_EXP_AVG] && y->state[STATE_EXP_AVG]))
            (*out)[n++] = m;
    }
    return n;
}

/*
 * Pair each class of the first side with one of the second, beginning with those that have the most parameters in
 * common. pair[i] is the class of the second side, or -1.
 */
static void pair_classes(const struct members *a, const struct members *b, const struct grouped_param *m, int n,
                         int *pair)
{
    int *common = xcalloc((size_t)a->n * (size_t)b->n + 1, sizeof *common);

    for (int i = 0; i < a->n; i++)
        pair[i] = -1;
    for (int i = 0; i < n; i++)
        if (m[i].a >= 0 && m[i].b >= 0)
            common[m[i].a * b->n + m[i].b]++;
    for (;;) {
        int best = 0;

        for (int k = 1; k < a->n * b->n; k++)
            best = common[k] > common[best] ? k : best;
        if (a->n * b->n == 0 || common[best] == 0)
            break;
        pair[best / b->n] = best % b->n;
        for (int i = 0; i < a->n; i++)
            common[i * b->n + best % b->n] = 0;
        for (int k = 0; k < b->n; k++)
            common[best / b->n * b->n + k] = 0;
    }
    free(common);
}

static json_t *class_text(const struct members *m, int at)
{
    return at < 0 ? NULL : json_string(m->text[at]);
}

/* Add a difference that names the first parameter of those whose classes are not paired. */
static void compare_members(const struct members *a, const struct members *b, const struct grouped_param *m, int n,
                            json_t *list)
{
    const bool pairs = a->n <= CLASSES_MAX && b->n <= CLASSES_MAX;
    int *pair = xcalloc((size_t)a->n + 1, sizeof *pair), first = -1, count = 0;

    if (pairs)
        pair_classes(a, b, m, n, pair);
    for (int i = 0; i < n; i++)
        if (m[i].a < 0 || m[i].b < 0 || (pairs ? pair[m[i].a] : m[i].a) != m[i].b)
            first = count++ ? first : i;
    if (count) {
        char *key = count == 1 ? str_fmt("group of %s", m[first].name)
                               : str_fmt("groups of %s and %d more", m[first].name, count - 1);

        diff_add(list, key, class_text(a, m[first].a), class_text(b, m[first].b));
        free(key);
    }
    free(pair);
}

/* Read the groups of a side. Returns 1 if the files list their parameters, 0 if not, -1 if they are contradictory. */
static int read_members(struct members *m, struct arena *a, struct err *e)
{
    if (optim_groups_read(m->s, a, &m->groups, e) < 0)
        return -1;
    return m->groups.n && (m->groups.how == OPTIM_GROUPS_LISTED || m->groups.how == OPTIM_GROUPS_BY_SETTINGS);
}

void diff_members(const struct diff *d, json_t *list)
{
    struct arena *arena = arena_new(0);
    struct members a = { .s = d->a->source }, b = { .s = d->b->source };
    struct err wrong_a = {0}, wrong_b = {0};
    const int in_a = read_members(&a, arena, &wrong_a), in_b = read_members(&b, arena, &wrong_b);
    const bool by_number = source_same_layout(a.s, b.s) && a.s->topo.pp == b.s->topo.pp && a.groups.n == b.groups.n;
    bool both[N_SETTINGS] = { true, true, true, true };
    struct grouped_param *m;
    int n;

    if (in_a < 0 || in_b < 0) {
        if (in_a >= 0 || in_b >= 0)
            diff_add(list, "parameters of groups", in_a < 0 ? json_string(wrong_a.msg) : NULL,
                     in_b < 0 ? json_string(wrong_b.msg) : NULL);
    } else if (in_a && in_b) {
        keep_common_settings(&a, both);
        keep_common_settings(&b, both);
        classify_groups(&a, arena, by_number ? NULL : both);
        classify_groups(&b, arena, by_number ? NULL : both);
        n = list_members(d, &a, &b, arena, &m);
        compare_members(&a, &b, m, n, list);
    }
    arena_free(arena);
}
