/*
 * export.h - one export to, or import from, a Transformers model folder
 */
#ifndef SHARDKIT_TOOLS_EXPORT_HF_EXPORT_H
#define SHARDKIT_TOOLS_EXPORT_HF_EXPORT_H

#include <jansson.h>

#include "libcommon/cli/cli.h"
#include "libcommon/convert/rehearsal.h"
#include "libcommon/layout/hf/hf_sink.h"
#include "tools/common/convert_cli.h"
#include "tools/common/deepspeed_options.h"
#include "tools/common/deepspeed_write.h"

struct export_job {
    struct cli cli;
    const char *in, *out;
    bool import, all_steps;
    struct strbuf shape;                /* the options that shape the output, as text */

    int dtype;                          /* of the weights; -1: not given */

    /* export */
    int arch;                           /* -1: not given */
    struct hf_request hf;
    bool strip_vocab;
    int64_t vocab_tokens;               /* 0: the checkpoint knows */
    const char *tokenizer;
    json_t *config;                     /* of --config KEY=JSON, or NULL */
    json_t *config_file;                /* of --config FILE, or NULL */
    const char *config_path;
    const char *rules;                  /* of --rules: a family's name or a file; NULL: by config_file's model_type */

    /* import */
    struct ds_options target;
    bool repeat_last;
};

/* 0, or -1 after saying what is wrong. */
int job_parse(struct export_job *j, int argc, char **argv);
/* Do it, or print the plan with --dry-run. Return the exit status. */
int job_export(struct export_job *j);
int job_export_all(struct export_job *j);
int job_import(struct export_job *j);

/* ---- talk.c ---- */

/* What an export would write. */
void talk_plan(const struct export_job *j, const char *out, const struct hf_target *t, const struct report *notes,
               const struct rehearsal *r);
void talk_result(const struct export_job *j, const char *out, const struct hf_target *t,
                 const struct convert_result *r);
/* What an import would write. */
void talk_import_plan(const struct export_job *j, const struct ds_target *t, const struct report *notes,
                      const struct rehearsal *r);

#endif
