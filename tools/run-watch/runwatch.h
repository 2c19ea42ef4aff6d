/*
 * runwatch.h - what the verbs of run-watch share
 *
 * A verb looks at something and fills a report: ERROR is what is wrong, WARNING what could not be established, NOTE
 * what is well. round.c makes lines, alarms, a heartbeat and the exit status of it; alarm.c tells people, and book.c
 * remembers from one call to the next. The verbs that draw have no rounds: past/ reads, picture/ draws.
 */
#ifndef SHARDKIT_RUN_WATCH_H
#define SHARDKIT_RUN_WATCH_H

#include "libcommon/base/mem.h"
#include "libcommon/cli/cli_words.h"
#include "tools/run-watch/book.h"

enum runwatch_compat { RUNWATCH_OWN, RUNWATCH_BIGSCIENCE };

struct runwatch {
    struct cli cli;
    struct cli_words words;     /* what is no option, the verb first */
    const char **arg;           /* what follows the verb */
    int n_args;
    const char *verb;

    /* ---- options ---- */
    const char *book;           /* --state, NULL: the user's */
    const char *name;           /* --name, NULL: no heartbeat */
    double every_min;           /* --every; 0: not said */
    double follow_s;            /* --follow; 0: once */
    int64_t given_now;          /* --now; 0: the clock's */
    const char *mail, *webhook, *command;
    double remind_min;
    const char *log, *events, *rules;   /* status */
    double max_save_min, max_backup_min, hang_min, hang_iterations, slow_percent, spike_percent;
    const char *job_name, *group, *users;       /* pulse */
    int compat;                 /* enum runwatch_compat */
    double ahead_h, max_age_min;        /* fs, crons */
    const char *output, *title;         /* plot, report */
    const char *backups;                /* report */
    const char *level;                  /* plot */
    bool difference;

    /* ---- of one round ---- */
    double now_s;               /* since 1970 */
    struct report *report;
    json_t *facts;              /* what --json says beside the findings */
    struct strbuf text;         /* what is printed in place of findings; empty: they are */
    char *scope;                /* what was looked at: "status /scratch/run"; alarms are about that */
    char *subject, *body;       /* of mail, in place of our own; NULL */
};

/* ---- options.c ---- */

/* Marks of options: the verbs that take them. */
enum { VERB_STATUS = 1, VERB_PULSE = 2, VERB_FS = 4, VERB_CRONS = 8, VERB_BEAT = 16, VERB_PLOT = 32,
       VERB_REPORT = 64, VERB_CHECKS = 15, VERB_DRAWS = 96 };
/* 0, or -1 after saying on stderr what is wrong. */
int runwatch_parse(struct runwatch *w, int argc, char **argv);

/* ---- round.c ---- */

/* Look once, say and tell. EXIT_OK or EXIT_BAD; EXIT_USAGE where `look` filled an ERR_USAGE. */
int round_run(struct runwatch *w, int (*look)(struct runwatch *w, struct err *e));
void round_wrong(struct runwatch *w, const char *code, const char *about, const char *fmt, ...) PRINTF_LIKE(4, 5);
void round_unknown(struct runwatch *w, const char *code, const char *about, const char *fmt, ...) PRINTF_LIKE(4, 5);
void round_note(struct runwatch *w, const char *code, const char *about, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* book_open() of the book that was asked for; what it says of a damaged one is said. */
MUST_CHECK int round_book(struct runwatch *w, struct book *b, struct err *e);
/* "45 s", "25 min", "3.5 h", "12 days" */
const char *round_span(double seconds, char buf[24]);

/* ---- *_look.c: the verbs ---- */

/* Look, and fill w's report. -1: ERR_USAGE, or nothing at all could be looked at. */
MUST_CHECK int status_look(struct runwatch *w, struct err *e);
MUST_CHECK int pulse_look(struct runwatch *w, struct err *e);
MUST_CHECK int fs_look(struct runwatch *w, struct err *e);
MUST_CHECK int crons_look(struct runwatch *w, struct err *e);
MUST_CHECK int beat_look(struct runwatch *w, struct err *e);

/* ---- draw_*.c: the verbs that draw ---- */

/* EXIT_OK; EXIT_BAD where something was damaged, which is said, and the rest drawn; -1 and *e. */
MUST_CHECK int plot_draw(struct runwatch *w, struct err *e);
MUST_CHECK int report_draw(struct runwatch *w, struct err *e);

#endif
