/*
 * verbs.h - the table of shardkit's verbs: the tool that each one starts, and the words that are passed to the tool
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
    const char *tool;           /* NULL: --to determines the tool (struct front_form) */
    const char *word;           /* word that precedes the user's words, such as "verify"; NULL: none */
    const char *text;           /* what the verb does, for the list of verbs */
};

/* A form of checkpoint that `shardkit convert --to` can write. */
struct front_form {
    const char *name, *alias;   /* alias: another word for the form; NULL: none */
    const char *tool;
    const char *option, *value; /* words that are put in front of the user's words; NULL: none */
    const char *text;
};

extern const struct front_verb verbs[];       /* ends with a row without a name */
extern const struct front_form forms[];       /* ends with a row without a name */
extern const char *const verb_group_titles[N_VERB_GROUPS];

/* Return the verb or form with the name `name`, or NULL if there is none. A form is also found by its alias. */
const struct front_verb *verb_find(const char *name);
const struct front_form *form_find(const char *name);
/*
 * Return the verb or form whose name is most similar to `name`, or NULL if none is similar. If `name` is the name of a
 * tool, return the first verb that starts this tool.
 */
const char *verb_nearest(const char *name);
/*
 * Find the verb of shardkit for a command of a tool at the start of `words`, such as "ckpt-inspect verify". Returns the
 * length of the command in bytes, and sets *verb to the verb ("verify"). If the verb is "convert", *form is set to the
 * form that the command writes ("hdf5" for "ds2universal --format hdf5"), otherwise to NULL. Returns 0 if `words` does
 * not begin with the name of a tool.
 */
size_t verb_of_command(const char *words, const char **verb, const char **form);
const char *form_nearest(const char *name);

#endif
