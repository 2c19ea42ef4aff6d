/*
 * hf_config_tokenizer.c - copy a tokenizer's files, and read the token ids in them
 *
 * Files are copied unchanged. tokenizer_config.json, special_tokens_map.json, tokenizer.json, vocab.json and
 * added_tokens.json are parsed for the special tokens and their ids.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/layout/hf/hf_config.h"

#define FILE_MAX ((uint64_t)1 << 30)

/*
 * Names of tokenizer files. A folder with any of the first N_DECISIVE holds a tokenizer; the others alone do not
 * identify one.
 */
static const char *const known[] = {
    "tokenizer.json", "vocab.json", "tokenizer.model", "merges.txt", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "LICENSE", "README.md",
};
enum { N_KNOWN = sizeof known / sizeof *known, N_DECISIVE = 3 };

static bool has_regular_file(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    struct stat st;
    bool yes = stat(path, &st) == 0 && S_ISREG(st.st_mode);

    free(path);
    return yes;
}

static void add_tokenizer_file(struct hf_tokenizer *t, const char *from, const char *to)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->file[i].to, to) == 0)
            return;
    t->file[t->n].from = xstrdup(from);
    t->file[t->n++].to = xstrdup(to);
}

/*
 * If the file that args[key] names exists in the tokenizer's folder, add it. In the output it gets the standard name
 * `to`.
 */
static void add_renamed(struct hf_tokenizer *t, const struct pk *args, const char *key, const char *to)
{
    const char *path = pk_as_str(pk_get(args, key));
    char *base = path ? path_base(path) : NULL;

    if (base && has_regular_file(t->dir, base))
        add_tokenizer_file(t, base, to);
    free(base);
}

/* Returns the parsed file `to` of the tokenizer. Returns NULL without setting *e if the tokenizer has no such file. */
static json_t *load_tokenizer_json(const struct hf_tokenizer *t, const char *to, struct err *e)
{
    for (int i = 0; i < t->n; i++) {
        char *path, *text;
        json_error_t je;
        json_t *o = NULL;
        uint64_t len;

        if (strcmp(t->file[i].to, to) != 0)
            continue;
        path = path_join(t->dir, t->file[i].from);
        text = file_slurp(path, FILE_MAX, &len, e);
        if (text && !(o = json_loadb(text, len, 0, &je)))
            err_data(e, path, (uint64_t)(je.position > 0 ? je.position : 0), "no JSON: %s", je.text);
        free(text);
        free(path);
        return o;
    }
    return NULL;
}

/* ---- ids ---- */

struct vocabulary {
    json_t *tokenizer, *vocab, *added;
};

static int64_t id_in_map(const json_t *map, const char *token)
{
    const json_t *v = json_object_get(map, token);

    return v && json_is_integer(v) ? json_integer_value(v) : -1;
}

static int64_t find_token_id(const struct vocabulary *v, const char *token)
{
    const json_t *added = json_object_get(v->tokenizer, "added_tokens"), *item;
    int64_t id = -1;

    for (size_t i = 0; i < json_array_size(added) && id < 0; i++) {
        const char *content = json_string_value(json_object_get(item = json_array_get(added, i), "content"));

        if (content && strcmp(content, token) == 0)
            id = id_in_map(item, "id");
    }
    id = id >= 0 ? id : id_in_map(json_object_get(json_object_get(v->tokenizer, "model"), "vocab"), token);
    id = id >= 0 ? id : id_in_map(v->added, token);
    return id >= 0 ? id : id_in_map(v->vocab, token);
}

static void raise_to(int64_t *most, int64_t v)
{
    *most = v > *most ? v : *most;
}

static int64_t largest_in_map(const json_t *map)
{
    int64_t most = -1;
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)map, key, v)
        raise_to(&most, json_integer_value(v));
    return most;
}

static int64_t largest_id(const struct vocabulary *v)
{
    const json_t *added = json_object_get(v->tokenizer, "added_tokens");
    const json_t *model = json_object_get(json_object_get(v->tokenizer, "model"), "vocab");
    int64_t most = json_is_array(model) ? (int64_t)json_array_size(model) - 1 : largest_in_map(model);

    raise_to(&most, largest_in_map(v->vocab));
    raise_to(&most, largest_in_map(v->added));
    for (size_t i = 0; i < json_array_size(added); i++)
        raise_to(&most, id_in_map(json_array_get(added, i), "id"));
    return most;
}

/*
 * Read the special tokens in `map`, whose values are either strings ("bos_token": "<s>") or objects with a "content".
 */
static void read_special_tokens(struct hf_tokenizer *t, const struct vocabulary *v, const json_t *map)
{
    static const char *const keys[HF_TOKENS] = { "bos_token", "eos_token", "pad_token", "unk_token" };

    for (int i = 0; i < HF_TOKENS; i++) {
        const json_t *entry = json_object_get(map, keys[i]);
        const char *token = json_string_value(json_is_object(entry) ? json_object_get(entry, "content") : entry);

        t->names_tokens |= token != NULL;
        if (token && t->token[i] < 0)
            t->token[i] = find_token_id(v, token);
    }
}

static void read_ids(struct hf_tokenizer *t, struct err *e)
{
    static const char *const maps[] = { "special_tokens_map.json", "tokenizer_config.json" };
    struct vocabulary v = { .tokenizer = load_tokenizer_json(t, "tokenizer.json", e),
                            .vocab = load_tokenizer_json(t, "vocab.json", e),
                            .added = load_tokenizer_json(t, "added_tokens.json", e) };

    t->largest_id = largest_id(&v);
    for (int i = 0; i < 2; i++) {
        json_t *map = load_tokenizer_json(t, maps[i], e);

        read_special_tokens(t, &v, map);
        json_decref(map);
    }
    json_decref(v.tokenizer);
    json_decref(v.vocab);
    json_decref(v.added);
}

/* ---- public functions ---- */

int hf_tokenizer_open(struct hf_tokenizer *t, const char *dir, const struct pk *args, struct err *e)
{
    bool found = false;

    *t = (struct hf_tokenizer){ .dir = xstrdup(dir), .largest_id = -1 };
    for (int i = 0; i < HF_TOKENS; i++)
        t->token[i] = -1;
    for (int i = 0; i < N_KNOWN; i++)
        if (has_regular_file(dir, known[i])) {
            add_tokenizer_file(t, known[i], known[i]);
            found |= i < N_DECISIVE;
        }
    add_renamed(t, args, "vocab_file", "vocab.json");
    add_renamed(t, args, "merge_file", "merges.txt");
    for (int i = 0; i < t->n; i++)
        found |= strcmp(t->file[i].to, "vocab.json") == 0;
    if (!found)
        err_data(e, dir, ERR_NO_BYTE, "holds no tokenizer (tokenizer.json, vocab.json or tokenizer.model)");
    else
        read_ids(t, e);
    if (e->kind == ERR_NONE)
        return 0;
    hf_tokenizer_free(t);
    return -1;
}

int hf_tokenizer_copy(const struct hf_tokenizer *t, const char *to_dir, struct err *e)
{
    int rc = 0;

    for (int i = 0; i < t->n && rc == 0; i++) {
        char *from = path_join(t->dir, t->file[i].from), *to = path_join(to_dir, t->file[i].to), *text;
        uint64_t len;

        text = file_slurp(from, FILE_MAX, &len, e);
        rc = text ? file_replace(to, text, len, e) : -1;
        free(text);
        free(from);
        free(to);
    }
    return rc;
}

uint64_t hf_tokenizer_bytes(const struct hf_tokenizer *t)
{
    uint64_t sum = 0;

    for (int i = 0; i < t->n; i++) {
        char *path = path_join(t->dir, t->file[i].from);
        struct stat st;

        if (stat(path, &st) == 0)
            sum += align_up((uint64_t)st.st_size, 4096);
        free(path);
    }
    return sum;
}

void hf_tokenizer_free(struct hf_tokenizer *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->file[i].from);
        free(t->file[i].to);
    }
    free(t->dir);
    *t = (struct hf_tokenizer){ .largest_id = -1 };
}
