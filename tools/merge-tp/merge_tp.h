/*
 * merge_tp.h - the parameters of one merge of tensor-parallel ranks, and its steps
 */
#ifndef SHARDKIT_TOOLS_MERGE_TP_H
#define SHARDKIT_TOOLS_MERGE_TP_H

#include "libcommon/check/repair.h"
#include "libcommon/check/replicas_check.h"
#include "libcommon/cli/cli.h"
#include "tools/common/convert_cli.h"
#include "tools/common/deepspeed_write.h"

struct merge_job {
    struct cli cli;
    const char *in, *out;
    int target_tp;                      /* 0 if not given */
    bool check, repair, weights_only;
    const char *config;                 /* NULL: not given */
    struct strbuf shape;                /* the options that affect the output, as text */
    struct replicas replicas;
    struct repair repaired;             /* n is 0 if no repair was needed */
    struct strbuf log;                  /* text of OUT/repair.jsonl */
};

/* Parse the command line. Returns 0, or -1 after printing the error. */
int merge_job_parse(struct merge_job *j, int argc, char **argv);
/*
 * Merge files of ZeRO without pipeline. merge_zero_check() checks that the opened source and the options can be merged;
 * merge_zero() writes files of one tensor rank. Both return -1 with *e on error.
 */
int merge_zero_check(const struct merge_job *j, const struct source *s, struct err *e);
int merge_zero(struct merge_job *j, struct source *s, struct err *e);
/*
 * merge_repair() makes copies that disagree equal as --replicas requests, in all states together. merge_refuse_drift()
 * refuses them: it always returns -1 with *e.
 */
int merge_repair(struct merge_job *j, struct source *s, struct err *e);
int merge_refuse_drift(const struct merge_job *j, const struct source *s, struct err *e);
/* Call merge_repair() or merge_refuse_drift(), according to --replicas, if there are copies that disagree. */
int merge_resolve_replicas(struct merge_job *j, struct source *s, struct err *e);
/* Return an object for --json: the comparison of the copies, and the number of repairs. */
json_t *merge_json(const struct merge_job *j);
/* Print how many parameters were repaired and which file lists the repairs. Call it after OUT has been published. */
void merge_print_repairs(const struct merge_job *j);
/* Check the source, repair copies, and merge; or print the plan with --dry-run. Returns the exit status. */
int merge_job_run(struct merge_job *j);

#endif
