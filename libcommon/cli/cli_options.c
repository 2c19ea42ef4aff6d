/*
 * cli_options.c - the rows of the options that tools share (option_table.h), and taking them
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "libcommon/cli/cli.h"

/* Rows are taken into a struct cli. */
#define FIELD(f) .field = offsetof(struct cli, f)

static int bad_value(struct err *e, const char *option, const char *value, const char *expected)
{
    err_usage(e, "%s: '%s' is not %s", option, value, expected);
    return -1;
}

static int choose(const char *value, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    return -1;
}

int cli_take_threads(void *into, const char *value, struct err *e)
{
    struct cli *cli = into;
    int64_t n;

    if (parse_int(value, 1, 1024, &n) < 0)
        return bad_value(e, "--threads", value, "a number from 1 to 1024");
    cli->threads = (int)n;
    return 0;
}

int cli_take_replicas(void *into, const char *value, struct err *e)
{
    static const char *const how[] = { "average", "first", "majority", "fail", NULL };
    struct cli *cli = into;
    int i = choose(value, how);

    if (i < 0)
        return bad_value(e, "--replicas", value, "average, first, majority or fail");
    cli->replicas = (enum replica_policy)i;
    return 0;
}

static int take_progress(void *into, const char *value, struct err *e)
{
    static const char *const when[] = { "auto", "always", "never", NULL };
    struct cli *cli = into;
    int i = choose(value, when);

    if (i < 0)
        return bad_value(e, "--progress", value, "auto, always or never");
    cli->progress = (enum progress_mode)i;
    return 0;
}

static int take_mem(void *into, const char *value, struct err *e)
{
    struct cli *cli = into;

    if (parse_size(value, &cli->mem_bytes) < 0 || cli->mem_bytes < 8 << 20)
        return bad_value(e, "--mem", value, "a size of 8M or more (K, M, G, T)");
    return 0;
}

static int take_part(void *into, const char *value, struct err *e)
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

static int take_quiet(void *into, const char *value, struct err *e)
{
    struct cli *cli = into;

    (void)value;
    (void)e;
    cli->quiet = true;
    cli->progress = PROGRESS_NEVER;
    return 0;
}

static int take_verbose(void *into, const char *value, struct err *e)
{
    struct cli *cli = into;

    (void)value;
    (void)e;
    cli->verbose++;
    return 0;
}

const struct option_row cli_rows[] = {
    { "json", .help = "print one JSON object a line instead of text", FIELD(json) },
    { "threads", 'j', "N", "worker threads (default: the cores this process may use)", .take = cli_take_threads },
    { "mem", 0, "SIZE", "buffer memory, K/M/G/T (default 96M)", .take = take_mem },
    { "progress", 0, "WHEN", "auto, always or never (default auto: on a terminal)", .take = take_progress,
      .words = "auto always never" },
    { "quiet", 'q', .help = "errors only", .take = take_quiet },
    { "verbose", 'v', .help = "say more", .take = take_verbose },
    { "help", .help = "this text", .asked = OPTION_ASKED_HELP },
    { "version", .help = "version, compiler and libraries", .asked = OPTION_ASKED_VERSION },
    { "completion", .arg = "SHELL", .words = "bash zsh list", FIELD(completion), .asked = OPTION_ASKED_COMPLETION },
    {0},
};

#define WRITE_ROWS(REPLICAS)                                                            \
    { "force", 'f', .help = "replace what is already there", FIELD(force) },            \
    { "dry-run", 'n', .help = "print the plan, bytes and free space; write nothing", FIELD(dry_run) },      \
    { "replicas", 0, "HOW", "average, first, majority or fail: what to do when tensor-parallel copies of a " \
      "parameter disagree (default " REPLICAS ")", .take = cli_take_replicas, .words = CLI_REPLICAS_WORDS },        \
    {0}

const struct option_row cli_rows_write_average[] = { WRITE_ROWS("average") };
const struct option_row cli_rows_write_fail[] = { WRITE_ROWS("fail") };

const struct option_row cli_rows_convert[] = {
    { "verify", .help = "read OUT back before it gets its name", FIELD(verify) },
    { "resume", .help = "finish what a killed run began", FIELD(resume) },
    { "part", 0, "I/N", "do share I of N (0 <= I < N); the last to finish publishes OUT; found by itself under mpirun "
      "and srun when all tasks take part; auto: they must, 0/1: this one does all", .take = take_part },
    { "accept-mismatch", .help = "only warn where files of IN look like those of different saves or ranks",
      FIELD(accept_mismatch) },
    {0},
};

/* Print what was asked for in place of work; the exit status. */
static int answer(const struct cli *cli, const struct option_table *o, enum option_asked asked)
{
    struct strbuf text = {0};
    int rc;

    if (asked == OPTION_ASKED_VERSION)
        return cli_version(cli->tool);
    if (asked == OPTION_ASKED_HELP)
        option_table_help(o, &text);
    else
        option_table_completion(o, cli->completion, &text);
    rc = cli_help(text.buf);
    strbuf_free(&text);
    return rc;
}

int cli_parse(struct cli *cli, const struct option_table *o, int argc, char **argv)
{
    struct err e = {0};
    int asked = option_table_parse(o, argc, argv, &e);

    if (asked > 0)
        exit(answer(cli, o, (enum option_asked)asked));
    if (asked == 0)
        return 0;
    cli_usage(cli, "%s", e.msg);
    return -1;
}
