/*
 * dcp_optimizer.c - find the entries of optimizers, which are below the keys "state" and "param_groups"
 *
 * The keys of an entry are known from planner_data. If planner_data does not have the entry, they are derived from its
 * name.
 */
#include "libcommon/layout/dcp/dcp_optimizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/unwrap.h"
#include "libcommon/format/pickle/pickle.h"

#define QUANTISED "__bnb_optimizer_quant_state__"

/*
 * The kinds of states that optimizers have for a parameter, with the names that torch, bitsandbytes and Megatron use.
 * `whole`: the state has the shape of the parameter.
 */
enum kept {
    KEPT_EXP_AVG, KEPT_EXP_AVG_SQ, KEPT_STEP, KEPT_MAX_SQ, KEPT_MOMENTUM, KEPT_SUM, KEPT_ROW, KEPT_COL, KEPT_VARIANCE,
    KEPT_SQUARE, KEPT_STATE1, KEPT_STATE2, KEPT_QMAP1, KEPT_QMAP2, KEPT_ABSMAX1, KEPT_ABSMAX2, KEPT_N,
};
static const struct { const char *name; bool whole; } kept[KEPT_N] = {
    [KEPT_EXP_AVG] = { "exp_avg", true }, [KEPT_EXP_AVG_SQ] = { "exp_avg_sq", true }, [KEPT_STEP] = { "step", false },
    [KEPT_MAX_SQ] = { "max_exp_avg_sq", true }, [KEPT_MOMENTUM] = { "momentum_buffer", true },
    [KEPT_SUM] = { "sum", false }, [KEPT_ROW] = { "row_var", false }, [KEPT_COL] = { "col_var", false },
    [KEPT_VARIANCE] = { "variance", false }, [KEPT_SQUARE] = { "square_avg", true },
    [KEPT_STATE1] = { "state1", false }, [KEPT_STATE2] = { "state2", false }, [KEPT_QMAP1] = { "qmap1", false },
    [KEPT_QMAP2] = { "qmap2", false }, [KEPT_ABSMAX1] = { "absmax1", false }, [KEPT_ABSMAX2] = { "absmax2", false },
};

/* Returns the kind of a state, according to the last key of its name, or KEPT_N if the key is not in kept[]. */
static enum kept optimizer_only_state(const char *what)
{
    const char *dot = strrchr(what, '.');
    int k = 0;

    while (k < KEPT_N && strcmp(dot ? dot + 1 : what, kept[k].name) != 0)
        k++;
    return (enum kept)k;
}

/* ---- possible optimizer entries ---- */

static const char *join_entry_path(struct arena *a, const struct dcp_entry *en, int from, int to, const char *end)
{
    struct strbuf sb = {0};
    const char *text;

    for (int i = from; i < to; i++)
        strbuf_addf(&sb, "%s%s", en->path[i], i + 1 < to ? "." : end);
    text = sb.len ? arena_strndup(a, sb.buf, sb.len) : "";
    strbuf_free(&sb);
    return text;
}

/* Returns the position in the text at which `word` is a whole key followed by another key, or NULL. */
static const char *find_path_key(const char *text, const char *word)
{
    const size_t n = strlen(word);

    for (const char *p = text; (p = strstr(p, word)) != NULL; p++)
        if ((p == text || p[-1] == '.') && p[n] == '.' && p[n + 1])
            return p;
    return NULL;
}

/*
 * Parse the text "state.<fqn>.<what>" or "param_groups.<fqn>.<option>" without knowing where its keys end. For a
 * state, split_state() later determines where <fqn> ends; until then, `of` is NULL.
 */
static bool guess_text(struct arena *a, struct dcp_entry *en, const char *text, const char *before)
{
    const char *state = find_path_key(text, "state"), *group = find_path_key(text, "param_groups");
    const char *at = state && group ? (state < group ? state : group) : state ? state : group, *rest, *dot;

    if (!at || (before && at != text))
        return false;
    rest = strchr(at, '.') + 1;
    dot = strrchr(rest, '.');
    if (!dot)
        return false;
    en->kind = at == state ? DCP_ENTRY_STATE : DCP_ENTRY_OPTION;
    en->optimizer = before ? before : arena_strndup(a, text, (size_t)(at - text));
    en->of = at == state ? NULL : arena_strndup(a, rest, (size_t)(dot - rest));
    en->what = at == state ? rest : dot + 1;
    return true;
}

static bool guess(struct arena *a, struct dcp_entry *en)
{
    if (en->n_path <= 1)                /* the program has flattened the dict itself, so the name is the only key */
        return guess_text(a, en, en->name, NULL);
    for (int k = 0; k + 2 < en->n_path; k++) {
        const bool state = strcmp(en->path[k], "state") == 0;

        if (!state && strcmp(en->path[k], "param_groups") != 0)
            continue;
        en->kind = state ? DCP_ENTRY_STATE : DCP_ENTRY_OPTION;
        en->optimizer = join_entry_path(a, en, 0, k, ".");
        en->of = en->path[k + 1];
        en->what = join_entry_path(a, en, k + 2, en->n_path, "");
        return true;
    }
    return guess_text(a, en, en->path[en->n_path - 1], join_entry_path(a, en, 0, en->n_path - 1, "."));
}

/* ---- selection of the optimizers ---- */

struct optimizer_reading {
    struct dcp_optimizers *o;
    struct dcp_naming *n;
    struct arena *a;
    struct names *value;        /* maps names to indices in n->s->value */
    int *n_options, *n_kept;    /* [optimizers] */
};

static void forget(struct dcp_entry *en)
{
    en->kind = DCP_ENTRY_OTHER;
    en->optimizer = en->of = en->what = NULL;
}

/*
 * For each key that may be an optimizer's, count the entries below the key that prove it: settings of groups, and
 * states that only optimizers have.
 */
static void find_optimizer_keys(struct optimizer_reading *rd)
{
    struct dcp_table *t = rd->n->table;
    int cap = 0;

    for (int i = 0; i < t->n; i++) {
        struct dcp_entry *en = &t->entry[i];
        int k;

        if (!guess(rd->a, en))
            continue;
        k = names_find(rd->o->by_key, en->optimizer);
        if (k < 0) {
            const int had = cap;

            ARRAY_ROOM(rd->o->one, cap, rd->o->n + 1);
            if (cap > had) {
                rd->n_options = xrealloc(rd->n_options, (size_t)cap * sizeof *rd->n_options);
                rd->n_kept = xrealloc(rd->n_kept, (size_t)cap * sizeof *rd->n_kept);
            }
            k = rd->o->n++;
            rd->o->one[k] = (struct dcp_optimizer){ .key = en->optimizer };
            rd->n_options[k] = rd->n_kept[k] = 0;
            names_add(rd->o->by_key, en->optimizer, k);
        }
        rd->n_options[k] += en->kind == DCP_ENTRY_OPTION;
        rd->n_kept[k] += en->kind == DCP_ENTRY_STATE && optimizer_only_state(en->what) < KEPT_N;
    }
}

/*
 * Remove the keys that no entry proves to be an optimizer's. These keys belong to the model, so the entries below them
 * get the kind DCP_ENTRY_OTHER again.
 */
static void drop_others(struct optimizer_reading *rd)
{
    struct dcp_optimizer *all = rd->o->one;
    int n = rd->o->n;

    rd->o->one = arena_alloc(rd->a, ((size_t)n + 1) * sizeof *all);
    rd->o->n = 0;
    rd->o->by_key = names_new(rd->a);
    for (int k = 0; k < n; k++)
        if (rd->n_options[k] || rd->n_kept[k]) {
            names_add(rd->o->by_key, all[k].key, rd->o->n);
            rd->o->one[rd->o->n++] = all[k];
        }
    free(all);
    for (int i = 0; i < rd->n->table->n; i++) {
        struct dcp_entry *en = &rd->n->table->entry[i];

        if (en->kind != DCP_ENTRY_OTHER && !dcp_optimizers_find(rd->o, en->optimizer))
            forget(en);
    }
}

struct dcp_optimizer *dcp_optimizers_find(const struct dcp_optimizers *o, const char *key)
{
    const int k = names_find(o->by_key, key);

    return k < 0 ? NULL : &o->one[k];
}

/* ---- names of parameters ---- */

static bool is_short_decimal(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == '\0' && strlen(s) < 10;
}

static int add_optimizer_param(struct dcp_optimizer *o, const char *name, int group)
{
    int k = names_find(o->known, name);

    if (k >= 0)
        return k;
    k = o->n++;
    o->name[k] = name;
    o->whole[k] = -1;
    o->group[k] = group;
    names_add(o->known, name, k);
    return k;
}

static const struct pk *dcp_entry_value(const struct optimizer_reading *rd, const struct dcp_entry *en)
{
    const int i = names_find(rd->value, en->name);

    return i < 0 ? NULL : rd->n->s->value[i].tree;
}

/* Add the names or numbers in a group's list of parameters to the names of o. */
static void add_group_param_list(struct optimizer_reading *rd, struct dcp_optimizer *o, const struct pk *list)
{
    uint32_t n = 0;
    struct pk **item = list ? pk_items(list, &n) : NULL;

    for (uint32_t i = 0; item && i < n; i++) {
        const char *name = pk_as_str(item[i]);
        int64_t number = 0;

        if (!name && pk_as_int(item[i], &number))
            name = arena_fmt(rd->a, "%" PRId64, number);
        if (name)
            add_optimizer_param(o, arena_strndup(rd->a, name, strlen(name)), o->n_groups);
    }
    o->n_groups += item != NULL;
}

/*
 * Split "<fqn>.<what>" into the name of the parameter and the name of the state. The parameter's name is the longest
 * known name with which the text begins. If there is none, the name ends before the key of quantized states, or,
 * without such a key, before the last key.
 */
static void split_state(struct optimizer_reading *rd, const struct dcp_optimizer *o, struct dcp_entry *en)
{
    const char *text = en->what, *end = strstr(text, "." QUANTISED ".");
    char *head = xstrdup(text), *dot;

    while ((dot = strrchr(head, '.')) != NULL) {
        *dot = '\0';
        if (names_find(o->known, head) >= 0)
            end = text + (dot - head);
        if (end == text + (dot - head))
            break;
    }
    free(head);
    if (!end || end == text)
        end = strrchr(text, '.');
    en->of = arena_strndup(rd->a, text, (size_t)(end - text));
    en->what = end + 1;
}

static size_t most_names(const struct optimizer_reading *rd, const struct dcp_optimizer *o)
{
    const struct dcp_table *t = rd->n->table;
    size_t most = 1;

    for (int i = 0; i < t->n; i++) {
        const struct dcp_entry *en = &t->entry[i];
        uint32_t n = 0;
        const struct pk *list;

        if (en->kind == DCP_ENTRY_OTHER || strcmp(en->optimizer, o->key) != 0)
            continue;
        list = en->kind == DCP_ENTRY_OPTION && strcmp(en->what, "params") == 0 ? dcp_entry_value(rd, en) : NULL;
        most += list && pk_items(list, &n) ? n : 1;
    }
    return most;
}

static void list_names(struct optimizer_reading *rd, struct dcp_optimizer *o)
{
    struct dcp_table *t = rd->n->table;
    const size_t most = most_names(rd, o);
    int n_numbers = 0;

    o->known = names_new(rd->a);
    o->name = arena_alloc(rd->a, most * sizeof *o->name);
    o->whole = arena_alloc(rd->a, most * sizeof *o->whole);
    o->group = arena_alloc(rd->a, most * sizeof *o->group);
    for (int i = 0; i < t->n; i++) {
        const struct dcp_entry *en = &t->entry[i];

        if (en->kind != DCP_ENTRY_OPTION || strcmp(en->optimizer, o->key) != 0)
            continue;
        if (strcmp(en->what, "params") == 0 && dcp_entry_value(rd, en))
            add_group_param_list(rd, o, dcp_entry_value(rd, en));
        else if (!is_short_decimal(en->of))
            add_optimizer_param(o, en->of, -1);
    }
    for (int i = 0; i < t->n; i++) {
        struct dcp_entry *en = &t->entry[i];
        int k;

        if (en->kind != DCP_ENTRY_STATE || strcmp(en->optimizer, o->key) != 0)
            continue;
        if (!en->of)
            split_state(rd, o, en);
        k = add_optimizer_param(o, en->of, -1);
        if (en->is_tensor && optimizer_only_state(en->what) < KEPT_N && kept[optimizer_only_state(en->what)].whole)
            o->whole[k] = i;
    }
    for (int k = 0; k < o->n; k++)
        n_numbers += is_short_decimal(o->name[k]);
    o->numbered = n_numbers > 0 && n_numbers == o->n;
}

void dcp_optimizers_read(struct dcp_optimizers *o, struct dcp_naming *n)
{
    struct optimizer_reading rd = { .o = o, .n = n, .a = n->s->arena, .value = names_new(n->s->arena) };

    *o = (struct dcp_optimizers){ .by_key = names_new(n->s->arena) };
    for (int i = 0; i < n->s->n_values; i++)
        names_add(rd.value, n->s->value[i].name, i);
    find_optimizer_keys(&rd);
    drop_others(&rd);
    for (int k = 0; k < o->n; k++)
        list_names(&rd, &o->one[k]);
    free(rd.n_options);
    free(rd.n_kept);
}

/* ---- renaming ---- */

static void set_names(struct dcp_optimizer *o, struct arena *a, const char **name)
{
    o->name = name;
    o->known = names_new(a);
    for (int i = 0; i < o->n; i++)
        names_add(o->known, name[i], i);
}

struct dcp_optimizers dcp_optimizers_unwrapped(const struct dcp_optimizers *o, struct arena *a)
{
    struct dcp_optimizers out = *o;

    out.one = arena_alloc(a, ((size_t)o->n + 1) * sizeof *out.one);
    for (int k = 0; k < o->n; k++) {
        const char **name = arena_alloc(a, ((size_t)o->one[k].n + 1) * sizeof *name);

        out.one[k] = o->one[k];
        for (int i = 0; i < o->one[k].n; i++)
            name[i] = unwrap_name(a, o->one[k].name[i]);
        set_names(&out.one[k], a, name);
    }
    return out;
}

void dcp_optimizers_unwrap_entries(struct dcp_naming *n)
{
    for (int i = 0; i < n->table->n; i++)
        if (n->table->entry[i].kind == DCP_ENTRY_STATE)
            n->table->entry[i].of = unwrap_name(n->s->arena, n->table->entry[i].of);
}

void dcp_optimizer_rename(struct dcp_optimizer *o, struct arena *a, const char **name, int count)
{
    const char **list = arena_alloc(a, ((size_t)o->n + 1) * sizeof *list);

    for (int i = 0; i < o->n; i++)
        list[i] = atoi(o->name[i]) < count ? name[atoi(o->name[i])] : o->name[i];
    set_names(o, a, list);
}

/* ---- choice among several optimizers ---- */

static bool have_common(const struct dcp_optimizer *x, const struct dcp_optimizer *y)
{
    for (int i = 0; i < x->n; i++)
        if (names_find(y->known, x->name[i]) >= 0)
            return true;
    return false;
}

/*
 * Returns true if the last key of the model's prefix occurs in the optimizer's key: "policy." in "optim.policy." or
 * "policy_optim.".
 */
static bool is_called_so(const struct dcp_optimizer *o, const char *prefix)
{
    const size_t len = strlen(prefix);
    size_t from = len ? len - 1 : 0;
    char *word;
    bool yes;

    while (from && prefix[from - 1] != '.')
        from--;
    word = str_fmt("%.*s", (int)(len ? len - 1 - from : 0), prefix + from);
    yes = *word && strstr(o->key, word) != NULL;
    free(word);
    return yes;
}

/*
 * Returns the length of the sequence of keys with which both x and y begin, such as 7 for "policy.model." and
 * "policy.optim.", which both begin with "policy.".
 */
static size_t common_keys(const char *x, const char *y)
{
    size_t n = 0;

    for (size_t i = 0; x[i] && x[i] == y[i]; i++)
        n = x[i] == '.' ? i + 1 : n;
    return n;
}

/* Returns true if the prefix belongs to a copy of a model that no optimizer trains, such as an average of weights. */
static bool is_copy(const char *prefix)
{
    static const char *const words[] = { "ema", "swa", "averag", "shadow", "teacher" };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (const char *p = prefix; (p = strstr(p, words[i])) != NULL; p++)
            if (p == prefix || p[-1] == '.' || p[-1] == '_')
                return true;
    return false;
}

bool dcp_optimizer_prefers(const struct dcp_optimizer *o, const char *other, const char *prefix)
{
    const size_t theirs = common_keys(o->key, other), ours = common_keys(o->key, prefix);

    if (is_called_so(o, other) != is_called_so(o, prefix))
        return is_called_so(o, other);
    return theirs != ours ? theirs > ours : is_copy(prefix) && !is_copy(other);
}

/*
 * Returns the one of two optimizers that belongs to the prefix: the one whose key contains the prefix's last key; else
 * the one whose key shares more leading keys with the prefix; else the one whose names all have weights. Returns NULL
 * if none of these tests decides.
 */
static struct dcp_optimizer *better(struct dcp_optimizer *x, struct dcp_optimizer *y, const char *prefix)
{
    const bool all_x = x->n_found == x->n, all_y = y->n_found == y->n;

    if (is_called_so(x, prefix) != is_called_so(y, prefix))
        return is_called_so(x, prefix) ? x : y;
    if (common_keys(x->key, prefix) != common_keys(y->key, prefix))
        return common_keys(x->key, prefix) > common_keys(y->key, prefix) ? x : y;
    return all_x == all_y ? NULL : all_x ? x : y;
}

void dcp_optimizers_choose(struct dcp_optimizers *o, const struct dcp_naming *n, const char *prefix, struct report *r)
{
    for (int i = 0; i < o->n; i++)
        for (int k = i + 1; k < o->n; k++) {
            struct dcp_optimizer *x = &o->one[i], *y = &o->one[k], *stays;

            if (!x->own || !y->own || !have_common(x, y))
                continue;
            stays = better(x, y, prefix);
            x->own = stays == x;
            y->own = stays == y;
            if (!stays && !n->no_optimizer)
                report_add(r, SEV_WARNING, "optimizer", n->path, ERR_NO_BYTE, NULL,
                           "%sstate and %sstate both have states for the model's parameters, so neither is used as its "
                           "optimizer: they are listed as values", x->key, y->key);
        }
}

/* ---- missing entries ---- */

/*
 * Pairs of states. If most parameters of a group that have the first state also have the second one, all of them must
 * have it.
 */
static const enum kept together[][2] = {
    { KEPT_EXP_AVG, KEPT_EXP_AVG_SQ }, { KEPT_EXP_AVG_SQ, KEPT_EXP_AVG }, { KEPT_EXP_AVG, KEPT_STEP },
    { KEPT_EXP_AVG_SQ, KEPT_STEP }, { KEPT_ROW, KEPT_COL }, { KEPT_COL, KEPT_ROW }, { KEPT_ROW, KEPT_STEP },
    { KEPT_VARIANCE, KEPT_STEP }, { KEPT_STATE1, KEPT_STATE2 }, { KEPT_STATE2, KEPT_STATE1 },
    { KEPT_STATE1, KEPT_STEP }, { KEPT_QMAP1, KEPT_ABSMAX1 }, { KEPT_ABSMAX1, KEPT_QMAP1 },
    { KEPT_QMAP2, KEPT_ABSMAX2 }, { KEPT_ABSMAX2, KEPT_QMAP2 }, { KEPT_QMAP1, KEPT_STATE1 },
    { KEPT_SQUARE, KEPT_STEP }, { KEPT_SUM, KEPT_STEP },
};

static unsigned *states_of(const struct dcp_optimizer *o, const struct dcp_table *t)
{
    unsigned *has = xcalloc((size_t)o->n + 1, sizeof *has);

    for (int i = 0; i < t->n; i++) {
        const struct dcp_entry *en = &t->entry[i];
        const int k = en->kind == DCP_ENTRY_STATE && strcmp(en->optimizer, o->key) == 0 ? names_find(o->known, en->of)
                                                                                        : -1;

        if (k >= 0 && optimizer_only_state(en->what) < KEPT_N)
            has[k] |= 1u << optimizer_only_state(en->what);
    }
    return has;
}

/*
 * Report parameters that have the first state of a pair but not the second, if at least as many parameters of the same
 * group have both.
 */
static void report_unpaired_states(const struct dcp_optimizer *o, const struct dcp_naming *n, struct report *r)
{
    const size_t bytes = ((size_t)o->n_groups + 1) * sizeof(int);
    unsigned *has = states_of(o, n->table);
    int *both = xmalloc(bytes), *one = xmalloc(bytes);          /* indexed by group + 1 */

    for (size_t p = 0; p < sizeof together / sizeof *together; p++) {
        const unsigned a = 1u << together[p][0], b = 1u << together[p][1];

        memset(both, 0, bytes);
        memset(one, 0, bytes);
        for (int i = 0; i < o->n; i++) {
            both[o->group[i] + 1] += (has[i] & a) && (has[i] & b);
            one[o->group[i] + 1] += (has[i] & a) && !(has[i] & b);
        }
        for (int i = 0; i < o->n; i++)
            if ((has[i] & a) && !(has[i] & b) && both[o->group[i] + 1] >= one[o->group[i] + 1])
                report_add(r, SEV_ERROR, "missing_entry", n->path, ERR_NO_BYTE, o->name[i],
                           "%sstate has its %s and not its %s", o->key, kept[together[p][0]].name,
                           kept[together[p][1]].name);
    }
    free(has);
    free(both);
    free(one);
}

bool dcp_has_spare_bytes(const struct report *r)
{
    return report_has_code(r, "gap") || report_has_code(r, "unused");
}

/* Returns for each parameter of the optimizer whether it has an entry below "state". */
static bool *have_state(const struct dcp_optimizer *o, const struct dcp_table *t)
{
    bool *has = xcalloc((size_t)o->n + 1, sizeof *has);

    for (int i = 0; i < t->n; i++) {
        const struct dcp_entry *en = &t->entry[i];
        const int k = en->kind == DCP_ENTRY_STATE && strcmp(en->optimizer, o->key) == 0 ? names_find(o->known, en->of)
                                                                                        : -1;

        if (k >= 0)
            has[k] = true;
    }
    return has;
}

/* Returns true if the settings of a group of the optimizer include Adam's betas. */
static bool has_betas(const struct dcp_optimizer *o, const struct dcp_table *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->entry[i].kind == DCP_ENTRY_OPTION && strcmp(t->entry[i].optimizer, o->key) == 0 &&
            strcmp(t->entry[i].what, "betas") == 0)
            return true;
    return false;
}

/*
 * Report the names that have no tensor, and set n->omitted. Returns an array: for each name, whether it has a tensor.
 */
static bool *report_missing_params(const struct dcp_optimizer *o, const struct dcp_naming *n,
                                   const struct dcp_model_names *m, const bool *state, struct report *r)
{
    bool *there = xcalloc((size_t)o->n + 1, sizeof *there), spare = dcp_has_spare_bytes(r);
    int omitted = 0, first = -1;

    for (int i = 0; i < o->n; i++) {
        char *name = str_fmt("%s%s", m->prefix, o->name[i]);

        there[i] = names_find(m->entry, name) >= 0;
        if (!there[i] && o->group[i] >= 0 && !state[i] && !spare) {
            names_add(n->omitted, o->name[i], i);
            first = omitted++ ? first : i;
        } else if (!there[i]) {
            report_add(r, SEV_ERROR, "missing_entry", n->path, ERR_NO_BYTE, name,
                       "%s%s names it, and there is no tensor of that name", o->key,
                       o->group[i] >= 0 ? "param_groups" : "state");
        }
        free(name);
    }
    if (omitted)
        report_add(r, SEV_WARNING, "missing_entry", n->path, ERR_NO_BYTE, o->name[first],
                   "has no tensor and no state, as %d of %d parameters of %sparam_groups: they were frozen and omitted "
                   "(ignore_frozen_params), or they are lost", omitted, o->n, o->key);
    return there;
}

/*
 * Report the parameters in groups that have a tensor but no state, if other parameters have a state, or if a group of
 * the optimizer has betas.
 */
static void report_params_without_state(const struct dcp_optimizer *o, const struct dcp_naming *n, const bool *there,
                                        const bool *state, struct report *r)
{
    int n_there = 0, n_with = 0, first = -1;

    for (int i = 0; i < o->n; i++) {
        n_there += there[i];
        n_with += there[i] && state[i];
        first = first < 0 && there[i] && !state[i] ? i : first;
    }
    if (n_with && first >= 0)
        adam_report_no_state(r, n->path, o->name[first], n_there - n_with, n_there, dcp_has_spare_bytes(r));
    else if (first >= 0 && has_betas(o, n->table))
        report_add(r, SEV_WARNING, "no_optimizer", n->path, ERR_NO_BYTE, NULL,
                   "has no state of the optimizer, but %sparam_groups has its settings", o->key);
}

static void check_own(const struct dcp_optimizer *o, const struct dcp_naming *n, const struct dcp_model_names *m,
                      struct report *r)
{
    bool *state = have_state(o, n->table), *there = report_missing_params(o, n, m, state, r);

    /* states that cannot be read are not in the table, and have already been reported */
    if (!n->no_optimizer && n->s->n_unread == 0)
        report_params_without_state(o, n, there, state, r);
    free(state);
    free(there);
}

void dcp_optimizers_check(const struct dcp_optimizers *o, const struct dcp_naming *n, const struct dcp_model_names *m,
                          struct report *r)
{
    for (int k = 0; k < o->n; k++) {
        if (o->one[k].own && o->one[k].n_found > 0)
            check_own(&o->one[k], n, m, r);
        report_unpaired_states(&o->one[k], n, r);
    }
}
