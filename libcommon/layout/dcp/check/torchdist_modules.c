/*
 * torchdist_modules.c - compare the layers, experts and objects of Megatron-core's modules by their keys and shapes
 */
#include "libcommon/layout/dcp/check/torchdist_modules.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/torchdist_names.h"

/* Maximum number of dimensions that an object's place can have: layer, expert, and a spare one for later releases. */
enum { MAX_PLACE = 3 };

struct modules {
    const struct dcp_naming *n;
    const struct dcp_table *t;
    struct arena *a;                    /* freed at the end of the check */
    struct names *reported;             /* tensors and layers for which there is a finding */
    struct names *foreign;              /* modules with parts of other names than Megatron-core's */
    struct names *known;                /* names: the model's tensors, then (from t->n on) unread entries */
    /* the folder has a whole model: modules have objects, and a tensor precedes or follows the layers */
    bool has_objects, whole;
    bool decoder;                       /* there are layers below "decoder.layers" */
    enum severity severity;             /* of contradictions */
    struct report *r;
};

static bool is_of_optimizer(const char *name)
{
    return str_starts(name, "optimizer.") || str_starts(name, "chained_");
}

static bool is_model_tensor(const struct dcp_entry *en)
{
    return en->is_tensor && !is_of_optimizer(en->name);
}

/* Returns true if the tensor has the weights of all layers, with the layers as its first axis. */
static bool is_stack_key(const char *name)
{
    const int at = torchdist_number_place(name);

    return at > 0 && !isdigit((unsigned char)name[at + 1]);
}

static const struct dcp_entry *model_tensor(const struct modules *m, const char *name)
{
    const int i = names_find(m->known, name);

    return i >= 0 && i < m->t->n ? &m->t->entry[i] : NULL;
}

/*
 * Report that the tensor `name` does not exist although `en` does. Each name is reported once. `what` is empty or names
 * another tensor that could replace the missing one.
 */
static void report_missing_tensor(const struct modules *m, enum severity severity, const char *name, const char *what,
                                  const struct dcp_entry *en)
{
    if (names_find(m->reported, name) >= 0)
        return;
    names_add(m->reported, name, 0);
    report_add(m->r, severity, "missing_entry", m->n->path, en->said_at, name, "does not exist%s, but %s does", what,
               en->name);
}

/* ---- stacks ---- */

struct depth {
    int64_t n;                          /* number of layers that most stacks have */
    int votes, entries, alike;
};

/* Returns the number of layers on the first axis of a stack, or -1 if its chunks are not those of layers. */
static int64_t stack_depth(const struct dcp_entry *en)
{
    return en->ndim >= 1 && en->shape[0] >= 1 && en->shape[0] <= en->n_chunks ? en->shape[0] : -1;
}

static int prefix_number(const struct modules *m, struct names *prefix, const char *name, int at)
{
    const char *key = arena_strndup(m->a, name, (size_t)at);
    const int i = names_find(prefix, key);

    if (i >= 0)
        return i;
    names_add(prefix, key, names_n(prefix));
    return names_n(prefix) - 1;
}

/* Find for each prefix the number of layers that most of its stacks have, by the majority vote of Boyer and Moore. */
static void count_layers_of_stacks(const struct modules *m, struct names *prefix, struct depth *depth)
{
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < m->t->n; i++) {
            const struct dcp_entry *en = &m->t->entry[i];
            struct depth *d;

            if (!is_model_tensor(en) || !is_stack_key(en->name))
                continue;
            d = &depth[prefix_number(m, prefix, en->name, torchdist_number_place(en->name))];
            if (pass == 1) {
                d->alike += stack_depth(en) == d->n;
                continue;
            }
            d->entries++;
            if (d->votes == 0)
                d->n = stack_depth(en);
            d->votes += stack_depth(en) == d->n ? 1 : -1;
        }
}

static void check_stacks(const struct modules *m)
{
    struct names *prefix = names_new(m->a);
    struct depth *depth = arena_alloc(m->a, ((size_t)m->t->n + 1) * sizeof *depth);

    count_layers_of_stacks(m, prefix, depth);
    for (int i = 0; i < m->t->n; i++) {
        const struct dcp_entry *en = &m->t->entry[i];
        const int at = torchdist_number_place(en->name);
        const struct depth *d;

        if (!is_model_tensor(en) || !is_stack_key(en->name))
            continue;
        d = &depth[prefix_number(m, prefix, en->name, at)];
        if (d->n > 0 && d->alike * 2 > d->entries && en->ndim > 0 && en->shape[0] != d->n)
            report_add(m->r, m->severity, "shape", m->n->path, en->said_at, en->name,
                       "has length %lld in the axis of the layers, but %d of the %d stacks of %.*s have %lld",
                       (long long)en->shape[0], d->alike, d->entries, at, en->name, (long long)d->n);
    }
}

/* ---- numbers of layers ---- */

/* The layers of one prefix, whose keys have their numbers. */
struct core_layers {
    const char *prefix;                 /* "decoder.layers" */
    int n, last;                        /* number of layers, and the highest number */
    bool mixed;                         /* some layer has a mixer, so each layer has only one module */
    int n_whole;                        /* number of layers that have attention and an MLP */
};

enum { LAYERS_MAX = 1 << 16, HAS_ATTENTION = 1, HAS_MLP = 2, HAS_MIXER = 4 };

struct layer_list {
    const struct modules *m;
    struct names *prefix, *number;      /* "decoder.layers" and "decoder.layers.3" */
    struct core_layers *of;                  /* [prefixes] */
    int *has;                           /* [numbers]: the modules of the layer */
};

/*
 * Returns the next component "layers" that is followed by a number, searching from p, or NULL. Sets *number to this
 * number and *n to its length.
 */
static const char *numbered_layers(const char *name, const char *p, int *number, size_t *n)
{
    static const char word[] = "layers.";

    for (; (p = strstr(p, word)) != NULL; p++) {
        const char *digit = p + sizeof word - 1;

        *n = strspn(digit, "0123456789");
        if ((p == name || p[-1] == '.') && *n > 0 && *n < 6 && digit[*n] == '.') {
            *number = atoi(digit);
            return digit;
        }
    }
    return NULL;
}

static void add_numbered_layer(struct layer_list *l, const char *name, const char *digit, int number, size_t n)
{
    const char *rest = digit + n + 1;
    const char *key = arena_strndup(l->m->a, name, (size_t)(digit - name) + n);
    const int p = prefix_number(l->m, l->prefix, name, (int)(digit - name) - 1);
    struct core_layers *of = &l->of[p];
    int i = names_find(l->number, key);

    of->prefix = arena_strndup(l->m->a, name, (size_t)(digit - name) - 1);
    if (i < 0) {
        i = names_n(l->number);
        names_add(l->number, key, i);
        of->n++;
        of->last = number > of->last && !(n > 1 && *digit == '0') ? number : of->last;
    }
    l->has[i] |= str_starts(rest, "self_attention.") ? HAS_ATTENTION : str_starts(rest, "mlp.") ? HAS_MLP
               : str_starts(rest, "mixer.") ? HAS_MIXER : 0;
}

static void check_number(const struct modules *m, const struct dcp_entry *en, const char *digit, size_t n)
{
    const char *layer = n > 1 && *digit == '0' ? arena_strndup(m->a, en->name, (size_t)(digit - en->name) + n) : NULL;

    if (layer && names_find(m->reported, layer) < 0) {
        names_add(m->reported, layer, 0);
        report_add(m->r, m->severity, "missing_entry", m->n->path, en->said_at, layer,
                   "%.*s is no number of a layer, expected one without zeros in front: Megatron-core does not find "
                   "tensors of this name", (int)n, digit);
    }
}

/* Returns the kinds of modules that layer k has, as bits, or 0 if there is no such layer. */
static int modules_of_layer(const struct layer_list *l, const struct core_layers *of, int k)
{
    const int i = names_find(l->number, arena_fmt(l->m->a, "%s.%d", of->prefix, k));

    return i < 0 ? 0 : l->has[i];
}

/*
 * Report the layers that are missing below one prefix. A missing layer is only a warning if some layers of the model
 * have no attention or no MLP (heterogeneous blocks), because a layer of such a model may have no tensor at all.
 */
static void check_layers_of_prefix(const struct layer_list *l, const struct core_layers *of)
{
    const struct modules *m = l->m;
    bool uneven = false;
    int n_missing = 0, first = -1;

    for (int k = 0; k <= of->last && of->last < LAYERS_MAX; k++) {
        const int has = modules_of_layer(l, of, k);

        uneven |= !of->mixed && has && (has & (HAS_ATTENTION | HAS_MLP)) != (HAS_ATTENTION | HAS_MLP);
        if (names_find(l->number, arena_fmt(m->a, "%s.%d", of->prefix, k)) < 0) {
            first = n_missing++ ? first : k;
        } else if (!of->mixed && of->n_whole && has != (HAS_ATTENTION | HAS_MLP)) {
            report_add(m->r, SEV_WARNING, "missing_entry", m->n->path, ERR_NO_BYTE,
                       arena_fmt(m->a, "%s.%d", of->prefix, k), "has no tensor of %s, but %d of %d layers have %s",
                       has & HAS_ATTENTION ? "mlp" : has & HAS_MLP ? "self_attention" : "self_attention and mlp",
                       of->n_whole, of->n, has ? "both modules" : "both");
        }
    }
    if (n_missing)
        report_add(m->r, uneven ? SEV_WARNING : m->severity, "missing_entry", m->n->path, ERR_NO_BYTE,
                   arena_fmt(m->a, "%s.%d", of->prefix, first), "has no tensor, but layer %d has: %d of %d layers are "
                   "missing", of->last, n_missing, of->last + 1);
}

static void check_layer_numbers(const struct modules *m)
{
    const size_t room = 4 * (size_t)m->t->n + 1;
    struct layer_list l = { .m = m, .prefix = names_new(m->a), .number = names_new(m->a) };

    l.of = arena_alloc(m->a, room * sizeof *l.of);
    l.has = arena_alloc(m->a, room * sizeof *l.has);
    for (int i = 0; i < m->t->n + m->t->n_unread; i++) {
        const char *name = i < m->t->n ? m->t->entry[i].name : m->t->unread[i - m->t->n].name;
        int number, found = 0;
        size_t n;

        if (i < m->t->n ? !is_model_tensor(&m->t->entry[i]) : is_of_optimizer(name))
            continue;
        for (const char *p = name; found < 3 && (p = numbered_layers(name, p, &number, &n)) != NULL; found++) {
            add_numbered_layer(&l, name, p, number, n);
            if (i < m->t->n)
                check_number(m, &m->t->entry[i], p, n);
        }
    }
    for (int p = 0; p < names_n(l.prefix); p++)
        for (int k = 0; k <= l.of[p].last && l.of[p].last < LAYERS_MAX; k++) {
            const int has = modules_of_layer(&l, &l.of[p], k);

            l.of[p].mixed |= (has & HAS_MIXER) != 0;
            l.of[p].n_whole += has == (HAS_ATTENTION | HAS_MLP);
        }
    for (int p = 0; p < names_n(l.prefix); p++)
        check_layers_of_prefix(&l, &l.of[p]);
}

/* ---- tensors of layers of one kind ---- */

/* A tensor that layers of one kind have: its name without the number of the layer. */
struct kind_tensor {
    const char *kind, *rest;
    int n;                              /* number of layers of the kind that have it */
};

/*
 * Returns the kind of a layer as a text: the prefix, and which modules the layer has (router, MLP, mixer, attention
 * with compressed keys and values, attention with one module for queries, keys and values). The kind is made for the
 * layer's tensor `rest`: if this is a tensor of attention, the MLP is ignored, and the reverse. `layer` is the layer's
 * name, such as "decoder.layers.3".
 */
static const char *kind_of_layer(const struct modules *m, const char *layer, const char *rest)
{
    static const char *const parts[] = { "mlp.router.weight", "mlp.linear_fc1.weight", "mixer.in_proj.weight",
                                         "self_attention.linear_kv_down_proj.weight",
                                         "self_attention.linear_qkv.weight" };
    const bool attention = str_starts(rest, "self_attention.") || str_starts(rest, "input_layernorm.");
    const bool mlp = str_starts(rest, "mlp.") || str_starts(rest, "pre_mlp_layernorm.");
    const char *dot = strrchr(layer, '.');
    char bits[sizeof parts / sizeof *parts + 1] = {0};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        bits[i] = (attention && str_starts(parts[i], "mlp.")) || (mlp && !str_starts(parts[i], "mlp.")) ? '-'
                  : names_find(m->known, arena_fmt(m->a, "%s.%s", layer, parts[i])) >= 0                ? '1' : '0';
    return arena_fmt(m->a, "%.*s %s", (int)(dot - layer), layer, bits);
}

/* Report for each layer the first tensor that the layer lacks but other layers of the same kind have. */
static void compare_layers_of_kind(const struct modules *m, const struct kind_tensor *t, int n, struct names *layers,
                                   const char **layer)
{
    for (int l = 0; l < names_n(layers); l++) {
        const char *first = NULL;
        int n_missing = 0, others = 0;

        for (int k = 0; k < n; k++) {
            if (strcmp(t[k].kind, kind_of_layer(m, layer[l], t[k].rest)) != 0 ||
                names_find(m->known, arena_fmt(m->a, "%s.%s", layer[l], t[k].rest)) >= 0)
                continue;
            others = n_missing++ ? others : t[k].n;
            first = first ? first : t[k].rest;
        }
        if (n_missing)
            report_add(m->r, SEV_WARNING, "missing_entry", m->n->path, ERR_NO_BYTE,
                       arena_fmt(m->a, "%s.%s", layer[l], first),
                       "does not exist, but %d other layer%s of its kind ha%s it; %d tensor%s of this layer %s missing",
                       others, others == 1 ? "" : "s",
                       others == 1 ? "s" : "ve", n_missing, n_missing == 1 ? "" : "s", n_missing == 1 ? "is" : "are");
    }
}

/* Compare the tensors of numbered layers of the same kind with each other. Tensors of adapters are not compared. */
static void check_layers_of_kind(const struct modules *m)
{
    struct names *known = names_new(m->a), *layers = names_new(m->a);
    struct kind_tensor *t = arena_alloc(m->a, ((size_t)m->t->n + 1) * sizeof *t);
    const char **layer = arena_alloc(m->a, ((size_t)m->t->n + 1) * sizeof *layer);

    for (int i = 0; i < m->t->n; i++) {
        const struct dcp_entry *en = &m->t->entry[i];
        const int at = is_model_tensor(en) ? torchdist_number_place(en->name) : 0;
        const size_t n = at ? strspn(en->name + at + 1, "0123456789") : 0;
        const char *name, *kind, *key;
        int k;

        if (n == 0 || en->name[(size_t)at + 1 + n] != '.' || strstr(en->name, "adapter") || strstr(en->name, "lora"))
            continue;
        name = arena_strndup(m->a, en->name, (size_t)at + 1 + n);
        if (names_find(layers, name) < 0) {
            layer[names_n(layers)] = name;
            names_add(layers, name, i);
        }
        kind = kind_of_layer(m, name, en->name + (size_t)at + 2 + n);
        key = arena_fmt(m->a, "%s %s", kind, en->name + (size_t)at + 2 + n);
        k = names_find(known, key);
        if (k < 0) {
            k = names_n(known);
            names_add(known, key, k);
            t[k] = (struct kind_tensor){ kind, en->name + (size_t)at + 2 + n, 0 };
        }
        t[k].n++;
    }
    compare_layers_of_kind(m, t, names_n(known), layers, layer);
}

/* ---- experts ---- */

static const char of_experts[] = ".experts.experts.";

/*
 * Returns the length of the name of the module that has a router and experts, and sets *tail to the rest of the name
 * after "experts.experts.". Returns 0 if the name is not that of a weight or bias of an expert's own linear module.
 */
static size_t expert_tensor(const char *name, const char **tail)
{
    static const char *const ends[] = { "linear_fc1.weight", "linear_fc2.weight", "linear_fc1.bias",
                                        "linear_fc2.bias" };
    const char *p = strstr(name, of_experts), *end;
    size_t digits;

    if (!p)
        return 0;
    *tail = p + sizeof of_experts - 1;
    digits = strspn(*tail, "0123456789");
    end = digits && (*tail)[digits] == '.' ? *tail + digits + 1 : *tail;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(end, ends[i]) == 0)
            return (size_t)(p - name);
    return 0;
}

/* Check that entry `en` has as many experts on its axis `axis` as the router has rows. */
static void check_expert_axis(const struct modules *m, const struct dcp_entry *en, const struct dcp_entry *router)
{
    const int axis = is_stack_key(en->name);

    if (en->ndim > axis && router->ndim > axis && en->shape[axis] != router->shape[axis])
        report_add(m->r, m->severity, "shape", m->n->path, en->said_at, en->name,
                   "has %lld experts, but %s has rows for %lld", (long long)en->shape[axis], router->name,
                   (long long)router->shape[axis]);
}

/*
 * Tensors that differ only in the number of their expert: "decoder.layers.0.mlp.experts.experts.3.linear_fc1.weight".
 */
struct expert_count {
    const struct dcp_entry *router;
    const char *before, *after;         /* the name before and after the number */
    int n, above;                       /* number of experts; highest number without a row in the router */
};

static void count_numbered_expert(const struct modules *m, const char *name, const char *tail,
                                  const struct dcp_entry *router, struct names *kind, struct expert_count *count)
{
    const size_t n = strspn(tail, "0123456789");
    const char *before = arena_strndup(m->a, name, (size_t)(tail - name));
    const char *key = arena_fmt(m->a, "%s%s", before, tail + n);
    int i = names_find(kind, key);

    if (i < 0) {
        i = names_n(kind);
        names_add(kind, key, i);
        count[i] = (struct expert_count){ router, before, tail + n, 0, -1 };
    }
    if (n > 5 || (n > 1 && *tail == '0') || atoi(tail) >= router->shape[0])
        count[i].above = n > 5 ? LAYERS_MAX : atoi(tail);
    else
        count[i].n++;
}

static void check_numbered_experts(const struct modules *m, const struct expert_count *c)
{
    const int64_t rows = c->router->shape[0];
    int first = 0;

    if (c->above >= 0)
        report_add(m->r, m->severity, "shape", m->n->path, ERR_NO_BYTE,
                   arena_fmt(m->a, "%s%d%s", c->before, c->above, c->after), "is of an expert for which %s, with %lld "
                   "rows, has none", c->router->name, (long long)rows);
    if (c->n >= rows)
        return;
    while (first < rows && names_find(m->known, arena_fmt(m->a, "%s%d%s", c->before, first, c->after)) >= 0)
        first++;
    report_add(m->r, m->severity, "missing_entry", m->n->path, c->router->said_at,
               arena_fmt(m->a, "%s%d%s", c->before, first, c->after),
               "does not exist: %d experts have this tensor, but %s has rows for %lld", c->n, c->router->name,
               (long long)rows);
}

/* Check that the other tensors of the router with the weight `router` have one element per expert. */
static void check_router_parts(const struct modules *m, const char *module, const struct dcp_entry *router)
{
    static const char *const parts[] = { "expert_bias", "bias" };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const struct dcp_entry *en = model_tensor(m, arena_fmt(m->a, "%s.router.%s", module, parts[i]));

        if (en)
            check_expert_axis(m, en, router);
    }
}

static void check_experts(const struct modules *m)
{
    struct names *done = names_new(m->a), *kind = names_new(m->a);
    struct expert_count *count = arena_alloc(m->a, ((size_t)m->t->n + 1) * sizeof *count);

    for (int i = 0; i < m->t->n; i++) {
        const struct dcp_entry *en = &m->t->entry[i], *router;
        const char *tail, *module, *name;
        const size_t at = is_model_tensor(en) ? expert_tensor(en->name, &tail) : 0;

        if (at == 0)
            continue;
        module = arena_strndup(m->a, en->name, at);
        name = arena_fmt(m->a, "%s.router.weight", module);
        router = model_tensor(m, name);
        if (names_find(m->known, name) < 0 && names_find(done, module) < 0)
            report_add(m->r, m->severity, "missing_entry", m->n->path, en->said_at, name,
                       "does not exist, but %s does: a layer of experts has a router", en->name);
        if (router && names_find(done, module) < 0)
            check_router_parts(m, module, router);
        names_add(done, module, i);
        if (router && !isdigit((unsigned char)*tail))
            check_expert_axis(m, en, router);
        else if (router && router->ndim > 0 && !is_stack_key(en->name))
            count_numbered_expert(m, en->name, tail, router, kind, count);
    }
    for (int i = 0; i < names_n(kind); i++)
        check_numbered_experts(m, &count[i]);
}

/* ---- objects of modules ---- */

/* The objects of one module: their number, and the total that each object states. */
struct module_objects {
    const char *module;
    int first, n, n_dims;               /* `first` is the entry of the first object; n is the number of objects */
    int64_t of[MAX_PLACE];
    bool reported;
};

static bool parse_numbers(const char **p, char end, int64_t *number, int *n)
{
    for (*n = 0; *n < MAX_PLACE && isdigit((unsigned char)**p); (*n)++) {
        char *stop;

        number[*n] = strtoll(*p, &stop, 10);
        *p = stop + (*stop == '.');
        if (*stop != '.') {
            (*n)++;
            break;
        }
    }
    return *n > 0 && **p == end;
}

/*
 * Parse the key of an extra-state object, such as "decoder.layers.mlp.linear_fc1._extra_state/shard_0_2". *place is set
 * to the numbers before and after the last underscore. Returns the length of the module's name, or 0 if the key is not
 * one of an extra-state object.
 */
static size_t parse_object(const char *key, int64_t *at, int64_t *of, int *n_dims)
{
    static const char word[] = "._extra_state/shard_";
    const char *end = strstr(key, word), *p = end ? end + sizeof word - 1 : NULL;
    int n;

    if (!end || !parse_numbers(&p, '_', at, n_dims))
        return 0;
    p++;
    return parse_numbers(&p, '\0', of, &n) && n == *n_dims ? (size_t)(end - key) : 0;
}

/* Returns true if Megatron-core saves a weight for each module of this name. */
static bool has_weight_always(const char *module)
{
    const char *last = strrchr(module, '.');

    last = last ? last + 1 : module;
    return str_starts(last, "linear_") || str_ends(last, "_layernorm") || str_ends(last, "_proj");
}

static void report_object(const struct modules *m, struct module_objects *o, int64_t found, const char *what,
                          const struct dcp_entry *weight, int64_t stated)
{
    if (!o->reported)
        report_add(m->r, m->severity, "shape", m->n->path, weight->said_at, weight->name,
                   "has %lld %s, but %s is of %lld", (long long)found, what, m->t->entry[o->first].name,
                   (long long)stated);
    o->reported = true;
}

/* Compare the objects of a module with each other and with the weight of the module. */
static void check_module_objects(const struct modules *m, struct module_objects *o)
{
    const char *weight = arena_fmt(m->a, "%s.weight", o->module);
    const struct dcp_entry *en = model_tensor(m, weight);
    const bool stacked = is_stack_key(weight), experts = strstr(weight, ".experts.experts.linear_") != NULL;
    int64_t all = 1;

    for (int d = 0; d < o->n_dims; d++)
        all = o->of[d] > 0 && o->of[d] < LAYERS_MAX && all < LAYERS_MAX ? all * o->of[d] : all;
    if (names_find(m->known, weight) < 0 && has_weight_always(o->module))
        report_missing_tensor(m, SEV_ERROR, weight, "", &m->t->entry[o->first]);
    if (o->n < all)
        report_add(m->r, SEV_ERROR, "missing_entry", m->n->path, m->t->entry[o->first].said_at,
                   m->t->entry[o->first].name, "is one of %lld objects of this module, but only %d exist",
                   (long long)all, o->n);
    if (!en || o->n_dims != (stacked || experts ? stacked + experts : 1) || en->ndim < stacked + experts)
        return;
    if (stacked && en->shape[0] != o->of[0])
        report_object(m, o, en->shape[0], "layers", en, o->of[0]);
    if (experts && en->shape[stacked] != o->of[stacked])
        report_object(m, o, en->shape[stacked], "experts", en, o->of[stacked]);
}

static void check_objects(struct modules *m)
{
    struct names *module = names_new(m->a);
    struct module_objects *list = arena_alloc(m->a, ((size_t)m->t->n + 1) * sizeof *list);

    for (int i = 0; i < m->t->n; i++) {
        const struct dcp_entry *en = &m->t->entry[i];
        int64_t at[MAX_PLACE], of[MAX_PLACE] = {0};
        int n_dims, k;
        const size_t len = en->is_tensor ? 0 : parse_object(en->name, at, of, &n_dims);
        const char *name = len ? arena_strndup(m->a, en->name, len) : NULL;

        if (!name)
            continue;
        k = names_find(module, name);
        if (k < 0) {
            k = names_n(module);
            names_add(module, name, k);
            list[k] = (struct module_objects){ .module = name, .first = i, .n_dims = n_dims };
            memcpy(list[k].of, of, sizeof of);
        }
        list[k].n++;
        m->has_objects = true;
        if (n_dims != list[k].n_dims || memcmp(of, list[k].of, (size_t)n_dims * sizeof *of) != 0)
            report_add(m->r, SEV_ERROR, "missing_entry", m->n->path, en->said_at, en->name,
                       "and %s state different numbers of objects", m->t->entry[list[k].first].name);
    }
    for (int k = 0; k < names_n(module); k++)
        check_module_objects(m, &list[k]);
}

/* ---- modules that exist together ---- */

/*
 * Report the embedding or the last norm of a text model if it does not exist although the other one, or the output
 * layer, does. If all three are missing, the folder has only a part of a model, and nothing is reported.
 */
static void check_ends(struct modules *m)
{
    static const char embedding[] = "embedding.word_embeddings.weight", norm[] = "decoder.final_layernorm.weight";
    const bool begins = names_find(m->known, embedding) >= 0, head = names_find(m->known, "output_layer.weight") >= 0;
    const bool ends = names_find(m->known, norm) >= 0 || names_find(m->known, "decoder.final_norm.weight") >= 0;

    m->whole = m->has_objects && (begins || head || ends);
    if (!m->decoder)
        return;
    if (m->whole && !begins)
        report_add(m->r, SEV_WARNING, "missing_entry", m->n->path, ERR_NO_BYTE, embedding,
                   "does not exist, but %s does", ends ? "the norm after the last layer" : "output_layer.weight");
    if (m->whole && !ends)
        report_add(m->r, SEV_WARNING, "missing_entry", m->n->path, ERR_NO_BYTE, norm,
                   "does not exist, but %s does", begins ? embedding : "output_layer.weight");
}

/* Returns true if there is a tensor whose name is `module` followed by one of `ends`, which are separated by "|". */
static bool has_one_of(const struct modules *m, const char *module, const char *ends)
{
    bool found = false;

    for (const char *end = ends; end && !found; end = strchr(end, '|') ? strchr(end, '|') + 1 : NULL)
        found = names_find(m->known, arena_fmt(m->a, "%s%.*s", module, (int)strcspn(end, "|"), end)) >= 0;
    return found;
}

/*
 * List in m->foreign the modules that have a weight whose name Megatron-core does not use. The parts of such a module
 * may have been renamed, so it is unknown which parts are missing.
 */
static void list_foreign(struct modules *m)
{
    static const char *const parts[] = {
        "linear_fc1", "linear_fc2", "linear_qkv", "linear_proj", "linear_q", "linear_kv", "linear_q_proj", "router",
        "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj",
    };

    m->foreign = names_new(m->a);
    for (int i = 0; i < m->t->n; i++) {
        const struct dcp_entry *en = &m->t->entry[i];
        const char *module = is_model_tensor(en) && str_ends(en->name, ".weight")
                           ? arena_strndup(m->a, en->name, strlen(en->name) - strlen(".weight")) : "";
        const char *part = strrchr(module, '.');
        bool known = !part || str_ends(part, "norm");

        for (size_t k = 0; k < sizeof parts / sizeof *parts && !known; k++)
            known = strcmp(part + 1, parts[k]) == 0;
        if (!known)
            names_add(m->foreign, arena_strndup(m->a, module, (size_t)(part - module)), i);
    }
}

/* Report each module that exists without another one which Megatron-core always makes with it. */
static void check_pairs(const struct modules *m)
{
    static const char *const pairs[][2] = {
        { ".linear_fc1.weight", ".linear_fc2.weight" }, { ".linear_fc2.weight", ".linear_fc1.weight" },
        { ".linear_qkv.weight", ".linear_proj.weight" },
        { ".linear_q_down_proj.weight", ".linear_q_up_proj.weight" },
        { ".linear_q_up_proj.weight", ".linear_q_down_proj.weight" },
        { ".linear_kv_down_proj.weight", ".linear_kv_up_proj.weight" },
        { ".linear_kv_up_proj.weight", ".linear_kv_down_proj.weight" },
        { ".linear_kv_down_proj.weight", ".linear_proj.weight" },
        { ".linear_fc1.bias", ".linear_fc2.bias" }, { ".linear_fc2.bias", ".linear_fc1.bias" },
        { "layer_norm_bias", "layer_norm_weight" }, { "_layernorm.bias", "_layernorm.weight" },
        { ".k_layernorm.weight", ".q_layernorm.weight" },
        /* The norm of queries exists together with the norm of keys, or with that of the compressed keys and values. */
        { ".q_layernorm.weight", ".k_layernorm.weight|.kv_layernorm.weight|.linear_kv_up_proj.layer_norm_weight" },
    };

    for (int i = 0; m->whole && i < m->t->n; i++) {
        const struct dcp_entry *en = &m->t->entry[i];

        if (!is_model_tensor(en) || torchdist_number_place(en->name) == 0)
            continue;
        for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
            const char *end = pairs[p][0], *other = pairs[p][1], *parent;

            if (!str_ends(en->name, end))
                continue;
            parent = arena_strndup(m->a, en->name, strlen(en->name) - strlen(end));
            if (names_find(m->foreign, parent) < 0 && !has_one_of(m, parent, other))
                report_missing_tensor(m, m->severity,
                                      arena_fmt(m->a, "%s%.*s", parent, (int)strcspn(other, "|"), other),
                                      strchr(other, '|') ? ", and no norm of compressed keys" : "", en);
        }
    }
}

void torchdist_modules_check(const struct dcp_naming *n, struct report *r)
{
    struct modules m = { .n = n, .t = n->table, .a = arena_new(0), .r = r,
                         .severity = n->s->accept_mismatch ? SEV_WARNING : SEV_ERROR };

    m.known = names_new(m.a);
    m.reported = names_new(m.a);
    for (int i = 0; i < n->table->n; i++)
        if (is_model_tensor(&n->table->entry[i])) {
            names_add(m.known, n->table->entry[i].name, i);
            m.decoder |= str_starts(n->table->entry[i].name, "decoder.layers.");
        }
    for (int i = 0; i < n->table->n_unread; i++)
        names_add(m.known, n->table->unread[i].name, n->table->n + i);
    check_stacks(&m);
    check_layer_numbers(&m);
    check_layers_of_kind(&m);
    check_experts(&m);
    check_objects(&m);
    check_ends(&m);
    list_foreign(&m);
    check_pairs(&m);
    arena_free(m.a);
}
