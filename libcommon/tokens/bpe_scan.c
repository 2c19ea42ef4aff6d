/*
 * bpe_scan.c - read vocabulary and merges of a tokenizer.json in one pass over its text
 *
 * A tree of JSON values takes several hundred bytes per token and most of the time of a start. This scan stores tokens
 * and merges directly. It accepts only what the tokenizers library writes; the caller reads everything else by a tree.
 *
 *   text -- model.vocab --> tokens --> hash table of texts
 *        -- model.merges --> list of pairs --> hash table of merges
 *        -- the rest --> the caller
 */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/text.h"
#include "libcommon/tokens/bpe_impl.h"

enum {
    SCAN_BATCH = 32,                    /* number of merges that are looked up at the same time */
    SCAN_SPELLED = 512,                 /* maximum length of a string with escape sequences */
};

struct json_scan {
    const char *p, *end;
    char spelled[2][SCAN_SPELLED];      /* strings without their escape sequences */
};

/* A string of the file, or of json_scan.spelled. */
struct scanned_string {
    const char *p;
    size_t len;
};

/* Eight bytes as a number whose lowest byte is the first. */
static inline uint64_t eight_bytes(const char *p)
{
    uint64_t v;

    memcpy(&v, p, 8);
    return le64toh(v);
}

static inline void skip_scan_blanks(struct json_scan *s)
{
    while (s->end - s->p >= 8 && eight_bytes(s->p) == 0x2020202020202020u)
        s->p += 8;
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
}

/* Skip blanks, and the character c after them. Returns false if another character is there. */
static inline bool accept_scan_char(struct json_scan *s, char c)
{
    skip_scan_blanks(s);
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

/* ---- strings ---- */

/*
 * Copy the string at s->p up to its quotation mark, with its escape sequences replaced. Returns false at \u, which the
 * tokenizers library does not write.
 */
static bool unescape_scanned(struct json_scan *s, struct scanned_string *out, char *to)
{
    static const char from[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    size_t n = 0;

    for (const char *p = s->p; p < s->end && n < SCAN_SPELLED; p++) {
        char c = *p;

        if (c == '"') {
            *out = (struct scanned_string){ to, n };
            s->p = p + 1;
            return true;
        }
        if (c == '\\') {
            const char *which = ++p < s->end && *p ? strchr(from, *p) : NULL;

            if (!which)
                return false;
            c = means[which - from];
        } else if ((uint8_t)c < ' ') {
            return false;
        }
        to[n++] = c;
    }
    return false;
}

/*
 * Returns the first position from p on with a quotation mark, a backslash or a control character, or `end`. In each
 * term the lowest bit that is set marks the first byte of its kind.
 */
static inline const char *find_string_end(const char *p, const char *end)
{
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;

    for (; end - p >= 8; p += 8) {
        uint64_t v = eight_bytes(p), quote = v ^ ones * '"', slash = v ^ ones * '\\';
        uint64_t found = (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((v - ones * ' ') & ~v)) & highs;

        if (found)
            return p + __builtin_ctzll(found) / 8;
    }
    while (p < end && *p != '"' && *p != '\\' && (uint8_t)*p >= ' ')
        p++;
    return p;
}

/*
 * Read the string whose quotation mark is at s->p. If it has escape sequences, it is stored in `to`. Its bytes are not
 * checked for UTF-8.
 */
static bool scan_string(struct json_scan *s, struct scanned_string *out, char *to)
{
    const char *first = s->p + 1, *stop;

    if (s->p == s->end || *s->p != '"')
        return false;
    stop = find_string_end(first, s->end);
    s->p = first;
    if (stop == s->end || (uint8_t)*stop < ' ')
        return false;
    if (*stop == '\\')
        return unescape_scanned(s, out, to);
    *out = (struct scanned_string){ first, (size_t)(stop - first) };
    s->p = stop + 1;
    return true;
}

/* ---- what is around vocabulary and merges; the caller of the scan validates it ---- */

static bool skip_scan_string(struct json_scan *s)
{
    for (s->p++; s->p < s->end; s->p++) {
        if (*s->p == '"') {
            s->p++;
            return true;
        }
        if (*s->p == '\\')
            s->p++;
    }
    return false;
}

static bool skip_scan_value(struct json_scan *s)
{
    int depth = 0;

    while (s->p < s->end) {
        char c = *s->p;

        if (c == '"') {
            if (!skip_scan_string(s))
                return false;
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            return true;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        s->p++;
    }
    return false;
}

/* Go to the value of the next key of this name in the object whose beginning or first values have been read. */
static bool seek_key(struct json_scan *s, const char *key)
{
    size_t len = strlen(key);

    for (;;) {
        const char *first;
        bool found;

        (void)accept_scan_char(s, ',');
        skip_scan_blanks(s);
        if (s->p == s->end || *s->p != '"')
            return false;
        first = s->p + 1;
        if (!skip_scan_string(s))
            return false;
        found = (size_t)(s->p - 1 - first) == len && memcmp(first, key, len) == 0;
        if (!accept_scan_char(s, ':'))
            return false;
        skip_scan_blanks(s);
        if (found)
            return true;
        if (!skip_scan_value(s))
            return false;
    }
}

/* ---- vocabulary ---- */

static bool scan_id(struct json_scan *s, int64_t *id)
{
    const char *first;

    skip_scan_blanks(s);
    first = s->p;
    for (*id = 0; s->p < s->end && *s->p >= '0' && *s->p <= '9' && *id < BPE_MAX_IDS; s->p++)
        *id = *id * 10 + (*s->p - '0');
    return s->p > first && (*first != '0' || s->p == first + 1);
}

static bool scan_vocab(struct json_scan *s, struct bpe *b)
{
    if (!accept_scan_char(s, '{'))
        return false;
    do {
        struct scanned_string text;
        int64_t id;

        skip_scan_blanks(s);
        if (!scan_string(s, &text, s->spelled[0]) || utf8_check(text.p, text.len) < text.len ||
            !accept_scan_char(s, ':') || !scan_id(s, &id) ||
            bpe_store_token(b, text.p, text.len, id, false) < 0)
            return false;
    } while (accept_scan_char(s, ','));
    return accept_scan_char(s, '}') && bpe_index_tokens(b, (size_t)b->n_tokens) == 0;
}

/* ---- merges ---- */

struct merge_list {
    struct bpe_merge *v;
    size_t n, cap;
};

/* One half of a merge that is being looked up. */
struct merge_half {
    struct scanned_string text;
    uint32_t hash;
};

struct merge_batch {
    int n;
    struct merge_half half[SCAN_BATCH][2];
    char spelled[SCAN_BATCH][2][64];
};

/* Read one merge: ["left", "right"], or "left right". */
static bool scan_merge(struct json_scan *s, struct scanned_string *left, struct scanned_string *right)
{
    const char *gap;

    skip_scan_blanks(s);
    if (accept_scan_char(s, '[')) {
        skip_scan_blanks(s);
        if (!scan_string(s, left, s->spelled[0]) || !accept_scan_char(s, ','))
            return false;
        skip_scan_blanks(s);
        return scan_string(s, right, s->spelled[1]) && accept_scan_char(s, ']');
    }
    if (!scan_string(s, left, s->spelled[0]))
        return false;
    gap = memchr(left->p, ' ', left->len);
    if (!gap)
        return false;
    *right = (struct scanned_string){ gap + 1, left->len - (size_t)(gap + 1 - left->p) };
    left->len = (size_t)(gap - left->p);
    return true;
}

/* Put one half of a merge in the batch. A string without escape sequences stays where it is in the file's text. */
static bool add_merge_half(const struct json_scan *s, const struct bpe *b, struct merge_half *half, char kept[64],
                           struct scanned_string text)
{
    if (text.p >= s->spelled[0] && text.p < s->spelled[0] + sizeof s->spelled) {
        if (text.len > 64)
            return false;
        memcpy(kept, text.p, text.len);
        text.p = kept;
    }
    *half = (struct merge_half){ text, bpe_hash(text.p, text.len) };
    __builtin_prefetch(&b->by_text[half->hash & b->by_text_mask]);
    return true;
}

/*
 * Returns the number of the token that the halves of a merge are joined to, or -1. Merges are usually listed in the
 * order of these tokens, so the token after the last one is tried first.
 */
static int32_t find_joined(const struct bpe *b, const struct merge_half half[2], int32_t last)
{
    const struct scanned_string *left = &half[0].text, *right = &half[1].text;
    const struct bpe_token *t = last + 1 < b->n_ids ? &b->token[last + 1] : NULL;
    char both[2 * SCAN_SPELLED];

    if (t && t->text && t->text_len == left->len + right->len && memcmp(t->text, left->p, left->len) == 0 &&
        memcmp(t->text + left->len, right->p, right->len) == 0)
        return last + 1;
    if (left->len + right->len > sizeof both)
        return -1;
    memcpy(both, left->p, left->len);
    memcpy(both + left->len, right->p, right->len);
    return bpe_find_text(b, both, left->len + right->len, bpe_hash(both, left->len + right->len));
}

/*
 * Look up the merges of a batch and append them to the list. Their halves are valid UTF-8 because they are equal to
 * tokens.
 */
static bool finish_merge_batch(const struct bpe *b, struct merge_batch *batch, struct merge_list *list)
{
    ARRAY_ROOM(list->v, list->cap, list->n + SCAN_BATCH);
    for (int i = 0; i < batch->n; i++)
        for (int k = 0; k < 2; k++) {
            const struct bpe_text_slot *slot = &b->by_text[batch->half[i][k].hash & b->by_text_mask];

            if (slot->id >= 0)
                __builtin_prefetch(&b->token[slot->id]);
        }
    for (int i = 0; i < batch->n; i++) {
        const struct merge_half *half = batch->half[i];
        struct bpe_merge m = {
            .left = bpe_find_text(b, half[0].text.p, half[0].text.len, half[0].hash),
            .right = bpe_find_text(b, half[1].text.p, half[1].text.len, half[1].hash),
            .rank = (int32_t)list->n, .id = find_joined(b, half, list->n ? list->v[list->n - 1].id : -1),
        };

        if (m.left < 0 || m.right < 0 || m.id < 0)
            return false;
        list->v[list->n++] = m;
    }
    batch->n = 0;
    return true;
}

static bool scan_merge_list(struct json_scan *s, const struct bpe *b, struct merge_list *list)
{
    struct merge_batch batch;

    batch.n = 0;
    if (!accept_scan_char(s, '['))
        return false;
    do {
        struct scanned_string text[2];

        if (!scan_merge(s, &text[0], &text[1]) || list->n >= INT32_MAX / 2)
            return false;
        for (int k = 0; k < 2; k++)
            if (!add_merge_half(s, b, &batch.half[batch.n][k], batch.spelled[batch.n][k], text[k]))
                return false;
        if (++batch.n == SCAN_BATCH && !finish_merge_batch(b, &batch, list))
            return false;
    } while (accept_scan_char(s, ','));
    return finish_merge_batch(b, &batch, list) && accept_scan_char(s, ']');
}

static bool scan_merges(struct json_scan *s, struct bpe *b)
{
    enum { AHEAD = 8 };
    struct merge_list list = {0};
    bool ok = scan_merge_list(s, b, &list);

    if (ok)
        bpe_size_merges(b, list.n);
    for (size_t i = 0; ok && i < list.n; i++) {
        if (i + AHEAD < list.n)
            bpe_prefetch_merge(b, &list.v[i + AHEAD]);
        bpe_put_merge(b, &list.v[i]);
    }
    free(list.v);
    return ok;
}

/* ---- the file ---- */

bool bpe_scan_model(struct bpe *b, const char *text, size_t len, struct strbuf *rest)
{
    struct json_scan s = { .p = text, .end = text + len };
    const char *from = text;

    if (!accept_scan_char(&s, '{') || !seek_key(&s, "model") || !accept_scan_char(&s, '{') || !seek_key(&s, "vocab"))
        return false;
    strbuf_add(rest, from, (size_t)(s.p - from));
    if (!scan_vocab(&s, b))
        return false;
    strbuf_add(rest, "{}", 2);
    from = s.p;
    if (!seek_key(&s, "merges"))
        return false;
    strbuf_add(rest, from, (size_t)(s.p - from));
    if (!scan_merges(&s, b))
        return false;
    strbuf_add(rest, "[]", 2);
    strbuf_add(rest, s.p, (size_t)(text + len - s.p));
    return true;
}
