/*
 * diff_groups.c - pair the settings of the optimizers' groups of two Megatron-core checkpoints
 *
 * The order of the groups of an optimizer has no meaning, because Megatron-core finds a group by its marks. The number
 * of one of several optimizers has a meaning, because the names of its states have it.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "tools/ckpt-inspect/diff.h"

enum { MAX_DEPTH = 4 };

struct listed_group {
    const struct pk *settings;
    const char *path;                   /* "chained_1.param_groups.0" */
    const char *of;                     /* a parameter of the optimizer that has the group; "" if it is unknown */
    const char *marks;                  /* by which Megatron-core finds the group */
    bool paired;
};

struct group_list {
    const struct source *s;
    struct arena *a;
    int n, cap;
    struct listed_group *group;
};

/* Returns the first name of a parameter whose states begin with `prefix` in the files, or "" if there is none. */
static const char *first_param(const struct source *s, const char *prefix)
{
    const char *first = "";

    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct param *p = &s->param[i];

            if (p->spelled[st] && str_starts(p->spelled[st], prefix) && (!*first || strcmp(p->name, first) < 0))
                first = p->name;
        }
    return first;
}

static const char *group_marks(struct arena *a, const struct pk *settings)
{
    static const char *const keys[] = { "is_expert_parallel", "wd_mult", "pre_wd_mult", "lr_mult", "pre_lr_mult",
                                        "is_decoupled_lr" };
    struct strbuf sb = {0};
    const char *text;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct pk *v = pk_get(settings, keys[i]);
        double number = 0;

        if (v && pk_as_double(v, &number))
            strbuf_addf(&sb, "%s %g\n", keys[i], number);
    }
    text = arena_strndup(a, sb.buf ? sb.buf : "", sb.len);
    strbuf_free(&sb);
    return text;
}

static void add_listed_group(struct group_list *l, const struct pk *settings, const char *prefix, uint32_t number,
                             const char *of)
{
    ARRAY_ROOM(l->group, l->cap, l->n + 1);
    l->group[l->n++] = (struct listed_group){ settings, arena_fmt(l->a, "%sparam_groups.%u", prefix, number), of,
                                              group_marks(l->a, settings), false };
}

/*
 * Add the groups in the dict of an optimizer. If the dict contains another optimizer or several numbered ones, add the
 * groups of these, too.
 */
static void list_groups(struct group_list *l, const struct pk *tree, const char *prefix, const char *of, int depth)
{
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(tree, "param_groups"), &n), **pair;

    for (uint32_t i = 0; item && i < n; i++)
        add_listed_group(l, item[i], prefix, i, of);
    pair = depth < MAX_DEPTH ? pk_pairs(tree, &n) : NULL;
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]), *below;
        int64_t number;

        if (key && strcmp(key, "optimizer") == 0)
            list_groups(l, pair[2 * i + 1], prefix, of, depth + 1);
        if (key || !pk_as_int(pair[2 * i], &number))
            continue;
        below = arena_fmt(l->a, "%schained_%lld.", prefix, (long long)number);
        list_groups(l, pair[2 * i + 1], below, depth == 0 ? first_param(l->s, below) : of, depth + 1);
    }
}

static void list_all_groups(struct group_list *l)
{
    struct source_hit hit;
    uint32_t n = 0;
    struct pk **item;

    list_groups(l, l->s->run.optimizer, "", "", 0);
    if (l->n || !source_find(l->s, MEGATRON_GROUPS, &hit) || !hit.value || !hit.value->tree)
        return;
    item = pk_items(hit.value->tree, &n);
    for (uint32_t i = 0; item && i < n; i++)
        add_listed_group(l, item[i], "", i, "");
}

static bool knows_optimizers(const struct group_list *l)
{
    for (int i = 0; i < l->n; i++)
        if (*l->group[i].of)
            return true;
    return false;
}

/* The ways to pair two groups, in the order of trial: equal settings, equal marks, or any groups that are left. */
enum match { MATCH_SETTINGS, MATCH_MARKS, MATCH_REST, N_MATCHES };

static bool is_match(const struct listed_group *a, const struct listed_group *b, enum match how)
{
    return how == MATCH_SETTINGS ? pk_same_text(a->settings, b->settings)
           : how == MATCH_MARKS  ? strcmp(a->marks, b->marks) == 0
                                 : true;
}

static void pair_groups(struct group_list *a, struct group_list *b, enum match how, struct diff_groups *out)
{
    const bool apart = knows_optimizers(a) && knows_optimizers(b);

    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n && !a->group[i].paired; k++) {
            struct listed_group *x = &a->group[i], *y = &b->group[k];

            if (y->paired || (apart && strcmp(x->of, y->of) != 0) || !is_match(x, y, how))
                continue;
            x->paired = y->paired = true;
            out->pair[out->n++] = (struct diff_group){ x->path, x->settings, y->settings };
        }
}

void diff_pair_groups(const struct source *a, const struct source *b, struct arena *arena, struct diff_groups *out)
{
    struct group_list of_a = { .s = a, .a = arena }, of_b = { .s = b, .a = arena };

    list_all_groups(&of_a);
    list_all_groups(&of_b);
    *out = (struct diff_groups){ .n_a = of_a.n, .n_b = of_b.n };
    out->pair = arena_alloc(arena, ((size_t)of_a.n + (size_t)of_b.n + 1) * sizeof *out->pair);
    for (enum match how = 0; how < N_MATCHES; how++)
        pair_groups(&of_a, &of_b, how, out);
    for (int i = 0; i < of_a.n; i++)
        if (!of_a.group[i].paired)
            out->pair[out->n++] = (struct diff_group){ of_a.group[i].path, of_a.group[i].settings, NULL };
    for (int i = 0; i < of_b.n; i++)
        if (!of_b.group[i].paired)
            out->pair[out->n++] = (struct diff_group){ of_b.group[i].path, NULL, of_b.group[i].settings };
    free(of_a.group);
    free(of_b.group);
}
