/* cli_words.c - select a command by the first word, and check its arguments and options */
#include "libcommon/cli/cli_words.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"

int cli_words_add(void *words, const char *word, struct err *e)
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

int cli_words_command(struct cli *cli, const struct cli_words *w, const void *rows, size_t row_bytes, int n_rows)
{
    const char *word = w->n ? w->word[0] : NULL, *near, **names;

    if (!word) {
        cli_usage(cli, "no command given");
        return -1;
    }
    names = xcalloc((size_t)n_rows, sizeof *names);
    for (int i = 0; i < n_rows; i++) {
        names[i] = ((const struct cli_command *)((const char *)rows + (size_t)i * row_bytes))->name;
        if (strcmp(word, names[i]) == 0) {
            free(names);
            return i;
        }
    }
    near = parse_nearest(word, names, n_rows);
    if (near)
        cli_usage(cli, "no command '%s'; did you mean '%s'?", word, near);
    else
        cli_usage(cli, "no command '%s'", word);
    free(names);
    return -1;
}

int cli_words_check(struct cli *cli, const struct cli_words *w, int first, const struct cli_command *c)
{
    const int n = w->n - first;

    /* The command would ignore this option. This is reported as an error. */
    for (int i = 0; i < w->n_rows; i++)
        if (!(w->row[i]->marks & c->mark))
            return cli_usage(cli, "%s does not accept the option --%s", c->name, w->row[i]->name);
    if (n < c->min_args)
        return cli_usage(cli, "%s", c->missing);
    if (n > c->max_args)
        return cli_usage(cli, "%s; '%s' is one argument too many", c->missing, w->word[first + c->max_args]);
    return 0;
}
