/*
 * convert_cli.h - what the converters' command lines have in common: asking convert.h, and telling
 *
 * For tools: these talk on stderr through the cli.
 */
#ifndef SHARDKIT_COMMON_CONVERT_CLI_H
#define SHARDKIT_COMMON_CONVERT_CLI_H

#include "libcommon/cli/cli.h"
#include "libcommon/convert/convert.h"

/* The groups of shared rows behind a converter's own; `write`: cli_rows_write_fail. */
#define CLI_GROUPS_CONVERT(title, cli, write) \
    { title, cli_rows_convert, cli, 0 }, { NULL, write, cli, 0 }, { NULL, cli_rows, cli, 0 }

/* The end of the summary line where copies of a parameter were not the same. */
#define CONVERT_DRIFTED "; copies disagreed: --replicas says what is taken, merge-tp --check tells more"

/*
 * Options of a conversion to `out` and of its sink, as the shared options say; warnings go to
 * stderr. ctx is the cli. `shape`: options_text.
 */
struct convert_opts convert_cli_opts(struct cli *cli, const char *out, const char *shape);
struct sink_opts convert_cli_sink(struct cli *cli, const char *out);
/*
 * An input that was opened with the findings `r`: check whether its files are those that its manifest lists
 * (verify_listed()), of one save and with the values of a sound checkpoint (mismatch.h), print the warnings. `drift`:
 * copies that disagree are the caller's matter. 0, or -1 and the first error, with the option that accepts it where
 * there is one.
 */
MUST_CHECK int convert_cli_check(const struct cli *cli, struct source *s, bool drift, struct report *r, struct err *e);
/* The first half alone, of an input that was opened without a report. */
MUST_CHECK int convert_cli_listed(const struct cli *cli, struct source *s, struct err *e);
/* One line: what `out` is now ("TP 2, PP 1, DP 4, 34 parameters"), bytes and time; or why there is nothing to tell. */
void convert_cli_say(const struct cli *cli, const char *out, const char *what, const struct convert_result *r);
/* The same for --json: add what became of the conversion to `o`. */
void convert_cli_add(json_t *o, const struct convert_result *r);

/* A conversion all of whose facts are one line's. */
struct convert_cli_job {
    struct cli *cli;
    struct source *src;
    const char *out;
    const char *what;                   /* it will be: "ZeRO-2, 3 ranks, 34 parameters" */
    json_t *facts;                      /* the same as an object's keys */
    const char *shape;                  /* for convert_cli_write(): the options that shape the output, as text; */
    const char *pointer;                /* what --set-latest writes; NULL: "latest" */
};
/* What was settled by rule or is lost: a line each, on stdout. */
void convert_cli_notes(const struct report *notes);
/* For --dry-run: rehearse the sink, which is closed, and print. EXIT_OK, EXIT_BAD where the disk has no room, or -1. */
MUST_CHECK int convert_cli_plan(const struct convert_cli_job *j, struct sink *k, struct err *e);
/* With --dry-run the plan; else the sink is run and its result told. The sink is closed. As convert_cli_plan(). */
MUST_CHECK int convert_cli_write(const struct convert_cli_job *j, struct sink *k, struct err *e);
/* What became of it: a line on stderr, or an object on stdout. */
void convert_cli_told(const struct convert_cli_job *j, const struct convert_result *r);

#endif
