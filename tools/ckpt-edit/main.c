/* ckpt-edit - change checkpoints without a training framework */
#include <stdlib.h>

#include "libcommon/format/delta/delta.h"
#include "tools/ckpt-edit/ckptedit.h"
#include "tools/ckpt-edit/swap.h"

enum { MANY = 1 << 16 };

static const struct edit_command {
    struct cli_command is;              /* its numbers of arguments do not include IN and OUT */
    ckptedit_change *change;
    int (*run)(struct ckptedit *j);
} commands[] = {
    { { "put", CMD_PUT, 2, 2, "put needs a NAME, a FILE.npy, IN and OUT" }, change_put, NULL },
    { { "zero", CMD_ZERO, 1, MANY, "zero needs a PATTERN, IN and OUT" }, change_zero, NULL },
    { { "set", CMD_SET, 1, MANY, "set needs KEY=JSON, IN and OUT" }, change_set, NULL },
    { { "drop", CMD_DROP, 1, MANY, "drop needs 'optimizer', 'rng' or a PATTERN, IN and OUT" }, change_drop, NULL },
    { { "average", CMD_AVERAGE, 1, MANY, "average needs two folders or more, and OUT" }, change_average, NULL },
    { { "ema", CMD_EMA, 1, MANY, "ema needs --decay, two folders or more, and OUT" }, change_ema, NULL },
    { { "retag", CMD_RETAG, 0, 0, "retag needs --step, IN and OUT" }, change_retag, NULL },
    { { "cast", CMD_CAST, 1, 1, "cast needs a type, IN and OUT" }, change_cast, NULL },
    { { "rename", CMD_RENAME, 2, MANY, "rename needs a PATTERN, a REPLACEMENT, IN and OUT" }, change_rename, NULL },
    { { "layers", CMD_LAYERS, 2, 2, "layers needs 'keep' or 'drop', a LIST, IN and OUT" }, change_layers, NULL },
    { { "vocab", CMD_VOCAB, 0, 0, "vocab needs --tokens, IN and OUT" }, change_vocab, NULL },
    { { "thin", CMD_THIN, 0, 0, "thin needs IN and OUT" }, change_thin, NULL },
    { { "merge-adapter", CMD_MERGE_ADAPTER, 1, MANY, "merge-adapter needs a base, adapter folders, and OUT" },
      change_merge_adapter, NULL },
    { { "apply", CMD_APPLY, 1, 1, "apply needs a PATCH, IN and OUT" }, change_apply, NULL },
    { { "salvage", CMD_SALVAGE, 0, 0, "salvage needs IN and OUT" }, change_salvage, NULL },
    { { "latest", CMD_LATEST, 2, 2, "latest needs a DIR and a TAG" }, NULL, cmd_latest },
    { { "rollback", CMD_ROLLBACK, 1, 1, "rollback needs the folder that was edited in place" }, NULL, cmd_rollback },
    { { "commit", CMD_COMMIT, 1, 1, "commit needs the folder that was edited in place" }, NULL, cmd_commit },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/*
 * Determine IN and OUT. They are the last two words, or, for CMD_IN_FIRST, the first and the last one. All other words
 * are arguments of the command.
 */
static void find_folders(struct ckptedit *j, unsigned mark)
{
    const int n = j->words.n, n_folders = j->in_place ? 1 : 2;
    const bool first = (mark & CMD_IN_FIRST) != 0;

    j->in = j->words.word[first ? 1 : n - n_folders];
    if (j->in_place)
        j->in = j->place = swap_folder(j->in);
    j->out = j->in_place ? swap_before(j->in) : j->words.word[n - 1];
    j->arg += first;
    j->n_args -= n_folders;
    strbuf_addf(&j->shape, "%s\n", j->words.word[0]);
    for (int i = 0; i < j->n_args; i++)
        strbuf_addf(&j->shape, "%s\n", j->arg[i]);
    strbuf_addf(&j->shape, "%s\n%s\n%.17g\n%d", j->weights ? j->weights : "", j->init ? j->init : "",
                j->decay, j->moments);
    strbuf_addf(&j->shape, "\n%s\n%d", j->from ? j->from : "", j->allow_lost);
    strbuf_addf(&j->shape, "\n%lld %lld %lld %d", (long long)j->step, (long long)j->samples, (long long)j->tokens,
                j->hard_links);
    strbuf_addf(&j->shape, "\n%d", j->rounding);
}

/* List the arguments and options of the command that are paths of inputs. */
static void list_edit_inputs(struct ckptedit *j, unsigned mark)
{
    inputs_add(&j->inputs, "--from", j->from);
    if (mark == CMD_PUT)
        inputs_add(&j->inputs, "FILE.npy", j->arg[1]);
    if (mark == CMD_APPLY)
        inputs_add(&j->inputs, "PATCH", j->arg[0]);
    for (int i = 0; (mark & CMD_IN_FIRST) && i < j->n_args; i++)
        inputs_add(&j->inputs, mark == CMD_MERGE_ADAPTER ? "ADAPTER" : "IN2", j->arg[i]);
}

/* Find the checkpoints for --last, and add them to the words on which the result depends. Returns an exit status. */
static int find_steps(struct ckptedit *j)
{
    struct err e = {0};

    if (j->last && mix_find_steps(j, &e) < 0)
        return cli_fail(&j->cli, &e);
    for (int i = 0; i < j->n_steps; i++)
        strbuf_addf(&j->shape, "\n%s", j->steps[i]);
    if (j->style >= 0)
        strbuf_addf(&j->shape, "\n%d", j->style);
    return EXIT_OK;
}

/* Add the digest of the patch of `apply` to the words on which the result depends. Returns an exit status. */
static int find_patch(struct ckptedit *j, unsigned mark)
{
    struct err e = {0};
    struct delta *d = mark == CMD_APPLY ? delta_open(j->arg[0], &e) : NULL;

    if (mark == CMD_APPLY && !d)
        return cli_fail(&j->cli, &e);
    if (d)
        strbuf_addf(&j->shape, "\n%08x", delta_digest(d));
    delta_close(d);
    return EXIT_OK;
}

static int run_edit_command(struct ckptedit *j)
{
    const int which = cli_words_command(&j->cli, &j->words, commands, sizeof *commands, N_COMMANDS);
    const struct edit_command *cmd = &commands[which < 0 ? 0 : which];
    struct cli_command is;
    int rc;

    if (which < 0)
        return EXIT_USAGE;
    is = cmd->is;
    if (cmd->change) {
        is.min_args += j->in_place ? 1 : 2;
        is.max_args += j->in_place ? 1 : 2;
    }
    if (j->last) {
        is.min_args = is.max_args = 2;
        is.missing = "--last needs the folder of a run, and OUT";
    }
    if (cli_words_check(&j->cli, &j->words, 1, &is))
        return EXIT_USAGE;
    j->arg = j->words.word + 1;
    j->n_args = j->words.n - 1;
    if (!cmd->change)
        return cli_done(&j->cli, cmd->run(j));
    find_folders(j, is.mark);
    j->holes = is.mark == CMD_SALVAGE;
    j->only_types = is.mark == CMD_CAST;
    rc = find_steps(j);
    list_edit_inputs(j, is.mark);
    if (rc == EXIT_OK)
        rc = find_patch(j, is.mark);
    if (rc == EXIT_OK)
        rc = run_change(j, cmd->change);
    if (j->in_place)
        free((char *)j->out);
    return cli_done(&j->cli, rc);
}

int main(int argc, char **argv)
{
    struct ckptedit j = { .decay = -1, .style = -1, .step = -1, .samples = -1, .tokens = -1 };
    int rc;

    cli_start(&j.cli, argv, "ckpt-edit");
    rc = ckptedit_parse(&j, argc, argv) < 0 ? EXIT_USAGE : run_edit_command(&j);
    strbuf_free(&j.shape);
    free(j.place);
    for (int i = 0; i < j.n_steps; i++)
        free(j.steps[i]);
    free(j.steps);
    strbuf_free(&j.log);
    inputs_free(&j.inputs);
    free(j.words.word);
    return rc;
}
