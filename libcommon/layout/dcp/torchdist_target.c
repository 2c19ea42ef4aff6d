/*
 * torchdist_target.c - list the entries of a torch_dist folder to be written, and make its common.pt
 */
#include "libcommon/layout/dcp/torchdist_target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/torchdist.h"
#include "libcommon/layout/dcp/torchdist_names.h"

static const char flattened_form[] = "fully_sharded_model_space", bucket_form[] = "dp_reshardable";
static const char whole_form[] = "fully_reshardable";

/* ---- the two files ---- */

/*
 * Add common.pt, built from the tree `root`, and metadata.json to the target. `pt` is the file that holds the storages
 * of the tensors in `root`; NULL if `root` refers to no file.
 */
static int add_files(struct dcp_target *t, const struct pk *root, const struct pt *pt, struct err *e)
{
    static const char config[] = "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                                 "\"common_backend\": \"torch\", \"common_backend_version\": 1}";
    uint8_t *bytes = NULL, *kept;
    uint64_t len;

    if (pt_build("common", root, pt, t->src->files, &bytes, &len, e) < 0)
        return -1;
    kept = arena_alloc(t->arena, len);
    memcpy(kept, bytes, len);
    free(bytes);
    t->extra = arena_alloc(t->arena, 2 * sizeof *t->extra);
    t->extra[t->n_extras++] = (struct dcp_extra){ TORCHDIST_COMMON, kept, len };
    t->extra[t->n_extras++] = (struct dcp_extra){ TORCHDIST_CONFIG, config, sizeof config - 1 };
    return 0;
}

/* ---- forms of the distributed optimizer ---- */

static struct pk *swap_form(void *ctx, const struct pk *v)
{
    const char *s = pk_as_str(v);

    return s && (strcmp(s, flattened_form) == 0 || strcmp(s, bucket_form) == 0) ? pk_str(ctx, whole_form) : NULL;
}

/*
 * If the source has flattened optimizer states, rename the entries of the fp32 master weights. The states are written
 * in their full shapes, and Megatron-core's form for full shapes has another key for these entries. Returns true if the
 * source has flattened states.
 */
static bool rename_flattened(struct dcp_target *t)
{
    static const char was[] = "optimizer.state.fp32_param.";
    bool any = false;

    for (int i = 0; i < t->table.n; i++)
        any = any || t->table.entry[i].n_whole;
    for (int i = 0; any && i < t->table.n; i++) {
        struct dcp_entry *en = &t->table.entry[i];
        const char *at = strstr(en->name, was);

        if (at)
            en->name = arena_fmt(t->arena, "%.*soptimizer.state.param.%s", (int)(at - en->name), en->name,
                                 at + sizeof was - 1);
    }
    return any;
}

/* ---- target for other layouts ---- */

/* The parameters that share one key: the layers of a stack, or a single parameter. */
struct torchdist_key {
    const char *name;                   /* "decoder.layers.mlp.linear_fc1.weight" */
    int number_at;                      /* position of the dot before the layer number; 0 if the key has no layers */
    int prefix;                         /* number of the prefix such as "decoder.layers"; -1 if the key has no layers */
    int n, cap, *param;                 /* param[layer] is the index of the layer's parameter; -1 if there is none */
};

struct torchdist_keys {
    const struct source *s;
    struct dcp_target *t;
    enum torchdist_optimizer how;
    bool chained;                       /* names of states begin with the number of their optimizer, as in chained_1. */
    int n, cap, n_prefixes;
    struct torchdist_key *key;
    struct names *known, *prefix;
    bool *uneven;                       /* [prefixes]: true if the layers below this prefix cannot be stacked */
};

static struct torchdist_key *find_or_add_torchdist_key(struct torchdist_keys *ks, const char *name, int number_at)
{
    int i = names_find(ks->known, name);
    struct torchdist_key *k;
    const char *prefix;

    if (i >= 0)
        return &ks->key[i];
    ARRAY_ROOM(ks->key, ks->cap, ks->n + 1);
    k = &ks->key[ks->n];
    *k = (struct torchdist_key){ .name = name, .number_at = number_at, .prefix = -1 };
    names_add(ks->known, name, ks->n++);
    if (number_at == 0)
        return k;
    prefix = arena_strndup(ks->t->arena, name, (size_t)number_at);
    k->prefix = names_find(ks->prefix, prefix);
    if (k->prefix < 0) {
        k->prefix = ks->n_prefixes++;
        names_add(ks->prefix, prefix, k->prefix);
    }
    return k;
}

/*
 * Add a parameter to the list of its key. For example, "decoder.layers.3.mlp.weight" is layer 3 of the key
 * "decoder.layers.mlp.weight". Returns -1 with ERR_DATA if the key already has a parameter for this layer.
 */
static int add_param_to_key(struct torchdist_keys *ks, int param, struct err *e)
{
    enum { LAYERS_MAX = 1 << 16 };
    const char *name = ks->s->param[param].name;
    int at = torchdist_number_place(name), layer = 0;
    const size_t digits = at ? strspn(name + at + 1, "0123456789") : 0;
    const bool numbered = digits > 0 && digits < 6 && name[at + 1 + (int)digits] == '.';
    struct torchdist_key *k;

    if (numbered)
        layer = atoi(name + at + 1);
    if (numbered && layer < LAYERS_MAX)
        k = find_or_add_torchdist_key(ks, arena_fmt(ks->t->arena, "%.*s%s", at, name, name + at + 1 + digits), at);
    else
        k = find_or_add_torchdist_key(ks, name, layer = 0);
    ARRAY_ROOM(k->param, k->cap, layer + 1);
    for (; k->n <= layer; k->n++)
        k->param[k->n] = -1;
    if (k->param[layer] >= 0) {
        err_data(e, ks->s->path, ERR_NO_BYTE, "parameters %s and %s: both would be layer %d of %s",
                 ks->s->param[k->param[layer]].name, name, layer, k->name);
        return -1;
    }
    k->param[layer] = param;
    return 0;
}

static bool alike(const struct param *a, const struct param *b)
{
    for (int st = 0; st < STATE_N; st++)
        if (!a->state[st] != !b->state[st] || (a->state[st] && a->state[st]->dtype != b->state[st]->dtype))
            return false;
    return a->ndim < TENSOR_MAX_DIM && shape_equal(a->ndim, a->shape, b->ndim, b->shape);
}

/*
 * Find prefixes whose layers cannot be stacked: the keys below the prefix have different numbers of layers, a layer is
 * missing, or the layers of a key differ in shape or states. Such layers are written one by one, under keys with layer
 * numbers.
 */
static void find_uneven(struct torchdist_keys *ks)
{
    int *depth = arena_alloc(ks->t->arena, ((size_t)ks->n_prefixes + 1) * sizeof *depth);

    ks->uneven = arena_alloc(ks->t->arena, (size_t)ks->n_prefixes + 1);
    for (int i = 0; i < ks->n; i++) {
        const struct torchdist_key *k = &ks->key[i];

        if (k->prefix < 0)
            continue;
        if (depth[k->prefix] == 0)
            depth[k->prefix] = k->n;
        if (depth[k->prefix] != k->n)
            ks->uneven[k->prefix] = true;
        for (int l = 0; l < k->n; l++)
            if (k->param[l] < 0 || k->param[0] < 0 ||
                !alike(&ks->s->param[k->param[0]], &ks->s->param[k->param[l]]))
                ks->uneven[k->prefix] = true;
    }
}

static void add_torchdist_entry(struct torchdist_keys *ks, const struct torchdist_key *k, const struct param *one,
                                enum state st, const char *begin)
{
    struct dcp_target *t = ks->t;
    const struct param *p = one ? one : &ks->s->param[k->param[0]];
    const bool stacked = !one;
    struct dcp_entry *en = &t->table.entry[t->table.n];
    struct dcp_part *part = &t->part[t->table.n++], *row;

    *en = (struct dcp_entry){ .name = arena_fmt(t->arena, "%s%s", begin, one ? one->name : k->name), .is_tensor = true,
                              .dtype = p->state[st]->dtype, .ndim = p->ndim + stacked };
    if (stacked)
        en->shape[0] = k->n;
    memcpy(en->shape + stacked, p->shape, (size_t)p->ndim * sizeof *p->shape);
    *part = (struct dcp_part){ .map = p->state[st], .param = stacked ? NULL : p, .state = st };
    if (!stacked)
        return;
    part->row = row = arena_alloc(t->arena, (size_t)k->n * sizeof *row);
    for (int l = 0; l < k->n; l++) {
        const struct param *q = &ks->s->param[k->param[l]];

        row[l] = (struct dcp_part){ .map = q->state[st], .param = q, .state = st };
    }
}

/* Add entries for the masters and moments of a key of the distributed optimizer. */
static void add_distributed_states(struct torchdist_keys *ks, const struct torchdist_key *k, const struct param *one)
{
    static const char *const begin[3][3] = {
        { "optimizer.state.param.", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq." },
        { "chained_0.optimizer.state.param.", "chained_0.optimizer.state.exp_avg.",
          "chained_0.optimizer.state.exp_avg_sq." },
        { "chained_1.optimizer.state.param.", "chained_1.optimizer.state.exp_avg.",
          "chained_1.optimizer.state.exp_avg_sq." },
    };
    const int which = !ks->chained ? 0 : strstr(k->name, ".experts.experts.") ? 2 : 1;

    add_torchdist_entry(ks, k, one, STATE_FP32, begin[which][0]);
    add_torchdist_entry(ks, k, one, STATE_EXP_AVG, begin[which][1]);
    add_torchdist_entry(ks, k, one, STATE_EXP_AVG_SQ, begin[which][2]);
}

/*
 * Add an entry for the weights, followed by entries for their optimizer states. `one` is the parameter to be added, or
 * NULL for the stack of all layers of the key.
 */
static void add_key_states(struct torchdist_keys *ks, const struct torchdist_key *k, const struct param *one)
{
    const struct param *p = one ? one : &ks->s->param[k->param[0]];
    const bool rounded = p->state[STATE_BF16] != NULL;

    if (!rounded && !p->state[STATE_FP32])
        return;
    add_torchdist_entry(ks, k, one, rounded ? STATE_BF16 : STATE_FP32, "");
    /* The optimizer stores states of a tied weight only under the weight's first name. */
    if (one && one->shared_with) {
        ks->t->part[ks->t->table.n - 1].again = true;
        return;
    }
    if (ks->how == TORCHDIST_DISTRIBUTED && p->state[STATE_FP32] && p->state[STATE_EXP_AVG])
        add_torchdist_entry(ks, k, one, STATE_FP32, "optimizer.state.param.");
    else if (rounded && p->state[STATE_FP32])
        add_torchdist_entry(ks, k, one, STATE_FP32, "optimizer.state.fp32_param.");
    if (p->state[STATE_EXP_AVG])
        add_torchdist_entry(ks, k, one, STATE_EXP_AVG, "optimizer.state.exp_avg.");
    if (p->state[STATE_EXP_AVG_SQ])
        add_torchdist_entry(ks, k, one, STATE_EXP_AVG_SQ, "optimizer.state.exp_avg_sq.");
}

/*
 * Add the extra-state object of a linear module. Megatron-core's loader requires one for each linear module that is
 * split over tensor-parallel ranks. The object is a list with one item per rank: an empty value for Megatron-core's own
 * modules, and fp8 data for modules of Transformer Engine. The object added here is empty. `place` consists of the
 * object's number and the number of such objects, as in "0_2".
 */
static void add_extra_state_object(struct torchdist_keys *ks, const char *key, const char *place)
{
    struct dcp_target *t = ks->t;
    struct pk *list = pk_list(t->arena);

    pk_add(t->arena, list, pk_none(t->arena));
    t->table.entry[t->table.n] = (struct dcp_entry){
        .name = arena_fmt(t->arena, "%.*s._extra_state/shard_%s", (int)(strrchr(key, '.') - key), key, place) };
    t->part[t->table.n++] = (struct dcp_part){ .tree = list };
}

static bool is_linear_weight(const struct param *p)
{
    const char *end = strrchr(p->name, '.'), *module = end;

    while (module && module > p->name && module[-1] != '.')
        module--;
    return module && strcmp(end, ".weight") == 0 && str_starts(module, "linear_");
}

/* Returns true if the parameter is the weight of a linear module of all experts of a layer. */
static bool is_of_experts(const struct param *p)
{
    return p->ndim == 3 && strstr(p->name, ".experts.experts.linear_") != NULL;
}

/* Add the extra-state objects of a key's linear modules: one per layer, or per expert and layer. */
static void add_objects(struct torchdist_keys *ks, const struct torchdist_key *k)
{
    const bool stacked = !ks->uneven[k->prefix];

    for (int l = 0; l < k->n; l++) {
        const struct param *p = k->param[l] >= 0 ? &ks->s->param[k->param[l]] : NULL;
        const char *key = p && !stacked ? p->name : k->name;
        const int at = stacked ? l : 0, of = stacked ? k->n : 1;
        char place[96];

        if (!p || !is_linear_weight(p))
            continue;
        for (int64_t e = 0; is_of_experts(p) && e < p->shape[0]; e++) {
            if (stacked)
                snprintf(place, sizeof place, "%d.%lld_%d.%lld", at, (long long)e, of, (long long)p->shape[0]);
            else
                snprintf(place, sizeof place, "%lld_%lld", (long long)e, (long long)p->shape[0]);
            add_extra_state_object(ks, key, place);
        }
        snprintf(place, sizeof place, "%d_%d", at, of);
        if (p->ndim == 2)
            add_extra_state_object(ks, key, place);
    }
}

static void add_torchdist_entries(struct torchdist_keys *ks)
{
    struct dcp_target *t = ks->t;
    size_t room = (size_t)ks->s->n_params * (STATE_N + 1) + 1;

    for (int i = 0; i < ks->s->n_params; i++)
        room += is_of_experts(&ks->s->param[i]) ? (size_t)ks->s->param[i].shape[0] : 0;
    t->table.version = "1.0.0";
    t->table.entry = arena_alloc(t->arena, room * sizeof *t->table.entry);
    t->part = arena_alloc(t->arena, room * sizeof *t->part);
    for (int i = 0; i < ks->n; i++) {
        const struct torchdist_key *k = &ks->key[i];

        if (k->prefix >= 0 && !ks->uneven[k->prefix])
            add_key_states(ks, k, NULL);
        for (int l = 0; (k->prefix < 0 || ks->uneven[k->prefix]) && l < k->n; l++)
            if (k->param[l] >= 0)
                add_key_states(ks, k, &ks->s->param[k->param[l]]);
        if (k->prefix >= 0)
            add_objects(ks, k);
    }
}

/*
 * Add the settings by which Megatron-core identifies its groups. They are missing if another program saved the groups.
 */
static void add_identifiers(struct arena *a, struct pk *options)
{
    double decay = 0;

    if (pk_get(options, "wd_mult") || pk_get(options, "pre_wd_mult"))
        return;
    pk_as_double(pk_get(options, "weight_decay"), &decay);
    pk_set_str(a, options, "wd_mult", pk_float(a, decay > 0 ? 1 : 0));
    pk_set_str(a, options, "lr_mult", pk_float(a, 1));
    pk_set_str(a, options, "is_expert_parallel", pk_bool(a, false));
    pk_set_str(a, options, "is_decoupled_lr", pk_bool(a, false));
}

/*
 * Returns the optimizer's dict for common.pt. It holds the settings of each group, without the list of parameters, and
 * the step counter. Megatron's plain optimizers have one counter for all parameters, and the distributed optimizer has
 * one in each group.
 */
static struct pk *make_torchdist_optimizer(const struct dcp_target *t, enum torchdist_optimizer how,
                                           const struct optim_groups *g)
{
    struct arena *a = t->arena;
    struct pk *d = pk_dict(a), *state = pk_dict(a), *groups = pk_list(a);
    const float step = (float)t->src->run.opt_step;
    const bool in_groups = how == TORCHDIST_DISTRIBUTED;

    for (int i = 0; i < g->n && g->group[i].settings; i++) {
        struct pk *options = pk_dict(a);
        uint32_t n = 0;
        struct pk **pair = pk_pairs(g->group[i].settings, &n);

        for (uint32_t o = 0; pair && o < n; o++)
            if (pk_as_str(pair[2 * o]) && strcmp(pk_as_str(pair[2 * o]), "params") != 0 &&
                pk_is_plain(pair[2 * o + 1]))
                pk_set_str(a, options, pk_as_str(pair[2 * o]), pk_copy(a, pair[2 * o + 1]));
        add_identifiers(a, options);
        if (in_groups && t->src->run.opt_step >= 0)
            pk_set_int(a, options, "step", t->src->run.opt_step);
        pk_add(a, groups, options);
    }
    if (in_groups) {
        struct pk *inner = pk_dict(a);

        pk_set_str(a, inner, "param_groups", groups);
        pk_set_str(a, d, "optimizer", inner);
        pk_set_str(a, d, "param_state_sharding_type", pk_str(a, "fully_reshardable"));
        return d;
    }
    if (t->src->run.opt_step >= 0)
        pk_set_str(a, state, "common_step", pt_new_filled(a, &(struct pt_new){ .dtype = DTYPE_F32 }, &step));
    pk_set_str(a, d, "state", state);
    pk_set_str(a, d, "param_groups", groups);
    return d;
}

static int add_common(struct dcp_target *t, enum torchdist_optimizer how, struct report *notes, struct err *e)
{
    const struct source *s = t->src;
    struct pk *root = pk_dict(t->arena);
    struct optim_groups g = {0};
    const bool moments = source_has_moments(s);

    if (moments && optim_groups_adam_alone(s, e) < 0)
        return -1;
    if (moments && optim_groups_read(s, t->arena, &g, e) < 0)
        return -1;
    if (moments && (g.n == 0 || !g.group[0].settings))
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                   "does not record the settings of the optimizer's groups: " TORCHDIST_COMMON " will have none");
    if (moments && s->run.opt_step < 0)
        report_add(notes, SEV_WARNING, "step", s->path, ERR_NO_BYTE, NULL,
                   "has no step of the optimizer that all parameters share: " TORCHDIST_COMMON " has none, and Adam's "
                                                                                               "step counter starts at "
                                                                                               "0");
    pk_set_str(t->arena, root, "checkpoint_version", pk_float(t->arena, 3.0));
    if (s->run.iteration >= 0)
        pk_set_int(t->arena, root, "iteration", s->run.iteration);
    if (moments)
        pk_set_str(t->arena, root, "optimizer", make_torchdist_optimizer(t, how, &g));
    if (s->n_values)
        report_add(notes, SEV_WARNING, "left_out", s->path, ERR_NO_BYTE, NULL,
                   "of %d values other than parameters, only the iteration and the settings of the optimizer are "
                   "written, because random states, schedules and arguments have a form of the program that wrote them",
                   s->n_values);
    return add_files(t, root, NULL, e);
}

static int check_megatron_core_names(const struct torchdist_keys *ks, struct err *e)
{
    for (int i = 0; i < ks->n; i++)
        if (str_starts(ks->key[i].name, "decoder.layers.") && ks->key[i].number_at)
            return 0;
    err_data(e, ks->s->path, ERR_NO_BYTE, "no parameter has a name of Megatron-core (decoder.layers.0. ...): --to "
                                          "torchdist needs these names; --config FILE translates those of "
                                          "Transformers");
    return -1;
}

static struct dcp_target *target_of_names(const struct source *s, enum torchdist_optimizer how, struct report *notes,
                                          struct err *e)
{
    struct dcp_target *t = dcp_target_empty(s);
    struct torchdist_keys ks = { .s = s, .t = t, .how = how, .known = names_new(t->arena),
                                .prefix = names_new(t->arena) };
    int rc = source_one_model(s, e) < 0 ? -1 : source_in_torch(s, e);

    for (int i = 0; i < s->n_params && rc == 0; i++)
        rc = add_param_to_key(&ks, i, e);
    if (rc == 0)
        rc = check_megatron_core_names(&ks, e);
    if (rc == 0) {
        find_uneven(&ks);
        add_torchdist_entries(&ks);
        rc = add_common(t, how, notes, e);
    }
    for (int i = 0; i < ks.n; i++)
        free(ks.key[i].param);
    free(ks.key);
    if (rc == 0)
        return t;
    dcp_target_free(t);
    return NULL;
}

/* ---- target for a source of the same layout ---- */

/* Returns true if the source has two optimizers, one for experts, in a dict under their numbers. */
static bool has_two_optimizers(const struct source *s)
{
    return !pk_get(s->run.optimizer, "param_groups");
}

/*
 * Returns true if Megatron-core's loader expects the names of states to contain the number of their optimizer: there
 * are two optimizers, and content_metadata does not state otherwise.
 */
static bool has_numbered_states(const struct source *s)
{
    const struct source_file *common = source_file(s, TORCHDIST_COMMON);
    const struct pk *metadata = pk_get(pt_root(common->pt), "content_metadata");

    return has_two_optimizers(s) && !pk_int_or(pk_get(metadata, "chained_optim_avoid_prefix"), 0);
}

/*
 * Add the states that were read from the buckets of a distributed optimizer, under the keys of their weights. They are
 * stacked if the source has stacks.
 */
static int add_bucket_states(struct dcp_target *t, struct err *e)
{
    const struct source *s = t->src;
    struct torchdist_keys ks = { .s = s, .t = t, .known = names_new(t->arena), .prefix = names_new(t->arena),
                                 .chained = has_numbered_states(s) };
    const size_t n = (size_t)t->table.n, room = n + 3 * (size_t)s->n_params + 1;
    struct dcp_entry *entry = arena_alloc(t->arena, room * sizeof *entry);
    struct dcp_part *part = arena_alloc(t->arena, room * sizeof *part);
    int rc = 0;

    memcpy(entry, t->table.entry, n * sizeof *entry);
    memcpy(part, t->part, n * sizeof *part);
    t->table.entry = entry;
    t->part = part;
    for (int i = 0; i < s->n_params && rc == 0; i++)
        rc = add_param_to_key(&ks, i, e);
    find_uneven(&ks);
    for (int i = 0; i < ks.n && rc == 0; i++) {
        const struct torchdist_key *k = &ks.key[i];
        const bool stacked = k->prefix >= 0 && !ks.uneven[k->prefix] && s->n_stacks;

        if (stacked)
            add_distributed_states(&ks, k, NULL);
        for (int l = 0; !stacked && l < k->n; l++)
            if (k->param[l] >= 0)
                add_distributed_states(&ks, k, &s->param[k->param[l]]);
    }
    for (int i = 0; i < ks.n; i++)
        free(ks.key[i].param);
    free(ks.key);
    return rc;
}

/*
 * Returns a dict with the settings of two optimizers under the optimizers' numbers. The groups of both are those of g.
 */
static struct pk *make_two_optimizers(const struct dcp_target *t, const struct optim_groups *g)
{
    struct pk *both = pk_dict(t->arena);
    uint32_t n_first = 0;

    pk_items(pk_get(pk_pairs(t->src->run.optimizer, &n_first)[1], "param_groups"), &n_first);
    for (int k = 0, from = 0; k < 2; k++) {
        const int to = k == 0 && (int)n_first < g->n ? (int)n_first : g->n;
        const struct optim_groups own = { .how = g->how, .n = to - from, .group = g->group + from };

        pk_set(t->arena, both, pk_int(t->arena, k), make_torchdist_optimizer(t, TORCHDIST_DISTRIBUTED, &own));
        from = to;
    }
    return both;
}

/* Returns the root of common.pt for a target whose optimizer states are stored in the shapes of their parameters. */
static const struct pk *root_with_whole_states(struct dcp_target *t, const struct pk *root, struct err *e)
{
    struct optim_groups g = {0};
    struct pk *changed = pk_copy_swap(t->arena, root, swap_form, t->arena);

    if (!t->table.buckets)
        return changed;
    if (optim_groups_read(t->src, t->arena, &g, e) < 0)
        return NULL;
    pk_set_str(t->arena, changed, "optimizer",
               has_two_optimizers(t->src) ? make_two_optimizers(t, &g)
                                          : make_torchdist_optimizer(t, TORCHDIST_DISTRIBUTED, &g));
    return changed;
}

static struct dcp_target *target_same(const struct source *s, struct report *notes, struct err *e)
{
    const struct source_file *common = dcp_source_file(s, TORCHDIST_COMMON);
    const struct pk *root = common && common->pt ? pt_root(common->pt) : NULL;
    struct dcp_target *t = NULL;

    if (!root)
        err_data(e, s->path, ERR_NO_BYTE, TORCHDIST_COMMON " cannot be read");
    else
        t = dcp_target_same(s, e);
    if (t && (rename_flattened(t) || t->table.buckets)) {
        root = root_with_whole_states(t, root, e);
        report_add(notes, SEV_NOTE, "optimizer", s->path, ERR_NO_BYTE, NULL,
                   "states that were saved as %s will be %s", t->table.buckets ? "dp_reshardable, in buckets,"
                                                                              : "fully_sharded_model_space, flattened,",
                   whole_form);
    }
    if (t && (!root || (t->table.buckets && add_bucket_states(t, e) < 0) || add_files(t, root, common->pt, e) < 0)) {
        dcp_target_free(t);
        t = NULL;
    }
    return t;
}

struct dcp_target *torchdist_target_new(const struct source *s, enum torchdist_optimizer how, struct report *notes,
                                        struct err *e)
{
    return s->layout == &torchdist_layout ? target_same(s, notes, e) : target_of_names(s, how, notes, e);
}
