/* reshape.h - the options of a change of topology or layout */
#ifndef SHARDKIT_TOOLS_RESHAPE_H
#define SHARDKIT_TOOLS_RESHAPE_H

#include "tools/common/convert_job.h"
#include "tools/common/deepspeed_options.h"

/* Values of --to. They are the indices of the words that it accepts. Values 1 to 3 are the stages of ZeRO. */
enum { RESHAPE_TO_DCP = 4, RESHAPE_TO_TORCHDIST, RESHAPE_TO_DEEPSPEED, RESHAPE_TO_UNIVERSAL, RESHAPE_TO_HF,
       RESHAPE_TO_HFSTORAGE };
enum { RESHAPE_RANKS_MAX = 1 << 16 };

struct reshape_job {
    struct cli cli;
    char **argv;                        /* the command line, for reshape_job_exec_tool() */
    struct convert_job convert;         /* has IN, OUT and the options of the layouts */
    struct ds_options target;
    const char *like;
    int to;                             /* stage of ZeRO, or RESHAPE_TO_...; 0: the same form as IN */
    int dtype;                          /* value of --dtype, for files of ZeRO: 1 bf16, 2 fp16, 3 fp32; 0: not given */
    struct strbuf shape;                /* text of the options that affect the output */
};

/* Parse the command line. Returns 0, or -1 after printing the error. */
int reshape_job_parse(struct reshape_job *j, int argc, char **argv);
/*
 * Replace this process by the tool that writes the form given by --to. 3D shards are written by this tool itself,
 * except for a model folder as IN: in that case the process is replaced by export-hf --import. Returns only if the tool
 * cannot be started, after printing the error.
 */
void reshape_job_exec_tool(struct reshape_job *j, char **argv);
/* Reshape the checkpoint, or print the plan with --dry-run. Returns the exit status. */
int reshape_job_run(struct reshape_job *j);

#endif
