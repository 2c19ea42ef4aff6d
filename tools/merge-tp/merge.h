/*
 * merge.h - one merge of tensor-parallel ranks: what was asked for, and doing it
 */
#ifndef SHARDKIT_TOOLS_MERGE_H
#define SHARDKIT_TOOLS_MERGE_H

#include "libcommon/check/repair.h"
#include "libcommon/check/replicas_check.h"
#include "libcommon/cli/cli.h"
#include "tools/common/convert_cli.h"
#include "tools/common/deepspeed_write.h"

struct merge_job {
    struct cli cli;
    const char *in, *out;
    int target_tp;                      /* 0: not given */
    bool check, repair, weights_only;
    struct strbuf shape;                /* the options that shape the output, as text */
    struct replicas replicas;
    struct repair repaired;             /* n 0: nothing had to be */
    struct strbuf log;                  /* the repair's journal */
};

/* 0, or -1 after saying what is wrong. */
int job_parse(struct merge_job *j, int argc, char **argv);
/* Of ZeRO without pipeline: what an opened source and the options allow; then files of one tensor rank. -1 with *e. */
int merge_zero_check(const struct merge_job *j, const struct source *s, struct err *e);
int merge_zero(struct merge_job *j, struct source *s, struct err *e);
/* Copies that disagree are settled as --replicas says, in all states together, or refused: -1 with *e. */
int merge_repair(struct merge_job *j, struct source *s, struct err *e);
int merge_refuse_drift(const struct merge_job *j, const struct source *s, struct err *e);
/* The one or the other, where there are any. */
int merge_settle(struct merge_job *j, struct source *s, struct err *e);
/* Copies that were compared, and what was settled, for --json. */
json_t *merge_json(const struct merge_job *j);
/* How many parameters were repaired, and where it stands; of an OUT that is there. */
void merge_tell_settled(const struct merge_job *j);
/* Check, repair, merge, or print the plan with --dry-run. Returns the exit status. */
int job_run(struct merge_job *j);

#endif
