/*
 * deepspeed_json.c - map the keys of a DeepSpeed configuration to options, and detect contradictions
 */
#include "tools/train/options/deepspeed_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/base/files.h"
#include "tools/train/options/options_impl.h"
#include "tools/train/options/pytext.h"

enum { JSON_MAX_BYTES = 1 << 20 };

/*
 * Compare the value of a JSON key, written as a user would write it, with the value of its option. If the option was
 * not given, set it to the value of the key. If it was given, both values must be equal.
 */
static int match_deepspeed_option(struct train_opts *o, const char *key, const char *option, const char *text,
                                  struct err *e)
{
    const struct option_row *r = option_find(&options_table, option);
    struct options_place here = { FROM_DEEPSPEED, arena_fmt(o->impl->arena, "%s: %s", o->deepspeed_config, key), NULL };
    struct train_opts theirs = *o;
    struct strbuf ours_text = {0}, theirs_text = {0};
    char *word = (char *)text;
    int rc = 0;

    if (options_source(o, r->field) < FROM_DEEPSPEED)
        return options_set(o, r, 1, &word, &here, e);
    if (options_parse_value(&theirs, r, 1, &word, &here, e) < 0)
        return -1;
    /* Compare the values in the form that options_value() prints, in which 1, 1.0 and 1e0 are equal. */
    options_value(o, r, &ours_text);
    options_value(&theirs, r, &theirs_text);
    if (strcmp(ours_text.buf, theirs_text.buf) != 0) {
        err_usage(e, "%s: %s is %s, but %s is %s", o->deepspeed_config, key, theirs_text.buf,
                  options_where(o, r->field), ours_text.buf);
        rc = -1;
    }
    strbuf_free(&ours_text);
    strbuf_free(&theirs_text);
    return rc;
}

/*
 * Convert a number or a boolean to text. "auto", which occurs in Hugging Face's files, means that the value is not
 * given, and becomes "". Returns -1 for any other value.
 */
static int value_text(const json_t *v, char out[PYTEXT_FLOAT])
{
    out[0] = '\0';
    if (json_is_string(v) && strcmp(json_string_value(v), "auto") == 0)
        return 0;
    if (json_is_boolean(v))
        strcpy(out, json_is_true(v) ? "true" : "false");
    else if (json_is_integer(v))
        snprintf(out, PYTEXT_FLOAT, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        pytext_float(out, json_real_value(v));
    else
        return -1;
    return 0;
}

static int wrong_value(const struct train_opts *o, const char *key, const char *expected, struct err *e)
{
    err_usage(e, "%s: %s: expected %s", o->deepspeed_config, key, expected);
    return -1;
}

static int apply_ds_scalar(struct train_opts *o, const char *key, const char *option, const json_t *v, struct err *e)
{
    char text[PYTEXT_FLOAT];

    if (value_text(v, text) < 0)
        return wrong_value(o, key, "a number", e);
    return *text ? match_deepspeed_option(o, key, option, text, e) : 0;
}

static int apply_ds_communication(struct train_opts *o, const char *key, const json_t *v, struct err *e)
{
    const char *name = json_string_value(v);

    if (json_is_null(v))
        return 0;
    if (name && strcmp(name, "fp32") == 0)
        return match_deepspeed_option(o, key, "grad-reduce-dtype", "fp32", e);
    if (name && (strcmp(name, "bf16") == 0 || strcmp(name, "bfp16") == 0))
        return match_deepspeed_option(o, key, "grad-reduce-dtype", "bf16", e);
    if (name && strcmp(name, "fp16") == 0)
        return match_deepspeed_option(o, key, "grad-reduce-dtype", "fp16", e);
    return wrong_value(o, key, "\"fp32\", \"fp16\" or \"bf16\"", e);
}

static int apply_ds_accumulation(struct train_opts *o, const char *key, const json_t *v, struct err *e)
{
    if (json_is_string(v))              /* "auto" */
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1000000000)
        return wrong_value(o, key, "a whole number from 1", e);
    o->impl->accumulation_steps = json_integer_value(v);
    return 0;
}

/* Returns the member `name` of an object. Adds a note for each key of this member that is not in `known`. */
static const json_t *member(struct train_opts *o, const char *key, const json_t *object, const char *name,
                            const char *known)
{
    const char *k;
    json_t *v;

    json_object_foreach((json_t *)object, k, v)
        if (strcmp(k, name) != 0 && !(known && strstr(known, k)))
            options_add_remark(o, "%s: %s.%s is unknown and has no effect", o->deepspeed_config, key, k);
    return json_object_get(object, name);
}

static int apply_ds_zero(struct train_opts *o, const char *key, const json_t *v, struct err *e)
{
    const json_t *stage;

    if (!json_is_object(v))
        return wrong_value(o, key, "an object", e);
    stage = member(o, key, v, "stage", NULL);
    return stage ? apply_ds_scalar(o, "zero_optimization.stage", "zero-stage", stage, e) : 0;
}

static int apply_ds_bf16(struct train_opts *o, const char *key, const json_t *v, struct err *e)
{
    const json_t *enabled;

    if (!json_is_object(v))
        return wrong_value(o, key, "an object", e);
    enabled = member(o, key, v, "enabled", NULL);
    if (enabled && !json_is_boolean(enabled))
        return wrong_value(o, "bf16.enabled", "true or false", e);
    return enabled ? apply_ds_scalar(o, "bf16.enabled", "bf16", enabled, e) : 0;
}

/* ---- fp16 ---- */

/* The keys that define DeepSpeed's scaler, and their defaults. */
static const struct { const char *key, *option, *otherwise; } scaler_keys[] = {
    { "loss_scale", "loss-scale", "0" },
    { "initial_scale_power", "initial-loss-scale", "16" },
    { "loss_scale_window", "loss-scale-window", "1000" },
    { "hysteresis", "hysteresis", "2" },
    { "min_loss_scale", "min-loss-scale", "1" },
};

/*
 * Set the option to the value of the key. If the option has a different value from another source, add a note that the
 * value is replaced.
 */
static int override_option_value(struct train_opts *o, const char *key, const char *option, const char *text,
                                 struct err *e)
{
    const struct option_row *r = option_find(&options_table, option);
    struct options_place here = { FROM_DEEPSPEED, arena_fmt(o->impl->arena, "%s: %s", o->deepspeed_config, key), NULL };
    struct strbuf before = {0}, after = {0};
    const bool given = options_source(o, r->field) > FROM_DEEPSPEED;
    const char *where = given ? options_where(o, r->field) : NULL;
    char *word = (char *)text;
    int rc;

    options_value(o, r, &before);
    rc = options_set(o, r, 1, &word, &here, e);
    if (rc == 0)
        options_value(o, r, &after);
    if (rc == 0 && given && strcmp(before.buf, after.buf) != 0)
        options_add_remark(o, "%s %s has no effect: %s decides, %s is %s", where, before.buf, o->deepspeed_config, key,
                           after.buf);
    strbuf_free(&before);
    strbuf_free(&after);
    return rc;
}

static int apply_ds_scaler_key(struct train_opts *o, size_t i, const json_t *v, struct err *e)
{
    char *key = arena_fmt(o->impl->arena, "fp16.%s", scaler_keys[i].key), text[PYTEXT_FLOAT];

    text[0] = '\0';
    if (v && value_text(v, text) < 0)
        return wrong_value(o, key, "a number", e);
    if (!*text)
        strcpy(text, scaler_keys[i].otherwise);
    if (strcmp(scaler_keys[i].key, "initial_scale_power") == 0) {
        if (v && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 99))
            return wrong_value(o, key, "a whole number from 0 to 99", e);
        pytext_float(text, exp2(atof(text)));
    }
    return override_option_value(o, key, scaler_keys[i].option, text, e);
}

static bool is_fp16_key(const char *key)
{
    static const char *const others[] = { "enabled", "consecutive_hysteresis", "auto_cast" };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(key, others[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof scaler_keys / sizeof *scaler_keys; i++)
        if (strcmp(key, scaler_keys[i].key) == 0)
            return true;
    return false;
}

static int apply_ds_fp16(struct train_opts *o, const char *key, const json_t *v, struct err *e)
{
    const json_t *enabled = json_object_get(v, "enabled"), *consecutive = json_object_get(v, "consecutive_hysteresis");
    const char *k;
    json_t *other;

    if (!json_is_object(v))
        return wrong_value(o, key, "an object", e);
    if (enabled && !json_is_boolean(enabled))
        return wrong_value(o, "fp16.enabled", "true or false", e);
    if (enabled && apply_ds_scalar(o, "fp16.enabled", "fp16", enabled, e) < 0)
        return -1;
    if (!json_is_true(enabled))
        return 0;                       /* the other keys of fp16 have no effect then */
    o->impl->json_fp16 = true;
    for (size_t i = 0; i < sizeof scaler_keys / sizeof *scaler_keys; i++)
        if (apply_ds_scaler_key(o, i, json_object_get(v, scaler_keys[i].key), e) < 0)
            return -1;
    if (consecutive && !json_is_boolean(consecutive))
        return wrong_value(o, "fp16.consecutive_hysteresis", "true or false", e);
    o->consecutive_hysteresis = json_is_true(consecutive);
    if (json_is_true(json_object_get(v, "auto_cast")))
        return wrong_value(o, "fp16.auto_cast", "false: a pipeline's inputs are tokens", e);
    json_object_foreach((json_t *)v, k, other)
        if (!is_fp16_key(k))
            options_add_remark(o, "%s: %s.%s is unknown and has no effect", o->deepspeed_config, key, k);
    return 0;
}

static int refuse_ds_curriculum(struct train_opts *o, const char *key, const json_t *v, struct err *e)
{
    if (json_is_object(v) && !json_is_true(json_object_get(v, "enabled")))
        return 0;
    err_usage(e, "%s: %s: curriculum learning is not supported", o->deepspeed_config, key);
    return -1;
}

static int ignore_ds_key(struct train_opts *o, const char *key, const json_t *v, struct err *e)
{
    (void)o, (void)key, (void)v, (void)e;
    return 0;
}

static const struct {
    const char *key, *option;           /* option: the option whose value must be equal to that of the key */
    int (*apply)(struct train_opts *o, const char *key, const json_t *v, struct err *e);
} keys[] = {
    { "train_micro_batch_size_per_gpu", "micro-batch-size", NULL },
    { "train_batch_size", "global-batch-size", NULL },
    { "gradient_clipping", "clip-grad", NULL },
    { "steps_per_print", "steps-per-print", NULL },
    { "gradient_accumulation_steps", NULL, apply_ds_accumulation },
    { "zero_optimization", NULL, apply_ds_zero },
    { "bf16", NULL, apply_ds_bf16 },
    { "bfloat16", NULL, apply_ds_bf16 },
    { "fp16", NULL, apply_ds_fp16 },
    { "communication_data_type", NULL, apply_ds_communication },
    { "curriculum_learning", NULL, refuse_ds_curriculum },
    { "wall_clock_breakdown", NULL, ignore_ds_key },
    { "zero_allow_untested_optimizer", NULL, ignore_ds_key },
};

static int apply_ds_key(struct train_opts *o, const char *key, const json_t *v, struct err *e)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i].key, key) == 0)
            return keys[i].apply ? keys[i].apply(o, key, v, e) : apply_ds_scalar(o, key, keys[i].option, v, e);
    options_add_remark(o, "%s: %s is unknown and has no effect", o->deepspeed_config, key);
    return 0;
}

int deepspeed_json_read(struct train_opts *o, struct err *e)
{
    json_error_t where;
    uint64_t size;
    char *text = file_slurp(o->deepspeed_config, JSON_MAX_BYTES, &size, e);
    json_t *root, *v;
    const char *key;
    int rc = 0;

    if (!text)
        return -1;
    root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    free(text);
    if (!root) {
        err_data(e, o->deepspeed_config, ERR_NO_BYTE, "line %d: %s", where.line, where.text);
        return -1;
    }
    if (!json_is_object(root)) {
        err_data(e, o->deepspeed_config, ERR_NO_BYTE, "expected a JSON object");
        rc = -1;
    }
    json_object_foreach(root, key, v)
        if (rc == 0)
            rc = apply_ds_key(o, key, v, e);
    json_decref(root);
    /*
     * With such a configuration file DeepSpeed creates the optimizer itself. If the file does not enable fp16, there is
     * no loss scaler.
     */
    if (rc == 0 && o->fp16 && !o->impl->json_fp16) {
        err_usage(e, "%s: fp16.enabled is not true, but %s is given", o->deepspeed_config, OPTS_WHERE(o, fp16));
        rc = -1;
    }
    return rc;
}

int deepspeed_json_check(struct train_opts *o, struct err *e)
{
    int64_t steps = o->impl->accumulation_steps, b = o->micro_batch_size, dp = o->data_parallel_size;

    if (!steps || !b)
        return 0;
    if (!o->global_batch_size) {
        o->global_batch_size = b * dp * steps;
        return 0;
    }
    if (o->rampup_batch_size.n)         /* the program that calls DeepSpeed passes the actual number at every step */
        return 0;
    if (o->global_batch_size != b * dp * steps) {
        err_usage(e, "%s: gradient_accumulation_steps is %ld: with micro-batch size %ld and %ld data-parallel ranks "
                  "that makes %ld samples, but %s is %ld", o->deepspeed_config, (long)steps, (long)b, (long)dp,
                  (long)(b * dp * steps), OPTS_WHERE(o, global_batch_size), (long)o->global_batch_size);
        return -1;
    }
    return 0;
}

/*
 * Convert a JSON value to a pickle value. The recursion is limited, because jansson does not parse JSON that is nested
 * deeper than 2048 levels.
 */
static struct pk *tree_of(struct arena *a, json_t *v)
{
    struct pk *made;
    const char *key;
    json_t *item;
    size_t i;

    switch (json_typeof(v)) {
    case JSON_TRUE: case JSON_FALSE: return pk_bool(a, json_is_true(v));
    case JSON_INTEGER: return pk_int(a, json_integer_value(v));
    case JSON_REAL: return pk_float(a, json_real_value(v));
    case JSON_STRING: return pk_str(a, json_string_value(v));
    case JSON_NULL: return pk_none(a);
    case JSON_ARRAY:
        made = pk_list(a);
        json_array_foreach(v, i, item)
            pk_add(a, made, tree_of(a, item));
        return made;
    case JSON_OBJECT:
        break;
    }
    made = pk_dict(a);
    json_object_foreach(v, key, item)
        pk_set_str(a, made, key, tree_of(a, item));
    return made;
}

struct pk *deepspeed_json_tree(struct arena *a, const char *path)
{
    json_t *root = json_load_file(path, 0, NULL);
    struct pk *tree = json_is_object(root) ? tree_of(a, root) : pk_dict(a);

    json_decref(root);
    return tree;
}
