/*
 * llama.h - models of Llama's kind in .pth files under names of their own (docs/formats.md, section 18)
 *
 *   consolidated.<NN>.pth, params.json     Meta's form: the weights of each model-parallel rank, and the sizes
 *   lit_model.pth, model_config.yaml       litgpt's form: all weights, and the sizes
 *
 * A form is a table of rules. Parameters get the names, and the order of rows, that they have in Transformers, and the
 * sizes become a config.json (source.config_json), with which the tensors are compared as in a model folder.
 *
 * Codes of findings:
 *   missing_file E   a rank has no file, or the file of the sizes is missing
 *   ranks E          the sizes state another number of ranks than there are files
 *   other_rank E     a file was saved under the name of another rank (W with source_opts.accept_mismatch)
 *   names E          a rank lists other tensors than rank 0
 *   unread E         a tensor cannot be read: the reason is given
 *   config E         queries have norms or biases that the settings do not state, or the reverse
 *   omitted NOTE     a tensor is omitted, because Transformers computes it
 */
#ifndef SHARDKIT_LAYOUT_LLAMA_H
#define SHARDKIT_LAYOUT_LLAMA_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct layout;
struct report;
struct source;
struct source_listing;
struct source_opts;

/*
 * How ranks share a tensor. The embedding is cut by columns (Llama 1 and 2) or by rows (Llama 3). Its width shows
 * which.
 */
enum llama_cut { LLAMA_WHOLE, LLAMA_ROWS, LLAMA_COLUMNS, LLAMA_EMBEDDING };

/*
 * A rule for a tensor in the files. In names, '*' stands for the number of a layer. The tensor becomes the parameters
 * in to[]: three if it has queries, keys and values; none if to[0] is NULL.
 */
struct llama_rule {
    const char *from, *to[3];
    enum llama_cut cut;
    bool turned;                /* the rows of a head are interleaved: row 2j + h is row j of half h */
};

/* The sizes that all forms state. */
struct llama_sizes {
    int64_t hidden, layers, heads, groups, lanes;
    int64_t vocab;              /* -1 if it is not stated */
    int64_t ffn;                /* -1 if not stated; then it is that of the first tensor that shows it */
    bool norms, biases;         /* queries and keys have norms; queries, keys and values have biases */
};

struct llama;

struct llama_form {
    const struct layout *layout;
    const char *settings;       /* name of the file with the sizes */
    const struct llama_rule *rule;
    int n_rules;
    /* Returns the rank in a name, or -1 if the name is not that of a file of weights. */
    int (*rank_of)(const char *name);
    /*
     * Read x->sizes, and the settings for x->config, from `text`, the contents of the settings file. Returns -1 with *e
     * set if that fails.
     */
    int (*read_settings)(struct llama *x, const char *text, struct err *e);
};

/* A folder that is being opened. */
struct llama {
    struct source *s;
    const struct source_listing *l;
    const struct source_opts *o;
    struct report *r;
    const struct llama_form *form;
    int n_ranks;
    int *file;                  /* [n_ranks]: index in s->file, or -1 */
    const char *settings_path;  /* path of the file with the sizes, for messages */
    struct llama_sizes sizes;
    json_t *config;             /* config.json of the same model */
};

/* Open a folder of this form. The members s, l, o, r and form of x must be set. */
MUST_CHECK int llama_open(struct llama *x, struct err *e);
/* Set *e to the error that the settings file states something that is not supported. Returns -1. */
int llama_refuse_settings(const struct llama *x, struct err *e, const char *why);
/* Check that the sizes describe a model, and add them to x->config. Returns -1 with *e set if they do not. */
MUST_CHECK int llama_set_sizes(struct llama *x, struct err *e);

#endif
