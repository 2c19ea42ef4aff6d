/*
 * bpe.c - read vocabularies, and convert tokens to text
 */
#include "libcommon/tokens/bpe.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* Returns the last n < 8 bytes of a text as a number. Texts of the same length are equal if their numbers are. */
static uint64_t tail_bytes(const char *p, size_t n)
{
    uint32_t a, b;
    uint16_t c;

    if (n >= 4) {
        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        return (uint64_t)a << 32 | b;
    }
    if (n < 2)
        return n ? (uint8_t)*p : 0;
    memcpy(&c, p, 2);
    return (uint64_t)c << 8 | (uint8_t)p[n - 1];
}

uint32_t bpe_hash(const char *p, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u, v;

    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    if (n) {
        h = (h ^ tail_bytes(p, n)) * 0xff51afd7ed558ccdu;
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

/*
 * Allocate a hash table whose bytes are all 0xff. Large pages, where the system gives them on request, save most of the
 * time that the first access to each small page takes.
 */
static void *alloc_table(struct bpe *b, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    char *table = arena_alloc(b->arena, bytes);
    uintptr_t first = align_up((uintptr_t)table, page), end = align_down((uintptr_t)table + bytes, page);

    if (first < end)
        madvise((void *)first, end - first, MADV_HUGEPAGE);
    return memset(table, 0xff, bytes);
}

static uint32_t table_mask(size_t n)
{
    uint32_t size = 1024;

    while (size < 2 * n)
        size *= 2;
    return size - 1;
}

void bpe_size_merges(struct bpe *b, size_t n_merges)
{
    b->merge_mask = table_mask(n_merges);
    b->merge = alloc_table(b, ((size_t)b->merge_mask + 1) * sizeof *b->merge);
}

static bool is_same_text(const char *a, const char *b, size_t n)
{
    uint64_t x, y;

    for (; n >= 8; a += 8, b += 8, n -= 8) {
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
        if (x != y)
            return false;
    }
    return tail_bytes(a, n) == tail_bytes(b, n);
}

/* Returns the slot that holds the text, or the empty slot in which it would be inserted. */
static struct bpe_text_slot *text_slot(const struct bpe *b, const char *text, size_t len, uint32_t hash)
{
    uint32_t i = hash & b->by_text_mask;

    for (; b->by_text[i].id >= 0; i = (i + 1) & b->by_text_mask) {
        const struct bpe_token *t = &b->token[b->by_text[i].id];

        if (b->by_text[i].hash == hash && t->text_len == len && is_same_text(t->text, text, len))
            break;
    }
    return &b->by_text[i];
}

int32_t bpe_find_text(const struct bpe *b, const char *text, size_t len, uint32_t hash)
{
    return text_slot(b, text, len, hash)->id;
}

static int32_t find_text(const struct bpe *b, const char *text, size_t len)
{
    return bpe_find_text(b, text, len, bpe_hash(text, len));
}

int bpe_index_tokens(struct bpe *b, size_t n_tokens)
{
    enum { AHEAD = 8 };

    if (b->by_text && table_mask(n_tokens) <= b->by_text_mask)
        return 0;
    b->by_text_mask = table_mask(n_tokens);
    b->by_text = alloc_table(b, ((size_t)b->by_text_mask + 1) * sizeof *b->by_text);
    for (int32_t id = 0; id < b->n_ids; id++) {
        const struct bpe_token *t = &b->token[id];
        struct bpe_text_slot *slot;

        if (id + AHEAD < b->n_ids)
            __builtin_prefetch(&b->by_text[t[AHEAD].hash & b->by_text_mask], 1);
        if (!t->text)
            continue;
        slot = text_slot(b, t->text, t->text_len, t->hash);
        if (slot->id >= 0)
            return -1;
        *slot = (struct bpe_text_slot){ t->hash, id };
    }
    return 0;
}

/* Copy the text of a token. Texts lie next to each other, without padding. */
static const char *keep_text(struct bpe *b, const char *text, size_t len)
{
    enum { BLOCK = 1 << 16 };
    char *kept;

    if (!b->texts || len > b->texts_room) {
        b->texts_room = len > BLOCK ? len : BLOCK;
        b->texts = arena_alloc(b->arena, b->texts_room);
    }
    kept = b->texts;
    memcpy(kept, text, len);
    b->texts += len;
    b->texts_room -= len;
    return kept;
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

int bpe_store_token(struct bpe *b, const char *text, size_t len, int64_t id, bool raw)
{
    if (id < 0 || id >= BPE_MAX_IDS)
        return -1;
    grow_ids(b, (int32_t)id + 1);
    if (b->token[id].text)
        return -1;
    b->token[id] = (struct bpe_token){ keep_text(b, text, len), bpe_hash(text, len), (uint32_t)len & INT32_MAX, raw };
    b->n_tokens++;
    return 0;
}

int bpe_add_token(struct bpe *b, const char *text, size_t len, int64_t id, bool raw)
{
    struct bpe_text_slot *slot = text_slot(b, text, len, bpe_hash(text, len));

    if (slot->id >= 0)                  /* this is an added token that is also in the vocabulary */
        return slot->id == id ? 0 : -1;
    if (bpe_store_token(b, text, len, id, raw) < 0)
        return -1;
    *slot = (struct bpe_text_slot){ b->token[id].hash, (int32_t)id };
    return 0;
}

static uint32_t merge_hash(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;

    return (uint32_t)(h >> 32) & b->merge_mask;
}

static uint32_t merge_slot(const struct bpe *b, int32_t left, int32_t right)
{
    uint32_t i = merge_hash(b, left, right);

    while (b->merge[i].left >= 0 && (b->merge[i].left != left || b->merge[i].right != right))
        i = (i + 1) & b->merge_mask;
    return i;
}

void bpe_put_merge(struct bpe *b, const struct bpe_merge *m) { b->merge[merge_slot(b, m->left, m->right)] = *m; }

void bpe_prefetch_merge(const struct bpe *b, const struct bpe_merge *m)
{
    __builtin_prefetch(&b->merge[merge_hash(b, m->left, m->right)], 1);
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
    bpe_put_merge(b, &(struct bpe_merge){ .left = l, .right = r, .rank = rank, .id = joined });
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

    if (bpe_index_tokens(b, 257) < 0)
        abort();
    bpe_size_merges(b, 0);
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
    if (bpe_index_tokens(b, json_object_size(vocab)) < 0)
        abort();                        /* there are no tokens yet */
    bpe_size_merges(b, n_merges);
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

/*
 * Append the bytes of a token. If its text has a character that does not stand for a byte, the bytes of the text itself
 * are used.
 */
static void add_token_bytes(const struct bpe *b, const struct bpe_token *t, struct strbuf *out)
{
    const char *p = t->text, *end = p + t->text_len;
    size_t before = out->len;

    while (!t->raw && p < end) {
        int byte = char_byte(b, &p, end);
        char c = (char)byte;

        if (byte < 0) {
            out->len = before;
            break;
        }
        strbuf_add(out, &c, 1);
    }
    if (out->len == before)
        strbuf_add(out, t->text, t->text_len);
}

int bpe_decode(const struct bpe *b, const int64_t *ids, int64_t n, struct strbuf *out, struct err *e)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= b->n_ids || !b->token[ids[i]].text) {
            err_data(e, "tokens", ERR_NO_BYTE, "number %lld at position %lld is not in the vocabulary of %lld",
                     (long long)ids[i], (long long)i, (long long)bpe_vocab_size(b));
            return -1;
        }
        add_token_bytes(b, &b->token[ids[i]], out);
    }
    return 0;
}

void bpe_ids_free(struct bpe_ids *ids)
{
    free(ids->v);
    *ids = (struct bpe_ids){0};
}
