/*
 * hf_shapes.c - compute shapes from the settings of config.json
 */
#include "libcommon/layout/hf/check/hf_shapes.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/check/model_tensors.h"
#include "libcommon/plan/tmap.h"

/* Maximum number of dimensions of a shape in the list, and maximum length of a setting's name. */
enum { SHAPE_DIMS_MAX = 4, SETTING_CHARS_MAX = 60 };

struct shapes_check {
    const struct source *s;
    const json_t *config;
    const struct model_facts *facts;
    enum severity severity;
    struct report *r;
};

/* ---- sizes ---- */

/* Returns true if the default of the setting in Transformers is a number. */
static bool has_default_number(const struct shapes_check *c, const char *key)
{
    for (int i = 0; i < c->facts->n_defaults; i++)
        if (strcmp(c->facts->preset[i].key, key) == 0 && c->facts->preset[i].value &&
            isdigit((unsigned char)*c->facts->preset[i].value))
            return true;
    return false;
}

static const char *alias_of_setting(const struct shapes_check *c, const char *key)
{
    for (int i = 0; i < c->facts->n_defaults; i++)
        if (strcmp(c->facts->preset[i].key, key) == 0 && c->facts->preset[i].alias)
            return c->facts->preset[i].alias;
    return key;
}

/*
 * Returns the number under `key` for the layer, or -1 if config.json does not state it. hf_check_settings() tries the
 * defaults. Two defaults are not numbers: the head size is the hidden size divided by the number of heads, and there
 * are as many heads of keys and values as heads of queries.
 */
static int64_t setting_number(const struct shapes_check *c, const char *key, int layer)
{
    const json_t *v = json_object_get(c->config, key);
    int64_t n, heads;

    if (!v)
        v = json_object_get(c->config, alias_of_setting(c, key));
    if (json_is_array(v))
        v = layer >= 0 ? json_array_get(v, (size_t)layer) : NULL;
    if (v && !json_is_null(v))
        return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX
                   ? json_integer_value(v) : -1;
    if ((strcmp(key, "head_dim") != 0 && strcmp(key, "num_key_value_heads") != 0) ||
        (!v && has_default_number(c, key)))
        return -1;
    heads = setting_number(c, "num_attention_heads", layer);
    if (strcmp(key, "num_key_value_heads") == 0)
        return heads;
    n = setting_number(c, "hidden_size", layer);
    return heads > 0 && n > 0 ? n / heads : -1;
}

/*
 * Returns the value of a sum of products of settings and numbers, such as "2*a+b". Returns -1 if a setting is not
 * known.
 */
static int64_t evaluate_size(const struct shapes_check *c, const char *text, size_t len, int layer)
{
    int64_t sum = 0, product = 1;

    for (const char *end = text + len; text < end;) {
        char key[SETTING_CHARS_MAX];
        const size_t n = strcspn(text, "*+,]");
        const int64_t factor = isdigit((unsigned char)*text) ? atoll(text)
                               : n < sizeof key ? (snprintf(key, sizeof key, "%.*s", (int)n, text),
                                                   setting_number(c, key, layer)) : -1;

        if (factor < 0 || factor > INT32_MAX || product > INT32_MAX)
            return -1;
        product *= factor;
        text += n;
        if (text == end || *text == '+') {
            sum += product;
            product = 1;
        }
        text += text < end;
    }
    return sum;
}

/* ---- tensors ---- */

static bool has_float_weights(const struct param *p)
{
    const struct tmap *m = p->state[STATE_FP32] ? p->state[STATE_FP32] : p->state[STATE_BF16];

    return m && (m->dtype == DTYPE_F32 || m->dtype == DTYPE_F16 || m->dtype == DTYPE_BF16);
}

/* Compare a tensor with its listed shape, such as "[a*b,c]". Returns false if a size is not known. */
static bool check_shape_of(const struct shapes_check *c, const struct param *p, const char *shape, int layer)
{
    int64_t want[SHAPE_DIMS_MAX];
    int n = 0;

    for (const char *s = shape; *s != ']' && n < SHAPE_DIMS_MAX; n++) {
        const size_t len = strcspn(++s, ",]");

        want[n] = evaluate_size(c, s, len, layer);
        if (want[n] < 0)
            return false;
        s += len;
    }
    if (p->ndim != n)
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                   "has %d dimensions, but the model of config.json has %d", p->ndim, n);
    for (int d = 0; d < n && p->ndim == n; d++)
        if (p->shape[d] != want[d]) {
            const char *s = shape + 1;

            for (int k = 0; k < d; k++)
                s += strcspn(s, ",") + 1;
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                       "has size %lld in dimension %d, but config.json defines %lld (%.*s)", (long long)p->shape[d], d,
                       (long long)want[d], (int)strcspn(s, ",]"), s);
            break;
        }
    return true;
}

static void check_listed_shape(const struct shapes_check *c, const struct model_tensor *t)
{
    const size_t base = strlen(c->facts->base) + 1;
    const bool of_base = strncmp(t->name, c->facts->base, base - 1) == 0 && t->name[base - 1] == '.';
    const struct param *first = NULL;

    for (int i = 0; i < c->s->n_params; i++) {
        const struct param *p = &c->s->param[i];
        int layer;

        if (!model_tensor_matches(t->name, p->name, &layer) &&
            !(of_base && model_tensor_matches(t->name + base, p->name, &layer)))
            continue;
        if (!has_float_weights(p) || (t->shape && check_shape_of(c, p, t->shape, layer)))
            continue;
        if (first && !shape_equal(p->ndim, p->shape, first->ndim, first->shape))
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name, "has another shape than %s",
                       first->name);
        first = first ? first : p;
    }
}

void hf_check_shapes(const struct source *s, const json_t *config, enum severity severity, struct report *r)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const bool own = json_object_get(config, "auto_map") || json_object_get(config, "quantization_config");
    struct shapes_check c = { .s = s, .config = config, .severity = severity, .r = r };
    struct err ignored = {0};                       /* hf_check_required() reports it */
    struct model_table *table = type && !own ? model_table_open(&ignored) : NULL;

    c.facts = table ? model_table_find(table, type) : NULL;
    for (int i = 0; c.facts && i < c.facts->n_tensors; i++)
        check_listed_shape(&c, &c.facts->tensor[i]);
    model_table_free(table);
}
