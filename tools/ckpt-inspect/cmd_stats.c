/*
 * cmd_stats.c - print statistics of the values of every parameter and state
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/ckpt-inspect/view_match.h"

/* Print a line for one state of a tensor. Unless same_name is true, a line with the name of the tensor comes first. */
static void print_row(const struct view_tensor *t, const struct stats *s, bool same_name)
{
    bool any = stats_n_finite(s) > 0;

    if (!same_name)
        printf("%s, %" PRIu64 " element%s\n", text_shown(t->name), s->n, s->n == 1 ? "" : "s");
    printf("  %-10s %12.6g %12.6g %12.6g %12.6g %4" PRIu64 " %4" PRIu64 " %5" PRIu64 "\n",
           t->state < 0 ? dtype_name(t->dtype) : state_name((enum state)t->state), stats_norm(s), any ? s->min : 0,
           any ? s->max : 0, stats_mean(s), s->n_nan, s->n_inf, s->n_zero);
}

static json_t *row_json(const struct view_tensor *t, const struct stats *s)
{
    bool any = stats_n_finite(s) > 0;
    json_t *o = json_pack("{s:o, s:o, s:s, s:I, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I}",
        "name", out_text(t->name), "state", t->state < 0 ? json_null() : json_string(state_name((enum state)t->state)),
        "dtype", dtype_name(t->dtype), "n", (json_int_t)s->n, "norm", out_real(stats_norm(s)),
        "min", any ? out_real(s->min) : json_null(), "max", any ? out_real(s->max) : json_null(),
        "mean", any ? out_real(stats_mean(s)) : json_null(), "n_zero", (json_int_t)s->n_zero,
        "n_negative", (json_int_t)s->n_negative, "n_nan", (json_int_t)s->n_nan, "n_inf", (json_int_t)s->n_inf);

    return o;
}

static void print_tensor_stats(const struct inspect *in, const struct view *v, const struct stats_job *job)
{
    json_t *a = json_array();

    if (!in->cli.json)
        printf("  %-10s %12s %12s %12s %12s %4s %4s %5s\n", "state", "norm", "min", "max", "mean", "nan", "inf",
               "zero");
    for (int i = 0; i < v->n; i++) {
        if (in->cli.json)
            json_array_append_new(a, row_json(&v->tensor[i], &job[i].stats));
        else
            print_row(&v->tensor[i], &job[i].stats,
                      i > 0 && v->tensor[i].param && v->tensor[i].param == v->tensor[i - 1].param);
    }
    if (in->cli.json)
        out_json(json_pack("{s:o, s:o}", "path", out_text(v->source ? source_path(v->source) : v->path), "stats", a));
    else
        json_decref(a);
}

/*
 * Compute the statistics of all tensors. Returns 0 and stores the results in job[v->n], or returns -1. Damage that is
 * found while reading is added to `r`.
 */
static int compute_tensor_stats(const struct inspect *in, const struct view *v, struct stats_job *job, struct report *r,
                                struct err *e)
{
    struct stats_opts so = { .threads = in->cli.threads, .mem_bytes = in->cli.mem_bytes, .replicas = in->cli.replicas,
                             .stopped = cli_stopped, .what = "stats", .progress = in->cli.progress,
                             .report = r };

    for (int i = 0; i < v->n; i++) {
        const struct view_tensor *t = &v->tensor[i];

        if (!t->map) {
            err_data(e, v->path, ERR_NO_BYTE, "tensor %s has too many pieces to be read", t->name);
            return -1;
        }
        job[i] = (struct stats_job){ .a = t->map, .a_files = v->files, .len = t->map->len, .name = t->name };
    }
    if (stats_run(job, v->n, &so, e) < 0)
        return -1;
    for (int i = 0; i < v->n; i++) {
        struct err digest = {0};

        if (view_check_digest(v, &v->tensor[i], job[i].a_crc, &digest) < 0)
            report_add_err(r, "digest", &digest);
    }
    return 0;
}

int cmd_stats(struct inspect *in)
{
    struct report *r = report_new(), *bytes = report_new();
    struct err e = {0};
    struct view *v = inspect_view(in, in->arg[0], r, &e);
    struct stats_job *job = v ? xcalloc((size_t)v->n + 1, sizeof *job) : NULL;
    int rc = out_open_findings(in, r);

    if (!v || view_check_match(v, &e) < 0 || compute_tensor_stats(in, v, job, bytes, &e) < 0)
        rc = cli_fail(&in->cli, &e);
    else
        print_tensor_stats(in, v, job);
    rc |= out_open_findings(in, bytes);
    free(job);
    view_close(v);
    report_free(r);
    report_free(bytes);
    return rc;
}
