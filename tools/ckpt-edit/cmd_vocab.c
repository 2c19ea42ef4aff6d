/*
 * cmd_vocab.c - the command vocab: give embedding and head more or fewer rows
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/dcp/edit_torchdist.h"
#include "libcommon/layout/edit/edit_pipeline.h"
#include "tools/ckpt-edit/ckptedit.h"

/* Parse "mean", "zero" or "normal:0.02". */
static int read_init(const char *text, struct edit_rows *q, struct err *e)
{
    const char *number = text && str_starts(text, "normal:") ? text + strlen("normal:") : NULL;
    char *end = NULL;

    if (!text || strcmp(text, "mean") == 0) {
        q->init = EDIT_INIT_MEAN;
        return 0;
    }
    if (strcmp(text, "zero") == 0) {
        q->init = EDIT_INIT_ZERO;
        return 0;
    }
    q->init = EDIT_INIT_NORMAL;
    q->std = number ? strtod(number, &end) : -1;
    if (number && *number && !*end && isfinite(q->std) && q->std >= 0)
        return 0;
    err_usage(e, "--init %s: there are mean, zero and normal:STD", text);
    return -1;
}

/*
 * Returns true if the tensor has one row per token: a table at either end of the model, under one of the names
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

/* Return the number of tokens, or -1. */
static int64_t tokens_of(struct source *s, struct edit *x, const struct edit_states *to, struct err *e)
{
    json_t *config;
    const json_t *v;
    int64_t n;

    /* Without a configuration that gives the number, use the rows of the first table. */
    for (int i = 0; !s->layout->model_folder && i < to->n; i++)
        if (is_vocab_table(&to->tensor[i], to->tensor[i].shape[0]))
            return to->tensor[i].shape[0];
    config = edit_hf_config(x, e);
    v = json_object_get(config, "vocab_size");
    n = json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;

    if (n < 1 && e->kind == ERR_NONE)
        err_usage(e, "vocab: config.json of %s has no vocab_size", s->path);
    json_decref(config);
    return n < 1 ? -1 : n;
}

/* Return the index of the parameter that holds the bytes of parameter i, which may share them. */
static int holder_of(const struct source *s, int i)
{
    const char *name = s->param[i].shared_with;

    return name ? (int)(source_param(s, name) - s->param) : i;
}

/*
 * Find the tensors with one row per token: the vocabulary, and tensors with any name that share its bytes. The
 * caller frees the array, which has one element per tensor.
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
            err_usage(e, "vocab: %s shares its bytes with the embedding, and has another shape", to->tensor[i].name);
    }
    if (n == 0)
        err_usage(e, "vocab: no embedding of %s has %" PRId64 " rows; ckpt-inspect ls lists what it has", s->path, was);
    if (e->kind == ERR_NONE)
        return has;
    free(has);
    return NULL;
}

/*
 * Print the other tensors that have a dimension of this size, such as a bias of [1, tokens]. Their meaning is
 * unknown here.
 */
static void warn_others(const struct ckptedit *j, const struct edit_states *to, const bool *has, int64_t was)
{
    for (int i = 0; i < to->n; i++)
        for (int d = 0; d < to->tensor[i].ndim && !has[i]; d++)
            if (to->tensor[i].shape[d] == was) {
                cli_info(&j->cli, "%s has a dimension of %" PRId64 ", too, and keeps it", to->tensor[i].name, was);
                break;
            }
}

static int resize_vocab_tables(struct source *s, struct edit *x, struct edit_states *to, const bool *has,
                               struct edit_rows *q, struct err *e)
{
    for (int i = 0; i < to->n; i++)
        if (has[i] && holder_of(s, i) == i && edit_rows_set(x, &to->tensor[i], q, e) < 0)
            return -1;
    for (int i = 0; i < to->n; i++)     /* a tied head remains identical to the embedding */
        if (has[i] && holder_of(s, i) != i) {
            const struct edit_new *first = &to->tensor[holder_of(s, i)];

            for (int st = 0; st < STATE_N; st++)    /* a universal form has only the weights of it */
                if (to->tensor[i].map[st])
                    to->tensor[i].map[st] = first->map[st];
            to->tensor[i].shape[0] = first->shape[0];
        }
    return 0;
}

/* Allocate a spool file for the new rows, unless there are none or nothing is written. */
static int open_spool(const struct ckptedit *j, struct source *s, struct edit_rows *q, uint64_t bytes, struct err *e)
{
    if (bytes == 0 || j->cli.dry_run)
        return 0;
    q->fd = ckptedit_spool(j, bytes, e);
    if (q->fd < 0)
        return -1;
    q->file = files_add_fd(s->files, q->fd, bytes, "new rows");
    return 0;
}

static int resize(struct ckptedit *j, struct source *s, struct edit *x, struct edit_states *to, struct edit_rows *q,
                  struct err *e)
{
    const int64_t was = tokens_of(s, x, to, e);
    bool *has = was < 1 ? NULL : find_rows(s, to, was, e);
    uint64_t bytes = 0;
    int rc = -1;

    edit_core_rows(x, was, q);
    for (int i = 0; has && i < to->n; i++)
        bytes += has[i] && holder_of(s, i) == i ? edit_rows_bytes(&to->tensor[i], q) : 0;
    if (has)
        rc = open_spool(j, s, q, bytes, e);
    if (rc == 0) {
        warn_others(j, to, has, was);
        rc = resize_vocab_tables(s, x, to, has, q, e);
    }
    if (rc == 0)
        rc = edit_core_vocab(x, q, e);
    to->config = rc < 0 ? NULL : json_pack("{s:I}", "vocab_size", (json_int_t)q->rows);
    free(has);
    return rc;
}

static int vocab_of_pipeline(struct ckptedit *j, struct source *s, struct edit *x, struct edit_rows *q, struct err *e)
{
    const struct edit_model m = { .rows = q };
    struct report *notes = report_new();
    const int64_t bytes = edit_pipeline_rows(x, q, e);
    int rc = bytes < 0 || open_spool(j, s, q, (uint64_t)bytes, e) < 0 ? -1 : edit_pipeline(x, &m, notes, e);

    cli_warn_findings(&j->cli, notes);
    report_free(notes);
    return rc;
}

int change_vocab(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct edit_rows q = { .tokens = j->tokens, .rows = j->tokens, .fd = -1, .file = -1, .zeros = -1 };
    struct edit_states *to;

    if (j->tokens < 1 || j->tokens > INT32_MAX) {        /* with more rows, byte counts might exceed 64 bits */
        err_usage(e, "vocab needs --tokens N, from 1 to %d", INT32_MAX);
        return -1;
    }
    if (read_init(j->init, &q, e) < 0)
        return -1;
    if (edit_is_pipeline(s))
        return vocab_of_pipeline(j, s, x, &q, e);
    to = edit_states_new(x, "vocab", e);
    if (to && resize(j, s, x, to, &q, e) == 0)
        return apply_states(j, x, to, e);
    edit_states_free(to);
    return -1;
}
