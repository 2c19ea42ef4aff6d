/*
 * inspect.h - what the sub-commands of ckpt-inspect share
 *
 * A sub-command is a function that takes the parsed command line and returns the exit
 * status: EXIT_OK, EXIT_BAD when it found or met something wrong, EXIT_USAGE.
 */
#ifndef SHARDKIT_CKPT_INSPECT_H
#define SHARDKIT_CKPT_INSPECT_H

#include <stdbool.h>

#include <jansson.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/report.h"
#include "libcommon/cli/cli_words.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/plan/stats.h"

enum cat_format { CAT_TEXT, CAT_NPY, CAT_RAW };

struct inspect {
    struct cli cli;
    struct cli_words words;
    const char **arg;           /* those that follow the sub-command */
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
};

/* ---- options.c ---- */

/* Marks of the tool's own options: the commands that take them. */
enum {
    CMD_LS = 1, CMD_CAT = 2, CMD_ARGS = 4, CMD_STATS = 8, CMD_VERIFY = 16, CMD_REPLICAS = 32, CMD_DIFF = 64,
    CMD_SUMMARY = 128, CMD_DAMAGE = 256,
};

/* 0, or -1 after saying on stderr what is wrong. */
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

/* ---- out.c: printing ---- */

void out_json(json_t *o);                               /* one line on stdout; takes the reference */
json_t *out_text(const char *s);                        /* bytes that are no UTF-8 become \xHH; NULL: null */
json_t *out_int_or_null(int64_t v);                     /* negative is unknown: null */
json_t *out_real(double v);                             /* null for NaN and infinity */
json_t *out_ulps(uint64_t ulps);                        /* null for STATS_NO_ULPS */
const char *out_ulps_text(uint64_t ulps, char buf[32]); /* "3 ulps"; "NaN" for STATS_NO_ULPS */
json_t *out_shape(const int64_t *shape, int ndim);
const char *out_shape_text(const int64_t *shape, int ndim, char buf[160]);      /* "[512, 64]" */
json_t *out_findings(const struct report *r);
/* Findings from `least` upwards, one a line on stdout: "error: FILE: at byte N: ...". */
void out_findings_text(const struct report *r, enum severity least);
/* Errors of an open that went on, on stderr (warnings too with -v); EXIT_BAD when there were errors. */
int out_open_findings(const struct inspect *in, const struct report *r);
/* A pickled value with its own JSON type; what JSON lacks becomes text. */
json_t *out_pickled(const struct pk *v);

#endif
