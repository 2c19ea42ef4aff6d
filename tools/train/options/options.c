/*
 * options.c - the command line, and the order of the sources
 *
 * --help and --version are seen first; then defaults, file, environment and command line, each over the
 * one before; the DeepSpeed JSON last, for what nobody gave.
 */
#include "tools/train/options/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/options/deepspeed_json.h"
#include "tools/train/options/options_impl.h"

/* ---- the command line ---- */

/* Is this word an option and not a value? "-1" and "-" are values. */
static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] && !(word[1] >= '0' && word[1] <= '9') && word[1] != '.';
}

static bool takes_words(const struct options_row *r, int *least, int *most, const char *next)
{
    static const char *const truth[] = { "true", "false", "True", "False", "0", "1" };

    *least = *most = 1;
    switch (r->kind) {
    case KIND_FLAG: case KIND_UNFLAG: case KIND_NOTE:
        return false;
    case KIND_REFUSED:                  /* never gets as far as its values */
        return false;
    case KIND_BOOL:
        for (size_t i = 0; next && i < sizeof truth / sizeof *truth; i++)
            if (strcmp(next, truth[i]) == 0)
                return true;
        return false;
    case KIND_LIST:
        *least = 0;
        *most = 1 << 20;
        return true;
    default:
        return true;
    }
}

/*
 * Take the option at argv[*at] with its words; *at moves to the next option.
 * name: as it was written, without dashes; value: what follows '=', or NULL.
 */
static int take(struct train_opts *o, const struct options_row *r, const char *name, char *value, int argc, char **argv,
                int *at, struct err *e)
{
    struct options_place here = { FROM_COMMAND_LINE, NULL, name };
    char **words = argv + *at + 1;
    int least, most, n = 0;
    bool takes = takes_words(r, &least, &most, *at + 1 < argc ? argv[*at + 1] : NULL);

    if (value) {
        if (!takes && r->kind != KIND_BOOL && r->kind != KIND_REFUSED) {
            err_usage(e, "--%s takes no value", r->name);
            return -1;
        }
        *at += 1;
        return options_set(o, r, 1, &value, &here, e);
    }
    while (takes && n < most && *at + 1 + n < argc && !is_option(words[n]))
        n++;
    if (takes && n < least) {
        err_usage(e, "--%s needs a value", r->name);
        return -1;
    }
    *at += 1 + n;
    return options_set(o, r, n, words, &here, e);
}

/* The row of a name that no row has: one that it begins, with a note; else NULL and *e. */
static const struct options_row *take_short(struct train_opts *o, const char *name, struct err *e)
{
    struct strbuf names = {0};
    const struct options_row *r = options_find_short(name, &names);
    const char *near = options_nearest(name);

    if (r)
        options_note(o, "--%s is taken for --%s", name, r->name);
    else if (names.len)
        err_usage(e, "option '--%s' is the beginning of several: %s", name, names.buf);
    else if (near)
        err_usage(e, "unknown option '--%s'; did you mean '--%s'?", name, near);
    else
        err_usage(e, "unknown option '--%s'", name);
    strbuf_free(&names);
    return r;
}

static int take_word(struct train_opts *o, int argc, char **argv, int *at, struct err *e)
{
    const char *word = argv[*at];
    const struct options_row *r;
    char *name, *value;
    int rc = -1;

    if (!is_option(word)) {
        err_usage(e, "'%s' belongs to no option", word);
        return -1;
    }
    if (word[1] != '-') {
        r = options_find_letter(word[1]);
        if (r && !word[2])
            return take(o, r, r->name, NULL, argc, argv, at, e);
        if (r && r->kind == KIND_INT)           /* -j4 */
            return take(o, r, r->name, argv[*at] + 2, argc, argv, at, e);
        err_usage(e, "unknown option '%s'", word);
        return -1;
    }
    name = xstrdup(word + 2);
    value = strchr(name, '=');
    if (value)
        *value++ = '\0';
    r = options_find(name);
    if (!r)
        r = take_short(o, name, e);
    if (r)
        rc = take(o, r, name, value, argc, argv, at, e);
    free(name);
    return rc;
}

static int read_command_line(struct train_opts *o, int argc, char **argv, struct err *e)
{
    for (int at = 1; at < argc; )
        if (take_word(o, argc, argv, &at, e) < 0)
            return -1;
    return 0;
}

/* ---- all sources ---- */

static int set_defaults(struct train_opts *o, struct err *e)
{
    static const struct options_place here = { FROM_DEFAULT, NULL, NULL };

    o->eod_id = o->umask = -1;
    for (int i = 0; i < options_n_rows; i++) {
        const struct options_row *r = &options_rows[i];
        char *word = (char *)r->def;

        if (word && r->dest && options_set(o, r, 1, &word, &here, e) < 0)
            return -1;
    }
    return 0;
}

/* Does this word name the option, in full or short enough to be understood? *value: what follows '=', or NULL. */
static bool names_row(const char *word, const struct options_row *r, const char **value)
{
    char name[64];
    size_t n = strcspn(word, "=");

    if (!str_starts(word, "--") || n - 2 >= sizeof name)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)n - 2, word + 2);
    *value = word[n] ? word + n + 1 : NULL;
    return *name && (options_row_matches(r, name) || (!options_find(name) && options_find_short(name, NULL) == r));
}

/* --config is read before the words that win over it, so it is looked for beforehand. */
static const char *find_config(int argc, char **argv, char **env)
{
    const struct options_row *r = options_row_of(offsetof(struct train_opts, config));
    const char *path = NULL, *value;

    for (char **v = env; v && *v; v++)
        if (str_starts(*v, "SHARDKIT_CONFIG="))
            path = strchr(*v, '=') + 1;
    for (int i = 1; i < argc; i++)
        if (names_row(argv[i], r, &value) && (value || i + 1 < argc))
            path = value ? value : argv[i + 1];
    return path;
}

static bool asks_for(struct train_opts *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        o->help |= strcmp(argv[i], "--help") == 0;
        o->version |= strcmp(argv[i], "--version") == 0;
    }
    return o->help || o->version;
}

int options_parse(struct train_opts *o, int argc, char **argv, char **env, struct err *e)
{
    const char *config = find_config(argc, argv, env);

    memset(o, 0, sizeof *o);
    o->impl = xcalloc(1, sizeof *o->impl);
    o->impl->arena = arena_new(0);
    o->impl->origin = arena_alloc(o->impl->arena, (size_t)options_n_rows * sizeof *o->impl->origin);
    if (set_defaults(o, e) < 0)
        return -1;
    if (asks_for(o, argc, argv))
        return 0;
    if (config && options_read_file(o, config, e) < 0)
        return -1;
    if (options_read_env(o, env, e) < 0 || read_command_line(o, argc, argv, e) < 0)
        return -1;
    if (o->deepspeed_config && deepspeed_json_read(o, e) < 0)
        return -1;
    if (o->impl->ignored.len)
        options_note(o, "accepted, without effect here: %s", o->impl->ignored.buf);
    return 0;
}

void options_free(struct train_opts *o)
{
    if (!o->impl)
        return;
    for (int i = 0; i < o->n_notes; i++)
        free(o->note[i]);
    free(o->note);
    free(o->skip);
    save_schedule_free(&o->saves);
    strbuf_free(&o->impl->ignored);
    arena_free(o->impl->arena);
    free(o->impl);
    memset(o, 0, sizeof *o);
}
