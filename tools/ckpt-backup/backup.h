/*
 * backup.h - declarations shared by the sub-commands of ckpt-backup
 *
 * A sub-command is a function that receives the parsed command line and returns the exit status.
 */
#ifndef SHARDKIT_CKPT_BACKUP_H
#define SHARDKIT_CKPT_BACKUP_H

#include "libcommon/cli/cli_words.h"
#include "tools/ckpt-backup/place/place.h"

struct backup {
    struct cli cli;
    struct cli_words words;     /* all words; the first is the sub-command */
    const char **arg;           /* the words after the sub-command */
    int n_args;
    enum backup_form form;      /* the form that copy, tar or weights writes */
    const char *rules;          /* --rules; NULL if not given */
    bool apply;                 /* --apply */
    bool pack;                  /* --pack */
    bool weights_only;          /* --weights-only */
    bool any;                   /* --any */
};

/* ---- options.c ---- */

/* Marks of the tool's own options: the commands that accept them. */
enum {
    CMD_COPY = 1, CMD_TAR = 2, CMD_WEIGHTS = 4, CMD_VERIFY = 8, CMD_RESTORE = 16, CMD_LIST = 32, CMD_PLAN = 64,
    CMD_FORGET = 128,
};

/* Parse the command line. Returns 0, or -1 after printing the error on stderr. */
int backup_parse(struct backup *b, int argc, char **argv);

/* ---- cmd_*.c ---- */

int cmd_copy(struct backup *b);         /* also runs tar and weights */
int cmd_verify_backups(struct backup *b);
int cmd_restore(struct backup *b);
int cmd_list(struct backup *b);
int cmd_plan(struct backup *b);
int cmd_forget(struct backup *b);

/* ---- talk.c ---- */

struct place_opts backup_place_opts(const struct backup *b);
/*
 * Copy the checkpoint at `path` to the place and print the result. Returns EXIT_OK or EXIT_BAD. newer: the step is
 * newer than the one that `latest` names, so it may still be being written; if it is not complete, that is a warning
 * and not an error.
 */
int backup_put(struct backup *b, struct place *p, const char *path, enum backup_form form, bool newer);
/* Print the findings of severity ERROR on stderr, one per line. */
void backup_print_errors(const struct backup *b, const struct report *r);
/* Print one line on stderr if the backup is a faithful copy of a checkpoint with errors. */
void backup_print_unsound(const struct backup *b, const struct place *p, const struct receipt *rec);
/* Format a time as "2026-03-01 12:00" in UTC, or "-" for 0. Returns buf or the constant "-". */
const char *backup_time(int64_t s, char buf[24]);

#endif
