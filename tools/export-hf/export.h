/*
 * export.h - the options of one export to, or import from, a Transformers model folder
 */
#ifndef SHARDKIT_TOOLS_EXPORT_HF_EXPORT_H
#define SHARDKIT_TOOLS_EXPORT_HF_EXPORT_H

#include <jansson.h>

#include "libcommon/layout/hf/hf_target.h"
#include "tools/common/convert_job.h"
#include "tools/common/deepspeed_options.h"

struct export_job {
    struct cli cli;
    struct convert_job convert;         /* IN, OUT, and the options --dtype, --ranks and --rules */
    const char *in, *out;
    bool import, all_steps;
    struct strbuf shape;                /* the options that affect the output, as text */

    /* export */
    struct hf_options hf;
    json_t *config;                     /* from --config KEY=JSON, or NULL */
    json_t *config_file;                /* from --config FILE, or NULL */

    /* import */
    struct ds_options target;
    bool repeat_last;
    struct source *other_form;          /* the folder, if its files are not those that Transformers loads */
};

/* Parse the command line. Returns 0, or -1 after an error message. */
int export_job_parse(struct export_job *j, int argc, char **argv);
/* Convert one checkpoint, or with --all-steps each one of a run; or print the plan. Return the exit status. */
int job_export(struct export_job *j);
int job_import(struct export_job *j);

#endif
