/*
 * reshape.h - the parameters of one change of topology, and its steps
 */
#ifndef SHARDKIT_TOOLS_RESHAPE_H
#define SHARDKIT_TOOLS_RESHAPE_H

#include "libcommon/cli/cli.h"
#include "libcommon/layout/dcp/dcp_target.h"
#include "libcommon/layout/zero/zero_target.h"
#include "tools/common/convert_cli.h"
#include "tools/common/deepspeed_options.h"
#include "tools/common/deepspeed_write.h"

/*
 * Values of --to. They are positions in the list of the words that --to accepts; values 1 to 3 are the stages of ZeRO.
 */
enum { RESHAPE_TO_DCP = 4, RESHAPE_TO_TORCHDIST, RESHAPE_TO_DEEPSPEED, RESHAPE_TO_UNIVERSAL, RESHAPE_TO_HF,
       RESHAPE_TO_HFSTORAGE };
enum { RESHAPE_RANKS_MAX = 1 << 16 };

struct reshape_job {
    struct cli cli;
    char **argv;                        /* the command line, for reshape_job_exec_tool() */
    const char *in, *out, *like;
    struct ds_options target;
    bool weights_only;
    int to;                             /* stage of ZeRO, or RESHAPE_TO_...; 0: the form of IN */
    int dtype;                          /* for files of ZeRO: 1 bf16, 2 fp16, 3 fp32; 0: not given */
    int ranks;                          /* for dcp and ZeRO; 0: not given */
    struct dcp_mesh mesh;               /* for dcp; rows 0: not given */
    /* for torchdist: write the states as Megatron-core's distributed optimizer stores them */
    bool distributed;
    const char *rules, *config;         /* for a model of Transformers; NULL: not given */
    struct strbuf shape;                /* the options that affect the output, as text */
};

/* Parse the command line. Returns 0, or -1 after printing the error. */
int reshape_job_parse(struct reshape_job *j, int argc, char **argv);
/*
 * Replace this process by the tool that writes the form requested by --to; for 3D shards, which this tool writes, by
 * export-hf --import, which makes them of a model folder. Returns only if the tool cannot be started,
 * after printing the error.
 */
void reshape_job_exec_tool(struct reshape_job *j, char **argv);
/* Reshape the checkpoint, or print the plan with --dry-run. Returns the exit status. */
int reshape_job_run(struct reshape_job *j);
/*
 * reshape_zero() converts to files of ZeRO without pipeline, reshape_dcp() to files of torch.distributed. Each first
 * checks that the source and the options allow it. Returns -1 with *e on error.
 */
int reshape_zero(struct reshape_job *j, struct source *s, struct err *e);
int reshape_dcp(struct reshape_job *j, struct source *s, struct err *e);
/*
 * Returns true if the source is a model folder with its family's own names, and the output is a checkpoint of
 * Megatron-core.
 */
bool reshape_makes_names(const struct reshape_job *j, const struct source *s);
/* Rename and reshape the source's parameters as Megatron-core has them, by the rules of their family. */
int reshape_names(struct reshape_job *j, struct source *s, struct report *notes, struct err *e);

#endif
