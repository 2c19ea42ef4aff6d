/*
 * cli.h - the part of the command line that all tools share
 *
 * Shared options have the same meaning in every tool. Each is a row of a table (option_table.h). A tool lists the
 * shared rows after its own:
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
 * Rows of the options that tools share (cli_options.c). The values are stored in a struct cli.
 *   cli_rows               every tool
 *   cli_rows_write_fail    tools that write and that fail if copies disagree, unless --replicas is given
 *   cli_rows_convert       converters, whose OUT appears only when it is complete
 *   cli_rows_latest        tools that write checkpoint folders next to a file "latest"
 *   cli_rows_certificate   tools that write certificates
 *   cli_rows_asked         only --help and the like, for tools without a struct cli
 */
extern const struct option_row cli_rows[], cli_rows_write_fail[], cli_rows_convert[],
    cli_rows_latest[], cli_rows_certificate[], cli_rows_asked[];
int cli_parse_part(void *cli, const char *value, struct err *e);         /* parses I/N or auto */
/*
 * The row of --model for a table that stores values in a struct other than struct cli. field_ is the member that
 * receives the value. marks_ selects the commands that accept the option.
 */
#define CLI_ROW_MODEL(type, field_, marks_)                                                                        \
    { "model", 0, "PREFIX", "prefix of the model's tensor names, such as policy, if a folder of "                   \
      "torch.distributed holds several models", OPTION_FIELD(type, field_), .marks = marks_ }
#define CLI_REPLICAS_WORDS "average first majority fail"        /* enum replica_policy */

struct cli {
    const char *tool;
    const char *name;           /* the tool's name in messages: `tool`, or the command of shardkit that started it
                                 * ("shardkit verify") */
    const char *model;          /* value of --model; NULL if it was not given */
    bool json, quiet, force, dry_run, verify, resume, accept_mismatch, skip_unreadable, set_latest;
    const char *certificate;            /* path for the certificate (certificate.h); NULL: none is written */
    int verbose;
    int threads;                        /* >= 1 after cli_start() */
    uint64_t mem_bytes;
    enum progress_mode progress;
    enum replica_policy replicas;
    int part, n_parts;                  /* set by --part or, if it is not given, by the launcher (OMPI_, PMI_, SLURM_);
                                         * otherwise part 0 of 1 */
    bool launched;                      /* true if the launcher set the part; it is then not known whether the other
                                         * tasks of the job take part */
    bool all_tasks;                     /* --part auto was given: the other tasks of the job take part */
};

/*
 * Record how the user started the program. shardkit starts a tool with its own command ("shardkit verify") as argv[0].
 * argv must remain valid. cli_start() calls this.
 */
void cli_record_argv(char **argv);
/*
 * Return the words that the user typed to start the tool. If shardkit has started the tool, these are a command such as
 * "shardkit verify", otherwise `tool`.
 */
const char *cli_typed_name(const char *tool);
/*
 * Print a text. If shardkit started the program, the names of commands in the text are replaced by commands of shardkit
 * (typed.h). The other functions of this file that print messages do the same.
 */
void cli_printf(FILE *f, const char *fmt, ...) PRINTF_LIKE(2, 3);
/*
 * Set the defaults and install signal handlers. After that, SIGINT and SIGTERM only set a flag, which cli_stopped()
 * returns.
 */
void cli_start(struct cli *cli, char **argv, const char *tool);
/* Set part and n_parts to the rank and size that the launcher has set. Without a launcher, they are set to 0 and 1. */
void cli_find_launcher(struct cli *cli);
/*
 * Set the defaults, and parse the options of argv. Returns 0, or -1 after printing the error on stderr. If --help or a
 * similar option is given, prints the answer and exits.
 */
int cli_parse(struct cli *cli, const struct option_table *o, int argc, char **argv);
/*
 * Print the answer to --help or a similar option. --help names the tool as the user typed it. If a command comes first
 * ("ckpt-inspect verify --help"), only this command is described. Returns EXIT_OK, or EXIT_BAD if stdout cannot be
 * written.
 */
int cli_answer(const struct option_table *o, enum option_asked asked, char **argv);
/* Print "NAME: message" and then "Try 'NAME --help'". If fmt is NULL, the message is omitted. Returns EXIT_USAGE. */
int cli_usage(struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
/*
 * Print the error on stderr. With --json, also print it as an object on stdout. Returns EXIT_USAGE for ERR_USAGE,
 * otherwise EXIT_BAD.
 */
int cli_fail(struct cli *cli, const struct err *e);
/*
 * Print a message on stderr. cli_warn() puts "warning: " in front of the message; both functions put the rank in front.
 * --quiet suppresses cli_info() but not cli_warn(), because a warning may report that a result is incomplete.
 */
void cli_info(const struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
void cli_warn(const struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Print each WARNING finding of a report with cli_warn(). */
void cli_warn_findings(const struct cli *cli, const struct report *r);
/* Print `o` as one line on stdout, and release the reference to it. */
void cli_json(json_t *o);
/*
 * Flush stdout in order to detect a full disk. If a signal has arrived, the process ends with this signal. Otherwise
 * returns rc, or EXIT_BAD if stdout cannot be written.
 */
int cli_done(struct cli *cli, int rc);
/* Returns true after SIGINT or SIGTERM arrived. Safe from any thread. */
bool cli_stopped(void);

#endif
