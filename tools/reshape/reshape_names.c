/*
 * reshape_names.c - give a model folder of Transformers the names that Megatron-core uses
 */
#include <stdlib.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_saved.h"
#include "libcommon/layout/hf/hf_shards.h"
#include "libcommon/write/staging.h"
#include "tools/common/family_cli.h"
#include "tools/reshape/reshape.h"

bool reshape_makes_names(const struct reshape_job *j, const struct source *s)
{
    if (j->to != RESHAPE_TO_TORCHDIST || !s->layout->model_folder)
        return false;
    for (int i = 0; i < s->n_params; i++)       /* it was exported with Megatron-core's names */
        if (str_starts(s->param[i].name, "decoder.layers."))
            return false;
    return true;
}

static json_t *read_reshape_config(const struct reshape_job *j, const struct source *s, struct err *e)
{
    json_error_t why;
    char *file = j->config ? hf_config_file(j->config) : NULL;
    json_t *o = file ? json_load_file(file, 0, &why) : hf_config_json(s, e);

    free(file);
    if (e->kind != ERR_NONE || json_is_object(o))
        return o;
    if (j->config)
        err_usage(e, "--config: expected a JSON object: %s: %s", j->config, o ? "another value" : why.text);
    else
        err_usage(e, "%s: it has no config.json: give one with --config FILE", s->path);
    json_decref(o);
    return NULL;
}

static struct family *find_reshape_family(const struct reshape_job *j, const struct source *s, const json_t *config,
                                          struct err *e)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    struct family *f = family_cli_open(j->rules, config, e);

    if (!f && e->kind == ERR_NONE)
        err_usage(e, "%s: no family has rules for models of the type '%.60s' (config.json, model_type): --rules names "
                  "one, or a file of them", s->path, type ? type : "");
    return f;
}

/* Check that the tensor ranks can split the rows of the vocabulary. Megatron pads the rows for this purpose. */
static int check_vocab_rows(const struct reshape_job *j, const struct source *s, const struct hf_sizes *z,
                            struct report *notes, struct err *e)
{
    enum { DIVISIBLE_BY = 128 };
    const struct ds_request *q = &j->target.q;
    const int64_t rows = q->vocab ? q->vocab : z->vocab;

    if (q->topo.tp && rows % q->topo.tp != 0) {
        err_usage(e, "%s: --target-tp: %d tensor ranks do not divide %lld rows of vocabulary: --pad-vocab-size-to adds "
                  "some", s->path, q->topo.tp, (long long)rows);
        return -1;
    }
    if (rows % DIVISIBLE_BY != 0)
        report_add(notes, SEV_NOTE, "vocabulary", NULL, ERR_NO_BYTE, NULL,
                   "%lld rows of vocabulary are no multiple of %d, as Megatron makes them unless its "
                   "--make-vocab-size-divisible-by is another: --pad-vocab-size-to adds some", (long long)rows,
                   DIVISIBLE_BY);
    return 0;
}

int reshape_names(struct reshape_job *j, struct source *s, struct report *notes, struct err *e)
{
    char *parent = path_parent(j->out);
    const struct hf_source_opts o = { .repeat_to = j->target.q.vocab, .spool_dir = j->cli.dry_run ? NULL : parent,
                                      .threads = j->cli.threads, .mem_bytes = j->cli.mem_bytes,
                                      .progress = j->cli.progress, .stopped = cli_stopped };
    json_t *config = read_reshape_config(j, s, e);
    struct family *f = config ? find_reshape_family(j, s, config, e) : NULL;
    struct hf_sizes z;
    int rc = -1;

    /* Check that OUT may be written. The check is made before a spool file is filled. */
    if (f && hf_sizes_read(config, j->config ? j->config : s->path, &z, e) == 0 &&
        check_vocab_rows(j, s, &z, notes, e) == 0 &&
        (j->cli.dry_run || j->cli.resume || staging_check_out(j->out, j->cli.force, e) == 0) &&
        hf_saved_names(s, config, false, notes, e) == 0 && hf_to_shards(s, f, &z, &o, notes, e) == 0) {
        report_add(notes, SEV_NOTE, "family", NULL, ERR_NO_BYTE, NULL, "names are those that Megatron-core has for the "
                   "family %s", family_name(f));
        rc = 0;
    }
    family_free(f);
    json_decref(config);
    free(parent);
    return rc;
}
