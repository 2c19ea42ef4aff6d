/*
 * options_print.c - the text of --help, and the values as they are in the end
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/cli/option_table.h"
#include "tools/train/options/options_impl.h"
#include "tools/train/options/pytext.h"

/* ---- --help ---- */

enum { HELP_INDENT = 30, HELP_WIDTH = 96, DOTS = 48 };

static const char *const group_titles[] = {
    [GROUP_NETWORK] = "Model (with --load, what is not given comes from the checkpoint)",
    [GROUP_OPTIMIZER] = "Optimizer, regularization, initialization",
    [GROUP_TRAINING] = "Training and evaluation",
    [GROUP_RATE] = "Learning rate",
    [GROUP_CHECKPOINT] = "Checkpoints",
    [GROUP_PARALLEL] = "Parallelism",
    [GROUP_DATA] = "Data",
    [GROUP_LOG] = "Log",
    [GROUP_PROGRAM] = "Program",
};

static bool is_flag(const struct options_row *r)
{
    return r->kind == KIND_FLAG || r->kind == KIND_UNFLAG || r->kind == KIND_BOOL;
}

static void add_row(struct strbuf *sb, const struct options_row *r)
{
    struct strbuf left = {0}, right = {0};

    if (r->letter)
        strbuf_addf(&left, "  -%c, --%s", r->letter, r->name);
    else
        strbuf_addf(&left, "      --%s", r->name);
    if (r->arg)
        strbuf_addf(&left, " %s", r->arg);
    strbuf_addf(&right, "%s", r->help);
    if (r->def && !is_flag(r))
        strbuf_addf(&right, "%s(default %s)", right.len ? " " : "", r->def);
    if (left.len + 2 > HELP_INDENT)
        strbuf_addf(sb, "%s\n%*s", left.buf, HELP_INDENT, "");
    else
        strbuf_addf(sb, "%-*s", HELP_INDENT, left.buf);
    option_table_wrap(sb, HELP_INDENT, HELP_INDENT, HELP_WIDTH, right.buf);
    strbuf_free(&left);
    strbuf_free(&right);
}

/* "--a, --b ..." of the rows of some kinds. */
static void add_names(struct strbuf *sb, enum options_kind a, enum options_kind b)
{
    struct strbuf names = {0};

    for (int i = 0; i < options_n_rows; i++)
        if (options_rows[i].kind == a || options_rows[i].kind == b)
            strbuf_addf(&names, "%s--%s", names.len ? " " : "", options_rows[i].name);
    strbuf_addf(sb, "  ");
    option_table_wrap(sb, 2, 2, HELP_WIDTH, names.buf);
    strbuf_free(&names);
}

void options_help(struct strbuf *sb)
{
    strbuf_addf(sb,
        "Usage: train [options]\n"
        "       mpirun -n N train [options]        (or srun, or torchrun's variables)\n"
        "Train a BLOOM- or GPT-2-style model with tensor, pipeline and data parallelism, as\n"
        "Megatron-DeepSpeed does: same options, data order, checkpoints and log lines.\n"
        "\n"
        "An option is taken from the command line, else from the environment (SHARDKIT_LR=6e-5),\n"
        "else from the file of --config (lr = 6e-5). '_' and '-' are the same in names; numbers\n"
        "may be written 9_765_625.\n");
    for (int g = 0; g < GROUP_OTHER; g++) {
        strbuf_addf(sb, "\n%s:\n", group_titles[g]);
        for (int i = 0; i < options_n_rows; i++)
            if (options_rows[i].group == (enum options_group)g)
                add_row(sb, &options_rows[i]);
    }
    strbuf_addf(sb, "\nAccepted for the sake of existing scripts, without effect:\n");
    add_names(sb, KIND_NOTE, KIND_NOTE_VALUE);
    strbuf_addf(sb, "One value only (adam, single, none, 1.0):\n");
    add_names(sb, KIND_ONLY, KIND_ONLY);
    strbuf_addf(sb, "Refused, because the result would differ:\n");
    add_names(sb, KIND_REFUSED, KIND_REFUSED);
    strbuf_addf(sb,
        "\n"
        "Signals: SIGTERM, SIGINT and SIGUSR1 save and exit, SIGUSR2 prints what every rank does.\n"
        "Exit status: 0 orderly end, 1 failed, 2 wrong usage.\n"
        "Example: mpirun -n 8 train --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\\n"
        "             --load ckpt --save ckpt --save-interval 100 --data-path text_document ...\n");
}

/* ---- values ---- */

/* Rows with a field, in the table's order. */
static const struct options_row *nth(int n)
{
    for (int i = 0; i < options_n_rows; i++)
        if (options_rows[i].dest && n-- == 0)
            return &options_rows[i];
    return NULL;
}

int options_count(void)
{
    int n = 0;

    for (int i = 0; i < options_n_rows; i++)
        n += options_rows[i].dest != NULL;
    return n;
}

const char *options_name(int i)
{
    return nth(i)->dest;
}

static void add_text(struct strbuf *sb, const char *s)
{
    strbuf_addf(sb, "%s", s ? s : "None");
}

static void add_list(struct strbuf *sb, const struct opts_list *l)
{
    if (!l->v) {
        add_text(sb, NULL);
        return;
    }
    strbuf_addf(sb, "[");
    for (int i = 0; i < l->n; i++)
        strbuf_addf(sb, "%s'%s'", i ? ", " : "", l->v[i]);
    strbuf_addf(sb, "]");
}

static void add_number(struct strbuf *sb, const struct options_row *r, const void *at, bool given)
{
    int64_t v = *(const int64_t *)at;

    if (!r->def && !given && v <= 0)
        add_text(sb, NULL);
    else
        strbuf_addf(sb, r->kind == KIND_OCTAL ? "0o%lo" : "%ld", (long)v);
}

void options_value(const struct train_opts *o, int i, struct strbuf *sb)
{
    const struct options_row *r = nth(i);
    const void *at = options_at_const(o, r);
    bool given = options_source(o, r->field) != FROM_DEFAULT;
    char number[PYTEXT_FLOAT];

    switch (r->kind) {
    case KIND_FLAG: case KIND_UNFLAG: case KIND_BOOL: add_text(sb, *(const bool *)at ? "True" : "False"); return;
    case KIND_INT: case KIND_OCTAL: add_number(sb, r, at, given); return;
    case KIND_WORD: add_text(sb, r->words[*(const int *)at]); return;
    case KIND_TEXT: add_text(sb, *(const char *const *)at); return;
    case KIND_LIST: add_list(sb, at); return;
    case KIND_REAL: add_text(sb, r->def || given ? pytext_float(number, *(const double *)at) : NULL); return;
    default: return;
    }
}

struct shown {
    const char *name;
    int i;                              /* option, or -1 */
    int value;                          /* what is no option */
};

static int by_name(const void *a, const void *b)
{
    return strcasecmp(((const struct shown *)a)->name, ((const struct shown *)b)->name);
}

void options_print(const struct train_opts *o, bool origins, struct strbuf *sb)
{
    static const char *const sources[] = {
        "", "checkpoint", "DeepSpeed JSON", "file", "environment", "command line",
    };
    int n = options_count();
    struct shown *list = xcalloc((size_t)n + 2, sizeof *list);

    for (int i = 0; i < n; i++)
        list[i] = (struct shown){ options_name(i), i, 0 };
    list[n++] = (struct shown){ "data_parallel_size", -1, o->data_parallel_size };
    list[n++] = (struct shown){ "world_size", -1, o->world_size };
    qsort(list, (size_t)n, sizeof *list, by_name);
    strbuf_addf(sb, "------------------------ arguments ------------------------\n");
    for (int i = 0; i < n; i++) {
        int dots = DOTS - (int)strlen(list[i].name);
        enum opts_source from = list[i].i < 0 ? FROM_DEFAULT : options_source(o, nth(list[i].i)->field);

        strbuf_addf(sb, "  %s %.*s ", list[i].name, dots > 0 ? dots : 0,
                    "................................................");
        if (list[i].i < 0)
            strbuf_addf(sb, "%d", list[i].value);
        else
            options_value(o, list[i].i, sb);
        strbuf_addf(sb, origins && from != FROM_DEFAULT ? "  (%s)\n" : "\n", sources[from]);
    }
    strbuf_addf(sb, "-------------------- end of arguments ---------------------\n");
    free(list);
}

int options_n_words(void)
{
    return options_n_rows;
}

const char *options_word(int i, bool *documented)
{
    *documented = options_rows[i].group != GROUP_OTHER;
    return options_rows[i].name;
}
