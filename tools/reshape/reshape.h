/*
 * reshape.h - one change of topology: what was asked for, and doing it
 */
#ifndef SHARDKIT_TOOLS_RESHAPE_H
#define SHARDKIT_TOOLS_RESHAPE_H

#include "libcommon/base/cli.h"
#include "libcommon/layout/certificate.h"
#include "libcommon/layout/convert.h"
#include "libcommon/layout/deepspeed_target.h"

enum { STAGES_MAX = 1024, SETS_MAX = 64 };

struct job {
    struct cli cli;
    const char *in, *out, *like, *certificate;
    struct ds_request request;
    int stages[STAGES_MAX];
    const char *sets[SETS_MAX];
    bool weights_only, set_latest, verify, resume;
    struct strbuf shape;                /* the options that shape the output, as text */
    const struct ds_target *target;
    struct strbuf proof;                /* the certificate's text */
};

enum { JOB_HELP = 1 };
/* 0, JOB_HELP, or -1 after saying what is wrong. */
int job_parse(struct job *j, int argc, char **argv);
/* Reshape, or print the plan with --dry-run. Returns the exit status. */
int job_run(struct job *j);
#endif
