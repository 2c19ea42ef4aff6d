/* ds2universal.h - the options of a conversion to a universal form */
#ifndef SHARDKIT_TOOLS_DS2UNIVERSAL_H
#define SHARDKIT_TOOLS_DS2UNIVERSAL_H

#include "tools/common/convert_job.h"

/* Values of --format. They are the indices of the words that it accepts. */
enum universal_format { FORM_PT, FORM_HDF5, FORM_VIRTUAL };

struct ds2universal_job {
    struct cli cli;
    struct convert_job convert;         /* has IN, OUT, and the options --vocab and --split */
    enum universal_format form;
};

/* Parse the command line. Returns 0, or -1 after printing the error. */
int ds2universal_job_parse(struct ds2universal_job *j, int argc, char **argv);
/* Convert, or print the plan with --dry-run. Returns the exit status. */
int ds2universal_job_run(struct ds2universal_job *j);

#endif
