/*
 * cmd_vocab.c - vocab: embedding and head with more or fewer rows
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/edit/edit_rows.h"
#include "tools/ckpt-edit/ckptedit.h"

/* "mean", "zero", "normal:0.02" */
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

/* A row a token: tables at either end of the model, under the names that Transformers' families have for them. */
static bool is_vocabulary(const struct edit_new *t, int64_t rows)
{
    static const char *const names[] = { "word_embeddings.weight", "wte.weight", "embed_tokens.weight",
                                         "embed_in.weight", "tok_embeddings.weight", "lm_head.weight", "lm_head.bias",
                                         "embed_out.weight", "output.weight" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(t->name), k = strlen(names[i]);

        if (str_ends(t->name, names[i]) && (n == k || t->name[n - k - 1] == '.'))
            return t->ndim > 0 && t->shape[0] == rows;
    }
    return false;
}

/* The tokens there are, or -1. */
static int64_t tokens_of(struct source *s, struct edit *x, struct err *e)
{
    json_t *config = edit_hf_config(x, e);
    const json_t *v = json_object_get(config, "vocab_size");
    const int64_t n = json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;

    if (n < 1 && e->kind == ERR_NONE)
        err_usage(e, "vocab: config.json of %s says no vocab_size", s->path);
    json_decref(config);
    return n < 1 ? -1 : n;
}

/* Tensor i, another name of one that has its new rows already. The list is still in the source's order. */
static void follow(const struct source *s, struct edit_states *to, int i)
{
    const struct edit_new *first = &to->tensor[source_param(s, s->param[i].shared_with) - s->param];

    memcpy(to->tensor[i].map, first->map, sizeof first->map);
    to->tensor[i].shape[0] = first->shape[0];
}

static int resize(struct ckptedit *j, struct source *s, struct edit *x, struct edit_states *to, struct edit_rows *q,
                  struct err *e)
{
    const int64_t was = tokens_of(s, x, e);
    uint64_t bytes = 0;
    int n = 0;

    for (int i = 0; was > 0 && i < to->n; i++)
        if (is_vocabulary(&to->tensor[i], was)) {
            bytes += s->param[i].shared_with ? 0 : edit_rows_bytes(&to->tensor[i], q->rows);
            n++;
        }
    if (was > 0 && n == 0)
        err_usage(e, "vocab: no embedding of %s has %" PRId64 " rows; ckpt-inspect ls lists what it has", s->path, was);
    if (e->kind != ERR_NONE)
        return -1;
    if (bytes && !j->cli.dry_run) {
        q->fd = ckptedit_spool(j, bytes, e);
        if (q->fd < 0)
            return -1;
        q->file = files_add_fd(s->files, q->fd, bytes, "new rows");
    }
    for (int i = 0; i < to->n; i++)
        if (is_vocabulary(&to->tensor[i], was) && !s->param[i].shared_with &&
            edit_rows_set(x, &to->tensor[i], q, e) < 0)
            return -1;
    for (int i = 0; i < to->n; i++)     /* a tied head goes on being the embedding */
        if (s->param[i].shared_with && is_vocabulary(&to->tensor[i], was))
            follow(s, to, i);
    to->config = json_pack("{s:I}", "vocab_size", (json_int_t)q->rows);
    return 0;
}

int change_vocab(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    struct edit_rows q = { .rows = j->tokens, .fd = -1, .file = -1 };
    struct edit_states *to;

    if (j->tokens < 1) {
        err_usage(e, "vocab needs --tokens N, from 1 on");
        return -1;
    }
    if (read_init(j->init, &q, e) < 0)
        return -1;
    to = edit_states_new(x, "vocab", e);
    if (to && resize(j, s, x, to, &q, e) == 0)
        return edit_states_apply(x, to, e);
    edit_states_free(to);
    return -1;
}
