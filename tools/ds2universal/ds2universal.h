/*
 * ds2universal.h - one conversion: what was asked for, and doing it
 */
#ifndef SHARDKIT_TOOLS_DS2UNIVERSAL_H
#define SHARDKIT_TOOLS_DS2UNIVERSAL_H

#include "libcommon/cli/cli.h"
#include "tools/common/convert_cli.h"

enum universal_form { FORM_PT, FORM_HDF5, FORM_VIRTUAL };

struct ds2universal_job {
    struct cli cli;
    const char *in, *out;
    enum universal_form form;
    enum vocab_policy vocab;
    bool split;
};

/* 0, or -1 after saying what is wrong. */
int job_parse(struct ds2universal_job *j, int argc, char **argv);
/* Convert, or print the plan with --dry-run. Returns the exit status. */
int job_run(struct ds2universal_job *j);

#endif
