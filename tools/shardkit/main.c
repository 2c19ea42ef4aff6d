/*
 * shardkit - one command for all tools: `shardkit VERB` starts the tool that has this function
 *
 * The tool replaces this process (libcommon/cli/tool_exec.h), so output, exit status and signals are those of the tool.
 * Its argv[0] is "shardkit VERB", which the tool uses as its name in messages and in --help.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/shardkit/front.h"

static int start_verb(struct cli *cli, const struct front_verb *v, char **argv)
{
    const char *const lead[] = { v->word, NULL };
    char *name = str_fmt("shardkit %s", v->name);
    int rc;

    rc = v->tool ? front_start_tool(cli, v->tool, name, lead, argv) : front_convert(cli, argv);
    free(name);
    return rc;
}

/* Report a first word that is not a verb. Returns the exit status. */
static int refuse_word(struct cli *cli, const char *word)
{
    const char *near = verb_nearest(word);

    return near ? cli_usage(cli, "no verb '%s'; did you mean '%s'?", word, near) :
        cli_usage(cli, "no %s '%s'", word[0] == '-' ? "option" : "verb", word);
}

static int run_front(struct cli *cli, int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    const struct front_verb *v = word ? verb_find(word) : NULL;
    const struct option_table asked = { .tool = "shardkit" };

    if (v)
        return start_verb(cli, v, argv + 2);
    if (word && strcmp(word, "help") == 0 && argc > 2)
        return front_help_verb(cli, argv[2]);
    if (!word) {
        front_print_verbs();
        return EXIT_USAGE;
    }
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return front_print_verbs();
    if (strcmp(word, "--version") == 0)
        return cli_answer(&asked, OPTION_ASKED_VERSION, argv);
    if (strcmp(word, "--completion") == 0 && argc == 3)
        return front_print_completion(cli, argv[2]);
    return refuse_word(cli, word);
}

int main(int argc, char **argv)
{
    struct cli cli = { .tool = "shardkit", .name = "shardkit", .n_parts = 1 };

    return cli_done(&cli, run_front(&cli, argc, argv));
}
