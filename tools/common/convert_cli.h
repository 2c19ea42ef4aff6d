/*
 * convert_cli.h - call convert.h for the command lines of the converters, and print the results
 *
 * Only for tools: these functions print on stderr through struct cli.
 */
#ifndef SHARDKIT_COMMON_CONVERT_CLI_H
#define SHARDKIT_COMMON_CONVERT_CLI_H

#include "libcommon/cli/cli.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"

/*
 * The groups of shared option rows that follow a converter's own rows. `write` is the group of rows for tools that
 * write, such as cli_rows_write_fail.
 */
#define CLI_GROUPS_CONVERT(title, cli, write) \
    { title, cli_rows_convert, cli, 0 }, { NULL, write, cli, 0 }, { NULL, cli_rows, cli, 0 }

/* Text that is added to the summary line if copies of a parameter differed. */
#define CONVERT_DRIFTED \
    "; copies differ: --replicas defines which value is used, merge-tp --check lists the differences"

/*
 * convert_cli_opts() returns the options of a conversion to `out`, and convert_cli_sink() those of its sink, both
 * according to the shared options. `shape` becomes options_text. Warnings are printed on stderr; `cli` is the ctx of
 * the callbacks.
 */
struct convert_opts convert_cli_opts(struct cli *cli, const char *out, const char *shape);
struct sink_opts convert_cli_sink(struct cli *cli, const char *out);
struct convert_check {
    bool drift;                 /* the caller handles copies that disagree */
    bool kept;                  /* the caller copies files without looking at their values (mismatch_opts.kept) */
};
/*
 * Check a source that was opened with the findings `r`: its files must be those in its manifest (verify_listed()), be
 * of the same save, and have the values of a sound checkpoint (mismatch.h). Prints warnings. Returns 0, or -1 with the
 * first error, to which the name of the option that accepts it is added, if there is one.
 */
MUST_CHECK int convert_cli_check(const struct cli *cli, struct source *s, const struct convert_check *c,
                                 struct report *r, struct err *e);
/* Check only that the source has the files in its manifest. Used if the source was opened without a report. */
MUST_CHECK int convert_cli_listed(const struct cli *cli, struct source *s, struct err *e);
/*
 * Print one line about the result: the description `what` ("TP 2, PP 1, DP 4, 34 parameters"), bytes and time. If
 * nothing was published, print the reason instead.
 */
void convert_cli_print_text(const struct cli *cli, const char *out, const char *what, const struct convert_result *r);
/* Add the result of the conversion to the object `o`, which --json prints. */
void convert_cli_add(json_t *o, const struct convert_result *r);

/* A conversion whose result is printed as one line. */
struct convert_cli_job {
    struct cli *cli;
    struct source *src;
    const char *out;
    const char *what;                   /* description of the output: "ZeRO-2, 3 ranks, 34 parameters" */
    json_t *facts;                      /* a JSON object with the same facts as `what` */
};
/*
 * Print the plan for --dry-run: rehearse the conversion, close the sink, and print what would be written. Returns
 * EXIT_OK, EXIT_BAD if the disk has too little space, or -1 with *e set.
 */
MUST_CHECK int convert_cli_plan(const struct convert_cli_job *j, struct sink *k, struct err *e);
/* Print the result: as a line on stderr, or, with --json, as an object on stdout. */
void convert_cli_print_result(const struct convert_cli_job *j, const struct convert_result *r);

#endif
