/*
 * export_run.c - export to Transformers: one tag, or all tags of a run
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_claims.h"
#include "libcommon/layout/hf/hf_layers.h"
#include "libcommon/layout/hf/hf_saved.h"
#include "libcommon/layout/hf/hf_translate.h"
#include "libcommon/layout/hfstorage/hfstorage.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/sink.h"
#include "tools/common/family_cli.h"
#include "tools/export-hf/export.h"

static int write_export_output(struct export_job *j, const char *out, struct source *s, const struct hf_target *t,
                               struct sink *k, struct err *e)
{
    struct convert_opts o = convert_cli_opts(&j->cli, out, j->shape.buf);
    struct convert_result res;
    int rc;

    o.verify = NULL;                    /* the sink verifies the output */
    rc = convert_run(s, k, &o, &res, e);
    if (rc == 0)
        export_print_result(j, out, t, &res);
    return rc;
}

static int preview_export(struct export_job *j, const char *out, struct source *s, const struct hf_target *t,
                          const struct report *notes, struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, out);
    struct sink *k = hf_sink(&so, t);
    struct rehearsal r;
    int rc = rehearsal_run(s, k, out, &r, e);

    k->ops->close(k);
    if (rc < 0)
        return -1;
    export_print_plan(j, out, t, notes, &r);
    return r.free_bytes < r.need_bytes ? EXIT_BAD : EXIT_OK;
}

static int resolve_vocab_rows(struct export_job *j, const struct source *s, struct err *e)
{
    j->hf.vocab = !j->strip_vocab ? 0 : j->vocab_tokens ? j->vocab_tokens : s->config.vocab_tokens;
    if (!j->strip_vocab || j->hf.vocab > 0)
        return 0;
    err_usage(e, "--strip-vocab-padding: the checkpoint does not record how many rows are tokens; give --vocab-tokens "
                 "N");
    return -1;
}

/*
 * Find the family whose names in shards the checkpoint uses: the family of --rules, or the one that config.json names.
 * Without a family (*f is NULL) the names remain unchanged and must be those of the model in Transformers. Returns -1
 * with *e set on failure.
 */
static int find_export_family(const struct export_job *j, struct source *s, struct family **f, struct report *notes,
                              struct err *e)
{
    int named;

    *f = family_cli_open(j->rules, j->config_file, e);
    if (e->kind != ERR_NONE)
        return -1;
    if (j->rules && !j->config_file) {
        family_free(*f);
        err_usage(e, "--rules: --config FILE has to give the model's config.json: heads, groups and tokens are in it");
        return -1;
    }
    if (*f && !j->rules && hf_know_names(s, *f, notes, e) < 0) {
        family_free(*f);
        return -1;
    }
    named = *f && !j->rules ? hf_is_in_shards(s, *f, e) : 1;
    if (named < 1) {
        family_free(*f);
        *f = NULL;
    }
    return named < 0 ? -1 : 0;
}

/*
 * Rename the parameters to Transformers' names by the rules of their family. Does nothing for a model without a family.
 */
static int translate_param_names(struct export_job *j, struct source *s, struct report *notes, struct err *e)
{
    struct family *f;
    struct hf_sizes z;
    int rc = find_export_family(j, s, &f, notes, e);

    if (rc < 0 || !f)
        return rc;
    rc = hf_sizes_read(j->config_file, j->config_path, &z, e);
    if (rc == 0) {
        j->hf.transposed = hf_translate(s, f, &z, notes, e);
        rc = j->hf.transposed ? 0 : -1;
    }
    if (rc == 0)
        report_add(notes, SEV_NOTE, "family", NULL, ERR_NO_BYTE, NULL, "names are those of the family %s",
                   family_name(f));
    family_free(f);
    return rc;
}

/* Use the config.json of the source if the source is a Transformers folder and the user has given no other one. */
static int own_config(struct export_job *j, const struct source *s, struct err *e)
{
    if (s->layout->model_folder && !j->config_file)
        j->hf.config_json = j->config_file = hf_config_json(s, e);
    return e->kind == ERR_NONE ? 0 : -1;
}

static int check_named(const struct export_job *j, struct source *s, struct err *e)
{
    if (j->arch >= 0 || j->strip_vocab || j->hf.per_layer || j->hf.bare_names || (j->config && !j->config_file)) {
        err_usage(e, "%s: of a model that is neither BLOOM nor GPT-2 of Megatron's, tensors are written as they are: "
                  "--arch, --strip-vocab-padding, --per-layer, --no-prefix and --config KEY=JSON without --config FILE "
                  "do not go with it", s->path);
        return -1;
    }
    source_add_buffers(s);
    return 0;
}

/*
 * Adapt the parameters' names to the model that config.json describes, and check that its statements fit the tensors. A
 * Transformers folder keeps its names. Names from translate_param_names() already are the final ones.
 */
static int fit_config(const struct export_job *j, struct source *s, struct report *notes, struct err *e)
{
    struct report *r = report_new();
    json_t *config = json_deep_copy(j->config_file);
    int rc = 0;

    if (j->config)
        json_object_update(config, j->config);
    if (!s->layout->model_folder && !j->hf.transposed)
        rc = hf_saved_names(s, config, hf_ties_head(config), notes, e);
    if (rc == 0 && !s->layout->model_folder) {
        hf_check_claims(s, config, true, j->cli.accept_mismatch ? SEV_WARNING : SEV_ERROR, r);
        hf_check_layers(s, config, j->cli.accept_mismatch ? SEV_WARNING : SEV_ERROR, r);
    }
    cli_warn_findings(&j->cli, r);
    if (rc == 0 && report_first_error(r, e) < 0) {
        err_add(e, "; --accept-mismatch exports it despite this");
        rc = -1;
    }
    report_free(r);
    json_decref(config);
    return rc;
}

static int export(struct export_job *j, const char *out, struct source *s, struct report *notes, struct err *e)
{
    struct sink_opts so = convert_cli_sink(&j->cli, out);
    struct hf_tokenizer tok = {0};
    struct hf_target *t = NULL;
    int rc = -1;

    j->hf.transposed = NULL;
    if (source_one_model(s, e) < 0)
        return -1;
    if (own_config(j, s, e) < 0 || translate_param_names(j, s, notes, e) < 0)
        return -1;
    j->hf.named = source_has_own_names(s) || j->hf.transposed;
    if (j->hf.named ? check_named(j, s, e) < 0
                    : hf_config_of(s, j->arch, &j->hf.config, notes, e) < 0 || resolve_vocab_rows(j, s, e) < 0)
        return -1;
    if (j->hf.named && j->config_file && fit_config(j, s, notes, e) < 0)
        return -1;
    /*
     * A source of ZeRO is written with its 16-bit weights, or with masters rounded to 16 bits. Other layouts are
     * written with the types they have.
     */
    j->hf.as_is = j->hf.named && j->dtype < 0 && !source_is_from_zero(s);
    j->hf.config.dtype = j->dtype >= 0 ? (enum dtype)j->dtype : source_weights_dtype(s);
    if (j->tokenizer) {
        if (hf_tokenizer_open(&tok, j->tokenizer, s->run.args, e) < 0)
            return -1;
        if (tok.names_tokens)
            memcpy(j->hf.config.token, tok.token, sizeof tok.token);
        j->hf.tokenizer = &tok;
    }
    t = hf_target_new(s, &j->hf, notes, e);
    if (t && j->ranks)
        hfstorage_cut(t, j->ranks);
    if (t && j->cli.dry_run) {
        rc = preview_export(j, out, s, t, notes, e);
    } else if (t) {
        cli_warn_findings(&j->cli, notes);
        rc = write_export_output(j, out, s, t, hf_sink(&so, t), e);
    }
    hf_target_free(t);
    hf_tokenizer_free(&tok);
    return rc;
}

/* Returns true if every parameter has weights in the source. With ZeRO-3 only the masters hold the weights. */
static bool has_all_weights(const struct source *s)
{
    for (int i = 0; source_masters_alone(s) && i < s->n_params; i++)
        if (!s->param[i].state[STATE_BF16] && !s->param[i].state[STATE_FP32])
            return false;
    return true;
}

/* Open the input. The optimizer shards, by far the larger part, are opened only if masters are needed. */
static struct source *open_export_input(struct export_job *j, const char *in, struct report **r, struct err *e)
{
    struct source_opts so = { .no_optimizer = j->dtype != DTYPE_F32, .hf = !j->all_steps,
                              .accept_mismatch = j->cli.accept_mismatch,
                              .skip_unreadable = j->cli.skip_unreadable,
                              .model = j->cli.model, .config = j->config_path, .run_args = hf_run_args };
    struct source *s = source_open(in, &so, *r, e);

    if (!s || !so.no_optimizer || s->n_params == 0 ||
        (has_all_weights(s) && (j->dtype < 0 || (enum dtype)j->dtype == source_weights_dtype(s))))
        return s;
    source_close(s);
    report_free(*r);
    *r = report_new();
    so.no_optimizer = false;
    return source_open(in, &so, *r, e);
}

static int export_one(struct export_job *j, const char *in, const char *out)
{
    struct report *r = report_new(), *notes = report_new();
    struct err e = {0};
    struct source *s = open_export_input(j, in, &r, &e);
    int rc = -1;

    if (s && convert_cli_check(&j->cli, s, j->cli.replicas != REPLICAS_FAIL, r, &e) == 0)
        rc = export(j, out, s, notes, &e);
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    source_close(s);
    report_free(r);
    report_free(notes);
    return rc;
}

int job_export(struct export_job *j)
{
    return export_one(j, j->in, j->out);
}

/* ---- all tags ---- */

static int by_tag_name(const void *a, const void *b)
{
    return str_natural_cmp(*(char *const *)a, *(char *const *)b);
}

/*
 * Returns true for a tag folder with a name that the trainer gives. A folder with another name is a conversion, which
 * holds the same step again.
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
        err_data(e, dir, ERR_NO_BYTE, "no global_step* folder here");
        return -1;
    }
    qsort(*tags, (size_t)n, sizeof **tags, by_tag_name);
    return n;
}

/* If a tag fails, the remaining tags are still exported. The exit status is the worst of all tags. */
int job_export_all(struct export_job *j)
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
