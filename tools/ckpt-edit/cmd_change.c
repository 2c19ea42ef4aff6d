/* cmd_change.c - the commands set, zero and drop */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/layout/derived_values.h"
#include "libcommon/layout/edit/edit_verbs.h"
#include "libcommon/layout/tree_edit.h"
#include "tools/ckpt-edit/ckptedit.h"

/* ---- set ---- */

/*
 * Find the key that the user gave. As in ckpt-inspect args, "lr" means "args.lr". Returns the full key, which is
 * allocated in the edit's arena, and sets *was to the key's present value. Returns NULL if `place` does not have the
 * key. On an error, returns NULL and sets *e.
 */
static const char *resolve_args_path(struct edit *x, int place, const char *key, const struct pk **was, struct err *e)
{
    const char *path = key;

    *was = edit_value(x, place, path, e);
    if (!*was && e->kind == ERR_NONE) {
        path = arena_fmt(edit_arena(x), "args.%s", key);
        *was = edit_value(x, place, path, e);
    }
    return *was ? path : NULL;
}

/*
 * Set a value in one place of the checkpoint. `text` is the argument KEY=JSON. Returns 1 if the place has the key, 0 if
 * not, or -1 on error.
 */
static int set_in(const struct ckptedit *j, struct edit *x, int place, const char *text, struct err *e)
{
    const char *eq = strchr(text, '='), *path;
    const struct derived_value *derived;
    struct strbuf held = {0};
    const struct pk *was;
    struct pk *value;

    path = resolve_args_path(x, place, arena_strndup(edit_arena(x), text, (size_t)(eq - text)), &was, e);
    if (!path)
        return e->kind == ERR_NONE ? 0 : -1;
    derived = j->derived ? NULL : derived_value_find(path);
    if (derived) {
        err_usage(e, "set %s: %s cannot be set, because %s; --derived sets it without the values that depend on it",
                  text, path, derived->by_edit);
        return -1;
    }
    value = tree_read(edit_arena(x), eq + 1, was, j->any_type);
    if (value)
        return edit_set_value(x, place, path, value, e) < 0 ? -1 : 1;
    pk_text(was, &held);
    if (tree_read(edit_arena(x), eq + 1, was, true))
        err_usage(e, "set %s: the value %s of %s is %.60s; the new value must be %s in JSON (--any-type allows another "
                     "type)", text, path,
                  edit_values_place(x, place), held.buf, tree_type_words(was));
    else
        err_usage(e, "set %s: the value %s of %s is %.60s; the new value must be %s, but it is not valid JSON or its "
                     "number is out of range", text,
                  path, edit_values_place(x, place), held.buf, j->any_type ? "JSON" : tree_type_words(was));
    strbuf_free(&held);
    return -1;
}

/* Set a value in all places. Returns the number of places that have the key, or -1 on error. */
static int set_all(const struct ckptedit *j, struct edit *x, const char *text, struct err *e)
{
    int n = 0;

    for (int i = 0; i < edit_n_values_places(x); i++) {
        const int rc = set_in(j, x, i, text, e);

        if (rc < 0)
            return -1;
        n += rc;
    }
    return n;
}

/*
 * Append to `list` the keys of all numbers, texts and truth values in the outermost dictionary of the pickled tree
 * `root`. A key that is already in the list is skipped.
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

/*
 * Report an error because no file has the key that is to be set. The message lists the keys of this checkpoint, or
 * names the command that lists them.
 */
static void refuse_unknown_key(const struct source *s, struct edit *x, const char *text, struct err *e)
{
    struct strbuf keys = {0};

    if (edit_has_value_entries(x)) {
        err_usage(e, "set %s: %s has no pickled value of that name; 'ckpt-edit put' changes tensors", text, s->path);
        return;
    }
    for (int f = 0; !s->run.args && f < s->n_files; f++) {
        struct err ignored = {0};
        const struct pk *root = edit_root(x, f, &ignored);

        if (root)
            add_outer_keys(root, &keys);
    }
    err_usage(e, "set %s: no file of %s has this key; %s%s", text, s->path,
              source_is_model_alone(s) ? "a model folder has no such values, only the settings in config.json"
              : s->run.args ? "'ckpt-inspect args' lists the keys"
              : keys.len ? "its keys are " : "it has no values with names",
              keys.len && !source_is_model_alone(s) && !s->run.args ? keys.buf : "");
    strbuf_free(&keys);
}

/* Returns the length of the key of "KEY=JSON" without a leading "args.", which may be left out, and sets *key. */
static size_t bare_key(const char *text, const char **key)
{
    *key = str_starts(text, "args.") ? text + strlen("args.") : text;
    return strcspn(*key, "=");
}

/* Refuse a key that is given twice, because only the last value would be stored. */
static int check_keys_once(const struct ckptedit *j, struct err *e)
{
    const char *a, *b;

    for (int i = 0; i < j->n_args; i++)
        for (int k = 0; k < i; k++) {
            const size_t n = bare_key(j->arg[i], &a);

            if (n != bare_key(j->arg[k], &b) || strncmp(a, b, n) != 0)
                continue;
            err_usage(e, "set %s: the same key is also set by %s", j->arg[i], j->arg[k]);
            return -1;
        }
    return 0;
}

int change_set(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    if (check_keys_once(j, e) < 0)
        return -1;
    for (int i = 0; i < j->n_args; i++) {
        int n;

        if (!strchr(j->arg[i], '=') || j->arg[i][0] == '=') {
            err_usage(e, "set %s: the argument must have the form KEY=JSON", j->arg[i]);
            return -1;
        }
        n = set_all(j, x, j->arg[i], e);
        if (n == 0)
            refuse_unknown_key(s, x, j->arg[i], e);
        if (n <= 0)
            return -1;
    }
    return 0;
}

/* ---- zero ---- */

static int zero_state(struct edit *x, struct param *p, enum state st, struct err *e)
{
    struct edit_from from = { .zero = true, .crc = crc_zeros(p->state[st]->len) };

    return edit_tensor(x, p, st, &from, e);
}

/*
 * Split an argument such as "3.mlp.*:exp_avg" into the pattern and the state. If no state is given, *state is set to
 * -1.
 */
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
        err_usage(e, "%s: '%s' is not a state; the states are bf16, fp32, exp_avg and exp_avg_sq", word, colon + 1);
    return *state < 0 ? -1 : 0;
}

/* Set *e to the reason why no tensor matches the argument of the command zero. */
static void miss(const struct source *s, const char *word, const char *pattern, int state, struct err *e)
{
    bool named = false;

    for (int i = 0; i < s->n_params && !named; i++)
        named = fnmatch(pattern, s->param[i].name, 0) == 0;
    if (!named || (state >= 0 && state != STATE_EXP_AVG && state != STATE_EXP_AVG_SQ))
        err_usage(e, "zero %s: no tensor of %s has such a name and state; 'ckpt-inspect ls' lists the tensors", word,
                  s->path);
    else
        err_usage(e, "zero %s: %s %s; to set weights to 0, give PATTERN:STATE ('ckpt-inspect ls' lists the states)",
                  word,
                  s->path,
                  source_is_model_alone(s) ? "is a model folder, which has no moments" :
                  "has no moments for these tensors");
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

/* Remove parameters. Fails if the layout locates values relative to the parameters. */
static int drop_params(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    if (edit_can_drop_params(x))
        return drop_tensors(j, x, e);
    err_usage(e, "drop %s: only 'optimizer' and 'rng' can be removed from a %s checkpoint; parameters can be removed "
                 "from a model folder (export-hf makes one) or from a universal form (ds2universal --format pt makes "
                 "one if there are Adam's states%s)",
              j->arg[0], source_layout_name(s), source_joins_tensor_ranks(s) ?
              "; reshape --ranks N joins its tensor-parallel ranks first" : "");
    return -1;
}

int change_drop(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    int n = 0;

    for (int i = 0; i < j->n_args; i++) {
        const char *what = j->arg[i];
        /* A model folder has neither an optimizer nor random states that could be dropped. */
        const bool optimizer = !source_is_model_alone(s) && strcmp(what, "optimizer") == 0;
        const bool rng = !source_is_model_alone(s) && strcmp(what, "rng") == 0;

        if ((optimizer && edit_drop_optimizer(x, j->n_args == 1, e) < 0) || (rng && edit_drop_rng(x, e) < 0))
            return -1;
        if (!optimizer && !rng)
            j->arg[n++] = what;
    }
    j->n_args = n;
    return n ? drop_params(j, s, x, e) : 0;
}
