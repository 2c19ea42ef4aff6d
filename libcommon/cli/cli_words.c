/*
 * cli_words.c - words of the command line that are no options
 */
#include "libcommon/cli/cli_words.h"

#include "libcommon/base/mem.h"

int cli_words_take(void *words, const char *word, struct err *e)
{
    struct cli_words *w = words;

    (void)e;
    ARRAY_ROOM(w->word, w->cap, w->n + 1);
    w->word[w->n++] = word;
    return 0;
}

void cli_words_given(void *words, const struct option_given *g)
{
    struct cli_words *w = words;

    if (g->row->marks && w->n_rows < CLI_WORDS_ROWS)
        w->row[w->n_rows++] = g->row;
}

int cli_words_check(struct cli *cli, const struct cli_words *w, int first, const struct cli_command *c)
{
    const int n = w->n - first;

    /* An option that the command would ignore is a mistake worth telling. */
    for (int i = 0; i < w->n_rows; i++)
        if (!(w->row[i]->marks & c->mark))
            return cli_usage(cli, "%s takes no --%s", c->name, w->row[i]->name);
    if (n < c->min_args)
        return cli_usage(cli, "%s", c->missing);
    if (n > c->max_args)
        return cli_usage(cli, "%s: what is '%s'?", c->missing, w->word[first + c->max_args]);
    return 0;
}
