/* export.h - the options of an export to, or an import from, a Transformers model folder */
#ifndef SHARDKIT_TOOLS_EXPORT_HF_EXPORT_H
#define SHARDKIT_TOOLS_EXPORT_HF_EXPORT_H

#include <jansson.h>

#include "libcommon/layout/hf/hf_target.h"
#include "tools/common/convert_job.h"
#include "tools/common/deepspeed_options.h"

struct export_job {
    struct cli cli;
    struct convert_job convert;         /* has IN, OUT, and the options --dtype, --ranks and --rules */
    const char *in, *out;
    bool import, all_steps;
    struct strbuf shape;                /* text of the options that affect the output */

    /* only for an export */
    struct hf_options hf;
    bool reads_weights_alone;           /* IN was opened without optimizer states, so these were not checked */
    json_t *config;                     /* from --config KEY=JSON; NULL: not given */
    json_t *config_file;                /* from --config FILE; NULL: not given */

    /* only for an import */
    struct ds_options target;
    bool repeat_last;
    struct source *other_form;          /* the opened folder, if its files are not those that Transformers loads;
                                         * else NULL */
};

/* Parse the command line. Returns 0, or -1 after an error message. */
int export_job_parse(struct export_job *j, int argc, char **argv);
/*
 * Convert one checkpoint, or, with --all-steps, each checkpoint of a run; with --dry-run, print the plan. Returns the
 * exit status.
 */
int job_export(struct export_job *j);
int job_import(struct export_job *j);

#endif
