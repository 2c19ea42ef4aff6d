/*
 * hf_claims.c - check layers, vocabulary, hidden size and the tied head against config.json
 */
#include "libcommon/layout/hf/check/hf_claims.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/hf/hf_layers.h"
#include "libcommon/layout/hf/hf_names.h"
#include "libcommon/model/family.h"
#include "libcommon/plan/tmap.h"

struct hf_claims {
    const struct source *s;
    const json_t *config;
    enum severity severity;
    struct report *r;
};

/*
 * Returns the integer in config.json under the first of the names in `key` whose value is an integer. `key` ends with
 * NULL. Returns -1 if there is none.
 */
static int64_t read_config_integer(const json_t *config, const char *const *key)
{
    for (; *key; key++) {
        const json_t *v = json_object_get(config, *key);

        if (json_is_integer(v))
            return json_integer_value(v);
    }
    return -1;
}

/* ---- sizes in config.json ---- */

/*
 * Check that each size that config.json states at its top level is a whole number. A size of null counts as not stated.
 */
static void check_settings(const struct hf_claims *c)
{
    static const struct { const char *key; int least; } sizes[] = {
        { "num_hidden_layers", 0 }, { "n_layer", 0 }, { "n_layers", 0 }, { "num_layers", 0 }, { "vocab_size", 1 },
        { "hidden_size", 1 }, { "n_embd", 1 }, { "d_model", 1 },
    };
    static const char *const of_families[] = { "num_attention_heads", "num_key_value_heads", "intermediate_size",
                                               "head_dim", "n_head", "n_inner" };
    const size_t n = sizeof sizes / sizeof *sizes, n_more = sizeof of_families / sizeof *of_families;
    const bool known = hf_knows_layers(c->config);

    for (size_t i = 0; i < n + (known ? n_more : 0); i++) {
        const char *key = i < n ? sizes[i].key : of_families[i - n];
        const json_t *v = json_object_get(c->config, key);
        const int least = i < n ? sizes[i].least : 1;
        char *text;

        if (!v || json_is_null(v) || (json_is_integer(v) && json_integer_value(v) >= least) ||
            (!known && (json_is_array(v) || json_is_object(v))))
            continue;
        text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, NULL,
                   "%s in config.json is %.40s, but must be a whole number of %d or more", key, text ? text : "damaged",
                   least);
        free(text);
    }
}

/* ---- layers ---- */

/*
 * Returns the number of the layer in a name: the number after the first component "layers", "h", "blocks", "block" or
 * "layer". *before is set to the length of the text before the number. Returns -1 if the name has no such number.
 */
static int parse_layer_number(const char *name, size_t *before)
{
    static const char *const words[] = { "layers.", "h.", "blocks.", "block.", "layer." };

    for (const char *at = name; at; at = strchr(at, '.')) {
        at += *at == '.';
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            const size_t n = strlen(words[i]);
            long number;

            if (strncmp(at, words[i], n) != 0 || !isdigit((unsigned char)at[n]))
                continue;
            number = strtol(at + n, NULL, 10);
            *before = (size_t)(at - name) + n;
            return number < INT_MAX ? (int)number : -1;
        }
    }
    return -1;
}

static int cmp_claimed_layers(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;

    return (x > y) - (x < y);
}

/*
 * Check the layer numbers in the tensors' names against the number of layers in config.json. There must be no other
 * layers, and if `missing` is true, no layer may be missing. Models with two stacks of layers (an encoder and a
 * decoder) are not checked, because config.json then states several numbers.
 */
static void check_layers(const struct hf_claims *c, bool missing)
{
    static const char *const keys[] = { "num_hidden_layers", "n_layer", "n_layers", "num_layers", NULL };
    static const char *const more_keys[] = { "num_nextn_predict_layers", NULL };
    const int64_t claimed = read_config_integer(c->config, keys), more = read_config_integer(c->config, more_keys);
    int *number = xmalloc(((size_t)c->s->n_params + 1) * sizeof *number), n = 0, found = 0;
    const char *stack = NULL;
    size_t stack_len = 0;
    bool one = claimed >= 0;

    for (int i = 0; i < c->s->n_params && one; i++) {
        size_t before = 0;
        const char *name = c->s->param[i].name;
        const int layer = parse_layer_number(name, &before);

        if (layer < 0)
            continue;
        one = !stack || (before == stack_len && strncmp(name, stack, before) == 0);
        stack = name;
        stack_len = before;
        number[n++] = layer;
    }
    if (n)
        qsort(number, (size_t)n, sizeof *number, cmp_claimed_layers);
    for (int i = 0; i < n && one; i++) {
        if (i && number[i] == number[i - 1])
            continue;
        if (number[i] != found && found < claimed && missing) {
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, NULL,
                       "no file has tensors of layer %d, but config.json has %lld layers", found, (long long)claimed);
            one = false;
        }
        found++;
    }
    if (one && n && (missing ? found != claimed : number[n - 1] >= claimed) &&
        !(more > 0 && found > claimed && found <= claimed + more))
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, NULL,
                   "the files have %d layers, but config.json has %lld", found, (long long)claimed);
    free(number);
}

/*
 * Check the lists that have one word per layer of the model, or of its language model: their length must be the number
 * of layers.
 */
static void check_layer_lists(const struct hf_claims *c)
{
    static const char *const lists[] = { "layer_types", "mlp_layer_types" };
    const json_t *of[] = { c->config, json_object_get(c->config, "text_config") };

    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
            const json_t *list = json_object_get(of[i], lists[k]), *n = json_object_get(of[i], "num_hidden_layers");

            if (json_is_array(list) && json_is_integer(n) &&
                (json_int_t)json_array_size(list) != json_integer_value(n))
                report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, NULL,
                           "%s in config.json is a list of %zu, but num_hidden_layers is %lld; Transformers refuses "
                           "such a model", lists[k], json_array_size(list), (long long)json_integer_value(n));
        }
}

/* ---- the embedding and the head ---- */

static bool is_embedding_weight_name(const char *name)
{
    static const char *const ends[] = { ".embed_tokens.weight", ".wte.weight", ".word_embeddings.weight",
                                        ".embed_in.weight" };

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (str_ends(name, ends[i]) || strcmp(name, ends[i] + 1) == 0)
            return true;
    return false;
}

/*
 * Returns the width of the embedding that config.json states, or -1. If the embedding is not as wide as the hidden
 * size, the model states the width under a separate key.
 */
static int64_t read_embedding_width(const json_t *config)
{
    static const char *const own[] = { "word_embed_proj_dim", "embedding_size", "embedding_dim", "emb_dim",
                                       "d_embed", "input_embedding_size", NULL };
    static const char *const keys[] = { "hidden_size", "n_embd", "d_model", NULL };
    const int64_t width = read_config_integer(config, own);

    return width >= 0 ? width : read_config_integer(config, keys);
}

static void check_claimed_sizes(const struct hf_claims *c, const struct param *p)
{
    static const char *const keys[] = { "vocab_size", NULL };
    const int64_t rows = read_config_integer(c->config, keys), width = read_embedding_width(c->config);

    if (p->ndim == 2 && rows >= 0 && p->shape[0] != rows)
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                   "has %lld rows, but vocab_size in config.json is %lld", (long long)p->shape[0], (long long)rows);
    if (p->ndim == 2 && width >= 0 && p->shape[1] != width)
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                   "has %lld columns, but the hidden size in config.json is %lld",
                   (long long)p->shape[1], (long long)width);
}

/* Compare the size of the last norm with the hidden size, unless the weights are quantised. */
static void check_final_norm(const struct hf_claims *c)
{
    static const char *const names[] = { "model.norm.weight", "norm.weight", "transformer.ln_f.weight", "ln_f.weight",
                                         "model.final_layernorm.weight", "gpt_neox.final_layer_norm.weight",
                                         "transformer.norm_f.weight", "model.decoder.final_layer_norm.weight" };
    static const char *const keys[] = { "hidden_size", "n_embd", "d_model", NULL };
    const int64_t hidden = read_config_integer(c->config, keys);

    for (size_t i = 0; i < sizeof names / sizeof *names && hidden >= 0 &&
                       !json_object_get(c->config, "quantization_config"); i++) {
        const struct param *p = source_param(c->s, names[i]);

        if (p && (p->ndim != 1 || p->shape[0] != hidden))
            report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, p->name,
                       "has %lld elements in %d dimensions, but the hidden size in config.json is %lld",
                       (long long)shape_count(p->ndim, p->shape), p->ndim, (long long)hidden);
    }
}

/*
 * Check that the number of heads divides the hidden size. BLOOM and GPT-2 require this, because they have no separate
 * head size.
 */
static void check_heads_divide(const struct hf_claims *c)
{
    static const char *const hidden_keys[] = { "hidden_size", "n_embd", NULL };
    static const char *const head_keys[] = { "n_head", "num_attention_heads", NULL };
    const int64_t hidden = read_config_integer(c->config, hidden_keys);
    const int64_t heads = read_config_integer(c->config, head_keys);
    const char *model = json_string_value(json_object_get(c->config, "model_type"));

    if (!model || (strcmp(model, "bloom") != 0 && strcmp(model, "gpt2") != 0))
        return;
    if (hidden > 0 && heads > 0 && hidden % heads)
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, NULL,
                   "config.json states %lld attention heads, which do not divide the hidden size %lld",
                   (long long)heads, (long long)hidden);
}

static const struct tmap *claimed_weights_map(const struct param *p)
{
    return p->state[STATE_FP32] ? p->state[STATE_FP32] : p->state[STATE_BF16];
}

/*
 * Returns true if the bytes of the two maps differ in a sample at the beginning, in the middle or at the end. A sample
 * that cannot be read counts as equal, because the code that reads the whole tensor reports the error.
 */
static bool differ(const struct source *s, const struct tmap *a, const struct tmap *b)
{
    enum { SAMPLE = 65536 };
    const uint64_t len = a->len < SAMPLE ? a->len : SAMPLE;
    const uint64_t at[] = { 0, align_down((a->len - len) / 2, 8), a->len - len };
    char *x = xmalloc(SAMPLE), *y = xmalloc(SAMPLE);
    bool found = a->dtype != b->dtype || a->len != b->len;

    for (int i = 0; i < 3 && !found; i++) {
        const struct tmap_range r = { 0, at[i], len };
        struct err ignored = {0};

        found = tmap_read(a, s->files, r, x, &ignored) == 0 && tmap_read(b, s->files, r, y, &ignored) == 0 &&
                memcmp(x, y, len) != 0;
    }
    free(x);
    free(y);
    return found;
}

/*
 * Returns true if the model in config.json is a causal language model of a known family. Such a model must have a head,
 * except if config.json ties the head to the embedding.
 */
static bool is_known_causal_lm(const struct hf_claims *c)
{
    const char *model = json_string_value(json_object_get(c->config, "model_type"));
    const char *class = json_string_value(json_array_get(json_object_get(c->config, "architectures"), 0));
    struct err ignored = {0};
    struct family *f = model && class && !strpbrk(model, "/.") &&
                       (str_ends(class, "ForCausalLM") || str_ends(class, "LMHeadModel"))
                           ? family_open(model, &ignored) : NULL;

    family_free(f);
    return f != NULL;
}

static void check_claimed_head(const struct hf_claims *c, const struct param *table, const struct param *head)
{
    const json_t *tied = json_object_get(c->config, "tie_word_embeddings");

    if (json_is_true(tied) && head && table && !head->shared_with && claimed_weights_map(head) &&
        claimed_weights_map(table) && differ(c->s, claimed_weights_map(head), claimed_weights_map(table)))
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, head->name,
                   "differs from %s, although config.json ties the two (tie_word_embeddings)", table->name);
    if (json_is_false(tied) && !head && table && is_known_causal_lm(c))
        report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, NULL,
                   "the head is missing, and config.json does not tie it to the embedding (tie_word_embeddings)");
}

void hf_check_claims(const struct source *s, const json_t *config, bool sizes, enum severity severity,
                     struct report *r)
{
    const struct hf_claims c = { .s = s, .config = config, .severity = severity, .r = r };
    const struct param *table = NULL, *head = NULL;

    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        const bool empty = shape_count(p->ndim, p->shape) == 0;

        if (empty && sizes)
            report_add(r, severity, "config", s->path, ERR_NO_BYTE, p->name,
                       "has no elements, but config.json describes a model without empty tensors");
        if (is_embedding_weight_name(p->name) && !empty && !table)
            table = p;
        else if (hf_is_head(p->name) && !empty && !head)
            head = p;
    }
    if (sizes && table)
        check_claimed_sizes(&c, table);
    if (sizes && head)
        check_claimed_sizes(&c, head);
    if (sizes)
        check_final_norm(&c);
    check_heads_divide(&c);
    check_layers(&c, sizes);
    check_layer_lists(&c);
    check_settings(&c);
    check_claimed_head(&c, table, head);
}
