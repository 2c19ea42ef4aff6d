/*
 * options_file.c - read options from a file and from the environment
 *
 * Each line of the file has one option, "name = value" or "name value". The names are those of the command line,
 * without the leading dashes. A flag needs no value. Several values are separated by blanks. A value that contains
 * blanks must be in single or double quotes. A '#' at the beginning of a word begins a comment.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "tools/train/options/options_impl.h"

enum { FILE_MAX_BYTES = 1 << 20, WORDS_MAX = 4096 };

struct words {
    int n;
    char *v[WORDS_MAX];
};

/*
 * Split `text` into words, in place. If `comments` is set, a '#' at the beginning of a word ends the text. Returns -1
 * if a quote is not closed, or if there are too many words.
 */
static int split_option_words(char *text, bool comments, struct words *w)
{
    char *in = text, *out;

    w->n = 0;
    for (;;) {
        in += strspn(in, " \t\r");
        if (!*in || (comments && *in == '#'))
            return 0;
        if (w->n == WORDS_MAX)
            return -1;
        w->v[w->n++] = out = in;
        while (*in && !strchr(" \t\r", *in)) {
            if (*in == '"' || *in == '\'') {
                char *close = strchr(in + 1, *in);

                if (!close)
                    return -1;
                memmove(out, in + 1, (size_t)(close - in - 1));
                out += close - in - 1;
                in = close + 1;
            } else {
                *out++ = *in++;
            }
        }
        if (*in)
            in++;
        *out = '\0';
    }
}

/*
 * Set an option from the words of its value. A list takes any number of words, other options take exactly one. If
 * may_be_bare is set, a flag may also have no value.
 */
static int set_words(struct train_opts *o, const struct option_row *r, const struct words *w, bool may_be_bare,
                     const struct options_place *at, struct err *e)
{
    const enum option_kind kind = option_kind(r);
    const bool flag = kind <= OPTION_BOOL || (kind == OPTION_NOTE && !r->arg);

    if (kind != OPTION_LIST && kind != OPTION_REFUSED && w->n != 1 && !(flag && may_be_bare && w->n == 0)) {
        err_usage(e, "%s: expected one value, found %d", options_label(o, r, at), w->n);
        return -1;
    }
    return options_set(o, r, w->n, w->v, at, e);
}

static int read_option_line(struct train_opts *o, const char *path, int line, char *text, struct err *e)
{
    struct options_place at = { FROM_FILE, arena_fmt(o->impl->arena, "%s, line %d", path, line), NULL };
    struct words w;
    const struct option_row *r;
    const char *near;
    char *name, *rest;

    name = text + strspn(text, " \t\r");
    if (!*name || *name == '#')
        return 0;
    rest = name + strcspn(name, " \t\r=#");
    if (*rest == '#' || rest == name) {
        err_usage(e, "%s: expected 'name = value'", at.where);
        return -1;
    }
    if (*rest) {
        bool equals = *rest == '=';

        *rest++ = '\0';
        rest += strspn(rest, " \t");
        if (!equals && *rest == '=')
            rest++;
    }
    name += str_starts(name, "--") ? 2 : 0;
    r = option_find(&options_table, name);
    if (!r) {
        near = option_nearest(&options_table, name);
        err_usage(e, near ? "%s: unknown option '%s'; did you mean '%s'?" : "%s: unknown option '%s'", at.where, name,
                  near);
        return -1;
    }
    at.as = name;
    if (r->dest && r->field == offsetof(struct train_opts, config)) {
        err_usage(e, "%s: a file of options cannot name another", at.where);
        return -1;
    }
    if (split_option_words(rest, true, &w) < 0) {
        err_usage(e, "%s: %s: a quote is not closed", at.where, name);
        return -1;
    }
    return set_words(o, r, &w, true, &at, e);
}

int options_read_file(struct train_opts *o, const char *path, struct err *e)
{
    uint64_t size;
    char *text = file_slurp(path, FILE_MAX_BYTES, &size, e), *at = text;
    int line = 0, rc = -1;

    if (!text)
        return -1;
    if (strlen(text) != size) {
        err_data(e, path, strlen(text), "contains a zero byte and is not a text file");
        goto out;
    }
    while (at) {
        char *end = strchr(at, '\n');

        if (end)
            *end = '\0';
        if (read_option_line(o, path, ++line, at, e) < 0)
            goto out;
        at = end ? end + 1 : NULL;
    }
    rc = 0;
out:
    free(text);
    return rc;
}

static int read_variable(struct train_opts *o, const struct option_row *r, const char *name, const char *value,
                         struct err *e)
{
    struct options_place at = { FROM_ENVIRONMENT, name, NULL };
    char *text = xstrdup(value);
    struct words w = { .n = 1, .v = { text } };
    int rc = -1;

    /* Split the value at blanks only if the option is a list. Otherwise the whole text is the value. */
    if (r->kind == OPTION_LIST && split_option_words(text, false, &w) < 0)
        err_usage(e, "%s: a quote is not closed", name);
    else
        rc = set_words(o, r, &w, false, &at, e);
    free(text);
    return rc;
}

/*
 * Returns true if `name` is an environment variable that other parts of the program read directly, such as the kernels
 * and the converters.
 */
static bool read_elsewhere(const char *name)
{
    static const char *const names[] = {
        "SHARDKIT_CPU_ISA", "SHARDKIT_CUDA", "SHARDKIT_NCCL", "SHARDKIT_MPI", "SHARDKIT_MEET_SECONDS",
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

int options_read_env(struct train_opts *o, char **env, struct err *e)
{
    static const char prefix[] = "SHARDKIT_";

    for (; env && *env; env++) {
        const char *equals = strchr(*env, '=');
        const struct option_row *r = NULL;
        char *name;

        if (!equals || !str_starts(*env, prefix))
            continue;
        name = arena_strndup(o->impl->arena, *env, (size_t)(equals - *env));
        OPTION_EACH(&options_table, g, row)
            if (strcmp(options_env_name(o, row), name) == 0)
                r = option_find(&options_table, row->name);
        if (!r && read_elsewhere(name))
            continue;
        if (!r)         /* the variable may belong to another tool, so this is not an error */
            options_add_remark(o, "environment: %s is no option", name);
        else if (read_variable(o, r, name, equals + 1, e) < 0)
            return -1;
    }
    return 0;
}
