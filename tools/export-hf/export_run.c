/* export_run.c - export one checkpoint or all checkpoints of a run to Transformers, and import a model folder */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/hf/hf_source.h"
#include "libcommon/write/staging.h"
#include "tools/export-hf/export.h"

/* ---- export ---- */

/*
 * Open the input. The optimizer's files are opened only if the fp32 masters are needed, because these files are by far
 * the larger part.
 */
static struct source *open_export_input(void *ctx, struct report **r, struct report *notes, struct err *e)
{
    struct export_job *j = ctx;
    const enum dtype dtype = j->convert.request.dtype;
    struct source_opts so = { .no_optimizer = dtype != DTYPE_F32, .hf = !j->all_steps,
                              .accept_mismatch = j->cli.accept_mismatch,
                              .skip_unreadable = j->cli.skip_unreadable,
                              .model = j->cli.model, .config = j->hf.config_path, .run_args = hf_run_args };
    struct source *s = source_open(j->convert.in, &so, *r, e);

    (void)notes;
    j->reads_weights_alone = s && so.no_optimizer && !source_stores_weights_alone(s);
    if (!s || !so.no_optimizer || source_n_params(s) == 0 ||
        (source_has_all_weights(s) && (dtype == DTYPE_N || dtype == source_weights_dtype(s))))
        return s;
    source_close(s);
    report_free(*r);
    *r = report_new();
    so.no_optimizer = j->reads_weights_alone = false;
    return source_open(j->convert.in, &so, *r, e);
}

static json_t *export_facts(void *ctx)
{
    const struct export_job *j = ctx;

    return j->cli.dry_run ? json_object() : json_pack("{s:b}", "weights_alone_checked", (int)j->reads_weights_alone);
}

static int export_one(struct export_job *j, const char *in, const char *out)
{
    struct convert_job *c = &j->convert;
    int rc;

    c->cli = &j->cli;
    c->in = in;
    c->out = out;
    c->shape = j->shape.buf;
    c->to = layout_find(c->request.ranks ? "hfstorage" : "hf");
    c->ctx = j;
    c->open_input = open_export_input;
    c->request.hf = &j->hf;
    c->more_facts = export_facts;
    rc = convert_job_run(c);
    if (rc == EXIT_OK && j->reads_weights_alone && !j->cli.json && !j->cli.dry_run)
        cli_info(&j->cli, "%s: only the weights were read and checked; 'ckpt-inspect verify' also checks the optimizer "
                 "states", in);
    return rc;
}

/* ---- all tags ---- */

static int by_tag_name(const void *a, const void *b)
{
    return str_natural_cmp(*(char *const *)a, *(char *const *)b);
}

/*
 * Returns true if the folder is a checkpoint with a name that the trainer gives. A folder with another name is the
 * result of a conversion; its step already exists under the trainer's name.
 */
static bool is_trainer_tag(const char *dir, const char *name)
{
    char *path;
    struct stat st;
    bool yes;

    if (!str_starts(name, "global_step") || str_ends(name, "_universal") || strchr(name, '.'))
        return false;
    path = path_join(dir, name);
    yes = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    free(path);
    return yes;
}

static int list_trainer_tags(const char *dir, char ***tags, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *ent;
    int n = 0, cap = 0;

    if (!d) {
        err_sys(e, dir, "cannot list");
        return -1;
    }
    while ((ent = readdir(d)))
        if (is_trainer_tag(dir, ent->d_name)) {
            ARRAY_ROOM(*tags, cap, n + 1);
            (*tags)[n++] = xstrdup(ent->d_name);
        }
    closedir(d);
    if (n == 0) {
        err_data(e, dir, ERR_NO_BYTE, "holds no folder global_step*");
        return -1;
    }
    qsort(*tags, (size_t)n, sizeof **tags, by_tag_name);
    return n;
}

/* If one checkpoint fails, the others are still exported. The exit status is the worst one. */
static int export_all_tags(struct export_job *j)
{
    char **tags = NULL;
    struct err e = {0};
    int n = list_trainer_tags(j->in, &tags, &e), rc = EXIT_OK;

    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    for (int i = 0; i < n; i++) {
        char *in = path_join(j->in, tags[i]), *out = path_join(j->out, tags[i]);

        if (e.kind == ERR_NONE && !cli_stopped()) {
            int one = export_one(j, in, out);

            rc = one > rc ? one : rc;
        }
        free(in);
        free(out);
        free(tags[i]);
    }
    free(tags);
    return rc;
}

int job_export(struct export_job *j)
{
    return j->all_steps ? export_all_tags(j) : export_one(j, j->in, j->out);
}

/* ---- import ---- */

enum { DIVISIBLE_BY = 128 };            /* default of Megatron's --make-vocab-size-divisible-by */

/*
 * If OUT already exists and may not be replaced, sets *e and returns true. This is checked before a spool file is
 * filled.
 */
static bool import_output_exists(const struct export_job *j, struct err *e)
{
    return !j->cli.resume && !j->cli.dry_run && staging_check_out(j->out, j->cli.force, e) < 0;
}

/*
 * Return the number of rows that the embedding gets: the number that the user requested, or else `rows` rounded up as
 * Megatron does.
 */
static int64_t padded_rows(const struct export_job *j, int64_t rows)
{
    int64_t unit = DIVISIBLE_BY * (int64_t)(j->target.q.topo.tp ? j->target.q.topo.tp : 1);

    return j->target.q.vocab ? j->target.q.vocab : (rows + unit - 1) / unit * unit;
}

/* Read the number of rows of the vocabulary from config.json, without opening the files of the tensors. */
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
 * Open a model folder whose files are not those that Transformers loads. If the folder is not of this kind, returns
 * NULL without an error.
 */
static struct source *open_other_form(const struct export_job *j, struct err *e)
{
    const struct source_opts so = { .hf = true, .threads = j->cli.threads, .accept_mismatch = j->cli.accept_mismatch };

    return layout_has_cut_model(j->in) ? source_open(j->in, &so, NULL, e) : NULL;
}

/*
 * Open the model folder as a checkpoint of a new run, with Megatron's names and arguments, and with moments that are 0.
 */
static struct source *open_model_folder(void *ctx, struct report **r, struct report *notes, struct err *e)
{
    struct export_job *j = ctx;
    const enum dtype dtype = j->convert.request.dtype;
    struct hf_source_opts o = { .n_groups = j->target.q.n_groups ? j->target.q.n_groups : 3,
                                .vocab_tokens = j->hf.vocab_tokens, .dtype_given = dtype != DTYPE_N, .dtype = dtype,
                                .threads = j->cli.threads, .mem_bytes = j->cli.mem_bytes, .progress = j->cli.progress,
                                .stopped = cli_stopped };
    char *parent = path_parent(j->out);
    struct source *s = NULL;
    int64_t rows = 0;

    (void)r;
    if (!import_output_exists(j, e) && read_rows(j, &rows, e) == 0) {
        j->target.q.vocab = padded_rows(j, rows);
        o.repeat_to = j->repeat_last ? j->target.q.vocab : 0;
        o.spool_dir = j->cli.dry_run ? NULL : parent;
        o.from = j->other_form = open_other_form(j, e);
        s = e->kind == ERR_NONE ? hf_source_open(j->in, &o, notes, e) : NULL;
    }
    free(parent);
    return s;
}

int job_import(struct export_job *j)
{
    struct convert_job *c = &j->convert;
    int rc;

    j->cli.replicas = REPLICAS_FIRST;   /* a Transformers folder has no replicas, so there is nothing to resolve */
    j->target.q.zero_moments = !j->target.q.no_optimizer;
    c->cli = &j->cli;
    c->in = j->in;
    c->out = j->out;
    c->shape = j->shape.buf;
    c->to = layout_find("deepspeed");
    c->listed_only = true;
    c->ctx = j;
    c->open_input = open_model_folder;
    c->request.shards = &j->target.q;
    rc = convert_job_run(c);
    source_close(j->other_form);
    return rc;
}
