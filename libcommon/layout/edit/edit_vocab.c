/*
 * edit_vocab.c - change the number of rows of the embedding and the head in a list of tensors
 *
 * For a checkpoint of the pipeline engine, edit_pipeline.h does this: there the merge rules identify these tensors. In
 * other layouts they are identified by name and by the number of tokens.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/report.h"
#include "libcommon/base/text.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/edit/dcp/edit_torchdist.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_pipeline.h"
#include "libcommon/layout/edit/edit_verbs.h"

/*
 * Returns true if the tensor is an embedding or a head with one row per token: it has `rows` rows and one of the names
 * that families of Transformers use.
 */
static bool is_vocab_table(const struct edit_new *t, int64_t rows)
{
    static const char *const names[] = { "word_embeddings.weight", "wte.weight", "embed_tokens.weight",
                                         "embed_in.weight", "tok_embeddings.weight", "lm_head.weight", "lm_head.bias",
                                         "embed_out.weight", "output.weight", "output_layer.weight" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(t->name), k = strlen(names[i]);

        if (str_ends(t->name, names[i]) && (n == k || t->name[n - k - 1] == '.'))
            return t->ndim > 0 && t->shape[0] == rows;
    }
    return false;
}

/* Returns the number of tokens. Returns -1 with ERR_USAGE if it is not in config.json. */
static int64_t count_tokens(struct edit *x, const struct edit_states *to, struct err *e)
{
    const struct source *s = x->s;
    json_t *config;
    const json_t *v;
    int64_t n;

    /* Layouts without config.json use the number of rows of the first embedding or head. */
    for (int i = 0; !source_is_model_alone(s) && i < to->n; i++)
        if (is_vocab_table(&to->tensor[i], to->tensor[i].shape[0]))
            return to->tensor[i].shape[0];
    config = edit_hf_config(x, e);
    v = json_object_get(config, "vocab_size");
    n = json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;

    if (n < 1 && e->kind == ERR_NONE)
        err_usage(e, "vocab: config.json of %s has no vocab_size", source_path(s));
    json_decref(config);
    return n < 1 ? -1 : n;
}

/*
 * Returns the index of the parameter whose bytes parameter i uses: that of the first name of a tied weight, otherwise
 * i.
 */
static int holder_of(const struct source *s, int i)
{
    const char *name = source_param_at(s, i)->shared_with;

    return name ? source_param_index(s, source_param(s, name)) : i;
}

/*
 * Find the tensors with one row per token. These are the embedding, the head, and all tensors that share their bytes
 * with one of the two. Returns an array with one element per tensor of the list, which the caller frees. Returns NULL
 * with ERR_USAGE if there is none, or if one of them has another shape.
 */
static bool *find_rows(const struct source *s, const struct edit_states *to, int64_t was, struct err *e)
{
    bool *has = xcalloc((size_t)to->n + 1, sizeof *has);
    int n = 0;

    for (int i = 0; i < to->n; i++)
        if (is_vocab_table(&to->tensor[i], was)) {
            has[holder_of(s, i)] = true;
            n++;
        }
    for (int i = 0; i < to->n; i++) {
        has[i] = has[holder_of(s, i)];
        if (has[i] && (to->tensor[i].ndim < 1 || to->tensor[i].shape[0] != was))
            err_usage(e, "vocab: %s shares its data with the embedding, but has another shape", to->tensor[i].name);
    }
    if (n == 0)
        err_usage(e, "vocab: no embedding of %s has %" PRId64 " rows; 'ckpt-inspect ls' lists the shapes",
                  source_path(s), was);
    if (e->kind == ERR_NONE)
        return has;
    free(has);
    return NULL;
}

/*
 * Report the other tensors that have a dimension of this size, such as a bias of shape [1, tokens]. They are not
 * changed.
 */
static void report_other_dimensions(const struct edit_states *to, const bool *has, int64_t was, struct report *notes)
{
    for (int i = 0; i < to->n; i++)
        for (int d = 0; d < to->tensor[i].ndim && !has[i]; d++)
            if (to->tensor[i].shape[d] == was) {
                report_add(notes, SEV_NOTE, EDIT_OTHER_DIMENSION, NULL, ERR_NO_BYTE, NULL,
                           "%s also has a dimension of size %" PRId64 ", which is not changed", to->tensor[i].name,
                           was);
                break;
            }
}

/* Change the number of rows of the tensors with has[i] == true. */
static int resize_vocab_tables(const struct source *s, struct edit *x, struct edit_states *to, const bool *has,
                               struct edit_rows *q, struct err *e)
{
    for (int i = 0; i < to->n; i++)
        if (has[i] && holder_of(s, i) == i && edit_rows_set(x, &to->tensor[i], q, e) < 0)
            return -1;
    for (int i = 0; i < to->n; i++)     /* a tied head gets the maps of the embedding, to stay identical */
        if (has[i] && holder_of(s, i) != i) {
            const struct edit_new *first = &to->tensor[holder_of(s, i)];

            for (int st = 0; st < STATE_N; st++)    /* in a universal form, the head has only STATE_FP32 */
                if (to->tensor[i].map[st])
                    to->tensor[i].map[st] = first->map[st];
            to->tensor[i].shape[0] = first->shape[0];
        }
    return 0;
}

/*
 * Set *was to the old number of tokens, and set the numbers of rows in *q. Returns the array of find_rows(), or NULL
 * with *e set.
 */
static bool *find_vocab_tables(struct edit *x, const struct edit_states *to, struct edit_rows *q, int64_t *was,
                               struct err *e)
{
    bool *has;

    *was = count_tokens(x, to, e);
    has = *was < 1 ? NULL : find_rows(x->s, to, *was, e);
    edit_core_rows(x, *was, q);
    return has;
}

int64_t edit_vocab_bytes(struct edit *x, struct edit_rows *q, struct err *e)
{
    struct edit_states *to;
    uint64_t bytes = 0;
    int64_t was;
    bool *has;

    if (edit_is_pipeline(x->s))
        return edit_pipeline_rows(x, q, e);
    to = edit_states_new(x, "vocab", e);
    has = to ? find_vocab_tables(x, to, q, &was, e) : NULL;
    for (int i = 0; has && i < to->n; i++)
        bytes += has[i] && holder_of(x->s, i) == i ? edit_rows_bytes(&to->tensor[i], q) : 0;
    edit_states_free(to);
    free(has);
    return e->kind == ERR_NONE ? (int64_t)bytes : -1;
}

/*
 * Change the number of rows of the embedding and the head, and record the new number in the configuration or the
 * training arguments.
 */
static int resize_vocab(struct edit *x, struct edit_states *to, struct edit_rows *q, struct report *notes,
                        struct err *e)
{
    int64_t was;
    bool *has = find_vocab_tables(x, to, q, &was, e);
    int rc = -1;

    if (has) {
        report_other_dimensions(to, has, was, notes);
        rc = resize_vocab_tables(x->s, x, to, has, q, e);
    }
    if (rc == 0)
        rc = edit_core_vocab(x, q, e);
    if (rc == 0 && q->rows != was)
        edit_core_report_configs(x, "vocab_size", notes);
    to->config = rc < 0 ? NULL : json_pack("{s:I}", "vocab_size", (json_int_t)q->rows);
    free(has);
    return rc;
}

int edit_vocab(struct edit *x, struct edit_rows *q, struct report *notes, struct err *e)
{
    struct edit_states *to;

    if (edit_is_pipeline(x->s))
        return edit_pipeline(x, &(struct edit_model){ .rows = q }, notes, e);
    to = edit_states_new(x, "vocab", e);
    if (to && resize_vocab(x, to, q, notes, e) == 0)
        return edit_states_apply(x, to, notes, e);
    edit_states_free(to);
    return -1;
}
