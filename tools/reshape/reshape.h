/*
 * reshape.h - one change of topology: what was asked for, and doing it
 */
#ifndef SHARDKIT_TOOLS_RESHAPE_H
#define SHARDKIT_TOOLS_RESHAPE_H

#include "libcommon/cli/cli.h"
#include "libcommon/layout/dcp/dcp_sink.h"
#include "libcommon/layout/zero/zero_target.h"
#include "tools/common/convert_cli.h"
#include "tools/common/deepspeed_options.h"
#include "tools/common/deepspeed_write.h"

/* The forms of --to, in the order of its words; before them stages 1 to 3 of ZeRO. */
enum { RESHAPE_TO_DCP = 4, RESHAPE_TO_TORCHDIST, RESHAPE_TO_DEEPSPEED, RESHAPE_TO_UNIVERSAL, RESHAPE_TO_HF };
enum { RESHAPE_RANKS_MAX = 1 << 16 };

struct reshape_job {
    struct cli cli;
    const char *in, *out, *like;
    struct ds_options target;
    bool weights_only;
    int to;                             /* stage of ZeRO, or RESHAPE_TO_...; 0: as it is */
    int dtype;                          /* of ZeRO's files: 1 bf16, 2 fp16, 3 fp32; 0: not given */
    int ranks;                          /* of dcp and ZeRO; 0: not given */
    struct dcp_mesh mesh;               /* of dcp; rows 0: not given */
    bool distributed;                   /* of torchdist: as Megatron-core's distributed optimizer keeps its states */
    const char *rules, *config;         /* of a model of Transformers; NULL: not given */
    struct strbuf shape;                /* the options that shape the output, as text */
};

/* 0, or -1 after saying what is wrong. */
int job_parse(struct reshape_job *j, int argc, char **argv);
/* --to a form that another tool of the family writes: becomes that tool. Returns only after saying why it could not. */
void job_become(struct reshape_job *j, char **argv);
/* Reshape, or print the plan with --dry-run. Returns the exit status. */
int job_run(struct reshape_job *j);
/* To files of ZeRO without pipeline, to those of torch.distributed: what an opened source allows. -1 with *e. */
int reshape_zero(struct reshape_job *j, struct source *s, struct err *e);
int reshape_dcp(struct reshape_job *j, struct source *s, struct err *e);
/* A model folder that is to be a checkpoint of Megatron-core, under the names of its own family? */
bool reshape_makes_names(const struct reshape_job *j, const struct source *s);
/* Its parameters get Megatron-core's names and shapes, by the rules of its family. */
int reshape_names(struct reshape_job *j, struct source *s, struct report *notes, struct err *e);

#endif
