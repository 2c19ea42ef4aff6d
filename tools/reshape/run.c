#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "tools/reshape/reshape.h"

static void warn(void *ctx, const char *text)
{
    cli_warn(ctx, "%s", text);
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

static int write_out(struct job *j, struct source *s, const struct ds_target *t, struct sink *k, struct err *e)
{
    struct convert_opts o = {
        .out = j->out, .options_text = j->shape.buf, .force = j->cli.force, .resume = j->resume, .verify = j->verify,
        .part = j->cli.part, .n_parts = j->cli.n_parts, .threads = j->cli.threads, .mem_bytes = j->cli.mem_bytes,
        .progress = j->cli.progress, .stopped = cli_stopped, .move_latest = j->set_latest ? "latest" : NULL,
        .warn = warn, .ctx = &j->cli,
    };
    struct convert_result res;
    int rc = convert_run(s, k, &o, &res, e);

    if (rc == 0)
        print_result(j, t, &res);
    return rc;
}

static int reshape(struct job *j, struct source *s, struct err *e)
{
    struct report *notes = report_new();
    struct ds_target *t = ds_target_new(s, &j->request, notes, e);
    struct sink_opts so = { .replicas = j->cli.replicas, .final_path = j->out, .part = j->cli.part,
                            .n_parts = j->cli.n_parts, .threads = j->cli.threads, .warn = warn, .ctx = &j->cli };
    int rc = -1;

    if (t && j->cli.dry_run) {
        struct sink *k = deepspeed_sink(&so, t);

        rc = plan_print(j, t, k, notes, e);
        k->ops->close(k);
    } else if (t) {
        print_warnings(j, notes);
        rc = write_out(j, s, t, deepspeed_sink(&so, t), e);
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
