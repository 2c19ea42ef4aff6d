/*
 * edit_universal.c - rename folders of parameters, and update model_states files accordingly
 */
#include "libcommon/layout/edit/edit_universal.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/layout/engine/zero_shape.h"
#include "libcommon/plan/tmap_slice.h"

static const char padding_key[] = "vocab_divisibility_padding_tensor";

static int find_file(const struct edit *x, const char *name)
{
    for (int i = 0; i < x->n_files; i++)
        if (strcmp(x->file[i].was, name) == 0)
            return i;
    return -1;
}

/* Returns a new entry for file i. It becomes another file of the result with the same contents. */
static struct edit_file *duplicate_file(struct edit *x, int i)
{
    struct edit_file *f;

    ARRAY_ROOM(x->file, x->cap_files, x->n_files + 1);
    x->file[x->n_files] = x->file[i];
    f = &x->file[x->n_files++];
    f->own_pt = false;
    f->made = NULL;
    f->drop = false;
    return f;
}

int edit_universal_padded(struct edit *x, const struct param *p, bool *padded, struct err *e)
{
    char *name = str_fmt("zero/%s/%s.pt", p->name, state_name(STATE_FP32));
    const int i = find_file(x, name);

    free(name);
    if (i < 0 || edit_open_pt(x, &x->file[i], e) < 0) {
        if (e->kind == ERR_NONE)
            err_data(e, x->s->path, ERR_NO_BYTE, "parameter %s: has no fp32.pt", p->name);
        return -1;
    }
    *padded = pk_get(pt_root(x->file[i].pt), padding_key) != NULL;
    return 0;
}

/* ---- files that are made new ---- */

static struct edit_new *make_zero_padding_row(struct edit *x, const struct edit_new *of, enum state st)
{
    struct edit_new *row = arena_alloc(x->arena, sizeof *row);
    int zeros = -1;

    *row = *of;
    row->name = padding_key;
    row->map[st] = tmap_slice_zeros(x->arena, x->s->files, &zeros, DTYPE_F32, sizeof(float) * (uint64_t)of->shape[1]);
    return row;
}

/*
 * Make the contents of file f from state `st` of t. If `padded` is true, the file gets padding rows of the vocabulary
 * and a padding tensor, as in the source's file.
 */
static void make_image(struct edit *x, struct edit_file *f, const struct edit_placing *to, const struct edit_new *t,
                       enum state st, bool padded)
{
    const struct param *p = &to->src->param[to->listed ? t - to->list->tensor : t->param];
    const enum vocab_policy vocab = padded ? VOCAB_KEEP : VOCAB_STRIP;
    struct edit_made *made = edit_make(x, f);

    made->image = universal_pt_image(to->src, p, st, vocab);
    made->size = pt_image_size(made->image);
    made->part = arena_alloc(x->arena, 2 * sizeof *made->part);
    made->part[made->n++] = (struct edit_part){ .of = t, .state = st, .same_as = -1 };
    if (universal_pt_zero_row(to->src, p, vocab))
        made->part[made->n++] = (struct edit_part){ .of = make_zero_padding_row(x, t, st), .state = st, .storage = 1,
                                                    .same_as = -1 };
}

static int make_state(struct edit *x, struct edit_file *f, const struct edit_placing *to, const struct edit_new *t,
                      enum state st, struct err *e)
{
    if (edit_open_pt(x, f, e) < 0)
        return -1;
    make_image(x, f, to, t, st, pk_get(pt_root(f->pt), padding_key) != NULL);
    return 0;
}

/*
 * Set *padded to true if the parameter's files store padding rows, as shown by the first of its state files that can be
 * read.
 */
static int any_padded(struct edit *x, const struct param *p, bool *padded, struct err *e)
{
    for (int st = 0; st < STATE_N; st++) {
        char *name = str_fmt("zero/%s/%s.pt", p->name, state_name((enum state)st));
        const int i = find_file(x, name);

        free(name);
        err_clear(e);
        if (i < 0 || edit_open_pt(x, &x->file[i], e) < 0)
            continue;
        *padded = pk_get(pt_root(x->file[i].pt), padding_key) != NULL;
        return 0;
    }
    if (e->kind == ERR_NONE)
        err_data(e, x->s->path, ERR_NO_BYTE, "parameter %s: has no readable state file", p->name);
    return -1;
}

/*
 * Give a copy of another parameter's step.pt to each trained parameter that has lost its own, because the loader
 * requires that the counters of a group are equal.
 */
static void copy_lost_steps(struct edit *x)
{
    const int n_files = x->n_files;
    int with = -1;

    for (int i = 0; i < n_files && with < 0; i++)
        if (str_starts(x->file[i].was, "zero/") && str_ends(x->file[i].was, "/step.pt"))
            with = i;
    for (int i = 0; i < x->s->n_params && with >= 0; i++) {
        const struct param *p = &x->s->param[i];
        char *name = arena_fmt(x->arena, "zero/%s/step.pt", p->name);

        if (p->state[STATE_EXP_AVG] && !p->shared_with && find_file(x, name) < 0)
            duplicate_file(x, with)->name = name;
    }
}

int edit_universal_fill(struct edit *x, struct edit_states *list, const bool *hit, struct err *e)
{
    const struct edit_placing to = { list, x->s, false };

    x->states = list;
    for (int k = 0; k < list->n; k++)
        for (int st = 0; st < STATE_N; st++) {
            const struct edit_new *t = &list->tensor[k];
            char *name;
            bool padded;
            int i;

            if (!hit[t->param * STATE_N + st])
                continue;
            if (any_padded(x, &x->s->param[t->param], &padded, e) < 0)
                return -1;
            name = arena_fmt(x->arena, "zero/%s/%s.pt", t->name, state_name((enum state)st));
            i = find_file(x, name);
            make_image(x, i < 0 ? edit_add_file(x, name) : &x->file[i], &to, t, (enum state)st, padded);
        }
    copy_lost_steps(x);
    return 0;
}

/* ---- damaged containers ---- */

/*
 * Returns 1 if the file's records and tree are intact but its zip container is damaged, otherwise 0. Returns -1 if the
 * file cannot be read.
 */
static int is_only_container_bad(struct edit *x, struct edit_file *f, struct err *e)
{
    struct report *r = report_new();
    struct err damaged = {0};
    int rc = 0;

    /* A file that cannot be opened has no tree from which it could be written again. */
    if (edit_open_pt(x, f, &damaged) == 0)
        rc = zip_check_container(pt_zip(f->pt), x->s->files, f->file, r, e) < 0 ? -1 : report_n(r) > 0;
    if (rc > 0 && pt_check_records(f->pt, x->s->files, &damaged) < 0)
        rc = 0;
    report_free(r);
    return rc;
}

int edit_universal_mend_containers(struct edit *x, int *n, struct err *e)
{
    *n = 0;
    for (int i = 0; i < x->n_files; i++) {
        struct edit_file *f = &x->file[i];
        int bad;

        if (f->drop || f->file < 0 || edit_changes(f) || !str_ends(f->name, ".pt"))
            continue;
        bad = is_only_container_bad(x, f, e);
        if (bad < 0)
            return -1;
        if (bad)
            f->root = pk_copy(x->arena, pt_root(f->pt));
        *n += bad;
    }
    return 0;
}

/* ---- folders ---- */

/*
 * If `file` is "zero/NAME/rest", returns the parameter with this name and sets *rest. Returns NULL if there is no such
 * parameter.
 */
static const struct param *find_zero_file_param(const struct edit *x, const char *file, const char **rest)
{
    const char *slash = str_starts(file, "zero/") ? strchr(file + 5, '/') : NULL;
    const struct param *p;
    char *name;

    if (!slash)
        return NULL;
    name = xstrdup(file + 5);
    name[slash - file - 5] = '\0';
    p = source_param(x->s, name);
    free(name);
    *rest = slash + 1;
    return p;
}

static int parse_state_file_name(const char *rest)
{
    for (int st = 0; st < STATE_N; st++) {
        const size_t n = strlen(state_name((enum state)st));

        if (strncmp(rest, state_name((enum state)st), n) == 0 && strcmp(rest + n, ".pt") == 0)
            return st;
    }
    return -1;
}

/* A file in the folder of a parameter. */
struct placed_file {
    int file;                           /* index in x->file */
    const char *rest;                   /* name of the file in the parameter's folder */
    bool again;                         /* true if the file is already in the folder of one parameter of the result */
};

/* Put the file into the folder of t. The first time, the file is renamed. After that, it is duplicated. */
static int place_file(struct edit *x, const struct placed_file *w, const struct edit_placing *to,
                      const struct edit_new *t, struct err *e)
{
    const int st = parse_state_file_name(w->rest);
    struct edit_file *f;

    f = w->again ? duplicate_file(x, w->file) : &x->file[w->file];
    f->name = arena_fmt(x->arena, "zero/%s/%s", t->name, w->rest);
    return st >= 0 && t->map[st] != x->s->param[t->param].state[st] ? make_state(x, f, to, t, (enum state)st, e) : 0;
}

int edit_universal_place(struct edit *x, const struct edit_placing *to, struct err *e)
{
    const int n_files = x->n_files;

    for (int i = 0; i < n_files; i++) {
        struct placed_file w = { .file = i };
        const struct param *p = find_zero_file_param(x, x->file[i].was, &w.rest);

        if (!p)
            continue;
        x->file[i].drop = true;
        for (int k = 0; k < to->list->n; k++) {
            if (&x->s->param[to->list->tensor[k].param] != p)
                continue;
            x->file[i].drop = false;
            if (place_file(x, &w, to, &to->list->tensor[k], e) < 0)
                return -1;
            w.again = true;
        }
    }
    return 0;
}

int edit_universal_check(const struct edit *x, const struct edit_states *list, struct err *e)
{
    for (int i = 0; i < list->n; i++)
        if (!zero_is_name(list->tensor[i].name)) {
            err_usage(e, "'%.80s' cannot be the name of a folder (a dot in front, slashes and blanks cannot be in it)",
                      list->tensor[i].name);
            return -1;
        }
    return edit_states_check(x, list, e);
}

/* ---- the engine's files ---- */

static int set_edited_file_root(struct edit *x, const struct pt *pt, struct pk *root, struct err *e)
{
    for (int i = 0; i < x->n_files; i++)
        if (strcmp(files_name(x->s->files, x->file[i].file), pt_path(pt)) == 0) {
            x->file[i].root = root;
            return edit_open_pt(x, &x->file[i], e);
        }
    err_data(e, pt_path(pt), ERR_NO_BYTE, "lies outside of the folder");
    return -1;
}

static int set_model_trees(struct edit *x, const struct ds_target *t, struct err *e)
{
    for (int mp = 0; mp < t->topo.pp * t->topo.tp; mp++) {
        const struct pt *from;
        struct pk *root = ds_tree_mp(t, x->arena, mp / t->topo.tp, mp % t->topo.tp, &from, e);

        if (!root || set_edited_file_root(x, from, root, e) < 0)
            return -1;
    }
    return 0;
}

/*
 * Remove the source's digests of states that get new contents under the same name, because these digests no longer
 * apply.
 */
static void forget_digests(struct edit *x, const struct edit_new *n)
{
    struct param *p = &x->s->param[n->param];

    for (int st = 0; st < STATE_N; st++)
        if (strcmp(p->name, n->name) == 0 && n->map[st] != p->state[st])
            p->has_digest[st] = false;
}

static void list_edited_params(struct edit *x, const struct source *to, const struct ds_target *t)
{
    const struct ds_stage **stage = xcalloc((size_t)t->topo.pp + 1, sizeof *stage);
    struct ds_index index;

    for (int pp = 0; pp < t->topo.pp; pp++)
        stage[pp] = &t->stage[pp];
    ds_index_make(&index, stage, t->topo.pp);
    x->states = xcalloc(1, sizeof *x->states);
    for (int i = 0; i < t->n_params; i++) {
        struct edit_new n = edit_new_of(to, (int)(t->param[i].from - to->param));
        const struct ds_entry *en = ds_index_find(&index, t->param[i].name);

        n.name = arena_fmt(x->arena, "%s", t->param[i].name);
        n.group = n.stage < 0 || !en ? -1 : en->group;
        n.stage = n.stage < 0 || !en ? -1 : en->pp;
        forget_digests(x, &n);
        edit_states_add(x->states, &n);
    }
    ds_index_free(&index);
    free(stage);
}

int edit_universal(struct edit *x, struct source *to, struct ds_target *t, struct err *e)
{
    x->to = to;
    list_edited_params(x, to, t);
    if (edit_universal_check(x, x->states, e) < 0 ||
        edit_universal_place(x, &(struct edit_placing){ x->states, to, false }, e) < 0 || set_model_trees(x, t, e) < 0)
        return -1;
    if (to->run.optimizer == x->s->run.optimizer)
        return 0;
    return set_edited_file_root(x, x->s->run.optimizer_pt, (struct pk *)to->run.optimizer, e);
}

/* ---- renamed and dropped parameters ---- */

/*
 * Returns a pattern that matches only this name. Renamed parameters need it, because the patterns of the model's family
 * do not match their new names.
 */
static struct pk *make_exact_name_pattern(struct arena *a, const char *name)
{
    struct strbuf sb = {0};
    struct pk *v;

    for (; *name; name++)
        strbuf_addf(&sb, "%s%c", strchr(".+*?()[]{}^$|\\", *name) ? "\\" : "", *name);
    v = pk_str(a, sb.buf);
    strbuf_free(&sb);
    return v;
}

/*
 * Replace the lists of patterns in the universal_checkpoint_info block. Each list is for one rule of merging slices,
 * and contains the parameters that were merged by this rule.
 */
static void rename_patterns(const struct edit *x, const struct edit_states *list, struct pk *block)
{
    static const struct { const char *key; enum merge_rule rule; } lists[] = {
        { "vocabulary_parameter_patterns", MERGE_VOCAB }, { "tp_replicated_parameter_patterns", MERGE_REPLICATED },
        { "parameter_with_row_parallelism_patterns", MERGE_CAT1 },
        { "parameter_with_2_sub_params_cat_dim_0", MERGE_CAT0_HALVES },
    };

    for (size_t k = 0; block && k < sizeof lists / sizeof *lists; k++) {
        struct pk *made = pk_list(x->arena);

        for (int i = 0; i < list->n; i++)
            if (x->s->param[list->tensor[i].param].merge == lists[k].rule)
                pk_add(x->arena, made, make_exact_name_pattern(x->arena, list->tensor[i].name));
        pk_set_str(x->arena, block, lists[k].key, made);
    }
}

/* Update param_shapes with the new names. Readers require every parameter that param_shapes lists. */
static void list_shapes(const struct edit *x, const struct edit_states *list, struct pk *root)
{
    uint32_t n_groups = 0, n = 0;
    struct pk **group = pk_items(pk_get(root, "param_shapes"), &n_groups);

    for (uint32_t g = 0; group && g < n_groups; g++) {
        struct pk *to = pk_ordered_dict(x->arena), **pair = pk_pairs(group[g], &n);

        for (uint32_t i = 0; pair && i < n; i++) {
            const char *was = pk_as_str(pair[2 * i]), *name = edit_states_name(list, x->s, was);

            if (name)
                pk_set_str(x->arena, to, name, pair[2 * i + 1]);
            else if (!was || !source_param(x->s, was))
                pk_set(x->arena, to, pair[2 * i], pair[2 * i + 1]);
        }
        if (pair)
            group[g] = to;
    }
}

static bool has_other_names(const struct edit *x, const struct edit_states *list)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->tensor[i].name, x->s->param[list->tensor[i].param].name) != 0)
            return true;
    return false;
}

int edit_universal_list(struct edit *x, struct edit_states *list, struct err *e)
{
    const bool renames = has_other_names(x, list);

    x->states = list;
    if (edit_universal_check(x, list, e) < 0 ||
        edit_universal_place(x, &(struct edit_placing){ list, x->s, false }, e) < 0)
        return -1;
    for (int i = 0; i < x->s->n_files; i++) {
        struct pk *root;

        if (!x->s->file[i].pt || !pk_get(pt_root(x->s->file[i].pt), "param_shapes"))
            continue;
        root = edit_tree(x, i, e);
        if (!root)
            return -1;
        list_shapes(x, list, root);
        if (renames)
            rename_patterns(x, list, pk_get(root, "universal_checkpoint_info"));
    }
    return 0;
}
