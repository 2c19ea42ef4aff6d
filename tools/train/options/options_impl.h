/*
 * options_impl.h - internal declarations of the files that parse, check and print the options
 *
 * Each file uses only those listed above it:
 *   options_table.c      the rows (option_table.h)
 *   options_value.c      an option's value: its source, and its conversion from words
 *   options_print.c      prints the effective values
 *   options_file.c, deepspeed_json.c   sources of values
 *   train_options.c the command line, and the order of the sources
 *   options_check.c      constraints between the options
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_OPTIONS_IMPL_H
#define SHARDKIT_TRAIN_OPTIONS_OPTIONS_IMPL_H

#include "tools/train/options/train_options.h"

/* The place at which the value of an option was given. */
struct options_place {
    enum opts_source source;
    const char *where;          /* such as "SHARDKIT_LR", "run.conf, line 3" or "ds.json"; NULL: the command line */
    const char *as;             /* the name as the user wrote it, if it is an abbreviation; may be NULL */
};

struct options_impl {
    struct arena *arena;
    struct options_place *origin;       /* indexed by the offset of the option's field */
    struct strbuf ignored;      /* names of options that were given but have no effect, separated by ", " */
    int64_t accumulation_steps; /* gradient_accumulation_steps of the DeepSpeed JSON; 0: not given */
    bool json_fp16;             /* the DeepSpeed JSON sets fp16.enabled to true */
};

/*
 * Returns the name of an option for messages, such as "--lr" or "--lr (run.conf, line 3)". It is valid as long as the
 * options.
 */
const char *options_label(const struct train_opts *o, const struct option_row *r, const struct options_place *at);

/* Returns the current value of an option whose value is one of a list of words. It is valid as long as the options. */
const char *options_word(const struct train_opts *o, const struct option_row *r);

/* ---- options_value.c ---- */

/*
 * Set an option from the n words of its value, and record the place at which it was given. A flag has 0 or 1 words, a
 * list any number, all other options one. The words are copied. Fails with ERR_USAGE.
 */
MUST_CHECK int options_set(struct train_opts *o, const struct option_row *r, int n, char *const *words,
                           const struct options_place *at, struct err *e);
/* Set an option like options_set(), but do not record the place at which it was given. */
MUST_CHECK int options_parse_value(struct train_opts *o, const struct option_row *r, int n, char *const *words,
                                   const struct options_place *at, struct err *e);
/*
 * Returns the name of the environment variable for an option, such as SHARDKIT_MICRO_BATCH_SIZE. It is valid as long as
 * the options.
 */
const char *options_env_name(const struct train_opts *o, const struct option_row *r);

/* ---- options_file.c ---- */

MUST_CHECK int options_read_file(struct train_opts *o, const char *path, struct err *e);
MUST_CHECK int options_read_env(struct train_opts *o, char **env, struct err *e);

#endif
