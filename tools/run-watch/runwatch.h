/*
 * runwatch.h - declarations shared by the verbs of run-watch
 *
 * A verb that checks something fills a report. In the report, an ERROR is a problem, a WARNING is something that could
 * not be determined, and a NOTE is something that is in order. round.c uses the report to print lines, send alarms,
 * leave a heartbeat and choose the exit status. watch_alarm.c notifies people, and book.c stores data from one call to
 * the next. The verbs that draw do not use rounds: past/ reads the data and picture/ draws it.
 */
#ifndef SHARDKIT_RUN_WATCH_H
#define SHARDKIT_RUN_WATCH_H

#include "libcommon/base/mem.h"
#include "libcommon/cli/cli_words.h"
#include "tools/run-watch/book.h"

enum runwatch_compat { RUNWATCH_OWN, RUNWATCH_BIGSCIENCE };

struct runwatch {
    struct cli cli;
    struct cli_words words;     /* the words that are not options, the verb first */
    const char **arg;           /* the words after the verb */
    int n_args;
    const char *verb;

    /* ---- options ---- */
    const char *book;           /* --state; NULL: the user's default */
    const char *name;           /* --name; NULL: leave no heartbeat */
    double every_min;           /* --every; 0: not given */
    double follow_s;            /* --follow; 0: only one round */
    int64_t given_now;          /* --now; 0: use the clock */
    const char *mail, *webhook, *command;
    double remind_min;
    const char *log, *events, *rules;   /* for status */
    double max_save_min, max_backup_min, hang_min, hang_iterations, slow_percent, spike_percent;
    const char *job_name, *group, *users;       /* for pulse */
    int compat;                 /* enum runwatch_compat */
    double ahead_h, max_age_min;        /* for fs and crons */
    const char *output, *title;         /* for plot and report */
    const char *backups;                /* for report */
    const char *level;                  /* for plot */
    bool difference;

    /* ---- state of one round ---- */
    double now_s;               /* in seconds since 1970 */
    struct report *report;
    json_t *facts;              /* members that --json prints in addition to the findings */
    struct strbuf text;         /* if not empty, this text is printed instead of the findings */
    /* the subject of the check, such as "status /scratch/run"; part of the names of its alarms */
    char *scope;
    char *subject, *body;       /* subject and body of the mail; NULL: the default ones */
};

/* ---- watch_options.c ---- */

/* Each option is marked with the verbs that accept it. */
enum { VERB_STATUS = 1, VERB_PULSE = 2, VERB_FS = 4, VERB_CRONS = 8, VERB_BEAT = 16, VERB_PLOT = 32,
       VERB_REPORT = 64, VERB_CHECKS = 15, VERB_DRAWS = 96 };
/* Returns 0, or -1 after reporting the error on stderr. */
int runwatch_parse(struct runwatch *w, int argc, char **argv);

/* ---- round.c ---- */

/*
 * Call `inspect`, print its findings, and send alarms. Returns EXIT_OK or EXIT_BAD. Returns EXIT_USAGE if `inspect`
 * failed with ERR_USAGE.
 */
int round_run(struct runwatch *w, int (*inspect)(struct runwatch *w, struct err *e));
void round_wrong(struct runwatch *w, const char *code, const char *about, const char *fmt, ...) PRINTF_LIKE(4, 5);
void round_unknown(struct runwatch *w, const char *code, const char *about, const char *fmt, ...) PRINTF_LIKE(4, 5);
void round_report_ok(struct runwatch *w, const char *code, const char *about, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Open the book that the options name (see book_open()). If the book is damaged, a warning is printed. */
MUST_CHECK int round_book(struct runwatch *w, struct book *b, struct err *e);
/* Format a duration as "45 s", "25 min", "3.5 h" or "12 days". Returns buf. */
const char *round_span(double seconds, char buf[24]);

/* ---- *_inspect.c: the verbs that check ---- */

/* Check the subject of the verb and fill w's report. Returns -1 with ERR_USAGE, or if nothing could be checked. */
MUST_CHECK int status_inspect(struct runwatch *w, struct err *e);
MUST_CHECK int pulse_inspect(struct runwatch *w, struct err *e);
MUST_CHECK int fs_inspect(struct runwatch *w, struct err *e);
MUST_CHECK int crons_inspect(struct runwatch *w, struct err *e);
MUST_CHECK int beat_record(struct runwatch *w, struct err *e);

/* ---- draw_*.c: the verbs that draw ---- */

/*
 * Draw the runs. Returns EXIT_OK if all data was drawn. Returns EXIT_BAD if damaged files were reported and only the
 * rest was drawn. Returns -1 with *e set if nothing was drawn.
 */
MUST_CHECK int plot_draw(struct runwatch *w, struct err *e);
MUST_CHECK int report_draw(struct runwatch *w, struct err *e);

#endif
