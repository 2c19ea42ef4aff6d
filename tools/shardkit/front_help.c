/* front_help.c - print the list of verbs, and show the man page of a verb */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/cli/tool_exec.h"
#include "tools/shardkit/front.h"

int front_print_verbs(void)
{
    printf("Usage: shardkit VERB [options] ARGUMENT...\n"
           "       shardkit help [VERB]\n"
           "Inspect, verify, convert, edit and back up checkpoints of large language models, and train.\n");
    for (int g = 0; g < N_VERB_GROUPS; g++) {
        printf("\n%s:\n", verb_group_titles[g]);
        for (const struct front_verb *v = verbs; v->name; v++)
            if ((int)v->group == g)
                printf("  %-10s  %s\n", v->name, v->text);
    }
    printf("\nOptions:\n"
           "  -h, --help           print this help; 'shardkit VERB --help' prints that of a verb\n"
           "      --version        print the version, the compiler and the libraries\n"
           "      --completion SH  print a completion script for bash, zsh or fish\n"
           "\n'shardkit help VERB' shows the man page of a verb.\n"
           "\nExit status: 0 success, 1 bad data or failed work, 2 wrong usage.\n"
           "Examples:\n"
           "  shardkit inspect ckpt\n"
           "  shardkit verify ckpt/global_step95000\n"
           "  shardkit convert ckpt/global_step95000 --to hf model\n");
    return EXIT_OK;
}

/*
 * Return the path of the tool's man page, which is installed or among the sources. NULL if there is none. The caller
 * frees it.
 */
static char *find_man_page(const char *tool)
{
    static const char *const folders[] = { "../share/man/man1", "../docs" };
    static const char *const ends[] = { ".1", ".1.gz" };
    char *path = NULL;

    for (size_t i = 0; i < 4 && !path; i++) {
        char *file = str_fmt("%s%s", tool, ends[i % 2]);

        path = tool_find_file(folders[i / 2], file);
        free(file);
    }
    return path;
}

int front_help_verb(struct cli *cli, const char *name)
{
    const struct front_verb *v = verb_find(name);
    const char *near = verb_nearest(name);
    char *page, *typed, *help[] = { "--help", NULL };
    const char *lead[] = { v ? v->word : NULL, NULL };
    int rc;

    if (!v)
        return near ? cli_usage(cli, "no verb '%s'; did you mean '%s'?", name, near) :
            cli_usage(cli, "no verb '%s'", name);
    page = find_man_page(v->tool ? v->tool : "shardkit");
    if (page)
        execlp("man", "man", page, (char *)NULL);       /* returns only if the program man cannot be started */
    free(page);
    if (!v->tool)
        return front_convert(cli, help);
    typed = str_fmt("shardkit %s", v->name);
    rc = front_start_tool(cli, v->tool, typed, lead, help);
    free(typed);
    return rc;
}
