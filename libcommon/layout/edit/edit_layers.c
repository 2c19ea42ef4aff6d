/*
 * edit_layers.c - select and reorder layers, which are identified by the numbers in the names of tensors
 *
 * The pipeline engine numbers its layers differently; see edit_pipeline.h.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/edit/dcp/edit_torchdist.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_pipeline.h"
#include "libcommon/layout/edit/edit_verbs.h"

/*
 * Find the layer number in a name such as "model.layers.17.mlp.weight": the first part of the name that consists of
 * digits. Returns its position, or NULL if there is none.
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

/*
 * Return the number of layers. Returns -1 with ERR_USAGE if the layer numbers do not begin at 0, have gaps, or follow
 * different prefixes.
 */
static int64_t count_listed_layers(const struct edit_states *to, const char *path, struct err *e)
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
            err_usage(e, "layers: %s has several lists of layers: %s and %s", path, first, to->tensor[i].name);
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
            err_usage(e, "layers: %s has a layer %" PRId64 ", but no layer %" PRId64, path, most, i);
    if (most < 0)
        err_usage(e, "layers: no parameter name of %s contains the number of a layer", path);
    free(seen);
    return e->kind == ERR_NONE ? most + 1 : -1;
}

/* Replace the layers in the list: layer i of the result is layer picked[i] of the source. */
static void select_edit_layers(struct edit *x, struct edit_states *to, const int *picked, int n)
{
    const int was = to->n;
    int kept = 0;

    for (int i = 0; i < was; i++) {
        const struct edit_new t = to->tensor[i];
        int64_t k;
        const char *at = find_layer_number(t.name, &k), *behind = at ? at + strspn(at, "0123456789") : NULL;

        for (int l = 0; at && l < n; l++)
            if (picked[l] == k) {
                struct edit_new *made = edit_states_add(to, &t);

                made->name = arena_fmt(x->arena, "%.*s%d%s", (int)(at - t.name), t.name, l, behind);
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

/* Update the lists in config.json that have one word per layer. */
static void pick_layer_words(const json_t *config, json_t *to, const int *picked, int n, int64_t n_layers)
{
    static const char *const lists[] = { "layer_types", "mlp_layer_types", "layers_block_type" };

    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *words = json_object_get(config, lists[k]);
        json_t *of;

        if (!json_is_array(words) || json_array_size(words) != (size_t)n_layers)
            continue;
        of = json_array();
        for (int i = 0; i < n; i++)
            json_array_append(of, json_array_get(words, (size_t)picked[i]));
        json_object_set_new(to, lists[k], of);
    }
}

/*
 * Update the number of layers and the lists of layer types in config.json, or the number of layers in the common.pt of
 * Megatron-core.
 */
static int update_layer_count(struct edit *x, struct edit_states *to, const int *picked, int n, int64_t n_layers,
                              struct err *e)
{
    static const char *const keys[] = { "num_hidden_layers", "n_layer", "n_layers", "num_layers" };
    json_t *config = edit_hf_config(x, e);
    int found = 0;

    to->config = json_object();
    for (size_t i = 0; config && i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(config, keys[i]);

        if (!json_is_integer(v))
            continue;
        found++;
        if (json_integer_value(v) != n_layers)
            err_usage(e, "layers: config.json has %s %lld, but the weights have %" PRId64 " layers", keys[i],
                      (long long)json_integer_value(v), n_layers);
        json_object_set_new(to->config, keys[i], json_integer(n));
    }
    if (config && !found)
        err_usage(e, "layers: config.json has no number of layers");
    pick_layer_words(config, to->config, picked, n, n_layers);
    json_decref(config);
    return e->kind == ERR_NONE ? edit_core_layers(x, n_layers, n, e) : -1;
}

int edit_count_layers(struct edit *x, struct err *e)
{
    struct edit_states *to;
    int64_t n;

    if (edit_is_pipeline(x->s))
        return edit_pipeline_layers(x, e);
    to = edit_states_new(x, "layers", e);
    n = to ? count_listed_layers(to, source_path(x->s), e) : -1;
    edit_states_free(to);
    return (int)n;
}

int edit_pick_layers(struct edit *x, const int *picked, int n, struct report *notes, struct err *e)
{
    struct edit_states *to;
    int64_t n_layers;

    if (edit_is_pipeline(x->s))
        return edit_pipeline(x, &(struct edit_model){ .picked = picked, .n_picked = n }, notes, e);
    to = edit_states_new(x, "layers", e);
    n_layers = to ? count_listed_layers(to, source_path(x->s), e) : -1;
    if (n_layers < 0 || update_layer_count(x, to, picked, n, n_layers, e) < 0) {
        edit_states_free(to);
        return -1;
    }
    select_edit_layers(x, to, picked, n);
    if (n != n_layers)
        edit_core_report_configs(x, "num_layers", notes);
    return edit_states_apply(x, to, notes, e);
}
