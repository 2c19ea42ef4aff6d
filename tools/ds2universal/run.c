#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "tools/ds2universal/ds2universal.h"

static const char *const form_names[] = { "pt", "hdf5", "virtual" };

static void warn(void *ctx, const char *text)
{
    cli_warn(ctx, "%s", text);
}

static struct sink *open_sink(struct job *j)
{
    struct sink_opts o = {
        .vocab = j->vocab, .replicas = j->cli.replicas, .split = j->split, .final_path = j->out,
        .part = j->cli.part, .n_parts = j->cli.n_parts, .threads = j->cli.threads,
        .warn = warn, .ctx = &j->cli,
    };

    switch (j->form) {
    case FORM_HDF5: return universal_hdf5_sink(&o);
    case FORM_VIRTUAL: return universal_virtual_sink(&o);
    case FORM_PT: break;
    }
    return universal_pt_sink(&o);
}

static void print_json(json_t *o)
{
    char *s = o ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

    puts(s ? s : "{}");
    free(s);
    json_decref(o);
}

static int print_plan(struct job *j, const struct source *s, struct err *e)
{
    struct sink *k = open_sink(j);
    uint64_t need, room = 0;
    char a[16], b[16];
    int files, rc;

    convert_estimate(s, k, &need, &files);
    rc = convert_free_space(j->out, &room, e);
    if (rc == 0)
        rc = convert_check_paths(s, j->out, e);
    if (rc == 0 && j->cli.json)
        print_json(json_pack("{s:s, s:s, s:s, s:s, s:b, s:i, s:i, s:I, s:I}", "tool", j->cli.tool, "input", s->path,
                             "output", j->out, "format", form_names[j->form], "dry_run", 1, "parameters", s->n_params,
                             "files", files, "need_bytes", (json_int_t)need, "free_bytes", (json_int_t)room));
    else if (rc == 0)
        printf("%s -> %s: %d parameters, %d files, %s to write, %s free%s\n", s->path, j->out, s->n_params, files,
               bytes_text(need, a), bytes_text(room, b), room < need ? ": not enough" : "");
    k->ops->close(k);
    return rc < 0 ? -1 : room < need ? 1 : 0;
}

static void print_result(struct job *j, const struct source *s, const struct convert_result *r)
{
    char a[16];
    uint64_t moved = r->read_bytes + r->write_bytes;

    if (j->cli.json) {
        print_json(json_pack("{s:s, s:s, s:s, s:s, s:b, s:b, s:i, s:I, s:I, s:f, s:i, s:i, s:i}",
                             "tool", j->cli.tool, "input", s->path, "output", j->out, "format", form_names[j->form],
                             "published", r->published, "complete", r->complete, "parameters", s->n_params,
                             "read_bytes", (json_int_t)r->read_bytes, "write_bytes", (json_int_t)r->write_bytes,
                             "wall_s", r->wall_s, "items", r->n_items, "items_resumed", r->n_resumed,
                             "tensors_drifted", r->n_drifted));
        return;
    }
    if (r->complete)
        cli_say(&j->cli, "%s is there already: nothing to do", j->out);
    else if (!r->published)
        cli_say(&j->cli, "part %d of %d done; the last part publishes %s", j->cli.part, j->cli.n_parts, j->out);
    else if (j->form == FORM_VIRTUAL)
        cli_say(&j->cli, "%s: %d parameters, nothing copied, %.2f s%s", j->out, s->n_params, r->wall_s,
                r->n_drifted ? "; replicas disagreed, see the warnings" : "");
    else
        cli_say(&j->cli, "%s: %d parameters, %s moved in %.2f s (%.2f GB/s)%s", j->out, s->n_params,
                bytes_text(moved, a), r->wall_s, (double)moved / 1e9 / (r->wall_s > 0 ? r->wall_s : 1),
                r->n_drifted ? "; replicas disagreed, see the warnings" : "");
}

/* Notes and warnings of the open; errors have failed it. */
static void print_findings(struct job *j, const struct report *r)
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

static int convert(struct job *j, struct source *s, struct err *e)
{
    char *shape = str_fmt("format %s split %d vocab %d replicas %d", form_names[j->form], j->split, j->vocab,
                          j->cli.replicas);
    struct convert_opts o = {
        .out = j->out, .options_text = shape, .force = j->cli.force, .resume = j->resume, .verify = j->verify,
        .part = j->cli.part, .n_parts = j->cli.n_parts, .threads = j->cli.threads, .mem_bytes = j->cli.mem_bytes,
        .progress = j->cli.progress, .stopped = cli_stopped,
        .move_latest = j->form == FORM_PT ? "latest_universal" : NULL, .warn = warn, .ctx = &j->cli,
    };
    struct convert_result res;
    int rc = convert_run(s, open_sink(j), &o, &res, e);

    if (rc == 0)
        print_result(j, s, &res);
    free(shape);
    return rc;
}

static int convert_or_plan(struct job *j)
{
    struct source_opts so = {0};
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(j->in, &so, r, &e);
    int rc = -1;

    if (s)
        print_findings(j, r);
    if (s && first_error(r, &e) == 0)
        rc = j->cli.dry_run ? print_plan(j, s, &e) : convert(j, s, &e);
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    source_close(s);
    report_free(r);
    return rc;
}

int job_run(struct job *j)
{
    /* The virtual form is a second's work and one file: part 0 does it alone. */
    if (j->form == FORM_VIRTUAL) {
        if (j->cli.part > 0)
            return EXIT_OK;
        j->cli.n_parts = 1;
    }
    return convert_or_plan(j);
}
