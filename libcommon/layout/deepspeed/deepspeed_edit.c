/*
 * deepspeed_edit.c - check KEY=VALUE against the present value: key, owner and type
 *
 * Each edit is checked once, against the first mp_rank file: its key must exist and must not follow from another
 * option, and its JSON is converted to the type of the present value. Each file then receives a copy of the new value.
 */
#include "libcommon/layout/deepspeed/deepspeed_edit.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/layout/derived_values.h"
#include "libcommon/layout/tree_edit.h"
#include "libcommon/model/config.h"

/* ---- the table of positions ---- */

static bool has_position_table(const struct source *s)
{
    for (int i = 0; i < source_n_params(s); i++)
        if (param_ends(source_param_at(s, i)->name, ROLE_POSITION))
            return true;
    return false;
}

/*
 * Return the reason why `value` contradicts the position table, or NULL. A model either has a position table, with a
 * fixed number of rows, or has none.
 */
static const char *positions_owner(const struct source *s, const char *path, const struct pk *value)
{
    bool table = has_position_table(s), absolute;
    int64_t number;
    const char *name;

    if (strcmp(path, "args.max_position_embeddings") == 0)
        return table ? "the tensors determine it" : NULL;
    if (strcmp(path, "args.position_embedding_type") != 0)
        return NULL;
    name = pk_enum(value, &number);
    name = pk_as_str(value) ? pk_as_str(value) : name ? name : config_position_name(number);
    absolute = name && strcmp(name, "absolute") == 0;
    return absolute == table ? NULL : table ? "the checkpoint has a table of positions" :
           "the checkpoint has no table of positions";
}

/* ---- messages ---- */

/* Return the command-line option through which the edit was given. */
static const char *option(const struct ds_set *set)
{
    return set->any_type ? "--set-type" : "--set";
}

static int no_such_key(const struct ds_target *t, const struct ds_set *set, const char *key, const struct pk *args,
                       struct err *e)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(args, &n);
    const char **names = xcalloc((size_t)n + 1, sizeof *names), *near;
    int n_names = 0;

    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_str(pair[2 * i]))
            names[n_names++] = pk_as_str(pair[2 * i]);
    near = parse_nearest(str_starts(key, "args.") ? key + strlen("args.") : key, names, n_names);
    err_usage(e, "%s %s: %s has no such argument%s%s%s; 'ckpt-inspect args' lists the arguments",
              option(set), set->text,
              source_path(t->src), near ? ", did you mean '" : "", near ? near : "", near ? "'" : "");
    free(names);
    return -1;
}

/* ---- one edit ---- */

static int refuse_value(const struct ds_set *set, const char *key, const struct pk *was, struct err *e)
{
    struct strbuf now = {0};

    pk_text(was, &now);
    if (set->any_type)
        err_usage(e, "--set-type %s: the value is not valid JSON (text is written in quotes: '\"text\"')", set->text);
    else
        err_usage(e, "--set %s: the value of %s is %.60s; the new value must be %s in JSON (--set-type allows another "
                     "type)", set->text, key,
                  now.buf, tree_type_words(was));
    strbuf_free(&now);
    return -1;
}

/* Return the path of `key` from the root of the file: "args.lr" for "lr". The text is in the target's arena. */
static const char *resolve_edit_path(const struct ds_target *t, struct pk *root, const char *key)
{
    bool of_args = !str_starts(key, "args.") && tree_find(pk_get(root, "args"), key, NULL);

    return arena_fmt(t->arena, "%s%s", of_args ? "args." : "", key);
}

static int read_edit(struct ds_target *t, const struct ds_set *set, struct pk *root, struct ds_edit *to, struct err *e)
{
    const char *eq = strchr(set->text, '='), *why;
    const struct derived_value *derived;
    const char *key = arena_fmt(t->arena, "%.*s", (int)(eq ? eq - set->text : 0), set->text);
    struct pk *was;

    if (!eq || eq == set->text) {
        err_usage(e, "%s %s: the argument must have the form KEY=VALUE", option(set), set->text);
        return -1;
    }
    to->path = resolve_edit_path(t, root, key);
    was = tree_find(root, to->path, NULL);
    if (!was)
        return no_such_key(t, set, key, pk_get(root, "args"), e);
    derived = derived_value_find(to->path);
    why = derived ? derived->by_reshape : NULL;
    to->value = why ? NULL : tree_read(t->arena, eq + 1, was, set->any_type);
    if (!why && !to->value)
        return refuse_value(set, key, was, e);
    if (!why)
        why = positions_owner(t->src, to->path, to->value);
    if (!why)
        return 0;
    err_usage(e, "%s %s: %s cannot be set, because %s", option(set), set->text, key, why);
    return -1;
}

int ds_edits_read(struct ds_target *t, const struct ds_set *set, int n, struct err *e)
{
    struct arena *a = arena_new(0);
    struct pk *root = pk_copy(a, t->mp_root);
    int rc = 0;

    t->edit = arena_alloc(t->arena, ((size_t)n + 1) * sizeof *t->edit);
    t->n_edits = n;
    for (int i = 0; i < n && rc == 0; i++)
        rc = read_edit(t, &set[i], root, &t->edit[i], e);
    arena_free(a);
    return rc;
}

void ds_edits_apply(const struct ds_target *t, struct arena *a, struct pk *root)
{
    for (int i = 0; i < t->n_edits; i++)
        tree_put(a, root, t->edit[i].path, pk_copy(a, t->edit[i].value));
}
