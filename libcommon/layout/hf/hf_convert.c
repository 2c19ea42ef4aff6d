/*
 * hf_convert.c - describe a source as a model folder of Transformers
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/hf/check/hf_claims.h"
#include "libcommon/layout/hf/check/hf_settings.h"
#include "libcommon/layout/hf/hf_layers.h"
#include "libcommon/layout/hf/hf_saved.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/layout/hf/hf_translate.h"
#include "libcommon/layout/layout_write.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/own_config.h"
#include "libcommon/write/rehearsal.h"

/* An export: the target, and the objects that it refers to. */
struct hf_export {
    struct hf_target *t;
    struct hf_request q;
    struct hf_tokenizer tokenizer;
    json_t *own_config;                 /* config.json of the source, if it is used; or NULL */
};

/* An export that is being described. */
struct hf_describing {
    struct hf_export *x;
    struct source *s;
    const struct write_request *q;
    const struct hf_options *o;
    const json_t *config;  /* config.json given by the user or found in the source; NULL if there is none */
    struct report *notes;
};

/* ---- names ---- */

/*
 * Find the family that gives the checkpoint's parameters their names in shards. It is the family of --rules, or else
 * the one that config.json names. If the source's names belong to no family, *f is NULL: the names remain unchanged,
 * and must be those that the model has in Transformers. Returns -1 with *e set on failure.
 */
static int find_export_family(const struct hf_describing *d, struct family **f, struct err *e)
{
    const char *rules = d->q->rules;
    int named;

    *f = hf_find_family(rules, d->config, e);
    if (e->kind != ERR_NONE)
        return -1;
    if (rules && !d->config) {
        family_free(*f);
        err_usage(e, "--rules needs --config FILE with the config.json of the model, which has the numbers of heads, "
                     "groups and tokens");
        return -1;
    }
    if (*f && !rules && hf_know_names(d->s, *f, d->notes, e) < 0) {
        if (!hf_saved_renames(d->s, d->config)) {
            family_free(*f);
            return -1;
        }
        err_clear(e);
    }
    named = *f && !rules ? hf_is_in_shards(d->s, *f, e) : 1;
    if (named < 1) {
        family_free(*f);
        *f = NULL;
    }
    return named < 0 ? -1 : 0;
}

/*
 * Rename the parameters to Transformers' names by the rules of their family. Does nothing if the names belong to no
 * family.
 */
static int translate_param_names(const struct hf_describing *d, struct err *e)
{
    struct family *f;
    struct hf_sizes z;
    int rc = find_export_family(d, &f, e);

    if (rc < 0 || !f)
        return rc;
    rc = hf_sizes_read(d->config, d->o->config_path, &z, e);
    if (rc == 0) {
        d->x->q.transposed = hf_translate(d->s, f, &z, d->notes, e);
        rc = d->x->q.transposed ? 0 : -1;
    }
    if (rc == 0)
        report_add(d->notes, SEV_NOTE, "family", NULL, ERR_NO_BYTE, NULL, "the tensors have names of the family %s",
                   family_name(f));
    family_free(f);
    return rc;
}

/* ---- config.json ---- */

static int resolve_vocab_rows(const struct hf_describing *d, struct err *e)
{
    const struct hf_options *o = d->o;

    d->x->q.vocab = !o->strip_vocab ? 0 : o->vocab_tokens ? o->vocab_tokens : d->s->config.vocab_tokens;
    if (!o->strip_vocab || d->x->q.vocab > 0)
        return 0;
    err_usage(e, "--strip-vocab-padding: the checkpoint does not record how many rows are tokens; give --vocab-tokens "
                 "N");
    return -1;
}

static int check_named(const struct hf_describing *d, struct err *e)
{
    const struct hf_options *o = d->o;

    if (o->arch >= 0 || o->strip_vocab || o->q.per_layer || o->q.bare_names || (o->q.override && !d->config)) {
        err_usage(e, "%s: is neither BLOOM nor GPT-2 of Megatron-DeepSpeed, so its tensors are written as they are; "
                  "--arch, --strip-vocab-padding, --per-layer, --no-prefix, and --config KEY=JSON without --config "
                  "FILE cannot be used", d->s->path);
        return -1;
    }
    source_add_buffers(d->s);
    return 0;
}

/*
 * Rename the parameters to the names that the model in config.json has in a saved folder, and check that config.json
 * agrees with the tensors. A source that is a Transformers folder is left unchanged and is not checked. Names made by
 * translate_param_names() are final already.
 */
static int fit_config(const struct hf_describing *d, struct err *e)
{
    const enum severity severity = d->q->accept_mismatch ? SEV_WARNING : SEV_ERROR;
    struct report *r = report_new();
    json_t *config = json_deep_copy(d->config);
    struct source *s = d->s;
    int rc = 0;

    if (d->o->q.override)
        json_object_update(config, (json_t *)d->o->q.override);
    if (!s->layout->model_folder && !d->x->q.transposed)
        rc = hf_saved_names(s, config, hf_ties_head(config), d->notes, e);
    /* The opener has checked the source's own config.json. */
    if (rc == 0 && (d->config != d->x->own_config || d->o->q.override)) {
        hf_check_claims(s, config, true, severity, r);
        hf_check_layers(s, config, d->x->q.transposed, severity, r);
        hf_check_settings(s, config, d->x->q.transposed, severity, r);
    }
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        report_add(d->notes, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    if (rc == 0 && report_first_error(r, e) < 0) {
        err_add(e, "; --accept-mismatch prints a warning instead and exports the model");
        rc = -1;
    }
    report_free(r);
    json_decref(config);
    return rc;
}

/* Split or fuse the experts as requested. If the source is not a model folder, its experts are already split. */
static int apply_experts_form(const struct hf_describing *d, struct err *e)
{
    int rc;

    if (!d->q->experts)
        return 0;
    if (!d->config || json_object_get(d->config, "quantization_config")) {
        err_usage(e, "--experts: %s", d->config ? "the weights are quantized; dequantize them with ckpt-edit cast first"
                                                : "config.json is missing; give it with --config FILE");
        return -1;
    }
    if (hf_check_experts_form(d->s, d->config, d->q->experts == EXPERTS_SPLIT, e) < 0)
        return -1;
    rc = d->q->experts == EXPERTS_SPLIT ? hf_saved_names(d->s, d->config, false, d->notes, e)
                                        : hf_fused_names(d->s, d->config, d->notes, e);
    if (rc == 0 && !d->s->layout->model_folder && d->q->experts == EXPERTS_FUSED && d->x->q.transposed)
        d->x->q.transposed = arena_alloc(d->s->arena, (size_t)d->s->n_params + 1);
    return rc;
}

/* ---- what is printed ---- */

static const char *arch_of(const struct hf_target *t)
{
    return t->q.named ? "as named" : hf_arch_name(t->q.config.arch);
}

/*
 * Return the text of the config.json that will be written. For a model that is neither BLOOM nor GPT-2, this is the
 * given config.json, or an empty object. The caller frees the text.
 */
static char *config_text(const struct hf_target *t)
{
    json_t *own = hf_target_config(t);
    char *text = !t->q.named ? hf_config_text(&t->q.config, t->q.override)
               : own ? hf_json_text(own) : xstrdup("{}\n");

    json_decref(own);
    return text;
}

static char *hf_text(const struct layout_target *of)
{
    const struct hf_target *t = hf_target_of(of);

    if (t->q.named)
        return str_fmt("%d tensors (names unchanged) in %d file%s", t->n_tensors, t->n_files,
                       t->n_files == 1 ? "" : "s");
    return str_fmt("%s, %d tensors of %s in %d file%s", arch_of(t), t->n_tensors, dtype_name(t->q.config.dtype),
                   t->n_files, t->n_files == 1 ? "" : "s");
}

static void hf_facts(const struct layout_target *of, json_t *o)
{
    const struct hf_target *t = hf_target_of(of);

    json_object_update_new(o, json_pack("{s:s, s:s, s:i, s:i}", "architecture", arch_of(t), "dtype",
                                        dtype_name(t->q.config.dtype), "tensors", t->n_tensors, "files", t->n_files));
}

static void hf_plan_text(const struct layout_target *of, const struct write_plan *plan, struct strbuf *sb)
{
    const struct hf_target *t = hf_target_of(of);
    const struct hf_config *c = &t->q.config;
    const struct rehearsal *r = plan->r;
    char a[16], b[16], d[16];

    strbuf_addf(sb, "%s -> %s\n", t->src->path, plan->out);
    if (t->q.named)
        strbuf_addf(sb, "model    tensors as they are, under their names, %s\n", dtype_name(c->dtype));
    else
        strbuf_addf(sb, "model    %s, %lld layers, hidden %lld, %lld heads, %lld rows of vocabulary, %s\n", arch_of(t),
                    (long long)c->n_layers, (long long)c->hidden, (long long)c->n_heads, (long long)c->vocab,
                    dtype_name(c->dtype));
    strbuf_addf(sb, "files    %d, %s of tensors in %d; %s to write, %s free%s\n", r->files,
                bytes_text(t->tensor_bytes, a), t->n_files, bytes_text(r->need_bytes, b), bytes_text(r->free_bytes, d),
                r->lack_text);
}

static void hf_plan_facts(const struct layout_target *of, const struct write_plan *plan, json_t *o)
{
    const struct hf_target *t = hf_target_of(of);
    char *config = config_text(t);

    (void)plan;
    json_object_update_new(o, json_pack("{s:I, s:I, s:o}", "vocab", (json_int_t)t->q.config.vocab, "tensor_bytes",
                                        (json_int_t)t->tensor_bytes, "config", json_loads(config, 0, NULL)));
    free(config);
}

static void hf_list(const struct layout_target *of, struct strbuf *sb)
{
    const struct hf_target *t = hf_target_of(of);
    char *config = config_text(t);

    for (int i = 0; i < t->n_tensors; i++) {
        const struct hf_tensor *x = &t->tensor[i];
        char shape[SHAPE_TEXT];

        strbuf_addf(sb, "  %s %s %s from %s %s\n", t->file[x->file].name, x->name,
                    shape_text(x->ndim, x->shape, shape), t->src->param[x->param].name, dtype_name(x->map->dtype));
    }
    strbuf_addf(sb, "config.json\n%s", config);
    free(config);
}

/* ---- the target ---- */

static struct sink *open_hf_sink(const struct layout_target *t, const struct sink_opts *o)
{
    return hf_sink(o, hf_target_of(t));
}

static void free_hf_export(void *of)
{
    struct hf_export *x = of;

    hf_target_free(x->t);
    hf_tokenizer_free(&x->tokenizer);
    json_decref(x->own_config);
    free(x);
}

static const struct layout_target_ops hf_target_ops = {
    .verifies = true, .open_sink = open_hf_sink, .text = hf_text, .facts = hf_facts, .plan_text = hf_plan_text,
    .plan_facts = hf_plan_facts, .label_width = 8, .list = hf_list, .free = free_hf_export,
};

struct hf_target *hf_target_of(const struct layout_target *t)
{
    return ((const struct hf_export *)t->of)->t;
}

/* If the source has a config.json and the user has not given one, use the source's. */
static int use_own_config(struct hf_describing *d, struct err *e)
{
    if (!d->config)
        d->x->q.config_json = d->config = d->x->own_config =
            d->s->layout->model_folder ? hf_config_json(d->s, e) : own_config_json(d->s, d->notes, e);
    return e->kind == ERR_NONE ? 0 : -1;
}

static int open_tokenizer(const struct hf_describing *d, struct err *e)
{
    struct hf_export *x = d->x;

    if (!d->o->tokenizer)
        return 0;
    if (hf_tokenizer_open(&x->tokenizer, d->o->tokenizer, d->s->run.args, e) < 0)
        return -1;
    if (x->tokenizer.names_tokens)
        memcpy(x->q.config.token, x->tokenizer.token, sizeof x->tokenizer.token);
    x->q.tokenizer = &x->tokenizer;
    return 0;
}

int describe_as_hf(struct source *s, const struct write_request *q, struct report *notes, struct layout_target *t,
                   struct err *e)
{
    struct hf_export *x = xcalloc(1, sizeof *x);
    struct hf_describing d = { .x = x, .s = s, .q = q, .o = q->hf, .config = q->hf->config, .notes = notes };

    t->ops = &hf_target_ops;
    t->of = x;
    x->q = q->hf->q;
    x->q.config_json = q->hf->config;
    if (source_one_model(s, e) < 0 || use_own_config(&d, e) < 0 || translate_param_names(&d, e) < 0)
        return -1;
    x->q.named = source_has_own_names(s) || x->q.transposed;
    if (q->experts && !x->q.named) {
        err_usage(e, "%s: --experts: models of this layout have no experts; omit the option", s->path);
        return -1;
    }
    if (x->q.named ? check_named(&d, e) < 0
                   : hf_config_of(s, d.o->arch, &x->q.config, notes, e) < 0 || resolve_vocab_rows(&d, e) < 0)
        return -1;
    if (x->q.named && ((d.config && fit_config(&d, e) < 0) || apply_experts_form(&d, e) < 0))
        return -1;
    /*
     * If no type is requested, the tensors of a ZeRO checkpoint are written in the type of its 16-bit weights (fp32
     * master weights are rounded to this type), and the tensors of other layouts keep their types.
     */
    x->q.as_is = x->q.named && q->dtype == DTYPE_N && !source_is_from_zero(s);
    x->q.config.dtype = q->dtype != DTYPE_N ? q->dtype : source_weights_dtype(s);
    if (open_tokenizer(&d, e) < 0)
        return -1;
    x->t = hf_target_new(s, &x->q, notes, e);
    return x->t ? 0 : -1;
}
