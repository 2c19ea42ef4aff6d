/*
 * torchdist_settings.c - compare the optimizers that common.pt lists with those whose states are in the folder
 */
#include "libcommon/layout/dcp/check/torchdist_settings.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/layout/dcp/torchdist.h"
#include "libcommon/layout/dcp/torchdist_names.h"
#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/layout/dcp/dcp_optimizer.h"

enum { MAX_OPTIMIZERS = 64, MAX_DEPTH = 4 };

/* One of several optimizers ("chained_1"), or the only one. */
struct core_optimizer {
    bool listed;                        /* common.pt has an entry for it */
    int n_groups, n_experts;            /* settings of groups; of these, of groups of experts */
    bool knows_experts;                 /* the settings state whether a group is one of experts */
    int n_states, n_moments;
    /* names for messages: of a state of an expert's parameter, of a state of another parameter, and of the first state;
     * NULL if there is none */
    const char *of_experts, *of_others;
    const char *first;
};

struct settings_check {
    const struct source *s;
    struct report *r;
    enum severity severity;
    bool chained;                       /* common.pt lists several optimizers by number */
    bool buckets;                       /* states are in buckets */
    struct core_optimizer only, of[MAX_OPTIMIZERS];
};

/* ---- what common.pt lists ---- */

static void count_groups(struct core_optimizer *o, const struct pk *list)
{
    uint32_t n = 0;
    struct pk **item = list ? pk_items(list, &n) : NULL;

    for (uint32_t i = 0; item && i < n; i++) {
        const struct pk *expert = pk_get(item[i], "is_expert_parallel");
        int64_t flag = 0;

        o->n_groups++;
        o->knows_experts |= expert != NULL;
        o->n_experts += expert && pk_as_int(expert, &flag) && flag;
    }
}

/*
 * Count the groups in the dict of one optimizer. Groups may also be in dicts inside it: under "optimizer", or under the
 * number of a chained optimizer.
 */
static void count_settings(struct core_optimizer *o, const struct pk *tree, int depth)
{
    uint32_t n = 0;
    struct pk **pair = depth < MAX_DEPTH ? pk_pairs(tree, &n) : NULL;

    count_groups(o, pk_get(tree, "param_groups"));
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (!key || strcmp(key, "optimizer") == 0)
            count_settings(o, pair[2 * i + 1], depth + 1);
    }
}

static void read_listed_optimizers(struct settings_check *c)
{
    const struct pk *tree = c->s->run.optimizer;
    uint32_t n = 0;
    struct pk **pair = tree ? pk_pairs(tree, &n) : NULL;

    for (uint32_t i = 0; pair && i < n; i++) {
        int64_t number;

        if (pk_as_str(pair[2 * i]) || !pk_as_int(pair[2 * i], &number))
            continue;
        c->chained = true;
        if (number >= 0 && number < MAX_OPTIMIZERS) {
            c->of[number].listed = true;
            count_settings(&c->of[number], pair[2 * i + 1], 0);
        }
    }
    if (!c->chained && tree)
        count_settings(&c->only, tree, 0);
}

/* ---- what the folder has ---- */

/*
 * Returns the optimizer to which a state belongs, and sets *key to the rest of the name after "state.". Returns NULL if
 * `name` is not that of a state.
 */
static struct core_optimizer *optimizer_of_state(struct settings_check *c, const char *name, const char **key)
{
    static const char state[] = "optimizer.state.", bucket[] = "optimizer.distributed.";
    const size_t digits = str_starts(name, "chained_") ? strspn(name + strlen("chained_"), "0123456789") : 0;
    const int number = digits && digits < 4 ? atoi(name + strlen("chained_")) : 0;
    const char *rest = digits ? name + strlen("chained_") + digits + 1 : name;

    if (digits && name[strlen("chained_") + digits] != '.')
        return NULL;
    *key = rest + sizeof state - 1;
    if (str_starts(rest, bucket))
        c->buckets = true;
    else if (!str_starts(rest, state))
        return NULL;
    if (str_starts(rest, bucket))
        *key = "";
    return !digits ? &c->only : digits < 4 && number < MAX_OPTIMIZERS ? &c->of[number] : NULL;
}

static void count_states(struct settings_check *c)
{
    for (int i = 0; i < c->s->dcp->n; i++) {
        const char *name = c->s->dcp->entry[i].name, *key;
        struct core_optimizer *o = optimizer_of_state(c, name, &key);

        if (!o)
            continue;
        o->n_states++;
        o->n_moments += str_starts(key, "exp_avg");
        o->first = o->first ? o->first : name;
        if (strstr(key, ".experts.experts."))
            o->of_experts = o->of_experts ? o->of_experts : name;
        else if (*key && strchr(key, '.'))
            o->of_others = o->of_others ? o->of_others : name;
    }
}

/* ---- comparison ---- */

static void report_settings(const struct settings_check *c, const char *name, const char *what, int number)
{
    report_add(c->r, c->severity, "groups", c->s->path, ERR_NO_BYTE, name, what, number, number);
}

/*
 * Returns true if groups of experts are listed, and no other groups. *any is set to true if groups of experts are
 * listed.
 */
static bool lists_experts(const struct settings_check *c, bool *any)
{
    int experts = c->only.n_experts, groups = c->only.n_groups;

    for (int i = 0; i < MAX_OPTIMIZERS; i++) {
        experts += c->of[i].n_experts;
        groups += c->of[i].n_groups;
    }
    *any = experts > 0;
    return experts > 0 && experts == groups;
}

/*
 * Compare one of several optimizers with its states. `apart`: the names of states contain the number of their
 * optimizer.
 */
static void check_optimizer(const struct settings_check *c, int number, bool apart)
{
    bool experts_known;
    const struct core_optimizer *o = &c->of[number];
    const bool of_experts = o->n_groups > 0 && o->n_experts == o->n_groups;

    if (o->n_states && !o->listed)
        report_settings(c, o->first, "is a state of optimizer %d, but " TORCHDIST_COMMON " has no settings "
                        "optimizer.%d", number);
    else if (o->n_states && o->n_groups == 0 && !c->buckets)
        report_add(c->r, SEV_WARNING, "groups", c->s->path, ERR_NO_BYTE, o->first,
                   "is a state of optimizer %d, whose settings in " TORCHDIST_COMMON " have no group", number);
    if (o->n_groups && apart && !o->n_states)
        report_settings(c, NULL, TORCHDIST_COMMON " has the settings of optimizer.%d, but no state chained_%d exists",
                        number);
    if (apart && of_experts && o->of_others)
        report_settings(c, o->of_others, "is no state of an expert, but the settings optimizer.%d are those of experts "
                        "(is_expert_parallel)", number);
    lists_experts(c, &experts_known);
    if (apart && o->n_groups && o->knows_experts && o->n_experts == 0 && o->of_experts &&
        (experts_known || !o->of_others))
        report_settings(c, o->of_experts, "is a state of an expert in optimizer %d, but no group of the settings "
                        "optimizer.%d is one of experts (is_expert_parallel)", number);
}

/* Compare the number of optimizers in the settings with that in the states. Returns false if there is no state. */
static bool check_several(const struct settings_check *c)
{
    bool apart = false, any = c->only.n_states > 0;

    for (int i = 0; i < MAX_OPTIMIZERS; i++)
        apart |= c->of[i].n_states > 0;
    for (int i = 0; i < MAX_OPTIMIZERS && (apart || any); i++)
        if (c->chained)
            check_optimizer(c, i, apart);
        else if (c->of[i].n_states && !c->only.n_states)
            report_settings(c, c->of[i].first, "is a state of one of several optimizers, number %d, but "
                            TORCHDIST_COMMON " has no settings optimizer.%d", i);
    return apart || any;
}

/*
 * Check groups of experts if the names of states do not contain the number of an optimizer: there must be states of
 * experts, and if all groups are those of experts, there must be no other states.
 */
static void check_groups_of_experts(const struct settings_check *c)
{
    bool any;
    const bool alone = lists_experts(c, &any);

    if (c->buckets || c->only.n_states == 0)
        return;
    if (any && !c->only.of_experts)
        report_add(c->r, c->severity, "groups", c->s->path, ERR_NO_BYTE, NULL, TORCHDIST_COMMON " has settings of "
                   "groups of experts (is_expert_parallel), but no state of an expert exists");
    if (alone && c->only.of_others)
        report_add(c->r, c->severity, "groups", c->s->path, ERR_NO_BYTE, c->only.of_others, "is no state of an expert, "
                   "but all groups in " TORCHDIST_COMMON " are those of experts (is_expert_parallel)");
}

/*
 * Returns true if the optimizer may have states of the parameter. It has none of a router's correction bias or of the
 * second name of a tied embedding.
 */
static bool is_trained(const struct param *p)
{
    return (p->state[STATE_BF16] || p->state[STATE_FP32]) && !str_ends(p->name, ".expert_bias") &&
           strcmp(p->name, "output_layer.weight") != 0;
}

/* Returns the keys for which any optimizer has a state, such as "decoder.layers.mlp.linear_fc1.weight". */
static struct names *list_keys_with_state(struct settings_check *c, struct arena *a)
{
    struct names *keys = names_new(a);

    for (int i = 0; i < c->s->dcp->n; i++) {
        const char *key, *dot;

        if (!optimizer_of_state(c, c->s->dcp->entry[i].name, &key))
            continue;
        dot = strchr(key, '.');
        if (dot)
            names_add(keys, dot + 1, i);
    }
    return keys;
}

/* Returns the key of a parameter: its own name, or the name of the stack that contains it as a layer. */
static const char *key_of_param(struct arena *a, const struct names *keys, const char *name)
{
    const int at = torchdist_number_place(name);
    const size_t digits = at ? strspn(name + at + 1, "0123456789") : 0;

    return names_find(keys, name) >= 0 || !digits ? name
                                                  : arena_fmt(a, "%.*s%s", at, name, name + at + 1 + digits);
}

/* Report parameters that have no state although other parameters have one. They may have been frozen. */
static void check_params_without_state(struct settings_check *c)
{
    struct arena *a = arena_new(0);
    const struct names *keys = list_keys_with_state(c, a);
    const struct param *first = NULL;
    int n_with = 0, n_without = 0;

    for (int i = 0; i < c->s->n_params && !c->buckets; i++) {
        const struct param *p = &c->s->param[i];

        if (p->state[STATE_EXP_AVG] || p->state[STATE_EXP_AVG_SQ] ||
            names_find(keys, key_of_param(a, keys, p->name)) >= 0) {
            n_with++;
        } else if (is_trained(p)) {
            n_without++;
            first = first ? first : p;
        }
    }
    if (n_with && n_without)
        adam_report_no_state(c->r, c->s->path, first->name, n_without, n_with + n_without,
                             dcp_has_spare_bytes(c->r));
    arena_free(a);
}

/*
 * Compare the form of each optimizer's states with the form recorded in content_metadata. Megatron-core loads the
 * states by the recorded form.
 */
static void check_forms(const struct settings_check *c)
{
    struct source_hit hit;
    const char *form = source_find(c->s, "content_metadata.distrib_optim_sharding_type", &hit) && hit.value &&
                       hit.value->tree ? pk_as_str(hit.value->tree) : NULL;

    for (int i = 0; form && i < c->s->n_values; i++) {
        const struct source_value *v = &c->s->value[i];
        const char *other = v->tree && str_starts(v->name, "optimizer.") &&
                            str_ends(v->name, "param_state_sharding_type") ? pk_as_str(v->tree) : NULL;

        if (other && strcmp(form, other) != 0)
            report_add(c->r, c->severity, "groups", c->s->path, ERR_NO_BYTE, v->name,
                       "is %s, but content_metadata.distrib_optim_sharding_type is %s", other, form);
    }
}

void torchdist_settings_check(const struct source *s, struct report *r)
{
    struct settings_check c = { .s = s, .r = r, .severity = s->accept_mismatch ? SEV_WARNING : SEV_ERROR };
    bool states;

    read_listed_optimizers(&c);
    count_states(&c);
    states = check_several(&c);
    if (!states && (c.chained || c.only.n_groups))
        report_add(r, SEV_WARNING, "no_optimizer", s->path, ERR_NO_BYTE, NULL, "has no state of the optimizer, but "
                   TORCHDIST_COMMON " has its settings");
    if (!c.chained && !c.buckets && c.only.n_moments && !c.only.n_groups)
        report_add(r, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, c.only.first,
                   "is a state of the optimizer, but " TORCHDIST_COMMON " has no settings of its groups");
    check_forms(&c);
    check_groups_of_experts(&c);
    check_params_without_state(&c);
}
