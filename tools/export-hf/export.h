/*
 * export.h - one export to, or import from, a Transformers model folder
 */
#ifndef SHARDKIT_TOOLS_EXPORT_HF_EXPORT_H
#define SHARDKIT_TOOLS_EXPORT_HF_EXPORT_H

#include <jansson.h>

#include "libcommon/cli/cli.h"
#include "libcommon/layout/hf/hf_target.h"
#include "libcommon/write/rehearsal.h"
#include "tools/common/convert_cli.h"
#include "tools/common/deepspeed_options.h"
#include "tools/common/deepspeed_write.h"

struct export_job {
    struct cli cli;
    const char *in, *out;
    bool import, all_steps;
    struct strbuf shape;                /* the options that affect the output, as text */

    int dtype;                          /* dtype of the weights; -1: not given */

    /* export */
    int arch;                           /* -1: not given */
    struct hf_request hf;
    bool strip_vocab;
    int64_t vocab_tokens;               /* 0: use the number in the checkpoint */
    /* number of ranks whose files are written; 0: write the files that Transformers loads */
    int ranks;
    const char *tokenizer;
    json_t *config;                     /* from --config KEY=JSON, or NULL */
    json_t *config_file;                /* from --config FILE, or NULL */
    const char *config_path;
    /* value of --rules: a family's name or a file; NULL: the family follows from config_file's model_type */
    const char *rules;

    /* import */
    struct ds_options target;
    bool repeat_last;
};

/* Parse the command line. Returns 0, or -1 after an error message. */
int export_job_parse(struct export_job *j, int argc, char **argv);
/*
 * job_export() converts one checkpoint, or prints the plan with --dry-run. All these functions return the exit status.
 */
int job_export(struct export_job *j);
int job_export_all(struct export_job *j);
int job_import(struct export_job *j);

/* ---- talk.c ---- */

/* Print what an export would write. */
void export_print_plan(const struct export_job *j, const char *out, const struct hf_target *t,
                       const struct report *notes, const struct rehearsal *r);
void export_print_result(const struct export_job *j, const char *out, const struct hf_target *t,
                         const struct convert_result *r);
/* Print what an import would write. */
void export_print_import_plan(const struct export_job *j, const struct ds_target *t, const struct report *notes,
                              const struct rehearsal *r);

#endif
