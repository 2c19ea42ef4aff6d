/*
 * ds2universal_run.c - the conversion: plan, run, result
 */
#include <jansson.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/write/sink.h"
#include "tools/ds2universal/ds2universal.h"

static const char *const form_names[] = { "pt", "hdf5", "virtual" };

static struct sink *open_universal_sink(struct ds2universal_job *j)
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

/*
 * Print the result. No rate is printed for a virtual index, which part 0 alone makes within a second without copying
 * data.
 */
static void print_universal_result(const struct convert_cli_job *c, const struct ds2universal_job *j,
                                   const struct convert_result *r)
{
    if (j->form != FORM_VIRTUAL || j->cli.json || r->complete)
        convert_cli_print_result(c, r);
    else if (r->published)
        cli_info(&j->cli, "%s: %s, nothing copied, %.2f s%s", j->out, c->what, r->wall_s,
                 r->n_drifted ? CONVERT_DRIFTED : "");
}

static int convert_to_universal(struct ds2universal_job *j, const struct convert_cli_job *c, struct err *e)
{
    char *shape = str_fmt("format %s split %d vocab %d replicas %d", form_names[j->form], j->split, j->vocab,
                          j->cli.replicas);
    struct convert_opts o = convert_cli_opts(&j->cli, j->out, shape);
    struct convert_result res;
    int rc;

    o.move_latest = j->form == FORM_PT ? "latest_universal" : NULL;
    rc = convert_run(c->src, open_universal_sink(j), &o, &res, e);
    if (rc == 0)
        print_universal_result(c, j, &res);
    free(shape);
    return rc;
}

static int run_universal_conversion(struct ds2universal_job *j, struct source *s, struct err *e)
{
    struct convert_cli_job c = { .cli = &j->cli, .src = s, .out = j->out };
    struct report *notes = report_new();
    char *what = NULL;
    int rc = -1;

    if (universal_resolve(s, notes, e) == 0) {
        cli_warn_findings(&j->cli, notes);
        what = str_fmt("%d parameters", s->n_params);
        c.what = what;
        c.facts = json_pack("{s:s, s:i}", "format", form_names[j->form], "parameters", s->n_params);
        rc = j->cli.dry_run ? convert_cli_plan(&c, open_universal_sink(j), e) : convert_to_universal(j, &c, e);
        json_decref(c.facts);
    }
    report_free(notes);
    free(what);
    return rc;
}

int ds2universal_job_run(struct ds2universal_job *j)
{
    struct source_opts so = { .accept_mismatch = j->cli.accept_mismatch,
                              .skip_unreadable = j->cli.skip_unreadable,
                              .model = j->cli.model };
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(j->in, &so, r, &e);
    int rc = -1;

    if (s && convert_cli_check(&j->cli, s, j->cli.replicas != REPLICAS_FAIL, r, &e) == 0)
        rc = run_universal_conversion(j, s, &e);
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    source_close(s);
    report_free(r);
    return rc;
}
