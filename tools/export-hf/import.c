/*
 * import.c - from a Transformers folder to a sharded checkpoint
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_source.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/sink.h"
#include "libcommon/write/staging.h"
#include "tools/export-hf/export.h"

enum { DIVISIBLE_BY = 128 };            /* Megatron's --make-vocab-size-divisible-by */

static int preview_import(struct export_job *j, const struct ds_target *t, struct source *s, const struct report *notes,
                          struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, j->out);
    struct sink *k = deepspeed_sink(&so, t);
    struct rehearsal r;
    int rc = rehearsal_run(s, k, j->out, &r, e);

    k->ops->close(k);
    if (rc < 0)
        return -1;
    export_print_import_plan(j, t, notes, &r);
    return r.free_bytes < r.need_bytes ? EXIT_BAD : EXIT_OK;
}

/*
 * Returns true with *e set if OUT already exists and may not be replaced. The check is made before a spool file is
 * filled.
 */
static bool import_output_exists(const struct export_job *j, struct err *e)
{
    return !j->cli.resume && !j->cli.dry_run && staging_check_out(j->out, j->cli.force, e) < 0;
}

/* Return the number of rows of the embedding: the number that the user requested, or `rows` padded as Megatron pads. */
static int64_t padded_rows(const struct export_job *j, int64_t rows)
{
    int64_t unit = DIVISIBLE_BY * (int64_t)(j->target.q.topo.tp ? j->target.q.topo.tp : 1);

    return j->target.q.vocab ? j->target.q.vocab : (rows + unit - 1) / unit * unit;
}

/* Read the number of rows of the vocabulary from config.json, without opening the tensors. */
static int read_rows(const struct export_job *j, int64_t *rows, struct err *e)
{
    char *path = path_join(j->in, "config.json"), *text;
    struct hf_config c;
    uint64_t len;
    int rc = -1;

    text = file_slurp(path, 1 << 24, &len, e);
    if (text && hf_config_read(path, text, len, &c, e) == 0) {
        *rows = c.vocab;
        rc = 0;
    }
    free(text);
    free(path);
    return rc;
}

/*
 * Return a copy of the report without the findings that any source without optimizer or random states causes. One note
 * of the source ("fresh") covers them.
 */
static struct report *filter_import_findings(const struct report *from)
{
    struct report *to = report_new();

    for (int i = 0; i < report_n(from); i++) {
        const struct finding *f = report_get(from, i);

        if (strcmp(f->code, "optimizer") != 0 && strcmp(f->code, "rng") != 0)
            report_add(to, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    return to;
}

static int import(struct export_job *j, struct source *s, struct report *all, struct err *e)
{
    struct ds_write w = { .cli = &j->cli, .src = s, .out = j->out, .shape = j->shape.buf };
    struct convert_result res;
    struct report *notes;
    struct ds_target *t;
    int rc = -1;

    j->target.q.zero_moments = !j->target.q.no_optimizer;
    t = ds_target_new(s, &j->target.q, all, e);
    notes = filter_import_findings(all);
    w.target = t;
    if (t && j->cli.dry_run) {
        rc = preview_import(j, t, s, notes, e);
    } else if (t) {
        cli_warn_findings(&j->cli, notes);
        rc = ds_write_run(&w, &res, e);
        if (rc == 0)
            ds_write_print_result(&w, &res, NULL);
    }
    report_free(notes);
    ds_target_free(t);
    return rc;
}

/*
 * Open a model folder whose files are not those that Transformers loads. Returns NULL without an error for all other
 * folders.
 */
static struct source *open_other_form(const struct export_job *j, struct err *e)
{
    const struct layout *l = layout_of_folder(j->in);
    const struct source_opts so = { .hf = true, .threads = j->cli.threads, .accept_mismatch = j->cli.accept_mismatch };

    return l && l->model_folder && l->cut_files ? source_open(j->in, &so, NULL, e) : NULL;
}

int job_import(struct export_job *j)
{
    struct hf_source_opts o = { .n_groups = j->target.q.n_groups ? j->target.q.n_groups : 3,
                                .vocab_tokens = j->vocab_tokens, .dtype_given = j->dtype >= 0,
                                .dtype = (enum dtype)j->dtype, .threads = j->cli.threads,
                                .mem_bytes = j->cli.mem_bytes, .progress = j->cli.progress, .stopped = cli_stopped };
    struct report *notes = report_new();
    struct err e = {0};
    struct source *s = NULL, *from = NULL;
    char *parent = path_parent(j->out);
    int64_t rows = 0;
    int rc = -1;

    j->cli.replicas = REPLICAS_FIRST;   /* a Transformers folder has no replicas */
    if (!import_output_exists(j, &e) && read_rows(j, &rows, &e) == 0) {
        j->target.q.vocab = padded_rows(j, rows);
        o.repeat_to = j->repeat_last ? j->target.q.vocab : 0;
        o.spool_dir = j->cli.dry_run ? NULL : parent;
        o.from = from = open_other_form(j, &e);
        s = e.kind == ERR_NONE ? hf_source_open(j->in, &o, notes, &e) : NULL;
    }
    if (s && convert_cli_listed(&j->cli, s, &e) == 0)
        rc = import(j, s, notes, &e);
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    source_close(s);
    source_close(from);
    report_free(notes);
    free(parent);
    return rc;
}
