/*
 * cli.h - what all tools have in common on the command line
 *
 * Shared options have one meaning everywhere; a tool lists the groups it wants:
 *   static const struct option longopts[] = { CLI_OPTIONS, {"vocab", required_argument, 0, OPT_VOCAB}, {0} };
 * and hands every option it does not know itself to cli_option(). A tool's own codes
 * start at OPT_TOOL. Exit status: 0 sound, 1 bad data or failed work, 2 wrong usage.
 */
#ifndef SHARDKIT_BASE_CLI_H
#define SHARDKIT_BASE_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/base/option_table.h"
#include "libcommon/base/progress.h"
#include "libcommon/base/replicas.h"
#include "libcommon/base/report.h"

enum { EXIT_OK = 0, EXIT_BAD = 1, EXIT_USAGE = 2 };

enum {
    OPT_HELP = 256, OPT_VERSION, OPT_JSON, OPT_PROGRESS, OPT_MEM, OPT_REPLICAS, OPT_VERIFY, OPT_RESUME, OPT_PART,
    OPT_ACCEPT_MISMATCH,
    OPT_LAYOUT = 280,                   /* libcommon/layout's, up to OPT_TOOL */
    OPT_TOOL = 300,
};

#define CLI_OPTIONS                                                                     \
    {"help", no_argument, 0, OPT_HELP}, {"version", no_argument, 0, OPT_VERSION},       \
    {"json", no_argument, 0, OPT_JSON}, {"quiet", no_argument, 0, 'q'},                 \
    {"verbose", no_argument, 0, 'v'}, {"threads", required_argument, 0, 'j'},           \
    {"progress", required_argument, 0, OPT_PROGRESS}, {"mem", required_argument, 0, OPT_MEM}
#define CLI_SHORT "qvj:"
#define CLI_HELP                                                                        \
    "      --json             print one JSON object a line instead of text\n"           \
    "  -j, --threads N        worker threads (default: the cores this process may use)\n" \
    "      --mem SIZE         buffer memory, K/M/G/T (default 96M)\n"                    \
    "      --progress WHEN    auto, always or never (default auto: on a terminal)\n"    \
    "  -q, --quiet            errors only\n"                                            \
    "  -v, --verbose          say more\n"                                               \
    "      --help             this text\n"                                              \
    "      --version          version, compiler and libraries\n"

/* Tools that write. */
#define CLI_OPTIONS_WRITE                                                               \
    {"force", no_argument, 0, 'f'}, {"dry-run", no_argument, 0, 'n'},                   \
    {"replicas", required_argument, 0, OPT_REPLICAS}
#define CLI_SHORT_WRITE "fn"
#define CLI_HELP_WRITE(REPLICAS)        /* the default of --replicas */                 \
    "  -f, --force            replace what is already there\n"                          \
    "  -n, --dry-run          print the plan, bytes and free space; write nothing\n"    \
    "      --replicas HOW     average, first, majority or fail: what to do when\n"      \
    "                         tensor-parallel copies of a parameter disagree\n"          \
    "                         (default " REPLICAS ")\n"

/* Converters, whose OUT appears whole. */
#define CLI_OPTIONS_CONVERT                                                             \
    {"verify", no_argument, 0, OPT_VERIFY}, {"resume", no_argument, 0, OPT_RESUME},     \
    {"part", required_argument, 0, OPT_PART}, {"accept-mismatch", no_argument, 0, OPT_ACCEPT_MISMATCH}
#define CLI_HELP_CONVERT                                                                \
    "      --verify           read OUT back before it gets its name\n"                  \
    "      --resume           finish what a killed run began\n"                         \
    "      --part I/N         do share I of N (0 <= I < N); the last to finish publishes OUT;\n" \
    "                         found by itself under mpirun and srun when all tasks take part;\n" \
    "                         auto: they must, 0/1: this one does all\n"                  \
    "      --accept-mismatch  only warn where files of IN look like those of different\n"   \
    "                         saves or ranks\n"

/*
 * The same as rows (cli_options.c), taken into a struct cli: of every tool; of those that write, with the two defaults
 * of --replicas there are; of converters, whose OUT appears whole.
 */
extern const struct option_row cli_rows[], cli_rows_write_average[], cli_rows_write_fail[], cli_rows_convert[];
int cli_take_threads(void *cli, const char *value, struct err *e);
int cli_take_replicas(void *cli, const char *value, struct err *e);
#define CLI_REPLICAS_WORDS "average first majority fail"        /* enum replica_policy */

struct cli {
    const char *tool;
    bool json, quiet, force, dry_run, verify, resume, accept_mismatch;
    int verbose;
    int threads;                        /* >= 1 once cli_start() ran */
    uint64_t mem_bytes;
    enum progress_mode progress;
    enum replica_policy replicas;       /* the tool sets its default before parsing */
    bool replicas_given;
    int part, n_parts;                  /* from --part or the launcher (OMPI_, PMI_, SLURM_), else 0 of 1 */
    bool launched;                      /* the launcher told them: whether its other tasks take part is not known */
    bool all_tasks;                     /* --part auto: they do */
    enum option_shell completion;       /* --completion, hidden: for which shell */
};

/* Fills defaults; installs handlers so that SIGINT and SIGTERM set a flag (cli_stopped). */
void cli_start(struct cli *cli, char **argv, const char *tool);
/* Rank and size of a launcher, else 0 of 1. */
void cli_find_launcher(struct cli *cli);
/* A shared option. 0, or -1 after saying on stderr what is wrong ('?' from getopt too). */
int cli_option(struct cli *cli, int c, const char *arg);
/*
 * getopt_long with messages of our own: an unknown long option is named with the nearest
 * known one. Also folds '_' to '-' in long option names (the reference spells them so).
 */
int cli_getopt(struct cli *cli, int argc, char **argv, const char *shorts, const struct option *longs);
/*
 * Take the options of argv. 0, or -1 after saying on stderr what is wrong; prints what --help and --version ask for,
 * and exits.
 */
int cli_parse(struct cli *cli, const struct option_table *o, int argc, char **argv);
int cli_help(const char *text);                                 /* stdout; returns EXIT_OK */
int cli_version(const char *tool);                              /* stdout; returns EXIT_OK */
/* "TOOL: what" (NULL: already said) and "Try 'TOOL --help'"; returns EXIT_USAGE. */
int cli_usage(struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Print the error, or as a JSON object on stdout with --json; returns EXIT_BAD (EXIT_USAGE for ERR_USAGE). */
int cli_fail(struct cli *cli, const struct err *e);
/* Talk on stderr unless --quiet; "warning: " and rank prefixes are added here. */
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

/* "96M" -> bytes; K M G T are powers of 1024, no suffix is bytes; '_' is allowed between digits. */
MUST_CHECK int parse_size(const char *s, uint64_t *out);
MUST_CHECK int parse_int(const char *s, int64_t min, int64_t max, int64_t *out);
/* The word among n nearest to `s` by edit distance, or NULL when none is near. */
const char *nearest_word(const char *s, const char *const *words, int n);

#endif
