/*
 * convert_cli.h - code that the converters' command lines share: calling convert.h and printing results
 *
 * For tools: these functions print on stderr through the cli.
 */
#ifndef SHARDKIT_COMMON_CONVERT_CLI_H
#define SHARDKIT_COMMON_CONVERT_CLI_H

#include "libcommon/cli/cli.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"

/*
 * The groups of shared option rows that follow the rows of a converter. `write`: the row for write errors,
 * cli_rows_write_fail.
 */
#define CLI_GROUPS_CONVERT(title, cli, write) \
    { title, cli_rows_convert, cli, 0 }, { NULL, write, cli, 0 }, { NULL, cli_rows, cli, 0 }

/* Appended to the summary line if copies of a parameter differed. */
#define CONVERT_DRIFTED "; copies differ: --replicas selects which one is used, merge-tp --check lists the differences"

/*
 * Return the options of a conversion to `out` and of its sink, according to the shared options. Warnings are printed on
 * stderr. ctx becomes cli. `shape`: the value for options_text.
 */
struct convert_opts convert_cli_opts(struct cli *cli, const char *out, const char *shape);
struct sink_opts convert_cli_sink(struct cli *cli, const char *out);
/*
 * Check an input that was opened with the findings `r`: whether its files are those that its manifest lists
 * (verify_listed()), come from one save, and have the values of a sound checkpoint (mismatch.h). Prints the warnings.
 * `drift`: the caller handles copies that disagree. Returns 0, or -1 with the first error and the name of the option
 * that accepts it, if there is one.
 */
MUST_CHECK int convert_cli_check(const struct cli *cli, struct source *s, bool drift, struct report *r, struct err *e);
/* Check only that the input has the files that its manifest lists. For an input that was opened without a report. */
MUST_CHECK int convert_cli_listed(const struct cli *cli, struct source *s, struct err *e);
/*
 * Print one line about the result: the description of `out` ("TP 2, PP 1, DP 4, 34 parameters"), bytes and time; or the
 * reason why nothing was published.
 */
void convert_cli_print_text(const struct cli *cli, const char *out, const char *what, const struct convert_result *r);
/* Add the result of the conversion to the object `o`, for --json. */
void convert_cli_add(json_t *o, const struct convert_result *r);

/* A conversion whose result is printed as one line. */
struct convert_cli_job {
    struct cli *cli;
    struct source *src;
    const char *out;
    const char *what;                   /* description of the output: "ZeRO-2, 3 ranks, 34 parameters" */
    json_t *facts;                      /* the same facts as keys of a JSON object */
};
/*
 * Print the plan for --dry-run: rehearse the sink, close it, and print what it would write. Returns EXIT_OK, EXIT_BAD
 * if the disk has too little space, or -1.
 */
MUST_CHECK int convert_cli_plan(const struct convert_cli_job *j, struct sink *k, struct err *e);
/* Print the result: a line on stderr, or an object on stdout. */
void convert_cli_print_result(const struct convert_cli_job *j, const struct convert_result *r);

#endif
