/*
 * cmd_layers.c - the command layers: select the layers and their order
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/dcp/edit_torchdist.h"
#include "libcommon/layout/edit/edit_pipeline.h"
#include "tools/ckpt-edit/ckptedit.h"

/*
 * Find the layer number in a name like "model.layers.17.mlp.weight". Returns the position of the first part that
 * is a number, or NULL.
 */
static const char *find_layer_number(const char *name, int64_t *number)
{
    for (const char *p = name, *end; *p; p = end + (*end == '.')) {
        end = p + strcspn(p, ".");
        if (isdigit((unsigned char)*p) && p + strspn(p, "0123456789") == end && end - p < 6) {
            *number = strtoll(p, NULL, 10);
            return p;
        }
    }
    return NULL;
}

/* Return the number of layers, or -1 if they are not one series from 0 on with one common prefix. */
static int64_t count_layers(const struct edit_states *to, const char *path, struct err *e)
{
    const char *first = NULL, *of = NULL;
    int64_t most = -1, k;
    bool *seen;

    for (int i = 0; i < to->n; i++) {
        const char *at = find_layer_number(to->tensor[i].name, &k);

        if (!at)
            continue;
        if (first && (at - to->tensor[i].name != of - first || strncmp(first, to->tensor[i].name,
                                                                       (size_t)(of - first)) != 0)) {
            err_usage(e, "layers: %s has several rows of layers: %s and %s", path, first, to->tensor[i].name);
            return -1;
        }
        first = to->tensor[i].name;
        of = at;
        most = k > most ? k : most;
    }
    seen = xcalloc((size_t)most + 2, sizeof *seen);
    for (int i = 0; i < to->n; i++)
        if (find_layer_number(to->tensor[i].name, &k))
            seen[k] = true;
    for (int64_t i = 0; i <= most && e->kind == ERR_NONE; i++)
        if (!seen[i])
            err_usage(e, "layers: %s has a layer %" PRId64 " and none %" PRId64, path, most, i);
    if (most < 0)
        err_usage(e, "layers: no parameter of %s has a layer's number", path);
    free(seen);
    return e->kind == ERR_NONE ? most + 1 : -1;
}

/* Parse a list such as "0-3,7,7". The caller frees it. Returns NULL if the text is not a valid list. */
static int64_t *read_list(const char *text, int64_t n_layers, int *n, struct err *e)
{
    int64_t *list = NULL;
    const char *p = text;
    int cap = 0;
    char *end;

    for (*n = 0;; p = end + 1) {
        int64_t a = strtoll(p, &end, 10), b = a;
        bool odd = end == p || !isdigit((unsigned char)*p);

        if (!odd && *end == '-') {
            p = end + 1;
            b = strtoll(p, &end, 10);
            odd = end == p || !isdigit((unsigned char)*p);
        }
        if (odd || (*end && *end != ',') || a >= n_layers || b >= n_layers || b < a) {
            err_usage(e, "layers %s: expected numbers and ranges from 0 to %" PRId64 ", as 0-3,7", text, n_layers - 1);
            free(list);
            return NULL;
        }
        for (int64_t k = a; k <= b; k++) {
            ARRAY_ROOM(list, cap, *n + 1);
            list[(*n)++] = k;
        }
        if (!*end)
            return list;
    }
}

/* Return the layers that are not on the list. */
static int64_t *others(const int64_t *list, int n, int64_t n_layers, int *n_others)
{
    int64_t *rest = xcalloc((size_t)n_layers + 1, sizeof *rest);

    *n_others = 0;
    for (int64_t k = 0; k < n_layers; k++) {
        bool listed = false;

        for (int i = 0; i < n; i++)
            listed = listed || list[i] == k;
        if (!listed)
            rest[(*n_others)++] = k;
    }
    return rest;
}

/*
 * Return the layers of the result, in its order. The caller frees the list. Returns NULL if the argument is not a
 * valid list, or if no layer would be left.
 */
static int64_t *layers_wanted(struct ckptedit *j, int64_t n_layers, int *n, struct err *e)
{
    int64_t *list = read_list(j->arg[1], n_layers, n, e), *rest;

    if (list && strcmp(j->arg[0], "drop") == 0) {
        rest = others(list, *n, n_layers, n);
        free(list);
        list = rest;
    }
    if (!list || *n > 0)
        return list;
    err_usage(e, "layers: none would be left");
    free(list);
    return NULL;
}

/* Replace the layers: layer i of the result is layer list[i] of the source. */
static void select_edit_layers(struct edit *x, struct edit_states *to, const int64_t *list, int n)
{
    const int was = to->n;
    int kept = 0;

    for (int i = 0; i < was; i++) {
        const struct edit_new t = to->tensor[i];
        int64_t k;
        const char *at = find_layer_number(t.name, &k), *behind = at ? at + strspn(at, "0123456789") : NULL;

        for (int l = 0; at && l < n; l++)
            if (list[l] == k) {
                struct edit_new *made = edit_states_add(to, &t);

                made->name = arena_fmt(edit_arena(x), "%.*s%d%s", (int)(at - t.name), t.name, l, behind);
                made->layer = l + 1;
            }
    }
    for (int i = 0; i < to->n; i++) {
        int64_t k;

        if (i >= was || !find_layer_number(to->tensor[i].name, &k))
            to->tensor[kept++] = to->tensor[i];
    }
    to->n = kept;
}

/* Update the number of layers, and the type of each layer, in config.json or in Megatron-core's common.pt. */
static int update_layer_count(struct edit *x, struct edit_states *to, const int64_t *list, int n, int64_t n_layers,
                              struct err *e)
{
    static const char *const keys[] = { "num_hidden_layers", "n_layer", "n_layers", "num_layers" };
    json_t *config = edit_hf_config(x, e), *types = json_object_get(config, "layer_types"), *picked;
    int found = 0;

    to->config = json_object();
    for (size_t i = 0; config && i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(config, keys[i]);

        if (!json_is_integer(v))
            continue;
        found++;
        if (json_integer_value(v) != n_layers)
            err_usage(e, "layers: config.json has %s %lld, the weights have %" PRId64, keys[i],
                      (long long)json_integer_value(v), n_layers);
        json_object_set_new(to->config, keys[i], json_integer(n));
    }
    if (config && !found)
        err_usage(e, "layers: config.json has no number of layers");
    if (json_is_array(types) && json_array_size(types) == (size_t)n_layers) {
        picked = json_array();
        for (int i = 0; i < n; i++)
            json_array_append(picked, json_array_get(types, (size_t)list[i]));
        json_object_set_new(to->config, "layer_types", picked);
    }
    json_decref(config);
    return e->kind == ERR_NONE ? edit_core_layers(x, n_layers, n, e) : -1;
}

/* Select layers in a list of tensors, by the numbers in their names. */
static int layers_of_states(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct edit_states *to = edit_states_new(x, "layers", e);
    const int64_t n_layers = to ? count_layers(to, s->path, e) : -1;
    int n = 0, rc = -1;
    int64_t *list = n_layers < 0 ? NULL : layers_wanted(j, n_layers, &n, e);

    if (list && update_layer_count(x, to, list, n, n_layers, e) == 0) {
        select_edit_layers(x, to, list, n);
        rc = 0;
    }
    free(list);
    if (rc == 0)
        return apply_states(j, x, to, e);
    edit_states_free(to);
    return -1;
}

static int layers_of_pipeline(struct ckptedit *j, struct edit *x, struct err *e)
{
    const int n_layers = edit_pipeline_layers(x, e);
    struct report *notes = report_new();
    struct edit_model m = {0};
    int64_t *list = n_layers < 0 ? NULL : layers_wanted(j, n_layers, &m.n_picked, e);
    int *picked = xcalloc((size_t)m.n_picked + 1, sizeof *picked), rc = -1;

    for (int i = 0; list && i < m.n_picked; i++)
        picked[i] = (int)list[i];
    m.picked = picked;
    if (list)
        rc = edit_pipeline(x, &m, notes, e);
    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    free(picked);
    free(list);
    return rc;
}

int change_layers(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    if (strcmp(j->arg[0], "drop") != 0 && strcmp(j->arg[0], "keep") != 0) {
        err_usage(e, "layers %s: there are keep and drop", j->arg[0]);
        return -1;
    }
    return edit_is_pipeline(s) ? layers_of_pipeline(j, x, e) : layers_of_states(j, s, x, e);
}
