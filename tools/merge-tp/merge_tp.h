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
 * For ZeRO without pipeline. merge_zero_check() checks that the opened source and the options can be merged;
 * merge_zero() writes files of one tensor rank. Both return -1 with *e on error.
 */
int merge_zero_check(const struct merge_job *j, const struct source *s, struct err *e);
int merge_zero(struct merge_job *j, struct source *s, struct err *e);
/*
 * Handle copies that disagree. merge_repair() makes them equal as --replicas asks, in all states together;
 * merge_refuse_drift() always returns -1 with *e.
 */
int merge_repair(struct merge_job *j, struct source *s, struct err *e);
int merge_refuse_drift(const struct merge_job *j, const struct source *s, struct err *e);
/* If there are copies that disagree, call merge_repair() or merge_refuse_drift(), according to --replicas. */
int merge_resolve_replicas(struct merge_job *j, struct source *s, struct err *e);
/* Return the comparison of the copies, and the number of repairs, for --json. */
json_t *merge_json(const struct merge_job *j);
/* Print how many parameters were repaired and where the repairs are listed. For an OUT that has been published. */
void merge_print_repairs(const struct merge_job *j);
/* Check, repair, merge, or print the plan with --dry-run. Returns the exit status. */
int merge_job_run(struct merge_job *j);

#endif
