/*
 * backup.h - what the sub-commands of ckpt-backup share
 *
 * A sub-command is a function that takes the parsed command line and returns the exit status.
 */
#ifndef SHARDKIT_CKPT_BACKUP_H
#define SHARDKIT_CKPT_BACKUP_H

#include "libcommon/cli/cli_words.h"
#include "tools/ckpt-backup/place/place.h"

struct backup {
    struct cli cli;
    struct cli_words words;     /* the sub-command first */
    const char **arg;           /* what follows the sub-command */
    int n_args;
    enum backup_form form;      /* of copy, tar and weights */
    const char *rules;          /* --rules, NULL: none */
    bool apply;                 /* --apply */
    bool pack;                  /* --pack */
};

/* ---- options.c ---- */

/* Marks of the tool's own options: the commands that take them. */
enum {
    CMD_COPY = 1, CMD_TAR = 2, CMD_WEIGHTS = 4, CMD_VERIFY = 8, CMD_RESTORE = 16, CMD_LIST = 32, CMD_PLAN = 64,
    CMD_FORGET = 128,
};

/* 0, or -1 after saying on stderr what is wrong. */
int backup_parse(struct backup *b, int argc, char **argv);

/* ---- cmd_*.c ---- */

int cmd_copy(struct backup *b);         /* tar and weights, too */
int cmd_verify(struct backup *b);
int cmd_restore(struct backup *b);
int cmd_list(struct backup *b);
int cmd_plan(struct backup *b);
int cmd_forget(struct backup *b);

/* ---- talk.c ---- */

struct place_opts backup_place_opts(const struct backup *b);
/*
 * Copy `path` to the place, and say what was done. EXIT_OK or EXIT_BAD. newer: than what `latest` names, so that it may
 * still be written; where it is not whole that is a warning.
 */
int backup_put(struct backup *b, struct place *p, const char *path, enum backup_form form, bool newer);
/* Findings of ERROR, one a line on stderr. */
void backup_tell_errors(const struct backup *b, const struct report *r);
/* One line on stderr when it is a faithful copy of what is not sound. */
void backup_tell_unsound(const struct backup *b, const struct place *p, const struct receipt *rec);
/* "2026-03-01 12:00" in UTC, or "-" for 0. */
const char *backup_time(int64_t s, char buf[24]);

#endif
