/*
 * bpe_encode.c - convert text to tokens
 *
 *   text -- added tokens --> stretches -- normal form, added tokens --> stretches -- steps --> pieces
 *   piece -- cache, else merging --> tokens
 *
 * Natural text repeats its pieces, so nearly all are found in the cache. Most of the time is then spent in the regular
 * expression (about two thirds) and in looking pieces up. Merging keeps the pairs of a piece in a heap, ordered by rank
 * and then by position. The time for a long piece thus grows with n log n; the usual search for the best pair would be
 * quadratic.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/text.h"
#include "libcommon/tokens/bpe_impl.h"

enum {
    SLOTS = 1 << 17, CACHE_BYTES = 4 << 20, CACHE_IDS = 1 << 20,
    MAX_CACHED = 64,                    /* maximum length of a cached piece in bytes; longer pieces rarely occur
                                         * again */
};

struct bpe_slot {
    uint32_t hash;
    uint32_t key, ids;                  /* offsets of the piece and of its tokens in the arrays of the cache */
    uint16_t key_len, n;                /* key_len 0: the slot is empty */
};

/* One symbol of the piece that is being merged. Symbols are linked by their indices. */
struct symbol {
    int32_t id, prev, next;             /* next < 0: this is the last symbol; id < 0: it was joined into its left
                                         * neighbour */
    int32_t rank;                       /* rank of the pair that consists of this symbol and the next; -1: the merge
                                         * list has no such pair */
};

struct bpe_encoder {
    const struct bpe *b;
    struct bpe_cutter cutter;
    struct bpe_slot *slot;              /* [SLOTS] */
    int n_slots;
    char *keys;                         /* [CACHE_BYTES] */
    int32_t *ids;                       /* [CACHE_IDS] */
    uint32_t keys_used, ids_used;
    struct symbol *symbol;
    uint64_t *heap;                     /* each entry is rank << 32 | position of the pair */
    size_t symbol_cap, heap_cap, heap_n;
    char *prefixed[BPE_MAX_STEPS];      /* [step]: buffer for a piece with a blank put in front */
    size_t prefixed_cap[BPE_MAX_STEPS];
};

struct bpe_encoder *bpe_encoder_new(const struct bpe *b)
{
    struct bpe_encoder *c = xcalloc(1, sizeof *c);

    c->b = b;
    if (b->plain_bytes)
        return c;
    bpe_cutter_init(&c->cutter);
    c->slot = xcalloc(SLOTS, sizeof *c->slot);
    c->keys = xmalloc(CACHE_BYTES);
    c->ids = xmalloc(CACHE_IDS * sizeof *c->ids);
    return c;
}

void bpe_encoder_free(struct bpe_encoder *c)
{
    if (!c)
        return;
    bpe_cutter_free(&c->cutter);
    for (int i = 0; i < BPE_MAX_STEPS; i++)
        free(c->prefixed[i]);
    free(c->slot);
    free(c->keys);
    free(c->ids);
    free(c->symbol);
    free(c->heap);
    free(c);
}

static void put_ids(struct bpe_ids *out, const int32_t *ids, int64_t n)
{
    if (n == 0)
        return;
    ARRAY_ROOM(out->v, out->cap, out->n + n);
    memcpy(out->v + out->n, ids, (size_t)n * sizeof *ids);
    out->n += n;
}

static void put_id(struct bpe_ids *out, int32_t id)
{
    put_ids(out, &id, 1);
}

/* ---- merging ---- */

static void heap_push(struct bpe_encoder *c, uint64_t v)
{
    size_t i = c->heap_n++;

    ARRAY_ROOM(c->heap, c->heap_cap, c->heap_n);
    for (; i && c->heap[(i - 1) / 2] > v; i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = v;
}

static uint64_t heap_pop(struct bpe_encoder *c)
{
    uint64_t top = c->heap[0], v = c->heap[--c->heap_n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < c->heap_n) {
        if (child + 1 < c->heap_n && c->heap[child + 1] < c->heap[child])
            child++;
        if (v <= c->heap[child])
            break;
        c->heap[i] = c->heap[child];
        i = child;
    }
    c->heap[i] = v;
    return top;
}

/* If the symbol at i and the next symbol form a pair of the merge list, push this pair on the heap. */
static void push_symbol_merge(struct bpe_encoder *c, int32_t i)
{
    struct symbol *s = &c->symbol[i];
    const struct bpe_merge *m = s->next < 0 ? NULL : bpe_find_merge(c->b, s->id, c->symbol[s->next].id);

    s->rank = m ? m->rank : -1;
    if (m)
        heap_push(c, (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)i);
}

/* Join the symbol after i into the symbol at i. */
static void merge_next_symbol(struct bpe_encoder *c, int32_t i)
{
    struct symbol *s = &c->symbol[i], *right = &c->symbol[s->next];

    s->id = bpe_find_merge(c->b, s->id, right->id)->id;
    right->id = -1;
    s->next = right->next;
    if (s->next >= 0)
        c->symbol[s->next].prev = i;
    push_symbol_merge(c, i);
    if (s->prev >= 0)
        push_symbol_merge(c, s->prev);
}

static void merge_piece(struct bpe_encoder *c, const char *p, size_t len, struct bpe_ids *out)
{
    ARRAY_ROOM(c->symbol, c->symbol_cap, len);
    c->heap_n = 0;
    for (size_t i = 0; i < len; i++)
        c->symbol[i] = (struct symbol){ .id = c->b->byte_id[(uint8_t)p[i]], .prev = (int32_t)i - 1,
                                        .next = i + 1 < len ? (int32_t)i + 1 : -1 };
    for (size_t i = 0; i + 1 < len; i++)
        push_symbol_merge(c, (int32_t)i);
    while (c->heap_n) {
        uint64_t best = heap_pop(c);
        int32_t i = (int32_t)(uint32_t)best;

        /* Ignore a heap entry whose pair has changed since it was pushed. */
        if (c->symbol[i].id >= 0 && c->symbol[i].rank == (int32_t)(best >> 32))
            merge_next_symbol(c, i);
    }
    for (int32_t i = 0; i >= 0; i = c->symbol[i].next)
        put_id(out, c->symbol[i].id);
}

static void make_tokens(struct bpe_encoder *c, const char *p, size_t len, struct bpe_ids *out)
{
    if (c->b->ignore_merges) {
        int32_t id = bpe_find_piece(c->b, p, len);

        if (id >= 0) {
            put_id(out, id);
            return;
        }
    }
    merge_piece(c, p, len, out);
}

/* ---- cache ---- */

static void cache_encoded_piece(struct bpe_encoder *c, struct bpe_slot *s, uint32_t hash, const char *p, size_t len,
                                struct bpe_ids made)
{
    /* If the cache is full, clear it. Frequent pieces return to it within a few thousand pieces. */
    if (c->n_slots > SLOTS / 2 || c->keys_used + len > CACHE_BYTES || c->ids_used + made.n > CACHE_IDS) {
        memset(c->slot, 0, SLOTS * sizeof *c->slot);
        c->n_slots = 0;
        c->keys_used = c->ids_used = 0;
        s = &c->slot[hash % SLOTS];
    }
    *s = (struct bpe_slot){ .hash = hash, .key = c->keys_used, .ids = c->ids_used, .key_len = (uint16_t)len,
                            .n = (uint16_t)made.n };
    memcpy(c->keys + c->keys_used, p, len);
    memcpy(c->ids + c->ids_used, made.v, (size_t)made.n * sizeof *made.v);
    c->keys_used += (uint32_t)len;
    c->ids_used += (uint32_t)made.n;
    c->n_slots++;
}

static void encode_piece(struct bpe_encoder *c, const char *p, size_t len, struct bpe_ids *out)
{
    int64_t before = out->n;
    uint32_t hash, i;

    if (len > MAX_CACHED) {
        make_tokens(c, p, len, out);
        return;
    }
    hash = bpe_hash(p, len);
    for (i = hash % SLOTS; c->slot[i].key_len; i = (i + 1) % SLOTS) {
        const struct bpe_slot *s = &c->slot[i];

        if (s->hash == hash && s->key_len == len && memcmp(c->keys + s->key, p, len) == 0) {
            put_ids(out, c->ids + s->ids, s->n);
            return;
        }
    }
    make_tokens(c, p, len, out);
    cache_encoded_piece(c, &c->slot[i], hash, p, len, (struct bpe_ids){ .v = out->v + before, .n = out->n - before });
}

/* ---- steps ---- */

static void put_blank_before(struct bpe_encoder *c, int step, const char **text, size_t *len)
{
    ARRAY_ROOM(c->prefixed[step], c->prefixed_cap[step], *len + 1);
    c->prefixed[step][0] = ' ';
    memcpy(c->prefixed[step] + 1, *text, *len);
    *text = c->prefixed[step];
    *len += 1;
}

/*
 * Apply step number `step`, then all later steps, to one piece. Returns -1 if a regular expression exceeds its limits.
 */
static int cut_piece(struct bpe_encoder *c, int step, const char *text, size_t len, struct bpe_ids *out)
{
    const struct bpe_step *s = &c->b->step[step];
    struct bpe_match m;
    size_t from = 0;
    int found = 0;

    if (len == 0)
        return 0;
    if (step == c->b->n_steps) {
        encode_piece(c, text, len, out);
        return 0;
    }
    if (s->add_prefix_space && text[0] != ' ')
        put_blank_before(c, step, &text, &len);
    if (!s->code)
        return cut_piece(c, step + 1, text, len, out);
    while (from < len && (found = bpe_cut(&c->cutter, s, text, len, from, &m)) > 0) {
        if (m.start > from && !s->remove_gaps && cut_piece(c, step + 1, text + from, m.start - from, out) < 0)
            return -1;
        if (!s->remove_matches && cut_piece(c, step + 1, text + m.start, m.end - m.start, out) < 0)
            return -1;
        from = m.end;
    }
    if (found < 0)
        return -1;
    return s->remove_gaps ? 0 : cut_piece(c, step + 1, text + from, len - from, out);
}

/* ---- added tokens ---- */

/* Returns the length of the character at p if it has the Unicode property White_Space, else 0. */
static size_t space_char(const char *p, size_t n)
{
    static const char *const wide[] = {         /* the white space characters from U+0085 to U+3000, in UTF-8 */
        "\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
        "\xe3\x80\x80",
    };

    if (n && (*p == ' ' || (*p >= '\t' && *p <= '\r')))
        return 1;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (n >= strlen(wide[i]) && memcmp(p, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    /* the characters U+2000 to U+200A */
    return n >= 3 && memcmp(p, "\xe2\x80", 2) == 0 && (uint8_t)p[2] >= 0x80 && (uint8_t)p[2] <= 0x8a ? 3 : 0;
}

/* Return the number of bytes of white space at the start, or at the end, of p[0..n). */
static size_t leading_space(const char *p, size_t n)
{
    size_t i = 0, len;

    while ((len = space_char(p + i, n - i)))
        i += len;
    return i;
}

static size_t trailing_space(const char *p, size_t n)
{
    size_t i = n;

    while (i) {
        size_t start = i - 1;

        while (start && ((uint8_t)p[start] & 0xc0) == 0x80)
            start--;
        if (space_char(p + start, i - start) != i - start)
            break;
        i = start;
    }
    return n - i;
}

/* A text, and which of the added tokens are searched in it. */
struct bpe_text {
    const char *p;
    size_t len;
    bool normalized;
};

/*
 * Returns the first added token in the text at or after `from`. If several begin at the same position, returns the
 * longest.
 */
static const struct bpe_added *find_added(const struct bpe *b, const struct bpe_text *t, size_t from, size_t *at)
{
    if (b->n_added == 0)
        return NULL;
    for (size_t i = from; i < t->len; i++) {
        if (!b->added_first[t->normalized][(uint8_t)t->p[i]])
            continue;
        for (int k = 0; k < b->n_added; k++) {
            const struct bpe_added *a = &b->added[k];

            if (a->normalized == t->normalized && a->len <= t->len - i && memcmp(t->p + i, a->text, a->len) == 0) {
                *at = i;
                return a;
            }
        }
    }
    return NULL;
}

/* Returns true if the token must be a word of its own, and the text continues the word on either side. */
static bool is_in_word(const struct bpe_added *a, const struct bpe_text *t, size_t at)
{
    const size_t end = at + a->len;

    return a->single_word &&
           (bpe_is_word_char(t->p + at, at, true) || bpe_is_word_char(t->p + end, t->len - end, false));
}

static int encode_stretches(struct bpe_encoder *c, const struct bpe_text *t, struct bpe_ids *out);

/* Encode bytes [from, end) of the text, which have no added token of the kind that was searched. */
static int encode_stretch(struct bpe_encoder *c, const struct bpe_text *t, size_t from, size_t end, struct bpe_ids *out)
{
    struct bpe_text next = { .p = t->p + from, .len = end - from, .normalized = true };
    char *made = NULL;
    int rc;

    if (from >= end)
        return 0;
    if (t->normalized)
        return cut_piece(c, 0, next.p, next.len, out);
    if (c->b->nfc)
        next.p = bpe_normalize(next.p, &next.len, &made);
    rc = encode_stretches(c, &next, out);
    free(made);
    return rc;
}

/*
 * Encode the text around added tokens. A token that consists of blanks is found even if the previous added token has
 * consumed these blanks.
 */
static int encode_stretches(struct bpe_encoder *c, const struct bpe_text *t, struct bpe_ids *out)
{
    const struct bpe_added *a;
    size_t from = 0, seek = 0, at;      /* from: end of the text that has been encoded so far */

    while ((a = find_added(c->b, t, seek, &at))) {
        size_t stop = at;

        seek = at + a->len;
        if (is_in_word(a, t, at))
            continue;
        if (a->lstrip && at > from)
            stop -= trailing_space(t->p + from, at - from);
        if (encode_stretch(c, t, from, stop, out) < 0)
            return -1;
        put_id(out, a->id);
        from = seek;
        if (a->rstrip)
            from += leading_space(t->p + from, t->len - from);
    }
    return encode_stretch(c, t, from, t->len, out);
}

/* ---- whole texts ---- */

static void encode_bytes(const char *text, size_t len, struct bpe_ids *out)
{
    ARRAY_ROOM(out->v, out->cap, out->n + (int64_t)len);
    for (size_t i = 0; i < len; i++)
        out->v[out->n + (int64_t)i] = (uint8_t)text[i];
    out->n += (int64_t)len;
}

int bpe_encode(struct bpe_encoder *c, const char *text, size_t len, struct bpe_ids *out, struct err *e)
{
    size_t bad;

    if (len > INT32_MAX) {
        err_data(e, "text", ERR_NO_BYTE, "%zu bytes, at most %d are supported", len, INT32_MAX);
        return -1;
    }
    if (c->b->plain_bytes) {
        encode_bytes(text, len, out);
        return 0;
    }
    bad = utf8_check(text, len);
    if (bad < len) {
        err_data(e, "text", bad, "not UTF-8 (byte 0x%02x)", (uint8_t)text[bad]);
        return -1;
    }
    put_ids(out, c->b->before, c->b->n_before);
    if (encode_stretches(c, &(struct bpe_text){ .p = text, .len = len }, out) < 0) {
        err_data(e, "text", ERR_NO_BYTE, "the tokenizer's regular expression needs too many steps");
        return -1;
    }
    put_ids(out, c->b->after, c->b->n_after);
    return 0;
}
