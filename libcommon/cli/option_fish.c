/*
 * option_fish.c - the completion script for fish, made from a tool's option table
 *
 * It offers what the scripts of option_completion.c offer, with the descriptions of --help. fish adds file names by
 * itself unless an option is marked with -x.
 */
#include <string.h>

#include "libcommon/cli/option_table.h"

/* Append s in single quotes. */
static void append_fish_quoted(struct strbuf *text, const char *s)
{
    strbuf_addf(text, "'");
    for (; *s; s++)
        strbuf_addf(text, *s == '\'' || *s == '\\' ? "\\%c" : "%c", *s);
    strbuf_addf(text, "'");
}

/* Append the names of all commands of the tool, separated by blanks. */
static void append_commands(struct strbuf *text, const struct option_table *o)
{
    for (const struct option_command *c = o->commands; c && c->name; c++)
        strbuf_addf(text, "%s%s", c == o->commands ? "" : " ", c->name);
}

/* Append the condition that the command on the command line accepts the option, or that there is no command. */
static void append_condition(struct strbuf *text, const struct option_table *o, const struct option_group *g,
                             const struct option_row *r)
{
    if (!o->commands || (g->marks | r->marks) == 0)
        return;
    strbuf_addf(text, " -n '_shardkit_accepts \"");
    append_commands(text, o);
    strbuf_addf(text, "\"");
    for (const struct option_command *c = o->commands; c->name; c++)
        if (option_fits_command(g, r, c))
            strbuf_addf(text, " %s", c->name);
    strbuf_addf(text, "'");
}

static void append_option(struct strbuf *text, const struct option_table *o, const struct option_group *g,
                          const struct option_row *r)
{
    strbuf_addf(text, "complete -c %s", o->tool);
    append_condition(text, o, g, r);
    strbuf_addf(text, " -l %s", r->name);
    if (r->letter)
        strbuf_addf(text, " -s %c", r->letter);
    if (r->takes_param)
        strbuf_addf(text, " -x -a '(_shardkit_names)'");
    else if (r->arg && r->words)
        strbuf_addf(text, " -x -a '%s'", r->words);
    else if (r->arg)
        strbuf_addf(text, " -r");
    strbuf_addf(text, " -d ");
    append_fish_quoted(text, r->help);
    strbuf_addf(text, "\n");
}

/* Append the completion of the commands, and of the names of parameters after commands that take such a name. */
static void append_words(struct strbuf *text, const struct option_table *o)
{
    strbuf_addf(text, "complete -c %s -n 'test (count (commandline -opc)) -eq 1' -a '", o->tool);
    append_commands(text, o);
    strbuf_addf(text, "'\n");
    for (const struct option_command *c = o->commands; c->name; c++)
        if (c->takes_param)
            strbuf_addf(text, "complete -c %s -n '_shardkit_accepts \"\" %s' -a '(_shardkit_names)'\n", o->tool,
                        c->name);
}

void option_table_fish(const struct option_table *o, struct strbuf *text)
{
    strbuf_addf(text, "# fish completion for %s, as '%s --completion fish' prints it\n", o->tool, o->tool);
    strbuf_addf(text,
        "# _shardkit_accepts COMMANDS COMMAND...: the first argument is one of COMMAND..., or none of COMMANDS\n"
        "function _shardkit_accepts\n"
        "    set -l w (commandline -opc)\n"
        "    contains -- \"$w[2]\" $argv[2..-1]; and return\n"
        "    test -n \"$argv[1]\"; and not contains -- \"$w[2]\" (string split ' ' -- $argv[1])\n"
        "end\n"
        "function _shardkit_names\n"
        "    set -l words (commandline -opc)\n"
        "    for w in $words[2..-1]\n"
        "        test -d \"$w\"; or continue\n"
        "        begin; ckpt-inspect ls --json \"$w\"; or shardkit ls --json \"$w\"; end 2>/dev/null | "
        OPTION_NAMES_IN_JSON "\n"
        "        return\n"
        "    end\n"
        "end\n");
    if (o->commands)
        append_words(text, o);
    OPTION_EACH(o, g, r)
        if (option_is_shown(r))
            append_option(text, o, g, r);
}
