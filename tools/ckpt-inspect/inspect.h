/*
 * inspect.h - declarations shared by the sub-commands of ckpt-inspect
 *
 * A sub-command is a function that receives the parsed command line and returns the exit status: EXIT_OK,
 * EXIT_BAD if it found a problem or failed, or EXIT_USAGE.
 */
#ifndef SHARDKIT_CKPT_INSPECT_H
#define SHARDKIT_CKPT_INSPECT_H

#include <stdbool.h>

#include <jansson.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/report.h"
#include "libcommon/base/tensor.h"
#include "libcommon/cli/cli_words.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/plan/stats.h"

enum cat_format { CAT_TEXT, CAT_NPY, CAT_RAW };

struct inspect {
    struct cli cli;
    struct cli_words words;
    const char **arg;           /* arguments after the sub-command */
    int n_args;
    int state;                  /* --state, -1: all */
    const char *glob;           /* --param, NULL: all */
    const char *slice;          /* --slice, NULL: the whole tensor */
    const char *output;         /* --output, NULL: stdout */
    enum cat_format format;
    bool strict, lenient, allow_drift;
    bool tensors_only;          /* --tensors-only */
    const char *certificate;    /* --certificate, NULL: none */
    int max;                    /* --max */
    bool conf;                  /* --conf */
};

/* ---- options.c ---- */

/* Marks of the tool's own options: one bit per command that accepts the option. */
enum {
    CMD_LS = 1, CMD_CAT = 2, CMD_ARGS = 4, CMD_STATS = 8, CMD_VERIFY = 16, CMD_REPLICAS = 32, CMD_DIFF = 64,
    CMD_SUMMARY = 128, CMD_DAMAGE = 256,
};

/* Parse the command line. Returns 0, or -1 after an error message on stderr. */
int inspect_parse(struct inspect *in, int argc, char **argv);

/* ---- cmd_*.c ---- */

int cmd_summary(struct inspect *in);
int cmd_ls(struct inspect *in);
int cmd_cat(struct inspect *in);
int cmd_args(struct inspect *in);
int cmd_stats(struct inspect *in);
int cmd_verify(struct inspect *in);
int cmd_damage(struct inspect *in);
int cmd_replicas(struct inspect *in);
int cmd_diff(struct inspect *in);

/* Print the arguments of the checkpoint at `path` as a file of options for train --config. */
void args_print_conf(const struct pk *args, const char *path);

/* ---- out.c: printing ---- */

void out_json(json_t *o);                               /* print o as one line on stdout and release it */
json_t *out_text(const char *s);                        /* bytes that are not UTF-8 become \xHH; NULL becomes null */
json_t *out_int_or_null(int64_t v);                     /* a negative value means unknown and becomes null */
json_t *out_real(double v);                             /* NaN and infinity become null */
json_t *out_ulps(uint64_t ulps);                        /* STATS_NO_ULPS becomes null */
const char *out_ulps_text(uint64_t ulps, char buf[32]); /* "3 ulps"; "NaN" for STATS_NO_ULPS */
json_t *out_shape(const int64_t *shape, int ndim);
json_t *out_findings(const struct report *r);
/* Print findings of severity `least` or higher on stdout, one per line: "error: FILE: at byte N: ...". */
void out_findings_text(const struct report *r, enum severity least);
/*
 * Print on stderr the errors that did not make opening fail (with -v other findings, too). Returns EXIT_BAD if there
 * were errors, else EXIT_OK.
 */
int out_open_findings(const struct inspect *in, const struct report *r);
/* Returns the JSON of a pickled value: the corresponding JSON type, or text if JSON has no such type. */
json_t *out_pickled(const struct pk *v);

#endif
