/*
 * experts.c - count the experts of a Transformers model by the names of its tensors
 */
#include "libcommon/ckpt/experts.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_parts.h"

/* Limits for numbers that come from names and from config.json. */
enum { EXPERTS_MAX = 1 << 16, LAYERS_MAX = 1 << 16 };

/* ---- config.json ---- */

static int64_t config_int(const json_t *config, const char *key, int64_t otherwise)
{
    const json_t *v = json_object_get(config, key);

    return json_is_integer(v) ? json_integer_value(v) : otherwise;
}

int64_t experts_count_stated(const json_t *config)
{
    static const char *const keys[] = { "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts" };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const int64_t n = config_int(config, keys[i], -1);

        if (n > 0 && n <= EXPERTS_MAX)
            return n;
    }
    return -1;
}

static bool array_has(const json_t *array, int layer)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        if (json_is_integer(json_array_get(array, i)) && json_integer_value(json_array_get(array, i)) == layer)
            return true;
    return false;
}

/* What config.json states about a layer. */
enum layer_kind { LAYER_UNKNOWN, LAYER_DENSE, LAYER_EXPERTS };

/* Returns the kind of the layer that config.json states. *key is set to the key that states it, or to "model_type". */
static enum layer_kind stated_kind(const json_t *config, int layer, const char **key)
{
    const char *model = json_string_value(json_object_get(config, "model_type"));
    const json_t *types = json_object_get(config, "mlp_layer_types"), *moe = json_object_get(config, "moe_layers");
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    const int64_t dense = config_int(config, "first_k_dense_replace", -1);
    const int64_t step = config_int(config, "decoder_sparse_step", -1);

    if (!model || experts_count_stated(config) < 0 || layer >= config_int(config, "num_hidden_layers", 0))
        return LAYER_UNKNOWN;
    *key = "mlp_layer_types";
    if (json_is_array(types))
        return type && strcmp(type, "sparse") == 0  ? LAYER_EXPERTS
               : type && strcmp(type, "dense") == 0 ? LAYER_DENSE
                                                    : LAYER_UNKNOWN;
    *key = "moe_layers";
    if (json_is_array(moe))
        return array_has(moe, layer) ? LAYER_EXPERTS : LAYER_DENSE;
    *key = "first_k_dense_replace";
    if (dense >= 0 && layer < dense)
        return LAYER_DENSE;
    if (dense >= 0)
        return config_int(config, "moe_layer_freq", 1) == 1 && !json_is_array(json_object_get(config, "moe_layer_freq"))
                   ? LAYER_EXPERTS : LAYER_UNKNOWN;
    *key = "mlp_only_layers";
    if (step > 0 && array_has(json_object_get(config, "mlp_only_layers"), layer))
        return LAYER_DENSE;
    *key = "decoder_sparse_step";
    if (step > 0)
        return (layer + 1) % step == 0 ? LAYER_EXPERTS : LAYER_DENSE;
    *key = "model_type";
    return strcmp(model, "mixtral") == 0 || strcmp(model, "gpt_oss") == 0 ? LAYER_EXPERTS : LAYER_UNKNOWN;
}

int experts_in_layer(const json_t *config, int layer)
{
    const char *key;
    const enum layer_kind kind = stated_kind(config, layer, &key);

    return kind == LAYER_UNKNOWN ? -1 : kind == LAYER_EXPERTS;
}

/* ---- names ---- */

struct expert_tensor {
    const char *name;
    int before;                         /* length of the name before the expert's number */
    int expert;
    const char *after;                  /* rest of the name after the number */
};

struct experts_check {
    const struct source *s;
    const json_t *config;
    int64_t n_stated;                   /* number of experts of a layer in config.json, or -1 */
    enum severity severity;
    struct report *r;
    int n;
    struct expert_tensor *tensor;
    /* [LAYERS_MAX]: whether the layer has a tensor, and whether it has a tensor of an expert */
    bool *has_tensor, *has_expert;
};

/*
 * Returns the part of the name after its component "experts" and a dot, or NULL if it has no such component. In the
 * names of DeepSpeed's MoE the component "deepspeed_experts" follows, and the part begins after it.
 */
static const char *after_experts(const char *name)
{
    static const char word[] = "experts.", deepspeed[] = "deepspeed_experts.";

    for (const char *p = name; (p = strstr(p, word)) != NULL; p++)
        if (p == name || p[-1] == '.')
            return p + sizeof word - 1 + (str_starts(p + sizeof word - 1, deepspeed) ? sizeof deepspeed - 1 : 0);
    return NULL;
}

/* Returns the number after "layers." or "h." in a name, or -1 if there is none. */
static int layer_of_name(const char *name)
{
    static const char *const words[] = { "layers.", "h." };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *p = strstr(name, words[i]);
        const size_t n = p ? strspn(p + strlen(words[i]), "0123456789") : 0;

        if (n > 0 && n < 6 && (p == name || p[-1] == '.') && atoi(p + strlen(words[i])) < LAYERS_MAX)
            return atoi(p + strlen(words[i]));
    }
    return -1;
}

static void record_expert_name(struct experts_check *c, const char *name)
{
    const char *number = after_experts(name);
    const size_t n = number ? strspn(number, "0123456789") : 0;
    const int layer = layer_of_name(name);

    if (layer >= 0)
        c->has_tensor[layer] = true;
    if (layer >= 0 && number)
        c->has_expert[layer] = true;
    if (n > 0 && n < 6 && number[n] == '.')
        c->tensor[c->n++] = (struct expert_tensor){ name, (int)(number - name), atoi(number), number + n };
}

static int by_kind_then_expert(const void *a, const void *b)
{
    const struct expert_tensor *x = a, *y = b;
    int order = x->before != y->before ? x->before - y->before : strncmp(x->name, y->name, (size_t)x->before);

    if (order == 0)
        order = strcmp(x->after, y->after);
    return order ? order : x->expert - y->expert;
}

static bool has_same_layer(const struct expert_tensor *x, const struct expert_tensor *y)
{
    return x->before == y->before && strncmp(x->name, y->name, (size_t)x->before) == 0;
}

/*
 * Check the n tensors of one kind in one layer. They are sorted by expert, and their experts must be 0 to n_experts -
 * 1. `router` is the tensor that gives n_experts by its rows, or NULL.
 */
static void check_experts_of_kind(const struct experts_check *c, const struct expert_tensor *t, int n, int n_experts,
                                  const char *router)
{
    int missing = -1, n_found = 0;

    for (int i = 0, due = 0; i <= n; i++) {
        const int expert = i < n ? t[i].expert : n_experts;

        if (i > 0 && i < n && t[i - 1].expert == expert) {
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, t[i].name,
                       "belongs to expert %d, as %s does", expert, t[i - 1].name);
            continue;
        }
        if (missing < 0 && due < expert && due < n_experts)
            missing = due;
        due = expert + 1;
        n_found += i < n && expert < n_experts;
    }
    if (missing >= 0) {
        char *name = str_fmt("%.*s%d%s", t->before, t->name, missing, t->after);

        if (router)
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, name,
                       "is missing: %d of %d experts have this tensor; %s has a row for each expert", n_found,
                       n_experts, router);
        else
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, name,
                       "is missing: %d of the %d experts that %s have this tensor", n_found, n_experts,
                       c->n_stated > 0 ? "config.json states" : "the layer has");
        free(name);
    }
    if (t[n - 1].expert >= n_experts && c->n_stated > 0)
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, t[n - 1].name,
                   "belongs to expert %d, but config.json has %d experts", t[n - 1].expert, n_experts);
}

/*
 * Find the router of a layer with experts. Its weight has a row for each expert. Returns NULL if there is none, or if
 * the n_found experts that have tensors are as many as its rows or columns, or more than its rows.
 */
static const struct param *find_router(const struct experts_check *c, const struct expert_tensor *t, int n_found)
{
    static const char *const names[] = { "gate.weight", "router.weight", "gate.wg.weight" };
    const char *end = strstr(t->name, "experts.");

    while (end && end != t->name && end[-1] != '.')
        end = strstr(end + 1, "experts.");
    for (size_t i = 0; end && i < sizeof names / sizeof *names; i++) {
        char *name = str_fmt("%.*s%s", (int)(end - t->name), t->name, names[i]);
        const struct param *p = source_param(c->s, name);

        free(name);
        if (p && p->ndim == 2 && p->shape[0] > n_found && p->shape[0] <= EXPERTS_MAX && p->shape[1] != n_found)
            return p;
    }
    return NULL;
}

static void check_numbered_experts(const struct experts_check *c)
{
    for (int first = 0, end; first < c->n; first = end) {
        const struct param *router;
        int most = 0, n_experts;

        for (end = first; end < c->n && has_same_layer(&c->tensor[first], &c->tensor[end]); end++)
            most = c->tensor[end].expert > most ? c->tensor[end].expert : most;
        router = c->config ? NULL : find_router(c, &c->tensor[first], most + 1);
        if (!c->config && !router)
            continue;
        n_experts = c->n_stated > 0 ? (int)c->n_stated : router ? (int)router->shape[0] : most + 1;
        for (int i = first, k; i < end; i = k) {
            for (k = i; k < end && strcmp(c->tensor[i].after, c->tensor[k].after) == 0;)
                k++;
            check_experts_of_kind(c, &c->tensor[i], k - i, n_experts, router ? router->name : NULL);
        }
    }
}

/* Check the first dimension of tensors that hold all experts of a layer. */
static void check_fused_experts(const struct experts_check *c)
{
    static const char *const begins[] = { "gate_up_proj", "down_proj" };

    for (int i = 0; i < c->s->n_params && c->n_stated > 0; i++) {
        const struct param *p = &c->s->param[i];
        const char *rest = after_experts(p->name);

        for (size_t k = 0; rest && k < sizeof begins / sizeof *begins; k++)
            if (str_starts(rest, begins[k]) && !strchr(rest, '.') && p->ndim >= 2 && p->shape[0] != c->n_stated)
                report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                           "holds %lld experts, but config.json has %lld", (long long)p->shape[0],
                           (long long)c->n_stated);
    }
}

static void check_layers_with_experts(const struct experts_check *c)
{
    for (int l = 0; l < LAYERS_MAX; l++) {
        const char *key = NULL;
        const enum layer_kind kind = c->has_tensor[l] ? stated_kind(c->config, l, &key) : LAYER_UNKNOWN;

        if (!c->has_expert[l] && kind == LAYER_EXPERTS)
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, NULL,
                       "layer %d has no tensor of an expert, but config.json has %lld experts for it", l,
                       (long long)c->n_stated);
        if (c->has_expert[l] && kind == LAYER_DENSE)
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, NULL,
                       "layer %d has tensors of experts, and by %s in config.json it has none", l, key);
    }
}

/* Check that config.json does not send a token to more experts than a layer has. */
static void check_experts_of_token(const struct experts_check *c)
{
    const int64_t n = config_int(c->config, "num_experts_per_tok", 0);

    if (c->n_stated > 0 && n > c->n_stated)
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, NULL,
                   "config.json states %lld experts per token (num_experts_per_tok), and %lld experts",
                   (long long)n, (long long)c->n_stated);
}

/*
 * Check that the numbers of layers and experts in a name are plain decimal numbers. Transformers computes the names
 * from numbers, so it does not find a name such as "experts.03".
 */
static void check_plain_numbers(const struct experts_check *c, const char *name)
{
    static const char *const words[] = { "layers.", "h.", "experts." };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t len = strlen(words[i]);

        for (const char *p = name; (p = strstr(p, words[i])) != NULL; p += len) {
            const size_t n = strspn(p + len, "0123456789");

            if ((p != name && p[-1] != '.') || n < 2 || p[len] != '0' || p[len + n] != '.')
                continue;
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, name,
                       "%.*s is no number of a layer or an expert, expected one without zeros in front: Transformers "
                       "does not find this tensor", (int)n, p + len);
            return;
        }
    }
}

void experts_check(const struct source *s, const json_t *config, enum severity severity, struct report *r)
{
    struct experts_check c = { .s = s, .config = config, .n_stated = experts_count_stated(config), .severity = severity,
                               .r = r };

    if (config_int(config, "zero_expert_num", 0) > 0)
        return;
    c.tensor = xcalloc((size_t)s->n_params + (size_t)s->n_unread + 1, sizeof *c.tensor);
    c.has_tensor = xcalloc(LAYERS_MAX, sizeof *c.has_tensor);
    c.has_expert = xcalloc(LAYERS_MAX, sizeof *c.has_expert);
    for (int i = 0; i < s->n_params; i++) {
        record_expert_name(&c, s->param[i].name);
        if (config)
            check_plain_numbers(&c, s->param[i].name);
    }
    for (int i = 0; i < s->n_unread; i++)
        record_expert_name(&c, s->unread[i].name);
    if (c.n)
        qsort(c.tensor, (size_t)c.n, sizeof *c.tensor, by_kind_then_expert);
    check_numbered_experts(&c);
    check_fused_experts(&c);
    check_layers_with_experts(&c);
    check_experts_of_token(&c);
    free(c.tensor);
    free(c.has_tensor);
    free(c.has_expert);
}
