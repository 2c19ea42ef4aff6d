/*
 * hf_settings.c - compare the defaults of Transformers, and the class of the model, with the tensors
 */
#include "libcommon/layout/hf/check/hf_settings.h"

#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/check/hf_claims.h"
#include "libcommon/layout/hf/check/model_tensors.h"
#include "libcommon/layout/hf/hf_layers.h"

struct model_settings {
    const struct source *s;
    const json_t *config;
    const bool *transposed;
    const struct model_table *table;
    const struct model_facts *facts;
    enum severity severity;
    struct report *r;
    struct report *as_is;               /* findings for config.json without changes; NULL until they are needed */
};

/* ---- numbers that config.json does not state ---- */

/*
 * Returns the findings of the other checks if the number `value` is added to config.json under `key`. If `key` is NULL,
 * config.json is checked without changes.
 */
static struct report *try_setting(const struct model_settings *c, const char *key, json_int_t value)
{
    json_t *config = json_copy((json_t *)c->config);
    struct report *found = report_new();

    if (key)
        json_object_set_new(config, key, json_integer(value));
    hf_check_claims(c->s, config, true, SEV_ERROR, found);
    hf_check_layers(c->s, config, c->transposed, SEV_ERROR, found);
    json_decref(config);
    return found;
}

static bool has_finding(const struct report *r, const struct finding *f)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *g = report_get(r, i);

        if (strcmp(f->text, g->text) == 0 && (!f->param || !g->param ? f->param == g->param
                                                                     : strcmp(f->param, g->param) == 0))
            return true;
    }
    return false;
}

/* Returns the first error of r that neither of the two other reports contains, or NULL if there is none. */
static const struct finding *first_own_error(const struct report *r, const struct report *a, const struct report *b)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        if (f->severity == SEV_ERROR && !has_finding(a, f) && !has_finding(b, f))
            return f;
    }
    return NULL;
}

/*
 * Returns the first error of `found` that is neither in `other` nor caused by config.json without changes. Most trials
 * cause only errors that the caller's report already has; then nothing else is read.
 */
static const struct finding *first_caused_error(struct model_settings *c, const struct report *found,
                                                const struct report *other)
{
    if (!first_own_error(found, c->r, other))
        return NULL;
    if (!c->as_is)
        c->as_is = try_setting(c, NULL, 0);
    return first_own_error(found, c->as_is, other);
}

/* Returns true if the config.json of every model must state this number, because tensors have this size. */
static bool is_size_setting(const char *key)
{
    static const char *const keys[] = { "hidden_size", "n_embd", "d_model", "intermediate_size", "vocab_size",
                                        "num_hidden_layers", "n_layer", "n_layers", "num_attention_heads", "n_head",
                                        "n_heads" };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

/*
 * Check the default of a number that config.json does not state. The default is contradicted if it causes findings that
 * another number does not cause. If both cause the same findings, no tensor depends on the number. Another number is
 * tried only if its findings matter, because each trial reads all names.
 */
static void check_default(struct model_settings *c, const char *key, json_int_t value)
{
    struct report *with = try_setting(c, key, value);
    const bool matters = is_size_setting(key) || first_caused_error(c, with, c->r);
    struct report *other = matters ? try_setting(c, key, 2 * value + 1) : NULL;
    const struct finding *f = other ? first_caused_error(c, with, other) : NULL;

    if (f)
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, f->param,
                   "%s %s %lld, which Transformers takes because config.json does not state it; add the right number "
                   "to config.json", f->param ? "contradicts" : "the tensors contradict", key, (long long)value);
    else if (is_size_setting(key) && !first_caused_error(c, other, with))
        report_add(c->r, SEV_WARNING, "config", c->s->path, ERR_NO_BYTE, NULL,
                   "config.json does not state %s; Transformers then takes %lld, and no tensor shows whether this is "
                   "right", key, (long long)value);
    report_free(with);
    report_free(other);
}

/* Returns true if there is an embedding of tokens. Without one, the files hold only a part of a model. */
static bool has_token_embedding(const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (strstr(s->param[i].name, "embed") || str_ends(s->param[i].name, "wte.weight"))
            return true;
    return false;
}

static bool is_absent(const struct model_settings *c, const struct model_default *d)
{
    return !json_object_get(c->config, d->key) && !(d->alias && json_object_get(c->config, d->alias));
}

static bool is_heads_setting(const char *key)
{
    return strcmp(key, "num_attention_heads") == 0 || strcmp(key, "n_head") == 0 || strcmp(key, "n_heads") == 0;
}

/*
 * Check the default of each number, or only the default of the number of heads. If num_key_value_heads has no default,
 * the default is that of num_attention_heads.
 */
static void check_defaults(struct model_settings *c, bool heads_alone)
{
    static const char groups[] = "num_key_value_heads";
    const json_t *heads = json_object_get(c->config, "num_attention_heads");
    bool listed = json_object_get(c->config, groups) != NULL;

    for (int i = 0; i < c->facts->n_defaults; i++) {
        const struct model_default *d = &c->facts->preset[i];
        json_t *value = d->value ? json_loads(d->value, JSON_DECODE_ANY, NULL) : NULL;

        listed |= strcmp(d->key, groups) == 0;
        if (json_is_integer(value) && is_absent(c, d) && (!heads_alone || is_heads_setting(d->key)))
            check_default(c, d->key, json_integer_value(value));
        json_decref(value);
    }
    if (!listed && json_is_integer(heads))
        check_default(c, groups, json_integer_value(heads));
}

/*
 * Check the defaults. They are not checked if the files hold only a part of a model. They are also not checked if
 * config.json is a stub, as some programs need it, which states neither the number of heads nor another size. No
 * release of Transformers writes such a file.
 */
static void check_absent_numbers(struct model_settings *c)
{
    bool heads = false, other = false;

    for (int i = 0; i < c->facts->n_defaults; i++) {
        const struct model_default *d = &c->facts->preset[i];

        if (is_size_setting(d->key) && is_absent(c, d))
            *(is_heads_setting(d->key) ? &heads : &other) = true;
    }
    if (has_token_embedding(c->s) && !(heads && other))
        check_defaults(c, heads);
}

/* ---- the class ---- */

/*
 * Returns true if `class` is a class of the models in `m`. Its name is that of the models, followed by one of the
 * endings that Transformers uses.
 */
static bool is_class_of(const struct model_facts *m, const char *class)
{
    static const char *const ends[] = { "ForCausalLM", "LMHeadModel", "Model", "TextModel", "ForSequenceClassification",
                                        "ForTokenClassification", "ForQuestionAnswering", "DoubleHeadsModel",
                                        "ForConditionalGeneration" };
    const size_t n = strlen(m->class_name);

    if (strncmp(m->class_name, class, n) != 0)
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(class + n, ends[i]) == 0)
            return true;
    return false;
}

/* Report that the head is missing, if the class is made for another task than language modelling. */
static void check_class_head(const struct model_settings *c, const char *class)
{
    for (int i = 0; i < c->facts->n_heads; i++) {
        const struct model_head *h = &c->facts->head[i];
        bool found = !str_ends(class, h->class_end) || c->s->n_unread > 0;

        for (int k = 0; k < h->n && !found; k++)
            for (int p = 0; p < c->s->n_params && !found; p++)
                found = strcmp(c->s->param[p].name, h->tensor[k]) == 0;
        if (!found)
            report_add(c->r, c->severity, "missing_param", c->s->path, ERR_NO_BYTE, h->tensor[0],
                       "is missing, but the class %.60s in config.json (architectures) has it; Transformers would "
                       "initialize it with random values", class);
    }
}

static void check_class(const struct model_settings *c)
{
    const char *class = json_string_value(json_array_get(json_object_get(c->config, "architectures"), 0));
    const struct model_facts *of = NULL, *m;

    if (!class)
        return;
    if (is_class_of(c->facts, class)) {
        check_class_head(c, class);
        return;
    }
    for (int i = 0; (m = model_table_at(c->table, i)) && !of; i++)
        if (is_class_of(m, class))
            of = m;
    if (of)
        report_add(c->r, SEV_WARNING, "config", c->s->path, ERR_NO_BYTE, NULL,
                   "config.json names the class %s of %s models in architectures, but its model_type is %s; programs "
                   "select a model by one or the other", class, of->type, c->facts->type);
}

void hf_check_settings(const struct source *s, const json_t *config, const bool *transposed, enum severity severity,
                       struct report *r)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    struct model_settings c = { .s = s, .config = config, .transposed = transposed, .severity = severity, .r = r };
    struct err ignored = {0};                       /* hf_check_required() reports it */
    struct model_table *table = type && s->n_params > 0 && !json_object_get(config, "auto_map")
                                    ? model_table_open(&ignored) : NULL;

    c.table = table;
    c.facts = table ? model_table_find(table, type) : NULL;
    if (c.facts) {
        check_absent_numbers(&c);
        check_class(&c);
    }
    report_free(c.as_is);
    model_table_free(table);
}
