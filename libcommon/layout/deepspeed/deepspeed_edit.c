/*
 * deepspeed_edit.c - KEY=VALUE against the present value: its key, its owner, its type
 *
 * An edit is read once, against mp_rank_00: its key is found, a key that something else owns is
 * refused, and the JSON becomes a value of the present one's type. Then each file is given a copy.
 */
#include "libcommon/layout/deepspeed/deepspeed_edit.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"

/* ---- whose it is ---- */

#define BY_TENSORS "it is what the tensors are"
#define BY_RANKS   "it follows from --target-tp, --target-pp and --target-dp"

/* Keys, with all below them, that no edit may touch. */
static const struct {
    const char *key, *why;
} owned[] = {
    { "args.tensor_model_parallel_size", "--target-tp changes it" },
    { "args.pipeline_model_parallel_size", "--target-pp changes it" },
    { "args.data_parallel_size", "--target-dp changes it" },
    { "args.model_parallel_size", "--target-tp changes it" },
    { "args.transformer_pipeline_model_parallel_size", "--target-pp changes it" },
    { "args.ds_sequence_parallel_size", BY_RANKS },
    { "args.world_size", BY_RANKS },
    { "args.rank", BY_RANKS },
    { "args.local_rank", BY_RANKS },
    { "args.padded_vocab_size", "--pad-vocab-size-to changes it" },
    { "args.pp_partition_method", "--pp-partition-method changes it" },
    { "args.iteration", "--step changes it" },
    { "args.no_save_optim", "--drop-optimizer changes it" },
    { "args.num_layers", BY_TENSORS },
    { "args.hidden_size", BY_TENSORS },
    { "args.ffn_hidden_size", BY_TENSORS },
    { "args.num_attention_heads", BY_TENSORS },
    { "args.kv_channels", BY_TENSORS },
    { "args.embed_layernorm", BY_TENSORS },
    { "args.glu_activation", BY_TENSORS },
    { "args.swiglu", BY_TENSORS },
    { "args.params_dtype", BY_TENSORS },
    { "args.bf16", BY_TENSORS },
    { "args.fp16", BY_TENSORS },
    { "iteration", "--step changes it" },
    { "global_steps", "--step changes it" },
    { "dp_world_size", "--target-dp changes it" },
    { "mp_world_size", BY_RANKS },
    { "checkpoint_parallel_dimensions", BY_RANKS },
    { "param_shapes", BY_RANKS },
    { "shared_params", BY_RANKS },
    { "checkpoint_info.padded_vocab_size", "--pad-vocab-size-to changes it" },
    { "universal_checkpoint_info", BY_TENSORS },
};

static const char *owner_of(const char *path)
{
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        size_t n = strlen(owned[i].key);

        if (strncmp(path, owned[i].key, n) == 0 && (path[n] == '\0' || path[n] == '.'))
            return owned[i].why;
    }
    return NULL;
}

static bool has_position_table(const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (param_ends(s->param[i].name, ROLE_POSITION))
            return true;
    return false;
}

/* A table of positions is there or not, and has its rows. */
static const char *positions_owner(const struct source *s, const char *path, const struct pk *value)
{
    bool table = has_position_table(s), absolute;
    int64_t number;
    const char *name;

    if (strcmp(path, "args.max_position_embeddings") == 0)
        return table ? BY_TENSORS : NULL;
    if (strcmp(path, "args.position_embedding_type") != 0)
        return NULL;
    name = pk_enum(value, &number);
    name = pk_as_str(value) ? pk_as_str(value) : name ? name : config_position_name(number);
    absolute = name && strcmp(name, "absolute") == 0;
    return absolute == table ? NULL : table ? "the checkpoint has a table of positions" :
           "the checkpoint has no table of positions";
}

/* ---- where it is ---- */

/* The value at "a.b.c" below v, and, unless NULL, what it is a value of. */
static struct pk *find(struct pk *v, const char *path, struct pk **parent)
{
    char key[128];

    for (const char *p = path;;) {
        size_t n = strcspn(p, ".");

        if (n == 0 || n >= sizeof key || !v)
            return NULL;
        memcpy(key, p, n);
        key[n] = '\0';
        if (parent)
            *parent = v;
        v = pk_get(v, key);
        if (!p[n])
            return v;
        p += n + 1;
    }
}

/* As it was given. */
static const char *option(const struct ds_set *set)
{
    return set->any_type ? "--set-type" : "--set";
}

static int no_such_key(const struct ds_target *t, const struct ds_set *set, const char *key, const struct pk *args,
                       struct err *e)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(args, &n);
    const char **names = xcalloc((size_t)n + 1, sizeof *names), *near;
    int n_names = 0;

    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_str(pair[2 * i]))
            names[n_names++] = pk_as_str(pair[2 * i]);
    near = parse_nearest(str_starts(key, "args.") ? key + strlen("args.") : key, names, n_names);
    err_usage(e, "%s %s: %s has no such argument%s%s%s; ckpt-inspect args lists them", option(set), set->text,
              t->src->path, near ? ", did you mean '" : "", near ? near : "", near ? "'" : "");
    free(names);
    return -1;
}

/* ---- what it becomes ---- */

static struct pk *of_any_type(struct arena *a, const json_t *v)
{
    struct pk *made;
    const char *key;
    json_t *sub;

    switch (json_typeof(v)) {
    case JSON_NULL:    return pk_none(a);
    case JSON_TRUE:    return pk_bool(a, true);
    case JSON_FALSE:   return pk_bool(a, false);
    case JSON_INTEGER: return pk_int(a, json_integer_value(v));
    case JSON_REAL:    return pk_float(a, json_real_value(v));
    case JSON_STRING:  return pk_str(a, json_string_value(v));
    case JSON_ARRAY:
        made = pk_list(a);
        for (size_t i = 0; i < json_array_size(v); i++)
            pk_add(a, made, of_any_type(a, json_array_get(v, i)));
        return made;
    case JSON_OBJECT:
        made = pk_dict(a);
        json_object_foreach((json_t *)v, key, sub)
            pk_set_str(a, made, key, of_any_type(a, sub));
        return made;
    }
    return NULL;
}

/* "PositionEmbeddingType.alibi", "PositionEmbeddingType(3)" or "alibi" -> 3; -1: none of its members. */
static int64_t position_by_name(const char *text)
{
    static const char class[] = "PositionEmbeddingType";
    const char *p = str_starts(text, class) ? text + strlen(class) : text;
    long long value;
    char end, more;

    if (*p == '(' && sscanf(p, "(%lld%c%c", &value, &end, &more) == 2 && end == ')' && config_position_name(value))
        return value;
    p += *p == '.' && p != text;
    for (int64_t i = 1; config_position_name(i); i++)
        if (strcmp(p, config_position_name(i)) == 0)
            return i;
    return -1;
}

/* Another member of the same enum, pickled as the present one is. NULL: not one we know. */
static struct pk *enum_member(struct arena *a, const struct pk *was, const char *text)
{
    struct pk *args = pk_tuple(a);
    char class[256];
    int64_t value;

    if (!pk_class(was, class, sizeof class) || !str_ends(class, ".PositionEmbeddingType") ||
        (value = position_by_name(text)) < 0)
        return NULL;
    if (was->args->n == 2) {            /* getattr(class, name) */
        pk_add(a, args, pk_copy(a, was->args->item[0]));
        pk_add(a, args, pk_str(a, config_position_name(value)));
    } else {
        pk_add(a, args, pk_int(a, value));
    }
    return pk_call(a, pk_copy(a, was->fn), args);
}

static bool is_enum(const struct pk *v)
{
    int64_t value;

    return v->type == PK_CALL && (pk_enum(v, &value) || value != INT64_MIN);
}

static struct pk *as_present(struct arena *a, const json_t *v, const struct pk *was);

/* Elements are like the first present one; a list that was empty takes any. */
static struct pk *as_sequence(struct arena *a, const json_t *v, const struct pk *was)
{
    struct pk *made = was->type == PK_TUPLE ? pk_tuple(a) : pk_list(a);

    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        struct pk *x = was->n ? as_present(a, item, was->item[0]) : of_any_type(a, item);

        if (!x)
            return NULL;
        pk_add(a, made, x);
    }
    return made;
}

/* The value with the present one's type; NULL: it has another. */
static struct pk *as_present(struct arena *a, const json_t *v, const struct pk *was)
{
    switch (was->type) {
    case PK_NONE:  return json_is_null(v) ? pk_none(a) : NULL;
    case PK_BOOL:  return json_is_boolean(v) ? pk_bool(a, json_is_true(v)) : NULL;
    case PK_INT:   return json_is_integer(v) ? pk_int(a, json_integer_value(v)) : NULL;
    case PK_FLOAT: return json_is_number(v) ? pk_float(a, json_number_value(v)) : NULL;
    case PK_STR:   return json_is_string(v) ? pk_str(a, json_string_value(v)) : NULL;
    case PK_LIST:
    case PK_TUPLE: return json_is_array(v) ? as_sequence(a, v, was) : NULL;
    default:       return is_enum(was) && json_is_string(v) ? enum_member(a, was, json_string_value(v)) : NULL;
    }
}

/* What the present value is, for the message. */
static const char *type_words(const struct pk *was)
{
    switch (was->type) {
    case PK_NONE:  return "null";
    case PK_BOOL:  return "true or false";
    case PK_INT:   return "a whole number";
    case PK_FLOAT: return "a number";
    case PK_STR:   return "text";
    case PK_LIST:
    case PK_TUPLE: return was->n ? "a list of values like its first one" : "a list";
    case PK_DICT:  return "the key of one value in it, KEY.NAME=VALUE";
    default:       return is_enum(was) ? "another member of that enum" : "just that, which is nothing JSON can say";
    }
}

/* ---- one edit ---- */

/* Given what `args` prints, nothing changes, whatever it is. */
static bool is_present_text(const struct pk *was, const char *text)
{
    struct strbuf now = {0};
    bool same;

    pk_text(was, &now);
    same = strcmp(now.buf, text) == 0;
    strbuf_free(&now);
    return same;
}

static struct pk *read_value(struct arena *a, const struct ds_set *set, const char *text, const struct pk *was)
{
    bool words = was->type == PK_STR || is_enum(was);
    struct pk *made = NULL;
    json_t *v;

    if (is_present_text(was, text))
        return pk_copy(a, was);
    v = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (v)
        made = set->any_type ? of_any_type(a, v) : as_present(a, v, was);
    else if (words && !set->any_type)   /* without quotes */
        made = as_present(a, v = json_string(text), was);
    json_decref(v);
    return made;
}

static int refuse_value(const struct ds_set *set, const char *key, const struct pk *was, struct err *e)
{
    struct strbuf now = {0};

    pk_text(was, &now);
    if (set->any_type)
        err_usage(e, "--set-type %s: the value is no JSON (text is written in quotes: '\"text\"')", set->text);
    else
        err_usage(e, "--set %s: %s is %.60s: expected %s, as JSON; --set-type changes its type", set->text, key,
                  now.buf, type_words(was));
    strbuf_free(&now);
    return -1;
}

/* The path from the file's root, "args.lr" for "lr". In the target's arena. */
static const char *settle_path(const struct ds_target *t, struct pk *root, const char *key)
{
    bool of_args = !str_starts(key, "args.") && find(pk_get(root, "args"), key, NULL);

    return arena_fmt(t->arena, "%s%s", of_args ? "args." : "", key);
}

static int read_edit(struct ds_target *t, const struct ds_set *set, struct pk *root, struct ds_edit *to, struct err *e)
{
    const char *eq = strchr(set->text, '='), *why;
    const char *key = arena_fmt(t->arena, "%.*s", (int)(eq ? eq - set->text : 0), set->text);
    struct pk *was;

    if (!eq || eq == set->text) {
        err_usage(e, "%s %s: expected KEY=VALUE", option(set), set->text);
        return -1;
    }
    to->path = settle_path(t, root, key);
    was = find(root, to->path, NULL);
    if (!was)
        return no_such_key(t, set, key, pk_get(root, "args"), e);
    why = owner_of(to->path);
    to->value = why ? NULL : read_value(t->arena, set, eq + 1, was);
    if (!why && !to->value)
        return refuse_value(set, key, was, e);
    if (!why)
        why = positions_owner(t->src, to->path, to->value);
    if (!why)
        return 0;
    err_usage(e, "%s %s: %s cannot be set: %s", option(set), set->text, key, why);
    return -1;
}

int ds_edits_read(struct ds_target *t, const struct ds_set *set, int n, struct err *e)
{
    const struct source_file *f = ds_mp_file(t->src, 0, 0);
    struct arena *a = arena_new(0);
    struct pk *root = pk_copy(a, pt_root(f->pt));
    int rc = 0;

    t->edit = arena_alloc(t->arena, ((size_t)n + 1) * sizeof *t->edit);
    t->n_edits = n;
    for (int i = 0; i < n && rc == 0; i++)
        rc = read_edit(t, &set[i], root, &t->edit[i], e);
    arena_free(a);
    return rc;
}

void ds_edits_apply(const struct ds_target *t, struct arena *a, struct pk *root)
{
    for (int i = 0; i < t->n_edits; i++) {
        const char *last = strrchr(t->edit[i].path, '.');
        struct pk *parent = NULL;

        if (find(root, t->edit[i].path, &parent))
            pk_set_str(a, parent, last ? last + 1 : t->edit[i].path, pk_copy(a, t->edit[i].value));
    }
}
