/*
 * cmd_replicas.c - check whether the tensor-parallel copies of replicated parameters are in sync
 */
#include <fnmatch.h>
#include <stdio.h>

#include "libcommon/base/mem.h"
#include "libcommon/check/replicas_report.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/layouts.h"
#include "tools/ckpt-inspect/inspect.h"

/*
 * Print the result as text. If `damaged` is true, some files could not be opened, so the result cannot be that all
 * copies are in sync.
 */
static void print_replicas_text(const struct inspect *in, const struct source *s, const struct replicas *r,
                                bool damaged)
{
    struct strbuf sb = {0};

    if (in->cli.quiet)
        return;
    replicas_text(r, source_path(s), in->glob, in->cli.verbose, &sb);
    fputs(sb.buf, stdout);
    if (damaged)
        puts("some parameters could not be compared; the errors name them");
    strbuf_free(&sb);
}

static void print_replicas_json(const struct inspect *in, const struct source *s, const struct replicas *r,
                                bool damaged)
{
    json_t *o = json_pack("{s:o}", "path", out_text(source_path(s))), *found = replicas_json(r, in->cli.verbose);

    json_object_update(o, found);
    json_decref(found);
    if ((damaged || r->n_params == 0) && r->in_sync)
        json_object_set_new(o, "in_sync", json_null());
    out_json(o);
}

/* Fail if --param was given and no parameter of the checkpoint, with or without copies, matches it. */
static int check_matched(const struct inspect *in, const struct source *s, const struct replicas *found, struct err *e)
{
    for (int i = 0; in->glob && found->n_params == 0 && i < source_n_params(s); i++)
        if (fnmatch(in->glob, source_param_at(s, i)->name, 0) == 0)
            return 0;
    if (!in->glob || found->n_params)
        return 0;
    err_data(e, source_path(s), ERR_NO_BYTE, "no tensor matches '%s'", in->glob);
    return -1;
}

int cmd_replicas(struct inspect *in)
{
    struct source_opts so = { .threads = in->cli.threads, .no_optimizer = in->state == STATE_BF16,
                              .model = in->cli.model };
    struct replicas_opts o = { .threads = in->cli.threads, .glob = in->glob, .state = in->state,
                               .stopped = cli_stopped };
    struct report *r = report_new();
    struct replicas result = {0};
    struct err e = {0};
    struct source *s = source_open(in->arg[0], &so, r, &e);
    int rc = out_open_findings(in, r);

    if (!s || replicas_check(s, &o, &result, &e) < 0 || check_matched(in, s, &result, &e) < 0) {
        rc = cli_fail(&in->cli, &e);
    } else {
        if (in->cli.json)
            print_replicas_json(in, s, &result, rc != EXIT_OK);
        else
            print_replicas_text(in, s, &result, rc != EXIT_OK);
        rc = result.in_sync ? rc : EXIT_BAD;
    }
    replicas_free(&result);
    source_close(s);
    report_free(r);
    return rc;
}
