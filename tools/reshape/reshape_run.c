/* reshape_run.c - convert to the form given by --to, in this process or by the tool that writes this form */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/cli/tool_exec.h"
#include "libcommon/layout/hf/hf_config.h"
#include "libcommon/layout/layout_write.h"
#include "tools/reshape/reshape.h"

void reshape_job_exec_tool(struct reshape_job *j, char **argv)
{
    const char *tool = j->to == RESHAPE_TO_UNIVERSAL ? "ds2universal" : "export-hf";
    const bool imports = j->to == RESHAPE_TO_DEEPSPEED;
    struct err e = {0};
    int n = 1;

    for (int i = 1; argv[i]; i++) {
        const bool to = strcmp(argv[i], "--to") == 0 && argv[i + 1];

        if (!to && strncmp(argv[i], "--to=", 5) != 0) {
            argv[n++] = argv[i];
            continue;
        }
        i += to;
        if (imports)
            argv[n++] = "--import";
    }
    argv[n] = NULL;
    argv[0] = (char *)cli_typed_name(tool);
    tool_exec(tool, argv, &e);
    cli_fail(&j->cli, &e);
}

/*
 * If IN is a model folder with a config.json and the result is 3D shards, replace this process by export-hf --import.
 * Refuse to give IN other ranks if its layout is only read.
 */
static int prepare_reshape(void *ctx, struct source *s, struct err *e)
{
    struct reshape_job *j = ctx;
    char *config;
    int rc = 0;

    if (!j->to && !layout_has_writer(s)) {
        err_usage(e, "%s: a folder of the layout %s is read and not written; name another layout for OUT, such as "
                     "--to dcp --ranks N", source_path(s), source_layout_name(s));
        return -1;
    }
    config = path_join(source_path(s), "config.json");
    if (j->to == RESHAPE_TO_DEEPSPEED && source_is_model_alone(s) && access(config, R_OK) == 0) {
        reshape_job_exec_tool(j, j->argv);
        j->convert.status = EXIT_FAILURE;
        rc = CONVERT_JOB_DONE;
    }
    free(config);
    return rc;
}

int reshape_job_run(struct reshape_job *j)
{
    static const char *const layouts[] = { NULL, "zero", "zero", "zero", "dcp", "torchdist", "deepspeed" };
    static const enum dtype dtypes[] = { DTYPE_N, DTYPE_BF16, DTYPE_F16, DTYPE_F32 };
    /* For files of ZeRO, the tensors of the checkpoint given by --like are needed, too. */
    const struct source_opts like = { .no_tensors = j->to == 0 || j->to >= RESHAPE_TO_DCP };
    struct convert_job *c = &j->convert;
    struct write_request *q = &c->request;
    struct source *template = NULL;
    struct err e = {0};
    int rc;

    c->cli = &j->cli;
    c->shape = j->shape.buf;
    c->open = (struct source_opts){ .no_optimizer = q->weights_only, .hf = j->to,
                                    .accept_mismatch = j->cli.accept_mismatch,
                                    .skip_unreadable = j->cli.skip_unreadable, .model = j->cli.model,
                                    .config = q->config, .run_args = hf_run_args };
    c->to = j->to ? layout_find(layouts[j->to]) : NULL;
    c->ctx = j;
    c->prepare = prepare_reshape;
    q->zero_stage = j->to < RESHAPE_TO_DCP ? j->to : 0;
    q->dtype = dtypes[j->dtype];
    q->shards = &j->target.q;
    if (j->like)
        template = source_open(j->like, &like, NULL, &e);
    j->target.q.like = template;
    rc = e.kind == ERR_NONE ? convert_job_run(c) : cli_fail(&j->cli, &e);
    source_close(template);
    return rc;
}
