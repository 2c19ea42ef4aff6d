#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/layout/deepspeed_preview.h"
#include "tools/reshape/reshape.h"

static void warn(void *ctx, const char *text)
{
    const struct job *j = ctx;

    cli_warn(&j->cli, "%s", text);
}

static void print_json(json_t *o)
{
    char *s = o ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

    puts(s ? s : "{}");
    free(s);
    json_decref(o);
}

static void print_result(struct job *j, const struct ds_target *t, const struct convert_result *r)
{
    uint64_t moved = r->read_bytes + r->write_bytes;
    char a[16];

    if (j->cli.json) {
        print_json(json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:b, s:i, s:I, s:I, s:f, s:i, s:i, s:i}",
                             "tool", j->cli.tool, "input", t->src->path, "output", j->out, "tp", t->topo.tp,
                             "pp", t->topo.pp, "dp", t->topo.dp, "published", r->published, "complete", r->complete,
                             "parameters", t->n_params, "read_bytes", (json_int_t)r->read_bytes,
                             "write_bytes", (json_int_t)r->write_bytes, "wall_s", r->wall_s, "items", r->n_items,
                             "items_resumed", r->n_resumed, "tensors_drifted", r->n_drifted));
        return;
    }
    if (r->complete)
        cli_say(&j->cli, "%s is there already: nothing to do", j->out);
    else if (!r->published)
        cli_say(&j->cli, "part %d of %d done; the last part publishes %s", j->cli.part, j->cli.n_parts, j->out);
    else
        cli_say(&j->cli, "%s: TP %d, PP %d, DP %d, %d parameters, %s moved in %.2f s (%.2f GB/s)%s", j->out, t->topo.tp,
                t->topo.pp, t->topo.dp, t->n_params, bytes_text(moved, a), r->wall_s,
                (double)moved / 1e9 / (r->wall_s > 0 ? r->wall_s : 1),
                r->n_drifted ? "; replicas disagreed, see the warnings" : "");
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

    return certificate_make(j->target, NULL, dir, &o, &j->proof, e);
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

/* ---- doing it ---- */

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
        print_result(j, j->target, &res);
    return rc;
}

static int print_plan(struct job *j, struct sink *k, const struct report *notes, struct err *e)
{
    struct ds_preview p;
    struct strbuf sb = {0};
    int rc = ds_preview_make(j->target, k, j->out, &p, e);

    if (rc == 0 && j->cli.json) {
        print_json(ds_preview_json(j->target, &p, j->cli.tool, j->out, notes));
    } else if (rc == 0) {
        ds_preview_text(j->target, &p, j->out, notes, &sb);
        fputs(sb.buf, stdout);
    }
    strbuf_free(&sb);
    return rc < 0 ? -1 : p.free_bytes < p.need_bytes ? EXIT_BAD : EXIT_OK;
}

static int reshape(struct job *j, struct source *s, struct err *e)
{
    struct report *notes = report_new();
    struct ds_target *t = ds_target_new(s, &j->request, notes, e);
    struct sink_opts so = { .replicas = j->cli.replicas, .final_path = j->out, .part = j->cli.part,
                            .n_parts = j->cli.n_parts, .threads = j->cli.threads, .warn = warn, .ctx = j };
    int rc = -1;

    j->target = t;
    if (t && j->cli.dry_run) {
        struct sink *k = deepspeed_sink(&so, t);

        rc = print_plan(j, k, notes, e);
        k->ops->close(k);
    } else if (t && check_certificate_path(j, e) == 0) {
        print_warnings(j, notes);
        rc = write_out(j, s, deepspeed_sink(&so, t), e);
    }
    ds_target_free(t);
    report_free(notes);
    return rc;
}

int job_run(struct job *j)
{
    struct source_opts so = { .no_optimizer = j->weights_only }, summary = { .no_tensors = true };
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(j->in, &so, r, &e), *like = NULL;
    int rc = -1;

    if (s && j->like)
        like = source_open(j->like, &summary, NULL, &e);
    j->request.like = like;
    if (s && e.kind == ERR_NONE) {
        print_warnings(j, r);
        if (first_error(r, &e) == 0)
            rc = reshape(j, s, &e);
    }
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    source_close(like);
    source_close(s);
    report_free(r);
    return rc;
}
