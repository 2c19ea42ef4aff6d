/*
 * cli.c - the options that every tool has, its messages, and Ctrl-C
 */
#include "libcommon/cli/cli.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"
#include "libcommon/base/processors.h"
#include "libcommon/base/text.h"
#include "libcommon/cli/typed.h"

/* ---- signals: set a flag that long loops check ---- */

static volatile sig_atomic_t signal_seen;

static void on_signal(int sig)
{
    signal_seen = sig;
}

bool cli_stopped(void)
{
    return signal_seen != 0;
}

/* ---- start ---- */

/*
 * Set part and n_parts from the environment variables of a launcher. MPI is not used for this, because the converters
 * also run on login nodes, which have no MPI library.
 */
void cli_find_launcher(struct cli *cli)
{
    static const struct { const char *rank, *size; } vars[] = {
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
        { "PMI_RANK", "PMI_SIZE" },
        { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS" },
    };

    cli->part = 0;
    cli->n_parts = 1;
    for (size_t i = 0; i < sizeof vars / sizeof *vars; i++) {
        const char *r = getenv(vars[i].rank), *n = getenv(vars[i].size);
        int64_t rank, size;

        if (r && n && parse_int(n, 2, 1 << 20, &size) == 0 && parse_int(r, 0, size - 1, &rank) == 0) {
            cli->part = (int)rank;
            cli->n_parts = (int)size;
            cli->launched = true;
            return;
        }
    }
}

static char **front_argv;               /* arguments of the program if shardkit started it; else NULL */

void cli_record_argv(char **argv)
{
    front_argv = argv[0] && str_starts(argv[0], "shardkit ") ? argv : NULL;
}

const char *cli_typed_name(const char *tool)
{
    return front_argv ? front_argv[0] : tool;
}

/*
 * Make free() return large blocks to the system. By default glibc raises its limits while a program runs. The free
 * blocks of its arenas then take as much memory as the tables of a model of 45,000 tensors.
 */
static void limit_free_memory(void)
{
    enum { LARGE = 1 << 20 };

    mallopt(M_MMAP_THRESHOLD, LARGE);
    mallopt(M_TRIM_THRESHOLD, LARGE);
}

void cli_start(struct cli *cli, char **argv, const char *tool)
{
    struct sigaction sa = { .sa_handler = on_signal };

    limit_free_memory();
    cli->tool = tool;
    cli_record_argv(argv);
    cli->name = cli_typed_name(tool);
    cli->threads = processors_default_threads(1);
    cli->mem_bytes = 96 << 20;
    cli->progress = PROGRESS_AUTO;
    cli_find_launcher(cli);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGXFSZ, SIG_IGN);           /* a write beyond the file size limit (ulimit -f) then returns an error, and the
                                         * message names the file */
}

/* ---- messages ---- */

/*
 * Format a text. If shardkit started the program, commands in the text are replaced by the commands of shardkit. The
 * caller frees the text.
 */
static char *__attribute__((format(printf, 1, 0))) format_typed(const char *fmt, va_list ap)
{
    char *text, *typed;

    if (vasprintf(&text, fmt, ap) < 0)
        return NULL;
    if (!front_argv)
        return text;
    typed = typed_text(text, front_argv + 1);
    free(text);
    return typed;
}

/*
 * Print the text with control characters as escapes. If `lines` is set, the text may consist of several lines, and line
 * feeds and tabs are printed unchanged.
 */
static void print_shown(FILE *f, char *text, bool lines)
{
    for (char *rest = text; rest; ) {
        const size_t n = lines ? strcspn(rest, "\n\t") : strlen(rest);
        const char end = rest[n];

        rest[n] = '\0';
        fputs(text_shown(rest), f);
        if (end)
            putc(end, f);
        rest = end ? rest + n + 1 : NULL;
    }
}

void cli_printf(FILE *f, const char *fmt, ...)
{
    va_list ap;
    char *text;

    va_start(ap, fmt);
    text = format_typed(fmt, ap);
    va_end(ap);
    if (text)
        print_shown(f, text, true);
    free(text);
}

static int output_error;                /* errno of the first failed flush of standard output, or 0 */

static void flush_output(void)
{
    if (fflush(stdout) != 0 && !output_error)
        output_error = errno;
}

static void __attribute__((format(printf, 3, 0)))
cli_vprint_message(const struct cli *cli, const char *kind, const char *fmt, va_list ap)
{
    char *text = format_typed(fmt, ap);

    if (!text)
        return;
    /* stdout and stderr may be one file, in which the message must follow the output printed before */
    flush_output();
    if (cli->n_parts > 1)
        fprintf(stderr, "[rank %d] %s", cli->part, kind);
    else
        fprintf(stderr, "%s: %s", cli->name, kind);
    print_shown(stderr, text, strchr(fmt, '\n') != NULL);
    fputs("\n", stderr);
    free(text);
}

int cli_usage(struct cli *cli, const char *fmt, ...)
{
    va_list ap;

    if (fmt) {
        va_start(ap, fmt);
        cli_vprint_message(cli, "", fmt, ap);
        va_end(ap);
    }
    fprintf(stderr, "Try '%s --help'.\n", cli->name);
    return EXIT_USAGE;
}

static void PRINTF_LIKE(3, 4) cli_print_messagef(const struct cli *cli, const char *kind, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cli_vprint_message(cli, kind, fmt, ap);
    va_end(ap);
}

int cli_fail(struct cli *cli, const struct err *e)
{
    if (cli->json) {
        json_t *o = json_pack("{s:s, s:o}", "tool", cli->tool, "error", text_json(e->msg));

        json_dumpf(o, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(o);
    }
    cli_print_messagef(cli, e->kind == ERR_STOP ? "" : "error: ", "%s", e->msg);
    return e->kind == ERR_USAGE ? EXIT_USAGE : EXIT_BAD;
}

void cli_info(const struct cli *cli, const char *fmt, ...)
{
    va_list ap;

    if (cli->quiet || cli->part > 0)
        return;
    va_start(ap, fmt);
    cli_vprint_message(cli, "", fmt, ap);
    va_end(ap);
}

void cli_warn(const struct cli *cli, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cli_vprint_message(cli, "warning: ", fmt, ap);
    va_end(ap);
}

void cli_warn_findings(const struct cli *cli, const struct report *r)
{
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity == SEV_WARNING) {
            char *text = finding_text(report_get(r, i));

            cli_warn(cli, "%s", text);
            free(text);
        }
}

void cli_json(json_t *o)
{
    char *s = text_dump(o, JSON_COMPACT | JSON_ENSURE_ASCII);

    puts(s ? s : "{}");
    free(s);
    json_decref(o);
}

int cli_done(struct cli *cli, int rc)
{
    flush_output();
    if (output_error || ferror(stdout)) {
        fprintf(stderr, "%s: error: cannot write standard output: %s\n", cli->name,
                strerror(output_error ? output_error : errno));
        rc = EXIT_BAD;
    }
    if (signal_seen) {
        signal(signal_seen, SIG_DFL);
        raise(signal_seen);
    }
    return rc;
}
