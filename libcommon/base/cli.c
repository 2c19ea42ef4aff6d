/*
 * cli.c - the options every tool has, its messages, and Ctrl-C
 */
#include "libcommon/base/cli.h"

#include <errno.h>
#include <hdf5.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <archive.h>
#include <isa-l.h>
#include <jansson.h>
#include <zlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"

/* ---- signals: a flag that long loops ask about ---- */

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

static int cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Rank and size as a launcher tells them; the converters link no MPI (login nodes have none). */
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

void cli_start(struct cli *cli, char **argv, const char *tool)
{
    struct sigaction sa = { .sa_handler = on_signal };

    (void)argv;
    cli->tool = tool;
    cli->threads = cores();
    cli->mem_bytes = 96 << 20;
    cli->progress = PROGRESS_AUTO;
    cli_find_launcher(cli);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGXFSZ, SIG_IGN);           /* a limit of the shell: the write says so, with its file */
}

/* ---- numbers and words ---- */

/* Digits with '_' between them; *end is set behind them. -1: none, or too large. */
static int digits(const char *s, uint64_t *out, const char **end)
{
    uint64_t v = 0;
    const char *p = s;

    for (; (*p >= '0' && *p <= '9') || (*p == '_' && p > s && p[1] >= '0' && p[1] <= '9'); p++)
        if (*p != '_' && (!mul_u64(v, 10, &v) || !add_u64(v, (uint64_t)(*p - '0'), &v)))
            return -1;
    *end = p;
    *out = v;
    return p > s ? 0 : -1;
}

int parse_size(const char *s, uint64_t *out)
{
    static const char units[] = "KMGT";
    const char *end, *u;
    uint64_t v;

    if (digits(s, &v, &end) < 0)
        return -1;
    if (*end) {
        u = strchr(units, *end & ~0x20);
        if (!u || end[1] || !mul_u64(v, 1ull << (10 * (u - units + 1)), &v))
            return -1;
    }
    *out = v;
    return 0;
}

int parse_int(const char *s, int64_t min, int64_t max, int64_t *out)
{
    bool negative = *s == '-';
    const char *end;
    uint64_t v;
    int64_t n;

    if (digits(s + negative, &v, &end) < 0 || *end || v > INT64_MAX)
        return -1;
    n = negative ? -(int64_t)v : (int64_t)v;
    if (n < min || n > max)
        return -1;
    *out = n;
    return 0;
}

/* Levenshtein distance of two short words, one row at a time. */
static int word_distance(const char *a, const char *b)
{
    int row[64], n = (int)strlen(b);

    if (n >= 64 || strlen(a) >= 64)
        return 99;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);

            if (up + 1 < best)
                best = up + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[n];
}

const char *nearest_word(const char *s, const char *const *words, int n)
{
    const char *best = NULL;
    int least = (int)strlen(s) / 3 + 2;         /* further away is no typo */

    for (int i = 0; i < n; i++) {
        int d = word_distance(s, words[i]);

        if (d < least) {
            least = d;
            best = words[i];
        }
    }
    return best;
}

/* ---- answers ---- */

int cli_help(const char *text)
{
    fputs(text, stdout);
    return fflush(stdout) == 0 ? EXIT_OK : EXIT_BAD;
}

int cli_version(const char *tool)
{
    unsigned major, minor, release;

    H5get_libversion(&major, &minor, &release);
    printf("%s (shardkit) %s\n", tool, SHARDKIT_VERSION);
    printf("compiler %s; HDF5 %u.%u.%u, %s, jansson %s, zlib %s, ISA-L %d.%d.%d\n", __VERSION__, major, minor,
           release, archive_version_string(), jansson_version_str(), zlibVersion(),
           ISAL_MAJOR_VERSION, ISAL_MINOR_VERSION, ISAL_PATCH_VERSION);
    return fflush(stdout) == 0 ? EXIT_OK : EXIT_BAD;
}

/* ---- talking ---- */

static void __attribute__((format(printf, 3, 0)))
say(const struct cli *cli, const char *kind, const char *fmt, va_list ap)
{
    char *text;

    if (vasprintf(&text, fmt, ap) < 0)
        return;
    if (cli->n_parts > 1)
        fprintf(stderr, "[rank %d] %s%s\n", cli->part, kind, text);
    else
        fprintf(stderr, "%s: %s%s\n", cli->tool, kind, text);
    free(text);
}

int cli_usage(struct cli *cli, const char *fmt, ...)
{
    va_list ap;

    if (fmt) {
        va_start(ap, fmt);
        say(cli, "", fmt, ap);
        va_end(ap);
    }
    fprintf(stderr, "Try '%s --help'.\n", cli->tool);
    return EXIT_USAGE;
}

static void PRINTF_LIKE(3, 4) sayf(const struct cli *cli, const char *kind, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(cli, kind, fmt, ap);
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
    sayf(cli, e->kind == ERR_STOP ? "" : "error: ", "%s", e->msg);
    return e->kind == ERR_USAGE ? EXIT_USAGE : EXIT_BAD;
}

void cli_say(const struct cli *cli, const char *fmt, ...)
{
    va_list ap;

    if (cli->quiet || cli->part > 0)
        return;
    va_start(ap, fmt);
    say(cli, "", fmt, ap);
    va_end(ap);
}

void cli_warn(const struct cli *cli, const char *fmt, ...)
{
    va_list ap;

    if (cli->quiet)
        return;
    va_start(ap, fmt);
    say(cli, "warning: ", fmt, ap);
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
    /* 15 digits: 0.1 stays 0.1. */
    char *s = o ? json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15)) : NULL;

    puts(s ? s : "{}");
    free(s);
    json_decref(o);
}

int cli_done(struct cli *cli, int rc)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s: error: cannot write standard output: %s\n", cli->tool, strerror(errno));
        rc = EXIT_BAD;
    }
    if (signal_seen) {
        signal(signal_seen, SIG_DFL);
        raise(signal_seen);
    }
    return rc;
}
