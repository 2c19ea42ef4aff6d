/*
 * options_impl.h - the table of options, for the files that parse, check and show them
 *
 * Each uses those above it only:
 *   options_table.c      the rows
 *   options_find.c       one of them by name or field, and where its value came from
 *   options_value.c      from words to a field
 *   options_print.c      --help, and the values as they are in the end
 *   options_file.c, deepspeed_json.c   sources of values
 *   options.c            the command line, and the order of the sources
 *   options_check.c      what must hold between them
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_OPTIONS_IMPL_H
#define SHARDKIT_TRAIN_OPTIONS_OPTIONS_IMPL_H

#include "tools/train/options/options.h"

enum options_kind {
    KIND_FLAG,                  /* bool; giving it means true */
    KIND_UNFLAG,                /* bool; --no-x: giving it means false */
    KIND_BOOL,                  /* a flag behind which True or False may stand (--eval-only True) */
    KIND_INT, KIND_OCTAL, KIND_REAL,    /* int64_t, int64_t, double */
    KIND_TEXT,                  /* const char * */
    KIND_WORD,                  /* int: which of `words` */
    KIND_LIST,                  /* struct opts_list: all words up to the next option */
    KIND_ALIAS,                 /* of the row named by `help` */
    KIND_NOTE, KIND_NOTE_VALUE, /* the reference's, without effect here; without and with a value */
    KIND_ONLY,                  /* the reference's, of which one value (`def`) is supported; `help` says why */
    KIND_REFUSED,               /* would change the result; `help` says why. A name that ends in '*' is a prefix */
};

enum options_group {
    GROUP_NETWORK, GROUP_OPTIMIZER, GROUP_TRAINING, GROUP_RATE, GROUP_CHECKPOINT, GROUP_PARALLEL, GROUP_DATA,
    GROUP_LOG, GROUP_PROGRAM,
    GROUP_OTHER,                /* aliases, notes, refused: no line of their own */
};

struct options_row {
    const char *name;           /* without dashes, '-' between words */
    enum options_kind kind;
    enum options_group group;
    char letter;                /* short form, or 0 */
    size_t field;               /* in struct train_opts */
    const char *dest;           /* the field's name; NULL for rows without a field */
    const char *def;            /* default as a user would write it; NULL: none */
    const char *arg;            /* "N" in --help */
    const char *help;
    double min, max;            /* KIND_INT, KIND_REAL */
    const char *const *words;   /* KIND_WORD, NULL-terminated */
};

extern const struct options_row options_rows[];
extern const int options_n_rows;

/* Where a value stands. */
struct options_place {
    enum opts_source source;
    const char *where;          /* "SHARDKIT_LR", "run.conf, line 3", "ds.json"; NULL: the command line */
    const char *as;             /* the name as it was written, for rows that are prefixes; may be NULL */
};

struct options_impl {
    struct arena *arena;
    struct options_place *origin;       /* [options_n_rows] */
    struct strbuf ignored;      /* names of options without effect, ", " between them */
    int64_t accumulation_steps; /* of the DeepSpeed JSON; 0: not said */
};

/* ---- options_find.c ---- */

/* The row that `name` (without dashes, '_' or '-') means, aliases followed; NULL. */
const struct options_row *options_find(const char *name);
/* Is it this row's own name? */
bool options_row_matches(const struct options_row *r, const char *name);
/*
 * As argparse takes what is not spelt in full: the one row whose name begins so, aliases followed; NULL
 * when there is none, or when there are several. names: if not NULL, all of them, ", " between them.
 */
const struct options_row *options_find_short(const char *name, struct strbuf *names);
const struct options_row *options_find_letter(char letter);
const struct options_row *options_row_of(size_t field);
/* The known name that is near, or NULL. */
const char *options_nearest(const char *name);
/* "--lr", "--lr (run.conf, line 3)": how messages name an option; lives as long as the options. */
const char *options_label(const struct train_opts *o, const struct options_row *r, const struct options_place *at);
static inline void *options_at(struct train_opts *o, const struct options_row *r) { return (char *)o + r->field; }
static inline const void *options_at_const(const struct train_opts *o, const struct options_row *r)
{
    return (const char *)o + r->field;
}

/* ---- options_value.c ---- */

/*
 * Set a row from its words: flags take none or one, lists any number, all others one. Words are
 * copied. ERR_USAGE.
 */
MUST_CHECK int options_set(struct train_opts *o, const struct options_row *r, int n, char *const *words,
                           const struct options_place *at, struct err *e);
/* The same without noting where the value came from. */
MUST_CHECK int options_take_value(struct train_opts *o, const struct options_row *r, int n, char *const *words,
                                  const struct options_place *at, struct err *e);
/* SHARDKIT_MICRO_BATCH_SIZE; lives as long as the options. */
const char *options_env_name(const struct train_opts *o, const struct options_row *r);

/* ---- options_file.c ---- */

MUST_CHECK int options_read_file(struct train_opts *o, const char *path, struct err *e);
MUST_CHECK int options_read_env(struct train_opts *o, char **env, struct err *e);

#endif
