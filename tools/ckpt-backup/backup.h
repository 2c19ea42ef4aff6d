/*
 * backup.h - declarations shared by the sub-commands of ckpt-backup
 *
 * Each sub-command is a function that takes the parsed command line and returns the exit status.
 */
#ifndef SHARDKIT_CKPT_BACKUP_H
#define SHARDKIT_CKPT_BACKUP_H

#include "libcommon/cli/cli_words.h"
#include "tools/ckpt-backup/place/place.h"

struct backup {
    struct cli cli;
    struct cli_words words;     /* all words that are not options; the first one is the sub-command */
    const char **arg;           /* the words after the sub-command */
    int n_args;
    enum backup_form form;      /* the form in which copy, tar or weights stores the backup */
    const char *rules;          /* value of --rules; NULL if it was not given */
    bool apply;                 /* --apply was given */
    bool trust_receipts;        /* --trust-receipts was given */
    bool pack;                  /* --pack was given */
    bool weights_only;          /* --weights-only was given */
    bool any;                   /* --any was given */
    const char *delta_from;     /* value of --delta-from; NULL if it was not given */
};

/* ---- options.c ---- */

/* One bit per command. The marks of an option are the commands that accept it. */
enum {
    CMD_COPY = 1, CMD_TAR = 2, CMD_WEIGHTS = 4, CMD_VERIFY = 8, CMD_RESTORE = 16, CMD_LIST = 32, CMD_PLAN = 64,
    CMD_FORGET = 128,
};

/* Parse the command line. Returns 0, or -1 after printing the error on stderr. */
int backup_parse(struct backup *b, int argc, char **argv);

/* ---- cmd_*.c ---- */

int cmd_copy(struct backup *b);         /* also runs the commands tar and weights */
int cmd_verify_backups(struct backup *b);
int cmd_restore(struct backup *b);
int cmd_list(struct backup *b);
int cmd_plan(struct backup *b);
int cmd_forget(struct backup *b);

/* ---- talk.c ---- */

struct place_opts backup_place_opts(const struct backup *b);
/*
 * Copy the checkpoint at `path` to the place, and print the result. Returns EXIT_OK or EXIT_BAD. `newer` is true if the
 * step is newer than the one that the file `latest` names, so it may still be being written. If such a step is not
 * complete, this is a warning and not an error.
 */
int backup_put(struct backup *b, struct place *p, const char *path, enum backup_form form, bool newer);
/* Print the findings of severity ERROR on stderr, one per line. */
void backup_print_errors(const struct backup *b, const struct report *r);
/* If the backup is a faithful copy of a checkpoint that has errors, print one line about this on stderr. */
void backup_print_unsound(const struct backup *b, const struct place *p, const struct receipt *rec);
/* Format a time as "2026-03-01 12:00" in UTC. Returns buf, or the constant "-" if s is 0. */
const char *backup_time(int64_t s, char buf[24]);

#endif
