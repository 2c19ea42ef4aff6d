/*
 * cli.h - the part of the command line that all tools share
 *
 * Shared options have the same meaning in every tool. They are rows (option_table.h) that a tool lists after its own:
 *   const struct option_group groups[] = { { "Options", rows, &job, 0 }, { NULL, cli_rows, &job.cli, 0 }, {0} };
 * Exit status: 0 sound, 1 bad data or failed work, 2 wrong usage.
 */
#ifndef SHARDKIT_CLI_H
#define SHARDKIT_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/base/progress.h"
#include "libcommon/base/replicas.h"
#include "libcommon/base/report.h"
#include "libcommon/cli/option_table.h"

enum { EXIT_OK = 0, EXIT_BAD = 1, EXIT_USAGE = 2 };

/*
 * Rows of options that tools share (cli_options.c), with values stored in a struct cli: those of every tool; of tools
 * that write, which fail if copies disagree unless --replicas is given; of converters, whose OUT appears as a whole;
 * of tools that write tags; of tools that write certificates. cli_rows_asked holds only --help and the like, for
 * tools without a struct cli.
 */
extern const struct option_row cli_rows[], cli_rows_write_fail[], cli_rows_convert[],
    cli_rows_latest[], cli_rows_certificate[], cli_rows_asked[];
int cli_parse_part(void *cli, const char *value, struct err *e);         /* parses I/N or auto */
/* The row of --model for tables that fill another struct: the field, and the commands that accept the option. */
#define CLI_ROW_MODEL(type, field_, marks_)                                                                        \
    { "model", 0, "PREFIX", "prefix of the model's tensor names, such as policy, if a folder of "                   \
      "torch.distributed holds several models", OPTION_FIELD(type, field_), .marks = marks_ }
#define CLI_REPLICAS_WORDS "average first majority fail"        /* enum replica_policy */

struct cli {
    const char *tool;
    const char *name;           /* what messages call the tool: `tool`, or "shardkit verify" if that started it */
    const char *model;          /* --model; NULL if not given */
    bool json, quiet, force, dry_run, verify, resume, accept_mismatch, skip_unreadable, set_latest;
    const char *certificate;            /* where to write a certificate (certificate.h), or NULL */
    int verbose;
    int threads;                        /* >= 1 after cli_start() */
    uint64_t mem_bytes;
    enum progress_mode progress;
    enum replica_policy replicas;
    int part, n_parts;                  /* from --part or the launcher (OMPI_, PMI_, SLURM_), else 0 of 1 */
    bool launched;                      /* from the launcher: it is not known whether its other tasks take part */
    bool all_tasks;                     /* --part auto: the other tasks take part */
};

/*
 * Record how the user started the program: shardkit starts tools with its own command as argv[0] ("shardkit verify").
 * argv must stay valid. cli_start() calls it.
 */
void cli_record_argv(char **argv);
/* Return what the user typed to start the tool: "shardkit verify", or `tool` if shardkit did not start it. */
const char *cli_typed_name(const char *tool);
/*
 * Print a text. If shardkit started the program, commands in it are named as the user can type them (typed.h); so they
 * are in all other messages that are printed here.
 */
void cli_printf(FILE *f, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Set the defaults, and install handlers so that SIGINT and SIGTERM set a flag (cli_stopped). */
void cli_start(struct cli *cli, char **argv, const char *tool);
/* Set part and n_parts to the launcher's rank and size, else to 0 of 1. */
void cli_find_launcher(struct cli *cli);
/*
 * Parse the options of argv, after setting the defaults. Returns 0, or -1 after printing the error on stderr. If
 * --help or a similar option is given, prints the answer and exits.
 */
int cli_parse(struct cli *cli, const struct option_table *o, int argc, char **argv);
/*
 * Print the answer to --help or a similar option. --help names the tool as the user typed it, and after a command
 * ("ckpt-inspect verify --help") describes this command alone. Returns EXIT_OK, or EXIT_BAD if stdout
 * cannot be written.
 */
int cli_answer(const struct option_table *o, enum option_asked asked, char **argv);
/* Print "NAME: message" (with fmt NULL: nothing) and "Try 'NAME --help'". Returns EXIT_USAGE. */
int cli_usage(struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Print the error; with --json also as an object on stdout. Returns EXIT_BAD, or EXIT_USAGE for ERR_USAGE. */
int cli_fail(struct cli *cli, const struct err *e);
/*
 * Print a message on stderr. "warning: " and rank prefixes are added here. --quiet silences only cli_info(): a warning
 * may report that a result is incomplete.
 */
void cli_info(const struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
void cli_warn(const struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Print the warnings of a report. */
void cli_warn_findings(const struct cli *cli, const struct report *r);
/* Print an object as one line on stdout. Releases the reference. */
void cli_json(json_t *o);
/*
 * Flush stdout and detect a full disk. If a signal has arrived, terminates the process with it. Returns rc or
 * EXIT_BAD.
 */
int cli_done(struct cli *cli, int rc);
/* Returns true after SIGINT or SIGTERM arrived. Safe from any thread. */
bool cli_stopped(void);

#endif
