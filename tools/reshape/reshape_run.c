/*
 * reshape_run.c - compute the target, then preview or write it
 */
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_config.h"
#include "libcommon/layout/layouts.h"
#include "tools/common/convert_cli.h"
#include "tools/reshape/reshape.h"

static int reshape(struct reshape_job *j, struct source *s, struct err *e)
{
    struct report *notes = report_new();
    struct ds_target *t = ds_target_new(s, &j->target.q, notes, e);
    struct ds_write w = { .cli = &j->cli, .src = s, .target = t, .out = j->out, .shape = j->shape.buf };
    struct convert_result res;
    int rc = -1;

    if (t && j->cli.dry_run) {
        rc = ds_write_preview(&w, notes, NULL, e);
    } else if (t && ds_write_check(&w, e) == 0) {
        cli_warn_findings(&j->cli, notes);
        rc = ds_write_run(&w, &res, e);
        if (rc == 0)
            ds_write_print_result(&w, &res, NULL);
    }
    ds_target_free(t);
    report_free(notes);
    return rc;
}

/* Returns true if export-hf --import can convert the source: a model folder with a config.json. */
static bool is_importable(const struct source *s)
{
    char *config = path_join(s->path, "config.json");
    const bool is = s->layout->model_folder && access(config, R_OK) == 0;

    free(config);
    return is;
}

/* Select the conversion: to the form given by --to, else to the form of IN. */
static int dispatch(struct reshape_job *j, struct source *s, struct err *e)
{
    if (j->to == RESHAPE_TO_DCP || j->to == RESHAPE_TO_TORCHDIST ||
        (!j->to && (s->layout->entries)))
        return reshape_dcp(j, s, e);
    if (j->to != RESHAPE_TO_DEEPSPEED && (j->to || source_is_from_zero(s)))
        return reshape_zero(j, s, e);
    if (j->to == RESHAPE_TO_DEEPSPEED && is_importable(s)) {
        reshape_job_exec_tool(j, j->argv);
        return -1;
    }
    if (s->layout->model_folder) {
        err_usage(e, "%s: a model folder: export-hf --import makes 3D shards of BLOOM and GPT-2; of any model, "
                  "--to dcp --ranks N makes a checkpoint", s->path);
        return -1;
    }
    if (!j->ranks && !j->mesh.rows)
        return reshape(j, s, e);
    err_usage(e, "%s: a %s checkpoint: --ranks goes with --to zero1, zero2, zero3, dcp, torchdist or hfstorage, --mesh "
              "with --to dcp or torchdist", s->path, s->layout->name);
    return -1;
}

int reshape_job_run(struct reshape_job *j)
{
    struct source_opts so = { .no_optimizer = j->weights_only, .hf = j->to, .accept_mismatch = j->cli.accept_mismatch,
                              .skip_unreadable = j->cli.skip_unreadable,
                              .model = j->cli.model, .config = j->config, .run_args = hf_run_args };
    struct source_opts summary = { .no_tensors = j->to == 0 || j->to >= RESHAPE_TO_DCP };    /* ZeRO also needs the
                                                                                                tensors of the model */
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(j->in, &so, r, &e), *like = NULL;
    int rc = -1;

    if (s && j->like)
        like = source_open(j->like, &summary, NULL, &e);
    j->target.q.like = like;
    if (s && e.kind == ERR_NONE && convert_cli_check(&j->cli, s, j->cli.replicas != REPLICAS_FAIL, r, &e) == 0)
        rc = dispatch(j, s, &e);
    if (e.kind != ERR_NONE)
        rc = cli_fail(&j->cli, &e);
    source_close(like);
    source_close(s);
    report_free(r);
    return rc;
}
