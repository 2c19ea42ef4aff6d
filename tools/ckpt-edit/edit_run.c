/*
 * edit_run.c - open IN, let the command describe its changes, and write OUT; with --in-place, exchange IN and the
 * result
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/text.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/sink.h"
#include "libcommon/write/staging.h"
#include "tools/ckpt-edit/ckptedit.h"
#include "tools/ckpt-edit/swap.h"
#include "tools/common/convert_cli.h"

/* ---- output ---- */

static json_t *sum_json(const struct edit_sum *sum)
{
    return json_pack("{s:i, s:i, s:i, s:I, s:I, s:i, s:i, s:I}", "changed", sum->n_changed, "removed", sum->n_dropped,
                     "shared", sum->n_reflinks + sum->n_hard_links, "write_bytes", (json_int_t)sum->write_bytes,
                     "shared_bytes", (json_int_t)sum->shared_bytes, "hard_linked", sum->n_hard_links,
                     "copied", sum->n_copied, "copied_bytes", (json_int_t)sum->copied_bytes);
}

/*
 * Append how many unchanged files were copied, cloned or linked, such as ", 12 copied". Copied files are compared with
 * their CRCs; the bytes of the others are not read.
 */
static void add_kept(struct strbuf *sb, const struct edit_sum *sum, const char *with)
{
    if (sum->n_reflinks)
        strbuf_addf(sb, ", %d shared with %s by reflinks and not read", sum->n_reflinks, with);
    if (sum->n_hard_links)
        strbuf_addf(sb, ", %d hard links to %s and not read", sum->n_hard_links, with);
    if (sum->n_copied)
        strbuf_addf(sb, ", %d copied", sum->n_copied);
}

/* Print each file that is changed, added or removed. */
static void print_edit_plan(const struct ckptedit *j, const struct edit *x, const struct edit_sum *sum)
{
    const char *name, *what;
    json_t *files = json_array();
    uint64_t bytes;

    for (int i = 0; edit_file(x, i, &name, &bytes, &what); i++) {
        if (what[0] == 'k' && !j->cli.verbose)
            continue;
        if (j->cli.json)
            json_array_append_new(files, json_pack("{s:o, s:s, s:I}", "name", text_json(name), "what", what, "bytes",
                                                   (json_int_t)bytes));
        else
            printf("%-8s %14" PRIu64 "  %s\n", what, bytes, text_shown(name));
    }
    if (j->cli.json) {
        json_t *o = sum_json(sum);

        json_object_set(o, "files", files);
        cli_json(o);
    } else {
        printf("%" PRIu64 " bytes in %d files would be written", sum->write_bytes, sum->n_changed);
        if (sum->n_copied)
            printf(", %" PRIu64 " bytes in %d files copied", sum->copied_bytes, sum->n_copied);
        if (sum->n_reflinks + sum->n_hard_links)
            printf(", %" PRIu64 " bytes in %d files shared by %s", sum->shared_bytes,
                   sum->n_reflinks + sum->n_hard_links, sum->n_hard_links ? "hard links" : "reflinks");
        printf("\n");
    }
    json_decref(files);
}

static void print_edit_result(const struct ckptedit *j, const struct edit_sum *sum, const struct convert_result *res)
{
    struct strbuf what = {0};

    if (j->cli.json) {
        json_t *o = sum_json(sum);

        convert_cli_add(o, res);
        json_object_set_new(o, "output", text_json(j->in_place ? j->in : j->out));
        cli_json(o);
        return;
    }
    strbuf_addf(&what, "%d file%s changed", sum->n_changed, sum->n_changed == 1 ? "" : "s");
    add_kept(&what, sum, j->in_place ? j->out : "IN");
    convert_cli_print_text(&j->cli, j->in_place ? j->in : j->out, what.buf, res);
    strbuf_free(&what);
}

/*
 * Return the job that is used for messages about a result whose files are all written. The caller releases its `facts`.
 */
static struct convert_cli_job make_rewrite_job(struct ckptedit *j, struct edit *x)
{
    return (struct convert_cli_job){ .cli = &j->cli, .src = edit_source(x), .out = j->in_place ? j->in : j->out,
                                     .what = edit_rewrite_summary(x), .facts = json_pack("{s:b}", "anew", 1) };
}

static int preview_rewrite(struct ckptedit *j, struct edit *x, struct err *e)
{
    const struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct convert_cli_job job = make_rewrite_job(j, x);
    int rc;

    job.out = j->out;
    rc = convert_cli_plan(&job, edit_sink(&so, x), e);
    json_decref(job.facts);
    return rc;
}

static void print_rewrite_result(struct ckptedit *j, struct edit *x, const struct convert_result *res)
{
    struct convert_cli_job job = make_rewrite_job(j, x);

    convert_cli_print_result(&job, res);
    json_decref(job.facts);
}

/* ---- work ---- */

int ckptedit_spool(const struct ckptedit *j, uint64_t size, struct err *e)
{
    char *dir = path_parent(j->out);
    int fd = file_spool(dir, size, e);

    free(dir);
    return fd;
}

static int write_edit_output(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct convert_opts o = convert_cli_opts(&j->cli, j->out, j->shape.buf);
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct convert_result res;
    struct edit_sum sum;

    o.part = 0;
    o.n_parts = 1;
    o.inspect = j->only_types || j->derived ? NULL : check_edit_result;
    o.warn = warn_of_edit;
    o.ctx = j;
    if (j->in_place && swap_record_edit(s->path, j->shape.buf, e) < 0)
        return -1;
    if (convert_run(edit_source(x), edit_sink(&so, x), &o, &res, e) < 0) {
        if (j->in_place)
            swap_remove_record(s->path);
        return -1;
    }
    if (j->in_place && swap_exchange(j->in, e) < 0)
        return -1;
    edit_count(x, &sum);                /* the counts now describe what has been done, not what was planned */
    if (edit_rewrite_summary(x))
        print_rewrite_result(j, x, &res);
    else
        print_edit_result(j, &sum, &res);
    return 0;
}

/* Fail if the layout of IN refers to bytes in files of another checkpoint. */
static int check_verb(const struct ckptedit *j, const struct source *s, struct err *e)
{
    if (!source_points_elsewhere(s))
        return 0;
    err_usage(e, "%s: '%s' cannot edit a %s checkpoint, because its data are in the shards to which it refers; edit "
                 "these shards, or the copy that ds2universal --format pt makes",
              s->path, j->words.word[0], source_layout_name(s));
    return -1;
}

static int change_source(struct ckptedit *j, struct source *s, ckptedit_change *change, struct err *e)
{
    struct edit *x = check_verb(j, s, e) < 0 ? NULL : edit_new(s, e);
    struct edit_sum sum;
    int rc = x && change(j, s, x, e) == 0 ? edit_resolve_rewrite(x, e) : -1;

    if (rc == 0) {
        edit_place(x, &(struct edit_place){ .out = j->out, .hard_links = j->hard_links, .in_place = j->in_place,
                                            .accept_mismatch = j->cli.accept_mismatch });
        edit_count(x, &sum);
        if (j->cli.dry_run && edit_rewrite_summary(x))
            rc = preview_rewrite(j, x, e);
        else if (j->cli.dry_run)
            print_edit_plan(j, x, &sum);
        else
            rc = write_edit_output(j, s, x, e);
    }
    edit_free(x);
    return rc;
}

/* If OUT already exists and may not be replaced, sets *e and returns true. This is checked before any work is done. */
static bool edit_output_exists(const struct ckptedit *j, struct err *e)
{
    return !j->in_place && !j->cli.resume && !j->cli.dry_run && staging_check_out(j->out, j->cli.force, e) < 0;
}

/*
 * Check that IN can be exchanged with the result: IN must be the checkpoint's own folder, not a run's folder with a
 * file `latest`, and there must be no earlier edit that was neither committed nor rolled back. *made is set to true if
 * the same edit is already complete, so that finish_edit() can complete the exchange.
 */
static int check_in_place_edit(struct ckptedit *j, struct source *s, bool *made, struct err *e)
{
    enum swap_state state;

    if (!j->in_place)
        return 0;
    if (!path_same(j->in, s->path)) {
        err_usage(e, "--in-place needs the folder of the checkpoint itself: %s", s->path);
        return -1;
    }
    state = swap_inspect(j->in);
    *made = state == SWAP_MADE && j->cli.resume && !j->cli.dry_run && swap_made_by(j->in, j->shape.buf);
    if (state == SWAP_NONE || *made)
        return 0;
    if (state == SWAP_MADE)
        err_usage(e, "%s holds a complete edit that was interrupted before it replaced the checkpoint: %s with "
                     "--resume makes it replace the checkpoint, rollback removes it", j->out, j->cli.resume ?
                  "the command that made it" : "the same command");
    else if (state == SWAP_FOREIGN)
        err_usage(e, "%s exists and was not made by ckpt-edit; move it to another folder", j->out);
    else
        err_usage(e, "%s remains from an earlier edit: commit removes it, rollback restores it", j->out);
    return -1;
}

/* Complete an edit whose process was killed after the result was complete, but before the exchange. */
static int finish_edit(struct ckptedit *j, struct err *e)
{
    const struct staging_opts so = { .resume = true, .n_parts = 1 };
    struct staging st;
    int rc = staging_open(&st, j->out, j->shape.buf, &so, e);   /* removes the temporary files of the edit */

    staging_close(&st);
    if (rc < 0 || swap_exchange(j->in, e) < 0)
        return -1;
    cli_info(&j->cli, "%s: the interrupted edit has now replaced the checkpoint", j->in);
    return 0;
}

static int change_held(struct ckptedit *j, struct source *s, ckptedit_change *change, struct err *e)
{
    const bool hold = j->in_place && !j->cli.dry_run;
    int held = hold ? swap_hold(j->in, e) : -2, rc = -1;
    bool made = false;

    if (held != -1 && inputs_check_source(NULL, s, j->out, e) == 0 && inputs_check_out(&j->inputs, j->out, e) == 0 &&
        check_in_place_edit(j, s, &made, e) == 0 && !edit_output_exists(j, e))
        rc = made ? finish_edit(j, e) : change_source(j, s, change, e);
    if (held >= 0)
        close(held);
    return rc;
}

/*
 * Fail if the source has parameters that cannot be read. This is not checked for a model folder whose tensors
 * are each in one file: files with such parameters are either kept as they are, or edit_hf.c refuses to write them.
 */
static int check_unread(const struct source *s, struct err *e)
{
    if ((source_is_model_alone(s) && !source_has_cut_tensors(s)) || s->n_unread == 0)
        return 0;
    err_data(e, s->path, ERR_NO_BYTE, "parameter '%s' cannot be read and would be lost by the edit: %s",
             s->unread[0].name,
             s->unread[0].why);
    return -1;
}

/*
 * Check the findings about a damaged IN. Missing files are only warnings. It is not checked whether all values are of
 * the same save.
 */
static int check_holes(const struct ckptedit *j, const struct report *r, struct err *e)
{
    cli_warn_findings(&j->cli, r);
    return report_first_error(r, e);
}

int run_change(struct ckptedit *j, ckptedit_change *change)
{
    struct source_opts so = { .threads = j->cli.threads, .accept_mismatch = j->cli.accept_mismatch,
                              .model = j->cli.model, .hf = true, .skip_unreadable = true, .holes = j->holes };
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(j->in, &so, r, &e);
    const struct convert_check check = { .kept = true };
    int rc = -1;

    if (s && check_unread(s, &e) == 0 &&
        (so.holes ? check_holes(j, r, &e) : convert_cli_check(&j->cli, s, &check, r, &e)) == 0)
        rc = change_held(j, s, change, &e);
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    source_close(s);
    report_free(r);
    return rc;
}
