/*
 * ds2universal.h - the parameters of one conversion, and the functions that parse and run it
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

/* Parse the command line. Returns 0, or -1 after printing the error. */
int ds2universal_job_parse(struct ds2universal_job *j, int argc, char **argv);
/* Convert, or print the plan with --dry-run. Returns the exit status. */
int ds2universal_job_run(struct ds2universal_job *j);

#endif
