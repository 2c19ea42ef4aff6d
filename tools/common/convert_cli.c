/* convert_cli.c - pass command-line options to a conversion, and print its result as text or JSON */
#include "tools/common/convert_cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/check/damage.h"
#include "libcommon/check/mismatch.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/write/rehearsal.h"
#include "libcommon/write/sink.h"

static void convert_cli_warn(void *ctx, const char *text)
{
    cli_warn(ctx, "%s", text);
}

struct convert_opts convert_cli_opts(struct cli *cli, const char *out, const char *shape)
{
    return (struct convert_opts){
        .out = out, .options_text = shape, .accept_mismatch = cli->accept_mismatch, .force = cli->force,
        .resume = cli->resume, .verify = cli->verify ? verify_sound : NULL, .part = cli->part, .n_parts = cli->n_parts,
        .launched = cli->launched, .all_tasks = cli->all_tasks, .threads = cli->threads, .mem_bytes = cli->mem_bytes,
        .progress = cli->progress, .stopped = cli_stopped, .warn = convert_cli_warn, .ctx = cli,
    };
}

struct sink_opts convert_cli_sink(struct cli *cli, const char *out)
{
    return (struct sink_opts){
        .replicas = cli->replicas, .final_path = out, .part = cli->part, .n_parts = cli->n_parts,
        .threads = cli->threads, .warn = convert_cli_warn, .ctx = cli,
    };
}

static const struct finding *first_error(const struct report *r)
{
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity == SEV_ERROR)
            return report_get(r, i);
    return NULL;
}

/*
 * Print the warnings in `r`. If `r` also has an error, return -1 and set *e to the first error, to which the name of
 * the option that accepts it is added.
 */
static int warn_or_fail(const struct cli *cli, const struct source *s, const struct report *r, struct err *e)
{
    const struct finding *first;

    cli_warn_findings(cli, r);
    if (report_first_error(r, e) == 0)
        return 0;
    first = first_error(r);
    if (strcmp(first->code, "replicas") == 0 && strcmp(cli->tool, "ckpt-edit") == 0)
        err_add(e, "; %s --replicas average, first or majority makes the copies equal in OUT",
                source_joins_tensor_ranks(s) ? "merge-tp" : "merge-tp --repair");
    else if (strcmp(first->code, "replicas") == 0)
        err_add(e, "; " REPLICAS_NEXT_STEP);
    else if (mismatch_is(first))
        err_add(e, "; --accept-mismatch prints a warning instead and continues%s",
                s->topo.tp > 1 && strcmp(cli->tool, "ckpt-edit") ? " (with --replicas first if copies differ)" : "");
    else if (strcmp(first->code, "unread") == 0)
        err_add(e, "; --skip-unreadable omits the tensor");
    else if (strcmp(first->code, "digest") == 0)
        err_add(e, "; if a file was changed on purpose, remove manifest.json");
    else if (source_opens_with_holes(s) && damage_is_loss(first))
        err_add(e, "; ckpt-inspect damage lists what can be recovered");
    return -1;
}

/*
 * Returns true if the file at `path` is not needed, because another file replaced it when the source was opened. A
 * finding reports this; its text begins with the name of the file.
 */
static bool stood_in(const struct report *r, const char *path)
{
    char *name = path_base(path);
    const size_t len = strlen(name);
    bool yes = false;

    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        yes |= strcmp(f->code, "stand_in") == 0 && strncmp(f->text, name, len) == 0 &&
               (f->text[len] == ' ' || f->text[len] == ':');
    }
    free(name);
    return yes;
}

/* Check that the files in the manifest exist, except files that are known to be lost and are not needed. */
static int check_needed_files(struct source *s, struct report *r, struct err *e)
{
    struct report *found = report_new();
    int rc = verify_listed(s, found, e);

    for (int i = 0; i < report_n(found); i++) {
        const struct finding *f = report_get(found, i);

        if (!f->file || !stood_in(r, f->file))
            report_add(r, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    report_free(found);
    return rc;
}

int convert_cli_check(const struct cli *cli, struct source *s, const struct convert_check *c, struct report *r,
                      struct err *e)
{
    const struct mismatch_opts o = { .accept = cli->accept_mismatch, .drift = c->drift, .kept = c->kept };

    if (!cli->accept_mismatch)
        manifest_give_crcs(s);
    if (!first_error(r) && check_needed_files(s, r, e) < 0)
        return -1;
    if (!first_error(r))
        mismatch_sample(s, &o, r);
    return warn_or_fail(cli, s, r, e);
}

int convert_cli_listed(const struct cli *cli, struct source *s, struct err *e)
{
    struct report *r = report_new();
    int rc;

    s->accept_mismatch = cli->accept_mismatch;
    if (!cli->accept_mismatch)
        manifest_give_crcs(s);
    rc = verify_listed(s, r, e) < 0 ? -1 : warn_or_fail(cli, s, r, e);
    report_free(r);
    return rc;
}

void convert_cli_print_text(const struct cli *given, const char *out, const char *what, const struct convert_result *r)
{
    uint64_t moved = r->read_bytes + r->write_bytes;
    struct cli cli = *given;
    const double rate = (double)moved / 1e9 / (r->wall_s > 0 ? r->wall_s : 1);
    char a[16], left[48] = "", speed[32] = "";

    if (rate >= 0.01)
        snprintf(speed, sizeof speed, " (%.2f GB/s)", rate);
    if (r->n_unread)
        snprintf(left, sizeof left, ", %d unreadable tensors omitted", r->n_unread);
    cli.part = r->part;                 /* 0 of 1 if the other tasks of the launcher do not take part */
    cli.n_parts = r->n_parts;
    if (r->complete)
        cli_info(&cli, "%s exists already and is complete; nothing was done", out);
    else if (r->points_only && r->published)    /* this takes less than a second, so no rate is printed */
        cli_info(&cli, "%s: %s, no tensor data copied, %.2f s%s",
                 out, what, r->wall_s, r->n_drifted ? CONVERT_DRIFTED : "");
    else if (!r->published && !r->points_only)
        cli_info(&cli, "part %d of %d is done; the part that ends last creates %s", r->part, r->n_parts, out);
    else if (r->published)
        cli_info(&cli, "%s: %s%s, %s moved in %.2f s%s%s", out, what, left, bytes_text(moved, a), r->wall_s, speed,
                 r->n_drifted ? CONVERT_DRIFTED : "");
}

void convert_cli_add(json_t *o, const struct convert_result *r)
{
    json_t *more = json_pack("{s:b, s:b, s:b, s:I, s:I, s:f, s:i, s:i, s:i, s:i}", "published", r->published,
                             "complete", r->published || r->complete, "stood_already", r->complete,
                             "read_bytes", (json_int_t)r->read_bytes, "write_bytes", (json_int_t)r->write_bytes,
                             "wall_s", r->wall_s, "items", r->n_items, "items_resumed", r->n_resumed,
                             "tensors_drifted", r->n_drifted, "unreadable_left_out", r->n_unread);

    json_object_update(o, more);
    json_decref(more);
}

/* ---- results as one line ---- */

static json_t *facts_of(const struct convert_cli_job *j)
{
    json_t *o = json_pack("{s:s, s:o, s:o}", "tool", j->cli->tool, "input", text_json(j->src->path), "output",
                          text_json(j->out));

    json_object_update(o, j->facts);
    return o;
}

int convert_cli_plan(const struct convert_cli_job *j, struct sink *k, struct err *e)
{
    struct rehearsal r;
    char a[16], b[16];
    int rc = rehearsal_run(j->src, k, j->out, &r, e);

    if (rc == 0 && j->cli->json) {
        json_t *o = facts_of(j), *more = json_pack("{s:b, s:i, s:I, s:I, s:b}", "dry_run", 1, "files", r.files,
                                                   "need_bytes", (json_int_t)r.need_bytes, "free_bytes",
                                                   (json_int_t)r.free_bytes, "enough", (int)r.enough);

        json_object_update(o, more);
        json_decref(more);
        cli_json(o);
    } else if (rc == 0) {
        printf("%s -> %s: %s, %d files, %s to write, %s free%s\n", j->src->path, j->out, j->what, r.files,
               bytes_text(r.need_bytes, a), bytes_text(r.free_bytes, b),
               r.lack_text);
    }
    k->ops->close(k);
    return rc < 0 ? -1 : r.enough ? EXIT_OK : EXIT_BAD;
}

void convert_cli_print_result(const struct convert_cli_job *j, const struct convert_result *r)
{
    json_t *o;

    if (!j->cli->json) {
        convert_cli_print_text(j->cli, j->out, j->what, r);
        return;
    }
    o = facts_of(j);
    convert_cli_add(o, r);
    cli_json(o);
}
