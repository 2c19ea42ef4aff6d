/*
 * options_impl.h - the table of options, for the files that take, check and show them
 *
 * Each uses those above it only:
 *   options_table.c      the rows (option_table.h)
 *   options_find.c       where an option's value came from
 *   options_value.c      from words to a field
 *   options_print.c      the values as they are in the end
 *   options_file.c, deepspeed_json.c   sources of values
 *   options.c            the command line, and the order of the sources
 *   options_check.c      what must hold between them
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_OPTIONS_IMPL_H
#define SHARDKIT_TRAIN_OPTIONS_OPTIONS_IMPL_H

#include "tools/train/options/options.h"

/* Where a value stands. */
struct options_place {
    enum opts_source source;
    const char *where;          /* "SHARDKIT_LR", "run.conf, line 3", "ds.json"; NULL: the command line */
    const char *as;             /* the name as it was written, for rows that are prefixes; may be NULL */
};

struct options_impl {
    struct arena *arena;
    struct options_place *origin;       /* by the offset of the option's field */
    struct strbuf ignored;      /* names of options without effect, ", " between them */
    int64_t accumulation_steps; /* of the DeepSpeed JSON; 0: not said */
    bool json_fp16;             /* it says fp16.enabled */
};

/* "--lr", "--lr (run.conf, line 3)": how messages name an option; lives as long as the options. */
const char *options_label(const struct train_opts *o, const struct option_row *r, const struct options_place *at);

/* The word that an option of several stands at; lives as long as the options. */
const char *options_word(const struct train_opts *o, const struct option_row *r);

/* ---- options_value.c ---- */

/*
 * Set a row from its words: flags take none or one, lists any number, all others one. Words are
 * copied. ERR_USAGE.
 */
MUST_CHECK int options_set(struct train_opts *o, const struct option_row *r, int n, char *const *words,
                           const struct options_place *at, struct err *e);
/* The same without noting where the value came from. */
MUST_CHECK int options_take_value(struct train_opts *o, const struct option_row *r, int n, char *const *words,
                                  const struct options_place *at, struct err *e);
/* SHARDKIT_MICRO_BATCH_SIZE; lives as long as the options. */
const char *options_env_name(const struct train_opts *o, const struct option_row *r);

/* ---- options_file.c ---- */

MUST_CHECK int options_read_file(struct train_opts *o, const char *path, struct err *e);
MUST_CHECK int options_read_env(struct train_opts *o, char **env, struct err *e);

#endif
