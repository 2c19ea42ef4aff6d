/*
 * hf_required.c - compare the names of the tensors with those that the model_type requires
 */
#include "libcommon/layout/hf/check/hf_required.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/experts.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/layout/hf/hf_names.h"
#include "libcommon/model/family.h"
#include "libcommon/layout/hf/check/model_tensors.h"

/* Maximum number of layers. A number that comes from a name must not determine how long a loop runs. */
enum { NUMBERED_LAYERS_MAX = 1 << 16 };

struct required_check {
    const struct source *s;
    const json_t *config;               /* as stored */
    json_t *filled;                     /* config.json, with defaults for settings that it does not state */
    const struct model_facts *facts;
    const struct family *rules;         /* of the model; NULL if it has none, or is quantized */
    bool quantized;                     /* tensors of a module stand for its weight */
    bool bare;                          /* if set, names lack facts->base or have `first` in its place */
    const char *first;                  /* "" or "transformer." */
    const char **name;                  /* [n]: the names of all parameters, sorted */
    int n;
    int n_layers;                       /* highest layer number plus 1; at most the number in config.json */
    bool *layer, *experts;              /* [n_layers]: layers with a tensor; those with one for experts */
    struct arena *arena;
    enum severity severity;
    struct report *r;
};

/* ---- names ---- */

static int cmp_required_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void sort_required_names(struct required_check *c)
{
    c->name = arena_alloc(c->arena, ((size_t)c->s->n_params + 1) * sizeof *c->name);
    for (int i = 0; i < c->s->n_params; i++)
        c->name[c->n++] = c->s->param[i].name;
    if (c->n)
        qsort(c->name, (size_t)c->n, sizeof *c->name, cmp_required_names);
}

/* Returns the index of the first name that begins with `begin`, or n. */
static int first_required_name(const struct required_check *c, const char *begin)
{
    int low = 0, high = c->n;

    while (low < high) {
        const int mid = (low + high) / 2;

        if (strcmp(c->name[mid], begin) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < c->n && str_starts(c->name[low], begin) ? low : c->n;
}

/*
 * Returns the name in the files for a name in the list. The two differ if all names in the files lack the first
 * component, or have another one.
 */
static const char *name_in_files(const struct required_check *c, const char *name)
{
    if (!c->bare || !str_starts(name, c->facts->base))
        return name;
    name += strlen(c->facts->base) + 1;
    return *c->first ? arena_fmt(c->arena, "%s%s", c->first, name) : name;
}

/*
 * Returns true if the name belongs to the model without its head, that is, if the name begins with facts->base and a
 * dot.
 */
static bool is_of_base(const struct model_facts *m, const char *name)
{
    const size_t n = strlen(m->base);

    return strncmp(name, m->base, n) == 0 && name[n] == '.';
}

static bool is_unread_tensor(const struct required_check *c, const char *name)
{
    for (int i = 0; i < c->s->n_unread; i++)
        if (str_ends(name, c->s->unread[i].name) || str_ends(c->s->unread[i].name, name))
            return true;
    return false;
}

/* Returns true if the tensor exists for at least one expert. '#' in the name stands for the number of the expert. */
static bool has_some_expert(const struct required_check *c, const char *name)
{
    const char *mark = strchr(name, '#'), *begin = arena_strndup(c->arena, name, (size_t)(mark - name));
    const size_t n = strlen(begin);
    size_t rest = strlen(mark + 1);

    if (c->quantized && str_ends(name, ".weight"))
        rest -= strlen("weight");
    for (int i = first_required_name(c, begin); i < c->n && str_starts(c->name[i], begin); i++) {
        const size_t digits = strspn(c->name[i] + n, "0123456789");

        if (digits && strncmp(c->name[i] + n + digits, mark + 1, rest) == 0 &&
            (c->quantized || c->name[i][n + digits + rest] == '\0'))
            return true;
    }
    return false;
}

/*
 * Returns true if the tensor exists, or exists but cannot be read. In a quantized model, any tensor of the module, such
 * as qweight, counts as its weight.
 */
static bool has_tensor(const struct required_check *c, const char *name)
{
    int i;

    if (strchr(name, '#'))
        return has_some_expert(c, name) || (c->s->n_unread && is_unread_tensor(c, strchr(name, '#') + 1));
    i = first_required_name(c, name);
    if (i < c->n && strcmp(c->name[i], name) == 0)
        return true;
    if (c->quantized && str_ends(name, ".weight") &&
        first_required_name(c, arena_strndup(c->arena, name, strlen(name) - strlen("weight"))) < c->n)
        return true;
    return is_unread_tensor(c, name);
}

/*
 * Returns true if the tensor exists, or another one that may replace it. A name with '*' requires the number of a
 * layer.
 */
static bool has_required_tensor(const struct required_check *c, const struct model_tensor *t, int layer)
{
    const char *name[2] = { t->name, t->other };

    for (int i = 0; i < 2 && name[i]; i++) {
        const char *in_files = name_in_files(c, name[i]), *star = strchr(in_files, '*');

        if (star)
            in_files = arena_fmt(c->arena, "%.*s%d%s", (int)(star - in_files), in_files, layer, star + 1);
        if (has_tensor(c, in_files))
            return true;
    }
    return false;
}

/* ---- conditions ---- */

/* Returns a copy of config.json that also has the defaults of the settings which config.json does not state. */
static json_t *fill_defaults(const json_t *config, const struct model_facts *m)
{
    json_t *filled = json_copy((json_t *)config);

    for (int i = 0; i < m->n_defaults; i++) {
        const struct model_default *d = &m->preset[i];
        json_t *other = d->alias ? json_object_get(config, d->alias) : NULL;

        if (json_object_get(config, d->key))
            continue;
        if (other)
            json_object_set(filled, d->key, other);
        else if (d->value)
            json_object_set_new(filled, d->key, json_loads(d->value, JSON_DECODE_ANY, NULL));
    }
    return filled;
}

static bool is_true_setting(const json_t *v)
{
    return json_is_true(v) || (json_is_integer(v) && json_integer_value(v) != 0) ||
           (json_is_real(v) && json_real_value(v) != 0) || (json_is_string(v) && *json_string_value(v)) ||
           json_array_size(v) > 0 || json_object_size(v) > 0;
}

/* Returns the value of a setting as text. A string has no quotes; any other value is JSON. */
static const char *setting_text(struct arena *a, const json_t *v)
{
    char *text = json_is_string(v) ? xstrdup(json_string_value(v)) : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    const char *copy = arena_fmt(a, "%.60s", text ? text : "");

    free(text);
    return copy;
}

/* Returns true if the text is one of the words of `list`, which are separated by '|'. */
static bool is_one_of(const char *list, const char *text)
{
    while (*list) {
        const size_t n = strcspn(list, "|");

        if (strlen(text) == n && strncmp(list, text, n) == 0)
            return true;
        list += n + (list[n] != '\0');
    }
    return false;
}

/* Returns the value, for this layer, of the setting that a condition names. Returns NULL if the value is not known. */
static const json_t *condition_value(const struct required_check *c, const char *condition, int layer)
{
    const char *key = arena_strndup(c->arena, condition + (*condition == '!'), strcspn(condition + 1, "!=") +
                                    (*condition != '!'));
    const json_t *v = json_object_get(c->filled, key);

    return json_is_array(v) ? (layer < 0 ? NULL : json_array_get(v, (size_t)layer)) : v;
}

/* Returns true if the condition is known to hold for this layer. -1 stands for a tensor outside of the layers. */
static bool condition_holds(const struct required_check *c, const char *condition, int layer)
{
    const json_t *v;
    const char *is;

    if (strcmp(condition, "experts") == 0 || strcmp(condition, "dense") == 0) {
        const int stated = layer < 0 ? -1 : experts_in_layer(c->filled, layer);
        const bool experts = stated >= 0 ? stated == 1 : layer >= 0 && c->experts[layer];

        return experts == (*condition == 'e');
    }
    v = condition_value(c, condition, layer);
    is = strchr(condition, '=');
    if (!v)
        return false;
    if (is)
        return is_one_of(is + 1, setting_text(c->arena, v)) == (is[-1] != '!');
    return is_true_setting(v) == (*condition != '!');
}

static bool is_required(const struct required_check *c, const struct model_tensor *t, int layer)
{
    for (int i = 0; i < t->n_conditions; i++)
        if (!condition_holds(c, t->condition[i], layer))
            return false;
    return true;
}

/* Returns the settings that require the tensor as text: "model_type stablelm, use_qkv_bias true by default". */
static const char *reason_text(const struct required_check *c, const struct model_tensor *t, int layer)
{
    const char *text = arena_fmt(c->arena, "model_type %s", c->facts->type);

    for (int i = 0; i < t->n_conditions; i++) {
        const json_t *v = condition_value(c, t->condition[i], layer);
        const char *name = t->condition[i] + (*t->condition[i] == '!');
        const int len = (int)strcspn(name, "!=");
        const char *key = arena_strndup(c->arena, name, (size_t)len);

        if (v)
            text = arena_fmt(c->arena, "%s, %s %s%s", text, key, setting_text(c->arena, v),
                             json_object_get(c->config, key) ? "" : " by default");
    }
    return text;
}

/* ---- layers ---- */

/*
 * Returns the number of the layer in `name`, at the position of '*' in the listed name. Returns -1 if the names do not
 * match.
 */
static int layer_in_name(const char *listed, const char *name)
{
    const char *star = strchr(listed, '*');
    const size_t before = star ? (size_t)(star - listed) : 0;
    size_t digits;

    if (!star || strncmp(listed, name, before) != 0)
        return -1;
    digits = strspn(name + before, "0123456789");
    return digits && digits < 6 && name[before + digits] == '.' && atoi(name + before) < NUMBERED_LAYERS_MAX ?
           atoi(name + before) : -1;
}

static bool is_of_experts(const struct model_tensor *t)
{
    for (int i = 0; i < t->n_conditions; i++)
        if (strcmp(t->condition[i], "experts") == 0)
            return true;
    return false;
}

/* Find the layers that have tensors, and those that have a tensor which only layers with experts have. */
static void find_layers(struct required_check *c)
{
    const json_t *stated = json_object_get(c->filled, "num_hidden_layers");

    stated = stated ? stated : json_object_get(c->filled, "n_layer");
    c->layer = arena_alloc(c->arena, NUMBERED_LAYERS_MAX * sizeof *c->layer);
    c->experts = arena_alloc(c->arena, NUMBERED_LAYERS_MAX * sizeof *c->experts);
    for (int k = 0; k < c->facts->n_tensors; k++) {
        const struct model_tensor *t = &c->facts->tensor[k];
        const char *listed[2] = { name_in_files(c, t->name), t->other ? name_in_files(c, t->other) : NULL };

        for (int side = 0; side < 2 && listed[side]; side++) {
            const char *star = strchr(listed[side], '*');
            const char *begin = star ? arena_strndup(c->arena, listed[side], (size_t)(star - listed[side])) : NULL;

            for (int i = begin ? first_required_name(c, begin) : c->n; i < c->n && str_starts(c->name[i], begin); i++) {
                const int layer = layer_in_name(listed[side], c->name[i]);
                int same;

                if (layer < 0)
                    continue;
                c->layer[layer] = true;
                c->n_layers = layer >= c->n_layers ? layer + 1 : c->n_layers;
                c->experts[layer] |= is_of_experts(t) && model_tensor_matches(listed[side], c->name[i], &same);
            }
        }
    }
    if (json_is_integer(stated) && json_integer_value(stated) < c->n_layers && json_integer_value(stated) >= 0)
        c->n_layers = (int)json_integer_value(stated);
}

/* ---- findings ---- */

static void report_required(const struct required_check *c, const struct model_tensor *t, int layer, bool all)
{
    const char *name = name_in_files(c, t->name), *star = strchr(name, '*');

    if (star && !all)
        name = arena_fmt(c->arena, "%.*s%d%s", (int)(star - name), name, layer, star + 1);
    report_add(c->r, c->severity, "missing_param", c->s->path, ERR_NO_BYTE, name,
               "is missing%s, but the model that config.json describes has it (%s); Transformers would initialize it "
               "with random values", star && all ? " in all layers" : "", reason_text(c, t, layer));
}

/*
 * Returns true if a rule of the family has the tensor's name. hf_check_layers() then looks for the tensor in each
 * layer.
 */
static bool has_rule(const struct required_check *c, const struct model_tensor *t)
{
    struct family_hit hit;

    return c->rules && family_find(c->rules, family_layer_name(c->arena, t->name, 0), &hit);
}

/* Check a tensor of the layers. If all layers that must have the tensor lack it, it is reported once. */
static void check_layers_have(const struct required_check *c, const struct model_tensor *t)
{
    int n_due = 0, n_missing = 0, first = -1;

    for (int l = 0; l < c->n_layers; l++) {
        if (!c->layer[l] || !is_required(c, t, l))
            continue;
        n_due++;
        if (has_required_tensor(c, t, l))
            continue;
        n_missing++;
        first = first < 0 ? l : first;
    }
    if (n_missing && n_missing == n_due)
        report_required(c, t, first, true);
    for (int l = 0; l < c->n_layers && n_missing && n_missing < n_due && !has_rule(c, t); l++)
        if (c->layer[l] && is_required(c, t, l) && !has_required_tensor(c, t, l))
            report_required(c, t, l, false);
}

/*
 * Returns true if the class in config.json is a language model. Only such a class has the tensors outside of the base
 * model.
 */
static bool is_language_model(const json_t *config)
{
    const char *class = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));

    return class && (str_ends(class, "ForCausalLM") || str_ends(class, "LMHeadModel"));
}

/*
 * Returns true if the tensor must be looked for. Not looked for is the head of a model with rules whose config.json
 * states that the head is not tied, because hf_check_claims() reports a missing one.
 */
static bool is_checked(const struct required_check *c, const struct model_tensor *t)
{
    if (is_of_base(c->facts, t->name))
        return true;
    if (!is_language_model(c->config))
        return false;
    return !(c->rules && hf_is_head(t->name) && json_is_false(json_object_get(c->config, "tie_word_embeddings")));
}

/* Returns true if at least one parameter other than a head has a name of the list. */
static bool has_listed_name(const struct required_check *c)
{
    int layer;

    for (int k = 0; k < c->facts->n_tensors; k++) {
        const char *listed = name_in_files(c, c->facts->tensor[k].name);

        if (!is_of_base(c->facts, c->facts->tensor[k].name))
            continue;
        for (int i = 0; i < c->n; i++)
            if (model_tensor_matches(listed, c->name[i], &layer))
                return true;
    }
    return false;
}

static void check_listed_tensors(struct required_check *c)
{
    const char *base = arena_fmt(c->arena, "%s.", c->facts->base);

    c->bare = first_required_name(c, base) == c->n;
    /* classes ForQuestionAnswering of many models name their base so */
    c->first = first_required_name(c, "transformer.") < c->n ? "transformer." : "";
    if (!has_listed_name(c)) {
        if (!c->rules && c->n > 0 && c->s->n_unread == 0)
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, c->s->param[0].name,
                       "config.json describes a model of type %s, but no tensor has a name of such a model; "
                       "config.json belongs to another model, or ckpt-edit rename --accept-mismatch can change the "
                       "names",
                       c->facts->type);
    } else {
        find_layers(c);
        for (int i = 0; i < c->facts->n_tensors; i++) {
            const struct model_tensor *t = &c->facts->tensor[i];

            if (!is_checked(c, t))
                continue;
            if (strchr(t->name, '*'))
                check_layers_have(c, t);
            else if (is_required(c, t, -1) && !has_required_tensor(c, t, -1))
                report_required(c, t, -1, true);
        }
    }
}

/*
 * Returns true if config.json states the number of heads, as each config.json of Transformers does, or if models of
 * this type have no such setting.
 */
static bool states_whole_model(const json_t *config, const struct model_facts *m)
{
    static const char *const keys[] = { "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads" };
    bool has_heads = false;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (json_object_get(config, keys[i]))
            return true;
        for (int k = 0; k < m->n_defaults; k++)
            has_heads |= strcmp(m->preset[k].key, keys[i]) == 0;
    }
    return !has_heads;
}

/* Returns the rules of the model_type, or NULL if there are none. */
static struct family *open_rules_of(const char *type)
{
    struct err ignored = {0};

    return strpbrk(type, "/.") ? NULL : family_open(type, &ignored);
}

void hf_check_required(const struct source *s, const json_t *config, enum severity severity, struct report *r)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    struct required_check c = { .s = s, .config = config, .severity = severity, .r = r, .arena = arena_new(0) };
    struct family *rules = NULL;
    struct err e = {0};
    struct model_table *table = type ? model_table_open(&e) : NULL;

    c.facts = table ? model_table_find(table, type) : NULL;
    if (type && !table)
        report_add_err(r, "config", &e);
    if (table && !c.facts)
        report_add(r, SEV_NOTE, SOURCE_NOT_COMPARED, s->path, ERR_NO_BYTE, NULL,
                   "not checked: which tensors a model of type %.60s has (model_type in config.json)", type);
    if (c.facts && states_whole_model(config, c.facts)) {
        c.quantized = json_object_get(config, "quantization_config") != NULL;
        c.rules = rules = c.quantized ? NULL : open_rules_of(type);
        c.filled = fill_defaults(config, c.facts);
        if (json_object_get(config, "auto_map") && severity == SEV_ERROR)
            c.severity = SEV_WARNING;
        sort_required_names(&c);
        check_listed_tensors(&c);
        json_decref(c.filled);
    }
    family_free(rules);
    arena_free(c.arena);
    model_table_free(table);
}
