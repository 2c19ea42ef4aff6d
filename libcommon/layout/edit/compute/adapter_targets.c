/*
 * adapter_targets.c - find out which modules of the base an adapter's configuration selects, and compare them with the
 * modules that have tensors
 */
#include "libcommon/layout/edit/compute/adapter_targets.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/safetensors.h"

#define NEXT_STEP "; save the adapter again with peft, or merge it with peft's merge_and_unload()"
#define NO_FACTORS "has no factors in the adapter, and is selected by "
#define NO_ROWS "has no rows in the adapter, and is selected by "
#define NOT_SAVED "is in modules_to_save, and the adapter has no tensor "

/* ---- names of the base ---- */

/*
 * Returns the parameter that holds the values of p. If p is the second name of a tied weight, this is the first name,
 * otherwise p.
 */
static struct param *holder_of(const struct source *s, struct param *p)
{
    struct param *holder = p && p->shared_with ? source_param(s, p->shared_with) : NULL;

    return holder ? holder : p;
}

static const char *const heads[] = { "model.", "transformer." };

struct param *adapter_find_param(const struct source *s, const char *name)
{
    struct param *p = source_param(s, name);
    const char *dot = strchr(name, '.');

    if (!p && dot)
        p = source_param(s, dot + 1);
    for (size_t i = 0; !p && i < sizeof heads / sizeof *heads; i++) {
        char *longer = str_fmt("%s%s", heads[i], name);

        p = source_param(s, longer);
        free(longer);
    }
    return holder_of(s, p);
}

struct param *adapter_find_tied_embedding(const struct source *s, const char *name)
{
    static const char *const tail[] = { "wte.weight", "embed_tokens.weight", "word_embeddings.weight" };

    if (strcmp(name, "lm_head.weight") != 0)
        return NULL;
    for (int i = 0; i < source_n_params(s); i++)
        for (size_t k = 0; k < sizeof tail / sizeof *tail; k++)
            if (str_ends(source_param_at(s, i)->name, tail[k]))
                return holder_of(s, source_param_at(s, i));
    return NULL;
}

/* The comparison of an adapter with a base. Modules have the names that the adapter uses. */
struct targets {
    const struct source *s;
    const struct adapter *a;
    const json_t *config;
    char *added;                        /* beginning of the adapter's names that the base's names lack, or "" */
    char *cut;                          /* beginning of the base's names that the adapter's names lack, or "" */
};

/*
 * Find how names of the base differ from names of the adapter. The first tensor of the adapter whose parameter is found
 * in the base is used for this.
 */
static void find_naming(struct targets *t)
{
    const int n = t->a->n_modules + t->a->n_values;

    t->added = xstrdup("");
    t->cut = xstrdup("");
    for (int i = 0; i < n; i++) {
        char *name = i < t->a->n_modules ? str_fmt("%s.weight", t->a->module[i].name)
                                         : xstrdup(t->a->value[i - t->a->n_modules].name);
        const struct param *p = adapter_find_param(t->s, name);
        const size_t longer = strlen(name), shorter = p ? strlen(p->name) : 0;

        if (p && longer > shorter && str_ends(name, p->name)) {
            free(t->added);
            t->added = str_fmt("%.*s", (int)(longer - shorter), name);
        } else if (p && shorter > longer && str_ends(p->name, name)) {
            free(t->cut);
            t->cut = str_fmt("%.*s", (int)(shorter - longer), p->name);
        }
        free(name);
        if (p)
            return;
    }
}

/* Returns the name that the adapter would use for a parameter of the base. The caller frees it. */
static char *adapter_name(const struct targets *t, const struct param *p)
{
    const bool is_head = strncmp(p->name, "lm_head.", strlen("lm_head.")) == 0;

    return str_fmt("%s%s", is_head ? "" : t->added, p->name + (str_starts(p->name, t->cut) ? strlen(t->cut) : 0));
}

static const struct adapter_module *find_module(const struct adapter *a, const char *name)
{
    for (int i = 0; i < a->n_modules; i++)
        if (strcmp(a->module[i].name, name) == 0)
            return &a->module[i];
    return NULL;
}

static bool has_value(const struct adapter *a, const char *name)
{
    for (int i = 0; i < a->n_values; i++)
        if (strcmp(a->value[i].name, name) == 0)
            return true;
    return false;
}

/* Returns true if `name` is `tail`, or ends in "." followed by `tail`. */
static bool is_or_ends(const char *name, const char *tail)
{
    const size_t n = strlen(name), k = strlen(tail);

    return str_ends(name, tail) && (n == k || name[n - k - 1] == '.');
}

static int refuse_target(const struct targets *t, const char *module, const char *why, const char *key, struct err *e)
{
    err_data(e, adapter_config_path(t->a), ERR_NO_BYTE, "module %s: %s%s" NEXT_STEP, module, why, key);
    return -1;
}

/* ---- which modules the configuration selects ---- */

/* Returns true if the list entry v, or v itself if it is a string, is not empty. */
static bool is_given(const json_t *v)
{
    return json_is_string(v) ? *json_string_value(v) != 0 : json_is_integer(v) || json_array_size(v) > 0;
}

/*
 * Returns 1 if `v` selects the module. `v` is a regular expression for the whole name, or a list of names and of ends
 * of names. *exact is set to true if the list contains the whole name.
 */
static int selects(const struct targets *t, const json_t *v, const char *module, bool *exact, struct err *e)
{
    size_t i;
    const json_t *one;
    int found = 0;

    *exact = false;
    if (json_is_string(v)) {
        char *whole = str_fmt("^(?:%s)$", json_string_value(v));
        const int fits = adapter_match(t->a, json_string_value(v), whole, module, NULL, e);

        free(whole);
        return fits;
    }
    json_array_foreach(v, i, one)
        if (json_is_string(one) && is_or_ends(module, json_string_value(one))) {
            found = 1;
            *exact |= strcmp(module, json_string_value(one)) == 0;
        }
    return found;
}

/* Returns 1 if modules_to_save contains the module, or a module that contains it. */
static int is_saved_whole(const struct targets *t, const char *module, struct err *e)
{
    const json_t *list = json_object_get(t->config, "modules_to_save");
    size_t i;
    const json_t *one;
    int fits = 0;

    json_array_foreach(list, i, one)
        if (json_is_string(one) && fits == 0) {
            char *regex = str_fmt("^(?:|.*\\.)%s(?:$|\\..*)", json_string_value(one));

            fits = adapter_match(t->a, json_string_value(one), regex, module, NULL, e);
            free(regex);
        }
    return fits;
}

/* Returns 1 if the module is in a layer of layers_to_transform, or if the configuration does not have that key. */
static int is_in_layers(const struct targets *t, const char *module, struct err *e)
{
    const json_t *layers = json_object_get(t->config, "layers_to_transform");
    const json_t *patterns = json_object_get(t->config, "layers_pattern"), *one;
    const size_t n = json_is_array(patterns) ? json_array_size(patterns) : is_given(patterns);
    int index = -1, fits = 0;
    size_t i;

    if (!is_given(layers))
        return 1;
    if (n == 0)
        fits = adapter_match(t->a, "", "^.*?\\.[^.]*\\.(\\d+)\\.", module, &index, e);
    for (i = 0; i < n && fits == 0; i++) {
        one = json_is_array(patterns) ? json_array_get(patterns, i) : patterns;
        if (json_is_string(one)) {
            char *regex = str_fmt("^(?:|.*?\\.)%s\\.(\\d+)\\.", json_string_value(one));

            fits = adapter_match(t->a, json_string_value(one), regex, module, &index, e);
            free(regex);
        }
    }
    if (fits <= 0 || json_is_integer(layers))
        return fits <= 0 ? fits : json_integer_value(layers) == index;
    json_array_foreach(layers, i, one)
        if (json_is_integer(one) && json_integer_value(one) == index)
            return 1;
    return 0;
}

/* Returns true if the module's name ends like that of an embedding or of an output head. */
static bool is_embedding_or_head(const char *module)
{
    static const char *const names[] = {
        "embed_tokens", "wte", "wpe", "word_embeddings", "embed_in", "shared", "position_embeddings", "embed_positions",
        "lm_head", "embed_out", "score", "classifier",
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_or_ends(module, names[i]))
            return true;
    return false;
}

/*
 * Returns 1 if the module gets factors according to the configuration. Returns 0 if it gets none, and sets *key to the
 * key that excludes it. Returns -1 with ERR_DATA if a pattern is not valid.
 */
static int is_target(const struct targets *t, const char *module, const char **key, struct err *e)
{
    const json_t *target = json_object_get(t->config, "target_modules");
    bool exact;
    int yes = selects(t, json_object_get(t->config, "exclude_modules"), module, &exact, e);

    *key = "exclude_modules";
    if (yes != 0)
        return yes < 0 ? -1 : 0;
    *key = "modules_to_save";
    yes = is_saved_whole(t, module, e);
    if (yes != 0)
        return yes < 0 ? -1 : 0;
    *key = "target_modules";
    if (json_is_string(target) && strcasecmp(json_string_value(target), "all-linear") == 0)
        return !is_embedding_or_head(module);
    yes = selects(t, target, module, &exact, e);
    if (yes <= 0 || exact || json_is_string(target))
        return yes;
    *key = "layers_to_transform";
    return is_in_layers(t, module, e);
}

/* ---- target_parameters ---- */

/*
 * Returns true if `entry` of target_parameters, such as "experts.down_proj", is a parameter of the module "X.experts".
 */
static bool is_parameter_of(const char *entry, const char *module)
{
    const char *dot = strrchr(entry, '.');
    char *owner = dot ? str_fmt("%.*s", (int)(dot - entry), entry) : NULL;
    const bool yes = owner && is_or_ends(module, owner);

    free(owner);
    return yes;
}

/* Returns the number of entries of target_parameters that are parameters of the module. */
static int count_target_parameters(const struct targets *t, const char *module)
{
    const json_t *list = json_object_get(t->config, "target_parameters"), *one;
    size_t i;
    int n = 0;

    json_array_foreach(list, i, one)
        n += json_is_string(one) && is_parameter_of(json_string_value(one), module);
    return n;
}

/*
 * If the parameter `name` of the base belongs to an expert or to a router, returns the adapter's name of this module,
 * otherwise NULL. This is needed because the files of a base may store experts as separate tensors. The caller frees
 * the name.
 */
static char *module_of_experts(const char *name)
{
    static const char *const first[] = { ".block_sparse_moe.experts.0.w1.weight", ".mlp.experts.0.gate_proj.weight",
                                         ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj" };
    static const char *const router[] = { ".block_sparse_moe.gate.weight", ".mlp.gate.weight" };

    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (str_ends(name, first[i]))
            return str_fmt("%.*s.mlp.experts", (int)(strlen(name) - strlen(first[i])), name);
    for (size_t i = 0; i < sizeof router / sizeof *router; i++)
        if (str_ends(name, router[i]))
            return str_fmt("%.*s.mlp.gate", (int)(strlen(name) - strlen(router[i])), name);
    return NULL;
}

/* Returns true if target_parameters has the parameter `name`. */
static bool is_target_parameter(const struct targets *t, const char *name)
{
    const json_t *list = json_object_get(t->config, "target_parameters"), *one;
    size_t i;

    json_array_foreach(list, i, one)
        if (json_is_string(one) && is_or_ends(name, json_string_value(one)))
            return true;
    return false;
}

/* Check that the module of the base's parameter `name` has factors if target_parameters selects it. */
static int check_target_parameters(const struct targets *t, const char *name, struct err *e)
{
    const char *dot = strrchr(name, '.');
    char *experts = module_of_experts(name);
    char *module = experts ? experts : dot && is_target_parameter(t, name) ? str_fmt("%.*s", (int)(dot - name), name)
                                                                           : NULL;
    char *inner = module ? str_fmt("%s.base_layer", module) : NULL;
    const int n = module ? count_target_parameters(t, module) : 0;
    int rc = 0;

    if (n && !is_given(json_object_get(t->config, "layers_to_transform")) &&
        (!find_module(t->a, module) || (n > 1 && !find_module(t->a, inner))))
        rc = refuse_target(t, module, NO_FACTORS, "target_parameters", e);
    free(module);
    free(inner);
    return rc;
}

/* Returns true if the adapter has factors for the module that an entry of target_parameters names. */
static bool has_factors_of(const struct targets *t, const char *entry)
{
    static const char inner[] = ".base_layer";
    bool found = false;

    for (int i = 0; i < t->a->n_modules && !found; i++) {
        const char *name = t->a->module[i].name;
        const size_t cut = str_ends(name, inner) ? strlen(inner) : 0;
        char *owner = str_fmt("%.*s", (int)(strlen(name) - cut), name);

        found = is_parameter_of(entry, owner);
        free(owner);
    }
    return found;
}

/* Check that the adapter has factors for every entry of target_parameters. */
static int check_parameters_found(const struct targets *t, struct err *e)
{
    const json_t *list = json_object_get(t->config, "target_parameters"), *one;
    size_t i;

    json_array_foreach(list, i, one)
        if (!json_is_string(one) || !has_factors_of(t, json_string_value(one))) {
            err_data(e, adapter_config_path(t->a), ERR_NO_BYTE, "target_parameters: the adapter has no factors for "
                     "'%s'" NEXT_STEP, json_is_string(one) ? json_string_value(one) : "an entry that is no string");
            return -1;
        }
    return 0;
}

/* ---- from the configuration to the tensors ---- */

/*
 * Returns true if the module may be one that Transformers holds in a form to which peft gives no factors: an expert or
 * a router, which newer versions store as plain parameters. In that case, the adapter has factors for none of these
 * modules.
 */
static bool is_maybe_no_module(const struct targets *t, const char *module)
{
    const char *last = strrchr(module, '.');
    const bool inside = strstr(module, ".experts.") || (last && (strcmp(last, ".gate") == 0 ||
                                                                 strcmp(last, ".router") == 0));

    for (int i = 0; inside && i < t->a->n_modules; i++)
        if (str_ends(t->a->module[i].name, last))
            return false;
    return inside;
}

/* Check that the module of the base's matrix p has factors if the configuration selects it. */
static int check_selected(const struct targets *t, const struct param *p, const char *name, struct err *e)
{
    char *module;
    const char *key;
    int rc;

    if (!str_ends(name, ".weight") || (p->ndim != 2 && p->ndim != 4) || p->shared_with)
        return 0;
    module = str_fmt("%.*s", (int)(strlen(name) - strlen(".weight")), name);
    rc = is_target(t, module, &key, e);
    if (rc == 1 && !find_module(t->a, module) && !is_maybe_no_module(t, module))
        rc = refuse_target(t, module, NO_FACTORS, "target_modules", e);
    free(module);
    return rc < 0 ? -1 : 0;
}

/* Returns true if the parameter is in a module whose name ends in `tail`. The module may contain it indirectly. */
static bool is_inside(const char *name, const char *tail)
{
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        const size_t n = (size_t)(dot - name), k = strlen(tail);

        if (n >= k && strncmp(dot - k, tail, k) == 0)
            return true;
    }
    return false;
}

/* Check that the adapter has the parameter if modules_to_save contains the parameter's module. */
static int check_saved(const struct targets *t, const char *name, struct err *e)
{
    const json_t *list = json_object_get(t->config, "modules_to_save"), *one;
    size_t i;

    json_array_foreach(list, i, one)
        if (json_is_string(one) && is_inside(name, json_string_value(one)) && !has_value(t->a, name))
            return refuse_target(t, json_string_value(one), NOT_SAVED, name, e);
    return 0;
}

/* Check that the adapter has the head or the embedding. A base with tied weights has no head of its own. */
static int check_saved_head(const struct targets *t, struct err *e)
{
    const json_t *list = json_object_get(t->config, "modules_to_save"), *one;
    const struct param *tied = adapter_find_param(t->s, "lm_head.weight") ? NULL
                             : adapter_find_tied_embedding(t->s, "lm_head.weight");
    char *name = tied ? adapter_name(t, tied) : NULL;
    int rc = 0;
    size_t i;

    json_array_foreach(list, i, one)
        if (tied && rc == 0 && json_is_string(one) && strcmp(json_string_value(one), "lm_head") == 0 &&
            !has_value(t->a, "lm_head.weight") && !has_value(t->a, name))
            rc = refuse_target(t, "lm_head", NOT_SAVED, "lm_head.weight", e);
    free(name);
    return rc;
}

static int count_bias_values(const struct adapter *a)
{
    int n = 0;

    for (int i = 0; i < a->n_values; i++)
        n += str_ends(a->value[i].name, ".bias");
    return n;
}

/* Check that the adapter has the bias `name` of the base if the configuration states that this bias was trained. */
static int check_bias(const struct targets *t, const char *name, struct err *e)
{
    const json_t *bias = json_object_get(t->config, "bias");
    const char *how = json_is_string(bias) ? json_string_value(bias) : "none";
    char *module;
    int rc = 0;

    if (!str_ends(name, ".bias") || strcmp(how, "none") == 0 || has_value(t->a, name))
        return 0;
    module = str_fmt("%.*s", (int)(strlen(name) - strlen(".bias")), name);
    if (strcmp(how, "all") == 0 || (find_module(t->a, module) && count_bias_values(t->a)))
        rc = refuse_target(t, module, "has no bias in the adapter, and bias is ", how, e);
    free(module);
    return rc;
}

/*
 * Check that the adapter has the tensors of trainable_token_indices, which is a list, or an object with one list per
 * module.
 */
static int check_tokens(const struct targets *t, struct err *e)
{
    const json_t *rows = json_object_get(t->config, "trainable_token_indices"), *v;
    const char *module;
    int n = 0;

    for (int i = 0; i < t->a->n_values; i++)
        n += t->a->value[i].n_rows > 0;
    if (json_is_array(rows) && json_array_size(rows) && n == 0)
        return refuse_target(t, "embed_tokens", NO_ROWS, "trainable_token_indices", e);
    json_object_foreach((json_t *)rows, module, v) {
        bool found = false;

        for (int i = 0; i < t->a->n_values && !found; i++) {
            const struct adapter_value *x = &t->a->value[i];
            char *owner = str_fmt("%.*s", (int)(strlen(x->name) - strlen(".weight")), x->name);

            found = x->n_rows && is_or_ends(owner, module);
            free(owner);
        }
        if (!found)
            return refuse_target(t, module, NO_ROWS, "trainable_token_indices", e);
    }
    return 0;
}

/* ---- from the tensors to the configuration ---- */

/* Returns true if the module is the head of a base with tied weights, and the embedding of the base has factors. */
static bool is_tied_head(const struct targets *t, const char *module)
{
    if (strcmp(module, "lm_head") != 0 || adapter_find_param(t->s, "lm_head.weight"))
        return false;
    for (int i = 0; i < t->a->n_modules; i++)
        if (t->a->module[i].part[ADAPTER_EMBED_A])
            return true;
    return false;
}

/* Check that the configuration selects each module that has factors. */
static int check_factors_selected(const struct targets *t, const struct adapter_module *m, struct err *e)
{
    static const char inner[] = ".base_layer";
    const bool is_inner = str_ends(m->name, inner);
    char *owner = is_inner ? str_fmt("%.*s", (int)(strlen(m->name) - strlen(inner)), m->name) : xstrdup(m->name);
    const bool lora_bias = json_is_true(json_object_get(t->config, "lora_bias"));
    const char *key;
    int rc = is_target(t, m->name, &key, e);

    if (rc == 0 && (count_target_parameters(t, owner) > is_inner || is_tied_head(t, m->name)))
        rc = 1;
    if (rc == 0)
        rc = refuse_target(t, m->name, "has factors in the adapter, and is not selected because of ", key, e);
    else if (rc == 1 && !m->part[ADAPTER_EMBED_A] && (m->part[ADAPTER_B_BIAS] != NULL) != lora_bias)
        rc = refuse_target(t, m->name, lora_bias ? "has no lora_B.bias, and lora_bias is " : "has lora_B.bias, and "
                           "lora_bias is ", lora_bias ? "true" : "false", e);
    free(owner);
    return rc < 0 ? -1 : 0;
}

/* Check that no tensor replaces the whole weight of a module that has factors. */
static int check_value(const struct targets *t, const struct adapter_value *v, struct err *e)
{
    char *module;
    int rc = 0;

    if (v->is_base || v->n_rows || !str_ends(v->name, ".weight"))
        return 0;
    module = str_fmt("%.*s", (int)(strlen(v->name) - strlen(".weight")), v->name);
    if (find_module(t->a, module))
        rc = refuse_target(t, module, "has factors and a whole weight in the adapter; it is selected by ",
                           "target_modules", e);
    free(module);
    return rc;
}

static int check_base(const struct targets *t, struct err *e)
{
    int rc = 0;

    for (int i = 0; i < source_n_params(t->s) && rc == 0; i++) {
        const struct param *p = source_param_at(t->s, i);
        char *name = adapter_name(t, p);

        if (check_selected(t, p, name, e) < 0 || check_target_parameters(t, name, e) < 0 ||
            check_saved(t, name, e) < 0 || check_bias(t, name, e) < 0)
            rc = -1;
        free(name);
    }
    return rc;
}

int adapter_check_targets(const struct source *s, const struct adapter *a, struct report *notes, struct err *e)
{
    struct targets t = { .s = s, .a = a, .config = adapter_config(a) };
    const json_t *bias = json_object_get(t.config, "bias");
    int rc = 0;

    find_naming(&t);
    for (int i = 0; i < a->n_modules && rc == 0; i++)
        rc = check_factors_selected(&t, &a->module[i], e);
    for (int i = 0; i < a->n_values && rc == 0; i++)
        rc = check_value(&t, &a->value[i], e);
    if (rc == 0 && (check_base(&t, e) < 0 || check_parameters_found(&t, e) < 0 || check_saved_head(&t, e) < 0 ||
                     check_tokens(&t, e) < 0))
        rc = -1;
    if (rc == 0 && json_is_string(bias) && strcmp(json_string_value(bias), "lora_only") == 0 && !count_bias_values(a))
        report_add(notes, SEV_WARNING, "adapter_bias", a->dir, ERR_NO_BYTE, NULL, "bias is lora_only, and the adapter "
                   "has no bias: some versions of peft do not save them; those of the base are kept");
    free(t.added);
    free(t.cut);
    return rc;
}
