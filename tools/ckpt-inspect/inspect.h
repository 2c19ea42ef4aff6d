/*
 * inspect.h - declarations shared by the sub-commands of ckpt-inspect
 *
 * Each sub-command is a function that takes the parsed command line and returns the exit status: EXIT_OK, EXIT_BAD if
 * it has found a problem or failed, or EXIT_USAGE.
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
    const char **arg;           /* arguments of the sub-command */
    int n_args;
    int state;                  /* value of --state; -1: all states */
    const char *glob;           /* value of --param; NULL: all parameters */
    const char *slice;          /* value of --slice; NULL: the whole tensor */
    const char *output;         /* value of --output; NULL: stdout */
    enum cat_format format;
    bool strict, lenient, allow_drift;
    bool tensors_only;          /* --tensors-only was given */
    const char *certificate;    /* value of --certificate; NULL: none */
    int max;                    /* value of --max */
    const char *patch;          /* value of --patch; NULL: none */
    bool conf;                  /* --conf was given */
};

/* ---- options.c ---- */

/* One bit per command. The marks of an option are the commands that accept it. */
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

/* Print the arguments of the checkpoint at `path` as a file of options for train. */
void args_print_conf(const struct pk *args, const char *path);

/* ---- out.c: printing ---- */

void out_json(json_t *o);                               /* prints o as one line on stdout, and releases it */
json_t *out_text(const char *s);                        /* returns a JSON string in which bytes that are not UTF-8
                                                         * are written as \xHH; null if s is NULL */
json_t *out_int_or_null(int64_t v);                     /* returns null for a negative number, which means unknown */
json_t *out_real(double v);                             /* returns null for NaN and infinity */
json_t *out_ulps(uint64_t ulps);                        /* returns null for STATS_NO_ULPS */
const char *out_ulps_text(uint64_t ulps, char buf[32]); /* returns a text such as "3 ulps"; "NaN" for STATS_NO_ULPS */
json_t *out_shape(const int64_t *shape, int ndim);
json_t *out_findings(const struct report *r);
/* Print the findings of severity `least` or higher on stdout, one per line: "error: FILE: at byte N: ...". */
void out_findings_text(const struct report *r, enum severity least);
/*
 * The checkpoint could be opened, but there may be errors. Print them on stderr, and with -v all other findings, too.
 * Returns EXIT_BAD if there are errors, else EXIT_OK.
 */
int out_open_findings(const struct inspect *in, const struct report *r);
/* Returns a pickled value as JSON. If JSON has no corresponding type, the result is the text of the value. */
json_t *out_pickled(const struct pk *v);

#endif
