#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/layout/deepspeed_preview.h"
#include "libcommon/layout/replicas_report.h"
#include "tools/merge-tp/merge.h"

static void warn(void *ctx, const char *text)
{
    const struct job *j = ctx;

    cli_warn(&j->cli, "%s", text);
}

/* ---- what is printed ---- */

static void print_json(json_t *o)
{
    char *s = o ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15)) : NULL;

    puts(s ? s : "{}");
    free(s);
    json_decref(o);
}

static void print_replicas(const struct job *j, const struct source *s)
{
    struct strbuf sb = {0};

    if (j->cli.quiet || j->cli.json)
        return;
    replicas_text(&j->replicas, s->path, NULL, j->cli.verbose, &sb);
    fputs(sb.buf, stdout);
    strbuf_free(&sb);
}

static json_t *repaired_json(const struct job *j)
{
    return json_pack("{s:i, s:i}", "parameters", j->repaired.n_params, "states", j->repaired.n);
}

static void print_result(struct job *j, const struct convert_result *r)
{
    const struct ds_target *t = j->target;
    uint64_t moved = r->read_bytes + r->write_bytes;
    char a[16];

    if (j->cli.json) {
        print_json(json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:b, s:i, s:I, s:I, s:f, s:i, s:i, s:o, s:o}",
                             "tool", j->cli.tool, "input", t->src->path, "output", j->out, "tp", t->topo.tp,
                             "pp", t->topo.pp, "dp", t->topo.dp, "published", r->published, "complete", r->complete,
                             "parameters", t->n_params, "read_bytes", (json_int_t)r->read_bytes,
                             "write_bytes", (json_int_t)r->write_bytes, "wall_s", r->wall_s, "items", r->n_items,
                             "items_resumed", r->n_resumed, "replicas", replicas_json(&j->replicas, j->cli.verbose),
                             "repaired", repaired_json(j)));
        return;
    }
    if (r->complete)
        cli_say(&j->cli, "%s is there already: nothing to do", j->out);
    else if (!r->published)
        cli_say(&j->cli, "part %d of %d done; the last part publishes %s", j->cli.part, j->cli.n_parts, j->out);
    else
        cli_say(&j->cli, "%s: TP %d, PP %d, DP %d, %d parameters, %s moved in %.2f s (%.2f GB/s)", j->out, t->topo.tp,
                t->topo.pp, t->topo.dp, t->n_params, bytes_text(moved, a), r->wall_s,
                (double)moved / 1e9 / (r->wall_s > 0 ? r->wall_s : 1));
    if (r->published && j->repaired.n)
        cli_say(&j->cli, "%d parameter%s repaired: see %s/" REPAIR_LOG_NAME, j->repaired.n_params,
                j->repaired.n_params == 1 ? "" : "s", j->out);
}

static void print_warnings(struct job *j, const struct report *r)
{
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity == SEV_WARNING) {
            char *text = finding_text(report_get(r, i));

            cli_warn(&j->cli, "%s", text);
            free(text);
        }
}

static int first_error(const struct report *r, struct err *e)
{
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity == SEV_ERROR) {
            char *text = finding_text(report_get(r, i));

            e->kind = ERR_DATA;
            snprintf(e->msg, sizeof e->msg, "%s%s", text,
                     report_count(r, SEV_ERROR) > 1 ? " (and more: see ckpt-inspect verify)" : "");
            free(text);
            return -1;
        }
    return 0;
}

/* ---- the certificate ---- */

static int certify(void *ctx, const char *dir, struct err *e)
{
    struct job *j = ctx;
    struct certificate_opts o = { .out = j->out, .replicas = j->cli.replicas, .threads = j->cli.threads,
                                  .mem_bytes = j->cli.mem_bytes, .stopped = cli_stopped };

    return certificate_make(j->target, &j->repaired, dir, &o, &j->proof, e);
}

/* Beside a finished OUT: what was proved before it got its name, or what can still be proved. */
static int write_certificate(struct job *j, const struct convert_result *r, struct err *e)
{
    if (!j->certificate || (!r->published && !r->complete))
        return 0;
    if (r->complete && certify(j, j->out, e) < 0)
        return -1;
    return file_replace(j->certificate, j->proof.buf, j->proof.len, e);
}

static int check_certificate_path(const struct job *j, struct err *e)
{
    if (!j->certificate || j->cli.force || j->resume || access(j->certificate, F_OK) < 0)
        return 0;
    err_usage(e, "%s: exists already; --force replaces it", j->certificate);
    return -1;
}

/* ---- repairing ---- */

/* Values that were settled lie beside OUT until they are written; where that folder is still to be made, in /tmp. */
static int repair(struct job *j, struct source *s, struct err *e)
{
    char *dir = path_parent(j->out);
    int rc = repair_run(s, &j->replicas, j->cli.replicas, access(dir, W_OK) == 0 ? dir : "/tmp", cli_stopped,
                        &j->repaired, e);

    free(dir);
    if (rc == 0)
        repair_log(s, &j->repaired, j->cli.replicas, &j->log);
    return rc;
}

static int refuse_drift(const struct job *j, const struct source *s, struct err *e)
{
    int n = replicas_out_of_sync(&j->replicas);

    err_data(e, s->path, ERR_NO_BYTE, "%d parameter%s out of sync between tensor-parallel ranks; --replicas average, "
             "first or majority settles %s, --check tells more", n, n == 1 ? " is" : "s are", n == 1 ? "it" : "them");
    return -1;
}

/* ---- merging ---- */

static int write_out(struct job *j, struct source *s, struct sink *k, struct err *e)
{
    struct convert_opts o = {
        .out = j->out, .options_text = j->shape.buf, .force = j->cli.force, .resume = j->resume, .verify = j->verify,
        .part = j->cli.part, .n_parts = j->cli.n_parts, .threads = j->cli.threads, .mem_bytes = j->cli.mem_bytes,
        .progress = j->cli.progress, .stopped = cli_stopped, .move_latest = j->set_latest ? "latest" : NULL,
        .inspect = j->certificate ? certify : NULL, .warn = warn, .ctx = j,
    };
    struct convert_result res;
    int rc = convert_run(s, k, &o, &res, e);

    if (rc == 0)
        rc = write_certificate(j, &res, e);
    if (rc == 0)
        print_result(j, &res);
    return rc;
}

static int print_plan(struct job *j, struct sink *k, const struct report *notes, struct err *e)
{
    struct ds_preview p;
    struct strbuf sb = {0};
    bool stuck = !j->replicas.in_sync && j->cli.replicas == REPLICAS_FAIL;
    json_t *o;

    if (ds_preview_make(j->target, k, j->out, &p, e) < 0)
        return -1;
    if (j->cli.json) {
        o = ds_preview_json(j->target, &p, j->cli.tool, j->out, notes);
        json_object_set_new(o, "replicas", replicas_json(&j->replicas, j->cli.verbose));
        print_json(o);
    } else {
        ds_preview_text(j->target, &p, j->out, notes, &sb);
        fputs(sb.buf, stdout);
        strbuf_free(&sb);
    }
    return stuck || p.free_bytes < p.need_bytes ? EXIT_BAD : EXIT_OK;
}

static int make_target(struct job *j, struct source *s, struct report *notes, struct ds_target **out, struct err *e)
{
    struct ds_request q = { .topo.tp = j->repair ? s->topo.tp : j->target_tp ? j->target_tp : 1, .step = -1 };

    if (q.topo.tp > s->topo.tp) {
        err_usage(e, "--target-tp %d: %s has TP %d, and merging makes it no more; reshape does", q.topo.tp, s->path,
                  s->topo.tp);
        return -1;
    }
    *out = ds_target_new(s, &q, notes, e);
    return *out ? 0 : -1;
}

static int merge(struct job *j, struct source *s, struct err *e)
{
    struct report *notes = report_new();
    struct ds_target *t = NULL;
    struct sink_opts so = { .replicas = j->cli.replicas, .final_path = j->out, .part = j->cli.part,
                            .n_parts = j->cli.n_parts, .threads = j->cli.threads, .warn = warn, .ctx = j };
    bool drifted = !j->replicas.in_sync;
    int rc = make_target(j, s, notes, &t, e);

    j->target = t;
    if (rc == 0 && j->cli.dry_run) {
        struct sink *k = deepspeed_sink(&so, t);

        rc = print_plan(j, k, notes, e);
        k->ops->close(k);
    } else if (rc == 0) {
        rc = drifted && j->cli.replicas == REPLICAS_FAIL ? refuse_drift(j, s, e) : check_certificate_path(j, e);
        if (rc == 0 && drifted)
            rc = repair(j, s, e);
        if (rc == 0) {
            print_warnings(j, notes);
            t->repair_log = drifted ? &j->log : NULL;
            rc = write_out(j, s, deepspeed_sink(&so, t), e);
        }
    }
    ds_target_free(t);
    report_free(notes);
    return rc;
}

/* Compare; then stop there, or go on. */
static int check_and_merge(struct job *j, struct source *s, struct err *e)
{
    struct replicas_opts o = { .threads = j->cli.threads, .state = -1, .stopped = cli_stopped };

    if (replicas_check(s, &o, &j->replicas, e) < 0)
        return -1;
    print_replicas(j, s);
    if (!j->check)
        return merge(j, s, e);
    if (j->cli.json)
        print_json(json_pack("{s:s, s:s, s:o}", "tool", j->cli.tool, "input", s->path, "replicas",
                             replicas_json(&j->replicas, j->cli.verbose)));
    return j->replicas.in_sync ? EXIT_OK : EXIT_BAD;
}

int job_run(struct job *j)
{
    struct source_opts so = { .threads = j->cli.threads };
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(j->in, &so, r, &e);
    int rc = -1;

    if (s && first_error(r, &e) == 0) {
        print_warnings(j, r);
        rc = check_and_merge(j, s, &e);
    }
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    repair_free(&j->repaired);
    replicas_free(&j->replicas);
    source_close(s);
    report_free(r);
    return rc;
}
