/*
 * front_completion.c - print completion scripts: those of all tools, and a function that selects one of them by the
 * verb
 *
 * The words of the command line are replaced by the words that start the tool: "shardkit verify X" becomes
 * "ckpt-inspect verify X". The function of that tool then completes them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/child.h"
#include "libcommon/cli/tool_exec.h"
#include "tools/shardkit/front.h"

/*
 * Append the script of a tool, which `shardkit WORDS... --completion SHELL` prints. Returns false, and appends nothing,
 * if the tool cannot be run.
 */
static bool append_tool_script(struct strbuf *text, const char *const *words, const char *shell)
{
    char *self = tool_find_file(".", "shardkit");
    const char *argv[8] = { self ? self : "shardkit" };
    struct strbuf script = {0};
    struct child_call c = { .argv = argv, .out = &script };
    struct err e = {0};
    int n = 1, status;
    bool ok;

    while (*words)
        argv[n++] = *words++;
    argv[n++] = "--completion";
    argv[n] = shell;
    ok = child_run(&c, &status, &e) == 0 && status == 0 && script.len;
    if (ok)
        strbuf_addf(text, "%s", script.buf);
    strbuf_free(&script);
    free(self);
    return ok;
}

/*
 * Returns true if a verb before `v` in the table starts the same tool. If v is NULL, all verbs of the table are
 * examined.
 */
static bool is_tool_known(const char *tool, const struct front_verb *v)
{
    for (const struct front_verb *before = verbs; before->name && before != v; before++)
        if (before->tool && strcmp(before->tool, tool) == 0)
            return true;
    return false;
}

/*
 * Append the script of a tool. For zsh it is put into a function. If the tool is not installed, a warning is printed.
 */
static void append_script_of(struct cli *cli, struct strbuf *text, const char *tool, const char *const *words,
                             const char *shell)
{
    const bool zsh = strcmp(shell, "zsh") == 0;
    struct strbuf script = {0};

    if (append_tool_script(&script, words, shell))
        strbuf_addf(text, zsh ? "_shardkit_%s() {\n%s}\n" : "# %s\n%s\n", tool, script.buf);
    else
        cli_warn(cli, "%s cannot be run: its options are not completed", tool);
    strbuf_free(&script);
}

/* Append the scripts of all tools. */
static void append_tool_scripts(struct cli *cli, struct strbuf *text, const char *shell)
{
    for (const struct front_verb *v = verbs; v->name; v++) {
        const char *const words[] = { v->name, NULL };

        if (v->tool && !is_tool_known(v->tool, v))
            append_script_of(cli, text, v->tool, words, shell);
    }
    for (const struct front_form *f = forms; f->name; f++) {
        const char *const words[] = { "convert", "--to", f->name, NULL };
        bool known = is_tool_known(f->tool, NULL);

        for (const struct front_form *before = forms; before != f; before++)
            known |= strcmp(before->tool, f->tool) == 0;
        if (!known)
            append_script_of(cli, text, f->tool, words, shell);
    }
}

static void append_verb_names(struct strbuf *text)
{
    for (const struct front_verb *v = verbs; v->name; v++)
        strbuf_addf(text, "%s ", v->name);
}

static void append_form_names(struct strbuf *text)
{
    for (const struct front_form *f = forms; f->name; f++)
        strbuf_addf(text, "%s%s", f == forms ? "" : " ", f->name);
}

/* ---- bash ---- */

static void append_bash_convert(struct strbuf *text)
{
    strbuf_addf(text,
        "_shardkit_convert()\n"
        "{\n"
        "    local i to= prev=${COMP_WORDS[COMP_CWORD-1]} cur=${COMP_WORDS[COMP_CWORD]}\n"
        "    [ \"$prev\" != '=' ] || prev=${COMP_WORDS[COMP_CWORD-2]}\n"
        "    if [ \"$cur\" = '=' ]; then prev=${COMP_WORDS[COMP_CWORD-1]} cur=; fi\n"
        "    if [ \"$prev\" = --to ]; then mapfile -t COMPREPLY < <(compgen -W '");
    append_form_names(text);
    strbuf_addf(text,
        "' -- \"$cur\"); return; fi\n"
        "    for ((i = 2; i < ${#COMP_WORDS[@]}; i++)); do\n"
        "        [ \"${COMP_WORDS[i-1]}\" != --to ] || to=${COMP_WORDS[i]}\n"
        "        [ \"$to\" != '=' ] || to=${COMP_WORDS[i+1]-}\n"
        "    done\n"
        "    case $to in\n");
    for (const struct front_form *f = forms; f->name; f++)
        strbuf_addf(text, "    %s%s%s) _shardkit_as %s ;;\n", f->name, f->alias ? "|" : "", f->alias ? f->alias : "",
                    f->tool);
    strbuf_addf(text,
        "    *) case $cur in -*) mapfile -t COMPREPLY < <(compgen -W '--to --help' -- \"$cur\") ;; esac ;;\n"
        "    esac\n"
        "}\n");
}

static void append_bash_front(struct strbuf *text)
{
    strbuf_addf(text,
        "# _shardkit_as TOOL WORD...: complete the words after the verb as those of the tool\n"
        "_shardkit_as()\n"
        "{\n"
        "    COMP_WORDS=(\"$@\" \"${COMP_WORDS[@]:2}\")\n"
        "    COMP_CWORD=$((COMP_CWORD - 2 + $#))\n"
        "    ! declare -F \"_shardkit_$1\" >/dev/null || \"_shardkit_$1\"\n"
        "}\n");
    append_bash_convert(text);
    strbuf_addf(text,
        "_shardkit_shardkit()\n"
        "{\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} verbs='");
    append_verb_names(text);
    strbuf_addf(text,
        "'\n"
        "    COMPREPLY=()\n"
        "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
        "        mapfile -t COMPREPLY < <(compgen -W \"$verbs help --help --version --completion\" -- \"$cur\")\n"
        "        return\n"
        "    fi\n"
        "    case ${COMP_WORDS[1]} in\n"
        "    help) mapfile -t COMPREPLY < <(compgen -W \"$verbs\" -- \"$cur\") ;;\n"
        "    --completion) mapfile -t COMPREPLY < <(compgen -W 'bash zsh fish' -- \"$cur\") ;;\n"
        "    convert) _shardkit_convert ;;\n");
    for (const struct front_verb *v = verbs; v->name; v++)
        if (v->tool)
            strbuf_addf(text, "    %s) _shardkit_as %s%s%s ;;\n", v->name, v->tool, v->word ? " " : "",
                        v->word ? v->word : "");
    strbuf_addf(text, "    esac\n}\ncomplete -o default -F _shardkit_shardkit shardkit\n");
}

/* ---- zsh ---- */

static void append_zsh_convert(struct strbuf *text)
{
    strbuf_addf(text,
        "  convert)\n"
        "    local i to\n"
        "    for ((i = 3; i <= $#words; i++)); do\n"
        "      [[ $words[i] == --to=* ]] && to=${words[i]#--to=}\n"
        "      [[ $words[i-1] == --to && $i -ne $CURRENT ]] && to=$words[i]\n"
        "    done\n"
        "    if [[ $words[CURRENT-1] == --to ]]; then compadd ");
    append_form_names(text);
    strbuf_addf(text, "; return; fi\n    case $to in\n");
    for (const struct front_form *f = forms; f->name; f++)
        strbuf_addf(text, "    %s%s%s) words=(%s \"${(@)words[3,-1]}\"); ((CURRENT -= 1)); tool=%s ;;\n", f->name,
                    f->alias ? "|" : "", f->alias ? f->alias : "", f->tool, f->tool);
    strbuf_addf(text,
        "    *) [[ $words[CURRENT] == -* ]] && compadd -- --to --help || _files; return ;;\n"
        "    esac ;;\n");
}

static void append_zsh_front(struct strbuf *text)
{
    strbuf_addf(text, "local -a verbs=(");
    for (const struct front_verb *v = verbs; v->name; v++) {
        strbuf_addf(text, "\n  '%s:", v->name);
        for (const char *p = v->text; *p; p++)
            strbuf_addf(text, *p == '\'' ? "'\\''" : *p == ':' ? "\\:" : "%c", *p);
        strbuf_addf(text, "'");
    }
    strbuf_addf(text,
        ")\n"
        "if ((CURRENT == 2)); then _describe verb verbs; compadd help; return; fi\n"
        "local tool\n"
        "case $words[2] in\n"
        "  help) _describe verb verbs; return ;;\n");
    append_zsh_convert(text);
    for (const struct front_verb *v = verbs; v->name; v++)
        if (v->tool)
            strbuf_addf(text, "  %s) words=(%s%s%s \"${(@)words[3,-1]}\"); ((CURRENT -= %d)); tool=%s ;;\n",
                        v->name, v->tool, v->word ? " " : "", v->word ? v->word : "", v->word ? 0 : 1, v->tool);
    strbuf_addf(text, "esac\n(($+functions[_shardkit_$tool])) && _shardkit_$tool || _files\n");
}

/* ---- fish ---- */

static void append_fish_convert(struct strbuf *text)
{
    strbuf_addf(text,
        "function _shardkit_convert\n"
        "    set -l w (commandline -opc)\n"
        "    set -l to\n"
        "    set -l last\n"
        "    for x in $w[3..-1]\n"
        "        string match -q -- '--to=*' $x; and set to (string sub -s 6 -- $x)\n"
        "        test \"$last\" = --to; and set to $x\n"
        "        set last $x\n"
        "    end\n"
        "    set -l forms ");
    append_form_names(text);
    strbuf_addf(text,
        "\n"
        "    test \"$w[-1]\" = --to; and printf '%%s\\n' $forms; and return\n"
        "    string match -q -- '--to=*' (commandline -ct); and printf -- '--to=%%s\\n' $forms; and return\n"
        "    switch \"$to\"\n");
    for (const struct front_form *f = forms; f->name; f++)
        strbuf_addf(text, "        case %s%s%s; _shardkit_as %s\n", f->name, f->alias ? " " : "",
                    f->alias ? f->alias : "", f->tool);
    strbuf_addf(text,
        "        case '*'; printf '%%s\\n' --to --help; __fish_complete_path (commandline -ct)\n"
        "    end\n"
        "end\n"
        "complete -c shardkit -n '_shardkit_accepts \"\" convert' -f -a '(_shardkit_convert)'\n");
}

/* Append the completion of a verb's name, of its options and arguments, and of its name after help. */
static void append_fish_verb(struct strbuf *text, const struct front_verb *v)
{
    strbuf_addf(text, "complete -c shardkit -n 'test (count (commandline -opc)) -eq 1; or _shardkit_accepts \"\" help' "
                "-f -a %s -d '", v->name);
    for (const char *p = v->text; *p; p++)
        strbuf_addf(text, *p == '\'' || *p == '\\' ? "\\%c" : "%c", *p);
    strbuf_addf(text, "'\n");
    if (v->tool)
        strbuf_addf(text, "complete -c shardkit -n '_shardkit_accepts \"\" %s' -f -a '(_shardkit_as %s%s%s)'\n",
                    v->name, v->tool, v->word ? " " : "", v->word ? v->word : "");
}

static void append_fish_front(struct strbuf *text)
{
    strbuf_addf(text,
        "# _shardkit_as TOOL WORD...: complete the words after the verb as those of the tool\n"
        "function _shardkit_as\n"
        "    set -l w (commandline -opc)\n"
        "    complete -C (string join ' ' -- (string escape -- $argv $w[3..-1]))' '(commandline -ct)\n"
        "end\n"
        "set -l first 'test (count (commandline -opc)) -eq 1'\n"
        "complete -c shardkit -n $first -f -a help -d 'show the man page of a verb'\n"
        "complete -c shardkit -n $first -l help -s h -d 'print this help'\n"
        "complete -c shardkit -n $first -l version -d 'print the version, the compiler and the libraries'\n"
        "complete -c shardkit -n $first -l completion -d 'print a completion script'\n"
        "complete -c shardkit -n '_shardkit_accepts \"\" --completion' -f -a 'bash zsh fish'\n");
    for (const struct front_verb *v = verbs; v->name; v++)
        append_fish_verb(text, v);
    append_fish_convert(text);
}

static const struct front_shell {
    const char *name, *begin;
    void (*append_front)(struct strbuf *text);
} shells[] = {
    { "bash", "# bash completion for shardkit and its tools\n", append_bash_front },
    { "zsh", "#compdef shardkit\n", append_zsh_front },
    { "fish", "# fish completion for shardkit and its tools\n", append_fish_front },
};

int front_print_completion(struct cli *cli, const char *shell)
{
    const struct front_shell *s = NULL;
    struct strbuf text = {0};

    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (strcmp(shell, shells[i].name) == 0)
            s = &shells[i];
    if (!s)
        return cli_usage(cli, "--completion: expected bash, zsh or fish");
    strbuf_addf(&text, "%s", s->begin);
    append_tool_scripts(cli, &text, shell);
    s->append_front(&text);
    fputs(text.buf, stdout);
    strbuf_free(&text);
    return EXIT_OK;
}
