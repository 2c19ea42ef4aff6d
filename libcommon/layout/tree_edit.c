/*
 * tree_edit.c - find a value of a pickled tree by its path, and convert JSON to the type of the present value
 */
#include "libcommon/layout/tree_edit.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/model/config.h"

/* ---- search ---- */

struct pk *tree_find(const struct pk *v, const char *path, const struct pk **parent)
{
    struct pk *found;
    char key[128];

    for (const char *p = path;;) {
        size_t n = strcspn(p, ".");

        if (n == 0 || n >= sizeof key || !v)
            return NULL;
        memcpy(key, p, n);
        key[n] = '\0';
        if (parent)
            *parent = v;
        found = pk_get(v, key);
        if (!p[n])
            return found;
        v = found;
        p += n + 1;
    }
}

/* ---- conversion ---- */

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

/*
 * Returns the value of a member of PositionEmbeddingType, such as 3 for "PositionEmbeddingType.alibi",
 * "PositionEmbeddingType(3)" or "alibi". Returns -1 if there is no such member.
 */
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

/*
 * Returns the enum member that `text` names, of the same enum class as `was` and pickled in the same form. Returns
 * NULL if the class or the member is not known.
 */
static struct pk *enum_member(struct arena *a, const struct pk *was, const char *text)
{
    struct pk *args = pk_tuple(a);
    char class[256];
    int64_t value;

    if (!pk_class(was, class, sizeof class) || !str_ends(class, ".PositionEmbeddingType") ||
        (value = position_by_name(text)) < 0)
        return NULL;
    if (was->args->n == 2) {            /* pickled as getattr(class, name) */
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

/*
 * Convert each element of v to the type of the first element of `was`. If `was` is empty, elements of any type are
 * accepted.
 */
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

/* Convert v to the type of `was`. Returns NULL if v cannot be converted to this type. */
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

const char *tree_type_words(const struct pk *was)
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
    default:       return is_enum(was) ? "another member of that enum" : "only this value, which JSON cannot express";
    }
}

/* ---- parsing ---- */

/*
 * Returns true if `text` is what `ckpt-inspect args` prints for the present value. Such an edit changes nothing, so it
 * is accepted for values of all types.
 */
static bool is_present_text(const struct pk *was, const char *text)
{
    struct strbuf now = {0};
    bool same;

    pk_text(was, &now);
    same = strcmp(now.buf, text) == 0;
    strbuf_free(&now);
    return same;
}

struct pk *tree_read(struct arena *a, const char *text, const struct pk *was, bool any_type)
{
    bool words = was->type == PK_STR || is_enum(was);
    struct pk *made = NULL;
    json_t *v;

    if (is_present_text(was, text))
        return pk_copy(a, was);
    v = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (v)
        made = any_type ? of_any_type(a, v) : as_present(a, v, was);
    else if (words && !any_type && *text != '"')        /* text without quotes */
        made = as_present(a, v = json_string(text), was);
    json_decref(v);
    return made;
}

void tree_put(struct arena *a, struct pk *root, const char *path, struct pk *value)
{
    const char *last = strrchr(path, '.');
    const struct pk *parent = NULL;

    if (tree_find(root, path, &parent))
        pk_set_str(a, (struct pk *)parent, last ? last + 1 : path, value);
}
