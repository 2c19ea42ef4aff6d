/*
 * torchdist_config.c - compare the tensors of a Megatron-core model with the configuration that its program saved
 *
 * Megatron-Bridge and NeMo dump a dict with PyYAML's safe_dump(): a section is a line "model:", its keys are lines
 * with two blanks before the key and one blank after the colon. Lines with more blanks continue a value. A file with
 * a section or a value in any other form is not compared.
 */
#include "libcommon/layout/dcp/check/torchdist_config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/layout/core_args.h"

enum { MOST_BYTES = 1 << 20, MOST_DIGITS = 9 };

enum config_key {
    LAYERS, HIDDEN, FFN, HEADS, GROUPS, LANES, TOKENS, EXPERTS, LATENT, OUTPUT_GATE, UNLIKE_FILE, UNLIKE_TEXT,
    UNLIKE_BLOCKS, N_KEYS
};

static const char *const key_name[N_KEYS] = {
    [LAYERS] = "num_layers", [HIDDEN] = "hidden_size", [FFN] = "ffn_hidden_size", [HEADS] = "num_attention_heads",
    [GROUPS] = "num_query_groups", [LANES] = "kv_channels", [TOKENS] = "vocab_size", [EXPERTS] = "num_moe_experts",
    [LATENT] = "multi_latent_attention", [OUTPUT_GATE] = "attention_output_gate",
    [UNLIKE_FILE] = "heterogeneous_layers_config_path", [UNLIKE_TEXT] = "heterogeneous_layers_config_encoded_json",
    [UNLIKE_BLOCKS] = "heterogeneous_block_specs",
};

/* The number that is the value of a key. null and false count as 0. `there` is false if the key is missing. */
struct config_value {
    bool there;
    int64_t n;
};

struct config_check {
    const struct source *s;
    const struct torchdist_config *of;
    struct report *r;
    struct config_value key[N_KEYS];
    const char *why;            /* the reason why the file is not compared, or NULL */
};

/* ---- lines ---- */

static bool parse_config_value(const char *text, int64_t *n)
{
    const size_t digits = strspn(text, "0123456789");

    if (strcmp(text, "null") == 0 || strcmp(text, "false") == 0)
        *n = 0;
    else if (strcmp(text, "true") == 0)
        *n = 1;
    else if (digits > 0 && digits <= MOST_DIGITS && !text[digits] && (text[0] != '0' || digits == 1))
        *n = atoll(text);
    else
        return false;
    return true;
}

static const char unlike[] = "the layers of the model differ";

/* Read a line of the section, without the two blanks at the beginning of the line. */
static void read_config_line(struct config_check *c, const char *line)
{
    for (int k = 0; k < N_KEYS; k++) {
        const size_t n = strlen(key_name[k]);

        if (strncmp(line, key_name[k], n) != 0 || line[n] != ':')
            continue;
        if (c->key[k].there)
            c->why = "a size is there twice";
        else if (line[n + 1] != ' ' || !parse_config_value(line + n + 2, &c->key[k].n))
            c->why = k >= UNLIKE_FILE ? unlike : "a size is no number";
        c->key[k].there = true;
    }
    if (str_starts(line, "<<"))
        c->why = "it refers to another section";
}

/* Read the keys of the section. `text` is changed. */
static void read_config_section(struct config_check *c, char *text)
{
    const size_t n = strlen(c->of->section);
    bool inside = false, found = false;
    char *next;

    for (char *line = text; line && !c->why; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (strpbrk(line, "\t\r"))
            c->why = "it has tabs or carriage returns";
        else if (line[0] == '\0' || line[0] == '#')
            continue;
        else if (line[0] != ' ')
            inside = strncmp(line, c->of->section, n) == 0 && line[n] == ':' && !line[n + 1] && !found;
        else if (inside && line[1] == ' ' && line[2] != ' ')
            read_config_line(c, line + 2);
        else if (inside && line[1] != ' ')
            c->why = "its lines are not indented by two blanks";
        found |= inside;
    }
    if (!c->why && !c->key[LAYERS].there)
        c->why = "it states no num_layers in the form in which the program writes it";
}

static void read_config(struct config_check *c)
{
    const uint64_t size = files_size(c->s->files, c->of->file);
    struct err e = {0};
    char *text;

    if (size > MOST_BYTES) {
        c->why = "it has more than 1 MiB";
        return;
    }
    text = xcalloc(1, size + 1);
    if (files_read(c->s->files, c->of->file, 0, text, size, &e) < 0)
        c->why = "it cannot be read";
    else if (memchr(text, '\0', size))
        c->why = "it is no text";
    else
        read_config_section(c, text);
    free(text);
}

/* ---- tensors ---- */

/* Returns the name of a parameter without the prefix, or NULL if the name does not begin with the prefix. */
static const char *name_in_model(const struct config_check *c, const struct param *p)
{
    return str_starts(p->name, c->of->prefix) ? p->name + strlen(c->of->prefix) : NULL;
}

static void refute_config(const struct config_check *c, enum config_key k, const char *param, const char *what,
                          int64_t found)
{
    report_add(c->r, SEV_WARNING, "config", files_name(c->s->files, c->of->file), ERR_NO_BYTE, param,
               "states %s %" PRId64 ", but %s %" PRId64 ": it is of another model, or was not changed with this one",
               key_name[k], c->key[k].n, what, found);
}

/* Returns the number of rows that the configuration gives to the matrix of queries, keys and values, or 0. */
static int64_t rows_of_attention(const struct config_check *c)
{
    const struct config_value *v = c->key;
    const int64_t heads = v[HEADS].n, groups = v[GROUPS].n ? v[GROUPS].n : heads;

    if (!heads || !v[GROUPS].there || !v[LANES].there || v[LATENT].n || v[OUTPUT_GATE].n)
        return 0;
    if (!v[LANES].n && (!v[HIDDEN].n || v[HIDDEN].n % heads))
        return 0;
    return (heads + 2 * groups) * (v[LANES].n ? v[LANES].n : v[HIDDEN].n / heads);
}

/* Compare one parameter of a layer with the configuration. Returns true if they contradict each other. */
static bool check_layer_param(const struct config_check *c, const struct param *p)
{
    const int64_t rows = rows_of_attention(c);

    if (p->ndim == 2 && rows && str_ends(p->name, ".self_attention.linear_qkv.weight") && p->shape[0] != rows) {
        report_add(c->r, SEV_WARNING, "config", files_name(c->s->files, c->of->file), ERR_NO_BYTE, p->name,
                   "has %" PRId64 " rows, but by the heads, groups and kv_channels it has %" PRId64 ": the file is of "
                   "another model, or was not changed with this one", p->shape[0], rows);
        return true;
    }
    if (p->ndim == 2 && c->key[FFN].n && str_ends(p->name, ".mlp.linear_fc2.weight") && p->shape[1] != c->key[FFN].n) {
        refute_config(c, FFN, p->name, "the columns are", p->shape[1]);
        return true;
    }
    if (p->ndim == 2 && c->key[EXPERTS].n && str_ends(p->name, ".mlp.router.weight") &&
        p->shape[0] != c->key[EXPERTS].n) {
        refute_config(c, EXPERTS, p->name, "the rows are", p->shape[0]);
        return true;
    }
    return false;
}

/*
 * Compare the embedding and the layers with the configuration. Sets c->why if the tensors are of a kind that cannot be
 * compared.
 */
static void compare_config(struct config_check *c)
{
    const struct param *embedding = NULL;
    bool refuted = false;
    int n_layers = 0, n_routers = 0;

    for (int i = 0; i < c->s->n_params; i++) {
        const char *name = name_in_model(c, &c->s->param[i]);

        if (name && strcmp(name, "embedding.word_embeddings.weight") == 0)
            embedding = &c->s->param[i];
        if (strstr(c->s->param[i].name, ".mixer.") || strstr(c->s->param[i].name, "encoder.layers."))
            c->why = "the model has layers of other kinds";
        if (name && core_layer_of(name) >= n_layers)
            n_layers = core_layer_of(name) + 1;
        n_routers += name && core_layer_of(name) >= 0 && str_ends(name, ".mlp.router.weight");
    }
    if (!embedding || embedding->ndim != 2 || !n_layers)
        c->why = "the tensors are not those of a decoder with an embedding";
    for (int k = UNLIKE_FILE; k < N_KEYS; k++)
        c->why = c->key[k].n ? unlike : c->why;
    if (c->why)
        return;
    if (c->key[LAYERS].n != n_layers)
        refute_config(c, LAYERS, NULL, "the layers of the tensors are", n_layers);
    if (c->key[HIDDEN].n && c->key[HIDDEN].n != embedding->shape[1])
        refute_config(c, HIDDEN, embedding->name, "the columns are", embedding->shape[1]);
    if (c->key[TOKENS].n > embedding->shape[0])         /* the rows may have padding */
        refute_config(c, TOKENS, embedding->name, "the rows are", embedding->shape[0]);
    if (c->key[EXPERTS].there && (c->key[EXPERTS].n > 0) != (n_routers > 0))
        refute_config(c, EXPERTS, NULL, "the layers with a router are", n_routers);
    for (int i = 0; i < c->s->n_params && !refuted; i++) {
        const char *name = name_in_model(c, &c->s->param[i]);

        refuted = name && core_layer_of(name) >= 0 && check_layer_param(c, &c->s->param[i]);
    }
}

void torchdist_config_check(const struct source *s, const struct torchdist_config *of, struct report *r)
{
    struct config_check c = { .s = s, .of = of, .r = r };

    read_config(&c);
    if (!c.why)
        compare_config(&c);
    if (c.why)
        report_add(r, SEV_NOTE, SOURCE_NOT_COMPARED, files_name(s->files, of->file), ERR_NO_BYTE, NULL,
                   "is not compared with the tensors: %s", c.why);
}
