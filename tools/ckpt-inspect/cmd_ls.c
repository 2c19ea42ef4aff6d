/* cmd_ls.c - list every parameter; with -v also where its pieces are, and all other values */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/progress.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/model/params.h"
#include "tools/ckpt-inspect/view_match.h"

/* ---- pieces: the runs of bytes in files that make up a tensor ---- */

static json_t *pieces_json(const struct view *v, const struct tmap *m)
{
    json_t *a = json_array();

    for (int k = 0; m && k < m->n_slices; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++) {
            const struct extent *x = &m->slice[k].extent[i];
            const struct record *rec = files_record(v->files, x->record);

            json_array_append_new(a, json_pack("{s:i, s:o, s:I, s:I}", "slice", k,
                "file", out_text(files_name(v->files, rec->file)), "byte", (json_int_t)(rec->at + x->at),
                "size_bytes", (json_int_t)x->len));
        }
    return a;
}

/* Return the name of a file inside the checkpoint, or its full path if it is not in the checkpoint's folder. */
static const char *short_name(const struct view *v, const char *name)
{
    size_t n = v->source ? strlen(source_path(v->source)) : 0;

    return n && strncmp(name, source_path(v->source), n) == 0 && name[n] == '/' ? name + n + 1 : name;
}

static void print_pieces(const struct view *v, const struct tmap *m, const char *state)
{
    for (int k = 0; m && k < m->n_slices; k++)
        for (int i = 0; i < m->slice[k].n_extents; i++) {
            const struct extent *x = &m->slice[k].extent[i];
            const struct record *rec = files_record(v->files, x->record);

            printf("  %-10s %d  %" PRIu64 "+%" PRIu64 "  %s\n", state, k, rec->at + x->at, x->len,
                   short_name(v, files_name(v->files, rec->file)));
        }
}

/* ---- a checkpoint: one line per parameter, with all its states ---- */

static void print_states(const struct view_tensor *t, int n)
{
    for (int i = 0; i < n; i++)
        printf("%s%s:%s", i ? " " : "", state_name((enum state)t[i].state), dtype_name(t[i].dtype));
}

/* Return the number of states of the parameter whose first state is tensor i. The states are tensors i .. i+n-1. */
static int states_at(const struct view *v, int i)
{
    int n = 1;

    while (i + n < v->n && v->tensor[i + n].param == v->tensor[i].param)
        n++;
    return n;
}

/* Returns true if all parameters have the same states with the same dtypes as the first one. */
static bool same_states(const struct view *v)
{
    int n = v->n ? states_at(v, 0) : 0;

    for (int i = n; i < v->n; i += n) {
        if (states_at(v, i) != n)
            return false;
        for (int k = 0; k < n; k++)
            if (v->tensor[i + k].state != v->tensor[k].state || v->tensor[i + k].dtype != v->tensor[k].dtype)
                return false;
    }
    return true;
}

static const char *or_dash(const char *text)
{
    return text ? text : "-";
}

/* Widths of the columns for this checkpoint. The names, which may have any length, are in the last column. */
struct widths {
    int shape, rule;
    /* true if the states are printed after each name, because they are not the same for all parameters */
    bool states;
};

/*
 * Return the name of the rule for merging the tensor-parallel slices of p. Returns NULL for a model without such slices
 * in a layout that does not define rules.
 */
static const char *param_merge_rule_name(const struct view *v, const struct param *p)
{
    const struct source *s = v->source;

    return s && source_topology(s).tp <= 1 && source_has_own_names(s) ? NULL : merge_rule_name(p->merge);
}

static struct widths find_widths(const struct view *v)
{
    struct widths w = { .shape = 5, .rule = 5, .states = !same_states(v) };
    char shape[SHAPE_TEXT];

    for (int i = 0; i < v->n; i++) {
        const struct param *p = v->tensor[i].param;

        w.shape = (int)max_u64((uint64_t)w.shape, strlen(shape_text(p->ndim, p->shape, shape)));
        w.rule = (int)max_u64((uint64_t)w.rule, strlen(or_dash(param_merge_rule_name(v, p))));
    }
    return w;
}

static void print_param_list_head(const struct view *v, const struct widths *w)
{
    if (v->n && !w->states) {
        printf("every parameter has ");
        print_states(v->tensor, states_at(v, 0));
        putchar('\n');
    }
    printf("%-*s %-*s stage group  parameter\n", w->shape, "shape", w->rule, "merge");
}

static void print_param(const struct inspect *in, const struct view *v, const struct view_tensor *t, int n,
                        const struct widths *w)
{
    const struct param *p = t->param;
    char shape[SHAPE_TEXT], stage[16] = "-", group[16] = "-";

    if (p->stage >= 0)
        snprintf(stage, sizeof stage, "%d", p->stage);
    if (p->group >= 0)
        snprintf(group, sizeof group, "%d", p->group);
    printf("%-*s %-*s %5s %5s  %s", w->shape, shape_text(p->ndim, p->shape, shape), w->rule,
           or_dash(param_merge_rule_name(v, p)), stage, group, text_shown(p->name));
    if (p->shared_with)
        printf(" (another name of %s)", text_shown(p->shared_with));
    if (w->states) {
        printf("  ");
        print_states(t, n);
    }
    putchar('\n');
    for (int i = 0; in->cli.verbose && i < n; i++) {
        print_pieces(v, t[i].map, state_name((enum state)t[i].state));
        if (p->tied[t[i].state])
            print_pieces(v, p->tied[t[i].state], "last stage");
    }
}

static json_t *param_json(const struct inspect *in, const struct view *v, const struct view_tensor *t, int n)
{
    const struct param *p = t->param;
    json_t *states = json_object();
    bool tied = false;

    for (int i = 0; i < n; i++) {
        json_t *o = json_pack("{s:s, s:I}", "dtype", dtype_name(t[i].dtype), "size_bytes", (json_int_t)t[i].map->len);

        if (in->cli.verbose) {
            json_object_set_new(o, "pieces", pieces_json(v, t[i].map));
            if (p->tied[t[i].state])
                json_object_set_new(o, "tied_pieces", pieces_json(v, p->tied[t[i].state]));
        }
        tied |= p->tied[t[i].state] != NULL;
        json_object_set_new(states, state_name((enum state)t[i].state), o);
    }
    return json_pack("{s:o, s:o, s:s?, s:o, s:o, s:b, s:o*, s:o}",
        "name", out_text(p->name), "shape", out_shape(p->shape, p->ndim),
        "merge_rule", param_merge_rule_name(v, p), "stage", out_int_or_null(p->stage),
        "group", out_int_or_null(p->group), "tied", (int)tied,
        "shared_with", p->shared_with ? out_text(p->shared_with) : NULL, "states", states);
}

/* ---- with -v: tensors that are not parameters, plain values, and stacked tensors ---- */

static void print_non_params(const struct view *v)
{
    char shape[SHAPE_TEXT];

    if (v->n_all > v->n || v->n_plain)
        printf("other than the parameters\n");
    for (int i = v->n; i < v->n_all; i++) {
        const struct view_tensor *t = &v->tensor[i];

        printf("%s %s  %s\n", dtype_name(t->dtype), shape_text(t->ndim, t->shape, shape), text_shown(t->name));
        print_pieces(v, t->map, "");
    }
    for (int i = 0; i < v->n_plain; i++) {
        struct strbuf sb = {0};

        pk_text(v->plain[i]->tree, &sb);
        printf("%s = %s\n", text_shown(v->plain[i]->name), sb.buf ? sb.buf : "");
        strbuf_free(&sb);
    }
}

static void print_stacks(const struct view *v)
{
    char shape[SHAPE_TEXT];

    if (v->n_known > v->n_all)
        printf("stacked in the files\n");
    for (int i = v->n_all; i < v->n_known; i++)
        printf("%s %s  %s\n", dtype_name(v->tensor[i].dtype),
               shape_text(v->tensor[i].ndim, v->tensor[i].shape, shape), v->tensor[i].name);
}

static json_t *tensor_json(const struct view *v, const struct view_tensor *t, bool pieces)
{
    json_t *o = json_pack("{s:o, s:o, s:s, s:I}",
        "name", out_text(t->name), "shape", out_shape(t->shape, t->ndim),
        "dtype", dtype_name(t->dtype), "size_bytes", (json_int_t)(t->n_elems * dtype_size(t->dtype)));

    if (pieces)
        json_object_set_new(o, "pieces", pieces_json(v, t->map));
    return o;
}

/* List the tensors that could not be read as JSON, for scripts. In text output they are reported as errors. */
static json_t *ls_unread_json(const struct view *v)
{
    json_t *a = json_array();

    for (int i = 0; i < v->n_unread; i++)
        json_array_append_new(a, json_pack("{s:o, s:o}", "name", out_text(v->unread[i].name),
                                           "why", out_text(v->unread[i].why)));
    return a;
}

static json_t *values_json(const struct view *v)
{
    json_t *a = json_array();

    for (int i = v->n; i < v->n_all; i++)
        json_array_append_new(a, tensor_json(v, &v->tensor[i], true));
    for (int i = 0; i < v->n_plain; i++)
        json_array_append_new(a, json_pack("{s:o, s:o}", "name", out_text(v->plain[i]->name),
                                           "value", out_pickled(v->plain[i]->tree)));
    return a;
}

static json_t *stacks_json(const struct view *v)
{
    json_t *a = json_array();

    for (int i = v->n_all; i < v->n_known; i++)
        json_array_append_new(a, tensor_json(v, &v->tensor[i], false));
    return a;
}

static void print_param_list(const struct inspect *in, const struct view *v)
{
    json_t *a = json_array();
    struct widths w = find_widths(v);

    if (!in->cli.json && v->n)
        print_param_list_head(v, &w);
    for (int i = 0, n; i < v->n; i += n) {
        n = states_at(v, i);
        if (in->cli.json)
            json_array_append_new(a, param_json(in, v, &v->tensor[i], n));
        else
            print_param(in, v, &v->tensor[i], n, &w);
    }
    for (int i = 0; i < v->n_unread && !in->cli.json; i++)
        printf("%-*s %-*s %5s %5s  %s\n", w.shape, "?", w.rule, "-", "-", "-", text_shown(v->unread[i].name));
    if (in->cli.json) {
        json_t *o = json_pack("{s:o, s:s, s:o}", "path", out_text(source_path(v->source)),
                              "layout", source_layout_name(v->source), "parameters", a);

        if (v->n_unread)
            json_object_set_new(o, "unread", ls_unread_json(v));

        if (in->cli.verbose && (v->n_all > v->n || v->n_plain))
            json_object_set_new(o, "values", values_json(v));
        if (in->cli.verbose && v->n_known > v->n_all)
            json_object_set_new(o, "stacks", stacks_json(v));
        out_json(o);
    } else {
        json_decref(a);
        if (in->cli.verbose) {
            print_non_params(v);
            print_stacks(v);
        }
    }
}

/* ---- one file: one line per tensor ---- */

/*
 * Parse a NumPy array among the plain values. It is pickled as numpy.core.multiarray._reconstruct() with the state (1,
 * shape, type, order, bytes). Sets *shape and returns the letters of the type ("f8"). Returns NULL for any other value.
 */
static const char *numpy_array(const struct pk *v, const struct pk **shape)
{
    const struct pk *state = v->type == PK_CALL && !v->opaque ? v->state : NULL, *type;
    char class[64];
    uint32_t n;

    if (!state || state->type != PK_TUPLE || state->n < 5 || !pk_class(v, class, sizeof class) ||
        !str_ends(class, "core.multiarray._reconstruct") || !pk_items(state->item[1], &n))
        return NULL;
    type = state->item[2];
    *shape = state->item[1];
    if (!pk_is_class(type, "numpy", "dtype") || type->type != PK_CALL || type->args->n == 0)
        return NULL;
    return pk_as_str(type->args->item[0]);
}

/* Return a shape as text: "[2, 3]". */
static char *numpy_shape(const struct pk *shape)
{
    struct strbuf sb = {0};
    uint32_t n = 0;
    struct pk **item = pk_items(shape, &n);
    int64_t dim;

    strbuf_addf(&sb, "[");
    for (uint32_t i = 0; i < n; i++)
        strbuf_addf(&sb, "%s%" PRId64, i ? ", " : "", pk_as_int(item[i], &dim) ? dim : -1);
    strbuf_addf(&sb, "]");
    return sb.buf;
}

/* Print one line per array. If `list` is not NULL, add the arrays to it instead. */
static void list_arrays(const struct view *v, int width, int types, json_t *list)
{
    for (int i = 0; i < v->n_plain; i++) {
        const char *name = v->plain[i]->name;
        const struct pk *shape;
        const char *type = numpy_array(v->plain[i]->tree, &shape);
        char *text = type ? numpy_shape(shape) : NULL;

        if (text && list)
            json_array_append_new(list, json_pack("{s:o, s:o, s:o}", "name", out_text(name), "shape",
                                                  out_pickled(shape), "numpy_type", out_text(type)));
        else if (text)
            printf("%-*s  %-*s  %s (a NumPy array)\n", width, text, types, type, name);
        free(text);
    }
}

static void print_tensor_list(const struct inspect *in, const struct view *v)
{
    json_t *a = json_array();
    char shape[SHAPE_TEXT];
    int width = 0, types = 5;

    for (int i = 0; i < v->n; i++) {
        width = (int)max_u64((uint64_t)width, strlen(shape_text(v->tensor[i].ndim, v->tensor[i].shape, shape)));
        types = (int)max_u64((uint64_t)types, strlen(dtype_name(v->tensor[i].dtype)));
    }
    for (int i = 0; i < v->n; i++) {
        const struct view_tensor *t = &v->tensor[i];

        if (in->cli.json) {
            json_array_append_new(a, tensor_json(v, t, in->cli.verbose));
            continue;
        }
        printf("%-*s  %-*s  %s\n", width, shape_text(t->ndim, t->shape, shape), types, dtype_name(t->dtype),
               t->name);
        if (in->cli.verbose)
            print_pieces(v, t->map, "");
    }
    for (int i = 0; i < v->n_unread && !in->cli.json; i++)
        printf("%-*s  %-*s  %s\n", width, "?", types, "?", text_shown(v->unread[i].name));
    if (in->cli.json) {
        json_t *o = json_pack("{s:o, s:o, s:o}", "path", out_text(v->path), "tensors", a, "unread", ls_unread_json(v));
        json_t *arrays = json_array();

        list_arrays(v, 0, 0, arrays);
        if (json_array_size(arrays))
            json_object_set(o, "arrays", arrays);
        json_decref(arrays);
        out_json(o);
    } else {
        list_arrays(v, width, types, NULL);
        json_decref(a);
    }
}

int cmd_ls(struct inspect *in)
{
    struct report *r = report_new();
    struct err e = {0};
    struct view *v = inspect_view(in, in->arg[0], r, &e);
    int rc = out_open_findings(in, r);

    if (!v || view_check_match(v, &e) < 0)
        rc = cli_fail(&in->cli, &e);
    else if (v->source)
        print_param_list(in, v);
    else
        print_tensor_list(in, v);
    view_close(v);
    report_free(r);
    return rc;
}
