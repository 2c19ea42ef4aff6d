/*
 * deepspeed_write.c - preview, conversion and certificate of a sharded checkpoint, and the printed results
 */
#include "tools/common/deepspeed_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/check/certificate.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/write/sink.h"
#include "tools/common/convert_cli.h"
#include "tools/common/deepspeed_preview.h"

/* ---- the certificate ---- */

/* A conversion in progress: the ctx of the callbacks. */
struct deepspeed_writing {
    const struct ds_write *w;
    struct strbuf proof;                /* text of the certificate */
};

static void deepspeed_writing_warn(void *ctx, const char *text)
{
    cli_warn(((const struct deepspeed_writing *)ctx)->w->cli, "%s", text);
}

static int certify(void *ctx, const char *dir, struct err *e)
{
    struct deepspeed_writing *x = ctx;
    const struct cli *cli = x->w->cli;
    struct certificate_opts o = { .out = x->w->out, .replicas = cli->replicas, .threads = cli->threads,
                                  .mem_bytes = cli->mem_bytes, .stopped = cli_stopped };

    return certificate_make(x->w->target, x->w->repaired, dir, &o, &x->proof, e);
}

/*
 * Write the certificate of a finished OUT. It was made before OUT was published; if OUT existed already, it is made
 * now.
 */
static int write_certificate(struct deepspeed_writing *x, const struct convert_result *r, struct err *e)
{
    if (!x->w->cli->certificate || (!r->published && !r->complete))
        return 0;
    if (r->complete && certify(x, x->w->out, e) < 0)
        return -1;
    return file_replace(x->w->cli->certificate, x->proof.buf, x->proof.len, e);
}

int ds_write_check(const struct ds_write *w, struct err *e)
{
    struct stat st;

    if (!w->cli->certificate || lstat(w->cli->certificate, &st) < 0)
        return 0;
    if (!S_ISREG(st.st_mode))
        err_usage(e, "%s: is not a file: give the certificate another name", w->cli->certificate);
    else if (w->cli->force || w->cli->resume)
        return 0;
    else
        err_usage(e, "%s: exists already; --force replaces it", w->cli->certificate);
    return -1;
}

/* ---- converting ---- */

static struct sink *open_deepspeed_sink(const struct ds_write *w)
{
    struct sink_opts so = convert_cli_sink(w->cli, w->out);

    so.repair_log = w->repair_log;
    return deepspeed_sink(&so, w->target);
}

int ds_write_run(const struct ds_write *w, struct convert_result *r, struct err *e)
{
    struct deepspeed_writing x = { .w = w };
    struct convert_opts o = convert_cli_opts(w->cli, w->out, w->shape);
    int rc;

    o.move_latest = w->cli->set_latest ? "latest" : NULL;
    o.inspect = w->cli->certificate ? certify : NULL;
    o.warn = deepspeed_writing_warn;
    o.ctx = &x;
    rc = convert_run(w->src, open_deepspeed_sink(w), &o, r, e);
    if (rc == 0)
        rc = write_certificate(&x, r, e);
    strbuf_free(&x.proof);
    return rc;
}

int ds_write_preview(const struct ds_write *w, const struct report *notes, json_t *more, struct err *e)
{
    struct sink *k = open_deepspeed_sink(w);
    struct ds_preview p;
    struct strbuf sb = {0};
    int rc = ds_preview_make(w->target, w->src, k, w->out, &p, e);

    if (rc == 0 && w->cli->json) {
        json_t *o = ds_preview_json(w->target, &p, w->cli->tool, w->out, notes);

        json_object_update(o, more);
        cli_json(o);
    } else if (rc == 0) {
        ds_preview_text(w->target, &p, w->out, notes, &sb);
        fputs(sb.buf, stdout);
    }
    json_decref(more);
    strbuf_free(&sb);
    k->ops->close(k);
    return rc < 0 ? -1 : p.r.free_bytes < p.r.need_bytes ? EXIT_BAD : EXIT_OK;
}

void ds_write_print_result(const struct ds_write *w, const struct convert_result *r, json_t *more)
{
    const struct ds_target *t = w->target;
    json_t *o;
    char *what;

    if (w->cli->json) {
        o = json_pack("{s:s, s:o, s:o, s:i, s:i, s:i, s:i}", "tool", w->cli->tool, "input", text_json(t->src->path),
                      "output", text_json(w->out), "tp", t->topo.tp, "pp", t->topo.pp, "dp", t->topo.dp,
                      "parameters", t->n_params);
        convert_cli_add(o, r);
        json_object_update(o, more);
        cli_json(o);
    } else {
        what = str_fmt("TP %d, PP %d, DP %d, %d parameters", t->topo.tp, t->topo.pp, t->topo.dp, t->n_params);
        convert_cli_print_text(w->cli, w->out, what, r);
        free(what);
    }
    json_decref(more);
}
