/*
 * deepspeed_info.c - write the keys that DeepSpeed's own tools need to read our output
 */
#include "libcommon/layout/deepspeed/deepspeed_info.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/model/merge_patterns.h"

static const char block_key[] = "universal_checkpoint_info";

/* ---- the block of merge patterns ---- */

/*
 * Return a regular expression for the parameter `name` in every layer: "\d+\.mlp\.dense_4h_to_h\.bias" for
 * "3.mlp.dense_4h_to_h.bias". DeepSpeed matches patterns at the start of a name only. This is sufficient, because no
 * parameter's name begins with the name of another.
 */
static char *make_layer_name_pattern(struct arena *a, const char *name)
{
    char *out = arena_alloc(a, 2 * strlen(name) + 4), *to = out;
    const char *p = name;

    while (isdigit((unsigned char)*p))
        p++;
    if (p > name && *p == '.')
        to = stpcpy(to, "\\d+");
    else
        p = name;
    for (; *p; p++) {
        if (*p == '.')
            *to++ = '\\';
        *to++ = *p;
    }
    *to = '\0';
    return out;
}

static bool has_listed_pattern(const struct pk *list, const char *pattern)
{
    uint32_t n = 0;
    struct pk **item = pk_items(list, &n);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(pk_as_str(item[i]), pattern) == 0)
            return true;
    return false;
}

static void add_pattern(struct arena *a, struct pk *list, const char *name)
{
    const char *pattern = make_layer_name_pattern(a, name);

    if (!has_listed_pattern(list, pattern))
        pk_add(a, list, pk_str(a, pattern));
}

/*
 * Make universal_checkpoint_info. Every list is present, even if it is empty. DeepSpeed's converter fails if a pattern
 * matches no parameter, so each pattern is made from an existing parameter.
 */
static struct pk *make_block(const struct ds_target *t, struct arena *a)
{
    struct pk *vocabulary = pk_list(a), *pipeline = pk_list(a), *replicated = pk_list(a), *row = pk_list(a);
    struct pk *halves = pk_list(a), *d = pk_dict(a);
    int64_t tokens = t->src->config.vocab_tokens;

    for (int i = 0; i < t->n_params; i++) {
        const struct param *p = t->param[i].from;
        struct pk *by_rule[] = { [MERGE_CAT0] = NULL, [MERGE_CAT1] = row, [MERGE_REPLICATED] = replicated,
                                 [MERGE_VOCAB] = vocabulary, [MERGE_CAT0_HALVES] = halves, [MERGE_SUM] = NULL };

        if (by_rule[p->merge])
            add_pattern(a, by_rule[p->merge], t->param[i].name);
        if (t->param[i].layer == t->embedding && ds_has_copy(t->param[i].name))
            add_pattern(a, pipeline, t->param[i].name);
    }
    pk_set_str(a, d, "universal_checkpoint_version", pk_float(a, 0.2));
    pk_set_str(a, d, "original_vocab_size", pk_int(a, tokens > 0 && tokens < t->vocab ? tokens : t->vocab));
    pk_set_str(a, d, "padded_vocab_size", pk_int(a, t->vocab));
    pk_set_str(a, d, "vocabulary_parameter_patterns", vocabulary);
    pk_set_str(a, d, "pipeline_replicated_parameter_patterns", pipeline);
    pk_set_str(a, d, "tp_replicated_parameter_patterns", replicated);
    /* the copies that we write are equal, so no parameter has to be averaged */
    pk_set_str(a, d, "parameter_to_average_patterns", pk_list(a));
    pk_set_str(a, d, "parameter_with_row_parallelism_patterns", row);
    pk_set_str(a, d, "parameter_with_2_sub_params_cat_dim_0", halves);
    return d;
}

/* Returns true if `block` (universal_checkpoint_info) gives each parameter of the target the right merge rule. */
static bool block_fits(const struct ds_target *t, const struct pk *block)
{
    const char **name = xmalloc((size_t)t->n_params * sizeof *name + 1);
    struct report *r = report_new();
    struct merge_patterns *p;
    bool fits;

    for (int i = 0; i < t->n_params; i++)
        name[i] = t->param[i].name;
    p = merge_patterns_new(block, name, t->n_params, false, "", r);
    fits = p != NULL;
    for (int i = 0; i < t->n_params && fits; i++)
        fits = merge_patterns_rule(p, name[i]) == t->param[i].from->merge;
    for (int i = 0; i < report_n(r) && fits; i++)
        fits = strcmp(report_get(r, i)->code, "pattern") != 0;
    merge_patterns_free(p);
    report_free(r);
    free(name);
    return fits;
}

static void renew_block(const struct ds_target *t, struct arena *a, struct pk *root)
{
    /*
     * These two keys record details of the split that patterns cannot express. Converters that know these keys require
     * them.
     */
    static const char *const degrees[] = { "affine_map", "sub_param_shard_widths" };
    struct pk *block = pk_get(root, block_key);

    if (!block_fits(t, block)) {
        pk_set_str(a, root, block_key, make_block(t, a));
        return;
    }
    if (pk_get(block, "padded_vocab_size"))
        pk_set_str(a, block, "padded_vocab_size", pk_int(a, t->vocab));
    for (int i = 0; i < 2 && t->topo.tp != t->src->topo.tp; i++)
        pk_remove(block, degrees[i]);
}

/* ---- the other two keys ---- */

static void renew_dimensions(const struct ds_target *t, struct arena *a, struct pk *root)
{
    static const char key[] = "checkpoint_parallel_dimensions";
    struct pk *was = pk_get(root, key), *d;

    if (!was)
        return;
    d = was->type == PK_DICT ? was : pk_dict(a);
    pk_set_str(a, d, "pp_degree", pk_int(a, t->topo.pp));
    pk_set_str(a, d, "tp_degree", pk_int(a, t->topo.tp));
    pk_set_str(a, root, key, d);
}

struct pk *ds_info_config(struct arena *a, const struct pk *was, const struct pk *args)
{
    const struct pk *parsed = pk_get(args, "deepspeed_configuration");

    if (was->type == PK_DICT)
        return pk_copy(a, was);
    return parsed && parsed->type == PK_DICT ? pk_copy(a, parsed) : pk_dict(a);
}

void ds_info_renew(const struct ds_target *t, struct arena *a, struct pk *root)
{
    const struct pk *config = pk_get(root, "ds_config");

    renew_block(t, a, root);
    renew_dimensions(t, a, root);
    if (config)
        pk_set_str(a, root, "ds_config", ds_info_config(a, config, pk_get(root, "args")));
}
