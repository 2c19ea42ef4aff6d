/*
 * cli_options.c - the rows of the options that tools share (option_table.h), and the functions that parse their
 * values
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <archive.h>
#include <hdf5.h>
#include <isa-l.h>
#include <zlib.h>

#include "libcommon/base/parse.h"
#include "libcommon/cli/cli.h"

/* The fields of the rows are in struct cli. */
#define FIELD(f) OPTION_FIELD(struct cli, f)

static int bad_value(struct err *e, const char *option, const char *value, const char *expected)
{
    err_usage(e, "%s: '%s' is not %s", option, value, expected);
    return -1;
}

static int parse_mem_option(void *into, const char *value, struct err *e)
{
    struct cli *cli = into;

    if (parse_size(value, &cli->mem_bytes) < 0 || cli->mem_bytes < 8 << 20)
        return bad_value(e, "--mem", value, "a size of 8M or more (K, M, G, T)");
    return 0;
}

int cli_parse_part(void *into, const char *value, struct err *e)
{
    struct cli *cli = into;
    int part, n_parts;
    char end;

    if (strcmp(value, "auto") == 0) {
        cli_find_launcher(cli);
        cli->all_tasks = true;
        return 0;
    }
    if (sscanf(value, "%d/%d%c", &part, &n_parts, &end) != 2 || part < 0 || part >= n_parts || n_parts > 1 << 20)
        return bad_value(e, "--part", value, "I/N with 0 <= I < N, or auto");
    cli->launched = cli->all_tasks = false;
    cli->part = part;
    cli->n_parts = n_parts;
    return 0;
}

static int parse_quiet_option(void *into, const char *value, struct err *e)
{
    struct cli *cli = into;

    (void)value;
    (void)e;
    cli->quiet = true;
    cli->progress = PROGRESS_NEVER;
    return 0;
}

static int parse_verbose_option(void *into, const char *value, struct err *e)
{
    struct cli *cli = into;

    (void)value;
    (void)e;
    cli->verbose++;
    return 0;
}

#define ASKED_ROWS                                                                      \
    { "help", 'h', .help = "this text", .asked = OPTION_ASKED_HELP },                   \
    { "version", .help = "version, compiler and libraries", .asked = OPTION_ASKED_VERSION },                \
    { "completion", 0, "WHAT", "print what bash or zsh completes (list: all names; man: the page)",        \
      .words = "bash zsh list man", .size = sizeof(int), .asked = OPTION_ASKED_BASH }

const struct option_row cli_rows[] = {
    { "json", .help = "print one JSON object a line instead of text", FIELD(json) },
    { "threads", 'j', "N", "worker threads (default: the processors this process may use)", OPTION_INT,
      FIELD(threads), .min = 1, .max = 1024 },
    { "mem", 0, "SIZE", "buffer memory, K/M/G/T (default 96M)", .take = parse_mem_option },
    { "progress", 0, "WHEN", "auto, always or never (default auto: on a terminal)", FIELD(progress),
      .words = "auto always never" },
    { "quiet", 'q', .help = "errors and warnings alone", .take = parse_quiet_option },
    { "verbose", 'v', .help = "say more", .take = parse_verbose_option },
    ASKED_ROWS,
    {0},
};

const struct option_row cli_rows_asked[] = { ASKED_ROWS, {0} };

const struct option_row cli_rows_write_fail[] = {
    { "force", 'f', .help = "replace what is already there", FIELD(force) },
    { "dry-run", 'n', .help = "print the plan, bytes and free space; write nothing", FIELD(dry_run) },
    { "replicas", 0, "HOW", "average, first, majority or fail: what to do when tensor-parallel copies of a "
      "parameter disagree", FIELD(replicas), .words = CLI_REPLICAS_WORDS, .def = "fail" },
    {0},
};

const struct option_row cli_rows_convert[] = {
    { "verify", .help = "read OUT back before it gets its name", FIELD(verify) },
    { "resume", .help = "finish what a killed run began", FIELD(resume) },
    { "part", 0, "I/N", "do share I of N (0 <= I < N); the last to finish publishes OUT; found by itself under mpirun "
      "and srun when all tasks take part; auto: they must, 0/1: this one does all", .take = cli_parse_part },
    { "accept-mismatch", .help = "only warn where files of IN look like those of different saves or ranks",
      FIELD(accept_mismatch) },
    { "skip-unreadable", .help = "leave out tensors of IN that cannot be read (sparse, of a type without whole bytes); "
      "the result says how many", FIELD(skip_unreadable) },
    CLI_ROW_MODEL(struct cli, model, 0),
    {0},
};

const struct option_row cli_rows_latest[] = {
    { "set-latest", .help = "'latest' beside OUT names it once it is there", FIELD(set_latest) },
    {0},
};

const struct option_row cli_rows_certificate[] = {
    { "certificate", 0, "FILE", "write there the digest of every tensor before and after", FIELD(certificate) },
    {0},
};

/* ---- answers to --help and the like ---- */

static int version(const char *tool)
{
    unsigned major, minor, release;

    H5get_libversion(&major, &minor, &release);
    printf("%s (shardkit) %s\n", tool, SHARDKIT_VERSION);
    printf("compiler %s; HDF5 %u.%u.%u, %s, jansson %s, zlib %s, ISA-L %d.%d.%d\n", __VERSION__, major, minor,
           release, archive_version_string(), jansson_version_str(), zlibVersion(),
           ISAL_MAJOR_VERSION, ISAL_MINOR_VERSION, ISAL_PATCH_VERSION);
    return fflush(stdout) == 0 ? EXIT_OK : EXIT_BAD;
}

int cli_answer(const struct option_table *o, enum option_asked asked)
{
    struct strbuf text = {0};
    int rc;

    switch (asked) {
    case OPTION_ASKED_WORK: return EXIT_OK;
    case OPTION_ASKED_VERSION: return version(o->tool);
    case OPTION_ASKED_HELP: option_table_help(o, &text); break;
    case OPTION_ASKED_BASH: option_table_bash(o, &text); break;
    case OPTION_ASKED_ZSH: option_table_zsh(o, &text); break;
    case OPTION_ASKED_MAN: option_table_man(o, &text); break;
    case OPTION_ASKED_LIST:
        OPTION_EACH(o, g, r)
            strbuf_addf(&text, "--%s\n", r->name);
    }
    fputs(text.buf, stdout);
    rc = fflush(stdout) == 0 ? EXIT_OK : EXIT_BAD;
    strbuf_free(&text);
    return rc;
}

int cli_parse(struct cli *cli, const struct option_table *o, int argc, char **argv)
{
    struct err e = {0};
    int asked;

    option_set_defaults(o);
    asked = option_table_parse(o, argc, argv, &e);
    if (asked > 0)
        exit(cli_answer(o, (enum option_asked)asked));
    if (asked == 0)
        return 0;
    cli_usage(cli, "%s", e.msg);
    return -1;
}
