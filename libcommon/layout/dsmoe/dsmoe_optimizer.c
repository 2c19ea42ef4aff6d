/*
 * dsmoe_optimizer.c - read the optimizer: compare the files of the ranks, and assign states by the form that they have
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/dsmoe/dsmoe.h"

enum { GROUPS_MAX = 1024 };

/* ---- files of one save ---- */

/* Returns true if a member of DeepSpeed's dict differs between the ranks of a save. */
static bool is_own_of_rank(const char *key)
{
    static const char *const own[] = {
        "base_optimizer_state", "optimizer_state_dict", "single_partition_of_fp32_groups", "param_slice_mappings",
        "group_paddings", "fp32_groups", "state", "param_groups",
    };

    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        if (strcmp(key, own[k]) == 0)
            return true;
    return false;
}

/* Returns the settings of all groups as text, without the numbers of their parameters. The caller frees it. */
static char *settings_text(const struct dsmoe *x, const struct dsmoe_optim *f)
{
    const struct pk *list = pk_get(dsmoe_torch_dict(f->tree), "param_groups");
    struct strbuf text = {0};
    int n;
    struct pk **settings = optim_groups_copy_settings(list, x->s->arena, &n);

    for (int g = 0; g < n; g++) {
        pk_text(settings[g], &text);
        strbuf_addf(&text, "\n");
    }
    return text.buf ? text.buf : xstrdup("");
}

/* Compare what all ranks of a save share with the first file. */
static void compare_optim_files(const struct dsmoe *x, const struct dsmoe_optim *first, const struct dsmoe_optim *f)
{
    char *its = settings_text(x, first), *mine = settings_text(x, f);
    const char *what = strcmp(its, mine) != 0 ? "param_groups" : NULL;
    uint32_t n = 0;
    struct pk **pair = pk_pairs(first->tree, &n);

    for (uint32_t i = 0; pair && i < n && !what; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && !is_own_of_rank(key) && !pk_same_text(pair[2 * i + 1], pk_get(f->tree, key)))
            what = key;
    }
    if (what)
        report_add(x->r, dsmoe_mismatch(x), "mixed_saves", pt_path(f->pt), ERR_NO_BYTE, NULL,
                   "the optimizer's member %s differs from that in %s: the files are from different saves", what,
                   pt_path(first->pt));
    free(its);
    free(mine);
}

/* Compare the optimizer's step with the engine's, as for other files of ZeRO (layout/zero). */
static void compare_with_engine(const struct dsmoe *x)
{
    const int64_t own = x->s->run.opt_step, steps = pk_int_or(pk_get(x->root, "global_steps"), -1);
    const int64_t skipped = pk_int_or(pk_get(x->root, "skipped_steps"), 0);

    if (own >= 0 && steps >= 0 && own != steps - skipped && own != steps - skipped + 1)
        report_add(x->r, SEV_WARNING, "mixed_saves", pt_path(x->model), ERR_NO_BYTE, NULL,
                   "records %lld steps, %lld of them skipped, the optimizer's files have %lld: they are from different "
                   "saves, or the optimizer started at another step", (long long)steps, (long long)skipped,
                   (long long)own);
}

/* ---- all of it ---- */

/* Add the optimizer's values that are no states: settings of groups, a loss scale. */
static void add_optimizer_values(const struct dsmoe *x, const struct dsmoe_optim *f)
{
    struct source *s = x->s;
    uint32_t n = 0, n_groups = 0;
    struct pk **pair = pk_pairs(f->tree, &n);
    struct source_value *v = arena_alloc(s->arena, ((size_t)s->n_values + n + 2) * sizeof *v);

    if (s->n_values)
        memcpy(v, s->value, (size_t)s->n_values * sizeof *v);
    s->value = v;
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && !is_own_of_rank(key) && strcmp(key, "partition_count") != 0 &&
            strcmp(key, "param_alignment_paddings") != 0)
            v[s->n_values++] = (struct source_value){ .name = arena_fmt(s->arena, "optimizer.%s", key),
                                                      .tree = pair[2 * i + 1], .pt = f->pt };
    }
    if (pk_items(pk_get(dsmoe_torch_dict(f->tree), "param_groups"), &n_groups))
        v[s->n_values++] = (struct source_value){ .name = "optimizer.param_groups", .pt = f->pt,
                                                  .tree = pk_get(dsmoe_torch_dict(f->tree), "param_groups") };
}

/*
 * Report parameters without states. An expert has those that expert 0 of its layer has. Others may be frozen; ZeRO-0
 * and 1 do not list frozen parameters.
 */
static void check_missing_states(const struct dsmoe *x)
{
    const struct pk *frozen = pk_get(x->root, "frozen_param_shapes");

    for (int i = 0; i < x->s->n_params; i++) {
        const struct param *p = &x->s->param[i], *first = NULL;
        const char *rest;
        int expert, at;
        const struct dsmoe_layer *layer = dsmoe_layer_of(x, p->name, &expert, &rest);

        if (p->state[STATE_EXP_AVG] || p->state[STATE_EXP_AVG_SQ] || (p->state[STATE_FP32] && p->copy) ||
            (p->state[STATE_FP32] && p->state[STATE_BF16]) || p->shared_with)
            continue;
        at = layer ? names_find(x->known, arena_fmt(x->s->arena, "%s0%s", layer->prefix, rest)) : -1;
        first = at < 0 ? NULL : &x->s->param[at];
        if (first && first != p && first->state[STATE_EXP_AVG])
            report_add(x->r, SEV_ERROR, "optimizer", x->s->path, ERR_NO_BYTE, p->name,
                       "has no states, but expert 0 of its layer has");
        else if (!layer && !pk_get(frozen, p->name))
            report_add(x->r, pk_is_none(frozen) ? SEV_NOTE : SEV_WARNING, "unlisted", x->s->path, ERR_NO_BYTE, p->name,
                       "is in no group of the optimizer: it is read as a weight that is not trained");
    }
}

/* Get DeepSpeed's dict of each rank. Returns the number of files, or 0 if one is missing or has none. */
static int list_optim_trees(const struct dsmoe *x, struct dsmoe_optim *f)
{
    const struct pk *own = pk_get(x->root, "optimizer");
    uint32_t n_pairs = 0;
    int n = 0;

    for (int k = 0; k < x->n_ranks; k++) {
        const struct pt *pt = x->optim_file[k] < 0 ? NULL : x->s->file[x->optim_file[k]].pt;

        if (!pt)
            return 0;                   /* has been reported */
        f[n] = (struct dsmoe_optim){ pt, pk_get(pt_root(pt), x->sharded ? "optimizer_state_dict" : "optimizer"), k };
        if (!pk_pairs(f[n].tree, &n_pairs) ||
            !pk_items(pk_get(dsmoe_torch_dict(f[n].tree), "param_groups"), &n_pairs) || n_pairs > GROUPS_MAX) {
            dsmoe_refuse_optimizer(x, pt, "has no optimizer with a list param_groups");
            return 0;
        }
        n++;
    }
    /* Without ZeRO, the file of the model has the optimizer of rank 0, too. */
    if (!x->sharded && pk_pairs(own, &n_pairs))
        f[n++] = (struct dsmoe_optim){ x->model, own, 0 };
    return n;
}

void dsmoe_read_optimizer(struct dsmoe *x)
{
    struct dsmoe_optim *f = xcalloc((size_t)x->n_ranks + 1, sizeof *f);
    const int n = list_optim_trees(x, f);
    bool good = n > 0 && x->whole;

    for (int k = 1; k < n; k++)
        compare_optim_files(x, &f[0], &f[k]);
    if (n > 0)
        add_optimizer_values(x, &f[0]);
    if (good)
        good = x->sharded ? dsmoe_read_partitions(x, f, n) : dsmoe_read_whole(x, f, n);
    if (good) {
        check_missing_states(x);
        compare_with_engine(x);
    }
    free(f);
}
