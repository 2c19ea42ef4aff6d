/* merge_tp.h - the options and the results of a merge of tensor-parallel ranks */
#ifndef SHARDKIT_TOOLS_MERGE_TP_H
#define SHARDKIT_TOOLS_MERGE_TP_H

#include "libcommon/check/repair.h"
#include "libcommon/check/replicas_check.h"
#include "libcommon/layout/ds_request.h"
#include "tools/common/convert_job.h"

struct merge_job {
    struct cli cli;
    struct convert_job convert;         /* has IN, OUT, and the options --weights-only and --config */
    struct ds_request target;
    int target_tp;                      /* 0 if not given */
    bool check, repair;
    struct strbuf shape;                /* text of the options that affect the output */
    struct replicas replicas;
    struct repair repaired;             /* its member n is 0 if no repair was needed */
    struct strbuf log;                  /* contents of OUT/repair.jsonl */
};

/* Parse the command line. Returns 0, or -1 after printing the error. */
int merge_job_parse(struct merge_job *j, int argc, char **argv);
/* Compare the copies, repair them, and merge; or print the plan with --dry-run. Returns the exit status. */
int merge_job_run(struct merge_job *j);

#endif
