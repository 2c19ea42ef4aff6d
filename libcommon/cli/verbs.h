/*
 * verbs.h - the verbs of shardkit: which tool each one starts, and with which words
 *
 * The help, the completion and the main() of shardkit use these tables. typed_text() uses them to replace the commands
 * of tools in messages.
 */
#ifndef SHARDKIT_CLI_VERBS_H
#define SHARDKIT_CLI_VERBS_H

#include <stddef.h>

enum verb_group { VERBS_LOOK, VERBS_FORM, VERBS_CONTENT, VERBS_SAFE, VERBS_TRAIN, N_VERB_GROUPS };

struct front_verb {
    const char *name;
    enum verb_group group;
    const char *tool;           /* NULL: the tool depends on --to (struct front_form) */
    const char *word;           /* word that precedes those of the user, such as "verify"; NULL: none */
    const char *text;           /* what it does, for the list of verbs */
};

/* A form of checkpoint that `shardkit convert --to` makes. */
struct front_form {
    const char *name, *alias;   /* alias: another word for it, or NULL */
    const char *tool;
    const char *option, *value; /* words that precede those of the user; NULL: none */
    const char *text;
};

extern const struct front_verb verbs[];       /* ends with a row without a name */
extern const struct front_form forms[];       /* the same */
extern const char *const verb_group_titles[N_VERB_GROUPS];

/* Return the verb or form with that name (a form also by its alias), or NULL. */
const struct front_verb *verb_find(const char *name);
const struct front_form *form_find(const char *name);
/*
 * Return the name of the verb or form that is most similar, or NULL if none is. The name of a tool is most similar to
 * the first verb that starts it.
 */
const char *verb_nearest(const char *name);
/*
 * `words` may begin with a command that has the name of a tool, such as "ckpt-inspect verify". In this case return its
 * length in bytes, and set *verb to the verb of shardkit for it ("verify"). If the verb is "convert", *form is set to
 * the form that the command writes ("hdf5" for "ds2universal --format hdf5"), else to NULL. Return 0 if `words` does
 * not begin with the name of a tool.
 */
size_t verb_of_command(const char *words, const char **verb, const char **form);
const char *form_nearest(const char *name);

#endif
