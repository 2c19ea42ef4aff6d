/*
 * option_completion.c - completion scripts for bash and zsh, made from a tool's option table
 *
 * `make install` saves what `TOOL --completion bash` and `zsh` print. A value with known words is completed with
 * these words, every other value and word with file names.
 */
#include <string.h>

#include "libcommon/cli/option_table.h"

/* ---- bash ---- */

void option_table_bash(const struct option_table *o, struct strbuf *text)
{
    /*
     * An empty answer makes readline complete file names. readline breaks words at '=', so --opt=value is three
     * words.
     */
    strbuf_addf(text,
        "# bash completion for %s, as '%s --completion bash' prints it\n"
        "_shardkit_%s()\n"
        "{\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
        "    if [ \"$cur\" = '=' ]; then\n"
        "        cur=\n"
        "    elif [ \"$prev\" = '=' ]; then\n"
        "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
        "    fi\n"
        "    case $prev in\n", o->tool, o->tool, o->tool);
    OPTION_EACH(o, g, r) {
        if (!option_is_shown(r) || !r->arg)
            continue;
        strbuf_addf(text, "    --%s", r->name);
        if (r->letter)
            strbuf_addf(text, "|-%c", r->letter);
        strbuf_addf(text, ") words='%s' ;;\n", r->words ? r->words : "");
    }
    strbuf_addf(text, "    *)\n        case $cur in\n        -*) words='");
    OPTION_EACH(o, g, r)
        if (option_is_shown(r))
            strbuf_addf(text, "\n--%s", r->name);
    strbuf_addf(text, "' ;;\n        esac\n");
    if (o->commands)
        strbuf_addf(text, "        [ \"$COMP_CWORD\" -ne 1 ] || words=\"$words %s\"\n", o->commands);
    strbuf_addf(text,
        "        ;;\n"
        "    esac\n"
        "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
        "}\n"
        "complete -o default -F _shardkit_%s %s\n", o->tool, o->tool);
}

/* ---- zsh ---- */

/*
 * Escape text inside '...': brackets, colons and backslashes are special to _arguments, and a quote would end the
 * word.
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
        strbuf_addf(text, " \\\n    '(-%c --%s)'{-%c%s,--%s%s}'[", r->letter, r->name, r->letter, r->arg ? "+" : "",
                    r->name, r->arg ? "=" : "");
    else
        strbuf_addf(text, " \\\n    '%s--%s%s[", r->many || r->kind == OPTION_LIST ? "*" : "", r->name,
                    r->arg ? "=" : "");
    append_zsh_escaped(text, r->help);
    strbuf_addf(text, "]");
    if (r->arg) {
        strbuf_addf(text, ":");
        append_zsh_escaped(text, r->arg);
        if (r->words)
            strbuf_addf(text, ":(%s)", r->words);
        else
            strbuf_addf(text, ":_files");
    }
    strbuf_addf(text, "'");
}

void option_table_zsh(const struct option_table *o, struct strbuf *text)
{
    strbuf_addf(text, "#compdef %s\n# as '%s --completion zsh' prints it\n_arguments -s -S", o->tool, o->tool);
    OPTION_EACH(o, g, r)
        if (option_is_shown(r))
            add_zsh_row(text, r);
    if (o->commands)                    /* with the leading blank, _arguments adds no options of its own */
        strbuf_addf(text, " \\\n    '1:command or path: _alternative \"c:command:(%s)\" \"f:path:_files\"'",
                    o->commands);
    strbuf_addf(text, " \\\n    '*:path:_files'\n");
}
