/*
 * option_completion.c - completion scripts for bash and zsh, made from a tool's option table
 *
 * `make install` runs `TOOL --completion bash` and `TOOL --completion zsh` and saves the output. If an option has a
 * list of words, its value is completed with these words. The name of a parameter is completed with the names in the
 * checkpoint that is on the command line. Every other value and word is completed with file names. After a command, the
 * options that it accepts are offered.
 */
#include <string.h>

#include "libcommon/cli/option_table.h"

#define LIST_NAMES \
    "{ ckpt-inspect ls --json \"$w\" || shardkit ls --json \"$w\"; } 2>/dev/null | " OPTION_NAMES_IN_JSON

/*
 * Append the names of all commands whose arguments are names of parameters, separated by '|'. Returns the number of
 * these commands.
 */
static int add_param_commands(struct strbuf *text, const struct option_table *o)
{
    int n = 0;

    for (const struct option_command *c = o->commands; c && c->name; c++)
        if (c->takes_param)
            strbuf_addf(text, "%s%s", n++ ? "|" : "", c->name);
    return n;
}

/* Returns true if every command accepts the option. */
static bool fits_all(const struct option_table *o, const struct option_group *g, const struct option_row *r)
{
    return !o->commands || (g->marks | r->marks) == 0;
}

/* Append the names of the commands that accept the option, separated by '|'. */
static void add_fitting_commands(struct strbuf *text, const struct option_table *o, const struct option_group *g,
                                 const struct option_row *r)
{
    const char *between = "";

    for (const struct option_command *c = o->commands; c->name; c++)
        if (option_fits_command(g, r, c)) {
            strbuf_addf(text, "%s%s", between, c->name);
            between = "|";
        }
}

/* ---- bash ---- */

/*
 * Append the cases that complete a value. There is one case for each option that takes a value and may precede the
 * cursor.
 */
static void add_bash_values(struct strbuf *text, const struct option_table *o)
{
    OPTION_EACH(o, g, r) {
        if (!option_is_shown(r) || !r->arg)
            continue;
        strbuf_addf(text, "    --%s", r->name);
        if (r->letter)
            strbuf_addf(text, "|-%c", r->letter);
        if (r->takes_param)
            strbuf_addf(text, ") _shardkit_names; return ;;\n");
        else
            strbuf_addf(text, ") words='%s' ;;\n", r->words ? r->words : "");
    }
}

/*
 * Append the names of the options. Options that every command accepts come first. The options of the command on the
 * command line follow or, if there is no command, all options.
 */
static void add_bash_options(struct strbuf *text, const struct option_table *o)
{
    strbuf_addf(text, "        -*) words='");
    OPTION_EACH(o, g, r)
        if (option_is_shown(r) && fits_all(o, g, r))
            strbuf_addf(text, "\n--%s", r->name);
    strbuf_addf(text, "'\n");
    if (o->commands)
        strbuf_addf(text, "            case ${COMP_WORDS[1]} in\n");
    for (const struct option_command *c = o->commands; c && c->name; c++) {
        strbuf_addf(text, "            %s) words+='", c->name);
        OPTION_EACH(o, g, r)
            if (option_is_shown(r) && !fits_all(o, g, r) && option_fits_command(g, r, c))
                strbuf_addf(text, " --%s", r->name);
        strbuf_addf(text, "' ;;\n");
    }
    if (o->commands) {
        strbuf_addf(text, "            *) words+='");
        OPTION_EACH(o, g, r)
            if (option_is_shown(r) && !fits_all(o, g, r))
                strbuf_addf(text, "\n--%s", r->name);
        strbuf_addf(text, "' ;;\n            esac\n");
    }
    strbuf_addf(text, "            ;;\n");
}

void option_table_bash(const struct option_table *o, struct strbuf *text)
{
    struct strbuf params = {0};

    strbuf_addf(text, "# bash completion for %s, as '%s --completion bash' prints it\n", o->tool, o->tool);
    strbuf_addf(text,
        "_shardkit_names()\n"
        "{\n"
        "    local w name cur=${COMP_WORDS[COMP_CWORD]}\n"
        "    [ \"$cur\" != '=' ] || cur=\n"
        "    for w in \"${COMP_WORDS[@]:1}\"; do\n"
        "        if [ -d \"$w\" ] && [ \"$w\" != \"$cur\" ]; then\n"
        "            while IFS= read -r name; do\n"
        "                case $name in \"$cur\"*) COMPREPLY+=(\"$name\") ;; esac\n"
        "            done < <(" LIST_NAMES ")\n"
        "            return\n"
        "        fi\n"
        "    done\n"
        "}\n");
    /*
     * If the answer is empty, readline completes file names. readline splits words at '=', so --opt=value arrives as
     * three words.
     */
    strbuf_addf(text,
        "_shardkit_%s()\n"
        "{\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
        "    COMPREPLY=()\n"
        "    if [ \"$cur\" = '=' ]; then\n"
        "        cur=\n"
        "    elif [ \"$prev\" = '=' ]; then\n"
        "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
        "    fi\n"
        "    case $prev in\n", o->tool);
    add_bash_values(text, o);
    strbuf_addf(text, "    *)\n        case $cur in\n");
    add_bash_options(text, o);
    if (add_param_commands(&params, o))
        strbuf_addf(text, "        *) case ${COMP_WORDS[1]} in\n"
                    "            %s) [ \"$COMP_CWORD\" -eq 1 ] || _shardkit_names ;;\n            esac\n"
                    "            [ ${#COMPREPLY[@]} -eq 0 ] || return ;;\n", params.buf);
    strbuf_addf(text, "        esac\n");
    if (o->commands) {
        strbuf_addf(text, "        [ \"$COMP_CWORD\" -ne 1 ] || words=\"$words");
        for (const struct option_command *c = o->commands; c->name; c++)
            strbuf_addf(text, " %s", c->name);
        strbuf_addf(text, "\"\n");
    }
    strbuf_addf(text,
        "        ;;\n"
        "    esac\n"
        "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
        "}\n"
        "complete -o default -F _shardkit_%s %s\n", o->tool, o->tool);
    strbuf_free(&params);
}

/* ---- zsh ---- */

/*
 * Append s, escaped for a string in single quotes that is passed to _arguments. Brackets, colons and backslashes are
 * special to _arguments, and a single quote would end the string.
 */
static void append_zsh_escaped(struct strbuf *text, const char *s)
{
    for (; *s; s++) {
        if (*s == '\'')
            strbuf_addf(text, "'\\''");
        else
            strbuf_addf(text, "%s%c", strchr("[]:\\", *s) ? "\\" : "", *s);
    }
}

static void add_zsh_row(struct strbuf *text, const struct option_row *r)
{
    if (r->letter)
        strbuf_addf(text, "\n    '(-%c --%s)'{-%c%s,--%s%s}'[", r->letter, r->name, r->letter, r->arg ? "+" : "",
                    r->name, r->arg ? "=" : "");
    else
        strbuf_addf(text, "\n    '%s--%s%s[", r->many || r->kind == OPTION_LIST ? "*" : "", r->name,
                    r->arg ? "=" : "");
    append_zsh_escaped(text, r->help);
    strbuf_addf(text, "]");
    if (r->arg) {
        strbuf_addf(text, ":");
        append_zsh_escaped(text, r->arg);
        if (r->words)
            strbuf_addf(text, ":(%s)", r->words);
        else
            strbuf_addf(text, r->takes_param ? ":_shardkit_names" : ":_files");
    }
    strbuf_addf(text, "'");
}

/*
 * Append code that sets the array `o` to the options that the command on the command line accepts. If there is no
 * command, the array has all options.
 */
static void add_zsh_options(struct strbuf *text, const struct option_table *o)
{
    strbuf_addf(text, "local c=$words[2]\nlocal -a o=(");
    OPTION_EACH(o, g, r)
        if (option_is_shown(r) && fits_all(o, g, r))
            add_zsh_row(text, r);
    strbuf_addf(text, ")\n");
    if (!o->commands)
        return;
    strbuf_addf(text, "[[ $c == (");
    for (const struct option_command *c = o->commands; c->name; c++)
        strbuf_addf(text, "%s%s", c == o->commands ? "" : "|", c->name);
    strbuf_addf(text, ") ]] || c=all\n");
    OPTION_EACH(o, g, r)
        if (option_is_shown(r) && !fits_all(o, g, r)) {
            strbuf_addf(text, "[[ $c == (all|");
            add_fitting_commands(text, o, g, r);
            strbuf_addf(text, ") ]] && o+=(");
            add_zsh_row(text, r);
            strbuf_addf(text, ")\n");
        }
}

void option_table_zsh(const struct option_table *o, struct strbuf *text)
{
    struct strbuf params = {0};
    const bool names = add_param_commands(&params, o) > 0;

    strbuf_addf(text, "#compdef %s\n# as '%s --completion zsh' prints it\n", o->tool, o->tool);
    strbuf_addf(text,
        "_shardkit_names() {\n"
        "  local w; local -a n\n"
        "  for w in $words[2,-1]; do\n"
        "    [[ -d $w ]] && { n=(${(f)\"$(" LIST_NAMES ")\"}); break }\n"
        "  done\n"
        "  compadd -a n\n"
        "}\n");
    if (names)
        strbuf_addf(text, "_shardkit_words() { [[ $words[2] == (%s) ]] && _shardkit_names && return; _files }\n",
                    params.buf);
    add_zsh_options(text, o);
    strbuf_addf(text, "_arguments -s -S $o");
    if (o->commands) {                  /* because of the leading blank, _arguments adds no options of its own */
        strbuf_addf(text, " \\\n    '1:command or path: _alternative \"c:command:(");
        for (const struct option_command *c = o->commands; c->name; c++)
            strbuf_addf(text, "%s%s", c == o->commands ? "" : " ", c->name);
        strbuf_addf(text, ")\" \"f:path:_files\"'");
    }
    strbuf_addf(text, " \\\n    '*:path:%s'\n", names ? "_shardkit_words" : "_files");
    strbuf_free(&params);
}
