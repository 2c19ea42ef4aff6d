/* merge_run.c - compare the copies, repair them if requested, and merge the ranks */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/check/replicas_report.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/hf/hf_config.h"
#include "tools/merge-tp/merge_tp.h"

/* ---- printing ---- */

static void print_replicas(const struct merge_job *j, const struct source *s)
{
    struct strbuf sb = {0};

    if (j->cli.quiet || j->cli.json)
        return;
    replicas_text(&j->replicas, source_path(s), NULL, j->cli.verbose, &sb);
    fputs(sb.buf, stdout);
    strbuf_free(&sb);
}

/* Print the result of the comparison for --check. Returns the exit status. */
static int print_check(const struct merge_job *j, const struct source *s)
{
    if (j->cli.json)
        cli_json(json_pack("{s:s, s:o, s:o}", "tool", j->cli.tool, "input", text_json(source_path(s)), "replicas",
                           replicas_json(&j->replicas, j->cli.verbose)));
    return j->replicas.in_sync ? EXIT_OK : EXIT_BAD;
}

/* Return the keys for --json: the result of the comparison, and the number of repairs. */
static json_t *merge_facts(void *ctx)
{
    const struct merge_job *j = ctx;

    return json_pack("{s:o, s:{s:i, s:i}}", "replicas", replicas_json(&j->replicas, j->cli.verbose), "repaired",
                     "parameters", j->repaired.n_params, "states", j->repaired.n);
}

static void print_repairs(const struct merge_job *j)
{
    if (j->repaired.n && !j->cli.json)
        cli_info(&j->cli, "%d parameter%s repaired; the list is in %s/" DS_REPAIR_LOG_NAME, j->repaired.n_params,
                 j->repaired.n_params == 1 ? "" : "s", j->convert.out);
}

/* ---- before the merge ---- */

/*
 * Make the copies equal. Until the new values are written to OUT, they are in a spool file next to OUT. With --dry-run,
 * or if OUT's parent does not exist yet, the spool file is in /tmp.
 */
static int repair_copies(struct merge_job *j, struct source *s, struct err *e)
{
    char *dir = path_parent(j->convert.out);
    struct repair_opts o = { .how = j->cli.replicas, .stopped = cli_stopped,
                             .spool = !j->cli.dry_run && access(dir, W_OK) == 0 ? dir : "/tmp" };
    int rc = repair_run(s, &j->replicas, &o, &j->repaired, e);

    free(dir);
    if (rc < 0)
        return -1;
    repair_log(s, &j->repaired, j->cli.replicas, &j->log);
    j->convert.repair_log = &j->log;
    return 0;
}

static int refuse_drift(const struct merge_job *j, const struct source *s, struct err *e)
{
    int n = replicas_out_of_sync(&j->replicas);

    err_data(e, source_path(s), ERR_NO_BYTE,
             "the tensor-parallel copies of %d parameter%s differ; --replicas average, first or majority makes them "
             "equal, --check lists the differences", n, n == 1 ? "" : "s");
    return -1;
}

/* Returns true if copies differ and --replicas does not state how to resolve them. */
static bool is_stuck(const struct merge_job *j)
{
    return !j->replicas.in_sync && j->cli.replicas == REPLICAS_FAIL;
}

/*
 * Compare the copies. With --check, only print the result. Otherwise set the number of tensor-parallel ranks, and
 * repair copies that differ.
 */
static int prepare_merge(void *ctx, struct source *s, struct err *e)
{
    struct merge_job *j = ctx;
    struct replicas_opts o = { .threads = j->cli.threads, .state = -1, .stopped = cli_stopped };
    const struct merge_request merge = { .repair = j->repair, .target_tp = j->target_tp,
                                         .certificate = j->cli.certificate != NULL };
    int *tp = &j->target.topo.tp;

    if ((!j->check && layout_check_merge(s, &merge, e) < 0) || replicas_check(s, &o, &j->replicas, e) < 0)
        return -1;
    print_replicas(j, s);
    if (j->check) {
        j->convert.status = print_check(j, s);
        return CONVERT_JOB_DONE;
    }
    *tp = j->repair ? source_topology(s).tp : j->target_tp ? j->target_tp : 1;
    if (*tp > source_topology(s).tp) {
        err_usage(e, "--target-tp %d: %s has only %d tensor-parallel ranks, and merge-tp cannot add any; use reshape",
                  *tp, source_path(s), source_topology(s).tp);
        return -1;
    }
    if (is_stuck(j))
        return j->cli.dry_run ? 0 : refuse_drift(j, s, e);
    return j->replicas.in_sync ? 0 : repair_copies(j, s, e);
}

int merge_job_run(struct merge_job *j)
{
    struct convert_job *c = &j->convert;
    struct write_request *q = &c->request;
    int rc;

    c->cli = &j->cli;
    c->shape = j->shape.buf;
    c->open = (struct source_opts){ .threads = j->cli.threads, .accept_mismatch = j->cli.accept_mismatch,
                                    .skip_unreadable = j->cli.skip_unreadable, .model = j->cli.model,
                                    .config = q->config, .run_args = hf_run_args, .no_optimizer = q->weights_only };
    c->compares_copies = true;
    c->ctx = j;
    c->prepare = prepare_merge;
    c->more_facts = merge_facts;
    c->repaired = &j->repaired;
    j->target.step = -1;
    j->target.no_optimizer = q->weights_only;
    q->dtype = DTYPE_N;
    q->shards = &j->target;
    rc = convert_job_run(c);
    if (c->result.published)
        print_repairs(j);
    if (rc == EXIT_OK && is_stuck(j))           /* the plan was printed, but without it the merge would fail */
        rc = EXIT_BAD;
    repair_free(&j->repaired);
    replicas_free(&j->replicas);
    return rc;
}
