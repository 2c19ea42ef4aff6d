/*
 * cmd_change.c - the changes of set, zero and drop
 */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/edit/dcp/edit_dcp.h"
#include "libcommon/layout/tree_edit.h"
#include "tools/ckpt-edit/ckptedit.h"

/* ---- set ---- */

/*
 * Resolve a key: "lr" means "args.lr", as ckpt-inspect args prints it. Returns a string in the edit's arena, or
 * NULL if there is no such key.
 */
static const char *resolve_args_path(struct edit *x, const struct pk *root, const char *key)
{
    if (tree_find(root, key, NULL))
        return key;
    return tree_find(pk_get(root, "args"), key, NULL) ? arena_fmt(edit_arena(x), "args.%s", key) : NULL;
}

/*
 * The target of set: the argument of the command line, the resolved key, the file or folder that holds it, and the
 * present value.
 */
struct set_place {
    const char *text, *path, *where;
    const struct pk *was;
};

static struct pk *parse_set_value(const struct ckptedit *j, struct edit *x, struct set_place p, struct err *e)
{
    struct pk *value = tree_read(edit_arena(x), strchr(p.text, '=') + 1, p.was, j->any_type);
    struct strbuf held = {0};

    if (value)
        return value;
    pk_text(p.was, &held);
    err_usage(e, "set %s: %s of %s is %.60s: expected %s, as JSON; --any-type changes its type", p.text, p.path,
              p.where, held.buf, tree_type_words(p.was));
    strbuf_free(&held);
    return NULL;
}

/* Set the value in one file. Returns 1 if the file has the key, 0 if not, or -1. */
static int set_in(struct ckptedit *j, struct source *s, struct edit *x, int file, const char *text, struct err *e)
{
    const char *eq = strchr(text, '='), *path;
    struct arena *a = edit_arena(x);
    char *key = arena_strndup(a, text, (size_t)(eq - text));
    const struct pk *now = edit_root(x, file, e);
    struct pk *root, *was, *value;

    if (!now || !resolve_args_path(x, now, key))
        return e->kind == ERR_NONE ? 0 : -1;
    root = edit_tree(x, file, e);
    if (!root)
        return -1;
    path = resolve_args_path(x, root, key);
    was = tree_find(root, path, NULL);
    value = parse_set_value(j, x, (struct set_place){ text, path, s->file[file].name, was }, e);
    if (!value)
        return -1;
    tree_put(a, root, path, value);
    return 1;
}

/* Set the value of a pickled entry of a DCP folder. The whole key is the name of one entry. */
static int set_entry(const struct ckptedit *j, const struct source *s, struct edit *x, const char *text, struct err *e)
{
    const char *key = arena_strndup(edit_arena(x), text, (size_t)(strchr(text, '=') - text));
    struct pk *value;

    if (!edit_dcp_value(x, key)) {
        err_usage(e, "set %s: %s has no pickled value of that name; put changes tensors", text, s->path);
        return -1;
    }
    value = parse_set_value(j, x, (struct set_place){ text, key, s->path, edit_dcp_value(x, key) }, e);
    if (!value)
        return -1;
    edit_dcp_set_value(x, key, value);
    return 1;
}

/* Set the value everywhere. Returns the number of places that have the key, or -1. */
static int set_all(struct ckptedit *j, struct source *s, struct edit *x, const char *text, struct err *e)
{
    int n = 0;

    if (s->layout->value_entries)
        return set_entry(j, s, x, text, e);
    for (int f = 0; f < s->n_files; f++) {
        int rc = set_in(j, s, x, f, text, e);

        if (rc < 0)
            return -1;
        n += rc;
    }
    return n;
}

/*
 * Add the names of the numbers, texts and truth values that stand in the outermost dictionary of the pickled tree
 * `root`. A name that `list` has already is not added again.
 */
static void add_outer_keys(const struct pk *root, struct strbuf *list)
{
    for (uint32_t i = 0; root->type == PK_DICT && i < root->n; i++) {
        const char *key = pk_as_str(root->item[2 * i]);
        const struct pk *value = root->item[2 * i + 1];
        const char *at = key && list->len ? strstr(list->buf, key) : NULL;
        const bool listed = at && (at == list->buf || at[-1] == ' ') && strchr(",", at[strlen(key)]);

        if (!key || listed || (value->type != PK_INT && value->type != PK_FLOAT && value->type != PK_STR &&
                               value->type != PK_BOOL))
            continue;
        strbuf_addf(list, "%s%s", list->len ? ", " : "", key);
    }
}

/* Refuse to set a key that no file has. The error names where the keys of this checkpoint are listed, or lists them. */
static void refuse_unknown_key(const struct source *s, struct edit *x, const char *text, struct err *e)
{
    struct strbuf keys = {0};

    for (int f = 0; !s->run.args && f < s->n_files; f++) {
        struct err ignored = {0};
        const struct pk *root = edit_root(x, f, &ignored);

        if (root)
            add_outer_keys(root, &keys);
    }
    err_usage(e, "set %s: no file of %s has that key; %s%s", text, s->path,
              s->layout->model_folder ? "a model folder has no such values, its settings are in config.json"
              : s->run.args ? "ckpt-inspect args lists the arguments"
              : keys.len ? "its keys are " : "it has no values with names",
              keys.len && !s->layout->model_folder && !s->run.args ? keys.buf : "");
    strbuf_free(&keys);
}

int change_set(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    if (s->layout->value_entries && edit_dcp_begin(x, e) < 0)
        return -1;
    for (int i = 0; i < j->n_args; i++) {
        int n;

        if (!strchr(j->arg[i], '=') || j->arg[i][0] == '=') {
            err_usage(e, "set %s: expected KEY=JSON", j->arg[i]);
            return -1;
        }
        n = set_all(j, s, x, j->arg[i], e);
        if (n == 0)
            refuse_unknown_key(s, x, j->arg[i], e);
        if (n <= 0)
            return -1;
    }
    return s->layout->value_entries ? edit_dcp_end(x, e) : 0;
}

/* ---- zero ---- */

static int zero_state(struct edit *x, struct param *p, enum state st, struct err *e)
{
    struct edit_from from = { .zero = true, .crc = crc_zeros(p->state[st]->len) };

    return edit_tensor(x, p, st, &from, e);
}

/* Split "3.mlp.*:exp_avg" into the pattern and the state, which is -1 if none is given. */
static int split_name(struct edit *x, const char *word, const char **name, int *state, struct err *e)
{
    const char *colon = strrchr(word, ':');

    *state = -1;
    *name = word;
    if (!colon)
        return 0;
    *name = arena_strndup(edit_arena(x), word, (size_t)(colon - word));
    *state = state_by_name(colon + 1);
    if (*state < 0)
        err_usage(e, "%s: no state '%s'; there are bf16, fp32, exp_avg and exp_avg_sq", word, colon + 1);
    return *state < 0 ? -1 : 0;
}

/* Set *e to the reason why zero found nothing. */
static void miss(const struct source *s, const char *word, const char *pattern, int state, struct err *e)
{
    bool named = false;

    for (int i = 0; i < s->n_params && !named; i++)
        named = fnmatch(pattern, s->param[i].name, 0) == 0;
    if (!named || (state >= 0 && state != STATE_EXP_AVG && state != STATE_EXP_AVG_SQ))
        err_usage(e, "zero %s: %s has nothing of that name and state; ckpt-inspect ls lists what it has", word,
                  s->path);
    else
        err_usage(e, "zero %s: %s %s: PATTERN:STATE sets weights to 0 (ckpt-inspect ls lists their states)", word,
                  s->path,
                  s->layout->model_folder ? "is a model folder, which has no moments" : "has no moments of it");
}

int change_zero(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    for (int i = 0; i < j->n_args; i++) {
        const char *pattern;
        int state, n = 0;

        if (split_name(x, j->arg[i], &pattern, &state, e) < 0)
            return -1;
        for (int k = 0; k < s->n_params; k++)
            for (int st = 0; st < STATE_N; st++) {
                bool meant = state >= 0 ? st == state : st == STATE_EXP_AVG || st == STATE_EXP_AVG_SQ;

                if (!meant || !s->param[k].state[st] || fnmatch(pattern, s->param[k].name, 0) != 0)
                    continue;
                if (zero_state(x, &s->param[k], (enum state)st, e) < 0)
                    return -1;
                n++;
            }
        if (n == 0) {
            miss(s, j->arg[i], pattern, state, e);
            return -1;
        }
    }
    return 0;
}

/* ---- drop ---- */

/*
 * Drop the moments of ZeRO-3. Its masters are the only weights, so its files remain, with an optimizer that has
 * not stepped yet.
 */
static int drop_moments(struct source *s, struct edit *x, struct err *e)
{
    int n = 0;

    for (int i = 0; i < s->n_files; i++) {
        struct pk *root = s->file[i].cls == FILE_OPTIMIZER ? edit_tree(x, i, e) : NULL;
        struct pk *adam = pk_get(pk_get(root, "optimizer_state_dict"), "optimizer_state_dict");
        uint32_t n_states = 0;

        if (e->kind != ERR_NONE)
            return -1;
        if (!pk_pairs(pk_get(adam, "state"), &n_states) || n_states == 0)
            continue;
        pk_set_str(edit_arena(x), adam, "state", pk_dict(edit_arena(x)));
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
 * Refuse to drop the optimizer where masters are the only weights. A universal form made of ZeRO keeps 16-bit weights
 * in its model_states files too, but its masters are what its readers load.
 */
static int check_weights_remain(const struct source *s, struct err *e)
{
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        const bool has_weights = !s->layout->state_files && (p->state[STATE_BF16] || p->copy);

        if (has_weights || p->shared_with || !p->state[STATE_EXP_AVG])
            continue;
        err_usage(e, "drop optimizer: %s has the values of %s in the optimizer's files alone; export-hf writes "
                  "weights without the rest", s->path, p->name);
        return -1;
    }
    return 0;
}

static int drop_optimizer(struct source *s, struct edit *x, struct err *e)
{
    int n = 0;

    if (s->layout->zero_files && source_masters_alone(s))
        return drop_moments(s, x, e);
    if (check_weights_remain(s, e) < 0)
        return -1;
    for (int i = 0; i < s->n_files; i++) {
        struct pk *root;

        if (s->file[i].cls == FILE_OPTIMIZER) {
            edit_drop(x, i);
            n++;
        } else if (tree_find(edit_root(x, i, e), "args.no_save_optim", NULL)) {
            root = edit_tree(x, i, e);  /* a trainer that loads it must not search for the optimizer */
            if (!root)
                return -1;
            tree_put(edit_arena(x), root, "args.no_save_optim", pk_bool(edit_arena(x), true));
        }
        if (e->kind != ERR_NONE)
            return -1;
    }
    for (int i = 0; i < s->n_params; i++)
        for (int st = STATE_FP32; st < STATE_N; st++)
            s->param[i].has_digest[st] = false;         /* the manifest no longer lists them */
    if (n == 0)
        err_usage(e, "drop optimizer: %s has no files of an optimizer's", s->path);
    return n == 0 ? -1 : 0;
}

static int drop_rng(struct source *s, struct edit *x, struct err *e)
{
    static const char *const keys[] = { "random_rng_state", "np_rng_state", "torch_rng_state", "cuda_rng_state",
                                        "rng_tracker_states" };
    int n = 0;

    for (int i = 0; i < s->n_files; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            struct pk *root;

            if (!pk_get(edit_root(x, i, e), keys[k])) {
                if (e->kind != ERR_NONE)
                    return -1;
                continue;
            }
            root = edit_tree(x, i, e);
            if (!root)
                return -1;
            n += pk_remove(root, keys[k]);
        }
    if (n == 0)
        err_usage(e, "drop rng: %s has no random states", s->path);
    return n == 0 ? -1 : 0;
}

/* Drop entries of a torch.distributed or Megatron-core folder. */
static int drop_entries(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    for (int i = 0; i < j->n_args; i++)
        if (strcmp(j->arg[i], "rng") == 0) {
            err_usage(e, "drop rng: random states of a %s checkpoint have a form of their own, and the program that "
                         "wrote them requires them", s->layout->name);
            return -1;
        } else if (j->n_args > 1 && strcmp(j->arg[i], "optimizer") == 0) {
            err_usage(e, "drop optimizer: of a %s checkpoint, one thing at a time; OUT may be the next IN",
                      s->layout->name);
            return -1;
        }
    if (strcmp(j->arg[0], "optimizer") == 0)
        return edit_dcp_drop_optimizer(x, e);
    return drop_tensors(j, s, x, e);
}

/*
 * Drop parameters. Only universal forms permit this, because there no other value is located relative to a
 * parameter.
 */
static int drop_params(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    if (s->layout->state_files)
        return drop_tensors(j, s, x, e);
    err_usage(e, "drop %s: 'optimizer' and 'rng' can be left out of a %s checkpoint; parameters can be left out of a "
              "model folder (export-hf) or of a universal form (ds2universal --format pt, if it has Adam's states%s)",
              j->arg[0], s->layout->name, s->topo.tp > 1 && !s->layout->pipeline_files ?
              "; first reshape --ranks N joins its tensor ranks" : "");
    return -1;
}

int change_drop(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    int n = 0;

    if (s->layout->model_folder)           /* a model folder has neither optimizer nor random states */
        return drop_tensors(j, s, x, e);
    if (s->layout->entries)
        return drop_entries(j, s, x, e);
    for (int i = 0; i < j->n_args; i++) {
        const char *what = j->arg[i];
        const bool optimizer = strcmp(what, "optimizer") == 0, rng = strcmp(what, "rng") == 0;

        if ((optimizer && drop_optimizer(s, x, e) < 0) || (rng && drop_rng(s, x, e) < 0))
            return -1;
        if (!optimizer && !rng)
            j->arg[n++] = what;
    }
    j->n_args = n;
    return n ? drop_params(j, s, x, e) : 0;
}
