/*
 * cli.h - what all tools have in common on the command line
 *
 * Shared options have one meaning everywhere: rows (option_table.h) that a tool lists behind its own:
 *   const struct option_group groups[] = { { "Options", rows, &job, 0 }, { NULL, cli_rows, &job.cli, 0 }, {0} };
 * Exit status: 0 sound, 1 bad data or failed work, 2 wrong usage.
 */
#ifndef SHARDKIT_CLI_H
#define SHARDKIT_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/base/progress.h"
#include "libcommon/base/replicas.h"
#include "libcommon/base/report.h"
#include "libcommon/cli/option_table.h"

enum { EXIT_OK = 0, EXIT_BAD = 1, EXIT_USAGE = 2 };

/*
 * Rows of options that tools share (cli_options.c), taken into a struct cli: of every tool; of those that write, where
 * copies that disagree fail unless --replicas is given; of converters, whose OUT appears whole; of those that write
 * tags. What is asked for in place of work alone, for tools without a struct cli.
 */
extern const struct option_row cli_rows[], cli_rows_write_fail[], cli_rows_convert[],
    cli_rows_latest[], cli_rows_certificate[], cli_rows_asked[];
int cli_take_part(void *cli, const char *value, struct err *e);         /* I/N or auto */
/* The row of --model, for tables into other structs: where it goes, and the commands that know it. */
#define CLI_ROW_MODEL(type, field_, marks_)                                                                        \
    { "model", 0, "PREFIX", "prefix of the model's tensors, where a folder of torch.distributed holds several "     \
      "models: policy", OPTION_FIELD(type, field_), .marks = marks_ }
#define CLI_REPLICAS_WORDS "average first majority fail"        /* enum replica_policy */

struct cli {
    const char *tool;
    const char *model;          /* --model; NULL */
    bool json, quiet, force, dry_run, verify, resume, accept_mismatch, set_latest;
    const char *certificate;            /* where to write one (certificate.h), or NULL */
    int verbose;
    int threads;                        /* >= 1 once cli_start() ran */
    uint64_t mem_bytes;
    enum progress_mode progress;
    enum replica_policy replicas;
    int part, n_parts;                  /* from --part or the launcher (OMPI_, PMI_, SLURM_), else 0 of 1 */
    bool launched;                      /* the launcher told them: whether its other tasks take part is not known */
    bool all_tasks;                     /* --part auto: they do */
};

/* Fills defaults; installs handlers so that SIGINT and SIGTERM set a flag (cli_stopped). */
void cli_start(struct cli *cli, char **argv, const char *tool);
/* Rank and size of a launcher, else 0 of 1. */
void cli_find_launcher(struct cli *cli);
/*
 * Take the options of argv, over the defaults. 0, or -1 after saying on stderr what is wrong; prints what --help and
 * its like ask for, and exits.
 */
int cli_parse(struct cli *cli, const struct option_table *o, int argc, char **argv);
/* Print what was asked for in place of work. EXIT_OK, or EXIT_BAD where stdout cannot be written. */
int cli_answer(const struct option_table *o, enum option_asked asked);
/* "TOOL: what" (NULL: already said) and "Try 'TOOL --help'"; returns EXIT_USAGE. */
int cli_usage(struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Print the error, or as a JSON object on stdout with --json; returns EXIT_BAD (EXIT_USAGE for ERR_USAGE). */
int cli_fail(struct cli *cli, const struct err *e);
/*
 * Talk on stderr; "warning: " and rank prefixes are added here. --quiet silences cli_say() alone: a warning may be
 * about what a result lacks.
 */
void cli_say(const struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
void cli_warn(const struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The warnings of a report. */
void cli_warn_findings(const struct cli *cli, const struct report *r);
/* Print an object as one line on stdout; takes the reference. */
void cli_json(json_t *o);
/* Flush stdout and notice a full disk; dies of the signal when one arrived. Returns rc or EXIT_BAD. */
int cli_done(struct cli *cli, int rc);
/* True once SIGINT or SIGTERM arrived. Safe from any thread. */
bool cli_stopped(void);

#endif
