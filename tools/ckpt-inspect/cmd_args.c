/*
 * cmd_args.c - print the training arguments saved in a checkpoint, sorted by name
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/ckpt-inspect/view_match.h"

struct args_pair {
    const char *name;
    const struct pk *value;
};

static int pair_cmp(const void *a, const void *b)
{
    return strcmp(((const struct args_pair *)a)->name, ((const struct args_pair *)b)->name);
}

/* Return the pairs of a Namespace whose keys are strings, sorted by key. The caller frees the array. */
static struct args_pair *sorted_pairs(const struct pk *args, int *n)
{
    uint32_t n_items;
    struct pk **item = pk_pairs(args, &n_items);
    struct args_pair *p = xcalloc((size_t)(item ? n_items : 0) + 1, sizeof *p);

    *n = 0;
    for (uint32_t i = 0; item && i < n_items; i++)
        if (pk_as_str(item[2 * i]))
            p[(*n)++] = (struct args_pair){ pk_as_str(item[2 * i]), item[2 * i + 1] };
    qsort(p, (size_t)*n, sizeof *p, pair_cmp);
    return p;
}

static bool asked_for(const struct inspect *in, const char *name)
{
    for (int i = 1; i < in->n_args; i++)
        if (strcmp(in->arg[i], name) == 0)
            return true;
    return in->n_args == 1;
}

/* Print on stderr the requested names that the checkpoint does not have. Returns EXIT_BAD if there are any. */
static int report_missing_args(const struct inspect *in, const struct args_pair *p, int n)
{
    const char **names = xcalloc((size_t)n + 1, sizeof *names);
    int rc = EXIT_OK;

    for (int i = 0; i < n; i++)
        names[i] = p[i].name;
    for (int i = 1; i < in->n_args; i++) {
        struct args_pair want = { in->arg[i], NULL };
        const char *near;

        if (bsearch(&want, p, (size_t)n, sizeof *p, pair_cmp))
            continue;
        near = parse_nearest(in->arg[i], names, n);
        fprintf(stderr, "%s: %s: no argument '%s'%s%s%s\n", in->cli.name, in->arg[0], in->arg[i],
                near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
        rc = EXIT_BAD;
    }
    free(names);
    return rc;
}

static void print_args_text(const struct inspect *in, const struct args_pair *p, int n)
{
    for (int i = 0; i < n; i++) {
        struct strbuf sb = {0};

        if (!asked_for(in, p[i].name))
            continue;
        pk_text(p[i].value, &sb);
        printf("%s %s\n", text_shown(p[i].name), sb.buf ? sb.buf : "");
        strbuf_free(&sb);
    }
}

static void print_args_json(const struct inspect *in, const char *path, const struct args_pair *p, int n)
{
    json_t *o = json_object();

    for (int i = 0; i < n; i++)
        if (asked_for(in, p[i].name))
            json_object_set_new(o, p[i].name, out_pickled(p[i].value));
    out_json(json_pack("{s:o, s:o}", "path", out_text(path), "args", o));
}

static const struct pk *args_of(const struct view *v)
{
    return v->source ? source_run(v->source)->args : v->pt ? pk_get(pt_root(v->pt), "args") : NULL;
}

static int print_saved_args(struct inspect *in)
{
    struct report *r = report_new();
    struct err e = {0};
    struct view *v = inspect_view(in, in->arg[0], r, &e);
    const struct pk *args = v ? args_of(v) : NULL;
    int n, rc = out_open_findings(in, r);

    if (v && !args)
        err_data(&e, in->arg[0], ERR_NO_BYTE, "holds no saved training arguments");
    if (!args) {
        rc = cli_fail(&in->cli, &e);
    } else if (in->conf) {
        args_print_conf(args, in->arg[0]);
    } else {
        struct args_pair *p = sorted_pairs(args, &n);
        int missing = report_missing_args(in, p, n);

        if (in->cli.json)
            print_args_json(in, in->arg[0], p, n);
        else
            print_args_text(in, p, n);
        rc = missing > rc ? missing : rc;
        free(p);
    }
    view_close(v);
    report_free(r);
    return rc;
}

int cmd_args(struct inspect *in)
{
    if (in->conf && (in->cli.json || in->n_args > 1))
        return cli_usage(&in->cli, "--conf cannot be combined with --json or with names of arguments");
    return print_saved_args(in);
}
