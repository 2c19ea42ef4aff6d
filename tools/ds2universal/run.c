/*
 * run.c - the conversion: plan, run, result
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/convert/rehearsal.h"
#include "tools/ds2universal/ds2universal.h"

static const char *const form_names[] = { "pt", "hdf5", "virtual" };

static struct sink *open_sink(struct ds2universal_job *j)
{
    struct sink_opts o = convert_cli_sink(&j->cli, j->out);

    o.vocab = j->vocab;
    o.split = j->split;
    switch (j->form) {
    case FORM_HDF5: return universal_hdf5_sink(&o);
    case FORM_VIRTUAL: return universal_virtual_sink(&o);
    case FORM_PT: break;
    }
    return universal_pt_sink(&o);
}

static int print_plan(struct ds2universal_job *j, struct source *s, struct err *e)
{
    struct sink *k = open_sink(j);
    struct rehearsal r;
    char a[16], b[16];
    int rc = rehearsal_run(s, k, j->out, &r, e);

    if (rc == 0 && j->cli.json)
        cli_json(json_pack("{s:s, s:o, s:o, s:s, s:b, s:i, s:i, s:I, s:I}", "tool", j->cli.tool, "input",
                           text_json(s->path), "output", text_json(j->out), "format", form_names[j->form], "dry_run", 1,
                           "parameters", s->n_params, "files", r.files, "need_bytes", (json_int_t)r.need_bytes,
                           "free_bytes", (json_int_t)r.free_bytes));
    else if (rc == 0)
        printf("%s -> %s: %d parameters, %d files, %s to write, %s free%s\n", s->path, j->out, s->n_params, r.files,
               bytes_text(r.need_bytes, a), bytes_text(r.free_bytes, b),
               r.free_bytes < r.need_bytes ? ": not enough" : "");
    k->ops->close(k);
    return rc < 0 ? -1 : r.free_bytes < r.need_bytes ? EXIT_BAD : EXIT_OK;
}

static void print_result(struct ds2universal_job *j, const struct source *s, const struct convert_result *r)
{
    char *what;

    if (j->cli.json) {
        json_t *o = json_pack("{s:s, s:o, s:o, s:s, s:i}", "tool", j->cli.tool, "input", text_json(s->path),
                              "output", text_json(j->out), "format", form_names[j->form], "parameters", s->n_params);

        convert_cli_add(o, r);
        cli_json(o);
        return;
    }
    if (!r->published && !r->complete && j->form == FORM_VIRTUAL)
        return;                         /* a second's work: part 0 did it */
    if (r->published && j->form == FORM_VIRTUAL) {
        cli_say(&j->cli, "%s: %d parameters, nothing copied, %.2f s%s", j->out, s->n_params, r->wall_s,
                r->n_drifted ? CONVERT_DRIFTED : "");
        return;
    }
    what = str_fmt("%d parameters", s->n_params);
    convert_cli_say(&j->cli, j->out, what, r);
    free(what);
}

static int convert(struct ds2universal_job *j, struct source *s, struct err *e)
{
    char *shape = str_fmt("format %s split %d vocab %d replicas %d", form_names[j->form], j->split, j->vocab,
                          j->cli.replicas);
    struct convert_opts o = convert_cli_opts(&j->cli, j->out, shape);
    struct convert_result res;
    int rc;

    o.move_latest = j->form == FORM_PT ? "latest_universal" : NULL;
    rc = convert_run(s, open_sink(j), &o, &res, e);
    if (rc == 0)
        print_result(j, s, &res);
    free(shape);
    return rc;
}

int job_run(struct ds2universal_job *j)
{
    struct source_opts so = { .accept_mismatch = j->cli.accept_mismatch };
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(j->in, &so, r, &e);
    int rc = -1;

    if (s)
        source_add_buffers(s);
    if (s && convert_cli_check(&j->cli, s, r, &e) == 0)
        rc = j->cli.dry_run ? print_plan(j, s, &e) : convert(j, s, &e);
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    source_close(s);
    report_free(r);
    return rc;
}
