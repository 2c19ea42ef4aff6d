/*
 * merge_run.c - compare the copies, repair them if requested, then merge
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/check/replicas_report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_config.h"
#include "libcommon/layout/layouts.h"
#include "tools/common/convert_cli.h"
#include "tools/merge-tp/merge_tp.h"

/* ---- printing ---- */

static void print_replicas(const struct merge_job *j, const struct source *s)
{
    struct strbuf sb = {0};

    if (j->cli.quiet || j->cli.json)
        return;
    replicas_text(&j->replicas, s->path, NULL, j->cli.verbose, &sb);
    fputs(sb.buf, stdout);
    strbuf_free(&sb);
}

static void print_result(const struct merge_job *j, const struct ds_write *w, const struct convert_result *r)
{
    ds_write_print_result(w, r, j->cli.json ? merge_json(j) : NULL);
    if (r->published)
        merge_print_repairs(j);
}

/* ---- merging ---- */

static int preview_merge(struct merge_job *j, struct ds_write *w, const struct report *notes,
                         struct err *e)
{
    bool drifted = !j->replicas.in_sync, stuck = drifted && j->cli.replicas == REPLICAS_FAIL;
    json_t *more;
    int rc;

    /* Repair the copies before the preview, which includes the additional file that lists the repairs. */
    if (drifted && !stuck && merge_repair(j, w->src, e) < 0)
        return -1;
    w->repair_log = drifted && !stuck ? &j->log : NULL;
    more = j->cli.json ? json_pack("{s:o}", "replicas", replicas_json(&j->replicas, j->cli.verbose)) : NULL;
    rc = ds_write_preview(w, notes, more, e);

    return rc == EXIT_OK && stuck ? EXIT_BAD : rc;
}

static int make_target(struct merge_job *j, struct source *s, struct report *notes, struct ds_target **out,
                       struct err *e)
{
    struct ds_request q = { .topo.tp = j->repair ? s->topo.tp : j->target_tp ? j->target_tp : 1, .step = -1,
                            .no_optimizer = j->weights_only };

    if (q.topo.tp > s->topo.tp) {
        err_usage(e, "--target-tp %d: %s has TP %d, and merging makes it no more; reshape does", q.topo.tp, s->path,
                  s->topo.tp);
        return -1;
    }
    *out = ds_target_new(s, &q, notes, e);
    return *out ? 0 : -1;
}

/* Repair copies that disagree, if --replicas allows it, and write the output. */
static int repair_and_write(struct merge_job *j, struct ds_write *w, const struct report *notes,
                            struct err *e)
{
    struct convert_result res;

    if (!j->replicas.in_sync && j->cli.replicas == REPLICAS_FAIL)
        return merge_refuse_drift(j, w->src, e);
    if (ds_write_check(w, e) < 0 || merge_resolve_replicas(j, w->src, e) < 0)
        return -1;
    cli_warn_findings(&j->cli, notes);
    w->repair_log = j->replicas.in_sync ? NULL : &j->log;
    if (ds_write_run(w, &res, e) < 0)
        return -1;
    print_result(j, w, &res);
    return 0;
}

static int merge_pipeline(struct merge_job *j, struct source *s, struct err *e)
{
    struct report *notes = report_new();
    struct ds_target *t = NULL;
    struct ds_write w = { .cli = &j->cli, .src = s, .out = j->out, .shape = j->shape.buf,
                          .repaired = &j->repaired };
    int rc = make_target(j, s, notes, &t, e);

    w.target = t;
    if (rc == 0)
        rc = j->cli.dry_run ? preview_merge(j, &w, notes, e) : repair_and_write(j, &w, notes, e);
    ds_target_free(t);
    report_free(notes);
    return rc;
}

/* Refuse a layout that has nothing to merge: one whose tensors are stored whole, or files of one tensor rank. */
static int check_ranks(const struct merge_job *j, const struct source *s, struct err *e)
{
    if (s->layout->zero_files)
        return merge_zero_check(j, s, e);
    if (s->layout->entries)
        err_usage(e, "%s: a %s checkpoint: its tensors are not split by rank, so there is nothing to merge; reshape "
                     "--ranks or --mesh writes it for another number of ranks", s->path, s->layout->name);
    else if (source_is_from_zero(s))
        err_usage(e, "%s: a universal checkpoint of ZeRO-%d: tensor ranks are merged already; reshape makes files of "
                  "ZeRO of it", s->path, source_zero_stage(s));
    return e->kind == ERR_NONE ? 0 : -1;
}

/* Compare the copies. Then stop (--check), or merge. */
static int check_and_merge(struct merge_job *j, struct source *s, struct err *e)
{
    struct replicas_opts o = { .threads = j->cli.threads, .state = -1, .stopped = cli_stopped };

    if ((!j->check && check_ranks(j, s, e) < 0) || replicas_check(s, &o, &j->replicas, e) < 0)
        return -1;
    print_replicas(j, s);
    if (!j->check)
        return s->layout->zero_files ? merge_zero(j, s, e) : merge_pipeline(j, s, e);
    if (j->cli.json)
        cli_json(json_pack("{s:s, s:o, s:o}", "tool", j->cli.tool, "input", text_json(s->path), "replicas",
                           replicas_json(&j->replicas, j->cli.verbose)));
    return j->replicas.in_sync ? EXIT_OK : EXIT_BAD;
}

int merge_job_run(struct merge_job *j)
{
    struct source_opts so = { .threads = j->cli.threads, .accept_mismatch = j->cli.accept_mismatch,
                              .skip_unreadable = j->cli.skip_unreadable,
                              .model = j->cli.model, .config = j->config, .run_args = hf_run_args,
                              .no_optimizer = j->weights_only };
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(j->in, &so, r, &e);
    int rc = -1;

    if (s && convert_cli_check(&j->cli, s, true, r, &e) == 0)
        rc = check_and_merge(j, s, &e);
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    repair_free(&j->repaired);
    replicas_free(&j->replicas);
    source_close(s);
    report_free(r);
    return rc;
}
