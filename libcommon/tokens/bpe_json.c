/*
 * bpe_json.c - read tokenizer.json, as the tokenizers library saves it
 *
 * These sections are used:
 *   model           must be a BPE over the byte alphabet
 *   pre_tokenizer   ByteLevel, Split, Digits, and Sequences of them
 *   added_tokens    found in texts before anything else is done
 *   post_processor  ByteLevel (offsets only) and templates for a single text
 *   normalizer      NFC, or a Sequence of NFC alone; or absent
 * The sections decoder, truncation and padding do not affect encoding here.
 */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mapped.h"
#include "libcommon/tokens/bpe_impl.h"
#include "libcommon/tokens/hub_cache.h"

struct bpe_reader {
    const char *path;
    struct mapped file;
    struct bpe *b;
    struct err *e;
    bool byte_level;                    /* a ByteLevel step has been read */
    bool scanned;                       /* vocabulary and merges have been read by bpe_scan_model() */
};

static int PRINTF_LIKE(2, 3) report_tokenizer_error(struct bpe_reader *r, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_data(r->e, r->path, ERR_NO_BYTE, "%s", text);
    return -1;
}

static const char *json_type_name(const json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "type"));

    return s ? s : "none";
}

static bool flag(const json_t *o, const char *key, bool otherwise)
{
    const json_t *v = json_object_get(o, key);

    return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

/* Returns true if the key is set to something other than null, false, "" or 0. */
static bool asks_for(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    if (json_is_string(v))
        return json_string_length(v) > 0;
    if (json_is_number(v))
        return json_number_value(v) != 0;
    return v && !json_is_null(v) && !json_is_false(v);
}

/* ---- model ---- */

static int read_bpe_vocab(struct bpe_reader *r, json_t *vocab)
{
    const char *key;
    json_t *id;
    size_t len;

    if (!json_is_object(vocab))
        return report_tokenizer_error(r, "model.vocab is no object");
    if (bpe_index_tokens(r->b, json_object_size(vocab)) < 0)
        abort();                        /* there are no tokens yet */
    json_object_keylen_foreach(vocab, key, len, id) {
        if (!json_is_integer(id) || bpe_add_token(r->b, key, len, json_integer_value(id), false) < 0)
            return report_tokenizer_error(r, "model.vocab: token '%s': its id is used twice, missing, or above %d", key,
                                          BPE_MAX_IDS);
    }
    return 0;
}

/* Parse one merge: "left right" or, in files since 2024, ["left", "right"]. */
static int read_merge(struct bpe_reader *r, const json_t *m, int32_t rank)
{
    const char *text = json_string_value(m), *left, *right, *missing;
    size_t n_left, n_right;

    if (text) {
        const char *gap = memchr(text, ' ', json_string_length(m));

        if (!gap)
            return report_tokenizer_error(r, "model.merges[%d]: expected two tokens and a blank", rank);
        left = text;
        n_left = (size_t)(gap - text);
        right = gap + 1;
        n_right = json_string_length(m) - n_left - 1;
    } else {
        const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);

        if (!json_is_string(a) || !json_is_string(b) || json_array_size(m) != 2)
            return report_tokenizer_error(r, "model.merges[%d]: expected two tokens", rank);
        left = json_string_value(a);
        n_left = json_string_length(a);
        right = json_string_value(b);
        n_right = json_string_length(b);
    }
    missing = bpe_add_merge(r->b, left, n_left, right, n_right, rank);
    return missing ? report_tokenizer_error(r, "model.merges[%d]: the vocabulary has no token for its part: %s", rank,
                                            missing)
                   : 0;
}

static int read_bpe_merges(struct bpe_reader *r, json_t *merges)
{
    size_t i;
    json_t *m;

    bpe_size_merges(r->b, json_array_size(merges));
    json_array_foreach(merges, i, m)
        if (read_merge(r, m, (int32_t)i) < 0)
            return -1;
    return 0;
}

static int read_bpe_model(struct bpe_reader *r, const json_t *model)
{
    static const char *const never[] = {
        "dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix",
    };
    json_t *merges = json_object_get(model, "merges");
    int missing;

    /* Files from before 2020 have no key "type". */
    if (!json_is_object(model) || (json_object_get(model, "type") && strcmp(json_type_name(model), "BPE") != 0))
        return report_tokenizer_error(r, "the model's type is %s, expected BPE", json_type_name(model));
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (asks_for(model, never[i]))
            return report_tokenizer_error(r, "model.%s is not supported", never[i]);
    if (!json_is_array(merges) || json_array_size(merges) > INT32_MAX / 2)
        return report_tokenizer_error(r, "model.merges is no list");
    if (!r->scanned && read_bpe_vocab(r, json_object_get(model, "vocab")) < 0)
        return -1;
    if (bpe_find_bytes(r->b, &missing) < 0)
        return report_tokenizer_error(r, "model.vocab: no token for byte 0x%02x: no byte-level vocabulary", missing);
    if (!r->scanned && read_bpe_merges(r, merges) < 0)
        return -1;
    r->b->ignore_merges = flag(model, "ignore_merges", false);
    return 0;
}

/* ---- pre_tokenizer ---- */

static int add_pre_tokenizer_step(struct bpe_reader *r, const char *pattern, bool remove_matches, bool remove_gaps,
                                  bool prefix)
{
    char why[256];

    if (bpe_add_step(r->b, pattern, remove_matches, remove_gaps, prefix, why) < 0)
        return report_tokenizer_error(r, "pre_tokenizer: '%s': %s", pattern ? pattern : "", why);
    return 0;
}

/* Returns a pattern that matches `text` literally. */
static char *quoted(const char *text)
{
    struct strbuf sb = {0};

    for (; *text; text++) {
        if (strchr("\\^$.[]|()?*+{}", *text))
            strbuf_add(&sb, "\\", 1);
        strbuf_add(&sb, text, 1);
    }
    return sb.buf;
}

static int read_split(struct bpe_reader *r, const json_t *o)
{
    const json_t *pattern = json_object_get(o, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *behavior = json_string_value(json_object_get(o, "behavior"));
    bool removed = behavior && strcmp(behavior, "Removed") == 0, invert = flag(o, "invert", false);
    char *own = NULL;
    int rc;

    if (!behavior || (!removed && strcmp(behavior, "Isolated") != 0))
        return report_tokenizer_error(r, "pre_tokenizer: Split with behavior %s is not supported",
                                      behavior ? behavior : "none");
    if (!regex && (!literal || !*literal))
        return report_tokenizer_error(r, "pre_tokenizer: Split without a pattern");
    if (!regex)
        regex = own = quoted(literal);
    rc = add_pre_tokenizer_step(r, regex, removed && !invert, removed && invert, false);
    free(own);
    return rc;
}

/* The maximum number of steps limits how many sequences may be nested, and the JSON parser limits their depth. */
static int read_pre_tokenizer(struct bpe_reader *r, const json_t *o, int depth)
{
    const char *type = json_type_name(o);
    const json_t *list;
    size_t i;
    json_t *x;

    if (strcmp(type, "Sequence") == 0) {
        list = json_object_get(o, "pretokenizers");
        if (!json_is_array(list) || depth > BPE_MAX_STEPS)
            return report_tokenizer_error(r, "pre_tokenizer: Sequence without a list, or too deep");
        json_array_foreach((json_t *)list, i, x)
            if (read_pre_tokenizer(r, x, depth + 1) < 0)
                return -1;
        return 0;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        r->byte_level = true;
        return add_pre_tokenizer_step(r, flag(o, "use_regex", true) ? bpe_gpt2_pattern : NULL, false, false,
                                      flag(o, "add_prefix_space", true));
    }
    if (strcmp(type, "Split") == 0)
        return read_split(r, o);
    if (strcmp(type, "Digits") == 0)
        return add_pre_tokenizer_step(r, flag(o, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", false, false,
                                      false);
    return report_tokenizer_error(r, "pre_tokenizer: type %s is not supported", type);
}

/* ---- added tokens ---- */

static int by_length(const void *a, const void *b)
{
    const struct bpe_added *x = a, *y = b;

    return (x->len < y->len) - (x->len > y->len);
}

/*
 * Add the token, or find it if the vocabulary spells a token in the same way: that one's number is then used, whatever
 * number the list of added tokens has. Sets *number. Returns -1 if the number is used by another token.
 */
static int add_added_token(struct bpe_reader *r, const char *text, size_t len, int64_t id, int32_t *number)
{
    *number = strlen(text) == len ? bpe_find(r->b, text) : -1;
    if (*number >= 0)
        return 0;
    *number = (int32_t)id;
    return bpe_add_token(r->b, text, len, id, true);
}

/* A token that is searched in the normalized text is searched in its normal form. */
static void normalize_added(struct bpe *b, struct bpe_added *a)
{
    size_t len = a->len;
    char *made = NULL;
    const char *text;

    if (!b->nfc || !a->normalized)
        return;
    text = bpe_normalize(a->text, &len, &made);
    if (made)
        a->text = arena_strndup(b->arena, text, len);
    a->len = (uint32_t)len;
    free(made);
}

static void record_added_first(struct bpe *b, const struct bpe_added *a)
{
    bool *first = &b->added_first[a->normalized][(uint8_t)a->text[0]];

    b->n_first[a->normalized] += !*first;
    *first = true;
}

static int read_added(struct bpe_reader *r, json_t *list)
{
    struct bpe *b = r->b;
    size_t i;
    json_t *o;

    if (bpe_index_tokens(b, (size_t)b->n_tokens + json_array_size(list)) < 0)
        abort();                        /* the tokens were entered without a conflict before */
    b->added = arena_alloc(b->arena, (json_array_size(list) + 1) * sizeof *b->added);
    json_array_foreach(list, i, o) {
        const json_t *id = json_object_get(o, "id"), *content = json_object_get(o, "content");
        const char *text = json_string_value(content);
        size_t len = json_string_length(content);
        int32_t number;

        if (!text || !len || !json_is_integer(id) || add_added_token(r, text, len, json_integer_value(id), &number) < 0)
            return report_tokenizer_error(r, "added_tokens[%zu]: no content, or its id is used twice", i);
        b->added[b->n_added] = (struct bpe_added){
            .text = b->token[number].text, .len = (uint32_t)len, .id = number,
            .lstrip = flag(o, "lstrip", false), .rstrip = flag(o, "rstrip", false),
            .single_word = flag(o, "single_word", false), .normalized = flag(o, "normalized", false),
        };
        normalize_added(b, &b->added[b->n_added]);
        record_added_first(b, &b->added[b->n_added]);
        b->n_added++;
    }
    qsort(b->added, (size_t)b->n_added, sizeof *b->added, by_length);
    return 0;
}

/* ---- post_processor ---- */

/* Parse the template: items {"SpecialToken": {"id": "<s>"}} before and after the item {"Sequence": ...}. */
static int read_template(struct bpe_reader *r, const json_t *o)
{
    json_t *single = json_object_get(o, "single"), *item;
    struct bpe *b = r->b;
    bool text_seen = false;
    size_t i;

    json_array_foreach(single, i, item) {
        const char *token = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        int *n = text_seen ? &b->n_after : &b->n_before;
        int32_t id = token ? bpe_find(b, token) : -1;

        if (json_object_get(item, "Sequence") && !text_seen) {
            text_seen = true;
            continue;
        }
        if (id < 0 || *n == BPE_MAX_TEMPLATE)
            return report_tokenizer_error(r, "post_processor: item %zu of the template is not supported", i);
        (text_seen ? b->after : b->before)[(*n)++] = id;
    }
    return text_seen ? 0 : report_tokenizer_error(r, "post_processor: a template without the text");
}

static int read_post_processor(struct bpe_reader *r, const json_t *o, int depth)
{
    const char *type = json_type_name(o);
    size_t i;
    json_t *x;

    if (strcmp(type, "ByteLevel") == 0)
        return 0;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(r, o);
    if (strcmp(type, "Sequence") == 0 && depth < BPE_MAX_STEPS) {
        json_array_foreach(json_object_get(o, "processors"), i, x)
            if (read_post_processor(r, x, depth + 1) < 0)
                return -1;
        return 0;
    }
    return report_tokenizer_error(r, "post_processor: type %s is not supported", type);
}

/* ---- normalizer ---- */

static int read_normalizer(struct bpe_reader *r, const json_t *o)
{
    json_t *list = json_object_get(o, "normalizers");

    if (!o || json_is_null(o))
        return 0;
    if (strcmp(json_type_name(o), "Sequence") == 0 && json_array_size(list) == 1)
        o = json_array_get(list, 0);
    if (strcmp(json_type_name(o), "NFC") != 0)
        return report_tokenizer_error(r, "a normalizer (%s) is not supported", json_type_name(o));
    r->b->nfc = true;
    return 0;
}

/* ---- the file ---- */

static int read_sections(struct bpe_reader *r, const json_t *root)
{
    json_t *added = json_object_get(root, "added_tokens");
    const json_t *pre = json_object_get(root, "pre_tokenizer"), *post = json_object_get(root, "post_processor");

    if (read_normalizer(r, json_object_get(root, "normalizer")) < 0)
        return -1;
    if (read_bpe_model(r, json_object_get(root, "model")) < 0 || read_added(r, added) < 0)
        return -1;
    if (!json_is_object(pre))
        return report_tokenizer_error(r, "no pre_tokenizer: no byte-level BPE");
    if (read_pre_tokenizer(r, pre, 0) < 0)
        return -1;
    if (!r->byte_level)
        return report_tokenizer_error(r, "the pre_tokenizer has no ByteLevel: no byte-level BPE");
    return post && !json_is_null(post) ? read_post_processor(r, post, 0) : 0;
}

/* Parse the text of the file. Vocabulary and merges are read right away if they have the usual form. */
static json_t *parse_tokenizer(struct bpe_reader *r, const char *text, size_t size)
{
    struct strbuf rest = {0};
    json_error_t je;
    json_t *root = NULL;

    r->b = bpe_new();
    if (bpe_scan_model(r->b, text, size, &rest))
        root = json_loadb(rest.buf, rest.len, JSON_REJECT_DUPLICATES, &je);
    strbuf_free(&rest);
    r->scanned = root != NULL;
    if (root)
        return root;
    bpe_free(r->b);
    r->b = bpe_new();
    root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &je);
    if (json_is_object(root))
        return root;
    err_data(r->e, r->path, root ? 0 : (uint64_t)je.position, "%s", root ? "no JSON object" : je.text);
    json_decref(root);
    return NULL;
}

/* Read a mapped tokenizer.json. */
static int read_tokenizer(void *arg, struct err *e)
{
    struct bpe_reader *r = arg;
    json_t *root;
    int rc;

    (void)e;                            /* is r->e */
    root = parse_tokenizer(r, r->file.p ? (const char *)r->file.p : "", r->file.size);
    rc = root ? read_sections(r, root) : -1;
    json_decref(root);
    return rc;
}

static int map_tokenizer(struct bpe_reader *r)
{
    if (mapped_open(&r->file, r->path, r->e) < 0)
        return -1;
    if (r->file.size > BPE_MAX_FILE) {
        err_data(r->e, r->path, ERR_NO_BYTE, "has %llu bytes, but at most %d are supported",
                 (unsigned long long)r->file.size, BPE_MAX_FILE);
        return -1;
    }
    return mapped_use(read_tokenizer, r, r->e) < 0 ? -1 : mapped_check(&r->file, r->e);
}

struct bpe *bpe_open_json(const char *path, struct err *e)
{
    char *file = hub_find(path, "tokenizer.json", e);
    struct bpe_reader r = { .e = e, .path = file };

    if (file && map_tokenizer(&r) == 0) {
        r.b->path = arena_strndup(r.b->arena, file, strlen(file));
    } else {
        bpe_free(r.b);
        r.b = NULL;
    }
    mapped_close(&r.file);
    free(file);
    return r.b;
}
