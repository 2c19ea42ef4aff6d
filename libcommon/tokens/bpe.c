/*
 * bpe.c - read vocabularies, and convert tokens to text
 */
#include "libcommon/tokens/bpe.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/text.h"
#include "libcommon/tokens/bpe_impl.h"

/* ---- the byte alphabet ---- */

/*
 * In a vocabulary, each byte is written as a printable character. The bytes '!'..'~', 0xa1..0xac and 0xae..0xff are
 * written as the character with the same number. The other 68 bytes are written, in order, as the characters from
 * U+0100 on; a blank, for example, is U+0120, "Ġ".
 */
static bool prints(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static int byte_char(int byte)
{
    int c = 0x100;

    if (prints(byte))
        return byte;
    for (int i = 0; i < byte; i++)
        c += !prints(i);
    return c;
}

/*
 * Returns the byte that the UTF-8 character at *p stands for, and advances *p. Returns -1 if the character does not
 * stand for a byte.
 */
static int char_byte(const struct bpe *b, const char **p, const char *end)
{
    const uint8_t *s = (const uint8_t *)*p;
    int c;

    if (s[0] < 0x80) {
        *p += 1;
        return prints(s[0]) ? s[0] : -1;
    }
    if (end - *p < 2 || s[0] < 0xc2 || s[0] > 0xdf)
        return -1;
    c = (s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    *p += 2;
    if (c < 0x100)
        return prints(c) ? c : -1;
    return c - 0x100 < BPE_ODD_BYTES ? b->odd_byte[c - 0x100] : -1;
}

/* ---- tables ---- */

uint32_t bpe_hash(const char *p, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u, v;

    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    if (n) {
        v = 0;
        memcpy(&v, p, n);
        h = (h ^ v) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    h *= 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 32);
}

struct bpe *bpe_new(void)
{
    struct bpe *b = xcalloc(1, sizeof *b);

    b->arena = arena_new(0);            /* no ceiling is needed: the memory is bounded by the sizes of the files */
    for (int i = 0; i < 256; i++)
        if (!prints(i))
            b->odd_byte[byte_char(i) - 0x100] = (uint8_t)i;
    return b;
}

static uint32_t table_mask(size_t n)
{
    uint32_t size = 1024;

    while (size < 2 * n)
        size *= 2;
    return size - 1;
}

void bpe_size_tables(struct bpe *b, size_t n_tokens, size_t n_merges)
{
    b->by_text_mask = table_mask(n_tokens);
    b->by_text = arena_alloc(b->arena, ((size_t)b->by_text_mask + 1) * sizeof *b->by_text);
    memset(b->by_text, 0xff, ((size_t)b->by_text_mask + 1) * sizeof *b->by_text);
    b->merge_mask = table_mask(n_merges);
    b->merge = arena_alloc(b->arena, ((size_t)b->merge_mask + 1) * sizeof *b->merge);
    memset(b->merge, 0xff, ((size_t)b->merge_mask + 1) * sizeof *b->merge);
}

/* Returns the slot that holds the text, or the empty slot in which it would be inserted. */
static int32_t *text_slot(const struct bpe *b, const char *text, size_t len)
{
    uint32_t i = bpe_hash(text, len) & b->by_text_mask;

    for (; b->by_text[i] >= 0; i = (i + 1) & b->by_text_mask) {
        const struct bpe_token *t = &b->token[b->by_text[i]];

        if (t->text_len == len && memcmp(t->text, text, len) == 0)
            break;
    }
    return &b->by_text[i];
}

static int32_t find_text(const struct bpe *b, const char *text, size_t len)
{
    return *text_slot(b, text, len);
}

/*
 * Compute the bytes of a token from its text. If the text has a character that does not stand for a byte, the bytes of
 * the text itself are used.
 */
static void spell_out(struct bpe *b, struct bpe_token *t)
{
    char *out = arena_alloc(b->arena, t->text_len + 1);
    const char *p = t->text, *end = p + t->text_len;
    uint32_t n = 0;

    while (p < end) {
        int byte = char_byte(b, &p, end);

        if (byte < 0) {
            t->bytes = t->text;
            t->len = t->text_len;
            return;
        }
        out[n++] = (char)byte;
    }
    t->bytes = out;
    t->len = n;
}

static void grow_ids(struct bpe *b, int32_t n)
{
    int32_t had = b->cap_ids;

    ARRAY_ROOM(b->token, b->cap_ids, n);
    if (b->cap_ids > had)
        memset(b->token + had, 0, (size_t)(b->cap_ids - had) * sizeof *b->token);
    if (n > b->n_ids)
        b->n_ids = n;
}

int bpe_add_token(struct bpe *b, const char *text, size_t len, int64_t id, bool raw)
{
    int32_t *slot = text_slot(b, text, len);
    struct bpe_token *t;

    if (*slot >= 0)                     /* this is an added token that is also in the vocabulary */
        return *slot == id ? 0 : -1;
    if (id < 0 || id >= BPE_MAX_IDS)
        return -1;
    grow_ids(b, (int32_t)id + 1);
    t = &b->token[id];
    if (t->text)
        return -1;
    t->text = arena_strndup(b->arena, text, len);
    t->text_len = (uint32_t)len;
    if (raw) {
        t->bytes = t->text;
        t->len = t->text_len;
    } else {
        spell_out(b, t);
    }
    *slot = (int32_t)id;
    b->n_tokens++;
    return 0;
}

static uint32_t merge_slot(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    uint32_t i = (uint32_t)(h >> 32) & b->merge_mask;

    while (b->merge[i].left >= 0 && (b->merge[i].left != left || b->merge[i].right != right))
        i = (i + 1) & b->merge_mask;
    return i;
}

const struct bpe_merge *bpe_find_merge(const struct bpe *b, int32_t left, int32_t right)
{
    const struct bpe_merge *m = &b->merge[merge_slot(b, left, right)];

    return m->left >= 0 ? m : NULL;
}

const char *bpe_add_merge(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right,
                          int32_t rank)
{
    int32_t l = find_text(b, left, n_left), r = find_text(b, right, n_right), joined;
    char *both;

    if (l < 0 || r < 0)
        return l < 0 ? "left" : "right";
    both = xmalloc(n_left + n_right + 1);
    memcpy(both, left, n_left);
    memcpy(both + n_left, right, n_right);
    joined = find_text(b, both, n_left + n_right);
    free(both);
    if (joined < 0)
        return "joined";
    /* If a pair is listed twice, the last occurrence counts, as in the original tokenizers. */
    b->merge[merge_slot(b, l, r)] = (struct bpe_merge){ .left = l, .right = r, .rank = rank, .id = joined };
    return NULL;
}

/* Store the character that stands for a byte as UTF-8 in `out`. Returns its length. */
static size_t spell_byte(int byte, char out[4]) { return (size_t)utf8_put(out, (uint32_t)byte_char(byte)); }

int bpe_find_bytes(struct bpe *b, int *missing)
{
    for (int i = 0; i < 256; i++) {
        char text[4];
        size_t n = spell_byte(i, text);

        b->byte_id[i] = find_text(b, text, n);
        if (b->byte_id[i] < 0) {
            *missing = i;
            return -1;
        }
    }
    return 0;
}

int32_t bpe_find_piece(const struct bpe *b, const char *bytes, size_t len)
{
    struct strbuf text = {0};
    int32_t id;

    for (size_t i = 0; i < len; i++) {
        char spelled[4];
        size_t n = spell_byte((uint8_t)bytes[i], spelled);

        strbuf_add(&text, spelled, n);
    }
    id = find_text(b, text.buf, text.len);
    strbuf_free(&text);
    return id;
}

/* ---- plain bytes ---- */

struct bpe *bpe_bytes(void)
{
    struct bpe *b = bpe_new();

    bpe_size_tables(b, 257, 0);
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;

        if (bpe_add_token(b, &byte, 1, i, true) < 0)
            abort();
        b->byte_id[i] = i;
    }
    if (bpe_add_token(b, "<|endoftext|>", 13, 256, true) < 0)
        abort();
    b->plain_bytes = true;
    return b;
}

/* ---- GPT-2's files ---- */

static int read_vocab_file(struct bpe *b, const char *path, size_t n_merges, struct err *e)
{
    uint64_t size;
    char *text = file_slurp(path, BPE_MAX_FILE, &size, e);
    json_error_t je;
    json_t *vocab = text ? json_loadb(text, size, JSON_REJECT_DUPLICATES, &je) : NULL, *id;
    const char *key;
    size_t len;
    int rc = -1, missing;

    free(text);
    if (!text)
        return -1;
    if (!json_is_object(vocab)) {
        err_data(e, path, vocab ? 0 : (uint64_t)je.position, "%s", vocab ? "no JSON object" : je.text);
        goto out;
    }
    bpe_size_tables(b, json_object_size(vocab), n_merges);
    json_object_keylen_foreach(vocab, key, len, id) {
        if (!json_is_integer(id) || bpe_add_token(b, key, len, json_integer_value(id), false) < 0) {
            err_data(e, path, ERR_NO_BYTE, "token '%s': its id is used twice, missing, or above %d", key, BPE_MAX_IDS);
            goto out;
        }
    }
    if (bpe_find_bytes(b, &missing) < 0) {
        err_data(e, path, ERR_NO_BYTE, "no token for byte 0x%02x: no byte-level vocabulary", missing);
        goto out;
    }
    rc = 0;
out:
    json_decref(vocab);
    return rc;
}

/* Parse lines "left right", which are listed by increasing rank. The first line may be "#version: ...". */
static int read_merges(struct bpe *b, const char *path, const char *text, uint64_t size, struct err *e)
{
    const char *p = text, *end = text + size;
    int32_t rank = 0;

    for (int64_t line = 1; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p)), *next, *gap, *missing;
        size_t n;

        if (!stop)
            stop = end;
        next = stop < end ? stop + 1 : end;
        n = (size_t)(stop - p);
        if (n && p[n - 1] == '\r')
            n--;
        if (n == 0 || (line == 1 && n >= 8 && memcmp(p, "#version", 8) == 0)) {
            p = next;
            continue;
        }
        gap = memchr(p, ' ', n);
        missing = gap ? bpe_add_merge(b, p, (size_t)(gap - p), gap + 1, n - (size_t)(gap - p) - 1, rank++) : NULL;
        if (!gap || missing) {
            err_data(e, path, (uint64_t)(p - text), "line %lld: %s%s", (long long)line,
                     gap ? "the vocabulary has no token for its part: " : "expected two tokens and a blank",
                     gap ? missing : "");
            return -1;
        }
        p = next;
    }
    return 0;
}

struct bpe *bpe_open_gpt2(const char *vocab_path, const char *merges_path, struct err *e)
{
    struct bpe *b = bpe_new();
    uint64_t size = 0, lines = 1;
    char *merges = file_slurp(merges_path, BPE_MAX_FILE, &size, e), why[256];
    int rc = -1;

    if (merges) {
        for (uint64_t i = 0; i < size; i++)
            lines += merges[i] == '\n';
        rc = read_vocab_file(b, vocab_path, lines, e);
    }
    if (rc == 0)
        rc = read_merges(b, merges_path, merges, size, e);
    free(merges);
    if (rc == 0 && bpe_add_step(b, bpe_gpt2_pattern, false, false, false, why) < 0)
        abort();                        /* cannot fail, because the expression is a constant */
    if (rc < 0) {
        bpe_free(b);
        return NULL;
    }
    return b;
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->n_steps; i++)
        pcre2_code_free(b->step[i].code);
    arena_free(b->arena);
    free(b->token);
    free(b);
}

/* ---- queries ---- */

const char *bpe_path(const struct bpe *b)
{
    return b->path;
}

int64_t bpe_vocab_size(const struct bpe *b)
{
    /* If some numbers below the largest one are unused, the size must still be larger than the largest number. */
    return b->n_ids > b->n_tokens ? b->n_ids : b->n_tokens;
}

int32_t bpe_find(const struct bpe *b, const char *token)
{
    return find_text(b, token, strlen(token));
}

int32_t bpe_eod(const struct bpe *b)
{
    static const char *const names[] = { "<|endoftext|>", "</s>", "<|end_of_text|>" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (bpe_find(b, names[i]) >= 0)
            return bpe_find(b, names[i]);
    return -1;
}

int bpe_decode(const struct bpe *b, const int64_t *ids, int64_t n, struct strbuf *out, struct err *e)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= b->n_ids || !b->token[ids[i]].text) {
            err_data(e, "tokens", ERR_NO_BYTE, "number %lld at position %lld is not in the vocabulary of %lld",
                     (long long)ids[i], (long long)i, (long long)bpe_vocab_size(b));
            return -1;
        }
        strbuf_add(out, b->token[ids[i]].bytes, b->token[ids[i]].len);
    }
    return 0;
}

void bpe_ids_free(struct bpe_ids *ids)
{
    free(ids->v);
    *ids = (struct bpe_ids){0};
}
