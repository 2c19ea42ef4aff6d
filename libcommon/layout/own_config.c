/*
 * own_config.c - compare the config.json next to the files of a training checkpoint with its tensors
 */
#include "libcommon/layout/own_config.h"

#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/ckpt/unwrap.h"
#include "libcommon/layout/hf/check/hf_claims.h"
#include "libcommon/layout/hf/check/hf_settings.h"
#include "libcommon/layout/hf/hf_layers.h"
#include "libcommon/layout/hf/hf_names.h"
#include "libcommon/layout/hf/hf_saved.h"
#include "libcommon/layout/hf/hf_translate.h"

/*
 * Returns true if the model contains adapters of peft. These change the names of the weights to which they are added.
 */
static bool has_adapters(const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (strstr(s->param[i].name, ".lora_") || strstr(s->param[i].name, ".base_layer."))
            return true;
    return false;
}

/*
 * Returns true if the parameter's name has the prefix of the base model. A model that was saved without a head lacks
 * the prefix.
 */
static bool is_in_base(const char *name)
{
    return str_starts(name, "model.") || str_starts(name, "transformer.") || str_starts(name, "gpt_neox.");
}

/*
 * Returns true if the model is not of the class of language models that config.json may name. Such a model has a head
 * that rates or classifies texts, or was saved without a head, so that its names lack the prefix. A parameter whose
 * name does not have the prefix is taken for such a head if there is no head of a language model, and config.json does
 * not tie a head to the embedding. *of is set to the name of a parameter that shows this.
 */
static bool is_of_other_class(const struct source *s, const json_t *config, const char **of)
{
    static const char *const heads[] = { "score.weight", "classifier.weight", "v_head.summary.weight",
                                         "value_head.weight" };
    bool has_head = false;

    *of = NULL;
    for (int i = 0; i < s->n_params; i++) {
        const char *name = s->param[i].name;

        for (size_t k = 0; k < sizeof heads / sizeof *heads; k++)
            if (str_ends(name, heads[k])) {
                *of = name;
                return true;
            }
        has_head |= hf_is_head(name);
        if (!is_in_base(name) && !*of)
            *of = name;
    }
    return *of && !has_head && !hf_ties_head(config);
}

/* Returns the name without the first `part` in it. If the name does not contain `part`, returns it unchanged. */
static const char *without_part(const struct source *s, const char *name, const char *part)
{
    const char *at = strstr(name, part);

    return !at ? name : arena_fmt(s->arena, "%.*s%s", (int)(at - name), name, at + strlen(part));
}

/*
 * Returns a parameter's name without the parts added by wrappers, by peft (for a weight to which an adapter is added)
 * and by trl (for a model with a value head). Returns NULL for a parameter of an adapter.
 */
static const char *bare_name(const struct source *s, const char *name)
{
    static const char *const added[] = { "base_model.model.", "pretrained_model.", ".base_layer", ".original_module" };

    if (strstr(name, ".lora_") || strstr(name, ".modules_to_save."))
        return NULL;
    name = unwrap_name(s->arena, name);
    for (size_t i = 0; i < sizeof added / sizeof *added; i++)
        name = without_part(s, name, added[i]);
    return name;
}

/*
 * Returns true if all parameter names have the prefix of the base model. Then the model was saved by a class with a
 * head, but the head is missing.
 */
static bool has_base_alone(const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (!is_in_base(s->param[i].name))
            return false;
    return s->n_params > 0;
}

/* Returns true if the source has a config.json: as a file next to the tensors, or made from other settings. */
static bool has_config_file(const struct source *s)
{
    const char *dir = s->layout->config_dir;

    return s->config_json || (dir && source_file(s, arena_fmt(s->arena, "%sconfig.json", dir)));
}

/*
 * Report weights of a known family that share their storage with another weight. A head that config.json ties to the
 * embedding is not reported. The classes of these families share no other weights.
 */
static void check_shared(const struct source *s, const json_t *config, enum severity severity, struct report *r)
{
    for (int i = 0; i < s->n_params && hf_knows_layers(config); i++) {
        const struct param *p = &s->param[i];

        if (p->shared_with && !(hf_is_head(p->name) && !json_is_false(json_object_get(config, "tie_word_embeddings"))))
            report_add(r, severity, "config", s->path, ERR_NO_BYTE, p->name,
                       "has the same elements in the files as %s, but config.json does not tie the two",
                       p->shared_with);
    }
}

/* Compare the config with a copy of the source in which the parameters have the names that a model folder has. */
static void compare_config(const struct source *s, json_t *config, enum severity severity, struct report *r)
{
    struct source as_saved = *s;
    struct report *ignored = report_new();
    struct err e = {0};
    const char *of;

    as_saved.names = arena_alloc(s->arena, sizeof *as_saved.names);
    as_saved.param = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof *as_saved.param);
    as_saved.n_params = 0;
    for (int i = 0; i < s->n_params; i++) {
        const char *name = bare_name(s, s->param[i].name);

        if (!name)
            continue;
        as_saved.param[as_saved.n_params] = s->param[i];
        as_saved.param[as_saved.n_params++].name = name;
    }
    if (is_of_other_class(&as_saved, config, &of))
        json_object_del(config, "architectures");
    else if (!json_object_get(config, "architectures") && has_base_alone(&as_saved))
        json_object_set_new(config, "architectures", json_pack("[s]", "AnyForCausalLM"));
    if (hf_saved_names(&as_saved, config, false, ignored, &e) < 0) {
        report_add(r, severity, "config", NULL, ERR_NO_BYTE, NULL, "%s", e.msg);
    } else {
        hf_check_claims(&as_saved, config, true, severity, r);
        hf_check_layers(&as_saved, config, NULL, severity, r);
        hf_check_settings(&as_saved, config, NULL, severity, r);
        check_shared(&as_saved, config, severity, r);
    }
    report_free(ignored);
}

/*
 * Add the findings of `from` to `to`. If config.json was made from other settings, each text names these settings,
 * because the user may have to correct those.
 */
static void add_config_findings(const struct source *s, const struct report *from, struct report *to)
{
    static const char name[] = "config.json";

    for (int i = 0; i < report_n(from); i++) {
        const struct finding *f = report_get(from, i);
        const char *at = s->config_json ? strstr(f->text, name) : NULL;

        if (at)
            report_add(to, f->severity, f->code, f->file, f->at, f->param, "%.*sthe config.json made of %s%s",
                       (int)(at - f->text), f->text, s->config_of, at + strlen(name));
        else
            report_add(to, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
}

void own_config_check(const struct source *s, const struct source_opts *o, struct report *r)
{
    const enum severity severity = o && o->accept_mismatch ? SEV_WARNING : SEV_ERROR;
    struct report *found;
    struct err e = {0};
    json_t *config;

    if (!has_config_file(s) || s->n_params == 0)
        return;
    found = report_new();
    config = hf_config_json(s, &e);
    if (e.kind != ERR_NONE)
        report_add_err(r, "unreadable", &e);
    else if (!json_is_object(config))
        report_add(r, severity, "config", s->path, ERR_NO_BYTE, NULL, "%sconfig.json is not a JSON object",
                   s->layout->config_dir);
    else
        compare_config(s, config, severity, found);
    add_config_findings(s, found, r);
    report_free(found);
    json_decref(config);
}

/* Returns true if config.json names the class of a language model. */
static bool names_language_model(const json_t *config)
{
    const char *class = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));

    return class && (str_ends(class, "ForCausalLM") || str_ends(class, "LMHeadModel"));
}

json_t *own_config_json(const struct source *s, struct report *notes, struct err *e)
{
    json_t *config = has_config_file(s) && !has_adapters(s) ? hf_config_json(s, e) : NULL;
    const char *of;

    if (!json_is_object(config) || str_starts(s->n_params ? s->param[0].name : "", "pretrained_model.")) {
        json_decref(config);
        return NULL;
    }
    if (s->config_json)
        report_add(notes, SEV_NOTE, "config", NULL, ERR_NO_BYTE, NULL,
                   "config.json is made of %s; what it does not state, such as max_position_embeddings and the numbers "
                   "of special tokens, is set with --config KEY=VALUE", s->config_of);
    if (s->config_lacks)
        report_add(notes, SEV_WARNING, "config", NULL, ERR_NO_BYTE, NULL, "%s: %s", s->config_of, s->config_lacks);
    if (!s->config_json)
        report_add(notes, SEV_NOTE, "config", NULL, ERR_NO_BYTE, NULL, "config.json is that in %s",
                   s->layout->config_dir);
    if (names_language_model(config) && is_of_other_class(s, config, &of)) {
        json_object_del(config, "architectures");
        report_add(notes, SEV_WARNING, "config", s->path, ERR_NO_BYTE, of,
                   "the model has another head than the class in config.json, or none, so that architectures is "
                   "omitted; --config 'architectures=[\"CLASS\"]' sets it");
    }
    return config;
}
