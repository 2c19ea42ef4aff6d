/*
 * ckptedit.h - declarations shared by the commands of ckpt-edit
 *
 * A command that changes a checkpoint describes the changes in a struct edit (cmd_change.c and others). edit_run.c
 * opens IN and writes OUT as this struct describes. With --in-place, it then exchanges the result with IN (swap.h).
 */
#ifndef SHARDKIT_CKPT_EDIT_H
#define SHARDKIT_CKPT_EDIT_H

#include "libcommon/cli/cli_words.h"
#include "libcommon/layout/edit/edit.h"
#include "libcommon/write/inputs.h"

struct ckptedit {
    struct cli cli;
    struct cli_words words;
    const char **arg;           /* arguments of the command, without IN and OUT */
    int n_args;
    const char *in, *out;       /* out: the folder that is written; with --in-place this is swap_before(in) */
    char *place;                /* for --in-place, rollback and commit: the folder that swap_folder() returns for IN */
    bool in_place, any_type, derived, moments, hard_links;
    const char *weights;        /* value of --weights, such as "0.5,0.3,0.2" */
    const char *init;           /* value of --init, such as "normal:0.02" */
    int rounding;               /* enum merge_rounding */
    double decay;
    int64_t last;               /* --last N: average the newest N checkpoints in the run's folder IN; 0: not given */
    int style;                  /* enum average_style; -1: not given */
    char **steps;               /* with --last: paths of the checkpoints, oldest first */
    int n_steps;
    int64_t step, samples, tokens;      /* -1: not given */
    const char *from;           /* path of another checkpoint, from which salvage takes values; NULL: none */
    bool allow_lost;
    struct inputs inputs;       /* what the command reads, except IN */
    bool holes;                 /* the command accepts an IN in which files are missing */
    bool only_types;            /* the command changes neither names nor sizes, so contradictions in IN remain in OUT */
    struct strbuf log;          /* journal of what salvage has restored; it is stored in the result */
    struct strbuf shape;        /* the words of the command line, without IN, on which the result depends */
};

/* One bit per command. */
enum { CMD_PUT = 1, CMD_ZERO = 2, CMD_SET = 4, CMD_DROP = 8, CMD_LATEST = 16, CMD_ROLLBACK = 32, CMD_COMMIT = 64,
       CMD_AVERAGE = 128, CMD_EMA = 256, CMD_RETAG = 512, CMD_CAST = 1024, CMD_RENAME = 2048, CMD_LAYERS = 4096,
       CMD_VOCAB = 8192, CMD_THIN = 16384, CMD_SALVAGE = 32768, CMD_MERGE_ADAPTER = 65536, CMD_APPLY = 131072 };
/* How merge-adapter rounds. The order is that of the words of --rounding. */
enum merge_rounding { ROUNDING_EXACT, ROUNDING_PEFT };
/*
 * Shape of a learning-rate decay whose effect `average` imitates with its factors. The order is that of the words of
 * --style.
 */
enum average_style { STYLE_LINEAR, STYLE_COSINE, STYLE_MINUS_SQRT };
enum { CMD_CHANGES = CMD_PUT | CMD_ZERO | CMD_SET | CMD_DROP | CMD_AVERAGE | CMD_EMA |
       CMD_RETAG | CMD_CAST | CMD_RENAME | CMD_LAYERS | CMD_VOCAB | CMD_THIN |
       CMD_SALVAGE | CMD_MERGE_ADAPTER | CMD_APPLY };
/* In these commands IN comes before the other arguments; in all others it comes after them. */
enum { CMD_IN_FIRST = CMD_AVERAGE | CMD_EMA | CMD_MERGE_ADAPTER };

/* Parse the command line. Returns 0, or -1 after an error message on stderr. */
int ckptedit_parse(struct ckptedit *j, int argc, char **argv);

/*
 * For --last N: set IN to the newest checkpoint in the run's folder, and the arguments to the N - 1 checkpoints before
 * it, oldest first. Returns -1 with *e set if the run has fewer checkpoints.
 */
MUST_CHECK int mix_find_steps(struct ckptedit *j, struct err *e);

/* ---- cmd_*.c, the commands that change a checkpoint: return 0, or -1 with *e set ---- */

typedef int ckptedit_change(struct ckptedit *j, struct source *s, struct edit *x, struct err *e);
ckptedit_change change_put, change_zero, change_set, change_drop, change_average, change_ema, change_retag;
ckptedit_change change_cast, change_rename, change_layers, change_vocab, change_thin;
ckptedit_change change_salvage, change_merge_adapter, change_apply;
/* Remove the tensors whose names match an argument of the command. */
MUST_CHECK int drop_tensors(struct ckptedit *j, struct edit *x, struct err *e);

/* The kinds of counters of a run. */
enum counted { STEPS, SAMPLES, TOKENS };
/*
 * Change all counters of the kinds for which j->step, j->samples and j->tokens are not -1. found[] is set for each kind
 * that the checkpoint has.
 */
MUST_CHECK int retag_counters(const struct ckptedit *j, const struct source *s, struct edit *x, bool found[TOKENS + 1],
                              struct err *e);

/* ---- edit_result.c: callbacks of convert_opts; ctx is the struct ckptedit ---- */

/*
 * Check the tables of the finished folder `dir` as verify does. An ERROR that IN does not have is a failure, or a
 * warning with --accept-mismatch.
 */
MUST_CHECK int check_edit_result(void *ctx, const char *dir, struct err *e);
void warn_of_edit(void *ctx, const char *text);

/* ---- edit_run.c, cmd_place.c: return the exit status ---- */

int run_change(struct ckptedit *j, ckptedit_change *change);
/* Create a file without a name for new values, on the disk of OUT. Returns its descriptor, or -1; see file_spool(). */
MUST_CHECK int ckptedit_spool(const struct ckptedit *j, uint64_t size, struct err *e);
int cmd_latest(struct ckptedit *j);
int cmd_rollback(struct ckptedit *j);
int cmd_commit(struct ckptedit *j);

#endif
