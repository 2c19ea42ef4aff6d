/* totals.c - print the results of a run, and save them for the process that merges the parts */
#include <stdlib.h>

#include <jansson.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "tools/preprocess/preprocess.h"

void totals_add(struct preprocess_totals *sum, const struct preprocess_totals *more)
{
    for (int k = 0; k < MAX_KEYS; k++) {
        sum->documents[k] += more->documents[k];
        sum->tokens[k] += more->tokens[k];
        sum->size_bytes[k] += more->size_bytes[k];
    }
    sum->empty += more->empty;
    sum->skipped += more->skipped;
    sum->read_bytes += more->read_bytes;
    sum->type = more->type;
    sum->vocab_size = more->vocab_size;
}

static json_t *numbers(const int64_t *v, int n)
{
    json_t *list = json_array();

    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(v[i]));
    return list;
}

char *totals_text(const struct preprocess_totals *t, int n_keys)
{
    json_t *o = json_pack("{s:o, s:o, s:o, s:I, s:I, s:I, s:i, s:I}", "documents", numbers(t->documents, n_keys),
                          "tokens", numbers(t->tokens, n_keys), "size_bytes", numbers(t->size_bytes, n_keys), "empty",
                          (json_int_t)t->empty, "bad_lines", (json_int_t)t->skipped, "read_bytes",
                          (json_int_t)t->read_bytes, "type", (int)t->type, "vocab_size", (json_int_t)t->vocab_size);
    char *text = json_dumps(o, JSON_COMPACT);

    json_decref(o);
    return text;
}

static int read_numbers(int64_t *v, int n, const json_t *list)
{
    if (json_array_size(list) != (size_t)n)
        return -1;
    for (int i = 0; i < n; i++)
        v[i] = json_integer_value(json_array_get(list, (size_t)i));
    return 0;
}

int totals_read(struct preprocess_totals *t, int n_keys, const char *text)
{
    json_t *o = json_loads(text, 0, NULL), *documents, *tokens, *sizes;
    json_int_t empty, skipped, read_bytes, vocab_size;
    int type, rc = -1;

    *t = (struct preprocess_totals){0};
    if (json_unpack(o, "{s:o, s:o, s:o, s:I, s:I, s:I, s:i, s:I}", "documents", &documents, "tokens", &tokens,
                    "size_bytes", &sizes, "empty", &empty, "bad_lines", &skipped, "read_bytes", &read_bytes, "type",
                    &type, "vocab_size", &vocab_size) == 0)
        rc = read_numbers(t->documents, n_keys, documents) | read_numbers(t->tokens, n_keys, tokens) |
             read_numbers(t->size_bytes, n_keys, sizes);
    if (rc == 0) {
        t->empty = empty;
        t->skipped = skipped;
        t->read_bytes = read_bytes;
        t->type = (enum mmidx_type)type;
        t->vocab_size = vocab_size;
    }
    json_decref(o);
    return rc;
}

static json_t *outputs_json(const struct preprocess_job *j, const struct preprocess_totals *t)
{
    json_t *list = json_array();

    for (int k = 0; k < j->n_keys; k++) {
        char *path = job_output(j, k);

        json_array_append_new(list, json_pack("{s:o, s:o, s:I, s:I, s:I}", "prefix", text_json(path), "key",
                                              text_json(j->keys[k]), "documents", (json_int_t)t->documents[k],
                                              "tokens", (json_int_t)t->tokens[k], "size_bytes",
                                              (json_int_t)t->size_bytes[k]));
        free(path);
    }
    return list;
}

void job_print(const struct preprocess_job *j, const struct preprocess_totals *t)
{
    char a[16], b[16];

    if (j->cli.json) {
        cli_json(json_pack("{s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:f}", "tool", j->cli.tool, "outputs",
                           outputs_json(j, t), "type", mmidx_type_name(t->type), "vocab_size",
                           (json_int_t)t->vocab_size, "empty", (json_int_t)t->empty, "bad_lines",
                           (json_int_t)t->skipped, "read_bytes", (json_int_t)t->read_bytes, "wall_s", t->wall_s));
        return;
    }
    for (int k = 0; k < j->n_keys; k++) {
        char *path = job_output(j, k);

        cli_info(&j->cli, "%s: %lld documents, %lld tokens, %s; %s read in %.2f s (%.1f MB/s)", path,
                 (long long)t->documents[k], (long long)t->tokens[k], bytes_text((uint64_t)t->size_bytes[k], a),
                 bytes_text((uint64_t)t->read_bytes, b), t->wall_s,
                 (double)t->read_bytes / 1e6 / (t->wall_s > 0 ? t->wall_s : 1));
        free(path);
    }
    if (t->empty)
        cli_info(&j->cli, "%lld empty texts left out", (long long)t->empty);
    if (t->skipped)
        cli_info(&j->cli, "%lld bad lines left out", (long long)t->skipped);
}
