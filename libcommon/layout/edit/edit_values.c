/*
 * edit_values.c - read and set plain values by path, and drop the optimizer or the random states
 */
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/edit/dcp/edit_dcp.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_verbs.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/tree_edit.h"

/* ---- values ---- */

bool edit_has_value_entries(const struct edit *x)
{
    return x->s->layout->value_entries;
}

int edit_n_values_places(const struct edit *x)
{
    return x->s->layout->value_entries ? 1 : x->s->n_files;
}

const char *edit_values_place(const struct edit *x, int place)
{
    return x->s->layout->value_entries ? x->s->path : x->s->file[place].name;
}

const struct pk *edit_value(struct edit *x, int place, const char *path, struct err *e)
{
    if (!x->s->layout->value_entries)
        return tree_find(edit_root(x, place, e), path, NULL);
    if (!x->values_set && edit_dcp_begin(x, e) < 0)
        return NULL;
    x->values_set = true;
    return edit_dcp_value(x, path);
}

int edit_set_value(struct edit *x, int place, const char *path, struct pk *value, struct err *e)
{
    struct pk *root;

    if (x->s->layout->value_entries) {
        edit_dcp_set_value(x, path, value);
        return 0;
    }
    root = edit_tree(x, place, e);
    if (root)
        tree_put(x->arena, root, path, value);
    return root ? 0 : -1;
}

/* ---- the optimizer ---- */

/*
 * Drop the moments of a ZeRO-3 checkpoint. The optimizer files cannot be dropped, because only these hold the weights
 * (as fp32 master weights). They are kept, with the state of an optimizer that has not made a step.
 */
static int drop_moments(struct edit *x, struct err *e)
{
    struct source *s = x->s;
    int n = 0;

    for (int i = 0; i < s->n_files; i++) {
        struct pk *root = s->file[i].cls == FILE_OPTIMIZER ? edit_tree(x, i, e) : NULL;
        struct pk *adam = pk_get(pk_get(root, "optimizer_state_dict"), "optimizer_state_dict");
        uint32_t n_states = 0;

        if (e->kind != ERR_NONE)
            return -1;
        if (!pk_pairs(pk_get(adam, "state"), &n_states) || n_states == 0)
            continue;
        pk_set_str(x->arena, adam, "state", pk_dict(x->arena));
        edit_forget(x, i);
        n++;
    }
    for (int i = 0; i < s->n_params; i++)
        s->param[i].has_digest[STATE_EXP_AVG] = s->param[i].has_digest[STATE_EXP_AVG_SQ] = false;
    if (n == 0)
        err_usage(e, "drop optimizer: %s has no moments", s->path);
    return n == 0 ? -1 : 0;
}

/*
 * Returns -1 with ERR_USAGE if a parameter would be lost with the optimizer, because only the fp32 master weights hold
 * its values. A universal form made from ZeRO is always refused: its model_states files hold 16-bit weights, but its
 * readers load the master weights.
 */
static int check_weights_remain(const struct source *s, struct err *e)
{
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        const bool has_weights = !s->layout->state_files && (p->state[STATE_BF16] || p->copy);

        if (has_weights || p->shared_with || !p->state[STATE_EXP_AVG])
            continue;
        err_usage(e, "drop optimizer: %s holds the values of %s only in the optimizer files; export-hf writes weights "
                     "without the rest", s->path, p->name);
        return -1;
    }
    return 0;
}

/*
 * Remove `key` from the outermost dicts of all files. If `records` is true, also remove the records of its tensors.
 * Returns the number of files that had the key, or -1.
 */
static int remove_root_key(struct edit *x, const char *key, bool records, struct err *e)
{
    int n = 0;

    for (int i = 0; i < x->s->n_files; i++) {
        struct pk *root;

        if (!pk_get(edit_root(x, i, e), key)) {
            if (e->kind != ERR_NONE)
                return -1;
            continue;
        }
        root = edit_tree(x, i, e);
        if (!root)
            return -1;
        n += pk_remove(root, key);
        if (records)
            edit_forget(x, i);
    }
    return n;
}

/* Remove the digests of masters and moments, because the result does not have these states. */
static void forget_optimizer_digests(struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            if (st != STATE_BF16 && (st != STATE_FP32 || s->param[i].state[STATE_BF16]))
                s->param[i].has_digest[st] = false;
}

/*
 * Remove the optimizer from the rank files of Megatron-LM, which also hold weights of any type. Remove the files of a
 * distributed optimizer.
 */
static int drop_megatron_optimizer(struct edit *x, struct err *e)
{
    struct source *s = x->s;
    const int n = remove_root_key(x, "optimizer", true, e);

    for (int i = 0; i < s->n_files && n > 0; i++)
        if (s->file[i].cls == FILE_OPTIMIZER)
            edit_drop(x, i);
    forget_optimizer_digests(s);
    if (n == 0)
        err_usage(e, "drop optimizer: %s has no optimizer", s->path);
    return n > 0 ? 0 : -1;
}

int edit_drop_optimizer(struct edit *x, bool alone, struct err *e)
{
    struct source *s = x->s;
    int n = 0;

    if (s->layout->entries && !alone) {
        err_usage(e, "drop optimizer: cannot be combined with other names in a %s checkpoint; drop these from OUT",
                  s->layout->name);
        return -1;
    }
    if (s->layout->entries)
        return edit_dcp_drop_optimizer(x, e);
    if (s->layout == &megatron_layout)
        return drop_megatron_optimizer(x, e);
    if (s->layout->zero_files && source_masters_alone(s))
        return drop_moments(x, e);
    if (check_weights_remain(s, e) < 0)
        return -1;
    for (int i = 0; i < s->n_files; i++) {
        struct pk *root;

        if (s->file[i].cls == FILE_OPTIMIZER) {
            edit_drop(x, i);
            n++;
        } else if (tree_find(edit_root(x, i, e), "args.no_save_optim", NULL)) {
            /* if this flag is set, a trainer that loads the file does not search for the optimizer */
            root = edit_tree(x, i, e);
            if (!root)
                return -1;
            tree_put(x->arena, root, "args.no_save_optim", pk_bool(x->arena, true));
        }
        if (e->kind != ERR_NONE)
            return -1;
    }
    for (int i = 0; i < s->n_params; i++)
        for (int st = STATE_FP32; st < STATE_N; st++)
            s->param[i].has_digest[st] = false;  /* not in the result, so the manifest must not list it */
    if (n == 0)
        err_usage(e, "drop optimizer: %s has no files of an optimizer", s->path);
    return n == 0 ? -1 : 0;
}

/* ---- random states ---- */

int edit_drop_rng(struct edit *x, struct err *e)
{
    static const struct { const struct layout *only; const char *key; } keys[] = {
        { NULL, "random_rng_state" }, { NULL, "np_rng_state" }, { NULL, "torch_rng_state" }, { NULL, "cuda_rng_state" },
        { NULL, "rng_tracker_states" }, { &megatron_layout, "rng_state" }, { &fsdp_layout, "rng" },
    };
    const struct source *s = x->s;
    int n = 0;

    if (s->layout->entries) {
        err_usage(e, "drop rng: the program that wrote a %s checkpoint requires its random states, so they cannot be "
                     "removed", s->layout->name);
        return -1;
    }
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const bool applies = !keys[k].only || keys[k].only == s->layout;
        const int removed = applies ? remove_root_key(x, keys[k].key, keys[k].only != NULL, e) : 0;

        if (removed < 0)
            return -1;
        n += removed;
    }
    if (n == 0)
        err_usage(e, "drop rng: %s has no random states", s->path);
    return n == 0 ? -1 : 0;
}
