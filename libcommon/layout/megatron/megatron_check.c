/*
 * megatron_check.c - compare the parameters with each other and with the arguments
 *
 * A file that lacks a tensor, or whose arguments are those of another model, is complete by its checksums. What
 * Megatron-core's modules have together, and the sizes in args, refute it. Models with blocks of other kinds (Mamba, a
 * heterogeneous list of layers) are not compared.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/core_args.h"
#include "libcommon/layout/megatron/megatron.h"

static const char embedding[] = "embedding.word_embeddings.weight";

static void report_contradiction(const struct megatron *x, const char *code, const char *param, const char *why)
{
    report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, code, x->s->path, ERR_NO_BYTE, param, "%s", why);
}

static const struct pk *arg_of(const struct megatron *x, const char *key)
{
    return pk_get(x->s->run.args, key);
}

/* Returns the number that is the value of an argument, or -1 if the argument is missing, None or not a number. */
static int64_t arg_number(const struct megatron *x, const char *key)
{
    return pk_int_or(arg_of(x, key), -1);
}

static bool has_param(const struct megatron *x, const char *name)
{
    return source_param(x->s, name) != NULL;
}

/* Returns the part of a name that follows the layer's number, or NULL if the name is not in a layer. */
static const char *name_in_layer(const char *name)
{
    return core_layer_of(name) < 0 ? NULL : strchr(name + strlen("decoder.layers."), '.') + 1;
}

/* ---- places ---- */

/* Check that the embedding is in the first stage, and the last norm and the head are in the last stage. */
static void check_stages(const struct megatron *x)
{
    for (int p = 0; p < x->pp; p++)
        for (int i = 0; i < x->stage[p].n; i++) {
            const struct megatron_weight *w = &x->stage[p].weight[i];
            const char *name = x->s->param[w->param].name;
            const bool first = p == 0 && w->chunk == 0, last = p == x->pp - 1 && w->chunk == x->chunks - 1;

            if ((!first && !w->tied_copy && str_starts(name, "embedding.")) ||
                (!last && (str_starts(name, "decoder.final_layernorm.") || str_starts(name, "output_layer.")))) {
                report_contradiction(x, "ranks", name, arena_fmt(x->s->arena, "is in pipeline rank %d of %d: the files "
                                     "of stages have each other's names", p, x->pp));
                return;
            }
        }
}

/* Compare the number of chunks in a stage with the arguments. For a model without chunks, the argument is None. */
static void check_chunks(const struct megatron *x)
{
    static const char key[] = "virtual_pipeline_model_parallel_size";
    const int64_t stated = pk_is_none(arg_of(x, key)) ? 1 : arg_number(x, key);

    if (arg_of(x, key) && stated != x->chunks)
        report_contradiction(x, "config", NULL, arena_fmt(x->s->arena, "a stage has %d chunk%s of the model, but by "
                             "args.%s it has %" PRId64, x->chunks, x->chunks == 1 ? "" : "s", key, stated));
}

/* ---- names ---- */

/* The names of tensors in layers, and the layers that have each name. */
struct layer_names {
    struct names *suffix;               /* name in its layer -> number */
    int n, n_layers;
    const char **name;                  /* [n] */
    bool *has;                          /* [n * n_layers] */
    bool *experts;                      /* [n_layers]: the layer has a router */
};

static void list_layer_names(const struct megatron *x, struct layer_names *l)
{
    const struct source *s = x->s;

    l->suffix = names_new(s->arena);
    l->name = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof *l->name);
    for (int i = 0; i < s->n_params; i++) {
        const char *in = name_in_layer(s->param[i].name);

        if (!in)
            continue;
        if (core_layer_of(s->param[i].name) >= l->n_layers)
            l->n_layers = core_layer_of(s->param[i].name) + 1;
        if (names_find(l->suffix, in) < 0) {
            names_add(l->suffix, in, l->n);
            l->name[l->n++] = in;
        }
    }
    l->has = arena_alloc(s->arena, (size_t)l->n * (size_t)l->n_layers + 1);
    l->experts = arena_alloc(s->arena, (size_t)l->n_layers + 1);
    for (int i = 0; i < s->n_params; i++) {
        const char *in = name_in_layer(s->param[i].name);
        const int layer = core_layer_of(s->param[i].name);

        if (!in)
            continue;
        l->has[names_find(l->suffix, in) * l->n_layers + layer] = true;
        l->experts[layer] |= str_starts(in, "mlp.router.");
    }
}

static bool layer_has(const struct layer_names *l, int layer, const char *name)
{
    const int i = names_find(l->suffix, name);

    return i >= 0 && l->has[i * l->n_layers + layer];
}

/* Compare the names of all layers of one kind. Reports the first layer that lacks a name, and then returns. */
static void compare_layers(const struct megatron *x, const struct layer_names *l)
{
    for (int i = 0; i < l->n; i++)
        for (int a = 0; a < l->n_layers; a++)
            for (int b = 0; b < l->n_layers && l->has[i * l->n_layers + a]; b++) {
                const bool same_kind = l->experts[a] == l->experts[b] || !str_starts(l->name[i], "mlp.");

                if (l->has[i * l->n_layers + b] || !same_kind)
                    continue;
                report_contradiction(x, "missing_entry", arena_fmt(x->s->arena, "decoder.layers.%d.%s", b, l->name[i]),
                                     arena_fmt(x->s->arena, "is missing, but layer %d has it", a));
                return;
            }
}

/* Report a parameter that the model needs and no file has. */
static void require_param(const struct megatron *x, bool is_there, const char *name)
{
    if (!is_there)
        report_contradiction(x, "missing_entry", name, "is missing: a model with these arguments has it");
}

static void check_first_layer(const struct megatron *x, const struct layer_names *l)
{
    const bool fused = layer_has(l, 0, "self_attention.linear_qkv.weight");
    const bool latent = layer_has(l, 0, "self_attention.linear_kv_up_proj.weight");

    require_param(x, fused || latent, "decoder.layers.0.self_attention.linear_qkv.weight");
    require_param(x, layer_has(l, 0, "self_attention.linear_proj.weight"),
                  "decoder.layers.0.self_attention.linear_proj.weight");
    require_param(x, layer_has(l, 0, "self_attention.linear_qkv.layer_norm_weight"),
                  "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight");
    for (int k = 0; k < l->n_layers; k++) {
        require_param(x, l->experts[k] || layer_has(l, k, "mlp.linear_fc1.weight"),
                      arena_fmt(x->s->arena, "decoder.layers.%d.mlp.linear_fc1.weight", k));
        require_param(x, l->experts[k] || layer_has(l, k, "mlp.linear_fc2.weight"),
                      arena_fmt(x->s->arena, "decoder.layers.%d.mlp.linear_fc2.weight", k));
        require_param(x, l->experts[k] || layer_has(l, k, "mlp.linear_fc1.layer_norm_weight"),
                      arena_fmt(x->s->arena, "decoder.layers.%d.mlp.linear_fc1.layer_norm_weight", k));
    }
}

static void check_ends(const struct megatron *x)
{
    require_param(x, has_param(x, embedding), embedding);
    require_param(x, has_param(x, "decoder.final_layernorm.weight"), "decoder.final_layernorm.weight");
}

static void check_names(const struct megatron *x)
{
    struct layer_names l = {0};

    list_layer_names(x, &l);
    for (int i = 0; i < l.n; i++)
        if (str_starts(l.name[i], "mixer."))
            return;
    if (!pk_is_none(arg_of(x, "heterogeneous_layers_config_path")))
        return;
    compare_layers(x, &l);
    if (l.n_layers)
        check_first_layer(x, &l);
    check_ends(x);
}

/* ---- states ---- */

/* Check that each parameter has the states that others have, and that 16-bit weights with moments also have masters. */
static void check_states_complete(const struct megatron *x)
{
    int n_of[STATE_N] = {0};

    for (int i = 0; i < x->s->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            n_of[st] += x->s->param[i].state[st] != NULL;
    if (n_of[STATE_BF16] && n_of[STATE_EXP_AVG] && !n_of[STATE_FP32])
        report_contradiction(x, "missing_entry", NULL, "weights of 16 bits have moments, but no fp32 masters");
    if (n_of[STATE_BF16] && n_of[STATE_FP32] && !n_of[STATE_EXP_AVG])
        report_add(x->r, SEV_WARNING, "no_optimizer", x->s->path, ERR_NO_BYTE, NULL,
                   "the optimizer has masters, but no moments");
    for (int k = 0; k < TRAINED_STATES; k++) {
        const enum state st = trained_states[k];
        const struct param *lacks = NULL;
        int n = 0;

        for (int i = 0; i < x->s->n_params; i++)
            if (x->s->param[i].state[st])
                n++;
            else
                lacks = &x->s->param[i];
        if (n && lacks)
            report_contradiction(x, "missing_entry", lacks->name,
                                 arena_fmt(x->s->arena, "has no %s, but %d other parameters have", state_name(st), n));
    }
}

static void check_counters(const struct megatron *x)
{
    const struct run_state *run = &x->s->run;
    const int64_t stated = arg_number(x, "iteration");
    const bool skips = pk_int_or(arg_of(x, "fp16"), 0) != 0;

    if (run->iteration >= 0 && stated >= 0 && stated != run->iteration)
        report_add(x->r, SEV_WARNING, "counters", x->s->path, ERR_NO_BYTE, NULL,
                   "iteration is %" PRId64 ", but args.iteration is %" PRId64, run->iteration, stated);
    if (run->opt_step >= 0 && run->iteration >= 0 &&
        (run->opt_step > run->iteration + 1 || (run->opt_step < run->iteration && !skips)))
        report_add(x->r, SEV_WARNING, "counters", x->s->path, ERR_NO_BYTE, NULL,
                   "iteration is %" PRId64 ", the optimizer's step is %" PRId64 ": they are from different saves, or "
                   "the optimizer started at another step", run->iteration, run->opt_step);
}

void megatron_check(const struct megatron *x, bool states)
{
    check_stages(x);
    check_chunks(x);
    core_args_check(x->s, x->pp > 1, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, x->r);
    if (arg_of(x, "num_layers"))
        check_names(x);
    if (states)
        check_states_complete(x);
    check_counters(x);
}
