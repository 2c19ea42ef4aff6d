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

/* All fields in the rows of this file are members of struct cli. */
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

#define ASKED_ROWS                                                                                              \
    { "help", 'h', .help = "print this help", .asked = OPTION_ASKED_HELP },                                     \
    { "version", .help = "print the version, the compiler and the libraries", .asked = OPTION_ASKED_VERSION },  \
    { "completion", 0, "WHAT", "print a completion script for the shell (bash, zsh or fish), the names of all " \
      "options (list), or the section OPTIONS of the man page (man)", .words = "bash zsh fish list man",            \
      .size = sizeof(int),                                                                                          \
      .asked = OPTION_ASKED_BASH }

const struct option_row cli_rows[] = {
    { "json", .help = "print JSON, one object per line, instead of text", FIELD(json) },
    { "threads", 'j', "N", "number of worker threads (default: the number of CPUs available to the "
                           "process)", OPTION_INT,
      FIELD(threads), .min = 1, .max = 1024 },
    { "mem", 0, "SIZE", "maximum memory for buffers, with the suffix K, M, G or T; at least 8M (default 96M)",
      .take = parse_mem_option },
    { "progress", 0, "WHEN", "show progress: auto, always or never (default auto: if stderr is a "
                             "terminal)", FIELD(progress),
      .words = "auto always never" },
    { "quiet", 'q', .help = "print only errors and warnings", .take = parse_quiet_option },
    { "verbose", 'v', .help = "print more details", .take = parse_verbose_option },
    ASKED_ROWS,
    {0},
};

const struct option_row cli_rows_asked[] = { ASKED_ROWS, {0} };

const struct option_row cli_rows_write_fail[] = {
    { "force", 'f', .help = "replace the output if it exists", FIELD(force) },
    { "dry-run", 'n', .help = "print the plan, its size and the free space; write nothing", FIELD(dry_run) },
    { "replicas", 0, "HOW", "which value to use if the tensor-parallel copies of a parameter differ: average, first "
                            "(that of rank 0), majority, or fail (exit with status 1)",
      FIELD(replicas), .words = CLI_REPLICAS_WORDS, .def = "fail" },
    {0},
};

const struct option_row cli_rows_convert[] = {
    { "verify", .help = "read OUT back and compare it before it gets its final name", FIELD(verify) },
    { "resume", .help = "continue a conversion that was interrupted; finished files are not converted again",
      FIELD(resume) },
    { "part", 0, "I/N", "convert part I of N (0 <= I < N); the part that ends last creates OUT. auto: use the task "
                        "numbers of mpirun or srun, and fail unless every task starts this command. 0/1: convert all "
                        "parts in this process. Default: as auto if every task starts this command, else 0/1",
      .take = cli_parse_part },
    { "accept-mismatch", .help = "print a warning instead of an error if the files of IN seem to be from different "
                                 "saves or ranks, or hold NaN, infinite or contradictory values",
      FIELD(accept_mismatch) },
    { "skip-unreadable", .help = "omit tensors of IN that cannot be read (sparse tensors, types smaller than one byte "
                                 "per element), and print how many were omitted", FIELD(skip_unreadable) },
    CLI_ROW_MODEL(struct cli, model, 0),
    {0},
};

const struct option_row cli_rows_latest[] = {
    { "set-latest", .help = "when OUT is complete, write its name to the file 'latest' in its parent folder",
      FIELD(set_latest) },
    {0},
};

const struct option_row cli_rows_certificate[] = {
    { "certificate", 0, "FILE", "write a digest of every tensor before and after the conversion to FILE, which "
                                "ckpt-inspect verify --certificate compares", FIELD(certificate) },
    {0},
};

/* ---- answers to --help and the like ---- */

/* The commit from which this program was built. It is empty if make was called without COMMIT. */
#ifndef SHARDKIT_COMMIT
#define SHARDKIT_COMMIT ""
#endif

/* Print the features of this processor that the library uses in its faster functions. */
static void print_cpu_path(void)
{
#ifdef __x86_64__
    bool avx2 = __builtin_cpu_supports("avx2"), clmul = avx2 && __builtin_cpu_supports("vpclmulqdq");
    bool vbmi = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi");

    printf("processor x86_64: %s%s%s\n", avx2 ? "AVX2" : "baseline", clmul ? ", VPCLMULQDQ" : "",
           vbmi ? ", AVX-512 VBMI" : "");
#else
    puts("processor: baseline");
#endif
}

static int version(const char *tool)
{
    unsigned major, minor, release;

    H5get_libversion(&major, &minor, &release);
    printf("%s (shardkit) %s%s%s\n", tool, SHARDKIT_VERSION, *SHARDKIT_COMMIT ? ", commit " : "", SHARDKIT_COMMIT);
    printf("compiler %s; HDF5 %u.%u.%u, %s, jansson %s, zlib %s, ISA-L %d.%d.%d\n", __VERSION__, major, minor,
           release, archive_version_string(), jansson_version_str(), zlibVersion(),
           ISAL_MAJOR_VERSION, ISAL_MINOR_VERSION, ISAL_PATCH_VERSION);
    print_cpu_path();
    return fflush(stdout) == 0 ? EXIT_OK : EXIT_BAD;
}

/* Append the text of --help. If the first word of argv is a command, only this command is described. */
static void add_help(const struct option_table *o, char **argv, struct strbuf *text)
{
    const char *name = cli_typed_name(o->tool);
    const char *first = argv[0] ? argv[1] : NULL;
    const bool leads = name != o->tool && first && str_starts(first, "--") && str_ends(name, first + 2);

    option_table_help(o, name, leads ? first : NULL, option_command_find(o, first), text);
}

int cli_answer(const struct option_table *o, enum option_asked asked, char **argv)
{
    struct strbuf text = {0};
    int rc;

    switch (asked) {
    case OPTION_ASKED_WORK: return EXIT_OK;
    case OPTION_ASKED_VERSION: return version(o->tool);
    case OPTION_ASKED_HELP: add_help(o, argv, &text); break;
    case OPTION_ASKED_BASH: option_table_bash(o, &text); break;
    case OPTION_ASKED_ZSH: option_table_zsh(o, &text); break;
    case OPTION_ASKED_FISH: option_table_fish(o, &text); break;
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
        exit(cli_answer(o, (enum option_asked)asked, argv));
    if (asked == 0)
        return 0;
    cli_usage(cli, "%s", e.msg);
    return -1;
}
