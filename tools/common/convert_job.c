/* convert_job.c - do the steps of a conversion, and print its result */
#include "tools/common/convert_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/check/certificate.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/layout/hf/hf_translate.h"
#include "libcommon/layout/output_file.h"
#include "libcommon/model/family.h"
#include "libcommon/write/inputs.h"
#include "libcommon/write/rehearsal.h"
#include "libcommon/write/sink.h"

/* A job, the target that was made from the source in the layout of OUT, and the notes from making it. */
struct convert_step {
    struct convert_job *j;
    const struct layout_target *t;
    const struct report *notes;
    struct strbuf proof;                /* text of the certificate */
};

/* ---- the certificate ---- */

static void warn_of_step(void *ctx, const char *text)
{
    cli_warn(((const struct convert_step *)ctx)->j->cli, "%s", text);
}

static int certify(void *ctx, const char *dir, struct err *e)
{
    struct convert_step *x = ctx;
    const struct cli *cli = x->j->cli;
    struct certificate_opts o = { .out = x->j->out, .replicas = cli->replicas, .threads = cli->threads,
                                  .mem_bytes = cli->mem_bytes, .stopped = cli_stopped };

    return certificate_make(ds_target_of(x->t), x->j->repaired, dir, &o, &x->proof, e);
}

/*
 * Write the certificate after OUT was published. Its text was made before that. If OUT was already complete, the text
 * is made now.
 */
static int write_certificate(struct convert_step *x, struct err *e)
{
    const struct convert_result *r = &x->j->result;

    if (!x->j->cli->certificate || (!r->published && !r->complete))
        return 0;
    if (r->complete && certify(x, x->j->out, e) < 0)
        return -1;
    return file_replace(x->j->cli->certificate, x->proof.buf, x->proof.len, e);
}

/* List what the options of the request name, and the operand IN. The caller releases the list with inputs_free(). */
static struct inputs list_inputs(const struct convert_job *j)
{
    const struct write_request *q = &j->request;
    struct inputs l = {0};

    inputs_add(&l, "IN", j->in);
    inputs_add(&l, "--config", q->config);
    inputs_add(&l, "--config", q->hf ? q->hf->config_path : NULL);
    inputs_add(&l, "--tokenizer", q->hf ? q->hf->tokenizer : NULL);
    inputs_add(&l, "--rules", q->rules && family_is_file(q->rules) ? q->rules : NULL);
    inputs_add(&l, "--like", q->shards && q->shards->like ? source_path(q->shards->like) : NULL);
    return l;
}

/* Check the name of the certificate, if one is to be written. */
static int check_certificate_path(const struct convert_job *j, const struct source *s, const struct inputs *inputs,
                                  struct err *e)
{
    const struct cli *cli = j->cli;
    const struct output_file o = { .path = cli->certificate, .replace = cli->force || cli->resume || cli->dry_run,
                                   .read = source_files(s), .in = j->in, .opened = source_path(s),
                                   .inputs = inputs, .out = j->out };

    return cli->certificate ? output_file_check(&o, e) : 0;
}

/* Check that nothing which the conversion reads is replaced by OUT or the certificate. */
static int check_outputs(const struct convert_job *j, const struct source *s, struct err *e)
{
    const struct source *like = j->request.shards ? j->request.shards->like : NULL;
    struct inputs inputs = list_inputs(j);
    int rc = 0;

    if (j->out && (inputs_check_source(NULL, s, j->out, e) < 0 || inputs_check_out(&inputs, j->out, e) < 0 ||
                   (like && inputs_check_source("--like", like, j->out, e) < 0) ||
                   check_certificate_path(j, s, &inputs, e) < 0))
        rc = -1;
    inputs_free(&inputs);
    return rc;
}

/* ---- what is printed ---- */

static json_t *begin_facts(const struct convert_step *x)
{
    return json_pack("{s:s, s:o, s:o}", "tool", x->j->cli->tool, "input", text_json(source_path(x->t->src)), "output",
                     text_json(x->j->out));
}

static void print_facts(const struct convert_step *x, json_t *o)
{
    if (x->j->more_facts)
        json_object_update_new(o, x->j->more_facts(x->j->ctx));
    cli_json(o);
}

static void print_plan_json(const struct convert_step *x, const struct write_plan *p)
{
    const struct rehearsal *r = p->r;
    json_t *o = begin_facts(x);

    json_object_set_new(o, "dry_run", json_true());
    x->t->ops->facts(x->t, o);
    if (x->t->ops->plan_facts)
        x->t->ops->plan_facts(x->t, p, o);
    json_object_update_new(o, json_pack("{s:i, s:I, s:I, s:o}", "files", r->files, "need_bytes",
                                        (json_int_t)r->need_bytes, "free_bytes", (json_int_t)r->free_bytes, "notes",
                                        text_notes(x->notes)));
    json_object_set_new(o, "enough", json_boolean(r->enough));
    print_facts(x, o);
}

static void add_plan_notes(const struct report *notes, int label_width, struct strbuf *sb)
{
    for (int i = 0; i < report_n(notes); i++) {
        char *text = finding_text(report_get(notes, i));

        strbuf_addf(sb, "%-*s %s\n", label_width, report_get(notes, i)->severity == SEV_WARNING ? "warning" : "note",
                    text);
        free(text);
    }
}

static void print_plan_text(const struct convert_step *x, const struct write_plan *p)
{
    enum { LABEL_WIDTH = 8 };
    const struct layout_target_ops *ops = x->t->ops;
    const struct rehearsal *r = p->r;
    struct strbuf sb = {0};
    char a[16], b[16], *what;

    if (ops->plan_text) {
        ops->plan_text(x->t, p, &sb);
    } else {
        what = ops->text(x->t);
        strbuf_addf(&sb, "%s -> %s: %s, %d files, %s to write, %s free%s\n", source_path(x->t->src), p->out, what,
                    r->files, bytes_text(r->need_bytes, a), bytes_text(r->free_bytes, b), r->lack_text);
        free(what);
    }
    add_plan_notes(x->notes, ops->label_width ? ops->label_width : LABEL_WIDTH, &sb);
    if (ops->list && x->j->cli->verbose)
        ops->list(x->t, &sb);
    cli_printf(stdout, "%s", sb.buf);
    strbuf_free(&sb);
}

static void print_result(const struct convert_step *x)
{
    const struct convert_job *j = x->j;
    json_t *o;
    char *what;

    if (!j->cli->json) {
        what = x->t->ops->text(x->t);
        convert_cli_print_text(j->cli, j->out, what, &j->result);
        free(what);
        return;
    }
    o = begin_facts(x);
    x->t->ops->facts(x->t, o);
    convert_cli_add(o, &j->result);
    print_facts(x, o);
}

/* ---- the steps ---- */

static int preview(struct convert_step *x, struct source *s, struct sink *k, struct err *e)
{
    struct rehearsal r;
    const struct write_plan p = { x->j->out, &r };
    const int rc = rehearsal_run(s, k, x->j->out, &r, e);

    k->ops->close(k);
    if (rc < 0)
        return -1;
    if (x->j->cli->json)
        print_plan_json(x, &p);
    else
        print_plan_text(x, &p);
    return r.enough ? EXIT_OK : EXIT_BAD;
}

/* Print how many rows the result lacks, if it lacks rows. Other notes are printed by --dry-run alone. */
static void print_omitted_rows(const struct convert_step *x)
{
    for (int i = 0; i < report_n(x->notes); i++)
        if (strcmp(report_get(x->notes, i)->code, HF_OMITTED_ROWS) == 0)
            cli_info(x->j->cli, "%s", report_get(x->notes, i)->text);
}

static int write_output(struct convert_step *x, struct source *s, struct sink *k, struct err *e)
{
    struct convert_job *j = x->j;
    const struct layout_target_ops *ops = x->t->ops;
    struct convert_opts o = convert_cli_opts(j->cli, j->out, j->shape);

    cli_warn_findings(j->cli, x->notes);
    print_omitted_rows(x);
    if (ops->verifies)
        o.verify = NULL;
    o.move_latest = j->set_pointer || j->cli->set_latest ? ops->pointer : NULL;
    o.inspect = j->cli->certificate ? certify : NULL;
    o.warn = warn_of_step;
    o.ctx = x;
    if (convert_run(s, k, &o, &j->result, e) < 0)
        return -1;
    /* A sink that verifies its own result has done nothing if OUT was complete already. */
    if (j->result.complete && ops->verifies && j->cli->verify &&
        verify_sound(j->out, o.threads, o.mem_bytes, o.stopped, e) < 0)
        return -1;
    if (write_certificate(x, e) < 0)
        return -1;
    print_result(x);
    return EXIT_OK;
}

/* Fill in the members of the request that follow from the options that all converters have. */
static void complete_request(struct convert_job *j)
{
    const struct cli *cli = j->cli;
    struct write_request *q = &j->request;

    q->out = j->out;
    q->certificate = cli->certificate;
    q->set_latest = cli->set_latest;
    q->accept_mismatch = cli->accept_mismatch;
    q->dry_run = cli->dry_run;
    q->force = cli->force;
    q->resume = cli->resume;
    q->threads = cli->threads;
    q->mem_bytes = cli->mem_bytes;
    q->progress = cli->progress;
    q->stopped = cli_stopped;
}

static int describe_and_write(struct convert_job *j, struct source *s, struct report *notes, struct err *e)
{
    struct layout_target t = {0};
    struct convert_step x = { .j = j, .t = &t, .notes = notes };
    int rc = -1;

    complete_request(j);
    if (layout_describe_as(j->to ? j->to : layout_of_result(s), s, &j->request, notes, &t, e) == 0) {
        struct sink_opts so = convert_cli_sink(j->cli, j->out);

        so.repair_log = j->repair_log;
        rc = j->cli->dry_run ? preview(&x, s, t.ops->open_sink(&t, &so), e)
                             : write_output(&x, s, t.ops->open_sink(&t, &so), e);
    }
    layout_target_free(&t);
    strbuf_free(&x.proof);
    return rc;
}

static int check_input(const struct convert_job *j, struct source *s, struct report *found, struct err *e)
{
    if (j->listed_only)
        return convert_cli_listed(j->cli, s, e);
    return convert_cli_check(j->cli, s, &(struct convert_check){
        .drift = j->compares_copies || j->cli->replicas != REPLICAS_FAIL }, found, e);
}

/*
 * Open IN. With no_optimizer, the optimizer's files are opened only if they alone hold the weights, because they are by
 * far the larger part of IN.
 */
static struct source *open_input(struct convert_job *j, struct report **found, struct report *notes, struct err *e)
{
    struct source *s = j->open_input ? j->open_input(j->ctx, found, notes, e) : source_open(j->in, &j->open, *found, e);

    if (!s || j->open_input || !j->open.no_optimizer || source_has_all_weights(s))
        return s;
    source_close(s);
    report_free(*found);
    *found = report_new();
    j->open.no_optimizer = false;
    return source_open(j->in, &j->open, *found, e);
}

int convert_job_run(struct convert_job *j)
{
    struct report *found = report_new(), *notes = report_new();
    struct source *s = NULL;
    struct err e = {0};
    int rc = -1;

    j->result = (struct convert_result){0};
    s = open_input(j, &found, notes, &e);
    if (s && check_outputs(j, s, &e) == 0 && check_input(j, s, found, &e) == 0) {
        rc = j->prepare ? j->prepare(j->ctx, s, &e) : 0;
        rc = rc == CONVERT_JOB_DONE ? j->status : rc == 0 ? describe_and_write(j, s, notes, &e) : -1;
    }
    if (e.kind != ERR_NONE)
        rc = cli_fail(j->cli, &e);
    source_close(s);
    report_free(found);
    report_free(notes);
    return rc;
}
